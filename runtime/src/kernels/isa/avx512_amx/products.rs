//! The same product on tile registers (AMX): a block's sums for 16 rows and 32 outputs come out together, as whole numbers. What
//! is done with these is left to the vector unit, in the order of every set.
//!
//! Tiles multiply bf16, which a code's value is, and which an activation of 12 bits is in two parts.

use bytemuck::Zeroable;

use super::Avx512Amx;
use crate::format::Dtype;
use crate::kernels::LANES;
use crate::kernels::isa::amx::{Registers, Sums};
use crate::kernels::isa::avx512::Avx512Vnni;
use crate::kernels::ops::integers::{
    Codes, MatmulRounded, MatmulTiles, OFFSET, Q3, Q4, Q5, Q6, Q8, QuantizedProduct, with_codes,
};
use crate::kernels::quantized::{Group, QuantizedPanel};
use crate::kernels::simd::{Bytes, Cache, RunOn, Simd, prefetch, unrolled};
use crate::kernels::tiles::{ActivationTile, TILE_ROWS, Tile};

/// Blocks whose values are taken apart at a time to be read again and again for all rows: 24 KiB for two panels, which stay in
/// the first-level cache.
const DEPTH: usize = 12;

/// At the start of a cache line, as rows of tiles should be.
#[repr(C, align(64))]
struct Aligned<T>(T);

/// What two blocks come to, one of which is multiplied while the other is added up: of two panels each.
type Products = Aligned<[[Sums; 2]; 2]>;

impl RunOn<Avx512Amx> for MatmulTiles<'_> {
    #[inline(always)]
    fn run_on(self, set: Avx512Amx) {
        let MatmulTiles { w, x, rows, y } = self;
        let product = QuantizedProduct::new(set.vnni(), w, &[], rows);
        let product = TileProduct { product, registers: set.amx().configure(), x };
        with_codes!(w.dtype, product.all_panels::<_>(y.as_chunks_mut().0));
    }
}

impl RunOn<Avx512Amx> for MatmulRounded<'_> {
    #[inline(always)]
    fn run_on(self, set: Avx512Amx) {
        let MatmulRounded { w, x, rows, y } = self;
        let product = QuantizedProduct::new(set.vnni(), w, &[], rows);
        let product = RoundedTileProduct { product, registers: set.amx().configure(), x };
        with_codes!(w.dtype, product.all_panels::<_>(y.as_chunks_mut().0));
    }
}

impl QuantizedProduct<'_, Avx512Vnni> {
    /// The codes that are taken apart after those from block `start` on of a pair of panels.
    #[inline(always)]
    fn next_codes<C: Codes>(&self, pair: usize, start: usize) -> [&[Group]; 2] {
        let more = start + DEPTH < self.w.blocks();
        let (pair, start) = if more { (pair, start + DEPTH) } else { (pair + 1, 0) };
        [self.codes_from::<C>(2 * pair, start), self.codes_from::<C>(2 * pair + 1, start)]
    }

    /// Those of at most [`DEPTH`] blocks of a panel, if there is one.
    #[inline(always)]
    fn codes_from<C: Codes>(&self, panel: usize, start: usize) -> &[Group] {
        let count = DEPTH.min(self.w.blocks() - start) * C::BITS;
        match panel < self.w.count() {
            true => &self.w.panel(panel).codes[start * C::BITS..][..count],
            false => &[],
        }
    }

    /// Has a share of such codes read while others are multiplied.
    #[inline(always)]
    fn prefetch(&self, codes: [&[Group]; 2], first: usize, count: usize) {
        for codes in codes {
            for group in codes.iter().skip(first).take(count) {
                prefetch(group, Cache::First);
            }
        }
    }

    /// Multiplies all sums of a pair of panels by the scales of their rows.
    #[inline(always)]
    fn scale(&self, panels: &[QuantizedPanel<'_>; 2], y: &mut [[f32; LANES]]) {
        for (y, panel) in y.chunks_exact_mut(self.rows).zip(panels) {
            for y in y {
                self.store(panel, self.simd.load(y), y);
            }
        }
    }
}

