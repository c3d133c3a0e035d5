//! `silu(gate) * up`, there and back.

use rayon::prelude::*;
use smolrun::format::PANEL;
use smolrun::{Kernels, PlainOp, exp};

use super::panels::Lanes;

/// Of gate and up, panels of both in turn, `[2 features/16][rows][16]`: `[features/16][rows][16]`.
pub(super) fn forward(kernels: Kernels, gate_up: &[f32], rows: usize) -> Vec<f32> {
    let mut hidden = vec![0.0; gate_up.len() / 2];
    let panels = gate_up.par_chunks_exact(2 * rows * PANEL).zip(hidden.par_chunks_exact_mut(rows * PANEL));
    panels.for_each(|(gate_up, hidden)| {
        let (gate, up) = gate_up.as_chunks().0.split_at(rows);
        kernels.compute(Gated { gate, up, hidden: hidden.as_chunks_mut().0 });
    });
    hidden
}

/// The gradient `d_hidden` as that of gate and up.
pub(super) fn backward(kernels: Kernels, gate_up: &[f32], d_hidden: &[f32], rows: usize) -> Vec<f32> {
    let mut d_gate_up = vec![0.0; gate_up.len()];
    let panels =
        gate_up.par_chunks_exact(2 * rows * PANEL).zip(d_gate_up.par_chunks_exact_mut(2 * rows * PANEL));
    panels.zip(d_hidden.par_chunks_exact(rows * PANEL)).for_each(|((gate_up, d_gate_up), d_hidden)| {
        let (gate, up) = gate_up.as_chunks().0.split_at(rows);
        let (d_gate, d_up) = d_gate_up.as_chunks_mut().0.split_at_mut(rows);
        kernels.compute(AtGateUp { gate, up, d_hidden: d_hidden.as_chunks().0, d_gate, d_up });
    });
    d_gate_up
}

struct Gated<'a> {
    gate: &'a [Lanes],
    up: &'a [Lanes],
    hidden: &'a mut [Lanes],
}

impl PlainOp for Gated<'_> {
    #[inline(always)]
    fn compute(self) {
        for ((gate, up), hidden) in self.gate.iter().zip(self.up).zip(self.hidden) {
            for lane in 0..PANEL {
                hidden[lane] = gate[lane] / (1.0 + exp(-gate[lane])) * up[lane];
            }
        }
    }
}

struct AtGateUp<'a> {
    gate: &'a [Lanes],
    up: &'a [Lanes],
    d_hidden: &'a [Lanes],
    d_gate: &'a mut [Lanes],
    d_up: &'a mut [Lanes],
}

impl PlainOp for AtGateUp<'_> {
    #[inline(always)]
    fn compute(self) {
        let AtGateUp { gate, up, d_hidden, d_gate, d_up } = self;
        let from = gate.iter().zip(up).zip(d_hidden);
        for (((gate, up), d_hidden), (d_gate, d_up)) in from.zip(d_gate.iter_mut().zip(d_up)) {
            for lane in 0..PANEL {
                let sigmoid = 1.0 / (1.0 + exp(-gate[lane]));
                let silu = gate[lane] * sigmoid;
                d_up[lane] = d_hidden[lane] * silu;
                d_gate[lane] = d_hidden[lane] * up[lane] * (sigmoid + silu * (1.0 - sigmoid));
            }
        }
    }
}
