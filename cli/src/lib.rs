//! The program `smolrun`: arguments, then one of the jobs, then an exit code.
//!
//! Packages for other languages bring it along, too. They also ask it what it makes of a model's name ([`model`]) and
//! of options that nobody gave ([`default_sampling`]), so that both answer alike.

mod args;
mod batch;
mod bench;
mod bundle;
mod cache;
mod chat;
mod embed;
mod exit_code;
mod generate;
mod info;
mod input;
mod interrupt;
mod lines;
mod logprobs;
mod memory;
pub mod model;
mod numbers;
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
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

use smolconv::signals::outlive_file_limit;
use smolconv::terminal::{command_line, exit, one_line};
use smolrun::{Model, Sampling};

use self::args::{Args, Command};
use self::bundle::Own;
use self::exit_code::WrongUsage;
use self::output::tell;
use self::sampling::{Defaults, SamplingArgs};

/// Runs the program with the arguments that `args` gives, the first of which is its name, and returns its exit code. Wrong
/// usage, and a signal, end the process. Nothing is allocated before it is known that there is memory, so `args` is called
/// after that.
pub fn run<Args: IntoIterator<Item = OsString>>(args: impl FnOnce() -> Args) -> u8 {
    let start = Instant::now();
    if let Err(error) = memory::check() {
        let _ = writeln!(io::stderr(), "smolrun: error: {error}"); // which needs no memory
        return exit_code::FAILURE;
    }
    outlive_file_limit();
    match run_args(args(), start) {
        Ok(code) => code,
        // Whoever read the output has had enough of it.
        Err(error) if is_broken_pipe(&*error) => exit_code::SUCCESS,
        Err(error) => match error.downcast::<clap::Error>() {
            Ok(error) => exit(shell::NAME, &error),
            Err(error) => {
                tell_error(&*error);
                exit_code::of(&*error)
            }
        },
    }
}

/// How tokens are chosen where nobody says so: as this program continues a text, or as it answers messages. What the
/// checkpoint recommends for these is in the blob. Each call for messages draws another seed.
pub fn default_sampling(model: &Model, is_chat: bool) -> Sampling {
    let defaults = if is_chat { Defaults::of_chat(model) } else { Defaults::CONTINUATION };
    SamplingArgs::default().sampling(model, &defaults)
}

fn run_args(args: impl IntoIterator<Item = OsString>, start: Instant) -> Result<u8, Box<dyn Error>> {
    let parsed = match Own::find()? {
        Some(own) => own.parse(args),
        None => command_line(args),
    };
    let args: Args = parsed.unwrap_or_else(|error| exit(shell::NAME, &error));
    match args.command {
        None => generate::run(&args.generate, start)
            .map_err(|error| with_near_command(error, args.generate.model.as_deref())),
        Some(command) => run_command(command),
    }
}

/// The error, and the command that was meant if there is no such model, but a command of almost that name.
fn with_near_command(error: Box<dyn Error>, model: Option<&Path>) -> Box<dyn Error> {
    let absent = model.filter(|model| !model.exists()).and_then(Path::to_str);
    match absent.and_then(shell::near_command) {
        Some(command) => format!("{error}; a command is called {command}").into(),
        None => error,
    }
}

fn run_command(command: Command) -> Result<u8, Box<dyn Error>> {
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
        Command::Bundle(args) => bundle::run(&args),
        Command::Cache(command) => cache::run(&command),
        Command::Completions { shell } => shell::completions(shell),
        Command::Man { directory } => shell::man(&directory),
    };
    done.map(|()| exit_code::SUCCESS)
}

/// Wrong usage is told as clap tells it.
fn tell_error(error: &(dyn Error + 'static)) {
    match error.is::<WrongUsage>() {
        true => {
            let text = error.to_string();
            let _ =
                writeln!(io::stderr(), "error: {}\n\nFor more information, try '--help'.", one_line(&text));
        }
        false => tell(&format!("error: {error}")),
    }
}

fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref().is_some_and(|error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe)
}
