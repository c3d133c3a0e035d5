//! Small files beside the weights, read whole within limits, and fields of JSON objects with errors that name them.
//!
//! A parsed value takes up to a hundred times the memory of its text, so values are counted before any is parsed.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::files::open_regular;

/// Largest file read whole, but for a tokenizer: config files have kilobytes, an index of many shards some megabytes.
const MAX_LEN: u64 = 16 << 20;
/// Largest tokenizer: those of 256,000 tokens have 33 MB.
const MAX_TOKENIZER_LEN: u64 = 128 << 20;
/// Most values of such a file; the largest list some thousand tokens with seven fields each.
const MAX_VALUES: usize = 1 << 18;
/// Characters of a value that an error shows.
const SHOWN: usize = 80;

/// A file that was read whole.
#[derive(Clone, Debug)]
pub struct Document {
    /// Where it lies.
    pub path: PathBuf,
    /// What is in it.
    pub bytes: Vec<u8>,
}

impl Document {
    /// Reads the file at `path`.
    pub fn read(path: &Path) -> Result<Document> {
        Document::read_within(path, MAX_LEN)
    }

    /// Reads the `tokenizer.json` at `path`.
    pub fn read_tokenizer(path: &Path) -> Result<Document> {
        Document::read_within(path, MAX_TOKENIZER_LEN)
    }

    fn read_within(path: &Path, most: u64) -> Result<Document> {
        let file = open_regular(path)?;
        let found = file.metadata().map_err(Error::io(path))?.len();
        let mut bytes = Vec::new();
        if found <= most {
            // All at once: a buffer that grows is there twice while it does.
            bytes.reserve_exact(found as usize + 1); // `found` is at most `most`
            file.take(most + 1).read_to_end(&mut bytes).map_err(Error::io(path))?;
        }
        let found = found.max(bytes.len() as u64); // it may have grown
        match found <= most {
            true => Ok(Document { path: path.to_owned(), bytes }),
            false => Err(Error::file(path, format!("expected at most {most} bytes, found {found}"))),
        }
    }

    /// Reads the file at `path` if there is one.
    pub fn read_optional(path: &Path) -> Result<Option<Document>> {
        match path.try_exists().map_err(Error::io(path))? {
            true => Document::read(path).map(Some),
            false => Ok(None),
        }
    }

    /// The text.
    pub fn text(&self) -> Result<&str> {
        std::str::from_utf8(&self.bytes).map_err(|error| {
            Error::file(&self.path, format!("expected UTF-8, found another byte at {}", error.valid_up_to()))
        })
    }

    /// The JSON object that the file holds.
    pub fn fields(&self) -> Result<Fields<'_>> {
        let found = Count::of(&self.bytes).values;
        if found > MAX_VALUES {
            let problem = format!("expected at most {MAX_VALUES} JSON values, found {found}");
            return Err(Error::file(&self.path, format!("expected a JSON object: {problem}")));
        }
        let map = serde_json::from_slice(&self.bytes)
            .map_err(|error| Error::file(&self.path, format!("expected a JSON object: {error}")))?;
        Ok(Fields { path: &self.path, map })
    }
}

/// How much a JSON text holds, at most: what is no JSON is counted all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count {
    /// Values, in objects and lists of any depth.
    pub values: usize,
    /// Values of the outermost object or list.
    pub outermost: usize,
}

impl Count {
    /// That of `json`, in time in proportion to it and no memory: a value comes first in something, or after a comma.
    pub(crate) fn of(json: &[u8]) -> Count {
        let (mut count, mut depth, mut bytes) = (Count { values: 0, outermost: 0 }, 0usize, json.iter());
        while let Some(byte) = bytes.next() {
            match byte {
                b'"' => skip_string(&mut bytes),
                b'}' | b']' => depth = depth.saturating_sub(1),
                b'{' | b'[' | b',' => {
                    depth += usize::from(*byte != b',');
                    count.values += 1;
                    count.outermost += usize::from(depth == 1);
                }
                _ => {}
            }
        }
        count
    }
}

/// Goes past the end of the string whose first quote was just read.
fn skip_string(bytes: &mut std::slice::Iter<'_, u8>) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return,
            b'\\' => drop(bytes.next()),
            _ => {}
        }
    }
}

/// A JSON object from a file.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    path: &'a Path,
    map: Map<String, Value>,
}

impl Fields<'_> {
    /// The value of `field`; null counts as absent, as it does in transformers.
    pub fn value(&self, field: &str) -> Option<&Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    /// The value of `field`, where null does not count as absent.
    pub fn optional_or_null(&self, field: &str) -> Option<Value> {
        self.map.get(field).cloned()
    }

    /// Whether `field` is there, be it null.
    pub fn has(&self, field: &str) -> bool {
        self.map.contains_key(field)
    }

    /// The names of all fields.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.map.keys().map(String::as_str)
    }

    /// The value of `field` as a `T`, which errors call `expected`.
    pub fn optional<T: DeserializeOwned>(&self, field: &str, expected: &str) -> Result<Option<T>> {
        let Some(value) = self.value(field) else { return Ok(None) };
        T::deserialize(value).map(Some).map_err(|_| self.wrong(field, expected, value))
    }

    /// As [`Fields::optional`], for a field that must be there.
    pub fn required<T: DeserializeOwned>(&self, field: &str, expected: &str) -> Result<T> {
        self.optional(field, expected)?.ok_or_else(|| self.wrong(field, expected, "nothing"))
    }

    /// The object in `field`.
    pub fn object(&self, field: &str) -> Result<Option<Fields<'_>>> {
        let map = self.optional(field, "an object or null")?;
        Ok(map.map(|map| Fields { path: self.path, map }))
    }

    /// `field` should have been `expected`.
    pub fn wrong(&self, field: &str, expected: impl Into<String>, found: impl ToString) -> Error {
        let found = found.to_string();
        let shown = match found.char_indices().nth(SHOWN) {
            Some((end, _)) => format!("{}...", &found[..end]),
            None => found,
        };
        Error::Field {
            path: self.path.to_owned(),
            field: field.to_owned(),
            expected: expected.into(),
            found: shown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted() {
        for (json, values, outermost) in [
            ("", 0, 0),
            ("1", 0, 0),
            ("{}", 1, 1),
            (r#"{"a": 1, "b": [2, 3, {}]}"#, 6, 2),
            (r#"["a,b", "\",[{", ",\\", []]"#, 5, 4),
            ("[[[[", 4, 1),
            ("]]]],,", 2, 0),
            ("\"never, ends", 0, 0),
            ("\"\\", 0, 0),
        ] {
            assert_eq!(Count::of(json.as_bytes()), Count { values, outermost }, "{json}");
        }
    }
}
