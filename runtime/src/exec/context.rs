//! The steps of a forward pass, split over the worker pool.

use super::buffer::Buffer;
use super::fast::Rounding;
use super::pool::{Columns, Pool};
use super::scratch::{Worker, piece_panels};
use crate::kernels::{
    ActivationBlock, ActivationTile, Add, ByteTile, InverseRms, Kernels, LANES, Panels, ScaleRows, SiluMul,
    SplitTile,
};

/// Pieces per thread that a step is cut into: more even out a thread that is held up, fewer cost less to hand out.
const TASKS_PER_THREAD: usize = 2;
/// The same for steps of at least [`LARGE_WORK`] multiplications: many rows of a prompt.
const TASKS_PER_THREAD_IF_LARGE: usize = 4;
const LARGE_WORK: usize = 1 << 26;
/// What normalizing, rounding, turning, copying or storing an activation takes, in multiplications of a product.
const ELEMENT_WORK: usize = 16;
/// Multiplications below which a step is not worth handing out.
const SERIAL_WORK: usize = 1 << 17;

/// An instruction set and the threads to use it on.
pub(crate) struct ExecContext {
    pub kernels: Kernels,
    pub pool: Pool,
    /// Where products of many rows with bf16 weights are not exact.
    pub rounding: Option<Rounding>,
    /// Quantized activations, where a matrix is quantized.
    pub quantized: Option<QuantizedActivations>,
}

/// Activations rounded to whole numbers for products with quantized matrices: for few rows, or in tiles for many.
#[derive(Default)]
pub(crate) struct QuantizedActivations {
    pub blocks: Buffer<ActivationBlock>,
    pub split_tiles: Buffer<SplitTile>,
    pub tiles: Buffer<ActivationTile>,
    pub byte_tiles: Buffer<ByteTile>,
}

impl ExecContext {
    /// How many tasks to cut a step of `work` multiplications into.
    pub(crate) fn tasks(&self, work: usize) -> usize {
        let for_each = match work {
            ..SERIAL_WORK => return 1,
            SERIAL_WORK..LARGE_WORK => TASKS_PER_THREAD,
            LARGE_WORK.. => TASKS_PER_THREAD_IF_LARGE,
        };
        self.pool.threads() * for_each
    }

    /// The same for a step that changes so many activations one by one.
    pub(crate) fn element_tasks(&self, elements: usize) -> usize {
        self.tasks(elements.saturating_mul(ELEMENT_WORK))
    }

    /// `y = w x + bias`, where there is one.
    pub(crate) fn project(
        &mut self,
        w: Panels<'_>,
        bias: Option<&[f32]>,
        x: &[f32],
        rows: usize,
        y: &mut [f32],
    ) {
        let (panel, tasks) = (rows * LANES, self.tasks(w.len() * rows));
        let (x, pool) = self.input(w, x, rows);
        pool.split(y, panel, tasks, move |first, y| {
            x.matmul(w.slice(first, y.len() / panel), y);
            add_bias(y, panel, bias, first);
        });
    }

    /// `y = w x` by row: `y` has a row for each row of `x`, and a column for each output of `w`.
    pub(crate) fn project_by_row(
        &mut self,
        w: Panels<'_>,
        x: &[f32],
        y: Columns<'_, f32>,
        workers: &mut [Worker],
    ) {
        let (rows, tasks) = (y.rows(), self.tasks(w.len() * y.rows()));
        let (x, pool) = self.input(w, x, rows);
        pool.split_columns(y, LANES, tasks, workers, move |first, mut y, worker| {
            let (count, most) = (y.count() / LANES, piece_panels(rows));
            for done in (0..count).step_by(most) {
                let now = most.min(count - done);
                let piece = &mut worker.piece[..now * rows * LANES];
                x.matmul(w.slice(first + done, now), piece);
                for row in 0..rows {
                    copy_row(piece, rows, row, &mut y.row(row)[done * LANES..][..now * LANES], 1, 0);
                }
            }
        });
    }

