//! The two products of attention, over keys and values where they lie: one operation goes through all KV blocks of a head, so
//! that few rows pay once for what is decided before a loop begins. Each score is one chain over the features, and each mixed
//! value one over the positions, as in [`Matmul`](super::Matmul).

use std::ops::Range;

use super::math::scale_lanes;
use super::matmul::{FloatProduct, multiply_add, parts, rows_of};
use crate::kernels::LANES;
use crate::kernels::panels::Element;
use crate::kernels::simd::{Cache, Integers, LINE, Op, Simd, prefetch, unrolled};

/// A head's keys, or its values, in the KV blocks of a sequence.
pub(crate) trait HeadBlocks: Copy {
    /// What a number is stored as, by itself: not in pairs.
    type Element: Element;

    /// Positions of a KV block: some panels of them.
    const POSITIONS: usize;

    /// What KV block `index` has. None past the last is asked for.
    fn block(&self, index: usize) -> HeadBlock<'_, Self::Element>;
}

/// A head's keys, or its values, of one KV block.
#[derive(Clone, Copy)]
pub(crate) struct HeadBlock<'a, E> {
    /// Keys: `[positions/16][head_dim][16]`, values: `[head_dim/16][positions][16]`.
    pub numbers: &'a [[E; LANES]],
    /// One for each position; none where numbers have no scales.
    pub scales: &'a [f32],
}

/// `scores = queries keys`, times the keys' scales if they have any, for some panels of positions.
pub(crate) struct ScoreKeys<'a, B> {
    pub keys: B,
    /// Which ones.
    pub panels: Range<usize>,
    pub head_dim: usize,
    /// `[head_dim/16][rows][16]`
    pub queries: &'a [f32],
    pub rows: usize,
    /// `[panels][rows][16]`
    pub scores: &'a mut [f32],
}

/// `mixed = probabilities values` for some positions, the first of which is that of a panel. If values have scales, the
/// probabilities have been multiplied by them.
pub(crate) struct MixValues<'a, B> {
    pub values: B,
    pub positions: Range<usize>,
    /// `[positions/16, rounded up][rows][16]`
    pub probabilities: &'a [f32],
    pub rows: usize,
    /// The first panel of features that is mixed.
    pub first: usize,
    /// `[panels][rows][16]`
    pub mixed: &'a mut [f32],
}

/// Runs `few_rows` for as many rows as there are, if their sums stay in registers with those of one panel or of several, and
/// `many_rows` if not.
macro_rules! by_rows {
    ($self:ident, $simd:ident) => {
        match const { S::REGISTER_ROWS } {
            12 => match $self.rows {
                1 => $self.few_rows::<S, 1, 4>($simd),
                2 => $self.few_rows::<S, 2, 4>($simd),
                3 => $self.few_rows::<S, 3, 4>($simd),
                4 => $self.few_rows::<S, 4, 4>($simd),
                5 => $self.few_rows::<S, 5, 2>($simd),
                6 => $self.few_rows::<S, 6, 2>($simd),
                7 => $self.few_rows::<S, 7, 2>($simd),
                8 => $self.few_rows::<S, 8, 2>($simd),
                _ => $self.many_rows::<S, 12, 2>($simd),
            },
            6 => match $self.rows {
                1 => $self.few_rows::<S, 1, 4>($simd),
                2 => $self.few_rows::<S, 2, 2>($simd),
                3 => $self.few_rows::<S, 3, 1>($simd),
                4 => $self.few_rows::<S, 4, 1>($simd),
                5 => $self.few_rows::<S, 5, 1>($simd),
                6 => $self.few_rows::<S, 6, 1>($simd),
                _ => $self.many_rows::<S, 6, 1>($simd),
            },
            _ => match $self.rows {
                1 => $self.few_rows::<S, 1, 2>($simd),
                2 => $self.few_rows::<S, 2, 1>($simd),
                _ => $self.many_rows::<S, 2, 1>($simd),
            },
        }
    };
}

