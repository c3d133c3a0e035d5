//! The whole way from a checkpoint to a blob.

use std::collections::HashSet;
use std::path::PathBuf;

use smolrun::format::{Dtype, Kind, LayerFlags, TextRules};

use crate::check;
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::metadata::Metadata;
use crate::plan::{Spec, plan};
use crate::progress::Progress;
use crate::source::Source;
use crate::temp_file::{self, TempFile};
use crate::tensor_map::{self, Binding};
use crate::tokenizer_json::TokenizerTables;
use crate::verify::verify;
use crate::weights::{Mix, Weights};
use crate::write::{Content, Section, write};

/// What to convert, and where to.
#[derive(Clone, Debug)]
pub struct Options {
    /// A `.safetensors` file, an index of several, the directory that holds them, or a GGUF file.
    pub source: PathBuf,
    /// The blob.
    pub out: PathBuf,
    /// `config.json`, where it does not lie beside the source.
    pub config: Option<PathBuf>,
    /// `tokenizer.json`, where it does not lie beside the source.
    pub tokenizer: Option<PathBuf>,
    /// The directory of a PEFT LoRA that is merged into the weights.
    pub lora: Option<PathBuf>,
    /// What matrices are stored as.
    pub weights: Weights,
    /// Whether an existing blob may be replaced.
    pub force: bool,
}

impl Options {
    /// Converts `source` to `out` with the defaults of the program.
    pub fn new(source: impl Into<PathBuf>, out: impl Into<PathBuf>) -> Options {
        Options {
            source: source.into(),
            out: out.into(),
            config: None,
            tokenizer: None,
            lora: None,
            weights: Mix::F32.into(),
            force: false,
        }
    }
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Bytes of the blob.
    pub file_len: u64,
    /// Its sections.
    pub sections: usize,
}

/// Converts a checkpoint. Whatever fails, no file is left behind, and a blob that was there before stays.
pub fn convert(options: &Options, progress: &Progress) -> Result<Summary> {
    temp_file::check_target(&options.out, options.force)?;
    let checkpoint = Checkpoint::open(options)?;
    checkpoint.refuse_as_target(&options.out)?;
    let Checkpoint { source, model, tokenizer, chat_template, documents } = checkpoint;
    let mut bindings = tensor_map::bind(&model.config, model.extras, &source)?;
    options.weights.assign(&mut bindings)?;

    let hashes = check::check(&source, &in_bf16(&bindings), progress)?;
    let metadata = Metadata::new(model.model_type, &source, &hashes, &documents, &options.weights);

    let mut sections = vec![
        bytes_section(Kind::Config, 1, model.config.to_bytes().to_vec()),
        bytes_section(Kind::RopeInvFreq, 1, bytemuck::cast_slice(&model.rope_inv_freq).to_vec()),
    ];
    sections.extend(layer_flags(&model.layers));
    sections.extend(tokenizer_sections(tokenizer));
    sections
        .extend(chat_template.map(|template| bytes_section(Kind::ChatTemplate, 1, template.into_bytes())));
    sections.extend(weight_sections(bindings, model.config.tie_word_embeddings));
    let spec = Spec { kind: Kind::Metadata, layer: None, dtype: Dtype::U8, shape: [0, 1] };
    sections.push(Section { spec, content: Content::Metadata(metadata) });

    write_blob(&sections, &source, options, progress)
}

/// The tensors whose numbers are rounded to bf16.
fn in_bf16<'a>(bindings: &[Binding<'a>]) -> HashSet<&'a str> {
    let bindings = bindings.iter().filter(|binding| binding.dtype == Dtype::Bf16);
    bindings.flat_map(|binding| &binding.tensors).map(|part| part.tensor.name.as_str()).collect()
}

/// To a temporary file that gets its name once it was read back and found to be right.
fn write_blob(
    sections: &[Section],
    source: &Source,
    options: &Options,
    progress: &Progress,
) -> Result<Summary> {
    let specs: Vec<Spec> = sections.iter().map(|section| section.spec).collect();
    let too_large =
        || Error::output(&options.out, "the blob would have more sections or bytes than a blob can");
    let plan = plan(&specs).ok_or_else(too_large)?;
    let (temp, file) = TempFile::create(&options.out, options.force)?;
    let file_len = write(sections, plan, source, file, temp.path(), progress)?;
    verify(temp.path(), progress)?;
    temp.persist()?;
    Ok(Summary { file_len, sections: sections.len() })
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
/// tied embedding comes last, since it ends each pass; of its beginning each pass reads only a few rows.
fn weight_sections(bindings: Vec<Binding>, tied: bool) -> Vec<Section> {
    let (vectors, mut matrices): (Vec<_>, Vec<_>) =
        bindings.into_iter().partition(|binding| !binding.kind.is_matrix());
    if tied {
        matrices.sort_by_key(|binding| binding.kind == Kind::EmbedTokens); // stable
    }
    let section = |binding| {
        let Binding { kind, layer, dtype, shape, .. } = binding;
        Section { spec: Spec { kind, layer, dtype, shape }, content: Content::Tensors(binding) }
    };
    vectors.into_iter().chain(matrices).map(section).collect()
}
