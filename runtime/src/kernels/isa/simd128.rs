//! WebAssembly SIMD128: 4 lanes a register, a panel is four of them. A module is compiled for it or not, and for relaxed
//! SIMD or not; there is nothing to detect when it runs, but whether the relaxed multiply-add rounds once.

use std::arch::wasm32::*;
use std::array;

use crate::kernels::LANES;
use crate::kernels::half::{Bf16Pair, F16};
use crate::kernels::multiply_add::four;
use crate::kernels::quantized::{ActivationBlock, Encoding, GROUPS, Group};
use crate::kernels::simd::{Bytes, Integers, Simd, entry};

/// The proof that this module is compiled for SIMD128. Integers are multiplied in parts of `N` registers: engines keep to the
/// order of the instructions that they are given, and have 15 registers on x86.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernels) struct Simd128<const N: usize = 2>(());

impl Simd128 {
    pub(in crate::kernels) fn detect() -> Option<Simd128> {
        Some(Simd128(()))
    }

    /// Whether [`Simd::fma`] rounds once, as in every other set: with relaxed SIMD, where the processor can.
    pub(in crate::kernels) fn is_fused(self) -> bool {
        // (1 + e)(1 - e) - 1 is -e² if the product is not rounded, else zero.
        let near_one = std::hint::black_box(f32::EPSILON);
        let product = four(f32x4_splat(1.0 + near_one), f32x4_splat(1.0 - near_one), f32x4_splat(-1.0));
        f32x4_extract_lane::<0>(product) != 0.0
    }
}

entry!(Simd128<2>, "simd128");

/// `values[i]` for each of `bytes`, which are all below 16. The relaxed instruction, which says nothing of others, is one on
/// x86 where the plain one is two.
#[inline(always)]
fn swizzle(values: v128, bytes: v128) -> v128 {
    #[cfg(target_feature = "relaxed-simd")]
    return i8x16_relaxed_swizzle(values, bytes);
    #[cfg(not(target_feature = "relaxed-simd"))]
    return u8x16_swizzle(values, bytes);
}

// SAFETY of every `unsafe` below: each load or store touches 4 elements of an array of 16, from 0, 4, 8 or 12.
impl<const N: usize> Simd for Simd128<N> {
    type Lanes = [v128; 4];

