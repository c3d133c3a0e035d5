//! What the codes of a quantized dtype stand for, and which of these values is nearest to a number.

use smolrun::format::{BLOCK, Dtype};
use smolrun::one_by_one;

/// The values of `q3`, unless a matrix has its own: the 8 levels that lose least of a Gaussian (Lloyd and Max), the
/// largest of them brought to 127.
pub const GAUSSIAN_8: [i8; 8] = [-127, -79, -45, -14, 14, 45, 79, 127];
/// Those of `q4`, 16 of the same kind.
pub const GAUSSIAN_16: [i8; 16] = [-127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127];

/// Added to a number below 2^22 and taken away again, it leaves the nearest whole number, of two the even one.
const ROUNDING: f32 = 12_582_912.0; // 1.5 * 2^23
/// Numbers worked on side by side: what registers of any width make whole ones of.
const LANES: usize = 8;

/// The codes of a dtype and their values.
#[derive(Clone, Debug)]
pub struct Codes {
    dtype: Dtype,
    values: Values,
    /// The code of each value, which lies 128 further.
    code_of: [u8; 256],
    /// The largest value there is, either sign, and at least 1.
    largest: f32,
}

#[derive(Clone, Debug)]
enum Values {
    /// All whole numbers from the first to the second.
    Whole(f32, f32),
    /// In ascending order the first value, then for each step the middle between two values and how far apart they are; and
    /// all values in the order of their codes.
    Table { first: i32, steps: Vec<(f32, i32)>, bytes: Vec<i8> },
}

impl Codes {
    /// The codes of `dtype`, those of `q4` and `q3` with the values of [`GAUSSIAN_16`] and [`GAUSSIAN_8`]; `None` where it
    /// is not quantized.
    pub fn of(dtype: Dtype) -> Option<Codes> {
        match dtype {
            Dtype::Q8 => Some(Codes::whole(dtype, -127, 127, 0)), // -128 would have no counterpart
            Dtype::Q6 => Some(Codes::whole(dtype, -32, 31, 32)),
            Dtype::Q5 => Some(Codes::whole(dtype, -16, 15, 16)),
            Dtype::Q4 => Some(Codes::q4(GAUSSIAN_16)),
            Dtype::Q3 => Some(Codes::q3(GAUSSIAN_8)),
            _ => None,
        }
    }

    fn whole(dtype: Dtype, low: i8, high: i8, code_of_zero: u8) -> Codes {
        let mut code_of = [0; 256];
        (low..=high).for_each(|value| code_of[place(value)] = code_of_zero.wrapping_add_signed(value));
        let values = Values::Whole(low.into(), high.into());
        Codes { dtype, values, code_of, largest: largest(&[low, high]) }
    }

    /// The codes of `q4` with these values, which are stored in ascending order.
    pub fn q4(values: [i8; 16]) -> Codes {
        Codes::table(Dtype::Q4, values.to_vec())
    }

    /// The codes of `q3` with these values. They are stored as the upper four upwards, then the lower four downwards: the
    /// codes' lower two bits, which lie by themselves, then tell how far out a value is, which is seldom far, and a file
    /// that is compressed becomes smaller.
    pub fn q3(values: [i8; 8]) -> Codes {
        Codes::table(Dtype::Q3, values.to_vec())
    }

    fn table(dtype: Dtype, mut values: Vec<i8>) -> Codes {
        values.sort_unstable();
        let mut bytes = values.clone();
        if dtype == Dtype::Q3 {
            bytes.rotate_left(4);
            bytes[4..].reverse();
        }
        let mut code_of = [0; 256];
        for (code, &value) in (0..).zip(&bytes) {
            code_of[place(value)] = code;
        }
        let steps = values.array_windows().map(|&[lower, upper]| {
            let [middle, rise] = [i32::from(lower) + i32::from(upper), i32::from(upper) - i32::from(lower)];
            (middle as f32 / 2.0, rise)
        });
        let steps = steps.collect();
        let largest = largest(&values);
        let values = Values::Table { first: values[0].into(), steps, bytes };
        Codes { dtype, values, code_of, largest }
    }

    /// The dtype that has these codes.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The values that a section begins with, in the order of their codes: none but in `q4` and `q3`.
    pub fn values(&self) -> &[i8] {
        match &self.values {
            Values::Whole(..) => &[],
            Values::Table { bytes, .. } => bytes,
        }
    }

    /// The largest value there is, either sign, and at least 1.
    #[inline(always)]
    pub(super) fn largest(&self) -> f32 {
        self.largest
    }

    /// The code of one of the values.
    pub(super) fn code(&self, value: f32) -> u8 {
        self.code_of[place(value as i8)]
    }

