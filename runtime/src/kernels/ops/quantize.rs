//! Activations quantized for products with quantized matrices: see [`crate::kernels::quantized`].

use crate::format::BLOCK;
use crate::kernels::LANES;
use crate::kernels::half::Bf16Pair;
use crate::kernels::quantized::{ActivationBits, ActivationBlock, Encoding, OFFSET};
use crate::kernels::simd::{Integers, Op, PlainOp};
use crate::kernels::tiles::{ActivationTile, ByteTile, QuantizedTile, SplitTile, TILE_ROWS};

// A block's sum of products, at most 32 · 128 · 2047, is exact in f32, and 256 times it in i32.
const _: () = assert!(256.0 * 32.0 * 128.0 * ActivationBits::Twelve.largest() < 2_147_483_648.0);
/// Below this all activations of a block are taken for zero, so that no quotient overflows.
pub(super) const SMALLEST: f32 = f32::from_bits((127 - 100) << 23);

/// Rounds activations to whole numbers times a scale, for [`super::MatmulQuantized`]: the blocks of 32 inputs for all `rows`
/// rows, from the `first` such block on.
pub(crate) struct QuantizeBlocks<'a> {
    /// `[inputs/16, rounded up][rows][16]`
    pub x: &'a [f32],
    pub rows: usize,
    pub first: usize,
    pub bits: ActivationBits,
    /// `[inputs/32, rounded up][rows]`
    pub blocks: &'a mut [ActivationBlock],
}

impl Op for QuantizeBlocks<'_> {
    const INTEGERS: bool = true;

    #[inline(always)]
    fn run<S: Integers>(self, simd: S) {
        match simd.many_rows(self.rows, self.bits) {
            Some(_) => self.encode(S::ManyRows::ENCODING),
            None => self.encode(S::ENCODING),
        }
    }
}

impl QuantizeBlocks<'_> {
    #[inline(always)]
    pub(in crate::kernels) fn encode(self, encoding: Encoding) {
        // Each is compiled for its number of bits.
        match self.bits {
            ActivationBits::Eight => self.round(encoding, ActivationBits::Eight),
            ActivationBits::Twelve => self.round(encoding, ActivationBits::Twelve),
        }
    }

    #[inline(always)]
    fn round(self, encoding: Encoding, bits: ActivationBits) {
        let QuantizeBlocks { x, rows, first, blocks, .. } = self;
        let x: &[[f32; LANES]] = x.as_chunks().0;
        let mut panels = x[2 * first * rows..].chunks_exact(rows);
        for blocks in blocks.chunks_exact_mut(rows) {
            let first = panels.next().unwrap_or(&[]);
            match panels.next() {
                Some(second) => {
                    for ((block, first), second) in blocks.iter_mut().zip(first).zip(second) {
                        *block = ActivationBlock::new(encoding, bits, [*first, *second]);
                    }
                }
                None => {
                    for (block, first) in blocks.iter_mut().zip(first) {
                        *block = ActivationBlock::new(encoding, bits, [*first, [0.0; LANES]]);
                    }
                }
            }
        }
    }
}

impl ActivationBlock {
    #[inline(always)]
    fn new(encoding: Encoding, bits: ActivationBits, x: [[f32; LANES]; 2]) -> ActivationBlock {
        let (numbers, sum, scale) = numbers(x, bits);
        let correction = match encoding {
            Encoding::I16 => 0,
            Encoding::I8 => -sum * i32::from(OFFSET),
        };
        ActivationBlock {
            halves: encoding.encode(numbers, bits),
            correction,
            scale: scale / encoding.factor() as f32,
        }
    }
}

/// Activations of a block as whole numbers of so many bits, what these add up to, and what they are multiples of.
#[inline(always)]
fn whole_numbers(x: [[f32; LANES]; 2], bits: ActivationBits) -> ([[i32; LANES]; 2], i32, f32) {
    let largest = x.as_flattened().iter().fold(0, |largest, &number| largest.max(magnitude(number)));
    let largest = f32::from_bits(largest);
    // What is not finite makes all that it is multiplied with NaN.
    let scale = if largest.is_finite() { largest / bits.largest() } else { f32::NAN };
    let (mut numbers, mut sum) = ([[0; LANES]; 2], 0i32);
    if (SMALLEST..f32::INFINITY).contains(&largest) {
        let factor = bits.largest() / largest;
        for lane in 0..LANES {
            numbers[0][lane] = whole(x[0][lane] * factor);
            numbers[1][lane] = whole(x[1][lane] * factor);
        }
        // Outside of this branch, the compiler would add them up one by one.
        sum = numbers.as_flattened().iter().fold(0, |sum, &number| sum.wrapping_add(number));
    }
    (numbers, sum, scale)
}

