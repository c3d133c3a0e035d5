//! The forward pass's activations: allocated when a pass is larger than those before it, not per token.

use std::ops::{Deref, DerefMut};

use crate::error::{Error, Result};
use crate::format::Config;
use crate::kernels::LANES;
use crate::storage::AlignedBuf;

/// Activations, `[features/16][rows][16]` each, features padded to whole panels.
#[derive(Default)]
pub(super) struct Scratch {
    /// The residual stream: `hidden_size`.
    pub x: Buffer,
    /// Normalised: `hidden_size`.
    pub normed: Buffer,
    /// `qkv_rows`
    pub qkv: Buffer,
    /// Rotated queries, `[kv head][head_dim/16][heads_per_kv][tokens][16]`.
    pub queries: Buffer,
    /// Scores, then probabilities, `[kv head][positions/16][heads_per_kv][tokens][16]`.
    pub scores: Buffer,
    /// Values weighted by the probabilities, laid out as `queries`.
    pub mixed: Buffer,
    /// The same by token: `attention_width`.
    pub attention: Buffer,
    /// `2 intermediate_size`, panels of gate and up in turn.
    pub gate_up: Buffer,
    /// `intermediate_size`
    pub hidden: Buffer,
    /// What a step adds to the residual stream: `hidden_size`.
    pub delta: Buffer,
    /// The positions whose logits are asked for: `hidden_size`.
    pub picked: Buffer,
    /// `vocab_size`
    pub logits: Buffer,
    /// One position's logits, `[vocab_size]`.
    pub logits_row: Buffer,
    /// One head's key or query, `[head_dim]`.
    pub key: Buffer,
    /// One head's value, `[head_dim]`.
    pub value: Buffer,
}

impl Scratch {
    /// Makes room for `rows` tokens in what every layer uses.
    pub(super) fn resize(&mut self, config: &Config, rows: usize) -> Result<()> {
        let hidden_size = padded(config.hidden_size) * rows;
        let intermediate_size = padded(config.intermediate_size) * rows;
        self.x.resize(hidden_size)?;
        self.normed.resize(hidden_size)?;
        self.delta.resize(hidden_size)?;
        self.qkv.resize(config.qkv_rows() * rows)?;
        self.attention.resize(config.attention_width() * rows)?;
        self.gate_up.resize(2 * intermediate_size)?;
        self.hidden.resize(intermediate_size)?;
        self.key.resize(config.head_dim)?;
        self.value.resize(config.head_dim)
    }
}

/// Features rounded up to whole panels.
pub(super) fn padded(features: usize) -> usize {
    features.next_multiple_of(LANES)
}

/// A slice whose length changes without giving memory back.
#[derive(Default)]
pub(super) struct Buffer {
    memory: Option<AlignedBuf<f32>>,
    len: usize,
}

impl Buffer {
    /// Makes this `len` elements of unspecified value.
    pub(super) fn resize(&mut self, len: usize) -> Result<()> {
        if self.memory.as_ref().is_none_or(|memory| memory.len() < len) {
            let out_of_memory = Error::OutOfMemory { what: "activations", bytes: len.saturating_mul(4) };
            (self.memory, self.len) = (None, 0); // the old memory is free before the new is asked for
            self.memory = Some(AlignedBuf::zeroed(len).ok_or(out_of_memory)?);
        }
        self.len = len;
        Ok(())
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        self.memory.as_ref().map_or(&[], |memory| &memory[..self.len])
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        self.memory.as_mut().map_or(&mut [], |memory| &mut memory[..self.len])
    }
}
