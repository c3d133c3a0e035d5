//! The products of attention, over keys and values where they lie in KV blocks: as [`Matmul`](super::Matmul), but one
//! operation goes through all blocks of a head, so that few rows pay once for what is decided before a loop begins.

use std::ops::Range;

use super::matmul::{FloatProduct, Placing, parts, rows_of};
use crate::kernels::LANES;
use crate::kernels::panels::Element;
use crate::kernels::simd::{Cache, Integers, LINE, Op, RegisterTile, Simd, prefetch, unrolled};

/// A head's keys, or its values, of one KV block.
#[derive(Clone, Copy)]
pub(crate) struct HeadBlock<'a, E> {
    /// Keys: `[positions/16][head_dim][16]`, values: `[head_dim/16][positions][16]`.
    pub numbers: &'a [[E; LANES]],
    /// One for each position; none where numbers have no scales.
    pub scales: &'a [f32],
}

/// `scores = queries keys`, times the keys' scales, for some panels of positions.
pub(crate) struct ScoreKeys<'a, E, B> {
    /// Gives the keys of KV block `i`.
    pub block: B,
    /// Panels of positions in a KV block.
    pub block_panels: usize,
    /// Those that are multiplied.
    pub panels: Range<usize>,
    pub head_dim: usize,
    /// `[head_dim/16][rows][16]`
    pub queries: &'a [f32],
    pub rows: usize,
    /// `[panels][rows][16]`
    pub scores: &'a mut [f32],
    pub element: std::marker::PhantomData<E>,
}

impl<'a, E: Element + 'a, B: Fn(usize) -> HeadBlock<'a, E>> Op for ScoreKeys<'a, E, B> {
    fn check(&self) {
        assert_eq!(self.scores.len(), self.panels.len() * self.rows * LANES, "a score for each position of each row");
        assert!(self.queries.len() >= self.head_dim * self.rows, "a feature for each input of each row");
    }

    #[inline(always)]
    fn run<S: Integers>(self, simd: S) {
        match S::REGISTER_TILE {
            RegisterTile::Rows12Panels2 if self.rows <= 4 => self.score::<S, 4, 4>(simd),
            RegisterTile::Rows12Panels2 => self.score::<S, 12, 2>(simd),
            RegisterTile::Rows6 => self.score::<S, 6, 1>(simd),
            RegisterTile::Rows2 => self.score::<S, 2, 1>(simd),
        }
    }
}

