//! A tokenizer as its file defines it, whatever that file's format: what `tokenizer.json` and GGUF are both read to.

use std::collections::HashMap;

use serde::Deserialize;
use smolrun::format::TextRules;

use super::alphabet::Alphabet;
use super::stage::Stage;
use crate::error::TokenizerError;

/// Most JSON values of a tokenizer: four times those of 256,000 tokens with twice as many merges.
const MAX_VALUES: usize = 1 << 23;

/// Refuses so many values, which would take gigabytes.
pub(super) fn check_size(values: usize) -> Result<(), TokenizerError> {
    match values {
        0..=MAX_VALUES => Ok(()),
        found => Err(TokenizerError::TooLarge { expected: MAX_VALUES, found }),
    }
}

/// A supported tokenizer, of which the vocabulary is not checked yet.
pub struct Definition {
    /// What the tokens' texts are written in.
    pub(super) alphabet: Alphabet,
    /// What becomes of a text before it is cut into words, and of decoded text.
    pub(super) rules: TextRules,
    /// The pre-tokenizer's stages.
    pub(super) stages: Vec<Stage>,
    /// Whether a word that is a token becomes it, whatever the merges say.
    pub(super) ignore_merges: bool,
    /// The token for what has none.
    pub(super) unk_token: Option<String>,
    /// Ids that a prompt begins with.
    pub(super) prompt_prefix: Vec<u32>,
    /// The tokens that are looked for in the text before anything else.
    pub(super) added_tokens: Vec<Added>,
    /// The ids of the tokens that words become.
    pub(super) vocab: HashMap<String, u32>,
    /// What words are put together by.
    pub(super) merges: Merges,
}

/// A token that is looked for in the text before anything else.
#[derive(Deserialize)]
pub(super) struct Added {
    pub(super) id: u32,
    pub(super) content: String,
    pub(super) single_word: bool,
    pub(super) lstrip: bool,
    pub(super) rstrip: bool,
    pub(super) normalized: bool,
    pub(super) special: bool,
    /// Whether it decodes to its text, whatever the alphabet makes of that.
    #[serde(skip)]
    pub(super) is_literal: bool,
}

/// The merges. The ranks of the first two kinds are their places.
#[derive(Deserialize)]
#[serde(untagged, expecting = "model.merges: expected a list of [\"a\", \"b\"] or of \"a b\"")]
pub(super) enum Merges {
    /// `["a", "b"]`
    Pairs(Vec<[String; 2]>),
    /// `"a b"`, in older files.
    Lines(Vec<String>),
    /// Pairs, each with its rank, which others may share.
    #[serde(skip)]
    Ranked(Vec<(u32, [String; 2])>),
}
