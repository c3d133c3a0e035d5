//! Byte-pair encoding of one word.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::format::{FormatError, Kind, Merge};

use super::tables::Tables;

/// The encoder. Its scratch memory serves one word after the other.
pub(super) struct Bpe<'a> {
    tables: Tables<'a>,
    /// The word's tokens, a list linked by index: a merge takes the right one out of it.
    symbols: Vec<Symbol>,
    /// Rank and index of pairs that may still be there, the lowest rank first, and of equal ones the leftmost.
    queue: BinaryHeap<Reverse<(u32, usize)>>,
}

#[derive(Clone, Copy)]
struct Symbol {
    id: u32,
    /// What it and the next one become, if they merge; `None` once it is out of the list.
    merge: Option<Merge>,
    /// An index past the end where there is none.
    previous: usize,
    /// An index past the end where there is none.
    next: usize,
}

impl<'a> Bpe<'a> {
    pub(super) fn new(tables: Tables<'a>) -> Bpe<'a> {
        Bpe { tables, symbols: Vec::new(), queue: BinaryHeap::new() }
    }

    /// Appends the tokens of `word` to `ids`.
    pub(super) fn encode(&mut self, word: &str, ids: &mut Vec<u32>) -> Result<(), FormatError> {
        if let Some(id) = self.tables.whole_word(word)? {
            ids.push(id);
            return Ok(());
        }
        self.start(word)?;
        while let Some(Reverse((rank, left))) = self.queue.pop() {
            // The pair is there if nothing has become of it since: every later pair at this index has another rank.
            if let Some(merge) = self.symbols[left].merge.filter(|merge| merge.rank == rank) {
                self.merge(left, merge.merged)?;
            }
        }
        let mut index = 0;
        while let Some(symbol) = self.symbols.get(index) {
            ids.push(symbol.id);
            index = symbol.next;
        }
        Ok(())
    }

    /// One symbol for each character, or each of its bytes, that has a token; other bytes are dropped as if they were
    /// not there.
    fn start(&mut self, word: &str) -> Result<(), FormatError> {
        self.symbols.clear();
        self.queue.clear();
        if !self.tables.starts_from_chars() {
            return self.push_bytes(word);
        }
        for (at, c) in word.char_indices() {
            match self.tables.char_token(c)? {
                Some(id) => self.push(id),
                None => self.push_bytes(&word[at..at + c.len_utf8()])?,
            }
        }
        Ok(())
    }

    fn push_bytes(&mut self, text: &str) -> Result<(), FormatError> {
        for byte in text.bytes() {
            if let Some(id) = self.tables.byte_token(byte)? {
                self.push(id);
            }
        }
        Ok(())
    }

    fn push(&mut self, id: u32) {
        let index = self.symbols.len();
        let previous = index.wrapping_sub(1);
        self.symbols.push(Symbol { id, merge: None, previous, next: index + 1 });
        self.pair(previous);
    }

    /// Puts the token `merged` in the place of the symbol at `left` and the next one.
    fn merge(&mut self, left: usize, merged: u32) -> Result<(), FormatError> {
        let merged = self.tables.known(merged, Kind::Merges)?;
        let right = self.symbols[left].next;
        self.symbols[right].merge = None;
        let next = self.symbols[right].next;
        if let Some(symbol) = self.symbols.get_mut(next) {
            symbol.previous = left;
        }
        let symbol = &mut self.symbols[left];
        (symbol.id, symbol.next) = (merged, next);
        let previous = symbol.previous;
        self.pair(previous);
        self.pair(left);
        Ok(())
    }

    /// Looks up what the symbol at `left`, if there is one, and the next one merge to.
    fn pair(&mut self, left: usize) {
        let Some(&symbol) = self.symbols.get(left) else { return };
        let next = self.symbols.get(symbol.next);
        let merge = next.and_then(|next| self.tables.merges.find(symbol.id, next.id));
        self.symbols[left].merge = merge;
        if let Some(merge) = merge {
            self.queue.push(Reverse((merge.rank, left)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::Fixture;
    use super::*;

    fn encode(fixture: &Fixture, words: &[&str]) -> Result<Vec<u32>, FormatError> {
        let mut bpe = Bpe::new(fixture.tables());
        let mut ids = Vec::new();
        words.iter().try_for_each(|word| bpe.encode(word, &mut ids))?;
        Ok(ids)
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
