//! Sums of `x transpose(x)` over the inputs of a matrix.

use std::cmp::Ordering;

use rayon::prelude::*;
use smolrun::format::PANEL;
use smolrun::{Features, Kernels, PlainOp};

/// Features that are taken together on one side of the products, a multiple of 16.
const CHUNK: usize = 96;
/// The same in panels.
const PANELS_OF_CHUNK: usize = CHUNK / PANEL;
/// Panels of features that are taken together on the other side. A chunk is some times as many.
const PANELS: usize = 2;

/// A symmetric matrix, of which a little more than one half is kept.
#[derive(Debug)]
pub(super) struct Sums {
    kernels: Kernels,
    features: usize,
    /// For each group of panels, `[chunks of features from its own on][panels][96][16]`.
    groups: Vec<Vec<[f32; PANEL]>>,
    /// What was not added yet: the chunks of features of each pass.
    waiting: Vec<Vec<Features>>,
}

impl Sums {
    /// Passes over some tokens that are added together: the sums are more than the caches hold.
    pub(super) const PASSES: usize = 8;

    pub(super) fn new(kernels: Kernels, features: usize) -> Sums {
        let panels = features.div_ceil(PANEL);
        let group = |first: usize| {
            let rows = features.next_multiple_of(CHUNK) - chunk(first) * CHUNK;
            vec![[0.0; PANEL]; rows * PANELS.min(panels - first)]
        };
        let groups = (0..panels).step_by(PANELS).map(group).collect();
        Sums { kernels, features, groups, waiting: Vec::new() }
    }

    /// Rounds inputs of some tokens, `[features/16, rounded up][tokens][16]`, to 8 bits, for [`Sums::add`].
    ///
    /// Both factors of a product are rounded alike, so that these are the sums of numbers that there could be. Else errors
    /// could seem to cost less than nothing.
    pub(super) fn round(&self, panels: &[f32], tokens: usize) -> Vec<Features> {
        let panel_len = tokens * PANEL;
        let panels = &panels[..self.features.div_ceil(PANEL) * panel_len];
        let chunks = panels.chunks(PANELS_OF_CHUNK * panel_len);
        chunks.map(|chunk| self.kernels.round_features(chunk, tokens)).collect()
    }

    /// Adds those of some tokens; [`Sums::finish`] comes last.
    pub(super) fn add(&mut self, rounded: Vec<Features>) {
        self.waiting.push(rounded);
        if self.waiting.len() == Sums::PASSES {
            self.finish();
        }
    }

    /// Adds what waits for more.
    pub(super) fn finish(&mut self) {
        let Sums { kernels, features, groups, waiting } = self;
        groups.par_iter_mut().enumerate().for_each(|(group, sums)| {
            let (first, chunk) = (group * PANELS % PANELS_OF_CHUNK, chunk(group * PANELS));
            let panels = sums.len() / (features.next_multiple_of(CHUNK) - chunk * CHUNK);
            let mut products = vec![[0.0; PANEL]; panels * CHUNK];
            for (place, sums) in sums.chunks_exact_mut(panels * CHUNK).enumerate() {
                for pass in &*waiting {
                    let (own, others) = (&pass[chunk], &pass[chunk + place]);
                    let products = &mut products[..panels * others.count()];
                    kernels.products(own, first..first + panels, others, products.as_flattened_mut());
                    for (sums, products) in
                        sums.chunks_exact_mut(CHUNK).zip(products.chunks_exact(others.count()))
                    {
                        kernels.compute(Add { sums, products });
                    }
                }
            }
        });
        waiting.clear();
    }

    /// The mean of the diagonal.
    pub(super) fn mean(&self) -> f64 {
        let diagonal = (0..self.features).map(|feature| f64::from(self.at(feature, feature)));
        diagonal.sum::<f64>() / self.features as f64
    }

