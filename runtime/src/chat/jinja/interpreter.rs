//! Walks a template's statements and writes its text.

use std::sync::Arc;
use std::time::SystemTime;

use super::Value;
use super::arguments::Values;
use super::fault::{Result, fail};
use super::function::Function;
use super::meter::Meter;
use super::printing::printed;
use super::sequences;
use super::syntax::{Block, Expression, For, Name, Program, Statement, StatementKind, Step, Target};
use super::value::List;

/// How deep expressions, blocks and calls of macros may lie in one another while they run. What a level takes on the
/// stack is bounded, too: `tests/templates.rs` runs the deepest in a small one.
const MAX_DEPTH: usize = 150;

/// What comes after a statement.
#[derive(Clone, Copy, PartialEq)]
enum Flow {
    Next,
    Break,
    Continue,
}

/// Where names are looked up first: the variables from `start` on, as far as the next scope's. Those of a parent lie below.
struct Scope {
    parent: usize,
    start: usize,
}

struct Loop {
    items: Arc<List>,
    index: usize,
}

pub(super) struct Interpreter<'t> {
    pub(super) program: &'t Program,
    pub(super) meter: Meter,
    pub(super) now: Option<SystemTime>,
    output: String,
    variables: Vec<(Name, Value)>,
    scopes: Vec<Scope>,
    namespaces: Vec<Vec<(Arc<str>, Value)>>,
    loops: Vec<Loop>,
    depth: usize,
    /// What `loop` and `caller` are called, if anything is.
    special: [Option<Name>; 2],
}

