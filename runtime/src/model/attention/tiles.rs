//! Attention of many tokens, of one sequence or of several: a task for each key-value head and query tile, from its
//! queries to its mixed values.

use std::ops::Range;

use super::{Attention, Heads, first_seen};
use crate::error::Result;
use crate::exec::{Scratch, Worker, padded};
use crate::format::Config;
use crate::kernels::{LANES, Softmax};
use crate::model::batch::Rows;
use crate::sequence::to_end_of_step;

/// Most tokens of a query tile: few enough that their scores stay in a core's cache, enough to use each key often.
const TILE_TOKENS: usize = 16;

/// The query tiles of a pass.
#[derive(Default)]
pub(in crate::model) struct QueryTiles {
    tiles: Vec<QueryTile>,
    /// Where the mixed values of each key-value head's tiles end: `[kv head][tile]`.
    ends: Vec<usize>,
}

/// Tokens of one sequence, one after the other.
#[derive(Clone, Copy)]
struct QueryTile {
    /// The sequence's, in the batch.
    entry: usize,
    /// Of the first token, in the pass.
    row: usize,
    tokens: usize,
    /// Of the first token, in its sequence.
    position: usize,
}

impl QueryTiles {
    /// Cuts the rows of a pass into tiles, and makes room for their attention.
    pub(in crate::model) fn set(
        &mut self,
        config: &Config,
        batch: &[Rows<'_>],
        s: &mut Scratch,
    ) -> Result<()> {
        self.tiles.clear();
        let mut row = 0;
        for (entry, rows) in batch.iter().enumerate() {
            let position = rows.sequence.next_position();
            self.tiles.extend((0..rows.tokens.len()).step_by(TILE_TOKENS).map(|first| QueryTile {
                entry,
                row: row + first,
                tokens: TILE_TOKENS.min(rows.tokens.len() - first),
                position: position + first,
            }));
            row += rows.tokens.len();
        }
        let rows = row;
        let group = config.heads_per_kv();
        let token_len = group * config.head_dim;
        self.ends.clear();
        for head in 0..config.num_key_value_heads {
            let ends = self.tiles.iter().map(|tile| (head * rows + tile.row + tile.tokens) * token_len);
            self.ends.extend(ends);
        }
        s.mixed.resize(config.attention_width() * rows)?;
        let most = |of: &dyn Fn(&QueryTile) -> usize| self.tiles.iter().map(of).max().unwrap_or(0);
        let tokens = most(&|tile| tile.tokens);
        let scores = group * most(&|tile| tile.tokens * padded(tile.end()));
        let capacity = group * most(&|tile| tile.tokens * to_end_of_step(tile.end()));
        s.workers.iter_mut().try_for_each(|worker| {
            worker.queries.resize(token_len * tokens)?;
            worker.scores.resize_within(scores, capacity)
        })
    }
}

impl Attention<'_, '_> {
    /// From rotated queries in `qkv`, with all keys and values in the caches, to `attention`.
    pub(super) fn attend_tiles(&mut self, s: &mut Scratch) {
        let (scale, window, rows) = (self.scale(), self.window(), self.rows);
        let (group, qkv, kernels, layer) =
            (self.config.heads_per_kv(), &*s.qkv, self.exec.kernels, self.layer);
        let (panels, batch, tiles) = (self.config.head_dim / LANES, &*self.batch, &self.tiles.tiles);
        let pool = &mut self.exec.pool;
        pool.split_at(&mut s.mixed, &self.tiles.ends, &mut s.workers, |index, mixed, worker| {
            let (head, tile) = (index / tiles.len(), tiles[index % tiles.len()]);
            let heads = Heads { kernels, cache: &batch[tile.entry].sequence.cache, layer, panels };
            let tile = HeadTile { tile, head, group };
            tile.gather_queries(qkv, rows, panels, &mut worker.queries);
            tile.attend(heads, window, scale, worker, mixed);
        });
        self.gather(s);
    }

    /// `attention`: `mixed` with the heads of a token one after the other.
    fn gather(&mut self, s: &mut Scratch) {
        let (rows, group, tiles) = (self.rows, self.config.heads_per_kv(), &self.tiles.tiles);
        let (panels, mixed) = (self.config.head_dim / LANES, &*s.mixed);
        let tasks = self.exec.tasks(s.attention.len());
        self.exec.pool.split(&mut s.attention, rows * LANES, tasks, |unit, run| {
            for (unit, panel) in (unit..).zip(run.chunks_exact_mut(rows * LANES)) {
                let (head, feature) = (unit / panels, unit % panels);
                for tile in tiles {
                    let len = tile.tokens * LANES;
                    let mixed = &mixed[(head / group * rows + tile.row) * group * panels * LANES..];
                    let tokens = &mixed[(feature * group + head % group) * len..][..len];
                    panel[tile.row * LANES..][..len].copy_from_slice(tokens);
                }
            }
        });
    }
}

impl QueryTile {
    /// One past the last token's position.
    fn end(&self) -> usize {
        self.position + self.tokens
    }

    /// The positions that one of its tokens sees, from the first of a panel on.
    fn seen(&self, window: usize) -> Range<usize> {
        first_seen(self.position, window)..self.end()
    }
}

/// The queries of some tokens of the heads that share a key-value head.
struct HeadTile {
    tile: QueryTile,
    head: usize,
    /// Heads that share it.
    group: usize,
}

impl HeadTile {
    /// `queries`: `[head_dim/16][group][tokens][16]`
    fn gather_queries(&self, qkv: &[f32], rows: usize, panels: usize, queries: &mut [f32]) {
        let len = self.tile.tokens * LANES;
        for (i, run) in queries.chunks_exact_mut(len).take(panels * self.group).enumerate() {
            let (feature, head) = (i / self.group, self.head * self.group + i % self.group);
            let from = ((head * panels + feature) * rows + self.tile.row) * LANES;
            run.copy_from_slice(&qkv[from..][..len]);
        }
    }

    /// `mixed`: `[head_dim/16][group][tokens][16]`
    fn attend(&self, heads: Heads<'_>, window: usize, scale: f32, worker: &mut Worker, mixed: &mut [f32]) {
        let (positions, tokens) = (self.tile.seen(window), self.tile.tokens);
        let rows = self.group * tokens;
        let scores = &mut worker.scores[..padded(positions.len()) * rows];
        let queries = &worker.queries[..heads.panels * rows * LANES];
        heads.score(self.head, positions.start / LANES, queries, rows, scores);
        let seen_by_first = positions.len() + 1 - tokens;
        heads.kernels.run(Softmax { scores, rows, tokens, len: seen_by_first, window, scale });
        heads.scale(self.head, scores, positions.clone(), rows);
        for (feature, mixed) in mixed.chunks_exact_mut(rows * LANES).enumerate() {
            heads.mix(self.head, feature, scores, positions.clone(), rows, mixed);
        }
    }
}
