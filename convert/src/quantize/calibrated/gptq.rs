//! Block after block, each with its best scales: what one column loses, later ones make up for (GPTQ, Frantar et al. 2023).

use smolrun::format::{BLOCK, PANEL};
use smolrun::{Kernels, PlainOp, one_by_one};

use super::super::codes::Codes;
use super::curvature::Curvature;
use super::lanes::{Lanes, lanes};
use super::state::State;

/// Where a block's largest number may go, as parts of the largest value.
const FRACTIONS: [f32; 12] = [0.66, 0.70, 0.74, 0.78, 0.82, 0.86, 0.90, 0.94, 0.98, 1.02, 1.06, 1.10];

/// Gives all blocks of some panels scales and values.
pub(super) fn quantize(codes: &Codes, curvature: &Curvature, kernels: Kernels, states: &mut [State]) {
    for state in &mut *states {
        state.work.copy_from_slice(&state.numbers);
    }
    for block in 0..curvature.block_order.len() {
        let first = block * BLOCK;
        let carry = std::array::from_fn(|row| {
            std::array::from_fn(|column| curvature.carry.at(first + row, first + column))
        });
        let Some(costs) = curvature.costs[first..].first_chunk() else { continue };
        for state in &mut *states {
            let (done, later) = state.work.split_at_mut(first + BLOCK);
            let Some(wanted) = done.last_chunk() else { continue };
            let Some(numbers) = state.numbers[first..].first_chunk() else { continue };
            let mut errors = [[0.0; PANEL]; BLOCK];
            kernels.compute(QuantizeBlock {
                codes,
                carry: &carry,
                costs,
                unit: &state.unit,
                numbers,
                wanted,
                scale: &mut state.scales[block],
                values: &mut state.values[block],
                errors: &mut errors,
            });
            curvature.carry.add_product(block, &errors, first + BLOCK, later);
        }
    }
}

/// Quantizes a block of sixteen rows.
struct QuantizeBlock<'a> {
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
    /// For each row the scale, in units, of those next to a few fractions of the full one, that costs least.
    scale: &'a mut Lanes,
    /// The values with these scales for what is wanted.
    values: &'a mut [Lanes; BLOCK],
    /// What these miss of the numbers.
    errors: &'a mut [Lanes; BLOCK],
}

impl PlainOp for QuantizeBlock<'_> {
    #[inline(always)]
    fn compute(mut self) {
        let mut full = [0.0; PANEL];
        for wanted in one_by_one(self.wanted) {
            full = lanes(|lane| f32::max(full[lane], wanted[lane].abs()));
        }
        let largest = self.codes.largest();
        let full = lanes(|lane| full[lane] / largest / self.unit[lane]);
        let (mut best, mut least) = ([1.0; PANEL], [f32::INFINITY; PANEL]);
        for &fraction in one_by_one(&FRACTIONS) {
            let scale = lanes(|lane| State::whole_scale(full[lane] * fraction));
            let cost = self.round(&scale);
            for lane in 0..PANEL {
                if cost[lane] < least[lane] {
                    (best[lane], least[lane]) = (scale[lane], cost[lane]);
                }
            }
        }
        *self.scale = best;
        self.round(&best);
    }
}

impl QuantizeBlock<'_> {
    /// Finds the values with this scale, and what they miss. Returns what the rounding costs.
    #[inline(always)]
    fn round(&mut self, scale: &Lanes) -> Lanes {
        let scale = lanes(|lane| scale[lane] * self.unit[lane]);
        let factor = lanes(|lane| 1.0 / scale[lane]);
        let mut cost = [0.0; PANEL];
        for column in 0..BLOCK {
            let mut wanted = self.wanted[column];
            for (error, &carry) in self.errors.iter().zip(&self.carry[column][..column]) {
                wanted = lanes(|lane| wanted[lane] + error[lane] * carry);
            }
            let value = self.codes.nearest_in_lanes(&lanes(|lane| wanted[lane] * factor[lane]));
            let stored = lanes(|lane| scale[lane] * value[lane]);
            let missed = lanes(|lane| wanted[lane] - stored[lane]);
            cost = lanes(|lane| cost[lane] + missed[lane] * missed[lane] * self.costs[column]);
            self.values[column] = value;
            self.errors[column] = lanes(|lane| self.numbers[column][lane] - stored[lane]);
        }
        cost
    }
}
