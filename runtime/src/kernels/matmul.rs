//! The matrix product over panels, once for all instruction sets: which sums stay in registers, and in what order the
//! weights are read. Whatever the blocking, each sum is one chain over the inputs in ascending order.

use super::simd::{Block, Simd};
use super::{Element, LANES};

/// Inputs whose weights are read again and again for all rows: what fits beside some rows in the first-level cache.
const DEPTH: usize = 256;

/// See [`super::Kernels::matmul`].
#[inline(always)]
pub(super) fn matmul<S: Simd, E: Element>(
    simd: S,
    w: &[E],
    inputs: usize,
    x: &[f32],
    rows: usize,
    y: &mut [f32],
    accumulate: bool,
) {
    let mut product = Product { simd, inputs, x: x.as_chunks().0, rows, accumulate };
    let (w, y) = (w.as_chunks().0, y.as_chunks_mut().0);
    match (rows, S::BLOCK) {
        (1, _) => product.one_row(w, y),
        (2..6, _) => product.few_rows(w, y),
        (_, Block::Rows12Panels2) => product.many_rows::<E, 12, 2>(w, y),
        (_, Block::Rows6) => product.many_rows::<E, 6, 1>(w, y),
        (_, Block::Rows2) => product.many_rows::<E, 2, 1>(w, y),
    }
}

/// `w x` for activations `x`, `[inputs/16, rounded up][rows][16]`.
struct Product<'a, S> {
    simd: S,
    inputs: usize,
    x: &'a [[f32; LANES]],
    rows: usize,
    /// Whether the chains go on from what is in `y`.
    accumulate: bool,
}

