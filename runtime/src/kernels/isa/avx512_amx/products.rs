//! The same product on tile registers (AMX): a block's sums for 16 rows and 16 outputs come out together, as whole numbers. What
//! is done with these is left to the vector unit, in the order of every set.
//!
//! Tiles multiply bf16, which a code's value is, and which an activation of 12 bits is in two parts.

use std::ops::Range;

use bytemuck::Zeroable;

use super::Avx512Amx;
use crate::format::Dtype;
use crate::kernels::LANES;
use crate::kernels::half::Bf16Pair;
use crate::kernels::isa::amx::{HalfTiles, Registers, Sums, WholeTiles, tiles_of, whole};
use crate::kernels::isa::avx512::Avx512Vnni;
use crate::kernels::isa::avx512_bf16::Avx512Bf16;
use crate::kernels::ops::integers::{
    Codes, MatmulRounded, MatmulTiles, OFFSET, Q3, Q4, Q5, Q6, Q8, QuantizedProduct, with_codes,
};
use crate::kernels::quantized::QuantizedPanel;
use crate::kernels::simd::{Bytes, Cache, RunOn, Simd, prefetch, unrolled};
use crate::kernels::tiles::{ActivationTile, ByteTile, TILE_ROWS, Tile};

/// Blocks whose values are taken apart at a time to be read again and again for all rows: 6 KiB a panel.
const DEPTH: usize = 6;
/// Panels of which this is done together. All of their values stay in the first-level cache, and with them the activations of
/// 16 rows, which come from the second level once for all.
const PANELS: usize = 4;

/// The same where activations are rounded, two panels at a time.
const ROUNDED_DEPTH: usize = 12;
/// Panels of `q8` that are multiplied with 16 rows of 8 bits before the next rows are.
const BYTE_PANELS: usize = 4;

/// The sums of one row, or its products.
type Lanes = <Avx512Vnni as Simd>::Lanes;

/// At the start of a cache line, as rows of tiles should be.
#[repr(C, align(64))]
struct Aligned<T>(T);

impl RunOn<Avx512Amx> for MatmulTiles<'_, ActivationTile> {
    #[inline(always)]
    fn run_on(self, set: Avx512Amx) {
        let MatmulTiles { w, x, rows, y } = self;
        let product = QuantizedProduct::new(set.vnni(), w, &[], rows);
        let mut table = [Bf16Pair::zeroed(); LANES];
        for (pair, values) in table.iter_mut().zip(w.table.as_chunks().0) {
            *pair = Bf16Pair::exact(values.map(i32::from));
        }
        let product = TileProduct { product, registers: set.amx().configure(), table, x };
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

    /// Has a share of their codes read while others are multiplied.
    #[inline(always)]
    fn prefetch<C: Codes>(&self, [panels, blocks]: &[Range<usize>; 2], index: usize, shares: usize) {
        let count = (blocks.len() * C::BITS).div_ceil(shares);
        for panel in panels.clone() {
            let codes = &self.w.panel(panel).codes[blocks.start * C::BITS..blocks.end * C::BITS];
            for group in codes.iter().skip(index * count).take(count) {
                prefetch(group, Cache::Second);
            }
        }
    }
}

/// `w x` for `x`: `[rows/16, rounded up][blocks]`.
struct TileProduct<'a> {
    product: QuantizedProduct<'a, Avx512Vnni>,
    registers: Registers<WholeTiles>,
    /// What codes below 16 stand for, two in a pair, and zeros.
    table: [Bf16Pair; LANES],
    x: &'a [ActivationTile],
}

