//! The keys and values of every position so far, laid out so that attention is two matrix products over panels.
//!
//! Memory comes in KV blocks of 64 positions when they are first needed, so that a short text costs little. Sequences
//! that begin alike may share KV blocks: one that is written to is copied first. In a KV block, keys lie with 16
//! positions side by side, `[layer][kv head][position/16][head_dim][16]`: a panel's outputs are positions. Values lie
//! with 16 features side by side, `[layer][kv head][head_dim/16][position][16]`: a panel's inputs are positions.
//! Where numbers have scales, those of the 64 positions stand after the keys of a head, and after its values.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::iter::once;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use crc32fast::Hasher;

use crate::error::{Error, Result};
use crate::exec::{ExecContext, Pool};
use crate::format::Config;
use crate::kernels::{
    Elements, F16, HeadBlock, HeadBlocks, Kernels, LANES, MixValues, Panels, PlainOp, ScoreKeys, fetch,
};
use crate::sequence::Overflow;
use crate::sequence::kv_number::KvNumber;
use crate::storage::AlignedBuf;

/// Positions of one KV block.
pub(crate) const KV_BLOCK: usize = 64;

/// KV blocks of [`Overflow::STEP`](super::Overflow::STEP) positions.
const STEP_BLOCKS: usize = Overflow::STEP / KV_BLOCK;
const _: () = assert!(Overflow::STEP.is_multiple_of(KV_BLOCK));

/// Bytes that are read from a file at a time.
const READ_LEN: usize = 256 << 10;

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KvDtype {
    /// As they are computed.
    F32,
    /// Rounded to IEEE 754 binary16: half the memory, and half the bytes to read at each token. The logits are no longer
    /// the exact ones, but still do not depend on threads, splits and instruction sets.
    F16,
    /// Rounded to integers from -127 to 127 times a scale for each position of a head: about a quarter of the memory of
    /// f32. What is said of the logits of `F16` holds here, too.
    Q8,
}

impl KvDtype {
    /// The name that `smolrun --kv` takes.
    pub fn name(self) -> &'static str {
        match self {
            KvDtype::F32 => "f32",
            KvDtype::F16 => "f16",
            KvDtype::Q8 => "q8",
        }
    }

    /// Bytes of one position in all layers.
    pub fn bytes_per_token(self, config: &Config) -> usize {
        // Config's bounds keep the product far below 2^64.
        2 * config.num_hidden_layers
            * config.num_key_value_heads
            * (config.head_dim + self.scale())
            * self.size()
    }

    /// Bytes of a number.
    fn size(self) -> usize {
        match self {
            KvDtype::F32 => size_of::<f32>(),
            KvDtype::F16 => size_of::<F16>(),
            KvDtype::Q8 => size_of::<i8>(),
        }
    }

    /// As many numbers as a scale takes; 0 where there are none.
    fn scale(self) -> usize {
        match self {
            KvDtype::F32 => f32::SCALE,
            KvDtype::F16 => F16::SCALE,
            KvDtype::Q8 => i8::SCALE,
        }
    }
}

/// Runs the same code on the KV blocks of any [`KvDtype`].
macro_rules! with {
    ($kv:expr, $blocks:ident => $body:expr) => {
        match $kv {
            KvBlocks::F32($blocks) => $body,
            KvBlocks::F16($blocks) => $body,
            KvBlocks::Q8($blocks) => $body,
        }
    };
}

/// CRC-32 of what a sequence fills of a KV block.
///
/// It finds damage, and fast: whoever means harm could as well write another file.
pub(super) type BlockSum = u32;

/// Clones share the KV blocks.
#[derive(Clone)]
pub(crate) struct KvCache {
    blocks: KvBlocks,
    num_hidden_layers: usize,
    num_key_value_heads: usize,
    head_dim: usize,
}

/// The keys and values of [`KV_BLOCK`] positions, of all layers.
type KvBlock<T> = Arc<AlignedBuf<T>>;

#[derive(Clone)]
enum KvBlocks {
    F32(Vec<KvBlock<f32>>),
    F16(Vec<KvBlock<F16>>),
    Q8(Vec<KvBlock<i8>>),
}

/// A file with the KV blocks of a sequence, one after another.
pub(super) struct KvFile<'a> {
    pub path: &'a Path,
    pub file: &'a File,
    /// Where the first one begins: a multiple of 64.
    pub start: u64,
    /// Whether nobody changes the file, so that it can be mapped.
    pub is_fixed: bool,
}