    /// What a processor of 16 registers holds. (An Arm has more, but a module cannot know.)
    const REGISTER_ROWS: usize = 2;
    const WIDENS: bool = true;
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
    fn load_i8(self, from: &[i8; LANES]) -> [v128; 4] {
        // SAFETY: see above; the load takes all 16 bytes.
        let bytes = unsafe { v128_load(from.as_ptr().cast()) };
        let halves = [i16x8_extend_low_i8x16(bytes), i16x8_extend_high_i8x16(bytes)];
        array::from_fn(|i| match i % 2 {
            0 => f32x4_convert_i32x4(i32x4_extend_low_i16x8(halves[i / 2])),
            _ => f32x4_convert_i32x4(i32x4_extend_high_i16x8(halves[i / 2])),
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
    fn mul(self, lanes: [v128; 4], other: [v128; 4]) -> [v128; 4] {
        array::from_fn(|i| f32x4_mul(lanes[i], other[i]))
    }

    #[inline(always)]
    fn fma(self, sums: [v128; 4], weights: [v128; 4], x: f32) -> [v128; 4] {
        let x = f32x4_splat(x);
        array::from_fn(|i| four(weights[i], x, sums[i]))
    }
}

// SAFETY of every `unsafe` below: each load or store touches all of an array of 16 bytes.
impl<const N: usize> Bytes for Simd128<N> {
    const PARTS: usize = 4 / N;

    type Bytes = [v128; N];

    #[inline(always)]
    fn bytes(self, from: &Group, part: usize) -> [v128; N] {
        // SAFETY: see above.
        array::from_fn(|i| unsafe { v128_load(from.as_chunks::<16>().0[part * N + i].as_ptr().cast()) })
    }

    #[inline(always)]
    fn and(self, bytes: [v128; N], mask: u8) -> [v128; N] {
        bytes.map(|bytes| v128_and(bytes, u8x16_splat(mask)))
    }

    #[inline(always)]
    fn or(self, bytes: [v128; N], other: [v128; N]) -> [v128; N] {
        array::from_fn(|i| v128_or(bytes[i], other[i]))
    }

    #[inline(always)]
    fn shift_left(self, bytes: [v128; N], n: u32) -> [v128; N] {
        bytes.map(|bytes| u16x8_shl(bytes, n))
    }

    #[inline(always)]
    fn shift_right(self, bytes: [v128; N], n: u32) -> [v128; N] {
        bytes.map(|bytes| u16x8_shr(bytes, n))
    }

    #[inline(always)]
    fn minus(self, bytes: [v128; N], n: u8) -> [v128; N] {
        bytes.map(|bytes| u8x16_sub(bytes, u8x16_splat(n)))
    }

    #[inline(always)]
    fn look_up(self, values: &[u8; 16], bytes: [v128; N]) -> [v128; N] {
        // SAFETY: see above.
        let values = unsafe { v128_load(values.as_ptr().cast()) };
        bytes.map(|bytes| swizzle(values, bytes))
    }

    #[inline(always)]
    fn bytes_as_floats(self, bytes: &[u8; LANES]) -> [v128; 4] {
        // SAFETY: see above.
        let bytes = unsafe { v128_load(bytes.as_ptr().cast()) };
        let halves = [u16x8_extend_low_u8x16(bytes), u16x8_extend_high_u8x16(bytes)];
        array::from_fn(|i| match i % 2 {
            0 => f32x4_convert_i32x4(u32x4_extend_low_u16x8(halves[i / 2])),
            _ => f32x4_convert_i32x4(u32x4_extend_high_u16x8(halves[i / 2])),
        })
    }
}

// SAFETY of every `unsafe` below: each load or store touches all of an array of 16 bytes.
impl<const N: usize> Integers for Simd128<N> {
    const ENCODING: Encoding = Encoding::I16;
    const UNSIGNED: bool = false;
    const PANELS: usize = 1;
    const ROWS: usize = 1;
    const STORED_ROWS: usize = 4;
    const STORED_PANELS: usize = 1;

    /// Its codes have to be taken apart in registers, too.
    type OneRow = Simd128<1>;
    type ManyRows = Self;
    type Factors = [v128; N];
    type Stored = [[[i16; 2]; LANES]; 2];
    type Sums = [v128; N];

    const NOTHING_STORED: Self::Stored = [[[0; 2]; LANES]; 2];

    #[inline(always)]
    fn one_row(self) -> Simd128<1> {
        Simd128(())
    }

    #[inline(always)]
    fn factors(self, values: [v128; N], half: usize) -> [v128; N] {
        let upper = i16x8_splat(-1 << 8);
        match half {
            0 => values.map(|bytes| i16x8_shl(bytes, 8)),
            _ => values.map(|bytes| v128_and(bytes, upper)),
        }
    }

    #[inline(always)]
    fn load_factors(
        self,
        from: &[Self::Stored; GROUPS],
        group: usize,
        half: usize,
        part: usize,
    ) -> [v128; N] {
        let from = from.as_flattened()[2 * group + half].as_chunks::<4>().0;
        // SAFETY: see above.
        array::from_fn(|i| unsafe { v128_load(from[part * N + i].as_ptr().cast()) })
    }

    #[inline(always)]
    fn store_factors(self, values: [v128; N], to: &mut [[[i16; 2]; LANES]; 2], part: usize) {
        for (half, to) in to.iter_mut().enumerate() {
            let to = &mut to.as_chunks_mut::<4>().0[part * N..];
            for (factors, to) in self.factors(values, half).into_iter().zip(to) {
                // SAFETY: see above.
                unsafe { v128_store(to.as_mut_ptr().cast(), factors) }
            }
        }
    }

    #[inline(always)]
    fn sums(self, _: &ActivationBlock) -> [v128; N] {
        [i32x4_splat(0); N]
    }

    #[inline(always)]
    fn add_products(self, sums: [v128; N], factors: [v128; N], x: i32, _: usize) -> [v128; N] {
        let x = i32x4_splat(x);
        array::from_fn(|i| i32x4_add(sums[i], i32x4_dot_i16x8(factors[i], x)))
    }

    #[inline(always)]
    fn set_floats(self, floats: &mut [v128; 4], part: usize, sums: [v128; N]) {
        for (i, sums) in sums.into_iter().enumerate() {
            floats[part * N + i] = f32x4_convert_i32x4(sums);
        }
    }
}
