//! Attention over one window, there and back.

use rayon::prelude::*;
use smolrun::format::PANEL;
use smolrun::{Kernels, PlainOp, exp};

use super::panels::{Lanes, add, put_rows, some_rows, transposed, zeroes};

/// Queries that are taken together: they all read the keys up to the last one's.
const TILE: usize = 64;

/// Attention of all query heads to the key-value heads that they share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attention {
    pub(super) kernels: Kernels,
    pub(super) rows: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    /// The factor of query-key products.
    pub(super) scale: f32,
    /// Positions that a token sees, its own included.
    pub(super) window: usize,
}

/// A head's queries and what they look at, `[head_dim/16][rows][16]` each.
struct Head<'a> {
    queries: &'a [f32],
    keys: &'a [f32],
    values: &'a [f32],
}

impl Attention {
    /// Mixed values, `[heads][head_dim/16][rows][16]`, for queries, keys and values one after the other, like these.
    pub(super) fn forward(self, qkv: &[f32]) -> Vec<f32> {
        let mut mixed = vec![0.0; self.heads * self.head_len()];
        mixed
            .par_chunks_mut(self.head_len())
            .enumerate()
            .for_each(|(head, mixed)| self.mix(&self.head(qkv, head), mixed));
        mixed
    }

    /// The gradient `d_mixed` of the mixed values as that of queries, keys and values.
    pub(super) fn backward(self, qkv: &[f32], d_mixed: &[f32]) -> Vec<f32> {
        let len = self.head_len();
        let heads = d_mixed.par_chunks(len).enumerate();
        let gradients: Vec<_> =
            heads.map(|(head, d_mixed)| self.unmix(&self.head(qkv, head), d_mixed)).collect();
        let mut d_qkv = zeroes(qkv.len());
        let (d_queries, d_others) = d_qkv.split_at_mut(self.heads * len);
        let (d_keys, d_values) = d_others.split_at_mut(self.kv_heads * len);
        for (head, [queries, keys, values]) in gradients.iter().enumerate() {
            d_queries[head * len..][..len].copy_from_slice(queries);
            let kv_head = self.kv_head(head);
            add(&mut d_keys[kv_head * len..][..len], keys);
            add(&mut d_values[kv_head * len..][..len], values);
        }
        d_qkv
    }

    fn head_len(self) -> usize {
        self.head_dim * self.rows
    }

    fn kv_head(self, head: usize) -> usize {
        head / (self.heads / self.kv_heads)
    }

    fn head(self, qkv: &[f32], head: usize) -> Head<'_> {
        let part = |index: usize| &qkv[index * self.head_len()..][..self.head_len()];
        let kv_head = self.heads + self.kv_head(head);
        Head { queries: part(head), keys: part(kv_head), values: part(kv_head + self.kv_heads) }
    }

    fn tiles(self) -> impl Iterator<Item = Tile> {
        (0..self.rows).step_by(TILE).map(move |first| {
            let count = TILE.min(self.rows - first);
            Tile { attention: self, first, count, keys: first + count }
        })
    }

    fn mix(self, head: &Head, mixed: &mut [f32]) {
        let across = transposed(head.keys, self.rows);
        for tile in self.tiles() {
            let queries = tile.queries(head.queries);
            let weights = tile.weights(&across, &queries);
            let values = some_rows(head.values, self.rows, 0, tile.keys);
            let mut of_tile = zeroes(queries.len());
            self.kernels.add_product(&values, tile.keys, &weights, tile.count, &mut of_tile);
            put_rows(&of_tile, tile.count, mixed, self.rows, tile.first);
        }
    }

    /// Gradients of queries, keys and values.
    fn unmix(self, head: &Head, d_mixed: &[f32]) -> [Vec<f32>; 3] {
        let Attention { kernels, rows, head_dim, .. } = self;
        let keys_across = transposed(head.keys, rows);
        let values_across = transposed(head.values, rows);
        let mut d_queries = vec![0.0; head.queries.len()];
        let mut d_keys = zeroes(keys_across.len()); // both as `[rows/16][head_dim][16]`
        let mut d_values = zeroes(keys_across.len());
        for tile in self.tiles() {
            let queries = tile.queries(head.queries);
            let d_mixed = tile.queries(d_mixed);
            let weights = tile.weights(&keys_across, &queries);
            let mut d_scores = tile.products(&values_across, &d_mixed); // of the weights, until they are the scores'
            kernels.compute(AtScores {
                weights: weights.as_chunks().0,
                rows: tile.count,
                scale: self.scale,
                d_scores: d_scores.as_chunks_mut().0,
            });
            let mut d_tile = zeroes(queries.len());
            let keys = some_rows(head.keys, rows, 0, tile.keys);
            kernels.add_product(&keys, tile.keys, &d_scores, tile.count, &mut d_tile);
            put_rows(&d_tile, tile.count, &mut d_queries, rows, tile.first);
            let seen = tile.padded_keys() * head_dim;
            let across = |of: &[f32]| transposed(of, tile.count);
            kernels.add_product(&d_scores, tile.count, &across(&queries), head_dim, &mut d_keys[..seen]);
            kernels.add_product(&weights, tile.count, &across(&d_mixed), head_dim, &mut d_values[..seen]);
        }
        // Back from positions side by side to features side by side: no position is past the last.
        let back = |of: &[f32]| {
            let features = transposed(of, head_dim);
            some_rows(&features, rows.next_multiple_of(PANEL), 0, rows)
        };
        [d_queries, back(&d_keys), back(&d_values)]
    }
}

