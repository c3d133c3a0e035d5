//! Attention's values, rounded for products with probabilities.

use super::quantize::{SMALLEST, magnitude, whole};
use crate::format::{PANEL, QuantizedPanels};
use crate::kernels::LANES;
use crate::kernels::quantized::{ActivationBits, Group, bytes};
use crate::kernels::simd::{PlainOp, one_by_one};

/// Rounds values to whole numbers of 8 bits times one scale for each position of a head, and writes these numbers as panels of
/// `q8` whose own scales are 1: probabilities are multiplied by those of the positions instead. What becomes of a position
/// does not depend on others.
pub(crate) struct RoundValues<'a> {
    /// `[features/16][positions][16]`
    pub values: &'a [f32],
    /// Of a row of so many positions in `q8`.
    pub layout: QuantizedPanels,
    /// As many panels.
    pub panels: &'a mut [u8],
    /// `[positions]`
    pub scales: &'a mut [f32],
}

const LARGEST: f32 = ActivationBits::Eight.largest();
/// 1 as a bf16.
const ONE: [u8; 2] = 0x3f80_u16.to_le_bytes();

impl PlainOp for RoundValues<'_> {
    #[inline(always)]
    fn compute(self) {
        let RoundValues { values, layout, panels, scales } = self;
        let values: &[[f32; LANES]] = values.as_chunks().0;
        let positions = scales.len();
        for (position, scale) in scales.iter_mut().enumerate() {
            let mut largest = [0; LANES];
            for panel in values.chunks_exact(positions) {
                for lane in 0..LANES {
                    largest[lane] = largest[lane].max(magnitude(panel[position][lane]));
                }
            }
            *scale = f32::from_bits(largest.into_iter().fold(0, u32::max)) / LARGEST;
        }
        for (values, panel) in values.chunks_exact(positions).zip(panels.chunks_exact_mut(layout.panel_len)) {
            let (of_panel, codes) = panel.split_at_mut(layout.scales_len);
            of_panel[QuantizedPanels::ROW_SCALES].as_chunks_mut().0.fill(ONE);
            of_panel[layout.block_scales()].as_chunks_mut::<PANEL>().0.fill([1; PANEL]);
            let codes = codes.as_chunks_mut().0;
            let (used, beyond) = codes.split_at_mut(positions.div_ceil(4));
            beyond.fill([0; size_of::<Group>()]);
            for ((values, scales), codes) in values.chunks(4).zip(scales.chunks(4)).zip(used) {
                round(values, scales, codes);
            }
        }
    }
}

/// At most four positions.
#[inline(always)]
fn round(values: &[[f32; LANES]], scales: &[f32], codes: &mut Group) {
    let mut numbers = [[0; LANES]; 4];
    for ((numbers, values), &scale) in numbers.iter_mut().zip(one_by_one(values)).zip(scales) {
        let factor = if scale >= SMALLEST { 1.0 / scale } else { 0.0 };
        for lane in 0..LANES {
            numbers[lane] = whole((values[lane] * factor).clamp(-LARGEST, LARGEST));
        }
    }
    let [a, b, c, d] = &numbers;
    for (lane, code) in codes.as_chunks_mut().0.iter_mut().enumerate() {
        *code = bytes([a[lane], b[lane], c[lane], d[lane]]).to_le_bytes();
    }
}
