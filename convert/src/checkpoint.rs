//! A checkpoint with everything read but its weights: a Hugging Face directory, or one GGUF file.

use std::fs;
use std::path::{Path, PathBuf};

use crate::chat_template;
use crate::config_json::{self, ModelConfig};
use crate::convert::Options;
use crate::error::{Error, Result};
use crate::gguf_config;
use crate::gguf_tokenizer;
use crate::json::Document;
use crate::lora;
use crate::mistaken::{self, Sort};
use crate::source::gguf;
use crate::source::{self, Source};
use crate::target::Target;
use crate::tokenizer_json::{self, TokenizerTables};

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
            let config = lora::apply(directory, &mut checkpoint.source, tied)?;
            checkpoint.documents.push(config);
        }
        Ok(checkpoint)
    }

    /// `--force` must not cost somebody their checkpoint, nor a text that is read beside it.
    pub(crate) fn refuse_as_target(&self, target: &Target, options: &Options) -> Result<()> {
        let weights = self.source.files.iter().map(|file| file.path.as_path());
        let documents = self.documents.iter().map(|document| document.path.as_path());
        let is_target = |path: &Path| fs::canonicalize(path).is_ok_and(|path| path == target.path);
        let refuse = |what| Err(Error::output(&target.asked, format!("expected another file than {what}")));
        if weights.chain(documents).any(is_target) {
            return refuse("those of the checkpoint");
        }
        match options.texts().any(is_target) {
            true => refuse("the text that is read"),
            false => Ok(()),
        }
    }
}

/// A GGUF file needs no other, but may be given another tokenizer.
fn from_gguf(source: Source, metadata: &gguf::Metadata, options: &Options) -> Result<Checkpoint> {
    if let Some(config) = &options.config {
        return Err(Error::file(config, "expected no config beside a GGUF file, which has its own"));
    }
    let model = gguf_config::read(metadata, &source, gguf_tokenizer::token_count(metadata)?)?;
    let given = options.tokenizer.as_deref().map(Document::read_tokenizer).transpose()?;
    let tokenizer = match &given {
        Some(document) => tokenizer(document, &model)?,
        None => {
            let json = gguf_tokenizer::to_json(metadata)?.to_string();
            compile(json.as_bytes(), metadata.path(), &model)?
        }
    };
    let chat_template = gguf_tokenizer::chat_template(metadata)?;
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
    let model = config_json::read(&config, generation_config.as_ref());
    let model = mistaken::or_named(model, &config.path, Sort::Config)?;
    let chat_template = chat_template::read(template.as_ref(), tokenizer_config.as_ref())?;
    let tokenizer = tokenizer(&tokenizer_json, &model)?;
    let optional = [source.index.take(), generation_config, tokenizer_config, template];
    let documents = [config, tokenizer_json].into_iter().chain(optional.into_iter().flatten()).collect();
    Ok(Checkpoint { source, model, tokenizer, chat_template, documents })
}

fn tokenizer(document: &Document, model: &ModelConfig) -> Result<TokenizerTables> {
    mistaken::or_named(compile(&document.bytes, &document.path, model), &document.path, Sort::Tokenizer)
}

fn compile(json: &[u8], path: &Path, model: &ModelConfig) -> Result<TokenizerTables> {
    tokenizer_json::compile(json, model.config.vocab_size)
        .map_err(|source| Error::Tokenizer { path: path.to_owned(), source })
}
