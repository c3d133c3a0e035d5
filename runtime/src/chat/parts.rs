//! A message's `content` as a list of parts, as OpenAI's clients write it: `[{"type": "text", "text": "Hello"}]`.

use std::borrow::Cow;

use super::jinja::Value;
use super::json::wrong;
use super::{ChatOptions, ChatTemplate, Message};
use crate::error::{Error, Result};

/// The messages as `template` reads them: one that does not read parts gets their texts, with a line break between two.
pub(super) fn readable<'m>(
    messages: &'m [Message],
    template: &ChatTemplate,
    options: &ChatOptions,
) -> Result<Cow<'m, [Message]>> {
    if messages.iter().all(|said| said.parts().is_none()) || reads_parts(template, options) {
        return Ok(messages.into());
    }
    messages.iter().map(with_text).collect()
}

/// Whether the template makes the same of a part as of its text.
fn reads_parts(template: &ChatTemplate, options: &ChatOptions) -> bool {
    let render = |json| template.render(&[Message::from_json(json)?], options);
    let text = render(r#"{"role": "user", "content": "Hello"}"#);
    let part = render(r#"{"role": "user", "content": [{"type": "text", "text": "Hello"}]}"#);
    matches!((text, part), (Ok(text), Ok(part)) if text == part)
}

/// The message with what its parts say as its text.
fn with_text(message: &Message) -> Result<Message> {
    let Some(parts) = message.parts() else { return Ok(message.clone()) };
    let Value::List(parts) = parts.value().map_err(|problem| Error::Template { problem })? else {
        return Ok(message.clone());
    };
    let texts = parts.items.iter().map(text_of).collect::<Result<Vec<_>>>()?;
    Ok(message.clone().with_content(texts.join("\n")))
}

fn text_of(part: &Value) -> Result<&str> {
    let Value::Dict(dict) = part else { return Err(unreadable(part.kind())) };
    let field = |name| dict.entries().iter().find(|(key, _)| key.as_text() == Some(name))?.1.as_text();
    match (field("type"), field("text")) {
        (Some("text"), Some(text)) => Ok(text),
        (Some("text") | None, _) => Err(unreadable("a part without them")),
        (Some(other), _) => Err(unreadable(&format!("a part of type {other:?}"))),
    }
}

fn unreadable(found: &str) -> Error {
    let expected = "a text, or parts such as {\"type\": \"text\", \"text\": \"Hello\"}, as the chat template reads nothing else";
    wrong("message: content", expected, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a template makes of a message with this content.
    fn rendered(template: &str, content: &str) -> std::result::Result<String, String> {
        let template = ChatTemplate::new(template).unwrap();
        let message = Message::from_json(&format!(r#"{{"role": "user", "content": {content}}}"#)).unwrap();
        let messages = [Message::new("system", "Be [brief]."), message];
        let options = ChatOptions::default();
        let readable = readable(&messages, &template, &options).map_err(|error| error.to_string())?;
        Ok(template.render(&readable, &options).unwrap())
    }

    const PRINTS: &str = "{% for m in messages %}<{{ m.content }}>{% endfor %}";
    const READS: &str = "{% for m in messages %}<{% if m.content is string %}{{ m.content }}{% else %}\
                         {% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}>{% endfor %}";

    #[test]
    fn parts_that_a_template_does_not_read_become_a_text() {
        let parts = r#"[{"type": "text", "text": "A \"fox\""}, {"text": "runs.", "type": "text"}]"#;
        assert_eq!(rendered(PRINTS, parts).unwrap(), "<Be [brief].><A \"fox\"\nruns.>");
        assert_eq!(rendered(READS, parts).unwrap(), "<Be [brief].><A \"fox\"runs.>");
        assert_eq!(rendered(PRINTS, "[]").unwrap(), "<Be [brief].><>");
        assert_eq!(rendered(PRINTS, "\"[1]\"").unwrap(), "<Be [brief].><[1]>");
    }

    #[test]
    fn other_parts_are_refused_unless_the_template_reads_them() {
        for (part, found) in [
            (r#"{"type": "image_url"}"#, "a part of type \"image_url\""),
            (r#"{"type": "text"}"#, "a part without them"),
            (r#"{"text": "Hello"}"#, "a part without them"),
            ("\"Hello\"", "string"),
        ] {
            let error = rendered(PRINTS, &format!("[{part}]")).unwrap_err();
            assert!(error.starts_with("message: content: expected a text, or parts such as"), "{error}");
            assert!(error.ends_with(&format!("reads nothing else, found {found}")), "{error}");
            assert!(rendered(READS, &format!("[{part}]")).is_ok());
        }
    }
}
