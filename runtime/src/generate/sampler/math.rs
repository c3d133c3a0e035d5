//! Exponential and logarithm in f64 from additions, multiplications and bits alone: the same on every platform, which
//! libm's are not.

use std::f64::consts::{LN_2, LOG2_E, SQRT_2};

/// e^x with a relative error below 1e-14 for x from -700 to 700, to which it is clamped.
///
/// x = n ln 2 + r with |r| ≤ ln 2 / 2, then Taylor's series to r^12 and 2^n by its bits.
pub(in super::super) fn exp(x: f64) -> f64 {
    // 1.5 * 2^52: adding it rounds to an integer, which then stands in the low bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    const LN_2_HI: f64 = 0.693_147_180_369_123_8; // 33 bits: exact when multiplied by n
    const LN_2_LO: f64 = 1.908_214_929_270_587_7e-10;
    let x = x.clamp(-700.0, 700.0);
    let shifted = x * LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN_2_HI - n * LN_2_LO;
    const INVERSE: [f64; 12] = [
        1.0 / 12.0,
        1.0 / 11.0,
        1.0 / 10.0,
        1.0 / 9.0,
        1.0 / 8.0,
        1.0 / 7.0,
        1.0 / 6.0,
        1.0 / 5.0,
        1.0 / 4.0,
        1.0 / 3.0,
        1.0 / 2.0,
        1.0,
    ];
    let mut sum = 1.0;
    for inverse in INVERSE {
        sum = sum * (r * inverse) + 1.0;
    }
    let power = shifted.to_bits().wrapping_shl(52).wrapping_add(1.0f64.to_bits());
    sum * f64::from_bits(power)
}

/// The natural logarithm of a normal x > 0, with an absolute error below 1e-14 near 1 and relative elsewhere.
///
/// x = 2^n m with m between √½ and √2, then ln m = 2 artanh((m - 1) / (m + 1)) by its series.
pub(in super::super) fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut n = (bits >> 52) as i64 - 1023;
    let mut m = f64::from_bits(bits & ((1 << 52) - 1) | 1.0f64.to_bits());
    if m > SQRT_2 {
        (m, n) = (m / 2.0, n + 1);
    }
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let series = (0..11).rev().fold(0.0, |sum, k| sum * square + 1.0 / f64::from(2 * k + 1));
    n as f64 * LN_2 + 2.0 * s * series
}

#[cfg(test)]
mod tests {
    use super::{exp, ln};

    #[test]
    fn they_are_the_functions_of_libm() {
        for i in -69_999..70_000 {
            let x = f64::from(i) / 100.0;
            let (found, expected) = (exp(x), x.exp());
            assert!((found / expected - 1.0).abs() < 1e-14, "exp({x}) = {found}, not {expected}");
        }
        assert_eq!((exp(0.0), ln(1.0)), (1.0, 0.0));
        for i in 1..100_000 {
            for x in [f64::from(i) / 1e3, f64::from(i) * 1e12, 1.0 / f64::from(i)] {
                let (found, expected) = (ln(x), x.ln());
                assert!((found - expected).abs() < 1e-14 * expected.abs().max(1.0), "ln({x}) = {found}");
            }
        }
    }

    #[test]
    fn what_is_out_of_range_stays_finite() {
        assert!(exp(-1e308) > 0.0 && exp(-1e308) < 1e-300);
        assert!(exp(1e308).is_finite());
    }
}
