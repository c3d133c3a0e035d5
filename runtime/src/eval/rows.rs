//! The logits of a piece's tokens side by side, so that all threads can work on them.

use super::finite;
use super::windows::{Piece, ROWS};
use crate::error::{Error, Result};
use crate::generate::Session;

/// A session, and the logits it gave last.
pub(super) struct Rows<'a> {
    session: &'a mut Session,
    /// `[ROWS][vocab_size]`
    logits: Vec<f32>,
    vocab_size: usize,
}

impl<'a> Rows<'a> {
    pub(super) fn new(session: &'a mut Session) -> Result<Rows<'a>> {
        let vocab_size = session.model().config().vocab_size;
        let (len, mut logits) = (ROWS.saturating_mul(vocab_size), Vec::new());
        let out_of_memory = |_| Error::OutOfMemory { what: "logits", bytes: len.saturating_mul(4) };
        logits.try_reserve_exact(len).map_err(out_of_memory)?;
        logits.resize(len, 0.0);
        Ok(Rows { session, logits, vocab_size })
    }

    /// Feeds `piece`, before which its window was fed, and keeps the logits after each of its tokens.
    pub(super) fn fill(&mut self, piece: &Piece<'_>) -> Result<()> {
        let (vocab_size, mut is_finite) = (self.vocab_size, true);
        self.session.truncate(piece.position);
        self.session.feed_all(piece.tokens, |row, logits| {
            is_finite &= finite(logits).is_ok();
            self.logits[row * vocab_size..][..vocab_size].copy_from_slice(logits);
        })?;
        if is_finite { Ok(()) } else { Err(Error::NotFinite) }
    }

    /// One row's logits, `[vocab_size]`.
    pub(super) fn row(&self, row: usize) -> &[f32] {
        &self.logits[row * self.vocab_size..][..self.vocab_size]
    }

    /// Sets each of `results` to what `f` makes of its row's logits, on all threads.
    pub(super) fn map<T: Send>(&mut self, results: &mut [T], f: impl Fn(usize, &[f32]) -> T + Sync) {
        let Rows { session, logits, vocab_size } = self;
        let rows: Vec<&[f32]> = logits.chunks_exact(*vocab_size).collect();
        let tasks = results.len();
        session.pool().split(results, 1, tasks, |first, results| {
            for (row, result) in (first..).zip(results) {
                *result = f(row, rows[row]);
            }
        });
    }
}
