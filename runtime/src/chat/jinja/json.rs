//! The filter `tojson` as `transformers` has it: Python's `json.dumps`, without the escapes for HTML.

use std::fmt::Write;
use std::sync::Arc;

use super::Value;
use super::arguments::{Values, flag};
use super::fault::{Result, fail};
use super::meter::Meter;
use super::printing::float;
use super::sequences::sorted;
use super::text::spaces;
use super::value::Kind;
use crate::chat::GUARDS;

/// `value` as JSON, with the arguments that `transformers` gives its filter.
pub(super) fn dumps(value: &Value, values: Values, meter: &Meter) -> Result<Value> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [ensure_ascii, indent, separators, sort_keys] = values.bind("tojson", names)?;
    let indent = indentation(indent, meter)?;
    let mut writer = Writer {
        out: String::new(),
        separators: separators_of(separators, indent.is_some())?,
        indent,
        ensure_ascii: flag(&ensure_ascii),
        sort_keys: flag(&sort_keys),
        depth: 0,
        meter,
    };
    writer.value(value)?;
    meter.text(writer.out.len())?;
    Ok(Value::Text(writer.out.into()))
}

/// What stands before a line, once for each level.
fn indentation(indent: Option<Value>, meter: &Meter) -> Result<Option<Arc<str>>> {
    Ok(match indent {
        None | Some(Value::None) => None,
        Some(Value::Text(text)) => Some(text),
        Some(other) => match other.as_int() {
            Some(count) => Some(spaces(count, meter)?.into()),
            None => {
                return fail(format!(
                    "tojson: indent: expected a number or a string, found {}",
                    other.kind()
                ));
            }
        },
    })
}

/// What stands between two items, and between a key and its value.
fn separators_of(separators: Option<Value>, is_indented: bool) -> Result<[Arc<str>; 2]> {
    match separators {
        None | Some(Value::None) => Ok([if is_indented { "," } else { ", " }, ": "].map(Arc::from)),
        Some(Value::List(list)) => match &*list.items {
            [Value::Text(item), Value::Text(key)] => Ok([item.clone(), key.clone()]),
            _ => fail("tojson: separators: expected two strings"),
        },
        Some(other) => fail(format!("tojson: separators: expected two strings, found {}", other.kind())),
    }
}

struct Writer<'a> {
    out: String,
    separators: [Arc<str>; 2],
    /// For each level; none for all on one line.
    indent: Option<Arc<str>>,
    ensure_ascii: bool,
    sort_keys: bool,
    depth: usize,
    meter: &'a Meter,
}

