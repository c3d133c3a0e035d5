//! What one pass is asked for: rows of any sequences.

use std::fmt;

use crate::error::Error;
use crate::sequence::Sequence;

/// An entry of a pass: tokens to be appended to a sequence. Each of them is a row of the pass.
#[derive(Debug)]
pub struct Rows<'a> {
    /// Of the engine's model.
    pub sequence: &'a mut Sequence,
    /// At least one, and no more than the sequence has [`room`](Sequence::room) for.
    pub tokens: &'a [u32],
    /// Whether [`Engine::logits`](super::Engine::logits) shall give what the model says after the last token.
    pub wants_logits: bool,
}

/// Why there was no pass.
#[derive(Debug)]
pub struct PassError {
    /// The index of the entry in the batch that cannot be part of it, unless it is the pass as a whole that cannot be.
    pub entry: Option<usize>,
    /// What is wrong.
    pub error: Error,
}

impl PassError {
    pub(super) fn of(entry: usize) -> impl Fn(Error) -> PassError {
        move |error| PassError { entry: Some(entry), error }
    }
}

impl From<Error> for PassError {
    fn from(error: Error) -> PassError {
        PassError { entry: None, error }
    }
}

impl From<PassError> for Error {
    fn from(error: PassError) -> Error {
        error.error
    }
}

impl fmt::Display for PassError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.entry {
            Some(entry) => write!(f, "entry {entry} of the pass: {}", self.error),
            None => self.error.fmt(f),
        }
    }
}

impl std::error::Error for PassError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
