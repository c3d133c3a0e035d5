//! A model's matrix: its products with activations, and with gradients.

use half::bf16;
use rayon::prelude::*;
use smolrun::format::{BLOCK, Dtype, MatrixSection, PANEL, QuantizedPanels};
use smolrun::{Kernels, Model, PlainOp};

use super::super::panel;
use super::adam::Rate;
use super::panels::{Lanes, transposed, zeroes};
use super::scales::Scales;

/// Panels that are multiplied together: those whose numbers fit the second-level cache.
const TOGETHER: usize = 2;
/// Panels whose numbers are in memory at once as f32, for products with gradients.
const PIECE: usize = 64;

/// `[outputs, inputs]`, in panels.
#[derive(Debug)]
pub(super) struct Matrix<'m> {
    numbers: Numbers<'m>,
    inputs: usize,
    pub(super) panels: usize,
}

#[derive(Debug)]
enum Numbers<'m> {
    /// `[panels][inputs][16]`
    F32(&'m [Lanes]),
    /// `[panels][inputs/2][16][2]`
    Bf16(&'m [[[u16; 2]; PANEL]]),
    Quantized(Box<Quantized>),
}

/// A quantized section in memory.
#[derive(Debug)]
pub(super) struct Quantized {
    layout: QuantizedPanels,
    pub(super) bytes: Vec<u8>,
    /// What the codes stand for, `[panels][blocks][32][16]`.
    values: Vec<[i8; PANEL]>,
    pub(super) scales: Scales,
}

impl<'m> Matrix<'m> {
    /// A section of `model` with so many inputs.
    pub(super) fn new(model: &'m Model, section: &MatrixSection, inputs: usize) -> Matrix<'m> {
        let bytes = &model.storage().bytes()[section.range.clone()];
        let numbers = match QuantizedPanels::new(section.dtype, inputs) {
            Some(layout) => Numbers::Quantized(Box::new(Quantized::new(layout, section.dtype, bytes))),
            None if section.dtype == Dtype::Bf16 => Numbers::Bf16(bytemuck::cast_slice(bytes)),
            None => Numbers::F32(bytemuck::cast_slice(bytes)),
        };
        let panels = match &numbers {
            Numbers::F32(numbers) => numbers.len() / inputs,
            Numbers::Bf16(pairs) => pairs.len() * 2 / inputs,
            Numbers::Quantized(quantized) => quantized.values.len() / (quantized.layout.blocks * BLOCK),
        };
        Matrix { numbers, inputs, panels }
    }

    /// What is tuned, if it is quantized.
    pub(super) fn quantized(&self) -> Option<&Quantized> {
        match &self.numbers {
            Numbers::Quantized(quantized) => Some(quantized),
            _ => None,
        }
    }

    /// Its outputs for activations `x`, `[inputs/16, rounded up][rows][16]`: `[panels][rows][16]`.
    pub(super) fn product(&self, kernels: Kernels, x: &[f32], rows: usize) -> Vec<f32> {
        let mut y = zeroes(self.panels * rows * PANEL);
        self.add_product(kernels, x, rows, &mut y);
        y
    }

    /// Adds them to `y`.
    pub(super) fn add_product(&self, kernels: Kernels, x: &[f32], rows: usize, y: &mut [f32]) {
        let groups = y.par_chunks_mut(TOGETHER * rows * PANEL).enumerate();
        groups.for_each_init(Vec::new, |w, (group, y)| {
            let panels = y.len() / (rows * PANEL);
            self.write(kernels, group * TOGETHER, panels, self.inputs, w);
            kernels.add_product(w.as_flattened(), self.inputs, x, rows, y);
        });
    }

    /// For inputs `x`, the gradient `dy` of the outputs as that of the inputs, like these; keeps that of the scales.
    pub(super) fn backward(&mut self, kernels: Kernels, x: &[f32], dy: &[f32], rows: usize) -> Vec<f32> {
        let mut dx = zeroes(x.len());
        let x = transposed(x, rows);
        self.add_backward(kernels, &x, dy, rows, &mut dx);
        dx
    }

    /// The same for inputs that are transposed already, `[rows/16, rounded up][inputs, padded to 16][16]`; adds to `dx`.
    pub(super) fn add_backward(
        &mut self,
        kernels: Kernels,
        x: &[f32],
        dy: &[f32],
        rows: usize,
        dx: &mut [f32],
    ) {
        let columns = self.inputs.next_multiple_of(PANEL);
        let mut w = Vec::new();
        for first in (0..self.panels).step_by(PIECE) {
            let panels = PIECE.min(self.panels - first);
            self.write_all(kernels, first, panels, columns, &mut w);
            let dy = &dy[first * rows * PANEL..][..panels * rows * PANEL];
            let outputs = panels * PANEL;
            let across = transposed(w.as_flattened(), columns);
            let parts =
                across.par_chunks(TOGETHER * outputs * PANEL).zip(dx.par_chunks_mut(TOGETHER * rows * PANEL));
            parts.for_each(|(w, dx)| kernels.add_product(w, outputs, dy, rows, dx));
            if let Numbers::Quantized(quantized) = &mut self.numbers {
                let blocks = quantized.layout.blocks;
                let gradient = &mut quantized.scales.gradient[first * blocks..][..panels * blocks];
                let parts = gradient
                    .par_chunks_mut(TOGETHER * blocks)
                    .zip(w.par_chunks(TOGETHER * columns))
                    .zip(dy.par_chunks(TOGETHER * rows * PANEL));
                parts.for_each_init(Vec::new, |dw, ((gradient, w), dy)| {
                    dw.clear();
                    dw.resize(w.len(), [0.0; PANEL]);
                    kernels.add_product(dy, rows, x, columns, dw.as_flattened_mut());
                    kernels.compute(AtScales { w, dw, columns, gradient });
                });
            }
        }
    }

    /// Adds what the gradient at row `row`, `column` of the activations `dx`, is at the scales, where these are the row's numbers.
    pub(super) fn add_row_gradient(
        &mut self,
        kernels: Kernels,
        row: usize,
        dx: &[f32],
        rows: usize,
        column: usize,
    ) {
        let (panel, lane) = (row / PANEL, row % PANEL);
        let mut w = Vec::new();
        self.write(kernels, panel, 1, self.inputs, &mut w);
        if let Numbers::Quantized(quantized) = &mut self.numbers {
            let blocks = quantized.layout.blocks;
            let gradient = &mut quantized.scales.gradient[panel * blocks..][..blocks];
            for (input, w) in w.iter().enumerate() {
                let dx = dx[(input / PANEL * rows + column) * PANEL + input % PANEL];
                gradient[input / BLOCK][lane] += w[lane] * dx;
            }
        }
    }

    /// Writes row `row` to `column` of the activations `x`, `[inputs/16, rounded up][rows][16]`, which are zero.
    pub(super) fn copy_row(&self, kernels: Kernels, row: usize, x: &mut [f32], rows: usize, column: usize) {
        let mut w = Vec::new();
        self.write(kernels, row / PANEL, 1, self.inputs, &mut w);
        for (input, w) in w.iter().enumerate() {
            x[(input / PANEL * rows + column) * PANEL + input % PANEL] = w[row % PANEL];
        }
    }

    /// Follows the gradient and forgets it.
    pub(super) fn step(&mut self, rate: Rate) {
        if let Numbers::Quantized(quantized) = &mut self.numbers {
            let Quantized { layout, bytes, scales, .. } = &mut **quantized;
            scales.step(rate, &mut bytes[layout.values_len..]);
        }
    }

    /// Some panels as f32, `[panels][columns][16]`, zero past the last input.
    fn write(&self, kernels: Kernels, first: usize, panels: usize, columns: usize, to: &mut Vec<Lanes>) {
        to.clear();
        to.resize(panels * columns, [0.0; PANEL]);
        (first..)
            .zip(to.chunks_exact_mut(columns))
            .for_each(|(panel, to)| self.write_panel(kernels, panel, to));
    }

    /// The same by all threads.
    fn write_all(&self, kernels: Kernels, first: usize, panels: usize, columns: usize, to: &mut Vec<Lanes>) {
        to.clear();
        to.resize(panels * columns, [0.0; PANEL]);
        let panels = to.par_chunks_exact_mut(columns).enumerate();
        panels.for_each(|(panel, to)| self.write_panel(kernels, first + panel, to));
    }

    fn write_panel(&self, kernels: Kernels, panel: usize, to: &mut [Lanes]) {
        let inputs = self.inputs;
        match &self.numbers {
            Numbers::F32(numbers) => to[..inputs].copy_from_slice(&numbers[panel * inputs..][..inputs]),
            Numbers::Bf16(pairs) => {
                kernels.compute(Widen { pairs: &pairs[panel * inputs / 2..][..inputs / 2], to })
            }
            Numbers::Quantized(quantized) => {
                let Quantized { layout, bytes, values, .. } = &**quantized;
                let columns = layout.blocks * BLOCK;
                let scales = &bytes[layout.values_len + panel * layout.panel_len..][..layout.scales_len];
                let row_scales = scales[QuantizedPanels::ROW_SCALES].as_chunks::<2>().0;
                kernels.compute(Dequantize {
                    row_scales: std::array::from_fn(|row| bf16::from_le_bytes(row_scales[row]).to_f32()),
                    block_scales: scales[layout.block_scales()].as_chunks().0,
                    values: &values[panel * columns..][..inputs],
                    to,
                });
            }
        }
    }
}

impl Quantized {
    fn new(layout: QuantizedPanels, dtype: Dtype, bytes: &[u8]) -> Quantized {
        let (table, panels) = bytes.split_at(layout.values_len);
        let values = panels.par_chunks_exact(layout.panel_len).flat_map_iter(|panel| {
            let codes = panel[layout.scales_len..].chunks_exact(layout.block_len);
            codes.flat_map(|block| panel::values(dtype, table, block))
        });
        Quantized {
            layout,
            values: values.collect(),
            scales: Scales::new(layout, panels),
            bytes: bytes.to_vec(),
        }
    }
}

struct Widen<'a> {
    pairs: &'a [[[u16; 2]; PANEL]],
    to: &'a mut [Lanes],
}

impl PlainOp for Widen<'_> {
    #[inline(always)]
    fn compute(self) {
        for (pairs, to) in self.pairs.iter().zip(self.to.as_chunks_mut::<2>().0) {
            for lane in 0..PANEL {
                to[0][lane] = f32::from_bits(u32::from(pairs[lane][0]) << 16);
                to[1][lane] = f32::from_bits(u32::from(pairs[lane][1]) << 16);
            }
        }
    }
}