impl Writer<'_> {
    /// Goes as deep as values lie in one another, which has an end.
    fn value(&mut self, value: &Value) -> Result<()> {
        self.meter.step(1)?;
        match value {
            Value::None => self.push("null"),
            Value::Bool(true) => self.push("true"),
            Value::Bool(false) => self.push("false"),
            Value::Int(number) => self.push(&number.to_string()),
            Value::Float(number) => self.push(&number_text(*number)),
            Value::Text(text) | Value::Safe(text) => self.text(text),
            Value::List(list) if matches!(list.kind, Kind::List | Kind::Tuple) => {
                self.block(['[', ']'], &list.items, |writer, item| writer.value(item))
            }
            Value::Dict(dict) if self.sort_keys => {
                self.meter.list(dict.entries().len().saturating_mul(4))?;
                let keyed = dict
                    .entries()
                    .iter()
                    .map(|(key, value)| Ok((key.clone(), Value::list(vec![key.clone(), value.clone()])?)));
                let pairs = sorted(keyed.collect::<Result<_>>()?, false, self.meter)?;
                self.block(['{', '}'], &pairs, |writer, pair| match pair {
                    Value::List(pair) => writer.entry(&pair.items[0], &pair.items[1]),
                    _ => Ok(()), // there is none
                })
            }
            Value::Dict(dict) => {
                self.block(['{', '}'], dict.entries(), |writer, (key, value)| writer.entry(key, value))
            }
            other => fail(format!("tojson of {} is not supported", other.kind())),
        }
    }

    fn push(&mut self, text: &str) -> Result<()> {
        // While a text grows there is twice the old one, and the old one.
        self.meter.allocate(text.len().saturating_mul(3))?;
        self.out.push_str(text);
        Ok(())
    }

    fn entry(&mut self, key: &Value, value: &Value) -> Result<()> {
        match key {
            Value::Text(key) | Value::Safe(key) => self.text(key)?,
            Value::None => self.push("\"null\"")?,
            Value::Bool(flag) => self.push(&format!("\"{flag}\""))?,
            Value::Int(number) => self.push(&format!("\"{number}\""))?,
            Value::Float(number) => self.push(&format!("\"{}\"", number_text(*number)))?,
            other => return fail(format!("tojson: a {} is no key", other.kind())),
        }
        let separator = self.separators[1].clone();
        self.push(&separator)?;
        self.value(value)
    }

    fn block<T>(
        &mut self,
        [open, close]: [char; 2],
        items: &[T],
        mut write: impl FnMut(&mut Self, &T) -> Result<()>,
    ) -> Result<()> {
        self.out.push(open);
        self.depth += 1;
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                let separator = self.separators[0].clone();
                self.push(&separator)?;
            }
            self.new_line()?;
            write(self, item)?;
        }
        self.depth -= 1;
        if !items.is_empty() {
            self.new_line()?;
        }
        self.out.push(close);
        self.meter.allocate(6)
    }

    fn new_line(&mut self) -> Result<()> {
        let Some(indent) = self.indent.clone() else { return Ok(()) };
        self.push("\n")?;
        (0..self.depth).try_for_each(|_| self.push(&indent))
    }

    fn text(&mut self, text: &str) -> Result<()> {
        // A character may become an escape of six.
        self.meter.allocate(text.len().saturating_mul(3 * 6).saturating_add(6))?;
        quote(text, self.ensure_ascii, &mut self.out);
        Ok(())
    }
}

/// Writes `text` as a string of JSON.
pub(super) fn quote(text: &str, ensure_ascii: bool, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\0'..='\u{1f}' => escape(character, out),
            // A guard is none of the text's own characters: it has to stay one.
            '\u{7f}'.. if ensure_ascii && !GUARDS.contains(&character) => escape(character, out),
            _ => out.push(character),
        }
    }
    out.push('"');
}

fn escape(character: char, out: &mut String) {
    for unit in character.encode_utf16(&mut [0; 2]) {
        let _ = write!(out, "\\u{unit:04x}"); // a String takes everything
    }
}

/// A number as Python's `json` writes it.
fn number_text(number: f64) -> String {
    match number {
        _ if number.is_nan() => "NaN".into(),
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        _ => float(number),
    }
}

#[cfg(test)]
mod tests {
    use super::super::value::List;
    use super::*;
    use crate::chat::jinja::Limits;

    fn value() -> Value {
        let list = [Value::Int(1), Value::Float(2.5), Value::None, Value::Bool(true)];
        let list = Value::List(List::new(list.to_vec()).unwrap());
        let empty = Value::List(List::new(Vec::new()).unwrap());
        let text = Value::from("<é>\"\\\n\t\u{1}\u{7f}");
        let entries = [("z", list), ("a", text), ("e", empty)].map(|(key, value)| (Value::from(key), value));
        Value::dict(entries.to_vec()).unwrap()
    }

    fn dump_of(value: &Value, options: &[(&str, Value)]) -> std::result::Result<String, String> {
        let named = options.iter().map(|(name, value)| ((*name).into(), value.clone())).collect();
        let values = Values { positional: Vec::new(), named };
        match dumps(value, values, &Meter::new(Limits::of(0, 0))) {
            Ok(text) => Ok(text.as_text().unwrap().to_owned()),
            Err(fault) => Err(fault.to_string()),
        }
    }

    fn dump(options: &[(&str, Value)]) -> std::result::Result<String, String> {
        dump_of(&value(), options)
    }

