//! One sequence: its tokens with their keys and values, how it goes on past the model's context, and its file.

mod file;
mod kv_cache;
mod kv_number;
mod prefix;

use std::fmt;

pub(crate) use self::file::{MAGIC, Owner, check_save};
pub use self::kv_cache::KvDtype;
use self::kv_cache::SharedBlock;
pub(crate) use self::kv_cache::{KV_BLOCK, KvCache, NewPositions};
pub use self::prefix::PrefixCache;
use crate::error::{Error, Result};
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
    pub(crate) const STEP: usize = 256;
}

/// Positions by which what grows with a sequence makes room: scores and tokens.
const ROOM_STEP: usize = 256;

/// Positions up to the end of such a step.
pub(crate) fn to_end_of_step(positions: usize) -> usize {
    positions.next_multiple_of(ROOM_STEP)
}

/// One text over a model: its tokens so far, their keys and values, and what happens at the end of the model's context.
///
/// An [`Engine`](crate::engine::Engine) of the model makes it and appends to it. It takes memory as it grows.
pub struct Sequence {
    pub(crate) cache: KvCache,
    /// Those in the cache.
    tokens: Vec<u32>,
    overflow: Overflow,
    /// Of the model: most positions.
    context: usize,
    /// The hash in the header of the model's blob.
    blob: [u8; 32],
    /// Whether tokens are missing between the first [`Overflow::STEP`] and the others.
    has_gap: bool,
    /// Whether keys and values come from a pass that rounded.
    is_rounded: bool,
}

impl Sequence {
    /// Without tokens yet; an error if the model's context is too short to slide over.
    pub(crate) fn new(
        config: &Config,
        blob: [u8; 32],
        dtype: KvDtype,
        overflow: Overflow,
    ) -> Result<Sequence> {
        let context = config.max_position_embeddings;
        if overflow == Overflow::Slide && context < 2 * Overflow::STEP {
            let expected = format!("a model with a context of at least {} to slide over", 2 * Overflow::STEP);
            return Err(Error::Argument { name: "overflow", expected, found: context.to_string() });
        }
        let cache = KvCache::new(config, dtype);
        Ok(Sequence { cache, tokens: Vec::new(), overflow, context, blob, has_gap: false, is_rounded: false })
    }

    /// The tokens so far, without those it forgot ([`Overflow::Slide`]).
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many tokens these are.
    pub fn position(&self) -> usize {
        self.tokens.len()
    }

    /// How keys and values are kept.
    pub fn kv_dtype(&self) -> KvDtype {
        self.cache.dtype()
    }

    /// Bytes of memory that its keys and values have. They come in blocks of 64 positions, which sequences may share.
    pub fn kv_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Bytes that keys and values take for so many positions.
    pub fn kv_bytes_for(&self, positions: usize) -> usize {
        positions.div_ceil(KV_BLOCK).saturating_mul(self.cache.block_bytes())
    }

    /// Another sequence that goes on from here. Both share the keys and values so far, and copy a block of them
    /// before they write to it.
    pub fn fork(&self) -> Sequence {
        Sequence { cache: self.cache.clone(), tokens: self.tokens.clone(), ..*self }
    }

    /// Most tokens that the next pass can append: 0 at the end of the model's context, unless the sequence slides.
    pub fn room(&self) -> usize {
        self.context - self.next_position()
    }

    /// Forgets all tokens from `position` on.
    pub fn truncate(&mut self, position: usize) {
        self.tokens.truncate(position);
        self.has_gap &= self.tokens.len() > Overflow::STEP;
        self.is_rounded &= !self.tokens.is_empty();
    }

    /// Forgets all tokens and gives their memory back.
    fn clear(&mut self) {
        self.truncate(0);
        self.cache.clear();
    }

    /// Gives back memory of keys and values that are no longer needed: up to so many blocks that no other sequence has, and
    /// those of others on the way. Says whether none is left.
    pub(crate) fn give_back(&mut self, blocks: usize) -> bool {
        self.cache.give_back(blocks)
    }

    /// Most tokens that it can be fed from its start.
    pub(crate) fn most_tokens(&self) -> usize {
        match self.overflow {
            Overflow::Stop => self.context,
            Overflow::Slide => usize::MAX,
        }
    }

    /// Tokens that the first so many, and nothing else, led to.
    pub(crate) fn prefix(&self) -> usize {
        if self.has_gap { Overflow::STEP } else { self.position() }
    }

    /// An error if `tokens` cannot be appended, in any number of passes, to a sequence of a model with `config`.
    pub(crate) fn check(&self, config: &Config, tokens: &[u32]) -> Result<()> {
        if tokens.is_empty() {
            let (expected, found) = ("at least one".into(), "none".into());
            return Err(Error::Argument { name: "tokens", expected, found });
        }
        let needed = self.position().saturating_add(tokens.len());
        if self.overflow == Overflow::Stop && needed > self.context {
            return Err(Error::ContextFull { needed, limit: self.context });
        }
        match tokens.iter().find(|&&id| id as usize >= config.vocab_size) {
            Some(&id) => Err(Error::TokenId { id, vocab_size: config.vocab_size }),
            None => Ok(()),
        }
    }

    /// An error if `tokens` cannot be appended in one pass of the model whose blob has the hash `blob`.
    pub(crate) fn check_pass(&self, config: &Config, blob: &[u8; 32], tokens: &[u32]) -> Result<()> {
        if self.blob != *blob {
            let (expected, found) = ("one of the engine's model".into(), "one of another".into());
            return Err(Error::Argument { name: "sequence", expected, found });
        }
        self.check(config, tokens)?;
        match tokens.len() > self.room() {
            true => Err(Error::ContextFull {
                needed: self.next_position().saturating_add(tokens.len()),
                limit: self.context,
            }),
            false => Ok(()),
        }
    }

    /// Makes room for so many tokens of the next pass.
    pub(crate) fn reserve(&mut self, tokens: usize) -> Result<()> {
        let end = self.next_position() + tokens;
        // To slide is to write to all that is after the first tokens.
        let start = if self.must_slide() { Overflow::STEP } else { self.position() };
        self.cache.reserve(start..end.max(self.position()))?;
        self.tokens.reserve(to_end_of_step(end).saturating_sub(self.position()));
        Ok(())
    }

    /// Where the next pass begins.
    pub(crate) fn next_position(&self) -> usize {
        if self.must_slide() { self.context - Overflow::STEP } else { self.position() }
    }

    /// Whether it must forget tokens before the next pass.
    pub(crate) fn must_slide(&self) -> bool {
        self.overflow == Overflow::Slide && self.position() == self.context
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

    /// Appends the tokens of a whole block, which may be another sequence's, too.
    fn append_block(&mut self, tokens: &[u32; KV_BLOCK], block: SharedBlock) {
        self.tokens.extend_from_slice(tokens);
        self.cache.push(block);
    }

    /// Appends the tokens of a pass, whose keys and values are in the cache; `rounded`: whether these are not exact.
    pub(crate) fn append(&mut self, tokens: &[u32], rounded: bool) {
        self.tokens.extend_from_slice(tokens);
        self.is_rounded |= rounded;
    }
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sequence")
            .field("position", &self.position())
            .field("kv_dtype", &self.kv_dtype())
            .field("overflow", &self.overflow)
            .finish_non_exhaustive()
    }
}
