//! The vocabulary: token bytes, merges and added tokens as tables.

use std::collections::{HashMap, HashSet};

use std::borrow::Cow;

use smolrun::format::{self, AddedToken, NO_TOKEN, TextRules};

use super::alphabet::{Alphabet, METASPACE};
use super::definition::{Added, Definition, Merges};
use super::whole_words;
use crate::error::TokenizerError;

/// Every token of the file.
pub(super) struct Vocab<'a> {
    /// The model's tokens: those that merges are made of.
    ids: &'a HashMap<String, u32>,
    /// The text of each token, by id, added ones at the end.
    texts: Vec<Cow<'a, str>>,
    alphabet: Alphabet,
    rules: TextRules,
    /// Added tokens of which the alphabet would make other bytes than their texts are.
    literal: HashSet<u32>,
}

impl<'a> Vocab<'a> {
    /// Checks that the ids are 0, 1, 2 and so on, each once: the model's tokens in any order, then the added tokens
    /// that are not among them in theirs, which is how `tokenizers` numbers them whatever id they name.
    pub(super) fn new(definition: &'a Definition) -> Result<Vocab<'a>, TokenizerError> {
        let Definition { alphabet, rules, vocab: ids, added_tokens, .. } = definition;
        let (alphabet, rules) = (*alphabet, *rules);
        let mut texts = texts_by_id(ids)?;
        let (mut seen, mut literal) = (HashSet::new(), HashSet::new());
        for (index, added) in added_tokens.iter().enumerate() {
            let field = || format!("added_tokens[{index}], {:?}", added.content);
            if !seen.insert(&added.content) {
                return Err(TokenizerError::invalid(field(), "a text of its own", "one that came before"));
            }
            let id = *ids.get(&added.content).unwrap_or(&(texts.len() as u32));
            if added.id != id {
                return Err(TokenizerError::invalid(field(), format!("id {id}"), added.id));
            }
            let text = looked_for(added, rules, field)?;
            if added.is_literal && alphabet.bytes_of(&text) != text.as_bytes() {
                literal.insert(id);
            }
            match texts.get_mut(id as usize) {
                Some(slot) => *slot = text,
                None => texts.push(text),
            }
        }
        Ok(Vocab { ids, texts, alphabet, rules, literal })
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
            bytes.extend(self.bytes_of(id));
            let end = u32::try_from(bytes.len());
            offsets.push(end.map_err(|_| {
                TokenizerError::invalid("model.vocab", "less than 4 GiB of tokens", bytes.len())
            })?);
        }
        Ok((offsets, bytes))
    }

    /// What the token `id` stands for, nothing where there is none.
    fn bytes_of(&self, id: usize) -> Vec<u8> {
        let text = self.texts.get(id).map_or("", |text| text);
        match self.literal.contains(&(id as u32)) {
            true => text.as_bytes().to_vec(),
            false => self.alphabet.bytes_of(text),
        }
    }

    /// The id of a token that words become.
    fn id_of(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied().filter(|id| !self.literal.contains(id))
    }

    /// The token of each single byte, or `NO_TOKEN`.
    pub(super) fn byte_tokens(&self) -> [u32; 256] {
        std::array::from_fn(|byte| self.id_of(&self.alphabet.text_of(byte as u8)).unwrap_or(NO_TOKEN))
    }

    /// The token of each character that has one, by code point, where words start as characters.
    pub(super) fn char_tokens(&self) -> Vec<[u32; 2]> {
        if self.alphabet == Alphabet::ByteLevel {
            return Vec::new();
        }
        let entry = |(text, &id): (&String, &u32)| {
            let mut chars = text.chars();
            let (c, rest) = (chars.next()?, chars.next());
            let c = if METASPACE.starts_with(c) { ' ' } else { c };
            (rest.is_none() && self.alphabet.can_write(text)).then_some([u32::from(c), id])
        };
        let mut tokens: Vec<[u32; 2]> = self.ids.iter().filter_map(entry).collect();
        tokens.sort_unstable();
        tokens
    }

