//! The product with quantized weights, once for all instruction sets: integers are multiplied and added up exactly within
//! a block of inputs, blocks are added in f32, see [`crate::kernels::quantized`].

use std::hint::black_box;

use crate::format::Dtype;
use crate::kernels::LANES;
use crate::kernels::quantized::{
    ActivationBits, ActivationBlock, Encoding, GROUPS, Group, OFFSET, Quantized, QuantizedPanel,
};
use crate::kernels::simd::{Aligned, Bytes, Cache, FEWEST_ROWS_TO_ASK, Integers, Op, prefetch, unrolled};
use crate::kernels::tiles::{QuantizedTile, TILE_ROWS, Tile};

/// Blocks whose values are taken apart at a time to be read again and again for all rows: at most 8 KiB a panel, which stay
/// in the first-level cache.
const DEPTH: usize = 8;

/// Fewest rows of 8-bit activations for which it pays to fetch the codes of the next blocks meanwhile. (Measured on Zen 5: with
/// 256 rows prompts are faster. Those of 12 bits gain nothing, and lose with 16 to 64 rows.)
const FEWEST_ROWS_TO_FETCH: usize = 128;

/// Calls a method with the type of a dtype's codes.
macro_rules! with_codes {
    ($dtype:expr, $product:ident.$method:ident::<_ $(, $rows:literal)?>($($argument:expr),*)) => {
        match $dtype {
            Dtype::Q4 => $product.$method::<Q4 $(, $rows)?>($($argument),*),
            Dtype::Q3 => $product.$method::<Q3 $(, $rows)?>($($argument),*),
            Dtype::Q5 => $product.$method::<Q5 $(, $rows)?>($($argument),*),
            Dtype::Q6 => $product.$method::<Q6 $(, $rows)?>($($argument),*),
            _ => $product.$method::<Q8 $(, $rows)?>($($argument),*),
        }
    };
}
#[cfg(target_arch = "x86_64")]
pub(in crate::kernels) use with_codes;

/// `y = w x` for quantized weights and activations.
pub(crate) struct MatmulQuantized<'a> {
    pub w: Quantized<'a>,
    /// `[blocks][rows]`
    pub x: &'a [ActivationBlock],
    /// Of `x`.
    pub bits: ActivationBits,
    pub rows: usize,
    /// `[panels][rows][16]`
    pub y: &'a mut [f32],
}

impl Op for MatmulQuantized<'_> {
    const INTEGERS: bool = true;

    fn check(&self) {
        check(self.w, self.rows, self.y);
        let blocks = self.w.blocks() * self.rows;
        assert_eq!(self.x.len(), blocks, "a block of activations for each block of inputs and row");
    }

    #[inline(always)]
    fn run<S: Integers>(self, simd: S) {
        let MatmulQuantized { w, x, bits, rows, y } = self;
        let y = y.as_chunks_mut().0;
        if rows == 1 {
            let product = QuantizedProduct::new(simd.one_row(), w, x, rows);
            return with_codes!(w.dtype, product.few_rows::<_, 1>(y));
        }
        if let Some(simd) = simd.many_rows(rows, bits) {
            return QuantizedProduct::new(simd, w, x, rows).stored_rows::<8, 2, 0>(y);
        }
        let product = QuantizedProduct::new(simd, w, x, rows);
        if const { S::ENCODING as u8 == Encoding::I8 as u8 } && bits == ActivationBits::Eight {
            return match const { S::STORED_PANELS } {
                2 => product.stored_rows::<6, 2, 1>(y),
                _ => product.stored_rows::<6, 1, 1>(y),
            };
        }
        let in_registers = if S::ROWS > 1 && !S::PAIRS { most_in_registers(w.dtype) } else { 0 };
        if const { S::STORED_ROWS > 0 } && rows > S::ROWS.max(in_registers) {
            return match const { S::STORED_ROWS * S::STORED_PANELS } {
                2 => product.stored_rows::<2, 1, 0>(y),
                4 => product.stored_rows::<4, 1, 0>(y),
                6 => product.stored_rows::<6, 1, 0>(y),
                _ => product.stored_rows::<6, 2, 0>(y),
            };
        }
        if const { S::ROWS > 1 } {
            with_codes!(w.dtype, product.rows::<_>(y));
        }
    }
}

