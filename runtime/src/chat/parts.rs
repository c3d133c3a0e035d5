//! A `content` that is a list of parts, as OpenAI's API has it: `[{"type": "text", "text": "Hello"}]`.

use std::borrow::Cow;

use super::jinja::Value;
use super::json::{Json, wrong};
use super::{ChatOptions, ChatTemplate, Message};
use crate::error::Result;

/// The messages as a template reads them. One that knows no parts is told their texts, with a line break between two.
pub(super) fn readable<'m>(
    messages: &'m [Message],
    template: &ChatTemplate,
    options: &ChatOptions,
) -> Result<Cow<'m, [Message]>> {
    if !messages.iter().any(Message::has_parts) || reads_parts(template, options) {
        return Ok(Cow::Borrowed(messages));
    }
    messages.iter().map(Message::with_joined_parts).collect::<Result<_>>().map(Cow::Owned)
}

/// Whether a template makes the same of a part as of its text.
fn reads_parts(template: &ChatTemplate, options: &ChatOptions) -> bool {
    let options = ChatOptions { tools: None, documents: None, ..options.clone() };
    let render = |message: Result<Message>| template.render(&[message?], &options);
    let text = render(Ok(Message::new("user", "Hello")));
    let part =
        render(Message::from_json(r#"{"role": "user", "content": [{"type": "text", "text": "Hello"}]}"#));
    matches!((text, part), (Ok(text), Ok(part)) if text == part)
}

/// What the parts of a list say, one after the other; none if it is no list.
pub(super) fn joined(content: &Value) -> Result<Option<String>> {
    let Value::List(parts) = content else { return Ok(None) };
    let texts = parts.items.iter().map(text_of).collect::<Result<Vec<_>>>()?;
    Ok(Some(texts.join("\n")))
}

fn text_of(part: &Value) -> Result<&str> {
    let get = |name: &str| match part {
        Value::Dict(dict) => dict
            .entries()
            .iter()
            .find(|(key, _)| key.as_text() == Some(name))
            .and_then(|(_, value)| value.as_text()),
        _ => None,
    };
    match (get("type"), get("text")) {
        (Some("text"), Some(text)) => Ok(text),
        _ => Err(wrong(
            "message: content",
            "parts such as {\"type\": \"text\", \"text\": \"Hello\"}, as the chat template reads only text",
            &shortened(Json::of(part)?.as_str()),
        )),
    }
}

/// The beginning of a text that may be long.
fn shortened(text: &str) -> Cow<'_, str> {
    const MOST: usize = 60;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]).into(),
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a template makes of one message.
    fn rendered(source: &str, message: &str) -> String {
        let (template, options) = (ChatTemplate::new(source).unwrap(), ChatOptions::default());
        let messages = [Message::from_json(message).unwrap()];
        let told = readable(&messages, &template, &options);
        told.and_then(|told| template.render(&told, &options)).unwrap_or_else(|error| error.to_string())
    }

    const TEXTS: &str = r#"{"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": "you"}]}"#;
    const IMAGE: &str =
        r#"{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Hello"}]}"#;
    const READS_PARTS: &str = "{% if messages[0].content is string %}{{ messages[0].content }}{% else %}\
        {% for part in messages[0].content %}{{ part.text or '<image>' }}{% endfor %}{% endif %}";

    #[test]
    fn a_template_for_texts_is_told_the_texts_of_parts() {
        for source in ["{{ messages[0].content }}", "{{ messages[0]['content'] + '' }}"] {
            assert_eq!(rendered(source, TEXTS), "Hello\nyou");
            assert_eq!(
                rendered(source, IMAGE),
                "message: content: expected parts such as {\"type\": \"text\", \"text\": \"Hello\"}, \
                 as the chat template reads only text, found {\"type\": \"image\"}"
            );
        }
        assert_eq!(rendered("{{ messages[0].content }}", r#"{"role": "user", "content": []}"#), "");
    }

    #[test]
    fn a_template_for_parts_is_told_the_parts() {
        assert_eq!(rendered(READS_PARTS, TEXTS), "Helloyou");
        assert_eq!(rendered(READS_PARTS, IMAGE), "<image>Hello");
    }

    #[test]
    fn other_fields_stay() {
        let message = r#"{"role": "tool", "content": [{"type": "text", "text": "12:34"}], "name": "now"}"#;
        let expected = r#"{"role": "tool", "content": "12:34", "name": "now"}"#;
        assert_eq!(
            rendered("{{ messages[0] | tojson }}{{ messages[0].content + '' }}", message),
            format!("{expected}12:34")
        );
    }
}
