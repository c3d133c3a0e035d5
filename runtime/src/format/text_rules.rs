//! What is done to a text before it is cut into words, and to the text that ids decode to.

/// The rules; none by default, as in a tokenizer of GPT-2's kind.
///
/// A *space* is U+0020. Where a vocabulary writes it as `▁` (U+2581), the blob's tokens hold a space, and a `▁` in a
/// text counts as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextRules {
    bits: u32,
}

impl TextRules {
    /// The text is brought into Unicode's normal form C before normalized tokens are looked for.
    pub const NFC: TextRules = TextRules { bits: 1 };
    /// Likewise, `▁` becomes a space.
    pub const NORMALIZE_SPACE: TextRules = TextRules { bits: 2 };
    /// Likewise, a space is put before the text.
    pub const PREPEND_SPACE: TextRules = TextRules { bits: 4 };
    /// `▁` becomes a space after normalized tokens were looked for.
    pub const METASPACE: TextRules = TextRules { bits: 8 };
    /// Then, a space is put before a text that does not begin with one.
    pub const PREFIX_SPACE: TextRules = TextRules { bits: 16 };
    /// But only before the text with which the whole begins.
    pub const PREFIX_FIRST: TextRules = TextRules { bits: 32 };
    /// Decoding takes one space from the beginning of the text.
    pub const STRIP_SPACE: TextRules = TextRules { bits: 64 };
    const ALL: u32 = 127;

    /// Whether all of `rules` are among these.
    pub fn has(self, rules: TextRules) -> bool {
        self.bits & rules.bits == rules.bits
    }

    /// These and those of `rules`.
    #[must_use]
    pub fn with(self, rules: TextRules) -> TextRules {
        TextRules { bits: self.bits | rules.bits }
    }

    /// The section's content.
    pub fn to_bits(self) -> u32 {
        self.bits
    }

    /// Reads the section, four bytes; the error says what is wrong.
    pub(super) fn parse(bytes: &[u8]) -> Result<TextRules, String> {
        let bits = bytes.try_into().map_or(u32::MAX, u32::from_le_bytes);
        match bits & !Self::ALL {
            0 => Ok(TextRules { bits }),
            _ => Err(format!("rules: expected 0 to {}, found {bits}", Self::ALL)),
        }
    }
}
