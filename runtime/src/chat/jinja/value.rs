//! What a template computes with.

use std::sync::Arc;

use super::fault::{Result, fail};
use super::function::Function;
use super::meter;

const _: () = assert!(size_of::<Value>() <= meter::VALUE);

/// How deep lists and objects may lie in one another. What compares, writes or drops them goes as deep.
const MAX_DEPTH: u8 = 64;

#[derive(Clone, Debug)]
pub(in super::super) enum Value {
    Undefined,
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Arc<str>),
    /// Tuples are lists too.
    List(Arc<List>),
    Dict(Arc<Dict>),
    /// Of the interpreter's namespaces the one of this number: they can hold each other.
    Namespace(usize),
    /// Of the interpreter's loops the one of this number.
    Loop(usize),
    /// Of the program's macros the one of this number, and the scope in which it was defined.
    Macro(usize, usize),
    Function(Function),
}

/// Several values, which lie `depth` deep.
#[derive(Debug)]
pub(in super::super) struct List {
    pub(super) items: Vec<Value>,
    depth: u8,
}

/// Values by key, in the order in which they came.
#[derive(Debug)]
pub(in super::super) struct Dict {
    entries: Vec<(Value, Value)>,
    depth: u8,
}

impl Value {
    /// A list of values that are paid for.
    pub(super) fn list(items: Vec<Value>) -> Result<Value> {
        List::new(items).map(Value::List)
    }

    /// An object of entries that are paid for, no two with the same key.
    pub(super) fn dict(entries: Vec<(Value, Value)>) -> Result<Value> {
        let depth = depth_above(entries.iter().flat_map(|(key, value)| [key, value]))?;
        Ok(Value::Dict(Arc::new(Dict { entries, depth })))
    }

    /// An object for the template to be told of: the keys are texts, the values no lists or objects.
    pub(in super::super) fn record<'a>(entries: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
        let entries = entries.into_iter().map(|(key, value)| (Value::from(key), value)).collect();
        Value::Dict(Arc::new(Dict { entries, depth: 1 }))
    }

    /// A list of records.
    pub(in super::super) fn records(items: Vec<Value>) -> Value {
        Value::List(Arc::new(List { items, depth: 2 }))
    }

    fn depth(&self) -> u8 {
        match self {
            Value::List(list) => list.depth,
            Value::Dict(dict) => dict.depth,
            _ => 0,
        }
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            Value::Undefined | Value::None => false,
            Value::Bool(flag) => *flag,
            Value::Int(number) => *number != 0,
            Value::Float(number) => *number != 0.0,
            Value::Text(text) => !text.is_empty(),
            Value::List(list) => !list.items.is_empty(),
            Value::Dict(dict) => !dict.entries.is_empty(),
            Value::Namespace(_) | Value::Loop(_) | Value::Macro(..) | Value::Function(_) => true,
        }
    }

    /// What an error calls such a value.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::Undefined => "undefined",
            Value::None => "none",
            Value::Bool(_) => "bool",
            Value::Int(_) | Value::Float(_) => "number",
            Value::Text(_) => "string",
            Value::List(_) => "sequence",
            Value::Dict(_) => "map",
            Value::Namespace(_) => "namespace",
            Value::Loop(_) => "loop",
            Value::Macro(..) | Value::Function(_) => "function",
        }
    }

    /// Of a number, or of a truth value, which is one in Python.
    pub(super) fn as_int(&self) -> Option<i64> {
        match self {
            Value::Int(number) => Some(*number),
            Value::Bool(flag) => Some(i64::from(*flag)),
            _ => None,
        }
    }

    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(number) => Some(*number),
            other => other.as_int().map(|number| number as f64),
        }
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

fn depth_above<'a>(values: impl Iterator<Item = &'a Value>) -> Result<u8> {
    match values.map(Value::depth).max().unwrap_or(0) {
        MAX_DEPTH => fail(format!("lists and objects lie more than {MAX_DEPTH} deep in one another")),
        depth => Ok(depth + 1),
    }
}

impl List {
    /// Values that are paid for.
    pub(super) fn new(items: Vec<Value>) -> Result<Arc<List>> {
        let depth = depth_above(items.iter())?;
        Ok(Arc::new(List { items, depth }))
    }
}

impl Dict {
    pub(super) fn entries(&self) -> &[(Value, Value)] {
        &self.entries
    }
}
