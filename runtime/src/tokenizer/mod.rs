//! From text to token ids and back, straight off the blob's tables.

mod added_tokens;
mod bpe;
mod check;
#[cfg(test)]
mod fixture;
mod ids;
mod normalize;
mod prefixes;
mod pretokenizer;
mod tables;
mod work;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use self::added_tokens::{AddedTokens, Segment};
use self::bpe::Bpe;
use self::ids::Ids;
#[cfg(feature = "chat")]
pub(crate) use self::prefixes::Prefixes;
use self::tables::Tables;
use crate::error::{Error, Result};
use crate::format::{FormatError, Kind, Layout, TextRules, TokenizerSections};
use crate::storage::Storage;

/// The tokenizer of a blob. Making one reads nothing, and clones share the blob.
#[derive(Clone)]
pub struct Tokenizer {
    storage: Arc<Storage>,
    sections: TokenizerSections,
    vocab_size: usize,
}

/// What happens to control tokens that are spelled out in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpecialTokens {
    /// They are text like any other. Use this for whatever a user wrote.
    AsText,
    /// They become the control tokens they spell. Use this for text that the program itself put together.
    Parse,
}

impl Tokenizer {
    /// The tokenizer of the blob in `storage`, which `layout` was parsed from.
    pub fn new(storage: Arc<Storage>, layout: &Layout) -> Tokenizer {
        Tokenizer::from_sections(storage, layout.tokenizer.clone(), layout.config.vocab_size)
    }

    /// A tokenizer whose tables lie at `sections` of `storage`, with or without a model around them.
    ///
    /// Tables that do not fit together are an error of the call that meets them.
    #[doc(hidden)]
    pub fn from_sections(storage: Arc<Storage>, sections: TokenizerSections, vocab_size: usize) -> Tokenizer {
        Tokenizer { storage, sections, vocab_size }
    }

    /// Every id is below this.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The tokens of `text` alone: for pieces of a text. Nothing is added around them, not what a prompt begins with either:
    /// that is [`Model::encode_prompt`](crate::Model::encode_prompt).
    ///
    /// Time and memory are in proportion to the text, whatever the tables are. Each byte takes at most 256 steps for
    /// added tokens, 67 in each of at most 16 stages of the pre-tokenizer, and 6 in byte-pair encoding. A word takes 48
    /// times its bytes of memory, and a text that is normalized up to 16 times its own.
    pub fn encode(&self, text: &str, special: SpecialTokens) -> Result<Vec<u32>> {
        self.encode_segments(text, special, None, Ids::new(usize::MAX))
    }

    /// Like [`Tokenizer::encode`], but fails as soon as it is clear that there are more than `limit` tokens. A text
    /// that is far too long is not encoded in vain.
    pub fn encode_within(&self, text: &str, special: SpecialTokens, limit: usize) -> Result<Vec<u32>> {
        self.encode_segments(text, special, None, Ids::new(limit))
    }

    /// The tokens of `text`. Control tokens in it are parsed, unless the character `guard` lies inside one: then it
    /// stays text. Guards are taken out of what is left when the control tokens have been found.
    #[doc(hidden)]
    pub fn encode_guarded(&self, text: &str, guard: char) -> Result<Vec<u32>> {
        self.encode_guarded_within(text, guard, usize::MAX)
    }

    /// As [`Tokenizer::encode_guarded`], within `limit` as in [`Tokenizer::encode_within`].
    #[doc(hidden)]
    pub fn encode_guarded_within(&self, text: &str, guard: char, limit: usize) -> Result<Vec<u32>> {
        self.encode_segments(text, SpecialTokens::Parse, Some(guard), Ids::new(limit))
    }

    fn encode_segments(
        &self,
        text: &str,
        special: SpecialTokens,
        guard: Option<char>,
        mut ids: Ids,
    ) -> Result<Vec<u32>> {
        let tables = self.tables()?;
        let stages = tables::stages(self.storage.bytes(), &self.sections)?;
        let mut bpe = Bpe::new(tables);
        AddedTokens::new(&tables)?.split(text, special, &mut |segment, first| match segment {
            Segment::Text(text) => {
                let text = normalize::prefix(tables.rules, without(guard, text), first);
                pretokenizer::split(&stages, &text, &mut |word| bpe.encode(word, &mut ids))
            }
            Segment::Token(id) => ids.push(id),
        })?;
        Ok(ids.into_vec())
    }

    /// The ids with which a prompt begins, before those of its text: usually none, or the one that begins a text.
    /// [`Model::encode_prompt`](crate::Model::encode_prompt) puts them there.
    pub fn prompt_prefix(&self) -> Result<&[u32]> {
        let tables = self.tables()?;
        tables.prompt_prefix.iter().try_for_each(|&id| tables.known(id, Kind::PromptPrefix).map(drop))?;
        Ok(tables.prompt_prefix)
    }

