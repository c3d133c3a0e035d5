//! Chat templates against transformers: texts of `apply_chat_template`, and ids where what a message spells is text.
//!
//! `tests/data/make/chat.py` made the reference.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::json;
use smol_tests::common::{Checkpoint, REAL, TempDir, TensorDtype, blob, data, tales_with_template};
use smolconv::{Options, Progress, convert};
use smolrun::chat::{ChatOptions, ChatTemplate};
use smolrun::{
    CancelToken, FinishReason, GenerateOptions, Message, Model, Session, SessionOptions, SpecialTokens,
};

/// What transformers made of a conversation.
#[derive(Deserialize)]
struct Rendered {
    text: Option<String>,
    error: Option<String>,
    ids: Option<Vec<u32>>,
}

/// By conversation: with what begins the assistant's answer, and without.
type Rows = BTreeMap<String, [Rendered; 2]>;

#[derive(Deserialize)]
struct Other {
    tokens: BTreeMap<String, String>,
    rows: Rows,
}

#[derive(Deserialize)]
struct Reference {
    /// Seconds since 1970 that `strftime_now` saw.
    now: u64,
    conversations: BTreeMap<String, Vec<(String, String)>>,
    smollm2: Rows,
    templates: BTreeMap<String, Other>,
}

fn reference() -> Reference {
    serde_json::from_slice(&fs::read(data("chat/reference.json")).unwrap()).unwrap()
}

impl Reference {
    fn messages(&self, name: &str) -> Vec<Message> {
        self.conversations[name].iter().map(|(role, content)| Message::new(role, content)).collect()
    }

    /// How `render` is to be asked for the two texts of a row.
    fn options(&self) -> [ChatOptions; 2] {
        let options = ChatOptions::default().now(UNIX_EPOCH + Duration::from_secs(self.now));
        [options.clone(), options.add_generation_prompt(false)]
    }
}

fn check(expected: &Rendered, found: smolrun::Result<String>, place: &str) {
    match (&expected.text, &expected.error) {
        (Some(text), _) => {
            assert_eq!(&found.unwrap_or_else(|error| panic!("{place}: {error}")), text, "{place}")
        }
        (_, Some(error)) => {
            let found = found.expect_err(place).to_string();
            assert!(found.contains(error), "{place}: {found}");
        }
        _ => panic!("{place}: the reference has neither a text nor an error"),
    }
}

#[test]
#[ignore = "needs the real model: scripts/fetch_model.sh smollm2-135m-instruct"]
fn smollm2_s_conversations_have_the_text_and_the_ids_of_transformers() {
    let (model, reference) = (Model::open(blob(REAL)).unwrap(), reference());
    assert!(reference.smollm2.len() >= 30);
    for (name, rows) in &reference.smollm2 {
        let messages = reference.messages(name);
        for (expected, options) in rows.iter().zip(reference.options()) {
            check(expected, model.render_chat(&messages, &options), name);
        }
        assert_eq!(Some(model.encode_chat(&messages).unwrap()), rows[0].ids, "{name}");
    }
}

#[test]
fn popular_templates_render_as_in_transformers() {
    let reference = reference();
    assert!(reference.templates.len() >= 10);
    for (name, other) in &reference.templates {
        let source = fs::read_to_string(data(&format!("chat/templates/{name}.jinja"))).unwrap();
        let template = ChatTemplate::new(&source).unwrap();
        assert_eq!(other.rows.len(), reference.conversations.len());
        for (conversation, rows) in &other.rows {
            for (expected, mut options) in rows.iter().zip(reference.options()) {
                for (token, text) in &other.tokens {
                    options = options.variable(token, text.as_str());
                }
                let found = template.render(&reference.messages(conversation), &options);
                check(expected, found, &format!("{name}, {conversation}"));
            }
        }
    }
}

/// Converts a checkpoint with this `chat_template.jinja` and `tokenizer_config.json`; gives the blob to `then`.
fn with_template(template: &str, config: &str, then: impl FnOnce(Result<Model, String>)) {
    let temp = TempDir::new();
    let mut checkpoint = Checkpoint::tiny(TensorDtype::F32);
    checkpoint.files.insert("chat_template.jinja".into(), template.into());
    checkpoint.files.insert("tokenizer_config.json".into(), config.into());
    let (source, out) = (temp.join("model"), temp.join("blob.bin"));
    checkpoint.write(&source);
    let options = Options { force: true, ..Options::new(source, &out) };
    let result = convert(&options, &Progress::new(true)).map_err(|error| error.to_string());
    then(result.map(|_| Model::open(&out).unwrap()));
}

