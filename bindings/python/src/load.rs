//! From what a person calls a model to a model, and from a checkpoint to a blob.

use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use std::{process, thread};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use smolconv::progress::Watch;
use smolconv::{Calibration, Keep, Mix, Progress, Weights, registry};
use smolrun::engine::Engine;
use smolrun::{KvDtype, Overflow};
use smolrun_cli::model::{Listener, blob_of};

use crate::failure::{Failure, Result};
use crate::held::caught;
use crate::model::{Model, Settings};
use crate::options;
use crate::results::Summary;

/// How often the caller looks at a work: for signals, and to tell its progress.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// What a model was loaded from, and how.
pub(crate) struct Source {
    pub(crate) given: PathBuf,
    pub(crate) blob: PathBuf,
    /// The same from the root of the file system.
    found_at: PathBuf,
    threads: Option<usize>,
    kv: Option<String>,
    overflow: String,
    fast: bool,
    mmap: bool,
}

impl Source {
    /// The arguments that load it once more: from where it was found, for another process may be in another directory, and
    /// this one may have gone to another since.
    pub(crate) fn arguments<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let arguments = PyDict::new(py);
        arguments.set_item("source", &self.found_at)?;
        arguments.set_item("threads", self.threads)?;
        arguments.set_item("kv", &self.kv)?;
        arguments.set_item("overflow", &self.overflow)?;
        arguments.set_item("fast", self.fast)?;
        arguments.set_item("mmap", self.mmap)?;
        Ok(arguments)
    }
}

/// Open a model: a blob that smolconv wrote, a GGUF file, a checkpoint's directory or .safetensors file, a name that
/// `smolconv list` shows, or the id of a model on the Hugging Face hub (ORG/NAME, ORG/NAME@REVISION,
/// ORG/NAME/FILE.gguf).
///
/// What is no blob is fetched if it has to be, and converted once, into the cache of the program smolrun.
///
/// dtype: as what a checkpoint is converted: "f32", "bf16", "q8", "q4" or "q3"; None keeps about its precision
/// threads: how many to compute with; None for as many as the process may use. The results do not depend on it
/// kv: how keys and values are kept: "f32", "f16" or "q8"; None for f16 where matrices are quantized, else f32
/// overflow: at the end of the context "stop", or "slide" over it
/// fast: whether prompts may be rounded for speed, on processors that have a unit for it: not bit-exact (batch never rounds)
/// mmap: whether to map the blob, not read it. A mapped file must not be changed in place
/// verify: whether to check every byte of the blob first
/// progress: called as progress(step, done, total) while a model is fetched and converted, some 20 times a second
#[pyfunction]
#[pyo3(signature = (
    source, *, dtype = None, threads = None, kv = None, overflow = "stop", fast = false, mmap = true, verify = false,
    progress = None
))]
#[expect(clippy::too_many_arguments, reason = "each is a keyword of Python's")]
pub(crate) fn load(
    py: Python<'_>,
    source: PathBuf,
    dtype: Option<String>,
    #[pyo3(from_py_with = options::threads)] threads: Option<usize>,
    kv: Option<String>,
    overflow: &str,
    fast: bool,
    mmap: bool,
    verify: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Model> {
    if let Some(found) = threads.filter(|threads| !(1..=Engine::MAX_THREADS).contains(threads)) {
        let most = Engine::MAX_THREADS;
        return Err(Failure::argument(format!("threads: expected 1 to {most}, found {found}")).into());
    }
    let mix = dtype.as_deref().map(|dtype| named("dtype", dtype, MIXES)).transpose()?;
    let kv_dtype = kv.as_deref().map(|kv| named("kv", kv, KV_DTYPES)).transpose()?;
    let settings =
        Settings { threads, kv: kv_dtype, overflow: named("overflow", overflow, OVERFLOWS)?, fast };
    let (blob, model) = watched(py, progress, |begin| {
        let blob = blob_of(&source, mix, &Listener { begin, tell: &|_| () }).map_err(of_blob)?;
        let model = blob.model(!mmap).map_err(of_blob)?;
        if verify {
            model.verify_with(threads, &|_| ())?;
        }
        Ok((blob.path, model))
    })?;
    let found_at = std::path::absolute(&blob).unwrap_or_else(|_| blob.clone());
    let source = Source { given: source, blob, found_at, threads, kv, overflow: overflow.into(), fast, mmap };
    Ok(Model::new(source, model, settings))
}

/// Convert a checkpoint, a GGUF file, or a model by its name or its id on the Hugging Face hub, to the blob out.
///
/// dtype: how matrices are stored: "f32", "bf16", "q8", "q4", "q3", or "auto" for what keeps about the precision
/// size: instead of dtype the most bytes of the blob, a str such as "70MB"; dtypes are chosen by what matrices lose
/// keep: strs such as "down_proj.*=q6", each for the matrices whose names match
/// calibrate: the file of a text that quantized matrices are to lose little on, "none", or "built-in", which is the
///     default for q4, q3 and a size
/// tune: epochs over that text in which scales and norms are tuned by gradients
/// lora: the directory of a PEFT adapter that is merged into the weights
/// config, tokenizer: these files, where they do not lie beside the source
/// report: the file of a text on which the blob is compared with its checkpoint
/// force: whether an existing blob may be replaced
/// progress: called as progress(step, done, total), in bytes or tokens, some 20 times a second. What it raises, like
///     Ctrl-C, ends the conversion, which leaves nothing behind
#[pyfunction]
#[pyo3(signature = (
    source, out, *, dtype = "f32", size = None, keep = Vec::new(), calibrate = None, tune = 0, lora = None,
    config = None, tokenizer = None, report = None, force = false, progress = None
))]
#[expect(clippy::too_many_arguments, reason = "each is a keyword of Python's")]
pub(crate) fn convert(
    py: Python<'_>,
    source: PathBuf,
    out: PathBuf,
    dtype: &str,
    size: Option<&str>,
    keep: Vec<String>,
    calibrate: Option<PathBuf>,
    tune: u32,
    lora: Option<PathBuf>,
    config: Option<PathBuf>,
    tokenizer: Option<PathBuf>,
    report: Option<PathBuf>,
    force: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Summary> {
    let mix = named("dtype", dtype, MIXES)?;
    let size = size.map(str::parse).transpose();
    let size = size.map_err(|problem: String| Failure::argument(format!("size: {problem}")))?;
    if size.is_some() && mix != Mix::F32 {
        return Err(Failure::argument("size: expected no dtype beside it, found one").into());
    }
    let keep = keep.iter().map(|text| text.parse()).collect::<std::result::Result<Vec<Keep>, String>>();
    let keep = keep.map_err(|problem| Failure::argument(format!("keep: {problem}")))?;
    let mut options = smolconv::Options {
        config,
        tokenizer,
        lora,
        weights: Weights { mix, keep },
        size,
        calibration: calibration(calibrate),
        tune,
        report,
        force,
        ..smolconv::Options::new(source, out)
    };
    Ok(watched(py, progress, |begin| {
        options.check()?;
        let progress = begin();
        if let Some(found) = registry::fetched(&options.source, &progress, &|_| ())? {
            (options.source, options.origin) = (found.path, Some(found.origin));
        }
        let summary = smolconv::convert(&options, &progress)?;
        Ok(Summary {
            path: options.out,
            bytes: summary.file_len,
            sections: summary.sections,
            report: summary.report.map(|report| report.summary()),
        })
    })?)
}

fn calibration(text: Option<PathBuf>) -> Calibration {
    match text {
        None => Calibration::Auto,
        Some(text) if text.as_os_str() == "none" => Calibration::None,
        Some(text) if text.as_os_str() == "built-in" => Calibration::BuiltIn,
        Some(text) => Calibration::Text(text),
    }
}

const MIXES: &[(&str, Mix)] = &[
    ("f32", Mix::F32),
    ("bf16", Mix::Bf16),
    ("q8", Mix::Q8),
    ("q4", Mix::Q4),
    ("q3", Mix::Q3),
    ("auto", Mix::Auto),
];
const KV_DTYPES: &[(&str, KvDtype)] = &[("f32", KvDtype::F32), ("f16", KvDtype::F16), ("q8", KvDtype::Q8)];
const OVERFLOWS: &[(&str, Overflow)] = &[("stop", Overflow::Stop), ("slide", Overflow::Slide)];

/// What the argument `what` means by `name`.
fn named<T: Copy>(what: &str, name: &str, all: &[(&str, T)]) -> Result<T> {
    all.iter().find(|(known, _)| *known == name).map(|&(_, value)| value).ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
        Failure::argument(format!("{what}: expected one of {}, found {name}", names.join(", ")))
    })
}

