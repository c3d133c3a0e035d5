//! The matrix product over panels, once for all instruction sets: which sums stay in registers, and in what order the
//! weights are read. Whatever the register tiles, each sum is one chain over the inputs in ascending order.

use crate::kernels::LANES;
use crate::kernels::panels::Element;
use crate::kernels::simd::{Cache, FEWEST_ROWS_TO_ASK, Integers, LINE, Op, Simd, prefetch, unrolled};

/// Inputs whose weights are read again and again for all rows: what fits beside some rows in the first-level cache.
const DEPTH: usize = 192;

/// `y = w x`, or `y += w x` when `accumulate`, continuing each element's chain.
pub(crate) struct Matmul<'a, E> {
    /// `[panels][inputs / INPUTS][16]`
    pub w: &'a [E],
    pub inputs: usize,
    /// `[inputs/16, rounded up][rows][16]`
    pub x: &'a [f32],
    pub rows: usize,
    /// The rows before this one are passed over: what is in `y` for them stays.
    pub first_row: usize,
    /// `[panels][rows][16]`
    pub y: &'a mut [f32],
    pub accumulate: bool,
}

impl<E: Element> Op for Matmul<'_, E> {
    fn check(&self) {
        let panels = self.y.len() / (self.rows * LANES);
        let len = panels * (self.inputs / E::INPUTS * LANES);
        assert_eq!(self.w.len(), len, "one panel of weights for each panel of output");
        let padded = self.inputs.next_multiple_of(LANES);
        assert!(self.x.len() >= padded * self.rows, "a value for each input of each row");
        assert!(self.first_row < self.rows, "a row at least");
    }

    #[inline(always)]
    fn run<S: Integers>(self, simd: S) {
        let Matmul { w, inputs, x, rows, first_row, y, accumulate } = self;
        let x = x.as_chunks().0;
        let product =
            FloatProduct { simd, inputs, stride: inputs, to_next: None, x, rows, first_row, accumulate };
        let (w, y) = (w.as_chunks().0, y.as_chunks_mut().0);
        if rows == 1 {
            return product.one_row(w, y);
        }
        match const { S::REGISTER_ROWS } {
            12 => match rows {
                // A weight is read and widened once for all rows. With two tiles of rows, memory would wait while the second one
                // multiplies. (Weights of f32 take longer to read than that wait, unless a processor outruns memory. No more rows
                // of them are compiled: unoptimized code keeps all that is unrolled on the stack, of which a thread has 2 MiB.)
                13..=24 if const { E::INPUTS == 2 } => product.few_rows::<E, 24, 1>(w, y),
                13..=16 if const { E::INPUTS == 1 } && simd.outruns_memory() => {
                    product.few_rows::<E, 16, 1>(w, y)
                }
                _ => product.rows::<E, 12, 2>(w, y),
            },
            6 => product.rows::<E, 6, 1>(w, y),
            _ => product.rows::<E, 2, 1>(w, y),
        }
    }
}

/// `w x` for activations `x`, `[inputs/16, rounded up][rows][16]`.
#[derive(Clone, Copy)]
pub(super) struct FloatProduct<'a, S> {
    pub simd: S,
    pub inputs: usize,
    /// Inputs from the start of a panel to that of the next one: more than are multiplied, where a KV block is not full.
    pub stride: usize,
    /// Bytes to what is multiplied next, in the same layout, which is fetched meanwhile.
    pub to_next: Option<isize>,
    pub x: &'a [[f32; LANES]],
    pub rows: usize,
    /// Rows before it are passed over.
    pub first_row: usize,
    /// Whether the chains go on from what is in `y`.
    pub accumulate: bool,
}

