//! The vocabulary: token bytes, merges and added tokens as tables.

use std::collections::{HashMap, HashSet};

use smolrun::format::{self, AddedToken, NO_TOKEN};

use super::alphabet::{bytes_of, char_of};
use super::error::TokenizerError;
use super::json::{Added, Content, Merges};

/// Every token of the file.
pub(super) struct Vocab<'a> {
    /// The model's tokens: those that merges are made of.
    ids: &'a HashMap<String, u32>,
    /// The text of each token, by id, added ones at the end.
    texts: Vec<&'a str>,
}

impl<'a> Vocab<'a> {
    /// Checks that the ids are 0, 1, 2 and so on, each once: the model's tokens in any order, then the added tokens
    /// that are not among them in theirs, which is how `tokenizers` numbers them whatever id they name.
    pub(super) fn new(content: &'a Content) -> Result<Vocab<'a>, TokenizerError> {
        let ids = &content.model.vocab;
        let mut texts = texts_by_id(ids)?;
        let mut seen = HashSet::new();
        for (index, added) in content.added_tokens.iter().enumerate() {
            let field = || format!("added_tokens[{index}], {:?}", added.content);
            if !seen.insert(&added.content) {
                return Err(TokenizerError::invalid(field(), "a text of its own", "one that came before"));
            }
            let id = *ids.get(&added.content).unwrap_or(&(texts.len() as u32));
            if added.id != id {
                return Err(TokenizerError::invalid(field(), format!("id {id}"), added.id));
            }
            if id as usize == texts.len() {
                texts.push(&added.content);
            }
        }
        Ok(Vocab { ids, texts })
    }

    /// The number of tokens.
    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    /// Offsets and bytes of `vocab_size` tokens, empty ones at the end where the file has fewer.
    pub(super) fn token_bytes(&self, vocab_size: usize) -> Result<(Vec<u32>, Vec<u8>), TokenizerError> {
        if self.len() > vocab_size {
            let expected = format!("at most vocab_size tokens, {vocab_size}");
            return Err(TokenizerError::invalid("model.vocab and added_tokens", expected, self.len()));
        }
        let (mut offsets, mut bytes) = (vec![0], Vec::new());
        for id in 0..vocab_size {
            bytes.extend(self.texts.get(id).map(|text| bytes_of(text)).unwrap_or_default());
            let end = u32::try_from(bytes.len());
            offsets.push(end.map_err(|_| {
                TokenizerError::invalid("model.vocab", "less than 4 GiB of tokens", bytes.len())
            })?);
        }
        Ok((offsets, bytes))
    }

    /// The token of each single byte, or `NO_TOKEN`.
    pub(super) fn byte_tokens(&self) -> [u32; 256] {
        std::array::from_fn(|byte| {
            let text = char_of(byte as u8).to_string();
            self.ids.get(&text).copied().unwrap_or(NO_TOKEN)
        })
    }

    /// The hash table of merges.
    pub(super) fn merges(&self, merges: &Merges) -> Result<Vec<[u32; 4]>, TokenizerError> {
        let pairs = pairs(merges)?;
        let mut entries = Vec::with_capacity(pairs.len());
        let mut seen = HashSet::new();
        for (rank, &(left, right)) in pairs.iter().enumerate() {
            let entry = self.merge(rank, left, right)?;
            if !seen.insert((left, right)) {
                return Err(invalid_merge(rank, "a pair of its own", format!("{left:?}, {right:?} again")));
            }
            entries.push(entry);
        }
        format::Merges::build(&entries).ok_or_else(|| {
            TokenizerError::invalid("model.merges", "pairs that fit a hash table", "pairs made to collide")
        })
    }

    fn merge(&self, rank: usize, left: &str, right: &str) -> Result<[u32; 4], TokenizerError> {
        let id = |text: &str| {
            let found = || format!("{text:?}, of {left:?} and {right:?}");
            self.ids
                .get(text)
                .copied()
                .ok_or_else(|| invalid_merge(rank, "a token of the vocabulary", found()))
        };
        let merged = [left, right].concat();
        if bytes_of(&merged) != [bytes_of(left), bytes_of(right)].concat() {
            let expected = "tokens in the byte-level alphabet";
            return Err(invalid_merge(rank, expected, format!("{left:?}, {right:?}")));
        }
        Ok([id(left)?, id(right)?, rank as u32, id(&merged)?])
    }

    /// Id and flags of each added token: those that are looked for first come first, then in order of their text.
    pub(super) fn added_tokens(&self, added: &[Added]) -> Result<Vec<[u32; 2]>, TokenizerError> {
        let mut order: Vec<usize> = (0..added.len()).collect();
        order.sort_by_key(|&index| (added[index].normalized, added[index].content.as_str()));
        order.into_iter().map(|index| record(index, &added[index])).collect()
    }
}

fn texts_by_id(ids: &HashMap<String, u32>) -> Result<Vec<&str>, TokenizerError> {
    const FIELD: &str = "model.vocab";
    let mut texts = vec![None; ids.len()];
    for (text, &id) in ids {
        let count = ids.len();
        let wrong_id = || {
            let expected = format!("ids below {count}, the number of tokens");
            TokenizerError::invalid(FIELD, expected, format!("{id} for {text:?}"))
        };
        let slot: &mut Option<&str> = texts.get_mut(id as usize).ok_or_else(wrong_id)?;
        if let Some(other) = slot.replace(text) {
            let found = format!("{id} for {other:?} and {text:?}");
            return Err(TokenizerError::invalid(FIELD, "an id of its own for each token", found));
        }
    }
    Ok(texts.into_iter().flatten().collect()) // as many ids as slots, none twice: every slot is taken
}

/// The two parts of each merge, by rank.
fn pairs(merges: &Merges) -> Result<Vec<(&str, &str)>, TokenizerError> {
    match merges {
        Merges::Pairs(pairs) => Ok(pairs.iter().map(|[left, right]| (&**left, &**right)).collect()),
        Merges::Lines(lines) => {
            let lines = lines.iter().filter(|line| !line.starts_with("#version")).enumerate();
            let pairs = lines.map(|(rank, line)| {
                let pair = line.split_once(' ').filter(|(_, right)| !right.contains(' '));
                pair.ok_or_else(|| invalid_merge(rank, "two tokens and a space between", format!("{line:?}")))
            });
            pairs.collect()
        }
    }
}

/// The record of the added token at `index`, if it is one that the runtime can look for.
fn record(index: usize, added: &Added) -> Result<[u32; 2], TokenizerError> {
    let field = |name: &str| format!("added_tokens[{index}].{name}, {:?}", added.content);
    let switches = [("lstrip", added.lstrip), ("rstrip", added.rstrip), ("single_word", added.single_word)];
    if let Some((name, _)) = switches.into_iter().find(|(_, on)| *on) {
        return Err(TokenizerError::unsupported(field(name), "false", "true"));
    }
    if added.content.is_empty() {
        return Err(TokenizerError::invalid(field("content"), "text", "none"));
    }
    let bytes = bytes_of(&added.content);
    if bytes != added.content.as_bytes() {
        let supported = "text that decodes to itself";
        let found = format!("\"{}\" after decoding", bytes.escape_ascii());
        return Err(TokenizerError::unsupported(field("content"), supported, found));
    }
    let special = if added.special { AddedToken::SPECIAL } else { 0 };
    let normalized = if added.normalized { AddedToken::NORMALIZED } else { 0 };
    Ok([added.id, special | normalized])
}

fn invalid_merge(rank: usize, expected: &str, found: String) -> TokenizerError {
    TokenizerError::invalid(format!("model.merges[{rank}]"), expected, found)
}
