//! The forward pass's activations: allocated when a pass has more tokens than those before it or reaches into a block of
//! positions that is new, never per token.

use super::buffer::Buffer;
use super::rounded::RoundedInputs;
use crate::error::Result;
use crate::format::Config;
use crate::kernels::{LANES, Line};

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
    /// Their logits by row, `[rows][vocab_size, rounded up]`.
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
    /// Projections of a sequence's few tokens: `qkv_rows`.
    pub qkv: Buffer,
    /// What one of its key-value heads attends to: `[head_dim/16][heads_per_kv][tokens][16]`.
    pub mixed: Buffer,
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
            let panels = piece_panels(rows) * rows;
            worker.piece.resize(panels.max(PIECE) * LANES) // fewer rows, of which logits are asked for, may have larger pieces
        })
    }
}

/// Panels of a [`Worker::piece`], each of one row, that stay in a core's cache.
const PIECE: usize = 1024;

/// Panels of a [`Worker::piece`], an even number: few enough to stay in a core's cache, enough for several streams of
/// weights.
pub(crate) fn piece_panels(rows: usize) -> usize {
    (PIECE / rows).clamp(4, 64) / 2 * 2
}

/// Features rounded up to whole panels.
pub(crate) fn padded(features: usize) -> usize {
    features.next_multiple_of(LANES)
}