/// `w x` for `x`: `[rows/16, rounded up][blocks]`.
struct TileProduct<'a> {
    product: QuantizedProduct<'a, Avx512Vnni>,
    registers: Registers,
    x: &'a [ActivationTile],
}

impl TileProduct<'_> {
    #[inline(always)]
    fn all_panels<C: Codes>(&self, y: &mut [[f32; LANES]]) {
        let QuantizedProduct { w, rows, .. } = self.product;
        let mut values = Aligned([[Tile::zeroed(); 2]; DEPTH]);
        let mut products = Aligned([[[[0.0; LANES]; TILE_ROWS]; 2]; 2]);
        for (pair, y) in y.chunks_mut(2 * rows).enumerate() {
            // An odd last panel comes twice: the copy has no place in `y`.
            let panels = [w.panel(2 * pair), w.panel(2 * pair + y.len() / rows - 1)];
            y.fill([0.0; LANES]);
            for start in (0..w.blocks()).step_by(DEPTH) {
                let values = &mut values.0[..DEPTH.min(w.blocks() - start)];
                self.take_apart::<C>(&panels, start, values);
                let next = self.product.next_codes::<C>(pair, start);
                let runs = self.x.chunks_exact(w.blocks());
                let share = next[0].len().div_ceil(runs.len());
                for (i, x) in runs.enumerate() {
                    self.product.prefetch(next, i * share, share);
                    let run = Run { first: i * TILE_ROWS, x: &x[start..], start };
                    self.some_rows(&panels, values, &run, &mut products, y);
                }
            }
            self.product.scale(&panels, y);
        }
    }

    /// The values of two panels' blocks from `start` on.
    #[inline(always)]
    fn take_apart<C: Codes>(&self, panels: &[QuantizedPanel<'_>; 2], start: usize, blocks: &mut [[Tile; 2]]) {
        let QuantizedProduct { simd, table, steps, .. } = &self.product;
        for (p, panel) in panels.iter().enumerate() {
            let codes = panel.codes[start * C::BITS..].chunks_exact(C::BITS);
            for (codes, block) in codes.zip(blocks.iter_mut()) {
                let groups = block[p].as_chunks_mut::<2>().0.as_chunks_mut::<2>().0;
                for (k, groups) in groups.iter_mut().enumerate().take(*steps) {
                    let values = C::values(*simd, table, codes, k, 0);
                    unrolled!(i < 2 => { simd.store_bf16(simd.minus(values[i], OFFSET), &mut groups[i]) });
                }
            }
        }
    }

    /// Adds what some blocks' values give to a run of rows. Each block's tiles are multiplied while the sums of the block before
    /// are stored and those of the one before that added up, so that no step waits for the step before it.
    #[inline(always)]
    fn some_rows(
        &self,
        panels: &[QuantizedPanel<'_>; 2],
        values: &[[Tile; 2]],
        run: &Run<'_>,
        products: &mut Products,
        y: &mut [[f32; LANES]],
    ) {
        let (registers, count) = (&self.registers, values.len());
        let [even, odd] = &mut products.0;
        registers.multiply::<0>(&run.x[0].parts, &values[0]);
        for block in (0..count).step_by(2) {
            if block + 1 < count {
                registers.multiply::<1>(&run.x[block + 1].parts, &values[block + 1]);
            }
            registers.sums::<0>(even);
            if block > 0 {
                self.add(panels, run, block - 1, odd, y);
            }
            if block + 2 < count {
                registers.multiply::<0>(&run.x[block + 2].parts, &values[block + 2]);
            }
            if block + 1 < count {
                registers.sums::<1>(odd);
            }
            self.add(panels, run, block, even, y);
        }
        if count % 2 == 0 {
            self.add(panels, run, count - 1, odd, y);
        }
    }

    /// Adds a block's sums, times its scales, to those of a run of rows.
    #[inline(always)]
    fn add(
        &self,
        panels: &[QuantizedPanel<'_>; 2],
        run: &Run<'_>,
        block: usize,
        products: &[Sums; 2],
        y: &mut [[f32; LANES]],
    ) {
        let QuantizedProduct { simd, rows, .. } = self.product;
        for (p, y) in y.chunks_exact_mut(rows).enumerate() {
            let scales = simd.bytes_as_floats(&panels[p].block_scales[run.start + block]);
            let (x, y) = (&run.x[block].scales, &mut y[run.first..]);
            let row = (simd, &products[p], scales, x);
            match y.first_chunk_mut::<TILE_ROWS>() {
                Some(y) => {
                    let count = TILE_ROWS;
                    unrolled!(r < count of 16 => { add_row(row, r, &mut y[r]) });
                }
                None => {
                    for (r, y) in y.iter_mut().enumerate() {
                        add_row(row, r, y);
                    }
                }
            }
        }
    }
}

/// At most 16 rows of activations.
struct Run<'a> {
    /// The first of them.
    first: usize,
    /// Their tiles from block `start` on.
    x: &'a [ActivationTile],
    start: usize,
}

/// Adds the sums of one of 16 rows, times the scales of a block's weights and of its activations.
#[inline(always)]
fn add_row<S: Simd>(
    (simd, products, scales, x): (S, &Sums, S::Lanes, &[f32; TILE_ROWS]),
    r: usize,
    y: &mut [f32; LANES],
) {
    let product = simd.mul(simd.load(&products[r]), scales);
    simd.store(simd.fma(simd.load(y), product, x[r]), y);
}

/// The same for activations rounded to bf16, with weights rounded to it: sums of many blocks stay in the registers.
struct RoundedTileProduct<'a> {
    product: QuantizedProduct<'a, Avx512Vnni>,
    registers: Registers,
    x: &'a [Tile],
}

