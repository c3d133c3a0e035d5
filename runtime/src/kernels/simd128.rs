//! WebAssembly SIMD128: 4 lanes a register, a panel is four of them. A module is compiled for it or not, and for relaxed
//! SIMD or not; there is nothing to detect when it runs, but whether the relaxed multiply-add rounds once.

use std::arch::wasm32::*;
use std::array;

use super::simd::{Block, Simd, entries};
use super::{Bf16Pair, F16, LANES};

/// The proof that this module is compiled for SIMD128.
#[derive(Clone, Copy, Debug)]
pub(super) struct Simd128(());

impl Simd128 {
    pub(super) fn detect() -> Option<Simd128> {
        Some(Simd128(()))
    }

    /// Whether [`Simd::fma`] rounds once, as in every other set: with relaxed SIMD, where the processor can.
    pub(super) fn is_fused(self) -> bool {
        // (1 + e)(1 - e) - 1 is -e² if the product is not rounded, else zero.
        let near_one = std::hint::black_box(f32::EPSILON);
        let product =
            multiply_add(f32x4_splat(1.0 + near_one), f32x4_splat(1.0 - near_one), f32x4_splat(-1.0));
        f32x4_extract_lane::<0>(product) != 0.0
    }
}

entries!(Simd128, "simd128");

#[inline(always)]
fn multiply_add(a: v128, b: v128, sum: v128) -> v128 {
    #[cfg(target_feature = "relaxed-simd")]
    return f32x4_relaxed_madd(a, b, sum);
    #[cfg(not(target_feature = "relaxed-simd"))]
    return f32x4_add(f32x4_mul(a, b), sum);
}

// SAFETY of every `unsafe` below: each load or store touches 4 elements of an array of 16, from 0, 4, 8 or 12.
impl Simd for Simd128 {
    type Lanes = [v128; 4];

    /// What a processor of 16 registers holds. (An Arm has more, but a module cannot know.)
    const BLOCK: Block = Block::Rows2;
    const STREAMS: usize = 2;

    #[inline(always)]
    fn zero(self) -> [v128; 4] {
        [f32x4_splat(0.0); 4]
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> [v128; 4] {
        // SAFETY: see above.
        array::from_fn(|i| unsafe { v128_load(from[4 * i..].as_ptr().cast()) })
    }

    #[inline(always)]
    fn load_bf16(self, from: &[Bf16Pair; LANES]) -> [[v128; 4]; 2] {
        // SAFETY: see above; the upper half of an f32 is its bf16.
        let pairs: [_; 4] = array::from_fn(|i| unsafe { v128_load(from[4 * i..].as_ptr().cast()) });
        let upper = u32x4_splat(0xffff_0000);
        [pairs.map(|pairs| u32x4_shl(pairs, 16)), pairs.map(|pairs| v128_and(pairs, upper))]
    }

    #[inline(always)]
    fn load_f16(self, from: &[F16; LANES]) -> [v128; 4] {
        // As F16::to_f32 does it.
        let scale = f32x4_splat(f32::from_bits((127 + 112) << 23));
        array::from_fn(|i| {
            // SAFETY: see above.
            let halves = unsafe { u32x4_load_extend_u16x4(from[4 * i..].as_ptr().cast()) };
            let magnitude = u32x4_shl(v128_and(halves, u32x4_splat(0x7fff)), 13);
            let sign = u32x4_shl(v128_and(halves, u32x4_splat(0x8000)), 16);
            v128_or(f32x4_mul(magnitude, scale), sign)
        })
    }

    #[inline(always)]
    fn store(self, lanes: [v128; 4], to: &mut [f32; LANES]) {
        for (lanes, to) in lanes.into_iter().zip(to.as_chunks_mut::<4>().0) {
            // SAFETY: see above.
            unsafe { v128_store(to.as_mut_ptr().cast(), lanes) }
        }
    }

    #[inline(always)]
    fn fma(self, sums: [v128; 4], weights: [v128; 4], x: f32) -> [v128; 4] {
        let x = f32x4_splat(x);
        array::from_fn(|i| multiply_add(weights[i], x, sums[i]))
    }
}
