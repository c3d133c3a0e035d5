//! The same product on tile registers (AMX): a block's sums for some rows and 16 outputs come out together, as whole numbers.
//! What is done with these is left to the vector unit, in the order of every set.
//!
//! Few rows are multiplied as bytes. Codes are bytes, or soon become bytes, and an activation of 12 bits is two of them, in two
//! rows of a tile. Many rows are multiplied as bf16, which holds a code's value; an activation of 12 bits comes in two parts.
//! One register adds up both parts, which saves more than it costs to make these values, if rows are many.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use super::Avx512Amx;
use crate::format::Dtype;
use crate::kernels::LANES;
use crate::kernels::half::Bf16Pair;
use crate::kernels::isa::amx::{Amx, HalfTiles, Registers, Sums, WholeTiles, tiles_of, whole};
use crate::kernels::isa::avx512::Avx512Vnni;
use crate::kernels::isa::avx512_bf16::Avx512Bf16;
use crate::kernels::ops::integers::{
    Codes, MatmulRounded, MatmulTiles, Q3, Q4, Q5, Q6, Q8, QuantizedProduct, with_codes,
};
use crate::kernels::quantized::{GROUPS, Group, OFFSET, QuantizedPanel};
use crate::kernels::simd::{Aligned, Bytes, Cache, Integers, RunOn, Simd, prefetch, unrolled};
use crate::kernels::tiles::{ActivationTile, ByteTile, QuantizedTile, SplitTile, TILE_ROWS, Tile};

/// Panels that are multiplied with 16 rows before the next rows are. What is taken apart of them stays in the first-level
/// cache, and with it the activations of 16 rows, which come from the second level once for all.
const PANELS: usize = 4;
/// Blocks of each whose values are taken apart at a time: 6 KiB as bf16.
const DEPTH: usize = 6;

/// The same for eight rows: one panel, at most 24 KiB of bytes. Reading codes is what takes time, so they are read in order.
const SPLIT_PANELS: usize = 1;
const SPLIT_DEPTH: usize = 48;

/// Blocks whose values are taken apart at a time where activations are rounded, two panels at a time.
const ROUNDED_DEPTH: usize = 12;

/// The sums of one row, or its products.
type Lanes = <Avx512Vnni as Simd>::Lanes;

impl<T: Multiplied> RunOn<Avx512Amx> for MatmulTiles<'_, T> {
    #[inline(always)]
    fn run_on(self, set: Avx512Amx) {
        let MatmulTiles { w, x, rows, y } = self;
        let product = QuantizedProduct::new(set.vnni(), w, &[], rows);
        let product =
            TileProduct { product, registers: T::configure(set.amx(), rows), table: T::table(w.table), x };
        with_codes!(w.dtype, product.all_panels::<_>(y.as_chunks_mut().0));
    }
}

impl RunOn<Avx512Amx> for MatmulRounded<'_> {
    #[inline(always)]
    fn run_on(self, set: Avx512Amx) {
        let MatmulRounded { w, x, rows, y } = self;
        let product = QuantizedProduct::new(set.vnni(), w, &[], rows);
        let product = RoundedTileProduct { product, bf16: set.bf16(), registers: set.amx().configure(), x };
        with_codes!(w.dtype, product.all_panels::<_>(y.as_chunks_mut().0));
    }
}

impl QuantizedProduct<'_, Avx512Vnni> {
    /// Which panels and blocks are taken apart after those from `panel` and `block` on, of so many at a time.
    #[inline(always)]
    fn next(&self, panel: usize, block: usize, [panels, blocks]: [usize; 2]) -> [Range<usize>; 2] {
        let more = block + blocks < self.w.blocks();
        let (panel, block) = if more { (panel, block + blocks) } else { (panel + panels, 0) };
        [
            panel.min(self.w.count())..self.w.count().min(panel + panels),
            block..self.w.blocks().min(block + blocks),
        ]
    }

    /// The `index`-th of some shares of a panel's codes, or of the panel a line, if it has fewer shares: of the `panel`-th of
    /// these, or of the last one.
    #[inline(always)]
    fn share<C: Codes>(
        &self,
        [panels, blocks]: &[Range<usize>; 2],
        panel: usize,
        index: usize,
        shares: usize,
    ) -> &[Group] {
        let panel = self.w.panel((panels.start + panel).min(self.w.count() - 1));
        let codes = &panel.codes[blocks.start * C::BITS..blocks.end * C::BITS];
        codes.chunks(codes.len().div_ceil(shares)).nth(index).unwrap_or(&codes[..1])
    }
}

