//! The `smolrun` program: arguments, then one of the jobs, then an exit code.

mod args;
mod bench;
mod chat;
mod generate;
mod info;
mod interrupt;
mod lines;
mod perplexity;
mod sampling;
mod score;
mod shell;
mod stats;

use std::error::Error;
use std::io;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;

use self::args::{Args, Command};

fn main() -> ExitCode {
    let start = Instant::now();
    let args = Args::parse();
    let result = match args.command {
        None => generate::run(&args.generate, start),
        Some(command) => run(command).map(|()| ExitCode::SUCCESS),
    };
    match result {
        Ok(code) => code,
        // Whoever read the output has had enough of it.
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("smolrun: error: {}", one_line(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<(), Box<dyn Error>> {
    match command {
        Command::Tokenize { blob, special } => lines::tokenize(&blob, special),
        Command::Detokenize { blob } => lines::detokenize(&blob),
        Command::Logits { blob, ids, threads } => lines::logits(&blob, &ids, threads),
        Command::Score { blob, threads } => score::score(&blob, threads),
        Command::Perplexity(args) => perplexity::run(&args),
        Command::Info { blob, json } => info::run(&blob, json),
        Command::Bench(args) => bench::run(&args),
        Command::Completions { shell } => shell::completions(shell),
        Command::Man { directory } => shell::man(&directory),
    }
}

fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    let kind = match (error.downcast_ref::<io::Error>(), error.downcast_ref::<serde_json::Error>()) {
        (Some(error), _) => Some(error.kind()),
        (_, Some(error)) => error.io_error_kind(),
        _ => None,
    };
    kind == Some(io::ErrorKind::BrokenPipe)
}

/// A blob's texts and a file's name may hold anything; an error stays one line and leaves the terminal alone.
fn one_line(message: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    message.chars().map(escape).collect()
}
