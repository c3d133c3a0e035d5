//! Attention of many sequences: a task does all for some of them, from their projections to what they attend to. So keys and
//! values stay with one thread, and in a layer's attention threads wait for one another once.

use super::tiles::{HeadTile, QueryTile};
use super::{Attention, HeadNorms, Heads, turned_heads};
use crate::exec::{Columns, Scratch, Worker};
use crate::format::Config;
use crate::kernels::{Kernels, LANES};
use crate::model::batch::Rows;
use crate::model::rope::Rope;
use crate::model::weights::LayerWeights;
use crate::sequence::NewPositions;

impl Attention<'_, '_> {
    /// From `qkv` to `attention`, where each entry of the batch is one tile.
    pub(super) fn attend_entries(&mut self, s: &mut Scratch) {
        let Attention { config, weights, tiles, rope, layer, rows, .. } = *self;
        let (kernels, window, scale) = (self.exec.kernels, self.window(), self.scale());
        let task = EntryTask { config, weights, rope, kernels, layer, window, scale };
        let (qkv, attention) = (&*s.qkv, Columns::new(s.attention.as_chunks_mut().0, rows));
        let (ends, tiles) = (&tiles.entry_ends, &tiles.tiles);
        let pool = &mut self.exec.pool;
        pool.split_items_and_columns(
            self.batch,
            attention,
            ends,
            &mut s.workers,
            move |index, entries, mut attention, worker| {
                let end = ends[index][0];
                let tiles = &tiles[end - entries.len()..end];
                task.fetch_keys(&entries[0], tiles[0], 0);
                task.fetch_values(&entries[0], tiles[0], 0);
                for (i, tile) in tiles.iter().enumerate() {
                    task.prepare(qkv, rows, *tile, worker);
                    task.store(&mut entries[i], worker);
                    task.attend(&entries[i..], &tiles[i..], worker, &mut attention, tile.row - tiles[0].row);
                }
            },
        );
    }
}

/// What the tasks of a step share.
struct EntryTask<'a> {
    config: &'a Config,
    weights: &'a LayerWeights<'a>,
    rope: &'a Rope,
    kernels: Kernels,
    layer: usize,
    window: usize,
    scale: f32,
}

impl EntryTask<'_> {
    /// Starts to fetch what the queries of a key-value head meet, and before the first one all that is stored: the processor
    /// cannot foresee where another sequence's keys and values are.
    fn fetch_keys(&self, entry: &Rows<'_>, tile: QueryTile, head: usize) {
        let cache = &entry.sequence.cache;
        if head == 0 {
            cache.fetch_position(self.layer, tile.end() - 1);
        }
        cache.fetch_keys(self.layer, head, &tile.seen(self.window));
    }

    /// The same for their probabilities.
    fn fetch_values(&self, entry: &Rows<'_>, tile: QueryTile, head: usize) {
        entry.sequence.cache.fetch_values(self.layer, head, &tile.seen(self.window));
    }

    /// A tile's rows of `qkv`, `[features/16][rows][16]`, normalized and turned as the layer does: `[features/16][tokens][16]`
    /// in the thread's own memory.
    fn prepare(&self, qkv: &[f32], rows: usize, tile: QueryTile, worker: &mut Worker) {
        let EntryTask { config, weights, rope, kernels, .. } = *self;
        let (tokens, len) = (tile.tokens, tile.tokens * LANES);
        let own = worker.qkv[..config.qkv_rows() * tokens].chunks_exact_mut(len);
        for (own, panel) in own.zip(qkv.chunks_exact(rows * LANES)) {
            own.copy_from_slice(&panel[tile.row * LANES..][..len]);
        }
        let queries_and_keys = &mut worker.qkv[..turned_heads(config) * config.head_dim * tokens];
        if let Some(norms) = HeadNorms::new(config, weights, kernels) {
            norms.normalize(0, queries_and_keys, tokens, &mut worker.norm);
        }
        if !weights.flags.no_rope {
            for head in queries_and_keys.chunks_exact_mut(config.head_dim * tokens) {
                rope.rotate(kernels, head, tile.row, tokens);
            }
        }
    }

    /// Appends keys and values to the entry's cache.
    fn store(&self, entry: &mut Rows<'_>, worker: &Worker) {
        let (first, count, config) = (entry.sequence.position(), entry.tokens.len(), self.config);
        let (_, keys_and_values) = worker.qkv.split_at(config.attention_width() * count);
        let (keys, values) = keys_and_values.split_at(config.num_key_value_heads * config.head_dim * count);
        let new = NewPositions { first, count, row: 0, rows: count, keys, values };
        entry.sequence.cache.store(self.kernels, None, self.layer, new);
    }

    /// Leaves what the first of some entries attends to in its rows of `attention`, those from the task's `row` on. The tiles are
    /// the entries'.
    fn attend(
        &self,
        entries: &[Rows<'_>],
        tiles: &[QueryTile],
        worker: &mut Worker,
        attention: &mut Columns<'_, [f32; LANES]>,
        row: usize,
    ) {
        let EntryTask { config, kernels, layer, window, scale, .. } = *self;
        let (panels, group, tokens) = (config.head_dim / LANES, config.heads_per_kv(), tiles[0].tokens);
        let heads = Heads { kernels, cache: &entries[0].sequence.cache, layer, panels };
        let Worker { qkv, queries, scores, mixed, .. } = worker;
        let mixed = &mut mixed[..group * config.head_dim * tokens];
        for head in 0..config.num_key_value_heads {
            // Half of what the next head needs during each product.
            let next = match head + 1 < config.num_key_value_heads {
                true => Some((0, head + 1)),
                false => (entries.len() > 1).then_some((1, 0)),
            };
            let tile = HeadTile { tile: tiles[0].alone(), head, group };
            tile.gather_queries(qkv, tokens, panels, queries);
            next.inspect(|&(entry, head)| self.fetch_keys(&entries[entry], tiles[entry], head));
            let scores = tile.score(heads, window, queries, scores);
            next.inspect(|&(entry, head)| self.fetch_values(&entries[entry], tiles[entry], head));
            tile.mix(heads, window, scale, scores, mixed);
            for (i, mixed) in mixed.as_chunks().0.chunks_exact(tokens).enumerate() {
                let (feature, query_head) = (i / group, head * group + i % group);
                attention.row(query_head * panels + feature)[row..][..tokens].copy_from_slice(mixed);
            }
        }
    }
}