/// Most rows for which codes are taken apart again for each few of them, where a set has registers for more than one row.
/// Codes that are values cost nothing to take apart, and those of a table little, but all rows pay for the memory that holds
/// them. (Measured on AVX2, AVX-VNNI and AVX-512.)
fn most_in_registers(dtype: Dtype) -> usize {
    match dtype {
        Dtype::Q8 => 20,
        Dtype::Q4 => 5,
        _ => 0,
    }
}

/// What [`MatmulQuantized`] computes, of activations in tiles; if these are of 8 bits, with weights of `q8`.
pub(crate) struct MatmulTiles<'a, T> {
    pub w: Quantized<'a>,
    /// `[rows/T::ROWS, rounded up][blocks]`
    pub x: &'a [T],
    pub rows: usize,
    /// `[panels][rows][16]`
    pub y: &'a mut [f32],
}

/// `y = w x` for quantized weights, rounded to bf16 times the scales of their rows, and activations rounded to bf16: see
/// [`super::bf16`].
pub(crate) struct MatmulRounded<'a> {
    pub w: Quantized<'a>,
    /// `[rows/16, rounded up][blocks]`
    pub x: &'a [Tile],
    pub rows: usize,
    /// `[panels][rows][16]`
    pub y: &'a mut [f32],
}

impl<T: QuantizedTile> MatmulTiles<'_, T> {
    pub(in crate::kernels) fn check(&self) {
        check(self.w, self.rows, self.y);
        check_tiles(self.w, self.rows.div_ceil(T::ROWS), self.x.len());
    }
}

impl MatmulRounded<'_> {
    pub(in crate::kernels) fn check(&self) {
        check(self.w, self.rows, self.y);
        check_tiles(self.w, self.rows.div_ceil(TILE_ROWS), self.x.len());
    }
}

fn check(w: Quantized<'_>, rows: usize, y: &[f32]) {
    assert_eq!(w.count(), y.len() / (rows * LANES), "one panel of weights for each panel of output");
}

fn check_tiles(w: Quantized<'_>, runs: usize, tiles: usize) {
    assert_eq!(tiles, w.blocks() * runs, "a tile for each block of inputs and run of rows");
}

/// How the codes of a block lie.
pub(in crate::kernels) trait Codes {
    /// Bits of a code, and as many runs of 64 bytes in a block.
    const BITS: usize;

    /// Whether codes are places in a table.
    const IN_TABLE: bool = false;
    /// Whether codes are their values.
    const ARE_VALUES: bool = false;

    /// The codes of eight inputs, the `k`-th such of a block, in a part: of the first four, then of the others. Codes that are no
    /// places in a table come as their values, [`OFFSET`] more where the set multiplies unsigned ones.
    fn codes<S: Integers>(simd: S, block: &[Group], k: usize, part: usize) -> [S::Bytes; 2];

    /// Their values, [`OFFSET`] more where the set multiplies unsigned ones, as are those of `table`.
    #[inline(always)]
    fn values<S: Integers>(
        simd: S,
        table: &[u8; 16],
        block: &[Group],
        k: usize,
        part: usize,
    ) -> [S::Bytes; 2] {
        let [first, second] = Self::codes(simd, block, k, part);
        if Self::IN_TABLE {
            [simd.look_up(table, first), simd.look_up(table, second)]
        } else {
            [first, second]
        }
    }
}

pub(in crate::kernels) struct Q8;
pub(in crate::kernels) struct Q6;
pub(in crate::kernels) struct Q5;
pub(in crate::kernels) struct Q4;
pub(in crate::kernels) struct Q3;

impl Codes for Q8 {
    const BITS: usize = 8;
    const ARE_VALUES: bool = true;

