//! The pre-tokenizer: how a text is cut into words.

use smolrun::format::TextRules;

use super::fields::{ByteLevel, Component, Digits, Metaspace, Split, options, parts, quoted};
use crate::error::TokenizerError;
use crate::tokenizer::alphabet::METASPACE;
use crate::tokenizer::dfa::{self, Stage};

const FIELD: &str = "pre_tokenizer";

/// Any number of `Digits` and `Split`, then one `ByteLevel`: after it, the text is in its alphabet.
pub(super) fn byte_level(pre_tokenizer: Option<&Component>) -> Result<Vec<Stage>, TokenizerError> {
    let supported = "ByteLevel, or a Sequence of Digits or Split and then ByteLevel";
    let refuse = |found: &str| TokenizerError::unsupported(FIELD, supported, found);
    let parts = parts(pre_tokenizer, "pretokenizers")?;
    let Some((last, before)) = parts.split_last().filter(|(last, _)| last.kind == "ByteLevel") else {
        return Err(match pre_tokenizer.map(|component| component.kind.as_str()) {
            None => refuse("null"),
            Some("Sequence") => refuse("a Sequence that does not end in ByteLevel"),
            Some(kind) => refuse(kind),
        });
    };
    let before = before.iter().map(|component| match component.kind.as_str() {
        "Digits" => digits(component),
        "Split" => split(component),
        kind => Err(refuse(&format!("{kind} in a Sequence"))),
    });
    let mut stages: Vec<Stage> = before.collect::<Result<_, _>>()?;
    let ByteLevel { add_prefix_space, use_regex } = options(last)?;
    if add_prefix_space {
        return Err(TokenizerError::unsupported("pre_tokenizer.add_prefix_space", "false", "true"));
    }
    stages.extend(use_regex.then_some(Stage::Gpt2));
    Ok(stages)
}

/// Nothing, or one `Metaspace`.
pub(super) fn metaspace(
    pre_tokenizer: Option<&Component>,
) -> Result<(Vec<Stage>, TextRules), TokenizerError> {
    let Some(component) = pre_tokenizer else { return Ok((Vec::new(), TextRules::default())) };
    if component.kind != "Metaspace" {
        let supported = "null or Metaspace beside ByteFallback";
        return Err(TokenizerError::unsupported(FIELD, supported, &component.kind));
    }
    let Metaspace { replacement, add_prefix_space, prepend_scheme, split } = options(component)?;
    if replacement != METASPACE {
        return Err(TokenizerError::unsupported("pre_tokenizer.replacement", "\"▁\"", quoted(&replacement)));
    }
    let prefix = TextRules::METASPACE.with(TextRules::PREFIX_SPACE);
    let rules = match (add_prefix_space, prepend_scheme.as_deref().unwrap_or("always")) {
        (_, "never") => TextRules::METASPACE,
        (Some(false), scheme) => {
            let field = "pre_tokenizer.prepend_scheme";
            return Err(TokenizerError::invalid(field, "never, as add_prefix_space is false", scheme));
        }
        (_, "first") => prefix.with(TextRules::PREFIX_FIRST),
        (_, "always") => prefix,
        (_, other) => {
            let field = "pre_tokenizer.prepend_scheme";
            return Err(TokenizerError::unsupported(field, "always, first or never", other));
        }
    };
    let stages = if split.unwrap_or(true) { vec![Stage::Spaces] } else { Vec::new() };
    Ok((stages, rules))
}

fn digits(component: &Component) -> Result<Stage, TokenizerError> {
    let Digits { individual_digits } = options(component)?;
    Ok(if individual_digits { Stage::IndividualDigits } else { Stage::Digits })
}

/// `Split` by one of the patterns that are known to be cut by an automaton exactly as by the library's regex engine.
fn split(component: &Component) -> Result<Stage, TokenizerError> {
    let Split { pattern, behavior, invert } = options(component)?;
    if behavior != "Isolated" {
        return Err(TokenizerError::unsupported("pre_tokenizer.behavior", "Isolated", behavior));
    }
    if invert {
        return Err(TokenizerError::unsupported("pre_tokenizer.invert", "false", "true"));
    }
    pattern.regex().and_then(dfa::known).ok_or_else(|| {
        let supported = "the Regex of GPT-2, Llama 3 or Qwen2";
        TokenizerError::unsupported("pre_tokenizer.pattern", supported, pattern)
    })
}
