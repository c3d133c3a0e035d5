//! The post-processor: what is put around the tokens of a text.

use super::fields::{Component, Piece, Template, options, parts};
use crate::error::TokenizerError;

const FIELD: &str = "post_processor";

/// The ids that a prompt begins with. `ByteLevel` only moves offsets, which nobody asks for here.
pub(super) fn read(post_processor: Option<&Component>) -> Result<Vec<u32>, TokenizerError> {
    let mut prefix = None;
    for part in parts(post_processor, "processors")? {
        match part.kind.as_str() {
            "ByteLevel" => {}
            "TemplateProcessing" if prefix.is_none() => prefix = Some(template(&part)?),
            kind => {
                let supported = "null, ByteLevel, or one TemplateProcessing";
                return Err(TokenizerError::unsupported(FIELD, supported, kind));
            }
        }
    }
    Ok(prefix.unwrap_or_default())
}

/// Control tokens, then the text.
fn template(component: &Component) -> Result<Vec<u32>, TokenizerError> {
    let Template { single, special_tokens } = options(component)?;
    let mut ids = Vec::new();
    let (last, before) = single.split_last().ok_or_else(|| refuse("nothing"))?;
    for piece in before {
        match piece {
            Piece::SpecialToken { id } => {
                let token = special_tokens.get(id).ok_or_else(|| {
                    TokenizerError::invalid("post_processor.special_tokens", "an entry for each token", id)
                })?;
                ids.extend(&token.ids);
            }
            Piece::Sequence {} => return Err(refuse("something after the text")),
        }
    }
    match last {
        Piece::Sequence {} => Ok(ids),
        Piece::SpecialToken { id } => Err(refuse(id)),
    }
}

fn refuse(found: &str) -> TokenizerError {
    TokenizerError::unsupported("post_processor.single", "control tokens and then the text", found)
}
