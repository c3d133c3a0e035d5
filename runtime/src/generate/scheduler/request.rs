//! What goes into a scheduler, and what comes out.

use crate::error::Error;
use crate::generate::options::GenerateOptions;
use crate::generate::token::{FinishReason, Token};

/// A prompt to be continued.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// Its tokens, at least one.
    pub prompt: Vec<u32>,
    /// What to generate. A [`CancelToken`](crate::CancelToken) in them ends this request within one pass: with its next
    /// token, or without one while it waits or its prompt comes in.
    pub options: GenerateOptions,
    /// Higher goes first: each 1 counts as if the request had waited 64 passes longer. So nothing waits for ever,
    /// however much comes that has a higher one.
    pub priority: i8,
}

impl Request {
    /// A request for what comes after `prompt`.
    pub fn new(prompt: Vec<u32>, options: GenerateOptions) -> Request {
        Request { prompt, options, priority: 0 }
    }

    /// This request with this priority.
    pub fn priority(self, priority: i8) -> Request {
        Request { priority, ..self }
    }
}

/// Which request it is: each has its own number, in the order in which they came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(super) u64);

impl RequestId {
    /// Its number: 0 for a scheduler's first request, and one more for each that it takes after that.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// What happened to a request.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// It has another token. If this one has a `finish_reason`, it is the last.
    Token(Token),
    /// It ended without another token: it was cancelled before it had one, or was to have none.
    Finished(FinishReason),
    /// It ended with an error, which is no other request's.
    Failed(Error),
}

impl Event {
    /// Whether nothing more comes of this request.
    pub fn is_last(&self) -> bool {
        match self {
            Event::Token(token) => token.finish_reason.is_some(),
            Event::Finished(_) | Event::Failed(_) => true,
        }
    }
}
