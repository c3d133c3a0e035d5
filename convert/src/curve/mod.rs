//! Size against loss: blobs of a model for several sizes, beside those of the fixed mixes, measured on a text.

mod svg;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::budget::Stock;
use crate::budget::groups::Groups;
use crate::checkpoint::binding::Binding;
use crate::checkpoint::{Checkpoint, tensor_map};
use crate::error::{Error, Result};
use crate::options::{Calibration, Mix, Options, Size, Weights};
use crate::progress::Progress;
use crate::quantize::report::Report;
use crate::quantize::text::Text;
use crate::source::check;
use crate::terminal::one_line;
use crate::write::blobs::Blobs;
use crate::write::metadata::Metadata;
use crate::write::sections::tables;
use crate::write::target::Target;
use crate::write::temp_file::{self, TempFile};

/// The mixes that the curve is compared with.
const FIXED: [Mix; 3] = [Mix::Q8, Mix::Q4, Mix::Q3];

/// Sizes that are taken where none are given.
const SIZES: i32 = 7;

/// What is to be measured, and on what.
#[derive(Clone, Debug)]
pub struct CurveOptions {
    /// The checkpoint, as [`Options::source`].
    pub source: PathBuf,
    /// The text on which blobs are compared with the checkpoint.
    pub text: PathBuf,
    /// The sizes; if there are none, some from that of the smallest blob to that of 8 bits.
    pub sizes: Vec<Size>,
    /// The text that matrices are to lose little on.
    pub calibration: Calibration,
    /// A file for the drawing, SVG.
    pub out: Option<PathBuf>,
    /// Whether an existing drawing may be replaced.
    pub force: bool,
}

/// A model's sizes and losses.
#[derive(Clone, Debug)]
pub struct Curve {
    /// What was measured.
    source: String,
    points: Vec<Point>,
}

/// One blob of the model.
#[derive(Clone, Debug)]
struct Point {
    /// The size that it was made for, or the name of its mix.
    name: String,
    is_fixed: bool,
    /// Bytes that it has.
    bytes: u64,
    report: Report,
}

impl CurveOptions {
    /// The files that are read beside the checkpoint's.
    fn texts(&self) -> impl Iterator<Item = &Path> {
        self.calibration.path().into_iter().chain([self.text.as_path()])
    }

    /// Refuses what needs no look at the source: before a model is fetched, which may take long.
    pub fn check(&self) -> Result<()> {
        temp_file::prepare(&self.target()?)
    }

    /// Where the drawing goes. Without one, temporary files are made in this directory.
    fn target(&self) -> Result<Target> {
        match &self.out {
            Some(out) => Target::new(out, self.force),
            None => Ok(Target { asked: ".".into(), path: "quantize-report".into(), force: false }),
        }
    }
}

/// Measures a checkpoint's blobs, and draws what was found. Whatever fails, no file is left behind.
pub fn curve(options: &CurveOptions, progress: &Progress) -> Result<Curve> {
    measure_all(options, progress).map_err(Error::of_work(&options.source, progress))
}

