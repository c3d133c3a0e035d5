//! Plain Rust for any processor: the oracle of the other sets. `mul_add` rounds once, in software where it must.

use super::quantised::{self, RoundedBlock};
use super::rounded::{Activations, Tile};
use super::simd::Encoding;
use super::{Bf16Pair, Element, F16, LANES, Quantised, math};

pub(super) use math::{add, inverse_rms, scale_rows, silu_mul, softmax};

pub(super) fn matmul_f32(w: &[f32], inputs: usize, x: &[f32], rows: usize, y: &mut [f32], accumulate: bool) {
    matmul(w, inputs, x, rows, y, accumulate);
}

pub(super) fn matmul_bf16(
    w: &[Bf16Pair],
    inputs: usize,
    x: &[f32],
    rows: usize,
    y: &mut [f32],
    accumulate: bool,
) {
    matmul(w, inputs, x, rows, y, accumulate);
}

pub(super) fn matmul_f16(w: &[F16], inputs: usize, x: &[f32], rows: usize, y: &mut [f32], accumulate: bool) {
    matmul(w, inputs, x, rows, y, accumulate);
}

pub(super) fn read(data: &[f32], sum: &mut [f32]) {
    for lanes in data.as_chunks::<LANES>().0 {
        add(&mut sum[..LANES], lanes);
    }
}

pub(super) fn multiply_adds(rounds: usize, sums: &mut [f32]) {
    for _ in 0..rounds {
        sums.iter_mut().for_each(|sum| *sum = 1e-3f32.mul_add(1e-3, *sum));
    }
}

fn matmul<E: Element>(w: &[E], inputs: usize, x: &[f32], rows: usize, y: &mut [f32], accumulate: bool) {
    let panels = w.chunks_exact(inputs / E::INPUTS * LANES);
    for (panel, y) in panels.zip(y.chunks_exact_mut(rows * LANES)) {
        for (row, y) in y.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let mut sums = if accumulate { *y } else { [0.0; LANES] };
            for (step, weights) in panel.as_chunks::<LANES>().0.iter().enumerate() {
                let weights = weights.map(E::widen);
                for (i, input) in (step * E::INPUTS..).take(E::INPUTS).enumerate() {
                    let x = x[(input / LANES * rows + row) * LANES + input % LANES];
                    for lane in 0..LANES {
                        sums[lane] = weights[lane].as_ref()[i].mul_add(x, sums[lane]);
                    }
                }
            }
            *y = sums;
        }
    }
}

/// How it gives itself rounded activations.
pub(super) const ENCODING: Encoding = Encoding::Words;

pub(super) fn round(x: &[f32], rows: usize, first: usize, blocks: &mut [RoundedBlock]) {
    quantised::round(ENCODING, x, rows, first, blocks);
}

pub(super) fn matmul_quantised(w: Quantised<'_>, x: &[RoundedBlock], rows: usize, y: &mut [f32]) {
    for (index, y) in y.chunks_exact_mut(rows * LANES).enumerate() {
        let panel = w.panel(index);
        y.fill(0.0);
        for (block, (x, scales)) in x.chunks_exact(rows).zip(panel.block_scales).enumerate() {
            for lane in 0..LANES {
                let values = w.values(panel, block, lane);
                for (row, x) in x.iter().enumerate() {
                    let sum: i32 =
                        x.in_order(ENCODING).zip(values).map(|(x, w)| i32::from(x) * i32::from(w)).sum();
                    let product = (sum * ENCODING.factor()) as f32 * f32::from(scales[lane]);
                    let y = &mut y[row * LANES + lane];
                    *y = product.mul_add(x.scale, *y);
                }
            }
        }
        for y in y.as_chunks_mut::<LANES>().0 {
            y.iter_mut().zip(panel.row_scales()).for_each(|(y, scale)| *y *= scale);
        }
    }
}

/// See [`super::rounded::Bf16Unit::round`]; from tile `first` on.
pub(super) fn round_to_bf16(x: Activations<'_>, first: usize, tiles: &mut [Tile]) {
    for (i, tile) in tiles.iter_mut().enumerate() {
        for (row, pairs) in tile.iter_mut().enumerate() {
            let inputs = x.tile_row(first + i, row);
            let inputs = inputs.as_flattened().as_chunks().0;
            pairs.iter_mut().zip(inputs).for_each(|(pair, inputs)| *pair = Bf16Pair::rounded(*inputs));
        }
    }
}

/// See [`super::rounded::Bf16Unit::matmul`].
pub(super) fn matmul_rounded(
    w: &[[Bf16Pair; LANES]],
    pairs: usize,
    x: &[Tile],
    rows: usize,
    y: &mut [[f32; LANES]],
) {
    for (panel, y) in w.chunks_exact(pairs).zip(y.chunks_exact_mut(rows)) {
        for (row, y) in y.iter_mut().enumerate() {
            let tiles = &x[row / LANES * pairs.div_ceil(LANES)..];
            let x = tiles.iter().flat_map(|tile| tile[row % LANES]);
            *y = [0.0; LANES];
            for (weights, x) in panel.iter().zip(x) {
                y.iter_mut().zip(weights).for_each(|(y, w)| *y = w.add_products(x, *y));
            }
        }
    }
}