struct Dequantize<'a> {
    row_scales: Lanes,
    /// Of each block.
    block_scales: &'a [[u8; PANEL]],
    /// `[columns]`
    values: &'a [[i8; PANEL]],
    to: &'a mut [Lanes],
}

impl PlainOp for Dequantize<'_> {
    #[inline(always)]
    fn compute(self) {
        let Dequantize { row_scales, block_scales, values, to } = self;
        for ((values, to), block) in values.chunks(BLOCK).zip(to.chunks_mut(BLOCK)).zip(block_scales) {
            let mut scales = row_scales;
            for lane in 0..PANEL {
                scales[lane] *= f32::from(block[lane]);
            }
            for (values, to) in values.iter().zip(to) {
                for lane in 0..PANEL {
                    to[lane] = f32::from(values[lane]) * scales[lane];
                }
            }
        }
    }
}

/// Adds up what the gradient of the numbers of some panels is at the logarithms of their blocks' scales.
struct AtScales<'a> {
    /// `[panels][columns]`
    w: &'a [Lanes],
    dw: &'a [Lanes],
    columns: usize,
    /// `[panels][blocks]`
    gradient: &'a mut [Lanes],
}

impl PlainOp for AtScales<'_> {
    #[inline(always)]
    fn compute(self) {
        let AtScales { w, dw, columns, gradient } = self;
        let blocks = columns.div_ceil(BLOCK);
        let panels =
            w.chunks_exact(columns).zip(dw.chunks_exact(columns)).zip(gradient.chunks_exact_mut(blocks));
        for ((w, dw), gradient) in panels {
            for ((w, dw), gradient) in w.chunks(BLOCK).zip(dw.chunks(BLOCK)).zip(gradient) {
                let mut sums = *gradient;
                for (w, dw) in w.iter().zip(dw) {
                    for lane in 0..PANEL {
                        sums[lane] += w[lane] * dw[lane];
                    }
                }
                *gradient = sums;
            }
        }
    }
}