impl KvFile<'_> {
    /// A handle of its own for a thread, where KV block `block` of `len` elements begins.
    fn open<T>(&self, block: usize, len: usize) -> io::Result<File> {
        let mut file = File::open(self.path)?;
        file.seek(SeekFrom::Start(self.offset::<T>(block, len)))?;
        Ok(file)
    }

    /// A full KV block, or `None` where it has to be read.
    fn map<T: Pod>(&self, block: usize, len: usize) -> Option<KvBlock<T>> {
        match self.is_fixed {
            true => AlignedBuf::of_file(self.file, self.offset::<T>(block, len), len).map(Arc::new),
            false => None,
        }
    }

    fn offset<T>(&self, block: usize, len: usize) -> u64 {
        self.start + block as u64 * (len * size_of::<T>()) as u64
    }
}

/// A KV block that several sequences may have.
#[derive(Clone)]
pub(super) enum SharedBlock {
    F32(KvBlock<f32>),
    F16(KvBlock<F16>),
    Q8(KvBlock<i8>),
}

impl KvCache {
    pub(crate) fn new(config: &Config, dtype: KvDtype) -> KvCache {
        KvCache {
            blocks: match dtype {
                KvDtype::F32 => KvBlocks::F32(Vec::new()),
                KvDtype::F16 => KvBlocks::F16(Vec::new()),
                KvDtype::Q8 => KvBlocks::Q8(Vec::new()),
            },
            num_hidden_layers: config.num_hidden_layers,
            num_key_value_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
        }
    }

    /// Makes room for these positions, in KV blocks that no other sequence has.
    pub(crate) fn reserve(&mut self, positions: Range<usize>) -> Result<()> {
        let (blocks, len) = (positions.start / KV_BLOCK..positions.end.div_ceil(KV_BLOCK), self.block_len());
        with!(&mut self.blocks, all => reserve(all, blocks, len))
    }

    /// Elements of a KV block.
    fn block_len(&self) -> usize {
        // Keys and values; Config's bounds keep the product far below 2^64.
        2 * self.num_hidden_layers * self.num_key_value_heads * self.half_head()
    }

    /// KV block `block`, to be shared.
    pub(super) fn shared(&self, block: usize) -> SharedBlock {
        match &self.blocks {
            KvBlocks::F32(blocks) => SharedBlock::F32(Arc::clone(&blocks[block])),
            KvBlocks::F16(blocks) => SharedBlock::F16(Arc::clone(&blocks[block])),
            KvBlocks::Q8(blocks) => SharedBlock::Q8(Arc::clone(&blocks[block])),
        }
    }

    /// Appends a KV block of another cache of the same model and kind.
    pub(super) fn push(&mut self, block: SharedBlock) {
        match (&mut self.blocks, block) {
            (KvBlocks::F32(blocks), SharedBlock::F32(block)) => blocks.push(block),
            (KvBlocks::F16(blocks), SharedBlock::F16(block)) => blocks.push(block),
            (KvBlocks::Q8(blocks), SharedBlock::Q8(block)) => blocks.push(block),
            _ => unreachable!("the same kind"),
        }
    }

    /// Gives all memory back.
    pub(super) fn clear(&mut self) {
        with!(&mut self.blocks, blocks => blocks.clear());
    }

    /// Gives back up to `most` KV blocks that nobody shares, from the last one on, and those that somebody shares on the way.
    /// Says whether none is left.
    pub(super) fn give_back(&mut self, most: usize) -> bool {
        with!(&mut self.blocks, blocks => give_back(blocks, most))
    }

    /// What of KV block `block` the first `positions` positions of the sequence fill, as bytes in pieces, in the order of
    /// memory: whole panels of 16 keys. Of a full KV block that is all.
    fn filled(&self, block: usize, positions: usize) -> impl Iterator<Item = &[u8]> {
        self.filled_ranges(block, positions)
            .map(move |range| with!(&self.blocks, blocks => bytemuck::cast_slice(&blocks[block][range])))
    }

