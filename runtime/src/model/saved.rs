//! Keys and values to a file and back, block by block.

use std::io::{self, Read, Write};

use crc32fast::Hasher;

use super::forward::Forward;
use super::kv_cache::{BLOCK, KvDtype};
use super::scratch::to_end_of_block;
use crate::error::Result;

/// CRC-32 of what a sequence fills of a block of the cache.
///
/// It finds damage, and fast: whoever means harm could as well write another file.
pub(crate) type BlockSum = u32;

impl Forward {
    pub(crate) fn kv_dtype(&self) -> KvDtype {
        self.cache.dtype()
    }

    /// Whether tokens were forgotten between the first block and the others.
    pub(crate) fn has_gap(&self) -> bool {
        self.has_gap
    }

    /// Whether the sequence's keys and values are not exact.
    pub(crate) fn is_rounded(&self) -> bool {
        self.is_rounded
    }

    /// Bytes of each block that a sequence of `positions` tokens fills.
    pub(crate) fn block_lens(&self, positions: usize) -> impl Iterator<Item = usize> + '_ {
        (0..positions.div_ceil(BLOCK)).map(move |block| self.cache.filled_len(block, positions))
    }

    /// Writes the sequence's keys and values.
    pub(crate) fn write_cache(&self, out: &mut impl Write) -> io::Result<()> {
        let positions = self.position();
        for block in 0..positions.div_ceil(BLOCK) {
            for piece in self.cache.filled(block, positions) {
                out.write_all(piece)?;
            }
        }
        Ok(())
    }

    /// The sums of the sequence's blocks, computed by all threads.
    pub(crate) fn sum_cache(&mut self) -> Vec<BlockSum> {
        let positions = self.position();
        let mut sums = vec![0; positions.div_ceil(BLOCK)];
        let (cache, tasks) = (&self.cache, sums.len());
        self.team.pool.split(&mut sums, 1, tasks, |first, sums| {
            for (block, sum) in (first..).zip(sums) {
                let mut hasher = Hasher::new();
                cache.filled(block, positions).for_each(|piece| hasher.update(piece));
                *sum = hasher.finalize();
            }
        });
        sums
    }

    /// Makes the sequence `tokens`, ids of the vocabulary that fit the context, with the keys and values of each block that
    /// `open` gives something to read from, and returns the blocks' sums.
    pub(crate) fn read_cache<R: Read>(
        &mut self,
        mut tokens: Vec<u32>,
        has_gap: bool,
        is_rounded: bool,
        open: impl Fn(usize) -> io::Result<R> + Sync,
    ) -> Result<Vec<io::Result<BlockSum>>> {
        self.truncate(0);
        let sums = self.cache.read(&mut self.team, tokens.len(), open)?;
        tokens.reserve(to_end_of_block(tokens.len()) - tokens.len());
        (self.tokens, self.has_gap, self.is_rounded) = (tokens, has_gap, is_rounded);
        Ok(sums)
    }
}
