//! AVX2, FMA and F16C: 8 lanes a register, a panel is two of them.

use std::arch::asm;
use std::arch::x86_64::*;

use super::vendor::is_amd;
use crate::kernels::LANES;
use crate::kernels::half::{Bf16Pair, F16};
use crate::kernels::quantized::{ActivationBlock, Encoding, GROUPS, Group};
use crate::kernels::simd::{Bytes, FEWEST_TILES, Integers, Simd, entry};

/// The proof that this processor has AVX2, FMA and F16C; and AVX-VNNI, if `VNNI`: products of four bytes, which multiply two
/// parts of 12-bit activations as they are, where i16 have to be made of the bytes first.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernels) struct Avx2<const VNNI: bool> {
    is_amd: bool,
}

impl Avx2<false> {
    pub(in crate::kernels) fn detect() -> Option<Self> {
        let has_all = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        has_all.then(|| Avx2 { is_amd: is_amd() })
    }
}

impl Avx2<true> {
    pub(in crate::kernels) fn detect() -> Option<Self> {
        let Avx2 { is_amd } = Avx2::<false>::detect()?;
        is_x86_feature_detected!("avxvnni").then_some(Avx2 { is_amd })
    }

    /// The same without VNNI.
    pub(in crate::kernels) fn plain(self) -> Avx2<false> {
        Avx2 { is_amd: self.is_amd }
    }
}

#[cfg(test)]
impl<const VNNI: bool> Avx2<VNNI> {
    /// The same as if it were a processor of each maker.
    pub(in crate::kernels) fn of_all_processors(self) -> [Self; 2] {
        [false, true].map(|is_amd| Avx2 { is_amd })
    }
}

entry!(Avx2<false>, "avx2,fma,f16c");
entry!(Avx2<true>, "avx2,fma,f16c,avxvnni");

// SAFETY of every `unsafe` below: `self` proves that the processor has the instructions, and each load or store
// touches 8 elements of an array of 16, from its start or its middle.
impl<const VNNI: bool> Simd for Avx2<VNNI> {
    type Lanes = [__m256; 2];

    /// 12 sums, two registers of weights and one of input are 15 of the 16 registers.
    const REGISTER_ROWS: usize = 6;
    const WIDENS: bool = false;
    const STREAMS: usize = 4;
    const READ_AHEAD: usize = 2048;
    const UNPACKS_SLOWLY: bool = true;

    #[inline(always)]
    fn foresees(self) -> bool {
        self.is_amd
    }

    /// All of them where the processor foresees, too: then it is a Zen 3, or older. (Newer ones have AVX-512.)
    #[inline(always)]
    fn streams(self) -> usize {
        Self::STREAMS
    }