impl<B: HeadBlocks> Op for ScoreKeys<'_, B> {
    fn check(&self) {
        const { assert!(B::Element::INPUTS == 1 && B::POSITIONS.is_multiple_of(LANES)) };
        let len = self.panels.len() * self.rows * LANES;
        assert_eq!(self.scores.len(), len, "a score for each position of each row");
        assert!(self.queries.len() >= self.head_dim * self.rows, "each feature of each row");
    }

    #[inline(always)]
    fn run<S: Integers>(self, simd: S) {
        by_rows!(self, simd);
    }
}

impl<B: HeadBlocks> Op for MixValues<'_, B> {
    fn check(&self) {
        const { assert!(B::Element::INPUTS == 1 && B::POSITIONS.is_multiple_of(LANES)) };
        let len = self.positions.len().next_multiple_of(LANES) * self.rows;
        assert!(self.probabilities.len() >= len, "a probability for each position of each row");
        assert!(self.positions.start.is_multiple_of(LANES), "whole panels of probabilities");
        assert!(!self.positions.is_empty() && !self.mixed.is_empty(), "something to mix");
        assert!(self.mixed.len().is_multiple_of(self.rows * LANES), "whole panels of features");
    }

    #[inline(always)]
    fn run<S: Integers>(self, simd: S) {
        by_rows!(self, simd);
    }
}

impl<B: HeadBlocks> ScoreKeys<'_, B> {
    /// `R` rows, the sums of which stay in registers, with at most `P` panels side by side.
    #[inline(always)]
    fn few_rows<S: Simd, const R: usize, const P: usize>(self, simd: S) {
        let ScoreKeys { keys, panels, head_dim, queries, scores, .. } = self;
        let (queries, scores) = (queries.as_chunks().0, scores.as_chunks_mut().0);
        let mut parts = BlockParts { all: panels, len: B::POSITIONS / LANES };
        let mut done = 0;
        while let Some((index, inside)) = parts.next() {
            let block = keys.block(index);
            let ahead = to_next(&keys, index, &parts).unwrap_or(0);
            fetch(block.scales, ahead);
            let y = &mut scores[done..][..inside.len() * R];
            ScoreTiles { simd, block, head_dim, queries, ahead }.all::<R, P>(inside.start, y);
            done += inside.len() * R;
        }
    }

    /// Register tiles of at most `R` rows and `P` panels, as in [`Matmul`](super::Matmul).
    #[inline(always)]
    fn many_rows<S: Simd, const R: usize, const P: usize>(self, simd: S) {
        let ScoreKeys { keys, panels, head_dim, queries, rows, scores } = self;
        let (x, scores) = (queries.as_chunks().0, scores.as_chunks_mut().0);
        let mut parts = BlockParts { all: panels, len: B::POSITIONS / LANES };
        let mut done = 0;
        while let Some((index, inside)) = parts.next() {
            let block = keys.block(index);
            let to_next = to_next(&keys, index, &parts);
            let y = &mut scores[done..][..inside.len() * rows];
            let w = &block.numbers[inside.start * head_dim..inside.end * head_dim];
            let (inputs, stride) = (head_dim, head_dim);
            FloatProduct { simd, inputs, stride, to_next, x, rows, first_row: 0, accumulate: false }
                .many_rows::<B::Element, R, P>(w, y);
            scale_lanes(simd, y, rows, block.scales.get(inside.start * LANES..).unwrap_or_default());
            done += y.len();
        }
    }
}