impl<'t> Interpreter<'t> {
    pub(super) fn new<'a>(
        program: &'t Program,
        variables: impl IntoIterator<Item = (&'a str, Value)>,
        now: Option<SystemTime>,
        meter: Meter,
    ) -> Interpreter<'t> {
        let number =
            |name: &str| program.names.iter().position(|known| **known == *name).map(|at| at as Name);
        let mut interpreter = Interpreter {
            program,
            meter,
            now,
            output: String::new(),
            variables: Vec::new(),
            scopes: vec![Scope { parent: 0, start: 0 }],
            namespaces: Vec::new(),
            loops: Vec::new(),
            depth: 0,
            special: ["loop", "caller"].map(number),
        };
        for (name, value) in variables {
            let Some(name) = number(name) else { continue };
            interpreter.variables.retain(|(other, _)| *other != name);
            interpreter.variables.push((name, value));
        }
        interpreter
    }

    /// The text of the whole template.
    pub(super) fn run(mut self) -> Result<String> {
        let program = self.program;
        self.block(&program.body)?;
        Ok(self.output)
    }

    /// Goes a level deeper.
    pub(super) fn enter(&mut self) -> Result<()> {
        if self.depth == MAX_DEPTH {
            return fail(format!(
                "expressions, blocks and calls lie more than {MAX_DEPTH} deep in one another"
            ));
        }
        self.depth += 1;
        Ok(())
    }

    /// Comes back from a level. Where there was an error nobody goes on.
    pub(super) fn leave(&mut self) {
        self.depth -= 1;
    }

    fn write(&mut self, text: &str) -> Result<()> {
        // While a text grows there is twice the old one, and the old one.
        self.meter.allocate(text.len().saturating_mul(3))?;
        self.output.push_str(text);
        Ok(())
    }

    fn block(&mut self, block: &'t Block) -> Result<Flow> {
        self.enter()?;
        for statement in block {
            let flow = self.statement(statement).map_err(|fault| fault.at(statement.line))?;
            if flow != Flow::Next {
                self.leave();
                return Ok(flow);
            }
        }
        self.leave();
        Ok(Flow::Next)
    }

    fn statement(&mut self, statement: &'t Statement) -> Result<Flow> {
        self.meter.step(1)?;
        match &statement.kind {
            StatementKind::Text(text) => self.write(text)?,
            StatementKind::Print(value) => self.print(value)?,
            StatementKind::Set(target, value) => {
                let value = self.evaluate(value)?;
                self.assign(target, value)?;
            }
            StatementKind::SetBlock(target, filters, body) => return self.set_block(target, filters, body),
            StatementKind::Filter(filters, body) => return self.filter_block(filters, body),
            StatementKind::Do(value) => drop(self.evaluate(value)?),
            StatementKind::If(branches, otherwise) => return self.condition(branches, otherwise),
            StatementKind::For(parts) => return self.iteration(parts),
            StatementKind::With(bindings, body) => return self.with(bindings, body),
            StatementKind::Macro(name, index) => {
                let scope = self.scopes.len() - 1;
                self.set(*name, Value::Macro(*index, scope))?;
            }
            StatementKind::Call(call, body) => self.call_block(call, *body)?,
            StatementKind::Break => return Ok(Flow::Break),
            StatementKind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    #[inline(never)]
    fn print(&mut self, value: &'t Expression) -> Result<()> {
        let value = self.evaluate(value)?;
        self.print_value(&value)
    }

    fn print_value(&mut self, value: &Value) -> Result<()> {
        let text = printed(value, &self.meter)?;
        self.write(&text)
    }

    #[inline(never)]
    fn condition(&mut self, branches: &'t [(Expression, Block)], otherwise: &'t Block) -> Result<Flow> {
        for (condition, body) in branches {
            if self.evaluate(condition)?.is_true() {
                return self.block(body);
            }
        }
        self.block(otherwise)
    }

    #[inline(never)]
    fn set_block(&mut self, target: &'t Target, filters: &'t [Step], body: &'t Block) -> Result<Flow> {
        let (flow, text) = self.captured(body)?;
        if flow == Flow::Next {
            let value = self.apply(text, filters)?;
            self.assign(target, value)?;
        }
        Ok(flow)
    }

    #[inline(never)]
    fn filter_block(&mut self, filters: &'t [Step], body: &'t Block) -> Result<Flow> {
        let (flow, text) = self.captured(body)?;
        let value = self.apply(text, filters)?;
        self.print_value(&value)?;
        Ok(flow)
    }

    /// What `body` writes, in a scope of its own.
    fn captured(&mut self, body: &'t Block) -> Result<(Flow, Value)> {
        let before = std::mem::take(&mut self.output);
        self.push_scope(self.scopes.len() - 1);
        let flow = self.block(body)?;
        self.pop_scope();
        let text = std::mem::replace(&mut self.output, before);
        self.meter.text(text.len())?;
        Ok((flow, Value::Text(text.into())))
    }

    #[inline(never)]
    fn with(&mut self, bindings: &'t [(Target, Expression)], body: &'t Block) -> Result<Flow> {
        self.push_scope(self.scopes.len() - 1);
        for (target, value) in bindings {
            let value = self.evaluate(value)?;
            self.assign(target, value)?;
        }
        let flow = self.block(body)?;
        self.pop_scope();
        Ok(flow)
    }

    #[inline(never)]
    fn iteration(&mut self, parts: &'t For) -> Result<Flow> {
        let items = self.items_of(parts)?;
        if items.items.is_empty() {
            return self.block(&parts.otherwise);
        }
        let number = self.loops.len();
        self.meter.list(1)?;
        self.loops.push(Loop { items: items.clone(), index: 0 });
        self.push_scope(self.scopes.len() - 1);
        for (index, item) in items.items.iter().enumerate() {
            self.meter.step(1)?;
            self.clear_scope();
            self.loops[number].index = index;
            if let [Some(name), _] = self.special {
                self.set(name, Value::Loop(number))?;
            }
            self.assign(&parts.target, item.clone())?;
            if self.block(&parts.body)? == Flow::Break {
                break;
            }
        }
        self.pop_scope();
        self.loops.truncate(number);
        Ok(Flow::Next)
    }

    /// What a loop goes through: the items for which its condition is true.
    fn items_of(&mut self, parts: &'t For) -> Result<Arc<List>> {
        let value = self.evaluate(&parts.items)?;
        let items = sequences::items(&value, &self.meter)?;
        let Some(condition) = &parts.condition else { return Ok(items) };
        self.meter.list(items.items.len())?;
        let mut chosen = Vec::new();
        self.push_scope(self.scopes.len() - 1);
        for item in &items.items {
            self.clear_scope();
            self.assign(&parts.target, item.clone())?;
            if self.evaluate(condition)?.is_true() {
                chosen.push(item.clone());
            }
        }
        self.pop_scope();
        List::new(chosen)
    }

    /// Calls a macro that may call back what stands in the block.
    #[inline(never)]
    fn call_block(&mut self, call: &'t Expression, body: usize) -> Result<()> {
        let Expression::Steps(called, steps) = call else { return fail("call: expected a call of a macro") };
        let [Step::Call(arguments)] = &**steps else { return fail("call: expected a call of a macro") };
        let Value::Macro(index, scope) = self.evaluate(called)? else {
            return fail("call: there is no such macro");
        };
        let values = self.values(arguments)?;
        let caller = Value::Macro(body, self.scopes.len() - 1);
        let text = self.call_macro(index, scope, values, Some(caller))?;
        self.print_value(&text)
    }

    /// The text that a macro writes.
    #[inline(never)]
    pub(super) fn call_macro(
        &mut self,
        index: usize,
        scope: usize,
        values: Values,
        caller: Option<Value>,
    ) -> Result<Value> {
        let parts = &self.program.macros[index];
        if values.positional.len() > parts.parameters.len() {
            return fail(format!("a macro has {} parameters, and no more", parts.parameters.len()));
        }
        self.enter()?;
        let names = &self.program.names;
        let is_parameter =
            |given: &str| parts.parameters.iter().any(|(name, _)| *names[*name as usize] == *given);
        self.meter.step(values.named.len().saturating_mul(parts.parameters.len()))?;
        if let Some((unknown, _)) = values.named.iter().find(|(given, _)| !is_parameter(given)) {
            return fail(format!("a macro has no parameter {unknown}"));
        }
        // A scope that is no longer there can only be one above this one.
        self.push_scope(scope.min(self.scopes.len() - 1));
        let mut positional = values.positional.into_iter();
        for (name, default) in &parts.parameters {
            let named = values.named.iter().find(|(given, _)| *names[*name as usize] == **given);
            let value = match (positional.next(), named, default) {
                (Some(value), _, _) => value,
                (None, Some((_, value)), _) => value.clone(),
                (None, None, Some(default)) => self.evaluate(default)?,
                (None, None, None) => Value::Undefined,
            };
            self.set(*name, value)?;
        }
        if let (Some(name), Some(caller)) = (self.special[1], caller) {
            self.set(name, caller)?;
        }
        let (_, text) = self.captured(&parts.body)?;
        self.pop_scope();
        self.leave();
        Ok(text)
    }

    fn push_scope(&mut self, parent: usize) {
        self.scopes.push(Scope { parent, start: self.variables.len() });
    }

    /// Forgets the variables of the innermost scope.
    fn clear_scope(&mut self) {
        let start = self.scopes.last().map_or(0, |scope| scope.start);
        self.variables.truncate(start);
    }

    fn pop_scope(&mut self) {
        self.clear_scope();
        self.scopes.pop();
    }

    /// Sets a variable of the innermost scope.
    fn set(&mut self, name: Name, value: Value) -> Result<()> {
        let start = self.scopes.last().map_or(0, |scope| scope.start);
        let scope = &mut self.variables[start..];
        self.meter.step(1 + scope.len() / 8)?;
        match scope.iter_mut().find(|(other, _)| *other == name) {
            Some((_, old)) => *old = value,
            None => {
                self.meter.list(2)?;
                self.variables.push((name, value));
            }
        }
        Ok(())
    }

    /// The value of a name: of the innermost scope that has it, or a function's.
    pub(super) fn lookup(&self, name: Name) -> Result<Value> {
        let mut scope = self.scopes.len() - 1;
        loop {
            let end = self.scopes.get(scope + 1).map_or(self.variables.len(), |next| next.start);
            let variables = &self.variables[self.scopes[scope].start..end];
            self.meter.step(1 + variables.len() / 8)?;
            if let Some((_, value)) = variables.iter().find(|(other, _)| *other == name) {
                return Ok(value.clone());
            }
            if scope == 0 {
                break;
            }
            scope = self.scopes[scope].parent;
        }
        let function = Function::named(&self.program.names[name as usize]);
        let function = function.filter(|function| *function != Function::StrftimeNow || self.now.is_some());
        Ok(function.map_or(Value::Undefined, Value::Function))
    }

    fn assign(&mut self, target: &'t Target, value: Value) -> Result<()> {
        match target {
            Target::Name(name) => self.set(*name, value),
            Target::Attribute(name, attribute) => match self.lookup(*name)? {
                Value::Namespace(number) => self.set_attribute(number, attribute, value),
                other => {
                    fail(format!("only attributes of a namespace can be set, and this is a {}", other.kind()))
                }
            },
            Target::Each(targets) => {
                let items = sequences::items(&value, &self.meter)?;
                if items.items.len() != targets.len() {
                    return fail(format!("{} values for {} names", items.items.len(), targets.len()));
                }
                targets
                    .iter()
                    .zip(&items.items)
                    .try_for_each(|(target, item)| self.assign(target, item.clone()))
            }
        }
    }

    /// A namespace of entries that are paid for.
    pub(super) fn new_namespace(&mut self, entries: Vec<(Value, Value)>) -> Result<Value> {
        let attributes = entries.into_iter().map(|(key, value)| match key {
            Value::Text(name) => checked(&name).map(|()| (name.clone(), value)),
            other => fail(format!("namespace: a {} is no name", other.kind())),
        });
        let attributes = attributes.collect::<Result<Vec<_>>>()?;
        self.meter.list(2)?;
        self.namespaces.push(attributes);
        Ok(Value::Namespace(self.namespaces.len() - 1))
    }

    fn set_attribute(&mut self, number: usize, name: &Arc<str>, value: Value) -> Result<()> {
        checked(name)?;
        let attributes = &mut self.namespaces[number];
        self.meter.step(1 + attributes.len())?;
        match attributes.iter_mut().find(|(other, _)| other == name) {
            Some((_, old)) => *old = value,
            None => {
                self.meter.list(2)?;
                attributes.push((name.clone(), value));
            }
        }
        Ok(())
    }

    /// An attribute of a namespace.
    pub(super) fn attribute(&self, number: usize, name: &str) -> Result<Value> {
        let attributes = &self.namespaces[number];
        self.meter.step(1 + attributes.len())?;
        let found = attributes.iter().find(|(other, _)| **other == *name);
        Ok(found.map_or(Value::Undefined, |(_, value)| value.clone()))
    }

    /// What `loop.name` says of a loop, if it still runs.
    pub(super) fn loop_attribute(&self, number: usize, name: &str) -> Value {
        let Some(Loop { items, index }) = self.loops.get(number) else { return Value::Undefined };
        let len = items.items.len();
        let item = |index: Option<usize>| index.and_then(|index| items.items.get(index)).cloned();
        match name {
            "index" => Value::Int(*index as i64 + 1),
            "index0" => Value::Int(*index as i64),
            "revindex" => Value::Int((len - index) as i64),
            "revindex0" => Value::Int((len - index) as i64 - 1),
            "first" => Value::Bool(*index == 0),
            "last" => Value::Bool(*index + 1 == len),
            "length" => Value::Int(len as i64),
            "depth" => Value::Int(1),
            "depth0" => Value::Int(0),
            "previtem" => item(index.checked_sub(1)).unwrap_or(Value::Undefined),
            "nextitem" => item(index.checked_add(1)).unwrap_or(Value::Undefined),
            _ => Value::Undefined,
        }
    }
}

/// Whether an attribute of a namespace may be called so: transformers lets none begin with an underscore.
fn checked(name: &str) -> Result<()> {
    match name.starts_with('_') {
        true => {
            fail(format!("namespace: an attribute cannot be called {name}: it begins with an underscore"))
        }
        false => Ok(()),
    }
}