impl TileProduct<'_> {
    #[inline(always)]
    fn all_panels<C: Codes>(&self, y: &mut [[f32; LANES]]) {
        let QuantizedProduct { w, rows, .. } = self.product;
        let mut values = Aligned([[Tile::zeroed(); DEPTH]; PANELS]);
        let mut products = Aligned([[[0.0; LANES]; TILE_ROWS]; 2]);
        let mut spare = [[0.0; LANES]; TILE_ROWS];
        for (first, y) in (0..).step_by(PANELS).zip(y.chunks_mut(PANELS * rows)) {
            for start in (0..w.blocks()).step_by(DEPTH) {
                let depth = DEPTH.min(w.blocks() - start);
                for (p, values) in values.0.iter_mut().enumerate().take(y.len() / rows) {
                    self.take_apart::<C>(&w.panel(first + p), start, &mut values[..depth]);
                }
                let next = self.product.next(first, start, [PANELS, DEPTH]);
                let runs = self.x.chunks_exact(w.blocks());
                for (i, x) in runs.clone().enumerate() {
                    self.product.prefetch::<C>(&next, i, runs.len());
                    let x = &x[start..][..depth];
                    for (p, (values, y)) in values.0.iter().zip(y.chunks_exact_mut(rows)).enumerate() {
                        let panel = w.panel(first + p);
                        let (registers, values) = (&self.registers, &values[..depth]);
                        let blocks = Blocks { registers, panel: &panel, start, values, x };
                        let end = rows.min((i + 1) * TILE_ROWS);
                        let (y, rest) = whole(&mut y[i * TILE_ROWS..end], &mut spare);
                        self.add_blocks(&blocks, &mut products, y);
                        rest.copy_from_slice(&y[..rest.len()]);
                    }
                }
            }
        }
    }

    /// The values of a panel's blocks from `start` on.
    #[inline(always)]
    fn take_apart<C: Codes>(&self, panel: &QuantizedPanel<'_>, start: usize, blocks: &mut [Tile]) {
        let QuantizedProduct { simd, table, steps, .. } = &self.product;
        let codes = panel.codes[start * C::BITS..].chunks_exact(C::BITS);
        for (codes, block) in codes.zip(blocks) {
            // Eight inputs, and those that lie 16 places on.
            let pairs = block.as_chunks_mut::<4>().0.as_chunks_mut::<2>().0;
            for (k, pairs) in pairs.iter_mut().enumerate().take(steps / 2) {
                if C::IN_TABLE {
                    let first = C::codes(*simd, codes, k, 0);
                    let second = C::codes(*simd, codes, k + 2, 0);
                    unrolled!(i < 2 => { simd.look_up_pairs(&self.table, [first[i], second[i]], &mut pairs[i]) });
                } else {
                    let first = C::values(*simd, table, codes, k, 0);
                    let second = C::values(*simd, table, codes, k + 2, 0);
                    unrolled!(i < 2 => {
                        let values = [simd.minus(first[i], OFFSET), simd.minus(second[i], OFFSET)];
                        simd.store_pairs(values, &mut pairs[i]);
                    });
                }
            }
        }
    }

    /// Adds what some blocks give to 16 rows, whose sums stay in registers.
    #[inline(always)]
    fn add_blocks(
        &self,
        blocks: &Blocks<'_>,
        products: &mut Aligned<[Sums; 2]>,
        y: &mut [[f32; LANES]; TILE_ROWS],
    ) {
        let (simd, rows) = (self.product.simd, TILE_ROWS);
        let &Blocks { panel, start, x, .. } = blocks;
        let mut sums = [simd.zero(); TILE_ROWS];
        if start > 0 {
            unrolled!(r < rows of 16 => { sums[r] = simd.load(&y[r]) });
        }
        blocks.add_to(simd, &mut sums, x.len(), products);
        if start + x.len() == self.product.w.blocks() {
            let scales = simd.load(&panel.row_scales());
            unrolled!(r < rows of 16 => { sums[r] = simd.mul(sums[r], scales) });
        }
        unrolled!(r < rows of 16 => { simd.store(sums[r], &mut y[r]) });
    }
}

/// Blocks of a panel, with what they are multiplied with: 16 rows.
trait TileBlocks {
    /// Multiplies a block in one of two registers.
    fn multiply<const WHICH: usize>(&self, block: usize);

    /// Stores what a register has.
    fn store<const WHICH: usize>(&self, products: &mut Sums);

    /// A row of what was stored.
    fn floats(simd: Avx512Vnni, products: &[f32; LANES]) -> Lanes;

    /// The scales of a block's outputs.
    fn scales(&self, block: usize) -> &[u8; LANES];

    /// That of a row's activations in a block.
    fn scale(&self, block: usize, row: usize) -> f32;

    /// Adds what `count` of them give to the sums of all rows. While a block's tiles are multiplied, the products of the one before
    /// are stored and those of the one before that added up, so that no step waits for the step before it.
    #[inline(always)]
    fn add_to(
        &self,
        simd: Avx512Vnni,
        sums: &mut [Lanes; TILE_ROWS],
        count: usize,
        products: &mut Aligned<[Sums; 2]>,
    ) {
        let [even, odd] = &mut products.0;
        self.multiply::<0>(0);
        for first in (0..count).step_by(2) {
            let [second, third] = [first + 1, first + 2];
            if second < count {
                self.multiply::<1>(second);
            }
            if first > 0 {
                self.add(simd, sums, odd, first - 1);
            }
            self.store::<0>(even);
            if third < count {
                self.multiply::<0>(third);
            }
            self.add(simd, sums, even, first);
            if second < count {
                self.store::<1>(odd);
            }
        }
        if count.is_multiple_of(2) {
            self.add(simd, sums, odd, count - 1);
        }
    }

