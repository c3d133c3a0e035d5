//! The 16-bit numbers that kernels read: bf16 in pairs (weights) and IEEE 754 binary16 (keys and values).

use bytemuck::{Pod, Zeroable};

/// The weights of two inputs in turn, each the upper half of an f32: the first in the lower half of the `u32`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(transparent)]
pub(crate) struct Bf16Pair(pub(super) u32);

/// IEEE 754 binary16. Only finite ones are made.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(transparent)]
pub(crate) struct F16(pub(super) u16);

impl F16 {
    /// The nearest one, ties to even; the largest one for what is larger, and zero for NaN.
    #[inline(always)]
    pub(crate) fn from_f32(x: f32) -> F16 {
        const MOST: f32 = 65504.0;
        let sign = (x.to_bits() >> 16) as u16 & 0x8000;
        let magnitude = if x.is_nan() { 0.0 } else { x.abs().min(MOST) };
        // Below 2^-14 the steps are 2^-24, as those of an f32 are between 1/2 and 1: adding 1/2 rounds to them.
        let small = (magnitude + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        // Else 13 bits of the mantissa go, rounded; a carry into the exponent is right.
        let bits = magnitude.to_bits().wrapping_sub(112 << 23);
        let large = bits.wrapping_add(0xfff + (bits >> 13 & 1)) >> 13;
        F16(sign | if magnitude < f32::from_bits(113 << 23) { small } else { large } as u16)
    }

    /// Exact.
    #[inline(always)]
    pub(crate) fn to_f32(self) -> f32 {
        // With the exponent in place, what is missing is the difference of the biases: a power of two, exact even for
        // the numbers below the smallest normal one.
        let magnitude = f32::from_bits(u32::from(self.0 & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
        f32::from_bits(magnitude.to_bits() | u32::from(self.0 & 0x8000) << 16)
    }
}

impl Bf16Pair {
    /// Exact: a shift for the first, a mask for the second.
    #[inline(always)]
    pub(super) fn to_f32(self) -> [f32; 2] {
        [f32::from_bits(self.0 << 16), f32::from_bits(self.0 & 0xffff_0000)]
    }

    /// Numbers of at most 8 bits, but for zeros after them.
    #[inline(always)]
    pub(super) fn exact(numbers: [i32; 2]) -> Bf16Pair {
        let [first, second] = [(numbers[0] as f32).to_bits(), (numbers[1] as f32).to_bits()];
        Bf16Pair(first >> 16 | second & 0xffff_0000)
    }

    /// The nearest ones, ties to even; zero for what is below the normal numbers, as AVX512-BF16 has it.
    pub(super) fn rounded(inputs: [f32; 2]) -> Bf16Pair {
        let [first, second] = inputs.map(|x| {
            let bits = flushed(x).to_bits();
            match x.is_nan() {
                true => bits >> 16 | 1 << 6, // stays one, whichever bits are lost
                false => (bits + 0x7fff + (bits >> 16 & 1)) >> 16,
            }
        });
        Bf16Pair(first | second << 16)
    }

    /// `sum` and the products with the two numbers of `x`, as AVX512-BF16 adds them: the second one first, each rounded
    /// once, since a product of two numbers of 8 bits is exact, and what is below the normal numbers taken for zero.
    pub(super) fn add_products(self, x: Bf16Pair, sum: f32) -> f32 {
        let ([w0, w1], [x0, x1]) = (self.to_f32().map(flushed), x.to_f32().map(flushed));
        flushed(w0 * x0 + flushed(w1 * x1 + sum))
    }
}

/// Zero for what is below the normal numbers.
fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}
