//! The metadata of a GGUF file: keys and typed values, read whole, asked for by type.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::cursor::Cursor;
use crate::error::{Error, Result};

/// Most keys; files have dozens.
const MAX_KEYS: u64 = 1 << 16;
/// Longest key that the format allows.
const MAX_KEY_LEN: u64 = (1 << 16) - 1;
/// Longest string: far above any chat template.
const MAX_STRING_LEN: u64 = 16 << 20;
/// Code of a value that is an array.
const ARRAY: u32 = 9;

/// A value's type, with the numbers of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    U64,
    I64,
    F64,
}

impl Type {
    fn from_code(code: u32) -> Option<Type> {
        use Type::*;
        let types = [U8, I8, U16, I16, U32, I32, F32, Bool, String];
        match code {
            10..=12 => Some([U64, I64, F64][code as usize - 10]),
            _ => types.get(code as usize).copied(),
        }
    }

    /// Bytes of a value; of a string, those of its length.
    fn size(self) -> usize {
        match self {
            Type::U8 | Type::I8 | Type::Bool => 1,
            Type::U16 | Type::I16 => 2,
            Type::U32 | Type::I32 | Type::F32 => 4,
            Type::U64 | Type::I64 | Type::F64 | Type::String => 8,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Type::F32 | Type::F64 => "a number",
            Type::Bool => "a bool",
            Type::String => "a string",
            _ => "an integer",
        }
    }

    /// A number of this type in the eight bytes `le`, of which the type's own come first.
    fn integer(self, le: [u8; 8]) -> Option<i128> {
        let bits = u64::from_le_bytes(le);
        Some(match self {
            Type::U8 | Type::U16 | Type::U32 | Type::U64 => bits.into(),
            Type::I8 => (bits as i8).into(),
            Type::I16 => (bits as i16).into(),
            Type::I32 => (bits as i32).into(),
            Type::I64 => bits.cast_signed().into(),
            _ => return None,
        })
    }

    fn float(self, le: [u8; 8]) -> Option<f64> {
        match self {
            Type::F32 => Some(f32::from_bits(u64::from_le_bytes(le) as u32).into()),
            Type::F64 => Some(f64::from_le_bytes(le)),
            _ => None,
        }
    }
}

/// A value. Numbers stay in their bytes, so that a value takes no more memory than its file does, but for strings.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Scalar(Type, [u8; 8]),
    String(String),
    Numbers(Type, Vec<u8>),
    Strings(Vec<String>),
}

/// The metadata of a GGUF file.
#[derive(Clone, Debug)]
pub struct Metadata {
    path: PathBuf,
    values: BTreeMap<String, Value>,
}

impl Metadata {
    /// Reads `count` keys and values.
    pub(super) fn read(cursor: &mut Cursor, path: &Path, count: u64) -> Result<Metadata> {
        if count > MAX_KEYS {
            return Err(cursor.wrong(format!("metadata count: expected at most {MAX_KEYS}, found {count}")));
        }
        let mut values = BTreeMap::new();
        for index in 0..count {
            let key = cursor.string(MAX_KEY_LEN, &format!("metadata key {index}"))?;
            if key.is_empty() {
                return Err(
                    cursor.wrong(format!("metadata key {index}: expected a name, found an empty one"))
                );
            }
            let value = Value::read(cursor, &key)?;
            if values.contains_key(&key) {
                return Err(cursor.wrong(format!("{key}: expected it once, found it twice")));
            }
            values.insert(key, value);
        }
        Ok(Metadata { path: path.to_owned(), values })
    }

    /// Every key, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether `other` has the same value for `key`.
    pub(super) fn agrees(&self, other: &Metadata, key: &str) -> bool {
        self.values.get(key) == other.values.get(key)
    }

