//! A checkpoint's tokenizer and chat template: read from `tokenizer.json` or a GGUF file into one [`Definition`], which is
//! compiled to the tables that the runtime's tokenizer works on.

mod alphabet;
pub mod chat_template;
mod definition;
mod dfa;
mod dialect;
pub mod gguf;
mod json;
mod stage;
mod tables;
#[cfg(test)]
mod tests;
mod vocab;
mod whole_words;

pub use self::definition::Definition;
pub use self::tables::TokenizerTables;
pub use crate::error::TokenizerError;

/// Compiles the content of a `tokenizer.json` for a model whose embedding has `vocab_size` rows.
pub fn compile(json: &[u8], vocab_size: usize) -> Result<TokenizerTables, TokenizerError> {
    TokenizerTables::new(&json::read(json)?, vocab_size)
}
