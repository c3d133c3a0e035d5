//! The tokenizer in a GGUF file's metadata: byte-level ones with their merges, and SentencePiece's, whose merges
//! follow from the scores of what they make.

mod pieces;
mod pre;
mod tokens;

use smolrun::format::TextRules;

use self::pre::Pre;
use self::tokens::{TOKENS, Tokens};
use super::alphabet::Alphabet;
use super::definition::{Definition, Merges};
use crate::error::Result;
use crate::source::gguf::Metadata;

const MODEL: &str = "tokenizer.ggml.model";
const MERGES: &str = "tokenizer.ggml.merges";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const PREFIX: &str = "tokenizer.ggml.add_space_prefix";

/// What would normalize texts in a way of its own.
const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
const REMOVE_SPACES: &str = "tokenizer.ggml.remove_extra_whitespaces";

/// JSON values that `tokenizer.json` has for a merge that is a pair.
const VALUES_OF_A_PAIR: usize = 3;

/// The tokenizer of a GGUF file.
pub fn read(metadata: &Metadata) -> Result<Definition> {
    match metadata.required(MODEL, metadata.string(MODEL))? {
        "gpt2" => byte_level(metadata),
        "llama" => sentencepiece(metadata),
        other => Err(metadata.wrong(MODEL, "\"gpt2\" or \"llama\"", format!("{other:?}"))),
    }
}

/// The tokens that the file has, whatever the tokenizer's kind.
pub fn token_count(metadata: &Metadata) -> Result<usize> {
    Ok(metadata.required(TOKENS, metadata.strings(TOKENS))?.len())
}

/// The chat template, if there is one.
pub fn chat_template(metadata: &Metadata) -> Result<Option<String>> {
    let template = metadata.string("tokenizer.chat_template")?;
    Ok(template.filter(|template| !template.is_empty()).map(str::to_owned))
}

fn byte_level(metadata: &Metadata) -> Result<Definition> {
    if metadata.flag(PREFIX)? == Some(true) {
        return Err(metadata.wrong(PREFIX, "false", true));
    }
    let Pre { rules, stages, ignore_merges, adds_bos } = Pre::read(metadata)?;
    let tokens = Tokens::read(metadata)?;
    let merges = metadata.required(MERGES, metadata.strings(MERGES))?;
    let prompt_prefix = prompt_prefix(metadata, &tokens, adds_bos)?;
    tokens.check_size(metadata, merges.len())?;
    Ok(Definition {
        alphabet: Alphabet::ByteLevel,
        rules,
        stages,
        ignore_merges,
        unk_token: None,
        prompt_prefix,
        added_tokens: tokens.added(),
        vocab: tokens.vocab(),
        merges: Merges::Lines(merges.to_vec()),
    })
}

/// Spaces are written as `▁`; most tokenizers put one before each piece of text, and take it off what they decode.
fn sentencepiece(metadata: &Metadata) -> Result<Definition> {
    if metadata.keys().any(|key| key == CHARSMAP) {
        return Err(metadata.wrong(CHARSMAP, "nothing", "a table"));
    }
    if metadata.flag(REMOVE_SPACES)? == Some(true) {
        return Err(metadata.wrong(REMOVE_SPACES, "false", true));
    }
    let rules = match metadata.flag(PREFIX)?.unwrap_or(true) {
        true => TextRules::NORMALIZE_SPACE.with(TextRules::PREPEND_SPACE).with(TextRules::STRIP_SPACE),
        false => TextRules::NORMALIZE_SPACE,
    };
    let tokens = Tokens::read(metadata)?;
    let prompt_prefix = prompt_prefix(metadata, &tokens, true)?;
    let merges = pieces::merges(metadata, &tokens)?;
    tokens.check_size(metadata, VALUES_OF_A_PAIR * merges.len())?;
    Ok(Definition {
        alphabet: Alphabet::Metaspace,
        rules,
        stages: Vec::new(),
        ignore_merges: false,
        unk_token: None,
        prompt_prefix,
        added_tokens: tokens.added(),
        vocab: tokens.vocab(),
        merges: Merges::Ranked(merges),
    })
}

/// The beginning-of-text token, if the file puts it before a prompt, or does not say and its kind does.
fn prompt_prefix(metadata: &Metadata, tokens: &Tokens, adds_bos: bool) -> Result<Vec<u32>> {
    if metadata.flag(ADD_EOS)? == Some(true) {
        return Err(metadata.wrong(ADD_EOS, "false", true));
    }
    if !metadata.flag(ADD_BOS)?.unwrap_or(adds_bos) {
        return Ok(Vec::new());
    }
    let Some(id) = metadata.count(BOS)? else { return Ok(Vec::new()) };
    let known = u32::try_from(id).ok().filter(|&id| (id as usize) < tokens.texts.len());
    known.map(|id| vec![id]).ok_or_else(|| metadata.wrong(BOS, "the id of a token", id))
}