    /// The string of `key`.
    pub fn string(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", |value| match value {
            Value::String(string) => Some(string.as_str()),
            _ => None,
        })
    }

    /// The number of `key`, which is an integer from 0 on.
    pub fn count(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "an integer from 0 on", |value| match value {
            Value::Scalar(kind, le) => kind.integer(*le).and_then(|number| number.try_into().ok()),
            _ => None,
        })
    }

    /// The number of `key`, which is a float.
    pub fn float(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number", |value| match value {
            Value::Scalar(kind, le) => kind.float(*le),
            _ => None,
        })
    }

    /// The bool of `key`.
    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "a bool", |value| match value {
            Value::Scalar(Type::Bool, le) => Some(le[0] == 1),
            _ => None,
        })
    }

    /// The strings of `key`.
    pub fn strings(&self, key: &str) -> Result<Option<&[String]>> {
        self.typed(key, "an array of strings", |value| match value {
            Value::Strings(strings) => Some(strings.as_slice()),
            _ => None,
        })
    }

    /// The integers of `key`.
    pub fn integers(&self, key: &str) -> Result<Option<Vec<i128>>> {
        self.typed(key, "an array of integers", |value| match value {
            Value::Numbers(kind, bytes) => elements(*kind, bytes).map(|le| kind.integer(le)).collect(),
            _ => None,
        })
    }

    /// The floats of `key`.
    pub fn floats(&self, key: &str) -> Result<Option<Vec<f64>>> {
        self.typed(key, "an array of numbers", |value| match value {
            Value::Numbers(kind, bytes) => elements(*kind, bytes).map(|le| kind.float(le)).collect(),
            _ => None,
        })
    }

    /// `key` should have been `expected`.
    pub fn wrong(&self, key: &str, expected: impl Into<String>, found: impl ToString) -> Error {
        Error::Field {
            path: self.path.clone(),
            field: key.to_owned(),
            expected: expected.into(),
            found: found.to_string(),
        }
    }

    /// `value`, of a key that must be there.
    pub fn required<T>(&self, key: &str, value: Result<Option<T>>) -> Result<T> {
        value?.ok_or_else(|| self.wrong(key, "a value", "nothing"))
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        take: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        take(value).map(Some).ok_or_else(|| self.wrong(key, expected, value.words()))
    }
}

impl Value {
    fn read(cursor: &mut Cursor, key: &str) -> Result<Value> {
        match cursor.u32(key)? {
            ARRAY => Value::read_array(cursor, key),
            code => match type_of(cursor, key, code)? {
                Type::String => cursor.string(MAX_STRING_LEN, key).map(Value::String),
                kind => {
                    let bytes = cursor.bytes(kind.size() as u64, key)?;
                    check_bools(cursor, key, kind, &bytes)?;
                    Ok(Value::Scalar(kind, widened(&bytes)))
                }
            },
        }
    }

    /// No memory is taken for more elements than the header has room for.
    fn read_array(cursor: &mut Cursor, key: &str) -> Result<Value> {
        let code = cursor.u32(key)?;
        if code == ARRAY {
            return Err(
                cursor.wrong(format!("{key}: expected an array of plain values, found one of arrays"))
            );
        }
        let kind = type_of(cursor, key, code)?;
        let count = cursor.u64(key)?;
        cursor.check_room(count, kind.size() as u64, key)?;
        if kind == Type::String {
            let strings = (0..count).map(|_| cursor.string(MAX_STRING_LEN, key));
            return strings.collect::<Result<_>>().map(Value::Strings);
        }
        let bytes = cursor.bytes(count * kind.size() as u64, key)?;
        check_bools(cursor, key, kind, &bytes)?;
        Ok(Value::Numbers(kind, bytes))
    }

    fn words(&self) -> String {
        match self {
            Value::Scalar(kind, le) => match (kind.integer(*le), kind.float(*le)) {
                (Some(integer), _) => integer.to_string(),
                (_, Some(float)) => float.to_string(),
                _ => kind.name().to_owned(),
            },
            Value::String(_) => Type::String.name().to_owned(),
            Value::Numbers(kind, _) => format!("an array, each {}", kind.name()),
            Value::Strings(_) => "an array of strings".to_owned(),
        }
    }
}

fn type_of(cursor: &Cursor, key: &str, code: u32) -> Result<Type> {
    Type::from_code(code)
        .ok_or_else(|| cursor.wrong(format!("{key}: expected a type from 0 to 12, found {code}")))
}

fn check_bools(cursor: &Cursor, key: &str, kind: Type, bytes: &[u8]) -> Result<()> {
    match bytes.iter().find(|&&byte| kind == Type::Bool && byte > 1) {
        Some(byte) => Err(cursor.wrong(format!("{key}: expected 0 or 1 for a bool, found {byte}"))),
        None => Ok(()),
    }
}

fn elements(kind: Type, bytes: &[u8]) -> impl Iterator<Item = [u8; 8]> {
    bytes.chunks_exact(kind.size()).map(widened)
}

/// At most eight bytes, zeroes after them.
fn widened(bytes: &[u8]) -> [u8; 8] {
    std::array::from_fn(|index| bytes.get(index).copied().unwrap_or(0))
}
