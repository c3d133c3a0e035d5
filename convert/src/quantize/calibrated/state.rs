//! A panel on its way, its columns in the order of work.

use half::bf16;
use smolrun::format::{BLOCK, PANEL};

use super::super::codes::Codes;
use super::super::row::{Row, exponent, power_of_two};
use super::curvature::Curvature;
use super::lanes::{Lanes, lanes};

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
    /// `[places]`: its products with the moments.
    pub(super) products: Vec<Lanes>,
    /// `[blocks]`: whole numbers from 1 to 255.
    pub(super) scales: Vec<Lanes>,
    /// `[blocks]`: what the codes stand for.
    pub(super) values: Vec<[Lanes; BLOCK]>,
    /// `[places]`: what a step needs.
    pub(super) work: Vec<Lanes>,
}

impl State {
    /// At most 16 `rows` of `columns` finite numbers.
    pub(super) fn new(codes: &Codes, curvature: &Curvature, rows: &[f32], columns: usize) -> State {
        let places = curvature.places();
        let mut state = State {
            exponents: [None; PANEL],
            unit: [1.0; PANEL],
            numbers: vec![[0.0; PANEL]; places],
            products: vec![[0.0; PANEL]; places],
            scales: vec![[1.0; PANEL]; places / BLOCK],
            values: vec![[[0.0; PANEL]; BLOCK]; places / BLOCK],
            work: vec![[0.0; PANEL]; places],
        };
        for (lane, row) in rows.chunks_exact(columns).enumerate() {
            state.put(lane, codes, curvature, row);
        }
        for block in 0..places / BLOCK {
            if let Some(numbers) = state.numbers[block * BLOCK..].first_chunk() {
                let products = &mut state.products;
                curvature.moments.add_product(block, numbers, 0, products);
            }
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
    pub(super) fn whole_scale(scale: f32) -> f32 {
        const ROUNDING: f32 = 12_582_912.0; // 1.5 * 2^23: see `codes`
        (scale.clamp(1.0, 255.0).max(1.0) + ROUNDING) - ROUNDING
    }

    /// What a block's values are multiplied with.
    pub(super) fn scale(&self, block: usize) -> Lanes {
        lanes(|lane| self.unit[lane] * self.scales[block][lane])
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

    /// What the output of row `lane` lost, and what it is, both as a mean square; `work` is the gradient.
    pub(super) fn output_loss(&self, lane: usize) -> (f64, f64) {
        let Some(exponent) = self.exponents[lane] else { return (0.0, 0.0) };
        let (mut lost, mut all) = (0.0, 0.0);
        for block in 0..self.scales.len() {
            for (column, error) in (block * BLOCK..).zip(self.errors(block)) {
                lost += f64::from(error[lane]) * f64::from(self.work[column][lane]);
                all += f64::from(self.numbers[column][lane]) * f64::from(self.products[column][lane]);
            }
        }
        let square = power_of_two(2 * exponent);
        (lost.max(0.0) * square, all.max(0.0) * square)
    }
}
