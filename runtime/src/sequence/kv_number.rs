//! Numbers as keys and values are kept.

use bytemuck::Pod;

use crate::kernels::{Element, F16};

/// A number of a key or a value: in itself, or together with a scale that a position's numbers of one head share.
pub(super) trait KvNumber: Element + Pod + Send {
    /// Elements that a scale takes, an f32; 0 where there are none.
    const SCALE: usize;

    /// The scale of these numbers; 1 where there are none.
    fn scale(numbers: impl Iterator<Item = f32>) -> f32;
    fn from_f32(x: f32, scale: f32) -> Self;
    fn to_f32(self, scale: f32) -> f32;
}

impl KvNumber for f32 {
    const SCALE: usize = 0;

    #[inline(always)]
    fn scale(_: impl Iterator<Item = f32>) -> f32 {
        1.0
    }

    #[inline(always)]
    fn from_f32(x: f32, _: f32) -> f32 {
        x
    }

    fn to_f32(self, _: f32) -> f32 {
        self
    }
}

impl KvNumber for F16 {
    const SCALE: usize = 0;

    #[inline(always)]
    fn scale(_: impl Iterator<Item = f32>) -> f32 {
        1.0
    }

    #[inline(always)]
    fn from_f32(x: f32, _: f32) -> F16 {
        F16::from_f32(x)
    }

    fn to_f32(self, _: f32) -> f32 {
        F16::to_f32(self)
    }
}

/// The nearest integer times a scale that makes the largest number 127 or -127.
impl KvNumber for i8 {
    const SCALE: usize = size_of::<f32>();

    /// Zero where all numbers are as good as zero; larger numbers than any model has become the largest one.
    #[inline(always)]
    fn scale(numbers: impl Iterator<Item = f32>) -> f32 {
        const LEAST: f32 = 1e-30;
        const MOST: f32 = 1e38;
        let most = numbers.fold(0.0f32, |most, x| most.max(x.abs())); // NaN counts for nothing
        if most < LEAST { 0.0 } else { most.min(MOST) / 127.0 }
    }

    /// Ties to even; zero for NaN.
    #[inline(always)]
    fn from_f32(x: f32, scale: f32) -> i8 {
        if scale == 0.0 {
            return 0;
        }
        // 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits.
        const ROUND: f32 = 12_582_912.0;
        let x = if x.is_nan() { 0.0 } else { (x / scale).clamp(-127.0, 127.0) };
        (x + ROUND).to_bits() as i8
    }

    fn to_f32(self, scale: f32) -> f32 {
        f32::from(self) * scale
    }
}

#[cfg(test)]
mod tests {
    use super::KvNumber;

    #[test]
    fn an_integer_is_within_half_a_scale_of_the_number() {
        let numbers: Vec<f32> = (0..64).map(|i| ((i * 37 % 64) as f32 - 20.0) * 0.03).collect();
        let scale = i8::scale(numbers.iter().copied());
        let integers: Vec<i8> = numbers.iter().map(|&x| i8::from_f32(x, scale)).collect();
        for (x, integer) in numbers.iter().zip(&integers) {
            assert!((x - integer.to_f32(scale)).abs() <= scale * 0.500_01, "{x} {integer}");
        }
        assert_eq!(integers.iter().map(|integer| integer.unsigned_abs()).max(), Some(127));
    }

    #[test]
    fn halves_go_to_the_even_integer() {
        let rounded = [0.5, 1.5, -0.5, -1.5, 126.5, -2.5].map(|x| i8::from_f32(x, 1.0));
        assert_eq!(rounded, [0, 2, 0, -2, 126, -2]);
    }

    #[test]
    fn what_is_no_usual_number_becomes_one() {
        for hostile in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e-40, 0.0] {
            let scale = i8::scale([hostile, 0.0].into_iter());
            assert!(scale.is_finite() && i8::from_f32(hostile, scale).to_f32(scale).is_finite(), "{hostile}");
            assert_eq!(i8::from_f32(0.0, scale), 0);
        }
        assert_eq!(i8::from_f32(f32::INFINITY, i8::scale([f32::INFINITY].into_iter())), 127);
    }
}
