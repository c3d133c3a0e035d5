//! Blocks of 32 numbers: the scale with which their values come nearest to them.

use smolrun::format::{BLOCK, Dtype};

use super::codes::Codes;

/// Numbers summed side by side, in an order that no processor and no compiler changes.
const LANES: usize = 8;
/// A block without a number of this size has the scale 0, where the row's largest number is from 1 to 2.
const SMALLEST: f32 = 1.0 / (1u64 << 40) as f32;

/// Numbers of one row, and how much an error in each of them matters.
pub(super) struct Block<'a> {
    numbers: &'a [f32; BLOCK],
    importance: &'a [f32; BLOCK],
    /// Each number times its importance.
    weighted: [f32; BLOCK],
}

impl<'a> Block<'a> {
    /// Of numbers and importances that are at most 2.
    pub(super) fn new(numbers: &'a [f32; BLOCK], importance: &'a [f32; BLOCK]) -> Block<'a> {
        let weighted = std::array::from_fn(|i| numbers[i] * importance[i]);
        Block { numbers, importance, weighted }
    }

    /// About the scale with the least squared error: with the largest number at each of a few places near the largest
    /// value, the nearest values, and for these the scale by least squares.
    pub(super) fn fit(&self, codes: &Codes) -> f32 {
        let largest = self.numbers.iter().fold(0.0, |largest: f32, number| largest.max(number.abs()));
        if largest < SMALLEST {
            return 0.0;
        }
        let full = largest / codes.largest();
        // What is taken away from the squared error of zeroes.
        let (mut best, mut scale) = (0.0, full);
        for &fraction in fractions(codes.dtype()) {
            let values = codes.nearest(self.numbers, 1.0 / (full * fraction));
            let product = sum(|i| self.weighted[i] * values[i]);
            let square = sum(|i| self.importance[i] * values[i] * values[i]);
            let gain = product * product / square; // NaN where nothing matters
            if product > 0.0 && gain > best {
                (best, scale) = (gain, product / square);
            }
        }
        scale
    }

    /// A block scale in steps of `unit`, at most `most`, and the values for it: of the two next to `fitted` the one with
    /// the smaller squared error.
    pub(super) fn store(&self, codes: &Codes, unit: f32, fitted: f32, most: u8) -> (u8, [f32; BLOCK]) {
        let lower = ((fitted / unit) as u8).min(most); // 0 of 0 is 0
        let upper = lower.saturating_add(1).min(most);
        let [(values, error), (upper_values, upper_error)] =
            [lower, upper].map(|scale| self.values(codes, unit * f32::from(scale)));
        if upper_error < error { (upper, upper_values) } else { (lower, values) }
    }

    /// The values nearest to the numbers for this scale, and their squared error.
    fn values(&self, codes: &Codes, scale: f32) -> ([f32; BLOCK], f32) {
        let factor = 1.0 / scale;
        let factor = if factor.is_finite() { factor } else { 0.0 };
        let values = codes.nearest(self.numbers, factor);
        let error = sum(|i| {
            let error = self.numbers[i] - scale * values[i];
            self.importance[i] * error * error
        });
        (values, error)
    }
}

/// Where the largest number goes, as parts of the largest value; above 1 also because the values of `q6` and `q5` end a
/// step earlier above zero. With these few, the errors of trained matrices are within 1.3 % of those with fifty.
fn fractions(dtype: Dtype) -> &'static [f32] {
    match dtype {
        Dtype::Q6 => &[0.98, 1.0, 1.02, 1.04, 1.06, 1.08],
        Dtype::Q5 => &[0.95, 1.0, 1.05, 1.1],
        Dtype::Q4 => &[0.83, 0.9, 0.96, 1.0, 1.05],
        Dtype::Q3 => &[0.75, 0.83, 0.9, 0.97, 1.04, 1.12],
        _ => &[1.0],
    }
}

/// The sum of `term` over a block.
fn sum(term: impl Fn(usize) -> f32) -> f32 {
    let mut sums = [0.0; LANES];
    for start in (0..BLOCK).step_by(LANES) {
        for (lane, sum) in sums.iter_mut().enumerate() {
            *sum += term(start + lane);
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}
