//! Compiles `tokenizer.json` to the tables that the runtime's tokenizer works on.
//!
//! What the runtime cannot do exactly as the `tokenizers` library does is refused by name, never approximated.

mod alphabet;
mod dfa;
mod error;
mod json;
mod settings;
#[cfg(test)]
mod tests;
mod vocab;

pub use self::error::TokenizerError;

use self::json::{Content, Settings};
use self::vocab::Vocab;

/// The tokenizer's sections, ready to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenizerTables {
    /// Token `t` is `token_bytes[token_offsets[t]..token_offsets[t + 1]]`; one more than `vocab_size`.
    pub token_offsets: Vec<u32>,
    /// The bytes each token stands for, one after the other.
    pub token_bytes: Vec<u8>,
    /// The token of each single byte, or `NO_TOKEN`.
    pub byte_tokens: [u32; 256],
    /// The slots of the hash table of merges: left id, right id, rank, merged id.
    pub merges: Vec<[u32; 4]>,
    /// Id and flags of each added token, in the order that `AddedToken` asks for.
    pub added_tokens: Vec<[u32; 2]>,
    /// The pre-tokenizer's stages, each the bytes of a `Dfa`.
    pub stages: Vec<Vec<u8>>,
    /// Tokens that the file defines: ids from here to `vocab_size` are rows of the embedding that no text reaches.
    pub token_count: usize,
}

/// Compiles the content of a `tokenizer.json` for a model whose embedding has `vocab_size` rows.
pub fn compile(json: &[u8], vocab_size: usize) -> Result<TokenizerTables, TokenizerError> {
    let settings: Settings = serde_json::from_slice(json)?;
    let stages = settings::check(&settings)?;
    let content: Content = serde_json::from_slice(json)?;
    let vocab = Vocab::new(&content)?;
    let (token_offsets, token_bytes) = vocab.token_bytes(vocab_size)?;
    let byte_tokens = vocab.byte_tokens();
    settings::check_unk(&settings.model, &byte_tokens)?;
    Ok(TokenizerTables {
        token_offsets,
        token_bytes,
        byte_tokens,
        merges: vocab.merges(&content.model.merges)?,
        added_tokens: vocab.added_tokens(&content.added_tokens)?,
        stages: stages.into_iter().map(dfa::compile).collect::<Result<_, _>>()?,
        token_count: vocab.len(),
    })
}
