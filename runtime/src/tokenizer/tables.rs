//! The tokenizer's tables in a blob, read in place. Nothing is trusted: every number is checked where it is used.

use std::ops::Range;

use crate::format::{AddedToken, Dfa, FormatError, Kind, Merges, NO_TOKEN, TokenizerSections};

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
