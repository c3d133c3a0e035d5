//! What a filter, a method or a function is called with.

use std::sync::Arc;

use super::fault::{Result, fail};
use super::value::Value;

#[derive(Debug, Default)]
pub(super) struct Values {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(Arc<str>, Value)>,
}

impl Values {
    /// The values of the parameters of these names: by order, or by name. An error names what does not fit `called`.
    pub(super) fn bind<const N: usize>(self, called: &str, names: [&str; N]) -> Result<[Option<Value>; N]> {
        if self.positional.len() > N {
            return fail(format!("{called}: {} arguments, expected {N} at most", self.positional.len()));
        }
        let mut bound = [const { None }; N];
        for (place, value) in bound.iter_mut().zip(self.positional) {
            *place = Some(value);
        }
        for (name, value) in self.named {
            let Some(index) = names.iter().position(|known| **known == *name) else {
                return fail(format!("{called}: there is no argument {name}"));
            };
            if bound[index].replace(value).is_some() {
                return fail(format!("{called}: the argument {name} is there twice"));
            }
        }
        Ok(bound)
    }

    /// The first value, and the others.
    pub(super) fn split_first(mut self) -> (Option<Value>, Values) {
        if self.positional.is_empty() {
            return (None, self);
        }
        let first = self.positional.remove(0);
        (Some(first), self)
    }
}

/// The text of an argument that has to be there.
pub(super) fn text<'a>(called: &str, value: &'a Option<Value>) -> Result<&'a str> {
    match value {
        Some(Value::Text(text)) => Ok(text),
        other => {
            let kind = other.as_ref().map_or("nothing", Value::kind);
            fail(format!("{called}: expected a string, found {kind}"))
        }
    }
}

/// The text of an argument that may be left out or be none.
pub(super) fn optional_text<'a>(called: &str, value: &'a Option<Value>) -> Result<Option<&'a str>> {
    match value {
        None | Some(Value::None) => Ok(None),
        some => text(called, some).map(Some),
    }
}

/// The number of an argument that may be left out or be none.
pub(super) fn optional_int(called: &str, value: &Option<Value>) -> Result<Option<i64>> {
    match value {
        None | Some(Value::None) => Ok(None),
        Some(value) => match value.as_int() {
            Some(number) => Ok(Some(number)),
            None => fail(format!("{called}: expected an integer, found {}", value.kind())),
        },
    }
}

/// Whether an argument is there and true.
pub(super) fn flag(value: &Option<Value>) -> bool {
    value.as_ref().is_some_and(Value::is_true)
}
