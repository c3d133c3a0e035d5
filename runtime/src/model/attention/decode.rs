//! Attention of one token: its few queries meet every position, so the positions are split over the threads.

use std::ops::Range;

use super::{Attention, Heads, first_seen};
use crate::error::Result;
use crate::exec::{Pool, Scratch, padded};
use crate::format::Config;
use crate::kernels::{LANES, Softmax};
use crate::sequence::to_end_of_step;

/// Makes room for the attention of the one token at `position`, in the layers with and without a window.
pub(in crate::model) fn resize_for_one(config: &Config, position: usize, s: &mut Scratch) -> Result<()> {
    s.queries.resize(config.attention_width())?;
    s.mixed.resize(config.attention_width())?;
    let heads = config.num_attention_heads;
    s.scores.resize_within(heads * padded(position + 1), heads * to_end_of_step(position + 1))
}

impl Attention<'_, '_> {
    /// From rotated queries in `qkv`, with all keys and values in the cache, to `attention`: of the only row of a pass.
    pub(super) fn decode(&mut self, s: &mut Scratch) {
        let position = self.batch[0].sequence.position();
        let positions = first_seen(position, self.window())..position + 1;
        let (panels, group) = (self.config.head_dim / LANES, self.config.heads_per_kv());
        swap_axes(&s.qkv[..self.config.attention_width()], group, panels, &mut s.queries);
        self.score(s, positions.clone());
        self.normalize(s, positions.clone());
        self.mix(s, positions);
        swap_axes(&s.mixed, panels, group, &mut s.attention);
    }

    /// What the tasks of a step share, and the threads to run them on.
    fn heads(&mut self) -> (Heads<'_>, &mut Pool) {
        let (cache, panels) = (&self.batch[0].sequence.cache, self.config.head_dim / LANES);
        (Heads { kernels: self.exec.kernels, cache, layer: self.layer, panels }, &mut self.exec.pool)
    }

    /// `scores = queries keys`: `[kv head][positions/16][group][16]`
    fn score(&mut self, s: &mut Scratch, positions: Range<usize>) {
        let (panels, group) = (positions.len().div_ceil(LANES), self.config.heads_per_kv());
        let before = positions.start / LANES;
        let (head_len, unit) = (group * self.config.head_dim, group * LANES);
        let len = self.config.num_key_value_heads * panels * unit;
        let tasks = self.exec.tasks(s.queries.len() * positions.len());
        let (queries, (heads, pool)) = (&*s.queries, self.heads());
        pool.split(&mut s.scores[..len], unit, tasks, |first, mut scores| {
            let mut panel = first;
            while !scores.is_empty() {
                // As far as the head reaches.
                let (head, inside) = (panel / panels, panel % panels);
                let count = (panels - inside).min(scores.len() / unit);
                let (run, rest) = scores.split_at_mut(count * unit);
                let queries = &queries[head * head_len..][..head_len];
                heads.score(head, before + inside, queries, group, run);
                (scores, panel) = (rest, panel + count);
            }
        });
    }

    /// `scores = softmax(scale scores)`, times the values' scales.
    fn normalize(&mut self, s: &mut Scratch, positions: Range<usize>) {
        let (scale, group, window) = (self.scale(), self.config.heads_per_kv(), self.window());
        let (len, head_len) = (positions.len(), group * padded(positions.len()));
        let scores = &mut s.scores[..self.config.num_key_value_heads * head_len];
        let tasks = self.exec.tasks(scores.len() * LANES); // an exponential counts as many multiplications
        let (heads, pool) = self.heads();
        pool.split(scores, head_len, tasks, |first, scores| {
            for (head, scores) in (first..).zip(scores.chunks_exact_mut(head_len)) {
                heads.kernels.run(Softmax { scores, rows: group, tokens: 1, len, window, scale });
                heads.scale(head, scores, positions.clone(), group);
            }
        });
    }

    /// `mixed = scores values`: `[kv head][head_dim/16][group][16]`
    fn mix(&mut self, s: &mut Scratch, positions: Range<usize>) {
        let group = self.config.heads_per_kv();
        let tasks = self.exec.tasks(s.queries.len() * positions.len());
        let (scores, (heads, pool)) = (&*s.scores, self.heads());
        let head_len = group * padded(positions.len());
        let together = if heads.panels.is_multiple_of(2) { 2 } else { 1 }; // read side by side
        let unit = together * group * LANES;
        pool.split(&mut s.mixed, unit, tasks, |first, mixed| {
            for (panel, mixed) in (first * together..).step_by(together).zip(mixed.chunks_exact_mut(unit)) {
                let (head, feature) = (panel / heads.panels, panel % heads.panels);
                let probabilities = &scores[head * head_len..][..head_len];
                heads.mix(head, feature, probabilities, positions.clone(), group, mixed);
            }
        });
    }
}

/// `from`: `[heads][a][b][16]`, `to`: `[heads][b][a][16]`.
fn swap_axes(from: &[f32], a: usize, b: usize, to: &mut [f32]) {
    let heads = from.chunks_exact(a * b * LANES).zip(to.chunks_exact_mut(a * b * LANES));
    for (from, to) in heads {
        for (i, lanes) in from.chunks_exact(LANES).enumerate() {
            to[(i % b * a + i / b) * LANES..][..LANES].copy_from_slice(lanes);
        }
    }
}