fn measure_all(options: &CurveOptions, progress: &Progress) -> Result<Curve> {
    let target = options.target()?;
    let text = Text::read(&options.text)?;
    let calibration = options.calibration.text()?;
    let checkpoint = Checkpoint::open(&Options::new(&options.source, "."))?;
    target.must_not_be(checkpoint.files(), "those of the checkpoint")?;
    target.must_not_be(options.texts(), "the text that is read")?;
    let Checkpoint { source, model, tokenizer, chat_template, documents } = checkpoint;
    let whole = tensor_map::bind(&model.config, model.extras, &source)?;
    let tables = tables(&model, tokenizer, chat_template);
    let hashes = vec![[0; 32]; source.files.len()]; // which no blob is kept with
    let tied = model.config.tie_word_embeddings;
    let mut metadata = Metadata::new(model.model_type, model.recommended, &source, &hashes, &documents);
    metadata.quantized_as(&Mix::Q4.into(), None);
    calibration.iter().for_each(|text| metadata.calibrated_on(text));
    let blobs = Blobs { source: &source, tables, tied, target: target.clone() };

    let groups = Groups::new(&Mix::Q8.into(), &whole)?;
    let sizes = sizes(options, &groups, &blobs, &metadata)?;
    check::check(&source, &Default::default(), progress)?;
    let exact = blobs.model(Weights::from(Mix::Auto).assign(&whole)?, None, &metadata, progress)?;
    Report::check(&exact.model, &text)?;
    let stock = Stock::new(groups, &blobs, &metadata, calibration.as_ref(), progress)?;
    let point = |name: String, is_fixed, bindings: Vec<Binding>| {
        let sections = blobs.sections(bindings, Some(&stock.shelf), metadata.clone());
        let (temp, bytes) = blobs.write(&sections, &progress.silent())?;
        let report = Report::new(&blobs.open(&temp)?, &exact.model, &text, progress)?;
        Ok(Point { name, is_fixed, bytes, report })
    };
    let best = sizes.into_iter().map(|(name, room)| point(name, false, stock.choose(room)));
    let fixed = FIXED.into_iter().map(|mix| {
        let bindings = Weights::from(mix).assign_parts(&whole)?;
        point(mix.name().to_owned(), true, bindings)
    });
    let points = best.chain(fixed).collect::<Result<Vec<Point>>>()?;
    let curve = Curve { source: name(&options.source), points };
    if options.out.is_some() {
        save(&svg::draw(&curve), &target)?;
    }
    Ok(curve)
}

fn name(source: &Path) -> String {
    source.file_name().unwrap_or(source.as_os_str()).to_string_lossy().into_owned()
}

/// What each size is called, and how many bytes more it has than the smallest blob.
fn sizes(
    options: &CurveOptions,
    groups: &Groups,
    blobs: &Blobs,
    metadata: &Metadata,
) -> Result<Vec<(String, u64)>> {
    if !options.sizes.is_empty() {
        let sizes = options.sizes.iter();
        return sizes
            .map(|size| Ok((size.to_string(), groups.room(size, u64::MAX, blobs, metadata)?)))
            .collect();
    }
    let smallest = blobs.most_bytes(&groups.smallest(), metadata)?;
    let largest = blobs.most_bytes(&groups.in_8_bits(), metadata)?;
    let ratio = largest as f64 / smallest as f64;
    let sizes = (0..SIZES).map(|index| {
        let bytes = smallest as f64 * ratio.powf(f64::from(index) / f64::from(SIZES));
        (format!("{:.1} MB", bytes / 1e6), (bytes as u64).saturating_sub(smallest))
    });
    Ok(sizes.collect())
}

fn save(text: &str, target: &Target) -> Result<()> {
    let temp = TempFile::create(target)?;
    temp.file()?.write_all(text.as_bytes()).map_err(Error::io(&target.asked))?;
    temp.persist()
}

impl Curve {
    /// A table for people, the smallest blob first.
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "{:12} {:>8} {:>11} {:>9} {:>9} {:>7}\n",
            "", "MB", "perplexity", "change", "mean KL", "top-1"
        );
        for point in self.by_size() {
            let Point { name, bytes, report, .. } = point;
            let _ = writeln!(
                text,
                "{:12} {:8.1} {:11.4} {:+7.2} % {:9.5} {:5.1} %",
                one_line(name),
                *bytes as f64 / 1e6,
                report.perplexity,
                report.change(),
                report.mean_kl,
                report.top_1_agreement * 100.0
            );
        }
        text
    }

    /// The same with all digits.
    pub fn to_json(&self) -> Value {
        let points = self.by_size().into_iter().map(|point| {
            json!({
                "name": point.name,
                "is_fixed": point.is_fixed,
                "bytes": point.bytes,
                "perplexity": point.report.perplexity,
                "change_percent": point.report.change(),
                "mean_kl": point.report.mean_kl,
                "top_1_agreement": point.report.top_1_agreement,
            })
        });
        let report = self.points.first().map(|point| &point.report);
        json!({
            "source": self.source,
            "text": report.map(|report| &report.text),
            "tokens": report.map(|report| report.tokens),
            "checkpoint_perplexity": report.map(|report| report.against_perplexity),
            "points": points.collect::<Vec<_>>(),
        })
    }

    fn by_size(&self) -> Vec<&Point> {
        let mut points: Vec<&Point> = self.points.iter().collect();
        points.sort_by_key(|point| point.bytes); // stable
        points
    }
}
