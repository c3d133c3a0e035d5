//! The tree of a template. Names are numbers: those of [`Program::names`].

use std::sync::Arc;

use super::value::Value;

/// A whole template.
#[derive(Debug, Default)]
pub(super) struct Program {
    pub(super) body: Block,
    pub(super) macros: Vec<Macro>,
    pub(super) names: Vec<Arc<str>>,
    /// The first filter, test, method or function that is not known.
    pub(super) unknown: Option<String>,
}

pub(super) type Block = Vec<Statement>;
/// The number of a name.
pub(super) type Name = u32;

#[derive(Debug)]
pub(super) struct Statement {
    pub(super) line: u32,
    pub(super) kind: StatementKind,
}

#[derive(Debug)]
pub(super) enum StatementKind {
    /// Text of the template itself.
    Text(Box<str>),
    Print(Expression),
    Set(Target, Expression),
    /// `{% set x | filter %}…{% endset %}`
    SetBlock(Target, Vec<Step>, Block),
    /// `{% filter f %}…{% endfilter %}`
    Filter(Vec<Step>, Block),
    Do(Expression),
    /// `if` and each `elif`, then `else`.
    If(Vec<(Expression, Block)>, Block),
    For(Box<For>),
    With(Vec<(Target, Expression)>, Block),
    /// The macro of this number gets its name.
    Macro(Name, usize),
    /// `{% call(…) f(…) %}…{% endcall %}`: the call, and the number of the macro that is its body.
    Call(Box<Expression>, usize),
    Break,
    Continue,
}

#[derive(Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) items: Expression,
    pub(super) condition: Option<Expression>,
    pub(super) body: Block,
    pub(super) otherwise: Block,
}

#[derive(Debug)]
pub(super) struct Macro {
    /// With what is taken where none is given.
    pub(super) parameters: Vec<(Name, Option<Expression>)>,
    pub(super) body: Block,
}

/// Where a value goes.
#[derive(Debug)]
pub(super) enum Target {
    Name(Name),
    Attribute(Name, Arc<str>),
    Each(Vec<Target>),
}

#[derive(Debug)]
pub(super) enum Expression {
    Constant(Value),
    Name(Name),
    List(Vec<Expression>),
    Tuple(Vec<Expression>),
    Dict(Vec<(Expression, Expression)>),
    Not(Box<Expression>),
    All(Vec<Expression>),
    Any(Vec<Expression>),
    /// `first op second op third`, all of one precedence, from left to right.
    Chain(Box<Expression>, Vec<(Operator, Expression)>),
    /// `first < second <= third`
    Compare(Box<Expression>, Vec<(Comparison, Expression)>),
    /// `~` of all.
    Join(Vec<Expression>),
    /// `value if condition else value if condition else …`, with the last value if there is one.
    Choice(Vec<(Expression, Expression)>, Option<Box<Expression>>),
    /// What is done to a value, one after the other.
    Steps(Box<Expression>, Vec<Step>),
}

#[derive(Debug)]
pub(super) enum Step {
    Attribute(Arc<str>),
    Item(Expression),
    /// `[from:to:by]`
    Slice(Box<[Option<Expression>; 3]>),
    Call(Arguments),
    Method(Arc<str>, Arguments),
    Filter(Arc<str>, Arguments),
    Test(Arc<str>, Arguments),
    /// The opposite of a test.
    Not,
    Negate,
}

#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Expression>,
    pub(super) named: Vec<(Arc<str>, Expression)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Remainder,
    Power,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}
