//! Quantized matrices, read by the formulas of format-spec.md and nothing of ours.

use std::ops::Range;

/// A section of `q8`, `q6`, `q5`, `q4` or `q3`.
#[derive(Clone, Copy, Debug)]
pub struct Quantized<'a> {
    /// Bits of a code.
    pub bits: usize,
    /// Columns of the matrix.
    pub columns: usize,
    /// The bytes of the section.
    pub bytes: &'a [u8],
}

impl<'a> Quantized<'a> {
    /// A section with this code of a dtype in the directory.
    ///
    /// # Panics
    /// If the dtype is not quantized, or the section does not consist of panels.
    pub fn new(dtype: u32, columns: usize, bytes: &'a [u8]) -> Quantized<'a> {
        let bits = [8, 6, 5, 4, 3][dtype as usize - 5];
        let section = Quantized { bits, columns, bytes };
        assert_eq!((bytes.len() - section.start()) % section.panel_len(), 0);
        section
    }

    /// Panels of 16 rows.
    pub fn panels(self) -> usize {
        (self.bytes.len() - self.start()) / self.panel_len()
    }

    /// The number that every element of a row has as a factor.
    pub fn row_scale(self, panel: usize, row: usize) -> f32 {
        let at = 2 * (row % 16);
        let bytes = &self.panel(panel)[at..at + 2];
        f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16)
    }

    /// The factor of the elements of a row in a block of 32 columns.
    pub fn block_scale(self, panel: usize, row: usize, block: usize) -> u8 {
        self.panel(panel)[32 + 16 * block + row % 16]
    }

    /// The value of the code of a column, which may be one that fills up the last block.
    pub fn value(self, panel: usize, row: usize, column: usize) -> i8 {
        let block = self.scales_len() + column / 32 * 64 * self.bits;
        let codes = &self.panel(panel)[block..block + 64 * self.bits];
        let (group, place) = (column / 4 % 8, row % 16 * 4 + column % 4);
        let line = |line: usize| codes[64 * line + place];
        let lower = || line(group / 2) >> (4 * (group % 2)) & 15;
        match self.bits {
            8 => line(group) as i8,
            6 => ((line(4 + group / 4) >> (2 * (group % 4)) & 3) << 4 | lower()) as i8 - 32,
            5 => ((line(4) >> group & 1) << 4 | lower()) as i8 - 16,
            3 => {
                let lower = line(group / 4) >> (2 * (group % 4)) & 3;
                self.bytes[usize::from((line(2) >> group & 1) << 2 | lower)] as i8
            }
            _ => self.bytes[usize::from(lower())] as i8,
        }
    }

    /// The values that codes can have.
    pub fn values(self) -> Vec<i8> {
        match self.bits {
            8 => (i8::MIN..=i8::MAX).collect(),
            6 => (-32..32).collect(),
            5 => (-16..16).collect(),
            bits => self.bytes[..1 << bits].iter().map(|&byte| byte as i8).collect(),
        }
    }

    /// An element of the matrix: row `row` is in place `row mod 16` of panel `panel`.
    pub fn element(self, panel: usize, row: usize, column: usize) -> f32 {
        let block_scale = self.block_scale(panel, row, column / 32);
        self.row_scale(panel, row) * (f32::from(block_scale) * f32::from(self.value(panel, row, column)))
    }

    /// The bytes that a reader ignores.
    pub fn ignored(self) -> impl Iterator<Item = u8> + use<'a> {
        let (scales, padded) = (32 + 16 * self.blocks(), self.scales_len());
        let table = self.bytes[..self.start()].iter().skip(1 << self.bits);
        let panels = (0..self.panels()).flat_map(move |panel| &self.panel(panel)[scales..padded]);
        table.chain(panels).copied()
    }

    fn start(self) -> usize {
        if self.bits <= 4 { 64 } else { 0 }
    }

    fn blocks(self) -> usize {
        self.columns.div_ceil(32)
    }

    fn scales_len(self) -> usize {
        (32 + 16 * self.blocks()).next_multiple_of(64)
    }

    fn panel_len(self) -> usize {
        self.scales_len() + 64 * self.bits * self.blocks()
    }

    fn panel(self, panel: usize) -> &'a [u8] {
        let Range { start, end } = panel * self.panel_len()..(panel + 1) * self.panel_len();
        &self.bytes[self.start() + start..self.start() + end]
    }
}
