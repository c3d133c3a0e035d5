//! Causal grouped-query attention (Vaswani et al. 2017, Ainslie et al. 2023) as products of panels.
//!
//! The queries that share a key-value head are the rows of two products: with the keys, whose panels have positions as
//! outputs, and of the probabilities with the values, whose panels have positions as inputs. Both go through the same
//! kernel as the weights, so each score is one chain over `head_dim` and each mixed value one over the positions.

mod decode;
mod prefill;

use super::kv_cache::{BLOCK, KvCache};
use super::rope::Rope;
use super::scratch::Scratch;
use super::team::Team;
use crate::error::Result;
use crate::format::Config;
use crate::kernels::{Kernels, LANES};
use crate::pool::Pool;

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
        self.rotate(&mut s.qkv);
        self.store(&s.qkv);
        match self.rows {
            1 => self.decode(s),
            _ => self.prefill(s),
        }
    }

    /// Turns queries and keys to their positions.
    fn rotate(&mut self, qkv: &mut [f32]) {
        let Config { num_attention_heads, num_key_value_heads, head_dim, .. } = *self.config;
        let (rope, rows, head) = (self.rope, self.rows, head_dim * self.rows);
        let queries_and_keys = &mut qkv[..(num_attention_heads + num_key_value_heads) * head];
        let tasks = self.team.tasks(queries_and_keys.len());
        self.team.pool.split(queries_and_keys, head, tasks, |_, heads| {
            heads.chunks_exact_mut(head).for_each(|head| rope.rotate(head, rows));
        });
    }

    /// Appends keys and values to the cache.
    fn store(&mut self, qkv: &[f32]) {
        let Config { num_key_value_heads, head_dim, .. } = *self.config;
        let (_, keys_and_values) = qkv.split_at(self.config.attention_width() * self.rows);
        let (keys, values) = keys_and_values.split_at(num_key_value_heads * head_dim * self.rows);
        self.cache.store(self.team, self.layer, self.position, self.rows, keys, values);
    }

    /// What the tasks of a step share, and the threads to run them on.
    fn heads(&mut self) -> (Heads<'_>, &mut Pool) {
        let Attention { config, team, cache, layer, .. } = self;
        let panels = config.head_dim / LANES;
        (Heads { kernels: team.kernels, cache, layer: *layer, panels }, &mut team.pool)
    }
}

/// The cached keys and values of one layer, as factors of products.
#[derive(Clone, Copy)]
struct Heads<'a> {
    kernels: Kernels,
    cache: &'a KvCache,
    layer: usize,
    /// Of a head: `head_dim / 16`.
    panels: usize,
}

impl Heads<'_> {
    /// `scores = queries keys` for the position panels from `first` on: `queries`: `[head_dim/16][rows][16]`, `scores`:
    /// `[panels][rows][16]`.
    fn score(self, head: usize, first: usize, queries: &[f32], rows: usize, mut scores: &mut [f32]) {
        const BLOCK_PANELS: usize = BLOCK / LANES;
        let mut panel = first;
        while !scores.is_empty() {
            // As far as the block reaches.
            let (block, inside) = (panel / BLOCK_PANELS, panel % BLOCK_PANELS);
            let count = (BLOCK_PANELS - inside).min(scores.len() / (rows * LANES));
            let (run, rest) = scores.split_at_mut(count * rows * LANES);
            let keys = self.cache.keys(self.layer, head, block).slice(inside, count);
            self.kernels.matmul(keys, queries, rows, run, false);
            (scores, panel) = (rest, panel + count);
        }
    }

    /// `mixed = probabilities values` for panel `feature` of the head: `probabilities`: `[positions/16, rounded
    /// up][rows][16]`, `mixed`: `[rows][16]`.
    fn mix(
        self,
        head: usize,
        feature: usize,
        probabilities: &[f32],
        positions: usize,
        rows: usize,
        mixed: &mut [f32],
    ) {
        for (block, probabilities) in probabilities.chunks(BLOCK * rows).enumerate() {
            let inside = BLOCK.min(positions - block * BLOCK);
            let values = self.cache.values(self.layer, head, block, feature, inside);
            self.kernels.matmul(values, probabilities, rows, mixed, block > 0);
        }
    }
}
