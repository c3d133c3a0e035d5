//! Causal grouped-query attention (Vaswani et al. 2017, Ainslie et al. 2023) as products of panels.
//!
//! The queries that share a key-value head are the rows of two products: with the keys, whose panels have positions as
//! outputs, and of the probabilities with the values, whose panels have positions as inputs. Each score is one chain over
//! `head_dim`, and each mixed value one over the positions.

mod entries;
mod rounded;
mod shared;
mod tiles;

use std::ops::Range;

pub(super) use self::tiles::QueryTiles;
use self::tiles::{QueryTile, TILE_TOKENS};
use super::batch::Rows;
use super::rope::Rope;
use super::weights::LayerWeights;
use crate::error::Result;
use crate::exec::{ExecContext, Pool, Scratch};
use crate::format::Config;
use crate::kernels::{InverseRms, Kernels, LANES, ScaleLanes, ScaleRows};
use crate::sequence::{KV_BLOCK, KvCache, NewPositions};

/// What storing a number takes, in multiplications of a product, where each row belongs to another sequence: it waits for memory.
const STORE_WORK: usize = 128;

/// Cuts the rows of a pass into `tiles`, and makes room for the attention of all layers.
pub(super) fn reserve(
    tiles: &mut QueryTiles,
    config: &Config,
    exec: &ExecContext,
    batch: &[Rows<'_>],
    s: &mut Scratch,
) -> Result<()> {
    let rounds = exec.rounds_attention(batch.iter().map(|entry| entry.tokens.len()).sum());
    let is_long = |tile: &QueryTile| exec.tasks(tile.work(config, usize::MAX)) > 1;
    tiles.set(config, rounds, is_long, batch, s)?;
    if rounds { rounded::resize(exec.kernels, config, tiles, s) } else { Ok(()) }
}

/// One layer's attention for the rows of one pass.
pub(super) struct Attention<'a, 'b> {
    pub config: &'a Config,
    pub weights: &'a LayerWeights<'a>,
    pub exec: &'a mut ExecContext,
    pub batch: &'a mut [Rows<'b>],
    pub tiles: &'a QueryTiles,
    pub rope: &'a Rope,
    pub layer: usize,
    /// Of the pass.
    pub rows: usize,
}

impl Attention<'_, '_> {
    /// From `qkv` to `attention`.
    pub(super) fn run(&mut self, s: &mut Scratch) {
        if self.tiles.is_by_entry() {
            return self.attend_entries(s);
        }
        self.normalize_heads(s);
        self.rotate(&mut s.qkv);
        self.store(&s.qkv);
        match self.exec.rounds_attention(self.rows) {
            true => self.attend_rounded(s),
            false => self.attend(s),
        }
        self.gather(s);
    }

    /// RMSNorm of each query head and each key head (Qwen3), where the model has them.
    fn normalize_heads(&mut self, s: &mut Scratch) {
        let Some(norms) = HeadNorms::new(self.config, self.weights, self.exec.kernels) else { return };
        let (rows, head) = (self.rows, self.config.head_dim * self.rows);
        let queries_and_keys = &mut s.qkv[..turned_heads(self.config) * head];
        let tasks = self.exec.element_tasks(queries_and_keys.len());
        self.exec.pool.split_with(queries_and_keys, head, tasks, &mut s.workers, |first, heads, worker| {
            norms.normalize(first, heads, rows, &mut worker.norm);
        });
    }

    /// Turns queries and keys to their positions, in the layers that do.
    fn rotate(&mut self, qkv: &mut [f32]) {
        if self.weights.flags.no_rope {
            return;
        }
        let (rope, kernels) = (self.rope, self.exec.kernels);
        let (rows, head) = (self.rows, self.config.head_dim * self.rows);
        let queries_and_keys = &mut qkv[..turned_heads(self.config) * head];
        let tasks = self.exec.element_tasks(queries_and_keys.len());
        self.exec.pool.split(queries_and_keys, head, tasks, |_, heads| {
            heads.chunks_exact_mut(head).for_each(|head| rope.rotate(kernels, head, 0, rows));
        });
    }