    /// Fills an empty cache with the first `positions` positions of the sequence that `file` holds, and sums up the pieces
    /// of [`KvCache::filled`] of every KV block: with all threads. Full KV blocks are mapped, where the file can be.
    pub(super) fn read(
        &mut self,
        exec: &mut ExecContext,
        positions: usize,
        file: &KvFile<'_>,
    ) -> Result<Vec<io::Result<BlockSum>>> {
        let len = self.block_len();
        let mapped = with!(&mut self.blocks, blocks => {
            blocks.extend((0..positions / KV_BLOCK).map_while(|block| file.map(block, len)));
            blocks.len()
        });
        self.reserve(mapped * KV_BLOCK..positions)?;
        let pieces: Vec<_> = (0..positions.div_ceil(KV_BLOCK))
            .map(|block| joined(self.filled_ranges(block, positions)))
            .collect();
        Ok(with!(&mut self.blocks, blocks => read(blocks, mapped, exec, &pieces, file)))
    }

    /// Writes the pieces of [`KvCache::filled`] of every KV block that the first `positions` positions need.
    pub(super) fn write(&self, positions: usize, out: &mut impl Write) -> io::Result<()> {
        let pieces = (0..positions.div_ceil(KV_BLOCK)).flat_map(|block| self.filled(block, positions));
        pieces.into_iter().try_for_each(|piece| out.write_all(piece))
    }

    /// The sums of these KV blocks, computed by all threads.
    pub(super) fn sums(&self, exec: &mut ExecContext, positions: usize) -> Vec<BlockSum> {
        let mut sums = vec![0; positions.div_ceil(KV_BLOCK)];
        let tasks = sums.len();
        exec.pool.split(&mut sums, 1, tasks, |first, sums| {
            for (block, sum) in (first..).zip(sums) {
                let mut hasher = Hasher::new();
                self.filled(block, positions).for_each(|piece| hasher.update(piece));
                *sum = hasher.finalize();
            }
        });
        sums
    }

