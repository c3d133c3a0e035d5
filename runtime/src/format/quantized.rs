//! How a quantized matrix lies in its section: blocks of 32 columns with scales, in panels. See "Quantized panels" in
//! `format-spec.md`.

use std::ops::Range;

use super::dtype::Dtype;

/// Output rows that lie side by side in a panel.
pub const PANEL: usize = 16;

/// Columns of a block, which share a scale in each row.
pub const BLOCK: usize = 32;
/// Bytes that every part of a panel fills whole ones of: a cache line.
const LINE: u64 = 64;
/// Bytes of the table of values at the start of a section of `q4` or `q3`, as many of them in use as there are codes.
const VALUES_LEN: u64 = LINE;

/// The lengths in a section of a quantized dtype with so many columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantizedPanels {
    /// Bytes before the first panel.
    pub values_len: usize,
    /// Blocks of 32 columns in a row.
    pub blocks: usize,
    /// Bytes of a panel before its codes: those of its scales.
    pub scales_len: usize,
    /// Bytes of a block's codes for 16 rows.
    pub block_len: usize,
    /// Bytes of a panel.
    pub panel_len: usize,
}

impl QuantizedPanels {
    /// `None` where `dtype` is not quantized, or a panel's bytes do not fit the memory.
    pub fn new(dtype: Dtype, columns: usize) -> Option<QuantizedPanels> {
        let lens = Lens::new(dtype, columns as u64)?;
        Some(QuantizedPanels {
            values_len: lens.values.try_into().ok()?,
            blocks: lens.blocks.try_into().ok()?,
            scales_len: lens.scales.try_into().ok()?,
            block_len: lens.block.try_into().ok()?,
            panel_len: lens.panel.try_into().ok()?,
        })
    }

    /// The scales of a panel's rows: 16 bf16.
    pub const ROW_SCALES: Range<usize> = 0..2 * PANEL;

    /// The scales of the blocks in a panel: 16 `u8` for each block.
    #[allow(clippy::arithmetic_side_effects)] // less than `scales_len`
    pub fn block_scales(self) -> Range<usize> {
        let start = Self::ROW_SCALES.end;
        start..start + PANEL * self.blocks
    }
}

/// The same before anybody knows whether they fit the memory.
struct Lens {
    values: u64,
    blocks: u64,
    scales: u64,
    block: u64,
    panel: u64,
}

impl Lens {
    fn new(dtype: Dtype, columns: u64) -> Option<Lens> {
        let bits = dtype.code_bits()?;
        let blocks = columns.div_ceil(BLOCK as u64);
        let scales = blocks.checked_add(2)?.checked_mul(PANEL as u64)?.checked_next_multiple_of(LINE)?;
        let block = bits.checked_mul((BLOCK * PANEL / 8) as u64)?;
        let panel = blocks.checked_mul(block)?.checked_add(scales)?;
        let values = if dtype.has_table() { VALUES_LEN } else { 0 };
        Some(Lens { values, blocks, scales, block, panel })
    }
}

/// Bytes of a section of so many rows, whole panels of them; `None` where `dtype` is not quantized or on overflow.
pub(super) fn section_len(dtype: Dtype, rows: u64, columns: u64) -> Option<u64> {
    let lens = Lens::new(dtype, columns)?;
    rows.checked_div(PANEL as u64)?.checked_mul(lens.panel)?.checked_add(lens.values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_those_of_the_document() {
        let lens = |dtype, columns| QuantizedPanels::new(dtype, columns).unwrap();
        // 18 blocks: 32 + 288 bytes of scales are five lines.
        let q4 = QuantizedPanels {
            values_len: 64,
            blocks: 18,
            scales_len: 320,
            block_len: 256,
            panel_len: 320 + 18 * 256,
        };
        assert_eq!(lens(Dtype::Q4, 576), q4);
        assert_eq!(q4.block_scales(), 32..320);
        let q3 = QuantizedPanels { block_len: 192, panel_len: 320 + 18 * 192, ..q4 };
        assert_eq!(lens(Dtype::Q3, 576), q3);
        assert_eq!(lens(Dtype::Q5, 576).block_len, 320);
        assert_eq!(lens(Dtype::Q6, 576).block_len, 384);
        let q8 = lens(Dtype::Q8, 33); // two blocks, the second with one column
        assert_eq!((q8.values_len, q8.blocks, q8.scales_len, q8.panel_len), (0, 2, 64, 64 + 1024));
    }

    #[test]
    fn what_does_not_fit_is_none() {
        assert_eq!(QuantizedPanels::new(Dtype::Bf16, 64), None);
        assert_eq!(QuantizedPanels::new(Dtype::Q8, usize::MAX), None);
        assert_eq!(section_len(Dtype::F32, 16, 64), None);
        assert_eq!(section_len(Dtype::Q8, u64::MAX, 1 << 16), None);
        assert_eq!(section_len(Dtype::Q4, 32, 32), Some(64 + 2 * (64 + 256)));
    }
}
