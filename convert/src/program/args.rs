//! The command line.

use std::path::{Path, PathBuf};

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum, value_parser};
use clap_complete::Shell;

use super::out_name::out_name;
use crate::curve::CurveOptions;
use crate::options::{Calibration, Keep, Mix, Options, Size, Weights};

const EXAMPLES: &str = "\
Examples:
  smolconv models/tales-4m -o tales.bin
  smolconv model.safetensors --config config.json --tokenizer tokenizer.json -o smol.bin
  smolconv model.safetensors.index.json -o smol.bin --force
  smolconv models/tales-4m --dtype q8
  smolconv models/tales-4m -o tales.bin --dtype bf16
  smolconv models/tales-4m -o tales.bin --dtype q4 --keep embed_tokens=q8 --keep '*_proj.0=q6'
  smolconv models/tales-4m --size 3MB
  smolconv models/tales-4m -o tales.bin --dtype q4 --calibrate mine.txt --report other.txt
  smolconv models/tales-4m -o tales.bin --dtype q4 --tune 3
  smolconv model.gguf -o smol.bin --dtype auto
  smolconv models/tales-4m --lora adapter -o tuned.bin
  smolconv Qwen/Qwen3-0.6B --dtype q8
  smolconv quantize-report models/tales-4m --text book.txt -o report.svg
  smolconv list
  smolconv inspect smol.bin --json
  smolconv verify smol.bin

Exit codes:
  0    done
  1    an error
  2    wrong usage
  129  hung up
  130  interrupted
  143  terminated";

/// Converts a Hugging Face checkpoint or a GGUF file into one file that smolrun maps and runs.
#[derive(Parser)]
#[command(name = "smolconv", version, after_help = EXAMPLES)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) convert: Option<Convert>,
}

