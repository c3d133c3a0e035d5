//! Beginnings of sequences, kept for those that begin alike.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt;

use super::Sequence;
use super::kv_cache::{KV_BLOCK, KvDtype, SharedBlock};

/// Keys and values of what sequences began with, in blocks of 64 positions, so that the next one that begins alike
/// need not compute them again.
///
/// A block is found by its tokens and the block before it, so that what is restored is what these tokens, and nothing
/// else, led to: the same bits as if they had been computed. It is shared, never copied. When the blocks take more
/// bytes than the budget, those that were used longest ago go.
///
/// One cache may serve engines of several models.
pub struct PrefixCache {
    budget: usize,
    bytes: usize,
    blocks: HashMap<Key, Entry>,
    /// The same by age: what was used longest ago first, and of one sequence the last block first. So a block never
    /// goes before those that follow it.
    by_age: BTreeMap<Age, Key>,
    /// How often sequences were stored or restored.
    uses: u64,
    /// Blocks there have ever been.
    count: u64,
}

/// What leads to a block.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    parent: Parent,
    tokens: [u32; KV_BLOCK],
}

/// What comes before a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Parent {
    /// Nothing, in a model of this hash with keys and values that are kept in this way.
    Start([u8; 32], KvDtype),
    /// The block of this number.
    Block(u64),
}

struct Entry {
    block: SharedBlock,
    bytes: usize,
    number: u64,
    age: Age,
}

/// When a block was last used, and how far it is from the start.
type Age = (u64, Reverse<usize>);

impl PrefixCache {
    /// An empty cache, for so many bytes of keys and values at most.
    pub fn new(budget_bytes: usize) -> PrefixCache {
        PrefixCache {
            budget: budget_bytes,
            bytes: 0,
            blocks: HashMap::new(),
            by_age: BTreeMap::new(),
            uses: 0,
            count: 0,
        }
    }

    /// Bytes of the keys and values in it, those included that sequences share.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Gives an empty sequence the longest prefix of `tokens` that is stored, in whole blocks and always fewer tokens
    /// than all, and returns how many it has now. What follows them is still to be fed. A sequence that is not empty
    /// stays as it is.
    pub fn restore(&mut self, tokens: &[u32], sequence: &mut Sequence) -> usize {
        if sequence.position() > 0 {
            return sequence.position();
        }
        self.uses += 1;
        let most = tokens.len().saturating_sub(1).min(sequence.room());
        let mut parent = Parent::of(sequence);
        sequence.cache.clear();
        for (depth, tokens) in tokens[..most].as_chunks::<KV_BLOCK>().0.iter().enumerate() {
            let key = Key { parent, tokens: *tokens };
            let Some(entry) = self.blocks.get_mut(&key) else { break };
            parent = Parent::Block(entry.number);
            sequence.append_block(tokens, entry.block.clone());
            touch(&mut self.by_age, entry, key, (self.uses, Reverse(depth)));
        }
        sequence.position()
    }

    /// Stores the whole blocks of a sequence, without copying them: of one that has slid those of its first 256
    /// tokens, and none of what a fast engine rounded.
    pub fn store(&mut self, sequence: &Sequence) {
        if sequence.is_rounded {
            return;
        }
        self.uses += 1;
        let mut parent = Parent::of(sequence);
        let tokens = &sequence.tokens()[..sequence.prefix()];
        for (depth, tokens) in tokens.as_chunks::<KV_BLOCK>().0.iter().enumerate() {
            let (key, age) = (Key { parent, tokens: *tokens }, (self.uses, Reverse(depth)));
            if let Some(entry) = self.blocks.get_mut(&key) {
                parent = Parent::Block(entry.number);
                touch(&mut self.by_age, entry, key, age);
                continue;
            }
            let bytes = sequence.cache.block_bytes();
            if !self.make_room(bytes) {
                return;
            }
            (self.bytes, self.count) = (self.bytes + bytes, self.count + 1);
            parent = Parent::Block(self.count);
            self.by_age.insert(age, key.clone());
            let block = sequence.cache.shared(depth);
            self.blocks.insert(key, Entry { block, bytes, number: self.count, age });
        }
    }

    /// Drops blocks until there is room for so many more bytes. It drops none of this use: says whether there is room.
    fn make_room(&mut self, bytes: usize) -> bool {
        while self.bytes.saturating_add(bytes) > self.budget {
            match self.by_age.first_entry() {
                Some(oldest) if oldest.key().0 < self.uses => {
                    let dropped = self.blocks.remove(&oldest.remove());
                    self.bytes -= dropped.map_or(0, |entry| entry.bytes);
                }
                _ => return false,
            }
        }
        true
    }
}

impl Parent {
    /// Of the first block of such a sequence.
    fn of(sequence: &Sequence) -> Parent {
        Parent::Start(sequence.blob, sequence.kv_dtype())
    }
}

impl fmt::Debug for PrefixCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefixCache")
            .field("bytes", &self.bytes)
            .field("budget", &self.budget)
            .finish_non_exhaustive()
    }
}

fn touch(by_age: &mut BTreeMap<Age, Key>, entry: &mut Entry, key: Key, age: Age) {
    by_age.remove(&entry.age);
    by_age.insert(age, key);
    entry.age = age;
}
