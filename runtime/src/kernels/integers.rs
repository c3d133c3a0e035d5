//! The product with quantised weights, once for all instruction sets: integers are multiplied and added up exactly within
//! a block of inputs, blocks are added in f32, see [`super::quantised`].

use std::array;
use std::hint::black_box;

use super::LANES;
use super::quantised::{Group, PAIRS, Quantised, QuantisedPanel, RoundedBlock};
use super::simd::{Block, Integers};
use crate::format::Dtype;

/// Blocks whose codes are widened at a time to be read again and again for all rows: 8 KiB, which stay in the first-level
/// cache.
const DEPTH: usize = 8;

/// Words of a block for each pair of inputs, in the order of [`RoundedBlock::pairs`].
type WideBlock = [[[i16; 2]; LANES]; PAIRS];

/// See [`super::Kernels::matmul_quantised`].
#[inline(always)]
pub(super) fn matmul<S: Integers>(simd: S, w: Quantised<'_>, x: &[RoundedBlock], rows: usize, y: &mut [f32]) {
    let y = y.as_chunks_mut().0;
    if rows == 1 {
        let product = Product::new(simd.one_row(), w, x, rows);
        return match w.dtype {
            Dtype::Q4 => product.one_row::<Q4>(y),
            Dtype::Q3 => product.one_row::<Q3>(y),
            Dtype::Q5 => product.one_row::<Q5>(y),
            Dtype::Q6 => product.one_row::<Q6>(y),
            _ => product.one_row::<Q8>(y),
        };
    }
    let product = Product::new(simd, w, x, rows);
    match S::BLOCK {
        Block::Rows12Panels2 => product.many_rows::<12>(y),
        Block::Rows6 => product.many_rows::<6>(y),
        Block::Rows2 => product.many_rows::<4>(y), // of half a panel
    }
}

/// How the codes of a block lie.
trait Codes {
    /// Bits of a code, and as many runs of 64 bytes in a block.
    const BITS: usize;

    /// The values of eight inputs, the `k`-th such of a block, in a part: of the first four, then of the others.
    fn values<S: Integers>(
        simd: S,
        table: &[i8; 16],
        block: &[Group],
        k: usize,
        part: usize,
    ) -> [S::Bytes; 2];
}

struct Q8;
struct Q6;
struct Q5;
struct Q4;
struct Q3;

impl Codes for Q8 {
    const BITS: usize = 8;

    #[inline(always)]
    fn values<S: Integers>(simd: S, _: &[i8; 16], block: &[Group], k: usize, part: usize) -> [S::Bytes; 2] {
        [simd.bytes(&block[2 * k], part), simd.bytes(&block[2 * k + 1], part)]
    }
}

impl Codes for Q6 {
    const BITS: usize = 6;

    #[inline(always)]
    fn values<S: Integers>(simd: S, _: &[i8; 16], block: &[Group], k: usize, part: usize) -> [S::Bytes; 2] {
        let upper = simd.down(simd.bytes(&block[4 + k / 2], part), 4 * (k % 2) as u32);
        with_upper_bits(simd, halves(simd, &block[k], part), [simd.up(upper, 4), simd.up(upper, 2)], 0x30)
    }
}

impl Codes for Q5 {
    const BITS: usize = 5;

    #[inline(always)]
    fn values<S: Integers>(simd: S, _: &[i8; 16], block: &[Group], k: usize, part: usize) -> [S::Bytes; 2] {
        let upper = simd.down(simd.bytes(&block[4], part), 2 * k as u32);
        with_upper_bits(simd, halves(simd, &block[k], part), [simd.up(upper, 4), simd.up(upper, 3)], 0x10)
    }
}

impl Codes for Q4 {
    const BITS: usize = 4;

    #[inline(always)]
    fn values<S: Integers>(
        simd: S,
        table: &[i8; 16],
        block: &[Group],
        k: usize,
        part: usize,
    ) -> [S::Bytes; 2] {
        let [first, second] = halves(simd, &block[k], part);
        [simd.look_up(table, first), simd.look_up(table, second)]
    }
}

impl Codes for Q3 {
    const BITS: usize = 3;

    #[inline(always)]
    fn values<S: Integers>(
        simd: S,
        table: &[i8; 16],
        block: &[Group],
        k: usize,
        part: usize,
    ) -> [S::Bytes; 2] {
        let lower = simd.down(simd.bytes(&block[k / 2], part), 4 * (k % 2) as u32);
        let upper = simd.down(simd.bytes(&block[2], part), 2 * k as u32);
        let code = |lower, upper| simd.or(simd.and(lower, 3), simd.and(upper, 4));
        let [first, second] = [code(lower, simd.up(upper, 2)), code(simd.down(lower, 2), simd.up(upper, 1))];
        [simd.look_up(table, first), simd.look_up(table, second)]
    }
}

