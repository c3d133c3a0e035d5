//! What the blob says about where it came from. No times and no paths: the same inputs give the same bytes.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::json::Document;
use crate::source::Source;

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
}

#[derive(Serialize)]
struct SourceRecord {
    name: String,
    bytes: u64,
    sha256: String,
}

impl Metadata {
    /// Describes `source`, whose files have these `hashes`, and the `documents` beside it.
    pub fn new(model_type: String, source: &Source, hashes: &[[u8; 32]], documents: &[Document]) -> Metadata {
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
        }
    }

    /// The section's bytes.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default() // plain records under string keys always serialise
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