    /// Adds a block's products, times its scales, to the sums of all rows.
    #[inline(always)]
    fn add(&self, simd: Avx512Vnni, sums: &mut [Lanes; TILE_ROWS], products: &Sums, block: usize) {
        let (scales, rows) = (simd.bytes_as_floats(self.scales(block)), TILE_ROWS);
        unrolled!(r < rows of 16 => {
            let products = Self::floats(simd, &products[r]);
            sums[r] = simd.fma(sums[r], simd.mul(products, scales), self.scale(block, r));
        });
    }
}

/// Some blocks whose values were taken apart.
struct Blocks<'a> {
    registers: &'a Registers<WholeTiles>,
    panel: &'a QuantizedPanel<'a>,
    /// The first of them.
    start: usize,
    values: &'a [Tile],
    x: &'a [ActivationTile],
}

impl TileBlocks for Blocks<'_> {
    #[inline(always)]
    fn multiply<const WHICH: usize>(&self, block: usize) {
        self.registers.multiply::<WHICH>(&self.x[block].parts, &self.values[block]);
    }

    #[inline(always)]
    fn store<const WHICH: usize>(&self, products: &mut Sums) {
        self.registers.store::<WHICH>(products);
    }

    #[inline(always)]
    fn floats(simd: Avx512Vnni, products: &[f32; LANES]) -> Lanes {
        simd.load(products)
    }

    #[inline(always)]
    fn scales(&self, block: usize) -> &[u8; LANES] {
        &self.panel.block_scales[self.start + block]
    }

    #[inline(always)]
    fn scale(&self, block: usize, row: usize) -> f32 {
        self.x[block].scales[row]
    }
}

impl RunOn<Avx512Amx> for MatmulTiles<'_, ByteTile> {
    #[inline(always)]
    fn run_on(self, set: Avx512Amx) {
        let MatmulTiles { w, x, rows, y } = self;
        let (simd, registers, run) = (set.vnni(), set.amx().configure_for_blocks(), TILE_ROWS);
        let mut products = Aligned([[[0.0; LANES]; TILE_ROWS]; 2]);
        let mut spare = [[0.0; LANES]; TILE_ROWS];
        let panels_of_y = y.as_chunks_mut().0.chunks_mut(BYTE_PANELS * rows);
        for (first, y) in (0..).step_by(BYTE_PANELS).zip(panels_of_y) {
            for (i, x) in x.chunks_exact(w.blocks()).enumerate() {
                for (panel, y) in (first..).zip(y.chunks_exact_mut(rows)) {
                    let panel = &w.panel(panel);
                    let blocks = ByteBlocks { registers: &registers, panel, x };
                    let (mut sums, scales) = ([simd.zero(); TILE_ROWS], simd.load(&panel.row_scales()));
                    blocks.add_to(simd, &mut sums, x.len(), &mut products);
                    let end = rows.min((i + 1) * TILE_ROWS);
                    let (y, rest) = whole(&mut y[i * TILE_ROWS..end], &mut spare);
                    unrolled!(r < run of 16 => { simd.store(simd.mul(sums[r], scales), &mut y[r]) });
                    rest.copy_from_slice(&y[..rest.len()]);
                }
            }
        }
    }
}

/// All blocks of a panel of `q8`, whose codes are values that tiles multiply as they lie there, with 16 rows of 8 bits.
struct ByteBlocks<'a> {
    registers: &'a Registers<HalfTiles>,
    panel: &'a QuantizedPanel<'a>,
    x: &'a [ByteTile],
}

impl TileBlocks for ByteBlocks<'_> {
    #[inline(always)]
    fn multiply<const WHICH: usize>(&self, block: usize) {
        self.registers.multiply::<WHICH>(&self.x[block].numbers, &self.panel.codes.as_chunks().0[block]);
    }

    #[inline(always)]
    fn store<const WHICH: usize>(&self, products: &mut Sums) {
        self.registers.store::<WHICH>(products);
    }

    #[inline(always)]
    fn floats(simd: Avx512Vnni, products: &[f32; LANES]) -> Lanes {
        simd.integers_as_floats(products)
    }

    #[inline(always)]
    fn scales(&self, block: usize) -> &[u8; LANES] {
        &self.panel.block_scales[block]
    }

    #[inline(always)]
    fn scale(&self, block: usize, row: usize) -> f32 {
        self.x[block].scales[row]
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
                    self.product.prefetch::<C>(&next, i, runs.len());
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
