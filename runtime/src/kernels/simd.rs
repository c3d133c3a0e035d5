//! What an instruction set must bring along for the matrix product, and how its entry points are compiled.

use super::quantised::Group;
use super::{Bf16Pair, F16, LANES};

/// The operations on a panel's 16 lanes that the matrix product is made of.
///
/// A value of the type is the proof that this processor has the instructions: that makes the methods safe to call.
/// They must be inlined (`#[inline(always)]`) into a function that is compiled for the set, see [`entries`].
pub(super) trait Simd: Copy {
    /// 16 f32 in registers.
    type Lanes: Copy;

    /// Rows and panels of the block of sums that many rows keep in registers.
    const BLOCK: Block;
    /// Panels that one row reads side by side: several streams keep the memory busy.
    const STREAMS: usize;

    fn zero(self) -> Self::Lanes;
    fn load(self, from: &[f32; LANES]) -> Self::Lanes;
    /// Of the first input, and of the second.
    fn load_bf16(self, from: &[Bf16Pair; LANES]) -> [Self::Lanes; 2];
    fn load_f16(self, from: &[F16; LANES]) -> Self::Lanes;
    fn store(self, lanes: Self::Lanes, to: &mut [f32; LANES]);
    /// `sums + weights * x`, rounded once.
    fn fma(self, sums: Self::Lanes, weights: Self::Lanes, x: f32) -> Self::Lanes;
}

/// The operations on a panel's codes that products with quantised weights are made of.
pub(super) trait Integers: Simd {
    /// Parts that a panel's outputs are worked on in, one after the other, so that all of a part is in registers.
    const PARTS: usize;

    /// The same set with the parts that suit one row.
    type OneRow: Integers<Lanes = Self::Lanes>;
    /// A part's share of 64 bytes: one for each of four inputs of an output.
    type Bytes: Copy;
    /// An i16 for each of two inputs of a part's outputs: [`SUM_FACTOR`](super::quantised::SUM_FACTOR) times a value.
    type Words: Copy;
    /// A sum of i32 for each of a part's outputs.
    type Sums: Copy;

    fn one_row(self) -> Self::OneRow;

    fn bytes(self, from: &Group, part: usize) -> Self::Bytes;
    fn and(self, bytes: Self::Bytes, mask: u8) -> Self::Bytes;
    fn or(self, bytes: Self::Bytes, other: Self::Bytes) -> Self::Bytes;
    /// Moves bits up, within bytes or beyond: what comes from a neighbour is in the lowest `n` bits.
    fn up(self, bytes: Self::Bytes, n: u32) -> Self::Bytes;
    /// Moves bits down, within bytes or beyond: what comes from a neighbour is in the highest `n` bits.
    fn down(self, bytes: Self::Bytes, n: u32) -> Self::Bytes;
    fn minus(self, bytes: Self::Bytes, n: u8) -> Self::Bytes;
    /// What the table has for each byte, all of which are below 16.
    fn look_up(self, values: &[i8; 16], bytes: Self::Bytes) -> Self::Bytes;

    /// The values of the first and the third of four inputs, then of the second and the fourth.
    fn words(self, bytes: Self::Bytes) -> [Self::Words; 2];
    fn load_words(self, from: &[[i16; 2]; LANES], part: usize) -> Self::Words;
    fn store_words(self, words: Self::Words, to: &mut [[i16; 2]; LANES], part: usize);

    fn no_sums(self) -> Self::Sums;
    /// `sums` and the products of the two inputs' words with `x`.
    fn add_products(self, sums: Self::Sums, words: Self::Words, x: [i16; 2]) -> Self::Sums;
    /// Puts a part's sums where they belong. Exact for sums below 2^24 times a power of two.
    fn set_floats(self, floats: &mut Self::Lanes, part: usize, sums: Self::Sums);
    fn bytes_as_floats(self, bytes: &[u8; LANES]) -> Self::Lanes;
    fn mul(self, lanes: Self::Lanes, other: Self::Lanes) -> Self::Lanes;
}