/// The lower and the upper four bits of each byte.
#[inline(always)]
fn halves<S: Integers>(simd: S, bytes: &Group, part: usize) -> [S::Bytes; 2] {
    let bytes = simd.bytes(bytes, part);
    [simd.and(bytes, 15), simd.and(simd.down(bytes, 4), 15)]
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
    let value = |lower, upper| simd.minus(simd.or(lower, simd.and(upper, mask)), (mask + 16) / 2);
    [value(lower[0], upper[0]), value(lower[1], upper[1])]
}

/// `w x` for `x`: `[blocks][rows]`.
#[derive(Clone, Copy)]
struct Product<'a, S> {
    simd: S,
    w: Quantised<'a>,
    x: &'a [RoundedBlock],
    rows: usize,
    /// Steps of eight inputs in a block: four, which the compiler must not know. Integers may be added up in any order,
    /// and it would do so from the last to the first, so that codes are read backwards, which no processor foresees.
    steps: usize,
}

impl<'a, S: Integers> Product<'a, S> {
    #[inline(always)]
    fn new(simd: S, w: Quantised<'a>, x: &'a [RoundedBlock], rows: usize) -> Product<'a, S> {
        Product { simd, w, x, rows, steps: black_box(PAIRS / 4) }
    }

    /// Every code is used once: several runs of panels are read side by side, each from its start to its end.
    #[inline(always)]
    fn one_row<C: Codes>(&self, y: &mut [[f32; LANES]]) {
        let done = if S::STREAMS >= 4 { self.streams::<C, 2, 2>(0, y) } else { 0 };
        self.streams::<C, 1, 1>(done, &mut y[done..]);
    }

    /// `P` times `W` runs of as many panels from panel `start` on, for one row; returns how many panels that were.
    #[inline(always)]
    fn streams<C: Codes, const P: usize, const W: usize>(
        &self,
        start: usize,
        y: &mut [[f32; LANES]],
    ) -> usize {
        let (simd, run) = (self.simd, y.len() / (P * W));
        for first in 0..run {
            let place = |p, w| first + (p * W + w) * run;
            let panels: [[_; W]; P] =
                array::from_fn(|p| array::from_fn(|w| self.w.panel(start + place(p, w))));
            let mut sums = [[simd.zero(); W]; P];
            for (block, x) in self.x.iter().enumerate() {
                for (panels, sums) in panels.iter().zip(&mut sums) {
                    let products = self.block::<C, W>(panels, block, x);
                    for w in 0..W {
                        sums[w] = simd.fma(sums[w], products[w], x.scale);
                    }
                }
            }
            for (p, w) in (0..P).flat_map(|p| (0..W).map(move |w| (p, w))) {
                let scales = simd.load(&panels[p][w].row_scales());
                simd.store(simd.mul(sums[p][w], scales), &mut y[place(p, w)]);
            }
        }
        run * P * W
    }

    /// The products of `W` panels' codes in a block with `x`, times the block's scales. Several panels at a time, because each
    /// one's sums wait for one another.
    #[inline(always)]
    fn block<C: Codes, const W: usize>(
        &self,
        panels: &[QuantisedPanel<'_>; W],
        block: usize,
        x: &RoundedBlock,
    ) -> [S::Lanes; W] {
        let simd = self.simd;
        let mut codes = [[].as_slice(); W];
        for w in 0..W {
            codes[w] = &panels[w].codes[block * C::BITS..][..C::BITS];
        }
        let mut products = [simd.zero(); W];
        for part in 0..S::PARTS {
            let mut sums = [simd.no_sums(); W];
            for (k, x) in x.pairs.as_chunks::<4>().0.iter().enumerate().take(self.steps) {
                for w in 0..W {
                    let [first, second] = C::values(simd, self.w.table, codes[w], k, part);
                    let [words, more] = simd.words(first);
                    sums[w] = simd.add_products(sums[w], words, x[0]);
                    sums[w] = simd.add_products(sums[w], more, x[1]);
                    let [words, more] = simd.words(second);
                    sums[w] = simd.add_products(sums[w], words, x[2]);
                    sums[w] = simd.add_products(sums[w], more, x[3]);
                }
            }
            for w in 0..W {
                simd.set_floats(&mut products[w], part, sums[w]);
            }
        }
        for w in 0..W {
            products[w] = simd.mul(products[w], simd.bytes_as_floats(&panels[w].block_scales[block]));
        }
        products
    }

    /// Blocks of `R` rows; codes are widened once for all of them.
    #[inline(always)]
    fn many_rows<const R: usize>(&self, y: &mut [[f32; LANES]]) {
        let simd = self.simd;
        let mut buffer = [[[[0; 2]; LANES]; PAIRS]; DEPTH];
        for (index, y) in y.chunks_exact_mut(self.rows).enumerate() {
            let panel = self.w.panel(index);
            y.fill([0.0; LANES]);
            for start in (0..self.w.blocks()).step_by(DEPTH) {
                let wide = &mut buffer[..DEPTH.min(self.w.blocks() - start)];
                match self.w.dtype {
                    Dtype::Q4 => self.widen::<Q4>(&panel, start, wide),
                    Dtype::Q3 => self.widen::<Q3>(&panel, start, wide),
                    Dtype::Q5 => self.widen::<Q5>(&panel, start, wide),
                    Dtype::Q6 => self.widen::<Q6>(&panel, start, wide),
                    _ => self.widen::<Q8>(&panel, start, wide),
                }
                self.row_blocks::<R>(&panel, start, wide, y);
            }
            let scales = simd.load(&panel.row_scales());
            for y in y {
                simd.store(simd.mul(simd.load(y), scales), y);
            }
        }
    }

    /// The codes of the blocks from `start` on.
    #[inline(always)]
    fn widen<C: Codes>(&self, panel: &QuantisedPanel<'_>, start: usize, wide: &mut [WideBlock]) {
        let (simd, codes) = (self.simd, &panel.codes[start * C::BITS..]);
        for (codes, wide) in codes.chunks_exact(C::BITS).zip(wide) {
            for (k, wide) in wide.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                for part in 0..S::PARTS {
                    let [first, second] = C::values(simd, self.w.table, codes, k, part);
                    let ([w0, w1], [w2, w3]) = (simd.words(first), simd.words(second));
                    simd.store_words(w0, &mut wide[0], part);
                    simd.store_words(w1, &mut wide[1], part);
                    simd.store_words(w2, &mut wide[2], part);
                    simd.store_words(w3, &mut wide[3], part);
                }
            }
        }
    }

    /// Adds to all rows of a panel what the blocks from `start` on give.
    #[inline(always)]
    fn row_blocks<const R: usize>(
        &self,
        panel: &QuantisedPanel<'_>,
        start: usize,
        wide: &[WideBlock],
        y: &mut [[f32; LANES]],
    ) {
        let mut first = 0;
        while first + R <= self.rows {
            self.rows_of_blocks::<R>(panel, start, wide, first, y);
            first += R;
        }
        while first < self.rows {
            let rows = (self.rows - first).min(4);
            match rows {
                4 => self.rows_of_blocks::<4>(panel, start, wide, first, y),
                3 => self.rows_of_blocks::<3>(panel, start, wide, first, y),
                2 => self.rows_of_blocks::<2>(panel, start, wide, first, y),
                _ => self.rows_of_blocks::<1>(panel, start, wide, first, y),
            }
            first += rows;
        }
    }

    /// The same for the `R` rows from `first` on, whose sums stay in registers within a block.
    #[inline(always)]
    fn rows_of_blocks<const R: usize>(
        &self,
        panel: &QuantisedPanel<'_>,
        start: usize,
        wide: &[WideBlock],
        first: usize,
        y: &mut [[f32; LANES]],
    ) {
        let simd = self.simd;
        for (block, wide) in (start..).zip(wide) {
            let Some(x) = self.x[block * self.rows + first..].first_chunk::<R>() else { return };
            let mut products = [simd.zero(); R];
            for part in 0..S::PARTS {
                let mut sums = [simd.no_sums(); R];
                for (pair, words) in wide.iter().enumerate() {
                    let words = simd.load_words(words, part);
                    for r in 0..R {
                        sums[r] = simd.add_products(sums[r], words, x[r].pairs[pair]);
                    }
                }
                for r in 0..R {
                    simd.set_floats(&mut products[r], part, sums[r]);
                }
            }
            let scales = simd.bytes_as_floats(&panel.block_scales[block]);
            for r in 0..R {
                let product = simd.mul(products[r], scales);
                let y = &mut y[first + r];
                simd.store(simd.fma(simd.load(y), product, x[r].scale), y);
            }
        }
    }
}
