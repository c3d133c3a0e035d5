//! From tokens to a tree: expressions.
//!
//! A chain of operators of one precedence is one node with a list. Only what binds tighter, and what is in brackets, lies
//! deeper.

use std::sync::Arc;

use super::fault::{Result, fail};
use super::lexer::Token;
use super::names::{FILTERS, METHODS, TESTS};
use super::parser::Parser;
use super::syntax::{Arguments, Comparison, Expression, Operator, Step};
use super::value::Value;

/// How tight an operator binds.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Level {
    Or,
    And,
    Not,
    Compare,
    Sum,
    Join,
    Product,
    Power,
    Operand,
}

impl Level {
    fn tighter(self) -> Level {
        match self {
            Level::Or => Level::And,
            Level::And => Level::Not,
            Level::Not => Level::Compare,
            Level::Compare => Level::Sum,
            Level::Sum => Level::Join,
            Level::Join => Level::Product,
            Level::Product => Level::Power,
            Level::Power | Level::Operand => Level::Operand,
        }
    }
}

/// Names that stand for no value where one may be left out.
const KEYWORDS: [&str; 8] = ["and", "else", "if", "in", "is", "not", "or", "recursive"];

impl<'a> Parser<'a> {
    /// An expression, `value if condition else other` included.
    pub(super) fn expression(&mut self) -> Result<Expression> {
        self.nested(|parser| {
            let mut value = parser.binary(Level::Or)?;
            let mut choices = Vec::new();
            while parser.skip_name("if") {
                choices.push((value, parser.binary(Level::Or)?));
                if !parser.skip_name("else") {
                    return Ok(Expression::Choice(choices, None));
                }
                value = parser.binary(Level::Or)?;
            }
            Ok(if choices.is_empty() { value } else { Expression::Choice(choices, Some(Box::new(value))) })
        })
    }

    /// An expression, or several with commas between them: a tuple.
    pub(super) fn tuple(&mut self) -> Result<Expression> {
        let first = self.expression()?;
        self.rest_of_tuple(first, Self::expression)
    }

    /// The same where an `if` belongs to something else.
    pub(super) fn tuple_without_choice(&mut self) -> Result<Expression> {
        let parse = |parser: &mut Self| parser.nested(|parser| parser.binary(Level::Or));
        let first = parse(self)?;
        self.rest_of_tuple(first, parse)
    }