    /// Bytes of each of these KV blocks that are filled.
    pub(super) fn filled_lens(&self, positions: usize) -> impl ExactSizeIterator<Item = usize> + '_ {
        (0..positions.div_ceil(KV_BLOCK)).map(move |block| self.filled_len(block, positions))
    }

    /// Bytes of all pieces of [`KvCache::filled`].
    fn filled_len(&self, block: usize, positions: usize) -> usize {
        self.filled_ranges(block, positions).map(|range| range.len() * self.dtype().size()).sum()
    }

    fn filled_ranges(&self, block: usize, positions: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let (half_head, numbers, head_dim) = (self.half_head(), self.numbers(), self.head_dim);
        let heads = self.num_hidden_layers * self.num_key_value_heads;
        let inside = KV_BLOCK.min(positions - block * KV_BLOCK);
        let scales_len = inside * ((half_head - numbers) / KV_BLOCK);
        let scales = move |half: usize| half + numbers..half + numbers + scales_len;
        (0..heads).flat_map(move |head| {
            let (keys, values) = (2 * head * half_head, (2 * head + 1) * half_head);
            let panels = (0..head_dim / LANES).map(move |panel| values + panel * KV_BLOCK * LANES);
            once(keys..keys + inside.next_multiple_of(LANES) * head_dim)
                .chain(once(scales(keys)))
                .chain(panels.map(move |start| start..start + inside * LANES))
                .chain(once(scales(values)))
                .filter(|range| !range.is_empty())
        })
    }

    pub(crate) fn dtype(&self) -> KvDtype {
        match &self.blocks {
            KvBlocks::F32(_) => KvDtype::F32,
            KvBlocks::F16(_) => KvDtype::F16,
            KvBlocks::Q8(_) => KvDtype::Q8,
        }
    }

    /// Bytes reserved so far.
    pub(crate) fn bytes(&self) -> usize {
        with!(&self.blocks, blocks => blocks.len()) * self.block_bytes()
    }

    /// Bytes of a KV block.
    pub(crate) fn block_bytes(&self) -> usize {
        self.block_len() * self.dtype().size()
    }

    /// Drops the second [`Overflow::STEP`] positions and renumbers those after them: they become as much less, and
    /// their keys are turned back by that much. The first ones stay: a model rests its attention on the beginning
    /// (Xiao et al. 2023, "attention sinks"). No other sequence has the KV blocks after these.
    ///
    /// `angles` are cosines and sines of position [`Overflow::STEP`], `[head_dim / 2]` each; `turns` says of each layer
    /// whether its keys are turned at all.
    pub(super) fn slide(
        &mut self,
        exec: &mut ExecContext,
        angles: (&[f32], &[f32]),
        turns: impl Fn(usize) -> bool + Sync,
    ) {
        let (half_head, heads) = (self.half_head(), self.num_key_value_heads);
        let turns = |head| turns(head / heads);
        with!(&mut self.blocks, blocks => slide(blocks, half_head, exec, angles, turns));
    }

    /// Stores the keys and values of a layer at some positions, which there is room for: in so many tasks of a pool, or on this
    /// thread alone.
    pub(crate) fn store(
        &mut self,
        kernels: Kernels,
        mut pool: Option<(&mut Pool, usize)>,
        layer: usize,
        new: NewPositions<'_>,
    ) {
        let (head_dim, unit, range) = (self.head_dim, self.half_head(), self.layer(layer));
        for block in new.first / KV_BLOCK..=(new.first + new.count - 1) / KV_BLOCK {
            let range = range.clone();
            with!(&mut self.blocks, blocks => {
                let layer = &mut own(&mut blocks[block])[range];
                match &mut pool {
                    Some((pool, tasks)) => pool.split(layer, unit, *tasks, |first, halves| {
                        new.store(kernels, first, halves, [head_dim, unit], block);
                    }),
                    None => new.store(kernels, 0, layer, [head_dim, unit], block),
                }
            });
        }
    }

    /// The keys of KV block `block`: `[position/16][head_dim][16]`.
    pub(crate) fn keys(&self, layer: usize, head: usize, block: usize) -> Panels<'_> {
        let start = self.layer(layer).start + 2 * head * self.half_head();
        Panels { data: self.elements(block, start..start + self.numbers()), inputs: self.head_dim }
    }

    /// What scores with these keys are multiplied by, one for each position; nothing where keys have no scales.
    pub(crate) fn key_scales(&self, layer: usize, head: usize, block: usize) -> Option<&[f32]> {
        self.scales(self.layer(layer).start + 2 * head * self.half_head(), block)
    }

    /// The same of values and their probabilities.
    pub(crate) fn value_scales(&self, layer: usize, head: usize, block: usize) -> Option<&[f32]> {
        self.scales(self.layer(layer).start + (2 * head + 1) * self.half_head(), block)
    }

    /// Those of the keys, or values, that begin at `start` of a KV block.
    fn scales(&self, start: usize, block: usize) -> Option<&[f32]> {
        match &self.blocks {
            KvBlocks::Q8(blocks) => {
                Some(bytemuck::cast_slice(&blocks[block][start..][self.numbers()..self.half_head()]))
            }
            _ => None,
        }
    }

    /// The values at `positions` inside KV block `block`, of a panel of features: `[positions][16]`.
    pub(crate) fn values(
        &self,
        layer: usize,
        head: usize,
        block: usize,
        panel: usize,
        positions: Range<usize>,
    ) -> Panels<'_> {
        let start = self.layer(layer).start
            + (2 * head + 1) * self.half_head()
            + (panel * KV_BLOCK + positions.start) * LANES;
        let inputs = positions.len();
        Panels { data: self.elements(block, start..start + inputs * LANES), inputs }
    }

    /// [`ScoreKeys`] with a head's keys.
    pub(crate) fn score(
        &self,
        kernels: Kernels,
        (layer, head): (usize, usize),
        panels: Range<usize>,
        (queries, rows): (&[f32], usize),
        scores: &mut [f32],
    ) {
        let (head_dim, start) = (self.head_dim, self.layer(layer).start + 2 * head * self.half_head());
        with!(&self.blocks, blocks => {
            let keys = Half { blocks, start, len: self.numbers() };
            kernels.run(ScoreKeys { keys, panels, head_dim, queries, rows, scores });
        });
    }

    /// [`MixValues`] of a head.
    pub(crate) fn mix(
        &self,
        kernels: Kernels,
        (layer, head): (usize, usize),
        positions: Range<usize>,
        (probabilities, rows): (&[f32], usize),
        first: usize,
        mixed: &mut [f32],
    ) {
        let start = self.layer(layer).start + (2 * head + 1) * self.half_head();
        with!(&self.blocks, blocks => {
            let values = Half { blocks, start, len: self.numbers() };
            kernels.run(MixValues { values, positions, probabilities, rows, first, mixed });
        });
    }

    /// Starts to fetch a head's keys at `positions`, as far as the first KV block of these reaches.
    pub(crate) fn fetch_keys(&self, layer: usize, head: usize, positions: &Range<usize>) {
        let start = self.layer(layer).start + 2 * head * self.half_head();
        let (block, inside) = in_first_block(positions);
        let panels = inside.start / LANES..inside.end.div_ceil(LANES);
        let len = LANES * self.head_dim;
        with!(&self.blocks, blocks => fetch(&blocks[block][start..][panels.start * len..panels.end * len]));
    }

    /// The same of its values.
    pub(crate) fn fetch_values(&self, layer: usize, head: usize, positions: &Range<usize>) {
        let start = self.layer(layer).start + (2 * head + 1) * self.half_head();
        let (block, inside) = in_first_block(positions);
        with!(&self.blocks, blocks => {
            let values = &blocks[block][start..][..self.numbers()];
            for values in values.chunks_exact(KV_BLOCK * LANES) {
                fetch(&values[inside.start * LANES..inside.end * LANES]);
            }
        });
    }

    /// The same of what its values' probabilities are multiplied by, if there is such a KV block and it has scales.
    pub(crate) fn fetch_value_scales(&self, layer: usize, head: usize, block: usize) {
        if block < with!(&self.blocks, blocks => blocks.len())
            && let Some(scales) = self.value_scales(layer, head, block)
        {
            fetch(scales);
        }
    }

    /// Starts to fetch all that [`KvCache::store`] changes at `position` of a layer.
    pub(crate) fn fetch_position(&self, layer: usize, position: usize) {
        for head in 0..self.num_key_value_heads {
            self.fetch_keys(layer, head, &(position..position + 1));
            self.fetch_values(layer, head, &(position..position + 1));
        }
    }

    fn elements(&self, block: usize, range: Range<usize>) -> Elements<'_> {
        match &self.blocks {
            KvBlocks::F32(blocks) => Elements::F32(&blocks[block][range]),
            KvBlocks::F16(blocks) => Elements::F16(&blocks[block][range]),
            KvBlocks::Q8(blocks) => Elements::I8(&blocks[block][range]),
        }
    }

    /// Numbers of one head's keys, or values, in a KV block.
    fn numbers(&self) -> usize {
        KV_BLOCK * self.head_dim
    }

    /// Elements that these take with their scales.
    fn half_head(&self) -> usize {
        self.numbers() + KV_BLOCK * self.dtype().scale()
    }

    /// Where a layer lies in each KV block: keys and values of each head in turn.
    fn layer(&self, layer: usize) -> Range<usize> {
        let len = 2 * self.num_key_value_heads * self.half_head();
        layer * len..(layer + 1) * len
    }
}

