//! Attention of one query tile by all threads: where its few queries meet so many positions that a task for each head
//! would leave threads without work.

use std::ops::Range;

use super::Attention;
use super::tiles::{HeadTile, QueryTile};
use crate::exec::{Scratch, padded};
use crate::kernels::{LANES, Softmax};

impl Attention<'_, '_> {
    /// From rotated queries in `qkv`, with all keys and values in the caches, to the tile's part of `mixed`.
    pub(super) fn attend_shared(&mut self, tile: QueryTile, s: &mut Scratch) {
        let (panels, group) = (self.config.head_dim / LANES, self.config.heads_per_kv());
        let head_len = group * tile.tokens * self.config.head_dim;
        let heads = self.config.num_key_value_heads;
        let queries = &mut s.queries[..heads * head_len];
        for (head, queries) in queries.chunks_exact_mut(head_len).enumerate() {
            HeadTile { tile, head, group }.gather_queries(&s.qkv, self.rows, panels, queries);
        }
        self.score(tile, s);
        self.normalize(tile, s);
        self.mix(tile, s); // over the queries, which are no longer needed
        for (head, mixed) in s.queries[..heads * head_len].chunks_exact(head_len).enumerate() {
            let first = (head * self.rows + tile.row) * group * self.config.head_dim;
            s.mixed[first..][..head_len].copy_from_slice(mixed);
        }
    }

    /// Positions that the tile sees, its queries with a key-value head, and tasks to cut a product of both into.
    fn sizes(&self, tile: QueryTile) -> (Range<usize>, usize, usize) {
        let (positions, rows) = (tile.seen(self.window()), self.config.heads_per_kv() * tile.tokens);
        (positions, rows, self.exec.tasks(tile.work(self.config, self.window())))
    }

    /// `scores = queries keys`: `[kv head][positions/16][heads_per_kv][tokens][16]`
    fn score(&mut self, tile: QueryTile, s: &mut Scratch) {
        let (positions, rows, tasks) = self.sizes(tile);
        let (panels, before) = (positions.len().div_ceil(LANES), positions.start / LANES);
        let (head_len, unit) = (rows * self.config.head_dim, rows * LANES);
        let len = self.config.num_key_value_heads * panels * unit;
        let (queries, (heads, pool)) = (&*s.queries, self.heads(tile.entry));
        pool.split(&mut s.scores[..len], unit, tasks, move |first, mut scores| {
            let mut panel = first;
            while !scores.is_empty() {
                // As far as the head reaches.
                let (head, inside) = (panel / panels, panel % panels);
                let count = (panels - inside).min(scores.len() / unit);
                let (run, rest) = scores.split_at_mut(count * unit);
                let queries = &queries[head * head_len..][..head_len];
                heads.score(head, before + inside, queries, rows, run);
                (scores, panel) = (rest, panel + count);
            }
        });
    }

    /// `scores = softmax(scale scores)`, times the values' scales.
    fn normalize(&mut self, tile: QueryTile, s: &mut Scratch) {
        let (positions, rows, _) = self.sizes(tile);
        let (scale, window, tokens) = (self.scale(), self.window(), tile.tokens);
        let (len, head_len) = (positions.len() + 1 - tokens, rows * padded(positions.len()));
        let scores = &mut s.scores[..self.config.num_key_value_heads * head_len];
        let tasks = self.exec.tasks(scores.len() * LANES); // an exponential counts as many multiplications
        let (heads, pool) = self.heads(tile.entry);
        pool.split(scores, head_len, tasks, move |first, scores| {
            for (head, scores) in (first..).zip(scores.chunks_exact_mut(head_len)) {
                heads.kernels.run(Softmax { scores, rows, tokens, len, window, scale });
                heads.scale(head, scores, positions.clone(), rows);
            }
        });
    }

    /// `queries = scores values`: `[kv head][head_dim/16][heads_per_kv][tokens][16]`
    fn mix(&mut self, tile: QueryTile, s: &mut Scratch) {
        let (positions, rows, tasks) = self.sizes(tile);
        let head_len = rows * padded(positions.len());
        let mixed = &mut s.queries[..self.config.attention_width() * tile.tokens];
        let (scores, (heads, pool)) = (&*s.scores, self.heads(tile.entry));
        let together = if heads.panels.is_multiple_of(2) { 2 } else { 1 }; // so many are read side by side, at least
        let unit = together * rows * LANES;
        pool.split(mixed, unit, tasks, move |first, mut mixed| {
            let mut panel = first * together;
            while !mixed.is_empty() {
                // As far as the head reaches.
                let (head, feature) = (panel / heads.panels, panel % heads.panels);
                let count = (heads.panels - feature).min(mixed.len() / (rows * LANES));
                let (run, rest) = mixed.split_at_mut(count * rows * LANES);
                let probabilities = &scores[head * head_len..][..head_len];
                heads.mix(head, feature, probabilities, positions.clone(), rows, run);
                (mixed, panel) = (rest, panel + count);
            }
        });
    }
}
