//! A request that has a sequence.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

use super::request::RequestId;
use crate::error::{Error, Result};
use crate::generate::token::Token;
use crate::generate::token_stream::{TokenScratch, TokenStream};
use crate::model::{Rows, Sequence};

/// A request with its sequence.
pub(super) struct Running {
    pub id: RequestId,
    pub priority: i8,
    /// The pass in which a part of its prompt came in last, or in which the request came.
    pub since: u64,
    /// What it counts for in [`SchedulerOptions::kv_bytes`](super::SchedulerOptions#structfield.kv_bytes).
    pub kv_bytes: usize,
    pub sequence: Sequence,
    pub stream: TokenStream,
    pub prompt: Vec<u32>,
    /// Tokens of the prompt that the sequence was fed.
    pub fed: usize,
    /// The last token, which the sequence has not been fed.
    pub last: u32,
    /// Tokens in the pass that is being made.
    pub rows: usize,
    /// What the last pass gave.
    pub outcome: Option<Result<Token>>,
    /// How often the prefix cache had taken something in when it was last asked for this prompt.
    pub asked: Option<u64>,
}

impl Running {
    /// Whether a part of its prompt is still to come in.
    pub(super) fn is_prompt(&self) -> bool {
        self.fed < self.prompt.len()
    }

    /// Tokens of the prompt that one pass could take.
    pub(super) fn left(&self) -> usize {
        (self.prompt.len() - self.fed).min(self.sequence.room())
    }

    /// Whether `other`, whose rows are in the next pass, computes what this prompt needs next: it begins alike, and
    /// more of it will be in the prefix cache, in whole blocks of `block` positions, than this sequence has.
    pub(super) fn could_follow(&self, other: &Running, block: usize) -> bool {
        let end = other.fed + other.rows;
        if !other.is_prompt() || end <= self.fed {
            return false;
        }
        let alike = self.prompt.iter().zip(&other.prompt[..end]).take_while(|(a, b)| a == b).count();
        alike.min(self.prompt.len() - 1) / block * block > self.fed
    }

    /// Its part of the next pass, if it has one.
    pub(super) fn entry(&mut self) -> Option<Rows<'_>> {
        if self.rows == 0 {
            return None;
        }
        let tokens = match self.prompt.get(self.fed..self.fed + self.rows) {
            Some(tokens) if self.is_prompt() => tokens,
            _ => slice::from_ref(&self.last),
        };
        let wants_logits = self.fed + self.rows >= self.prompt.len();
        Some(Rows { sequence: &mut self.sequence, tokens, wants_logits })
    }

    /// The pass with its part is done; says whether a token follows.
    pub(super) fn advance(&mut self, pass: u64) -> bool {
        if self.is_prompt() {
            self.fed += self.rows;
            self.since = pass;
        }
        !self.is_prompt()
    }

    /// Chooses its next token. What goes wrong, be it a panic, is its own.
    pub(super) fn choose(&mut self, logits: &[f32], scratch: &mut TokenScratch) {
        let (stream, is_full) = (&mut self.stream, self.sequence.room() == 0);
        let token = caught(|| {
            let chosen = stream.choose(logits, scratch)?;
            stream.show(chosen, is_full)
        });
        if let Ok(token) = &token {
            self.last = token.id;
        }
        self.outcome = Some(token);
    }
}

/// What `work` gives; an error if it panics.
fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(Error::from_panic(&*panic)))
}

#[cfg(test)]
mod tests {
    use super::caught;
    use crate::error::Error;

    #[test]
    fn a_panic_becomes_an_error() {
        let found = |error: Error| (error.code(), error.to_string());
        let of = |panic: fn() -> u32| found(caught(|| Ok(panic())).unwrap_err());
        assert_eq!(of(|| panic!("number {}", 7)).0, "panic");
        assert!(of(|| panic!("number {}", 7)).1.contains("number 7"));
        assert!(of(|| panic!("plain")).1.contains("plain"));
        assert_eq!(caught(|| Ok(7)).unwrap(), 7);
        assert_eq!(found(caught::<()>(|| Err(Error::NotFinite)).unwrap_err()).0, "not_finite");
    }
}
