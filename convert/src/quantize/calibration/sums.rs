//! Sums of `x transpose(x)` over the inputs of a matrix.

use std::ops::Range;

use rayon::prelude::*;
use smolrun::format::PANEL;
use smolrun::{Activations, Kernels};

/// Features that are taken together on one side of the products, a multiple of 16.
const CHUNK: usize = 96;

/// Panels of features that are taken together on the other side.
const PANELS: usize = 2;

/// A symmetric matrix, of which a little more than one half is kept.
#[derive(Clone, Debug)]
pub(super) struct Sums {
    features: usize,
    /// For each group of panels, `[chunks of features from its own on][panels][96][16]`.
    groups: Vec<Vec<[f32; PANEL]>>,
}

impl Sums {
    pub(super) fn new(features: usize) -> Sums {
        let panels = features.div_ceil(PANEL);
        let group = |first: usize| {
            let rows = features.next_multiple_of(CHUNK) - chunk(first) * CHUNK;
            vec![[0.0; PANEL]; rows * PANELS.min(panels - first)]
        };
        Sums { features, groups: (0..panels).step_by(PANELS).map(group).collect() }
    }

    /// Rows and columns.
    pub(super) fn features(&self) -> usize {
        self.features
    }

    /// Bytes of the sums of so many features, at most.
    pub(super) fn bytes(features: usize) -> u64 {
        let features = features.next_multiple_of(CHUNK) as u64;
        features * (features + CHUNK as u64) / 2 * size_of::<f32>() as u64
    }

    /// Adds those of one pass, each `weight` times.
    pub(super) fn add(&mut self, kernels: Kernels, inputs: &Activations<'_>, weight: f32) {
        let tokens = inputs.rows.next_multiple_of(PANEL);
        let chunk_len = tokens * CHUNK;
        let mut turned = vec![0.0; self.features.div_ceil(CHUNK) * chunk_len];
        for (feature, chunk) in (0..self.features).step_by(CHUNK).zip(turned.chunks_exact_mut(chunk_len)) {
            turn(inputs, feature..self.features.min(feature + CHUNK), weight, chunk);
        }
        let panel_len = inputs.rows * PANEL;
        let panels = &inputs.panels[..self.features.div_ceil(PANEL) * panel_len];
        let groups = self.groups.par_iter_mut().zip(panels.par_chunks(PANELS * panel_len));
        groups.enumerate().for_each(|(group, (sums, panels))| {
            let sums_len = panels.len() / panel_len * CHUNK;
            let chunks = turned[chunk(group * PANELS) * chunk_len..].chunks_exact(chunk_len);
            for (sums, chunk) in sums.chunks_exact_mut(sums_len).zip(chunks) {
                kernels.add_product(panels, inputs.rows, chunk, CHUNK, sums.as_flattened_mut());
            }
        });
    }

    /// The mean of the diagonal.
    pub(super) fn mean(&self) -> f64 {
        let diagonal = (0..self.features).map(|feature| f64::from(self.at(feature, feature)));
        diagonal.sum::<f64>() / self.features as f64
    }

    /// All of them times `factor`, rows of as many numbers.
    pub(super) fn times(&self, factor: f64) -> Vec<f32> {
        let size = self.features;
        let at = |index: usize| (f64::from(self.at(index / size, index % size)) * factor) as f32;
        (0..size * size).into_par_iter().map(at).collect()
    }

    fn at(&self, row: usize, column: usize) -> f32 {
        let (one, other) = (row.min(column), row.max(column));
        let (panel, first) = (one / PANEL, one / PANEL / PANELS * PANELS);
        let panels = PANELS.min(self.features.div_ceil(PANEL) - first);
        let line = (other / CHUNK - chunk(first)) * panels + panel - first;
        self.groups[first / PANELS][line * CHUNK + other % CHUNK][one % PANEL]
    }
}

/// The chunk that a panel lies in.
fn chunk(panel: usize) -> usize {
    panel * PANEL / CHUNK
}

/// Some features, `weight` times, with tokens and features changed: `to` is `[tokens/16, rounded up][96][16]`, and zero.
fn turn(inputs: &Activations<'_>, features: Range<usize>, weight: f32, to: &mut [f32]) {
    let rows = inputs.panels.as_chunks::<PANEL>().0;
    for (place, feature) in features.enumerate() {
        for (token, row) in rows[feature / PANEL * inputs.rows..][..inputs.rows].iter().enumerate() {
            to[(token / PANEL * CHUNK + place) * PANEL + token % PANEL] = weight * row[feature % PANEL];
        }
    }
}

#[cfg(test)]
mod tests {
    use smolrun::format::Kind;

    use super::*;

    #[test]
    fn sums_are_those_of_all_products() {
        let (features, rows) = (131_usize, 19);
        let number = |feature: usize, row: usize| ((feature * 7 + row * 3) % 13) as f32 - 6.0;
        let mut panels = vec![9.0; features.next_multiple_of(PANEL) * rows]; // what is beyond the features is of no matter
        for feature in 0..features {
            for row in 0..rows {
                panels[(feature / PANEL * rows + row) * PANEL + feature % PANEL] = number(feature, row);
            }
        }
        let inputs = Activations { kind: Kind::OProj, layer: Some(0), rows, panels: &panels };
        for kernels in Kernels::available() {
            let mut sums = Sums::new(features);
            sums.add(kernels, &inputs, 1.0);
            sums.add(kernels, &inputs, 0.5);
            let numbers = sums.times(2.0);
            let expected = |a, b| 3.0 * (0..rows).map(|row| number(a, row) * number(b, row)).sum::<f32>();
            for a in 0..features {
                for b in 0..features {
                    assert_eq!(numbers[a * features + b], expected(a, b), "{a} {b}");
                }
            }
            let mean = (0..features).map(|a| f64::from(expected(a, a))).sum::<f64>() / 2.0 / features as f64;
            assert!((sums.mean() - mean).abs() < 1e-9 * mean);
            let numbers: usize = sums.groups.iter().map(|group| group.len() * PANEL).sum();
            assert!(numbers as u64 * 4 <= Sums::bytes(features));
        }
    }
}
