//! One sequence: its tokens with their keys and values, how it goes on past the model's context, and its file.

mod file;
mod kv_cache;
mod kv_number;

pub(crate) use self::file::{MAGIC, Owner, check_save};
pub use self::kv_cache::KvDtype;
pub(crate) use self::kv_cache::{KV_BLOCK, KvCache};
use crate::error::Result;
use crate::exec::ExecContext;
use crate::format::Config;

/// What happens to a sequence that is as long as the model's context, `max_position_embeddings`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overflow {
    /// It ends: a generation with [`FinishReason::Context`](crate::FinishReason::Context), a prompt with
    /// [`Error::ContextFull`](crate::Error::ContextFull).
    #[default]
    Stop,
    /// It goes on without end: its first 256 tokens stay, the oldest 256 after these are forgotten, and the others move
    /// up (Xiao et al. 2023). Memory and the time for a token stay what they are.
    Slide,
}

impl Overflow {
    /// Tokens that stay, and tokens that are forgotten at a time.
    pub(crate) const STEP: usize = KV_BLOCK;
}

/// Positions up to the end of the KV block of the last of `positions`.
pub(crate) fn to_end_of_block(positions: usize) -> usize {
    positions.next_multiple_of(KV_BLOCK)
}

/// The tokens so far, and what later ones need to know of them.
pub(crate) struct Sequence {
    pub cache: KvCache,
    /// Those in the cache.
    pub tokens: Vec<u32>,
    /// Whether tokens are missing between the first KV block and the others.
    has_gap: bool,
    /// Whether keys and values come from a pass that rounded.
    pub is_rounded: bool,
}

impl Sequence {
    /// Without tokens yet.
    pub(crate) fn new(config: &Config, dtype: KvDtype) -> Sequence {
        Sequence { cache: KvCache::new(config, dtype), tokens: Vec::new(), has_gap: false, is_rounded: false }
    }

    /// Makes room for so many tokens, and for those that the last KV block has room for.
    pub(crate) fn reserve(&mut self, positions: usize) -> Result<()> {
        self.cache.reserve(positions)?;
        self.tokens.reserve(to_end_of_block(positions) - self.position());
        Ok(())
    }

    /// How many tokens.
    pub(crate) fn position(&self) -> usize {
        self.tokens.len()
    }

    /// Forgets all tokens from `position` on.
    pub(crate) fn truncate(&mut self, position: usize) {
        self.tokens.truncate(position);
        self.has_gap &= self.tokens.len() > Overflow::STEP;
        self.is_rounded &= !self.tokens.is_empty();
    }

    /// Tokens that the first so many, and nothing else, led to.
    pub(crate) fn prefix(&self) -> usize {
        if self.has_gap { Overflow::STEP } else { self.position() }
    }

    /// Forgets the second [`Overflow::STEP`] tokens: see [`KvCache::slide`].
    pub(crate) fn slide(
        &mut self,
        exec: &mut ExecContext,
        angles: (&[f32], &[f32]),
        turns: impl Fn(usize) -> bool + Sync,
    ) {
        self.cache.slide(exec, angles, turns);
        self.tokens.drain(Overflow::STEP..2 * Overflow::STEP);
        self.has_gap = true;
    }
}
