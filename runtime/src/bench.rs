//! The kernels for `benches/kernels.rs`, which is outside of the crate. Not part of the API.

use crate::kernels::{Elements, Kernels, LANES, Panels};
use crate::storage::AlignedBuf;

/// A matrix of zeroes.
pub struct Matrix {
    dtype: &'static str,
    data: AlignedBuf<f32>,
    inputs: usize,
}

impl Matrix {
    /// `[outputs, inputs]` of `f32`, `bf16` or `f16`; outputs a multiple of 16, inputs of 2.
    pub fn new(dtype: &'static str, outputs: usize, inputs: usize) -> Matrix {
        let len = outputs * inputs / if dtype == "f32" { 1 } else { 2 };
        let mut data = AlignedBuf::zeroed(len).expect("a benchmark has memory");
        data.fill(0.0); // so that each page is one of its own
        Matrix { dtype, data, inputs }
    }

    /// Bytes of its numbers.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.data)
    }

    /// `y = matrix x` for `rows` rows: `x`: `[inputs/16][rows][16]`, `y`: `[outputs/16][rows][16]`.
    pub fn product(&self, kernels: Kernels, x: &[f32], rows: usize, y: &mut [f32]) {
        let data = match self.dtype {
            "f32" => Elements::F32(&self.data),
            "bf16" => Elements::Bf16(bytemuck::cast_slice(&self.data)),
            _ => Elements::F16(bytemuck::cast_slice(&self.data)),
        };
        kernels.matmul(Panels { data, inputs: self.inputs }, x, rows, y, false);
    }
}

/// `y = x * scales[row] * weight[feature]` after the scales: `x`, `y`: `[features/16][rows][16]`.
pub fn rms_norm(kernels: Kernels, x: &[f32], weight: &[f32], scales: &mut [f32], y: &mut [f32]) {
    kernels.inverse_rms(x, scales.len(), weight.len(), 1e-5, 0, scales);
    kernels.scale_rows(x, scales, weight, y);
}

/// `y = silu(gate) * up` of one row.
pub fn silu_mul(kernels: Kernels, gate_up: &[f32], y: &mut [f32]) {
    kernels.silu_mul(gate_up, 1, y);
}

/// Softmax of `rows` rows of one token: `scores`: `[positions/16][rows][16]`.
pub fn softmax(kernels: Kernels, scores: &mut [f32], rows: usize) {
    kernels.softmax(scores, rows, 1, scores.len() / rows / LANES * LANES, usize::MAX, 0.125);
}
