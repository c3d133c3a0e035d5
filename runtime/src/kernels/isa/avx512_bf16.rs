//! AVX512-BF16: 16 outputs are one register, and an instruction adds the products of a pair of inputs to each.

use std::arch::x86_64::*;

use super::avx512::Avx512Plain;
use crate::kernels::LANES;
use crate::kernels::half::Bf16Pair;
use crate::kernels::ops::bf16::{MatmulBf16, RoundToBf16};
use crate::kernels::simd::{RunOn, Simd, entry};
use crate::kernels::tiles::{TILE_ROWS, Tile};

/// Rows of the register tile, half a tile: with two panels, 16 chains hide the instruction's latency.
const ROWS: usize = TILE_ROWS / 2;

/// The proof that this processor has AVX512-BF16 beside AVX-512, whose loads and stores it uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512Bf16(Avx512Plain);

impl Avx512Bf16 {
    pub(in crate::kernels) fn detect(set: Avx512Plain) -> Option<Avx512Bf16> {
        is_x86_feature_detected!("avx512bf16").then_some(Avx512Bf16(set))
    }

    /// Whether it is faster than exact products.
    pub(in crate::kernels) fn is_fast(self) -> bool {
        self.0.gains_by_bf16()
    }

    // SAFETY of every `unsafe` below: `self` proves that the processor has the instructions, and each load or store
    // touches the whole array.

    #[inline(always)]
    fn load_pairs(self, from: &[Bf16Pair; LANES]) -> __m512bh {
        // SAFETY: see above.
        unsafe { from.as_ptr().cast::<__m512bh>().read_unaligned() }
    }

    /// The products of a pair of inputs with 16 outputs' weights, added to their sums.
    #[inline(always)]
    fn add_products(self, sums: __m512, weights: __m512bh, x: Bf16Pair) -> __m512 {
        // SAFETY: see above; a register of 16 pairs is one of 16 i32.
        unsafe {
            let x = std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(x.0.cast_signed()));
            _mm512_dpbf16_ps(sums, weights, x)
        }
    }

    /// Rounds two inputs' numbers for each of 16 outputs, and stores them in pairs.
    #[inline(always)]
    pub(in crate::kernels) fn store_pairs_rounded(
        self,
        first: __m512,
        second: __m512,
        to: &mut [Bf16Pair; LANES],
    ) {
        /// What interleaves the 16 numbers of either.
        const IN_TURN: [u16; 2 * LANES] = {
            let (mut places, mut i) = ([0; 2 * LANES], 0);
            while i < places.len() {
                places[i] = (i / 2 + i % 2 * LANES) as u16;
                i += 1;
            }
            places
        };
        // SAFETY: see above; a register of 32 bf16 is one of 16 i32.
        unsafe {
            let rounded = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(second, first));
            let places = _mm512_loadu_si512(IN_TURN.as_ptr().cast());
            _mm512_storeu_si512(to.as_mut_ptr().cast(), _mm512_permutexvar_epi16(places, rounded));
        }
    }

    #[inline(always)]
    fn store_rounded(self, lanes: __m512, to: &mut [Bf16Pair; LANES / 2]) {
        // SAFETY: see above.
        unsafe { to.as_mut_ptr().cast::<__m256bh>().write_unaligned(_mm512_cvtneps_pbh(lanes)) }
    }
}

entry!(Avx512Bf16, "avx512f,avx512bw,avx512bf16");

impl RunOn<Avx512Bf16> for RoundToBf16<'_> {
    #[inline(always)]
    fn run_on(self, unit: Avx512Bf16) {
        let (x, tiles) = self.split();
        for (i, tile) in tiles.iter_mut().enumerate() {
            for (row, pairs) in tile.iter_mut().enumerate() {
                let halves = pairs.as_chunks_mut::<{ LANES / 2 }>().0;
                for (pairs, x) in halves.iter_mut().zip(x.tile_row(i, row)) {
                    unit.store_rounded(unit.0.load(&x), pairs);
                }
            }
        }
    }
}

impl RunOn<Avx512Bf16> for MatmulBf16<'_> {
    #[inline(always)]
    fn run_on(self, unit: Avx512Bf16) {
        AfterTiles { op: self, done: 0 }.run_on(unit);
    }
}

/// A product whose first tiles of inputs are in `y` already.
pub(in crate::kernels) struct AfterTiles<'a> {
    pub op: MatmulBf16<'a>,
    /// How many of each row.
    pub done: usize,
}

impl RunOn<Avx512Bf16> for AfterTiles<'_> {
    #[inline(always)]
    fn run_on(self, unit: Avx512Bf16) {
        let AfterTiles { op, done } = self;
        let pairs = op.pairs();
        let MatmulBf16 { w, x, rows, y, .. } = op;
        let product = PairProduct { unit, pairs, x, rows, done };
        for (w, y) in w.as_chunks().0.chunks(2 * pairs).zip(y.as_chunks_mut().0.chunks_mut(2 * rows)) {
            match w.len() > pairs {
                true => product.all_rows([&w[..pairs], &w[pairs..]], y),
                false => product.all_rows([w], y),
            }
        }
    }
}

/// `w x` for rounded activations.
struct PairProduct<'a> {
    unit: Avx512Bf16,
    /// Of inputs.
    pairs: usize,
    x: &'a [Tile],
    rows: usize,
    /// Tiles of inputs that are in `y` already.
    done: usize,
}

impl PairProduct<'_> {
    /// All rows of `P` panels.
    #[inline(always)]
    fn all_rows<const P: usize>(&self, panels: [&[[Bf16Pair; LANES]]; P], y: &mut [[f32; LANES]]) {
        let steps = self.pairs.div_ceil(LANES);
        for (i, tiles) in self.x.chunks_exact(steps).enumerate() {
            for half in 0..TILE_ROWS / ROWS {
                self.register_tile(panels, tiles, half, i * TILE_ROWS + half * ROWS, y);
            }
        }
    }

    /// The rows from `first` on of `P` panels, half `half` of `tiles`, as far as there are any. `y`: `[P][rows][16]`.
    #[inline(always)]
    fn register_tile<const P: usize>(
        &self,
        panels: [&[[Bf16Pair; LANES]]; P],
        tiles: &[Tile],
        half: usize,
        first: usize,
        y: &mut [[f32; LANES]],
    ) {
        // All loops over sums have fixed bounds, so that the sums stay in registers.
        let Avx512Bf16(set) = self.unit;
        let mut sums = [[set.zero(); P]; ROWS];
        for r in 0..ROWS {
            for p in 0..P {
                if self.done > 0 && first + r < self.rows {
                    sums[r][p] = set.load(&y[p * self.rows + first + r]);
                }
            }
        }
        for (step, tile) in tiles.iter().enumerate().skip(self.done) {
            let x = &tile.as_chunks::<ROWS>().0[half];
            for pair in step * LANES..self.pairs.min((step + 1) * LANES) {
                for p in 0..P {
                    let weights = self.unit.load_pairs(&panels[p][pair]);
                    for r in 0..ROWS {
                        sums[r][p] = self.unit.add_products(sums[r][p], weights, x[r][pair % LANES]);
                    }
                }
            }
        }
        for r in 0..ROWS {
            for p in 0..P {
                if first + r < self.rows {
                    set.store(sums[r][p], &mut y[p * self.rows + first + r]);
                }
            }
        }
    }
}
