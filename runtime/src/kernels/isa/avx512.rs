//! AVX-512: a panel's 16 lanes are one register, of which there are 32.

use std::arch::x86_64::*;

use super::vendor::{is_amd, is_zen5};
use crate::kernels::LANES;
use crate::kernels::half::{Bf16Pair, F16};
use crate::kernels::quantized::{ActivationBits, ActivationBlock, Encoding, GROUPS, Group};
use crate::kernels::simd::{Bytes, FEWEST_TILES, Integers, Simd, entry, unrolled};

/// The proof that this processor has AVX-512 F, BW, DQ and VL, and what comes before them; and VNNI, if `VNNI`. If `BYTES`, it
/// multiplies codes as bytes, four at a time, with two parts of 12-bit activations. Else i16 are made of the bytes first.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernels) struct Avx512<const VNNI: bool, const BYTES: bool> {
    is_amd: bool,
    /// See [`is_zen5`].
    is_zen5: bool,
}

/// AVX-512 without VNNI.
pub(in crate::kernels) type Avx512Plain = Avx512<false, false>;
/// AVX-512 with VNNI.
pub(in crate::kernels) type Avx512Vnni = Avx512<true, true>;

/// Fewest rows for which codes are multiplied as i16 where all operations of 512 bits share the two units that multiply: i16
/// need fewest operations beside the products, but must be made first.
const FEWEST_ROWS_OF_I16: usize = 64;

impl Avx512Plain {
    pub(in crate::kernels) fn detect() -> Option<Self> {
        let has_all = is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        has_all.then(|| Avx512 { is_amd: is_amd(), is_zen5: is_zen5() })
    }

    /// Whether AVX512-BF16, where there is any, multiplies more than f32 does.
    pub(in crate::kernels) fn gains_by_bf16(self) -> bool {
        self.is_amd
    }
}

impl Avx512Vnni {
    pub(in crate::kernels) fn detect() -> Option<Self> {
        let Avx512 { is_amd, is_zen5 } = Avx512Plain::detect()?;
        is_x86_feature_detected!("avx512vnni").then_some(Avx512 { is_amd, is_zen5 })
    }

    /// The same without VNNI.
    pub(in crate::kernels) fn plain(self) -> Avx512Plain {
        Avx512 { is_amd: self.is_amd, is_zen5: self.is_zen5 }
    }

    /// Four inputs' values for each of 16 outputs, signed bytes, and four others, as bf16 in pairs of one of each.
    #[inline(always)]
    pub(in crate::kernels) fn store_pairs(self, bytes: [__m512i; 2], to: &mut [[Bf16Pair; LANES]; 4]) {
        let [first, second] = [self.floats(bytes[0]), self.floats(bytes[1])];
        unrolled!(i < 4 => {
            // SAFETY: see below. What a byte is as f32 has no bits past those of bf16.
            unsafe {
                let pairs = _mm512_or_si512(_mm512_srli_epi32::<16>(first[i]), second[i]);
                _mm512_storeu_si512(to[i].as_mut_ptr().cast(), pairs);
            }
        });
    }

    /// The same of codes below 16, which are places in a table.
    #[inline(always)]
    pub(in crate::kernels) fn look_up_pairs(
        self,
        table: &[Bf16Pair; LANES],
        codes: [__m512i; 2],
        to: &mut [[Bf16Pair; LANES]; 4],
    ) {
        let [first, second] = codes;
        // SAFETY: see below. Of each 16 bits, the lowest five choose a number: those of the first one's four bytes in turn, and in
        // the upper 16 bits those of the second one's.
        unsafe {
            let table = _mm512_loadu_si512(table.as_ptr().cast());
            let places = |first, second| _mm512_mask_blend_epi16(0xaaaa_aaaa, first, second);
            let places = [
                places(first, _mm512_slli_epi32::<16>(second)),
                places(_mm512_srli_epi32::<8>(first), _mm512_slli_epi32::<8>(second)),
                places(_mm512_srli_epi32::<16>(first), second),
                places(_mm512_srli_epi32::<24>(first), _mm512_srli_epi32::<8>(second)),
            ];
            unrolled!(i < 4 => {
                let pairs = _mm512_permutexvar_epi16(places[i], table);
                _mm512_storeu_si512(to[i].as_mut_ptr().cast(), pairs);
            });
        }
    }

    /// The bits of 16 whole numbers, which are below 2^24, as floats.
    #[inline(always)]
    pub(in crate::kernels) fn integers_as_floats(self, from: &[f32; LANES]) -> __m512 {
        // SAFETY: see below.
        unsafe { _mm512_cvtepi32_ps(_mm512_loadu_si512(from.as_ptr().cast())) }
    }

