//! AVX-512: a panel's 16 lanes are one register, of which there are 32.

use std::arch::x86_64::*;

use super::simd::{Block, Simd, entries};
use super::{Bf16Pair, F16, LANES};

/// The proof that this processor has AVX-512 F, BW, DQ and VL, and what comes before them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx512(());

impl Avx512 {
    pub(super) fn detect() -> Option<Avx512> {
        let has_all = is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        has_all.then_some(Avx512(()))
    }
}

entries!(Avx512, "fma,avx512f,avx512bw,avx512dq,avx512vl");

// SAFETY of every `unsafe` below: `self` proves that the processor has the instructions, and each load or store
// touches an array of 16 elements.
impl Simd for Avx512 {
    type Lanes = __m512;

    /// 24 sums, two registers of weights and one of input: enough chains to hide the latency of the two multipliers, and
    /// only 14 loads for 24 multiplications.
    const BLOCK: Block = Block::Rows12Panels2;
    const STREAMS: usize = 4;

    #[inline(always)]
    fn zero(self) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }

    #[inline(always)]
    fn load_bf16(self, from: &[Bf16Pair; LANES]) -> [__m512; 2] {
        // SAFETY: see above; the upper half of an f32 is its bf16.
        unsafe {
            let pairs = _mm512_loadu_si512(from.as_ptr().cast());
            let second = _mm512_and_si512(pairs, _mm512_set1_epi32(-1 << 16));
            [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)), _mm512_castsi512_ps(second)]
        }
    }

    #[inline(always)]
    fn load_f16(self, from: &[F16; LANES]) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) }
    }

    #[inline(always)]
    fn store(self, lanes: __m512, to: &mut [f32; LANES]) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), lanes) }
    }

    #[inline(always)]
    fn fma(self, sums: __m512, weights: __m512, x: f32) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_fmadd_ps(weights, _mm512_set1_ps(x), sums) }
    }
}