/// What tiles multiply with a block's values: its activations for some rows.
trait Multiplied: QuantizedTile {
    /// Of the registers.
    type Shapes;
    /// A block's values of a panel.
    type Values: Pod;
    /// What codes below 16 stand for.
    type Table;

    /// The registers for so many rows.
    fn configure(amx: Amx, rows: usize) -> Registers<Self::Shapes>;

    fn table(values: &[i8; 16]) -> Self::Table;

    /// A panel's values where they lie, if that is as they are multiplied.
    fn in_place<C: Codes>(codes: &[Group]) -> Option<&[Self::Values]>;

    /// A block's values, else.
    fn take_apart<C: Codes>(
        simd: Avx512Vnni,
        table: &Self::Table,
        codes: &[Group],
        values: &mut Self::Values,
    );

    /// Multiplies them in one of two registers.
    fn multiply(&self, registers: &Registers<Self::Shapes>, which: usize, values: &Self::Values);

    /// What that gives for a row.
    fn row(simd: Avx512Vnni, products: &Sums, row: usize) -> Lanes;
}

/// `w x` for `x`: `[rows/T::ROWS, rounded up][blocks]`.
struct TileProduct<'a, T: Multiplied> {
    product: QuantizedProduct<'a, Avx512Vnni>,
    registers: Registers<T::Shapes>,
    table: T::Table,
    x: &'a [T],
}

impl<T: Multiplied> TileProduct<'_, T> {
    #[inline(always)]
    fn all_panels<C: Codes>(&self, y: &mut [[f32; LANES]]) {
        match const { T::ROWS } {
            8 => self.all_panels_of_rows::<C, 8, SPLIT_PANELS, SPLIT_DEPTH>(y),
            _ => self.all_panels_of_rows::<C, 16, PANELS, DEPTH>(y),
        }
    }

    /// For `R` rows, [`QuantizedTile::ROWS`], and `P` panels at a time, and for `B` blocks if these are taken apart.
    #[inline(always)]
    fn all_panels_of_rows<C: Codes, const R: usize, const P: usize, const B: usize>(
        &self,
        y: &mut [[f32; LANES]],
    ) {
        let QuantizedProduct { w, rows, .. } = self.product;
        let mut buffer = Aligned([[T::Values::zeroed(); B]; P]);
        let mut products = Aligned([[[0.0; LANES]; TILE_ROWS]; 2]);
        let mut spare = [[0.0; LANES]; R];
        let runs = self.x.chunks_exact(w.blocks());
        let is_in_place = T::in_place::<C>(&[]).is_some();
        let depth = if is_in_place { w.blocks() } else { B };
        for (first, y) in (0..).step_by(P).zip(y.chunks_mut(P * rows)) {
            for start in (0..w.blocks()).step_by(depth) {
                let range = start..w.blocks().min(start + depth);
                if !is_in_place {
                    for (p, buffer) in buffer.0.iter_mut().enumerate().take(y.len() / rows) {
                        self.take_apart::<C>(&w.panel(first + p), range.clone(), buffer);
                    }
                }
                let next = self.product.next(first, start, [P, depth]);
                for (i, x) in runs.clone().enumerate() {
                    for (p, (buffer, y)) in buffer.0.iter().zip(y.chunks_exact_mut(rows)).enumerate() {
                        let panel = w.panel(first + p);
                        let values = match T::in_place::<C>(panel.codes) {
                            Some(values) => &values[range.clone()],
                            None => &buffer[..range.len()],
                        };
                        let blocks = Blocks {
                            registers: &self.registers,
                            panel: &panel,
                            start,
                            values,
                            x: &x[range.clone()],
                            ahead: self.product.share::<C>(&next, p, i, runs.len()),
                        };
                        let end = rows.min((i + 1) * R);
                        let (y, rest) = whole(&mut y[i * R..end], &mut spare);
                        self.add_blocks(&blocks, &mut products.0, y);
                        rest.copy_from_slice(&y[..rest.len()]);
                    }
                }
            }
        }
    }

    /// The values of some of a panel's blocks.
    #[inline(always)]
    fn take_apart<C: Codes>(
        &self,
        panel: &QuantizedPanel<'_>,
        blocks: Range<usize>,
        values: &mut [T::Values],
    ) {
        let codes = panel.codes[blocks.start * C::BITS..blocks.end * C::BITS].chunks_exact(C::BITS);
        for (codes, values) in codes.zip(values) {
            T::take_apart::<C>(self.product.simd, &self.table, codes, values);
        }
    }

    /// Adds what some blocks give to `R` rows, whose sums stay in registers.
    #[inline(always)]
    fn add_blocks<const R: usize>(
        &self,
        blocks: &Blocks<'_, T>,
        products: &mut [Sums; 2],
        y: &mut [[f32; LANES]; R],
    ) {
        let simd = self.product.simd;
        let &Blocks { panel, start, x, .. } = blocks;
        let mut sums = [simd.zero(); R];
        if start > 0 {
            unrolled!(r < R of 16 => { sums[r] = simd.load(&y[r]) });
        }
        blocks.add_to(simd, &mut sums, products);
        if start + x.len() == self.product.w.blocks() {
            let scales = simd.load(&panel.row_scales());
            unrolled!(r < R of 16 => { sums[r] = simd.mul(sums[r], scales) });
        }
        unrolled!(r < R of 16 => { simd.store(sums[r], &mut y[r]) });
    }
}

