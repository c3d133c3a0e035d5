//! The tokenizer in a GGUF file's metadata, written as the `tokenizer.json` that it was made from, so that there is one
//! compiler for both.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::error::Result;
use crate::source::gguf::Metadata;

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const PREFIX: &str = "tokenizer.ggml.add_space_prefix";

/// `token_type` of control tokens, of tokens that somebody added, and of rows of the embedding without a token.
const CONTROL: i128 = 3;
const USER_DEFINED: i128 = 4;
const UNUSED: i128 = 5;

/// The tokenizer as a `tokenizer.json`.
pub fn to_json(metadata: &Metadata) -> Result<Value> {
    let model = metadata.required(MODEL, metadata.string(MODEL))?;
    if model != "gpt2" {
        return Err(metadata.wrong(MODEL, "\"gpt2\"", format!("{model:?}")));
    }
    if metadata.flag(PREFIX)? == Some(true) {
        return Err(metadata.wrong(PREFIX, "false", true));
    }
    let pre_tokenizer = pre_tokenizer(metadata)?;
    let tokens = Tokens::read(metadata)?;
    let merges = metadata.required(MERGES, metadata.strings(MERGES))?;
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": tokens.added(),
        "pre_tokenizer": pre_tokenizer,
        "decoder": byte_level(),
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "byte_fallback": false, "ignore_merges": false,
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

/// What llama.cpp calls a pre-tokenizer by one name.
fn pre_tokenizer(metadata: &Metadata) -> Result<Value> {
    let pre = metadata.required(PRE, metadata.string(PRE))?;
    match pre {
        "gpt-2" => Ok(byte_level()),
        "smollm" => {
            let digits = json!({"type": "Digits", "individual_digits": true});
            Ok(json!({"type": "Sequence", "pretokenizers": [digits, byte_level()]}))
        }
        other => Err(metadata.wrong(PRE, "\"gpt-2\" or \"smollm\"", format!("{other:?}"))),
    }
}

fn byte_level() -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})
}

/// Tokens and their types. Those that only fill the embedding up, at the end, are left out.
struct Tokens<'a> {
    texts: &'a [String],
    types: Vec<i128>,
}

impl<'a> Tokens<'a> {
    fn read(metadata: &'a Metadata) -> Result<Tokens<'a>> {
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
        matches!(self.types[id], CONTROL | USER_DEFINED)
    }

    /// The tokens that are not only added at the end.
    fn vocab(&self) -> Map<String, Value> {
        let end = (0..self.texts.len()).rposition(|id| !self.is_added(id)).map_or(0, |last| last + 1);
        self.texts[..end].iter().zip(0u32..).map(|(text, id)| (text.clone(), id.into())).collect()
    }

    fn added(&self) -> Vec<Value> {
        let ids = (0..self.texts.len()).filter(|&id| self.is_added(id));
        let record = |id: usize| {
            json!({
                "id": id, "content": self.texts[id], "special": self.types[id] == CONTROL,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            })
        };
        ids.map(record).collect()
    }
}
