//! Values as text: Python's `str`, and `repr` of what lies in lists and objects.

use std::borrow::Cow;
use std::fmt::Write;

use super::fault::{Result, fail};
use super::meter::Meter;
use super::value::{Kind, List, Value};
use crate::chat::GUARDS;

/// `value` as Python's `str` writes it.
pub(super) fn printed<'a>(value: &'a Value, meter: &Meter) -> Result<Cow<'a, str>> {
    Ok(match value {
        Value::Undefined => Cow::Borrowed(""),
        Value::Text(text) | Value::Safe(text) => Cow::Borrowed(text),
        other => Cow::Owned(represented(other, meter)?),
    })
}

/// `value` as Python's `repr` writes it.
fn represented(value: &Value, meter: &Meter) -> Result<String> {
    let mut writer = Writer { out: String::new(), meter };
    writer.value(value)?;
    Ok(writer.out)
}

/// A number as Python's `repr` writes it: with an exponent where it is far from one.
pub(super) fn float(number: f64) -> String {
    let size = number.abs();
    if !number.is_finite() {
        return if number.is_nan() { "nan".into() } else { format!("{number}") };
    }
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = format!("{number:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let power: i32 = exponent.parse().unwrap_or(0);
        return format!("{digits}e{}{:02}", if power < 0 { '-' } else { '+' }, power.abs());
    }
    let text = number.to_string();
    if text.contains('.') { text } else { text + ".0" }
}

struct Writer<'a> {
    out: String,
    meter: &'a Meter,
}

impl Writer<'_> {
    /// Goes as deep as values lie in one another, which has an end.
    fn value(&mut self, value: &Value) -> Result<()> {
        self.meter.step(1)?;
        match value {
            Value::Undefined => self.push("Undefined"),
            Value::None => self.push("None"),
            Value::Bool(true) => self.push("True"),
            Value::Bool(false) => self.push("False"),
            Value::Int(number) => self.push(&number.to_string()),
            Value::Float(number) => self.push(&float(*number)),
            Value::Text(text) => self.text(text),
            Value::List(list) => self.list(list),
            Value::Dict(dict) => self.items(["{", "}"], dict.entries(), |writer, (key, value)| {
                writer.value(key)?;
                writer.push(": ")?;
                writer.value(value)
            }),
            other => fail(format!("a {} cannot be printed", other.kind())),
        }
    }

    fn push(&mut self, text: &str) -> Result<()> {
        // While a text grows there is twice the old one, and the old one.
        self.meter.allocate(text.len().saturating_mul(3))?;
        self.out.push_str(text);
        Ok(())
    }

    fn list(&mut self, list: &List) -> Result<()> {
        let brackets = match list.kind {
            Kind::List => ["[", "]"],
            Kind::Tuple if list.items.len() == 1 => ["(", ",)"],
            Kind::Tuple => ["(", ")"],
            Kind::Keys => ["dict_keys([", "])"],
            Kind::Values => ["dict_values([", "])"],
            Kind::Items => ["dict_items([", "])"],
            Kind::Range | Kind::Iterator => return fail(format!("a {} cannot be printed", list.kind.name())),
        };
        self.items(brackets, &list.items, Self::value)
    }

    fn items<T>(
        &mut self,
        [open, close]: [&str; 2],
        items: &[T],
        write: impl Fn(&mut Self, &T) -> Result<()>,
    ) -> Result<()> {
        self.push(open)?;
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.push(", ")?;
            }
            write(self, item)?;
        }
        self.push(close)
    }

    fn text(&mut self, text: &str) -> Result<()> {
        // Of a byte come four, `\x7f`, at most.
        self.meter.allocate((text.len().saturating_mul(4)).saturating_add(2).saturating_mul(3))?;
        let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
        self.out.push(quote);
        for character in text.chars() {
            self.character(character, quote);
        }
        self.out.push(quote);
        Ok(())
    }

    fn character(&mut self, character: char, quote: char) {
        let number = u32::from(character);
        let written = match character {
            '\n' => self.out.write_str("\\n"),
            '\r' => self.out.write_str("\\r"),
            '\t' => self.out.write_str("\\t"),
            '\\' => self.out.write_str("\\\\"),
            _ if character == quote => write!(self.out, "\\{quote}"),
            _ if is_printable(character) => self.out.write_char(character),
            '\0'..='\u{ff}' => write!(self.out, "\\x{number:02x}"),
            '\u{100}'..='\u{ffff}' => write!(self.out, "\\u{number:04x}"),
            _ => write!(self.out, "\\U{number:08x}"),
        };
        let _ = written; // a String takes everything
    }
}

