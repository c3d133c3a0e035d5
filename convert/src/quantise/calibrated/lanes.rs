//! Sixteen rows side by side: one number of each, as in a panel.

use smolrun::format::{BLOCK, PANEL};

/// A number of each row.
pub(super) type Lanes = [f32; PANEL];

/// What `term` makes of each row.
pub(super) fn lanes(term: impl FnMut(usize) -> f32) -> Lanes {
    std::array::from_fn(term)
}

/// `to[k] += sum over j of from[j] * strip[k][j]`, each sum begun at 0 and in the order of `j`. `to` is of an even number.
pub(super) fn add_product(from: &[Lanes; BLOCK], strip: &[[f32; BLOCK]], to: &mut [Lanes]) {
    let (strip, to) = (strip.as_chunks::<2>().0, to.as_chunks_mut::<2>().0);
    for ([to, next], [factors, next_factors]) in to.iter_mut().zip(strip) {
        let (mut sum, mut next_sum) = ([0.0; PANEL], [0.0; PANEL]);
        for ((from, &factor), &next_factor) in from.iter().zip(factors).zip(next_factors) {
            for lane in 0..PANEL {
                sum[lane] += from[lane] * factor;
                next_sum[lane] += from[lane] * next_factor;
            }
        }
        for lane in 0..PANEL {
            to[lane] += sum[lane];
            next[lane] += next_sum[lane];
        }
    }
}
