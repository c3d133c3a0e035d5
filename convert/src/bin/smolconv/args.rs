//! The command line.

use std::path::PathBuf;

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use smolconv::{Calibration, Keep, Mix, Options, Weights};

use crate::out_name::out_name;

const EXAMPLES: &str = "\
Examples:
  smolconv models/tales-4m -o tales.bin
  smolconv model.safetensors --config config.json --tokenizer tokenizer.json -o smol.bin
  smolconv model.safetensors.index.json -o smol.bin --force
  smolconv models/tales-4m --dtype q8
  smolconv models/tales-4m -o tales.bin --dtype bf16
  smolconv models/tales-4m -o tales.bin --dtype q4 --keep embed_tokens=q8 --keep '*_proj.0=q6'
  smolconv models/tales-4m -o tales.bin --dtype q4 --calibrate mine.txt --report other.txt
  smolconv model.gguf -o smol.bin --dtype auto
  smolconv models/tales-4m --lora adapter -o tuned.bin
  smolconv Qwen/Qwen3-0.6B --dtype q8
  smolconv list
  smolconv inspect smol.bin --json
  smolconv verify smol.bin";

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
    /// A model.safetensors, a model.safetensors.index.json with its shards beside it, the directory that holds them,
    /// a GGUF file, which needs no other, the name of a model of `smolconv list`, or the id of one on the Hugging Face
    /// hub, ORG/NAME, ORG/NAME@REVISION or ORG/NAME/FILE.gguf. These two are fetched into the Hugging Face cache
    /// (HF_HOME; from HF_ENDPOINT, with HF_TOKEN) unless they are there; a hub may be silent for
    /// HF_HUB_DOWNLOAD_TIMEOUT seconds, 30 if it is not set
    source: PathBuf,
    /// The file to write; a symbolic link to one is followed [default: SOURCE's name and, if it is a quantised one, the
    /// dtype, in this directory: models/tales-4m becomes tales-4m.bin or tales-4m-q8.bin]
    #[arg(short, long, value_name = "OUT", value_parser = PathBufValueParser::new().try_map(no_stream))]
    out: Option<PathBuf>,
    /// The model's config [default: config.json beside SOURCE]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The tokenizer [default: tokenizer.json beside SOURCE]
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// A LoRA that PEFT saved, to be merged
    #[arg(long, value_name = "ADAPTER_DIR")]
    lora: Option<PathBuf>,
    /// How the weights are stored: bf16 has half the bytes of f32, and for a bf16 checkpoint the same numbers; auto is
    /// the smaller of these that keeps about the source's precision; q8 has about a quarter of f32's bytes, q4, with 4
    /// bits for most matrices and 5 or 6 for what matters most, about a seventh, and q3, with 3 bits for rare tokens,
    /// o_proj and the middle layers' feed-forward, an eighth
    #[arg(long, value_enum, default_value = "f32")]
    dtype: DtypeArg,
    /// Store matrices otherwise than --dtype says, as f32, bf16, q8, q6, q5, q4 or q3; may be given several times, and
    /// the last that matches decides. PATTERN is a name that inspect shows, such as qkv_proj, or down_proj.0 for a
    /// layer's; each * stands for any characters
    #[arg(long, value_name = "PATTERN=DTYPE")]
    keep: Vec<Keep>,
    /// The text on which quantised matrices shall lose little: a file of at least a few thousand words like those that
    /// the model will read and write, built-in for prose and code that come with this program, or none to take the
    /// nearest values, which is quick and loses more [default: built-in for --dtype q4 and q3, else none]
    #[arg(long, value_name = "TEXT")]
    calibrate: Option<PathBuf>,
    /// A text of at least 1024 tokens on which OUT is compared with the model as SOURCE has it: perplexity, KL
    /// divergence and how often both find the same token likeliest go to standard error and into the metadata
    #[arg(long, value_name = "TEXT")]
    report: Option<PathBuf>,
    /// Replace OUT if it exists
    #[arg(long)]
    force: bool,
    /// Say nothing but errors
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
    /// Show the models that are known by name
    List {
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
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
        /// Say nothing but errors
        #[arg(short, long)]
        quiet: bool,
    },
    /// Print completions for a shell to standard output
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write man pages to a directory, made if it is not there
    Man {
        /// The directory
        directory: PathBuf,
    },
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
            calibration: self.calibration(),
            report: self.report.clone(),
            force: self.force,
            origin: None,
        }
    }

    /// What the file is called where the arguments do not say so.
    fn out_name(&self) -> PathBuf {
        out_name(&self.source, self.lora.as_deref(), self.dtype.mix())
    }

    /// Whether the arguments say where the blob goes.
    pub(crate) fn names_out(&self) -> bool {
        self.out.is_some()
    }

    fn calibration(&self) -> Calibration {
        match &self.calibrate {
            None => Calibration::Auto,
            Some(text) if text.as_os_str() == "none" => Calibration::None,
            Some(text) if text.as_os_str() == "built-in" => Calibration::BuiltIn,
            Some(text) => Calibration::Text(text.clone()),
        }
    }
}

/// Most programs mean standard output by `-`.
fn no_stream(out: PathBuf) -> Result<PathBuf, &'static str> {
    match out.as_os_str() == "-" {
        true => Err("a blob cannot go to standard output, give a file (one called - is ./-)"),
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