impl<S: Simd> Product<'_, S> {
    /// Every weight is used once: several runs of panels are read side by side, each from its start to its end.
    #[inline(always)]
    fn one_row<E: Element>(&self, w: &[[E; LANES]], y: &mut [[f32; LANES]]) {
        let mut done = 0;
        if S::STREAMS >= 4 {
            done += self.streams::<E, 4>(w, y);
        }
        if S::STREAMS >= 2 {
            done += self.streams::<E, 2>(&w[done * self.depth::<E>()..], &mut y[done..]);
        }
        self.streams::<E, 1>(&w[done * self.depth::<E>()..], &mut y[done..]);
    }

    /// `P` runs of as many panels, for one row; returns how many panels that were.
    #[inline(always)]
    fn streams<E: Element, const P: usize>(&self, w: &[[E; LANES]], y: &mut [[f32; LANES]]) -> usize {
        let run = y.len() / P;
        for first in 0..run {
            let (mut panels, mut sums) = ([w; P], [[0.0; LANES]; P]);
            for p in 0..P {
                panels[p] = &w[(first + p * run) * self.depth::<E>()..][..self.depth::<E>()];
                sums[p] = y[first + p * run];
            }
            self.block::<E, 1, P>(panels, 0, &mut sums);
            for p in 0..P {
                y[first + p * run] = sums[p];
            }
        }
        P * run
    }

    /// Every weight is used a few times, out of a register; two panels side by side while there are sums for them.
    #[inline(always)]
    fn few_rows<E: Element>(&self, mut w: &[[E; LANES]], mut y: &mut [[f32; LANES]]) {
        if self.rows <= 3 && S::STREAMS >= 4 {
            let pairs = y.len() / (2 * self.rows);
            let (paired, last) = y.split_at_mut(pairs * 2 * self.rows);
            for (w, y) in w.chunks_exact(2 * self.depth::<E>()).zip(paired.chunks_exact_mut(2 * self.rows)) {
                match self.rows {
                    2 => self.block::<E, 2, 2>(self.panels(w), 0, y),
                    _ => self.block::<E, 3, 2>(self.panels(w), 0, y),
                }
            }
            (w, y) = (&w[pairs * 2 * self.depth::<E>()..], last);
        }
        for (w, y) in w.chunks_exact(self.depth::<E>()).zip(y.chunks_exact_mut(self.rows)) {
            self.rest(self.panels::<E, 1>(w), 0, y);
        }
    }

    /// Blocks of `R` rows and `P` panels, `DEPTH` inputs at a time.
    #[inline(always)]
    fn many_rows<E: Element, const R: usize, const P: usize>(
        &mut self,
        w: &[[E; LANES]],
        y: &mut [[f32; LANES]],
    ) {
        let mut buffer = [[0.0; LANES]; 2 * DEPTH];
        let (x, inputs, accumulate) = (self.x, self.inputs, self.accumulate);
        let depth = self.depth::<E>();
        for (w, y) in w.chunks(P * depth).zip(y.chunks_mut(P * self.rows)) {
            for start in (0..inputs).step_by(DEPTH) {
                self.inputs = DEPTH.min(inputs - start);
                self.x = &x[start / LANES * self.rows..];
                self.accumulate = accumulate || start > 0;
                let mut buffers = buffer.chunks_exact_mut(DEPTH);
                let mut panels = [[].as_slice(); P];
                for (panel, w) in panels.iter_mut().zip(w.chunks_exact(depth)) {
                    let buffer = buffers.next().unwrap_or_default();
                    *panel = E::widened(self.simd, &w[start / E::INPUTS..][..self.depth::<E>()], buffer);
                }
                if y.len() == P * self.rows {
                    self.row_blocks::<R, P>(panels, y);
                } else {
                    self.row_blocks::<R, 1>([panels[0]], y);
                }
            }
        }
        (self.x, self.inputs, self.accumulate) = (x, inputs, accumulate);
    }

    /// All rows of `P` panels.
    #[inline(always)]
    fn row_blocks<const R: usize, const P: usize>(
        &self,
        panels: [&[[f32; LANES]]; P],
        y: &mut [[f32; LANES]],
    ) {
        let mut first = 0;
        while first + R <= self.rows {
            self.block::<f32, R, P>(panels, first, y);
            first += R;
        }
        for (panel, y) in panels.into_iter().zip(y.chunks_exact_mut(self.rows)) {
            self.rest([panel], first, y);
        }
    }

    /// The rows from `first` on of one panel.
    #[inline(always)]
    fn rest<E: Element>(&self, panel: [&[[E; LANES]]; 1], mut first: usize, y: &mut [[f32; LANES]]) {
        while first < self.rows {
            let rows = (self.rows - first).min(6);
            match rows {
                6 => self.block::<E, 6, 1>(panel, first, y),
                5 => self.block::<E, 5, 1>(panel, first, y),
                4 => self.block::<E, 4, 1>(panel, first, y),
                3 => self.block::<E, 3, 1>(panel, first, y),
                2 => self.block::<E, 2, 1>(panel, first, y),
                _ => self.block::<E, 1, 1>(panel, first, y),
            }
            first += rows;
        }
    }

    /// The `R` rows from `first` on of `P` panels: `y`: `[P][rows][16]`.
    #[inline(always)]
    fn block<E: Element, const R: usize, const P: usize>(
        &self,
        panels: [&[[E; LANES]]; P],
        first: usize,
        y: &mut [[f32; LANES]],
    ) {
        let simd = self.simd;
        let mut sums = [[simd.zero(); P]; R];
        if self.accumulate {
            for (p, y) in y.chunks_exact(self.rows).enumerate() {
                for (sums, y) in sums.iter_mut().zip(&y[first..]) {
                    sums[p] = simd.load(y);
                }
            }
        }
        let x = &self.x[first..];
        let steps = self.inputs / LANES;
        for step in 0..steps {
            let x: &[[f32; LANES]; R] = rows_of(x, step * self.rows);
            let mut w = [[].as_slice(); P];
            for p in 0..P {
                w[p] = &panels[p][step * LANES / E::INPUTS..][..LANES / E::INPUTS];
            }
            for i in 0..LANES / E::INPUTS {
                for p in 0..P {
                    let weights = E::load(simd, &w[p][i]);
                    for k in 0..E::INPUTS {
                        for r in 0..R {
                            sums[r][p] = simd.fma(sums[r][p], weights.as_ref()[k], x[r][i * E::INPUTS + k]);
                        }
                    }
                }
            }
        }
        for i in steps * LANES / E::INPUTS..self.depth::<E>() {
            let x: &[[f32; LANES]; R] = rows_of(x, steps * self.rows);
            for p in 0..P {
                let weights = E::load(simd, &panels[p][i]);
                for k in 0..E::INPUTS {
                    for r in 0..R {
                        sums[r][p] =
                            simd.fma(sums[r][p], weights.as_ref()[k], x[r][(i * E::INPUTS + k) % LANES]);
                    }
                }
            }
        }
        for (p, y) in y.chunks_exact_mut(self.rows).enumerate() {
            for (sums, y) in sums.iter().zip(&mut y[first..]) {
                simd.store(sums[p], y);
            }
        }
    }

    /// Rows of a panel: its inputs, or pairs of them.
    #[inline(always)]
    fn depth<E: Element>(&self) -> usize {
        self.inputs / E::INPUTS
    }

    /// Cuts `P` panels apart.
    #[inline(always)]
    fn panels<'w, E: Element, const P: usize>(&self, w: &'w [[E; LANES]]) -> [&'w [[E; LANES]]; P] {
        let mut panels = [w; P];
        for (p, panel) in panels.iter_mut().enumerate() {
            *panel = &w[p * self.depth::<E>()..][..self.depth::<E>()];
        }
        panels
    }
}

/// `N` of the 16 lanes from `first` on.
#[inline(always)]
fn rows_of<T, const N: usize>(from: &[[T; LANES]], first: usize) -> &[[T; LANES]; N] {
    match from[first..].first_chunk() {
        Some(chunk) => chunk,
        None => panic!("as many as the shapes say"),
    }
}
