//! Sixteen rows to the bytes of a panel.

use half::bf16;
use smolrun::format::{BLOCK, Dtype, PANEL, QuantizedPanels};

use super::Loss;
use super::codes::Codes;
use super::row::Row;

/// Columns that lie side by side in a row.
const GROUP: usize = 4;
/// Places in a group: of each row, its columns.
const PLACES: usize = PANEL * GROUP;

/// A panel that is being filled.
pub(super) struct Panel<'a> {
    layout: QuantizedPanels,
    dtype: Dtype,
    scales: &'a mut [u8],
    codes: &'a mut [u8],
}

impl<'a> Panel<'a> {
    /// In `bytes`, which are zero and as many as a panel has.
    pub(super) fn new(layout: QuantizedPanels, dtype: Dtype, bytes: &'a mut [u8]) -> Panel<'a> {
        let (scales, codes) = bytes.split_at_mut(layout.scales_len);
        Panel { layout, dtype, scales, codes }
    }

    /// Puts `row` in place `index` of 16.
    pub(super) fn put(&mut self, index: usize, row: &Row, codes: &Codes) {
        let row_scales = self.scales[QuantizedPanels::ROW_SCALES].as_chunks_mut().0;
        row_scales[index] = row.scale.to_le_bytes();
        let block_scales = self.scales[self.layout.block_scales()].chunks_exact_mut(PANEL);
        block_scales.zip(&row.scales).for_each(|(block, &scale)| block[index] = scale);
        let blocks = self.codes.chunks_exact_mut(self.layout.block_len);
        for (block, values) in blocks.zip(&row.values) {
            put_codes(self.dtype, &values.map(|value| codes.code(value)), index * GROUP, block);
        }
    }
}

/// Puts the codes of a row, whose places begin at `first`, into the zeroes of a block.
fn put_codes(dtype: Dtype, codes: &[u8; BLOCK], first: usize, block: &mut [u8]) {
    let (lines, _) = block.as_chunks_mut::<PLACES>();
    for (group, codes) in codes.as_chunks::<GROUP>().0.iter().enumerate() {
        for (place, &code) in (first..).zip(codes) {
            let (fours, twos) = (group % 2 * 4, group % 4 * 2);
            match dtype {
                Dtype::Q3 => {
                    lines[group / 4][place] |= (code & 3) << twos;
                    lines[2][place] |= code >> 2 << group;
                }
                Dtype::Q8 => lines[group][place] = code,
                _ => lines[group / 2][place] |= (code & 15) << fours,
            }
            match dtype {
                Dtype::Q6 => lines[4 + group / 4][place] |= code >> 4 << twos,
                Dtype::Q5 => lines[4][place] |= code >> 4 << group,
                _ => {}
            }
        }
    }
}

/// What the codes of a block stand for, `[columns][16]`: those of `table` where the dtype has one.
pub(super) fn values(dtype: Dtype, table: &[u8], block: &[u8]) -> [[i8; PANEL]; BLOCK] {
    let lines = block.as_chunks::<PLACES>().0;
    std::array::from_fn(|column| {
        let group = column / GROUP;
        let (fours, twos) = (group % 2 * 4, group % 4 * 2);
        std::array::from_fn(|row| {
            let place = row * GROUP + column % GROUP;
            let low = || lines[group / 2][place] >> fours & 15;
            match dtype {
                Dtype::Q3 => {
                    let code = lines[group / 4][place] >> twos & 3 | (lines[2][place] >> group & 1) << 2;
                    table[usize::from(code)].cast_signed()
                }
                Dtype::Q4 => table[usize::from(low())].cast_signed(),
                Dtype::Q5 => (low() | (lines[4][place] >> group & 1) << 4) as i8 - 16,
                Dtype::Q6 => (low() | (lines[4 + group / 4][place] >> twos & 3) << 4) as i8 - 32,
                _ => lines[group][place].cast_signed(),
            }
        })
    })
}

/// What the rows of a panel lost of the numbers that they stand for.
pub(super) fn loss<'a>(
    layout: QuantizedPanels,
    dtype: Dtype,
    table: &[u8],
    panel: &[u8],
    rows: impl Iterator<Item = &'a [f32]>,
) -> Loss {
    let codes = panel[layout.scales_len..].chunks_exact(layout.block_len);
    let values: Vec<_> = codes.map(|block| values(dtype, table, block)).collect();
    let row_scales = panel[QuantizedPanels::ROW_SCALES].as_chunks::<2>().0;
    let block_scales = panel[layout.block_scales()].as_chunks::<PANEL>().0;
    let mut loss = Loss::default();
    for (lane, numbers) in rows.enumerate() {
        let row_scale = f64::from(bf16::from_le_bytes(row_scales[lane]).to_f32());
        for ((numbers, values), scales) in numbers.chunks(BLOCK).zip(&values).zip(block_scales) {
            let scale = row_scale * f64::from(scales[lane]);
            for (number, value) in numbers.iter().zip(values) {
                let number = f64::from(*number);
                loss.differences += (number - scale * f64::from(value[lane])).powi(2);
                loss.numbers += number * number;
            }
        }
    }
    loss
}
