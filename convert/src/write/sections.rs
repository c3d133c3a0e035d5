//! Which sections a blob has, in the order of the file.

use smolrun::format::{Kind, LayerFlags, TextRules};

use super::plan::Spec;
use super::shelf::Shelf;
use super::stream::{Content, Section};
use crate::checkpoint::binding::Binding;
use crate::checkpoint::config::ModelConfig;
use crate::tokenizer::TokenizerTables;

/// The small tables, which come first.
pub(crate) fn tables(
    model: &ModelConfig,
    tokenizer: TokenizerTables,
    chat_template: Option<String>,
) -> Vec<Section<'static>> {
    let mut tables = vec![
        bytes_section(Kind::Config, 1, model.config.to_bytes().to_vec()),
        bytes_section(Kind::RopeInvFreq, 1, bytemuck::cast_slice(&model.rope_inv_freq).to_vec()),
    ];
    tables.extend(layer_flags(&model.layers));
    tables.extend(tokenizer_sections(tokenizer));
    tables.extend(chat_template.map(|template| bytes_section(Kind::ChatTemplate, 1, template.into_bytes())));
    tables
}

/// A table of `columns` columns of the kind's dtype.
fn bytes_section(kind: Kind, columns: u64, bytes: Vec<u8>) -> Section<'static> {
    let dtype = kind.dtypes()[0];
    let rows = bytes.len() as u64 / (columns * dtype.size().unwrap_or(1)); // a table is of numbers
    let spec = Spec { kind, layer: None, dtype, shape: [rows, columns] };
    Section { spec, content: Content::Bytes(bytes) }
}

/// What the layers do otherwise than the first Llama's, where any does.
fn layer_flags(layers: &[LayerFlags]) -> Option<Section<'static>> {
    let bits: Vec<u32> = layers.iter().map(|layer| layer.to_bits()).collect();
    let is_any = bits.iter().any(|&bits| bits != 0);
    is_any.then(|| bytes_section(Kind::LayerFlags, 1, bytemuck::cast_slice(&bits).to_vec()))
}

fn tokenizer_sections(tables: TokenizerTables) -> Vec<Section<'static>> {
    let table = |kind, columns, bytes: &[u8]| bytes_section(kind, columns, bytes.to_vec());
    let mut sections = vec![
        table(Kind::TokenOffsets, 1, bytemuck::cast_slice(&tables.token_offsets)),
        table(Kind::TokenBytes, 1, &tables.token_bytes),
        table(Kind::ByteTokens, 1, bytemuck::cast_slice(&tables.byte_tokens)),
        table(Kind::Merges, 4, bytemuck::cast_slice(&tables.merges)),
        table(Kind::AddedTokens, 2, bytemuck::cast_slice(&tables.added_tokens)),
    ];
    let rules = [tables.rules.to_bits()];
    let optional: [(Kind, u64, &[u32]); 4] = [
        (Kind::TextRules, 1, if tables.rules == TextRules::default() { &[] } else { &rules }),
        (Kind::CharTokens, 2, tables.char_tokens.as_flattened()),
        (Kind::WholeWords, 1, &tables.whole_words),
        (Kind::PromptPrefix, 1, &tables.prompt_prefix),
    ];
    let present = optional.into_iter().filter(|(.., words)| !words.is_empty());
    sections.extend(present.map(|(kind, columns, words)| table(kind, columns, bytemuck::cast_slice(words))));
    for (stage, bytes) in (0u32..).zip(tables.stages) {
        let mut section = bytes_section(Kind::Pretokenizer, 1, bytes);
        section.spec.layer = Some(stage);
        sections.push(section);
    }
    sections
}

/// All vectors, which then lie together with the small tables, then the matrices in the order of the forward pass. A
/// tied embedding comes last, since it ends each pass; of its beginning each pass reads only a few rows. What is on the
/// `shelf` is taken from there.
pub(crate) fn weight_sections<'a>(
    bindings: Vec<Binding<'a>>,
    shelf: Option<&Shelf>,
    tied: bool,
) -> impl Iterator<Item = Section<'a>> {
    let (vectors, mut matrices): (Vec<_>, Vec<_>) =
        bindings.into_iter().partition(|binding| !binding.kind.is_matrix());
    if tied {
        matrices.sort_by_key(|binding| matches!(binding.kind, Kind::EmbedTokens | Kind::EmbedTokensRare)); // stable
    }
    vectors.into_iter().chain(matrices).map(move |binding| {
        let Binding { kind, layer, dtype, shape, .. } = binding;
        let content = match shelf.and_then(|shelf| shelf.get(&binding)) {
            Some(shelved) => Content::Shelved(binding, shelved.clone()),
            None => Content::Tensors(binding),
        };
        Section { spec: Spec { kind, layer, dtype, shape }, content }
    })
}
