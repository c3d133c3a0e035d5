//! The whole way from a checkpoint to a blob.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use smolrun::Model;
use smolrun::format::{Dtype, Kind, LayerFlags, TextRules};

use crate::calibrate::{self, Calibration, Text};
use crate::check;
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::metadata::Metadata;
use crate::plan::{Spec, plan};
use crate::progress::Progress;
use crate::report::Report;
use crate::source::Source;
use crate::target::Target;
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
    /// The text that quantised ones are to lose little on.
    pub calibration: Calibration,
    /// A text on which the blob is compared with its checkpoint; what comes of it is in the blob's metadata.
    pub report: Option<PathBuf>,
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
            calibration: Calibration::Auto,
            report: None,
            force: false,
        }
    }

    /// Refuses what needs no look at the source: before a model is fetched, which may take long.
    pub fn check(&self) -> Result<()> {
        self.target().map(drop)
    }

    /// Where the blob goes, if nothing is wrong with the options.
    fn target(&self) -> Result<Target> {
        self.check_calibration(self.weights.quantises())?;
        let target = Target::new(&self.out, self.force)?;
        temp_file::prepare(&target)?;
        Ok(target)
    }

    /// A text to calibrate on must not be given in vain.
    fn check_calibration(&self, quantises: bool) -> Result<()> {
        match self.calibration {
            Calibration::BuiltIn | Calibration::Text(_) if !quantises => {
                let expected = "expected matrices to quantise (--dtype q8, q4 or q3, or --keep)";
                Err(Error::Options { problem: format!("--calibrate: {expected}, found none") })
            }
            _ => Ok(()),
        }
    }

    /// The files that are read beside the checkpoint's.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &Path> {
        let calibration = match &self.calibration {
            Calibration::Text(path) => Some(path),
            _ => None,
        };
        self.report.iter().chain(calibration).map(PathBuf::as_path)
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
    let target = options.target()?;
    let checkpoint = Checkpoint::open(options)?;
    checkpoint.refuse_as_target(&target, options)?;
    let Checkpoint { source, model, tokenizer, chat_template, documents } = checkpoint;
    let whole = tensor_map::bind(&model.config, model.extras, &source)?;
    let bindings = options.weights.assign(&whole)?;
    let texts = Texts::read(options, &bindings)?;
    let hashes = check::check(&source, &in_bf16(&bindings), progress)?;

    let mut tables = vec![
        bytes_section(Kind::Config, 1, model.config.to_bytes().to_vec()),
        bytes_section(Kind::RopeInvFreq, 1, bytemuck::cast_slice(&model.rope_inv_freq).to_vec()),
    ];
    tables.extend(layer_flags(&model.layers));
    tables.extend(tokenizer_sections(tokenizer));
    tables.extend(chat_template.map(|template| bytes_section(Kind::ChatTemplate, 1, template.into_bytes())));
    let metadata = Metadata::new(model.model_type, model.recommended, &source, &hashes, &documents);
    let tied = model.config.tie_word_embeddings;
    let work = Work { options, target, progress, source: &source, whole: &whole, tables, tied };
    work.write(bindings, metadata, &texts)
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
        let quantises = is_quantised(bindings);
        options.check_calibration(quantises)?;
        let calibration = if quantises { calibration.text(weights)? } else { None };
        Ok(Texts { calibration, report: report.as_deref().map(Text::read).transpose()? })
    }
}

fn is_quantised(bindings: &[Binding]) -> bool {
    bindings.iter().any(|binding| binding.dtype.code_bits().is_some())
}

/// A model in a temporary file.
struct Exact {
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
        if is_quantised(&bindings) {
            metadata.quantised_as(&self.options.weights);
        }
        let needs_exact = texts.calibration.is_some() || texts.report.is_some();
        let exact = needs_exact.then(|| self.exact(&metadata)).transpose()?;
        if let (Some(text), Some(exact)) = (&texts.report, &exact) {
            Report::check(&exact.model, text)?;
        }
        let mut calibrated = calibrate::Sections::new();
        if let (Some(text), Some(exact)) = (&texts.calibration, &exact) {
            calibrated = calibrate::quantise(self.source, &bindings, &exact.model, text, self.progress)?;
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

    /// The model as its checkpoint has it, in a file that is gone with it.
    fn exact(&self, metadata: &Metadata) -> Result<Exact> {
        let bindings = Weights::from(Mix::Auto).assign(self.whole)?;
        let sections = self.sections(bindings, calibrate::Sections::new(), metadata.clone());
        let (temp, _) = self.write_temp(&sections)?;
        Ok(Exact { model: self.open(&temp)?, _temp: temp })
    }

    fn open(&self, temp: &TempFile) -> Result<Model> {
        Model::open(temp.path()).map_err(Error::blob(&self.options.out))
    }

    /// All sections in the order of the file.
    fn sections<'b>(
        &self,
        bindings: Vec<Binding<'b>>,
        calibrated: calibrate::Sections,
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
fn weight_sections(
    bindings: Vec<Binding>,
    mut calibrated: calibrate::Sections,
    tied: bool,
) -> impl Iterator<Item = Section> {
    let (vectors, mut matrices): (Vec<_>, Vec<_>) =
        bindings.into_iter().partition(|binding| !binding.kind.is_matrix());
    if tied {
        matrices.sort_by_key(|binding| matches!(binding.kind, Kind::EmbedTokens | Kind::EmbedTokensRare)); // stable
    }
    vectors.into_iter().chain(matrices).map(move |binding| {
        let Binding { kind, layer, dtype, shape, .. } = binding;
        let content = match calibrated.remove(&(kind, layer)) {
            Some(quantised) => Content::Calibrated(binding, quantised),
            None => Content::Tensors(binding),
        };
        Section { spec: Spec { kind, layer, dtype, shape }, content }
    })
}
