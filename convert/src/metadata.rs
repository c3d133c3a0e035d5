//! What the blob says about where it came from. No times and no paths: the same inputs give the same bytes.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::json::Document;
use crate::quantise::Loss;
use crate::source::Source;
use crate::tensor_map::Binding;
use crate::weights::{self, Weights};

/// The metadata section.
#[derive(Serialize)]
pub struct Metadata {
    converter: &'static str,
    model_type: String,
    /// Numbers in the checkpoint's tensors.
    parameters: u64,
    /// Tensors of each dtype in the checkpoint.
    source_dtypes: BTreeMap<String, u64>,
    /// The files that were read, in the order of their names.
    sources: Vec<SourceRecord>,
    #[serde(skip)]
    weights: Weights,
}

/// The metadata with what is known last.
#[derive(Serialize)]
struct Complete<'a> {
    #[serde(flatten)]
    metadata: &'a Metadata,
    #[serde(skip_serializing_if = "Option::is_none")]
    quantisation: Option<Quantisation<'a>>,
}

/// What was asked for, and what came of it.
#[derive(Serialize)]
struct Quantisation<'a> {
    dtype: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    keep: Vec<String>,
    sections: &'a [QuantisedSection],
}

/// A quantised section.
#[derive(Serialize)]
pub struct QuantisedSection {
    section: String,
    dtype: &'static str,
    relative_error: f64,
}

impl QuantisedSection {
    /// The section of `binding`, which lost `loss`.
    pub fn new(binding: &Binding, loss: Loss) -> QuantisedSection {
        QuantisedSection {
            section: weights::name(binding.kind, binding.layer),
            dtype: binding.dtype.name(),
            relative_error: loss.relative_error(),
        }
    }
}

#[derive(Serialize)]
struct SourceRecord {
    name: String,
    bytes: u64,
    sha256: String,
}

impl Metadata {
    /// Describes `source`, whose files have these `hashes`, the `documents` beside it, and what becomes of its weights.
    pub fn new(
        model_type: String,
        source: &Source,
        hashes: &[[u8; 32]],
        documents: &[Document],
        weights: &Weights,
    ) -> Metadata {
        let files = source.files.iter().zip(hashes);
        let mut sources: Vec<_> = files
            .map(|(file, hash)| SourceRecord { name: name(&file.path), bytes: file.len, sha256: hex(hash) })
            .chain(documents.iter().map(SourceRecord::of))
            .collect();
        sources.sort_by(|a, b| a.name.cmp(&b.name));
        let mut source_dtypes = BTreeMap::new();
        for tensor in source.tensors.values() {
            *source_dtypes.entry(tensor.dtype.to_string()).or_default() += 1;
        }
        Metadata {
            converter: concat!("smolconv ", env!("CARGO_PKG_VERSION")),
            model_type,
            parameters: source
                .tensors
                .values()
                .map(|tensor| tensor.shape.iter().product::<usize>() as u64)
                .sum(),
            source_dtypes,
            sources,
            weights: weights.clone(),
        }
    }

    /// The section's bytes in a blob with these quantised sections.
    pub fn to_json(&self, sections: &[QuantisedSection]) -> Vec<u8> {
        let Weights { mix, keep } = &self.weights;
        let quantisation = (!sections.is_empty()).then(|| Quantisation {
            dtype: mix.name(),
            keep: keep.iter().map(ToString::to_string).collect(),
            sections,
        });
        let complete = Complete { metadata: self, quantisation };
        serde_json::to_vec(&complete).unwrap_or_default() // plain records under string keys always serialise
    }
}

impl SourceRecord {
    fn of(document: &Document) -> SourceRecord {
        let sha256 = hex(&Sha256::digest(&document.bytes));
        SourceRecord { name: name(&document.path), bytes: document.bytes.len() as u64, sha256 }
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
