//! Causal grouped-query attention (Vaswani et al. 2017, Ainslie et al. 2023) as products of panels.
//!
//! The queries that share a key-value head are the rows of two products: with the keys, whose panels have positions as
//! outputs, and of the probabilities with the values, whose panels have positions as inputs. Both go through the same
//! kernel as the weights, so each score is one chain over `head_dim` and each mixed value one over the positions.

use super::kv_cache::{BLOCK, KvCache};
use super::rope::Rope;
use super::scratch::{Scratch, padded};
use super::team::Team;
use crate::error::Result;
use crate::format::Config;
use crate::kernels::LANES;

/// Most tokens whose scores are in memory together.
const MAX_TOKENS: usize = 32;

/// One layer's attention for the tokens of one pass.
pub(super) struct Attention<'a> {
    pub config: &'a Config,
    pub team: &'a mut Team,
    pub cache: &'a mut KvCache,
    pub rope: &'a Rope,
    pub layer: usize,
    /// Of the first token.
    pub position: usize,
    /// Tokens of the pass.
    pub rows: usize,
}

impl Attention<'_> {
    /// From `qkv` to `attention`.
    pub(super) fn run(&mut self, s: &mut Scratch) -> Result<()> {
        self.store_keys_and_values(s);
        for first in (0..self.rows).step_by(MAX_TOKENS) {
            let tokens = MAX_TOKENS.min(self.rows - first);
            self.resize(s, first, tokens)?;
            self.rotate_queries(s, first, tokens);
            self.score(s, first, tokens);
            self.normalise(s, first, tokens);
            self.mix(s, first, tokens);
            self.gather(s, first, tokens);
        }
        Ok(())
    }

    fn store_keys_and_values(&mut self, s: &mut Scratch) {
        let Config { num_attention_heads, num_key_value_heads, .. } = *self.config;
        for row in 0..self.rows {
            for head in 0..num_key_value_heads {
                copy_head(&s.qkv, num_attention_heads + head, self.rows, row, &mut s.key);
                self.rope.rotate(&mut s.key, row);
                let value = num_attention_heads + num_key_value_heads + head;
                copy_head(&s.qkv, value, self.rows, row, &mut s.value);
                self.cache.store(self.layer, head, self.position + row, &s.key, &s.value);
            }
        }
    }

    /// `queries`: the heads that share keys side by side, turned to their positions.
    fn rotate_queries(&self, s: &mut Scratch, first: usize, tokens: usize) {
        let rows = self.query_rows(tokens);
        let group = self.config.heads_per_kv();
        for (head, token) in
            (0..self.config.num_attention_heads).flat_map(|h| (0..tokens).map(move |t| (h, t)))
        {
            copy_head(&s.qkv, head, self.rows, first + token, &mut s.key);
            self.rope.rotate(&mut s.key, first + token);
            let queries = self.head_mut(&mut s.queries, head / group, rows);
            let row = head % group * tokens + token;
            for (panel, lanes) in queries.chunks_exact_mut(rows * LANES).zip(s.key.chunks_exact(LANES)) {
                panel[row * LANES..][..LANES].copy_from_slice(lanes);
            }
        }
    }

    /// `scores = queries keys`, for every position up to the last token's.
    fn score(&mut self, s: &mut Scratch, first: usize, tokens: usize) {
        let (rows, layer) = (self.query_rows(tokens), self.layer);
        let (positions, panel) = (self.end(first, tokens), rows * LANES);
        let panels = positions.div_ceil(LANES);
        let work = s.queries.len() * positions;
        let (cache, kernels, queries) = (&*self.cache, self.team.kernels, &s.queries);
        let head_len = self.config.head_dim * rows;
        self.team.pool.split(&mut s.scores, panel, self.team.tasks(work), |first, mut scores| {
            let mut unit = first;
            while !scores.is_empty() {
                // As far as the panels of one head's block reach.
                let (head, position) = (unit / panels, unit % panels * LANES);
                let (block, inside) = (position / BLOCK, position % BLOCK / LANES);
                let left = (panels - unit % panels).min(BLOCK / LANES - inside).min(scores.len() / panel);
                let (run, rest) = scores.split_at_mut(left * panel);
                let keys = cache.keys(layer, head, block).slice(inside, left);
                kernels.matmul(keys, &queries[head * head_len..][..head_len], rows, run, false);
                (scores, unit) = (rest, unit + left);
            }
        });
    }

    /// `scores = softmax(scale scores)`, each token over the positions up to its own.
    fn normalise(&mut self, s: &mut Scratch, first: usize, tokens: usize) {
        let (rows, start) = (self.query_rows(tokens), self.position + first);
        let (kernels, scale) = (self.team.kernels, self.config.attention_scale);
        let head_len = s.scores.len() / self.config.num_key_value_heads;
        let tasks = self.team.tasks(s.scores.len() * LANES); // an exponential counts as many multiplications
        self.team.pool.split(&mut s.scores, head_len, tasks, |_, heads| {
            for head in heads.chunks_exact_mut(head_len) {
                for row in 0..rows {
                    kernels.softmax(head, rows, row, start + row % tokens + 1, scale);
                }
            }
        });
    }

    /// `mixed = probabilities values`
    fn mix(&mut self, s: &mut Scratch, first: usize, tokens: usize) {
        let (rows, layer) = (self.query_rows(tokens), self.layer);
        let (positions, panel) = (self.end(first, tokens), rows * LANES);
        let work = s.queries.len() * positions;
        let (cache, kernels, scores) = (&*self.cache, self.team.kernels, &s.scores);
        let head_panels = self.config.head_dim / LANES;
        let scores_len = padded(positions) * rows;
        self.team.pool.split(&mut s.mixed, panel, self.team.tasks(work), |first, mixed| {
            for (unit, mixed) in (first..).zip(mixed.chunks_exact_mut(panel)) {
                let (head, feature) = (unit / head_panels, unit % head_panels);
                let probabilities = &scores[head * scores_len..][..scores_len];
                for (block, probabilities) in probabilities.chunks(BLOCK * rows).enumerate() {
                    let inside = BLOCK.min(positions - block * BLOCK);
                    let values = cache.values(layer, head, block, feature, inside);
                    kernels.matmul(values, probabilities, rows, mixed, block > 0);
                }
            }
        });
    }

    /// `attention`: `mixed` with the heads of a token one after the other.
    fn gather(&self, s: &mut Scratch, first: usize, tokens: usize) {
        let (rows, group) = (self.query_rows(tokens), self.config.heads_per_kv());
        let head_panels = self.config.head_dim / LANES;
        for (unit, panel) in s.attention.chunks_exact_mut(self.rows * LANES).enumerate() {
            let (head, feature) = (unit / head_panels, unit % head_panels);
            let from = (head / group * head_panels + feature) * rows + head % group * tokens;
            panel[first * LANES..][..tokens * LANES]
                .copy_from_slice(&s.mixed[from * LANES..][..tokens * LANES]);
        }
    }

    fn resize(&self, s: &mut Scratch, first: usize, tokens: usize) -> Result<()> {
        let width = self.config.attention_width() * tokens;
        s.queries.resize(width)?;
        s.mixed.resize(width)?;
        s.scores.resize(self.config.num_attention_heads * tokens * padded(self.end(first, tokens)))
    }

    /// Rows of a key-value head's products: its query heads for each token.
    fn query_rows(&self, tokens: usize) -> usize {
        self.config.heads_per_kv() * tokens
    }

    /// Positions that the last of `tokens` tokens from `first` on attends to.
    fn end(&self, first: usize, tokens: usize) -> usize {
        self.position + first + tokens
    }

    /// The part of `queries` that belongs to key-value head `head`.
    fn head_mut<'b>(&self, queries: &'b mut [f32], head: usize, rows: usize) -> &'b mut [f32] {
        let len = self.config.head_dim * rows;
        &mut queries[head * len..][..len]
    }
}

/// Copies one head of one row out of activations, `[head_dim]`.
fn copy_head(activations: &[f32], head: usize, rows: usize, row: usize, out: &mut [f32]) {
    let first = head * out.len() / LANES;
    for (panel, out) in (first..).zip(out.chunks_exact_mut(LANES)) {
        out.copy_from_slice(&activations[(panel * rows + row) * LANES..][..LANES]);
    }
}
