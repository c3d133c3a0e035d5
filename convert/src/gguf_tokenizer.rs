//! The tokenizer in a GGUF file's metadata, written as the `tokenizer.json` that it was made from, so that there is one
//! compiler for both.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::error::Result;
use crate::gguf_sentencepiece;
use crate::source::gguf::Metadata;

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
const BOS: &str = "tokenizer.ggml.bos_token_id";
/// What Llama 3 and Qwen2 cut digits by.
const DIGITS_IN_THREES: &str = r"\p{N}{1,3}";
const SINGLE_DIGITS: &str = r"\p{N}";
pub(crate) const PREFIX: &str = "tokenizer.ggml.add_space_prefix";

/// `token_type` of the token for what has none, of control tokens, of tokens that somebody added, and of rows of the embedding without a token.
const UNKNOWN: i128 = 2;
const CONTROL: i128 = 3;
const USER_DEFINED: i128 = 4;
const UNUSED: i128 = 5;

/// The tokenizer as a `tokenizer.json`.
pub fn to_json(metadata: &Metadata) -> Result<Value> {
    match metadata.required(MODEL, metadata.string(MODEL))? {
        "gpt2" => gpt2(metadata),
        "llama" => gguf_sentencepiece::to_json(metadata),
        other => Err(metadata.wrong(MODEL, "\"gpt2\" or \"llama\"", format!("{other:?}"))),
    }
}

fn gpt2(metadata: &Metadata) -> Result<Value> {
    if metadata.flag(PREFIX)? == Some(true) {
        return Err(metadata.wrong(PREFIX, "false", true));
    }
    let Pre { normalizer, pre_tokenizer, ignore_merges, adds_bos } = pre_tokenizer(metadata)?;
    let tokens = Tokens::read(metadata)?;
    let merges = metadata.required(MERGES, metadata.strings(MERGES))?;
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": normalizer,
        "post_processor": post_processor(metadata, &tokens, adds_bos)?,
        "added_tokens": tokens.added(),
        "pre_tokenizer": pre_tokenizer,
        "decoder": byte_level(true),
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "byte_fallback": false, "ignore_merges": ignore_merges,
            "vocab": tokens.vocab(), "merges": merges,
        },
    }))
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

/// What llama.cpp calls a pre-tokenizer by one name: all rules that the tokenizers of that name have.
#[derive(Default)]
struct Pre {
    normalizer: Value,
    pre_tokenizer: Value,
    ignore_merges: bool,
    /// Whether a prompt begins with the beginning-of-text token where the file does not say.
    adds_bos: bool,
}

fn pre_tokenizer(metadata: &Metadata) -> Result<Pre> {
    let after = |first: Value, use_regex: bool| json!({"type": "Sequence", "pretokenizers": [first, byte_level(use_regex)]});
    match metadata.required(PRE, metadata.string(PRE))? {
        "gpt-2" => Ok(Pre { pre_tokenizer: byte_level(true), ..Pre::default() }),
        "smollm" => {
            let digits = json!({"type": "Digits", "individual_digits": true});
            Ok(Pre { pre_tokenizer: after(digits, true), ..Pre::default() })
        }
        "llama-bpe" | "llama3" | "llama-v3" => Ok(Pre {
            pre_tokenizer: after(split(DIGITS_IN_THREES), false),
            ignore_merges: true,
            adds_bos: true,
            ..Pre::default()
        }),
        "qwen2" => Ok(Pre {
            normalizer: json!({"type": "NFC"}),
            pre_tokenizer: after(split(SINGLE_DIGITS), false),
            ..Pre::default()
        }),
        other => {
            let expected = "\"gpt-2\", \"smollm\", \"llama-bpe\" or \"qwen2\"";
            Err(metadata.wrong(PRE, expected, format!("{other:?}")))
        }
    }
}

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

/// Cuts by the regex that Llama 3 and Qwen2 share but for how many `digits` stay together.
fn split(digits: &str) -> Value {
    let words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|";
    let rest = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let regex = [words, digits, rest].concat();
    json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false})
}

/// What puts the beginning-of-text token before a prompt, if the file says so, or nothing and its kind does.
pub(crate) fn post_processor(metadata: &Metadata, tokens: &Tokens, adds_bos: bool) -> Result<Value> {
    if metadata.flag(ADD_EOS)? == Some(true) {
        return Err(metadata.wrong(ADD_EOS, "false", true));
    }
    if !metadata.flag(ADD_BOS)?.unwrap_or(adds_bos) {
        return Ok(Value::Null);
    }
    let Some(id) = metadata.count(BOS)? else { return Ok(Value::Null) };
    let text = usize::try_from(id).ok().and_then(|id| tokens.texts.get(id));
    let text = text.ok_or_else(|| metadata.wrong(BOS, "the id of a token", id))?;
    let single =
        json!([{"SpecialToken": {"id": text, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]);
    let special = Map::from_iter([(text.clone(), json!({"id": text, "ids": [id], "tokens": [text]}))]);
    Ok(json!({"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": special}))
}

/// Tokens and their types. Those that only fill the embedding up, at the end, are left out.
pub(crate) struct Tokens<'a> {
    pub(crate) texts: &'a [String],
    pub(crate) types: Vec<i128>,
}

impl<'a> Tokens<'a> {
    pub(crate) fn read(metadata: &'a Metadata) -> Result<Tokens<'a>> {
        let mut texts = metadata.required(TOKENS, metadata.strings(TOKENS))?;
        let types = metadata.required(TYPES, metadata.integers(TYPES))?;
        if types.len() != texts.len() {
            return Err(metadata.wrong(TYPES, format!("one for each token, {}", texts.len()), types.len()));
        }
        if let Some(other) = types.iter().find(|kind| !(1..=6).contains(*kind)) {
            return Err(metadata.wrong(TYPES, "types from 1 to 6", other));
        }
        let used = types.iter().rposition(|&kind| kind != UNUSED).map_or(0, |last| last + 1);
        texts = &texts[..used];
        let mut seen = HashSet::new();
        match texts.iter().find(|text| !seen.insert(text.as_str())) {
            Some(text) => Err(metadata.wrong(TOKENS, "each token once", format!("{text:?} again"))),
            None => Ok(Tokens { texts, types }),
        }
    }

    fn is_added(&self, id: usize) -> bool {
        matches!(self.types[id], UNKNOWN | CONTROL | USER_DEFINED)
    }

    /// The tokens that are not only added at the end.
    pub(crate) fn vocab(&self) -> Map<String, Value> {
        let end = (0..self.texts.len()).rposition(|id| !self.is_added(id)).map_or(0, |last| last + 1);
        self.texts[..end].iter().zip(0u32..).map(|(text, id)| (text.clone(), id.into())).collect()
    }

    pub(crate) fn added(&self) -> Vec<Value> {
        let ids = (0..self.texts.len()).filter(|&id| self.is_added(id));
        let record = |id: usize| {
            json!({
                "id": id, "content": self.texts[id], "special": self.types[id] != USER_DEFINED,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            })
        };
        ids.map(record).collect()
    }
}
