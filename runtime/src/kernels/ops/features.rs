//! Features over tokens, rounded for products with one another: see [`crate::kernels::features`].

use std::hint::black_box;

use bytemuck::Zeroable;

use super::integers::{OFFSET, tile_rows};
use super::quantize::{magnitude, whole};
use crate::kernels::LANES;
use crate::kernels::features::{FOURS, FeatureTile, Values};
use crate::kernels::quantized::{ActivationBits, ActivationBlock, Encoding, bytes};
use crate::kernels::simd::{Integers, Op, one_by_one, unrolled};

/// Rounds all `tokens` of some panels of features to whole numbers, twice the same: as weights and as activations.
pub(crate) struct RoundFeatures<'a> {
    /// `[features/16][tokens][16]`
    pub activations: &'a [f32],
    pub tokens: usize,
    /// `[features/16][tokens/64, rounded up]`, of zeros.
    pub values: &'a mut [Values],
    /// `[features/16][halves][tokens/64, rounded up]`, of zeros.
    pub tiles: &'a mut [FeatureTile],
    /// `[features/16]`
    pub scales: &'a mut [[f32; LANES]],
    /// `[features/16]`
    pub minus_sums: &'a mut [[i32; LANES]],
}

impl Op for RoundFeatures<'_> {
    const INTEGERS: bool = true;

    #[inline(always)]
    fn run<S: Integers>(self, _: S) {
        self.encode(S::ENCODING, S::UNSIGNED);
    }
}

/// What numbers are at most.
const LARGEST: f32 = ActivationBits::Eight.largest();

impl RoundFeatures<'_> {
    #[inline(always)]
    pub(in crate::kernels) fn encode(self, encoding: Encoding, unsigned: bool) {
        let RoundFeatures { activations, tokens, values, tiles, scales, minus_sums } = self;
        let steps = values.len() / scales.len();
        // What is added to each byte, which carries into no other one.
        let offset = if unsigned { i32::from_ne_bytes([OFFSET; 4]) } else { 0 };
        let activations: &[[f32; LANES]] = activations.as_chunks().0;
        let values = values.chunks_exact_mut(steps);
        let tiles = tiles.chunks_exact_mut(encoding.halves_of_8_bits() * steps);
        let panels = activations.chunks_exact(tokens).zip(values).zip(tiles).zip(scales).zip(minus_sums);
        for ((((tokens, values), tiles), scales), minus_sums) in panels {
            let (mut factors, mut sums) = ([0.0; LANES], [0_i32; LANES]);
            *scales = scales_for(tokens);
            for lane in 0..LANES {
                factors[lane] = 1.0 / scales[lane];
            }
            for (four, tokens) in tokens.chunks(4).enumerate() {
                let mut numbers = [[0; LANES]; 4];
                for (numbers, token) in numbers.iter_mut().zip(one_by_one(tokens)) {
                    for lane in 0..LANES {
                        numbers[lane] = whole((token[lane] * factors[lane]).clamp(-LARGEST, LARGEST));
                        sums[lane] = sums[lane].wrapping_sub(numbers[lane]); // of NaN, numbers mean nothing
                    }
                }
                let [a, b, c, d] = &numbers;
                let (step, four, mut halves) = (four / FOURS, four % FOURS, [[0; LANES]; 2]);
                let values = values[step].0[four].as_chunks_mut().0;
                for (lane, values) in values.iter_mut().enumerate() {
                    let four = [a[lane], b[lane], c[lane], d[lane]];
                    *values = (bytes(four) ^ offset).to_le_bytes();
                    [halves[0][lane], halves[1][lane]] = encoding.halves(four);
                }
                let used = &halves[2 - encoding.halves_of_8_bits()..];
                for (half, numbers) in used.iter().enumerate() {
                    let tile = &mut tiles[half * steps + step].0;
                    for lane in 0..LANES {
                        tile[lane][four] = numbers[lane];
                    }
                }
            }
            *minus_sums = sums;
        }
    }
}

/// For each feature the least scale that brings all its numbers within reach.
#[inline(always)]
fn scales_for(tokens: &[[f32; LANES]]) -> [f32; LANES] {
    let mut largest = [0; LANES];
    for token in one_by_one(tokens) {
        for lane in 0..LANES {
            largest[lane] = largest[lane].max(magnitude(token[lane])); // infinity or NaN where a number is that
        }
    }
    let mut scales = [0.0; LANES];
    for lane in 0..LANES {
        let scale = f32::from_bits(largest[lane]) / LARGEST;
        scales[lane] = match scale.is_finite() {
            true if scale >= f32::MIN_POSITIVE => scale,
            true => 1.0, // all of them are taken for zero
            false => f32::NAN,
        };
    }
    scales
}

