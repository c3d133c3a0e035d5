//! Messages, and their JSON: `{"role": "user", "content": "Hello"}`, as transformers and others have it.

use super::jinja::{Value, list_of, object_of, write_json};
use super::json::{Json, parse, wrong};
use crate::error::Error;

type Result<T, E = Error> = std::result::Result<T, E>;

/// The names under which templates look for a message's reasoning. Who gives one of them gives all, as in transformers.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// One message of a conversation.
///
/// ```
/// use smolrun::Message;
///
/// # fn main() -> smolrun::Result<()> {
/// let arguments = r#"[{"type": "function", "function": {"name": "now", "arguments": {}}, "id": "call1"}]"#;
/// let conversation = [
///     Message::new("user", "What time is it?"),
///     Message::new("assistant", "").reasoning_content("I need a clock.").tool_calls(arguments)?,
///     Message::new("tool", "12:34").name("now").tool_call_id("call1"),
///     Message::from_json(r#"{"role": "user", "content": "Thanks."}"#)?,
/// ];
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or another role that the template knows.
    pub role: String,
    /// What was said. A template is told of no content where this is empty and there are tool calls.
    pub content: String,
    /// What else a template is told, by name.
    fields: Vec<(String, Json)>,
}

impl Message {
    /// A message of `role`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: content.into(), fields: Vec::new() }
    }

    /// This message with the tools that the assistant calls in it: JSON, an array of objects such as
    /// `{"type": "function", "function": {"name": "now", "arguments": {}}, "id": "call1"}`.
    pub fn tool_calls(self, json: &str) -> Result<Message> {
        let calls = Json::parse_objects("tool_calls", json)?;
        Ok(self.field("tool_calls", calls))
    }

    /// This message as the result of the call with this id.
    pub fn tool_call_id(self, id: &str) -> Message {
        self.field("tool_call_id", Json::text(id))
    }

    /// This message with the name of who speaks, or of the tool whose result it is.
    pub fn name(self, name: &str) -> Message {
        self.field("name", Json::text(name))
    }

    /// This message with what the assistant thought before it said something.
    pub fn reasoning_content(self, text: &str) -> Message {
        self.field("reasoning_content", Json::text(text))
    }

    fn field(mut self, name: &str, value: Json) -> Message {
        self.fields.retain(|(other, _)| other != name);
        self.fields.push((name.into(), value));
        self
    }

    /// The message that a JSON object says: a `role`, `content` or `tool_calls`, and whatever else the template reads.
    ///
    /// The text has at most 16 MB and 250,000 values, which lie at most 32 deep in one another.
    pub fn from_json(json: &str) -> Result<Message> {
        Message::of_value(&parse("message", json)?)
    }

    /// The messages of a conversation: a JSON array of them, or an object that has it as `messages`.
    pub fn list_from_json(json: &str) -> Result<Vec<Message>> {
        const NAME: &str = "messages";
        let conversation = parse(NAME, json)?;
        let list = match &conversation {
            Value::Dict(dict) => {
                dict.entries().iter().find(|(key, _)| key.as_text() == Some(NAME)).map(|(_, list)| list)
            }
            other => Some(other),
        };
        match list {
            Some(Value::List(list)) => {
                let numbered = list.items.iter().zip(1..);
                numbered
                    .map(|(said, number)| Message::of_value(said).map_err(|error| within(error, number)))
                    .collect()
            }
            Some(other) => Err(wrong(NAME, "an array", other.kind())),
            None => Err(wrong(NAME, "an array, or an object that has one as messages", "neither")),
        }
    }

    /// The JSON that [`Message::list_from_json`] reads: an object with `messages`, over several lines.
    pub fn list_to_json(messages: &[Message]) -> Result<String> {
        let list = messages.iter().map(|said| object_of(said.entries()?)).collect::<Result<_, String>>();
        let object = list.and_then(list_of).and_then(|list| object_of(vec![("messages".into(), list)]));
        let written = object.and_then(|object| write_json(&object, Some(2)));
        written.map_err(|problem| Error::Template { problem })
    }

    fn of_value(value: &Value) -> Result<Message> {
        let Value::Dict(dict) = value else {
            return Err(wrong("message", "an object with role and content", value.kind()));
        };
        let [mut role, mut content] = [None, None];
        let mut fields = Vec::new();
        for (key, value) in dict.entries() {
            match (key.as_text().unwrap_or_default(), value) {
                ("role", Value::Text(text)) => role = Some(text.to_string()),
                ("role", other) => return Err(wrong("message: role", "a string", other.kind())),
                ("content", Value::Text(text)) => content = Some(text.to_string()),
                ("content", other) if !matches!(other, Value::None | Value::List(_)) => {
                    return Err(wrong("message: content", "a string, an array or null", other.kind()));
                }
                (name, value) => fields.push((name.into(), Json::of(value)?)),
            }
        }
        let Some(role) = role else { return Err(wrong("message", "a role", "none")) };
        let message = Message { role, content: String::new(), fields };
        match content {
            Some(content) => Ok(message.with_content(content)),
            None if message.has("tool_calls") || message.has("content") => Ok(message),
            None => Err(wrong("message", "content or tool_calls", "neither")),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    fn get(&self, name: &str) -> Option<&Json> {
        self.fields.iter().find_map(|(other, value)| (other == name).then_some(value))
    }

    /// Whether the content is a list of parts.
    pub(super) fn has_parts(&self) -> bool {
        self.get("content").is_some_and(|content| content.as_str().starts_with('['))
    }

    /// The content's parts, if it is a list.
    pub(super) fn parts(&self) -> Result<Option<Vec<Value>>> {
        let content = self.get("content").map(Json::value).transpose();
        match content.map_err(|problem| Error::Template { problem })? {
            Some(Value::List(list)) => Ok(Some(list.items.clone())),
            _ => Ok(None),
        }
    }

    /// Whether a template is told of no content.
    pub(super) fn lacks_content(&self) -> bool {
        match self.get("content") {
            Some(content) => content.as_str() == "null",
            None => self.content.is_empty() && self.has("tool_calls"),
        }
    }

    /// This message with another content, also an empty one.
    pub(super) fn with_content(mut self, content: String) -> Message {
        self.fields.retain(|(name, _)| name != "content");
        self.content = content;
        if self.lacks_content() { self.field("content", Json::text("")) } else { self }
    }

    /// What its JSON has.
    fn entries(&self) -> Result<Vec<(Value, Value)>, String> {
        let mut entries = vec![("role".into(), Value::from(&*self.role))];
        // A field of this name takes its place.
        let is_left_out = self.has("content") || self.content.is_empty() && self.has("tool_calls");
        if !is_left_out {
            entries.push(("content".into(), Value::from(&*self.content)));
        }
        for (name, value) in &self.fields {
            entries.push((Value::from(&**name), value.value()?));
        }
        Ok(entries)
    }

    /// What a template sees.
    pub(super) fn value(&self) -> Result<Value> {
        let value = self.entries().map(with_reasoning).and_then(object_of);
        value.map_err(|problem| Error::Template { problem })
    }

    /// With all texts as `change` has them.
    pub(super) fn map(&self, change: &dyn Fn(&str) -> String) -> Result<Message> {
        let field = |(name, value): &(String, Json)| Ok((change(name), value.map(change)?));
        let fields = self.fields.iter().map(field).collect::<Result<_>>()?;
        Ok(Message { role: change(&self.role), content: change(&self.content), fields })
    }

    /// All that it says.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        let fields = self.fields.iter().flat_map(|(name, value)| [name.as_str(), value.as_str()]);
        [self.role.as_str(), self.content.as_str()].into_iter().chain(fields)
    }
}

