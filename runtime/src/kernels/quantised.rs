//! Quantised weights as they lie in a blob, and the activations that integers are multiplied with.
//!
//! **Numbers.** Of 32 inputs, one block, activations are rounded to whole numbers of 12 bits times one scale. The product of
//! a block's codes and these is an exact sum; that times the weights' block scale is one link of a chain of fused
//! multiply-adds over the blocks, in ascending order, from zero; the whole chain is multiplied by the row's scale at last. So
//! every set gives the same bits here, too. (`format-spec.md`, "Quantised panels")

use bytemuck::{Pod, Zeroable};

use super::LANES;
use super::rounded::{TILE_ROWS, Tile};
use super::simd::Encoding;
use crate::format::{BLOCK, Dtype, QuantisedPanels};

/// Codes of four inputs for each of a panel's outputs.
pub(super) type Group = [u8; 4 * LANES];
/// Times four inputs in a block.
pub(super) const GROUPS: usize = BLOCK / 4;

/// Some panels of a quantised matrix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quantised<'a> {
    pub(super) dtype: Dtype,
    /// What the codes of `q4` and `q3` stand for.
    pub(super) table: &'a [i8; 16],
    lens: QuantisedPanels,
    panels: &'a [u8],
}

/// One panel.
#[derive(Clone, Copy)]
pub(super) struct QuantisedPanel<'a> {
    /// One bf16 for each row.
    row_scales: &'a [[u8; 2]; LANES],
    /// Of each block, one for each row.
    pub block_scales: &'a [[u8; LANES]],
    /// As many for each block as a code has bits.
    pub codes: &'a [Group],
}

/// The activations of a block of inputs, rounded, for the set that rounded them.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RoundedBlock {
    /// At most ±2047, in the set's [`Encoding`]: two halves for each four inputs, where [`Encoding::place`] says.
    pub(super) halves: [i32; 2 * GROUPS],
    /// What all of them add up to, negative; zero where no set needs it.
    pub(super) minus_sum: i32,
    /// What the numbers are multiples of, divided by [`Encoding::factor`].
    pub(super) scale: f32,
}

/// The largest rounded activation. A block's sum of products, at most 32 · 128 · 2047, then is exact in f32, and 256 times it
/// in i32.
const LARGEST: f32 = 2047.0;
/// Below this all activations of a block are taken for zero, so that no quotient overflows.
const SMALLEST: f32 = f32::from_bits((127 - 100) << 23);

impl<'a> Quantised<'a> {
    /// A section's bytes; `None` where `dtype` is not a quantised one.
    pub(crate) fn new(section: &'a [u8], dtype: Dtype, inputs: usize) -> Option<Quantised<'a>> {
        let lens = QuantisedPanels::new(dtype, inputs)?;
        let (table, panels) = section.split_at_checked(lens.values_len)?;
        let table = table.first_chunk::<16>().map_or(&[0; 16], bytemuck::cast_ref);
        Some(Quantised { dtype, table, lens, panels })
    }

    /// How many panels.
    pub(super) fn count(self) -> usize {
        self.panels.len() / self.lens.panel_len
    }

    /// `count` panels from `first` on.
    pub(super) fn slice(self, first: usize, count: usize) -> Quantised<'a> {
        let len = self.lens.panel_len;
        Quantised { panels: &self.panels[first * len..][..count * len], ..self }
    }

    /// Blocks in a row.
    pub(super) fn blocks(self) -> usize {
        self.lens.blocks
    }

