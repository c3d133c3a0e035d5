//! Attention with keys, values, queries and probabilities rounded to 8 bits, in passes that may be rounded: both products are
//! those of bytes, as with weights of `q8`.
//!
//! Keys get scales as weights do, for each position and 32 features; values get one for each position, which its probability
//! is multiplied by. So what becomes of a position does not depend on the others, and nothing on how a prompt is split.

use std::ops::Range;

use super::tiles::{HeadTile, QueryTile, QueryTiles};
use super::{Attention, Heads, first_seen};
use crate::error::Result;
use crate::exec::{Scratch, Worker, padded};
use crate::format::{BLOCK, Config, Dtype, QuantizedPanels};
use crate::kernels::{Kernels, LANES, Line, Quantized, RoundValues, ScaleLanes, Softmax};
use crate::sequence::KV_BLOCK;

/// Panels of positions in a KV block.
const KV_BLOCK_PANELS: usize = KV_BLOCK / LANES;

/// Makes room for a pass of these tiles.
pub(super) fn resize(kernels: Kernels, config: &Config, tiles: &QueryTiles, s: &mut Scratch) -> Result<()> {
    let largest =
        |[tokens, end]: [usize; 2], tile: &QueryTile| [tokens.max(tile.tokens), end.max(tile.end())];
    let [tokens, end] = tiles.tiles.iter().fold([0; 2], largest);
    let end = end.next_multiple_of(KV_BLOCK); // so that passes up to there take no more memory
    let heads = config.num_key_value_heads;
    let rounded = RoundedHeads::new(config, 0..end);
    s.rounded_keys.resize(heads * rounded.keys_len())?;
    s.rounded_values.resize(heads * rounded.values_len())?;
    s.workers.iter_mut().try_for_each(|worker| {
        worker.numbers.resize(config.head_dim * padded(end))?;
        worker.rounded.resize(kernels, config.head_dim.max(end), config.heads_per_kv() * tokens)
    })
}

/// How the rounded keys and values of some positions lie.
struct RoundedHeads {
    /// Of which the first is that of a panel.
    positions: Range<usize>,
    head_dim: usize,
    /// Of a panel of keys.
    key: QuantizedPanels,
    /// Of a panel of values.
    value: QuantizedPanels,
}

impl RoundedHeads {
    fn new(config: &Config, positions: Range<usize>) -> RoundedHeads {
        let layout =
            |inputs| QuantizedPanels::new(Dtype::Q8, inputs).expect("numbers of a context have a layout");
        let (key, value) = (layout(config.head_dim), layout(positions.len()));
        RoundedHeads { positions, head_dim: config.head_dim, key, value }
    }

    /// Panels of positions.
    fn panels(&self) -> usize {
        self.positions.len().div_ceil(LANES)
    }

    /// Lines of a head's keys.
    fn keys_len(&self) -> usize {
        self.panels() * self.key.panel_len / size_of::<Line>()
    }

    /// Lines of a head's values, and of their positions' scales.
    fn values_len(&self) -> usize {
        self.head_dim / LANES * self.value.panel_len / size_of::<Line>() + self.panels()
    }

    /// The keys of a head for its first panels of positions, of so many `keys` of all heads.
    fn keys<'k>(&self, keys: &'k [Line], head: usize, panels: usize) -> Quantized<'k> {
        let keys = bytemuck::cast_slice(&keys[head * self.keys_len()..][..self.keys_len()]);
        Quantized::new(keys, Dtype::Q8, self.head_dim).expect("the layout is that of keys").slice(0, panels)
    }

    /// The values of a head for its first positions, and all positions' scales.
    fn values<'v>(&self, values: &'v [Line], head: usize, positions: usize) -> (Quantized<'v>, &'v [f32]) {
        let values = &values[head * self.values_len()..][..self.values_len()];
        let (values, scales) = values.split_at(self.values_len() - self.panels());
        let values = Quantized::new(bytemuck::cast_slice(values), Dtype::Q8, self.positions.len());
        let values = values.expect("the layout is that of values").first_inputs(positions);
        (values, bytemuck::cast_slice(scales))
    }
}

impl Attention<'_, '_> {
    /// From rotated queries in `qkv`, with all keys and values in the caches, to `mixed`.
    pub(super) fn attend_rounded(&mut self, s: &mut Scratch) {
        let [entry] = &*self.batch else { unreachable!("a pass that may be rounded has one sequence") };
        let (first, count) = (entry.sequence.position(), entry.tokens.len());
        // Blocks of probabilities have the same positions, whichever is the first that a pass sees.
        let start = first_seen(first, self.window()) / BLOCK * BLOCK;
        let rounded = RoundedHeads::new(self.config, start..first + count);
        self.round_keys(&rounded, s);
        self.round_values(&rounded, s);
        let (scale, window, rows) = (self.scale(), self.window(), self.rows);
        let (group, QueryTiles { tiles, ends, .. }) = (self.config.heads_per_kv(), self.tiles);
        let (qkv, keys, values) = (&*s.qkv, &*s.rounded_keys, &*s.rounded_values);
        let (heads, pool) = self.heads(0);
        pool.split_at(&mut s.mixed, ends, &mut s.workers, |index, mixed, worker| {
            let (head, tile) = (index / tiles.len(), tiles[index % tiles.len()]);
            let head_tile = HeadTile { tile, head, group };
            head_tile.gather_queries(qkv, rows, heads.panels, &mut worker.queries);
            let positions = start..tile.end();
            let keys = rounded.keys(keys, head, positions.len().div_ceil(LANES));
            let (values, scales) = rounded.values(values, head, positions.len());
            let seen = Seen { heads, keys, values, scales, positions, window, scale };
            seen.attend(&head_tile, worker, mixed);
        });
    }