#[derive(Args)]
pub(crate) struct Convert {
    /// A checkpoint: model.safetensors, model.safetensors.index.json with its shards beside it, the directory of
    /// either, a GGUF file or any part of one, a name from `smolconv list`, or the id of a model on the Hugging Face
    /// hub
    ///
    /// An id is ORG/NAME, ORG/NAME@REVISION or ORG/NAME/FILE.gguf. Names and ids are fetched into the Hugging Face cache
    /// unless they are there. HF_HOME says where the cache is, HF_ENDPOINT names another hub, and HF_TOKEN opens gated
    /// models. The hub may be silent for HF_HUB_DOWNLOAD_TIMEOUT seconds, 30 by default.
    source: PathBuf,
    /// The file to write; a symbolic link is followed [default: in this directory, named after SOURCE and the quantized
    /// dtype or size: models/tales-4m becomes tales-4m.bin or tales-4m-q8.bin]
    #[arg(short, long, value_name = "OUT", value_parser = PathBufValueParser::new().try_map(no_stream))]
    out: Option<PathBuf>,
    /// The model's config [default: config.json beside SOURCE]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The tokenizer [default: tokenizer.json beside SOURCE]
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Merge this LoRA, as PEFT saved it
    #[arg(long, value_name = "ADAPTER_DIR")]
    lora: Option<PathBuf>,
    /// How the weights are stored
    ///
    /// bf16 has half the bytes of f32, and the same numbers for a bf16 checkpoint. auto takes the smaller of these two
    /// that keeps about the source's precision. q8 has about a quarter of f32's bytes. q4 has about a seventh: 4 bits
    /// for most matrices, 5 or 6 for those that matter most. q3 has an eighth: 3 bits for rare tokens, o_proj and the
    /// middle layers' feed-forward matrices.
    #[arg(long, value_enum, default_value = "f32")]
    dtype: DtypeArg,
    /// Choose the dtypes for an OUT of at most so many bytes: 70MB, 66.5MiB or 70000000
    ///
    /// What each group of matrices loses is measured on the calibration text, and the mix of 3 to 8 bits that looks best
    /// is chosen. It takes about three times as long as --dtype q4. Where it fits, the source's precision is kept.
    #[arg(long, value_name = "BYTES", conflicts_with = "dtype")]
    size: Option<Size>,
    /// Store matching matrices as f32, bf16, q8, q6, q5, q4 or q3, whatever --dtype or --size says; may be repeated, and
    /// the last match decides
    ///
    /// PATTERN is a name that inspect shows, such as qkv_proj, or down_proj.0 for one layer. Each * stands for any
    /// characters.
    #[arg(long, value_name = "PATTERN=DTYPE")]
    keep: Vec<Keep>,
    /// Calibrate quantized matrices on a text: a file, "built-in" or "none" [default: built-in for --dtype q4, q3 and
    /// --size, else none]
    ///
    /// The file should have at least a few thousand words like those that the model will read and write. built-in is
    /// the prose, conversations and code that come with this program. none takes the nearest values, which is quick and
    /// loses more.
    #[arg(long, value_name = "TEXT")]
    calibrate: Option<PathBuf>,
    /// Then tune scales and norms by gradients, in so many passes over the calibration text
    ///
    /// The model's predictions come nearer to those of SOURCE's model, and OUT has as many bytes. Each pass takes about seven
    /// times as long as calibration; three are a good choice.
    #[arg(long, value_name = "EPOCHS", value_parser = value_parser!(u32).range(1..=1000))]
    tune: Option<u32>,
    /// Compare OUT with SOURCE's model on a text of at least 1024 tokens: perplexity, KL divergence and how often both
    /// find the same token most likely. The result goes to standard error and into the metadata
    #[arg(long, value_name = "TEXT")]
    report: Option<PathBuf>,
    /// Replace OUT if it exists
    #[arg(long)]
    force: bool,
    /// Print nothing but errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum DtypeArg {
    F32,
    Bf16,
    Q8,
    Q4,
    Q3,
    Auto,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// List the models that can be given by name
    List {
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Measure what a model loses at several sizes
    QuantizeReport(QuantizeReport),
    /// Show a blob's header, config, sections and metadata
    Inspect {
        /// The file to read
        blob: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Check every byte of a blob against its checksums
    Verify {
        /// The file to read
        blob: PathBuf,
        /// Print nothing but errors
        #[arg(short, long)]
        quiet: bool,
    },
    /// Print completions for a shell to standard output
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write man pages to a directory, which is created if necessary
    Man {
        /// The directory
        directory: PathBuf,
    },
}

const REPORT_EXAMPLES: &str = "\
Examples:
  smolconv quantize-report models/tales-4m --text book.txt
  smolconv quantize-report smollm2-135m-instruct --text book.txt --sizes 65MB,70MB,77.2MB,90MB -o report.svg
  smolconv quantize-report models/tales-4m --text book.txt --json > report.json";

/// Measure what a model loses at several sizes
///
/// For each size it takes the blob that --size would make, and beside them those of --dtype q8, q4 and q3. Each is compared
/// with the checkpoint on TEXT: perplexity, mean KL divergence, and how often both find the same token most likely. Matrices
/// are quantized once for all of them.
#[derive(Args)]
#[command(after_help = REPORT_EXAMPLES)]
pub(crate) struct QuantizeReport {
    /// A checkpoint, the name of a model or its id, as for a conversion
    source: PathBuf,
    /// Compare on this text, of at least 1024 tokens
    #[arg(long)]
    text: PathBuf,
    /// Bytes of the blobs, such as 60MB,70MB [default: seven from the smallest there is to 8 bits]
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    sizes: Vec<Size>,
    /// Draw size and loss to this file, SVG
    #[arg(short, long, value_name = "SVG", value_parser = PathBufValueParser::new().try_map(no_stream))]
    out: Option<PathBuf>,
    /// Calibrate on a text: a file, "built-in" or "none" [default: built-in]
    #[arg(long, value_name = "TEXT")]
    calibrate: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Replace SVG if it exists
    #[arg(long)]
    force: bool,
    /// Print nothing but the result and errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

impl QuantizeReport {
    pub(crate) fn options(&self) -> CurveOptions {
        CurveOptions {
            source: self.source.clone(),
            text: self.text.clone(),
            sizes: self.sizes.clone(),
            calibration: calibration(self.calibrate.as_deref()),
            out: self.out.clone(),
            force: self.force,
        }
    }
}

impl Convert {
    pub(crate) fn options(&self) -> Options {
        Options {
            source: self.source.clone(),
            out: self.out.clone().unwrap_or_else(|| self.out_name()),
            config: self.config.clone(),
            tokenizer: self.tokenizer.clone(),
            lora: self.lora.clone(),
            weights: Weights { mix: self.dtype.mix(), keep: self.keep.clone() },
            size: self.size.clone(),
            calibration: calibration(self.calibrate.as_deref()),
            tune: self.tune.unwrap_or(0),
            report: self.report.clone(),
            force: self.force,
            origin: None,
        }
    }

    /// What the file is called where the arguments do not say so.
    fn out_name(&self) -> PathBuf {
        let mix = self.dtype.mix();
        let dtype = matches!(mix, Mix::Q8 | Mix::Q4 | Mix::Q3).then(|| mix.name().to_owned());
        let weights = self.size.as_ref().map(ToString::to_string).or(dtype);
        out_name(&self.source, self.lora.as_deref(), weights.as_deref())
    }

    /// Whether the arguments say where the blob goes.
    pub(crate) fn names_out(&self) -> bool {
        self.out.is_some()
    }
}

fn calibration(text: Option<&Path>) -> Calibration {
    match text {
        None => Calibration::Auto,
        Some(text) if text.as_os_str() == "none" => Calibration::None,
        Some(text) if text.as_os_str() == "built-in" => Calibration::BuiltIn,
        Some(text) => Calibration::Text(text.to_owned()),
    }
}

/// Most programs mean standard output by `-`.
fn no_stream(out: PathBuf) -> Result<PathBuf, &'static str> {
    match out.as_os_str() == "-" {
        true => Err("it cannot go to standard output, give a file (one called - is ./-)"),
        false => Ok(out),
    }
}

impl DtypeArg {
    fn mix(self) -> Mix {
        match self {
            DtypeArg::F32 => Mix::F32,
            DtypeArg::Bf16 => Mix::Bf16,
            DtypeArg::Q8 => Mix::Q8,
            DtypeArg::Q4 => Mix::Q4,
            DtypeArg::Q3 => Mix::Q3,
            DtypeArg::Auto => Mix::Auto,
        }
    }
}
