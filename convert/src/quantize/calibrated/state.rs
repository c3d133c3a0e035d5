//! A panel on its way, its columns in the order of work.

use bytemuck::zeroed_vec;
use half::bf16;
use smolrun::format::{BLOCK, PANEL};

use super::super::codes::Codes;
use super::super::lanes::{Doubles, Lanes, lanes};
use super::super::row::{Row, exponent, power_of_two};
use super::curvature::Curvature;

/// What the largest block scale has above the one that a row's largest number asks for.
const ROOM: f32 = 1.02;
/// Rows with a largest number outside of these powers of two have scales that no bf16 holds well; nobody trains them.
const ORDINARY: std::ops::RangeInclusive<i32> = -80..=80;

/// Sixteen rows, each divided by the power of two that brings its largest number between 1 and 2.
pub(super) struct State {
    /// What each row was divided by, as an exponent; `None` of a row of zeroes and the like, which is left to [`Row`].
    exponents: [Option<i32>; PANEL],
    /// Row scales.
    pub(super) unit: Lanes,
    /// `[places]`: the matrix.
    pub(super) numbers: Vec<Lanes>,
    /// `[blocks]`: whole numbers from 1 to 255.
    pub(super) scales: Vec<Lanes>,
    /// `[blocks]`: what the codes stand for.
    pub(super) values: Vec<[Lanes; BLOCK]>,
}

impl State {
    /// At most 16 `rows` of `columns` finite numbers.
    pub(super) fn new(codes: &Codes, curvature: &Curvature, rows: &[f32], columns: usize) -> State {
        let places = curvature.places();
        let mut state = State {
            exponents: [None; PANEL],
            unit: Lanes([1.0; PANEL]),
            numbers: zeroed_vec(places),
            scales: vec![Lanes([1.0; PANEL]); places / BLOCK],
            values: zeroed_vec(places / BLOCK),
        };
        for (lane, row) in rows.chunks_exact(columns).enumerate() {
            state.put(lane, codes, curvature, row);
        }
        state
    }

    fn put(&mut self, lane: usize, codes: &Codes, curvature: &Curvature, row: &[f32]) {
        let largest = row.iter().fold(0.0, |largest: f32, number| largest.max(number.abs()));
        let exponent = exponent(largest);
        if largest == 0.0 || !ORDINARY.contains(&exponent) {
            return;
        }
        let factor = power_of_two(-exponent) as f32;
        self.exponents[lane] = Some(exponent);
        self.unit[lane] = bf16::from_f32(largest * factor * ROOM / (codes.largest() * 255.0)).to_f32();
        for (to, &column) in self.numbers.iter_mut().zip(&curvature.order) {
            to[lane] = row.get(column).map_or(0.0, |number| number * factor);
        }
    }

    /// The block scale, in units of the row scale, next to `scale`; also of what is no number.
    #[inline(always)]
    pub(super) fn whole_scale(scale: f32) -> f32 {
        const ROUNDING: f32 = 12_582_912.0; // 1.5 * 2^23: see `codes`
        (scale.clamp(1.0, 255.0).max(1.0) + ROUNDING) - ROUNDING
    }

    /// What a block's values are multiplied with.
    pub(super) fn scale(&self, block: usize) -> Lanes {
        lanes(|lane| self.unit[lane] * self.scales[block][lane])
    }

    /// Changes a block's scales by about `step`, to whole numbers of units. Returns by how much they changed.
    pub(super) fn change_scale(&mut self, block: usize, step: &Doubles) -> Doubles {
        std::array::from_fn(|lane| {
            let (scale, unit) = (&mut self.scales[block][lane], f64::from(self.unit[lane]));
            let old = *scale;
            *scale = State::whole_scale((f64::from(old) + step[lane] / unit) as f32);
            f64::from(*scale - old) * unit
        })
    }

    /// What a block's numbers have above its elements.
    pub(super) fn errors(&self, block: usize) -> [Lanes; BLOCK] {
        let scale = self.scale(block);
        std::array::from_fn(|column| {
            let (number, value) = (&self.numbers[block * BLOCK + column], &self.values[block][column]);
            lanes(|lane| number[lane] - scale[lane] * value[lane])
        })
    }

    /// Writes row `lane` to `row`, unless it is not ordinary.
    pub(super) fn take(&self, lane: usize, curvature: &Curvature, row: &mut Row) -> bool {
        let Some(exponent) = self.exponents[lane] else { return false };
        let blocks = self.scales.len();
        row.scale = bf16::from_f64(f64::from(self.unit[lane]) * power_of_two(exponent)); // exact
        row.scales.clear();
        row.scales.resize(blocks, 0);
        row.values.clear();
        row.values.resize(blocks, [0.0; BLOCK]);
        for (work, &block) in curvature.block_order.iter().enumerate() {
            row.scales[block] = self.scales[work][lane] as u8; // a whole number from 1 to 255
            for (value, &column) in self.values[work].iter().zip(&curvature.order[work * BLOCK..]) {
                row.values[block][column % BLOCK] = value[lane];
            }
        }
        true
    }

    /// A mean square of row `lane`'s outputs, in the scale of the matrix as it was.
    pub(super) fn square(&self, lane: usize, square: f64) -> f64 {
        self.exponents[lane].map_or(0.0, |exponent| square.max(0.0) * power_of_two(2 * exponent))
    }
}