/// Why no blob was found, made or opened.
fn of_blob(error: Box<dyn std::error::Error>) -> Failure {
    let library = |error: Box<dyn std::error::Error>| match error.downcast::<smolrun::Error>() {
        Ok(error) => Failure::Library(*error),
        Err(error) => Failure::Other { code: "convert", message: error.to_string() },
    };
    error.downcast::<smolconv::Error>().map_or_else(library, |error| Failure::Converter(*error))
}

/// Runs `work` on another thread, while this one looks after signals and tells `told` of the progress that `work`
/// began. What either raises ends the work.
fn watched<R: Send>(
    py: Python<'_>,
    told: Option<Py<PyAny>>,
    work: impl FnOnce(&dyn Fn() -> Progress) -> Result<R> + Send,
) -> Result<R> {
    let (begun, watches) = channel();
    let begin = move || {
        let progress = Progress::new(true);
        let _ = begun.send(progress.watch()); // the other end lives as long as this work
        progress
    };
    py.detach(move || {
        thread::scope(|scope| {
            let (done, is_done) = channel();
            let worker = scope.spawn(move || {
                let result = in_own_threads(|| caught(|| work(&begin)));
                let _ = done.send(());
                result
            });
            let (mut watch, mut raised) = (None, None);
            while let Err(RecvTimeoutError::Timeout) = is_done.recv_timeout(BETWEEN_LOOKS) {
                watch = watches.try_recv().ok().or(watch);
                if raised.is_none() {
                    raised = Python::attach(|py| look(py, watch.as_ref(), told.as_ref())).err();
                }
                if let (Some(watch), Some(_)) = (&watch, &raised) {
                    watch.cancel();
                }
            }
            let result =
                worker.join().unwrap_or_else(|panic| Err(smolrun::Error::from_panic(&*panic).into()));
            raised.map_or(result, |raised| Err(raised.into()))
        })
    })
}

fn look(py: Python<'_>, watch: Option<&Watch>, told: Option<&Py<PyAny>>) -> PyResult<()> {
    py.check_signals()?;
    if let (Some(watch), Some(told)) = (watch, told) {
        told.call1(py, (watch.step(), watch.done(), watch.total()))?;
    }
    Ok(())
}

/// Runs `work`, in a forked child with threads of its own: rayon's are the parent's there.
fn in_own_threads<R: Send>(work: impl FnOnce() -> Result<R> + Send) -> Result<R> {
    use std::sync::OnceLock;
    static FIRST: OnceLock<u32> = OnceLock::new();
    if *FIRST.get_or_init(process::id) == process::id() {
        return work();
    }
    let pool = rayon::ThreadPoolBuilder::new().build();
    let no_threads = |error| smolrun::Error::Threads { source: std::io::Error::other(error) };
    pool.map_err(no_threads)?.install(work)
}