impl<S: Simd> FloatProduct<'_, S> {
    /// Every weight is used once: several runs of panels are read side by side, each from its start to its end.
    #[inline(always)]
    fn one_row<E: Element>(&self, w: &[[E; LANES]], y: &mut [[f32; LANES]]) {
        let mut done = 0;
        if const { S::STREAMS >= 4 } && self.simd.streams() >= 4 {
            done += self.streams::<E, 4>(w, y);
        }
        if const { S::STREAMS >= 2 } {
            done += self.streams::<E, 2>(self.panels_from(w, done), &mut y[done..]);
        }
        self.streams::<E, 1>(self.panels_from(w, done), &mut y[done..]);
    }

    /// `P` runs of as many panels, for one row; returns how many panels that were.
    #[inline(always)]
    fn streams<E: Element, const P: usize>(&self, w: &[[E; LANES]], y: &mut [[f32; LANES]]) -> usize {
        let run = y.len() / P;
        for first in 0..run {
            let (mut panels, mut sums) = ([w; P], [[0.0; LANES]; P]);
            for p in 0..P {
                panels[p] = self.panel(w, first + p * run);
                sums[p] = y[first + p * run];
            }
            self.register_tile::<E, 1, P>(panels, 0, &mut sums);
            for p in 0..P {
                y[first + p * run] = sums[p];
            }
        }
        P * run
    }

    /// Register tiles of at most `R` rows and `P` panels.
    #[inline(always)]
    fn rows<E: Element, const R: usize, const P: usize>(&self, w: &[[E; LANES]], y: &mut [[f32; LANES]]) {
        if self.rows > R {
            self.many_rows::<E, R, P>(w, y);
        } else if const { P == 1 && E::INPUTS == 1 && S::STREAMS >= 4 } && self.rows == 2 {
            // One panel alone has too few sums to hide how long a multiply-add takes.
            self.few_rows::<E, 2, 2>(w, y);
        } else if self.simd.outruns_memory() {
            // Two panels side by side are two streams of memory.
            self.few_rows::<E, R, 1>(w, y);
        } else {
            self.few_rows::<E, R, P>(w, y);
        }
    }

    /// Every weight is used a few times, out of a register.
    #[inline(always)]
    fn few_rows<E: Element, const R: usize, const P: usize>(&self, w: &[[E; LANES]], y: &mut [[f32; LANES]]) {
        let rows = self.rows - self.first_row;
        let mut tiles = y.chunks_exact_mut(P * self.rows);
        let mut done = 0;
        for y in &mut tiles {
            let mut panels = [self.panel(w, done); P];
            unrolled!(p < P of 4 => { panels[p] = self.panel(w, done + p) });
            self.row_tile::<E, R, P>(panels, self.first_row, rows, y);
            done += P;
        }
        if const { P == 1 } {
            return;
        }
        for y in tiles.into_remainder().chunks_exact_mut(self.rows) {
            self.row_tile::<E, R, 1>([self.panel(w, done)], self.first_row, rows, y);
            done += 1;
        }
    }

    /// `DEPTH` inputs at a time, whose weights are read for one register tile of rows after the other.
    #[inline(always)]
    pub(super) fn many_rows<E: Element, const R: usize, const P: usize>(
        &self,
        w: &[[E; LANES]],
        y: &mut [[f32; LANES]],
    ) {
        let mut buffer = [[0.0; LANES]; DEPTH];
        let stride = self.stride::<E>();
        for (w, y) in w.chunks(P * stride).zip(y.chunks_mut(P * self.rows)) {
            for start in (0..self.inputs).step_by(DEPTH) {
                let part = FloatProduct {
                    inputs: DEPTH.min(self.inputs - start),
                    x: &self.x[start / LANES * self.rows..],
                    accumulate: self.accumulate || start > 0,
                    ..*self
                };
                let (first, len) = (start / E::INPUTS, part.depth::<E>());
                let panel = |p: usize| &w[p * stride + first..][..len];
                if const { S::WIDENS } {
                    // What follows the weights does not follow the buffer.
                    let part = FloatProduct { to_next: None, ..part };
                    for (p, y) in y.chunks_exact_mut(self.rows).enumerate() {
                        part.row_tiles::<f32, R, 1>([E::widened(self.simd, panel(p), &mut buffer)], 0, y);
                    }
                } else if const { P == 1 } || y.len() == P * self.rows {
                    let mut panels = [panel(0); P];
                    unrolled!(p < P of 4 => { panels[p] = panel(p) });
                    let ahead = if start + DEPTH < self.inputs { len } else { P * stride - first };
                    part.row_tiles::<E, R, P>(panels, ahead, y);
                } else {
                    part.row_tiles::<E, R, 1>([panel(0)], len, y);
                }
            }
        }
    }

    /// All rows of `P` panels, in register tiles of at most `R` that are as equal as can be. Meanwhile, what is multiplied
    /// next is fetched where that is known. If not, and if there are many tiles, it is the weights so many places ahead, unless
    /// that is 0.
    #[inline(always)]
    fn row_tiles<E: Element, const R: usize, const P: usize>(
        &self,
        panels: [&[[E; LANES]]; P],
        ahead: usize,
        y: &mut [[f32; LANES]],
    ) {
        let rows = self.rows - self.first_row;
        let tiles = rows.div_ceil(R);
        let share = |all: usize, tile: usize| all * tile / tiles;
        let is_told = ahead > 0 && tiles >= self.simd.tiles_to_fetch(E::INPUTS);
        let ahead = (ahead * size_of::<[E; LANES]>()).cast_signed();
        let ahead = self.to_next.or(if is_told { Some(ahead) } else { None });
        for tile in 0..tiles {
            if let Some(ahead) = ahead {
                let (first, end) = (share(panels[0].len(), tile), share(panels[0].len(), tile + 1));
                fetch(parts(panels, first, end - first), ahead, Cache::Second);
            }
            let (first, end) = (share(rows, tile), share(rows, tile + 1));
            self.row_tile::<E, R, P>(panels, self.first_row + first, end - first, y);
        }
    }

    /// The `rows` rows from `first` on, at most `R`, of `P` panels.
    #[inline(always)]
    fn row_tile<E: Element, const R: usize, const P: usize>(
        &self,
        panels: [&[[E; LANES]]; P],
        first: usize,
        rows: usize,
        y: &mut [[f32; LANES]],
    ) {
        macro_rules! exactly {
            ($($count:literal)*) => {
                match rows {
                    $($count => return self.register_tile::<E, $count, P>(panels, first, y),)*
                    _ => {}
                }
            };
        }
        // Only sizes that the tile can have are compiled.
        if const { R > 16 } {
            exactly!(17 18 19 20 21 22 23 24);
        }
        if const { R > 12 } {
            exactly!(13 14 15 16);
        }
        if const { R > 6 } {
            exactly!(7 8 9 10 11 12);
        }
        if const { R > 2 } {
            exactly!(3 4 5 6);
        }
        match rows {
            2 => self.register_tile::<E, 2, P>(panels, first, y),
            _ => self.register_tile::<E, 1, P>(panels, first, y),
        }
    }

    /// The `R` rows from `first` on of `P` panels: `y`: `[P][rows][16]`.
    #[inline(always)]
    fn register_tile<E: Element, const R: usize, const P: usize>(
        &self,
        panels: [&[[E; LANES]]; P],
        first: usize,
        y: &mut [[f32; LANES]],
    ) {
        let (simd, rows) = (self.simd, self.rows);
        let mut sums = [[simd.zero(); P]; R];
        if self.accumulate {
            unrolled!(p < P of 4 => { unrolled!(r < R of 24 => { sums[r][p] = simd.load(&y[p * rows + first + r]) }) });
        }
        // Weights that are used once are waited for.
        let is_told = self.tells_of_next::<E, R>();
        let ahead = self.to_next.or(if is_told { Some(simd.bytes_ahead().cast_signed()) } else { None });
        let ahead = if rows == R { ahead } else { None };
        let x = &self.x[first..];
        let (steps, rest) = (self.inputs / LANES, self.inputs % LANES / E::INPUTS);
        for step in 0..steps {
            let x: &[[f32; LANES]; R] = rows_of(x, step * rows);
            let panels = parts(panels, step * LANES / E::INPUTS, LANES / E::INPUTS);
            if let Some(ahead) = ahead {
                fetch(panels, ahead, Cache::First);
            }
            for i in 0..LANES / E::INPUTS {
                multiply_add(simd, panels, x, i, &mut sums);
            }
        }
        if rest > 0 {
            let x: &[[f32; LANES]; R] = rows_of(x, steps * rows);
            let panels = parts(panels, steps * LANES / E::INPUTS, rest);
            for i in 0..rest {
                multiply_add(simd, panels, x, i, &mut sums);
            }
        }
        unrolled!(p < P of 4 => { unrolled!(r < R of 24 => { simd.store(sums[r][p], &mut y[p * rows + first + r]) }) });
    }

    /// Whether this processor has to be told of the weights that `R` rows read next.
    #[inline(always)]
    fn tells_of_next<E: Element, const R: usize>(&self) -> bool {
        let outruns_memory = self.simd.outruns_memory();
        let unpacks = E::INPUTS == 2 && R > 1 && (S::UNPACKS_SLOWLY || outruns_memory);
        !self.simd.foresees() || unpacks || (outruns_memory && R >= FEWEST_ROWS_TO_ASK)
    }

    /// Rows of a panel: its inputs, or pairs of them.
    #[inline(always)]
    fn depth<E: Element>(&self) -> usize {
        self.inputs / E::INPUTS
    }

    /// The same from the start of a panel to that of the next one.
    #[inline(always)]
    fn stride<E: Element>(&self) -> usize {
        self.stride / E::INPUTS
    }

    /// Panel `index` of some.
    #[inline(always)]
    fn panel<'w, E: Element>(&self, w: &'w [[E; LANES]], index: usize) -> &'w [[E; LANES]] {
        &w[index * self.stride::<E>()..][..self.depth::<E>()]
    }

    /// The panels from the `first` on, if there are any.
    #[inline(always)]
    fn panels_from<'w, E: Element>(&self, w: &'w [[E; LANES]], first: usize) -> &'w [[E; LANES]] {
        w.get(first * self.stride::<E>()..).unwrap_or_default()
    }
}

