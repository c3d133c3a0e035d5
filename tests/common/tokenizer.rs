//! A tokenizer without a model around it.

use std::ops::Range;
use std::sync::Arc;

use smolconv::tokenizer_json::TokenizerTables;
use smolrun::Tokenizer;
use smolrun::format::{TABLE_ALIGN, TokenizerSections};
use smolrun::storage::Storage;

/// A tokenizer without a model: its tables one after the other in memory, as they would lie in a blob.
pub fn tokenizer(tables: &TokenizerTables) -> Tokenizer {
    let mut bytes = Vec::new();
    let mut lay = |table: &[u8]| -> Range<usize> {
        bytes.resize(bytes.len().next_multiple_of(TABLE_ALIGN as usize), 0);
        let start = bytes.len();
        bytes.extend_from_slice(table);
        start..bytes.len()
    };
    let sections = TokenizerSections {
        token_offsets: lay(bytemuck::cast_slice(&tables.token_offsets)),
        token_bytes: lay(&tables.token_bytes),
        byte_tokens: lay(bytemuck::cast_slice(&tables.byte_tokens)),
        merges: lay(bytemuck::cast_slice(&tables.merges)),
        added_tokens: lay(bytemuck::cast_slice(&tables.added_tokens)),
        pretokenizer: tables.stages.iter().map(|stage| lay(stage)).collect(),
        rules: tables.rules,
        char_tokens: lay(bytemuck::cast_slice(&tables.char_tokens)),
        whole_words: lay(bytemuck::cast_slice(&tables.whole_words)),
        prompt_prefix: lay(bytemuck::cast_slice(&tables.prompt_prefix)),
    };
    let storage = Storage::from_bytes(&bytes).expect("memory for the tokenizer's tables");
    Tokenizer::from_sections(Arc::new(storage), sections, tables.token_offsets.len() - 1)
}
