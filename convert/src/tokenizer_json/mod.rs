//! Compiles `tokenizer.json` to the tables that the runtime's tokenizer works on.
//!
//! What the runtime cannot do exactly as the `tokenizers` library does is refused by name, never approximated.

mod alphabet;
mod decoder;
mod dfa;
mod error;
mod json;
mod normalizer;
mod post_processor;
mod pre_tokenizer;
mod settings;
#[cfg(test)]
mod tests;
mod vocab;
mod whole_words;

use smolrun::format::TextRules;

use crate::json::Count;

pub use self::error::TokenizerError;
use self::json::{Content, Settings};
use self::settings::Pipeline;
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
    /// What becomes of a text before it is cut into words.
    pub rules: TextRules,
    /// Code point and id of each character that is a token, by code point; none for a byte-level tokenizer.
    pub char_tokens: Vec<[u32; 2]>,
    /// Tokens that a word becomes as a whole, whatever the merges say, in the order of their bytes.
    pub whole_words: Vec<u32>,
    /// Ids that a prompt begins with.
    pub prompt_prefix: Vec<u32>,
    /// Tokens that the file defines: ids from here to `vocab_size` are rows of the embedding that no text reaches.
    pub token_count: usize,
}

/// Most JSON values of a tokenizer: four times those of 256,000 tokens with twice as many merges.
const MAX_VALUES: usize = 1 << 23;

/// Refuses what would take gigabytes when parsed.
fn check_size(json: &[u8]) -> Result<(), TokenizerError> {
    match Count::of(json).values {
        0..=MAX_VALUES => Ok(()),
        found => Err(TokenizerError::TooLarge { expected: MAX_VALUES, found }),
    }
}

/// Compiles the content of a `tokenizer.json` for a model whose embedding has `vocab_size` rows.
pub fn compile(json: &[u8], vocab_size: usize) -> Result<TokenizerTables, TokenizerError> {
    check_size(json)?;
    let settings: Settings = serde_json::from_slice(json)?;
    let Pipeline { alphabet, rules, stages, ignore_merges, prompt_prefix } = settings::check(&settings)?;
    let content: Content = serde_json::from_slice(json)?;
    let vocab = Vocab::new(&content, alphabet, rules)?;
    let (token_offsets, token_bytes) = vocab.token_bytes(vocab_size)?;
    let byte_tokens = vocab.byte_tokens();
    settings::check_unk(alphabet, &settings.model, &byte_tokens)?;
    let merges = vocab.merges(&content.model.merges)?;
    Ok(TokenizerTables {
        token_offsets,
        token_bytes,
        byte_tokens,
        added_tokens: vocab.added_tokens(&content.added_tokens)?,
        stages: stages.into_iter().map(dfa::compile).collect::<Result<_, _>>()?,
        rules,
        char_tokens: vocab.char_tokens(),
        whole_words: if ignore_merges { vocab.whole_words(&byte_tokens, &merges) } else { Vec::new() },
        merges: vocab::merge_table(&merges)?,
        prompt_prefix: vocab.check_ids("post_processor.special_tokens", prompt_prefix)?,
        token_count: vocab.len(),
    })
}
