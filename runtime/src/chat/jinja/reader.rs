//! JSON as Python's `json.loads` reads it, into values.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::fault::{Result, fail};
use super::meter::Meter;
use super::value::Value;
use crate::chat::GUARDS;

/// The value that `text` says. It has at most `most_values` in it, which lie at most `most_depth` deep. `change` makes
/// the texts in it of those that are written.
pub(in super::super) fn read(
    text: &str,
    [most_values, most_depth]: [usize; 2],
    meter: &Meter,
    change: &dyn Fn(&str) -> String,
) -> Result<Value> {
    let limits = [most_values, most_depth];
    let mut reader = Reader { text, at: 0, values: most_values, depth: most_depth, limits, meter, change };
    meter.scan(text.len())?;
    let value = reader.value()?;
    reader.skip_whitespace();
    match reader.peek() {
        None => Ok(value),
        Some(_) => reader.unexpected("the end"),
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    /// How many values there may still be, and how much deeper they may lie.
    values: usize,
    depth: usize,
    limits: [usize; 2],
    meter: &'a Meter,
    change: &'a dyn Fn(&str) -> String,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn skip(&mut self, token: &str) -> bool {
        let is_next = self.rest().starts_with(token);
        self.at += if is_next { token.len() } else { 0 };
        is_next
    }

    /// A guard may stand anywhere: it is no part of what was written.
    fn skip_whitespace(&mut self) {
        let is_space = |c: char| matches!(c, ' ' | '\t' | '\n' | '\r') || GUARDS.contains(&c);
        self.at += self.rest().len() - self.rest().trim_start_matches(is_space).len();
    }

    fn unexpected<T>(&self, expected: impl fmt::Display) -> Result<T> {
        let found = self.peek().map_or("the end".to_owned(), |found| format!("{found:?}"));
        fail(format!("{found} {}, where {expected} should be", self.place()))
    }

    fn wrong<T>(&self, found: &str) -> Result<T> {
        fail(format!("{found} {}", self.place()))
    }

    fn place(&self) -> String {
        let before = &self.text[..self.at];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1;
        format!("at line {line}, column {column}")
    }

    fn value(&mut self) -> Result<Value> {
        self.skip_whitespace();
        let Some(left) = self.values.checked_sub(1) else {
            return self.wrong(&format!("more than {} values", self.limits[0]));
        };
        self.values = left;
        self.meter.list(1)?;
        match self.peek() {
            Some('"') => self.text().map(Value::Text),
            Some('[') => self.inside(Self::list),
            Some('{') => self.inside(Self::dict),
            Some('-' | '0'..='9') => self.number(),
            _ if self.skip("null") => Ok(Value::None),
            _ if self.skip("true") => Ok(Value::Bool(true)),
            _ if self.skip("false") => Ok(Value::Bool(false)),
            _ => self.unexpected("a value"),
        }
    }

    /// What `read` makes of what stands after a bracket.
    fn inside(&mut self, read: impl FnOnce(&mut Self) -> Result<Value>) -> Result<Value> {
        let Some(left) = self.depth.checked_sub(1) else {
            return self
                .wrong(&format!("lists and objects more than {} deep in one another", self.limits[1]));
        };
        self.depth = left;
        self.at += 1;
        self.meter.list(1)?;
        let value = read(self)?;
        self.depth += 1;
        Ok(value)
    }

    fn list(&mut self) -> Result<Value> {
        let mut items = Vec::new();
        while !self.ends(']', items.is_empty())? {
            items.push(self.value()?);
        }
        Value::list(items)
    }

    fn dict(&mut self) -> Result<Value> {
        let mut entries: Vec<(Value, Value)> = Vec::new();
        let mut places: HashMap<Arc<str>, usize> = HashMap::new();
        while !self.ends('}', entries.is_empty())? {
            if self.peek() != Some('"') {
                return self.unexpected("a key in double quotes");
            }
            // The key, and where it is.
            self.meter.list(4)?;
            let key = self.text()?;
            self.skip_whitespace();
            if !self.skip(":") {
                return self.unexpected("a colon");
            }
            let value = self.value()?;
            // Of two with the same key the last counts, in the place of the first.
            match places.get(&key) {
                Some(&place) => entries[place].1 = value,
                None => {
                    places.insert(key.clone(), entries.len());
                    entries.push((Value::Text(key), value));
                }
            }
        }
        Value::dict(entries)
    }

    /// Whether a list or an object ends here. If not, the comma is behind that stands after all but the last item.
    fn ends(&mut self, close: char, is_first: bool) -> Result<bool> {
        self.skip_whitespace();
        if self.peek() == Some(close) {
            self.at += 1;
            return Ok(true);
        }
        if !is_first {
            if !self.skip(",") {
                return self.unexpected(format_args!("a comma or {close}"));
            }
            self.skip_whitespace();
        }
        Ok(false)
    }

    fn number(&mut self) -> Result<Value> {
        let rest = self.rest();
        let digits = |text: &str| text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let sign = usize::from(rest.starts_with('-'));
        let whole = digits(&rest[sign..]);
        if whole == 0 || whole > 1 && rest[sign..].starts_with('0') {
            return self.unexpected("a number");
        }
        let mut len = sign + whole;
        let mut is_int = true;
        let fraction = rest[len..].strip_prefix('.').map_or(0, digits);
        if fraction > 0 {
            len += 1 + fraction;
            is_int = false;
        }
        if let Some(power) = rest[len..].strip_prefix(['e', 'E']) {
            let unsigned = power.strip_prefix(['+', '-']).unwrap_or(power);
            let count = digits(unsigned);
            if count > 0 {
                len += 1 + power.len() - unsigned.len() + count;
                is_int = false;
            }
        }
        let number = &rest[..len];
        let value = match is_int {
            true => number.parse().map(Value::Int).ok(),
            false => number.parse().map(Value::Float).ok(),
        };
        let Some(value) = value else { return self.wrong("an integer of more than 64 bits") };
        self.at += len;
        Ok(value)
    }

    /// A text whose first quotes come next.
    fn text(&mut self) -> Result<Arc<str>> {
        self.at += 1;
        let rest = self.rest();
        let Some(plain) = rest.find(['"', '\\']) else { return self.unterminated() };
        let mut text = String::new();
        if rest[plain..].starts_with('\\') {
            while !self.skip("\"") {
                let is_escaped = self.peek() == Some('\\');
                text.push(self.character()?);
                // Nobody could see before what this character is.
                text.extend(self.meter.guard.filter(|_| is_escaped));
            }
        } else if let Some(at) = rest[..plain].find(|c: char| c < ' ') {
            self.at += at;
            return self.wrong("a control character in a string");
        } else {
            text.push_str(&rest[..plain]);
            self.at += plain + 1;
        }
        let text = (self.change)(&text);
        self.meter.text(text.len().saturating_mul(3))?;
        Ok(text.into())
    }

    fn unterminated<T>(&mut self) -> Result<T> {
        self.at = self.text.len();
        self.unexpected("the quotes that end a string")
    }

    /// One character of a text.
    fn character(&mut self) -> Result<char> {
        let character = match self.peek() {
            None => return self.unterminated(),
            Some('\\') => {
                self.at += 1;
                return self.escape();
            }
            Some('\0'..='\u{1f}') => return self.wrong("a control character in a string"),
            Some(other) => other,
        };
        self.at += character.len_utf8();
        Ok(character)
    }

    /// What stands after a backslash.
    fn escape(&mut self) -> Result<char> {
        let character = match self.peek() {
            Some(same @ ('"' | '\\' | '/')) => same,
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('u') => return self.code_point(),
            _ => return self.unexpected("an escape"),
        };
        self.at += 1;
        Ok(character)
    }

    /// The character whose number comes next, in four hexadecimal digits or in two times four.
    fn code_point(&mut self) -> Result<char> {
        let first = self.code_unit()?;
        if let Some(character) = char::from_u32(first) {
            return Ok(character);
        }
        let has_second = first < 0xdc00 && self.skip("\\");
        let second = if has_second { self.code_unit()? } else { 0 };
        match char::decode_utf16([first as u16, second as u16]).next() {
            Some(Ok(character)) => Ok(character),
            _ => self.wrong("half of a surrogate pair"),
        }
    }

    /// `u` and four digits.
    fn code_unit(&mut self) -> Result<u32> {
        let digits = self.rest().strip_prefix('u').and_then(|rest| rest.get(..4));
        let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        match digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()) {
            Some(number) => {
                self.at += 5;
                Ok(number)
            }
            None => self.unexpected("u and four hexadecimal digits"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::jinja::{Limits, json};

    fn again(text: &str) -> std::result::Result<String, String> {
        let meter = Meter::new(Limits::of(0, 0));
        let value =
            read(text, [20, 4], &meter, &|text| text.to_owned()).map_err(|fault| fault.to_string())?;
        let written = json::dumps(&value, Default::default(), &meter).unwrap();
        Ok(written.as_text().unwrap().to_owned())
    }

    /// Python 3.13's `json.dumps(json.loads(text), ensure_ascii=False)`.
    #[test]
    fn values_are_those_of_python() {
        for (text, expected) in [
            (" null ", "null"),
            ("[true,\tfalse\r\n]", "[true, false]"),
            (r#"{"b":1,"a":{},"b":[]}"#, r#"{"b": [], "a": {}}"#),
            (r#""\u00e9\ud83d\ude00\n\/\"\\\b\f\r\t""#, r#""é😀\n/\"\\\b\f\r\t""#),
            ("\"日本\u{7f}\"", "\"日本\u{7f}\""),
            ("[0, -0, -12, 9223372036854775807]", "[0, 0, -12, 9223372036854775807]"),
            ("[1.0, -0.0, 1e2, 1E-7, 12.5e+3, 1e16]", "[1.0, -0.0, 100.0, 1e-07, 12500.0, 1e+16]"),
            ("[[[[]]]]", "[[[[]]]]"),
            ("\u{fdd1}[\u{fdd1}1\u{fdd1}]", "[1]"),
        ] {
            assert_eq!(again(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_json_is_said_with_its_place() {
        for (text, expected) in [
            ("", "the end at line 1, column 1, where a value should be"),
            ("[1\n 2]", "'2' at line 2, column 2, where a comma or ] should be"),
            ("[1,]", "']' at line 1, column 4, where a value should be"),
            ("[1", "the end at line 1, column 3, where a comma or ] should be"),
            ("{a: 1}", "'a' at line 1, column 2, where a key in double quotes should be"),
            (r#"{"a" 1}"#, "'1' at line 1, column 6, where a colon should be"),
            (r#"{"a": 1,}"#, "'}' at line 1, column 9, where a key in double quotes should be"),
            ("1 2", "'2' at line 1, column 3, where the end should be"),
            ("01", "'0' at line 1, column 1, where a number should be"),
            ("-", "'-' at line 1, column 1, where a number should be"),
            ("1.", "'.' at line 1, column 2, where the end should be"),
            ("NaN", "'N' at line 1, column 1, where a value should be"),
            ("'a'", "'\\'' at line 1, column 1, where a value should be"),
            ("\"a", "the end at line 1, column 3, where the quotes that end a string should be"),
            ("\"\\n", "the end at line 1, column 4, where the quotes that end a string should be"),
            ("\"a\nb\"", "a control character in a string at line 1, column 3"),
            ("\"\\n\n\"", "a control character in a string at line 1, column 4"),
            (r#""\x41""#, "'x' at line 1, column 3, where an escape should be"),
            (r#""\u12g4""#, "'u' at line 1, column 3, where u and four hexadecimal digits should be"),
            (r#""\ud800""#, "half of a surrogate pair"),
            (r#""\ud800\u0041""#, "half of a surrogate pair"),
            (r#""\udc00""#, "half of a surrogate pair"),
            ("9223372036854775808", "an integer of more than 64 bits at line 1, column 1"),
            ("[[[[[]]]]]", "more than 4 deep in one another at line 1, column 5"),
            ("[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "more than 20 values at line 1, column 40"),
        ] {
            let error = again(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
