//! The kernels for `benches/kernels.rs`, which is outside of the crate. Not part of the API.

use bytemuck::{Pod, Zeroable};
use std::fmt;

use crate::format::{Dtype, QuantizedPanels};
use crate::kernels::{
    ActivationBits, ActivationBlock, ActivationTile, Element, Elements, F16, HeadBlock, HeadBlocks,
    InverseRms, Kernels, LANES, MatmulQuantized, MatmulTiles, Panels, QuantizeBlocks, QuantizeTiles,
    Quantized, QuantizedTile, ScaleRows, ScoreKeys, SiluMul, Softmax, SplitTile, activation_blocks,
    quantized_tiles,
};
use crate::storage::AlignedBuf;

/// A matrix of equal numbers.
pub struct Matrix {
    dtype: MatrixDtype,
    data: AlignedBuf<f32>,
    inputs: usize,
    /// The activations that quantized weights take.
    blocks: Vec<ActivationBlock>,
    /// The same where the set takes tiles.
    split_tiles: AlignedBuf<SplitTile>,
    tiles: AlignedBuf<ActivationTile>,
}

/// What a matrix in memory can be of.
#[derive(Clone, Copy, Debug)]
pub enum MatrixDtype {
    /// What a matrix in a blob can be of.
    Stored(Dtype),
    /// IEEE binary16, as keys may be.
    F16,
    /// Integers of 8 bits, as keys may be.
    I8,
}

impl Matrix {
    /// `[outputs, inputs]`; outputs a multiple of 16, inputs of 32.
    pub fn new(dtype: MatrixDtype, outputs: usize, inputs: usize) -> Matrix {
        let bytes = match dtype {
            MatrixDtype::Stored(dtype) => match (QuantizedPanels::new(dtype, inputs), dtype.size()) {
                (Some(lens), _) => lens.values_len + outputs / LANES * lens.panel_len,
                (None, size) => outputs * inputs * size.map_or(4, |size| size as usize),
            },
            MatrixDtype::F16 => outputs * inputs * 2,
            MatrixDtype::I8 => outputs * inputs,
        };
        let mut data = AlignedBuf::zeroed(bytes / 4).expect("a benchmark has memory");
        // Something else than what is there, so that each page is one of its own.
        data.fill(f32::from_bits(0x3c00_3c00));
        Matrix {
            dtype,
            data,
            inputs,
            blocks: Vec::new(),
            split_tiles: AlignedBuf::zeroed(0).expect("a benchmark has memory"),
            tiles: AlignedBuf::zeroed(0).expect("a benchmark has memory"),
        }
    }

    /// Bytes of its numbers.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.data)
    }

    /// `y = matrix x` for `rows` rows: `x`: `[inputs/16][rows][16]`, `y`: `[outputs/16][rows][16]`.
    pub fn product(&mut self, kernels: Kernels, x: &[f32], rows: usize, y: &mut [f32]) {
        let inputs = self.inputs;
        let data = match self.dtype {
            MatrixDtype::Stored(Dtype::F32) => Elements::F32(&self.data),
            MatrixDtype::Stored(Dtype::Bf16) => Elements::Bf16(bytemuck::cast_slice(&self.data)),
            MatrixDtype::F16 => return score::<F16>(kernels, &self.data, inputs, x, rows, y),
            MatrixDtype::I8 => return score::<i8>(kernels, &self.data, inputs, x, rows, y),
            MatrixDtype::Stored(dtype) => {
                let Some(w) = Quantized::new(bytemuck::cast_slice(&self.data), dtype, inputs) else { return };
                let fewest = kernels.fewest_tile_rows();
                if rows >= fewest.whole {
                    let tiles = quantized(kernels, &mut self.tiles, [inputs, rows], x);
                    return kernels.matmul_tiles(MatmulTiles { w, x: tiles, rows, y });
                }
                if rows >= fewest.split {
                    let tiles = quantized(kernels, &mut self.split_tiles, [inputs, rows], x);
                    return kernels.matmul_split_tiles(MatmulTiles { w, x: tiles, rows, y });
                }
                self.blocks.resize(activation_blocks(inputs, rows), Zeroable::zeroed());
                let bits = ActivationBits::Twelve;
                kernels.run(QuantizeBlocks { x, rows, first: 0, bits, blocks: &mut self.blocks });
                return kernels.run(MatmulQuantized { w, x: &self.blocks, bits, rows, y });
            }
        };
        kernels.matmul(Panels { data, inputs }, x, rows, y, false);
    }
}

/// Keys that lie one after the other, as if in KV blocks of 64 positions.
#[derive(Clone, Copy)]
struct Keys<'a, E> {
    /// `[positions/16][head_dim][16]`
    numbers: &'a [[E; LANES]],
    head_dim: usize,
}

impl<E: Element> HeadBlocks for Keys<'_, E> {
    type Element = E;
    const POSITIONS: usize = 64;

    #[inline(always)]
    fn block(&self, index: usize) -> HeadBlock<'_, E> {
        HeadBlock { numbers: &self.numbers[index * Self::POSITIONS / LANES * self.head_dim..], scales: &[] }
    }
}

/// [`Matrix::product`] of one whose outputs are positions, with so many inputs.
fn score<E: Element + Pod>(
    kernels: Kernels,
    data: &[f32],
    head_dim: usize,
    queries: &[f32],
    rows: usize,
    scores: &mut [f32],
) {
    let keys = Keys { numbers: bytemuck::cast_slice::<_, E>(data).as_chunks().0, head_dim };
    let panels = 0..scores.len() / (rows * LANES);
    kernels.run(ScoreKeys { keys, panels, head_dim, queries, rows, scores });
}

/// Activations in tiles, which `tiles` then holds.
fn quantized<'t, T: QuantizedTile>(
    kernels: Kernels,
    tiles: &'t mut AlignedBuf<T>,
    [inputs, rows]: [usize; 2],
    x: &[f32],
) -> &'t [T] {
    let len = quantized_tiles::<T>(inputs, rows);
    if tiles.len() != len {
        *tiles = AlignedBuf::zeroed(len).expect("a benchmark has memory");
    }
    kernels.run(QuantizeTiles { x, inputs, rows, first: 0, tiles });
    tiles
}

/// `y = x * scales[row] * weight[feature]` after the scales: `x`, `y`: `[features/16][rows][16]`.
pub fn rms_norm(kernels: Kernels, x: &[f32], weight: &[f32], scales: &mut [f32], y: &mut [f32]) {
    let (rows, features) = (scales.len(), weight.len());
    kernels.run(InverseRms { x, rows, features, eps: 1e-5, first: 0, y: scales });
    kernels.run(ScaleRows { x, scales, weight, y });
}

/// `y = silu(gate) * up` of one row.
pub fn silu_mul(kernels: Kernels, gate_up: &[f32], y: &mut [f32]) {
    kernels.run(SiluMul { gate_up, rows: 1, y });
}

/// Softmax of `rows` rows of one token: `scores`: `[positions/16][rows][16]`.
pub fn softmax(kernels: Kernels, scores: &mut [f32], rows: usize) {
    let len = scores.len() / rows / LANES * LANES;
    kernels.run(Softmax { scores, rows, tokens: 1, len, window: usize::MAX, scale: 0.125 });
}

impl fmt::Debug for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matrix")
            .field("dtype", &self.dtype)
            .field("inputs", &self.inputs)
            .finish_non_exhaustive()
    }
}
