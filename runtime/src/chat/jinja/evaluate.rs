//! Walks a template's expressions.

use std::borrow::Cow;

use super::Value;
use super::arguments::Values;
use super::fault::{Result, fail};
use super::interpreter::Interpreter;
use super::operators::find;
use super::printing::printed;
use super::syntax::{Arguments, Comparison, Expression, Operator, Step};
use super::value::Kind;
use super::{filters, methods, operators, predicates, sequences, text};

impl<'t> Interpreter<'t> {
    pub(super) fn evaluate(&mut self, expression: &'t Expression) -> Result<Value> {
        self.meter.step(1)?;
        match expression {
            Expression::Constant(value) => Ok(value.clone()),
            Expression::Name(name) => self.lookup(*name),
            _ => {
                self.enter()?;
                let value = self.composite(expression)?;
                self.leave();
                Ok(value)
            }
        }
    }

    /// An expression with others in it. Each kind has a function, so that the stack holds no more than one needs.
    fn composite(&mut self, expression: &'t Expression) -> Result<Value> {
        match expression {
            Expression::Constant(value) => Ok(value.clone()),
            Expression::Name(name) => self.lookup(*name),
            Expression::List(items) => self.list(Kind::List, items),
            Expression::Tuple(items) => self.list(Kind::Tuple, items),
            Expression::Dict(entries) => self.dict(entries),
            Expression::Not(value) => Ok(Value::Bool(!self.evaluate(value)?.is_true())),
            Expression::All(values) => self.until(values, false),
            Expression::Any(values) => self.until(values, true),
            Expression::Chain(first, rest) => self.chain(first, rest),
            Expression::Compare(first, rest) => self.compare(first, rest),
            Expression::Join(values) => self.join(values),
            Expression::Choice(choices, otherwise) => self.choice(choices, otherwise.as_deref()),
            Expression::Steps(value, steps) => self.steps(value, steps),
        }
    }

    /// The values of several expressions.
    fn all(&mut self, expressions: &'t [Expression]) -> Result<Vec<Value>> {
        self.meter.list(expressions.len())?;
        expressions.iter().map(|expression| self.evaluate(expression)).collect()
    }

    #[inline(never)]
    fn list(&mut self, kind: Kind, items: &'t [Expression]) -> Result<Value> {
        Value::list_of(kind, self.all(items)?)
    }

    #[inline(never)]
    fn dict(&mut self, expressions: &'t [(Expression, Expression)]) -> Result<Value> {
        self.meter.list(expressions.len().saturating_mul(2))?;
        let mut entries: Vec<(Value, Value)> = Vec::new();
        for (key, value) in expressions {
            let (key, value) = (self.evaluate(key)?, self.evaluate(value)?);
            match find(&entries, &key, &self.meter)? {
                Some(index) => entries[index].1 = value,
                None => entries.push((key, value)),
            }
        }
        Value::dict(entries)
    }

    /// The first value that is as true as `end`, or else the last.
    #[inline(never)]
    fn until(&mut self, values: &'t [Expression], end: bool) -> Result<Value> {
        let mut last = Value::Undefined;
        for value in values {
            last = self.evaluate(value)?;
            if last.is_true() == end {
                break;
            }
        }
        Ok(last)
    }

    #[inline(never)]
    fn chain(&mut self, first: &'t Expression, rest: &'t [(Operator, Expression)]) -> Result<Value> {
        let mut left = self.evaluate(first)?;
        self.check_defined(first, &left)?;
        for (operator, second) in rest {
            let right = self.evaluate(second)?;
            self.check_defined(second, &right)?;
            left = operators::apply(*operator, &left, &right, &self.meter)?;
        }
        Ok(left)
    }

    /// Names a variable that is not there.
    fn check_defined(&self, expression: &Expression, value: &Value) -> Result<()> {
        match (expression, value) {
            (Expression::Name(name), Value::Undefined) => {
                fail(format!("variable {} is undefined", self.program.names[*name as usize]))
            }
            _ => Ok(()),
        }
    }

