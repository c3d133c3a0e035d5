//! The ids of a text as they come, up to as many as there is room for.

use crate::error::{Error, Result};

use super::tables::Tables;

/// Ids so far, and how many there may be.
pub(super) struct Ids {
    ids: Vec<u32>,
    limit: usize,
    /// Bytes of the vocabulary's longest token, once that mattered.
    longest: Option<usize>,
}

/// What of a word there is room for.
#[derive(Clone, Copy)]
pub(super) struct Room {
    /// Symbols that it may consist of before any are merged.
    symbols: usize,
    /// Ids that the whole text may have.
    limit: usize,
}

impl Ids {
    /// None so far, and at most `limit`. No more than 32 bits can count is possible.
    pub(super) fn new(limit: usize) -> Ids {
        Ids { ids: Vec::new(), limit: limit.min(u32::MAX as usize), longest: None }
    }

    /// Appends an id.
    #[inline]
    pub(super) fn push(&mut self, id: u32) -> Result<()> {
        Room { symbols: self.limit, limit: self.limit }.check(self.ids.len())?;
        self.ids.push(id);
        Ok(())
    }

    /// What of a word of `len` bytes there is room for: a token stands for no more bytes than the vocabulary's longest.
    pub(super) fn room(&mut self, len: usize, tables: &Tables) -> Room {
        let left = self.limit - self.ids.len();
        let symbols = match len <= left {
            true => len,
            false => {
                left.saturating_mul(*self.longest.get_or_insert_with(|| tables.longest_token())).min(len)
            }
        };
        Room { symbols: symbols.min(u32::MAX as usize), limit: self.limit }
    }

    pub(super) fn into_vec(self) -> Vec<u32> {
        self.ids
    }
}

impl Room {
    /// Most symbols.
    pub(super) fn symbols(self) -> usize {
        self.symbols
    }

    /// An error unless there is room for another beside `count`.
    #[inline]
    pub(super) fn check(self, count: usize) -> Result<()> {
        match count < self.symbols {
            true => Ok(()),
            false => Err(Error::TextTooLong { needed: self.limit.saturating_add(1), limit: self.limit }),
        }
    }
}
