//! A checkpoint with everything read but its weights: a Hugging Face directory, or one GGUF file. `tensor_map` is the one
//! place that knows what its tensors are called.

pub mod binding;
pub mod config;
mod family;
pub mod gguf;
pub mod lora;
pub mod recommended;
mod rope;
pub(crate) mod rows;
pub mod tensor_map;

use std::path::{Path, PathBuf};

use self::config::ModelConfig;
use crate::error::{Error, Result};
use crate::json::Document;
use crate::options::Options;
use crate::source::gguf::Metadata;
use crate::source::mistaken::{self, Sort};
use crate::source::{self, Source};
use crate::tokenizer::{self, TokenizerError, TokenizerTables, chat_template};

/// What a blob is made of.
#[derive(Debug)]
pub struct Checkpoint {
    /// The tensors, of which the headers are read.
    pub source: Source,
    /// The hyperparameters.
    pub model: ModelConfig,
    /// The tokenizer.
    pub tokenizer: TokenizerTables,
    /// The chat template, if there is one.
    pub chat_template: Option<String>,
    /// The small files that were read whole.
    pub documents: Vec<Document>,
}

impl Checkpoint {
    /// Reads the checkpoint that `options` name.
    pub fn open(options: &Options) -> Result<Checkpoint> {
        let weights = source::find(&options.source)?;
        let source = Source::open(&weights)?;
        let mut checkpoint = match source.gguf.clone() {
            Some(metadata) => from_gguf(source, &metadata, options)?,
            None => from_hugging_face(source, &weights, options)?,
        };
        if let Some(directory) = &options.lora {
            let tied = checkpoint.model.config.tie_word_embeddings;
            let config = lora::apply(directory, &mut checkpoint.source, tied);
            checkpoint.documents.push(config.map_err(Error::within(directory))?);
        }
        Ok(checkpoint)
    }
}

impl Checkpoint {
    /// Every file of it that is read.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        let weights = self.source.files.iter().map(|file| file.path.as_path());
        weights.chain(self.documents.iter().map(|document| document.path.as_path()))
    }
}

/// A GGUF file needs no other, but may be given another tokenizer.
fn from_gguf(source: Source, metadata: &Metadata, options: &Options) -> Result<Checkpoint> {
    if let Some(config) = &options.config {
        return Err(Error::file(config, "expected no config beside a GGUF file, which has its own"));
    }
    let tokens = tokenizer::gguf::token_count(metadata)?;
    if source.tensors.is_empty() {
        let problem = format!("expected a model, found a vocabulary of {tokens} tokens, and no tensors");
        return Err(Error::file(metadata.path(), problem));
    }
    let model = gguf::read(metadata, &source, tokens)?;
    let given = options.tokenizer.as_deref().map(Document::read_tokenizer).transpose()?;
    let tokenizer = match &given {
        Some(document) => read_tokenizer(document, &model)?,
        None => {
            let definition = tokenizer::gguf::read(metadata)?;
            in_file(TokenizerTables::new(&definition, model.config.vocab_size), metadata.path())?
        }
    };
    let chat_template = tokenizer::gguf::chat_template(metadata)?;
    chat_template.as_deref().map_or(Ok(()), |template| chat_template::check(metadata.path(), template))?;
    Ok(Checkpoint { source, model, tokenizer, chat_template, documents: given.into_iter().collect() })
}

fn from_hugging_face(mut source: Source, weights: &Path, options: &Options) -> Result<Checkpoint> {
    let beside = |name: &str| weights.with_file_name(name);
    let named = |option: &Option<PathBuf>, name| option.clone().unwrap_or_else(|| beside(name));
    let config = Document::read(&named(&options.config, "config.json"))?;
    let tokenizer_json = Document::read_tokenizer(&named(&options.tokenizer, "tokenizer.json"))?;
    let generation_config = Document::read_optional(&beside("generation_config.json"))?;
    let tokenizer_config = Document::read_optional(&beside("tokenizer_config.json"))?;
    let template = Document::read_optional(&beside("chat_template.jinja"))?;
    let model = config::read(&config, generation_config.as_ref());
    let model = mistaken::or_named(model, &config.path, Sort::Config)?;
    let chat_template = chat_template::read(template.as_ref(), tokenizer_config.as_ref())?;
    let tokenizer = read_tokenizer(&tokenizer_json, &model)?;
    let optional = [source.index.take(), generation_config, tokenizer_config, template];
    let documents = [config, tokenizer_json].into_iter().chain(optional.into_iter().flatten()).collect();
    Ok(Checkpoint { source, model, tokenizer, chat_template, documents })
}

fn read_tokenizer(document: &Document, model: &ModelConfig) -> Result<TokenizerTables> {
    let tables = tokenizer::compile(&document.bytes, model.config.vocab_size);
    mistaken::or_named(in_file(tables, &document.path), &document.path, Sort::Tokenizer)
}

fn in_file(
    tables: std::result::Result<TokenizerTables, TokenizerError>,
    path: &Path,
) -> Result<TokenizerTables> {
    tables.map_err(|source| Error::Tokenizer { path: path.to_owned(), source })
}
