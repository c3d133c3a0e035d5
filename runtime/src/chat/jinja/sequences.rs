//! Lists, and what can be read as one.

use std::cmp::Ordering;
use std::sync::Arc;

use super::fault::{Result, fail};
use super::meter::Meter;
use super::names::{MUTATING_METHODS, OBJECT_METHODS};
use super::operators::order;
use super::text;
use super::value::{Kind, List, Value};

/// What a loop over `value` sees: items, keys or characters.
pub(super) fn items(value: &Value, meter: &Meter) -> Result<Arc<List>> {
    let list = match value {
        Value::List(list) => {
            list.go_through()?;
            return Ok(list.clone());
        }
        Value::Undefined => Vec::new(),
        Value::Dict(dict) => {
            meter.list(dict.entries().len())?;
            dict.entries().iter().map(|(key, _)| key.clone()).collect()
        }
        Value::Text(text) => {
            meter.texts(text.len(), text.len())?;
            let mut buffer = [0; 4];
            text.chars().map(|character| Value::from(&*character.encode_utf8(&mut buffer))).collect()
        }
        other => return fail(format!("a {} cannot be gone through", other.kind())),
    };
    List::new(list)
}

/// The number of items that a loop sees, or nothing if there is none.
pub(super) fn len(value: &Value, meter: &Meter) -> Result<Option<usize>> {
    Ok(match value {
        Value::List(list) if list.kind == Kind::Iterator => None,
        Value::List(list) => Some(list.items.len()),
        Value::Dict(dict) => Some(dict.entries().len()),
        Value::Text(text) | Value::Safe(text) => {
            meter.scan(text.len())?;
            Some(text.chars().count())
        }
        Value::Undefined => Some(0),
        _ => None,
    })
}

/// `value[key]`, or undefined where there is no such item.
pub(super) fn item(value: &Value, key: &Value, meter: &Meter) -> Result<Value> {
    match (value, key) {
        (Value::Undefined, _) => fail("undefined value: it has no items"),
        (Value::Safe(_), _) => fail("items of a safe string are not supported"),
        (Value::Dict(dict), _) => match dict.get(key, meter)? {
            Some(value) => Ok(value.clone()),
            None => Ok(key.as_text().and_then(object_method).unwrap_or(Value::Undefined)),
        },
        (Value::List(list), Value::Int(index)) if list.kind.is_indexed() => {
            let index = from_end(*index, list.items.len());
            Ok(index.and_then(|index| list.items.get(index)).cloned().unwrap_or(Value::Undefined))
        }
        (Value::Text(text), Value::Int(index)) => {
            meter.scan(text.len())?;
            let index = if *index < 0 {
                from_end(*index, text.chars().count())
            } else {
                usize::try_from(*index).ok()
            };
            match index.and_then(|index| text.chars().nth(index)) {
                Some(character) => text::new(character.encode_utf8(&mut [0; 4]), meter),
                None => Ok(Value::Undefined),
            }
        }
        _ => Ok(Value::Undefined),
    }
}

/// The method of objects that is called `name`. One that would change its object is undefined, as in Jinja's sandbox.
pub(super) fn object_method(name: &str) -> Option<Value> {
    let is_method = OBJECT_METHODS.contains(&name);
    is_method.then(|| if MUTATING_METHODS.contains(&name) { Value::Undefined } else { Value::Method })
}

/// Where an index that may count from the end points to.
fn from_end(index: i64, len: usize) -> Option<usize> {
    let index = if index < 0 { index.checked_add(i64::try_from(len).ok()?)? } else { index };
    usize::try_from(index).ok()
}

/// `value.a.b`, or undefined where something on the way is missing.
pub(super) fn path(value: &Value, path: &Value, meter: &Meter) -> Result<Value> {
    let Value::Text(names) = path else { return item(value, path, meter) };
    meter.scan(names.len())?;
    let mut value = value.clone();
    for name in names.split('.') {
        if let Value::Undefined = value {
            return Ok(value);
        }
        let key = name.parse().map(Value::Int).or_else(|_| text::new(name, meter))?;
        value = item(&value, &key, meter)?;
    }
    Ok(value)
}

