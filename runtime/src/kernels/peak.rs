//! What a set can do at most, for the measurements that kernels are compared with.

use super::LANES;
use super::simd::{Block, Simd};

/// Panels of sums that [`multiply_adds`] works on.
pub(super) const SUMS: usize = 24;

/// Streams that [`read`] follows side by side, as the product of one row does.
const STREAMS: usize = 4;

/// Adds all of `data` up in `sum`, one panel: as fast as memory gives it.
#[inline(always)]
pub(super) fn read<S: Simd>(simd: S, data: &[f32], sum: &mut [f32]) {
    let data = data.as_chunks::<LANES>().0;
    let stream = data.len() / STREAMS;
    let streams: [_; STREAMS] = std::array::from_fn(|i| &data[i * stream..][..stream]);
    let mut sums = [simd.zero(); STREAMS];
    for step in 0..stream {
        for (sums, stream) in sums.iter_mut().zip(streams) {
            *sums = simd.fma(*sums, simd.load(&stream[step]), 1.0);
        }
    }
    for (sums, sum) in sums.into_iter().zip(sum.as_chunks_mut().0) {
        simd.store(sums, sum);
    }
}

/// `rounds` multiply-adds on each of the [`SUMS`] panels of `sums`, as many chains at a time as registers hold.
#[inline(always)]
pub(super) fn multiply_adds<S: Simd>(simd: S, rounds: usize, sums: &mut [f32]) {
    match S::BLOCK {
        Block::Rows12Panels2 => in_registers::<S, 24>(simd, rounds, sums),
        Block::Rows6 => in_registers::<S, 6>(simd, rounds, sums),
        Block::Rows2 => in_registers::<S, 2>(simd, rounds, sums),
    }
}

#[inline(always)]
fn in_registers<S: Simd, const N: usize>(simd: S, rounds: usize, sums: &mut [f32]) {
    let weights = simd.load(&[1e-3; LANES]);
    for panels in sums.as_chunks_mut::<LANES>().0.as_chunks_mut::<N>().0 {
        let mut sums = [simd.zero(); N];
        for _ in 0..rounds {
            for sums in &mut sums {
                *sums = simd.fma(*sums, weights, 1e-3);
            }
        }
        for (sums, panel) in sums.into_iter().zip(panels) {
            simd.store(sums, panel);
        }
    }
}