    fn rest_of_tuple(
        &mut self,
        first: Expression,
        mut parse: impl FnMut(&mut Self) -> Result<Expression>,
    ) -> Result<Expression> {
        if *self.peek() != Token::Symbol(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.skip_symbol(",") && !matches!(self.peek(), Token::BlockEnd | Token::Symbol(")")) {
            items.push(parse(self)?);
        }
        Ok(Expression::Tuple(items))
    }

    /// An expression of operators that bind at least as tight as `least`.
    fn binary(&mut self, least: Level) -> Result<Expression> {
        if least == Level::Operand {
            return self.operand();
        }
        let mut left = match self.negations(least) {
            0 => self.operand()?,
            count => {
                let inner = self.binary(Level::Compare)?;
                let inner = Expression::Not(Box::new(inner));
                if count % 2 == 1 { inner } else { Expression::Not(Box::new(inner)) }
            }
        };
        while let Some(level) = self.level().filter(|&level| level >= least) {
            left = self.chain(left, level)?;
        }
        Ok(left)
    }

    /// How many `not` come next, where one may.
    fn negations(&mut self, least: Level) -> usize {
        let mut count = 0;
        while least <= Level::Not && self.skip_name("not") {
            count += 1;
        }
        count
    }

    /// How tight the operator binds that comes next, if one does.
    fn level(&self) -> Option<Level> {
        Some(match self.peek() {
            Token::Name("or") => Level::Or,
            Token::Name("and") => Level::And,
            Token::Name("not") if *self.peek_after(1) == Token::Name("in") => Level::Compare,
            Token::Name("in") | Token::Symbol("==" | "!=" | "<" | "<=" | ">" | ">=") => Level::Compare,
            Token::Symbol("+" | "-") => Level::Sum,
            Token::Symbol("~") => Level::Join,
            Token::Symbol("*" | "/" | "//" | "%") => Level::Product,
            Token::Symbol("**") => Level::Power,
            _ => return None,
        })
    }

    /// All operators of `level` that follow `left`, with what is on their right.
    fn chain(&mut self, left: Expression, level: Level) -> Result<Expression> {
        match level {
            Level::Or => self.list(left, level).map(Expression::Any),
            Level::And => self.list(left, level).map(Expression::All),
            Level::Join => self.list(left, level).map(Expression::Join),
            Level::Compare => {
                let mut rest = Vec::new();
                while self.level() == Some(level) {
                    let comparison = self.comparison();
                    rest.push((comparison, self.binary(level.tighter())?));
                }
                Ok(Expression::Compare(Box::new(left), rest))
            }
            _ => {
                let mut rest = Vec::new();
                while self.level() == Some(level) {
                    let operator = self.operator();
                    rest.push((operator, self.binary(level.tighter())?));
                }
                Ok(Expression::Chain(Box::new(left), rest))
            }
        }
    }

    fn list(&mut self, left: Expression, level: Level) -> Result<Vec<Expression>> {
        let mut list = vec![left];
        while self.level() == Some(level) {
            self.next();
            list.push(self.binary(level.tighter())?);
        }
        Ok(list)
    }

    fn comparison(&mut self) -> Comparison {
        match self.next() {
            Token::Symbol("==") => Comparison::Equal,
            Token::Symbol("!=") => Comparison::NotEqual,
            Token::Symbol("<") => Comparison::Less,
            Token::Symbol("<=") => Comparison::LessOrEqual,
            Token::Symbol(">") => Comparison::Greater,
            Token::Symbol(">=") => Comparison::GreaterOrEqual,
            Token::Name("in") => Comparison::In,
            _ => {
                self.next(); // the `in` of `not in`
                Comparison::NotIn
            }
        }
    }

    fn operator(&mut self) -> Operator {
        match self.next() {
            Token::Symbol("+") => Operator::Add,
            Token::Symbol("-") => Operator::Subtract,
            Token::Symbol("*") => Operator::Multiply,
            Token::Symbol("/") => Operator::Divide,
            Token::Symbol("//") => Operator::FloorDivide,
            Token::Symbol("%") => Operator::Remainder,
            _ => Operator::Power,
        }
    }

    /// A value with signs before it, and with items, calls, filters and tests after it.
    fn operand(&mut self) -> Result<Expression> {
        let mut signs = 0;
        while self.skip_symbol("-") {
            signs += 1;
        }
        let value = self.primary()?;
        let mut steps = Vec::new();
        self.accesses(&value, &mut steps)?;
        // Two signs are none, but say that this is to be a number.
        steps.extend((0..if signs > 2 { 2 - signs % 2 } else { signs }).map(|_| Step::Negate));
        loop {
            if self.skip_symbol("|") {
                steps.push(self.filter()?);
            } else if self.skip_name("is") {
                self.test(&mut steps)?;
            } else {
                break;
            }
        }
        Ok(if steps.is_empty() { value } else { Expression::Steps(Box::new(value), steps) })
    }

    fn primary(&mut self) -> Result<Expression> {
        if matches!(self.peek(), Token::Name(name) if KEYWORDS.contains(name)) {
            return self.unexpected("an expression");
        }
        let constant = match self.peek() {
            Token::Symbol("(" | "[" | "{") => return self.brackets(),
            Token::Name("true" | "True") => Value::Bool(true),
            Token::Name("false" | "False") => Value::Bool(false),
            Token::Name("none" | "None") => Value::None,
            Token::Int(number) => Value::Int(*number),
            Token::Float(number) => Value::Float(*number),
            Token::Text(_) => return Ok(self.text()),
            Token::Name(_) => {
                let name = self.identifier()?;
                return Ok(Expression::Name(self.number(name)));
            }
            _ => return self.unexpected("an expression"),
        };
        self.next();
        Ok(Expression::Constant(constant))
    }

    /// A string, or several that stand side by side.
    fn text(&mut self) -> Expression {
        let mut text = String::new();
        while let Token::Text(_) = self.peek() {
            if let Token::Text(part) = self.next() {
                text += &part;
            }
        }
        Expression::Constant(Value::from(&*text))
    }

    fn brackets(&mut self) -> Result<Expression> {
        match self.next() {
            Token::Symbol("[") => self.items("]").map(Expression::List),
            Token::Symbol("{") => {
                let mut entries = Vec::new();
                while !self.skip_symbol("}") {
                    if !entries.is_empty() {
                        self.expect_symbol(",")?;
                        if self.skip_symbol("}") {
                            break;
                        }
                    }
                    let key = self.expression()?;
                    self.expect_symbol(":")?;
                    entries.push((key, self.expression()?));
                }
                Ok(Expression::Dict(entries))
            }
            _ => {
                if self.skip_symbol(")") {
                    return Ok(Expression::Tuple(Vec::new()));
                }
                let inner = self.tuple()?;
                self.expect_symbol(")")?;
                Ok(inner)
            }
        }
    }

    /// Expressions with commas between them, up to `end`.
    fn items(&mut self, end: &'static str) -> Result<Vec<Expression>> {
        let mut items = Vec::new();
        while !self.skip_symbol(end) {
            if !items.is_empty() {
                self.expect_symbol(",")?;
                if self.skip_symbol(end) {
                    break;
                }
            }
            items.push(self.expression()?);
        }
        Ok(items)
    }

    /// `.name`, `[item]`, `[from:to:by]` and `(arguments)` after `value`.
    fn accesses(&mut self, value: &Expression, steps: &mut Vec<Step>) -> Result<()> {
        loop {
            if self.skip_symbol(".") {
                let step = self.attribute()?;
                steps.push(step);
            } else if self.skip_symbol("[") {
                let step = self.item()?;
                steps.push(step);
            } else if *self.peek() == Token::Symbol("(") {
                if let (Expression::Name(name), true) = (value, steps.is_empty()) {
                    self.calls(*name);
                }
                steps.push(Step::Call(self.arguments()?));
            } else {
                return Ok(());
            }
        }
    }

    fn attribute(&mut self) -> Result<Step> {
        if let Token::Int(index) = *self.peek() {
            self.next();
            return Ok(Step::Item(Expression::Constant(Value::Int(index))));
        }
        let name = self.identifier()?;
        if *self.peek() != Token::Symbol("(") {
            return Ok(Step::Attribute(name.into()));
        }
        self.note("method", name, &METHODS);
        Ok(Step::Method(name.into(), self.arguments()?))
    }

    fn item(&mut self) -> Result<Step> {
        let mut parts = [None, None, None];
        let mut colons = 0;
        while !self.skip_symbol("]") {
            if self.skip_symbol(":") {
                colons += 1;
                if colons > 2 {
                    return fail("syntax error: a slice has three parts at most");
                }
            } else if parts[colons].is_none() {
                parts[colons] = Some(self.expression()?);
            } else {
                return self.unexpected("]");
            }
        }
        match (colons, parts) {
            (0, [Some(item), _, _]) => Ok(Step::Item(item)),
            (0, _) => fail("syntax error: nothing in []"),
            (_, parts) => Ok(Step::Slice(Box::new(parts))),
        }
    }

    fn arguments(&mut self) -> Result<Arguments> {
        self.expect_symbol("(")?;
        let mut arguments = Arguments::default();
        let mut is_first = true;
        while !self.skip_symbol(")") {
            if !std::mem::take(&mut is_first) {
                self.expect_symbol(",")?;
                if self.skip_symbol(")") {
                    break;
                }
            }
            match *self.peek() {
                Token::Name(name) if *self.peek_after(1) == Token::Symbol("=") => {
                    self.next();
                    self.next();
                    arguments.named.push((name.into(), self.expression()?));
                }
                _ if arguments.named.is_empty() => arguments.positional.push(self.expression()?),
                _ => return self.unexpected("a named argument"),
            }
        }
        Ok(arguments)
    }

    fn optional_arguments(&mut self) -> Result<Arguments> {
        if *self.peek() == Token::Symbol("(") { self.arguments() } else { Ok(Arguments::default()) }
    }

    /// The filter whose name comes next.
    pub(super) fn filter(&mut self) -> Result<Step> {
        let name = self.identifier()?;
        self.note("filter", name, &FILTERS);
        Ok(Step::Filter(name.into(), self.optional_arguments()?))
    }

    fn test(&mut self, steps: &mut Vec<Step>) -> Result<()> {
        let is_negated = self.skip_name("not");
        let name: Arc<str> = self.identifier()?.into();
        self.note("test", &name, &TESTS);
        let begins_value = match self.peek() {
            Token::Name(name) => !KEYWORDS.contains(name),
            Token::Text(_) | Token::Int(_) | Token::Float(_) | Token::Symbol("[" | "{" | "-") => true,
            _ => false,
        };
        let mut arguments = Arguments::default();
        if begins_value {
            arguments.positional.push(self.nested(Self::test_argument)?);
        } else {
            arguments = self.optional_arguments()?;
        }
        steps.push(Step::Test(name, arguments));
        steps.extend(is_negated.then_some(Step::Not));
        Ok(())
    }

    /// The argument of a test that has no brackets around it: no filter and no test belongs to it.
    fn test_argument(&mut self) -> Result<Expression> {
        let is_negative = self.skip_symbol("-");
        let value = self.primary()?;
        let mut steps = Vec::new();
        self.accesses(&value, &mut steps)?;
        steps.extend(is_negative.then_some(Step::Negate));
        Ok(if steps.is_empty() { value } else { Expression::Steps(Box::new(value), steps) })
    }
}
