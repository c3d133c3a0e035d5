//! Quantized weights as they lie in a blob, and the activations that integers are multiplied with.
//!
//! **Numbers.** Of 32 inputs, one block, activations are rounded to whole numbers of 12 bits times one scale. The product of
//! a block's codes and these is an exact sum; that times the weights' block scale is one link of a chain of fused
//! multiply-adds over the blocks, in ascending order, from zero; the whole chain is multiplied by the row's scale at last. So
//! every set gives the same bits here, too. (`format-spec.md`, "Quantized panels")

use bytemuck::{Pod, Zeroable};

use super::LANES;
use crate::format::{BLOCK, Dtype, QuantizedPanels};

/// Codes of four inputs for each of a panel's outputs.
pub(crate) type Group = [u8; 4 * LANES];
/// What unsigned values are more than they should be: enough for the least one, -128.
pub(crate) const OFFSET: u8 = 128;
/// Times four inputs in a block.
pub(crate) const GROUPS: usize = BLOCK / 4;

/// Some panels of a quantized matrix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quantized<'a> {
    pub(crate) dtype: Dtype,
    /// What the codes of `q4` and `q3` stand for.
    pub(crate) table: &'a [i8; 16],
    lens: QuantizedPanels,
    panels: &'a [u8],
}

/// One panel.
#[derive(Clone, Copy)]
pub(crate) struct QuantizedPanel<'a> {
    /// One bf16 for each row.
    row_scales: &'a [[u8; 2]; LANES],
    /// Of each block, one for each row.
    pub block_scales: &'a [[u8; LANES]],
    /// As many for each block as a code has bits.
    pub codes: &'a [Group],
}

/// How many bits activations are rounded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ActivationBits {
    /// At most ±127: less exact, and half as many products of bytes.
    Eight,
    /// At most ±2047: what products with quantized weights are made of, unless they may be less exact.
    Twelve,
}

impl ActivationBits {
    /// The largest rounded activation.
    #[inline(always)]
    pub(crate) const fn largest(self) -> f32 {
        match self {
            ActivationBits::Eight => 127.0,
            ActivationBits::Twelve => 2047.0,
        }
    }
}

/// The activations of a block of inputs, quantized, for the set that did so.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ActivationBlock {
    /// The numbers in the set's [`Encoding`]: two halves for each four inputs, where [`Encoding::place`] says.
    pub(crate) halves: [i32; 2 * GROUPS],
    /// What [`OFFSET`] times all of them adds up to, negative; zero where no set needs it.
    pub(crate) correction: i32,
    /// What the numbers are multiples of, divided by [`Encoding::factor`].
    pub(crate) scale: f32,
}

impl<'a> Quantized<'a> {
    /// A section's bytes; `None` where `dtype` is not a quantized one.
    pub(crate) fn new(section: &'a [u8], dtype: Dtype, inputs: usize) -> Option<Quantized<'a>> {
        let lens = QuantizedPanels::new(dtype, inputs)?;
        let (table, panels) = section.split_at_checked(lens.values_len)?;
        let table = table.first_chunk::<16>().map_or(&[0; 16], bytemuck::cast_ref);
        Some(Quantized { dtype, table, lens, panels })
    }

    /// How many panels.
    pub(crate) fn count(self) -> usize {
        self.panels.len() / self.lens.panel_len
    }

    /// `count` panels from `first` on.
    pub(crate) fn slice(self, first: usize, count: usize) -> Quantized<'a> {
        let len = self.lens.panel_len;
        Quantized { panels: &self.panels[first * len..][..count * len], ..self }
    }

    /// The same panels without the blocks that only inputs from `inputs` on lie in.
    pub(crate) fn first_inputs(self, inputs: usize) -> Quantized<'a> {
        let blocks = inputs.div_ceil(BLOCK).min(self.lens.blocks);
        Quantized { lens: QuantizedPanels { blocks, ..self.lens }, ..self }
    }

    /// Blocks in a row.
    pub(crate) fn blocks(self) -> usize {
        self.lens.blocks
    }

    /// Bytes from a panel to the next one.
    #[inline(always)]
    pub(crate) fn panel_len(self) -> usize {
        self.lens.panel_len
    }

    #[inline(always)]
    pub(crate) fn panel(self, index: usize) -> QuantizedPanel<'a> {
        let panel = &self.panels[index * self.lens.panel_len..][..self.lens.panel_len];
        let (scales, codes) = panel.split_at(self.lens.scales_len);
        let row_scales = scales.as_chunks().0.first_chunk();
        QuantizedPanel {
            row_scales: row_scales.expect("a panel has a scale for each row"),
            block_scales: scales[self.lens.block_scales()].as_chunks().0,
            codes: codes.as_chunks().0,
        }
    }

    /// The values of a block's codes for one row, in plain Rust: the oracle of the sets.
    pub(crate) fn values(self, panel: QuantizedPanel<'_>, block: usize, lane: usize) -> [i8; BLOCK] {
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
    pub(crate) fn row(self, row: usize) -> impl Iterator<Item = f32> + 'a {
        let (panel, lane) = (self.panel(row / LANES), row % LANES);
        let row_scale = panel.row_scales()[lane];
        (0..self.blocks()).flat_map(move |block| {
            let scale = i32::from(panel.block_scales[block][lane]);
            self.values(panel, block, lane).map(|value| row_scale * (scale * i32::from(value)) as f32)
        })
    }
}

