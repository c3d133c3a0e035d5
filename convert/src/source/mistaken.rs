//! What somebody gave instead of what was expected, and what to do about it.
//!
//! It is only looked at once something went wrong, so that nothing that can be read is refused.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use serde::de::IgnoredAny;
use smolrun::format::MAGIC;

use crate::error::{Error, Result};
use crate::json::{Count, Document};

/// Most JSON values of a file that is looked into: a vocabulary of 256,000 tokens is one.
const MOST_VALUES: usize = 1 << 18;

/// A file that somebody may give to a converter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    Adapter,
    Blob,
    Config,
    GenerationConfig,
    Gguf,
    Index,
    PyTorch,
    SafeTensors,
    SentencePiece,
    Tokenizer,
    TokenizerConfig,
    Vocab,
}

impl Sort {
    const ALL: [Sort; 12] = [
        Sort::Adapter,
        Sort::Blob,
        Sort::Config,
        Sort::GenerationConfig,
        Sort::Gguf,
        Sort::Index,
        Sort::PyTorch,
        Sort::SafeTensors,
        Sort::SentencePiece,
        Sort::Tokenizer,
        Sort::TokenizerConfig,
        Sort::Vocab,
    ];

    /// Of the file at `path`, if it shows.
    fn of(path: &Path) -> Option<Sort> {
        if !path.metadata().ok()?.is_file() {
            return None;
        }
        let mut start = Vec::new();
        File::open(path).ok()?.take(16).read_to_end(&mut start).ok()?;
        match start.trim_ascii_start().first() {
            Some(b'{') => Sort::of_json(path),
            _ => Sort::ALL.into_iter().find(|sort| sort.begins_as(&start)),
        }
    }

    fn begins_as(self, start: &[u8]) -> bool {
        match self {
            Sort::Blob => start.starts_with(&MAGIC),
            Sort::Gguf => start.starts_with(b"GGUF"),
            Sort::PyTorch => start.starts_with(b"PK\x03\x04") || start.starts_with(b"\x80\x02"),
            Sort::SafeTensors => start.get(8..10) == Some(b"{\""),
            Sort::SentencePiece => matches!(start, [b'\n', ..b' ', b'\n', ..]),
            _ => false,
        }
    }

    fn of_json(path: &Path) -> Option<Sort> {
        let document = Document::read(path).ok()?;
        if Count::of(&document.bytes).values > MOST_VALUES {
            return None;
        }
        let fields: HashMap<String, IgnoredAny> = serde_json::from_slice(&document.bytes).ok()?;
        Sort::ALL.into_iter().find(|sort| sort.fields().iter().any(|&field| fields.contains_key(field)))
    }

    /// Fields of which such a file has one, and no other sort has, but for those after it in [`Sort::ALL`].
    fn fields(self) -> &'static [&'static str] {
        match self {
            Sort::Adapter => &["peft_type"],
            Sort::Config => &["architectures", "hidden_size", "num_hidden_layers"],
            Sort::GenerationConfig => &["do_sample", "temperature", "_from_model_config"],
            Sort::Index => &["weight_map"],
            Sort::Tokenizer => &["pre_tokenizer", "post_processor"],
            Sort::TokenizerConfig => &["tokenizer_class", "added_tokens_decoder", "chat_template"],
            Sort::Vocab => &["Ġthe", "▁the", "<s>", "<|endoftext|>"],
            Sort::Blob | Sort::Gguf | Sort::PyTorch | Sort::SafeTensors | Sort::SentencePiece => &[],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Sort::Adapter => "an adapter_config.json",
            Sort::Blob => "a blob, which is what smolconv makes",
            Sort::Config => "a config.json",
            Sort::GenerationConfig => "a generation_config.json",
            Sort::Gguf => "a GGUF file",
            Sort::Index => "a model.safetensors.index.json",
            Sort::PyTorch => "a PyTorch file",
            Sort::SafeTensors => "a SafeTensors file",
            Sort::SentencePiece => "a SentencePiece model",
            Sort::Tokenizer => "a tokenizer.json",
            Sort::TokenizerConfig => "a tokenizer_config.json",
            Sort::Vocab => "a vocab.json",
        }
    }

    /// What somebody is asked for who should have given such a file.
    fn wanted(self) -> &'static str {
        match self {
            Sort::SafeTensors => "a checkpoint",
            other => other.name(),
        }
    }

    /// What to do about `self` where `expected` should have been.
    fn advice(self, expected: Sort) -> &'static str {
        match (self, expected) {
            (Sort::Blob, Sort::Index | Sort::SafeTensors) => {
                "smolrun runs it as it is; convert the checkpoint again for another --dtype"
            }
            (Sort::PyTorch, Sort::Index | Sort::SafeTensors) => {
                "save_pretrained of transformers makes a directory with SafeTensors of it"
            }
            (Sort::Adapter, Sort::Index | Sort::SafeTensors) => {
                "give its directory to --lora, and the model that it is for as SOURCE"
            }
            (_, Sort::Index | Sort::SafeTensors) => "give the directory that it lies in",
            (Sort::SentencePiece | Sort::Vocab, Sort::Tokenizer) => {
                "save_pretrained of transformers' fast tokenizer makes a tokenizer.json of it"
            }
            (_, Sort::Tokenizer) => "give the tokenizer.json that lies beside the model's config.json",
            _ => "give the config.json that lies beside the model's weights",
        }
    }
}

/// `result`, but if it is an error and the file at `path` is of another sort than `expected`, an error that says so.
pub(crate) fn or_named<T>(result: Result<T>, path: &Path, expected: Sort) -> Result<T> {
    result.map_err(|error| match Sort::of(path).filter(|&found| found != expected) {
        Some(found) => {
            let (name, advice) = (found.name(), found.advice(expected));
            Error::file(path, format!("expected {}, found {name}: {advice}", expected.wanted()))
        }
        None => error,
    })
}

/// What a directory without weights has instead, and what to do about it.
pub(crate) fn in_directory(path: &Path) -> String {
    if path.join("adapter_config.json").exists() {
        return "an adapter: give the directory to --lora, and that of its model as SOURCE".into();
    }
    let names = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    let first = |end: &str| names.iter().find(|name| name.to_ascii_lowercase().ends_with(end));
    if let Some(name) = first(".gguf") {
        return format!("{name}: give that file itself");
    }
    if names.iter().any(|name| name.starts_with("pytorch_model") && name.ends_with(".bin")) {
        return "PyTorch files: save_pretrained of transformers makes a directory with SafeTensors of it"
            .into();
    }
    match first(".safetensors").filter(|name| !name.contains("-of-")) {
        Some(name) => format!("{name}: give that file itself"),
        None => "neither".into(),
    }
}
