//! Numbers to quantized panels, with the least squared error: see "Quantized panels" in `format-spec.md`.
//!
//! All sums are in f32 or f64 in a fixed order, so that the bytes do not depend on threads or processors.

mod block;
mod calibrated;
pub mod calibration;
mod codes;
mod lanes;
pub mod matrix;
pub(crate) mod mix;
mod panel;
pub mod report;
mod row;
pub mod text;
pub mod tuning;

use std::iter::Sum;
use std::ops::AddAssign;

use smolrun::format::{BLOCK, PANEL, QuantizedPanels};

pub use self::calibrated::{Calibrated, Moments};
pub use self::codes::Codes;
use self::panel::Panel;
use self::row::Row;

/// Makes the panels of one matrix.
#[derive(Clone, Debug)]
pub struct Quantizer {
    codes: Codes,
    layout: QuantizedPanels,
    columns: usize,
    /// How much an error in each column matters, at most 1; nothing where the last block is filled up.
    importance: Vec<[f32; BLOCK]>,
}

/// Memory for a row on its way, used again for every panel that a thread makes.
#[derive(Debug, Default)]
pub struct Scratch {
    row: Row,
}

impl Quantizer {
    /// For a matrix of so many columns, whose squared errors are counted `importance` times, for each column a finite
    /// number from 0, or all alike. `None` where a panel's bytes do not fit the memory.
    ///
    /// # Panics
    /// If `importance` is not of `columns` numbers.
    pub fn new(codes: Codes, columns: usize, importance: Option<&[f32]>) -> Option<Quantizer> {
        let layout = QuantizedPanels::new(codes.dtype(), columns)?;
        let importance = match importance {
            None => vec![1.0; columns],
            Some(importance) => normalized(importance),
        };
        assert_eq!(importance.len(), columns);
        let mut blocks = vec![[0.0; BLOCK]; layout.blocks];
        blocks.as_flattened_mut()[..columns].copy_from_slice(&importance);
        Some(Quantizer { codes, layout, columns, importance: blocks })
    }

    /// What lies where in the section.
    pub fn layout(&self) -> QuantizedPanels {
        self.layout
    }

    /// The bytes of the section before its panels.
    pub fn values(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.layout.values_len];
        for (byte, value) in bytes.iter_mut().zip(self.codes.values()) {
            *byte = value.cast_unsigned();
        }
        bytes
    }

    /// Fills `panel`, which is zero and of `panel_len` bytes, with `numbers`, at most 16 rows of finite ones; the panel's
    /// other rows are of zeroes.
    pub fn quantize(&self, numbers: &[f32], scratch: &mut Scratch, panel: &mut [u8]) -> Loss {
        let Scratch { row } = scratch;
        let mut panel = Panel::new(self.layout, self.codes.dtype(), panel);
        let mut loss = Loss::default();
        let rows = numbers.chunks_exact(self.columns).chain(std::iter::repeat(&[][..]));
        for (index, numbers) in rows.take(PANEL).enumerate() {
            row.quantize(&self.codes, numbers, &self.importance);
            panel.put(index, row, &self.codes);
            loss += row.loss(numbers);
        }
        loss
    }
}

/// Brings the largest to 1.
fn normalized(importance: &[f32]) -> Vec<f32> {
    let largest = importance.iter().fold(0.0, |largest: f32, &number| largest.max(number));
    importance.iter().map(|number| if largest > 0.0 { number / largest } else { 1.0 }).collect()
}

/// What a matrix lost when it was quantized.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Loss {
    /// The sum of the squared differences.
    pub differences: f64,
    /// The sum of the squared numbers.
    pub numbers: f64,
    /// The sum over the outputs of the mean squares of what they lost, 0 where the inputs are not known.
    pub output_differences: f64,
    /// The sum over the outputs of their mean squares, 0 where the inputs are not known.
    pub outputs: f64,
}

impl Loss {
    /// The root mean square of the differences as a part of that of the numbers, to four digits. 0 where all is zero.
    pub fn relative_error(self) -> f64 {
        root_of_ratio(self.differences, self.numbers)
    }

    /// The same of the outputs, where the inputs are known.
    pub fn output_error(self) -> Option<f64> {
        (self.outputs > 0.0).then(|| root_of_ratio(self.output_differences, self.outputs))
    }
}

/// To four digits, 0 where there is none.
fn root_of_ratio(part: f64, whole: f64) -> f64 {
    let ratio = (part / whole).sqrt();
    if ratio.is_nan() { 0.0 } else { format!("{ratio:.3e}").parse().unwrap_or(ratio) }
}

impl Sum for Loss {
    fn sum<I: Iterator<Item = Loss>>(losses: I) -> Loss {
        losses.fold(Loss::default(), |mut sum, loss| {
            sum += loss;
            sum
        })
    }
}

impl AddAssign for Loss {
    fn add_assign(&mut self, other: Loss) {
        self.differences += other.differences;
        self.numbers += other.numbers;
        self.output_differences += other.output_differences;
        self.outputs += other.outputs;
    }
}
