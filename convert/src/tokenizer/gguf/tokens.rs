//! The tokens of a GGUF file and their types.

use std::collections::{HashMap, HashSet};

use crate::error::{Error, Result};
use crate::source::gguf::Metadata;
use crate::tokenizer::definition::{Added, check_size};

pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";

/// `token_type` of a piece that others are merged to.
pub(super) const NORMAL: i128 = 1;
/// The same of the token for what has none, of control tokens, of tokens that somebody added, and of rows of the
/// embedding without a token.
const UNKNOWN: i128 = 2;
const CONTROL: i128 = 3;
pub(super) const USER_DEFINED: i128 = 4;
pub(super) const UNUSED: i128 = 5;

/// JSON values that `tokenizer.json` has for an added token.
const VALUES_OF_ADDED: usize = 8;

/// Tokens and their types.
pub(super) struct Tokens<'a> {
    /// Those that only fill the embedding up, at the end, are left out.
    pub(super) texts: &'a [String],
    /// Every token of the file, also those at the end.
    pub(super) all: &'a [String],
    /// The type of each.
    pub(super) types: Vec<i128>,
}

impl<'a> Tokens<'a> {
    pub(super) fn read(metadata: &'a Metadata) -> Result<Tokens<'a>> {
        let all = metadata.required(TOKENS, metadata.strings(TOKENS))?;
        let types = metadata.required(TYPES, metadata.integers(TYPES))?;
        if types.len() != all.len() {
            return Err(metadata.wrong(TYPES, format!("one for each token, {}", all.len()), types.len()));
        }
        if let Some(other) = types.iter().find(|kind| !(1..=6).contains(*kind)) {
            return Err(metadata.wrong(TYPES, "types from 1 to 6", other));
        }
        let used = types.iter().rposition(|&kind| kind != UNUSED).map_or(0, |last| last + 1);
        let texts = &all[..used];
        let mut seen = HashSet::new();
        match texts.iter().find(|text| !seen.insert(text.as_str())) {
            Some(text) => Err(metadata.wrong(TOKENS, "each token once", format!("{text:?} again"))),
            None => Ok(Tokens { texts, all, types }),
        }
    }

    fn is_added(&self, id: usize) -> bool {
        matches!(self.types[id], UNKNOWN | CONTROL | USER_DEFINED)
    }

    /// Those that are not only added at the end.
    fn in_vocab(&self) -> &'a [String] {
        let end = (0..self.texts.len()).rposition(|id| !self.is_added(id)).map_or(0, |last| last + 1);
        &self.texts[..end]
    }

    pub(super) fn vocab(&self) -> HashMap<String, u32> {
        self.in_vocab().iter().cloned().zip(0..).collect()
    }

    fn added_ids(&self) -> impl Iterator<Item = usize> {
        (0..self.texts.len()).filter(|&id| self.is_added(id))
    }

    pub(super) fn added(&self) -> Vec<Added> {
        let record = |id: usize| Added {
            id: id as u32, // the header has no room for more
            content: self.texts[id].clone(),
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            special: self.types[id] != USER_DEFINED,
            is_literal: true,
        };
        self.added_ids().map(record).collect()
    }

    /// Holds a GGUF file to the limit of a `tokenizer.json` that says the same, with so many values of merges.
    pub(super) fn check_size(&self, metadata: &Metadata, merges: usize) -> Result<()> {
        let values = self.in_vocab().len() + VALUES_OF_ADDED * self.added_ids().count() + merges;
        check_size(values).map_err(|source| Error::Tokenizer { path: metadata.path().to_owned(), source })
    }
}
