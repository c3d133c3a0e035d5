//! AVX-512 with VNNI beside AMX-BF16, on which quantised weights meet many rows. The bits are the same.

use std::ops::Deref;

use super::amx::Amx;
use super::avx512::Avx512;
use super::integers::tiles;
use super::simd::entry;
use super::{Quantised, RoundedTile, Tile, quantised};

/// Fewest rows that tiles are faster for.
pub(super) const FEWEST_ROWS: usize = 16;

/// The proof that this processor has both.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx512Amx(Avx512<true>, Amx);

impl Avx512Amx {
    pub(super) fn detect() -> Option<Avx512Amx> {
        Some(Avx512Amx(Avx512::<true>::detect()?, Amx::detect()?))
    }

    entry! { Avx512Amx, "fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni",
    round_tiles(x: &[f32], inputs: usize, rows: usize, first: usize, tiles: &mut [RoundedTile])
    = |_set| quantised::round_tiles(x, inputs, rows, first, tiles) }

    entry! { Avx512Amx, "fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni",
    matmul_tiles(w: Quantised<'_>, x: &[RoundedTile], rows: usize, y: &mut [f32])
    = |set| tiles::matmul(set.0, set.1, w, x, rows, y) }

    entry! { Avx512Amx, "fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni",
    matmul_rounded(w: Quantised<'_>, x: &[Tile], rows: usize, y: &mut [f32])
    = |set| tiles::matmul_rounded(set.0, set.1, w, x, rows, y) }
}

/// Everything else is done without tiles.
impl Deref for Avx512Amx {
    type Target = Avx512<true>;

    fn deref(&self) -> &Avx512<true> {
        &self.0
    }
}
