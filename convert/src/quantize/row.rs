//! Rows: block scales as parts of one row scale, and codes for the scales as they are stored.

use half::bf16;
use smolrun::format::BLOCK;

use super::Loss;
use super::block::Block;
use super::codes::Codes;

/// A quantized row, and memory on the way to it.
#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    /// What all block scales are multiplied with.
    pub(super) scale: bf16,
    /// One scale for each block.
    pub(super) scales: Vec<u8>,
    /// The value of each number, those that fill up the last block included.
    pub(super) values: Vec<[f32; BLOCK]>,
    numbers: Vec<[f32; BLOCK]>,
    fitted: Vec<f32>,
}

impl Row {
    /// Quantizes `numbers`, which are finite, as many as fit the blocks of `importance`: numbers from 0 to 1, and 0 where
    /// the last block is filled up.
    pub(super) fn quantize(&mut self, codes: &Codes, numbers: &[f32], importance: &[[f32; BLOCK]]) {
        let exponent = self.normalize(numbers, importance.len());
        let blocks = || {
            self.numbers.iter().zip(importance).map(|(numbers, importance)| Block::new(numbers, importance))
        };
        self.fitted.clear();
        self.fitted.extend(blocks().map(|block| block.fit(codes)));
        let largest = self.fitted.iter().fold(0.0, |largest: f32, &scale| largest.max(scale));
        self.scale = row_scale(f64::from(largest) * power_of_two(exponent));
        let unit = (f64::from(self.scale) * power_of_two(-exponent)) as f32; // exact, unless all is zero
        let most = most(self.scale, codes);
        self.scales.clear();
        self.values.clear();
        for (block, &fitted) in blocks().zip(&self.fitted) {
            let (scale, values) = block.store(codes, unit, fitted, most);
            self.scales.push(scale);
            self.values.push(values);
        }
    }

    /// Takes `numbers` divided by the power of two that brings the largest between 1 and 2, so that no square is too large
    /// or too small, and returns its exponent.
    fn normalize(&mut self, numbers: &[f32], blocks: usize) -> i32 {
        let largest = numbers.iter().fold(0.0, |largest: f32, number| largest.max(number.abs()));
        let exponent = exponent(largest);
        let factor = power_of_two(-exponent);
        self.numbers.clear();
        self.numbers.resize(blocks, [0.0; BLOCK]);
        for (to, &from) in self.numbers.as_flattened_mut().iter_mut().zip(numbers) {
            *to = (f64::from(from) * factor) as f32;
        }
        exponent
    }

    /// How far the elements are from `numbers`, which were quantized.
    pub(super) fn loss(&self, numbers: &[f32]) -> Loss {
        let mut loss = [Loss::default(); BLOCK];
        let blocks = numbers.chunks(BLOCK).zip(&self.values).zip(&self.scales);
        for ((numbers, values), &scale) in blocks {
            for ((loss, &number), &value) in loss.iter_mut().zip(numbers).zip(values) {
                let element = self.scale.to_f32() * (f32::from(scale) * value); // as a reader has it
                let difference = f64::from(number) - f64::from(element);
                loss.differences += difference * difference;
                loss.numbers += f64::from(number) * f64::from(number);
            }
        }
        loss.into_iter().sum()
    }
}

/// The row scale for blocks whose largest scale is `largest`: rounded up, so that a block scale of 255 reaches it.
fn row_scale(largest: f64) -> bf16 {
    let scale = largest / 255.0;
    let rounded = scale as f32;
    let bits = if f64::from(rounded) < scale { rounded.to_bits() + 1 } else { rounded.to_bits() };
    bf16::from_bits(bits.div_ceil(1 << 16) as u16) // far below the largest number
}

/// The largest block scale with which all values are finite.
fn most(scale: bf16, codes: &Codes) -> u8 {
    (f64::from(f32::MAX) / (f64::from(scale) * f64::from(codes.largest()))) as u8 // saturates
}

/// The exponent of the power of two that is just not above `number`; 0 for 0.
pub(super) fn exponent(number: f32) -> i32 {
    let bits = f64::from(number).to_bits() >> 52; // in f64 all f32 are normal
    if number == 0.0 { 0 } else { bits as i32 - 1023 }
}

pub(super) fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52) // no f32 is too far from 1
}
