//! A tokenizer without a model around it.

use std::ops::Range;
use std::sync::Arc;

use smolconv::tokenizer::TokenizerTables;
use smolrun::format::{TABLE_ALIGN, TokenizerSections};
use smolrun::storage::Storage;
use smolrun::tokenizer::Tokenizer;

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

/// Writes a number into any one of `tables`, as `bits`, random ones, say.
pub fn damage(tables: &mut TokenizerTables, bits: &mut impl FnMut() -> u64) {
    let value = (bits() >> (bits() % 64)) as u32;
    let mut below = |end: usize| (bits() % end as u64) as usize;
    let mut hit = |words: &mut [u32]| {
        if !words.is_empty() {
            words[below(words.len())] = value;
        }
    };
    match value % 8 {
        0 => hit(&mut tables.token_offsets),
        1 => hit(&mut tables.byte_tokens),
        2 => hit(tables.merges.as_flattened_mut()),
        3 => hit(tables.added_tokens.as_flattened_mut()),
        4 => hit(tables.char_tokens.as_flattened_mut()),
        5 => hit(&mut tables.whole_words),
        6 => hit(&mut tables.prompt_prefix),
        _ if tables.stages.is_empty() => {}
        _ => {
            let stage = below(tables.stages.len());
            let stage = &mut tables.stages[stage];
            let at = below(stage.len());
            stage[at] = value as u8;
        }
    }
}