    /// Appends keys and values to the caches: those of many tokens of a sequence on all threads, and of the other sequences each
    /// on one.
    fn store(&mut self, qkv: &[f32]) {
        let Config { num_key_value_heads, head_dim, .. } = *self.config;
        let Attention { ref mut batch, ref mut exec, tiles, layer, rows, .. } = *self;
        let (_, keys_and_values) = qkv.split_at(self.config.attention_width() * rows);
        let (keys, values) = keys_and_values.split_at(num_key_value_heads * head_dim * rows);
        let new = |index: usize, entry: &Rows<'_>| {
            let (first, count) = (entry.sequence.position(), entry.tokens.len());
            NewPositions { first, count, row: tiles.first_row(index), rows, keys, values }
        };
        let kernels = exec.kernels;
        let is_long = |entry: &Rows<'_>| entry.tokens.len() > TILE_TOKENS;
        for (index, entry) in batch.iter_mut().enumerate().filter(|(_, entry)| is_long(entry)) {
            let tasks = exec.element_tasks(keys_and_values.len() / rows * entry.tokens.len());
            let new = new(index, entry);
            entry.sequence.cache.store(kernels, Some((&mut exec.pool, tasks)), layer, new);
        }
        let tasks = exec.tasks(keys_and_values.len() * STORE_WORK);
        exec.pool.split(batch, 1, tasks, |first, entries| {
            for i in 0..entries.len() {
                if let Some(Rows { sequence, .. }) = entries.get(i + 1) {
                    sequence.cache.fetch_position(layer, sequence.position());
                }
                let entry = &mut entries[i];
                if !is_long(entry) {
                    let new = new(first + i, entry);
                    entry.sequence.cache.store(kernels, None, layer, new);
                }
            }
        });
    }

    /// What the tasks of a step share, of an entry of the batch, and the threads to run them on.
    fn heads(&mut self, entry: usize) -> (Heads<'_>, &mut Pool) {
        let (cache, panels) = (&self.batch[entry].sequence.cache, self.config.head_dim / LANES);
        (Heads { kernels: self.exec.kernels, cache, layer: self.layer, panels }, &mut self.exec.pool)
    }

    /// The factor of the products of queries and keys.
    fn scale(&self) -> f32 {
        match self.config.no_rope_attention_scale {
            Some(scale) if self.weights.flags.no_rope => scale,
            _ => self.config.attention_scale,
        }
    }

    /// Positions that a token sees, its own included.
    fn window(&self) -> usize {
        match self.config.sliding_window {
            Some(window) if self.weights.flags.sliding => window,
            _ => usize::MAX,
        }
    }
}

/// Heads that are turned to their positions: those of queries and of keys, which lie one after the other.
fn turned_heads(config: &Config) -> usize {
    config.num_attention_heads + config.num_key_value_heads
}

/// RMSNorm of each query head and each key head (Qwen3).
#[derive(Clone, Copy)]
struct HeadNorms<'a> {
    config: &'a Config,
    kernels: Kernels,
    q_norm: &'a [f32],
    k_norm: &'a [f32],
}

impl<'a> HeadNorms<'a> {
    /// Where the model has them.
    fn new(config: &'a Config, weights: &LayerWeights<'a>, kernels: Kernels) -> Option<HeadNorms<'a>> {
        weights.qk_norm.map(|[q_norm, k_norm]| HeadNorms { config, kernels, q_norm, k_norm })
    }

    /// `heads`: those from `first` on, `[head_dim/16][rows][16]` each; `memory`: at least `[1 + head_dim][rows]`.
    fn normalize(self, first: usize, heads: &mut [f32], rows: usize, memory: &mut [f32]) {
        let HeadNorms {
            config: &Config { num_attention_heads, head_dim, rms_norm_eps: eps, .. },
            kernels,
            ..
        } = self;
        let (inverse_rms, normed) = memory.split_at_mut(rows);
        let normed = &mut normed[..head_dim * rows];
        for (index, head) in (first..).zip(heads.chunks_exact_mut(head_dim * rows)) {
            let weight = if index < num_attention_heads { self.q_norm } else { self.k_norm };
            kernels.run(InverseRms { x: head, rows, features: head_dim, eps, first: 0, y: inverse_rms });
            kernels.run(ScaleRows { x: head, scales: inverse_rms, weight, y: normed });
            head.copy_from_slice(normed);
        }
    }
}

/// The first position, that of a panel, which the token at `position` or a later one sees through a window.
fn first_seen(position: usize, window: usize) -> usize {
    (position + 1).saturating_sub(window) / LANES * LANES
}

/// How many KV blocks ahead scales of values are fetched: those of one are used up before memory has answered.
const SCALES_AHEAD: usize = 4;

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
    fn score(self, head: usize, first: usize, queries: &[f32], rows: usize, scores: &mut [f32]) {
        let panels = first..first + scores.len() / (rows * LANES);
        self.cache.score(self.kernels, (self.layer, head), panels, (queries, rows), scores);
    }

    /// Multiplies the probabilities of `positions`, of which the first is that of a panel, by the scales of the values,
    /// if these have any: `[positions/16, rounded up][rows][16]`.
    fn scale(self, head: usize, mut probabilities: &mut [f32], positions: Range<usize>, rows: usize) {
        let mut position = positions.start;
        while position < positions.end {
            // As far as the KV block reaches.
            let (block, inside) = (position / KV_BLOCK, position % KV_BLOCK);
            let Some(scales) = self.cache.value_scales(self.layer, head, block) else { return };
            self.cache.fetch_value_scales(self.layer, head, block + SCALES_AHEAD);
            let len = ((KV_BLOCK - inside) * rows).min(probabilities.len());
            let (x, rest) = probabilities.split_at_mut(len);
            self.kernels.run(ScaleLanes { x, rows, scales: &scales[inside..] });
            (probabilities, position) = (rest, (block + 1) * KV_BLOCK);
        }
    }

    /// `mixed = probabilities values` for the head's panels from `feature` on, over `positions`, of which the first is
    /// that of a panel: `probabilities`: `[positions/16, rounded up][rows][16]`, `mixed`: `[panels][rows][16]`.
    fn mix(
        self,
        head: usize,
        feature: usize,
        probabilities: &[f32],
        positions: Range<usize>,
        rows: usize,
        mixed: &mut [f32],
    ) {
        self.cache.mix(self.kernels, (self.layer, head), positions, (probabilities, rows), feature, mixed);
    }
}
