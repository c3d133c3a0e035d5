//! The filter `tojson` as `transformers` has it: Python's `json.dumps`, without the escapes for HTML.

use std::fmt::Write;

use super::Value;
use super::arguments::{Values, optional_int};
use super::fault::{Result, fail};
use super::meter::Meter;
use super::sequences::sorted;
use super::text;

/// Most spaces before a line.
const MAX_INDENT: usize = 1024;

/// `value` as JSON. Of Python's arguments `indent`, `sort_keys` and `ensure_ascii=false` are known.
pub(super) fn dumps(value: &Value, values: Values, meter: &Meter) -> Result<Value> {
    let [indent, sort_keys, ensure_ascii] = values.bind("tojson", ["indent", "sort_keys", "ensure_ascii"])?;
    if super::arguments::flag(&ensure_ascii) {
        return fail("tojson with ensure_ascii=true is not supported");
    }
    let indent = optional_int("tojson", &indent)?.map(|indent| usize::try_from(indent).unwrap_or(0));
    let sort_keys = super::arguments::flag(&sort_keys);
    let mut writer = Writer { out: String::new(), indent, sort_keys, depth: 0, meter };
    writer.value(value)?;
    meter.text(writer.out.len())?;
    Ok(Value::Text(writer.out.into()))
}

struct Writer<'a> {
    out: String,
    /// Spaces per level; none for all on one line.
    indent: Option<usize>,
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
            Value::Float(number) => self.push(&text::float(*number)),
            Value::Text(text) => self.text(text),
            Value::List(list) => self.block(['[', ']'], &list.items, |writer, item| writer.value(item)),
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
            Value::Text(key) => self.text(key)?,
            _ => return fail("tojson needs keys that are texts"),
        }
        self.push(": ")?;
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
                self.push(if self.indent.is_some() { "," } else { ", " })?;
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
        let Some(indent) = self.indent else { return Ok(()) };
        self.push("\n")?;
        self.push(&" ".repeat(indent.saturating_mul(self.depth).min(MAX_INDENT)))
    }

    fn text(&mut self, text: &str) -> Result<()> {
        // A character may become an escape of six.
        self.meter.allocate(text.len().saturating_mul(3 * 6))?;
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out += "\\\"",
                '\\' => self.out += "\\\\",
                '\n' => self.out += "\\n",
                '\r' => self.out += "\\r",
                '\t' => self.out += "\\t",
                '\u{8}' => self.out += "\\b",
                '\u{c}' => self.out += "\\f",
                '\0'..='\u{1f}' => {
                    let _ = write!(self.out, "\\u{:04x}", u32::from(character)); // a String takes everything
                }
                _ => self.out.push(character),
            }
        }
        self.out.push('"');
        self.meter.allocate(6)
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
    fn what_json_dumps_would_do_otherwise_is_refused() {
        assert!(dump(&[("ensure_ascii", Value::Bool(true))]).unwrap_err().contains("ensure_ascii"));
        assert!(dump(&[("default", Value::Bool(true))]).unwrap_err().contains("default"));
        assert!(dump_of(&Value::Undefined, &[]).unwrap_err().contains("undefined"));
        let keys = Value::dict(vec![(Value::Int(1), Value::Int(2))]).unwrap();
        assert!(dump_of(&keys, &[]).unwrap_err().contains("keys"));
        let mut deep = Ok(Value::Int(1));
        for _ in 0..100 {
            deep = deep.and_then(|inner| Value::list(vec![inner]));
        }
        assert!(deep.unwrap_err().to_string().contains("deep"));
    }

    #[test]
    fn numbers_are_those_of_python() {
        for (number, expected) in
            [(1.0, "1.0"), (-0.5, "-0.5"), (1e16, "1e+16"), (1.5e-5, "1.5e-05"), (1e15, "1000000000000000.0")]
        {
            assert_eq!(dump_of(&Value::Float(number), &[]).as_deref(), Ok(expected));
        }
    }
}