    #[inline(always)]
    fn codes<S: Integers>(simd: S, block: &[Group], k: usize, part: usize) -> [S::Bytes; 2] {
        let [first, second] = [simd.bytes(&block[2 * k], part), simd.bytes(&block[2 * k + 1], part)];
        if S::UNSIGNED { [simd.minus(first, OFFSET), simd.minus(second, OFFSET)] } else { [first, second] }
    }
}

impl Codes for Q6 {
    const BITS: usize = 6;

    #[inline(always)]
    fn codes<S: Integers>(simd: S, block: &[Group], k: usize, part: usize) -> [S::Bytes; 2] {
        let upper = simd.shift_right(simd.bytes(&block[4 + k / 2], part), 4 * (k % 2) as u32);
        let upper = [simd.shift_left(upper, 4), simd.shift_left(upper, 2)];
        with_upper_bits(simd, halves(simd, &block[k], part), upper, 0x30)
    }
}

impl Codes for Q5 {
    const BITS: usize = 5;

    #[inline(always)]
    fn codes<S: Integers>(simd: S, block: &[Group], k: usize, part: usize) -> [S::Bytes; 2] {
        let upper = simd.shift_right(simd.bytes(&block[4], part), 2 * k as u32);
        let upper = [simd.shift_left(upper, 4), simd.shift_left(upper, 3)];
        with_upper_bits(simd, halves(simd, &block[k], part), upper, 0x10)
    }
}

impl Codes for Q4 {
    const BITS: usize = 4;
    const IN_TABLE: bool = true;

    #[inline(always)]
    fn codes<S: Integers>(simd: S, block: &[Group], k: usize, part: usize) -> [S::Bytes; 2] {
        halves(simd, &block[k], part)
    }
}

impl Codes for Q3 {
    const BITS: usize = 3;
    const IN_TABLE: bool = true;

    #[inline(always)]
    fn codes<S: Integers>(simd: S, block: &[Group], k: usize, part: usize) -> [S::Bytes; 2] {
        let lower = simd.shift_right(simd.bytes(&block[k / 2], part), 4 * (k % 2) as u32);
        let upper = simd.shift_right(simd.bytes(&block[2], part), 2 * k as u32);
        [
            simd.or(simd.and(lower, 3), simd.and(simd.shift_left(upper, 2), 4)),
            simd.or(simd.and(simd.shift_right(lower, 2), 3), simd.and(simd.shift_left(upper, 1), 4)),
        ]
    }
}

/// The lower and the upper four bits of each byte.
#[inline(always)]
fn halves<S: Bytes>(simd: S, bytes: &Group, part: usize) -> [S::Bytes; 2] {
    let bytes = simd.bytes(bytes, part);
    [simd.and(bytes, 15), simd.and(simd.shift_right(bytes, 4), 15)]
}

/// The values of codes whose lower four bits are `lower`, and whose others are those of `upper` in `mask`: half of what
/// codes can be is taken off.
#[inline(always)]
fn with_upper_bits<S: Integers>(
    simd: S,
    lower: [S::Bytes; 2],
    upper: [S::Bytes; 2],
    mask: u8,
) -> [S::Bytes; 2] {
    let less = ((mask + 16) / 2).wrapping_sub(if S::UNSIGNED { OFFSET } else { 0 });
    let codes = [simd.or(lower[0], simd.and(upper[0], mask)), simd.or(lower[1], simd.and(upper[1], mask))];
    [simd.minus(codes[0], less), simd.minus(codes[1], less)]
}

/// `w x` for `x`: `[blocks][rows]`.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct QuantizedProduct<'a, S> {
    pub(in crate::kernels) simd: S,
    pub(in crate::kernels) w: Quantized<'a>,
    /// What codes stand for, with their offset where the set takes unsigned values.
    pub(in crate::kernels) table: [u8; 16],
    x: &'a [ActivationBlock],
    pub(in crate::kernels) rows: usize,
    /// Steps of eight inputs in a block: four, which the compiler must not know. Integers may be added up in any order,
    /// and it would do so from the last to the first, so that codes are read backwards, which no processor foresees, and
    /// row by row, so that no sum stays in a register.
    pub(in crate::kernels) steps: usize,
}