/// The same of 16 bits each.
#[inline(always)]
fn numbers(x: [[f32; LANES]; 2], bits: ActivationBits) -> ([i16; BLOCK], i32, f32) {
    let (halves, sum, scale) = whole_numbers(x, bits);
    let mut numbers = [0; BLOCK];
    for lane in 0..LANES {
        (numbers[lane], numbers[LANES + lane]) = (halves[0][lane] as i16, halves[1][lane] as i16);
    }
    (numbers, sum, scale)
}

/// The bits of a number without its sign: larger numbers have larger ones, NaN the largest.
#[inline(always)]
pub(super) fn magnitude(number: f32) -> u32 {
    number.to_bits() & 0x7fff_ffff
}

/// The whole number next to one below 2^22, of two the even one.
#[inline(always)]
pub(super) fn whole(number: f32) -> i32 {
    // 1.5 · 2^23 leaves no bits behind the point.
    const ROUND: f32 = 12_582_912.0;
    (number + ROUND).to_bits().wrapping_sub(ROUND.to_bits()).cast_signed()
}

/// Rounds activations as [`QuantizeBlocks`] does, for [`super::MatmulTiles`]: the tiles of as many rows as one has, from the
/// `first` such on. Which bits they get is for the kind of tiles to say. Rows that there are not stay as they were.
pub(crate) struct QuantizeTiles<'a, T> {
    /// `[inputs/16, rounded up][rows][16]`
    pub x: &'a [f32],
    pub inputs: usize,
    pub rows: usize,
    pub first: usize,
    /// `[rows/T::ROWS, rounded up][inputs/32, rounded up]`
    pub tiles: &'a mut [T],
}

impl QuantizedTile for ActivationTile {
    const ROWS: usize = TILE_ROWS;

    #[inline(always)]
    fn set(&mut self, row: usize, x: [[f32; LANES]; 2]) {
        let ([first, second], _, scale) = whole_numbers(x, ActivationBits::Twelve);
        for lane in 0..LANES {
            let multiples = [first[lane], second[lane]].map(|number| (number + 64) & !127);
            let rest = [first[lane] - multiples[0], second[lane] - multiples[1]];
            self.parts[0][row][lane] = Bf16Pair::exact(multiples);
            self.parts[1][row][lane] = Bf16Pair::exact(rest);
        }
        self.scales[row] = scale;
    }

    #[inline(always)]
    fn scales(&self) -> &[f32; TILE_ROWS] {
        &self.scales
    }
}

impl QuantizedTile for SplitTile {
    const ROWS: usize = TILE_ROWS / 2;

    #[inline(always)]
    fn set(&mut self, row: usize, x: [[f32; LANES]; 2]) {
        let (numbers, _, scale) = whole_numbers(x, ActivationBits::Twelve);
        let [upper, lower] = &mut self.bytes.as_chunks_mut().0[row];
        for ((upper, lower), &number) in upper.iter_mut().zip(lower).zip(numbers.as_flattened()) {
            let multiple = (number + 64) >> 7;
            (*upper, *lower) = (multiple as i8, (number - 128 * multiple) as i8);
        }
        self.scales[row] = scale;
    }

    #[inline(always)]
    fn scales(&self) -> &[f32; TILE_ROWS] {
        &self.scales
    }
}

impl QuantizedTile for ByteTile {
    const ROWS: usize = TILE_ROWS;

    #[inline(always)]
    fn set(&mut self, row: usize, x: [[f32; LANES]; 2]) {
        let (numbers, _, scale) = whole_numbers(x, ActivationBits::Eight);
        for (to, &number) in self.bytes[row].iter_mut().zip(numbers.as_flattened()) {
            *to = number as i8;
        }
        self.scales[row] = scale;
    }

    #[inline(always)]
    fn scales(&self) -> &[f32; TILE_ROWS] {
        &self.scales
    }
}

impl<T: QuantizedTile> PlainOp for QuantizeTiles<'_, T> {
    #[inline(always)]
    fn compute(self) {
        let QuantizeTiles { x, inputs, rows, first, tiles } = self;
        let x: &[[f32; LANES]] = x.as_chunks().0;
        let blocks = inputs.div_ceil(BLOCK);
        for (i, tile) in tiles.iter_mut().enumerate() {
            let (first, block) = ((first + i / blocks) * T::ROWS, i % blocks);
            for r in 0..T::ROWS.min(rows - first) {
                let lanes = |panel: usize| x.get(panel * rows + first + r).copied().unwrap_or([0.0; LANES]);
                tile.set(r, [lanes(2 * block), lanes(2 * block + 1)]);
            }
        }
    }
}
