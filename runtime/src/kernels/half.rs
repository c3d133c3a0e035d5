//! The 16-bit numbers that kernels read: bf16 (weights) and IEEE 754 binary16 (keys and values).

use bytemuck::{Pod, Zeroable};

use super::simd::Simd;
use super::{Element, LANES};

/// The upper half of an f32.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(transparent)]
pub(crate) struct Bf16(pub(super) u16);

/// IEEE 754 binary16. Only finite ones are made.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(transparent)]
pub(crate) struct F16(pub(super) u16);

impl F16 {
    /// The nearest one, ties to even; the largest one for what is larger, and zero for NaN.
    pub(crate) fn from_f32(x: f32) -> F16 {
        const MOST: f32 = 65504.0;
        let sign = (x.to_bits() >> 16) as u16 & 0x8000;
        let magnitude = if x.is_nan() { 0.0 } else { x.abs().min(MOST) };
        // Below 2^-14 the steps are 2^-24, as those of an f32 are between 1/2 and 1: adding 1/2 rounds to them.
        if magnitude < f32::from_bits(113 << 23) {
            return F16(sign | (magnitude + 0.5).to_bits().wrapping_sub(0.5f32.to_bits()) as u16);
        }
        // Else 13 bits of the mantissa go, rounded; a carry into the exponent is right.
        let bits = magnitude.to_bits() - (112 << 23);
        F16(sign | ((bits + 0xfff + (bits >> 13 & 1)) >> 13) as u16)
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

impl Element for Bf16 {
    #[inline(always)]
    fn widen(lanes: &[Bf16; LANES]) -> [f32; LANES] {
        lanes.map(|x| f32::from_bits(u32::from(x.0) << 16))
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, lanes: &[Bf16; LANES]) -> S::Lanes {
        simd.load_bf16(lanes)
    }

    #[inline(always)]
    fn load_sums<S: Simd>(simd: S, sums: &[f32; LANES]) -> S::Lanes {
        simd.in_bf16_order(simd.load(sums))
    }

    #[inline(always)]
    fn store_sums<S: Simd>(simd: S, sums: S::Lanes, to: &mut [f32; LANES]) {
        simd.store(simd.in_order(sums), to);
    }
}

impl Element for F16 {
    #[inline(always)]
    fn widen(lanes: &[F16; LANES]) -> [f32; LANES] {
        lanes.map(F16::to_f32)
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, lanes: &[F16; LANES]) -> S::Lanes {
        simd.load_f16(lanes)
    }
}
