//! The keys and values of every position so far, laid out so that attention is two matrix products over panels.
//!
//! Memory comes in blocks of 256 positions when they are first needed, so that a short chat costs a short cache. In a
//! block, keys lie with 16 positions side by side, `[layer][kv head][position/16][head_dim][16]`: a panel's outputs are
//! positions. Values lie with 16 features side by side, `[layer][kv head][head_dim/16][position][16]`: a panel's inputs
//! are positions.

use std::ops::Range;

use super::team::Team;
use crate::error::{Error, Result};
use crate::format::Config;
use crate::kernels::{Elements, F16, LANES, Panels};
use crate::storage::AlignedBuf;

/// Positions of one block.
pub(super) const BLOCK: usize = 256;

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KvDtype {
    /// As they are computed.
    #[default]
    F32,
    /// Rounded to IEEE 754 binary16: half the memory, and half the bytes to read at each token. The logits are no longer
    /// the exact ones, but still do not depend on threads, splits and instruction sets.
    F16,
}

pub(super) struct KvCache {
    blocks: Blocks,
    num_hidden_layers: usize,
    num_key_value_heads: usize,
    head_dim: usize,
}

enum Blocks {
    F32(Vec<AlignedBuf<f32>>),
    F16(Vec<AlignedBuf<F16>>),
}

impl KvCache {
    pub(super) fn new(config: &Config, dtype: KvDtype) -> KvCache {
        KvCache {
            blocks: match dtype {
                KvDtype::F32 => Blocks::F32(Vec::new()),
                KvDtype::F16 => Blocks::F16(Vec::new()),
            },
            num_hidden_layers: config.num_hidden_layers,
            num_key_value_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
        }
    }

    /// Makes room for `positions` positions.
    pub(super) fn reserve(&mut self, positions: usize) -> Result<()> {
        // Keys and values; Config's bounds keep the product far below 2^64.
        let len = 2 * self.num_hidden_layers * self.num_key_value_heads * self.half_head();
        match &mut self.blocks {
            Blocks::F32(blocks) => reserve(blocks, positions.div_ceil(BLOCK), len),
            Blocks::F16(blocks) => reserve(blocks, positions.div_ceil(BLOCK), len),
        }
    }

    /// Bytes reserved so far.
    pub(super) fn bytes(&self) -> usize {
        match &self.blocks {
            Blocks::F32(blocks) => blocks.iter().map(|block| size_of_val(&**block)).sum(),
            Blocks::F16(blocks) => blocks.iter().map(|block| size_of_val(&**block)).sum(),
        }
    }

    /// Stores the keys and values of `rows` positions from `position` on: `[kv heads * head_dim/16][rows][16]` each.
    pub(super) fn store(
        &mut self,
        team: &mut Team,
        layer: usize,
        position: usize,
        rows: usize,
        keys: &[f32],
        values: &[f32],
    ) {
        let (unit, range) = (self.half_head(), self.layer(layer));
        let new = NewPositions { first: position, rows, head_dim: self.head_dim, keys, values };
        for block in position / BLOCK..=(position + rows - 1) / BLOCK {
            match &mut self.blocks {
                Blocks::F32(blocks) => new.store(team, &mut blocks[block][range.clone()], unit, block, |x| x),
                Blocks::F16(blocks) => {
                    new.store(team, &mut blocks[block][range.clone()], unit, block, F16::from_f32);
                }
            }
        }
    }

    /// The keys of block `block`: `[position/16][head_dim][16]`.
    pub(super) fn keys(&self, layer: usize, head: usize, block: usize) -> Panels<'_> {
        let start = self.layer(layer).start + 2 * head * self.half_head();
        Panels { data: self.elements(block, start..start + self.half_head()), inputs: self.head_dim }
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
        let start = self.layer(layer).start + (2 * head + 1) * self.half_head() + panel * BLOCK * LANES;
        Panels { data: self.elements(block, start..start + positions * LANES), inputs: positions }
    }

    fn elements(&self, block: usize, range: Range<usize>) -> Elements<'_> {
        match &self.blocks {
            Blocks::F32(blocks) => Elements::F32(&blocks[block][range]),
            Blocks::F16(blocks) => Elements::F16(&blocks[block][range]),
        }
    }

    /// Elements of one head's keys, or values, in a block.
    fn half_head(&self) -> usize {
        BLOCK * self.head_dim
    }

    /// Where a layer lies in each block: keys and values of each head in turn.
    fn layer(&self, layer: usize) -> Range<usize> {
        let len = 2 * self.num_key_value_heads * self.half_head();
        layer * len..(layer + 1) * len
    }
}

fn reserve<T: bytemuck::Zeroable + Copy>(
    blocks: &mut Vec<AlignedBuf<T>>,
    count: usize,
    len: usize,
) -> Result<()> {
    while blocks.len() < count {
        let bytes = len.saturating_mul(size_of::<T>());
        let out_of_memory = Error::OutOfMemory { what: "the KV cache", bytes };
        blocks.push(AlignedBuf::zeroed(len).ok_or(out_of_memory)?);
    }
    Ok(())
}

/// Keys and values to be stored, `[kv heads * head_dim/16][rows][16]` each.
struct NewPositions<'a> {
    first: usize,
    rows: usize,
    head_dim: usize,
    keys: &'a [f32],
    values: &'a [f32],
}

impl NewPositions<'_> {
    /// Writes those that belong into block `block`, whose part of the layer is `layer`: units of a head's keys or values.
    fn store<T: Copy + Send>(
        &self,
        team: &mut Team,
        layer: &mut [T],
        unit: usize,
        block: usize,
        convert: impl Fn(f32) -> T + Sync,
    ) {
        let start = block * BLOCK;
        let positions = self.first.max(start)..(self.first + self.rows).min(start + BLOCK);
        let tasks = team.tasks(2 * self.keys.len());
        team.pool.split(layer, unit, tasks, |first, run| {
            for (i, half) in (first..).zip(run.chunks_exact_mut(unit)) {
                let head_len = self.head_dim * self.rows;
                let source = if i % 2 == 0 { self.keys } else { self.values };
                for (feature, panel) in
                    source[i / 2 * head_len..][..head_len].chunks_exact(self.rows * LANES).enumerate()
                {
                    for position in positions.clone() {
                        let lanes = &panel[(position - self.first) * LANES..][..LANES];
                        let inside = position - start;
                        let (to, step) = match i % 2 {
                            0 => (
                                (inside / LANES * self.head_dim + feature * LANES) * LANES + inside % LANES,
                                LANES,
                            ),
                            _ => ((feature * BLOCK + inside) * LANES, 1),
                        };
                        for (slot, &x) in half[to..].iter_mut().step_by(step).zip(lanes) {
                            *slot = convert(x);
                        }
                    }
                }
            }
        });
    }
}
