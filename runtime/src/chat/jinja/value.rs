//! What a template computes with.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
    /// A text that the filter `safe` has marked, Python's `Markup`: what is added to it is escaped for HTML.
    Safe(Arc<str>),
    /// Whatever has items in an order.
    List(Arc<List>),
    Dict(Arc<Dict>),
    /// Of the interpreter's namespaces the one of this number: they can hold each other.
    Namespace(usize),
    /// Of the interpreter's loops the one of this number.
    Loop(usize),
    /// Of the program's macros the one of this number, and the scope in which it was defined.
    Macro(usize, usize),
    Function(Function),
    /// A method of an object, which was named and not called: a value of Python's like any other.
    Method,
}

/// Several values, which lie `depth` deep.
#[derive(Debug)]
pub(in super::super) struct List {
    pub(in super::super) items: Vec<Value>,
    pub(super) kind: Kind,
    depth: u8,
    is_used_up: AtomicBool,
}

/// What a list is to Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    List,
    Tuple,
    Range,
    /// What an object's methods of these names give.
    Keys,
    Values,
    Items,
    /// What can be gone through once, and has neither a length nor an item of a number.
    Iterator,
}

impl Kind {
    /// Whether there is an item of each number.
    pub(super) fn is_indexed(self) -> bool {
        matches!(self, Kind::List | Kind::Tuple | Kind::Range)
    }

    /// What an error calls such a list.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::List => "sequence",
            Kind::Tuple => "tuple",
            Kind::Range => "range",
            Kind::Keys => "dict_keys",
            Kind::Values => "dict_values",
            Kind::Items => "dict_items",
            Kind::Iterator => "generator",
        }
    }
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
        Value::list_of(Kind::List, items)
    }

    /// Values that are paid for, as a list of this kind.
    pub(super) fn list_of(kind: Kind, items: Vec<Value>) -> Result<Value> {
        let depth = depth_above(items.iter())?;
        Ok(Value::List(Arc::new(List { items, kind, depth, is_used_up: AtomicBool::new(false) })))
    }

    /// An object of entries that are paid for, no two with the same key.
    pub(super) fn dict(entries: Vec<(Value, Value)>) -> Result<Value> {
        let depth = depth_above(entries.iter().flat_map(|(key, value)| [key, value]))?;
        Ok(Value::Dict(Arc::new(Dict { entries, depth })))
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
            Value::Text(text) | Value::Safe(text) => !text.is_empty(),
            Value::List(list) => list.kind == Kind::Iterator || !list.items.is_empty(),
            Value::Dict(dict) => !dict.entries.is_empty(),
            Value::Namespace(_) | Value::Loop(_) | Value::Macro(..) | Value::Function(_) | Value::Method => {
                true
            }
        }
    }

    /// What an error calls such a value.
    pub(in super::super) fn kind(&self) -> &'static str {
        match self {
            Value::Undefined => "undefined",
            Value::None => "none",
            Value::Bool(_) => "bool",
            Value::Int(_) | Value::Float(_) => "number",
            Value::Text(_) => "string",
            Value::Safe(_) => "safe string",
            Value::List(list) => list.kind.name(),
            Value::Dict(_) => "map",
            Value::Namespace(_) => "namespace",
            Value::Loop(_) => "loop",
            Value::Macro(..) | Value::Function(_) => "function",
            Value::Method => "method",
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

    pub(in super::super) fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(text) | Value::Safe(text) => Some(text),
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
        Ok(Arc::new(List { items, kind: Kind::List, depth, is_used_up: AtomicBool::new(false) }))
    }

    /// Notes that the items are gone through. Of an iterator, Python would find none the second time.
    pub(super) fn go_through(&self) -> Result<()> {
        if self.kind == Kind::Iterator && self.is_used_up.swap(true, Ordering::Relaxed) {
            return fail("a generator was gone through before: the filter list keeps what one gives");
        }
        Ok(())
    }
}

impl Dict {
    pub(in super::super) fn entries(&self) -> &[(Value, Value)] {
        &self.entries
    }
}
