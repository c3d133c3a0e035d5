//! The tokenizer's tables in a blob, read in place. Nothing is trusted: every number is checked where it is used.

use std::ops::Range;

use crate::format::{AddedToken, Dfa, FormatError, Kind, Merges, NO_TOKEN, TextRules, TokenizerSections};

/// Most pre-tokenizer stages: they run nested in one another, so their number bounds the stack.
const MAX_STAGES: usize = 16;

/// Views of the tables, as cheap to make as a few comparisons.
#[derive(Clone, Copy)]
pub(super) struct Tables<'a> {
    pub(super) vocab_size: usize,
    pub(super) offsets: &'a [u32],
    pub(super) bytes: &'a [u8],
    pub(super) byte_tokens: &'a [u32],
    pub(super) merges: Merges<'a>,
    pub(super) added: &'a [AddedToken],
    pub(super) rules: TextRules,
    /// Code point and id of each character that is a token, by code point; none where words start as bytes.
    pub(super) chars: &'a [[u32; 2]],
    /// By their bytes.
    pub(super) whole_words: &'a [u32],
    pub(super) prompt_prefix: &'a [u32],
}

impl<'a> Tables<'a> {
    pub(super) fn new(
        blob: &'a [u8],
        sections: &TokenizerSections,
        vocab_size: usize,
    ) -> Result<Tables<'a>, FormatError> {
        Ok(Tables {
            vocab_size,
            offsets: numbers(blob, &sections.token_offsets, Kind::TokenOffsets)?,
            bytes: section(blob, &sections.token_bytes, Kind::TokenBytes)?,
            byte_tokens: numbers(blob, &sections.byte_tokens, Kind::ByteTokens)?,
            merges: Merges::parse(section(blob, &sections.merges, Kind::Merges)?)?,
            added: AddedToken::parse(section(blob, &sections.added_tokens, Kind::AddedTokens)?)?,
            rules: sections.rules,
            chars: numbers(blob, &sections.char_tokens, Kind::CharTokens)?.as_chunks().0,
            whole_words: numbers(blob, &sections.whole_words, Kind::WholeWords)?,
            prompt_prefix: numbers(blob, &sections.prompt_prefix, Kind::PromptPrefix)?,
        })
    }

    /// The bytes of token `id`.
    pub(super) fn token(&self, id: u32) -> Result<&'a [u8], FormatError> {
        self.find_token(id).ok_or_else(|| {
            table_error(
                Kind::TokenOffsets,
                format!("token {id}: its bytes are not inside {}", Kind::TokenBytes.name()),
            )
        })
    }

    /// Bytes of the longest token; 1 at least.
    pub(super) fn longest_token(&self) -> usize {
        let lens = self.offsets.array_windows().map(|[start, end]| end.saturating_sub(*start) as usize);
        lens.max().unwrap_or(1).max(1)
    }

    fn find_token(&self, id: u32) -> Option<&'a [u8]> {
        let id = usize::try_from(id).ok()?;
        let start = *self.offsets.get(id)? as usize;
        let end = *self.offsets.get(id.checked_add(1)?)? as usize;
        self.bytes.get(start..end)
    }

    /// The token that stands for `byte` alone, if there is one.
    #[inline]
    pub(super) fn byte_token(&self, byte: u8) -> Result<Option<u32>, FormatError> {
        match self.byte_tokens.get(usize::from(byte)) {
            Some(&NO_TOKEN) => Ok(None),
            Some(&id) => self.known(id, Kind::ByteTokens).map(Some),
            None => Err(table_error(Kind::ByteTokens, format!("byte {byte} has no entry"))),
        }
    }

    /// Whether words start as characters, and as bytes only where there is no token of that character.
    pub(super) fn starts_from_chars(&self) -> bool {
        !self.chars.is_empty()
    }

    /// The token that stands for `c` alone, if there is one.
    pub(super) fn char_token(&self, c: char) -> Result<Option<u32>, FormatError> {
        match self.chars.binary_search_by_key(&u32::from(c), |&[code, _]| code) {
            Ok(index) => self.known(self.chars[index][1], Kind::CharTokens).map(Some),
            Err(_) => Ok(None),
        }
    }

    /// The token that `word` becomes whatever the merges say.
    pub(super) fn whole_word(&self, word: &str) -> Result<Option<u32>, FormatError> {
        let bytes = |&id: &u32| self.find_token(id).unwrap_or_default();
        match self.whole_words.binary_search_by(|id| bytes(id).cmp(word.as_bytes())) {
            Ok(index) => self.known(self.whole_words[index], Kind::WholeWords).map(Some),
            Err(_) => Ok(None),
        }
    }

    /// `id`, which a table of `kind` names, if the vocabulary has it.
    #[inline]
    pub(super) fn known(&self, id: u32, kind: Kind) -> Result<u32, FormatError> {
        match (id as usize) < self.vocab_size {
            true => Ok(id),
            false => {
                let size = self.vocab_size;
                Err(table_error(kind, format!("expected token ids below vocab_size, {size}, found {id}")))
            }
        }
    }
}

/// The pre-tokenizer's stages, in the order in which they run.
pub(super) fn stages<'a>(blob: &'a [u8], sections: &TokenizerSections) -> Result<Vec<Dfa<'a>>, FormatError> {
    let ranges = &sections.pretokenizer;
    if ranges.len() > MAX_STAGES {
        let problem = format!("expected at most {MAX_STAGES} stages, found {}", ranges.len());
        return Err(table_error(Kind::Pretokenizer, problem));
    }
    ranges.iter().map(|range| Dfa::parse(section(blob, range, Kind::Pretokenizer)?)).collect()
}

pub(super) fn table_error(kind: Kind, problem: impl Into<String>) -> FormatError {
    FormatError::Table { kind: kind.name(), problem: problem.into() }
}

fn section<'a>(blob: &'a [u8], range: &Range<usize>, kind: Kind) -> Result<&'a [u8], FormatError> {
    blob.get(range.clone()).ok_or_else(|| table_error(kind, "does not lie inside the blob"))
}

fn numbers<'a>(blob: &'a [u8], range: &Range<usize>, kind: Kind) -> Result<&'a [u32], FormatError> {
    let bytes = section(blob, range, kind)?;
    bytemuck::try_cast_slice(bytes).map_err(|_| table_error(kind, "not a table of 32-bit numbers"))
}
