//! NEON, which every 64-bit Arm has: 4 lanes a register, a panel is four of them.

use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};
use std::array;

use super::simd::{Block, Simd, entries};
use super::{Bf16Pair, F16, LANES};

/// The proof that this processor has NEON.
#[derive(Clone, Copy, Debug)]
pub(super) struct Neon(());

impl Neon {
    pub(super) fn detect() -> Option<Neon> {
        is_aarch64_feature_detected!("neon").then_some(Neon(()))
    }
}

entries!(Neon, "neon");

// SAFETY of every `unsafe` below: `self` proves that the processor has the instructions, and each load or store
// touches 4 elements of an array of 16, from 0, 4, 8 or 12.
impl Simd for Neon {
    type Lanes = [float32x4_t; 4];

    /// 24 sums, four registers of weights and one of input are 29 of the 32 registers.
    const BLOCK: Block = Block::Rows6;
    const STREAMS: usize = 4;

    #[inline(always)]
    fn zero(self) -> [float32x4_t; 4] {
        // SAFETY: see above.
        unsafe { [vdupq_n_f32(0.0); 4] }
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> [float32x4_t; 4] {
        // SAFETY: see above.
        array::from_fn(|i| unsafe { vld1q_f32(from[4 * i..].as_ptr()) })
    }

    #[inline(always)]
    fn load_bf16(self, from: &[Bf16Pair; LANES]) -> [[float32x4_t; 4]; 2] {
        // SAFETY: see above; the upper half of an f32 is its bf16.
        unsafe {
            let pairs: [_; 4] = array::from_fn(|i| vld1q_u32(from[4 * i..].as_ptr().cast()));
            let upper = vdupq_n_u32(0xffff_0000);
            [
                pairs.map(|pairs| vreinterpretq_f32_u32(vshlq_n_u32::<16>(pairs))),
                pairs.map(|pairs| vreinterpretq_f32_u32(vandq_u32(pairs, upper))),
            ]
        }
    }

    #[inline(always)]
    fn load_f16(self, from: &[F16; LANES]) -> [float32x4_t; 4] {
        array::from_fn(|i| {
            let wide: float32x4_t;
            // SAFETY: see above. The instruction reads and writes these two registers only. (Its intrinsic takes a type
            // that is not stable yet.)
            unsafe {
                let halves = vld1_u16(from[4 * i..].as_ptr().cast());
                asm!(
                    "fcvtl {wide:v}.4s, {halves:v}.4h",
                    wide = out(vreg) wide,
                    halves = in(vreg) halves,
                    options(pure, nomem, nostack, preserves_flags),
                );
            }
            wide
        })
    }

    #[inline(always)]
    fn store(self, lanes: [float32x4_t; 4], to: &mut [f32; LANES]) {
        for (lanes, to) in lanes.into_iter().zip(to.as_chunks_mut::<4>().0) {
            // SAFETY: see above.
            unsafe { vst1q_f32(to.as_mut_ptr(), lanes) }
        }
    }

    #[inline(always)]
    fn fma(self, sums: [float32x4_t; 4], weights: [float32x4_t; 4], x: f32) -> [float32x4_t; 4] {
        // SAFETY: see above.
        array::from_fn(|i| unsafe { vfmaq_n_f32(sums[i], weights[i], x) })
    }
}