/// Adds the products of some panels of features with others, over all tokens, to `sums`.
pub(crate) struct AddFeatureProducts<'a> {
    /// Tokens / 64, rounded up.
    pub steps: usize,
    /// `[panels][steps]`
    pub values: &'a [Values],
    /// `[panels]`
    pub scales: &'a [[f32; LANES]],
    /// `[others/16][halves][steps]`
    pub tiles: &'a [FeatureTile],
    /// `[others/16]`
    pub tile_scales: &'a [[f32; LANES]],
    /// Of the numbers in tiles, `[others/16]`.
    pub minus_sums: &'a [[i32; LANES]],
    /// `[panels][others][16]`
    pub sums: &'a mut [[f32; LANES]],
}

impl Op for AddFeatureProducts<'_> {
    const INTEGERS: bool = true;

    #[inline(always)]
    fn run<S: Integers>(mut self, simd: S) {
        match (S::STORED_ROWS, S::STORED_PANELS) {
            (2, _) => self.all::<S, 2, 1>(simd),
            (4, _) => self.all::<S, 4, 1>(simd),
            (_, 1) => self.all::<S, 6, 1>(simd),
            _ => self.all::<S, 6, 2>(simd),
        }
    }
}

impl AddFeatureProducts<'_> {
    #[inline(always)]
    fn all<S: Integers, const R: usize, const P: usize>(&mut self, simd: S) {
        let panels = self.scales.len();
        for panel in (0..panels).step_by(P) {
            if panel + P <= panels {
                self.panels::<S, R, P>(simd, panel);
            } else {
                self.panels::<S, R, 1>(simd, panel);
            }
        }
    }

    /// `P` panels with all others.
    #[inline(always)]
    fn panels<S: Integers, const R: usize, const P: usize>(&mut self, simd: S, panel: usize) {
        let (mut first, count) = (0, self.tile_scales.len() * LANES);
        while first < count {
            let rows = tile_rows(count - first, R);
            match rows {
                6 if R >= 6 => self.rows::<S, 6, P>(simd, panel, first),
                4 if R >= 4 => self.rows::<S, 4, P>(simd, panel, first),
                3 if R >= 3 => self.rows::<S, 3, P>(simd, panel, first),
                2 => self.rows::<S, 2, P>(simd, panel, first),
                _ => self.rows::<S, 1, P>(simd, panel, first),
            }
            first += rows;
        }
    }

    /// `P` panels with `R` others, whose sums stay in registers.
    #[inline(always)]
    fn rows<S: Integers, const R: usize, const P: usize>(&mut self, simd: S, panel: usize, first: usize) {
        let (steps, others) = (self.steps, self.tile_scales.len() * LANES);
        let halves = S::ENCODING.halves_of_8_bits();
        // Which the compiler must not know: see `QuantizedProduct`.
        let fours = black_box(FOURS);
        let mut products = [[simd.zero(); P]; R];
        for part in 0..S::PARTS {
            let zero = simd.sums(&ActivationBlock::zeroed());
            let mut integers = [[zero; P]; R];
            unrolled!(r < R of 8 => {
                let row = first + r;
                let minus_sum = self.minus_sums[row / LANES][row % LANES];
                let begin = simd.sums(&ActivationBlock { minus_sum, ..ActivationBlock::zeroed() });
                integers[r] = [simd.second_half(begin); P];
            });
            for step in 0..steps {
                for half in 0..halves {
                    let mut x = [&[0; FOURS]; R];
                    unrolled!(r < R of 8 => {
                        let row = first + r;
                        let tile = &self.tiles[(row / LANES * halves + half) * steps + step];
                        x[r] = &tile.0[row % LANES];
                    });
                    let half = half + 2 - halves; // of 8 bits, the second is all there is
                    for four in (0..FOURS).take(fours) {
                        unrolled!(p < P of 2 => {
                            let values = simd.bytes(&self.values[(panel + p) * steps + step].0[four], part);
                            let factors = simd.factors(values, half);
                            unrolled!(r < R of 8 => {
                                integers[r][p] = simd.add_products(integers[r][p], factors, x[r][four], half);
                            });
                        });
                    }
                }
            }
            unrolled!(p < P of 2 => {
                unrolled!(r < R of 8 => { simd.set_floats(&mut products[r][p], part, integers[r][p]) });
            });
        }
        let factor = 1.0 / S::ENCODING.factor() as f32;
        unrolled!(p < P of 2 => {
            let scales = simd.load(&self.scales[panel + p]);
            unrolled!(r < R of 8 => {
                let row = first + r;
                let scale = self.tile_scales[row / LANES][row % LANES] * factor;
                let sums = &mut self.sums[(panel + p) * others + row];
                simd.store(simd.fma(simd.load(sums), simd.mul(products[r][p], scales), scale), sums);
            });
        });
    }
}
