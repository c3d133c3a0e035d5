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
//! - AMX with quantised weights (`integers/tiles.rs`): a weight over its row's scale is rounded, too, which moves it by at most
//!   2^-8 of itself; a chain ends after 12 tiles, and the chains' sums are added up in ascending order.
//! - AMX: for every 32 inputs, one chain over the first inputs of the pairs and one over the second ones, from zero; their
//!   sum is added to the element. What is left of the inputs after whole tiles goes on like AVX512-BF16.
//!
//! (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2: VDPBF16PS, TDPBF16PS.)

use super::{Bf16Pair, LANES, scalar};
#[cfg(target_arch = "x86_64")]
use super::{amx::Amx, avx512_bf16::Avx512Bf16};

/// Rows of a [`Tile`].
pub(super) const TILE_ROWS: usize = LANES;
/// Inputs of a [`Tile`].
const TILE_INPUTS: usize = 2 * LANES;

/// 16 rows of 16 pairs of inputs: 1 KiB.
pub(crate) type Tile = [[Bf16Pair; LANES]; TILE_ROWS];

/// What multiplies pairs of bf16 in this processor. Only [`super::Kernels::bf16_units`] makes them, so holding one is the
/// proof that its code may run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bf16Unit {
    /// Imitates AVX512-BF16 bit for bit, slowly: the oracle, for where the set is `scalar`.
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16(Avx512Bf16),
    #[cfg(target_arch = "x86_64")]
    Amx(Amx, Avx512Bf16),
}

/// How many tiles hold so many rows of so many inputs.
pub(crate) fn tiles(inputs: usize, rows: usize) -> usize {
    tiles_of_row(inputs) * rows.div_ceil(TILE_ROWS)
}

/// Tiles side by side that hold so many inputs.
pub(crate) fn tiles_of_row(inputs: usize) -> usize {
    inputs.div_ceil(TILE_INPUTS)
}

impl Bf16Unit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Bf16Unit::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Bf16Unit::Avx512Bf16(_) => "avx512bf16",
            #[cfg(target_arch = "x86_64")]
            Bf16Unit::Amx(..) => "amx",
        }
    }

    /// Rounds activations to the nearest bf16, ties to even: the tiles of 16 rows at a time, from the `first` such on.
    ///
    /// `x`: `[inputs/16, rounded up][rows][16]`
    pub(crate) fn round(self, x: &[f32], inputs: usize, rows: usize, first: usize, tiles: &mut [Tile]) {
        let x = Activations { lanes: x.as_chunks().0, inputs, rows };
        let first = first * tiles_of_row(inputs);
        match self {
            Bf16Unit::Scalar => scalar::round_to_bf16(x, first, tiles),
            #[cfg(target_arch = "x86_64")]
            Bf16Unit::Avx512Bf16(unit) | Bf16Unit::Amx(_, unit) => unit.round(x, first, tiles),
        }
    }

    /// `y = w x` for rounded activations.
    ///
    /// `w`: `[panels][inputs/2][16]`, `x`: [`tiles`] of them, `y`: `[panels][rows][16]`.
    pub(crate) fn matmul(self, w: &[Bf16Pair], inputs: usize, x: &[Tile], rows: usize, y: &mut [f32]) {
        assert_eq!(x.len(), tiles(inputs, rows), "a value for each input of each row");
        assert_eq!(w.len() * rows, inputs / 2 * y.len(), "one panel of weights for each panel of output");
        let (w, y) = (w.as_chunks().0, y.as_chunks_mut().0);
        match self {
            Bf16Unit::Scalar => scalar::matmul_rounded(w, inputs / 2, x, rows, y),
            #[cfg(target_arch = "x86_64")]
            Bf16Unit::Avx512Bf16(unit) => unit.matmul(w, inputs / 2, x, rows, y, 0),
            #[cfg(target_arch = "x86_64")]
            Bf16Unit::Amx(amx, unit) => {
                let done = amx.matmul(w, inputs / 2, x, rows, y);
                unit.matmul(w, inputs / 2, x, rows, y, done);
            }
        }
    }
}

/// Activations, `[inputs/16, rounded up][rows][16]`.
#[derive(Clone, Copy)]
pub(super) struct Activations<'a> {
    lanes: &'a [[f32; LANES]],
    inputs: usize,
    rows: usize,
}

impl Activations<'_> {
    /// The 32 inputs of row `row` of tile `tile`, in two halves; zero for what pads them.
    #[inline(always)]
    pub(super) fn tile_row(&self, tile: usize, row: usize) -> [[f32; LANES]; 2] {
        let steps = tiles_of_row(self.inputs);
        let (row, panel) = (tile / steps * TILE_ROWS + row, 2 * (tile % steps));
        [panel, panel + 1].map(|panel| match panel * LANES < self.inputs && row < self.rows {
            true => self.lanes[panel * self.rows + row],
            false => [0.0; LANES],
        })
    }
}
