//! The kernels for `benches/kernels.rs`, which is outside of the crate. Not part of the API.

use bytemuck::Zeroable;

use crate::kernels::{Bf16Pair, Elements, F16, Kernels, LANES, Panels};
use crate::storage::AlignedBuf;

/// A matrix of zeroes and its numbers' type.
pub struct Matrix {
    numbers: Numbers,
    inputs: usize,
}

enum Numbers {
    F32(AlignedBuf<f32>),
    Bf16(AlignedBuf<Bf16Pair>),
    F16(AlignedBuf<F16>),
}

impl Matrix {
    /// `[outputs, inputs]` of `f32`, `bf16` or `f16`; outputs a multiple of 16, inputs of 2.
    pub fn new(dtype: &str, outputs: usize, inputs: usize) -> Matrix {
        let len = outputs * inputs;
        let numbers = match dtype {
            "f32" => Numbers::F32(touched(len)),
            "bf16" => Numbers::Bf16(touched(len / 2)),
            _ => Numbers::F16(touched(len)),
        };
        Matrix { numbers, inputs }
    }

    /// Bytes of its numbers.
    pub fn bytes(&self) -> usize {
        match &self.numbers {
            Numbers::F32(data) => size_of_val(&**data),
            Numbers::Bf16(data) => size_of_val(&**data),
            Numbers::F16(data) => size_of_val(&**data),
        }
    }

    /// `y = matrix x` for `rows` rows: `x`: `[inputs/16][rows][16]`, `y`: `[outputs/16][rows][16]`.
    pub fn product(&self, kernels: Kernels, x: &[f32], rows: usize, y: &mut [f32]) {
        let data = match &self.numbers {
            Numbers::F32(data) => Elements::F32(data),
            Numbers::Bf16(data) => Elements::Bf16(data),
            Numbers::F16(data) => Elements::F16(data),
        };
        kernels.matmul(Panels { data, inputs: self.inputs }, x, rows, y, false);
    }
}

/// Zeroes in pages of their own.
fn touched<T: Zeroable + Copy>(len: usize) -> AlignedBuf<T> {
    let mut buffer = AlignedBuf::zeroed(len).expect("a benchmark has memory");
    buffer.fill(T::zeroed());
    buffer
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
