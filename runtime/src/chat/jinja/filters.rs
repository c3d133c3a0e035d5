//! Filters, as Jinja and transformers have them.

use std::sync::Arc;

use super::Value;
use super::arguments::{Values, flag, optional_int, optional_text, text as text_of};
use super::fault::{Fault, Result, fail};
use super::meter::Meter;
use super::operators::order;
use super::printing::printed;
use super::value::{Kind, List};
use super::{json, methods, predicates, reader, sequences, text};

/// How deep lists and objects in JSON may lie in one another.
const MAX_DEPTH: usize = 60;
/// Most bytes of a text that is read as a number.
const MAX_NUMBER: usize = 1024;

/// `value | name(values)`
pub(super) fn apply(name: &str, value: Value, values: Values, meter: &Meter) -> Result<Value> {
    match name {
        "default" | "d" => default(value, values),
        "tojson" => json::dumps(&value, values, meter),
        "from_json" | "fromjson" => from_json(&value, values, meter),
        "length" | "count" => match (sequences::len(&value, meter)?, values.bind(name, [])?) {
            (Some(len), []) => Ok(Value::Int(len as i64)),
            (None, []) => fail(format!("cannot calculate length of value of type {}", value.kind())),
        },
        "abs" | "int" | "float" => {
            meter.scan(value.as_text().map_or(0, str::len))?;
            number(name, &value, values)
        }
        "string" | "safe" | "upper" | "lower" | "capitalize" | "trim" | "replace" | "indent" => {
            on_text(name, value, values, meter)
        }
        "items" | "dictsort" => on_dict(name, &value, values, meter),
        "attr" => {
            let [attribute] = values.bind(name, ["name"])?;
            text_of(name, &attribute)?;
            sequences::item(&value, &attribute.unwrap_or(Value::None), meter)
        }
        "first" | "last" | "list" | "reverse" | "join" => on_list(name, &value, values, meter),
        "sort" | "min" | "max" | "unique" => by_order(name, &value, values, meter),
        "map" => map(&value, values, meter),
        "select" | "reject" | "selectattr" | "rejectattr" => select(name, &value, values, meter),
        _ => fail(format!("unknown filter: {name}")),
    }
}

fn default(value: Value, values: Values) -> Result<Value> {
    let [other, boolean] = values.bind("default", ["default_value", "boolean"])?;
    let is_missing = matches!(value, Value::Undefined) || flag(&boolean) && !value.is_true();
    Ok(if is_missing { other.unwrap_or_else(|| Value::from("")) } else { value })
}

fn number(name: &str, value: &Value, values: Values) -> Result<Value> {
    if name == "abs" {
        let [] = values.bind(name, [])?;
        return match (value, value.as_int().and_then(i64::checked_abs)) {
            (Value::Float(number), _) => Ok(Value::Float(number.abs())),
            (_, Some(number)) => Ok(Value::Int(number)),
            _ => fail(format!("abs: a {} has none", value.kind())),
        };
    }
    if let Value::Undefined = value {
        return fail(format!("{name} of an undefined value"));
    }
    let [default, _base] = values.bind(name, ["default", "base"])?;
    // What is longer is no number that anybody wrote.
    let text = value.as_text().map(text::strip).filter(|text| text.len() <= MAX_NUMBER);
    let float = value.as_float().or_else(|| text?.parse().ok());
    Ok(match name {
        "int" => {
            let int = value.as_int().or_else(|| text?.parse().ok());
            let number = int.or(float.filter(|number| number.is_finite()).map(|number| number as i64));
            number.map(Value::Int).or(default).unwrap_or(Value::Int(0))
        }
        _ => float.map(Value::Float).or(default).unwrap_or(Value::Float(0.0)),
    })
}