    /// All of them times `factor`, rows of as many numbers.
    pub(super) fn times(&self, factor: f64) -> Vec<f32> {
        let size = self.features;
        let mut numbers = vec![0.0; size * size];
        numbers.par_chunks_mut(PANEL * size).enumerate().for_each(|(panel, rows)| {
            for other in 0..size.div_ceil(PANEL) {
                let tile = self.tile(panel.min(other), panel.max(other));
                for (row, numbers) in rows.chunks_exact_mut(size).enumerate() {
                    for (column, number) in numbers[other * PANEL..].iter_mut().take(PANEL).enumerate() {
                        let sum = match panel.cmp(&other) {
                            Ordering::Greater => tile[row][column],
                            Ordering::Less => tile[column][row],
                            Ordering::Equal => tile[row.max(column)][row.min(column)],
                        };
                        *number = (f64::from(sum) * factor) as f32;
                    }
                }
            }
        });
        numbers
    }

    fn at(&self, row: usize, column: usize) -> f32 {
        let (one, other) = (row.min(column), row.max(column));
        self.tile(one / PANEL, other / PANEL)[other % PANEL][one % PANEL]
    }

    /// What is kept of the features of `panel` with those of `other`, which is no earlier one: `[other's][panel's]`.
    fn tile(&self, panel: usize, other: usize) -> &[[f32; PANEL]] {
        let first = panel / PANELS * PANELS;
        let panels = PANELS.min(self.features.div_ceil(PANEL) - first);
        let line = (chunk(other) - chunk(first)) * panels + panel - first;
        &self.groups[first / PANELS][line * CHUNK + other % PANELS_OF_CHUNK * PANEL..][..PANEL]
    }
}

/// Adds products to as many sums, or to the first of them.
struct Add<'a> {
    sums: &'a mut [[f32; PANEL]],
    products: &'a [[f32; PANEL]],
}

impl PlainOp for Add<'_> {
    #[inline(always)]
    fn compute(self) {
        for (sum, product) in self.sums.as_flattened_mut().iter_mut().zip(self.products.as_flattened()) {
            *sum += product;
        }
    }
}

/// The chunk that a panel lies in.
fn chunk(panel: usize) -> usize {
    panel / PANELS_OF_CHUNK
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(feature: usize, token: usize) -> f32 {
        ((feature * 7 + token * 3) % 13) as f32 - 6.0
    }

    /// What is beyond the features is of no matter.
    fn panels(features: usize, tokens: usize) -> Vec<f32> {
        let mut panels = vec![9.0; features.next_multiple_of(PANEL) * tokens];
        for feature in 0..features {
            for token in 0..tokens {
                panels[(feature / PANEL * tokens + token) * PANEL + feature % PANEL] = number(feature, token);
            }
        }
        panels
    }

    #[test]
    fn sums_are_those_of_all_products() {
        let features = 131_usize;
        let passes = [19, 1, 70, 32, 5, 5, 5, 5, 33];
        let mut first: Option<Vec<f32>> = None;
        for kernels in Kernels::available() {
            let mut sums = Sums::new(kernels, features);
            for &tokens in &passes {
                sums.add(sums.round(&panels(features, tokens), tokens));
            }
            assert_eq!(sums.waiting.len(), 1);
            sums.finish();
            let numbers = sums.times(2.0);
            let product = |a, b| {
                let of_pass = |&tokens: &usize| {
                    (0..tokens).map(|token| number(a, token) * number(b, token)).sum::<f32>()
                };
                2.0 * passes.iter().map(of_pass).sum::<f32>()
            };
            let scale = product(0, 0);
            for a in 0..features {
                for b in 0..features {
                    let (found, expected) = (numbers[a * features + b], product(a, b));
                    assert!((found - expected).abs() < 0.01 * scale, "{a} {b}: {found}, {expected}");
                }
                // Features that are alike have the same products, whichever side they are on.
                let alike = (a + 13) % 130;
                assert_eq!(numbers[a * features + a], numbers[a * features + alike], "{a}");
            }
            let mean =
                (0..features).map(|a| f64::from(numbers[a * features + a])).sum::<f64>() / features as f64;
            assert!((sums.mean() * 2.0 - mean).abs() < 1e-5 * mean);
            assert_eq!(first.get_or_insert_with(|| numbers.clone()), &numbers, "{}", kernels.name());
        }
    }
}
