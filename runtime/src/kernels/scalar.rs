//! Plain Rust for any processor: the oracle of the other sets. `mul_add` rounds once, in software where it must.

use super::{LANES, Panels, math};

pub(super) fn matmul(w: Panels<'_>, x: &[f32], rows: usize, y: &mut [f32], accumulate: bool) {
    let panels = w.data.chunks_exact(w.inputs * LANES);
    for (panel, y) in panels.zip(y.chunks_exact_mut(rows * LANES)) {
        for (row, y) in y.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let mut sums = if accumulate { *y } else { [0.0; LANES] };
            for (input, weights) in panel.as_chunks::<LANES>().0.iter().enumerate() {
                let x = x[(input / LANES * rows + row) * LANES + input % LANES];
                for lane in 0..LANES {
                    sums[lane] = weights[lane].mul_add(x, sums[lane]);
                }
            }
            *y = sums;
        }
    }
}

pub(super) use math::{add, rms_norm, silu_mul, softmax};