    /// The tokens that words become as a whole although the merges do not lead there.
    pub(super) fn whole_words(&self, byte_tokens: &[u32; 256], merges: &[[u32; 4]]) -> Vec<u32> {
        let is_word = |text: &str, id| self.alphabet.can_write(text) && !self.literal.contains(id);
        let tokens = self.ids.iter().filter(|(text, id)| is_word(text, id));
        let tokens = tokens.map(|(text, &id)| (id, self.alphabet.bytes_of(text))).collect();
        let merges =
            merges.iter().map(|&[left, right, rank, merged]| ((left, right), (rank, merged))).collect();
        whole_words::find(tokens, byte_tokens, &merges)
    }

    /// `ids`, each that of a token.
    pub(super) fn check_ids(&self, field: &str, ids: Vec<u32>) -> Result<Vec<u32>, TokenizerError> {
        match ids.iter().find(|&&id| id as usize >= self.len()) {
            Some(id) => Err(TokenizerError::invalid(
                field,
                format!("ids below {}, the number of tokens", self.len()),
                id,
            )),
            None => Ok(ids),
        }
    }

    /// Each merge: left id, right id, rank, merged id.
    pub(super) fn merges(&self, merges: &Merges) -> Result<Vec<[u32; 4]>, TokenizerError> {
        let pairs = pairs(merges)?;
        let mut entries = Vec::with_capacity(pairs.len());
        let mut seen = HashSet::new();
        for (index, &(rank, left, right)) in pairs.iter().enumerate() {
            let [left_id, right_id, merged] = self.merge(index, left, right)?;
            if !seen.insert((left, right)) {
                return Err(invalid_merge(index, "a pair of its own", format!("{left:?}, {right:?} again")));
            }
            entries.push([left_id, right_id, rank, merged]);
        }
        Ok(entries)
    }

    fn merge(&self, index: usize, left: &str, right: &str) -> Result<[u32; 3], TokenizerError> {
        let id = |text: &str| {
            let found = || format!("{text:?}, of {left:?} and {right:?}");
            self.id_of(text).ok_or_else(|| invalid_merge(index, "a token of the vocabulary", found()))
        };
        let merged = [left, right].concat();
        let bytes = |text: &str| self.alphabet.bytes_of(text);
        if bytes(&merged) != [bytes(left), bytes(right)].concat() {
            let expected = match self.alphabet {
                Alphabet::ByteLevel => "tokens in the byte-level alphabet",
                Alphabet::Metaspace => "tokens that name no byte",
            };
            return Err(invalid_merge(index, expected, format!("{left:?}, {right:?}")));
        }
        Ok([id(left)?, id(right)?, id(&merged)?])
    }

    /// Id and flags of each added token: those that are looked for first come first, then in order of their text.
    pub(super) fn added_tokens(&self, added: &[Added]) -> Result<Vec<[u32; 2]>, TokenizerError> {
        let mut order: Vec<usize> = (0..added.len()).collect();
        order.sort_by_key(|&index| (added[index].normalized, self.bytes_of(added[index].id as usize)));
        order.into_iter().map(|index| self.record(index, &added[index])).collect()
    }

