//! What a set can do at most, for the measurements that kernels are compared with.

use crate::kernels::LANES;
use crate::kernels::simd::{Integers, Op, Simd};

/// Panels of sums that [`MultiplyAdds`] works on.
pub(in crate::kernels) const SUMS: usize = 24;

/// Streams that [`Read`] follows side by side, as the product of one row does.
pub(in crate::kernels) const STREAMS: usize = 4;

/// Adds all of `data` up in `sum`, [`STREAMS`] panels: as fast as memory gives it.
pub(crate) struct Read<'a> {
    pub data: &'a [f32],
    pub sum: &'a mut [f32],
}

impl Op for Read<'_> {
    #[inline(always)]
    fn run<S: Integers>(self, simd: S) {
        let data = self.data.as_chunks::<LANES>().0;
        let stream = data.len() / STREAMS;
        let streams: [_; STREAMS] = std::array::from_fn(|i| &data[i * stream..][..stream]);
        let mut sums = [simd.zero(); STREAMS];
        for step in 0..stream {
            for (sums, stream) in sums.iter_mut().zip(streams) {
                *sums = simd.fma(*sums, simd.load(&stream[step]), 1.0);
            }
        }
        for (sums, sum) in sums.into_iter().zip(self.sum.as_chunks_mut().0) {
            simd.store(sums, sum);
        }
    }
}

/// So many multiply-adds on each of the [`SUMS`] panels of `sums`, as many chains at a time as registers hold.
pub(crate) struct MultiplyAdds<'a> {
    pub iterations: usize,
    pub sums: &'a mut [f32],
}

impl Op for MultiplyAdds<'_> {
    #[inline(always)]
    fn run<S: Integers>(self, simd: S) {
        let MultiplyAdds { iterations, sums } = self;
        match const { S::REGISTER_ROWS } {
            12 => in_registers::<S, 24>(simd, iterations, sums),
            6 => in_registers::<S, 6>(simd, iterations, sums),
            _ => in_registers::<S, 2>(simd, iterations, sums),
        }
    }
}

#[inline(always)]
fn in_registers<S: Simd, const N: usize>(simd: S, iterations: usize, sums: &mut [f32]) {
    let weights = simd.load(&[1e-3; LANES]);
    for panels in sums.as_chunks_mut::<LANES>().0.as_chunks_mut::<N>().0 {
        let mut sums = [simd.zero(); N];
        for _ in 0..iterations {
            for sums in &mut sums {
                *sums = simd.fma(*sums, weights, 1e-3);
            }
        }
        for (sums, panel) in sums.into_iter().zip(panels) {
            simd.store(sums, panel);
        }
    }
}