    /// The tokens of `text` as those of a whole prompt: what [`Tokenizer::encode`] gives, after the
    /// [`Tokenizer::prompt_prefix`].
    #[doc(hidden)] // of a tokenizer without a model: others go by `Model::encode_prompt`
    pub fn encode_prompt(&self, text: &str, special: SpecialTokens) -> Result<Vec<u32>> {
        self.encode_prompt_within(text, special, usize::MAX)
    }

    /// As [`Tokenizer::encode_prompt`], within `limit` as in [`Tokenizer::encode_within`].
    #[doc(hidden)]
    pub fn encode_prompt_within(&self, text: &str, special: SpecialTokens, limit: usize) -> Result<Vec<u32>> {
        let mut ids = Ids::new(limit);
        self.prompt_prefix()?.iter().try_for_each(|&id| ids.push(id))?;
        self.encode_segments(text, special, None, ids)
    }

    /// The text of `ids`, without the control tokens among them if `skip_special`. Bytes that are not UTF-8 become
    /// U+FFFD, as in [`String::from_utf8_lossy`]. If the tokenizer starts from characters, each byte of a run of byte
    /// tokens becomes U+FFFD if the run as a whole is not UTF-8.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        let tables = self.tables()?;
        let skipped = if skip_special { special_ids(&tables) } else { Vec::new() };
        let (mut bytes, mut run) = (Vec::new(), Vec::new());
        for &id in ids {
            let token = self.token_bytes(id)?;
            if skipped.binary_search(&id).is_ok() {
                continue;
            }
            match token {
                &[byte] if is_byte_token(&tables, id, byte)? => run.push(byte),
                _ => {
                    flush(&mut run, &mut bytes);
                    bytes.extend_from_slice(token);
                }
            }
        }
        flush(&mut run, &mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        let stripped = text.strip_prefix(' ').filter(|_| tables.rules.has(TextRules::STRIP_SPACE));
        Ok(stripped.unwrap_or(&text).to_owned())
    }

    /// The bytes that token `id` stands for: any part of UTF-8 text, cut anywhere. It has none if the model has the id
    /// but the tokenizer does not.
    pub fn token_bytes(&self, id: u32) -> Result<&[u8]> {
        match (id as usize) < self.vocab_size {
            true => Ok(self.tables()?.token(id)?),
            false => Err(Error::TokenId { id, vocab_size: self.vocab_size }),
        }
    }

    /// Whether `id` is a control token.
    pub fn is_special(&self, id: u32) -> Result<bool> {
        Ok(self.tables()?.added.iter().any(|token| token.id == id && token.is_special()))
    }

    /// Id and text of every control token, as it is spelled in a text.
    pub fn special_tokens(&self) -> Result<Vec<(u32, &str)>> {
        let tables = self.tables()?;
        let special = tables.added.iter().filter(|token| token.is_special());
        let named = special.map(|&token| Ok((token.id, added_tokens::spelling(&tables, token)?)));
        named.collect()
    }

    /// The text that spells token `id`. That is what it decodes to, except for an added token that is looked for after
    /// the space that a normalizer puts before a text: this one comes without that space.
    pub fn token_text(&self, id: u32) -> Result<String> {
        let tables = self.tables()?;
        match tables.added.iter().find(|token| token.id == id) {
            Some(&token) => Ok(added_tokens::spelling(&tables, token)?.to_owned()),
            None => Ok(String::from_utf8_lossy(self.token_bytes(id)?).into_owned()),
        }
    }

    /// Reads every table from end to end and checks that the parts fit together: the tokenizer's share of
    /// verifying a blob.
    #[doc(hidden)]
    pub fn check(&self) -> std::result::Result<(), FormatError> {
        let tables = self.tables()?;
        check::check(&tables, &tables::stages(self.storage.bytes(), &self.sections)?)
    }

    fn tables(&self) -> std::result::Result<Tables<'_>, FormatError> {
        Tables::new(self.storage.bytes(), &self.sections, self.vocab_size)
    }
}

/// The ids of the control tokens, ascending.
fn special_ids(tables: &Tables) -> Vec<u32> {
    let special = tables.added.iter().filter(|token| token.is_special());
    let mut ids: Vec<u32> = special.map(|token| token.id).collect();
    ids.sort_unstable();
    ids
}

/// Whether token `id` is one of those that stand for the bytes of characters without a token.
fn is_byte_token(tables: &Tables, id: u32, byte: u8) -> std::result::Result<bool, FormatError> {
    Ok(tables.starts_from_chars() && tables.char_token(byte.into())? != Some(id))
}

/// Appends a run of byte tokens to `bytes`.
fn flush(run: &mut Vec<u8>, bytes: &mut Vec<u8>) {
    match std::str::from_utf8(run) {
        Ok(_) => bytes.append(run),
        Err(_) => run.drain(..).for_each(|_| bytes.extend_from_slice("\u{fffd}".as_bytes())),
    }
}

/// `text` without the character `guard`.
fn without(guard: Option<char>, text: &str) -> Cow<'_, str> {
    match guard {
        Some(guard) if text.contains(guard) => Cow::Owned(text.replace(guard, "")),
        _ => Cow::Borrowed(text),
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.vocab_size).finish_non_exhaustive()
    }
}