    /// To `rounded_keys`.
    fn round_keys(&mut self, rounded: &RoundedHeads, s: &mut Scratch) {
        let keys = &mut s.rounded_keys[..self.config.num_key_value_heads * rounded.keys_len()];
        let (unit, tasks) =
            (rounded.key.panel_len / size_of::<Line>(), self.exec.element_tasks(size_of_val(keys)));
        let (heads, pool) = self.heads(0);
        pool.split_with(keys, unit, tasks, &mut s.workers, |first, keys, worker| {
            let numbers = &mut worker.numbers[..rounded.head_dim * LANES];
            for (panel, key) in (first..).zip(keys.chunks_exact_mut(unit)) {
                let (head, panel) = (panel / rounded.panels(), panel % rounded.panels());
                heads.key_numbers(head, rounded.positions.start / LANES + panel, numbers);
                let bytes = bytemuck::cast_slice_mut(key);
                heads.kernels.round_panels(numbers, rounded.key, rounded.head_dim, bytes);
            }
        });
    }

    /// To `rounded_values`.
    fn round_values(&mut self, rounded: &RoundedHeads, s: &mut Scratch) {
        let (unit, tasks) = (rounded.values_len(), self.config.num_key_value_heads);
        let values = &mut s.rounded_values[..tasks * unit];
        let (heads, pool) = self.heads(0);
        pool.split_with(values, unit, tasks, &mut s.workers, |first, values, worker| {
            let positions = rounded.positions.len();
            let numbers = &mut worker.numbers[..rounded.head_dim * positions];
            for (head, values) in (first..).zip(values.chunks_exact_mut(unit)) {
                let (values, scales) = values.split_at_mut(unit - rounded.panels());
                let (scales, beyond) = bytemuck::cast_slice_mut(scales).split_at_mut(positions);
                beyond.fill(0.0);
                heads.value_numbers(head, rounded.positions.clone(), numbers);
                let panels = bytemuck::cast_slice_mut(values);
                heads.kernels.run(RoundValues { values: numbers, layout: rounded.value, panels, scales });
            }
        });
    }
}

impl Heads<'_> {
    /// The keys of a panel of positions: `[head_dim][16]`.
    fn key_numbers(&self, head: usize, panel: usize, to: &mut [f32]) {
        let (block, inside) = (panel / KV_BLOCK_PANELS, panel % KV_BLOCK_PANELS);
        self.kernels.widen(self.cache.keys(self.layer, head, block).slice(inside, 1), to);
        if let Some(scales) = self.cache.key_scales(self.layer, head, block) {
            let scales = &scales[inside * LANES..];
            self.kernels.run(ScaleLanes { x: to, rows: self.panels * LANES, scales });
        }
    }

    /// The values of some positions, without the scales that the cache may have for these: `[head_dim/16][positions][16]`.
    fn value_numbers(&self, head: usize, positions: Range<usize>, to: &mut [f32]) {
        let mut done = 0;
        while done < positions.len() {
            // As far as the KV block reaches.
            let (block, inside) = ((positions.start + done) / KV_BLOCK, (positions.start + done) % KV_BLOCK);
            let count = (KV_BLOCK - inside).min(positions.len() - done);
            for (feature, to) in to.chunks_exact_mut(positions.len() * LANES).enumerate() {
                let values = self.cache.values(self.layer, head, block, feature, inside..inside + count);
                self.kernels.widen(values, &mut to[done * LANES..][..count * LANES]);
            }
            done += count;
        }
    }
}

/// What a query tile sees of a head.
struct Seen<'a> {
    heads: Heads<'a>,
    keys: Quantized<'a>,
    values: Quantized<'a>,
    /// Of the values' positions.
    scales: &'a [f32],
    positions: Range<usize>,
    window: usize,
    /// The factor of the products of queries and keys.
    scale: f32,
}

impl Seen<'_> {
    /// From the queries of the worker, `[head_dim/16][group][tokens][16]`, to `mixed`, which lies like these.
    fn attend(&self, tile: &HeadTile, worker: &mut Worker, mixed: &mut [f32]) {
        let &Seen { heads, keys, values, scales, ref positions, window, scale } = self;
        let (kernels, Worker { queries, scores, rounded, .. }) = (heads.kernels, worker);
        let tokens = tile.tile.tokens;
        let rows = tile.group * tokens;
        let scores = &mut scores[..padded(positions.len()) * rows];
        rounded.matmul(kernels, keys, &queries[..mixed.len()], rows, scores);
        kernels.run(Softmax { scores, rows, tokens, len: positions.len() + 1 - tokens, window, scale });
        kernels.run(ScaleLanes { x: scores, rows, scales });
        heads.scale(tile.head, scores, positions.clone(), rows);
        rounded.matmul(kernels, values, scores, rows, mixed);
    }
}
