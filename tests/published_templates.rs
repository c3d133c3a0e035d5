//! Chat templates as they were published, against transformers: each renders as there, and fails where it does there.
//!
//! `tests/data/make/templates.py` made the reference, of which the texts themselves would be 3 MB.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};
use std::{env, fs};

use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use smol_tests::common::{Blob, Checkpoint, TensorDtype, data};
use smolconv::json::Document;
use smolconv::tokenizer::chat_template;
use smolrun::chat::{ChatOptions, ChatTemplate};
use smolrun::format::Kind;
use smolrun::{Message, Model};

#[derive(Deserialize)]
struct Reference {
    /// Seconds since 1970 that `strftime_now` saw.
    now: u64,
    variables: BTreeMap<String, String>,
    conversations: BTreeMap<String, Conversation>,
    /// By name and conversation.
    templates: BTreeMap<String, BTreeMap<String, Rendered>>,
}

/// All but the flag as JSON, whose order is part of what a template sees.
#[derive(Deserialize)]
struct Conversation {
    messages: String,
    tools: Option<String>,
    documents: Option<String>,
    add_generation_prompt: bool,
}

/// What transformers made of a conversation.
#[derive(Deserialize)]
#[serde(untagged)]
enum Rendered {
    Text { len: usize, sha256: String },
    Error { error: String },
}

impl Reference {
    fn read() -> Reference {
        serde_json::from_slice(&fs::read(data("chat/published.json")).unwrap()).unwrap()
    }

    fn options(&self, conversation: &Conversation) -> ChatOptions {
        let mut options = ChatOptions::default()
            .now(UNIX_EPOCH + Duration::from_secs(self.now))
            .add_generation_prompt(conversation.add_generation_prompt);
        for (name, text) in &self.variables {
            options = options.variable(name, text.as_str());
        }
        if let Some(tools) = &conversation.tools {
            options = options.tools(tools).unwrap();
        }
        if let Some(documents) = &conversation.documents {
            options = options.documents(documents).unwrap();
        }
        options
    }
}

impl Conversation {
    fn messages(&self) -> Vec<Message> {
        Message::list_from_json(&self.messages).unwrap()
    }

    /// The messages with the texts of their parts as contents, and an empty one where there is none; none if all have texts.
    fn with_texts(&self) -> Option<Vec<Message>> {
        let mut messages: Vec<Value> = serde_json::from_str(&self.messages).unwrap();
        let mut is_changed = false;
        for message in &mut messages {
            let text = match &message["content"] {
                Value::Array(parts) => {
                    parts.iter().map(|part| part["text"].as_str().unwrap()).collect::<Vec<_>>().join("\n")
                }
                Value::Null => String::new(),
                _ => continue,
            };
            message["content"] = text.into();
            is_changed = true;
        }
        is_changed.then(|| Message::list_from_json(&Value::from(messages).to_string()).unwrap())
    }
}

/// The file of a published template.
fn path(name: &str) -> PathBuf {
    let published = env::var_os("SMOL_PUBLISHED");
    let published = published.expect("SMOL_PUBLISHED is not set: scripts/test.sh sets it");
    PathBuf::from(published).join(format!("models/templates/{name}.jinja"))
}

