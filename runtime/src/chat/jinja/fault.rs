//! What went wrong, and in which line.

use std::fmt;

pub(super) type Result<T> = std::result::Result<T, Fault>;

/// An error in a template, or one that it raised.
#[derive(Debug)]
pub(super) struct Fault(Box<(String, Option<u32>)>);

impl Fault {
    /// A problem, in a line that is not known here.
    pub(super) fn new(problem: impl Into<String>) -> Fault {
        Fault(Box::new((problem.into(), None)))
    }

    /// A problem that says itself where it is.
    pub(super) fn placed(problem: String) -> Fault {
        Fault(Box::new((problem, Some(0))))
    }

    /// This one, in `line` if nobody said where before.
    pub(super) fn at(mut self, line: u32) -> Fault {
        self.0.1.get_or_insert(line);
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            (problem, Some(line @ 1..)) => write!(f, "{problem} (line {line})"),
            (problem, _) => f.write_str(problem),
        }
    }
}

/// A problem as a result.
pub(super) fn fail<T>(problem: impl Into<String>) -> Result<T> {
    Err(Fault::new(problem))
}
