//! Codes changed one after the other, each to the one that costs least as all others are.

use smolrun::format::BLOCK;
use smolrun::{Kernels, PlainOp};

use super::super::codes::Codes;
use super::super::lanes::{Lanes, lanes};
use super::curvature::Curvature;
use super::state::State;

/// Leaves in `work`, `[states][places]`, the errors' products with the moments: half the gradient of the cost, with the other
/// sign.
pub(super) fn gradient(curvature: &Curvature, states: &[State], work: &mut [Lanes]) {
    work.fill(Lanes::ZERO);
    for block in 0..curvature.block_order.len() {
        let errors: Vec<_> = states.iter().map(|state| state.errors(block)).collect();
        curvature.moments.add_products(block, &errors, 0, work);
    }
}

/// One sweep over all columns, `work` being the gradient, which is kept so.
pub(super) fn sweep(
    codes: &Codes,
    curvature: &Curvature,
    kernels: Kernels,
    states: &mut [State],
    work: &mut [Lanes],
) {
    for block in 0..curvature.block_order.len() {
        let moments = curvature.moments.diagonal_block(block);
        for (state, work) in states.iter_mut().zip(work.chunks_exact_mut(curvature.places())) {
            let (scale, mut changes) = (state.scale(block), [Lanes::ZERO; BLOCK]);
            let Some(gradient) = work[block * BLOCK..].first_chunk() else { continue };
            let values = &mut state.values[block];
            kernels.compute(SweepBlock {
                codes,
                moments: &moments,
                scale,
                gradient,
                values,
                changes: &mut changes,
            });
            curvature.moments.add_few(block, &changes, work);
        }
    }
}

/// One sweep over a block of sixteen rows.
struct SweepBlock<'a> {
    codes: &'a Codes,
    moments: &'a [[f32; BLOCK]; BLOCK],
    scale: Lanes,
    gradient: &'a [Lanes; BLOCK],
    values: &'a mut [Lanes; BLOCK],
    /// By how much each error changed, at first nothing.
    changes: &'a mut [Lanes; BLOCK],
}

impl PlainOp for SweepBlock<'_> {
    #[inline(always)]
    fn compute(self) {
        let SweepBlock { codes, moments, scale, gradient, values, changes } = self;
        let inverse = lanes(|lane| 1.0 / scale[lane]);
        for column in 0..BLOCK {
            let own = moments[column][column];
            if own <= 0.0 {
                continue; // its codes cost nothing
            }
            let mut gradient = gradient[column];
            for (change, &moment) in changes.iter().zip(&moments[column][..column]) {
                gradient = lanes(|lane| gradient[lane] + change[lane] * moment);
            }
            let value = values[column];
            let step = 1.0 / own;
            let wanted = lanes(|lane| value[lane] + gradient[lane] * (step * inverse[lane]));
            let nearest = Lanes(codes.nearest_in_lanes(&wanted));
            changes[column] = lanes(|lane| (value[lane] - nearest[lane]) * scale[lane]);
            values[column] = nearest;
        }
    }
}
