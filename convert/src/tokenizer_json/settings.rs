//! Refuses, by name, every setting that the runtime's tokenizer does not have.

use serde::de::DeserializeOwned;
use serde_json::Value;
use smolrun::format::NO_TOKEN;

use super::dfa::Stage;
use super::error::TokenizerError;
use super::json::{ByteLevel, Component, Digits, ModelSettings, Sequence, Settings};

/// Checks everything but what depends on the vocabulary. Returns the pre-tokenizer's stages.
pub(super) fn check(settings: &Settings) -> Result<Vec<Stage>, TokenizerError> {
    if settings.version != "1.0" {
        return Err(TokenizerError::unsupported("version", "1.0", &settings.version));
    }
    for (field, value) in [("truncation", &settings.truncation), ("padding", &settings.padding)] {
        if let Some(value) = value {
            return Err(TokenizerError::unsupported(field, "null", value));
        }
    }
    check_model(&settings.model)?;
    expect_kind("normalizer", settings.normalizer.as_ref(), &[None])?;
    expect_kind("post_processor", settings.post_processor.as_ref(), &[None, Some("ByteLevel")])?;
    expect_kind("decoder", settings.decoder.as_ref(), &[Some("ByteLevel")])?;
    stages(settings.pre_tokenizer.as_ref())
}

/// A token for unknown bytes has no effect where every byte is known. Elsewhere the runtime drops unknown bytes.
pub(super) fn check_unk(model: &ModelSettings, byte_tokens: &[u32; 256]) -> Result<(), TokenizerError> {
    match &model.unk_token {
        Some(unk) if byte_tokens.contains(&NO_TOKEN) => {
            let supported = "null, as not every byte has a token";
            Err(TokenizerError::unsupported("model.unk_token", supported, quoted(unk)))
        }
        _ => Ok(()),
    }
}

fn check_model(model: &ModelSettings) -> Result<(), TokenizerError> {
    if model.kind != "BPE" {
        return Err(TokenizerError::unsupported("model.type", "BPE", &model.kind));
    }
    if let Some(dropout) = model.dropout.filter(|&dropout| dropout != 0.0) {
        return Err(TokenizerError::unsupported("model.dropout", "null", dropout));
    }
    let affixes = [
        ("model.continuing_subword_prefix", &model.continuing_subword_prefix),
        ("model.end_of_word_suffix", &model.end_of_word_suffix),
    ];
    for (field, affix) in affixes {
        if let Some(affix) = affix.as_ref().filter(|affix| !affix.is_empty()) {
            return Err(TokenizerError::unsupported(field, "null", quoted(affix)));
        }
    }
    let switches =
        [("model.byte_fallback", model.byte_fallback), ("model.ignore_merges", model.ignore_merges)];
    match switches.into_iter().find(|(_, on)| *on == Some(true)) {
        Some((field, _)) => Err(TokenizerError::unsupported(field, "false", "true")),
        None => Ok(()),
    }
}

fn expect_kind(
    field: &str,
    component: Option<&Component>,
    supported: &[Option<&str>],
) -> Result<(), TokenizerError> {
    let found = component.map(|component| component.kind.as_str());
    if supported.contains(&found) {
        return Ok(());
    }
    let supported: Vec<&str> = supported.iter().map(|kind| kind.unwrap_or("null")).collect();
    Err(TokenizerError::unsupported(field, supported.join(" or "), found.unwrap_or("null")))
}

/// Any number of `Digits`, then one `ByteLevel`: after it, the text is in its alphabet.
fn stages(pre_tokenizer: Option<&Component>) -> Result<Vec<Stage>, TokenizerError> {
    const FIELD: &str = "pre_tokenizer";
    let supported = "ByteLevel, or a Sequence of Digits and then ByteLevel";
    let refuse = |found: &str| TokenizerError::unsupported(FIELD, supported, found);
    let component = pre_tokenizer.ok_or_else(|| refuse("null"))?;
    if component.kind != "Sequence" {
        return match component.kind.as_str() {
            "ByteLevel" => Ok(vec![byte_level(component)?]),
            kind => Err(refuse(kind)),
        };
    }
    let Sequence { pretokenizers } = options(component)?;
    let Some((last, before)) = pretokenizers.split_last().filter(|(last, _)| last.kind == "ByteLevel") else {
        return Err(refuse("a Sequence that does not end in ByteLevel"));
    };
    let digits = before.iter().map(|component| match component.kind.as_str() {
        "Digits" => digits(component),
        kind => Err(refuse(&format!("{kind} in a Sequence"))),
    });
    digits.chain([byte_level(last)]).collect()
}

fn byte_level(component: &Component) -> Result<Stage, TokenizerError> {
    let ByteLevel { add_prefix_space, use_regex } = options(component)?;
    match (add_prefix_space, use_regex) {
        (true, _) => Err(TokenizerError::unsupported("pre_tokenizer.add_prefix_space", "false", "true")),
        (_, false) => Err(TokenizerError::unsupported("pre_tokenizer.use_regex", "true", "false")),
        (false, true) => Ok(Stage::Gpt2),
    }
}

fn digits(component: &Component) -> Result<Stage, TokenizerError> {
    let Digits { individual_digits } = options(component)?;
    Ok(if individual_digits { Stage::IndividualDigits } else { Stage::Digits })
}

fn options<T: DeserializeOwned>(component: &Component) -> Result<T, TokenizerError> {
    Ok(serde_json::from_value(Value::Object(component.options.clone()))?)
}

fn quoted(text: &str) -> String {
    format!("{text:?}")
}
