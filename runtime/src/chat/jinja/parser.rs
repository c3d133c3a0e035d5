//! From tokens to a tree: statements. What nests is counted, and there is an end to it.

use std::collections::HashMap;
use std::sync::Arc;

use super::fault::{Fault, Result, fail};
use super::lexer::{Placed, Token};
use super::names::FUNCTIONS;
use super::syntax::{Block, Expression, For, Macro, Name, Program, Statement, StatementKind, Step, Target};

/// How deep statements and expressions may lie in one another: enough for all of 85 templates of popular models.
const MAX_NESTING: usize = 40;

/// The tree of a template's tokens.
pub(super) fn parse(tokens: Vec<Placed<'_>>) -> Result<Program> {
    let mut parser = Parser {
        tokens,
        at: 0,
        nesting: 0,
        is_in_loop: false,
        numbers: HashMap::new(),
        called: Vec::new(),
        program: Program::default(),
    };
    let body = parser.block(&[]).map_err(|fault| fault.at(parser.line()))?;
    parser.program.body = body;
    parser.name_unknown_function();
    Ok(parser.program)
}

pub(super) struct Parser<'a> {
    tokens: Vec<Placed<'a>>,
    at: usize,
    nesting: usize,
    is_in_loop: bool,
    numbers: HashMap<&'a str, Name>,
    /// Names that are called, and where.
    called: Vec<(Name, u32)>,
    program: Program,
}

