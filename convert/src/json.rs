//! Small files beside the weights, read whole within a limit, and fields of JSON objects with errors that name them.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// Largest file read whole: far above any tokenizer, far below what could exhaust memory.
const MAX_LEN: u64 = 256 << 20;
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
        let file = open_regular(path)?;
        let mut bytes = Vec::new();
        file.take(MAX_LEN + 1).read_to_end(&mut bytes).map_err(Error::io(path))?;
        if bytes.len() as u64 > MAX_LEN {
            return Err(Error::file(path, format!("expected at most {MAX_LEN} bytes")));
        }
        Ok(Document { path: path.to_owned(), bytes })
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
        let map = serde_json::from_slice(&self.bytes)
            .map_err(|error| Error::file(&self.path, format!("expected a JSON object: {error}")))?;
        Ok(Fields { path: &self.path, map })
    }
}

/// Opens a file, and refuses a directory, a pipe or a device before it could block or never end.
pub(crate) fn open_regular(path: &Path) -> Result<File> {
    match fs::metadata(path).map_err(Error::io(path))?.is_file() {
        true => File::open(path).map_err(Error::io(path)),
        false => Err(Error::file(path, "expected a regular file")),
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
