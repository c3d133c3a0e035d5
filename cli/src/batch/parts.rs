//! A message's `content` as a list of parts, as OpenAI's clients write it: `[{"type": "text", "text": "Hello"}]`.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use smolrun::chat::ChatOptions;
use smolrun::{Message, Model};

/// A message, as far as it matters here.
#[derive(Deserialize)]
struct Said<'a> {
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Part {
    Text { text: String },
}

/// The JSON of `messages` as a template reads it that `reads_parts` or not: one that does not gets what the parts of a text
/// say, with a line break between two. The error is a list of parts that are not all texts.
pub(super) fn readable(messages: &str, reads_parts: impl FnOnce() -> bool) -> Result<Cow<'_, str>, String> {
    // What is no conversation at all is for `Message` to refuse.
    let said: Vec<Said<'_>> = serde_json::from_str(messages).unwrap_or_default();
    let lists = said.iter().filter_map(|said| said.content).map(RawValue::get);
    let lists: Vec<&str> = lists.filter(|content| content.starts_with('[')).collect();
    if lists.is_empty() || reads_parts() {
        return Ok(messages.into());
    }
    let (mut readable, mut rest) = (String::new(), messages);
    for list in lists {
        let parts: Vec<Part> = serde_json::from_str(list).map_err(|_| list.to_owned())?;
        let texts: Vec<String> = parts.into_iter().map(|Part::Text { text }| text).collect();
        // A list is a part of the text that was read, and comes after those before it.
        let start = list.as_ptr().addr() - rest.as_ptr().addr();
        readable += &rest[..start];
        readable += &serde_json::Value::from(texts.join("\n")).to_string();
        rest = &rest[start + list.len()..];
    }
    Ok((readable + rest).into())
}

/// Whether the model's template makes the same of a part as of its text.
pub(super) fn reads_parts(model: &Model, options: &ChatOptions) -> bool {
    let render = |message| model.render_chat(&[Message::from_json(message)?], options);
    let text = render(r#"{"role": "user", "content": "Hello"}"#);
    let part = render(r#"{"role": "user", "content": [{"type": "text", "text": "Hello"}]}"#);
    matches!((text, part), (Ok(text), Ok(part)) if text == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_a_template_does_not_read_become_a_text() {
        let messages = r#"[{"role": "system", "content": "Be [brief]."}, {"content": [
            {"type": "text", "text": "A \"fox\""}, {"text": "runs.", "type": "text"}], "role": "user"},
            {"role": "assistant", "content": null}, {"role": "user", "content": []}]"#;
        let expected = r#"[{"role": "system", "content": "Be [brief]."}, {"content": "A \"fox\"\nruns.", "role": "user"},
            {"role": "assistant", "content": null}, {"role": "user", "content": ""}]"#;
        assert_eq!(readable(messages, || false).unwrap(), expected);
        assert_eq!(readable(messages, || true).unwrap(), messages);
    }

    #[test]
    fn other_parts_are_refused_unless_the_template_reads_them() {
        for part in [r#"{"type": "image_url"}"#, r#"{"type": "text"}"#, "\"Hello\""] {
            let messages = format!(r#"[{{"role": "user", "content": [{part}]}}]"#);
            assert_eq!(readable(&messages, || false).unwrap_err(), format!("[{part}]"));
            assert_eq!(readable(&messages, || true).unwrap(), messages);
        }
    }

    #[test]
    fn what_has_no_parts_stays() {
        for messages in [r#"[{"role": "user", "content": "[1]"}]"#, r#"{"messages": []}"#, "[1]", "5"] {
            assert_eq!(readable(messages, || unreachable!()).unwrap(), messages);
        }
    }
}
