//! AVX-512: a panel's 16 lanes are one register, of which there are 32.

use std::arch::x86_64::*;

use super::quantised::Group;
use super::simd::{Block, Integers, Simd, entries};
use super::{Bf16Pair, F16, LANES, Quantised, RoundedBlock};

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

// SAFETY of every `unsafe` below: `self` proves that the processor has the instructions, and each load or store
// touches all 64 bytes of an array, or all 16.
impl Integers for Avx512 {
    const PARTS: usize = 1;

    type OneRow = Self;
    type Bytes = __m512i;
    type Words = __m512i;
    type Sums = __m512i;

    #[inline(always)]
    fn one_row(self) -> Self {
        self
    }

    #[inline(always)]
    fn bytes(self, from: &Group, _: usize) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn and(self, bytes: __m512i, mask: u8) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_and_si512(bytes, _mm512_set1_epi8(mask as i8)) }
    }

    #[inline(always)]
    fn or(self, bytes: __m512i, other: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_or_si512(bytes, other) }
    }

    #[inline(always)]
    fn up(self, bytes: __m512i, n: u32) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_sll_epi16(bytes, _mm_cvtsi32_si128(n as i32)) }
    }

    #[inline(always)]
    fn down(self, bytes: __m512i, n: u32) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_srl_epi16(bytes, _mm_cvtsi32_si128(n as i32)) }
    }

    #[inline(always)]
    fn minus(self, bytes: __m512i, n: u8) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_sub_epi8(bytes, _mm512_set1_epi8(n as i8)) }
    }

    #[inline(always)]
    fn look_up(self, values: &[i8; 16], bytes: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe {
            let values = _mm512_broadcast_i32x4(_mm_loadu_si128(values.as_ptr().cast()));
            _mm512_shuffle_epi8(values, bytes)
        }
    }

    #[inline(always)]
    fn words(self, bytes: __m512i) -> [__m512i; 2] {
        // SAFETY: see above.
        unsafe { [_mm512_slli_epi16::<8>(bytes), _mm512_and_si512(bytes, _mm512_set1_epi16(-1 << 8))] }
    }

    #[inline(always)]
    fn load_words(self, from: &[[i16; 2]; LANES], _: usize) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store_words(self, words: __m512i, to: &mut [[i16; 2]; LANES], _: usize) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), words) }
    }

    #[inline(always)]
    fn no_sums(self) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    fn add_products(self, sums: __m512i, words: __m512i, x: [i16; 2]) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_add_epi32(sums, _mm512_madd_epi16(words, _mm512_set1_epi32(bytemuck::cast(x)))) }
    }

    #[inline(always)]
    fn set_floats(self, floats: &mut __m512, _: usize, sums: __m512i) {
        // SAFETY: see above.
        *floats = unsafe { _mm512_cvtepi32_ps(sums) };
    }

    #[inline(always)]
    fn bytes_as_floats(self, bytes: &[u8; LANES]) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(bytes.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn mul(self, lanes: __m512, other: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_mul_ps(lanes, other) }
    }
}