impl<B: HeadBlocks> MixValues<'_, B> {
    /// `R` rows, the sums of which stay in registers over all positions, with at most `P` panels side by side.
    #[inline(always)]
    fn few_rows<S: Simd, const R: usize, const P: usize>(self, simd: S) {
        let MixValues { values, positions, probabilities, first, mixed, .. } = self;
        let probabilities = probabilities.as_chunks().0;
        MixTiles { simd, values, positions, probabilities }.all::<R, P>(first, mixed.as_chunks_mut().0);
    }

    /// Register tiles of at most `R` rows and `P` panels, as in [`Matmul`](super::Matmul).
    #[inline(always)]
    fn many_rows<S: Simd, const R: usize, const P: usize>(self, simd: S) {
        let MixValues { values, positions, probabilities, rows, first, mixed } = self;
        // Without tiles, only the bounds of slices would be left of the loops below, and LLVM would vectorize checking them.
        if rows.div_ceil(R) == 0 {
            return;
        }
        let (x, y) = (probabilities.as_chunks().0, mixed.as_chunks_mut().0);
        let (start, stride) = (positions.start, B::POSITIONS);
        let mut parts = BlockParts { all: positions, len: B::POSITIONS };
        while let Some((index, inside)) = parts.next() {
            let numbers = values.block(index).numbers;
            let to_next = to_next(&values, index, &parts);
            let position = index * B::POSITIONS + inside.start;
            let (inputs, accumulate) = (inside.len(), position > start);
            let x = &x[(position - start) / LANES * rows..];
            let last = first + y.len() / rows - 1;
            let w = &numbers[first * stride + inside.start..last * stride + inside.end];
            FloatProduct { simd, inputs, stride, to_next, x, rows, first_row: 0, accumulate }
                .many_rows::<B::Element, R, P>(w, y);
        }
    }
}

/// Register tiles of `R` rows and `P` panels.
trait Tiles {
    /// To `y`, what the panels from `first` on give, `P` at a time; returns how many panels that were.
    fn some<const R: usize, const P: usize>(&self, first: usize, y: &mut [[f32; LANES]]) -> usize;

    /// As many panels as there are: `P` at a time, and fewer at the end.
    #[inline(always)]
    fn all<const R: usize, const P: usize>(&self, first: usize, y: &mut [[f32; LANES]]) {
        let mut done = 0;
        if const { P >= 4 } {
            done += self.some::<R, 4>(first, y);
        }
        if const { P >= 2 } {
            done += self.some::<R, 2>(first + done, &mut y[done * R..]);
        }
        self.some::<R, 1>(first + done, &mut y[done * R..]);
    }
}

/// Those of a KV block's keys.
struct ScoreTiles<'a, S, E> {
    simd: S,
    block: HeadBlock<'a, E>,
    head_dim: usize,
    /// `[head_dim/16][R][16]`
    queries: &'a [[f32; LANES]],
    /// See [`chain`].
    ahead: isize,
}

impl<S: Simd, E: Element> Tiles for ScoreTiles<'_, S, E> {
    #[inline(always)]
    fn some<const R: usize, const P: usize>(&self, first: usize, y: &mut [[f32; LANES]]) -> usize {
        let &ScoreTiles { simd, block: HeadBlock { numbers, scales }, head_dim, queries, ahead } = self;
        let mut done = 0;
        for y in y.chunks_exact_mut(P * R) {
            let mut panels = [&numbers[..0]; P];
            unrolled!(p < P of 4 => { panels[p] = &numbers[(first + done + p) * head_dim..][..head_dim] });
            let mut sums = [[simd.zero(); P]; R];
            chain(simd, panels, queries, ahead, &mut sums);
            if !scales.is_empty() {
                let scales = &scales.as_chunks().0[first + done..];
                unrolled!(p < P of 4 => {
                    let scales = simd.load(&scales[p]);
                    unrolled!(r < R of 8 => { sums[r][p] = simd.mul(sums[r][p], scales) });
                });
            }
            store(simd, &sums, y);
            done += P;
        }
        done
    }
}

/// Those of values.
struct MixTiles<'a, S, B> {
    simd: S,
    values: B,
    positions: Range<usize>,
    /// `[positions/16, rounded up][R][16]`
    probabilities: &'a [[f32; LANES]],
}

