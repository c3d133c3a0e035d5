//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use smolconv::Options;
use smolrun::format::Dtype;

const EXAMPLES: &str = "\
Examples:
  smolconv models/tales-4m -o tales.bin
  smolconv model.safetensors --config config.json --tokenizer tokenizer.json -o smol.bin
  smolconv model.safetensors.index.json -o smol.bin --force
  smolconv models/tales-4m -o tales.bin --dtype bf16
  smolconv model.gguf -o smol.bin --dtype auto
  smolconv models/tales-4m --lora adapter -o tuned.bin
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
    /// a GGUF file, which needs no other, or the name of a model of `smolconv list`, which is fetched into the
    /// Hugging Face cache (HF_HOME; from HF_ENDPOINT) unless it is there
    source: PathBuf,
    /// The file to write
    #[arg(short, long, value_name = "OUT")]
    out: PathBuf,
    /// The model's config [default: config.json beside SOURCE]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The tokenizer [default: tokenizer.json beside SOURCE]
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// A LoRA that PEFT saved, to be merged
    #[arg(long, value_name = "ADAPTER_DIR")]
    lora: Option<PathBuf>,
    /// How the weights are stored: bf16 has half the bytes, and for a bf16 checkpoint the same numbers; auto is the
    /// smaller one that keeps about the source's precision
    #[arg(long, value_enum, default_value = "f32")]
    dtype: DtypeArg,
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
            out: self.out.clone(),
            config: self.config.clone(),
            tokenizer: self.tokenizer.clone(),
            lora: self.lora.clone(),
            dtype: match self.dtype {
                DtypeArg::F32 => Some(Dtype::F32),
                DtypeArg::Bf16 => Some(Dtype::Bf16),
                DtypeArg::Auto => None,
            },
            force: self.force,
        }
    }
}