/// `value[from:to:by]`
pub(super) fn slice(value: &Value, bounds: [Option<i64>; 3], meter: &Meter) -> Result<Value> {
    match value {
        Value::List(list) if list.kind.is_indexed() => {
            let indices = indices(list.items.len(), bounds)?;
            meter.list(indices.len)?;
            Value::list_of(list.kind, indices.map(|index| list.items[index].clone()).collect())
        }
        Value::Text(text) => {
            meter.scan(text.len())?;
            let len = text.chars().count();
            let indices = indices(len, bounds)?;
            // The characters by number, and the text of some of them.
            meter.allocate(len.saturating_mul(4))?;
            meter.text(text.len().saturating_mul(3))?;
            let characters: Vec<char> = text.chars().collect();
            let text: String = indices.map(|index| characters[index]).collect();
            Ok(Value::Text(text.into()))
        }
        Value::Undefined => fail("an undefined value cannot be sliced"),
        other => fail(format!("a {} cannot be sliced", other.kind())),
    }
}

/// Some indices of a list, forwards or backwards.
struct Indices {
    next: i64,
    by: i64,
    len: usize,
}

impl Iterator for Indices {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.len = self.len.checked_sub(1)?;
        let index = usize::try_from(self.next).ok();
        self.next = self.next.saturating_add(self.by);
        index
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.len, Some(self.len))
    }
}

/// The indices of a list of `len` that Python's `[from:to:by]` means.
fn indices(len: usize, [from, to, by]: [Option<i64>; 3]) -> Result<Indices> {
    let (len, by) = (i64::try_from(len).unwrap_or(i64::MAX), by.unwrap_or(1));
    let (least, most) = if by < 0 { (-1, len - 1) } else { (0, len) };
    let clamp = |bound: i64| (if bound < 0 { bound.saturating_add(len) } else { bound }).clamp(least, most);
    let (first, last) = if by < 0 { (most, least) } else { (least, most) };
    let (from, to) = (from.map_or(first, clamp), to.map_or(last, clamp));
    let distance = if by < 0 { from - to } else { to - from };
    match by.checked_abs() {
        Some(0) => fail("a slice cannot go by steps of 0"),
        step => {
            let count = if distance <= 0 { 0 } else { (distance - 1) / step.unwrap_or(i64::MAX) + 1 };
            Ok(Indices { next: from, by, len: count as usize })
        }
    }
}

/// `value`'s items the other way round.
pub(super) fn reversed(value: &Value, meter: &Meter) -> Result<Value> {
    match value {
        Value::Text(_) => slice(value, [None, None, Some(-1)], meter),
        other => {
            let items = items(other, meter)?;
            meter.list(items.items.len())?;
            let kind = if items.kind == Kind::Iterator { Kind::List } else { Kind::Iterator };
            Value::list_of(kind, items.items.iter().rev().cloned().collect())
        }
    }
}

/// A list of what a loop over `value` sees.
pub(super) fn list(value: &Value, meter: &Meter) -> Result<Value> {
    let items = items(value, meter)?;
    if items.kind == Kind::List {
        return Ok(Value::List(items));
    }
    meter.list(items.items.len())?;
    Value::list(items.items.clone())
}

/// The second of each pair, in the order of the first: a merge sort, which keeps the order of what is equal, and ends
/// where two have none or the budget is spent.
pub(super) fn sorted(mut pairs: Vec<(Value, Value)>, is_reverse: bool, meter: &Meter) -> Result<Vec<Value>> {
    meter.list(pairs.len().saturating_mul(4))?;
    let last = if is_reverse { Ordering::Less } else { Ordering::Greater };
    let mut width = 1;
    while width < pairs.len() {
        let mut merged = Vec::with_capacity(pairs.len());
        for run in pairs.chunks(width.saturating_mul(2)) {
            let (mut left, mut right) = run.split_at(width.min(run.len()));
            while let ([a, ..], [b, ..]) = (left, right) {
                let from = if order(&a.0, &b.0, meter)? == Some(last) { &mut right } else { &mut left };
                merged.push(from[0].clone());
                *from = &from[1..];
            }
            merged.extend_from_slice(left);
            merged.extend_from_slice(right);
        }
        pairs = merged;
        width = width.saturating_mul(2);
    }
    Ok(pairs.into_iter().map(|(_, value)| value).collect())
}

/// The value by which something is sorted: small letters, unless `is_case_sensitive`.
pub(super) fn sort_key(value: Value, is_case_sensitive: bool, meter: &Meter) -> Result<Value> {
    match value {
        Value::Text(text) if !is_case_sensitive => text::cased(&text, false, meter),
        other => Ok(other),
    }
}
