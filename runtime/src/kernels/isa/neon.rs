//! NEON, which every 64-bit Arm has: 4 lanes a register, a panel is four of them.

use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};
use std::array;

use crate::kernels::LANES;
use crate::kernels::half::{Bf16Pair, F16};
use crate::kernels::quantized::{ActivationBlock, Encoding, GROUPS, Group};
use crate::kernels::simd::{Bytes, Integers, Simd, entry, unrolled};

/// The proof that this processor has NEON; and the dot product of bytes, if `DOT`: that multiplies two parts of 12-bit
/// activations as they are, where i16 have to be made of the bytes first; and the product of two matrices of bytes, if `I8MM`:
/// that multiplies two outputs with two rows at a time, which are twice as many products.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernels) struct Neon<const DOT: bool, const I8MM: bool>(());

impl Neon<false, false> {
    pub(in crate::kernels) fn detect() -> Option<Self> {
        is_aarch64_feature_detected!("neon").then_some(Neon(()))
    }
}

impl Neon<true, false> {
    pub(in crate::kernels) fn detect() -> Option<Self> {
        let Neon(()) = Neon::<false, false>::detect()?;
        is_aarch64_feature_detected!("dotprod").then_some(Neon(()))
    }
}

impl Neon<true, true> {
    pub(in crate::kernels) fn detect() -> Option<Self> {
        let Neon(()) = Neon::<true, false>::detect()?;
        is_aarch64_feature_detected!("i8mm").then_some(Neon(()))
    }
}

impl<const I8MM: bool> Neon<true, I8MM> {
    /// The same without products of bytes.
    pub(in crate::kernels) fn plain(self) -> Neon<false, false> {
        Neon(())
    }

    /// The same, if it has the product of two matrices.
    #[inline(always)]
    fn with_matrices(self) -> Option<Neon<true, true>> {
        I8MM.then_some(Neon(()))
    }