/// The keys of a head, or its values.
struct Half<'a, T> {
    blocks: &'a [KvBlock<T>],
    /// Where they begin in each KV block.
    start: usize,
    /// How many numbers they are there, before their scales.
    len: usize,
}

// (Deriving them would ask for a `T` that is `Copy`.)
impl<T> Clone for Half<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Half<'_, T> {}

impl<T: KvNumber> HeadBlocks for Half<'_, T> {
    type Element = T;
    const POSITIONS: usize = KV_BLOCK;

    #[inline(always)]
    fn block(&self, index: usize) -> HeadBlock<'_, T> {
        let (numbers, after) = self.blocks[index][self.start..].split_at(self.len);
        let scales = bytemuck::cast_slice(&after[..KV_BLOCK * T::SCALE]);
        HeadBlock { numbers: numbers.as_chunks().0, scales }
    }
}

/// The first KV block of some positions, and which of its positions are some of them.
fn in_first_block(positions: &Range<usize>) -> (usize, Range<usize>) {
    let block = positions.start / KV_BLOCK;
    let first = block * KV_BLOCK;
    (block, positions.start - first..KV_BLOCK.min(positions.end - first))
}

/// See [`KvCache::give_back`].
fn give_back<T>(blocks: &mut Vec<KvBlock<T>>, most: usize) -> bool {
    let mut given = 0;
    while let Some(last) = blocks.last_mut() {
        let is_shared = Arc::get_mut(last).is_none();
        if !is_shared && given == most {
            return false;
        }
        given += usize::from(!is_shared);
        blocks.pop();
    }
    true
}

