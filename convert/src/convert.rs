//! The whole way from a checkpoint to a blob.

use std::collections::HashSet;

use smolrun::Model;
use smolrun::format::Dtype;

use crate::budget::Stock;
use crate::budget::groups::Groups;
use crate::checkpoint::binding::Binding;
use crate::checkpoint::{Checkpoint, tensor_map};
use crate::error::{Error, Result};
use crate::options::{Calibration, Mix, Options, Size, Weights};
use crate::progress::Progress;
use crate::quantize::matrix::{self, Quantized};
use crate::quantize::report::Report;
use crate::quantize::text::Text;
use crate::quantize::{calibration, tuning};
use crate::source::check;
use crate::write::blobs::{Blobs, Temporary};
use crate::write::metadata::Metadata;
use crate::write::sections::tables;
use crate::write::shelf::Shelf;
use crate::write::stream::{Content, Section};
use crate::write::target::Target;
use crate::write::temp_file;
use crate::write::verify::verify;

impl Options {
    /// Refuses what needs no look at the source: before a model is fetched, which may take long.
    pub fn check(&self) -> Result<()> {
        self.target().map(drop)
    }

    /// Where the blob goes, if nothing is wrong with the options.
    fn target(&self) -> Result<Target> {
        self.check_calibration(self.weights.quantizes() || self.size.is_some())?;
        let target = Target::new(&self.out, self.force)?;
        temp_file::prepare(&target)?;
        Ok(target)
    }

    /// A text to calibrate on must not be given in vain, and tuning needs one.
    fn check_calibration(&self, quantizes: bool) -> Result<()> {
        match self.calibration {
            Calibration::BuiltIn | Calibration::Text(_) if !quantizes => {
                let expected = "expected matrices to quantize (--dtype q8, q4 or q3, or --keep)";
                Err(Error::Options { problem: format!("--calibrate: {expected}, found none") })
            }
            _ if self.tune > 0 && !(quantizes && self.calibrates()) => {
                let expected =
                    "expected matrices that are calibrated (--dtype q4 or q3, --size, or --calibrate)";
                Err(Error::Options { problem: format!("--tune: {expected}, found none") })
            }
            _ => Ok(()),
        }
    }