/// Adds what place `i` of `P` panels gives, an input or several in turn, to the sums of `R` rows.
#[inline(always)]
pub(super) fn multiply_add<S: Simd, E: Element, const R: usize, const P: usize>(
    simd: S,
    panels: [&[[E; LANES]]; P],
    x: &[[f32; LANES]; R],
    i: usize,
    sums: &mut [[S::Lanes; P]; R],
) {
    let mut weights = [E::load(simd, &panels[0][i]); P];
    unrolled!(p < P of 4 => { weights[p] = E::load(simd, &panels[p][i]) });
    unrolled!(k < (E::INPUTS) of 2 => {
        unrolled!(r < R of 24 => {
            let x = x[r][i * E::INPUTS + k];
            unrolled!(p < P of 4 => { sums[r][p] = simd.fma(sums[r][p], weights[p].as_ref()[k], x) });
        });
    });
}

/// `count` places of each panel from `first` on. (`map` would be a call, which is compiled without the set's instructions.)
#[inline(always)]
pub(super) fn parts<T, const P: usize>(panels: [&[T]; P], first: usize, count: usize) -> [&[T]; P] {
    let mut parts = panels;
    unrolled!(p < P of 4 => { parts[p] = &panels[p][first..][..count] });
    parts
}

/// Starts to fetch what lies so many bytes behind some places of each panel.
#[inline(always)]
fn fetch<E, const P: usize>(panels: [&[[E; LANES]]; P], ahead: isize, cache: Cache) {
    unrolled!(p < P of 4 => {
        for line in panels[p].chunks(LINE / size_of::<[E; LANES]>()) {
            prefetch(line.as_ptr().wrapping_byte_offset(ahead), cache);
        }
    });
}

/// `N` of the 16 lanes from `first` on.
#[inline(always)]
pub(super) fn rows_of<T, const N: usize>(from: &[[T; LANES]], first: usize) -> &[[T; LANES]; N] {
    match from[first..].first_chunk() {
        Some(chunk) => chunk,
        None => panic!("as many as the shapes say"),
    }
}
