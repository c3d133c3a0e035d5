//! Cutting a text into windows, and a window into pieces whose logits fit in memory.

use std::slice::ChunksExact;

use super::options::PerplexityOptions;
use crate::cancel::CancelToken;
use crate::error::{Error, Result};
use crate::model::Model;

/// Most tokens of a piece, whole register tiles: enough to be bound by arithmetic; logits of that many positions are 24 MB
/// of 49,152 tokens.
pub(super) const ROWS: usize = 120;

/// The windows that are still to be scored.
pub(super) struct Windows<'a> {
    rest: ChunksExact<'a, u32>,
    cancel: CancelToken,
}

/// Some tokens in the middle of a window.
pub(super) struct Piece<'a> {
    /// The first one's position in the window.
    pub position: usize,
    pub tokens: &'a [u32],
    /// What follows each of them.
    pub next: &'a [u32],
}

impl<'a> Windows<'a> {
    /// Those of `tokens`, at least one, for this model.
    pub(super) fn new(tokens: &'a [u32], options: PerplexityOptions, model: &Model) -> Result<Windows<'a>> {
        let PerplexityOptions { window, cancel } = options;
        let config = model.config();
        let limit = config.max_position_embeddings;
        if !(2..=limit).contains(&window) {
            let (expected, found) = (format!("2 to the model's context of {limit}"), window.to_string());
            return Err(Error::Argument { name: "window", expected, found });
        }
        if tokens.len() < window {
            let (expected, found) = (format!("a window of {window} at least"), tokens.len().to_string());
            return Err(Error::Argument { name: "tokens", expected, found });
        }
        match tokens.iter().find(|&&id| id as usize >= config.vocab_size) {
            Some(&id) => Err(Error::TokenId { id, vocab_size: config.vocab_size }),
            None => Ok(Windows { rest: tokens.chunks_exact(window), cancel }),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.rest.len()
    }

    /// Sums `add` over the pieces of the next window. There is none after an error, and once it is cancelled.
    pub(super) fn next<Sum: Default>(
        &mut self,
        mut add: impl FnMut(Piece<'_>, &mut Sum) -> Result<()>,
    ) -> Option<Result<Sum>> {
        let window = self.rest.next()?;
        let (mut sum, last) = (Sum::default(), window.len() - 1);
        for position in (0..last).step_by(ROWS) {
            if self.cancel.is_cancelled() {
                self.end();
                return None;
            }
            let end = last.min(position + ROWS);
            let (tokens, next) = (&window[position..end], &window[position + 1..=end]);
            if let Err(error) = add(Piece { position, tokens, next }, &mut sum) {
                self.end();
                return Some(Err(error));
            }
        }
        Some(Ok(sum))
    }

    fn end(&mut self) {
        self.rest = [].chunks_exact(1);
    }
}