fn on_text(name: &str, value: Value, values: Values, meter: &Meter) -> Result<Value> {
    if name == "string" || name == "safe" {
        let [] = values.bind(name, [])?;
        let text = match value {
            Value::Text(text) if name == "safe" => return Ok(Value::Safe(text)),
            Value::Text(_) | Value::Safe(_) => return Ok(value),
            other => text::new(&printed(&other, meter)?, meter)?,
        };
        return if name == "safe" { on_text(name, text, Values::default(), meter) } else { Ok(text) };
    }
    if let Value::Safe(_) = value {
        return fail(format!("{name} of a safe string is not supported"));
    }
    let text = printed(&value, meter)?;
    match name {
        "indent" => {
            let [width, first, blank] = values.bind(name, ["width", "first", "blank"])?;
            let prefix = match &width {
                Some(Value::Text(prefix)) => prefix.to_string(),
                width => text::spaces(optional_int(name, width)?.unwrap_or(4), meter)?,
            };
            text::indented(&text, &prefix, flag(&first), flag(&blank), meter)
        }
        "replace" => {
            let [old, new, most] = values.bind(name, ["old", "new", "count"])?;
            let [old, new] = [old, new].map(|value| value.unwrap_or(Value::Undefined));
            let most = optional_int(name, &most)?.and_then(|most| usize::try_from(most).ok());
            text::replace(&text, &printed(&old, meter)?, &printed(&new, meter)?, most, meter)
        }
        // What texts can do themselves.
        "trim" => methods::on_text(&text, "strip", values, meter),
        _ => methods::on_text(&text, name, values, meter),
    }
}

fn on_dict(name: &str, value: &Value, values: Values, meter: &Meter) -> Result<Value> {
    let dict = match value {
        Value::Dict(dict) => dict,
        Value::Undefined if name == "items" => return Value::list_of(Kind::Iterator, Vec::new()),
        other => return fail(format!("{name}: expected a map, found {}", other.kind())),
    };
    meter.list(dict.entries().len().saturating_mul(3))?;
    if name == "items" {
        let [] = values.bind(name, [])?;
        let pairs = dict.entries().iter().map(methods::pair);
        return Value::list_of(Kind::Iterator, pairs.collect::<Result<_>>()?);
    }
    let [case_sensitive, by, reverse] = values.bind(name, ["case_sensitive", "by", "reverse"])?;
    let by_value = optional_text(name, &by)? == Some("value");
    let keyed = dict.entries().iter().map(|entry| {
        let key = if by_value { &entry.1 } else { &entry.0 };
        Ok((sequences::sort_key(key.clone(), flag(&case_sensitive), meter)?, methods::pair(entry)?))
    });
    Value::list(sequences::sorted(keyed.collect::<Result<_>>()?, flag(&reverse), meter)?)
}

fn on_list(name: &str, value: &Value, values: Values, meter: &Meter) -> Result<Value> {
    if name == "join" {
        let [separator, attribute] = values.bind(name, ["d", "attribute"])?;
        let items = sequences::items(value, meter)?;
        let separator = optional_text(name, &separator)?.unwrap_or_default();
        return match attribute.filter(|attribute| !matches!(attribute, Value::None)) {
            None => methods::join(separator, &items.items, meter),
            Some(attribute) => methods::join(separator, &paths(&items.items, &attribute, meter)?, meter),
        };
    }
    let [] = values.bind(name, [])?;
    match name {
        "reverse" => sequences::reversed(value, meter),
        "list" => sequences::list(value, meter),
        "last" if matches!(value, Value::List(list) if list.kind == Kind::Iterator) => {
            fail("last of a generator: it cannot be reversed")
        }
        _ => {
            let items = sequences::items(value, meter)?;
            let item = if name == "first" { items.items.first() } else { items.items.last() };
            Ok(item.cloned().unwrap_or(Value::Undefined))
        }
    }
}

/// `path` of each of `items`.
fn paths(items: &[Value], path: &Value, meter: &Meter) -> Result<Vec<Value>> {
    meter.list(items.len())?;
    items.iter().map(|item| sequences::path(item, path, meter)).collect()
}

fn by_order(name: &str, value: &Value, values: Values, meter: &Meter) -> Result<Value> {
    let (reverse, case_sensitive, attribute) = if name == "sort" {
        let [reverse, case_sensitive, attribute] =
            values.bind(name, ["reverse", "case_sensitive", "attribute"])?;
        (flag(&reverse), flag(&case_sensitive), attribute)
    } else {
        let [case_sensitive, attribute] = values.bind(name, ["case_sensitive", "attribute"])?;
        (false, flag(&case_sensitive), attribute)
    };
    let items = sequences::items(value, meter)?;
    meter.list(items.items.len().saturating_mul(2))?;
    let keyed = items.items.iter().map(|item| {
        let key = match &attribute {
            None | Some(Value::None) => item.clone(),
            Some(attribute) => sequences::path(item, attribute, meter)?,
        };
        Ok((sequences::sort_key(key, case_sensitive, meter)?, item.clone()))
    });
    let keyed: Vec<(Value, Value)> = keyed.collect::<Result<_>>()?;
    match name {
        "sort" => Value::list(sequences::sorted(keyed, reverse, meter)?),
        "unique" => unique(keyed, meter),
        _ => extreme(keyed, name == "max", meter),
    }
}