    /// `y = RMSNorm(x) * weight`
    pub(crate) fn rms_norm(
        &mut self,
        x: &[f32],
        weight: &[f32],
        eps: f32,
        inverse_rms: &mut [f32],
        y: &mut [f32],
    ) {
        let (kernels, rows, tasks) = (self.kernels, inverse_rms.len(), self.element_tasks(x.len()));
        self.pool.split(inverse_rms, 1, tasks, move |first, y| {
            kernels.run(InverseRms { x, rows, features: weight.len(), eps, first, y });
        });
        let scales = &*inverse_rms;
        self.pool.split(y, rows * LANES, tasks, move |first, y| {
            let (x, weight) = (&x[first * rows * LANES..][..y.len()], &weight[first * LANES..]);
            kernels.run(ScaleRows { x, scales, weight, y });
        });
    }

    /// `sum += w x + bias`, where there is one: the chain of a product starts from zero, not from what it is added to.
    pub(crate) fn project_add(
        &mut self,
        w: Panels<'_>,
        bias: Option<&[f32]>,
        x: &[f32],
        rows: usize,
        sum: &mut [f32],
        workers: &mut [Worker],
    ) {
        let (kernels, panel, tasks) = (self.kernels, rows * LANES, self.tasks(w.len() * rows));
        let (x, pool) = self.input(w, x, rows);
        pool.split_with(sum, panel, tasks, workers, move |first, sum, worker| {
            let most = piece_panels(rows);
            for (i, sum) in sum.chunks_mut(most * panel).enumerate() {
                let delta = &mut worker.piece[..sum.len()];
                let w = w.slice(first + i * most, sum.len() / panel);
                x.matmul(w, delta);
                add_bias(delta, panel, bias, first + i * most);
                kernels.run(Add { x: sum, delta });
            }
        });
    }

    /// `y = silu(gate x) * (up x)` for panels of gate and up in turn, with the biases of both, where there are any.
    pub(crate) fn project_gated(
        &mut self,
        w: Panels<'_>,
        bias: Option<[&[f32]; 2]>,
        x: &[f32],
        rows: usize,
        y: &mut [f32],
        workers: &mut [Worker],
    ) {
        let (kernels, panel, tasks) = (self.kernels, rows * LANES, self.tasks(w.len() * rows));
        let (x, pool) = self.input(w, x, rows);
        pool.split_with(y, panel, tasks, workers, move |first, y, worker| {
            let most = piece_panels(rows) / 2;
            for (i, y) in y.chunks_mut(most * panel).enumerate() {
                let gate_up = &mut worker.piece[..2 * y.len()];
                let w = w.slice(2 * (first + i * most), 2 * (y.len() / panel));
                x.matmul(w, gate_up);
                add_biases(gate_up, panel, bias, first + i * most);
                kernels.run(SiluMul { gate_up, rows, y });
            }
        });
    }
}

/// Copies row `row` of `rows` into row `to_row` of `to_rows`: both `[panels][rows][16]`.
pub(crate) fn copy_row(from: &[f32], rows: usize, row: usize, to: &mut [f32], to_rows: usize, to_row: usize) {
    let panels = from.chunks_exact(rows * LANES).zip(to.chunks_exact_mut(to_rows * LANES));
    for (from, to) in panels {
        to[to_row * LANES..][..LANES].copy_from_slice(&from[row * LANES..][..LANES]);
    }
}

/// Adds their part of `bias`, a value for each feature, to the panels from `first` on: `y`: `[panels][rows][16]`.
fn add_bias(y: &mut [f32], panel: usize, bias: Option<&[f32]>, first: usize) {
    let Some(bias) = bias else { return };
    for (y, bias) in y.chunks_exact_mut(panel).zip(bias[first * LANES..].chunks(LANES)) {
        add_to_rows(y, bias);
    }
}

/// The same for two vectors whose panels lie in turn.
fn add_biases(y: &mut [f32], panel: usize, biases: Option<[&[f32]; 2]>, first: usize) {
    let Some(biases) = biases else { return };
    let [gate, up] = biases.map(|bias| bias[first * LANES..].chunks(LANES));
    for (y, (gate, up)) in y.chunks_exact_mut(2 * panel).zip(gate.zip(up)) {
        let (of_gate, of_up) = y.split_at_mut(panel);
        add_to_rows(of_gate, gate);
        add_to_rows(of_up, up);
    }
}

/// Adds `bias` to each row of a panel; the last panel may have more lanes than there are features.
fn add_to_rows(panel: &mut [f32], bias: &[f32]) {
    for row in panel.chunks_exact_mut(LANES) {
        row.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
    }
}
