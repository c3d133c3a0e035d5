//! Texts as Python has them: a template was written for these.

use std::borrow::Cow;
use std::sync::Arc;

use super::fault::{Result, fail};
use super::meter::Meter;
use super::value::Value;

/// `text` without whitespace at either end, by Python's `str.strip`.
pub(in super::super) fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// `text` without whitespace at its start, by Python's `str.lstrip`.
pub(in super::super) fn lstrip(text: &str) -> &str {
    text.trim_start_matches(is_space)
}

/// Python's `str.isspace` of one character: four separators of ASCII are whitespace to it and not to Unicode.
pub(super) fn is_space(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\u{1c}'..='\u{1f}')
}

/// `text` as a value that is paid for.
pub(super) fn new(text: &str, meter: &Meter) -> Result<Value> {
    meter.text(text.len())?;
    Ok(Value::Text(Arc::from(text)))
}

/// The texts of `parts`, one after the other.
pub(super) fn concat(parts: &[Cow<'_, str>], meter: &Meter) -> Result<Value> {
    let len = parts.iter().map(|part| part.len()).fold(0, usize::saturating_add);
    // The text is made twice: as a string, and as a value.
    meter.text(len.saturating_mul(2))?;
    let mut text = String::with_capacity(len);
    parts.iter().for_each(|part| text += part);
    Ok(Value::Text(text.into()))
}

/// `text` with every `old`, or the first `most` of them, as `new`.
pub(super) fn replace(text: &str, old: &str, new: &str, most: Option<usize>, meter: &Meter) -> Result<Value> {
    meter.scan(text.len())?;
    let count = text.matches(old).take(most.unwrap_or(usize::MAX)).count();
    let len = count.saturating_mul(new.len()).saturating_add(text.len());
    meter.text(len.saturating_mul(3))?;
    Ok(Value::Text(text.replacen(old, new, count).into()))
}

/// The parts of `text` between each `separator`, or the first `most` of them.
pub(super) fn split(text: &str, separator: &str, most: Option<usize>, meter: &Meter) -> Result<Value> {
    if separator.is_empty() {
        return fail("split: the separator is empty");
    }
    meter.scan(text.len())?;
    let count = text.matches(separator).take(most.unwrap_or(usize::MAX)).count() + 1;
    meter.texts(count, text.len())?;
    Value::list(text.splitn(count, separator).map(Value::from).collect())
}

/// The words of `text`: what whitespace parts.
pub(super) fn words(text: &str, meter: &Meter) -> Result<Value> {
    meter.scan(text.len())?;
    let words = || text.split(is_space).filter(|word| !word.is_empty());
    meter.texts(words().count(), text.len())?;
    Value::list(words().map(Value::from).collect())
}

/// What `method`, one of `strip`, `lstrip` and `rstrip`, leaves of `text`.
pub(super) fn trim(method: &str, text: &str, chars: Option<&str>, meter: &Meter) -> Result<Value> {
    let work = text.len().saturating_mul(chars.map_or(1, str::len));
    meter.scan(work)?;
    let goes = |character: char| chars.map_or_else(|| is_space(character), |chars| chars.contains(character));
    let left = match method {
        "lstrip" => text.trim_start_matches(goes),
        "rstrip" => text.trim_end_matches(goes),
        _ => text.trim_matches(goes),
    };
    new(left, meter)
}

/// `text` in capitals, or in small letters.
pub(super) fn cased(text: &str, is_upper: bool, meter: &Meter) -> Result<Value> {
    // One character may become three.
    meter.text(text.len().saturating_mul(6))?;
    let cased = if is_upper { text.to_uppercase() } else { text.to_lowercase() };
    Ok(Value::Text(cased.into()))
}

/// `text` in small letters but for the first.
pub(super) fn capitalized(text: &str, meter: &Meter) -> Result<Value> {
    meter.text(text.len().saturating_mul(6))?;
    let mut characters = text.chars();
    let mut capitalized: String = characters.next().into_iter().flat_map(char::to_uppercase).collect();
    capitalized += &characters.as_str().to_lowercase();
    Ok(Value::Text(capitalized.into()))
}

/// `text` with `prefix` before each line but the first, or before that too; and before empty ones, or not.
pub(super) fn indented(text: &str, prefix: &str, first: bool, blank: bool, meter: &Meter) -> Result<Value> {
    meter.scan(text.len())?;
    let len =
        text.matches('\n').count().saturating_add(1).saturating_mul(prefix.len()).saturating_add(text.len());
    meter.text(len.saturating_mul(2))?;
    let mut indented = String::with_capacity(len);
    for (index, line) in text.split('\n').enumerate() {
        if index > 0 {
            indented.push('\n');
        }
        if if index == 0 { first } else { blank || !line.is_empty() } {
            indented += prefix;
        }
        indented += line;
    }
    Ok(Value::Text(indented.into()))
}

/// A number of spaces that are paid for.
pub(super) fn spaces(count: i64, meter: &Meter) -> Result<String> {
    let count = usize::try_from(count).unwrap_or(0);
    meter.text(count)?;
    Ok(" ".repeat(count))
}

/// The number of characters before the first, or the last, `part` of `text`; -1 if there is none.
pub(super) fn find(text: &str, part: &str, is_last: bool, meter: &Meter) -> Result<Value> {
    meter.scan(text.len().saturating_mul(2).saturating_add(part.len()))?;
    let at = if is_last { text.rfind(part) } else { text.find(part) };
    Ok(Value::Int(at.map_or(-1, |at| text[..at].chars().count() as i64)))
}

/// `text` with HTML's escapes, as `markupsafe` writes them.
pub(super) fn escaped(text: &str, meter: &Meter) -> Result<String> {
    // A character may become an escape of five.
    meter.text(text.len().saturating_mul(5))?;
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '\'' => escaped += "&#39;",
            '"' => escaped += "&#34;",
            _ => escaped.push(character),
        }
    }
    Ok(escaped)
}