/// The first of each key.
fn unique(keyed: Vec<(Value, Value)>, meter: &Meter) -> Result<Value> {
    let mut found: Vec<(Value, Value)> = Vec::new();
    for (key, item) in keyed {
        if super::operators::find(&found, &key, meter)?.is_none() {
            found.push((key, item));
        }
    }
    Value::list_of(Kind::Iterator, found.into_iter().map(|(_, item)| item).collect())
}

fn extreme(keyed: Vec<(Value, Value)>, is_max: bool, meter: &Meter) -> Result<Value> {
    let wanted = if is_max { std::cmp::Ordering::Greater } else { std::cmp::Ordering::Less };
    let mut best: Option<(Value, Value)> = None;
    for (key, item) in keyed {
        let is_better = match &best {
            None => true,
            Some((other, _)) => order(&key, other, meter)? == Some(wanted),
        };
        if is_better {
            best = Some((key, item));
        }
    }
    Ok(best.map_or(Value::Undefined, |(_, item)| item))
}

/// What `map` and `select` go through: of what is not true, such as none, nothing.
fn items_if_any(value: &Value, meter: &Meter) -> Result<Arc<List>> {
    if value.is_true() { sequences::items(value, meter) } else { List::new(Vec::new()) }
}

fn map(value: &Value, mut values: Values, meter: &Meter) -> Result<Value> {
    let items = items_if_any(value, meter)?;
    if values.positional.is_empty() {
        let [attribute, default] = values.bind("map", ["attribute", "default"])?;
        let Some(attribute) = attribute else { return fail("map: expected a filter's name or an attribute") };
        let mut mapped = paths(&items.items, &attribute, meter)?;
        for item in mapped.iter_mut().filter(|item| matches!(item, Value::Undefined)) {
            *item = default.clone().unwrap_or(Value::Undefined);
        }
        return Value::list_of(Kind::Iterator, mapped);
    }
    let filter = Some(values.positional.remove(0));
    let filter = text_of("map", &filter)?;
    if filter == "map" {
        return fail("map: of map is not supported");
    }
    meter.list(items.items.len())?;
    let mapped = items.items.iter().map(|item| {
        meter.list(values.positional.len() + 2 * values.named.len())?;
        let values = Values { positional: values.positional.clone(), named: values.named.clone() };
        apply(filter, item.clone(), values, meter)
    });
    Value::list_of(Kind::Iterator, mapped.collect::<Result<_>>()?)
}

/// The items, or those whose attribute, passes a test; or those that do not.
fn select(name: &str, value: &Value, values: Values, meter: &Meter) -> Result<Value> {
    let items = items_if_any(value, meter)?;
    let (attribute, values) = if name.ends_with("attr") { values.split_first() } else { (None, values) };
    let (test, values) = values.split_first();
    let test = optional_text(name, &test)?;
    meter.list(items.items.len())?;
    let mut chosen = Vec::new();
    for item in &items.items {
        let tested = match &attribute {
            Some(attribute) => sequences::path(item, attribute, meter)?,
            None => item.clone(),
        };
        let passes = match test {
            Some(test) => predicates::apply(test, &tested, &values.positional, meter)?,
            None => tested.is_true(),
        };
        if passes == name.starts_with("select") {
            chosen.push(item.clone());
        }
    }
    Value::list_of(Kind::Iterator, chosen)
}

/// What a text says as JSON. transformers has no such filter, llama.cpp and others do; it is Python's `json.loads`.
fn from_json(value: &Value, values: Values, meter: &Meter) -> Result<Value> {
    let [] = values.bind("from_json", [])?;
    let Some(text) = value.as_text() else {
        return fail(format!("from_json: expected a string, found {}", value.kind()));
    };
    let read = reader::read(text, [usize::MAX, MAX_DEPTH], meter, &str::to_owned);
    read.map_err(|fault| Fault::new(format!("from_json: expected JSON, found {fault}")))
}
