//! Attention of tokens of one sequence or of several: a task for each key-value head and query tile, from its queries to
//! its mixed values, where there are enough of them for all threads.

use std::ops::Range;

use super::{Attention, Heads, first_seen};
use crate::error::Result;
use crate::exec::{Scratch, padded};
use crate::format::Config;
use crate::kernels::{LANES, Softmax};
use crate::model::batch::Rows;
use crate::sequence::to_end_of_step;

/// Most tokens of a query tile: few enough that their scores stay in a core's cache, enough to use each key often.
pub(super) const TILE_TOKENS: usize = 16;
/// A tile costs as much as that of so many tokens besides its own: it waits for keys and values.
const BASE_TOKENS: u64 = 8;
/// A task takes at most one part in so many of what each thread has to do: at the end, all wait for the last one.
const LONGEST_TASK: u64 = 3;
/// Tasks per thread, where one does all for some entries of the batch.
const ENTRY_TASKS: u64 = 4;

/// The query tiles of a pass.
#[derive(Default)]
pub(in crate::model) struct QueryTiles {
    pub(super) tiles: Vec<QueryTile>,
    /// Where the mixed values of each key-value head's tiles end: `[kv head][tile]`.
    pub(super) ends: Vec<usize>,
    /// Where each task ends that does all for some entries of the batch: after which of them, and after which row. Empty where
    /// the tiles are too few or too unlike for that.
    pub(super) entry_ends: Vec<[usize; 2]>,
}

/// Tokens of one sequence, one after the other.
#[derive(Clone, Copy)]
pub(super) struct QueryTile {
    /// The sequence's, in the batch.
    pub(super) entry: usize,
    /// Of the first token, in the pass.
    pub(super) row: usize,
    pub(super) tokens: usize,
    /// Of the first token, in its sequence.
    position: usize,
    /// Whether all threads attend to it together.
    is_shared: bool,
}

impl QueryTiles {
    /// Cuts the rows of a pass into tiles, and makes room for their attention. Where it `rounds`, none is shared.
    pub(super) fn set(
        &mut self,
        config: &Config,
        rounds: bool,
        is_long: impl Fn(&QueryTile) -> bool,
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
                is_shared: false,
            }));
            row += rows.tokens.len();
        }
        let rows = row;
        let (heads, group) = (config.num_key_value_heads, config.heads_per_kv());
        let threads = s.workers.len() as u64;
        self.cut_by_entry(batch.len(), threads);
        if !rounds && !self.is_by_entry() {
            self.share(heads as u64, threads, is_long);
        }
        let token_len = group * config.head_dim;
        self.ends.clear();
        for head in 0..heads {
            let ends = self.tiles.iter().map(|tile| (head * rows + tile.row + tile.tokens) * token_len);
            self.ends.extend(ends);
        }
        s.mixed.resize(config.attention_width() * rows)?;
        // Any of them may be shared in another pass.
        let [tokens, scores, capacity] = most(self.tiles.iter());
        s.queries.resize(heads * token_len * tokens)?;
        s.scores.resize_within(heads * group * scores, heads * group * capacity)?;
        let [tokens, scores, capacity] = most(self.tiles.iter().filter(|tile| !tile.is_shared));
        let tokens_of_entry = if self.is_by_entry() { tokens } else { 0 };
        s.workers.iter_mut().try_for_each(|worker| {
            worker.qkv.resize(config.qkv_rows() * tokens_of_entry)?;
            worker.mixed.resize(token_len * tokens_of_entry)?;
            worker.queries.resize(token_len * tokens)?;
            worker.scores.resize_within(group * scores, group * capacity)
        })
    }

    /// The first row, in the pass, of an entry of the batch.
    pub(super) fn first_row(&self, entry: usize) -> usize {
        self.tiles[self.tiles.partition_point(|tile| tile.entry < entry)].row
    }

    /// Whether each task does all for some entries of the batch.
    pub(super) fn is_by_entry(&self) -> bool {
        !self.entry_ends.is_empty()
    }

    /// Finds the tasks that do all for some entries, where each entry is one tile.
    fn cut_by_entry(&mut self, entries: usize, threads: u64) {
        self.entry_ends.clear();
        let total: u64 = self.tiles.iter().map(QueryTile::cost).sum();
        let longest = self.tiles.iter().map(QueryTile::cost).max().unwrap_or_default();
        let are_many = LONGEST_TASK * threads * longest <= total;
        let are_alike = longest * entries as u64 <= total + total / 8;
        let all_have_work =
            threads == 1 || are_many || (are_alike && (entries as u64).is_multiple_of(threads));
        if entries < 2 || self.tiles.len() > entries || !all_have_work {
            return;
        }
        let tasks_until = |done: u64| done * ENTRY_TASKS * threads / total;
        let mut done = 0;
        for (index, tile) in self.tiles.iter().enumerate() {
            let before = tasks_until(done);
            done += tile.cost();
            if tasks_until(done) > before {
                self.entry_ends.push([index + 1, tile.row + tile.tokens]);
            }
        }
    }

    /// Decides which tiles all threads attend to together: those whose tasks, one for each head, are too long. A tile that is
    /// alone is shared only if it `is_long`: sharing takes three steps instead of one, and threads wait for each.
    fn share(&mut self, heads: u64, threads: u64, is_long: impl Fn(&QueryTile) -> bool) {
        if let [only] = &mut self.tiles[..] {
            only.is_shared = is_long(only);
            return;
        }
        let cost: u64 = self.tiles.iter().map(QueryTile::cost).sum();
        for tile in &mut self.tiles {
            tile.is_shared = LONGEST_TASK * threads * tile.cost() > heads * cost;
        }
    }
}