#[test]
fn popular_templates_pass_the_converter_and_know_their_special_tokens() {
    let reference = reference();
    for (name, other) in &reference.templates {
        let source = fs::read_to_string(data(&format!("chat/templates/{name}.jinja"))).unwrap();
        let config = json!(other.tokens).to_string();
        with_template(&source, &config, |model| {
            let model = model.unwrap_or_else(|error| panic!("{name}: {error}"));
            for conversation in ["three turns", "three turns, system"] {
                let [expected, _] = &other.rows[conversation];
                let [options, _] = reference.options();
                let found = model.render_chat(&reference.messages(conversation), &options);
                check(expected, found, &format!("{name}, {conversation}"));
            }
        });
    }
}

#[test]
fn special_tokens_are_those_of_tokenizer_config() {
    let template = "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ unk_token is defined }}|";
    let config = json!({
        "bos_token": null, "eos_token": { "content": "<\"e\\n\n>", "special": true }, "pad_token": "日", "mask_token": "m",
    });
    with_template(template, &config.to_string(), |model| {
        let text = model.unwrap().render_chat(&[], &ChatOptions::default()).unwrap();
        assert_eq!(text, "|<\"e\\n\n>|日|False|");
    });
    // Without a word of it there the config's ids name them.
    with_template(template, "{}", |model| {
        let model = model.unwrap();
        assert_eq!(
            model.render_chat(&[], &ChatOptions::default()).unwrap(),
            "<|endoftext|>|<|endoftext|>||False|"
        );
        let options = ChatOptions::default().variable("eos_token", "<e>");
        assert_eq!(model.render_chat(&[], &options).unwrap(), "<|endoftext|>|<e>||False|");
    });
    with_template(template, r#"{"eos_token": 7}"#, |model| {
        let error = model.unwrap_err();
        let expected = "eos_token: expected a text, an object with content, or null, found 7";
        assert!(error.contains(expected), "{error}");
    });
}

#[test]
fn what_the_runtime_cannot_render_is_refused_at_conversion_by_name() {
    for (template, expected) in [
        (
            "{% for m in messages %}{{ m.content | urlize }}{% endfor %}",
            "filter urlize (line 1) is not supported",
        ),
        ("a\nb {{ messages[0].content.title() }}", "method title (line 2) is not supported"),
        ("{% if messages is callable %}{% endif %}", "test callable (line 1) is not supported"),
        ("{% import 'x' as x %}", "statement import (line 1) is not supported"),
        ("{{ cycler(1, 2) }}", "function cycler (line 1) is not supported"),
        ("{% if messages %}", "syntax error"),
        ("{{ raise_exception('nobody may speak') }}", "nobody may speak"),
        ("{{ messages | map('string') }}", "cannot be printed"),
    ] {
        with_template(template, "{}", |model| {
            let error = model.unwrap_err();
            let way_out = "an empty chat_template.jinja beside the weights leaves the template out";
            assert!(
                error.contains("chat_template.jinja: chat_template: ") && error.contains(expected),
                "{error}"
            );
            assert!(error.ends_with(way_out), "{error}");
        });
    }
}

#[test]
fn a_template_that_cuts_messages_makes_no_control_token_of_what_is_left() {
    let temp = TempDir::new();
    let template = "{% for said in messages %}<|im_start|>{{ said.content.replace('/x', '').split('</t>')[-1] }}{% endfor %}";
    let model = Model::open(tales_with_template(&temp, template)).unwrap();
    let tokenizer = model.tokenizer();
    for (content, left) in [
        ("<|im_/xend|> a", "<|im_end|> a"),
        ("a <|im_s/xtart|><|im_end/x|>", "a <|im_start|><|im_end|>"),
        ("<|im_</t>end|>", "end|>"),
        ("<|im_end|> </t>the end", "the end"),
        ("/x<b>", "<b>"),
    ] {
        let ids = model.encode_chat(&[Message::new("user", content)]).unwrap();
        let mut expected = tokenizer.encode("<|im_start|>", SpecialTokens::Parse).unwrap();
        assert_eq!(ids[..1], expected, "{content}");
        // Where a token would have come to be, the template did not see its own marks.
        expected.extend(tokenizer.encode(left, SpecialTokens::AsText).unwrap());
        assert_eq!(ids, expected, "{content}");
        let options = ChatOptions::default();
        let text = model.render_chat(&[Message::new("user", content)], &options).unwrap();
        assert_eq!(text, format!("<|im_start|>{left}"));
    }
}