/// Some queries.
struct Tile {
    attention: Attention,
    first: usize,
    count: usize,
    /// How many keys they see.
    keys: usize,
}

impl Tile {
    /// The tile's rows of a head.
    fn queries(&self, head: &[f32]) -> Vec<f32> {
        some_rows(head, self.attention.rows, self.first, self.count)
    }

    fn padded_keys(&self) -> usize {
        self.keys.next_multiple_of(PANEL)
    }

    /// Products of queries and keys that lie across, `[rows/16, rounded up][head_dim][16]`: `[keys/16, rounded up][queries][16]`.
    fn products(&self, across: &[f32], queries: &[f32]) -> Vec<f32> {
        let Attention { kernels, head_dim, .. } = self.attention;
        let keys = self.padded_keys();
        let mut products = zeroes(keys * self.count);
        kernels.add_product(&across[..keys * head_dim], head_dim, queries, self.count, &mut products);
        products
    }

    /// What values are mixed by, like the products.
    fn weights(&self, across: &[f32], queries: &[f32]) -> Vec<f32> {
        let Attention { kernels, scale, window, .. } = self.attention;
        let mut weights = self.products(across, queries);
        let (first, rows) = (self.first, self.count);
        kernels.compute(Softmax { scores: weights.as_chunks_mut().0, first, rows, scale, window });
        weights
    }
}

/// Scores to weights.
struct Softmax<'a> {
    /// `[keys/16][rows][16]`
    scores: &'a mut [Lanes],
    /// The first row's position.
    first: usize,
    rows: usize,
    scale: f32,
    window: usize,
}

impl PlainOp for Softmax<'_> {
    #[inline(always)]
    fn compute(self) {
        let Softmax { scores, first, rows, scale, window } = self;
        for row in 0..rows {
            let position = first + row;
            let seen = (position + 1).saturating_sub(window)..position + 1;
            let mut most = [f32::MIN; PANEL];
            for (panel, scores) in scores[row..].iter_mut().step_by(rows).enumerate() {
                for lane in 0..PANEL {
                    let is_seen = seen.contains(&(panel * PANEL + lane));
                    scores[lane] = if is_seen { scores[lane] * scale } else { f32::MIN };
                    most[lane] = most[lane].max(scores[lane]);
                }
            }
            let most = most.iter().fold(f32::MIN, |most, score| most.max(*score));
            let mut sums = [0.0; PANEL];
            for scores in scores[row..].iter_mut().step_by(rows) {
                for lane in 0..PANEL {
                    let is_seen = scores[lane] > f32::MIN;
                    scores[lane] = if is_seen { exp(scores[lane] - most) } else { 0.0 };
                    sums[lane] += scores[lane];
                }
            }
            let inverse = 1.0 / sums.iter().sum::<f32>();
            for scores in scores[row..].iter_mut().step_by(rows) {
                scores.iter_mut().for_each(|score| *score *= inverse);
            }
        }
    }
}

/// The gradient at the weights becomes that at the scores.
struct AtScores<'a> {
    /// `[keys/16][rows][16]`
    weights: &'a [Lanes],
    rows: usize,
    scale: f32,
    d_scores: &'a mut [Lanes],
}

impl PlainOp for AtScores<'_> {
    #[inline(always)]
    fn compute(self) {
        let AtScores { weights, rows, scale, d_scores } = self;
        for row in 0..rows {
            let mut sums = [0.0; PANEL];
            for (weights, d) in weights[row..].iter().step_by(rows).zip(d_scores[row..].iter().step_by(rows))
            {
                for lane in 0..PANEL {
                    sums[lane] += weights[lane] * d[lane];
                }
            }
            let mean = sums.iter().sum::<f32>();
            let panels = weights[row..].iter().step_by(rows).zip(d_scores[row..].iter_mut().step_by(rows));
            for (weights, d) in panels {
                for lane in 0..PANEL {
                    d[lane] = weights[lane] * (d[lane] - mean) * scale;
                }
            }
        }
    }
}
