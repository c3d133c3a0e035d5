//! The fields of `tokenizer.json`.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::TokenizerError;
use crate::tokenizer::definition::{Added, Merges};

/// How the tokenizer works.
#[derive(Deserialize)]
pub(super) struct Settings {
    pub(super) version: String,
    pub(super) truncation: Option<Value>,
    pub(super) padding: Option<Value>,
    pub(super) normalizer: Option<Component>,
    pub(super) pre_tokenizer: Option<Component>,
    pub(super) post_processor: Option<Component>,
    pub(super) decoder: Option<Component>,
    pub(super) model: ModelSettings,
}

/// A part of the pipeline: its type, and options that depend on it.
#[derive(Clone, Deserialize)]
pub(super) struct Component {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(flatten)]
    pub(super) options: Map<String, Value>,
}

/// The options of the pre-tokenizer `ByteLevel`.
#[derive(Deserialize)]
pub(super) struct ByteLevel {
    pub(super) add_prefix_space: bool,
    #[serde(default = "yes")]
    pub(super) use_regex: bool,
}

fn yes() -> bool {
    true
}

/// The options of the pre-tokenizer `Digits`.
#[derive(Deserialize)]
pub(super) struct Digits {
    pub(super) individual_digits: bool,
}

/// The options of the pre-tokenizer `Split`.
#[derive(Deserialize)]
pub(super) struct Split {
    pub(super) pattern: Pattern,
    pub(super) behavior: String,
    #[serde(default)]
    pub(super) invert: bool,
}

/// What is looked for.
#[derive(Deserialize)]
pub(super) enum Pattern {
    String(String),
    Regex(String),
}

impl Pattern {
    /// The text, if it is one.
    pub(super) fn string(&self) -> Option<&str> {
        match self {
            Pattern::String(string) => Some(string),
            Pattern::Regex(_) => None,
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::String(string) => write!(f, "{string:?}"),
            Pattern::Regex(regex) => write!(f, "the regex {regex}"),
        }
    }
}

/// The options of the pre-tokenizer `Metaspace`.
#[derive(Deserialize)]
pub(super) struct Metaspace {
    pub(super) replacement: String,
    pub(super) add_prefix_space: Option<bool>,
    pub(super) prepend_scheme: Option<String>,
    pub(super) split: Option<bool>,
}

/// The options of the normalizer and the decoder `Replace`.
#[derive(Deserialize)]
pub(super) struct Replace {
    pub(super) pattern: Pattern,
    pub(super) content: String,
}

/// The options of the normalizer `Prepend`.
#[derive(Deserialize)]
pub(super) struct Prepend {
    pub(super) prepend: String,
}

/// The options of the decoder `Strip`.
#[derive(Deserialize)]
pub(super) struct Strip {
    pub(super) content: String,
    pub(super) start: usize,
    pub(super) stop: usize,
}

/// The options of the post-processor `TemplateProcessing`.
#[derive(Deserialize)]
pub(super) struct Template {
    pub(super) single: Vec<Piece>,
    #[serde(default)]
    pub(super) special_tokens: HashMap<String, TemplateToken>,
}

/// A part of what a template makes of a text.
#[derive(Deserialize)]
pub(super) enum Piece {
    SpecialToken { id: String },
    Sequence {},
}

/// A control token of a template.
#[derive(Deserialize)]
pub(super) struct TemplateToken {
    pub(super) ids: Vec<u32>,
}

/// Everything about the model but its content.
#[derive(Deserialize)]
pub(super) struct ModelSettings {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) dropout: Option<f64>,
    pub(super) unk_token: Option<String>,
    pub(super) continuing_subword_prefix: Option<String>,
    pub(super) end_of_word_suffix: Option<String>,
    pub(super) byte_fallback: Option<bool>,
    pub(super) ignore_merges: Option<bool>,
}

/// What the tokenizer knows.
#[derive(Deserialize)]
pub(super) struct Content {
    #[serde(default)]
    pub(super) added_tokens: Vec<Added>,
    pub(super) model: Model,
}

/// The content of a byte-pair encoding.
#[derive(Deserialize)]
pub(super) struct Model {
    pub(super) vocab: HashMap<String, u32>,
    pub(super) merges: Merges,
}

/// The parts of a component that may be a `Sequence`, by the field that lists them; none where there is no component.
pub(super) fn parts(component: Option<&Component>, list: &str) -> Result<Vec<Component>, TokenizerError> {
    match component {
        None => Ok(Vec::new()),
        Some(sequence) if sequence.kind == "Sequence" => {
            let list = sequence.options.get(list).cloned().unwrap_or_default();
            Ok(serde_json::from_value(list)?)
        }
        Some(component) => Ok(vec![component.clone()]),
    }
}

/// The component's options as a `T`.
pub(super) fn options<T: DeserializeOwned>(component: &Component) -> Result<T, TokenizerError> {
    Ok(serde_json::from_value(Value::Object(component.options.clone()))?)
}

pub(super) fn quoted(text: &str) -> String {
    format!("{text:?}")
}