impl<'a> Parser<'a> {
    /// The token that comes next.
    pub(super) fn peek(&self) -> &Token<'a> {
        self.peek_after(0)
    }

    /// The token that comes after `skipped` others.
    pub(super) fn peek_after(&self, skipped: usize) -> &Token<'a> {
        self.tokens.get(self.at + skipped).map_or(&Token::End, |(token, _)| token)
    }

    /// The line of the token that comes next.
    pub(super) fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |(_, line)| *line)
    }

    /// The next token, which is then behind.
    pub(super) fn next(&mut self) -> Token<'a> {
        let Some((token, _)) = self.tokens.get_mut(self.at) else { return Token::End };
        if *token == Token::End {
            return Token::End;
        }
        self.at += 1;
        std::mem::replace(token, Token::End)
    }

    /// Whether the next token is this one; if so it is then behind.
    pub(super) fn skip(&mut self, token: &Token) -> bool {
        let is_next = self.peek() == token;
        self.at += usize::from(is_next);
        is_next
    }

    pub(super) fn skip_symbol(&mut self, symbol: &'static str) -> bool {
        self.skip(&Token::Symbol(symbol))
    }

    pub(super) fn skip_name(&mut self, name: &str) -> bool {
        self.skip(&Token::Name(name))
    }

    pub(super) fn expect(&mut self, token: &Token) -> Result<()> {
        if self.skip(token) { Ok(()) } else { self.unexpected(&describe(token)) }
    }

    pub(super) fn expect_symbol(&mut self, symbol: &'static str) -> Result<()> {
        self.expect(&Token::Symbol(symbol))
    }

    /// An error that tells what comes next, where it should be `expected`.
    pub(super) fn unexpected<T>(&self, expected: &str) -> Result<T> {
        let problem = format!("syntax error: unexpected {}, expected {expected}", describe(self.peek()));
        Err(Fault::new(problem).at(self.line()))
    }

    pub(super) fn identifier(&mut self) -> Result<&'a str> {
        match *self.peek() {
            Token::Name(name) => {
                self.at += 1;
                Ok(name)
            }
            _ => self.unexpected("a name"),
        }
    }

    /// The number of `name`.
    pub(super) fn number(&mut self, name: &'a str) -> Name {
        let names = &mut self.program.names;
        *self.numbers.entry(name).or_insert_with(|| {
            names.push(Arc::from(name));
            names.len() as Name - 1
        })
    }

    /// Notes that `name` is called here.
    pub(super) fn calls(&mut self, name: Name) {
        self.called.push((name, self.line()));
    }

    /// Notes a `what` called `name` unless it is among those `known`.
    pub(super) fn note(&mut self, what: &str, name: &str, known: &[&str]) {
        if !known.contains(&name) && self.program.unknown.is_none() {
            self.program.unknown = Some(format!("{what} {name} (line {})", self.line()));
        }
    }

    /// The first name that is called and neither a function nor a macro, unless something else is not known.
    fn name_unknown_function(&mut self) {
        let mut macros = Vec::new();
        collect_macros(&self.program.body, &mut macros);
        for parts in &self.program.macros {
            collect_macros(&parts.body, &mut macros);
        }
        let mut is_known = vec![false; self.program.names.len()];
        for name in macros {
            is_known[name as usize] = true;
        }
        for &(name, line) in &self.called {
            let text = &*self.program.names[name as usize];
            let is_known = is_known[name as usize] || text == "caller" || FUNCTIONS.contains(&text);
            if !is_known && self.program.unknown.is_none() {
                self.program.unknown = Some(format!("function {text} (line {line})"));
            }
        }
    }

    /// What `parse` makes, one level deeper.
    pub(super) fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.nesting == MAX_NESTING {
            let problem =
                format!("statements and expressions lie more than {MAX_NESTING} deep in one another");
            return Err(Fault::new(problem).at(self.line()));
        }
        self.nesting += 1;
        let result = parse(self);
        self.nesting -= 1;
        result
    }

    /// Statements up to the one that begins with one of `ends`, whose name comes next then.
    fn block(&mut self, ends: &[&str]) -> Result<Block> {
        let mut block = Block::new();
        loop {
            let line = self.line();
            let kind = match self.next() {
                Token::Data(text) => StatementKind::Text(text.into()),
                Token::PrintBegin => {
                    let value = self.expression()?;
                    self.expect(&Token::PrintEnd)?;
                    StatementKind::Print(value)
                }
                Token::BlockBegin => match *self.peek() {
                    Token::Name(name) if ends.contains(&name) => return Ok(block),
                    _ => self.nested(Self::statement)?,
                },
                Token::End if ends.is_empty() => return Ok(block),
                _ => {
                    let problem =
                        format!("syntax error: unexpected end of input, expected {}", ends.join(" or "));
                    return Err(Fault::new(problem).at(line));
                }
            };
            block.push(Statement { line, kind });
        }
    }

    /// Statements up to `{% end %}`, which is then behind.
    fn block_to(&mut self, end: &str) -> Result<Block> {
        let block = self.block(&[end])?;
        self.end_of_block(end)?;
        Ok(block)
    }

    fn end_of_block(&mut self, end: &str) -> Result<()> {
        self.skip_name(end);
        self.expect(&Token::BlockEnd)
    }

    fn statement(&mut self) -> Result<StatementKind> {
        let line = self.line();
        let name = self.identifier()?;
        let kind = match name {
            "set" => return self.set(),
            "if" => return self.condition(),
            "for" => return self.iteration(),
            "macro" => return self.definition(),
            "call" => return self.call(),
            "with" => return self.with(),
            "generation" => {
                self.expect(&Token::BlockEnd)?;
                return Ok(StatementKind::With(Vec::new(), self.block_to("endgeneration")?));
            }
            "filter" => {
                let filters = self.filters()?;
                self.expect(&Token::BlockEnd)?;
                return Ok(StatementKind::Filter(filters, self.block_to("endfilter")?));
            }
            "do" => StatementKind::Do(self.expression()?),
            "break" | "continue" if !self.is_in_loop => {
                return fail(format!("syntax error: {name} outside of a loop"));
            }
            "break" => StatementKind::Break,
            "continue" => StatementKind::Continue,
            other => {
                let problem = format!("statement {other} (line {line}) is not supported");
                return Err(Fault::placed(problem));
            }
        };
        self.expect(&Token::BlockEnd)?;
        Ok(kind)
    }

    fn set(&mut self) -> Result<StatementKind> {
        let target = self.target(true)?;
        if self.skip_symbol("=") {
            let value = self.tuple()?;
            self.expect(&Token::BlockEnd)?;
            return Ok(StatementKind::Set(target, value));
        }
        let filters = if self.skip_symbol("|") { self.filters()? } else { Vec::new() };
        self.expect(&Token::BlockEnd)?;
        Ok(StatementKind::SetBlock(target, filters, self.block_to("endset")?))
    }

    /// `name | name(…) | …`
    fn filters(&mut self) -> Result<Vec<Step>> {
        let mut filters = vec![self.filter()?];
        while self.skip_symbol("|") {
            filters.push(self.filter()?);
        }
        Ok(filters)
    }

    fn condition(&mut self) -> Result<StatementKind> {
        let mut branches = Vec::new();
        loop {
            let condition = self.expression()?;
            self.expect(&Token::BlockEnd)?;
            branches.push((condition, self.block(&["elif", "else", "endif"])?));
            if !self.skip_name("elif") {
                break;
            }
        }
        let otherwise = self.otherwise("endif")?;
        Ok(StatementKind::If(branches, otherwise))
    }

    /// What stands between `else` and `end`, if there is an `else` before it.
    fn otherwise(&mut self, end: &str) -> Result<Block> {
        if self.skip_name("else") {
            self.expect(&Token::BlockEnd)?;
            return self.block_to(end);
        }
        self.end_of_block(end)?;
        Ok(Block::new())
    }

    fn iteration(&mut self) -> Result<StatementKind> {
        let target = self.target(false)?;
        if !self.skip_name("in") {
            return self.unexpected("in");
        }
        let items = self.tuple_without_choice()?;
        let condition = if self.skip_name("if") { Some(self.expression()?) } else { None };
        // A loop that may be called. None is: that is not known.
        self.skip_name("recursive");
        self.expect(&Token::BlockEnd)?;
        let was_in_loop = std::mem::replace(&mut self.is_in_loop, true);
        let body = self.block(&["else", "endfor"])?;
        self.is_in_loop = was_in_loop;
        let otherwise = self.otherwise("endfor")?;
        Ok(StatementKind::For(Box::new(For { target, items, condition, body, otherwise })))
    }

    fn definition(&mut self) -> Result<StatementKind> {
        let name = self.identifier()?;
        let name = self.number(name);
        let parameters = self.parameters()?;
        self.expect(&Token::BlockEnd)?;
        let index = self.macro_body(parameters, "endmacro")?;
        Ok(StatementKind::Macro(name, index))
    }

    fn call(&mut self) -> Result<StatementKind> {
        let has_parameters = *self.peek() == Token::Symbol("(");
        let parameters = if has_parameters { self.parameters()? } else { Vec::new() };
        let call = self.expression()?;
        self.expect(&Token::BlockEnd)?;
        let index = self.macro_body(parameters, "endcall")?;
        Ok(StatementKind::Call(Box::new(call), index))
    }

    fn parameters(&mut self) -> Result<Vec<(Name, Option<Expression>)>> {
        self.expect_symbol("(")?;
        let mut parameters = Vec::new();
        while !self.skip_symbol(")") {
            if !parameters.is_empty() {
                self.expect_symbol(",")?;
            }
            let name = self.identifier()?;
            let default = if self.skip_symbol("=") { Some(self.expression()?) } else { None };
            parameters.push((self.number(name), default));
        }
        Ok(parameters)
    }

    fn macro_body(&mut self, parameters: Vec<(Name, Option<Expression>)>, end: &str) -> Result<usize> {
        let was_in_loop = std::mem::replace(&mut self.is_in_loop, false);
        let body = self.block_to(end)?;
        self.is_in_loop = was_in_loop;
        self.program.macros.push(Macro { parameters, body });
        Ok(self.program.macros.len() - 1)
    }

    fn with(&mut self) -> Result<StatementKind> {
        let mut bindings = Vec::new();
        while !self.skip(&Token::BlockEnd) {
            if !bindings.is_empty() {
                self.expect_symbol(",")?;
            }
            let target = self.single_target(false)?;
            self.expect_symbol("=")?;
            bindings.push((target, self.expression()?));
        }
        Ok(StatementKind::With(bindings, self.block_to("endwith")?))
    }

    /// One name or several; `with_attributes` those of namespaces too.
    fn target(&mut self, with_attributes: bool) -> Result<Target> {
        let first = self.single_target(with_attributes)?;
        if *self.peek() != Token::Symbol(",") {
            return Ok(first);
        }
        let mut targets = vec![first];
        while self.skip_symbol(",") {
            if !matches!(self.peek(), Token::Name(name) if *name != "in")
                && *self.peek() != Token::Symbol("(")
            {
                break;
            }
            targets.push(self.single_target(with_attributes)?);
        }
        Ok(Target::Each(targets))
    }

    fn single_target(&mut self, with_attributes: bool) -> Result<Target> {
        if self.skip_symbol("(") {
            let target = self.nested(|parser| parser.target(with_attributes))?;
            self.expect_symbol(")")?;
            return Ok(target);
        }
        let name = self.identifier()?;
        if matches!(name, "true" | "True" | "false" | "False" | "none" | "None") {
            return fail(format!("syntax error: {name} cannot be set"));
        }
        let name = self.number(name);
        if with_attributes && self.skip_symbol(".") {
            return Ok(Target::Attribute(name, self.identifier()?.into()));
        }
        Ok(Target::Name(name))
    }
}

