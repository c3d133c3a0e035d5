//! Python's `str.format`, without format specifications.

use std::borrow::Cow;

use super::arguments::Values;
use super::fault::{Result, fail};
use super::meter::Meter;
use super::printing::printed;
use super::text::concat;
use super::value::Value;

/// `text` with each `{}`, `{0}` and `{name}` as the value that it stands for.
pub(super) fn format(text: &str, values: &Values, meter: &Meter) -> Result<Value> {
    meter.scan(text.len())?;
    let mut fields = Fields { values, next: Some(0) };
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        // Two parts, each a text at most.
        meter.list(2)?;
        parts.push(Cow::Borrowed(&rest[..at]));
        let brace = &rest[at..at + 1];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            parts.push(Cow::Borrowed(brace));
            rest = after;
            continue;
        }
        let field = rest.split_once('}').filter(|_| brace == "{");
        let Some((field, after)) = field else { return fail("format: a brace has no other") };
        parts.push(printed(fields.value(field, meter)?, meter)?);
        rest = after;
    }
    parts.push(Cow::Borrowed(rest));
    concat(&parts, meter)
}

/// What fields stand for.
struct Fields<'a> {
    values: &'a Values,
    /// The number of the next `{}`; none once a field had a number of its own.
    next: Option<usize>,
}

impl<'a> Fields<'a> {
    fn value(&mut self, field: &str, meter: &Meter) -> Result<&'a Value> {
        if field.contains([':', '!', '.', '[', '{']) {
            return fail(format!("format: {{{field}}} is not supported: only {{}}, numbers and names are"));
        }
        let named = &self.values.named;
        meter.step(1 + named.len())?;
        let value = match field.parse::<usize>() {
            _ if field.is_empty() => self.values.positional.get(self.count()?),
            Ok(index) if self.next.is_none_or(|next| next == 0) => {
                self.next = None;
                self.values.positional.get(index)
            }
            Ok(_) => return mixed(),
            Err(_) => named.iter().find(|(name, _)| **name == *field).map(|(_, value)| value),
        };
        value.map_or_else(|| fail(format!("format: there is nothing for {{{field}}}")), Ok)
    }

    /// The number of this `{}`.
    fn count(&mut self) -> Result<usize> {
        let Some(next) = self.next else { return mixed() };
        self.next = Some(next + 1);
        Ok(next)
    }
}

fn mixed<T>() -> Result<T> {
    fail("format: fields with numbers and without are mixed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::jinja::Limits;

    fn formatted(text: &str) -> std::result::Result<String, String> {
        let named = vec![("name".into(), Value::from("n")), ("none".into(), Value::None)];
        let values = Values { positional: vec!["a".into(), Value::Int(2)], named };
        let text = format(text, &values, &Meter::new(Limits::of(0, 0)));
        text.map(|text| text.as_text().unwrap().to_owned()).map_err(|fault| fault.to_string())
    }

    #[test]
    fn fields_are_filled_as_python_fills_them() {
        for (text, expected) in [
            ("", ""),
            ("{}-{}", "a-2"),
            ("{1}{0}{1}", "2a2"),
            ("{name}{}{none}", "naNone"),
            ("{{}} {{{}}}", "{} {a}"),
            ("é{}日", "éa日"),
        ] {
            assert_eq!(formatted(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn other_fields_are_refused() {
        for (text, expected) in [
            ("{", "a brace has no other"),
            ("}", "a brace has no other"),
            ("{} {0}", "are mixed"),
            ("{0} {}", "are mixed"),
            ("{}{}{}", "there is nothing for {}"),
            ("{2}", "there is nothing for {2}"),
            ("{other}", "there is nothing for {other}"),
            ("{:2000000000}", "{:2000000000} is not supported"),
            ("{0!r}", "is not supported"),
            ("{name.x}", "is not supported"),
            ("{name[0]}", "is not supported"),
        ] {
            let error = formatted(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
