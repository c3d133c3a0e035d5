//! The filter `tojson` as `transformers` has it: Python's `json.dumps`, without the escapes for HTML.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// Deepest nesting that is written.
const MAX_DEPTH: usize = 64;

/// `value` as JSON. Of Python's arguments `indent` and `sort_keys` are known.
pub(super) fn dumps(value: &Value, options: &Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    let ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    if ensure_ascii == Some(true) {
        return Err(wrong("tojson with ensure_ascii=true is not supported"));
    }
    let mut writer = Writer { out: String::new(), indent, sort_keys: sort_keys == Some(true), depth: 0 };
    writer.value(value)?;
    Ok(writer.out)
}

struct Writer {
    out: String,
    /// Spaces per level; none for all on one line.
    indent: Option<usize>,
    sort_keys: bool,
    depth: usize,
}

impl Writer {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.out += "null",
            ValueKind::Bool => self.out += if value.is_true() { "true" } else { "false" },
            ValueKind::Number => self.out += &value.to_string(),
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.block(['[', ']'], &items, |writer, item| writer.value(item))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.block(['{', '}'], &keys, |writer, key| writer.entry(value, key))?;
            }
            kind => return Err(wrong(&format!("tojson of {kind} is not supported"))),
        }
        Ok(())
    }

    fn entry(&mut self, map: &Value, key: &Value) -> Result<(), Error> {
        self.text(key.as_str().ok_or_else(|| wrong("tojson needs keys that are texts"))?);
        self.out += ": ";
        self.value(&map.get_item(key)?)
    }

    fn block(
        &mut self,
        brackets: [char; 2],
        items: &[Value],
        mut write: impl FnMut(&mut Writer, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if self.depth == MAX_DEPTH {
            return Err(wrong("tojson of something this deep is not supported"));
        }
        self.out.push(brackets[0]);
        self.depth += 1;
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.out += if self.indent.is_some() { "," } else { ", " };
            }
            self.new_line();
            write(self, item)?;
        }
        self.depth -= 1;
        if !items.is_empty() {
            self.new_line();
        }
        self.out.push(brackets[1]);
        Ok(())
    }

    fn new_line(&mut self) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent.saturating_mul(self.depth).min(1024)));
        }
    }

    fn text(&mut self, text: &str) {
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
    }
}

fn wrong(problem: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem.to_owned())
}

#[cfg(test)]
mod tests {
    use minijinja::value::{Kwargs, Value};

    use super::dumps;

    fn value() -> Value {
        let list = Value::from(vec![Value::from(1), Value::from(2.5), Value::from(()), Value::from(true)]);
        let empty = Value::from(Vec::<Value>::new());
        Value::from_pairs([("z", list), ("a", Value::from("<é>\"\\\n\t\u{1}\u{7f}")), ("e", empty)])
    }

    fn dump(options: &[(&'static str, Value)]) -> Result<String, String> {
        dumps(&value(), &options.iter().cloned().collect::<Kwargs>()).map_err(|error| error.to_string())
    }

    #[test]
    fn json_is_that_of_python() {
        let line =
            r#"{"z": [1, 2.5, null, true], "a": "<é>\"\\\n\t\u0001"#.to_owned() + "\u{7f}\", \"e\": []}";
        assert_eq!(dump(&[]), Ok(line.clone()));
        assert_eq!(dump(&[("ensure_ascii", false.into()), ("indent", Value::from(()))]), Ok(line));
        let pretty = "{\n  \"a\": \"<é>\\\"\\\\\\n\\t\\u0001\u{7f}\",\n  \"e\": [],\n  \"z\": [\n    1,\n    2.5,\n    null,\n    true\n  ]\n}";
        assert_eq!(dump(&[("indent", 2.into()), ("sort_keys", true.into())]).as_deref(), Ok(pretty));
    }

    #[test]
    fn what_json_dumps_would_do_otherwise_is_refused() {
        assert!(dump(&[("ensure_ascii", true.into())]).unwrap_err().contains("ensure_ascii"));
        assert!(dump(&[("default", true.into())]).unwrap_err().contains("default"));
        let none = || std::iter::empty::<(&str, Value)>().collect::<Kwargs>();
        assert!(dumps(&Value::UNDEFINED, &none()).unwrap_err().to_string().contains("undefined"));
        let keys = Value::from_pairs([(Value::from(1), Value::from(2))]);
        assert!(dumps(&keys, &none()).unwrap_err().to_string().contains("keys"));
        let deep = (0..100).fold(Value::from(1), |inner, _| Value::from(vec![inner]));
        assert!(dumps(&deep, &none()).unwrap_err().to_string().contains("deep"));
    }
}
