//! The whole way from a checkpoint to a blob.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use smolrun::Model;
use smolrun::format::{Dtype, Kind};

use crate::checkpoint::binding::Binding;
use crate::checkpoint::{Checkpoint, tensor_map};
use crate::error::{Error, Result};
use crate::options::{Calibration, Mix, Options, Weights};
use crate::progress::Progress;
use crate::quantize::calibration;
use crate::quantize::report::Report;
use crate::quantize::text::Text;
use crate::source::{Source, check};
use crate::write::metadata::Metadata;
use crate::write::plan::{Spec, plan};
use crate::write::sections::{tables, weight_sections};
use crate::write::stream::{Content, Section, write};
use crate::write::target::Target;
use crate::write::temp_file::{self, TempFile};
use crate::write::verify::verify;

impl Options {
    /// Refuses what needs no look at the source: before a model is fetched, which may take long.
    pub fn check(&self) -> Result<()> {
        self.target().map(drop)
    }

    /// Where the blob goes, if nothing is wrong with the options.
    fn target(&self) -> Result<Target> {
        self.check_calibration(self.weights.quantizes())?;
        let target = Target::new(&self.out, self.force)?;
        temp_file::prepare(&target)?;
        Ok(target)
    }

    /// A text to calibrate on must not be given in vain.
    fn check_calibration(&self, quantizes: bool) -> Result<()> {
        match self.calibration {
            Calibration::BuiltIn | Calibration::Text(_) if !quantizes => {
                let expected = "expected matrices to quantize (--dtype q8, q4 or q3, or --keep)";
                Err(Error::Options { problem: format!("--calibrate: {expected}, found none") })
            }
            _ => Ok(()),
        }
    }
}

/// What was written.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Bytes of the blob.
    pub file_len: u64,
    /// Its sections.
    pub sections: usize,
    /// How far it is from its checkpoint, where that was asked for.
    pub report: Option<Report>,
}

/// Converts a checkpoint. Whatever fails, no file is left behind, and a blob that was there before stays.
pub fn convert(options: &Options, progress: &Progress) -> Result<Summary> {
    convert_all(options, progress).map_err(|error| match progress.cancel_token().is_cancelled() {
        true => Error::Cancelled, // whatever a thread that writes, or a session, made of it
        false => error,
    })
}

fn convert_all(options: &Options, progress: &Progress) -> Result<Summary> {
    let target = options.target()?;
    let checkpoint = Checkpoint::open(options)?;
    refuse_as_target(&checkpoint, &target, options)?;
    let Checkpoint { source, model, tokenizer, chat_template, documents } = checkpoint;
    let whole = tensor_map::bind(&model.config, model.extras, &source)?;
    let bindings = options.weights.assign(&whole)?;
    let texts = Texts::read(options, &bindings)?;
    let hashes = check::check(&source, &in_bf16(&bindings), progress)?;

    let tables = tables(&model, tokenizer, chat_template);
    let mut metadata = Metadata::new(model.model_type, model.recommended, &source, &hashes, &documents);
    metadata.fetched_from(options.origin.as_ref());
    let tied = model.config.tie_word_embeddings;
    let work = Work { options, target, progress, source: &source, whole: &whole, tables, tied };
    work.write(bindings, metadata, &texts)
}

/// `--force` must not cost somebody their checkpoint, nor a text that is read beside it.
fn refuse_as_target(checkpoint: &Checkpoint, target: &Target, options: &Options) -> Result<()> {
    let weights = checkpoint.source.files.iter().map(|file| file.path.as_path());
    let documents = checkpoint.documents.iter().map(|document| document.path.as_path());
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

/// What the model is to read, before anything that takes long.
struct Texts {
    /// To calibrate on.
    calibration: Option<Text>,
    /// To compare the blob and the checkpoint on.
    report: Option<Text>,
}

impl Texts {
    fn read(options: &Options, bindings: &[Binding]) -> Result<Texts> {
        let Options { weights, calibration, report, .. } = options;
        let quantizes = is_quantized(bindings);
        options.check_calibration(quantizes)?;
        let calibration = if quantizes { calibration.text(weights)? } else { None };
        Ok(Texts { calibration, report: report.as_deref().map(Text::read).transpose()? })
    }
}

fn is_quantized(bindings: &[Binding]) -> bool {
    bindings.iter().any(|binding| binding.dtype.code_bits().is_some())
}

/// A model in a temporary file.
struct Temporary {
    /// Dropped, and so unmapped, before the file goes.
    model: Model,
    _temp: TempFile,
}

fn set_report(sections: &mut [Section], report: &Report) {
    for section in sections {
        if let Content::Metadata(metadata) = &mut section.content {
            metadata.report(report);
        }
    }
}

/// What is known of a blob before its matrices.
struct Work<'a> {
    options: &'a Options,
    target: Target,
    progress: &'a Progress,
    source: &'a Source,
    /// Its matrices, before anything is decided about them.
    whole: &'a [Binding<'a>],
    tables: Vec<Section<'static>>,
    tied: bool,
}

