//! The tables that the runtime's tokenizer works on.

use smolrun::format::{NO_TOKEN, TextRules};

use super::alphabet::Alphabet;
use super::definition::Definition;
use super::dfa;
use super::vocab::{Vocab, merge_table};
use crate::error::TokenizerError;

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

impl TokenizerTables {
    /// Those of the tokenizer that is defined so, for a model whose embedding has `vocab_size` rows.
    pub fn new(definition: &Definition, vocab_size: usize) -> Result<TokenizerTables, TokenizerError> {
        let vocab = Vocab::new(definition)?;
        let (token_offsets, token_bytes) = vocab.token_bytes(vocab_size)?;
        let byte_tokens = vocab.byte_tokens();
        check_unk(definition, &byte_tokens)?;
        let merges = vocab.merges(&definition.merges)?;
        let prefix = definition.prompt_prefix.clone();
        let whole_words = match definition.ignore_merges {
            true => vocab.whole_words(&byte_tokens, &merges),
            false => Vec::new(),
        };
        Ok(TokenizerTables {
            token_offsets,
            token_bytes,
            byte_tokens,
            added_tokens: vocab.added_tokens(&definition.added_tokens)?,
            stages: definition.stages.iter().map(dfa::compile).collect::<Result<_, _>>()?,
            rules: definition.rules,
            char_tokens: vocab.char_tokens(),
            whole_words,
            merges: merge_table(&merges)?,
            prompt_prefix: vocab.check_ids("post_processor.special_tokens", prefix)?,
            token_count: vocab.len(),
        })
    }
}

/// A token for unknown bytes has no effect where every byte is known. Elsewhere the runtime drops unknown bytes, which
/// is what a byte-level tokenizer does without such a token.
fn check_unk(definition: &Definition, byte_tokens: &[u32; 256]) -> Result<(), TokenizerError> {
    if !byte_tokens.contains(&NO_TOKEN) {
        return Ok(());
    }
    match (definition.alphabet, &definition.unk_token) {
        (Alphabet::Metaspace, _) => {
            let found = "a vocabulary without some of them";
            Err(TokenizerError::unsupported("model.byte_fallback", "a token for each byte", found))
        }
        (Alphabet::ByteLevel, Some(unk)) => {
            let supported = "null, as not every byte has a token";
            Err(TokenizerError::unsupported("model.unk_token", supported, format!("{unk:?}")))
        }
        (Alphabet::ByteLevel, None) => Ok(()),
    }
}
