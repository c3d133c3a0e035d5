//! JSON that a template is told of: tools, documents, and fields of messages.

use super::jinja::{Value, quoted, read_json, write_json};
use crate::error::Error;

type Result<T, E = Error> = std::result::Result<T, E>;

/// Longest text, in bytes: far more than any context holds.
const MAX_LEN: usize = 16 << 20;
/// Most values in it, and how deep they may lie in one another.
const LIMITS: [usize; 2] = [250_000, 32];

/// A JSON value, as its text on one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Json(String);

impl Json {
    /// The array of objects that `text` says, which an error calls `name`.
    pub(super) fn parse_objects(name: &'static str, text: &str) -> Result<Json> {
        let value = parse(name, text)?;
        let found = match &value {
            Value::List(list) => list.items.iter().find(|item| !matches!(item, Value::Dict(_))),
            other => Some(other),
        };
        match found {
            None => Json::of(&value),
            Some(other) => Err(wrong(name, "an array of objects", other.kind())),
        }
    }

    /// A value that came from JSON.
    pub(super) fn of(value: &Value) -> Result<Json> {
        write_json(value, None).map(Json).map_err(|problem| Error::Template { problem })
    }

    /// A text.
    pub(super) fn text(text: &str) -> Json {
        Json(quoted(text))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// With all texts as `change` has them, keys included.
    pub(super) fn map(&self, change: &dyn Fn(&str) -> String) -> Result<Json> {
        Json::of(&read_json(&self.0, LIMITS, change).map_err(|problem| Error::Template { problem })?)
    }

    /// What a template sees.
    pub(super) fn value(&self) -> Result<Value, String> {
        read_json(&self.0, LIMITS, &str::to_owned)
    }
}

/// The value that `text` says, which an error calls `name`.
pub(super) fn parse(name: &'static str, text: &str) -> Result<Value> {
    if text.len() > MAX_LEN {
        return Err(wrong(name, &format!("at most {MAX_LEN} bytes"), &text.len().to_string()));
    }
    read_json(text, LIMITS, &str::to_owned).map_err(|problem| wrong(name, "JSON", &problem))
}

/// An argument that is not what it should be.
pub(super) fn wrong(name: &'static str, expected: &str, found: &str) -> Error {
    Error::Argument { name, expected: expected.into(), found: found.into() }
}