    /// `sums` and, for each, the products of four bytes.
    #[inline(always)]
    fn dot(self, mut sums: int32x4_t, values: uint8x16_t, x: int32x4_t) -> int32x4_t {
        // SAFETY: `self` proves that the processor has the instruction, which reads and writes these three registers only.
        // (Its intrinsic is not stable yet.)
        unsafe {
            asm!(
                ".arch_extension dotprod",
                "sdot {sums:v}.4s, {values:v}.16b, {x:v}.16b",
                sums = inout(vreg) sums,
                values = in(vreg) values,
                x = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sums
    }
}

impl Neon<true, true> {
    /// `sums` and, for each of two rows with each of two outputs, the products of eight bytes: first those of the first row.
    #[inline(always)]
    fn multiply(self, mut sums: int32x4_t, rows: int64x2_t, values: uint8x16_t) -> int32x4_t {
        // SAFETY: `self` proves that the processor has the instruction, which reads and writes these three registers only.
        // (Its intrinsic is not stable yet.)
        unsafe {
            asm!(
                ".arch_extension i8mm",
                "smmla {sums:v}.4s, {rows:v}.16b, {values:v}.16b",
                sums = inout(vreg) sums,
                rows = in(vreg) rows,
                values = in(vreg) values,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sums
    }
}

entry!(Neon<false, false>, "neon");
entry!(Neon<true, false>, "neon,dotprod");
entry!(Neon<true, true>, "neon,dotprod,i8mm");

// SAFETY of every `unsafe` below: `self` proves that the processor has the instructions, and each load or store
// touches 4 elements of an array of 16, from 0, 4, 8 or 12.
impl<const DOT: bool, const I8MM: bool> Simd for Neon<DOT, I8MM> {
    type Lanes = [float32x4_t; 4];

    /// 24 sums, four registers of weights and one of input are 29 of the 32 registers.
    const REGISTER_ROWS: usize = 6;
    const WIDENS: bool = true;
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
    fn load_i8(self, from: &[i8; LANES]) -> [float32x4_t; 4] {
        // SAFETY: see above; the load takes all 16 bytes.
        unsafe {
            let bytes = vld1q_s8(from.as_ptr());
            let halves = [vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes)];
            array::from_fn(|i| match i % 2 {
                0 => vcvtq_f32_s32(vmovl_s16(vget_low_s16(halves[i / 2]))),
                _ => vcvtq_f32_s32(vmovl_high_s16(halves[i / 2])),
            })
        }
    }

    #[inline(always)]
    fn store(self, lanes: [float32x4_t; 4], to: &mut [f32; LANES]) {
        for (lanes, to) in lanes.into_iter().zip(to.as_chunks_mut::<4>().0) {
            // SAFETY: see above.
            unsafe { vst1q_f32(to.as_mut_ptr(), lanes) }
        }
    }

    #[inline(always)]
    fn mul(self, lanes: [float32x4_t; 4], other: [float32x4_t; 4]) -> [float32x4_t; 4] {
        // SAFETY: see above.
        array::from_fn(|i| unsafe { vmulq_f32(lanes[i], other[i]) })
    }

    #[inline(always)]
    fn fma(self, sums: [float32x4_t; 4], weights: [float32x4_t; 4], x: f32) -> [float32x4_t; 4] {
        // SAFETY: see above.
        array::from_fn(|i| unsafe { vfmaq_n_f32(sums[i], weights[i], x) })
    }
}

// SAFETY of every `unsafe` below: `self` proves that the processor has the instructions, and each load or store
// touches 16 bytes of an array of 64, from 0, 16, 32 or 48, or all of an array of 16.
impl<const DOT: bool, const I8MM: bool> Bytes for Neon<DOT, I8MM> {
    const PARTS: usize = 1;

    type Bytes = [uint8x16_t; 4];

    #[inline(always)]
    fn bytes(self, from: &Group, _: usize) -> [uint8x16_t; 4] {
        // SAFETY: see above.
        array::from_fn(|i| unsafe { vld1q_u8(from[16 * i..].as_ptr()) })
    }

    #[inline(always)]
    fn and(self, bytes: [uint8x16_t; 4], mask: u8) -> [uint8x16_t; 4] {
        // SAFETY: see above.
        array::from_fn(|i| unsafe { vandq_u8(bytes[i], vdupq_n_u8(mask)) })
    }

    #[inline(always)]
    fn or(self, bytes: [uint8x16_t; 4], other: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
        // SAFETY: see above.
        array::from_fn(|i| unsafe { vorrq_u8(bytes[i], other[i]) })
    }

    #[inline(always)]
    fn shift_left(self, bytes: [uint8x16_t; 4], n: u32) -> [uint8x16_t; 4] {
        // SAFETY: see above.
        array::from_fn(|i| unsafe { vshlq_u8(bytes[i], vdupq_n_s8(n as i8)) })
    }

    #[inline(always)]
    fn shift_right(self, bytes: [uint8x16_t; 4], n: u32) -> [uint8x16_t; 4] {
        // SAFETY: see above.
        array::from_fn(|i| unsafe { vshlq_u8(bytes[i], vdupq_n_s8(-(n as i8))) })
    }

    #[inline(always)]
    fn minus(self, bytes: [uint8x16_t; 4], n: u8) -> [uint8x16_t; 4] {
        // SAFETY: see above.
        array::from_fn(|i| unsafe { vsubq_u8(bytes[i], vdupq_n_u8(n)) })
    }

    #[inline(always)]
    fn look_up(self, values: &[u8; 16], bytes: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
        // SAFETY: see above.
        unsafe {
            let values = vld1q_u8(values.as_ptr());
            array::from_fn(|i| vqtbl1q_u8(values, bytes[i]))
        }
    }

    #[inline(always)]
    fn bytes_as_floats(self, bytes: &[u8; LANES]) -> [float32x4_t; 4] {
        // SAFETY: see above.
        unsafe {
            let bytes = vld1q_u8(bytes.as_ptr());
            let halves = [vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes)];
            array::from_fn(|i| match i % 2 {
                0 => vcvtq_f32_u32(vmovl_u16(vget_low_u16(halves[i / 2]))),
                _ => vcvtq_f32_u32(vmovl_high_u16(halves[i / 2])),
            })
        }
    }
}

// SAFETY of every `unsafe` below: `self` proves that the processor has the instructions, and each load or store
// touches 16 bytes of an array of 64, from 0, 16, 32 or 48.
impl Integers for Neon<false, false> {
    const ENCODING: Encoding = Encoding::I16;
    const UNSIGNED: bool = false;
    const PANELS: usize = 4;
    const ROWS: usize = 1;
    const STORED_ROWS: usize = 2;
    const STORED_PANELS: usize = 1;

    type OneRow = Self;
    type ManyRows = Self;
    type Factors = [int16x8_t; 4];
    type Stored = [[[i16; 2]; LANES]; 2];
    /// Of the first and of the second inputs in turn, which are added up at last.
    type Sums = [int32x4_t; 8];

    const NOTHING_STORED: Self::Stored = [[[0; 2]; LANES]; 2];

    #[inline(always)]
    fn one_row(self) -> Self {
        self
    }

    #[inline(always)]
    fn factors(self, values: [uint8x16_t; 4], half: usize) -> [int16x8_t; 4] {
        // SAFETY: see above.
        unsafe {
            let upper = vdupq_n_s16(-1 << 8);
            match half {
                0 => array::from_fn(|i| vshlq_n_s16::<8>(vreinterpretq_s16_u8(values[i]))),
                _ => array::from_fn(|i| vandq_s16(vreinterpretq_s16_u8(values[i]), upper)),
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
    ) -> [int16x8_t; 4] {
        let from = &from.as_flattened()[2 * group + half];
        // SAFETY: see above.
        array::from_fn(|i| unsafe { vld1q_s16(from[4 * i..].as_ptr().cast()) })
    }

    #[inline(always)]
    fn store_factors(self, values: [uint8x16_t; 4], to: &mut [[[i16; 2]; LANES]; 2], _: usize) {
        for (half, to) in to.iter_mut().enumerate() {
            for (factors, to) in self.factors(values, half).into_iter().zip(to.as_chunks_mut::<4>().0) {
                // SAFETY: see above.
                unsafe { vst1q_s16(to.as_mut_ptr().cast(), factors) }
            }
        }
    }

    #[inline(always)]
    fn sums(self, _: &ActivationBlock) -> [int32x4_t; 8] {
        // SAFETY: see above.
        unsafe { [vdupq_n_s32(0); 8] }
    }

    #[inline(always)]
    fn add_products(self, sums: [int32x4_t; 8], factors: [int16x8_t; 4], x: i32, _: usize) -> [int32x4_t; 8] {
        // SAFETY: see above.
        unsafe {
            let x = vreinterpretq_s16_s32(vdupq_n_s32(x));
            array::from_fn(|i| match i % 2 {
                0 => vmlal_s16(sums[i], vget_low_s16(factors[i / 2]), vget_low_s16(x)),
                _ => vmlal_high_s16(sums[i], factors[i / 2], x),
            })
        }
    }

    #[inline(always)]
    fn set_floats(self, floats: &mut [float32x4_t; 4], _: usize, sums: [int32x4_t; 8]) {
        // SAFETY: see above.
        *floats = array::from_fn(|i| unsafe { vcvtq_f32_s32(vpaddq_s32(sums[2 * i], sums[2 * i + 1])) });
    }
}

// SAFETY of every `unsafe` below: as above.
impl<const I8MM: bool> Integers for Neon<true, I8MM> {
    const ENCODING: Encoding = Encoding::I8;
    const UNSIGNED: bool = false;
    /// The sums of one row with four, 32 registers, would go to the stack.
    const PANELS: usize = 2;
    const ROWS: usize = 2;
    const STORED_ROWS: usize = 6;
    const STORED_PANELS: usize = 1;
    const PAIRS: bool = I8MM;

    type OneRow = Self;
    type ManyRows = Self;
    type Factors = [uint8x16_t; 4];
    type Stored = Group;
    /// Of the products with the multiples of 128, then with the rest.
    type Sums = [[int32x4_t; 4]; 2];

    const NOTHING_STORED: Group = [0; 64];

    #[inline(always)]
    fn one_row(self) -> Self {
        self
    }

    #[inline(always)]
    fn factors(self, values: [uint8x16_t; 4], _: usize) -> [uint8x16_t; 4] {
        values
    }

    #[inline(always)]
    fn load_factors(self, from: &[Group; GROUPS], group: usize, _: usize, part: usize) -> [uint8x16_t; 4] {
        self.bytes(&from[group], part)
    }

    #[inline(always)]
    fn store_factors(self, values: [uint8x16_t; 4], to: &mut Group, _: usize) {
        for (values, to) in values.into_iter().zip(to.as_chunks_mut::<16>().0) {
            // SAFETY: see above.
            unsafe { vst1q_u8(to.as_mut_ptr(), values) }
        }
    }

    #[inline(always)]
    fn in_memory(self, values: [[uint8x16_t; 4]; 2]) -> [[uint8x16_t; 4]; 2] {
        match self.with_matrices() {
            Some(set) => set.eight_inputs(values),
            None => values,
        }
    }

    #[inline(always)]
    fn products_of_pairs<const R: usize, const P: usize, const H: usize>(
        self,
        values: &[[Group; GROUPS]; P],
        x: &[ActivationBlock; R],
        steps: usize,
    ) -> [[[float32x4_t; 4]; P]; R] {
        let mut products = [[self.zero(); P]; R];
        let Some(set) = self.with_matrices() else { return products };
        unrolled!(p < P of 2 => {
            let sums = set.sums_of_pairs::<R, H>(&values[p], x, steps);
            unrolled!(r < R of 8 => {
                let sums = set.row(sums[r / 2], r % 2);
                // SAFETY: see above.
                unrolled!(i < 4 => { products[r][p][i] = unsafe { vcvtq_f32_s32(sums[i]) } });
            });
        });
        products
    }

    #[inline(always)]
    fn sums(self, _: &ActivationBlock) -> Self::Sums {
        [self.sums_of_none(); 2]
    }

    #[inline(always)]
    fn add_products(self, mut sums: Self::Sums, values: [uint8x16_t; 4], x: i32, half: usize) -> Self::Sums {
        // SAFETY: see above.
        let x = unsafe { vdupq_n_s32(x) };
        unrolled!(i < 4 => { sums[half][i] = self.dot(sums[half][i], values[i], x) });
        sums
    }

    #[inline(always)]
    fn second_half(self, sums: Self::Sums) -> Self::Sums {
        [self.sums_of_none(), self.joined(sums)]
    }

    #[inline(always)]
    fn set_floats(self, floats: &mut [float32x4_t; 4], _: usize, sums: Self::Sums) {
        let sums = self.joined(sums);
        // SAFETY: see above.
        unrolled!(i < 4 => { floats[i] = unsafe { vcvtq_f32_s32(sums[i]) } });
    }
}

impl<const I8MM: bool> Neon<true, I8MM> {
    #[inline(always)]
    fn sums_of_none(self) -> [int32x4_t; 4] {
        // SAFETY: see above.
        unsafe { [vdupq_n_s32(0); 4] }
    }

    /// 128 times the first and the second.
    #[inline(always)]
    fn joined(self, [first, mut second]: [[int32x4_t; 4]; 2]) -> [int32x4_t; 4] {
        // SAFETY: see above.
        unrolled!(i < 4 => { second[i] = unsafe { vaddq_s32(vshlq_n_s32::<7>(first[i]), second[i]) } });
        second
    }
}

/// Sums of all outputs with two rows. A register has those of two outputs: with the first row, then with the second.
type PairSums = [[int32x4_t; 4]; 2];

// SAFETY of every `unsafe` below: as above, or a load touches 8 bytes of an array of 8.
impl Neon<true, true> {
    /// Values of four inputs and of four more, each for all outputs, as those of eight inputs: two outputs in a register.
    #[inline(always)]
    fn eight_inputs(self, values: [[uint8x16_t; 4]; 2]) -> [[uint8x16_t; 4]; 2] {
        let mut eight = values;
        unrolled!(i < 4 => {
            // SAFETY: see above.
            unsafe {
                let (first, second) = (vreinterpretq_u32_u8(values[0][i]), vreinterpretq_u32_u8(values[1][i]));
                eight[i / 2][2 * i % 4] = vreinterpretq_u8_u32(vzip1q_u32(first, second));
                eight[i / 2][2 * i % 4 + 1] = vreinterpretq_u8_u32(vzip2q_u32(first, second));
            }
        });
        eight
    }

    /// What a block's values come to with each pair of `R` rows. A last row without another is its own.
    #[inline(always)]
    fn sums_of_pairs<const R: usize, const H: usize>(
        self,
        values: &[Group; GROUPS],
        x: &[ActivationBlock; R],
        steps: usize,
    ) -> [PairSums; R] {
        let mut sums = [[self.sums_of_none(); 2]; R];
        unrolled!(half < 2 => {
            let count = if half < H { 0 } else { GROUPS / 2 };
            for k in (0..count).take(steps) {
                let mut rows = [self.two_rows([&x[0]; 2], half, k); R];
                unrolled!(j < (R.div_ceil(2)) of 4 => {
                    rows[j] = self.two_rows([&x[2 * j], &x[(2 * j + 1).min(R - 1)]], half, k);
                });
                unrolled!(outputs < 2 => {
                    let values = self.bytes(&values[2 * k + outputs], 0);
                    unrolled!(i < 4 => {
                        unrolled!(j < (R.div_ceil(2)) of 4 => {
                            sums[j][outputs][i] = self.multiply(sums[j][outputs][i], rows[j], values[i]);
                        });
                    });
                });
            }
            if half == 0 && H == 0 {
                unrolled!(j < (R.div_ceil(2)) of 4 => {
                    unrolled!(outputs < 2 => {
                        unrolled!(i < 4 => {
                            // SAFETY: see above.
                            sums[j][outputs][i] = unsafe { vshlq_n_s32::<7>(sums[j][outputs][i]) };
                        });
                    });
                });
            }
        });
        sums
    }

    /// A half of the `k`-th eight inputs of both rows.
    #[inline(always)]
    fn two_rows(self, x: [&ActivationBlock; 2], half: usize, k: usize) -> int64x2_t {
        let place = Encoding::I8.place(2 * k, half) / 2;
        let [first, second] =
            [&x[0].halves.as_chunks::<2>().0[place], &x[1].halves.as_chunks::<2>().0[place]];
        // SAFETY: see above.
        unsafe { vcombine_s64(vld1_s64(first.as_ptr().cast()), vld1_s64(second.as_ptr().cast())) }
    }

    /// The sums of one of two rows, side by side.
    #[inline(always)]
    fn row(self, sums: PairSums, row: usize) -> [int32x4_t; 4] {
        let mut of_row = self.sums_of_none();
        unrolled!(i < 4 => {
            let [first, second] = [sums[i / 2][2 * i % 4], sums[i / 2][2 * i % 4 + 1]];
            // SAFETY: see above.
            of_row[i] = unsafe {
                let (first, second) = (vreinterpretq_s64_s32(first), vreinterpretq_s64_s32(second));
                vreinterpretq_s32_s64(if row == 0 { vzip1q_s64(first, second) } else { vzip2q_s64(first, second) })
            };
        });
        of_row
    }
}