    #[inline(always)]
    pub(super) fn panel(self, index: usize) -> QuantisedPanel<'a> {
        let panel = &self.panels[index * self.lens.panel_len..][..self.lens.panel_len];
        let (scales, codes) = panel.split_at(self.lens.scales_len);
        let row_scales = scales.as_chunks().0.first_chunk();
        QuantisedPanel {
            row_scales: row_scales.expect("a panel has a scale for each row"),
            block_scales: scales[self.lens.block_scales()].as_chunks().0,
            codes: codes.as_chunks().0,
        }
    }

    /// The values of a block's codes for one row, in plain Rust: the oracle of the sets.
    pub(super) fn values(self, panel: QuantisedPanel<'_>, block: usize, lane: usize) -> [i8; BLOCK] {
        let bits = self.lens.block_len / size_of::<Group>();
        let groups = &panel.codes[block * bits..][..bits];
        std::array::from_fn(|input| {
            let (group, place) = (input / 4, lane * 4 + input % 4);
            let low = || groups[group / 2][place] >> (group % 2 * 4) & 15;
            match self.dtype {
                Dtype::Q4 => self.table[usize::from(low())],
                Dtype::Q3 => {
                    let low = groups[group / 4][place] >> (group % 4 * 2) & 3;
                    self.table[usize::from(low | (groups[2][place] >> group & 1) << 2)]
                }
                Dtype::Q5 => (low() | (groups[4][place] >> group & 1) << 4) as i8 - 16,
                Dtype::Q6 => (low() | (groups[4 + group / 4][place] >> (group % 4 * 2) & 3) << 4) as i8 - 32,
                _ => groups[group][place] as i8,
            }
        })
    }

    /// The numbers of row `row`, those that fill up its last block included.
    pub(super) fn row(self, row: usize) -> impl Iterator<Item = f32> + 'a {
        let (panel, lane) = (self.panel(row / LANES), row % LANES);
        let row_scale = panel.row_scales()[lane];
        (0..self.blocks()).flat_map(move |block| {
            let scale = i32::from(panel.block_scales[block][lane]);
            self.values(panel, block, lane).map(|value| row_scale * (scale * i32::from(value)) as f32)
        })
    }
}

impl QuantisedPanel<'_> {
    #[inline(always)]
    pub(super) fn row_scales(&self) -> [f32; LANES] {
        self.row_scales.map(|scale| f32::from_bits(u32::from(u16::from_le_bytes(scale)) << 16))
    }
}

/// How many blocks hold so many rows of so many inputs.
pub(crate) fn rounded_blocks(inputs: usize, rows: usize) -> usize {
    inputs.div_ceil(BLOCK) * rows
}

/// See [`super::Kernels::round`].
#[inline(always)]
pub(super) fn round(encoding: Encoding, x: &[f32], rows: usize, first: usize, blocks: &mut [RoundedBlock]) {
    let x: &[[f32; LANES]] = x.as_chunks().0;
    for (i, block) in blocks.iter_mut().enumerate() {
        let (index, row) = (first + i / rows, i % rows);
        let lanes = |panel: usize| x.get(panel * rows + row).copied().unwrap_or([0.0; LANES]);
        *block = RoundedBlock::new(encoding, [lanes(2 * index), lanes(2 * index + 1)]);
    }
}

impl Encoding {
    /// What sums of products come out times.
    #[inline(always)]
    pub(super) const fn factor(self) -> i32 {
        match self {
            Encoding::Words => 256,
            Encoding::Bytes => 1,
        }
    }

    /// Where a half of the `group`-th four inputs lies in a block. Halves of bytes lie one after the other, as a vector unit
    /// leaves them.
    #[inline(always)]
    pub(super) const fn place(self, group: usize, half: usize) -> usize {
        match self {
            Encoding::Words => 2 * group + half,
            Encoding::Bytes => GROUPS * half + group,
        }
    }

    #[inline(always)]
    fn encode(self, numbers: [i16; BLOCK]) -> [i32; 2 * GROUPS] {
        match self {
            Encoding::Words => {
                let mut halves = [[0i16; 2]; 2 * GROUPS];
                for (halves, &[a, b, c, d]) in
                    halves.as_chunks_mut::<2>().0.iter_mut().zip(numbers.as_chunks().0)
                {
                    *halves = [[a, c], [b, d]];
                }
                bytemuck::cast(halves)
            }
            Encoding::Bytes => {
                let (mut upper, mut lower) = ([0i8; BLOCK], [0i8; BLOCK]);
                for i in 0..BLOCK {
                    let multiple = (numbers[i] + 64) >> 7;
                    upper[i] = multiple as i8;
                    lower[i] = (numbers[i] - 128 * multiple) as i8;
                }
                bytemuck::cast([upper, lower])
            }
        }
    }

    fn decode(self, halves: [i32; 2]) -> [i16; 4] {
        match self {
            Encoding::Words => {
                let [[a, c], [b, d]]: [[i16; 2]; 2] = halves.map(bytemuck::cast);
                [a, b, c, d]
            }
            Encoding::Bytes => {
                let [upper, lower]: [[i8; 4]; 2] = halves.map(bytemuck::cast);
                std::array::from_fn(|i| 128 * i16::from(upper[i]) + i16::from(lower[i]))
            }
        }
    }
}

