//! A SentencePiece tokenizer in a GGUF file's metadata, written as the `tokenizer.json` that transformers makes of one:
//! merges in the order of the scores of what they make.

use std::cmp::Reverse;
use std::collections::HashMap;

use serde_json::{Value, json};

use crate::error::Result;
use crate::gguf_tokenizer::{PREFIX, Tokens, post_processor};
use crate::source::gguf::Metadata;

const SCORES: &str = "tokenizer.ggml.scores";
/// What would normalize texts in a way of its own.
const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
const REMOVE_SPACES: &str = "tokenizer.ggml.remove_extra_whitespaces";
/// `token_type` of a piece that others are merged to.
const NORMAL: i128 = 1;
/// Bytes of the longest piece that is looked at in all its cuts: Llama's have 48.
const MAX_PIECE_LEN: usize = 128;

/// The tokenizer as a `tokenizer.json`.
pub(crate) fn to_json(metadata: &Metadata) -> Result<Value> {
    if metadata.keys().any(|key| key == CHARSMAP) {
        return Err(metadata.wrong(CHARSMAP, "nothing", "a table"));
    }
    if metadata.flag(REMOVE_SPACES)? == Some(true) {
        return Err(metadata.wrong(REMOVE_SPACES, "false", true));
    }
    let has_prefix = metadata.flag(PREFIX)?.unwrap_or(true);
    let tokens = Tokens::read(metadata)?;
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null, "pre_tokenizer": null,
        "normalizer": normalizer(has_prefix),
        "post_processor": post_processor(metadata, &tokens, true)?,
        "added_tokens": tokens.added(),
        "decoder": decoder(has_prefix),
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": true, "byte_fallback": true,
            "ignore_merges": false, "vocab": tokens.vocab(), "merges": merges(metadata, &tokens)?,
        },
    }))
}

/// Spaces are written as `▁`; most tokenizers put one before each piece of text.
fn normalizer(has_prefix: bool) -> Value {
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    match has_prefix {
        true => json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace]}),
        false => replace,
    }
}

fn decoder(has_prefix: bool) -> Value {
    let replace = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
    let mut decoders = vec![replace, json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
    if has_prefix {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({"type": "Sequence", "decoders": decoders})
}

/// Each cut of a piece into two others, in the order of the pieces' scores, the longest left part first.
fn merges<'a>(metadata: &Metadata, tokens: &Tokens<'a>) -> Result<Vec<[&'a str; 2]>> {
    let pieces = pieces(metadata, tokens)?;
    let mut merges = Vec::new();
    for (&piece, &score) in &pieces {
        let cuts = piece.char_indices().skip(1).map(|(at, _)| piece.split_at(at));
        let whole = cuts.filter(|(left, right)| pieces.contains_key(left) && pieces.contains_key(right));
        merges.extend(whole.map(|(left, right)| (score, piece, left, right)));
    }
    let chars = |text: &str| text.chars().count();
    merges.sort_by(|a, b| {
        let by_length = || Reverse(chars(a.2)).cmp(&Reverse(chars(b.2)));
        b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)).then_with(by_length)
    });
    match merges.windows(2).find(|pair| pair[0].0 == pair[1].0 && pair[0].1 != pair[1].1) {
        Some(pair) => {
            let found = format!("{} for {:?} and {:?}", pair[0].0, pair[0].1, pair[1].1);
            Err(metadata.wrong(SCORES, "a score of its own for each piece that is merged", found))
        }
        None => Ok(merges.into_iter().map(|(_, _, left, right)| [left, right]).collect()),
    }
}

/// The pieces that merges are made of, with their scores.
fn pieces<'a>(metadata: &Metadata, tokens: &Tokens<'a>) -> Result<HashMap<&'a str, f64>> {
    let scores = metadata.required(SCORES, metadata.floats(SCORES))?;
    if scores.len() != tokens.types.len() || scores.iter().any(|score| !score.is_finite()) {
        let expected = format!("a finite number for each token, {}", tokens.types.len());
        return Err(metadata.wrong(SCORES, expected, scores.len()));
    }
    let all = tokens.texts.iter().map(String::as_str).zip(tokens.types.iter().zip(scores));
    let normal = all.filter(|(_, (kind, _))| **kind == NORMAL).map(|(text, (_, score))| (text, score));
    let pieces: HashMap<&str, f64> = normal.collect();
    match pieces.keys().find(|piece| piece.len() > MAX_PIECE_LEN) {
        Some(piece) => {
            let expected = format!("pieces of at most {MAX_PIECE_LEN} bytes");
            Err(metadata.wrong("tokenizer.ggml.tokens", expected, piece.len()))
        }
        None => Ok(pieces),
    }
}
