//! What operators do with values.

use std::cmp::Ordering;
use std::sync::Arc;

use super::fault::{Result, fail};
use super::meter::Meter;
use super::printing::float;
use super::syntax::{Comparison, Operator};
use super::text;
use super::value::{Dict, Kind, List, Value};

/// `left operator right`
pub(super) fn apply(operator: Operator, left: &Value, right: &Value, meter: &Meter) -> Result<Value> {
    match (operator, left, right) {
        (Operator::Add, Value::Text(left), Value::Text(right)) => {
            text::concat(&[(&**left).into(), (&**right).into()], meter)
        }
        (Operator::Add, Value::Safe(left), Value::Safe(right)) => {
            safe(text::concat(&[(&**left).into(), (&**right).into()], meter)?)
        }
        (Operator::Add, Value::Safe(left), Value::Text(right)) => {
            safe(text::concat(&[(&**left).into(), text::escaped(right, meter)?.into()], meter)?)
        }
        (Operator::Add, Value::Text(left), Value::Safe(right)) => {
            safe(text::concat(&[text::escaped(left, meter)?.into(), (&**right).into()], meter)?)
        }
        (Operator::Add, Value::List(left), Value::List(right))
            if is_joined(left) && left.kind == right.kind =>
        {
            meter.list(left.items.len().saturating_add(right.items.len()))?;
            Value::list_of(left.kind, left.items.iter().chain(&right.items).cloned().collect())
        }
        (Operator::Multiply, Value::Text(text), count) | (Operator::Multiply, count, Value::Text(text)) => {
            let count = repetitions(count)?;
            meter.text(text.len().saturating_mul(count).saturating_mul(2))?;
            Ok(Value::Text(text.repeat(count).into()))
        }
        (Operator::Multiply, Value::List(list), count) | (Operator::Multiply, count, Value::List(list))
            if is_joined(list) =>
        {
            let count = repetitions(count)?;
            let len = list.items.len().saturating_mul(count);
            meter.list(len)?;
            Value::list_of(list.kind, list.items.iter().cycle().take(len).cloned().collect())
        }
        _ => arithmetic(operator, left, right),
    }
}

/// Whether Python has sums of such lists.
fn is_joined(list: &List) -> bool {
    matches!(list.kind, Kind::List | Kind::Tuple)
}

/// A text as one that is marked as safe.
fn safe(value: Value) -> Result<Value> {
    match value {
        Value::Text(text) => Ok(Value::Safe(text)),
        other => Ok(other),
    }
}

fn repetitions(count: &Value) -> Result<usize> {
    let Some(count) = count.as_int() else {
        return fail("texts and lists can only be multiplied with integers");
    };
    Ok(usize::try_from(count).unwrap_or(0))
}

fn arithmetic(operator: Operator, left: &Value, right: &Value) -> Result<Value> {
    if let (Some(left), Some(right)) = (left.as_int(), right.as_int())
        && operator != Operator::Divide
        && !(operator == Operator::Power && right < 0)
    {
        return match integers(operator, left, right) {
            Some(number) => Ok(Value::Int(number)),
            None => fail(format!("{left} {} {right} cannot be computed", sign(operator))),
        };
    }
    let (Some(a), Some(b)) = (left.as_float(), right.as_float()) else {
        let (sign, left, right) = (sign(operator), left.kind(), right.kind());
        return fail(format!("tried to use {sign} operator on unsupported types {left} and {right}"));
    };
    let divides = matches!(operator, Operator::Divide | Operator::FloorDivide | Operator::Remainder);
    if b == 0.0 && divides || a == 0.0 && b < 0.0 && operator == Operator::Power {
        return fail(format!("{} {} {} cannot be computed", float(a), sign(operator), float(b)));
    }
    Ok(Value::Float(match operator {
        Operator::Add => a + b,
        Operator::Subtract => a - b,
        Operator::Multiply => a * b,
        Operator::Divide => a / b,
        Operator::FloorDivide => (a / b).floor(),
        Operator::Remainder => a - b * (a / b).floor(),
        Operator::Power => a.powf(b),
    }))
}

/// Division rounds down, as in Python.
fn integers(operator: Operator, left: i64, right: i64) -> Option<i64> {
    let remainder = |left: i64, right: i64| {
        let rest = left.checked_rem(right)?;
        Some(if rest != 0 && (rest < 0) != (right < 0) { rest + right } else { rest })
    };
    match operator {
        Operator::Add => left.checked_add(right),
        Operator::Subtract => left.checked_sub(right),
        Operator::Multiply => left.checked_mul(right),
        Operator::Remainder => remainder(left, right),
        Operator::FloorDivide => left.checked_sub(remainder(left, right)?)?.checked_div(right),
        Operator::Power => left.checked_pow(u32::try_from(right).ok()?),
        Operator::Divide => None,
    }
}

fn sign(operator: Operator) -> &'static str {
    match operator {
        Operator::Add => "+",
        Operator::Subtract => "-",
        Operator::Multiply => "*",
        Operator::Divide => "/",
        Operator::FloorDivide => "//",
        Operator::Remainder => "%",
        Operator::Power => "**",
    }
}

/// `-value`
pub(super) fn negate(value: &Value) -> Result<Value> {
    arithmetic(Operator::Subtract, &Value::Int(0), value)
}