/// See [`KvCache::reserve`]; `written`: KV blocks.
fn reserve<T: Zeroable + Copy>(
    blocks: &mut Vec<KvBlock<T>>,
    written: Range<usize>,
    len: usize,
) -> Result<()> {
    let new = || {
        let bytes = len.saturating_mul(size_of::<T>());
        AlignedBuf::zeroed_in_large_pages(len).ok_or(Error::OutOfMemory { what: "the KV cache", bytes })
    };
    for block in blocks.iter_mut().take(written.end).skip(written.start) {
        if Arc::get_mut(block).is_none() {
            let mut copy = new()?.with_pages();
            copy.copy_from_slice(block);
            *block = Arc::new(copy);
        }
    }
    while blocks.len() < written.end {
        let block = new()?;
        // A short text touches only a part of its first block. Later ones are needed as a whole.
        blocks.push(Arc::new(if blocks.is_empty() { block } else { block.with_pages() }));
    }
    Ok(())
}

/// What is in a KV block that [`KvCache::reserve`] has made this sequence's own.
fn own<T>(block: &mut KvBlock<T>) -> &mut [T] {
    match Arc::get_mut(block) {
        Some(own) => own,
        None => unreachable!("no other sequence has it"),
    }
}

/// The ranges, those that follow on one another as one: of a full KV block there is one.
fn joined(ranges: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut joined: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}

/// See [`KvCache::read`]; `mapped`: KV blocks that are.
fn read<T: Pod + Send + Sync>(
    blocks: &mut [KvBlock<T>],
    mapped: usize,
    exec: &mut ExecContext,
    pieces: &[Vec<Range<usize>>],
    file: &KvFile<'_>,
) -> Vec<io::Result<BlockSum>> {
    let read_block = |block: usize, to: &mut [T]| {
        let (mut input, mut hasher) = (file.open::<T>(block, to.len())?, Hasher::new());
        for range in &pieces[block] {
            // While they are in the processor's cache, they are summed up.
            for bytes in bytemuck::cast_slice_mut(&mut to[range.clone()]).chunks_mut(READ_LEN) {
                input.read_exact(bytes)?;
                hasher.update(bytes);
            }
        }
        Ok(hasher.finalize())
    };
    let mut sums: Vec<_> = blocks.iter_mut().map(|block| (block, Ok(0))).collect();
    let tasks = sums.len();
    exec.pool.split(&mut sums, 1, tasks, |first, run| {
        for (index, (block, sum)) in (first..).zip(run) {
            *sum = match index < mapped {
                true => Ok(crc32fast::hash(bytemuck::cast_slice(block))),
                false => read_block(index, own(block)),
            };
        }
    });
    sums.into_iter().map(|(_, sum)| sum).collect()
}

/// See [`KvCache::slide`]; `half_head`: elements of a head's keys; `turns`: of the heads of all layers.
fn slide<T: KvNumber>(
    blocks: &mut [KvBlock<T>],
    half_head: usize,
    exec: &mut ExecContext,
    (cos, sin): (&[f32], &[f32]),
    turns: impl Fn(usize) -> bool + Sync,
) {
    let Some(after_first) = blocks.get_mut(STEP_BLOCKS..) else { return };
    after_first.rotate_left(STEP_BLOCKS.min(after_first.len()));
    for block in after_first {
        let block = own(block);
        let tasks = exec.tasks(block.len());
        exec.pool.split(block, 2 * half_head, tasks, |first, heads| {
            let heads = (first..).zip(heads.chunks_exact_mut(2 * half_head));
            for (_, head) in heads.filter(|(index, _)| turns(*index)) {
                let (keys, scales) = head[..half_head].split_at_mut(half_head - KV_BLOCK * T::SCALE);
                let mut scales = bytemuck::cast_slice_mut(scales).chunks_exact_mut(LANES);
                for panel in keys.chunks_exact_mut(2 * cos.len() * LANES) {
                    turn_back(panel, scales.next().unwrap_or_default(), cos, sin);
                }
            }
        });
    }
}

