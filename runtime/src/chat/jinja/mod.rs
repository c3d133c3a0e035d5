//! The language of chat templates: Jinja, as far as they use it, with a limit on everything that a template can make us do.
//!
//! A template comes from a file that anybody may have made. So its text has a length at most, statements and expressions
//! nest so deep at most, values nest so deep at most, and rendering has two budgets that are only ever spent: [`Limits`].
//! Whatever loops, copies or compares pays first, for each byte and each value, and nothing is given back. Hence memory
//! is bounded by the bytes paid for, time by the steps, and the stack by the depths; there is nothing else to prove.
//!
//! `lexer` makes tokens of a text, `parser` and `expressions` a tree of them (`syntax`), `interpreter` and `evaluate` walk
//! it. Chains, of operators, of filters, of `elif`, are lists in the tree and not nests, so that a long one is not deep.

mod arguments;
mod evaluate;
mod expressions;
mod fault;
mod filters;
mod format;
mod function;
mod functions;
mod interpreter;
mod json;
mod lexer;
mod meter;
mod methods;
mod names;
mod operators;
mod parser;
mod predicates;
mod printing;
mod reader;
mod sequences;
mod syntax;
mod text;
mod value;

use std::sync::Arc;
use std::time::SystemTime;

use self::arguments::Values;
use self::fault::{Fault, Result};
use self::interpreter::Interpreter;
use self::meter::Meter;
use self::syntax::Program;
pub(super) use self::text::{lstrip, strip};
pub(super) use self::value::Value;

/// Longest source that is compiled, in bytes. The longest of 85 templates of popular models has 16,738.
pub(super) const MAX_SOURCE: usize = 64 << 10;

/// What rendering may take. A conversation of any length has to fit, so both grow with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Expressions and statements, and bytes looked at by the eight.
    pub(super) steps: u64,
    /// Bytes of all texts and values made, those long forgotten included.
    pub(super) bytes: u64,
}

impl Limits {
    /// The limits for a conversation of `bytes` in `messages`.
    ///
    /// Of the 15 templates in the tests none takes more than a tenth of this for a hundred messages of 32 KB in all.
    pub(super) fn of(bytes: usize, messages: usize) -> Limits {
        let size = (bytes as u64).saturating_add(64 * messages as u64);
        let per_byte = size.saturating_mul(64);
        Limits { steps: per_byte.saturating_add(4_000_000), bytes: per_byte.saturating_add(32 << 20) }
    }
}

/// A compiled template.
#[derive(Debug)]
pub(super) struct Template(Program);

impl Template {
    /// Compiles Jinja source; an error says what cannot be compiled, and in which line.
    pub(super) fn new(source: &str) -> std::result::Result<Template, String> {
        compile(source).map(Template).map_err(|fault| fault.to_string())
    }

    /// All names that are read or set.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.names.iter().map(|name| &**name)
    }

    /// The first filter, test, method or function that is not known, and its line. Rendering fails where it is reached.
    pub(super) fn unknown(&self) -> Option<&str> {
        self.0.unknown.as_deref()
    }

    /// The text that the template makes of `variables`. Where it reads JSON, the `guard` follows each character that was
    /// escaped.
    pub(super) fn render<'a>(
        &self,
        variables: impl IntoIterator<Item = (&'a str, Value)>,
        now: Option<SystemTime>,
        limits: Limits,
        guard: Option<char>,
    ) -> std::result::Result<String, String> {
        let mut meter = Meter::new(limits);
        meter.guard = guard;
        let interpreter = Interpreter::new(&self.0, variables, now, meter);
        interpreter.run().map_err(|fault| fault.to_string())
    }
}

/// No limits, for what is no template's.
const NO_LIMITS: Limits = Limits { steps: u64::MAX, bytes: u64::MAX };

/// The value that a caller's JSON says, with at most so many values in it, which lie at most so deep. `change` makes
/// the texts in it of those that are written. An error says what is there instead of JSON.
pub(super) fn read_json(
    text: &str,
    limits: [usize; 2],
    change: &dyn Fn(&str) -> String,
) -> std::result::Result<Value, String> {
    reader::read(text, limits, &Meter::new(NO_LIMITS), change).map_err(|fault| fault.to_string())
}

/// A value as JSON: with so many spaces before a line for each level, or on one line. What only templates make has
/// none.
pub(super) fn write_json(value: &Value, indent: Option<i64>) -> std::result::Result<String, String> {
    let named = indent.map(|spaces| ("indent".into(), Value::Int(spaces))).into_iter().collect();
    let values = Values { positional: Vec::new(), named };
    let text = json::dumps(value, values, &Meter::new(NO_LIMITS)).map_err(|fault| fault.to_string())?;
    Ok(text.as_text().unwrap_or_default().to_owned())
}

/// A text as a string of JSON.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::new();
    json::quote(text, false, &mut quoted);
    quoted
}

/// A list of the caller's values.
pub(super) fn list_of(items: Vec<Value>) -> std::result::Result<Value, String> {
    Value::list(items).map_err(|fault| fault.to_string())
}

/// An object of the caller's values, no two with the same key.
pub(super) fn object_of(entries: Vec<(Value, Value)>) -> std::result::Result<Value, String> {
    Value::dict(entries).map_err(|fault| fault.to_string())
}

fn compile(source: &str) -> Result<Program> {
    if source.len() > MAX_SOURCE {
        let problem = format!("it has {} bytes, and at most {MAX_SOURCE} are compiled", source.len());
        return Err(Fault::new(problem));
    }
    // Line ends as Jinja reads them.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    parser::parse(lexer::tokens(&source)?)
}

/// A text of the caller's, as a value: it is not the template's to pay for.
impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(Arc::from(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hundred messages, 32 KB in all.
    fn long_conversation() -> (Value, usize) {
        let text = "lorem ipsum dolor sit amet, ".repeat(12);
        let message = |index: usize| {
            let role = ["user", "assistant"][index % 2];
            let content = format!("{index} {text}")[..328].into();
            Value::dict(vec![("role".into(), role.into()), ("content".into(), content)]).unwrap()
        };
        (Value::list((0..100).map(message).collect()).unwrap(), 32_800)
    }

    fn render(template: &Template, share: u64) -> std::result::Result<String, String> {
        let (messages, bytes) = long_conversation();
        let whole = Limits::of(bytes, 100);
        let limits = Limits { steps: whole.steps / share, bytes: whole.bytes / share };
        let texts = ["bos_token", "eos_token"].map(|name| (name, Value::from("<s>")));
        let fixed =
            [("messages", messages), ("tools", Value::None), ("add_generation_prompt", Value::Bool(true))];
        let variables = fixed.into_iter().chain(texts);
        template.render(variables, Some(std::time::UNIX_EPOCH), limits, None)
    }

    #[test]
    fn popular_templates_take_a_tenth_of_the_limits_at_most() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/chat/templates");
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let template = Template::new(&std::fs::read_to_string(&path).unwrap()).unwrap();
            let whole = render(&template, 1);
            assert!(whole.is_ok(), "{}: {whole:?}", path.display());
            assert_eq!(render(&template, 10), whole, "{}", path.display());
        }
    }
}