    /// The record of the added token at `index`, if it is one that the runtime can look for.
    fn record(&self, index: usize, added: &Added) -> Result<[u32; 2], TokenizerError> {
        let field = |name: &str| format!("added_tokens[{index}].{name}, {:?}", added.content);
        if added.single_word {
            return Err(TokenizerError::unsupported(field("single_word"), "false", "true"));
        }
        if added.content.is_empty() {
            return Err(TokenizerError::invalid(field("content"), "text", "none"));
        }
        // In a normalized text there are no `▁`.
        let normalized = added.normalized && self.rules.has(TextRules::NORMALIZE_SPACE);
        let text = &self.texts[added.id as usize]; // `new` checked the ids
        let sought = if normalized { text.replace(METASPACE, " ") } else { text.to_string() };
        let bytes = self.bytes_of(added.id as usize);
        if bytes != sought.as_bytes() {
            let supported = "text that decodes to itself";
            let found = format!("\"{}\" after decoding", bytes.escape_ascii());
            return Err(TokenizerError::unsupported(field("content"), supported, found));
        }
        let flags = [
            (added.special, AddedToken::SPECIAL),
            (added.lstrip, AddedToken::LSTRIP),
            (added.rstrip, AddedToken::RSTRIP),
            (added.normalized, AddedToken::NORMALIZED),
        ];
        Ok([added.id, flags.iter().filter(|(on, _)| *on).map(|(_, flag)| flag).sum()])
    }
}

/// The hash table of merges.
pub(super) fn merge_table(merges: &[[u32; 4]]) -> Result<Vec<[u32; 4]>, TokenizerError> {
    format::Merges::build(merges).ok_or_else(|| {
        TokenizerError::invalid("model.merges", "pairs that fit a hash table", "pairs made to collide")
    })
}

/// The text as which an added token is looked for, and decoded: a normalized one after the normalizer.
fn looked_for(
    added: &Added,
    rules: TextRules,
    field: impl Fn() -> String,
) -> Result<Cow<'_, str>, TokenizerError> {
    if added.content.len() > AddedToken::MAX_LEN {
        let expected = format!("a text of at most {} bytes", AddedToken::MAX_LEN);
        return Err(TokenizerError::unsupported(
            field(),
            expected,
            format!("one of {}", added.content.len()),
        ));
    }
    if !added.normalized || added.content.is_empty() {
        return Ok(Cow::Borrowed(&added.content));
    }
    // NFC makes `K`, `;` and a grave accent of other characters: a text could come to spell a control token.
    let is_stable = added.content.is_ascii() && !(added.special && added.content.contains(['K', ';', '`']));
    if rules.has(TextRules::NFC) && !is_stable {
        let supported = "false where NFC could change the text, or make it of another";
        return Err(TokenizerError::unsupported(format!("{}.normalized", field()), supported, "true"));
    }
    match rules.has(TextRules::PREPEND_SPACE) {
        true => Ok(Cow::Owned([METASPACE, &added.content].concat())),
        false => Ok(Cow::Borrowed(&added.content)),
    }
}

fn texts_by_id(ids: &HashMap<String, u32>) -> Result<Vec<Cow<'_, str>>, TokenizerError> {
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
    Ok(texts.into_iter().flatten().map(Cow::Borrowed).collect()) // as many ids as slots, none twice: every slot is taken
}

/// Each merge: its rank and its two parts.
fn pairs(merges: &Merges) -> Result<Vec<(u32, &str, &str)>, TokenizerError> {
    match merges {
        Merges::Pairs(pairs) => {
            Ok((0..).zip(pairs).map(|(rank, [left, right])| (rank, &**left, &**right)).collect())
        }
        Merges::Ranked(pairs) => {
            Ok(pairs.iter().map(|(rank, [left, right])| (*rank, &**left, &**right)).collect())
        }
        Merges::Lines(lines) => {
            let lines = lines.iter().filter(|line| !line.starts_with("#version"));
            let pairs = (0..).zip(lines).map(|(rank, line)| {
                let pair = line.split_once(' ').filter(|(_, right)| !right.contains(' '));
                let (left, right) = pair.ok_or_else(|| {
                    invalid_merge(rank as usize, "two tokens and a space between", format!("{line:?}"))
                })?;
                Ok((rank, left, right))
            });
            pairs.collect()
        }
    }
}

fn invalid_merge(index: usize, expected: &str, found: String) -> TokenizerError {
    TokenizerError::invalid(format!("model.merges[{index}]"), expected, found)
}
