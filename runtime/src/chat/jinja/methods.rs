//! Methods of Python's texts, lists and dicts.

use std::borrow::Cow;

use super::Value;
use super::arguments::{Values, optional_int, optional_text, text as text_of};
use super::fault::{Result, fail};
use super::format::format;
use super::meter::Meter;
use super::names::MUTATING_METHODS;
use super::operators::is_equal;
use super::printing::printed;
use super::sequences;
use super::text;
use super::value::{Dict, Kind};

/// `value.name(values)`
pub(super) fn apply(value: &Value, name: &str, values: Values, meter: &Meter) -> Result<Value> {
    match value {
        Value::List(_) | Value::Dict(_) if MUTATING_METHODS.contains(&name) => {
            fail(format!("access to {name} of a {} is unsafe: nothing can be changed", value.kind()))
        }
        Value::List(list) if name == "copy" && list.kind == Kind::List => {
            let [] = values.bind(name, [])?;
            Ok(value.clone())
        }
        Value::Text(text) => on_text(text, name, values, meter),
        Value::Dict(dict) if name != "copy" => on_dict(dict, name, values, meter),
        Value::Dict(_) => {
            let [] = values.bind(name, [])?;
            Ok(value.clone())
        }
        Value::List(list) if name == "count" && list.kind.is_indexed() => {
            let [wanted] = values.bind(name, ["value"])?;
            let wanted = wanted.unwrap_or(Value::Undefined);
            let mut count = 0;
            for item in &list.items {
                count += i64::from(is_equal(item, &wanted, meter)?);
            }
            Ok(Value::Int(count))
        }
        other => unknown(other.kind(), name),
    }
}

fn unknown(kind: &str, name: &str) -> Result<Value> {
    fail(format!("unknown method: {name} of a {kind}"))
}

fn on_dict(dict: &Dict, name: &str, values: Values, meter: &Meter) -> Result<Value> {
    if name == "get" {
        let [key, default] = values.bind(name, ["key", "default"])?;
        let found = dict.get(&key.unwrap_or(Value::None), meter)?.cloned();
        return Ok(found.or(default).unwrap_or(Value::None));
    }
    let [] = values.bind(name, [])?;
    let entries = dict.entries();
    meter.list(entries.len().saturating_mul(3))?;
    match name {
        "keys" => Value::list_of(Kind::Keys, entries.iter().map(|(key, _)| key.clone()).collect()),
        "values" => Value::list_of(Kind::Values, entries.iter().map(|(_, value)| value.clone()).collect()),
        "items" => {
            let pairs = entries.iter().map(pair);
            Value::list_of(Kind::Items, pairs.collect::<Result<_>>()?)
        }
        _ => unknown("map", name),
    }
}

/// An entry of an object, as what goes through several sees it.
pub(super) fn pair((key, value): &(Value, Value)) -> Result<Value> {
    Value::list_of(Kind::Tuple, vec![key.clone(), value.clone()])
}

/// A method of texts. Some are filters, too.
pub(super) fn on_text(text: &str, name: &str, values: Values, meter: &Meter) -> Result<Value> {
    match name {
        "upper" | "lower" | "capitalize" => {
            let [] = values.bind(name, [])?;
            if name == "capitalize" {
                text::capitalized(text, meter)
            } else {
                text::cased(text, name == "upper", meter)
            }
        }
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = values.bind(name, ["chars"])?;
            text::trim(name, text, optional_text(name, &chars)?, meter)
        }
        "split" => {
            let [separator, most] = values.bind(name, ["sep", "maxsplit"])?;
            let most = optional_int(name, &most)?.and_then(|most| usize::try_from(most).ok());
            match optional_text(name, &separator)? {
                Some(separator) => text::split(text, separator, most, meter),
                None if most.is_none() => text::words(text, meter),
                None => fail("split: of words takes no number"),
            }
        }
        "replace" => {
            let [old, new, most] = values.bind(name, ["old", "new", "count"])?;
            let most = optional_int(name, &most)?.and_then(|most| usize::try_from(most).ok());
            text::replace(text, text_of(name, &old)?, text_of(name, &new)?, most, meter)
        }
        "startswith" | "endswith" => {
            let [part] = values.bind(name, ["prefix"])?;
            begins_or_ends(text, name, &part.unwrap_or(Value::None), meter)
        }
        "find" | "rfind" => {
            let [part] = values.bind(name, ["sub"])?;
            text::find(text, text_of(name, &part)?, name == "rfind", meter)
        }
        "count" => {
            let [part] = values.bind(name, ["sub"])?;
            meter.scan(text.len())?;
            Ok(Value::Int(text.matches(text_of(name, &part)?).count() as i64))
        }
        "join" => {
            let [items] = values.bind(name, ["iterable"])?;
            join(text, &sequences::items(&items.unwrap_or(Value::Undefined), meter)?.items, meter)
        }
        "format" => format(text, &values, meter),
        _ => unknown("string", name),
    }
}

/// Whether a text begins, or ends, with `part`, or with one of several.
fn begins_or_ends(text: &str, name: &str, part: &Value, meter: &Meter) -> Result<Value> {
    let parts = match part {
        Value::List(list) if list.kind == Kind::Tuple => &list.items,
        one => std::slice::from_ref(one),
    };
    for part in parts {
        let Value::Text(part) = part else { return fail(format!("{name}: a {} is no string", part.kind())) };
        meter.scan(part.len())?;
        if if name == "startswith" { text.starts_with(&**part) } else { text.ends_with(&**part) } {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

/// The texts of `items` with `separator` between them.
pub(super) fn join(separator: &str, items: &[Value], meter: &Meter) -> Result<Value> {
    meter.list(items.len().saturating_mul(2))?;
    let mut parts: Vec<Cow<str>> = Vec::with_capacity(items.len().saturating_mul(2));
    for item in items {
        if !parts.is_empty() {
            parts.push(Cow::Borrowed(separator));
        }
        parts.push(printed(item, meter)?);
    }
    text::concat(&parts, meter)
}