/// Turns keys of 16 positions, `[head_dim][16]`, back by an angle for each pair of features; `scales`: of each position,
/// or none.
fn turn_back<T: KvNumber>(panel: &mut [T], scales: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, second) = panel.split_at_mut(cos.len() * LANES);
    let (first, second) = (first.as_chunks_mut::<LANES>().0, second.as_chunks_mut::<LANES>().0);
    let before: [f32; LANES] = scales.first_chunk().copied().unwrap_or([1.0; LANES]);
    let turned = |a: T, b: T, lane: usize, cos: f32, sin: f32| {
        let (x, y) = (a.to_f32(before[lane]), b.to_f32(before[lane]));
        [x * cos + y * sin, y * cos - x * sin]
    };
    let mut after = before;
    for (lane, (after, scale)) in after.iter_mut().zip(scales).enumerate() {
        let pairs = first.iter().zip(&*second).zip(cos.iter().zip(sin));
        *after = T::scale(pairs.flat_map(|((a, b), (cos, sin))| turned(a[lane], b[lane], lane, *cos, *sin)));
        *scale = *after;
    }
    for ((first, second), (cos, sin)) in first.iter_mut().zip(second).zip(cos.iter().zip(sin)) {
        for (lane, (a, b)) in first.iter_mut().zip(second).enumerate() {
            let [x, y] = turned(*a, *b, lane, *cos, *sin);
            (*a, *b) = (T::from_f32(x, after[lane]), T::from_f32(y, after[lane]));
        }
    }
}

/// Keys and values to be stored: some of the rows of a pass.
pub(crate) struct NewPositions<'a> {
    /// The first one's position.
    pub first: usize,
    pub count: usize,
    /// The first one's row.
    pub row: usize,
    /// Of the pass.
    pub rows: usize,
    /// `[kv heads * head_dim/16][rows][16]`
    pub keys: &'a [f32],
    /// The same of the values.
    pub values: &'a [f32],
}

impl NewPositions<'_> {
    /// Writes those that belong into KV block `block` to `halves`, which are keys and values of heads in turn: units of the layer
    /// from `first` on.
    fn store<T: KvNumber>(
        &self,
        kernels: Kernels,
        first: usize,
        halves: &mut [T],
        [head_dim, unit]: [usize; 2],
        block: usize,
    ) {
        let start = block * KV_BLOCK;
        let positions = self.first.max(start)..(self.first + self.count).min(start + KV_BLOCK);
        for (i, half) in (first..).zip(halves.chunks_exact_mut(unit)) {
            let (numbers, scales) = half.split_at_mut(KV_BLOCK * head_dim);
            let (source, is_keys) = if i % 2 == 0 { (self.keys, true) } else { (self.values, false) };
            let source = &source[i / 2 * head_dim * self.rows..][..head_dim * self.rows];
            kernels.run(StoreHead {
                source: source.as_chunks().0,
                rows: self.rows,
                row: self.row + positions.start - self.first,
                positions: positions.start - start..positions.end - start,
                is_keys,
                numbers: numbers.as_chunks_mut().0,
                scales: bytemuck::cast_slice_mut(scales),
            });
        }
    }
}

/// Stores the keys, or values, of a head at some positions of a KV block.
struct StoreHead<'a, T> {
    /// `[head_dim/16][rows][16]`
    source: &'a [[f32; LANES]],
    rows: usize,
    /// The first one's row.
    row: usize,
    positions: Range<usize>,
    is_keys: bool,
    /// `[position/16][head_dim][16]` of keys, `[head_dim/16][position][16]` of values.
    numbers: &'a mut [[T; LANES]],
    /// `[position]`, or none.
    scales: &'a mut [f32],
}

impl<T: KvNumber> PlainOp for StoreHead<'_, T> {
    #[inline(always)]
    fn compute(self) {
        let StoreHead { source, rows, row, positions, is_keys, numbers, scales } = self;
        let head_dim = source.len() / rows * LANES;
        for (row, position) in (row..).zip(positions) {
            let panels = source.iter().skip(row).step_by(rows);
            let scale = T::scale(panels.clone().flatten().copied());
            if let Some(slot) = scales.get_mut(position) {
                *slot = scale;
            }
            for (panel, lanes) in panels.enumerate() {
                let mut stored = [T::zeroed(); LANES];
                for (number, &x) in stored.iter_mut().zip(lanes) {
                    *number = T::from_f32(x, scale);
                }
                if is_keys {
                    let first = position / LANES * head_dim + panel * LANES;
                    for (slot, number) in numbers[first..][..LANES].iter_mut().zip(stored) {
                        slot[position % LANES] = number;
                    }
                } else {
                    numbers[panel * KV_BLOCK + position] = stored;
                }
            }
        }
    }
}
