//! Contents of messages that a template does not read as they are: lists of parts, as OpenAI's clients write them
//! (`[{"type": "text", "text": "Hello"}]`), and none where the assistant only calls tools.

use std::borrow::Cow;

use super::jinja::Value;
use super::json::wrong;
use super::message::within;
use super::{ChatOptions, ChatTemplate, Message};
use crate::error::Result;

/// The messages as `template` reads them. One that does not read parts gets their texts, with a line break between two. One
/// that fails without a content gets an empty one.
pub(super) fn readable<'a>(
    messages: &'a [Message],
    template: &ChatTemplate,
    options: &ChatOptions,
) -> Result<Cow<'a, [Message]>> {
    let mut readable = Cow::Borrowed(messages);
    if messages.iter().any(Message::has_parts) && !reads_parts(template, options) {
        let numbered = messages.iter().zip(1..);
        let joined = numbered.map(|(said, number)| joined(said).map_err(|error| within(error, number)));
        readable = joined.collect::<Result<_>>()?;
    }
    if messages.iter().any(Message::lacks_content) && template.render(&readable, options).is_err() {
        let filled: Vec<Message> = readable.iter().map(filled).collect();
        if template.render(&filled, options).is_ok() {
            readable = filled.into();
        }
    }
    Ok(readable)
}

/// The message, with an empty content if it has none.
fn filled(message: &Message) -> Message {
    let message = message.clone();
    if message.lacks_content() { message.with_content(String::new()) } else { message }
}

/// Whether the template makes the same of a part as of its text.
fn reads_parts(template: &ChatTemplate, options: &ChatOptions) -> bool {
    let render = |message| template.render(&[Message::from_json(message)?], options);
    let text = render(r#"{"role": "user", "content": "Hello"}"#);
    let part = render(r#"{"role": "user", "content": [{"type": "text", "text": "Hello"}]}"#);
    matches!((text, part), (Ok(text), Ok(part)) if text == part)
}

/// The message with what its parts say.
fn joined(message: &Message) -> Result<Message> {
    let Some(parts) = message.parts()? else { return Ok(message.clone()) };
    let texts: Vec<&str> = parts.iter().map(text_of).collect::<Result<_>>()?;
    Ok(message.clone().with_content(texts.join("\n")))
}

fn text_of(part: &Value) -> Result<&str> {
    const EXPECTED: &str = r#"a text, or parts such as {"type": "text", "text": "Hello"}, as the chat template reads nothing else"#;
    let no_text = |found: &str| wrong("message: content", EXPECTED, found);
    let Value::Dict(part) = part else { return Err(no_text(part.kind())) };
    let field = |name| part.entries().iter().find(|(key, _)| key.as_text() == Some(name))?.1.as_text();
    match (field("type"), field("text")) {
        (Some("text"), Some(text)) => Ok(text),
        (Some("text"), None) => Err(no_text("a part without a text")),
        (Some(kind), _) => Err(no_text(&format!("a part of the type {}", kind.escape_debug()))),
        (None, _) => Err(no_text("a part without a type")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOR_TEXTS: &str = "{% for m in messages %}{{ m.role + ': ' + m.content }};{% endfor %}";
    const FOR_PARTS: &str = "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}\
                             {% for part in m.content %}{{ part.text or part.type }}{% endfor %}{% endif %};{% endfor %}";

    fn rendered(template: &str, messages: &str) -> Result<String> {
        let template = ChatTemplate::new(template)?;
        let options = ChatOptions::default();
        let messages = Message::list_from_json(messages)?;
        template.render(&readable(&messages, &template, &options)?, &options)
    }

    #[test]
    fn parts_that_a_template_does_not_read_become_a_text() {
        let messages = r#"[{"role": "system", "content": "Be [brief]."}, {"content": [{"type": "text", "text": "A \"fox\""},
            {"text": "runs.", "type": "text"}], "role": "user"}, {"role": "user", "content": []}]"#;
        let texts = rendered(FOR_TEXTS, messages);
        assert_eq!(texts.unwrap(), "system: Be [brief].;user: A \"fox\"\nruns.;user: ;");
        let parts = rendered(FOR_PARTS, messages);
        assert_eq!(parts.unwrap(), "system: Be [brief].;user: A \"fox\"runs.;user: ;");
    }

    #[test]
    fn other_parts_are_refused_unless_the_template_reads_them() {
        for (part, found) in [
            (r#"{"type": "image_url"}"#, "a part of the type image_url"),
            (r#"{"type": "text"}"#, "a part without a text"),
            (r#"{"text": "Hello"}"#, "a part without a type"),
            ("\"Hello\"", "string"),
        ] {
            let messages = format!(r#"[{{"role": "user", "content": [{part}]}}]"#);
            let error = rendered(FOR_TEXTS, &messages).unwrap_err().to_string();
            assert!(error.starts_with("message: content: expected a text, or parts such as"), "{error}");
            assert!(error.ends_with(&format!("found {found}, in message 1")), "{error}");
            assert!(rendered(FOR_PARTS, &messages).is_ok());
        }
    }

    #[test]
    fn a_content_that_is_missing_is_empty_where_a_template_fails_without() {
        let calls = r#"[{"type": "function", "function": {"name": "now", "arguments": {}}}]"#;
        let defined = "{{ messages[0].content is defined }} {{ messages[0].content is none }}";
        for (content, expected) in
            [("", "False False"), (r#""content": null, "#, "True True"), (r#""content": "", "#, "True False")]
        {
            let messages = format!(r#"[{{"role": "assistant", {content}"tool_calls": {calls}}}]"#);
            assert_eq!(rendered(FOR_TEXTS, &messages).unwrap(), "assistant: ;", "{content}");
            assert_eq!(rendered(defined, &messages).unwrap(), expected, "{content}");
        }
        // What fails anyway says so of what was given.
        let error = rendered(
            "{{ messages[0].content + 1 }}",
            &format!(r#"[{{"role": "a", "tool_calls": {calls}}}]"#),
        );
        assert!(error.unwrap_err().to_string().contains("undefined"));
    }

    #[test]
    fn what_has_no_parts_stays() {
        let messages = [Message::new("user", "[1]"), Message::new("tool", "")];
        let template = ChatTemplate::new(FOR_TEXTS).unwrap();
        let same = readable(&messages, &template, &ChatOptions::default()).unwrap();
        assert!(matches!(same, Cow::Borrowed(_)));
    }
}
