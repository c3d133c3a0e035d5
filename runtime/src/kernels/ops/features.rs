//! Features over tokens, rounded for products with one another: see [`crate::kernels::features`].

use super::quantize::{magnitude, whole};
use crate::format::{BLOCK, PANEL, QuantizedPanels};
use crate::kernels::LANES;
use crate::kernels::quantized::{ActivationBits, ActivationBlock, Encoding, GROUPS, Group, OFFSET, bytes};
use crate::kernels::simd::{Integers, Op, one_by_one};

/// Rounds all `tokens` of some panels of features to the same whole numbers and scales twice: as weights and, where there is
/// room, as activations.
pub(crate) struct RoundFeatures<'a> {
    /// `[features/16][tokens][16]`
    pub activations: &'a [f32],
    pub tokens: usize,
    /// Of a row of so many tokens in `q8`.
    pub layout: QuantizedPanels,
    /// As many panels.
    pub panels: &'a mut [u8],
    /// `[tokens/32, rounded up][features]` of zeros, or nothing.
    pub rows: &'a mut [ActivationBlock],
}

impl Op for RoundFeatures<'_> {
    const INTEGERS: bool = true;

    #[inline(always)]
    fn run<S: Integers>(self, _: S) {
        self.encode(S::ENCODING);
    }
}

/// What numbers are at most.
const LARGEST: f32 = ActivationBits::Eight.largest();
/// Most that a block's scale is times its row's.
const MOST: f32 = 255.0;

impl RoundFeatures<'_> {
    #[inline(always)]
    pub(in crate::kernels) fn encode(self, encoding: Encoding) {
        let RoundFeatures { activations, tokens, layout, panels, rows } = self;
        let features = rows.len() / layout.blocks;
        let activations: &[[f32; LANES]] = activations.as_chunks().0;
        let panels = activations.chunks_exact(tokens).zip(panels.chunks_exact_mut(layout.panel_len));
        for (panel, (tokens, bytes)) in panels.enumerate() {
            let (scales, codes) = bytes.split_at_mut(layout.scales_len);
            let row_scales = row_scales(tokens);
            for (scale, bytes) in row_scales.iter().zip(scales.as_chunks_mut::<2>().0) {
                *bytes = ((scale.to_bits() >> 16) as u16).to_le_bytes();
            }
            let block_scales = scales[layout.block_scales()].as_chunks_mut::<PANEL>().0;
            let codes = codes.as_chunks_mut().0.as_chunks_mut().0;
            let blocks = tokens.chunks(BLOCK).zip(block_scales).zip(codes);
            for (block, ((tokens, scales), codes)) in blocks.enumerate() {
                let rows = rows.get_mut(block * features + panel * LANES..);
                let rows = rows.and_then(|rows| rows.first_chunk_mut());
                round(encoding, tokens, &row_scales, scales, codes, rows);
            }
        }
    }
}

/// For each feature a bf16: the least that brings all its numbers within reach.
#[inline(always)]
fn row_scales(tokens: &[[f32; LANES]]) -> [f32; LANES] {
    let mut scales = [0.0; LANES];
    for (scale, largest) in scales.iter_mut().zip(largest(tokens)) {
        *scale = match largest / (LARGEST * MOST) {
            normal if normal >= f32::MIN_POSITIVE && normal.is_finite() => {
                f32::from_bits((normal.to_bits() + 0xffff) & 0xffff_0000)
            }
            small if small < f32::MIN_POSITIVE => 1.0, // all of them are taken for zero
            _ => f32::NAN,
        };
    }
    scales
}

/// The largest number of each feature, without signs: infinity or NaN where a number is that.
#[inline(always)]
fn largest(tokens: &[[f32; LANES]]) -> [f32; LANES] {
    let mut largest = [0; LANES];
    for token in one_by_one(tokens) {
        for lane in 0..LANES {
            largest[lane] = largest[lane].max(magnitude(token[lane]));
        }
    }
    let mut floats = [0.0; LANES];
    for lane in 0..LANES {
        floats[lane] = f32::from_bits(largest[lane]);
    }
    floats
}

/// A block of at most 32 tokens.
#[inline(always)]
fn round(
    encoding: Encoding,
    tokens: &[[f32; LANES]],
    row_scales: &[f32; LANES],
    block_scales: &mut [u8; LANES],
    codes: &mut [Group; GROUPS],
    mut rows: Option<&mut [ActivationBlock; LANES]>,
) {
    let (mut scales, mut factors, largest) = ([0.0; LANES], [0.0; LANES], largest(tokens));
    for lane in 0..LANES {
        let times = (largest[lane] / (row_scales[lane] * LARGEST)).ceil().clamp(1.0, MOST);
        block_scales[lane] = times as u8;
        scales[lane] = row_scales[lane] * times;
        factors[lane] = 1.0 / scales[lane];
    }
    let mut sums = [0_i32; LANES];
    let (codes, beyond) = codes.split_at_mut(tokens.len().div_ceil(4));
    beyond.fill([0; size_of::<Group>()]);
    for (group, (tokens, codes)) in tokens.chunks(4).zip(codes).enumerate() {
        let mut numbers = [[0; LANES]; 4];
        for (numbers, token) in numbers.iter_mut().zip(one_by_one(tokens)) {
            for lane in 0..LANES {
                numbers[lane] = whole((token[lane] * factors[lane]).clamp(-LARGEST, LARGEST));
                sums[lane] = sums[lane].wrapping_sub(numbers[lane]); // of NaN, numbers mean nothing
            }
        }
        let [a, b, c, d] = &numbers;
        let mut halves = [[0; LANES]; 2];
        for (lane, code) in codes.as_chunks_mut().0.iter_mut().enumerate() {
            let four = [a[lane], b[lane], c[lane], d[lane]];
            *code = bytes(four).to_le_bytes();
            [halves[0][lane], halves[1][lane]] = encoding.halves(four);
        }
        let Some(rows) = &mut rows else { continue };
        // Of bytes, the first half is zero, and stays so.
        for (half, numbers) in halves.iter().enumerate().skip(usize::from(encoding == Encoding::I8)) {
            for lane in 0..LANES {
                rows[lane].halves[encoding.place(group, half)] = numbers[lane];
            }
        }
    }
    let Some(rows) = rows else { return };
    for (lane, row) in rows.iter_mut().enumerate() {
        row.scale = scales[lane] / encoding.factor() as f32;
        row.correction = if encoding == Encoding::I8 { sums[lane].wrapping_mul(OFFSET.into()) } else { 0 };
    }
}
