//! Attention of many tokens: a task for each key-value head and query tile, from its queries to its mixed values.

use std::ops::Range;

use super::{Attention, Heads, first_seen};
use crate::error::Result;
use crate::exec::{Scratch, Worker, padded};
use crate::kernels::{LANES, Softmax};
use crate::sequence::to_end_of_block;

/// Tokens of a query tile: few enough that their scores stay in a core's cache, enough to use each key often.
const TILE_TOKENS: usize = 16;

impl Attention<'_> {
    /// From rotated queries in `qkv`, with all keys and values in the cache, to `attention`.
    pub(super) fn prefill(&mut self, s: &mut Scratch) -> Result<()> {
        self.resize_for_tiles(s)?;
        let (rows, position, group) = (self.rows, self.position, self.config.heads_per_kv());
        let (scale, len, window) = (self.scale(), self.tile_len(), self.window());
        let tiles = rows.div_ceil(TILE_TOKENS);
        let tasks = self.config.num_key_value_heads * tiles;
        let (heads, pool) = self.heads();
        let qkv = &*s.qkv;
        pool.split_with(&mut s.mixed, len, tasks, &mut s.workers, |unit, mixed, worker| {
            for (unit, mixed) in (unit..).zip(mixed.chunks_exact_mut(len)) {
                let (head, first) = (unit / tiles, unit % tiles * TILE_TOKENS);
                let tile = QueryTile { head, first, tokens: TILE_TOKENS.min(rows - first), group };
                tile.gather_queries(qkv, rows, heads.panels, &mut worker.queries);
                let seen = first_seen(position + first, window)..position + first + tile.tokens;
                tile.attend(heads, seen, window, scale, worker, mixed);
            }
        });
        self.gather(s, tiles);
        Ok(())
    }

    /// `attention`: `mixed` with the heads of a token one after the other.
    fn gather(&mut self, s: &mut Scratch, tiles: usize) {
        let (rows, group, len) = (self.rows, self.config.heads_per_kv(), self.tile_len());
        let (panels, mixed) = (self.config.head_dim / LANES, &*s.mixed);
        let tasks = self.exec.tasks(s.attention.len());
        self.exec.pool.split(&mut s.attention, rows * LANES, tasks, |unit, run| {
            for (unit, panel) in (unit..).zip(run.chunks_exact_mut(rows * LANES)) {
                let (head, feature) = (unit / panels, unit % panels);
                for (tile, tokens) in panel.chunks_mut(TILE_TOKENS * LANES).enumerate() {
                    let mixed = &mixed[(head / group * tiles + tile) * len..];
                    tokens.copy_from_slice(
                        &mixed[(feature * group + head % group) * tokens.len()..][..tokens.len()],
                    );
                }
            }
        });
    }

    fn resize_for_tiles(&self, s: &mut Scratch) -> Result<()> {
        let (config, tiles) = (self.config, self.rows.div_ceil(TILE_TOKENS));
        s.mixed.resize(config.num_key_value_heads * tiles * self.tile_len())?;
        for worker in &mut s.workers {
            worker.queries.resize(self.tile_len())?;
            let (rows, end) = (config.heads_per_kv() * TILE_TOKENS, self.position + self.rows);
            worker.scores.resize_within(rows * padded(end), rows * to_end_of_block(end))?;
        }
        Ok(())
    }

    /// Elements of a whole tile's queries, and of its mixed values.
    fn tile_len(&self) -> usize {
        self.config.heads_per_kv() * self.config.head_dim * TILE_TOKENS
    }
}

/// Some tokens' queries of the heads that share a key-value head.
struct QueryTile {
    head: usize,
    first: usize,
    tokens: usize,
    /// Heads that share it.
    group: usize,
}

impl QueryTile {
    /// `queries`: `[head_dim/16][group][tokens][16]`
    fn gather_queries(&self, qkv: &[f32], rows: usize, panels: usize, queries: &mut [f32]) {
        for (i, run) in queries.chunks_exact_mut(self.tokens * LANES).take(panels * self.group).enumerate() {
            let (feature, head) = (i / self.group, self.head * self.group + i % self.group);
            let from = ((head * panels + feature) * rows + self.first) * LANES;
            run.copy_from_slice(&qkv[from..][..run.len()]);
        }
    }

    /// `mixed`: `[head_dim/16][group][tokens][16]`; the tokens stand at the end of `positions`, and see none before them.
    fn attend(
        &self,
        heads: Heads<'_>,
        positions: Range<usize>,
        window: usize,
        scale: f32,
        worker: &mut Worker,
        mixed: &mut [f32],
    ) {
        let rows = self.group * self.tokens;
        let scores = &mut worker.scores[..padded(positions.len()) * rows];
        let queries = &worker.queries[..heads.panels * rows * LANES];
        heads.score(self.head, positions.start / LANES, queries, rows, scores);
        let seen_by_first = positions.len() + 1 - self.tokens;
        heads.kernels.run(Softmax { scores, rows, tokens: self.tokens, len: seen_by_first, window, scale });
        heads.scale(self.head, scores, positions.clone(), rows);
        for (feature, mixed) in mixed.chunks_exact_mut(rows * LANES).take(heads.panels).enumerate() {
            heads.mix(self.head, feature, scores, positions.clone(), rows, mixed);
        }
    }
}
