//! What the codes of a quantized dtype stand for, and which of these values is nearest to a number.

use smolrun::format::{BLOCK, Dtype};

/// The values of `q3`: the 8 levels that lose least of a Gaussian (Lloyd and Max), the largest of them brought to 127.
const GAUSSIAN_8: [i8; 8] = [-127, -79, -45, -14, 14, 45, 79, 127];
/// Those of `q4`, 16 of the same kind.
const GAUSSIAN_16: [i8; 16] = [-127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127];

/// Added to a number below 2^22 and taken away again, it leaves the nearest whole number, of two the even one.
const ROUNDING: f32 = 12_582_912.0; // 1.5 * 2^23
/// Numbers worked on side by side: what registers of any width make whole ones of.
const LANES: usize = 8;

/// The codes of a dtype and their values.
#[derive(Clone, Debug)]
pub struct Codes {
    dtype: Dtype,
    /// Those of `q4` and `q3`, in the order of their codes.
    values: Vec<i8>,
    nearest: Nearest,
    /// The code of each value, which lies 128 further.
    code_of: [u8; 256],
    /// The largest value there is, either sign, and at least 1.
    largest: f32,
}

/// How the nearest value is found.
#[derive(Clone, Debug)]
enum Nearest {
    /// All whole numbers from the first to the second.
    Whole(f32, f32),
    Of16(Steps<7>),
    Of8(Steps<3>),
}

/// Values that lie on both sides of zero alike.
#[derive(Clone, Debug)]
struct Steps<const N: usize> {
    /// The least value above zero.
    first: i32,
    /// The middle between it and the next one, how far apart these two are, and so on.
    steps: [(f32, i32); N],
}

impl Codes {
    /// The codes of `dtype`; `None` where it is not quantized.
    pub fn of(dtype: Dtype) -> Option<Codes> {
        match dtype {
            Dtype::Q8 => Some(Codes::whole(dtype, -127, 127, 0)), // -128 would have no counterpart
            Dtype::Q6 => Some(Codes::whole(dtype, -32, 31, 32)),
            Dtype::Q5 => Some(Codes::whole(dtype, -16, 15, 16)),
            Dtype::Q4 => {
                Some(Codes::table(dtype, GAUSSIAN_16.to_vec(), Nearest::Of16(Steps::of(&GAUSSIAN_16))))
            }
            Dtype::Q3 => {
                // The upper four upwards, then the lower four downwards: the codes' lower two bits, which lie by themselves,
                // then tell how far out a value is, which is seldom far, and a file that is compressed becomes smaller.
                let mut values = GAUSSIAN_8.to_vec();
                values.rotate_left(4);
                values[4..].reverse();
                Some(Codes::table(dtype, values, Nearest::Of8(Steps::of(&GAUSSIAN_8))))
            }
            _ => None,
        }
    }

    fn whole(dtype: Dtype, low: i8, high: i8, code_of_zero: u8) -> Codes {
        let mut code_of = [0; 256];
        (low..=high).for_each(|value| code_of[place(value)] = code_of_zero.wrapping_add_signed(value));
        let nearest = Nearest::Whole(low.into(), high.into());
        Codes { dtype, values: Vec::new(), nearest, code_of, largest: largest(&[low, high]) }
    }

    /// With `values` in the order of their codes.
    fn table(dtype: Dtype, values: Vec<i8>, nearest: Nearest) -> Codes {
        let mut code_of = [0; 256];
        for (code, &value) in (0..).zip(&values) {
            code_of[place(value)] = code;
        }
        Codes { dtype, nearest, code_of, largest: largest(&values), values }
    }

    /// The dtype that has these codes.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The values that a section begins with, in the order of their codes: none but in `q4` and `q3`.
    pub fn values(&self) -> &[i8] {
        &self.values
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
        match &self.nearest {
            &Nearest::Whole(low, high) => {
                let mut nearest = [0.0; LANES];
                for (nearest, &number) in nearest.iter_mut().zip(numbers) {
                    *nearest = (number.clamp(low, high) + ROUNDING) - ROUNDING;
                }
                nearest
            }
            Nearest::Of16(steps) => steps.nearest(numbers),
            Nearest::Of8(steps) => steps.nearest(numbers),
        }
    }
}

impl<const N: usize> Steps<N> {
    /// Of values in ascending order, two more than twice the steps.
    fn of(values: &[i8]) -> Steps<N> {
        let above = values[N + 1..].iter().map(|&value| i32::from(value));
        let mut pairs = above.clone().zip(above.clone().skip(1));
        let step = |(lower, upper): (i32, i32)| ((lower + upper) as f32 / 2.0, upper - lower);
        let steps = std::array::from_fn(|_| pairs.next().map_or((f32::INFINITY, 0), step));
        Steps { first: values[N + 1].into(), steps }
    }

    /// The value nearest to each number.
    #[inline(always)]
    fn nearest<const LANES: usize>(&self, numbers: &[f32; LANES]) -> [f32; LANES] {
        let mut sizes = [self.first; LANES];
        for &(middle, rise) in &self.steps {
            for (size, number) in sizes.iter_mut().zip(numbers) {
                *size += if number.abs() > middle { rise } else { 0 };
            }
        }
        let mut nearest = [0.0; LANES];
        for ((nearest, size), &number) in nearest.iter_mut().zip(sizes).zip(numbers) {
            *nearest = (size as f32).copysign(number);
        }
        nearest
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
        for codes in DTYPES.map(|dtype| Codes::of(dtype).unwrap()) {
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