    /// AMD's processors foresee what one tile reads, but not the next weights while other tiles read the same ones again. Those
    /// of f32 are worth asking for: prompts are 1.1 to 1.2 times as fast on a Zen 3. Those of bf16 are half as many bytes: asking
    /// gains nothing.
    #[inline(always)]
    fn tiles_to_fetch(self, inputs: usize) -> usize {
        match (self.is_amd, inputs) {
            (false, _) => FEWEST_TILES,
            (true, 1) => 3,
            (true, _) => usize::MAX,
        }
    }

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
        let again = read_again(from);
        // SAFETY: see above; the upper half of an f32 is its bf16.
        unsafe {
            let first = |from: &[Bf16Pair]| {
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_loadu_si256(from.as_ptr().cast())))
            };
            let upper = _mm256_castsi256_ps(_mm256_set1_epi32(-1 << 16));
            let second = |from: &[Bf16Pair]| _mm256_and_ps(upper, _mm256_loadu_ps(from.as_ptr().cast()));
            [[first(&from[..8]), first(&from[8..])], [second(&again[..8]), second(&again[8..])]]
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
    fn load_i8(self, from: &[i8; LANES]) -> [__m256; 2] {
        // SAFETY: see above; each load takes 8 bytes of 16.
        unsafe {
            let low = _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.as_ptr().cast()));
            let high = _mm256_cvtepi8_epi32(_mm_loadl_epi64(from[8..].as_ptr().cast()));
            [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)]
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
    fn mul(self, lanes: [__m256; 2], other: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: see above.
        unsafe { [_mm256_mul_ps(lanes[0], other[0]), _mm256_mul_ps(lanes[1], other[1])] }
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

// SAFETY of every `unsafe` below: `self` proves that the processor has the instructions, and each load or store
// touches 32 bytes of 64, from their start or their middle, or 8 of 16.
impl<const VNNI: bool> Bytes for Avx2<VNNI> {
    const PARTS: usize = 1;

    type Bytes = [__m256i; 2];

    #[inline(always)]
    fn bytes(self, from: &Group, _: usize) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe { [_mm256_loadu_si256(from.as_ptr().cast()), _mm256_loadu_si256(from[32..].as_ptr().cast())] }
    }

    #[inline(always)]
    fn and(self, bytes: [__m256i; 2], mask: u8) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe {
            let mask = _mm256_set1_epi8(mask as i8);
            [_mm256_and_si256(bytes[0], mask), _mm256_and_si256(bytes[1], mask)]
        }
    }

    #[inline(always)]
    fn or(self, bytes: [__m256i; 2], other: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe { [_mm256_or_si256(bytes[0], other[0]), _mm256_or_si256(bytes[1], other[1])] }
    }

    #[inline(always)]
    fn shift_left(self, bytes: [__m256i; 2], n: u32) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe {
            let n = _mm_cvtsi32_si128(n as i32);
            [_mm256_sll_epi16(bytes[0], n), _mm256_sll_epi16(bytes[1], n)]
        }
    }

    #[inline(always)]
    fn shift_right(self, bytes: [__m256i; 2], n: u32) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe {
            let n = _mm_cvtsi32_si128(n as i32);
            [_mm256_srl_epi16(bytes[0], n), _mm256_srl_epi16(bytes[1], n)]
        }
    }

    #[inline(always)]
    fn minus(self, bytes: [__m256i; 2], n: u8) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe {
            let n = _mm256_set1_epi8(n as i8);
            [_mm256_sub_epi8(bytes[0], n), _mm256_sub_epi8(bytes[1], n)]
        }
    }

    #[inline(always)]
    fn look_up(self, values: &[u8; 16], bytes: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe {
            let values = _mm256_broadcastsi128_si256(_mm_loadu_si128(values.as_ptr().cast()));
            [_mm256_shuffle_epi8(values, bytes[0]), _mm256_shuffle_epi8(values, bytes[1])]
        }
    }

    #[inline(always)]
    fn bytes_as_floats(self, bytes: &[u8; LANES]) -> [__m256; 2] {
        // SAFETY: see above.
        unsafe {
            let low = _mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes.as_ptr().cast()));
            let high = _mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes[8..].as_ptr().cast()));
            [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)]
        }
    }
}

// SAFETY of every `unsafe` below: `self` proves that the processor has the instructions, and each load or store
// touches 32 bytes of 64, from their start or their middle.
/// Values are multiplied as i16: the instruction for bytes adds two products in 16 bits, and so takes more steps.
impl Integers for Avx2<false> {
    const ENCODING: Encoding = Encoding::I16;
    const UNSIGNED: bool = false;
    const PANELS: usize = 4;
    const ROWS: usize = 3;
    const STORED_ROWS: usize = 6;
    const STORED_PANELS: usize = 1;

    type OneRow = Self;
    type ManyRows = Self;
    type Factors = [__m256i; 2];
    type Stored = [[[i16; 2]; LANES]; 2];
    type Sums = [__m256i; 2];

    const NOTHING_STORED: Self::Stored = [[[0; 2]; LANES]; 2];

    #[inline(always)]
    fn one_row(self) -> Self {
        self
    }

    #[inline(always)]
    fn factors(self, values: [__m256i; 2], half: usize) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe {
            let upper = _mm256_set1_epi16(-1 << 8);
            match half {
                0 => [_mm256_slli_epi16::<8>(values[0]), _mm256_slli_epi16::<8>(values[1])],
                _ => [_mm256_and_si256(values[0], upper), _mm256_and_si256(values[1], upper)],
            }
        }
    }

    #[inline(always)]
    fn load_factors(
        self,
        from: &[Self::Stored; GROUPS],
        group: usize,
        half: usize,
        _: usize,
    ) -> [__m256i; 2] {
        let from = &from.as_flattened()[2 * group + half];
        // SAFETY: see above.
        unsafe { [_mm256_loadu_si256(from.as_ptr().cast()), _mm256_loadu_si256(from[8..].as_ptr().cast())] }
    }

    #[inline(always)]
    fn store_factors(self, values: [__m256i; 2], to: &mut [[[i16; 2]; LANES]; 2], _: usize) {
        for (half, to) in to.iter_mut().enumerate() {
            let factors = self.factors(values, half);
            // SAFETY: see above.
            unsafe {
                _mm256_storeu_si256(to.as_mut_ptr().cast(), factors[0]);
                _mm256_storeu_si256(to[8..].as_mut_ptr().cast(), factors[1]);
            }
        }
    }

    #[inline(always)]
    fn sums(self, _: &ActivationBlock) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe { [_mm256_setzero_si256(); 2] }
    }

    #[inline(always)]
    fn add_products(self, sums: [__m256i; 2], factors: [__m256i; 2], x: i32, _: usize) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe {
            let x = _mm256_set1_epi32(x);
            [
                _mm256_add_epi32(sums[0], _mm256_madd_epi16(factors[0], x)),
                _mm256_add_epi32(sums[1], _mm256_madd_epi16(factors[1], x)),
            ]
        }
    }

    #[inline(always)]
    fn set_floats(self, floats: &mut [__m256; 2], _: usize, sums: [__m256i; 2]) {
        // SAFETY: see above.
        *floats = unsafe { [_mm256_cvtepi32_ps(sums[0]), _mm256_cvtepi32_ps(sums[1])] };
    }
}

