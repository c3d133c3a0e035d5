//! Activations and panels, `[features/16][rows][16]`, in other orders.

use rayon::prelude::*;
use smolrun::format::PANEL;

/// A number of each of 16 features.
pub(super) type Lanes = [f32; PANEL];

/// So many zeroes, written one by one. Products read what they add to before they write it. Pages that come zeroed from the
/// system would be faults twice, the second of which interrupts all threads: a sixth of all time.
pub(super) fn zeroes(len: usize) -> Vec<f32> {
    let mut zeroes = Vec::with_capacity(len);
    zeroes.resize(len, 0.0);
    zeroes
}

/// `[features/16][rows][16]` as `[rows/16, rounded up][features][16]`, with zeroes past the last row.
pub(super) fn transposed(from: &[f32], rows: usize) -> Vec<f32> {
    let features = from.len() / rows;
    let mut to = vec![0.0; rows.next_multiple_of(PANEL) * features];
    to.par_chunks_exact_mut(features * PANEL).enumerate().for_each(|(panel, to)| {
        transpose_panel(from.as_chunks().0, rows, panel * PANEL, to.as_chunks_mut().0);
    });
    to
}

/// Sixteen rows of all features, of which some may be missing, become sixteen features of all rows. Not compiled for any
/// instruction set: those that gather would do so, number by number.
fn transpose_panel(from: &[Lanes], rows: usize, first: usize, to: &mut [Lanes]) {
    let count = PANEL.min(rows - first);
    for (from, to) in from.chunks_exact(rows).zip(to.as_chunks_mut::<PANEL>().0) {
        for (lane, from) in from[first..][..count].iter().enumerate() {
            for feature in 0..PANEL {
                to[feature][lane] = from[feature];
            }
        }
    }
}

/// Rows `first..first + count` of `[features/16][rows][16]`, as `[features/16][count][16]`.
pub(super) fn some_rows(from: &[f32], rows: usize, first: usize, count: usize) -> Vec<f32> {
    let panels = from.chunks_exact(rows * PANEL);
    panels.flat_map(|panel| &panel[first * PANEL..][..count * PANEL]).copied().collect()
}

/// Writes `from`, `[features/16][count][16]`, to the rows from `first` on of `[features/16][rows][16]`.
pub(super) fn put_rows(from: &[f32], count: usize, to: &mut [f32], rows: usize, first: usize) {
    for (from, to) in from.chunks_exact(count * PANEL).zip(to.chunks_exact_mut(rows * PANEL)) {
        to[first * PANEL..][..count * PANEL].copy_from_slice(from);
    }
}

/// `to += from`.
pub(super) fn add(to: &mut [f32], from: &[f32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
}