/// Wherever it stands, what others wrote is text: in tools, in what they are called with and return, in reasoning.
#[test]
fn what_tools_and_their_results_say_makes_no_control_token() {
    let temp = TempDir::new();
    let template = "<|im_start|>{% for tool in tools or [] %}{{ tool | tojson }}{{ tool }}{{ tool | tojson(ensure_ascii=true) }}\
        {{ tool.name ~ tool.rest }}{% endfor %}{% for d in documents or [] %}{{ d.text }}{% endfor %}\
        {% for said in messages %}{{ said | tojson }}{{ said.reasoning_content }}{{ said.content }}{{ said.name }}\
        {% for call in said.tool_calls %}{{ call.arguments }}{% set read = call.arguments | from_json %}{{ read.a }}{{ read | tojson }}\
        {{ read | upper | lower }}{{ read.a.split('x') | join }}{% endfor %}{% endfor %}<|im_end|>";
    let model = Model::open(tales_with_template(&temp, template)).unwrap();
    let tokenizer = model.tokenizer();
    let special: Vec<u32> = tokenizer.special_tokens().unwrap().into_iter().map(|(id, _)| id).collect();
    let expected = tokenizer.encode("<|im_start|><|im_end|>", SpecialTokens::Parse).unwrap();
    let end = "<|im_end|>";
    // Whole, in parts, in another case, with something to be cut out, and with its characters as escapes.
    let arguments = [
        r#"{"a": "<|im_end|>"}"#,
        r#"{"a": "<|im_", "b": "end|>"}"#,
        r#"{"a": "<|IM_END|>"}"#,
        r#"{"a": "<|im_xend|>"}"#,
        r#"{"a": "\u003c|im_end|\u003e"}"#,
        r#"{"a": "\u003c\u007c\u0069\u006d\u005fend|>"}"#,
        r#"{"<|im_end|>": "<|im_end|>", "a": "x"}"#,
        r#"{"\u003c|im_end|>": 1, "a": "x"}"#,
    ];
    for arguments in arguments {
        let call = json!([{ "name": end, end: end, "arguments": arguments }]).to_string();
        let messages = [
            Message::new("assistant", "").reasoning_content(end).tool_calls(&call).unwrap(),
            Message::new("tool", arguments).name(end).tool_call_id(end),
            Message::from_json(
                &json!({ "role": "user", "content": end, end: [end, { end: end }] }).to_string(),
            )
            .unwrap(),
        ];
        let tools = json!([{ "name": "<|im_", "rest": "end|>", end: [end], "x": arguments }]).to_string();
        let documents = json!([{ "text": end }]).to_string();
        let options = ChatOptions::default().tools(&tools).unwrap().documents(&documents).unwrap();
        let ids = model.encode_chat_with(&messages, &options).unwrap();
        let controls: Vec<u32> = ids.into_iter().filter(|id| special.contains(id)).collect();
        assert_eq!(controls, expected, "{arguments}");
        let text = model.render_chat(&messages, &options).unwrap();
        assert!(
            text.chars().all(|c| !('\u{fdd0}'..='\u{fdef}').contains(&c)) && !text.contains("fdd0"),
            "{text}"
        );
    }
}

/// The conversation that the library's first page shows.
#[test]
fn a_second_turn_computes_what_is_new_and_a_cancelled_answer_is_part_of_it() {
    let temp = TempDir::new();
    let template = "{% for said in messages %}{{ said.role }}: {{ said.content }}\n{% endfor %}";
    let model = Model::open(tales_with_template(&temp, template)).unwrap();
    let mut session = Session::new(&model, SessionOptions::default()).unwrap();
    let cancel = CancelToken::default();
    let mut messages = vec![Message::new("system", "A tale.")];
    let mut before = 0;
    for (question, is_cancelled) in [("Who was she?", true), ("And then?", false)] {
        messages.push(Message::new("user", question));
        let prompt = model.encode_chat(&messages).unwrap();
        let kept = session.keep_common_prefix(&prompt);
        assert!(kept + 4 >= before, "{kept} of {before} tokens");
        before = prompt.len();
        let options = GenerateOptions::default().max_tokens(20).cancel(&cancel);
        let (mut answer, mut tokens) = (String::new(), 0);
        let mut generator = session.generate(&prompt[kept..], options).unwrap();
        for token in generator.by_ref() {
            answer += &token.unwrap().text;
            tokens += 1;
            if is_cancelled && tokens == 5 {
                cancel.clone().cancel();
            }
        }
        let expected = if is_cancelled { (FinishReason::Cancelled, 6) } else { (FinishReason::Length, 20) };
        assert_eq!((generator.finish_reason().unwrap(), tokens), expected);
        messages.push(Message::new("assistant", answer));
        cancel.reset();
    }
}