// SAFETY of every `unsafe` below: as above.
impl Integers for Avx2<true> {
    const ENCODING: Encoding = Encoding::I8;
    const UNSIGNED: bool = true;
    const PANELS: usize = 2;
    const ROWS: usize = 2;
    /// 12 sums of one half, two registers of values and one of input are 15 of the 16 registers.
    const STORED_ROWS: usize = 6;
    const STORED_PANELS: usize = 1;

    type OneRow = Self;
    type ManyRows = Self;
    type Factors = [__m256i; 2];
    type Stored = Group;
    /// Of the products with the multiples of 128, then with the rest.
    type Sums = [[__m256i; 2]; 2];

    const NOTHING_STORED: Group = [0; 64];

    #[inline(always)]
    fn one_row(self) -> Self {
        self
    }

    #[inline(always)]
    fn factors(self, values: [__m256i; 2], _: usize) -> [__m256i; 2] {
        values
    }

    #[inline(always)]
    fn load_factors(self, from: &[Group; GROUPS], group: usize, _: usize, part: usize) -> [__m256i; 2] {
        self.bytes(&from[group], part)
    }

    #[inline(always)]
    fn store_factors(self, values: [__m256i; 2], to: &mut Group, _: usize) {
        // SAFETY: see above.
        unsafe {
            _mm256_storeu_si256(to.as_mut_ptr().cast(), values[0]);
            _mm256_storeu_si256(to[32..].as_mut_ptr().cast(), values[1]);
        }
    }

    #[inline(always)]
    fn sums(self, x: &ActivationBlock) -> [[__m256i; 2]; 2] {
        // SAFETY: see above.
        unsafe { [[_mm256_setzero_si256(); 2], [_mm256_set1_epi32(x.correction); 2]] }
    }

    #[inline(always)]
    fn add_products(
        self,
        mut sums: [[__m256i; 2]; 2],
        values: [__m256i; 2],
        x: i32,
        half: usize,
    ) -> [[__m256i; 2]; 2] {
        // SAFETY: see above.
        unsafe {
            let x = _mm256_set1_epi32(x);
            sums[half][0] = _mm256_dpbusd_avx_epi32(sums[half][0], values[0], x);
            sums[half][1] = _mm256_dpbusd_avx_epi32(sums[half][1], values[1], x);
        }
        sums
    }

    #[inline(always)]
    fn second_half(self, sums: [[__m256i; 2]; 2]) -> [[__m256i; 2]; 2] {
        // SAFETY: see above.
        [unsafe { [_mm256_setzero_si256(); 2] }, self.joined(sums)]
    }

    #[inline(always)]
    fn set_floats(self, floats: &mut [__m256; 2], _: usize, sums: [[__m256i; 2]; 2]) {
        let sums = self.joined(sums);
        // SAFETY: see above.
        *floats = unsafe { [_mm256_cvtepi32_ps(sums[0]), _mm256_cvtepi32_ps(sums[1])] };
    }
}

impl Avx2<true> {
    /// 128 times the first and the second.
    #[inline(always)]
    fn joined(self, [first, second]: [[__m256i; 2]; 2]) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe {
            [
                _mm256_add_epi32(_mm256_slli_epi32::<7>(first[0]), second[0]),
                _mm256_add_epi32(_mm256_slli_epi32::<7>(first[1]), second[1]),
            ]
        }
    }
}

/// The same reference, though LLVM does not know that: it would read what is there once, and keep it until it is used again.
/// Beside the twelve sums of six rows there is no register for that.
#[inline(always)]
#[expect(clippy::pointers_in_nomem_asm_block, reason = "no instruction reads anything")]
fn read_again<T>(from: &T) -> &T {
    let mut again = std::ptr::from_ref(from);
    // SAFETY: no instruction, so that `again` stays the reference it was made of.
    unsafe {
        asm!("/* {} */", inout(reg) again, options(pure, nomem, nostack, preserves_flags));
        &*again
    }
}