/// Some blocks of a panel, and what they are multiplied with.
struct Blocks<'a, T: Multiplied> {
    registers: &'a Registers<T::Shapes>,
    panel: &'a QuantizedPanel<'a>,
    /// The first of them.
    start: usize,
    values: &'a [T::Values],
    x: &'a [T],
    /// Codes that come next, to be read meanwhile.
    ahead: &'a [Group],
}

impl<T: Multiplied> Blocks<'_, T> {
    /// Adds what they give to the sums of all rows. While a block's tiles are multiplied, the products of the one before are
    /// stored and those of the one before that added up, so that no step waits for the step before it.
    #[inline(always)]
    fn add_to<const R: usize>(&self, simd: Avx512Vnni, sums: &mut [Lanes; R], products: &mut [Sums; 2]) {
        let ([even, odd], count) = (products, self.x.len());
        // So many lines of codes are read with each block. Where there are many runs of rows, one is enough.
        let lines = self.ahead.len().div_ceil(count);
        let read_ahead = |block: usize| {
            let codes = self.ahead.as_ptr().wrapping_add(block * lines);
            match const { R } {
                TILE_ROWS => prefetch(codes, Cache::Second),
                // At most eight: LLVM writes them out, so that there is no loop in the loop.
                _ => (0..8)
                    .filter(|line| *line < lines)
                    .for_each(|line| prefetch(codes.wrapping_add(line), Cache::Second)),
            }
        };
        self.multiply(0, 0);
        for first in (0..count).step_by(2) {
            let [second, third] = [first + 1, first + 2];
            if second < count {
                self.multiply(1, second);
            }
            read_ahead(first);
            if first > 0 {
                self.add(simd, sums, odd, first - 1);
            }
            self.registers.store(0, even);
            if third < count {
                self.multiply(0, third);
            }
            read_ahead(second);
            self.add(simd, sums, even, first);
            if second < count {
                self.registers.store(1, odd);
            }
        }
        if count.is_multiple_of(2) {
            self.add(simd, sums, odd, count - 1);
        }
    }

    /// Multiplies a block in one of two registers.
    #[inline(always)]
    fn multiply(&self, which: usize, block: usize) {
        self.x[block].multiply(self.registers, which, &self.values[block]);
    }

    /// Adds a block's products, times its scales, to the sums of all rows.
    #[inline(always)]
    fn add<const R: usize>(&self, simd: Avx512Vnni, sums: &mut [Lanes; R], products: &Sums, block: usize) {
        let scales = simd.bytes_as_floats(&self.panel.block_scales[self.start + block]);
        let x = self.x[block].scales();
        unrolled!(r < R of 16 => {
            sums[r] = simd.fma(sums[r], simd.mul(T::row(simd, products, r), scales), x[r]);
        });
    }
}

