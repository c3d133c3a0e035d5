//! Reads `tokenizer.json`. What the runtime cannot do exactly as the `tokenizers` library does is refused by name, never
//! approximated.
//!
//! The file is read twice: the settings come first, so that a tokenizer of another kind is refused by the name of what it
//! asks for, not for the shape of its vocabulary.

mod decoder;
mod fields;
mod normalizer;
mod post_processor;
mod pre_tokenizer;
mod settings;

use self::fields::{Content, Model, Settings};
use self::settings::Pipeline;
use super::definition::{Definition, check_size};
use crate::error::TokenizerError;
use crate::json::Count;

/// The tokenizer that `json` defines.
pub(super) fn read(json: &[u8]) -> Result<Definition, TokenizerError> {
    check_size(Count::of(json).values)?;
    let settings: Settings = serde_json::from_slice(json)?;
    let Pipeline { alphabet, rules, stages, ignore_merges, prompt_prefix } = settings::check(&settings)?;
    let Content { added_tokens, model: Model { vocab, merges } } = serde_json::from_slice(json)?;
    let unk_token = settings.model.unk_token;
    Ok(Definition {
        alphabet,
        rules,
        stages,
        ignore_merges,
        unk_token,
        prompt_prefix,
        added_tokens,
        vocab,
        merges,
    })
}