pub(super) fn compare(comparison: Comparison, left: &Value, right: &Value, meter: &Meter) -> Result<bool> {
    Ok(match comparison {
        Comparison::Equal => is_equal(left, right, meter)?,
        Comparison::NotEqual => !is_equal(left, right, meter)?,
        Comparison::Less => order(left, right, meter)? == Some(Ordering::Less),
        Comparison::LessOrEqual => order(left, right, meter)?.is_some_and(Ordering::is_le),
        Comparison::Greater => order(left, right, meter)? == Some(Ordering::Greater),
        Comparison::GreaterOrEqual => order(left, right, meter)?.is_some_and(Ordering::is_ge),
        Comparison::In => contains(right, left, meter)?,
        Comparison::NotIn => !contains(right, left, meter)?,
    })
}

/// Whether two values are equal. Those of different kinds never are.
pub(super) fn is_equal(left: &Value, right: &Value, meter: &Meter) -> Result<bool> {
    meter.step(1)?;
    Ok(match (left, right) {
        (Value::Undefined, Value::Undefined) | (Value::None, Value::None) => true,
        (Value::Text(a) | Value::Safe(a), Value::Text(b) | Value::Safe(b)) => {
            a.len() == b.len() && is_same_text(a, b, meter)?
        }
        (Value::List(a), Value::List(b)) if a.kind != b.kind || !a.kind.is_indexed() => Arc::ptr_eq(a, b),
        (Value::List(a), Value::List(b)) if a.items.len() == b.items.len() => {
            for (a, b) in a.items.iter().zip(&b.items) {
                if !is_equal(a, b, meter)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Dict(a), Value::Dict(b)) if a.entries().len() == b.entries().len() => {
            for (key, value) in a.entries() {
                match b.get(key, meter)? {
                    Some(other) if is_equal(value, other, meter)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (Value::Namespace(a), Value::Namespace(b)) | (Value::Loop(a), Value::Loop(b)) => a == b,
        (Value::Macro(a, _), Value::Macro(b, _)) => a == b,
        (Value::Function(a), Value::Function(b)) => a == b,
        _ => match (left.as_int(), right.as_int()) {
            (Some(a), Some(b)) => a == b,
            _ => left.as_float().is_some_and(|a| right.as_float() == Some(a)),
        },
    })
}

/// Whether two values are the same thing, for the test `sameas`.
pub(super) fn is_same(left: &Value, right: &Value, meter: &Meter) -> Result<bool> {
    match (left, right) {
        (Value::List(a), Value::List(b)) => Ok(Arc::ptr_eq(a, b)),
        (Value::Dict(a), Value::Dict(b)) => Ok(Arc::ptr_eq(a, b)),
        _ => Ok(left.kind() == right.kind() && is_equal(left, right, meter)?),
    }
}

fn is_same_text(a: &Arc<str>, b: &Arc<str>, meter: &Meter) -> Result<bool> {
    meter.scan(a.len())?;
    Ok(a == b)
}

/// The order of two values, as Python has it: of numbers, texts and lists; none of what is no number.
pub(super) fn order(left: &Value, right: &Value, meter: &Meter) -> Result<Option<Ordering>> {
    meter.step(1)?;
    match (left, right) {
        (Value::Text(a), Value::Text(b)) => {
            meter.scan(a.len().min(b.len()))?;
            Ok(Some(a.cmp(b)))
        }
        (Value::List(a), Value::List(b)) if is_joined(a) && a.kind == b.kind => {
            for (x, y) in a.items.iter().zip(&b.items) {
                if !is_equal(x, y, meter)? {
                    return order(x, y, meter);
                }
            }
            Ok(Some(a.items.len().cmp(&b.items.len())))
        }
        _ => match (left.as_int().zip(right.as_int()), left.as_float().zip(right.as_float())) {
            (Some((a, b)), _) => Ok(Some(a.cmp(&b))),
            (None, Some((a, b))) => Ok(a.partial_cmp(&b)),
            _ => fail(format!("a {} and a {} have no order", left.kind(), right.kind())),
        },
    }
}

/// Whether `item` is in `container`.
pub(super) fn contains(container: &Value, item: &Value, meter: &Meter) -> Result<bool> {
    match (container, item) {
        (Value::Undefined, _) => Ok(false),
        (Value::Text(text) | Value::Safe(text), Value::Text(part) | Value::Safe(part)) => {
            meter.scan(text.len().saturating_add(part.len()))?;
            Ok(text.contains(&**part))
        }
        (Value::List(list), item) => {
            list.go_through()?;
            for other in &list.items {
                if is_equal(item, other, meter)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        (Value::Dict(dict), key) => Ok(dict.get(key, meter)?.is_some()),
        _ => fail(format!("a {} cannot be in a {}", item.kind(), container.kind())),
    }
}

impl Dict {
    /// The value of `key`, if there is one.
    pub(super) fn get(&self, key: &Value, meter: &Meter) -> Result<Option<&Value>> {
        Ok(find(self.entries(), key, meter)?.map(|index| &self.entries()[index].1))
    }
}

/// Where `key` is among `entries`.
pub(super) fn find(entries: &[(Value, Value)], key: &Value, meter: &Meter) -> Result<Option<usize>> {
    for (index, (other, _)) in entries.iter().enumerate() {
        if is_equal(key, other, meter)? {
            return Ok(Some(index));
        }
    }
    Ok(None)
}
