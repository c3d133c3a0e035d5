//! The decoder, which tells what kind of tokenizer it is: how the texts of tokens become text again.

use smolrun::format::TextRules;

use super::fields::{Component, Replace, Strip, options, parts, quoted};
use crate::error::TokenizerError;
use crate::tokenizer::alphabet::{Alphabet, METASPACE};

const FIELD: &str = "decoder";
const SUPPORTED: &str = "ByteLevel, or a Sequence of Replace, ByteFallback, Fuse and Strip";

/// The alphabet that the decoder reads, and what it takes off the text.
pub(super) fn read(decoder: Option<&Component>) -> Result<(Alphabet, TextRules), TokenizerError> {
    let parts = parts(decoder, "decoders")?;
    let kinds: Vec<&str> = parts.iter().map(|part| part.kind.as_str()).collect();
    match kinds[..] {
        ["ByteLevel"] => Ok((Alphabet::ByteLevel, TextRules::default())),
        ["Replace", "ByteFallback", "Fuse"] => {
            replaces_metaspace(&parts[0])?;
            Ok((Alphabet::Metaspace, TextRules::default()))
        }
        ["Replace", "ByteFallback", "Fuse", "Strip"] => {
            replaces_metaspace(&parts[0])?;
            strips_one_space(&parts[3])?;
            Ok((Alphabet::Metaspace, TextRules::STRIP_SPACE))
        }
        [] => Err(TokenizerError::unsupported(FIELD, SUPPORTED, "null")),
        [kind] => Err(TokenizerError::unsupported(FIELD, SUPPORTED, kind)),
        _ => {
            Err(TokenizerError::unsupported(FIELD, SUPPORTED, format!("a Sequence of {}", kinds.join(", "))))
        }
    }
}

fn replaces_metaspace(component: &Component) -> Result<(), TokenizerError> {
    let Replace { pattern, content } = options(component)?;
    match pattern.string() == Some(METASPACE) && content == " " {
        true => Ok(()),
        false => {
            let found = format!("{pattern} by {}", quoted(&content));
            Err(TokenizerError::unsupported("decoder.Replace", "\"▁\" by \" \"", found))
        }
    }
}

fn strips_one_space(component: &Component) -> Result<(), TokenizerError> {
    let Strip { content, start, stop } = options(component)?;
    match content == " " && (start, stop) == (1, 0) {
        true => Ok(()),
        false => {
            let found = format!("{} {start} and {stop} times", quoted(&content));
            Err(TokenizerError::unsupported("decoder.Strip", "\" \" once at the start", found))
        }
    }
}
