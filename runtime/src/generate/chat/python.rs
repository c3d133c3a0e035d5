//! Where Python's texts differ from Rust's: a template was written for the former.

use minijinja::value::{ValueKind, from_args};
use minijinja::{Error, ErrorKind, Output, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

/// `text` without whitespace at either end, by Python's `str.strip`.
pub(super) fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// `text` without whitespace at its start, by Python's `str.lstrip`.
pub(super) fn lstrip(text: &str) -> &str {
    text.trim_start_matches(is_space)
}

/// Python's `str.isspace` of one character: four separators of ASCII are whitespace to it and not to Unicode.
fn is_space(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\u{1c}'..='\u{1f}')
}

/// What `method`, one of `strip`, `lstrip` and `rstrip`, leaves of `text`.
pub(super) fn trim<'a>(method: &str, text: &'a str, chars: Option<&str>) -> &'a str {
    let goes = |character: char| chars.map_or_else(|| is_space(character), |chars| chars.contains(character));
    match method {
        "lstrip" => text.trim_start_matches(goes),
        "rstrip" => text.trim_end_matches(goes),
        _ => text.trim_matches(goes),
    }
}

/// A method of Python's on `value`.
pub(super) fn method(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match (method, value.as_str()) {
        ("strip" | "lstrip" | "rstrip", Some(text)) => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            Ok(Value::from(trim(method, text, chars)))
        }
        ("split", Some(text)) if args.is_empty() => {
            Ok(text.split(is_space).filter(|word| !word.is_empty()).map(Value::from).collect())
        }
        _ => unknown_method_callback(state, value, method, args),
    }
}

/// Whether Python can iterate over `value`: texts are sequences of characters to it.
pub(super) fn is_iterable(value: &Value) -> bool {
    is_sequence(value) || value.kind() == ValueKind::Iterable
}

/// Whether Jinja's test `sequence` is true of `value`: it asks for a length and for items.
pub(super) fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined)
}

/// Writes `value` as Python's `str` would.
pub(super) fn print(out: &mut Output, _: &mut State, value: &Value) -> Result<(), Error> {
    let written = out.write_str(&text(value)?);
    written.map_err(|error| Error::new(ErrorKind::WriteFailure, "no text").with_source(error))
}

/// `value` as Python's `str` would write it. Of a list or an object that would be `repr`, which is refused.
pub(super) fn text(value: &Value) -> Result<String, Error> {
    Ok(match value.kind() {
        ValueKind::Undefined => String::new(),
        ValueKind::None | ValueKind::Bool | ValueKind::String | ValueKind::Number => value.to_string(),
        kind => {
            let problem = format!("a {kind} cannot be printed: only text, numbers and truth values can");
            return Err(Error::new(ErrorKind::InvalidOperation, problem));
        }
    })
}