impl Multiplied for ActivationTile {
    type Shapes = WholeTiles;
    type Values = Tile;
    /// Two in a pair, and zeros.
    type Table = [Bf16Pair; LANES];

    #[inline(always)]
    fn configure(amx: Amx, _rows: usize) -> Registers<WholeTiles> {
        amx.configure()
    }

    #[inline(always)]
    fn table(values: &[i8; 16]) -> [Bf16Pair; LANES] {
        let mut table = [Bf16Pair::zeroed(); LANES];
        for (pair, values) in table.iter_mut().zip(values.as_chunks().0) {
            *pair = Bf16Pair::exact(values.map(i32::from));
        }
        table
    }

    #[inline(always)]
    fn in_place<C: Codes>(_codes: &[Group]) -> Option<&[Tile]> {
        None
    }

    #[inline(always)]
    fn take_apart<C: Codes>(simd: Avx512Vnni, table: &[Bf16Pair; LANES], codes: &[Group], values: &mut Tile) {
        // Eight inputs, and those that lie 16 places on.
        let pairs = values.as_chunks_mut::<4>().0.as_chunks_mut::<2>().0;
        for (k, pairs) in pairs.iter_mut().enumerate() {
            let (first, second) = (C::codes(simd, codes, k, 0), C::codes(simd, codes, k + 2, 0));
            unrolled!(i < 2 => {
                if C::IN_TABLE {
                    simd.look_up_pairs(table, [first[i], second[i]], &mut pairs[i]);
                } else {
                    simd.store_pairs([simd.minus(first[i], OFFSET), simd.minus(second[i], OFFSET)], &mut pairs[i]);
                }
            });
        }
    }

    #[inline(always)]
    fn multiply(&self, registers: &Registers<WholeTiles>, which: usize, values: &Tile) {
        registers.multiply(which, &self.parts, values);
    }

    #[inline(always)]
    fn row(simd: Avx512Vnni, products: &Sums, row: usize) -> Lanes {
        simd.load(&products[row])
    }
}

/// What [`Multiplied`] is for tiles of bytes, so many of whose rows are one of activations.
macro_rules! multiply_bytes {
    ($rows:literal) => {
        type Shapes = HalfTiles;
        type Values = [Group; GROUPS];
        type Table = [u8; 16];

        #[inline(always)]
        fn configure(amx: Amx, rows: usize) -> Registers<HalfTiles> {
            amx.configure_for_blocks($rows * rows)
        }

        #[inline(always)]
        fn table(values: &[i8; 16]) -> [u8; 16] {
            values.map(i8::cast_unsigned)
        }

        #[inline(always)]
        fn in_place<C: Codes>(codes: &[Group]) -> Option<&[[Group; GROUPS]]> {
            C::ARE_VALUES.then_some(codes.as_chunks().0)
        }

        #[inline(always)]
        fn take_apart<C: Codes>(
            simd: Avx512Vnni,
            table: &[u8; 16],
            codes: &[Group],
            values: &mut [Group; GROUPS],
        ) {
            for (k, groups) in values.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                let codes = C::codes(simd, codes, k, 0);
                unrolled!(i < 2 => {
                    let values = match C::IN_TABLE {
                        true => simd.look_up(table, codes[i]),
                        false => simd.minus(codes[i], OFFSET),
                    };
                    simd.store_factors(values, &mut groups[i], 0);
                });
            }
        }

        #[inline(always)]
        fn multiply(&self, registers: &Registers<HalfTiles>, which: usize, values: &[Group; GROUPS]) {
            registers.multiply(which, &self.bytes, values);
        }
    };
}

