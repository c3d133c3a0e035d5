//! Matrix products split over the worker pool.

use crate::kernels::{Kernels, LANES, Panels};
use crate::pool::Pool;

/// Pieces per thread that a step is cut into: more even out a thread that is held up, fewer cost less to hand out.
const TASKS_PER_THREAD: usize = 4;
/// Multiplications below which a step is not worth handing out.
const SERIAL_WORK: usize = 1 << 17;

/// An instruction set and the threads to use it on.
pub(super) struct Team {
    pub kernels: Kernels,
    pub pool: Pool,
}

impl Team {
    /// How many tasks to cut a step of `work` multiplications into.
    pub(super) fn tasks(&self, work: usize) -> usize {
        if work < SERIAL_WORK { 1 } else { self.pool.threads() * TASKS_PER_THREAD }
    }

    /// `y = w x`
    pub(super) fn project(&mut self, w: Panels<'_>, x: &[f32], rows: usize, y: &mut [f32]) {
        let (kernels, panel) = (self.kernels, rows * LANES);
        self.pool.split(y, panel, self.tasks(w.len() * rows), |first, y| {
            kernels.matmul(w.slice(first, y.len() / panel), x, rows, y, false);
        });
    }

    /// `sum += w x`, with `w x` left in `delta`: the chain of a product starts from zero, not from what it is added to.
    pub(super) fn project_add(
        &mut self,
        w: Panels<'_>,
        x: &[f32],
        rows: usize,
        delta: &mut [f32],
        sum: &mut [f32],
    ) {
        let (kernels, panel, tasks) = (self.kernels, rows * LANES, self.tasks(w.len() * rows));
        self.pool.split_two(delta, panel, sum, panel, tasks, |first, delta, sum| {
            kernels.matmul(w.slice(first, delta.len() / panel), x, rows, delta, false);
            kernels.add(sum, delta);
        });
    }

    /// `y = silu(gate x) * (up x)` for panels of gate and up in turn, with both products left in `gate_up`.
    pub(super) fn project_gated(
        &mut self,
        w: Panels<'_>,
        x: &[f32],
        rows: usize,
        gate_up: &mut [f32],
        y: &mut [f32],
    ) {
        let (kernels, panel, tasks) = (self.kernels, rows * LANES, self.tasks(w.len() * rows));
        self.pool.split_two(gate_up, 2 * panel, y, panel, tasks, |first, gate_up, y| {
            kernels.matmul(w.slice(2 * first, gate_up.len() / panel), x, rows, gate_up, false);
            kernels.silu_mul(gate_up, rows, y);
        });
    }
}