/// The names of the macros that are defined in `block`, which lies no deeper than blocks may.
fn collect_macros(block: &Block, names: &mut Vec<Name>) {
    for statement in block {
        match &statement.kind {
            StatementKind::Macro(name, _) => names.push(*name),
            StatementKind::If(branches, otherwise) => {
                branches.iter().for_each(|(_, body)| collect_macros(body, names));
                collect_macros(otherwise, names);
            }
            StatementKind::For(parts) => {
                collect_macros(&parts.body, names);
                collect_macros(&parts.otherwise, names);
            }
            StatementKind::With(_, body)
            | StatementKind::Filter(_, body)
            | StatementKind::SetBlock(_, _, body) => {
                collect_macros(body, names);
            }
            _ => {}
        }
    }
}

/// A token as an error names it.
fn describe(token: &Token) -> String {
    match token {
        Token::Data(_) => "text".into(),
        Token::PrintBegin => "{{".into(),
        Token::PrintEnd => "}}".into(),
        Token::BlockBegin => "{%".into(),
        Token::BlockEnd => "%}".into(),
        Token::Name(name) => (*name).into(),
        Token::Text(_) => "a string".into(),
        Token::Int(_) | Token::Float(_) => "a number".into(),
        Token::Symbol(symbol) => (*symbol).into(),
        Token::End => "end of input".into(),
    }
}