    /// Whether quantized matrices are calibrated on a text.
    fn calibrates(&self) -> bool {
        let by_default = self.size.is_some() || matches!(self.weights.mix, Mix::Q4 | Mix::Q3);
        match self.calibration {
            Calibration::Auto => by_default,
            Calibration::None => false,
            Calibration::BuiltIn | Calibration::Text(_) => true,
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
    convert_accepted(options, progress, &|| ())
}

/// As [`convert()`]. `accepted` is called once nothing is wrong with the checkpoint but, perhaps, its numbers.
pub(crate) fn convert_accepted(
    options: &Options,
    progress: &Progress,
    accepted: &dyn Fn(),
) -> Result<Summary> {
    convert_all(options, progress, accepted).map_err(Error::of_work(&options.source, progress))
}

fn convert_all(options: &Options, progress: &Progress, accepted: &dyn Fn()) -> Result<Summary> {
    let target = options.target()?;
    let checkpoint = Checkpoint::open(options)?;
    target.must_not_be(checkpoint.files(), "those of the checkpoint")?;
    target.must_not_be(options.texts(), "the text that is read")?;
    let Checkpoint { source, model, tokenizer, chat_template, documents } = checkpoint;
    let whole = tensor_map::bind(&model.config, model.extras, &source)?;
    let tables = tables(&model, tokenizer, chat_template);
    let tied = model.config.tie_word_embeddings;
    let blobs = Blobs { source: &source, tables, tied, target };
    let metadata = |hashes: &[[u8; 32]]| {
        let (model_type, recommended) = (model.model_type.clone(), model.recommended.clone());
        let mut metadata = Metadata::new(model_type, recommended, &source, hashes, &documents);
        metadata.fetched_from(options.origin.as_ref());
        metadata
    };
    let assigned = options.weights.assign(&whole)?;
    let texts = Texts::read(options, is_quantized(&assigned))?;
    let not_yet = metadata(&vec![[0; 32]; source.files.len()]);
    let matrices = match &options.size {
        None => Matrices::Fixed(assigned),
        Some(size) => Matrices::within(size, options, &whole, &blobs, &texts, not_yet)?,
    };
    accepted();
    let hashes = check::check(&source, &matrices.in_bf16(), progress)?;
    let work = Work { options, blobs, progress, whole: &whole, texts };
    work.write(matrices, metadata(&hashes))
}

/// What the model is to read, before anything that takes long.
struct Texts {
    /// To calibrate on.
    calibration: Option<Text>,
    /// To compare the blob and the checkpoint on.
    report: Option<Text>,
}

impl Texts {
    /// Of a blob with matrices that are quantized, or none.
    fn read(options: &Options, quantizes: bool) -> Result<Texts> {
        let quantizes = quantizes || options.size.is_some();
        options.check_calibration(quantizes)?;
        let calibrates = quantizes && options.calibrates();
        let calibration = if calibrates { options.calibration.text()? } else { None };
        Ok(Texts { calibration, report: options.report.as_deref().map(Text::read).transpose()? })
    }

    /// What `metadata` say at the end of a blob of `bindings`, as long as it may be.
    fn describe(&self, metadata: &Metadata, options: &Options, bindings: &[Binding]) -> Metadata {
        let mut metadata = metadata.clone();
        if is_quantized(bindings) {
            metadata.quantized_as(&options.weights, options.size.as_ref());
            self.calibration.iter().for_each(|text| metadata.calibrated_on(text));
            if options.tune > 0 {
                metadata.tuned(options.tune);
            }
        }
        self.report.iter().for_each(|text| metadata.report(&Report::longest(text)));
        metadata
    }
}

/// What the matrices of a blob become.
enum Matrices<'a> {
    /// This.
    Fixed(Vec<Binding<'a>>),
    /// What loses least in so many bytes more than the smallest blob has.
    Within(Groups<'a>, u64),
}

impl<'a> Matrices<'a> {
    /// Those of a blob of `size`: floats if they fit. Refuses a size that no blob can have.
    fn within(
        size: &Size,
        options: &Options,
        whole: &[Binding<'a>],
        blobs: &Blobs,
        texts: &Texts,
        metadata: Metadata,
    ) -> Result<Matrices<'a>> {
        let mut floats = u64::MAX;
        for mix in [Mix::Auto, Mix::Bf16] {
            let weights = Weights { mix, keep: options.weights.keep.clone() };
            let Ok(bindings) = weights.assign(whole) else { continue }; // bf16 has no odd columns
            let metadata = texts.describe(&metadata, options, &bindings);
            let bytes = blobs.most_bytes(&bindings, &metadata)?;
            if bytes <= size.bytes {
                return Ok(Matrices::Fixed(bindings));
            }
            floats = floats.min(bytes);
        }
        let groups = Groups::new(&options.weights, whole)?;
        let metadata = texts.describe(&metadata, options, &groups.smallest());
        let room = groups.room(size, floats, blobs, &metadata)?;
        Ok(Matrices::Within(groups, room))
    }

    /// The tensors whose numbers are rounded to bf16.
    fn in_bf16(&self) -> HashSet<&'a str> {
        let bindings = match self {
            Matrices::Fixed(bindings) => bindings.clone(),
            Matrices::Within(groups, _) => groups.smallest(),
        };
        let bindings = bindings.into_iter().filter(|binding| binding.dtype == Dtype::Bf16);
        bindings.flat_map(|binding| binding.tensors).map(|part| part.tensor.name.as_str()).collect()
    }

    fn is_quantized(&self) -> bool {
        match self {
            Matrices::Fixed(bindings) => is_quantized(bindings),
            Matrices::Within(..) => true,
        }
    }
}

fn is_quantized(bindings: &[Binding]) -> bool {
    bindings.iter().any(|binding| binding.dtype.code_bits().is_some())
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
    blobs: Blobs<'a>,
    progress: &'a Progress,
    /// Its matrices, before anything is decided about them.
    whole: &'a [Binding<'a>],
    texts: Texts,
}

impl Work<'_> {
    /// Writes the blob.
    fn write(&self, matrices: Matrices, mut metadata: Metadata) -> Result<Summary> {
        let Work { options, blobs, progress, texts, .. } = self;
        if matrices.is_quantized() {
            metadata.quantized_as(&options.weights, options.size.as_ref());
        }
        let wants_exact = texts.report.is_some() || options.tune > 0;
        let exact = wants_exact.then(|| self.model(Mix::Auto, &metadata)).transpose()?;
        if let (Some(text), Some(exact)) = (&texts.report, &exact) {
            Report::check(&exact.model, text)?;
        }
        let (bindings, mut shelf) = self.quantize(matrices, &mut metadata)?;
        if let (Some(text), Some(exact), Some(shelf), true) =
            (&texts.calibration, &exact, &mut shelf, options.tune > 0)
        {
            metadata.tuned(options.tune);
            self.tune(&bindings, shelf, &metadata, &exact.model, text)?;
        }
        let mut sections = blobs.sections(bindings, shelf.as_ref(), metadata);
        let (mut temp, mut file_len) = blobs.write(&sections, progress)?;
        let mut found = None;
        if let (Some(text), Some(exact)) = (&texts.report, &exact) {
            let report = Report::new(&blobs.open(&temp)?, &exact.model, text, progress)?;
            set_report(&mut sections, &report);
            (temp, file_len) = blobs.write(&sections, progress)?;
            found = Some(report);
        }
        verify(&temp.path(), progress).map_err(Error::of_blob(&options.out))?;
        temp.persist()?;
        Ok(Summary { file_len, sections: sections.len(), report: found })
    }

