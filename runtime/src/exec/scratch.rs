//! The forward pass's activations: allocated when a pass has more tokens than those before it or reaches into a block of
//! positions that is new, never per token.

use std::ops::{Deref, DerefMut};

use bytemuck::Zeroable;

use super::input::RoundedInputs;
use crate::error::{Error, Result};
use crate::format::Config;
use crate::kernels::{LANES, Line};
use crate::storage::AlignedBuf;

/// Activations, `[features/16][rows][16]` each, features padded to whole panels.
#[derive(Default)]
pub(crate) struct Scratch {
    /// The residual stream: `hidden_size`.
    pub x: Buffer,
    /// Normalized: `hidden_size`.
    pub normed: Buffer,
    /// `qkv_rows`
    pub qkv: Buffer,
    /// Rotated queries of a query tile that threads share, then its mixed values,
    /// `[kv head][head_dim/16][heads_per_kv][tokens][16]`.
    pub queries: Buffer,
    /// Its scores, then probabilities, `[kv head][positions/16][heads_per_kv][tokens][16]`.
    pub scores: Buffer,
    /// Values weighted by the probabilities, `[kv head][query tile][head_dim/16][heads_per_kv][its tokens][16]`.
    pub mixed: Buffer,
    /// Keys rounded to 8 bits, `[kv head][positions/16, rounded up]` panels, in cache lines.
    pub rounded_keys: Buffer<Line>,
    /// The same of values, `[kv head]`: panels of its features, and the positions' scales.
    pub rounded_values: Buffer<Line>,
    /// The same by token: `attention_width`.
    pub attention: Buffer,
    /// `intermediate_size`
    pub hidden: Buffer,
    /// What RMSNorm multiplies each row by, `[rows]`.
    pub inverse_rms: Buffer,
    /// The rows whose logits are asked for: `hidden_size`.
    pub picked: Buffer,
    /// Their logits: `vocab_size`.
    pub logits_panels: Buffer,
    /// The same by row, `[rows][vocab_size, rounded up]`.
    pub logits: Buffer,
    /// What each thread needs for itself.
    pub workers: Vec<Worker>,
}

/// A thread's own activations.
#[derive(Default)]
pub(crate) struct Worker {
    /// Outputs of a product that are used up at once, `[up to piece_panels][rows][16]`.
    pub piece: Buffer,
    /// What RMSNorm multiplies each row of a head by, then the head: `[rows]` and `[head_dim/16][rows][16]`.
    pub norm: Buffer,
    /// Queries of a query tile, `[head_dim/16][heads_per_kv][tokens][16]`.
    pub queries: Buffer,
    /// Its scores, then probabilities, `[positions/16][heads_per_kv][tokens][16]`.
    pub scores: Buffer,
    /// Keys or values of a head as numbers, before they are rounded.
    pub numbers: Buffer,
    /// Queries or probabilities, rounded.
    pub rounded: RoundedInputs,
}

impl Scratch {
    /// Without memory yet, for so many threads.
    pub(crate) fn new(threads: usize) -> Scratch {
        Scratch { workers: (0..threads).map(|_| Worker::default()).collect(), ..Scratch::default() }
    }

    /// Makes room for `rows` tokens in what every layer uses.
    pub(crate) fn resize(&mut self, config: &Config, rows: usize) -> Result<()> {
        let hidden_size = padded(config.hidden_size) * rows;
        let intermediate_size = padded(config.intermediate_size) * rows;
        self.x.resize(hidden_size)?;
        self.normed.resize(hidden_size)?;
        self.inverse_rms.resize(rows)?;
        self.qkv.resize(config.qkv_rows() * rows)?;
        self.attention.resize(config.attention_width() * rows)?;
        self.hidden.resize(intermediate_size)?;
        self.workers.iter_mut().try_for_each(|worker| {
            worker.norm.resize((1 + config.head_dim) * rows)?;
            worker.piece.resize(piece_panels(rows) * rows * LANES)
        })
    }
}

/// Panels of a [`Worker::piece`], an even number: few enough to stay in a core's cache, enough for several streams of
/// weights.
pub(crate) fn piece_panels(rows: usize) -> usize {
    (1024 / rows).clamp(4, 64) / 2 * 2
}

/// Features rounded up to whole panels.
pub(crate) fn padded(features: usize) -> usize {
    features.next_multiple_of(LANES)
}

/// A slice whose length changes without giving memory back.
pub(crate) struct Buffer<T = f32> {
    memory: Option<AlignedBuf<T>>,
    len: usize,
}

impl<T> Default for Buffer<T> {
    fn default() -> Buffer<T> {
        Buffer { memory: None, len: 0 }
    }
}

impl<T: Zeroable + Copy> Buffer<T> {
    /// Makes this `len` elements of unspecified value.
    pub(crate) fn resize(&mut self, len: usize) -> Result<()> {
        self.resize_within(len, len)
    }

    /// As [`Buffer::resize`]; where memory is needed, for `capacity` elements, so that more than `len` take none later.
    pub(crate) fn resize_within(&mut self, len: usize, capacity: usize) -> Result<()> {
        if self.memory.as_ref().is_none_or(|memory| memory.len() < len) {
            let capacity = capacity.max(len);
            let bytes = capacity.saturating_mul(size_of::<T>());
            let out_of_memory = Error::OutOfMemory { what: "activations", bytes };
            (self.memory, self.len) = (None, 0); // the old memory is free before the new is asked for
            self.memory = Some(AlignedBuf::zeroed(capacity).ok_or(out_of_memory)?);
        }
        self.len = len;
        Ok(())
    }
}

impl<T> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.memory.as_ref().map_or(&[], |memory| &memory[..self.len])
    }
}

impl<T> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.memory.as_mut().map_or(&mut [], |memory| &mut memory[..self.len])
    }
}
