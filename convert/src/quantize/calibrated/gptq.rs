//! Block after block, each with its best scales: what one column loses, later ones make up for (GPTQ, Frantar et al. 2023).

use smolrun::format::{BLOCK, PANEL};
use smolrun::{Kernels, PlainOp, one_by_one};

use super::super::codes::Codes;
use super::super::lanes::{Lanes, lanes};
use super::curvature::Curvature;
use super::state::State;

/// Where a block's largest number may go, as parts of the largest value.
const FRACTIONS: [[f32; SCALES]; 6] =
    [[0.66, 0.70], [0.74, 0.78], [0.82, 0.86], [0.90, 0.94], [0.98, 1.02], [1.06, 1.10]];
/// Scales tried side by side: each sum is a chain of additions, and the processor can work on two chains at once.
const SCALES: usize = 2;

/// Gives all blocks of some panels scales and values. `work`, `[states][places]`, is used up.
pub(super) fn quantize(
    codes: &Codes,
    curvature: &Curvature,
    kernels: Kernels,
    states: &mut [State],
    work: &mut [Lanes],
) {
    let places = curvature.places();
    for (state, work) in states.iter().zip(work.chunks_exact_mut(places)) {
        work.copy_from_slice(&state.numbers);
    }
    let mut errors = vec![[Lanes::ZERO; BLOCK]; states.len()];
    for block in 0..curvature.block_order.len() {
        let first = block * BLOCK;
        let carry = curvature.carry.diagonal_block(block);
        let Some(costs) = curvature.costs[first..].first_chunk() else { continue };
        for ((state, work), errors) in states.iter_mut().zip(work.chunks_exact(places)).zip(&mut errors) {
            let Some(wanted) = work[first..].first_chunk() else { continue };
            let Some(numbers) = state.numbers[first..].first_chunk() else { continue };
            kernels.compute(QuantizeBlock {
                rounding: Rounding { codes, carry: &carry, costs, unit: &state.unit, numbers, wanted },
                scale: &mut state.scales[block],
                values: &mut state.values[block],
                errors,
            });
        }
        curvature.carry.add_products(block, &errors, first + BLOCK, work);
    }
}

/// Quantizes a block of sixteen rows.
struct QuantizeBlock<'a> {
    rounding: Rounding<'a>,
    /// For each row the scale, in units, of those next to a few fractions of the full one, that costs least.
    scale: &'a mut Lanes,
    /// The values with these scales for what is wanted.
    values: &'a mut [Lanes; BLOCK],
    /// What these miss of the numbers.
    errors: &'a mut [Lanes; BLOCK],
}

impl PlainOp for QuantizeBlock<'_> {
    #[inline(always)]
    fn compute(self) {
        let QuantizeBlock { rounding, scale, values, errors } = self;
        let full = rounding.full_scale();
        let (mut best, mut least) = (Lanes([1.0; PANEL]), [f32::INFINITY; PANEL]);
        let mut tried =
            Rounded { values: [[Lanes::ZERO; SCALES]; BLOCK], errors: [[Lanes::ZERO; SCALES]; BLOCK] };
        for fractions in one_by_one(&FRACTIONS) {
            let scales = fractions.map(|fraction| lanes(|lane| State::whole_scale(full[lane] * fraction)));
            let costs = rounding.round(&scales, &mut tried);
            for (scale, cost) in scales.iter().zip(&costs) {
                for lane in 0..PANEL {
                    if cost[lane] < least[lane] {
                        (best[lane], least[lane]) = (scale[lane], cost[lane]);
                    }
                }
            }
        }
        let mut rounded = Rounded { values: [[Lanes::ZERO]; BLOCK], errors: [[Lanes::ZERO]; BLOCK] };
        rounding.round(&[best], &mut rounded);
        *scale = best;
        *values = rounded.values.map(|[values]| values);
        *errors = rounded.errors.map(|[errors]| errors);
    }
}

/// What a block of sixteen rows is rounded by.
struct Rounding<'a> {
    codes: &'a Codes,
    /// Row k has how much of the errors of the block's columns before k is made up for in k.
    carry: &'a [[f32; BLOCK]; BLOCK],
    /// What the square of an error costs in each column.
    costs: &'a [f32; BLOCK],
    /// Row scales.
    unit: &'a Lanes,
    numbers: &'a [Lanes; BLOCK],
    /// The same because of earlier errors.
    wanted: &'a [Lanes; BLOCK],
}

/// A block with each of `N` scales.
struct Rounded<const N: usize> {
    values: [[Lanes; N]; BLOCK],
    /// What these miss of the numbers.
    errors: [[Lanes; N]; BLOCK],
}