    /// What the matrices become, and where those lie that are quantized before they are written.
    fn quantize<'b>(
        &self,
        matrices: Matrices<'b>,
        metadata: &mut Metadata,
    ) -> Result<(Vec<Binding<'b>>, Option<Shelf>)> {
        let Work { blobs, progress, texts, .. } = self;
        if matrices.is_quantized() {
            texts.calibration.iter().for_each(|text| metadata.calibrated_on(text));
        }
        match (matrices, &texts.calibration) {
            (Matrices::Within(groups, room), text) => {
                let stock = Stock::new(groups, blobs, metadata, text.as_ref(), progress)?;
                Ok((stock.choose(room), Some(stock.shelf)))
            }
            (Matrices::Fixed(bindings), Some(text)) if is_quantized(&bindings) => {
                let close = self.model(Mix::Q8, metadata)?;
                let mut shelf = Shelf::new(&blobs.target)?;
                let put = |binding: &Binding, quantized: &_| shelf.put(binding, quantized);
                calibration::quantize(blobs.source, &bindings, &close.model, text, progress, put)?;
                Ok((bindings, Some(shelf)))
            }
            (Matrices::Fixed(bindings), _) => Ok((bindings, None)),
        }
    }

    /// Tunes what is on the shelf.
    fn tune(
        &self,
        bindings: &[Binding],
        shelf: &mut Shelf,
        metadata: &Metadata,
        exact: &Model,
        text: &Text,
    ) -> Result<()> {
        let Work { options, blobs, progress, .. } = self;
        let student = blobs.model(bindings.to_vec(), Some(shelf), metadata, progress)?;
        tuning::tune(&student.model, exact, text, options.tune as usize, progress, |kind, layer, bytes| {
            let is_it = |binding: &&Binding| (binding.kind, binding.layer) == (kind, layer);
            let Some(binding) = bindings.iter().find(is_it) else { return Ok(()) }; // all of the model's are there
            let loss = matrix::loss(blobs.source, binding, bytes)?;
            shelf.put(binding, &Quantized { bytes: bytes.to_vec(), loss })
        })
    }

    /// The model with the matrices of `mix`, none calibrated, in a file that is gone with it.
    fn model(&self, mix: Mix, metadata: &Metadata) -> Result<Temporary> {
        let bindings = Weights::from(mix).assign(self.whole)?;
        self.blobs.model(bindings, None, metadata, self.progress)
    }
}
