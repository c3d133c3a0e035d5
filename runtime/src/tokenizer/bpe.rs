//! Byte-pair encoding of one word.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::error::{Error, Result};
use crate::format::{Kind, Merge};

use super::ids::{Ids, Room};
use super::tables::Tables;
use super::work;

/// The encoder. Its scratch memory serves one word after the other.
///
/// A word of n bytes takes at most 3 n lookups of merges, as many steps of the queue, and 48 n bytes of memory.
pub(super) struct Bpe<'a> {
    tables: Tables<'a>,
    /// The word's tokens, a list linked by index: a merge takes the right one out of it.
    symbols: Vec<Symbol>,
    /// Rank and index of pairs that may still be there, the lowest rank first, and of equal ones the leftmost: the rank in the
    /// upper 32 bits, so that one comparison orders both.
    queue: BinaryHeap<Reverse<u64>>,
}

#[derive(Clone, Copy)]
struct Symbol {
    id: u32,
    /// What it and the next one become, if they merge; `None` once it is out of the list.
    merge: Option<Merge>,
    /// An index past the end where there is none.
    previous: u32,
    /// An index past the end where there is none.
    next: u32,
}

impl<'a> Bpe<'a> {
    pub(super) fn new(tables: Tables<'a>) -> Bpe<'a> {
        Bpe { tables, symbols: Vec::new(), queue: BinaryHeap::new() }
    }

    /// Appends the tokens of `word` to `ids`.
    pub(super) fn encode(&mut self, word: &str, ids: &mut Ids) -> Result<()> {
        if let Some(id) = self.tables.whole_word(word)? {
            return ids.push(id);
        }
        self.start(word, ids.room(word.len(), &self.tables))?;
        while let Some(Reverse(pair)) = self.queue.pop() {
            work::steps(1);
            let (rank, left) = ((pair >> 32) as u32, pair as u32);
            // The pair is there if it still merges by this rank: if it is a later one, it was to come at this very place.
            if let Some(merge) = self.symbols[left as usize].merge.filter(|merge| merge.rank == rank) {
                self.merge(left, merge.merged)?;
            }
        }
        let mut index = 0;
        while let Some(symbol) = self.symbols.get(index as usize) {
            ids.push(symbol.id)?;
            index = symbol.next;
        }
        Ok(())
    }

    /// One symbol for each character, or each of its bytes, that has a token; other bytes are dropped as if they were
    /// not there. An error once it is clear that there is no room for what becomes of them.
    fn start(&mut self, word: &str, room: Room) -> Result<()> {
        self.symbols.clear();
        self.queue.clear();
        let bytes = room.symbols().saturating_mul(size_of::<Symbol>());
        let out_of_memory = |_| Error::OutOfMemory { what: "a word", bytes };
        self.symbols.try_reserve_exact(room.symbols()).map_err(out_of_memory)?;
        if !self.tables.starts_from_chars() {
            return self.push_bytes(word, room);
        }
        for (at, c) in word.char_indices() {
            match self.tables.char_token(c)? {
                Some(id) => self.push(id, room)?,
                None => self.push_bytes(&word[at..at + c.len_utf8()], room)?,
            }
        }
        Ok(())
    }

    fn push_bytes(&mut self, text: &str, room: Room) -> Result<()> {
        for byte in text.bytes() {
            if let Some(id) = self.tables.byte_token(byte)? {
                self.push(id, room)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn push(&mut self, id: u32, room: Room) -> Result<()> {
        room.check(self.symbols.len())?;
        let index = self.symbols.len() as u32; // `Room` has 32 bits
        let previous = index.wrapping_sub(1);
        self.symbols.push(Symbol { id, merge: None, previous, next: index + 1 });
        self.pair(previous);
        Ok(())
    }

    /// Puts the token `merged` in the place of the symbol at `left` and the next one.
    fn merge(&mut self, left: u32, merged: u32) -> Result<()> {
        let merged = self.tables.known(merged, Kind::Merges)?;
        let right = self.symbols[left as usize].next;
        let taken = &mut self.symbols[right as usize];
        taken.merge = None;
        let next = taken.next;
        if let Some(symbol) = self.symbols.get_mut(next as usize) {
            symbol.previous = left;
        }
        let symbol = &mut self.symbols[left as usize];
        (symbol.id, symbol.next) = (merged, next);
        let previous = symbol.previous;
        self.pair(previous);
        self.pair(left);
        Ok(())
    }

    /// Looks up what the symbol at `left`, if there is one, and the next one merge to.
    #[inline(always)]
    fn pair(&mut self, left: u32) {
        work::steps(1);
        let Some(&Symbol { id, next, .. }) = self.symbols.get(left as usize) else { return };
        let merge = self.symbols.get(next as usize).and_then(|next| self.tables.merges.find(id, next.id));
        self.symbols[left as usize].merge = merge;
        if let Some(Merge { rank, .. }) = merge {
            self.queue.push(Reverse(u64::from(rank) << 32 | u64::from(left)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::Fixture;
    use super::*;

    fn encode(fixture: &Fixture, words: &[&str]) -> Result<Vec<u32>> {
        let mut bpe = Bpe::new(fixture.tables());
        let mut ids = Ids::new(usize::MAX);
        words.iter().try_for_each(|word| bpe.encode(word, &mut ids))?;
        Ok(ids.into_vec())
    }

    fn fixture() -> Fixture {
        let tokens = ["a", "b", "c", "bc", "ab", "abc", "aa"];
        Fixture::new(&tokens, &[("b", "c"), ("a", "b"), ("a", "bc"), ("a", "a")], &[])
    }

    #[test]
    fn the_lowest_rank_merges_first_then_the_leftmost() {
        let fixture = fixture();
        assert_eq!(encode(&fixture, &["abc"]).unwrap(), [5], "a bc, although ab comes first in the text");
        assert_eq!(encode(&fixture, &["aaa"]).unwrap(), [6, 0]);
        assert_eq!(encode(&fixture, &["aaaa"]).unwrap(), [6, 6]);
        assert_eq!(encode(&fixture, &["aab"]).unwrap(), [0, 4]);
        assert_eq!(encode(&fixture, &["cba"]).unwrap(), [2, 1, 0]);
    }

    #[test]
    fn words_do_not_touch() {
        assert_eq!(encode(&fixture(), &["a", "b", "", "c", "bc"]).unwrap(), [0, 1, 2, 3]);
    }

    #[test]
    fn bytes_without_a_token_are_dropped_and_their_neighbours_merge() {
        assert_eq!(encode(&fixture(), &["a-bé"]).unwrap(), [4]);
        assert_eq!(encode(&fixture(), &["-"]).unwrap(), [0u32; 0]);
    }

    #[test]
    fn characters_come_before_their_bytes() {
        let mut fixture = Fixture::new(&["a", "é", "aé", "\n"], &[("a", "é")], &[]);
        fixture.chars = vec![[u32::from('a'), 0], [u32::from('é'), 1]];
        assert_eq!(encode(&fixture, &["aéa\né日"]).unwrap(), [2, 0, 3, 1]);
        fixture.chars[0][1] = 9;
        assert!(encode(&fixture, &["a"]).unwrap_err().to_string().contains("char_tokens"));
    }

    #[test]
    fn some_words_are_not_merged() {
        let mut fixture = fixture();
        fixture.whole_words = vec![0, 4];
        assert_eq!(encode(&fixture, &["a", "ab", "abc"]).unwrap(), [0, 4, 5]);
        let mut fixture = Fixture::new(&["a", "b", "ab", "ba"], &[], &[]);
        fixture.whole_words = vec![2];
        assert_eq!(encode(&fixture, &["ab", "ba"]).unwrap(), [2, 1, 0]);
        fixture.whole_words = vec![99, 2];
        encode(&fixture, &["ab"]).unwrap();
    }

    #[test]
    fn ids_past_the_vocabulary_are_errors() {
        let mut fixture = fixture();
        fixture.byte_tokens[usize::from(b'c')] = 7;
        assert!(encode(&fixture, &["c"]).unwrap_err().to_string().contains("below vocab_size, 7, found 7"));
        fixture.merges.iter_mut().for_each(|slot| slot[3] = 8);
        assert!(encode(&fixture, &["ab"]).unwrap_err().to_string().contains("found 8"));
    }
}