impl Work<'_> {
    /// Writes the blob.
    fn write(&self, bindings: Vec<Binding>, mut metadata: Metadata, texts: &Texts) -> Result<Summary> {
        if is_quantized(&bindings) {
            metadata.quantized_as(&self.options.weights);
        }
        let exact = texts.report.is_some().then(|| self.model(Mix::Auto, &metadata)).transpose()?;
        if let (Some(text), Some(exact)) = (&texts.report, &exact) {
            Report::check(&exact.model, text)?;
        }
        let mut calibrated = calibration::Sections::new();
        if let Some(text) = &texts.calibration {
            let close = self.model(Mix::Q8, &metadata)?;
            calibrated = calibration::quantize(self.source, &bindings, &close.model, text, self.progress)?;
            metadata.calibrated_on(text);
        }
        let mut sections = self.sections(bindings, calibrated, metadata);
        let (mut temp, mut file_len) = self.write_temp(&sections)?;
        let mut found = None;
        if let (Some(text), Some(exact)) = (&texts.report, &exact) {
            let report = Report::new(&self.open(&temp)?, &exact.model, text, self.progress)?;
            set_report(&mut sections, &report);
            (temp, file_len) = self.write_temp(&sections)?;
            found = Some(report);
        }
        verify(&temp.path(), self.progress).map_err(Error::of_blob(&self.options.out))?;
        temp.persist()?;
        Ok(Summary { file_len, sections: sections.len(), report: found })
    }

    /// The model with the matrices of `mix`, none calibrated, in a file that is gone with it.
    fn model(&self, mix: Mix, metadata: &Metadata) -> Result<Temporary> {
        let bindings = Weights::from(mix).assign(self.whole)?;
        let sections = self.sections(bindings, calibration::Sections::new(), metadata.clone());
        let (temp, _) = self.write_temp(&sections)?;
        Ok(Temporary { model: self.open(&temp)?, _temp: temp })
    }

    fn open(&self, temp: &TempFile) -> Result<Model> {
        Model::open(temp.path()).map_err(Error::blob(&self.options.out))
    }

    /// All sections in the order of the file.
    fn sections<'b>(
        &self,
        bindings: Vec<Binding<'b>>,
        calibrated: calibration::Sections,
        metadata: Metadata,
    ) -> Vec<Section<'b>> {
        let mut sections: Vec<Section<'b>> = self.tables.clone();
        sections.extend(weight_sections(bindings, calibrated, self.tied));
        let spec = Spec { kind: Kind::Metadata, layer: None, dtype: Dtype::U8, shape: [0, 1] };
        sections.push(Section { spec, content: Content::Metadata(Box::new(metadata)) });
        sections
    }

    /// Writes `sections` to a temporary file beside the blob to be. Returns how many bytes it has, too.
    fn write_temp(&self, sections: &[Section]) -> Result<(TempFile, u64)> {
        let out = &self.options.out;
        let specs: Vec<Spec> = sections.iter().map(|section| section.spec).collect();
        let too_large = || Error::output(out, "the blob would have more sections or bytes than a blob can");
        let plan = plan(&specs).ok_or_else(too_large)?;
        let temp = TempFile::create(&self.target)?;
        let file_len = write(sections, plan, self.source, temp.file()?, out, self.progress)?;
        Ok((temp, file_len))
    }
}

/// The tensors whose numbers are rounded to bf16.
fn in_bf16<'a>(bindings: &[Binding<'a>]) -> HashSet<&'a str> {
    let bindings = bindings.iter().filter(|binding| binding.dtype == Dtype::Bf16);
    bindings.flat_map(|binding| &binding.tensors).map(|part| part.tensor.name.as_str()).collect()
}