/// The error, with the number of the message that it is about.
pub(super) fn within(error: Error, number: usize) -> Error {
    match error {
        Error::Argument { name, expected, found } => {
            Error::Argument { name, expected, found: format!("{found}, in message {number}") }
        }
        other => other,
    }
}

/// The entries of a message, with its reasoning by the names that templates know.
fn with_reasoning(mut entries: Vec<(Value, Value)>) -> Vec<(Value, Value)> {
    let place = |entries: &[(Value, Value)], name: &str| {
        entries.iter().position(|(key, _)| key.as_text() == Some(name))
    };
    let given = |name: &&str| place(&entries, name).map(|at| entries[at].1.clone());
    let reasoning = REASONING.iter().filter_map(given).find(|value| !matches!(value, Value::None));
    let Some(reasoning) = reasoning else { return entries };
    let thinking = place(&entries, "thinking").map(|at| entries.remove(at));
    entries.insert(0, thinking.unwrap_or_else(|| ("thinking".into(), reasoning.clone())));
    match place(&entries, "reasoning_content") {
        Some(at) => entries[at].1 = reasoning,
        None => entries.push(("reasoning_content".into(), reasoning)),
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::{ChatOptions, ChatTemplate};

    /// What a template is told of a message.
    fn told(message: &Message) -> String {
        let template = ChatTemplate::new("{{ messages[0] | tojson }}").unwrap();
        template.render(std::slice::from_ref(message), &ChatOptions::default()).unwrap()
    }

    #[test]
    fn a_template_is_told_of_every_field() {
        let calls = r#"[{"function": {"name": "now", "arguments": {"b": 1, "a": [null, "é"]}}}]"#;
        let message =
            Message::new("assistant", "Wait.").name("A").tool_call_id("\"1\"").name("Bo").tool_calls(calls);
        let expected = format!(
            r#"{{"role": "assistant", "content": "Wait.", "tool_call_id": "\"1\"", "name": "Bo", "tool_calls": {calls}}}"#
        );
        assert_eq!(told(&message.unwrap()), expected);
        for (json, expected) in [
            (r#"{"content": "Hi", "role": "user"}"#, r#"{"role": "user", "content": "Hi"}"#),
            (r#"{"role": "user", "content": ""}"#, r#"{"role": "user", "content": ""}"#),
            (r#"{"role": "a", "tool_calls": []}"#, r#"{"role": "a", "tool_calls": []}"#),
            (
                r#"{"role": "a", "content": "", "tool_calls": []}"#,
                r#"{"role": "a", "tool_calls": [], "content": ""}"#,
            ),
            (
                r#"{"role": "a", "content": null, "tool_calls": []}"#,
                r#"{"role": "a", "content": null, "tool_calls": []}"#,
            ),
            (
                r#"{"role": "user", "content": [{"type": "text", "text": "Hi"}], "x": 1.50}"#,
                r#"{"role": "user", "content": [{"type": "text", "text": "Hi"}], "x": 1.5}"#,
            ),
        ] {
            assert_eq!(told(&Message::from_json(json).unwrap()), expected);
        }
    }

    /// transformers 5.23 showed them to a template.
    #[test]
    fn reasoning_has_all_its_names() {
        for (json, expected) in [
            (
                r#"{"role": "a", "content": "c", "reasoning_content": "r"}"#,
                r#"{"thinking": "r", "role": "a", "content": "c", "reasoning_content": "r"}"#,
            ),
            (
                r#"{"role": "a", "content": "c", "thinking": "t", "x": 1}"#,
                r#"{"thinking": "t", "role": "a", "content": "c", "x": 1, "reasoning_content": "t"}"#,
            ),
            (
                r#"{"role": "a", "content": "c", "reasoning_content": null, "thinking": null, "reasoning": "r"}"#,
                r#"{"thinking": null, "role": "a", "content": "c", "reasoning_content": "r", "reasoning": "r"}"#,
            ),
            (
                r#"{"role": "a", "content": "c", "reasoning": null}"#,
                r#"{"role": "a", "content": "c", "reasoning": null}"#,
            ),
        ] {
            assert_eq!(told(&Message::from_json(json).unwrap()), expected);
        }
        let message = Message::new("a", "c").reasoning_content("r");
        assert_eq!(
            told(&message),
            r#"{"thinking": "r", "role": "a", "content": "c", "reasoning_content": "r"}"#
        );
    }

    #[test]
    fn a_conversation_comes_back_from_its_json() {
        let messages = [
            Message::new("user", "\"é\"\n\u{1}"),
            Message::new("assistant", "").tool_calls(r#"[{"id": "1"}]"#).unwrap(),
            Message::new("tool", "").tool_call_id("1"),
            Message::from_json(r#"{"role": "assistant", "content": "", "tool_calls": []}"#).unwrap(),
        ];
        let json = Message::list_to_json(&messages).unwrap();
        assert!(json.starts_with("{\n  \"messages\": [\n    {\n      \"role\": \"user\",\n"), "{json}");
        assert_eq!(Message::list_from_json(&json).unwrap(), messages);
        let list = json.trim().strip_prefix("{\n  \"messages\": ").unwrap().strip_suffix('}').unwrap();
        assert_eq!(Message::list_from_json(list).unwrap(), messages);
    }

    #[test]
    fn what_is_no_message_is_said() {
        for (json, expected) in [
            ("", "messages: expected JSON, found the end at line 1, column 1, where a value should be"),
            ("1", "messages: expected an array, found number"),
            ("{}", "messages: expected an array, or an object that has one as messages, found neither"),
            (r#"{"messages": "x"}"#, "messages: expected an array, found string"),
            ("[1]", "message: expected an object with role and content, found number, in message 1"),
            (r#"[{"content": "x"}]"#, "message: expected a role, found none, in message 1"),
            (r#"[{"role": 1}]"#, "message: role: expected a string, found number, in message 1"),
            (r#"[{"role": "a"}]"#, "message: expected content or tool_calls, found neither, in message 1"),
            (
                r#"[{"role": "a", "content": {}}]"#,
                "message: content: expected a string, an array or null, found map, in message 1",
            ),
        ] {
            assert_eq!(Message::list_from_json(json).unwrap_err().to_string(), expected);
        }
        let message = || Message::new("assistant", "");
        for (json, expected) in [
            (
                "[{]",
                "tool_calls: expected JSON, found ']' at line 1, column 3, where a key in double quotes should be",
            ),
            ("{}", "tool_calls: expected an array of objects, found map"),
            ("[{}, null]", "tool_calls: expected an array of objects, found none"),
        ] {
            assert_eq!(message().tool_calls(json).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn json_has_limits() {
        for (json, expected) in [
            (
                "[".repeat(1_000_000),
                "found lists and objects more than 32 deep in one another at line 1, column 33",
            ),
            (
                format!("[{}]", "{},".repeat(250_000)),
                "found more than 250000 values at line 1, column 749999",
            ),
            (" ".repeat((16 << 20) + 1), "expected at most 16777216 bytes, found 16777217"),
        ] {
            let error = ChatOptions::default().tools(&json).unwrap_err().to_string();
            assert!(error.starts_with("tools: ") && error.contains(expected), "{error}");
            let error = ChatOptions::default().documents(&json).unwrap_err().to_string();
            assert!(error.starts_with("documents: ") && error.contains(expected), "{error}");
        }
    }
}
