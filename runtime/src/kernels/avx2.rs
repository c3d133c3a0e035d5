//! AVX2, FMA and F16C: 8 lanes a register, a panel is two of them.

use std::arch::x86_64::*;

use super::simd::{Block, Simd, entries};
use super::{Bf16Pair, F16, LANES};

/// The proof that this processor has AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx2(());

impl Avx2 {
    pub(super) fn detect() -> Option<Avx2> {
        let has_all = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        has_all.then_some(Avx2(()))
    }
}

entries!(Avx2, "avx2,fma,f16c");

// SAFETY of every `unsafe` below: `self` proves that the processor has the instructions, and each load or store
// touches 8 elements of an array of 16, from its start or its middle.
impl Simd for Avx2 {
    type Lanes = [__m256; 2];

    /// 12 sums, two registers of weights and one of input are 15 of the 16 registers.
    const BLOCK: Block = Block::Rows6;
    const STREAMS: usize = 4;

    #[inline(always)]
    fn zero(self) -> [__m256; 2] {
        // SAFETY: see above.
        unsafe { [_mm256_setzero_ps(); 2] }
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> [__m256; 2] {
        // SAFETY: see above.
        unsafe { [_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from[8..].as_ptr())] }
    }

    #[inline(always)]
    fn load_bf16(self, from: &[Bf16Pair; LANES]) -> [[__m256; 2]; 2] {
        // SAFETY: see above; the upper half of an f32 is its bf16.
        unsafe {
            let low = _mm256_loadu_si256(from.as_ptr().cast());
            let high = _mm256_loadu_si256(from[8..].as_ptr().cast());
            let first = [_mm256_slli_epi32::<16>(low), _mm256_slli_epi32::<16>(high)];
            let upper = _mm256_set1_epi32(-1 << 16);
            let second = [_mm256_and_si256(low, upper), _mm256_and_si256(high, upper)];
            [
                [_mm256_castsi256_ps(first[0]), _mm256_castsi256_ps(first[1])],
                [_mm256_castsi256_ps(second[0]), _mm256_castsi256_ps(second[1])],
            ]
        }
    }

    #[inline(always)]
    fn load_f16(self, from: &[F16; LANES]) -> [__m256; 2] {
        // SAFETY: see above.
        unsafe {
            let widen = |from: &[F16]| _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().cast()));
            [widen(&from[..8]), widen(&from[8..])]
        }
    }

    #[inline(always)]
    fn store(self, lanes: [__m256; 2], to: &mut [f32; LANES]) {
        // SAFETY: see above.
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), lanes[0]);
            _mm256_storeu_ps(to[8..].as_mut_ptr(), lanes[1]);
        }
    }

    #[inline(always)]
    fn fma(self, sums: [__m256; 2], weights: [__m256; 2], x: f32) -> [__m256; 2] {
        // SAFETY: see above.
        unsafe {
            let x = _mm256_set1_ps(x);
            [_mm256_fmadd_ps(weights[0], x, sums[0]), _mm256_fmadd_ps(weights[1], x, sums[1])]
        }
    }
}