impl Attention<'_, '_> {
    /// From rotated queries in `qkv`, with all keys and values in the caches, to `mixed`.
    pub(super) fn attend(&mut self, s: &mut Scratch) {
        for &tile in self.tiles.tiles.iter().filter(|tile| tile.is_shared) {
            self.attend_shared(tile, s);
        }
        if self.tiles.tiles.iter().any(|tile| !tile.is_shared) {
            self.attend_tiles(s);
        }
    }

    /// To what tiles that are not shared have of `mixed`.
    fn attend_tiles(&mut self, s: &mut Scratch) {
        let (scale, window, rows) = (self.scale(), self.window(), self.rows);
        let (group, qkv, kernels, layer) =
            (self.config.heads_per_kv(), &*s.qkv, self.exec.kernels, self.layer);
        let (panels, batch, tiles) = (self.config.head_dim / LANES, &*self.batch, &self.tiles.tiles);
        let task = |index: usize| (index / tiles.len(), tiles[index % tiles.len()]);
        let (pool, ends) = (&mut self.exec.pool, &self.tiles.ends);
        pool.split_at(&mut s.mixed, ends, &mut s.workers, |index, mixed, worker| {
            let (head, tile) = task(index);
            if tile.is_shared {
                return;
            }
            let (next_head, next) = task((index + 1).min(ends.len() - 1));
            if next.entry != tile.entry {
                // The processor cannot foresee where another sequence's keys and values are.
                let cache = &batch[next.entry].sequence.cache;
                cache.fetch_keys(layer, next_head, &next.seen(window));
                cache.fetch_values(layer, next_head, &next.seen(window));
            }
            let heads = Heads { kernels, cache: &batch[tile.entry].sequence.cache, layer, panels };
            let tile = HeadTile { tile, head, group };
            tile.gather_queries(qkv, rows, panels, &mut worker.queries);
            let scores = tile.score(heads, window, &worker.queries, &mut worker.scores);
            tile.mix(heads, window, scale, scores, mixed);
        });
    }

    /// `attention`: `mixed` with the heads of a token one after the other.
    pub(super) fn gather(&mut self, s: &mut Scratch) {
        let (rows, group, tiles) = (self.rows, self.config.heads_per_kv(), &self.tiles.tiles);
        let (panels, mixed) = (self.config.head_dim / LANES, &*s.mixed);
        let tasks = self.exec.element_tasks(s.attention.len());
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

/// Most tokens of a tile; and most scores of a head, now and to the end of their step.
fn most<'a>(tiles: impl Iterator<Item = &'a QueryTile>) -> [usize; 3] {
    tiles.fold([0; 3], |[tokens, scores, capacity], tile| {
        [
            tokens.max(tile.tokens),
            scores.max(tile.tokens * padded(tile.end())),
            capacity.max(tile.tokens * to_end_of_step(tile.end())),
        ]
    })
}

impl QueryTile {
    /// One past the last token's position.
    pub(super) fn end(&self) -> usize {
        self.position + self.tokens
    }

    /// The same tile where its rows are the only ones.
    pub(super) fn alone(self) -> QueryTile {
        QueryTile { row: 0, ..self }
    }

    /// What its attention costs, in positions of a token.
    fn cost(&self) -> u64 {
        self.end() as u64 * (BASE_TOKENS + self.tokens as u64)
    }

    /// Multiplications of its queries with keys, of which each sees so many at most.
    pub(super) fn work(&self, config: &Config, window: usize) -> usize {
        config.attention_width() * self.tokens * self.seen(window).len()
    }

    /// The positions that one of its tokens sees, from the first of a panel on.
    pub(super) fn seen(&self, window: usize) -> Range<usize> {
        first_seen(self.position, window)..self.end()
    }
}

/// The queries of some tokens of the heads that share a key-value head.
pub(super) struct HeadTile {
    pub(super) tile: QueryTile,
    pub(super) head: usize,
    /// Heads that share it.
    pub(super) group: usize,
}

impl HeadTile {
    /// `queries`: `[head_dim/16][group][tokens][16]`
    pub(super) fn gather_queries(&self, qkv: &[f32], rows: usize, panels: usize, queries: &mut [f32]) {
        let len = self.tile.tokens * LANES;
        for (i, run) in queries.chunks_exact_mut(len).take(panels * self.group).enumerate() {
            let (feature, head) = (i / self.group, self.head * self.group + i % self.group);
            let from = ((head * panels + feature) * rows + self.tile.row) * LANES;
            run.copy_from_slice(&qkv[from..][..len]);
        }
    }

    /// `scores`, of which it returns what belongs to the tile: `[positions/16, rounded up][group][tokens][16]`
    pub(super) fn score<'s>(
        &self,
        heads: Heads<'_>,
        window: usize,
        queries: &[f32],
        scores: &'s mut [f32],
    ) -> &'s mut [f32] {
        let (positions, rows) = (self.tile.seen(window), self.group * self.tile.tokens);
        let scores = &mut scores[..padded(positions.len()) * rows];
        let queries = &queries[..heads.panels * rows * LANES];
        heads.score(self.head, positions.start / LANES, queries, rows, scores);
        scores
    }

    /// `mixed`: `[head_dim/16][group][tokens][16]`, of the tile's `scores`, which become probabilities.
    pub(super) fn mix(
        &self,
        heads: Heads<'_>,
        window: usize,
        scale: f32,
        scores: &mut [f32],
        mixed: &mut [f32],
    ) {
        let (positions, tokens) = (self.tile.seen(window), self.tile.tokens);
        let (rows, len) = (self.group * tokens, positions.len() + 1 - tokens);
        heads.kernels.run(Softmax { scores, rows, tokens, len, window, scale });
        heads.scale(self.head, scores, positions.clone(), rows);
        heads.mix(self.head, 0, scores, positions, rows, mixed);
    }
}