/// As many sums as the registers of a set hold beside a panel's weights.
#[allow(dead_code)] // each processor's sets use some
pub(super) enum Block {
    /// 32 registers of 16 lanes.
    Rows12Panels2,
    /// 16 registers of 8 lanes, or 32 of 4.
    Rows6,
    /// 16 registers of 4 lanes.
    Rows2,
}

/// The entry points of one instruction set: methods of its proof value that run the shared bodies, compiled for the
/// set's target features.
macro_rules! entries {
    ($set:ident, $features:literal) => {
        impl $set {
            $crate::kernels::simd::entry! { $set, $features,
            matmul_f32(w: &[f32], inputs: usize, x: &[f32], rows: usize, y: &mut [f32], accumulate: bool)
            = |set| $crate::kernels::matmul::matmul(set, w, inputs, x, rows, y, accumulate) }
            $crate::kernels::simd::entry! { $set, $features,
            matmul_bf16(w: &[Bf16Pair], inputs: usize, x: &[f32], rows: usize, y: &mut [f32], accumulate: bool)
            = |set| $crate::kernels::matmul::matmul(set, w, inputs, x, rows, y, accumulate) }
            $crate::kernels::simd::entry! { $set, $features,
            matmul_f16(w: &[F16], inputs: usize, x: &[f32], rows: usize, y: &mut [f32], accumulate: bool)
            = |set| $crate::kernels::matmul::matmul(set, w, inputs, x, rows, y, accumulate) }
            $crate::kernels::simd::entry! { $set, $features,
            round(x: &[f32], rows: usize, first: usize, blocks: &mut [RoundedBlock])
            = |_set| $crate::kernels::quantised::round(x, rows, first, blocks) }
            $crate::kernels::simd::entry! { $set, $features,
            matmul_quantised(w: Quantised<'_>, x: &[RoundedBlock], rows: usize, y: &mut [f32])
            = |set| $crate::kernels::integers::matmul(set, w, x, rows, y) }
            $crate::kernels::simd::entry! { $set, $features,
            read(data: &[f32], sum: &mut [f32]) = |set| $crate::kernels::peak::read(set, data, sum) }
            $crate::kernels::simd::entry! { $set, $features,
            multiply_adds(rounds: usize, sums: &mut [f32])
            = |set| $crate::kernels::peak::multiply_adds(set, rounds, sums) }
            $crate::kernels::simd::entry! { $set, $features,
            add(x: &mut [f32], delta: &[f32]) = |_set| $crate::kernels::math::add(x, delta) }
            $crate::kernels::simd::entry! { $set, $features,
            inverse_rms(x: &[f32], rows: usize, features: usize, eps: f32, first: usize, y: &mut [f32])
            = |_set| $crate::kernels::math::inverse_rms(x, rows, features, eps, first, y) }
            $crate::kernels::simd::entry! { $set, $features,
            scale_rows(x: &[f32], scales: &[f32], weight: &[f32], y: &mut [f32])
            = |_set| $crate::kernels::math::scale_rows(x, scales, weight, y) }
            $crate::kernels::simd::entry! { $set, $features,
            silu_mul(gate_up: &[f32], rows: usize, y: &mut [f32])
            = |_set| $crate::kernels::math::silu_mul(gate_up, rows, y) }
            $crate::kernels::simd::entry! { $set, $features,
            softmax(scores: &mut [f32], rows: usize, tokens: usize, len: usize, window: usize, scale: f32)
            = |_set| $crate::kernels::math::softmax(scores, rows, tokens, len, window, scale) }
        }
    };
}

/// One entry point, see [`entries`].
macro_rules! entry {
    ($set:ident, $features:literal, $name:ident ( $($argument:ident : $type:ty),* ) = |$proof:ident| $body:expr) => {
        pub(super) fn $name(self, $($argument: $type),*) {
            #[target_feature(enable = $features)]
            fn compiled($proof: $set, $($argument: $type),*) {
                $body
            }
            #[allow(unused_unsafe)] // safe where the whole module is compiled for them, as in WebAssembly
            // SAFETY: `self` exists only if its `detect` found these features on this processor.
            unsafe { compiled(self, $($argument),*) }
        }
    };
}

pub(super) use {entries, entry};