impl RoundedBlock {
    /// The rounded activations by input.
    pub(super) fn in_order(&self, encoding: Encoding) -> impl Iterator<Item = i16> {
        (0..GROUPS).flat_map(move |group| {
            encoding.decode([0, 1].map(|half| self.halves[encoding.place(group, half)]))
        })
    }

    #[inline(always)]
    pub(super) fn new(encoding: Encoding, x: [[f32; LANES]; 2]) -> RoundedBlock {
        let (numbers, scale) = numbers(x);
        let minus_sum = match encoding {
            Encoding::Words => 0,
            Encoding::Bytes => numbers.iter().map(|number| -i32::from(*number)).sum(),
        };
        RoundedBlock { halves: encoding.encode(numbers), minus_sum, scale: scale / encoding.factor() as f32 }
    }
}

/// Activations of a block as whole numbers of at most ±2047, and what they are multiples of.
#[inline(always)]
fn numbers(x: [[f32; LANES]; 2]) -> ([i16; BLOCK], f32) {
    let mut largest = 0;
    for lane in 0..LANES {
        // Without their signs, larger numbers have larger bits, NaN the largest.
        let magnitude = |x: f32| x.to_bits() & 0x7fff_ffff;
        largest = largest.max(magnitude(x[0][lane])).max(magnitude(x[1][lane]));
    }
    let largest = f32::from_bits(largest);
    // What is not finite makes all that it is multiplied with NaN.
    let scale = if largest.is_finite() { largest / LARGEST } else { f32::NAN };
    let factor = if (SMALLEST..f32::INFINITY).contains(&largest) { LARGEST / largest } else { 0.0 };
    let x = x.as_flattened();
    let mut numbers = [0i16; BLOCK];
    for i in 0..BLOCK {
        // 1.5 · 2^23 leaves no bits behind the point: what is added to it is rounded, ties to even.
        let number = (x[i] * factor + 12_582_912.0).to_bits() as i16;
        numbers[i] = if factor > 0.0 { number } else { 0 };
    }
    (numbers, scale)
}

/// The activations of a block of inputs for 16 rows, rounded, for a set that multiplies tiles.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RoundedTile {
    /// Two numbers to be added, for each at most ±2047: a multiple of 128, and the rest. Either is exact as bf16.
    pub(super) parts: [Tile; 2],
    /// What the numbers of each row are multiples of.
    pub(super) scales: [f32; TILE_ROWS],
}

/// How many tiles hold so many rows of so many inputs.
pub(crate) fn rounded_tiles(inputs: usize, rows: usize) -> usize {
    inputs.div_ceil(BLOCK) * rows.div_ceil(TILE_ROWS)
}

/// See [`super::Kernels::round_tiles`].
#[inline(always)]
pub(super) fn round_tiles(x: &[f32], inputs: usize, rows: usize, first: usize, tiles: &mut [RoundedTile]) {
    let x: &[[f32; LANES]] = x.as_chunks().0;
    let blocks = inputs.div_ceil(BLOCK);
    for (i, tile) in tiles.iter_mut().enumerate() {
        let (first, block) = ((first + i / blocks) * TILE_ROWS, i % blocks);
        for r in 0..TILE_ROWS {
            let lanes = |panel: usize| match first + r < rows {
                true => x.get(panel * rows + first + r).copied().unwrap_or([0.0; LANES]),
                false => [0.0; LANES],
            };
            let (numbers, scale) = numbers([lanes(2 * block), lanes(2 * block + 1)]);
            let (mut upper, mut lower) = ([0; BLOCK], [0; BLOCK]);
            for i in 0..BLOCK {
                let multiple = (numbers[i] + 64) & !127;
                upper[i] = bf16_bits(multiple);
                lower[i] = bf16_bits(numbers[i] - multiple);
            }
            tile.parts[0][r] = bytemuck::cast(upper);
            tile.parts[1][r] = bytemuck::cast(lower);
            tile.scales[r] = scale;
        }
    }
}

/// A number of at most 8 bits, but for zeros after them, as bf16.
#[inline(always)]
fn bf16_bits(number: i16) -> u16 {
    (f32::from(number).to_bits() >> 16) as u16
}
