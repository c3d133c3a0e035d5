//! The record of an added token: one that is looked for in the text before anything else.

use bytemuck::{Pod, Zeroable};

use super::error::FormatError;
use super::layout::Kind;

/// The record as it lies in the file. Its text is the token's bytes.
///
/// The records that lack [`AddedToken::NORMALIZED`] come first; within each group they ascend by text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct AddedToken {
    /// Its id.
    pub id: u32,
    /// The sum of its flags.
    pub flags: u32,
}

impl AddedToken {
    /// Most bytes of a token's text. From each place of a text, so many are looked at. Real tokens have up to 93.
    pub const MAX_LEN: usize = 256;
    /// Flag: a control token, found in text only where the caller asks for it.
    pub const SPECIAL: u32 = 1;
    /// Flag: includes the white space to its left.
    pub const LSTRIP: u32 = 2;
    /// Flag: includes the white space to its right.
    pub const RSTRIP: u32 = 4;
    /// Flag: found only between characters that belong to no word. No version writes it yet.
    pub const SINGLE_WORD: u32 = 8;
    /// Flag: looked for in a second pass, in what the first left.
    pub const NORMALIZED: u32 = 16;
    /// The flags that this version can act on.
    pub const SUPPORTED: u32 = Self::SPECIAL | Self::LSTRIP | Self::RSTRIP | Self::NORMALIZED;

    /// Reads the table. The ids and flags are not checked.
    pub fn parse(bytes: &[u8]) -> Result<&[AddedToken], FormatError> {
        let problem = "not a table of two 32-bit numbers each";
        bytemuck::try_cast_slice(bytes)
            .map_err(|_| FormatError::Table { kind: Kind::AddedTokens.name(), problem: problem.to_owned() })
    }

    /// Whether the token is a control token.
    pub fn is_special(self) -> bool {
        self.flags & Self::SPECIAL != 0
    }

    /// Whether the token includes the white space to its left.
    pub fn takes_left_space(self) -> bool {
        self.flags & Self::LSTRIP != 0
    }

    /// Whether the token includes the white space to its right.
    pub fn takes_right_space(self) -> bool {
        self.flags & Self::RSTRIP != 0
    }

    /// Whether the token is looked for in the second pass.
    pub fn is_normalized(self) -> bool {
        self.flags & Self::NORMALIZED != 0
    }
}
