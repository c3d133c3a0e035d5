//! The special tokens that `tokenizer_config.json` gives to a template by name.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::error::Result;
use crate::json::Fields;

/// Names of the variables that transformers sets.
const NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// A line of Jinja that sets those of `variables` that are special tokens to what `config` says they are.
///
/// The runtime knows an end id, which need not be the `eos_token` of the template: Llama 3 has two.
pub(super) fn declare(variables: &BTreeSet<&str>, config: &Fields) -> Result<String> {
    let mut line = String::new();
    for name in NAMES.into_iter().filter(|name| variables.contains(name)) {
        let expected = "a text, an object with content, or null";
        let literal = match config.optional_or_null(name) {
            None => continue,
            Some(Value::Null) => "undefined".to_owned(), // as in transformers
            Some(Value::String(text)) => Value::from(text).to_string(),
            Some(Value::Object(token)) if token.get("content").is_some_and(Value::is_string) => {
                token["content"].to_string()
            }
            Some(other) => return Err(config.wrong(name, expected, other)),
        };
        line += &format!("{{% set {name} = {literal} %}}");
    }
    // The end of the line belongs to the last statement: the template begins on a new line, as it would alone.
    Ok(if line.is_empty() { line } else { line + "\n" })
}
