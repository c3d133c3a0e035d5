//! Plain Rust for any processor: the oracle of the other sets. `mul_add` rounds once, in software where it must.

use crate::kernels::LANES;
use crate::kernels::half::Bf16Pair;
use crate::kernels::ops::bf16::{MatmulBf16, RoundToBf16};
use crate::kernels::ops::{
    AddColumns, HeadBlocks, Matmul, MatmulQuantized, MixValues, MultiplyAdds, QuantizeBlocks, Read,
    RoundFeatures, ScaleLanes, ScaleRows, ScoreKeys, Widen,
};
use crate::kernels::panels::Element;
use crate::kernels::quantized::Encoding;
use crate::kernels::simd::{PlainOp, RunOn};

/// What every processor has.
pub(crate) struct Scalar;

/// How it gives itself quantized activations.
const ENCODING: Encoding = Encoding::I16;

impl<O: PlainOp> RunOn<Scalar> for O {
    fn run_on(self, _: Scalar) {
        self.compute();
    }
}

impl<E: Element> RunOn<Scalar> for Matmul<'_, E> {
    fn run_on(self, _: Scalar) {
        let Matmul { w, inputs, x, rows, first_row, y, accumulate } = self;
        let panels = w.chunks_exact(inputs / E::INPUTS * LANES);
        for (panel, y) in panels.zip(y.chunks_exact_mut(rows * LANES)) {
            for (row, y) in y.as_chunks_mut::<LANES>().0.iter_mut().enumerate().skip(first_row) {
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
}

impl<B: HeadBlocks> RunOn<Scalar> for ScoreKeys<'_, B> {
    fn run_on(self, _: Scalar) {
        let ScoreKeys { keys, panels, head_dim, queries, rows, scores } = self;
        let (queries, scores) = (queries.as_chunks::<LANES>().0, scores.as_chunks_mut::<LANES>().0);
        for (panel, scores) in panels.zip(scores.chunks_exact_mut(rows)) {
            let (index, inside) = (panel * LANES / B::POSITIONS, panel * LANES % B::POSITIONS);
            let block = keys.block(index);
            for (row, scores) in scores.iter_mut().enumerate() {
                *scores = [0.0; LANES];
                for (i, keys) in block.numbers[inside / LANES * head_dim..][..head_dim].iter().enumerate() {
                    let x = queries[i / LANES * rows + row][i % LANES];
                    scores.iter_mut().zip(keys).for_each(|(score, key)| *score = product(*key, x, *score));
                }
                scores
                    .iter_mut()
                    .zip(block.scales.iter().skip(inside))
                    .for_each(|(score, scale)| *score *= scale);
            }
        }
    }
}

impl<B: HeadBlocks> RunOn<Scalar> for MixValues<'_, B> {
    fn run_on(self, _: Scalar) {
        let MixValues { values, positions, probabilities, rows, first, mixed } = self;
        let (probabilities, mixed) = (probabilities.as_chunks::<LANES>().0, mixed.as_chunks_mut::<LANES>().0);
        for (panel, mixed) in (first..).zip(mixed.chunks_exact_mut(rows)) {
            mixed.fill([0.0; LANES]);
            for (i, position) in positions.clone().enumerate() {
                let (index, inside) = (position / B::POSITIONS, position % B::POSITIONS);
                let values = values.block(index).numbers[panel * B::POSITIONS + inside];
                for (row, mixed) in mixed.iter_mut().enumerate() {
                    let x = probabilities[i / LANES * rows + row][i % LANES];
                    mixed
                        .iter_mut()
                        .zip(values)
                        .for_each(|(mixed, value)| *mixed = product(value, x, *mixed));
                }
            }
        }
    }
}

/// A multiply-add of a number that is an input's alone.
fn product<E: Element>(number: E, x: f32, sum: f32) -> f32 {
    number.widen().as_ref()[0].mul_add(x, sum)
}