    #[test]
    fn json_is_that_of_python() {
        let line =
            r#"{"z": [1, 2.5, null, true], "a": "<é>\"\\\n\t\u0001"#.to_owned() + "\u{7f}\", \"e\": []}";
        assert_eq!(dump(&[]), Ok(line.clone()));
        assert_eq!(dump(&[("ensure_ascii", Value::Bool(false)), ("indent", Value::None)]), Ok(line));
        let pretty = "{\n  \"a\": \"<é>\\\"\\\\\\n\\t\\u0001\u{7f}\",\n  \"e\": [],\n  \"z\": [\n    1,\n    2.5,\n    null,\n    true\n  ]\n}";
        assert_eq!(
            dump(&[("indent", Value::Int(2)), ("sort_keys", Value::Bool(true))]).as_deref(),
            Ok(pretty)
        );
    }

    #[test]
    fn arguments_are_those_of_transformers() {
        let options = [
            ("ensure_ascii", Value::Bool(true)),
            ("indent", Value::from("-")),
            ("separators", Value::list_of(Kind::Tuple, vec![";".into(), "=".into()]).unwrap()),
        ];
        let value = Value::list(vec!["é😀\u{7f}\u{fdd0}".into(), value()]).unwrap();
        let expected = "[\n-\"\\u00e9\\ud83d\\ude00\\u007f\u{fdd0}\";\n-{\n--\"z\"=[\n---1;\n---2.5;\n---null;\n---true\n--];\n\
            --\"a\"=\"<\\u00e9>\\\"\\\\\\n\\t\\u0001\\u007f\";\n--\"e\"=[]\n-}\n]";
        assert_eq!(dump_of(&value, &options).as_deref(), Ok(expected));
        let keys = [Value::None, Value::Bool(true), Value::Int(1), Value::Float(1.5), "x".into()];
        let keys = Value::dict(keys.map(|key| (key, Value::Safe("y".into()))).to_vec()).unwrap();
        let expected = r#"{"null":"y","true":"y","1":"y","1.5":"y","x":"y"}"#;
        let compact = Value::list(vec![",".into(), ":".into()]).unwrap();
        assert_eq!(dump_of(&keys, &[("separators", compact)]).as_deref(), Ok(expected));
        let first = Values { positional: vec![Value::Bool(true)], named: Vec::new() };
        let text = dumps(&"é".into(), first, &Meter::new(Limits::of(0, 0))).unwrap();
        assert_eq!(text.as_text(), Some("\"\\u00e9\""));
    }

    #[test]
    fn what_json_dumps_would_refuse_is_refused() {
        for (name, value, expected) in [
            ("default", Value::Bool(true), "there is no argument default"),
            ("indent", Value::Float(1.5), "indent: expected a number or a string, found number"),
            ("separators", Value::Int(1), "separators: expected two strings, found number"),
            ("separators", Value::list(vec![Value::None]).unwrap(), "separators: expected two strings"),
            ("indent", Value::Int(i64::MAX), "bytes of text and values"),
        ] {
            assert!(dump(&[(name, value)]).unwrap_err().contains(expected), "{expected}");
        }
        assert!(
            dump_of(&Value::Undefined, &[]).unwrap_err().contains("tojson of undefined is not supported")
        );
        let lazy = Value::list_of(Kind::Iterator, Vec::new()).unwrap();
        assert!(dump_of(&lazy, &[]).unwrap_err().contains("tojson of generator is not supported"));
        let keys = Value::dict(vec![(lazy, Value::Int(2))]).unwrap();
        assert!(dump_of(&keys, &[]).unwrap_err().contains("a generator is no key"));
        let mut deep = Ok(Value::Int(1));
        for _ in 0..100 {
            deep = deep.and_then(|inner| Value::list(vec![inner]));
        }
        assert!(deep.unwrap_err().to_string().contains("deep"));
    }

    #[test]
    fn numbers_are_those_of_python() {
        for (number, expected) in [
            (1.0, "1.0"),
            (-0.5, "-0.5"),
            (1e16, "1e+16"),
            (1.5e-5, "1.5e-05"),
            (1e15, "1000000000000000.0"),
            (f64::INFINITY, "Infinity"),
            (f64::NEG_INFINITY, "-Infinity"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(dump_of(&Value::Float(number), &[]).as_deref(), Ok(expected));
        }
    }
}