impl QuantizedPanel<'_> {
    #[inline(always)]
    pub(crate) fn row_scales(&self) -> [f32; LANES] {
        self.row_scales.map(|scale| f32::from_bits(u32::from(u16::from_le_bytes(scale)) << 16))
    }
}

/// How many blocks hold so many rows of so many inputs.
pub(crate) fn activation_blocks(inputs: usize, rows: usize) -> usize {
    inputs.div_ceil(BLOCK) * rows
}

/// How the quantized activations of four inputs are given to [`super::simd::Integers::add_products`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code)] // each processor's sets use some
pub(crate) enum Encoding {
    /// A half is two inputs: an i16 of the first and the third, or of the second and the fourth. Values are shifted up to 16
    /// bits instead of having their signs moved, so that sums are 256 times what they should be.
    I16,
    /// A half is a part of all four: of each input `x = 128 a + b`, the i8 `a`, or the i8 `b`. Of 8 bits, `a` is 0.
    I8,
}

impl Encoding {
    /// What sums of products come out times.
    #[inline(always)]
    pub(crate) const fn factor(self) -> i32 {
        match self {
            Encoding::I16 => 256,
            Encoding::I8 => 1,
        }
    }

    /// Where a half of the `group`-th four inputs lies in a block. Halves of bytes lie one after the other, as a vector unit
    /// leaves them.
    #[inline(always)]
    pub(crate) const fn place(self, group: usize, half: usize) -> usize {
        match self {
            Encoding::I16 => 2 * group + half,
            Encoding::I8 => GROUPS * half + group,
        }
    }

    #[inline(always)]
    pub(crate) fn encode(self, numbers: [i16; BLOCK], bits: ActivationBits) -> [i32; 2 * GROUPS] {
        match self {
            Encoding::I16 => {
                let mut halves = [[0i16; 2]; 2 * GROUPS];
                for (halves, &[a, b, c, d]) in
                    halves.as_chunks_mut::<2>().0.iter_mut().zip(numbers.as_chunks().0)
                {
                    *halves = [[a, c], [b, d]];
                }
                bytemuck::cast(halves)
            }
            Encoding::I8 => {
                let (mut upper, mut lower) = ([0i8; BLOCK], [0i8; BLOCK]);
                for i in 0..BLOCK {
                    let multiple = if bits == ActivationBits::Eight { 0 } else { (numbers[i] + 64) >> 7 };
                    upper[i] = multiple as i8;
                    lower[i] = (numbers[i] - 128 * multiple) as i8;
                }
                bytemuck::cast([upper, lower])
            }
        }
    }

    /// The halves of four inputs of 8 bits.
    #[inline(always)]
    pub(crate) const fn halves(self, numbers: [i32; 4]) -> [i32; 2] {
        let [a, b, c, d] = numbers;
        match self {
            Encoding::I16 => [a & 0xffff | c << 16, b & 0xffff | d << 16],
            Encoding::I8 => [0, bytes(numbers)],
        }
    }

    fn decode(self, halves: [i32; 2]) -> [i16; 4] {
        match self {
            Encoding::I16 => {
                let [[a, c], [b, d]]: [[i16; 2]; 2] = halves.map(bytemuck::cast);
                [a, b, c, d]
            }
            Encoding::I8 => {
                let [upper, lower]: [[i8; 4]; 2] = halves.map(bytemuck::cast);
                std::array::from_fn(|i| 128 * i16::from(upper[i]) + i16::from(lower[i]))
            }
        }
    }
}

/// Four numbers of 8 bits, the first in the lowest ones.
#[inline(always)]
pub(crate) const fn bytes([a, b, c, d]: [i32; 4]) -> i32 {
    a & 0xff | (b & 0xff) << 8 | (c & 0xff) << 16 | d << 24
}

impl ActivationBlock {
    /// The quantized activations by input.
    pub(crate) fn in_order(&self, encoding: Encoding) -> impl Iterator<Item = i16> {
        (0..GROUPS).flat_map(move |group| {
            encoding.decode([0, 1].map(|half| self.halves[encoding.place(group, half)]))
        })
    }
}
