//! The keys and values of every position so far, laid out so that attention is two matrix products over panels.
//!
//! Memory comes in blocks of 256 positions when they are first needed, so that a short chat costs a short cache. In a
//! block, keys lie with 16 positions side by side, `[layer][kv head][position/16][head_dim][16]`: a panel's outputs are
//! positions. Values lie with 16 features side by side, `[layer][kv head][head_dim/16][position][16]`: a panel's inputs
//! are positions.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::format::Config;
use crate::kernels::{Elements, LANES, Panels};
use crate::storage::AlignedBuf;

/// Positions of one block.
pub(super) const BLOCK: usize = 256;

pub(super) struct KvCache {
    blocks: Vec<AlignedBuf<f32>>,
    num_hidden_layers: usize,
    num_key_value_heads: usize,
    head_dim: usize,
}

impl KvCache {
    pub(super) fn new(config: &Config) -> KvCache {
        KvCache {
            blocks: Vec::new(),
            num_hidden_layers: config.num_hidden_layers,
            num_key_value_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
        }
    }

    /// Makes room for `positions` positions.
    pub(super) fn reserve(&mut self, positions: usize) -> Result<()> {
        while self.blocks.len() * BLOCK < positions {
            // Keys and values; Config's bounds keep the product far below 2^64.
            let len = 2 * self.num_hidden_layers * self.num_key_value_heads * self.half_head();
            let out_of_memory = Error::OutOfMemory { what: "the KV cache", bytes: len.saturating_mul(4) };
            self.blocks.push(AlignedBuf::zeroed(len).ok_or(out_of_memory)?);
        }
        Ok(())
    }

    /// Bytes reserved so far.
    pub(super) fn bytes(&self) -> usize {
        self.blocks.iter().map(|block| block.len() * size_of::<f32>()).sum()
    }

    /// Stores one position's key and value, `[head_dim]` each.
    pub(super) fn store(&mut self, layer: usize, head: usize, position: usize, key: &[f32], value: &[f32]) {
        let (keys, values) = (self.keys_at(layer, head), self.values_at(layer, head));
        let (block, inside) = (&mut self.blocks[position / BLOCK], position % BLOCK);
        let panel = inside / LANES * self.head_dim * LANES + inside % LANES;
        let keys = block[keys][panel..].iter_mut().step_by(LANES);
        for (slot, &key) in keys.zip(key) {
            *slot = key;
        }
        let values = block[values].chunks_exact_mut(BLOCK * LANES);
        for (panel, value) in values.zip(value.chunks_exact(LANES)) {
            panel[inside * LANES..][..LANES].copy_from_slice(value);
        }
    }

    /// The keys of block `block`: `[position/16][head_dim][16]`.
    pub(super) fn keys(&self, layer: usize, head: usize, block: usize) -> Panels<'_> {
        let keys = &self.blocks[block][self.keys_at(layer, head)];
        Panels { data: Elements::F32(keys), inputs: self.head_dim }
    }

    /// Panel `panel` of the first `positions` values of block `block`: `[positions][16]`.
    pub(super) fn values(
        &self,
        layer: usize,
        head: usize,
        block: usize,
        panel: usize,
        positions: usize,
    ) -> Panels<'_> {
        let values = &self.blocks[block][self.values_at(layer, head)];
        let values = &values[panel * BLOCK * LANES..][..positions * LANES];
        Panels { data: Elements::F32(values), inputs: positions }
    }

    /// Elements of one head's keys, or values, in a block.
    fn half_head(&self) -> usize {
        BLOCK * self.head_dim
    }

    fn keys_at(&self, layer: usize, head: usize) -> Range<usize> {
        let start = 2 * (layer * self.num_key_value_heads + head) * self.half_head();
        start..start + self.half_head()
    }

    fn values_at(&self, layer: usize, head: usize) -> Range<usize> {
        let keys = self.keys_at(layer, head);
        keys.end..keys.end + self.half_head()
    }
}