    /// The same of 128 times the first of two plus the second.
    #[inline(always)]
    pub(in crate::kernels) fn halves_as_floats(self, [upper, lower]: [&[f32; LANES]; 2]) -> __m512 {
        // SAFETY: see below.
        unsafe {
            let [upper, lower] = [upper, lower].map(|half| _mm512_loadu_si512(half.as_ptr().cast()));
            _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32::<7>(upper), lower))
        }
    }

    /// Four inputs' values for each of 16 outputs, signed bytes, times `scales`, one for each output: input by input.
    #[inline(always)]
    pub(in crate::kernels) fn scaled(self, bytes: __m512i, scales: __m512) -> [__m512; 4] {
        let mut scaled = [scales; 4];
        let floats = self.floats(bytes);
        unrolled!(i < 4 => {
            // SAFETY: see below.
            scaled[i] = unsafe { _mm512_mul_ps(_mm512_castsi512_ps(floats[i]), scales) };
        });
        scaled
    }

    /// The bits of four inputs' values as f32, input by input.
    #[inline(always)]
    fn floats(self, bytes: __m512i) -> [__m512i; 4] {
        // SAFETY: see below.
        unsafe {
            let float = |number| _mm512_castps_si512(_mm512_cvtepi32_ps(number));
            [
                float(_mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(bytes))),
                float(_mm512_srai_epi32::<24>(_mm512_slli_epi32::<16>(bytes))),
                float(_mm512_srai_epi32::<24>(_mm512_slli_epi32::<8>(bytes))),
                float(_mm512_srai_epi32::<24>(bytes)),
            ]
        }
    }
}

#[cfg(test)]
impl<const VNNI: bool, const BYTES: bool> Avx512<VNNI, BYTES> {
    /// The same as if it were each of the processors that it is set for: an Intel, a Zen 4, a Zen 5.
    pub(in crate::kernels) fn of_all_processors(self) -> [Self; 3] {
        [(false, false), (true, false), (true, true)].map(|(is_amd, is_zen5)| Avx512 { is_amd, is_zen5 })
    }
}

entry!(Avx512Plain, "fma,avx512f,avx512bw,avx512dq,avx512vl");
entry!(Avx512Vnni, "fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni");

// SAFETY of every `unsafe` below: `self` proves that the processor has the instructions, and each load or store
// touches an array of 16 elements.
impl<const VNNI: bool, const BYTES: bool> Simd for Avx512<VNNI, BYTES> {
    type Lanes = __m512;

    /// 24 sums, two registers of weights and one of input: enough chains to hide the latency of the two multipliers, and
    /// only 14 loads for 24 multiplications.
    const REGISTER_ROWS: usize = 12;
    const WIDENS: bool = false;
    const STREAMS: usize = 4;
    const READ_AHEAD: usize = 2048;

    #[inline(always)]
    fn foresees(self) -> bool {
        self.is_amd
    }

    /// On a Zen 5, which multiplies twice as much as a Zen 4 while it waits for memory as long.
    #[inline(always)]
    fn outruns_memory(self) -> bool {
        self.is_zen5
    }

    /// On a Zen 5: prompts of 64 and 128 tokens run 1.05 to 1.09 times as fast for it in bf16, those of 256 and
    /// 512 in f32 1.03 times.
    #[inline(always)]
    fn tiles_to_fetch(self, inputs: usize) -> usize {
        match (self.is_zen5, inputs) {
            (true, 1) => 16,
            (false, _) if self.is_amd => usize::MAX,
            _ => FEWEST_TILES,
        }
    }

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
    fn load_i8(self, from: &[i8; LANES]) -> __m512 {
        // SAFETY: see above; the load takes all 16 bytes.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn store(self, lanes: __m512, to: &mut [f32; LANES]) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), lanes) }
    }

    #[inline(always)]
    fn mul(self, lanes: __m512, other: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_mul_ps(lanes, other) }
    }

    #[inline(always)]
    fn fma(self, sums: __m512, weights: __m512, x: f32) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_fmadd_ps(weights, _mm512_set1_ps(x), sums) }
    }
}

// SAFETY of every `unsafe` below: `self` proves that the processor has the instructions, and each load or store
// touches all 64 bytes of an array, or all 16.
impl<const VNNI: bool, const BYTES: bool> Bytes for Avx512<VNNI, BYTES> {
    const PARTS: usize = 1;

    type Bytes = __m512i;

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
    fn shift_left(self, bytes: __m512i, n: u32) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_sll_epi16(bytes, _mm_cvtsi32_si128(n as i32)) }
    }

    #[inline(always)]
    fn shift_right(self, bytes: __m512i, n: u32) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_srl_epi16(bytes, _mm_cvtsi32_si128(n as i32)) }
    }

    #[inline(always)]
    fn minus(self, bytes: __m512i, n: u8) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_sub_epi8(bytes, _mm512_set1_epi8(n as i8)) }
    }

    #[inline(always)]
    fn look_up(self, values: &[u8; 16], bytes: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe {
            let values = _mm512_broadcast_i32x4(_mm_loadu_si128(values.as_ptr().cast()));
            _mm512_shuffle_epi8(values, bytes)
        }
    }

    #[inline(always)]
    fn bytes_as_floats(self, bytes: &[u8; LANES]) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(bytes.as_ptr().cast()))) }
    }
}