    #[inline(never)]
    fn compare(&mut self, first: &'t Expression, rest: &'t [(Comparison, Expression)]) -> Result<Value> {
        let mut left = self.evaluate(first)?;
        for (comparison, right) in rest {
            let right = self.evaluate(right)?;
            if !operators::compare(*comparison, &left, &right, &self.meter)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    #[inline(never)]
    fn join(&mut self, values: &'t [Expression]) -> Result<Value> {
        let values = self.all(values)?;
        let parts =
            values.iter().map(|value| printed(value, &self.meter)).collect::<Result<Vec<Cow<str>>>>()?;
        text::concat(&parts, &self.meter)
    }

    #[inline(never)]
    fn choice(
        &mut self,
        choices: &'t [(Expression, Expression)],
        otherwise: Option<&'t Expression>,
    ) -> Result<Value> {
        for (value, condition) in choices {
            if self.evaluate(condition)?.is_true() {
                return self.evaluate(value);
            }
        }
        otherwise.map_or(Ok(Value::Undefined), |value| self.evaluate(value))
    }

    #[inline(never)]
    fn steps(&mut self, value: &'t Expression, steps: &'t [Step]) -> Result<Value> {
        let first = self.evaluate(value)?;
        if let (Value::Undefined, Expression::Name(name), [Step::Call(_), ..]) = (&first, value, steps) {
            return fail(format!("function {} is unknown", self.program.names[*name as usize]));
        }
        self.apply(first, steps)
    }

    /// What is left of `value` after all `steps`.
    pub(super) fn apply(&mut self, mut value: Value, steps: &'t [Step]) -> Result<Value> {
        for step in steps {
            self.meter.step(1)?;
            value = self.step(value, step)?;
        }
        Ok(value)
    }

    fn step(&mut self, value: Value, step: &'t Step) -> Result<Value> {
        match step {
            Step::Attribute(name) => match value {
                Value::Namespace(number) => self.attribute(number, name),
                Value::Loop(number) => Ok(self.loop_attribute(number, name)),
                Value::Undefined => fail(format!("undefined value: it has no attribute {name}")),
                Value::Dict(_) if let Some(method) = sequences::object_method(name) => Ok(method),
                other => sequences::item(&other, &Value::Text(name.clone()), &self.meter),
            },
            Step::Item(key) => self.item(value, key),
            Step::Slice(bounds) => self.slice(value, bounds),
            Step::Call(arguments) => {
                let values = self.values(arguments)?;
                self.call(value, values)
            }
            Step::Method(name, arguments) => self.method(value, name, arguments),
            Step::Filter(name, arguments) => {
                let values = self.values(arguments)?;
                filters::apply(name, value, values, &self.meter)
            }
            Step::Test(name, arguments) => {
                let values = self.values(arguments)?;
                predicates::apply(name, &value, &values.positional, &self.meter).map(Value::Bool)
            }
            Step::Not => Ok(Value::Bool(!value.is_true())),
            Step::Negate => operators::negate(&value),
        }
    }

    #[inline(never)]
    fn item(&mut self, value: Value, key: &'t Expression) -> Result<Value> {
        match (value, self.evaluate(key)?) {
            (Value::Namespace(number), Value::Text(name)) => self.attribute(number, &name),
            (value, key) => sequences::item(&value, &key, &self.meter),
        }
    }

    #[inline(never)]
    fn slice(&mut self, value: Value, bounds: &'t [Option<Expression>; 3]) -> Result<Value> {
        let mut numbers = [None; 3];
        for (number, bound) in numbers.iter_mut().zip(bounds) {
            let Some(bound) = bound else { continue };
            *number = match self.evaluate(bound)? {
                Value::None => None,
                other => match other.as_int() {
                    Some(number) => Some(number),
                    None => return fail(format!("a slice goes from number to number, not {}", other.kind())),
                },
            };
        }
        sequences::slice(&value, numbers, &self.meter)
    }

    #[inline(never)]
    fn method(&mut self, value: Value, name: &str, arguments: &'t Arguments) -> Result<Value> {
        let values = self.values(arguments)?;
        match value {
            Value::Namespace(number) => {
                let called = self.attribute(number, name)?;
                self.call(called, values)
            }
            Value::Undefined => fail(format!("undefined value: it has no method {name}")),
            other => methods::apply(&other, name, values, &self.meter),
        }
    }

    fn call(&mut self, called: Value, values: Values) -> Result<Value> {
        match called {
            Value::Function(function) => self.call_function(function, values),
            Value::Macro(index, scope) => self.call_macro(index, scope, values, None),
            other => fail(format!("a {} cannot be called", other.kind())),
        }
    }

    /// The values of arguments.
    pub(super) fn values(&mut self, arguments: &'t Arguments) -> Result<Values> {
        if arguments.positional.is_empty() && arguments.named.is_empty() {
            return Ok(Values::default());
        }
        let positional = self.all(&arguments.positional)?;
        self.meter.list(arguments.named.len().saturating_mul(2))?;
        let named = arguments.named.iter().map(|(name, value)| Ok((name.clone(), self.evaluate(value)?)));
        Ok(Values { positional, named: named.collect::<Result<_>>()? })
    }
}
