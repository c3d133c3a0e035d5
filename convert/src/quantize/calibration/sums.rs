//! Sums of `x transpose(x)` over the inputs of a matrix.

use std::cmp::Ordering;

use bytemuck::{cast_slice, cast_slice_mut, zeroed_vec};
use rayon::prelude::*;
use smolrun::format::PANEL;
use smolrun::{Features, Kernels, PlainOp};

use super::super::lanes::Lanes;

/// Features that are taken together, a multiple of 16: what they are rounded to stays in the second-level cache.
const CHUNK: usize = 96;
/// The same in panels.
const PANELS: usize = CHUNK / PANEL;

/// A symmetric matrix, of which a little more than one half is kept.
#[derive(Debug)]
pub(super) struct Sums {
    kernels: Kernels,
    features: usize,
    /// Of each chunk of features with itself, then with every later one, before those of the next chunk.
    tiles: Vec<Tile>,
    /// What was not added yet: the chunks of features of each pass.
    waiting: Vec<Vec<Features>>,
}

/// The sums of a chunk of features with one that is no earlier one.
#[derive(Debug)]
struct Tile {
    own: usize,
    other: usize,
    /// `[own panels][other features][16]`
    sums: Vec<Lanes>,
}

impl Sums {
    /// Passes over some tokens that are added together: the sums are more than the caches hold.
    pub(super) const PASSES: usize = 8;

    pub(super) fn new(kernels: Kernels, features: usize) -> Sums {
        let panels = features.div_ceil(PANEL);
        let chunks = panels.div_ceil(PANELS);
        let panels_of = |chunk: usize| PANELS.min(panels - chunk * PANELS);
        let tile = |own, other| {
            let sums = zeroed_vec(panels_of(own) * panels_of(other) * PANEL);
            Tile { own, other, sums }
        };
        let tiles = (0..chunks).flat_map(|own| (own..chunks).map(move |other| tile(own, other))).collect();
        Sums { kernels, features, tiles, waiting: Vec::new() }
    }

    /// Rounds inputs of some tokens, `[features/16, rounded up][tokens][16]`, to 8 bits, for [`Sums::add`].
    ///
    /// Both factors of a product are rounded alike, so that these are the sums of numbers that there could be. Else errors
    /// could seem to cost less than nothing.
    pub(super) fn round(&self, panels: &[f32], tokens: usize) -> Vec<Features> {
        let panel_len = tokens * PANEL;
        let panels = &panels[..self.features.div_ceil(PANEL) * panel_len];
        let chunks = panels.chunks(PANELS * panel_len);
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
        let Sums { kernels, tiles, waiting, .. } = self;
        let products = || vec![Lanes::ZERO; PANELS * CHUNK];
        tiles.par_iter_mut().for_each_init(products, |products, Tile { own, other, sums }| {
            for pass in &*waiting {
                let (own, other) = (&pass[*own], &pass[*other]);
                let products = &mut products[..sums.len()];
                kernels.products(own, other, cast_slice_mut(products));
                kernels.compute(Add { sums: cast_slice_mut(sums), products: cast_slice(products) });
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
    fn tile(&self, panel: usize, other: usize) -> &[Lanes] {
        let (own_chunk, other_chunk) = (panel / PANELS, other / PANELS);
        let chunks = self.features.div_ceil(CHUNK);
        let earlier: usize = (0..own_chunk).map(|chunk| chunks - chunk).sum();
        let Tile { sums, .. } = &self.tiles[earlier + other_chunk - own_chunk];
        let others = CHUNK.min(self.features.next_multiple_of(PANEL) - other_chunk * CHUNK);
        &sums[panel % PANELS * others + other % PANELS * PANEL..][..PANEL]
    }
}

/// Adds products to as many sums.
struct Add<'a> {
    sums: &'a mut [f32],
    products: &'a [f32],
}

impl PlainOp for Add<'_> {
    #[inline(always)]
    fn compute(self) {
        for (sum, product) in self.sums.iter_mut().zip(self.products) {
            *sum += product;
        }
    }
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
