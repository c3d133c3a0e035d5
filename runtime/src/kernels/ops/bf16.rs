//! Products of bf16 weights with activations rounded to bf16: what `--fast` computes prompts with.
//!
//! **Layout.** Rounded activations lie in [`Tile`]s of 16 rows and 32 inputs, `[rows/16][inputs/32]` tiles, both rounded
//! up and padded with zero: a tile is what AMX multiplies at once, and so is every run of 16 rows of a bf16 panel.
//!
//! **Numbers.** These are *not* the exact products' bits. An activation is rounded to bf16, which moves it by at most
//! 2^-8 of itself, and the products are summed in another order. So an element differs from the exact one by at most
//! (2^-8 + inputs · 2^-22) · Σ |w x|, as long as nothing overflows; what is below 2^-126 counts as zero. A row's result
//! depends on the unit, never on the other rows, on threads or on how a product is split.
//!
//! - AVX512-BF16 and its imitation in plain Rust: one chain for each element over pairs of inputs, in ascending order; of
//!   a pair, the second product is added first.
//! - AMX with quantized weights (`isa/avx512_amx/products.rs`): a weight is rounded, too, which moves it by at most 2^-8 of itself.
//! - AMX: for every 32 inputs, one chain over the first inputs of the pairs and one over the second ones, from zero; their
//!   sum is added to the element. What is left of the inputs after whole tiles goes on like AVX512-BF16.
//!
//! (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2: VDPBF16PS, TDPBF16PS.)

use crate::kernels::LANES;
use crate::kernels::half::Bf16Pair;
use crate::kernels::tiles::{TILE_ROWS, Tile, tiles, tiles_of_row};

/// Rounds activations to the nearest bf16, ties to even: the tiles of 16 rows at a time, from the `first` such on.
pub(crate) struct RoundToBf16<'a> {
    /// `[inputs/16, rounded up][rows][16]`
    pub x: &'a [f32],
    pub inputs: usize,
    pub rows: usize,
    pub first: usize,
    pub tiles: &'a mut [Tile],
}

/// `y = w x` for rounded activations.
pub(crate) struct MatmulBf16<'a> {
    /// `[panels][inputs/2][16]`
    pub w: &'a [Bf16Pair],
    pub inputs: usize,
    /// [`tiles`] of them.
    pub x: &'a [Tile],
    pub rows: usize,
    /// `[panels][rows][16]`
    pub y: &'a mut [f32],
}

/// Activations that are to be rounded, `[inputs/16, rounded up][rows][16]`.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct ExactInputs<'a> {
    lanes: &'a [[f32; LANES]],
    inputs: usize,
    rows: usize,
    /// Tiles before those that they are rounded to.
    first: usize,
}

impl<'a> RoundToBf16<'a> {
    /// What is rounded, and where to.
    #[inline(always)]
    pub(in crate::kernels) fn split(self) -> (ExactInputs<'a>, &'a mut [Tile]) {
        let RoundToBf16 { x, inputs, rows, first, tiles } = self;
        let first = first * tiles_of_row(inputs);
        (ExactInputs { lanes: x.as_chunks().0, inputs, rows, first }, tiles)
    }
}

impl ExactInputs<'_> {
    /// The 32 inputs of row `row` of tile `tile`, in two halves; zero for what pads them.
    #[inline(always)]
    pub(in crate::kernels) fn tile_row(&self, tile: usize, row: usize) -> [[f32; LANES]; 2] {
        let (steps, tile) = (tiles_of_row(self.inputs), self.first + tile);
        let (row, panel) = (tile / steps * TILE_ROWS + row, 2 * (tile % steps));
        [self.lanes_of(panel, row), self.lanes_of(panel + 1, row)]
    }

    #[inline(always)]
    fn lanes_of(&self, panel: usize, row: usize) -> [f32; LANES] {
        match panel * LANES < self.inputs && row < self.rows {
            true => self.lanes[panel * self.rows + row],
            false => [0.0; LANES],
        }
    }
}

impl MatmulBf16<'_> {
    /// Panics unless the operands go together.
    pub(in crate::kernels) fn check(&self) {
        assert_eq!(self.x.len(), tiles(self.inputs, self.rows), "a value for each input of each row");
        let outputs = self.y.len() / self.rows;
        assert_eq!(self.w.len(), self.inputs / 2 * outputs, "one panel of weights for each panel of output");
    }

    /// Pairs of inputs.
    #[inline(always)]
    pub(in crate::kernels) fn pairs(&self) -> usize {
        self.inputs / 2
    }
}