impl Multiplied for SplitTile {
    multiply_bytes!(2);

    #[inline(always)]
    fn row(simd: Avx512Vnni, products: &Sums, row: usize) -> Lanes {
        let [upper, lower] = [0, 1].map(|half| &products[(2 * row + half) % TILE_ROWS]);
        simd.halves_as_floats([upper, lower])
    }
}

impl Multiplied for ByteTile {
    multiply_bytes!(1);

    #[inline(always)]
    fn row(simd: Avx512Vnni, products: &Sums, row: usize) -> Lanes {
        simd.integers_as_floats(&products[row])
    }
}

/// The same for activations rounded to bf16, with weights rounded to it: sums of many blocks stay in the registers.
struct RoundedTileProduct<'a> {
    product: QuantizedProduct<'a, Avx512Vnni>,
    bf16: Avx512Bf16,
    registers: Registers<WholeTiles>,
    x: &'a [Tile],
}

impl RoundedTileProduct<'_> {
    #[inline(always)]
    fn all_panels<C: Codes>(&self, y: &mut [[f32; LANES]]) {
        let QuantizedProduct { w, rows, .. } = self.product;
        let mut values = Aligned([[Tile::zeroed(); ROUNDED_DEPTH]; 2]);
        let mut spare = [[[0.0; LANES]; TILE_ROWS]; 4];
        for (pair, y) in y.chunks_mut(2 * rows).enumerate() {
            // An odd last panel comes twice: the copy has no place in `y`.
            let panels = [w.panel(2 * pair), w.panel(2 * pair + y.len() / rows - 1)];
            for start in (0..w.blocks()).step_by(ROUNDED_DEPTH) {
                let count = ROUNDED_DEPTH.min(w.blocks() - start);
                for (panel, values) in panels.iter().zip(&mut values.0) {
                    self.take_apart::<C>(panel, start, &mut values[..count]);
                }
                let values = [&values.0[0][..count], &values.0[1][..count]];
                let next = self.product.next(2 * pair, start, [2, ROUNDED_DEPTH]);
                let runs = self.x.chunks(2 * w.blocks());
                for (i, x) in runs.clone().enumerate() {
                    for panel in 0..2 {
                        let codes = self.product.share::<C>(&next, panel, i, runs.len());
                        codes.iter().for_each(|group| prefetch(group, Cache::Second));
                    }
                    // An odd last run comes twice, too.
                    let x = [&x[start..][..count], &x[x.len() - w.blocks() + start..][..count]];
                    self.registers.products(x, values, tiles_of(y, rows, i), start > 0, &mut spare);
                }
            }
        }
    }

    /// The values of a panel's blocks from `start` on, times the scales of their blocks and rows.
    #[inline(always)]
    fn take_apart<C: Codes>(&self, panel: &QuantizedPanel<'_>, start: usize, blocks: &mut [Tile]) {
        let QuantizedProduct { simd, table, steps, .. } = &self.product;
        let row_scales = simd.load(&panel.row_scales());
        let codes = panel.codes[start * C::BITS..].chunks_exact(C::BITS);
        for ((codes, scales), block) in codes.zip(&panel.block_scales[start..]).zip(blocks) {
            let scales = simd.mul(simd.bytes_as_floats(scales), row_scales);
            let groups = block.as_chunks_mut::<2>().0.as_chunks_mut::<2>().0;
            for (k, groups) in groups.iter_mut().enumerate().take(*steps) {
                let values = C::values(*simd, table, codes, k, 0);
                unrolled!(i < 2 => {
                    let scaled = simd.scaled(simd.minus(values[i], OFFSET), scales);
                    self.bf16.store_pairs_rounded(scaled[0], scaled[1], &mut groups[i][0]);
                    self.bf16.store_pairs_rounded(scaled[2], scaled[3], &mut groups[i][1]);
                });
            }
        }
    }
}
