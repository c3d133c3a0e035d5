//! The pre-tokenizer: how a text is cut into words.

use std::borrow::Cow;

use smolrun::format::TextRules;

use super::fields::{ByteLevel, Component, Digits, Metaspace, Pattern, Split, options, parts, quoted};
use crate::error::TokenizerError;
use crate::tokenizer::alphabet::METASPACE;
use crate::tokenizer::stage::{self, Stage};

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
    let mut stages = Vec::new();
    for component in before {
        let stage = match component.kind.as_str() {
            "Digits" => digits(component)?,
            "Split" => split(component, &stages)?,
            kind => return Err(refuse(&format!("{kind} in a Sequence"))),
        };
        stages.push(stage);
    }
    let ByteLevel { add_prefix_space, use_regex } = options(last)?;
    if add_prefix_space {
        return Err(TokenizerError::unsupported("pre_tokenizer.add_prefix_space", "false", "true"));
    }
    stages.extend(use_regex.then(|| Stage::Split(stage::GPT2.to_owned())));
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

/// `Split` after the stages `before`.
fn split(component: &Component, before: &[Stage]) -> Result<Stage, TokenizerError> {
    let Split { pattern, behavior, invert } = options(component)?;
    if behavior != "Isolated" {
        return Err(TokenizerError::unsupported("pre_tokenizer.behavior", "Isolated", behavior));
    }
    if invert {
        return Err(TokenizerError::unsupported("pre_tokenizer.invert", "false", "true"));
    }
    let regex = match &pattern {
        Pattern::Regex(regex) => Cow::Borrowed(regex.as_str()),
        Pattern::String(text) => Cow::Owned(regex_syntax::escape(text)),
    };
    Stage::split(&regex, before).map_err(|supported| {
        TokenizerError::unsupported("pre_tokenizer.pattern", supported, shortened(&pattern))
    })
}

/// The pattern as an error shows it.
fn shortened(pattern: &Pattern) -> String {
    const MOST: usize = 300;
    let text = pattern.to_string();
    match text.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}