/// Its source.
fn source(name: &str) -> String {
    let path = path(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// How `found` differs from what transformers made, if it does.
fn difference(expected: &Rendered, found: smolrun::Result<String>) -> Option<String> {
    match (expected, found) {
        (Rendered::Text { len, sha256 }, Ok(text)) => {
            let found: String = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
            (found != *sha256).then(|| format!("another text: {} bytes, expected {len}:\n{text}", text.len()))
        }
        (Rendered::Text { .. }, Err(error)) => Some(error.to_string()),
        (Rendered::Error { error }, Ok(_)) => Some(format!("a text, where there should be {error}")),
        // What the template itself says is to be said here, too.
        (Rendered::Error { error }, Err(found)) => {
            let raised = error.strip_prefix("TemplateError: ")?;
            (!found.to_string().contains(raised)).then(|| format!("{found}, expected {raised}"))
        }
    }
}

#[test]
#[ignore = "needs published templates: scripts/test.sh fetches them"]
fn published_templates_render_as_in_transformers() {
    let reference = Reference::read();
    assert_eq!(reference.templates.len(), 70);
    let (mut differences, mut texts, mut errors) = (Vec::new(), 0, 0);
    for (name, rows) in &reference.templates {
        let template = match ChatTemplate::new(&source(name)) {
            Ok(template) => template,
            Err(error) => {
                differences.push(format!("{name}: {error}"));
                continue;
            }
        };
        differences.extend(template.unknown().map(|what| format!("{name}: {what} is not known")));
        assert_eq!(rows.len(), reference.conversations.len());
        for (conversation, expected) in rows {
            match expected {
                Rendered::Text { .. } => texts += 1,
                Rendered::Error { .. } => errors += 1,
            }
            let told = &reference.conversations[conversation];
            let found = template.render(&told.messages(), &reference.options(told));
            let difference = difference(expected, found);
            differences.extend(difference.map(|difference| format!("{name}, {conversation}: {difference}")));
        }
    }
    println!("{texts} texts and {errors} errors compared");
    let listed = differences.join("\n");
    assert!(differences.is_empty(), "{} differences:\n{listed}", differences.len());
}

/// What guards a conversation's texts changes nothing of what is read. Where a template reads no parts, or fails without a
/// content, transformers fails or prints Python's lists. A model reads the texts in the parts, or an empty one.
#[test]
#[ignore = "needs published templates: scripts/test.sh fetches them"]
fn published_templates_pass_the_converter_and_the_guard() {
    let reference = Reference::read();
    let mut checkpoint = Checkpoint::tiny(TensorDtype::F32);
    checkpoint.files.insert("chat_template.jinja".into(), b"x".to_vec());
    let mut blob = Blob::of(&checkpoint);
    let (mut refused, mut differences, mut for_texts) = (Vec::new(), Vec::new(), BTreeMap::new());
    for (name, rows) in &reference.templates {
        let template = match chat_template::read(Some(&Document::read(&path(name)).unwrap()), None) {
            Ok(template) => template.unwrap(),
            Err(error) => {
                refused.push((name.as_str(), error.to_string()));
                continue;
            }
        };
        let compiled = ChatTemplate::new(&template).unwrap();
        let part = blob.part(Kind::ChatTemplate);
        part.shape = [template.len() as u64, 1];
        part.content = template.into_bytes();
        let model = Model::from_bytes(blob.build()).unwrap();
        for (conversation, expected) in rows {
            let told = &reference.conversations[conversation];
            let options = reference.options(told);
            let found = model.render_chat(&told.messages(), &options);
            let of_texts = told.with_texts().and_then(|messages| compiled.render(&messages, &options).ok());
            let has_texts = of_texts.is_some() && found.as_ref().ok() == of_texts.as_ref();
            match difference(expected, found) {
                Some(_) if has_texts => *for_texts.entry(conversation.as_str()).or_insert(0) += 1,
                other => differences.extend(other.map(|other| format!("{name}, {conversation}: {other}"))),
            }
        }
    }
    let listed = differences.join("\n");
    assert!(differences.is_empty(), "{} differences:\n{listed}", differences.len());
    assert_eq!(
        for_texts,
        BTreeMap::from([("arguments as text", 9), ("content in parts", 39), ("two calls", 10)])
    );
    // It needs variables, `functions` and `datetime`, of which transformers has nothing by itself either.
    let names: Vec<&str> = refused.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["fireworks-ai-llama-3-firefunction-v2"], "{refused:#?}");
    assert!(refused[0].1.contains("variable functions is undefined (line 21)"), "{refused:#?}");
}