impl<'a, S: Integers> QuantizedProduct<'a, S> {
    #[inline(always)]
    pub(in crate::kernels) fn new(
        simd: S,
        w: Quantized<'a>,
        x: &'a [ActivationBlock],
        rows: usize,
    ) -> QuantizedProduct<'a, S> {
        let offset = if S::UNSIGNED { OFFSET } else { 0 };
        let table = w.table.map(|value| value.cast_unsigned().wrapping_add(offset));
        QuantizedProduct { simd, w, table, x, rows, steps: black_box(GROUPS / 2) }
    }

    /// All of `R` rows, which memory keeps waiting: several runs of panels are read side by side, each from its start to
    /// its end.
    #[inline(always)]
    fn few_rows<C: Codes, const R: usize>(&self, y: &mut [[f32; LANES]]) {
        // For a processor that foresees and is told as well, two streams are faster than four.
        let most = if self.simd.foresees() && self.tells_of_next::<C, R>() { 2 } else { S::PANELS };
        let done = match self.simd.streams().min(most) {
            4 if const { S::PANELS >= 4 } => self.streams::<C, R, 2, 2>(0, y),
            2 if const { S::PANELS >= 2 } => self.streams::<C, R, 1, 2>(0, y),
            _ => 0,
        };
        self.streams::<C, R, 1, 1>(done, &mut y[done * R..]);
    }

    /// `P` times `W` runs of as many panels from panel `start` on, for `R` rows; returns how many panels that were.
    #[inline(always)]
    fn streams<C: Codes, const R: usize, const P: usize, const W: usize>(
        &self,
        start: usize,
        y: &mut [[f32; LANES]],
    ) -> usize {
        let (simd, run) = (self.simd, y.len() / (R * P * W));
        for first in 0..run {
            let place = |p, w| first + (p * W + w) * run;
            let mut panels = [[self.w.panel(start + first); W]; P];
            unrolled!(p < P of 2 => { unrolled!(w < W of 2 => { panels[p][w] = self.w.panel(start + place(p, w)) }) });
            let mut sums = [[[simd.zero(); W]; R]; P];
            for (block, x) in self.x.as_chunks::<R>().0.iter().enumerate() {
                unrolled!(p < P of 2 => {
                    if self.tells_of_next::<C, R>() {
                        self.read_ahead::<C, W>(&panels[p], block);
                    }
                    self.block::<C, R, W>(&panels[p], block, x, &mut sums[p]);
                });
            }
            unrolled!(p < P of 2 => {
                unrolled!(w < W of 2 => {
                    unrolled!(r < R of 4 => {
                        self.store(&panels[p][w], sums[p][r][w], &mut y[place(p, w) * R + r])
                    });
                });
            });
        }
        run * P * W
    }

    /// Codes are taken apart in registers, for at most [`Integers::ROWS`] rows at a time.
    #[inline(always)]
    fn rows<C: Codes>(&self, y: &mut [[f32; LANES]]) {
        match self.rows {
            2 if const { S::ROWS == 8 } => self.few_rows::<C, 2>(y),
            3 if const { S::ROWS == 8 } => self.few_rows::<C, 3>(y),
            rows => {
                for (index, y) in y.chunks_mut(rows).enumerate() {
                    self.panel::<C>(index, y);
                }
            }
        }
    }

    /// All rows of a panel, [`Integers::ROWS`] or fewer at a time: `y`: `[rows][16]`.
    #[inline(always)]
    fn panel<C: Codes>(&self, index: usize, y: &mut [[f32; LANES]]) {
        let mut first = 0;
        while first < self.rows {
            let rows = tile_rows(self.rows - first, S::ROWS);
            if const { S::ROWS == 8 } {
                match rows {
                    8 => self.row_tile::<C, 8>(index, first, y),
                    6 => self.row_tile::<C, 6>(index, first, y),
                    4 => self.row_tile::<C, 4>(index, first, y),
                    _ => {}
                }
            }
            match rows {
                3 if const { S::ROWS >= 3 } => self.row_tile::<C, 3>(index, first, y),
                2 => self.row_tile::<C, 2>(index, first, y),
                1 => self.row_tile::<C, 1>(index, first, y),
                _ => {}
            }
            first += rows;
        }
    }

    /// `R` rows from `row` on of panel `index`: `y`: `[rows][16]`.
    #[inline(always)]
    fn row_tile<C: Codes, const R: usize>(&self, index: usize, row: usize, y: &mut [[f32; LANES]]) {
        let panels = [self.w.panel(index)];
        let mut sums = [[self.simd.zero()]; R];
        for block in 0..self.w.blocks() {
            let Some(x) = self.x[block * self.rows + row..].first_chunk() else { return };
            match row {
                0 if self.tells_of_next::<C, R>() => self.read_ahead::<C, 1>(&panels, block),
                1.. if row + R == self.rows => self.fetch_of_next_panel::<C>(&panels[0], block),
                _ => {}
            }
            self.block::<C, R, 1>(&panels, block, x, &mut sums);
        }
        unrolled!(r < R of 8 => { self.store(&panels[0], sums[r][0], &mut y[row + r]) });
    }

    /// Whether this processor has to be told of the codes that `R` rows read next.
    #[inline(always)]
    fn tells_of_next<C: Codes, const R: usize>(&self) -> bool {
        let outruns_memory = self.simd.outruns_memory();
        let unpacks = !C::ARE_VALUES && (S::UNPACKS_SLOWLY || outruns_memory);
        !self.simd.foresees() || unpacks || R > 4 || (outruns_memory && R >= FEWEST_ROWS_TO_ASK)
    }

    /// Asks for codes that come after those of a block: a panel's first rows wait for them rather than for units that
    /// multiply.
    #[inline(always)]
    fn read_ahead<C: Codes, const W: usize>(&self, panels: &[QuantizedPanel<'_>; W], block: usize) {
        unrolled!(w < W of 2 => {
            let codes = &panels[w].codes[block * C::BITS..][..C::BITS];
            codes.iter().for_each(|group| self.simd.read_ahead(group));
        });
    }

    /// Starts to fetch the codes that lie where a block's do, in the panel after this one. A panel's last rows find its codes in
    /// a cache, so memory is idle meanwhile. The next panel's first rows would wait for it.
    #[inline(always)]
    fn fetch_of_next_panel<C: Codes>(&self, panel: &QuantizedPanel<'_>, block: usize) {
        let codes = &panel.codes[block * C::BITS..][..C::BITS];
        let to_next = self.w.panel_len();
        for group in codes {
            prefetch(std::ptr::from_ref(group).wrapping_byte_add(to_next), Cache::Second);
        }
    }

    /// The sums of blocks times the scales of a panel's rows.
    #[inline(always)]
    fn store(&self, panel: &QuantizedPanel<'_>, sums: S::Lanes, y: &mut [f32; LANES]) {
        self.simd.store(self.simd.mul(sums, self.simd.load(&panel.row_scales())), y);
    }

    /// Adds the products of `W` panels' codes in a block with `R` rows of `x`, times their scales, to `sums`. Several at a
    /// time, because each one's sums wait for one another.
    #[inline(always)]
    fn block<C: Codes, const R: usize, const W: usize>(
        &self,
        panels: &[QuantizedPanel<'_>; W],
        block: usize,
        x: &[ActivationBlock; R],
        sums: &mut [[S::Lanes; W]; R],
    ) {
        let simd = self.simd;
        let mut codes = [[].as_slice(); W];
        unrolled!(w < W of 2 => { codes[w] = &panels[w].codes[block * C::BITS..][..C::BITS] });
        let mut products = [[simd.zero(); W]; R];
        for part in 0..S::PARTS {
            let mut integers = [[simd.sums(&x[0]); W]; R];
            unrolled!(r < R of 8 => { integers[r] = [simd.sums(&x[r]); W] });
            if const { R == 1 } {
                // One after the other in the code, too: some engines of WebAssembly pay for each jump.
                unrolled!(k < 4 => {
                    if k < self.steps {
                        self.step::<C, R, W>(&codes, k, part, x, &mut integers);
                    }
                });
            } else {
                for k in (0..GROUPS / 2).take(self.steps) {
                    self.step::<C, R, W>(&codes, k, part, x, &mut integers);
                }
            }
            unrolled!(w < W of 2 => {
                unrolled!(r < R of 8 => { simd.set_floats(&mut products[r][w], part, integers[r][w]) });
            });
        }
        unrolled!(w < W of 2 => {
            let scales = simd.bytes_as_floats(&panels[w].block_scales[block]);
            unrolled!(r < R of 8 => { sums[r][w] = simd.fma(sums[r][w], simd.mul(products[r][w], scales), x[r].scale) });
        });
    }

    /// Adds the products of the `k`-th eight inputs of a block.
    #[inline(always)]
    fn step<C: Codes, const R: usize, const W: usize>(
        &self,
        codes: &[&[Group]; W],
        k: usize,
        part: usize,
        x: &[ActivationBlock; R],
        sums: &mut [[S::Sums; W]; R],
    ) {
        let simd = self.simd;
        unrolled!(w < W of 2 => {
            let values = C::values(simd, &self.table, codes[w], k, part);
            unrolled!(i < 2 => {
                unrolled!(half < 2 => {
                    let factors = simd.factors(values[i], half);
                    unrolled!(r < R of 8 => {
                        let x = x[r].halves[S::ENCODING.place(2 * k + i, half)];
                        sums[r][w] = simd.add_products(sums[r][w], factors, x, half);
                    });
                });
            });
        });
    }

    /// Codes of `P` panels are taken apart once for all rows, in memory, and used for at most `R` rows at a time. Of the
    /// activations only the halves from `H` on are multiplied.
    #[inline(always)]
    fn stored_rows<const R: usize, const P: usize, const H: usize>(&self, y: &mut [[f32; LANES]]) {
        let Aligned(buffer) = &mut Aligned([[[S::NOTHING_STORED; GROUPS]; P]; DEPTH]);
        let buffer = buffer.as_flattened_mut();
        for (first, y) in (0..).step_by(P).zip(y.chunks_mut(P * self.rows)) {
            let panels = y.len() / self.rows;
            if !S::KEEPS_SUMS {
                y.fill([0.0; LANES]);
            }
            for start in (0..self.w.blocks()).step_by(DEPTH) {
                let blocks = DEPTH.min(self.w.blocks() - start);
                let buffer = &mut buffer[..blocks * panels];
                for p in 0..panels {
                    let (panel, values) = (self.w.panel(first + p), buffer[p..].iter_mut().step_by(panels));
                    with_codes!(self.w.dtype, self.take_apart::<_>(&panel, start, values));
                }
                let values = black_box(&*buffer); // of unknown length, or the loop over them would be written out
                if const { P == 1 } || panels == P {
                    self.stored_tiles::<R, P, H>(first, start, values.as_chunks().0, y);
                } else {
                    self.stored_tiles::<R, 1, H>(first, start, values.as_chunks().0, y);
                }
            }
            if !S::KEEPS_SUMS {
                for (p, y) in y.chunks_exact_mut(self.rows).enumerate() {
                    let panel = self.w.panel(first + p);
                    y.iter_mut().for_each(|y| self.store(&panel, self.simd.load(y), y));
                }
            }
        }
    }

    /// The codes that are taken apart after those of a panel's blocks from `start` on: of its next blocks, or of the first ones
    /// of the panel `panels` further on.
    #[inline(always)]
    fn codes_after(&self, panel: usize, start: usize, panels: usize) -> &'a [Group] {
        let blocks = self.w.blocks();
        let (panel, start) =
            if start + DEPTH < blocks { (panel, start + DEPTH) } else { (panel + panels, 0) };
        if panel >= self.w.count() {
            return &[];
        }
        let codes = self.w.panel(panel).codes;
        let bits = codes.len() / blocks;
        &codes[start * bits..][..DEPTH.min(blocks - start) * bits]
    }

    /// The values of the blocks from `start` on.
    #[inline(always)]
    fn take_apart<'b, C: Codes>(
        &self,
        panel: &QuantizedPanel<'_>,
        start: usize,
        blocks: impl Iterator<Item = &'b mut [S::Stored; GROUPS]>,
    ) where
        S::Stored: 'b,
    {
        let (simd, codes) = (self.simd, &panel.codes[start * C::BITS..]);
        for (codes, groups) in codes.chunks_exact(C::BITS).zip(blocks) {
            for (k, [first, second]) in groups.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                for part in 0..S::PARTS {
                    let values = simd.in_memory(C::values(simd, &self.table, codes, k, part));
                    simd.store_factors(values[0], first, part);
                    simd.store_factors(values[1], second, part);
                }
            }
        }
    }

    /// Adds what the `values` of blocks from `start` on, of `P` panels from panel `panel` on, give to all rows:
    /// `y`: `[P][rows][16]`. Meanwhile, the codes that are taken apart next are fetched, if that is worth it.
    #[inline(always)]
    fn stored_tiles<const R: usize, const P: usize, const H: usize>(
        &self,
        panel: usize,
        start: usize,
        values: &[[[S::Stored; GROUPS]; P]],
        y: &mut [[f32; LANES]],
    ) {
        let mut panels = [self.w.panel(panel); P];
        unrolled!(p < P of 2 => { panels[p] = self.w.panel(panel + p) });
        let mut next = [[].as_slice(); P];
        // Where registers are scarcer, nobody has measured it.
        let fetches = S::KEEPS_SUMS && H == 1;
        if fetches && self.rows >= FEWEST_ROWS_TO_FETCH {
            unrolled!(p < P of 2 => { next[p] = self.codes_after(panel + p, start, P) });
        }
        let mut first = 0;
        while first < self.rows {
            let rows = tile_rows(self.rows - first, R);
            if fetches {
                unrolled!(p < P of 2 => {
                    let share = |row: usize| next[p].len() * row / self.rows;
                    let codes = &next[p][share(first)..share(first + rows)];
                    codes.iter().for_each(|group| prefetch(group, Cache::Second));
                });
            }
            match rows {
                8 if const { R >= 8 } => self.stored_tile::<8, P, H>(&panels, start, values, first, y),
                6 if const { R >= 6 } => self.stored_tile::<6, P, H>(&panels, start, values, first, y),
                4 if const { R >= 4 } => self.stored_tile::<4, P, H>(&panels, start, values, first, y),
                3 if const { R >= 3 } => self.stored_tile::<3, P, H>(&panels, start, values, first, y),
                2 => self.stored_tile::<2, P, H>(&panels, start, values, first, y),
                _ => self.stored_tile::<1, P, H>(&panels, start, values, first, y),
            }
            first += rows;
        }
    }

    /// The same to the `R` rows from `first` on.
    #[inline(always)]
    fn stored_tile<const R: usize, const P: usize, const H: usize>(
        &self,
        panels: &[QuantizedPanel<'_>; P],
        start: usize,
        values: &[[[S::Stored; GROUPS]; P]],
        first: usize,
        y: &mut [[f32; LANES]],
    ) {
        let (simd, rows) = (self.simd, self.rows);
        let mut sums = [[simd.zero(); P]; R];
        if S::KEEPS_SUMS && start > 0 {
            unrolled!(p < P of 2 => {
                let Some(y) = y[p * rows + first..].first_chunk::<R>() else { return };
                unrolled!(r < R of 8 => { sums[r][p] = simd.load(&y[r]) });
            });
        }
        for (block, values) in (start..).zip(values) {
            let Some(x) = self.x[block * rows + first..].first_chunk::<R>() else { return };
            let products = self.products::<R, P, H>(values, x);
            unrolled!(p < P of 2 => {
                let scales = simd.bytes_as_floats(&panels[p].block_scales[block]);
                if S::KEEPS_SUMS {
                    unrolled!(r < R of 8 => {
                        sums[r][p] = simd.fma(sums[r][p], simd.mul(products[r][p], scales), x[r].scale)
                    });
                } else {
                    let Some(y) = y[p * rows + first..].first_chunk_mut::<R>() else { return };
                    unrolled!(r < R of 8 => {
                        let sum = simd.fma(simd.load(&y[r]), simd.mul(products[r][p], scales), x[r].scale);
                        simd.store(sum, &mut y[r]);
                    });
                }
            });
        }
        if S::KEEPS_SUMS {
            let is_last = start + values.len() == self.w.blocks();
            unrolled!(p < P of 2 => {
                let Some(y) = y[p * rows + first..].first_chunk_mut::<R>() else { return };
                if is_last {
                    unrolled!(r < R of 8 => { self.store(&panels[p], sums[r][p], &mut y[r]) });
                } else {
                    unrolled!(r < R of 8 => { simd.store(sums[r][p], &mut y[r]) });
                }
            });
        }
    }

    /// What a block's values give with the halves from `H` on of `R` rows. The sums stay in registers.
    #[inline(always)]
    fn products<const R: usize, const P: usize, const H: usize>(
        &self,
        values: &[[S::Stored; GROUPS]; P],
        x: &[ActivationBlock; R],
    ) -> [[S::Lanes; P]; R] {
        let simd = self.simd;
        let mut products = [[simd.zero(); P]; R];
        if const { S::PAIRS } {
            products = simd.products_of_pairs::<R, P, H>(values, x, self.steps);
        } else {
            for part in 0..S::PARTS {
                let mut integers = [[simd.sums(&x[0]); P]; R];
                unrolled!(r < R of 8 => { integers[r] = [simd.sums(&x[r]); P] });
                if S::ENCODING == Encoding::I16 {
                    // Both halves of a group in turn: one loop, which is too long to be written out.
                    for place in 0..(2 * GROUPS).min(4 * self.steps) {
                        let mut factors = [simd.load_factors(&values[0], place / 2, place % 2, part); P];
                        unrolled!(p < P of 2 => {
                            factors[p] = simd.load_factors(&values[p], place / 2, place % 2, part);
                        });
                        unrolled!(r < R of 8 => {
                            let x = x[r].halves[place];
                            unrolled!(p < P of 2 => {
                                integers[r][p] = simd.add_products(integers[r][p], factors[p], x, place % 2);
                            });
                        });
                    }
                } else {
                    unrolled!(half < 2 => {
                        let groups = if half < H { 0 } else { GROUPS };
                        // Instructions that add products of bytes up are left in their order, written out or not.
                        for group in 0..groups {
                            let mut factors = [simd.load_factors(&values[0], group, half, part); P];
                            unrolled!(p < P of 2 => { factors[p] = simd.load_factors(&values[p], group, half, part) });
                            unrolled!(r < R of 8 => {
                                let x = x[r].halves[S::ENCODING.place(group, half)];
                                unrolled!(p < P of 2 => {
                                    integers[r][p] = simd.add_products(integers[r][p], factors[p], x, half);
                                });
                            });
                        }
                        if half == 0 {
                            unrolled!(p < P of 2 => {
                                unrolled!(r < R of 8 => { integers[r][p] = simd.second_half(integers[r][p]) });
                            });
                        }
                    });
                }
                unrolled!(p < P of 2 => {
                    unrolled!(r < R of 8 => { simd.set_floats(&mut products[r][p], part, integers[r][p]) });
                });
            }
        }
        products
    }
}

/// How many of the rows that are left a register tile of at most `most` takes next: it leaves not one row, which would
/// take almost as long as three.
#[inline(always)]
fn tile_rows(left: usize, most: usize) -> usize {
    match left {
        8 | 10.. if most >= 8 => 8,
        6 | 8.. if most >= 6 => 6,
        4 | 6.. if most >= 4 => 4,
        4 => most.min(2),
        _ => left.min(3).min(most),
    }
}