impl Rounding<'_> {
    /// The scales, in units, with which the largest of what is wanted becomes the largest value.
    #[inline(always)]
    fn full_scale(&self) -> Lanes {
        let mut full = Lanes::ZERO;
        for wanted in one_by_one(self.wanted) {
            full = lanes(|lane| f32::max(full[lane], wanted[lane].abs()));
        }
        let largest = self.codes.largest();
        lanes(|lane| full[lane] / largest / self.unit[lane])
    }

    /// Rounds the block with each of some scales. Returns what that costs.
    // Each step is a loop of its own over the scales, and writes whole lanes: only then does the compiler keep them in
    // registers.
    #[inline(always)]
    fn round<const N: usize>(&self, scales: &[Lanes; N], rounded: &mut Rounded<N>) -> [Lanes; N] {
        let (mut whole, mut factors, mut costs) = ([Lanes::ZERO; N], [Lanes::ZERO; N], [Lanes::ZERO; N]);
        for n in 0..N {
            whole[n] = lanes(|lane| scales[n][lane] * self.unit[lane]);
            factors[n] = lanes(|lane| 1.0 / whole[n][lane]);
        }
        for column in 0..BLOCK {
            let (earlier, later) = rounded.errors.split_at_mut(column);
            let mut wanted = [self.wanted[column]; N];
            for (error, &carry) in earlier.iter().zip(&self.carry[column]) {
                for n in 0..N {
                    for lane in 0..PANEL {
                        wanted[n][lane] += error[n][lane] * carry;
                    }
                }
            }
            let mut values = [Lanes::ZERO; N];
            for n in 0..N {
                let numbers = lanes(|lane| wanted[n][lane] * factors[n][lane]);
                values[n] = Lanes(self.codes.nearest_in_lanes(&numbers));
            }
            let (number, cost) = (self.numbers[column], self.costs[column]);
            let mut errors = [Lanes::ZERO; N];
            for n in 0..N {
                let stored = lanes(|lane| whole[n][lane] * values[n][lane]);
                let missed = lanes(|lane| wanted[n][lane] - stored[lane]);
                costs[n] = lanes(|lane| costs[n][lane] + missed[lane] * missed[lane] * cost);
                errors[n] = lanes(|lane| number[lane] - stored[lane]);
            }
            later[0] = errors;
            rounded.values[column] = values;
        }
        costs
    }
}

#[cfg(test)]
mod tests {
    use smolrun::format::Dtype;

    use super::*;

    /// Of a row what its block becomes with one scale, and what that costs, column by column.
    fn round(codes: &Codes, rounding: &Rounding, lane: usize, scale: f32) -> (f32, Vec<f32>, Vec<f32>) {
        let whole = scale * rounding.unit[lane];
        let (mut cost, mut values, mut errors) = (0.0, Vec::new(), Vec::new());
        for column in 0..BLOCK {
            let carried = errors.iter().zip(&rounding.carry[column]);
            let wanted =
                carried.fold(rounding.wanted[column][lane], |sum, (error, carry)| sum + error * carry);
            let [value] = codes.nearest_in_lanes(&[wanted * (1.0 / whole)]);
            let missed = wanted - whole * value;
            cost += missed * missed * rounding.costs[column];
            values.push(value);
            errors.push(rounding.numbers[column][lane] - whole * value);
        }
        (cost, values, errors)
    }

    #[test]
    fn a_block_gets_what_its_rows_get_one_by_one() {
        let number = |i: usize, k: usize| ((i * 37 + k * 101) % 199) as f32 / 99.0 - 1.0;
        let of_block = |first: usize| {
            std::array::from_fn(|column| lanes(|lane| number(first + column, lane) * number(column, first)))
        };
        let (numbers, wanted): ([Lanes; BLOCK], [Lanes; BLOCK]) = (of_block(3), of_block(11));
        let carry = std::array::from_fn(|row| std::array::from_fn(|column| number(row, column) * 0.3));
        let costs = std::array::from_fn(|column| number(column, 7).powi(2));
        for codes in [Dtype::Q3, Dtype::Q4, Dtype::Q5, Dtype::Q6].map(|dtype| Codes::of(dtype).unwrap()) {
            let unit = lanes(|lane| (1.0 + number(lane, 5) / 2.0) / (codes.largest() * 255.0));
            let rounding = || Rounding {
                codes: &codes,
                carry: &carry,
                costs: &costs,
                unit: &unit,
                numbers: &numbers,
                wanted: &wanted,
            };
            let full = rounding().full_scale();
            for kernels in Kernels::available() {
                let (mut scale, mut values, mut errors) =
                    (Lanes::ZERO, [Lanes::ZERO; BLOCK], [Lanes::ZERO; BLOCK]);
                kernels.compute(QuantizeBlock {
                    rounding: rounding(),
                    scale: &mut scale,
                    values: &mut values,
                    errors: &mut errors,
                });
                for lane in 0..PANEL {
                    let scales = FRACTIONS.iter().flatten().map(|part| State::whole_scale(full[lane] * part));
                    let tried = scales.map(|scale| (scale, round(&codes, &rounding(), lane, scale)));
                    let (expected, (_, of_row, missed)) =
                        tried.min_by(|(_, (one, ..)), (_, (other, ..))| one.total_cmp(other)).unwrap();
                    assert_eq!(scale[lane], expected, "{} {lane}", kernels.name());
                    assert_eq!(values.map(|values| values[lane]), *of_row);
                    assert_eq!(errors.map(|errors| errors[lane]), *missed);
                }
            }
        }
    }
}
