//! What the blob says about where it came from. No times and no paths: the same inputs give the same bytes.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::checkpoint::binding::{Binding, section_name};
use crate::checkpoint::recommended::Recommended;
use crate::files::SourceRecord;
use crate::json::Document;
use crate::options::{Origin, Size, Weights};
use crate::quantize::Loss;
use crate::quantize::report::Report;
use crate::quantize::text::Text;
use crate::source::Source;

/// The metadata section.
#[derive(Clone, Serialize)]
pub struct Metadata {
    converter: &'static str,
    model_type: String,
    /// Numbers in the checkpoint's tensors.
    parameters: u64,
    /// Tensors of each dtype in the checkpoint.
    source_dtypes: BTreeMap<String, u64>,
    /// The files that were read, in the order of their names.
    sources: Vec<SourceRecord>,
    /// The repository that they came from.
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<Origin>,
    /// How tokens are best chosen.
    #[serde(skip_serializing_if = "Recommended::is_empty")]
    generation: Recommended,
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<Report>,
    #[serde(skip)]
    quantization: Option<Quantization>,
}

/// What was asked for.
#[derive(Clone, Serialize)]
struct Quantization {
    #[serde(skip_serializing_if = "Option::is_none")]
    dtype: Option<&'static str>,
    /// The most bytes that the blob was to have.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    keep: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    calibration: Option<SourceRecord>,
    /// Epochs over that text in which scales and norms were tuned.
    #[serde(skip_serializing_if = "Option::is_none")]
    tuned_epochs: Option<u32>,
}

/// The metadata with what is known last.
#[derive(Serialize)]
struct Complete<'a> {
    #[serde(flatten)]
    metadata: &'a Metadata,
    #[serde(rename = "quantisation", skip_serializing_if = "Option::is_none")]
    quantization: Option<Outcome<'a>>,
}

/// What was asked for, and what came of it.
#[derive(Serialize)]
struct Outcome<'a> {
    #[serde(flatten)]
    quantization: &'a Quantization,
    sections: &'a [QuantizedSection],
}

/// A quantized section.
#[derive(Serialize)]
pub struct QuantizedSection {
    section: String,
    dtype: &'static str,
    relative_error: f64,
    /// The same of what the matrix puts out, where it was calibrated.
    #[serde(skip_serializing_if = "Option::is_none")]
    output_error: Option<f64>,
}

impl QuantizedSection {
    /// One that takes as many bytes as that of `binding` may.
    fn longest(binding: &Binding) -> QuantizedSection {
        let error = 1.234e-100; // four digits and an exponent of the most
        let section = QuantizedSection::new(binding, Loss::default());
        QuantizedSection { relative_error: error, output_error: Some(error), ..section }
    }

    /// The section of `binding`, which lost `loss`.
    pub fn new(binding: &Binding, loss: Loss) -> QuantizedSection {
        QuantizedSection {
            section: section_name(binding.kind, binding.layer),
            dtype: binding.dtype.name(),
            relative_error: loss.relative_error(),
            output_error: loss.output_error(),
        }
    }
}

impl Metadata {
    /// Describes `source`, whose files have these `hashes`, and the `documents` beside it.
    pub fn new(
        model_type: String,
        generation: Recommended,
        source: &Source,
        hashes: &[[u8; 32]],
        documents: &[Document],
    ) -> Metadata {
        let files = source.files.iter().zip(hashes);
        let mut sources: Vec<_> = files
            .map(|(file, hash)| SourceRecord::hashed(&file.path, file.len, hash))
            .chain(documents.iter().map(|document| SourceRecord::new(&document.path, &document.bytes)))
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
            origin: None,
            generation,
            report: None,
            quantization: None,
        }
    }

    /// The source came from `origin`.
    pub fn fetched_from(&mut self, origin: Option<&Origin>) {
        self.origin = origin.cloned();
    }

    /// Some matrices are quantized, of those of `weights`: as these say, or for the least loss in a blob of this `size`.
    pub fn quantized_as(&mut self, weights: &Weights, size: Option<&Size>) {
        let Weights { mix, keep } = weights;
        let keep = keep.iter().map(ToString::to_string).collect();
        let dtype = size.is_none().then(|| mix.name());
        let size = size.map(|size| size.bytes);
        self.quantization = Some(Quantization { dtype, size, keep, calibration: None, tuned_epochs: None });
    }

    /// They were so for the least error on `text`.
    pub fn calibrated_on(&mut self, text: &Text) {
        if let Some(quantization) = &mut self.quantization {
            quantization.calibration = Some(SourceRecord::new(&text.path, text.text.as_bytes()));
        }
    }

    /// Scales and norms were tuned in so many epochs over that text.
    pub fn tuned(&mut self, epochs: u32) {
        if let Some(quantization) = &mut self.quantization {
            quantization.tuned_epochs = Some(epochs);
        }
    }

    /// The blob is so far from its checkpoint.
    pub fn report(&mut self, report: &Report) {
        self.report = Some(report.clone());
    }

    /// Bytes of the section in a blob of `bindings`, at most.
    pub fn most_bytes(&self, bindings: &[Binding]) -> u64 {
        let quantized = bindings.iter().filter(|binding| binding.dtype.code_bits().is_some());
        let sections: Vec<_> = quantized.map(QuantizedSection::longest).collect();
        let mut longest = self.clone();
        let size = longest.quantization.as_mut().and_then(|quantization| quantization.size.as_mut());
        size.into_iter().for_each(|size| *size = u64::MAX);
        longest.to_json(&sections).len() as u64
    }

    /// The section's bytes in a blob with these quantized sections.
    pub fn to_json(&self, sections: &[QuantizedSection]) -> Vec<u8> {
        let quantization = self.quantization.as_ref();
        let quantization = quantization.map(|quantization| Outcome { quantization, sections });
        let complete = Complete { metadata: self, quantization };
        serde_json::to_vec(&complete).unwrap_or_default() // plain records under string keys always serialize
    }
}