impl<S: Simd, B: HeadBlocks> Tiles for MixTiles<'_, S, B> {
    #[inline(always)]
    fn some<const R: usize, const P: usize>(&self, first: usize, y: &mut [[f32; LANES]]) -> usize {
        let &MixTiles { simd, ref values, ref positions, probabilities } = self;
        let mut done = 0;
        for y in y.chunks_exact_mut(P * R) {
            let mut sums = [[simd.zero(); P]; R];
            let mut parts = BlockParts { all: positions.clone(), len: B::POSITIONS };
            let mut x = probabilities;
            while let Some((index, inside)) = parts.next() {
                let numbers = values.block(index).numbers;
                let ahead = to_next(values, index, &parts).unwrap_or(0);
                let mut panels = [&numbers[..0]; P];
                unrolled!(p < P of 4 => {
                    panels[p] = &numbers[(first + done + p) * B::POSITIONS..][inside.start..inside.end]
                });
                chain(simd, panels, x, ahead, &mut sums);
                x = x.get(inside.len() / LANES * R..).unwrap_or_default();
            }
            store(simd, &sums, y);
            done += P;
        }
        done
    }
}

/// The parts of some positions, or panels of them, that lie in one KV block each, of `len`.
struct BlockParts {
    /// What is left.
    all: Range<usize>,
    len: usize,
}

impl BlockParts {
    /// The next one: which KV block, and which of its positions or panels.
    #[inline(always)]
    fn next(&mut self) -> Option<(usize, Range<usize>)> {
        if self.all.is_empty() {
            return None;
        }
        let block = self.all.start / self.len;
        let start = block * self.len;
        let inside = self.all.start - start..self.len.min(self.all.end - start);
        self.all.start = start + inside.end;
        Some((block, inside))
    }
}

/// Adds to the sums of `R` rows what the inputs of `P` panels give. With each line of numbers that is multiplied, that `ahead`
/// bytes behind it is fetched.
///
/// `x`: `[inputs/16, rounded up][R][16]`
#[inline(always)]
fn chain<S: Simd, E: Element, const R: usize, const P: usize>(
    simd: S,
    panels: [&[[E; LANES]]; P],
    x: &[[f32; LANES]],
    ahead: isize,
    sums: &mut [[S::Lanes; P]; R],
) {
    let of_line = LINE / size_of::<[E; LANES]>();
    let (steps, rest) = (panels[0].len() / LANES, panels[0].len() % LANES);
    for step in 0..steps {
        let x: &[[f32; LANES]; R] = rows_of(x, step * R);
        let panels = parts(panels, step * LANES, LANES);
        for i in 0..LANES {
            if i % of_line == 0 {
                unrolled!(p < P of 4 => {
                    prefetch(panels[p][i].as_ptr().wrapping_byte_offset(ahead), Cache::First)
                });
            }
            multiply_add(simd, panels, x, i, sums);
        }
    }
    if rest > 0 {
        let x: &[[f32; LANES]; R] = rows_of(x, steps * R);
        let panels = parts(panels, steps * LANES, rest);
        for i in 0..rest {
            multiply_add(simd, panels, x, i, sums);
        }
    }
}

/// To `y`, `[P][R][16]`.
#[inline(always)]
fn store<S: Simd, const R: usize, const P: usize>(
    simd: S,
    sums: &[[S::Lanes; P]; R],
    y: &mut [[f32; LANES]],
) {
    unrolled!(p < P of 4 => { unrolled!(r < R of 8 => { simd.store(sums[r][p], &mut y[p * R + r]) }) });
}

/// Bytes from a number of KV block `index` to its place in the next one, unless no part is left.
#[inline(always)]
fn to_next<B: HeadBlocks>(blocks: &B, index: usize, left: &BlockParts) -> Option<isize> {
    if left.all.is_empty() {
        return None;
    }
    let (from, to) = (blocks.block(index).numbers.as_ptr(), blocks.block(index + 1).numbers.as_ptr());
    Some(to.addr().wrapping_sub(from.addr()).cast_signed())
}

/// Starts to fetch what lies `ahead` bytes behind some scales.
#[inline(always)]
fn fetch(scales: &[f32], ahead: isize) {
    for line in scales.chunks(LINE / size_of::<f32>()) {
        prefetch(line.as_ptr().wrapping_byte_offset(ahead), Cache::First);
    }
}
