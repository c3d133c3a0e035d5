//! What the functions do that every template finds.

use super::arguments::{Values, text};
use super::fault::{Result, fail};
use super::function::Function;
use super::interpreter::Interpreter;
use super::meter::Meter;
use super::operators::find;
use super::value::{Kind, Value};
use crate::chat::date;

impl Interpreter<'_> {
    pub(super) fn call_function(&mut self, function: Function, values: Values) -> Result<Value> {
        match function {
            Function::Dict => Value::dict(entries("dict", values, &self.meter)?),
            Function::Namespace => {
                let entries = entries("namespace", values, &self.meter)?;
                self.new_namespace(entries)
            }
            Function::RaiseException => {
                let [message] = values.bind("raise_exception", ["message"])?;
                fail(text("raise_exception", &message)?)
            }
            Function::Range => range(values, &self.meter),
            Function::StrftimeNow => {
                let [format] = values.bind("strftime_now", ["format"])?;
                let format = text("strftime_now", &format)?;
                let Some(now) = self.now else { return fail("function strftime_now is unknown") };
                // No directive writes more than 19 bytes.
                self.meter.text(format.len().saturating_mul(30))?;
                match date::strftime(now, format) {
                    Ok(date) => Ok(Value::Text(date.into())),
                    Err(problem) => fail(problem),
                }
            }
        }
    }
}

/// The entries of an object, if one is given, and then what is given by name.
fn entries(called: &str, values: Values, meter: &Meter) -> Result<Vec<(Value, Value)>> {
    let mut entries = match &*values.positional {
        [] => Vec::new(),
        [Value::Dict(dict)] => dict.entries().to_vec(),
        _ => return fail(format!("{called}: expected an object and named arguments")),
    };
    meter.list(2 * (entries.len() + values.named.len()))?;
    for (name, value) in values.named {
        let key = Value::Text(name);
        match find(&entries, &key, meter)? {
            Some(index) => entries[index].1 = value,
            None => entries.push((key, value)),
        }
    }
    Ok(entries)
}

fn range(values: Values, meter: &Meter) -> Result<Value> {
    let numbers: Option<Vec<i64>> = values.positional.iter().map(Value::as_int).collect();
    let (from, to, by) = match numbers.as_deref() {
        Some([to]) => (0, *to, 1),
        Some([from, to]) => (*from, *to, 1),
        Some([from, to, by]) => (*from, *to, *by),
        _ => return fail("range: expected one to three integers"),
    };
    let distance = if by < 0 { i128::from(from) - i128::from(to) } else { i128::from(to) - i128::from(from) };
    let count = match i128::from(by).abs() {
        0 => return fail("range: the step is 0"),
        step => (distance.max(0) + step - 1) / step,
    };
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    meter.list(count)?;
    let number = |index: usize| Value::Int(from.wrapping_add(by.wrapping_mul(index as i64)));
    Value::list_of(Kind::Range, (0..count).map(number).collect())
}