/// Python's `str.isprintable` of one character. A guard is none of the text's own characters: it has to stay one.
fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return !character.is_ascii_control();
    }
    // Behind another character, Rust escapes what cannot be printed and nothing else: the same categories.
    let mut buffer = [b'a'; 5];
    let len = 1 + character.encode_utf8(&mut buffer[1..]).len();
    let escaped = str::from_utf8(&buffer[..len]).map(|text| text.escape_debug().count());
    escaped == Ok(2) || GUARDS.contains(&character)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::jinja::Limits;

    fn text(value: &Value) -> std::result::Result<String, String> {
        let meter = Meter::new(Limits::of(0, 0));
        printed(value, &meter).map(Cow::into_owned).map_err(|fault| fault.to_string())
    }

    fn list(kind: Kind, items: &[Value]) -> Value {
        Value::list_of(kind, items.to_vec()).unwrap()
    }

    #[test]
    fn numbers_are_those_of_python() {
        for (number, expected) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (1e16, "1e+16"),
            (1.5e-5, "1.5e-05"),
            (1e15, "1000000000000000.0"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(text(&Value::Float(number)).as_deref(), Ok(expected));
        }
    }

    /// Python 3.13 wrote the texts.
    #[test]
    fn what_lies_in_lists_is_written_as_python_represents_it() {
        let texts = [
            "a'b",
            "a\"b'",
            "\\\n\t\r\0\u{7f}\u{80}",
            "é日👩\u{301}",
            "\u{200d}\u{feff}\u{2028}\u{a0}\u{e000}\u{e0001}",
        ];
        let texts = list(Kind::List, &texts.map(Value::from));
        let expected = r#"["a'b", 'a"b\'', '\\\n\t\r\x00\x7f\x80', 'é日👩"#.to_owned()
            + "\u{301}"
            + r"', '\u200d\ufeff\u2028\xa0\ue000\U000e0001']";
        assert_eq!(text(&texts), Ok(expected));
        let one = [Value::Int(1)];
        let entries = vec![
            ("a".into(), list(Kind::Tuple, &one)),
            (Value::Int(2), list(Kind::Tuple, &[Value::None, Value::Bool(true)])),
            (Value::Bool(false), Value::Float(0.5)),
            ("u".into(), Value::Undefined),
        ];
        assert_eq!(
            text(&Value::dict(entries).unwrap()).as_deref(),
            Ok("{'a': (1,), 2: (None, True), False: 0.5, 'u': Undefined}")
        );
        assert_eq!(text(&list(Kind::Keys, &one)).as_deref(), Ok("dict_keys([1])"));
        assert_eq!(text(&list(Kind::Values, &one)).as_deref(), Ok("dict_values([1])"));
        assert_eq!(text(&list(Kind::Items, &one)).as_deref(), Ok("dict_items([1])"));
        assert_eq!(text(&list(Kind::List, &["\u{fdd0}".into()])).as_deref(), Ok("['\u{fdd0}']"));
    }

    #[test]
    fn what_python_would_print_an_address_of_is_refused() {
        for (value, expected) in [
            (list(Kind::Iterator, &[]), "a generator cannot be printed"),
            (list(Kind::Range, &[]), "a range cannot be printed"),
            (Value::Method, "a method cannot be printed"),
            (Value::Namespace(0), "a namespace cannot be printed"),
            (list(Kind::List, &[Value::Safe("x".into())]), "a safe string cannot be printed"),
        ] {
            assert_eq!(text(&value), Err(expected.into()));
        }
    }
}
