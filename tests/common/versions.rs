//! What a blob says and computes, in full: for comparing today's reader with that of another day.

use std::path::Path;

use serde_json::{Value, json};
use smolrun::{KvDtype, Model, SessionOptions, SpecialTokens};

use super::{logits_sha256, scattered_tokens};

/// Words, numbers, control tokens, characters of several bytes, and space in unusual places.
const TEXT: &str = "Once upon  a time, in 1848,\n\n\tthere was naïve 日本 🎉. <|begin_of_text|><s>▁It's  ";

/// The file's own version, such as 1.0; its tokens of a text; and the SHA-256 of the logits, with exact keys and values,
/// of as many positions as it has, up to 96.
///
/// # Panics
/// If the blob cannot be opened, or has a fault of any kind.
pub fn reading(blob: &Path) -> Value {
    let model = Model::read(blob).unwrap_or_else(|error| panic!("{error}"));
    model.verify().expect("the blob is whole");
    let header = &model.layout().header;
    let encode = |special| model.tokenizer().encode_prompt(TEXT, special).expect("any text can be encoded");
    let ids = encode(SpecialTokens::Parse);
    let options = SessionOptions::default().kv_dtype(KvDtype::F32);
    let tokens = scattered_tokens(&model, model.config().max_position_embeddings.min(96));
    json!({
        "version": format!("{}.{}", header.version_major, header.version_minor),
        "text": TEXT,
        "plain_ids": encode(SpecialTokens::AsText),
        "ids": ids,
        "decoded": model.tokenizer().decode(&ids, false).expect("they are its own ids"),
        "chat_template": model.chat_template().expect("it is UTF-8"),
        "logits_sha256": logits_sha256(&model, &tokens, options, tokens.len()),
    })
}