impl RunOn<Scalar> for AddColumns<'_> {
    fn run_on(self, _: Scalar) {
        let AddColumns { w, columns, x, y } = self;
        for column in columns.iter().map(|&column| usize::from(column)) {
            let x = &x[column / LANES * y.len()..];
            for (y, x) in y.iter_mut().zip(x) {
                for lane in 0..LANES {
                    y[lane] = w[column][lane].mul_add(x[column % LANES], y[lane]);
                }
            }
        }
    }
}

impl RunOn<Scalar> for ScaleRows<'_> {
    fn run_on(self, _: Scalar) {
        let ScaleRows { x, scales, weight, y } = self;
        let (rows, x) = (scales.len(), x.as_chunks::<LANES>().0);
        for (i, y) in y.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            for lane in 0..LANES {
                let weight = weight.get(i / rows * LANES + lane).unwrap_or(&0.0);
                y[lane] = x[i][lane] * scales[i % rows] * weight;
            }
        }
    }
}

impl<E: Element> RunOn<Scalar> for Widen<'_, E> {
    fn run_on(self, _: Scalar) {
        for (i, to) in self.to.iter_mut().enumerate() {
            let (input, lane) = (i / LANES, i % LANES);
            let weight = self.w[input / E::INPUTS * LANES + lane].widen();
            *to = weight.as_ref()[input % E::INPUTS];
        }
    }
}

impl RunOn<Scalar> for ScaleLanes<'_> {
    fn run_on(self, _: Scalar) {
        for (i, x) in self.x.iter_mut().enumerate() {
            *x *= self.scales[i / (self.rows * LANES) * LANES + i % LANES];
        }
    }
}

impl RunOn<Scalar> for Read<'_> {
    fn run_on(self, _: Scalar) {
        for lanes in self.data.as_chunks::<LANES>().0 {
            self.sum.iter_mut().zip(lanes).for_each(|(sum, x)| *sum += x);
        }
    }
}

impl RunOn<Scalar> for MultiplyAdds<'_> {
    fn run_on(self, _: Scalar) {
        for _ in 0..self.iterations {
            self.sums.iter_mut().for_each(|sum| *sum = 1e-3f32.mul_add(1e-3, *sum));
        }
    }
}

impl RunOn<Scalar> for RoundFeatures<'_> {
    fn run_on(self, _: Scalar) {
        self.encode(ENCODING);
    }
}

impl RunOn<Scalar> for QuantizeBlocks<'_> {
    fn run_on(self, _: Scalar) {
        self.encode(ENCODING);
    }
}

impl RunOn<Scalar> for MatmulQuantized<'_> {
    fn run_on(self, _: Scalar) {
        let MatmulQuantized { w, x, rows, y, .. } = self;
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
}

impl RunOn<Scalar> for RoundToBf16<'_> {
    fn run_on(self, _: Scalar) {
        let (x, tiles) = self.split();
        for (i, tile) in tiles.iter_mut().enumerate() {
            for (row, pairs) in tile.iter_mut().enumerate() {
                let inputs = x.tile_row(i, row);
                let inputs = inputs.as_flattened().as_chunks().0;
                pairs.iter_mut().zip(inputs).for_each(|(pair, inputs)| *pair = Bf16Pair::rounded(*inputs));
            }
        }
    }
}

impl RunOn<Scalar> for MatmulBf16<'_> {
    fn run_on(self, _: Scalar) {
        let pairs = self.pairs();
        let (w, y) = (self.w.as_chunks::<LANES>().0, self.y.as_chunks_mut::<LANES>().0);
        for (panel, y) in w.chunks_exact(pairs).zip(y.chunks_exact_mut(self.rows)) {
            for (row, y) in y.iter_mut().enumerate() {
                let tiles = &self.x[row / LANES * pairs.div_ceil(LANES)..];
                let x = tiles.iter().flat_map(|tile| tile[row % LANES]);
                *y = [0.0; LANES];
                for (weights, x) in panel.iter().zip(x) {
                    y.iter_mut().zip(weights).for_each(|(y, w)| *y = w.add_products(x, *y));
                }
            }
        }
    }
}