    /// The value nearest to each number times `factor`; all these products are finite.
    pub(super) fn nearest(&self, numbers: &[f32; BLOCK], factor: f32) -> [f32; BLOCK] {
        let mut nearest = [0.0; BLOCK];
        let lanes = numbers.as_chunks::<LANES>().0.iter().zip(nearest.as_chunks_mut::<LANES>().0);
        for (numbers, nearest) in lanes {
            *nearest = self.nearest_in_lanes(&numbers.map(|number| number * factor));
        }
        nearest
    }

    /// The value nearest to each of some finite numbers.
    #[inline(always)]
    pub(super) fn nearest_in_lanes<const LANES: usize>(&self, numbers: &[f32; LANES]) -> [f32; LANES] {
        match &self.values {
            &Values::Whole(low, high) => {
                let mut nearest = [0.0; LANES];
                for (nearest, &number) in nearest.iter_mut().zip(numbers) {
                    *nearest = (number.clamp(low, high) + ROUNDING) - ROUNDING;
                }
                nearest
            }
            Values::Table { first, steps, .. } => {
                let mut nearest = [*first; LANES];
                for &(middle, rise) in one_by_one(steps) {
                    for (nearest, &number) in nearest.iter_mut().zip(numbers) {
                        *nearest += if number > middle { rise } else { 0 };
                    }
                }
                let mut floats = [0.0; LANES];
                for (float, whole) in floats.iter_mut().zip(nearest) {
                    *float = whole as f32;
                }
                floats
            }
        }
    }
}

/// Where `code_of` has the code of `value`.
fn place(value: i8) -> usize {
    (i16::from(value) + 128) as usize // never negative
}

fn largest(values: &[i8]) -> f32 {
    values.iter().fold(1, |largest, value| value.unsigned_abs().max(largest)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DTYPES: [Dtype; 5] = [Dtype::Q8, Dtype::Q6, Dtype::Q5, Dtype::Q4, Dtype::Q3];

    /// By the document's table.
    fn value(codes: &Codes, code: u8) -> i8 {
        match codes.dtype() {
            Dtype::Q8 => code as i8,
            Dtype::Q6 => code as i8 - 32,
            Dtype::Q5 => code as i8 - 16,
            _ => codes.values()[usize::from(code)],
        }
    }

    #[test]
    fn every_number_gets_the_code_of_a_nearest_value() {
        let odd = Codes::q4([3, -100, 50, 50, 0, 7, 9, -1, -2, 90, 91, 92, 20, 21, 22, 100]);
        for codes in DTYPES.map(|dtype| Codes::of(dtype).unwrap()).into_iter().chain([odd]) {
            let all: Vec<i8> = match codes.dtype() {
                Dtype::Q8 => (-127..=127).collect(),
                dtype => (0..1 << dtype.code_bits().unwrap()).map(|code| value(&codes, code)).collect(),
            };
            for start in (-5000..5000).step_by(BLOCK) {
                let numbers: [f32; BLOCK] = std::array::from_fn(|i| (start + i as i32) as f32 / 16.0);
                let nearest = codes.nearest(&numbers, 0.5);
                for (number, nearest) in numbers.map(|number| number * 0.5).into_iter().zip(nearest) {
                    assert_eq!(f32::from(value(&codes, codes.code(nearest))), nearest, "{codes:?}");
                    let distance = |value: f32| (number - value).abs();
                    let best = all.iter().map(|&value| distance(value.into())).fold(f32::MAX, f32::min);
                    assert_eq!(distance(nearest), best, "{number} became {nearest}");
                }
            }
        }
    }

    #[test]
    fn the_default_values_are_the_code_that_lloyd_and_max_found() {
        let density = |x: f64| (-x * x / 2.0).exp();
        let points: Vec<f64> = (-60_000..=60_000).map(|i| f64::from(i) / 10_000.0).collect();
        let found = |count: usize| {
            let mut levels: Vec<f64> =
                (0..count).map(|level| (level as f64 + 0.5 - count as f64 / 2.0) / 3.0).collect();
            for _ in 0..300 {
                let mut sums = vec![(0.0, 0.0); count];
                let mut level = 0;
                for &x in &points {
                    while level + 1 < count && x > (levels[level] + levels[level + 1]) / 2.0 {
                        level += 1;
                    }
                    sums[level].0 += x * density(x);
                    sums[level].1 += density(x);
                }
                levels = sums.into_iter().map(|(moment, mass)| moment / mass).collect();
            }
            let largest = levels[count - 1];
            levels.iter().map(|level| (level / largest * 127.0).round() as i8).collect::<Vec<_>>()
        };
        assert_eq!(found(16), GAUSSIAN_16);
        assert_eq!(found(8), GAUSSIAN_8);
    }

    #[test]
    fn numbers_are_not_quantized() {
        assert!(
            [Dtype::U8, Dtype::U32, Dtype::F32, Dtype::Bf16].iter().all(|&dtype| Codes::of(dtype).is_none())
        );
    }
}
