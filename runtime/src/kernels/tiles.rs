//! Tiles of activations: what AMX multiplies at once.

use bytemuck::{Pod, Zeroable};

use super::LANES;
use super::half::Bf16Pair;
use super::quantized::ActivationBlock;
use crate::format::BLOCK;

/// Rows of a [`Tile`].
pub(super) const TILE_ROWS: usize = LANES;
/// Inputs of a [`Tile`].
const TILE_INPUTS: usize = 2 * LANES;

/// 16 rows of 16 pairs of inputs: 1 KiB.
pub(crate) type Tile = [[Bf16Pair; LANES]; TILE_ROWS];

/// How many tiles hold so many rows of so many inputs.
pub(crate) fn tiles(inputs: usize, rows: usize) -> usize {
    tiles_of_row(inputs) * rows.div_ceil(TILE_ROWS)
}

/// Tiles side by side that hold so many inputs.
pub(crate) fn tiles_of_row(inputs: usize) -> usize {
    inputs.div_ceil(TILE_INPUTS)
}

/// The activations of a block of inputs for some rows, quantized, for a set that multiplies tiles.
pub(crate) trait QuantizedTile: Pod {
    /// How many rows.
    const ROWS: usize;

    /// Puts a row there.
    fn set(&mut self, row: usize, x: [[f32; LANES]; 2]);

    /// What the numbers of each row are multiples of.
    #[allow(dead_code)] // some processors have no set with tiles
    fn scales(&self) -> &[f32; TILE_ROWS];
}

/// Sixteen rows of 12 bits, as bf16.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct ActivationTile {
    /// Two numbers to be added, for each at most ±2047: a multiple of 128, and the rest. Either is exact as bf16. A pair is
    /// of an input and of the one 16 places on.
    pub(super) parts: [Tile; 2],
    pub(super) scales: [f32; TILE_ROWS],
}

/// Eight rows of 12 bits, split into bytes.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct SplitTile {
    /// Of each row's numbers `128 a + b` the `a`, then the `b`.
    pub(super) bytes: [[i8; BLOCK]; TILE_ROWS],
    pub(super) scales: [f32; TILE_ROWS],
}

/// Sixteen rows of 8 bits.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct ByteTile {
    pub(super) bytes: [[i8; BLOCK]; TILE_ROWS],
    pub(super) scales: [f32; TILE_ROWS],
}

impl ByteTile {
    /// Puts a row there that is a block of 8 bits for a set that multiplies bytes.
    pub(super) fn set_block(&mut self, row: usize, x: &ActivationBlock) {
        let [_, numbers]: [[i8; BLOCK]; 2] = bytemuck::cast(x.halves);
        (self.bytes[row], self.scales[row]) = (numbers, x.scale);
    }
}

/// How many such tiles hold so many rows of so many inputs.
pub(crate) fn quantized_tiles<T: QuantizedTile>(inputs: usize, rows: usize) -> usize {
    inputs.div_ceil(BLOCK) * rows.div_ceil(T::ROWS)
}
