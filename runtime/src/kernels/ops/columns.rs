//! A product of which most inputs are zero.

use crate::kernels::LANES;
use crate::kernels::simd::{Integers, Op, Simd, unrolled};

/// `y += w x` for one panel, of the `columns` alone, in their order: what [`super::Matmul`] adds where all other weights are
/// zero.
pub(crate) struct AddColumns<'a> {
    /// `[inputs][16]`
    pub w: &'a [[f32; LANES]],
    /// Inputs whose weights are not zero.
    pub columns: &'a [u8],
    /// `[inputs/16, rounded up][rows][16]`
    pub x: &'a [[f32; LANES]],
    /// `[rows][16]`
    pub y: &'a mut [[f32; LANES]],
}

impl Op for AddColumns<'_> {
    fn check(&self) {
        let inputs = self.columns.iter().max().map_or(0, |&last| usize::from(last) + 1);
        assert!(self.w.len() >= inputs && self.x.len() >= inputs.div_ceil(LANES) * self.y.len());
    }

    #[inline(always)]
    fn run<S: Integers>(self, simd: S) {
        match const { S::REGISTER_ROWS } {
            12 => self.rows::<S, 8>(simd),
            6 => self.rows::<S, 4>(simd),
            _ => self.rows::<S, 2>(simd),
        }
    }
}

impl AddColumns<'_> {
    /// `R` rows at a time, whose sums are in registers, then those that are left.
    #[inline(always)]
    fn rows<S: Simd, const R: usize>(self, simd: S) {
        let AddColumns { w, columns, x, y } = self;
        let (rows, whole) = (y.len(), y.len() / R * R);
        for first in (0..whole).step_by(R) {
            tile::<S, R>(simd, w, columns, &x[first..], rows, &mut y[first..]);
        }
        for first in whole..rows {
            tile::<S, 1>(simd, w, columns, &x[first..], rows, &mut y[first..]);
        }
    }
}

#[inline(always)]
fn tile<S: Simd, const R: usize>(
    simd: S,
    w: &[[f32; LANES]],
    columns: &[u8],
    x: &[[f32; LANES]],
    rows: usize,
    y: &mut [[f32; LANES]],
) {
    let mut sums = [simd.zero(); R];
    unrolled!(r < R of 8 => { sums[r] = simd.load(&y[r]) });
    for &column in columns {
        let column = usize::from(column);
        let (weights, x) = (simd.load(&w[column]), &x[column / LANES * rows..][..R]);
        unrolled!(r < R of 8 => { sums[r] = simd.fma(sums[r], weights, x[r][column % LANES]) });
    }
    unrolled!(r < R of 8 => { simd.store(sums[r], &mut y[r]) });
}
