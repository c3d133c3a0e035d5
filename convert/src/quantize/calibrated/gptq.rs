//! Block after block, each with its best scales: what one column loses, later ones make up for (GPTQ, Frantar et al. 2023).

use smolrun::format::{BLOCK, PANEL};

use super::super::codes::Codes;
use super::curvature::Curvature;
use super::lanes::{Lanes, lanes};
use super::state::State;

/// Where a block's largest number may go, as parts of the largest value.
const FRACTIONS: [f32; 12] = [0.66, 0.70, 0.74, 0.78, 0.82, 0.86, 0.90, 0.94, 0.98, 1.02, 1.06, 1.10];

/// Gives all blocks of some panels scales and values.
pub(super) fn quantize(codes: &Codes, curvature: &Curvature, states: &mut [State]) {
    for state in &mut *states {
        state.work.copy_from_slice(&state.numbers);
    }
    for block in 0..curvature.block_order.len() {
        let first = block * BLOCK;
        let trial = Trial {
            codes,
            carry: std::array::from_fn(|row| {
                std::array::from_fn(|column| curvature.carry.at(first + row, first + column))
            }),
            costs: &curvature.costs[first..first + BLOCK],
        };
        for state in &mut *states {
            let (done, later) = state.work.split_at_mut(first + BLOCK);
            let Some(wanted) = done.last_chunk::<BLOCK>() else { continue };
            let Some(numbers) = state.numbers[first..].first_chunk::<BLOCK>() else { continue };
            let scale = trial.best_scale(numbers, wanted, &state.unit);
            let whole = lanes(|lane| scale[lane] * state.unit[lane]);
            let (values, errors, _) = trial.round(numbers, wanted, &whole);
            state.scales[block] = scale;
            state.values[block] = values;
            curvature.carry.add_product(block, &errors, first + BLOCK, later);
        }
    }
}

/// How a block of sixteen rows is quantized.
struct Trial<'a> {
    codes: &'a Codes,
    /// Row k has how much of the errors of the block's columns before k is made up for in k.
    carry: [[f32; BLOCK]; BLOCK],
    costs: &'a [f32],
}

impl Trial<'_> {
    /// For each row the scale, in units, of those next to a few fractions of the full one, that costs least.
    fn best_scale(&self, numbers: &[Lanes; BLOCK], wanted: &[Lanes; BLOCK], unit: &Lanes) -> Lanes {
        let mut full = [0.0; PANEL];
        for wanted in wanted {
            full = lanes(|lane| f32::max(full[lane], wanted[lane].abs()));
        }
        let largest = self.codes.largest();
        let full = lanes(|lane| full[lane] / largest / unit[lane]);
        let (mut best, mut least) = ([1.0; PANEL], [f32::INFINITY; PANEL]);
        for fraction in FRACTIONS {
            let scale = full.map(|full| State::whole_scale(full * fraction));
            let (.., cost) = self.round(numbers, wanted, &lanes(|lane| scale[lane] * unit[lane]));
            for lane in 0..PANEL {
                if cost[lane] < least[lane] {
                    (best[lane], least[lane]) = (scale[lane], cost[lane]);
                }
            }
        }
        best
    }

    /// The values with these scales for what is `wanted` because of earlier errors, what these miss of the numbers, and
    /// what the rounding costs.
    fn round(
        &self,
        numbers: &[Lanes; BLOCK],
        wanted: &[Lanes; BLOCK],
        scale: &Lanes,
    ) -> ([Lanes; BLOCK], [Lanes; BLOCK], Lanes) {
        let factor = scale.map(|scale| 1.0 / scale);
        let (mut values, mut errors, mut cost) = ([[0.0; PANEL]; BLOCK], [[0.0; PANEL]; BLOCK], [0.0; PANEL]);
        for column in 0..BLOCK {
            let mut wanted = wanted[column];
            for (error, &carry) in errors.iter().zip(&self.carry[column][..column]) {
                wanted = lanes(|lane| wanted[lane] + error[lane] * carry);
            }
            let value = self.codes.nearest_in_lanes(&lanes(|lane| wanted[lane] * factor[lane]));
            let stored = lanes(|lane| scale[lane] * value[lane]);
            let missed = lanes(|lane| wanted[lane] - stored[lane]);
            cost = lanes(|lane| cost[lane] + missed[lane] * missed[lane] * self.costs[column]);
            (values[column], errors[column]) = (value, lanes(|lane| numbers[column][lane] - stored[lane]));
        }
        (values, errors, cost)
    }
}
