//! Tests: what `is` asks.

use super::Value;
use super::fault::{Result, fail};
use super::meter::Meter;
use super::operators::{compare, is_same};
use super::syntax::Comparison;

/// `value is name(arguments)`
pub(super) fn apply(name: &str, value: &Value, arguments: &[Value], meter: &Meter) -> Result<bool> {
    let comparison = match name {
        "eq" | "equalto" | "==" => Some(Comparison::Equal),
        "ne" | "!=" => Some(Comparison::NotEqual),
        "lt" | "lessthan" | "<" => Some(Comparison::Less),
        "le" | "<=" => Some(Comparison::LessOrEqual),
        "gt" | "greaterthan" | ">" => Some(Comparison::Greater),
        "ge" | ">=" => Some(Comparison::GreaterOrEqual),
        "in" => Some(Comparison::In),
        _ => None,
    };
    match (comparison, name, arguments) {
        (Some(comparison), _, [other]) => compare(comparison, value, other, meter),
        (_, "sameas", [other]) => is_same(value, other, meter),
        (_, "divisibleby", [other]) => match (value.as_int(), other.as_int()) {
            (Some(a), Some(b)) if b != 0 => Ok(a.checked_rem(b).unwrap_or(0) == 0),
            _ => fail("divisibleby: expected two integers, the second not 0"),
        },
        (None, _, []) => alone(name, value, meter),
        _ => fail(format!("test {name}: {} arguments are not what it takes", arguments.len())),
    }
}

fn alone(name: &str, value: &Value, meter: &Meter) -> Result<bool> {
    let remainder = |expected: i64| value.as_int().is_some_and(|number| number.rem_euclid(2) == expected);
    Ok(match name {
        "defined" => !matches!(value, Value::Undefined),
        "undefined" => matches!(value, Value::Undefined),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => matches!(value, Value::Int(_) | Value::Float(_) | Value::Bool(_)),
        "string" => matches!(value, Value::Text(_) | Value::Safe(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        // Texts are sequences of characters to Python, and Jinja asks for a length and for items only.
        "sequence" | "iterable" => match value {
            Value::List(list) => list.kind.is_indexed() || name == "iterable",
            other => matches!(other, Value::Undefined | Value::Text(_) | Value::Safe(_) | Value::Dict(_)),
        },
        "even" => remainder(0),
        "odd" => remainder(1),
        "lower" => is_cased(value, char::is_lowercase, char::is_uppercase, meter)?,
        "upper" => is_cased(value, char::is_uppercase, char::is_lowercase, meter)?,
        _ => return fail(format!("unknown test: {name}")),
    })
}

/// Whether a text has letters of the one case, and none of the other.
fn is_cased(value: &Value, one: fn(char) -> bool, other: fn(char) -> bool, meter: &Meter) -> Result<bool> {
    let Value::Text(text) = value else { return Ok(false) };
    meter.scan(text.len().saturating_mul(2))?;
    Ok(text.contains(one) && !text.contains(other))
}