impl RoundedTileProduct<'_> {
    #[inline(always)]
    fn all_panels<C: Codes>(&self, y: &mut [[f32; LANES]]) {
        let QuantizedProduct { simd, w, rows, .. } = self.product;
        let mut values = Aligned([[Tile::zeroed(); DEPTH]; 2]);
        for (pair, y) in y.chunks_mut(2 * rows).enumerate() {
            // An odd last panel comes twice: the copy has no place in `y`.
            let panels = [w.panel(2 * pair), w.panel(2 * pair + y.len() / rows - 1)];
            y.fill([0.0; LANES]);
            for start in (0..w.blocks()).step_by(DEPTH) {
                let count = DEPTH.min(w.blocks() - start);
                for (panel, values) in panels.iter().zip(&mut values.0) {
                    self.take_apart::<C>(panel, start, &mut values[..count]);
                }
                let next = self.product.next_codes::<C>(pair, start);
                let runs = self.x.chunks(2 * w.blocks());
                let share = next[0].len().div_ceil(runs.len());
                for (i, x) in runs.enumerate() {
                    self.product.prefetch(next, i * share, share);
                    // An odd last run comes twice: the copy has no place in `y`.
                    let x = [&x[start..][..count], &x[x.len() - w.blocks() + start..][..count]];
                    let sums = self.registers.products(x, [&values.0[0][..count], &values.0[1][..count]]);
                    for (p, y) in y.chunks_exact_mut(rows).enumerate() {
                        let y = y.iter_mut().skip(2 * i * TILE_ROWS);
                        for (y, sums) in y.zip(sums.iter().flat_map(|sums| &sums[p])) {
                            simd.store(simd.fma(simd.load(y), simd.load(sums), 1.0), y);
                        }
                    }
                }
            }
            self.product.scale(&panels, y);
        }
    }

    /// The values of a panel's blocks from `start` on, times their blocks' scales.
    #[inline(always)]
    fn take_apart<C: Codes>(&self, panel: &QuantizedPanel<'_>, start: usize, blocks: &mut [Tile]) {
        let QuantizedProduct { simd, table, steps, .. } = &self.product;
        let codes = panel.codes[start * C::BITS..].chunks_exact(C::BITS);
        for ((codes, scales), block) in codes.zip(&panel.block_scales[start..]).zip(blocks) {
            let scales = simd.bytes_as_floats(scales);
            let groups = block.as_chunks_mut::<2>().0.as_chunks_mut::<2>().0;
            for (k, groups) in groups.iter_mut().enumerate().take(*steps) {
                let values = C::values(*simd, table, codes, k, 0);
                unrolled!(i < 2 => {
                    simd.store_scaled_bf16(simd.minus(values[i], OFFSET), scales, &mut groups[i])
                });
            }
        }
    }
}
