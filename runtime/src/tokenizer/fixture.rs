//! A tokenizer small enough to follow by hand, for the tests of this module.

use crate::format::{AddedToken, Merges, NO_TOKEN, TextRules};

use super::tables::Tables;

/// A change that makes the tables contradict themselves, and what has to be said about it.
pub(super) type Damage = (&'static str, fn(&mut Fixture));

/// The tables, in memory of their own, so that a test can damage them.
pub(super) struct Fixture {
    pub(super) offsets: Vec<u32>,
    pub(super) bytes: Vec<u8>,
    pub(super) byte_tokens: Vec<u32>,
    pub(super) merges: Vec<[u32; 4]>,
    pub(super) added: Vec<AddedToken>,
    pub(super) rules: TextRules,
    pub(super) chars: Vec<[u32; 2]>,
    pub(super) whole_words: Vec<u32>,
    pub(super) prompt_prefix: Vec<u32>,
}

impl Fixture {
    /// `tokens` by id. Those of one byte stand for it. `merges` by rank, each two tokens that a third is made of.
    /// `added` are tokens and their flags, in the table's order.
    pub(super) fn new(tokens: &[&str], merges: &[(&str, &str)], added: &[(&str, u32)]) -> Fixture {
        let id = |text: &str| tokens.iter().position(|&token| token == text).unwrap() as u32;
        let ends = tokens.iter().scan(0, |end, token| {
            *end += token.len() as u32;
            Some(*end)
        });
        let byte_token = |byte: u8| tokens.iter().position(|token| token.as_bytes() == [byte]);
        let entry = |(rank, &(left, right)): (u32, &(&str, &str))| {
            [id(left), id(right), rank, id(&[left, right].concat())]
        };
        let entries: Vec<[u32; 4]> = (0..).zip(merges).map(entry).collect();
        Fixture {
            offsets: std::iter::once(0).chain(ends).collect(),
            bytes: tokens.concat().into_bytes(),
            byte_tokens: (0..=255).map(|byte| byte_token(byte).map_or(NO_TOKEN, |id| id as u32)).collect(),
            merges: Merges::build(&entries).unwrap(),
            added: added.iter().map(|&(text, flags)| AddedToken { id: id(text), flags }).collect(),
            rules: TextRules::default(),
            chars: Vec::new(),
            whole_words: Vec::new(),
            prompt_prefix: Vec::new(),
        }
    }

    pub(super) fn tables(&self) -> Tables<'_> {
        Tables {
            vocab_size: self.offsets.len() - 1,
            offsets: &self.offsets,
            bytes: &self.bytes,
            byte_tokens: &self.byte_tokens,
            merges: Merges::parse(bytemuck::cast_slice(&self.merges)).unwrap(),
            added: &self.added,
            rules: self.rules,
            chars: &self.chars,
            whole_words: &self.whole_words,
            prompt_prefix: &self.prompt_prefix,
        }
    }
}