// SAFETY of every `unsafe` below: as above.
impl<const VNNI: bool> Integers for Avx512<VNNI, false> {
    const ENCODING: Encoding = Encoding::I16;
    const UNSIGNED: bool = false;
    const PANELS: usize = 4;
    const ROWS: usize = 8;
    const STORED_ROWS: usize = 6;
    const STORED_PANELS: usize = 2;
    const KEEPS_SUMS: bool = true;

    type OneRow = Self;
    type ManyRows = Self;
    type Factors = __m512i;
    type Stored = [[[i16; 2]; LANES]; 2];
    type Sums = __m512i;

    const NOTHING_STORED: Self::Stored = [[[0; 2]; LANES]; 2];

    #[inline(always)]
    fn one_row(self) -> Self {
        self
    }

    #[inline(always)]
    fn factors(self, values: __m512i, half: usize) -> __m512i {
        // SAFETY: see above.
        unsafe {
            match half {
                0 => _mm512_slli_epi16::<8>(values),
                _ => _mm512_and_si512(values, _mm512_set1_epi16(-1 << 8)),
            }
        }
    }

    #[inline(always)]
    fn load_factors(self, from: &[Self::Stored; GROUPS], group: usize, half: usize, _: usize) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_loadu_si512(from.as_flattened()[2 * group + half].as_ptr().cast()) }
    }

    #[inline(always)]
    fn store_factors(self, values: __m512i, to: &mut [[[i16; 2]; LANES]; 2], _: usize) {
        for (half, to) in to.iter_mut().enumerate() {
            // SAFETY: see above.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), self.factors(values, half)) }
        }
    }

    #[inline(always)]
    fn sums(self, _: &ActivationBlock) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    fn add_products(self, sums: __m512i, factors: __m512i, x: i32, _: usize) -> __m512i {
        // SAFETY: see above.
        unsafe {
            let x = _mm512_set1_epi32(x);
            match VNNI {
                true => _mm512_dpwssd_epi32(sums, factors, x),
                false => _mm512_add_epi32(sums, _mm512_madd_epi16(factors, x)),
            }
        }
    }

    #[inline(always)]
    fn set_floats(self, floats: &mut __m512, _: usize, sums: __m512i) {
        // SAFETY: see above.
        *floats = unsafe { _mm512_cvtepi32_ps(sums) };
    }
}

// SAFETY of every `unsafe` below: as above.
impl Integers for Avx512Vnni {
    const ENCODING: Encoding = Encoding::I8;
    const UNSIGNED: bool = true;
    const PANELS: usize = 4;
    const ROWS: usize = 8;
    const STORED_ROWS: usize = 0;
    const STORED_PANELS: usize = 2;
    const KEEPS_SUMS: bool = true;

    type OneRow = Self;
    type ManyRows = Avx512<true, false>;
    type Factors = __m512i;
    type Stored = Group;
    /// Of the products with the multiples of 128, then with the rest.
    type Sums = [__m512i; 2];

    const NOTHING_STORED: Group = [0; 64];

    #[inline(always)]
    fn one_row(self) -> Self {
        self
    }

    #[inline(always)]
    fn many_rows(self, rows: usize, bits: ActivationBits) -> Option<Avx512<true, false>> {
        let gains = !self.is_amd && rows >= FEWEST_ROWS_OF_I16 && bits == ActivationBits::Twelve;
        gains.then_some(Avx512 { is_amd: self.is_amd, is_zen5: self.is_zen5 })
    }

    #[inline(always)]
    fn factors(self, values: __m512i, _: usize) -> __m512i {
        values
    }

    #[inline(always)]
    fn load_factors(self, from: &[Group; GROUPS], group: usize, _: usize, part: usize) -> __m512i {
        self.bytes(&from[group], part)
    }

    #[inline(always)]
    fn store_factors(self, values: __m512i, to: &mut Group, _: usize) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), values) }
    }

    #[inline(always)]
    fn sums(self, x: &ActivationBlock) -> [__m512i; 2] {
        // SAFETY: see above.
        unsafe { [_mm512_setzero_si512(), _mm512_set1_epi32(x.correction)] }
    }

    #[inline(always)]
    fn add_products(self, mut sums: [__m512i; 2], values: __m512i, x: i32, half: usize) -> [__m512i; 2] {
        // SAFETY: see above.
        sums[half] = unsafe { _mm512_dpbusd_epi32(sums[half], values, _mm512_set1_epi32(x)) };
        sums
    }

    #[inline(always)]
    fn second_half(self, [first, second]: [__m512i; 2]) -> [__m512i; 2] {
        // SAFETY: see above.
        unsafe { [_mm512_setzero_si512(), _mm512_add_epi32(_mm512_slli_epi32::<7>(first), second)] }
    }

    #[inline(always)]
    fn set_floats(self, floats: &mut __m512, _: usize, sums: [__m512i; 2]) {
        // SAFETY: see above.
        *floats = unsafe { _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32::<7>(sums[0]), sums[1])) };
    }
}
