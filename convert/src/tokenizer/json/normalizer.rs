//! The normalizer: what becomes of a text before normalized tokens are looked for in it.

use smolrun::format::TextRules;

use super::fields::{Component, Prepend, Replace, options, parts, quoted};
use crate::error::TokenizerError;
use crate::tokenizer::alphabet::{Alphabet, METASPACE};

const FIELD: &str = "normalizer";

/// The normalizer's rules.
pub(super) fn read(alphabet: Alphabet, normalizer: Option<&Component>) -> Result<TextRules, TokenizerError> {
    let parts = parts(normalizer, "normalizers")?;
    match alphabet {
        Alphabet::ByteLevel => byte_level(&parts),
        Alphabet::Metaspace => metaspace(&parts),
    }
}

fn byte_level(parts: &[Component]) -> Result<TextRules, TokenizerError> {
    match parts.iter().find(|part| part.kind != "NFC") {
        Some(other) => Err(TokenizerError::unsupported(FIELD, "null or NFC beside ByteLevel", &other.kind)),
        None if parts.is_empty() => Ok(TextRules::default()),
        None => Ok(TextRules::NFC),
    }
}

/// `Prepend` where there is one, then `Replace`.
fn metaspace(parts: &[Component]) -> Result<TextRules, TokenizerError> {
    let kinds: Vec<&str> = parts.iter().map(|part| part.kind.as_str()).collect();
    match kinds[..] {
        [] => Ok(TextRules::default()),
        ["Replace"] => replace(&parts[0]),
        ["Prepend", "Replace"] => Ok(prepend(&parts[0])?.with(replace(&parts[1])?)),
        _ => {
            let supported = "null, Replace, or a Sequence of Prepend and Replace, beside ByteFallback";
            Err(TokenizerError::unsupported(FIELD, supported, kinds.join(", ")))
        }
    }
}

fn prepend(component: &Component) -> Result<TextRules, TokenizerError> {
    let Prepend { prepend } = options(component)?;
    match prepend == METASPACE {
        true => Ok(TextRules::PREPEND_SPACE),
        false => Err(TokenizerError::unsupported("normalizer.prepend", "\"▁\"", quoted(&prepend))),
    }
}

fn replace(component: &Component) -> Result<TextRules, TokenizerError> {
    let Replace { pattern, content } = options(component)?;
    match pattern.string() == Some(" ") && content == METASPACE {
        true => Ok(TextRules::NORMALIZE_SPACE),
        false => {
            let found = format!("{pattern} by {}", quoted(&content));
            Err(TokenizerError::unsupported("normalizer.Replace", "\" \" by \"▁\"", found))
        }
    }
}
