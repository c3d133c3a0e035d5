//! The `smolrun` program: arguments, then one of the jobs, then an exit code.

mod args;
mod batch;
mod bench;
mod cache;
mod chat;
mod embed;
mod generate;
mod info;
mod input;
mod interrupt;
mod lines;
mod logprobs;
mod memory;
mod model;
mod options;
mod output;
mod perplexity;
mod prompt_cache;
mod sampling;
mod score;
mod shard;
mod shell;
mod stats;

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

use smolconv::terminal::command_line;

use self::args::{Args, Command};
use self::output::tell;

/// The exit code of a command line that asks for what cannot be.
const WRONG_USAGE: u8 = 2;
/// What the library calls arguments that come from no option: from a text, a model or the environment.
const NO_OPTIONS: [&str; 6] = ["SMOLRUN_ISA", "continuations", "logits", "prompt", "reference", "tokens"];

fn main() -> ExitCode {
    let start = Instant::now();
    if let Err(error) = memory::check() {
        let _ = writeln!(io::stderr(), "smolrun: error: {error}"); // which needs no memory
        return ExitCode::FAILURE;
    }
    match run(start) {
        Ok(code) => code,
        // Whoever read the output has had enough of it.
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            tell(&format!("error: {error}"));
            exit_code(&*error)
        }
    }
}

fn run(start: Instant) -> Result<ExitCode, Box<dyn Error>> {
    let args: Args = command_line().unwrap_or_else(|error| error.exit());
    match args.command {
        None => generate::run(&args.generate, start),
        Some(command) => run_command(command),
    }
}

fn run_command(command: Command) -> Result<ExitCode, Box<dyn Error>> {
    let done = match command {
        Command::Batch(args) => return batch::run(&args),
        Command::Tokenize { model, special } => lines::tokenize(&model, special),
        Command::Detokenize { model } => lines::detokenize(&model),
        Command::Logits { model, ids, threads } => lines::logits(&model, &ids, threads),
        Command::Score { model, threads } => score::score(&model, threads),
        Command::Embed { model, pooling, threads } => embed::embed(&model, pooling, threads),
        Command::Perplexity(args) => perplexity::run(&args),
        Command::Info { model, json } => info::run(&model, json),
        Command::Bench(args) => bench::run(&args),
        Command::Cache(command) => cache::run(&command),
        Command::Completions { shell } => shell::completions(shell),
        Command::Man { directory } => shell::man(&directory),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// What clap exits with where it knows an option's value to be wrong, too.
fn exit_code(error: &(dyn Error + 'static)) -> ExitCode {
    match error.downcast_ref() {
        Some(smolrun::Error::Argument { name, .. }) if NO_OPTIONS.contains(name) => ExitCode::FAILURE,
        Some(smolrun::Error::Argument { .. } | smolrun::Error::TokenId { .. }) => WRONG_USAGE.into(),
        _ => ExitCode::FAILURE,
    }
}

fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref().is_some_and(|error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe)
}
