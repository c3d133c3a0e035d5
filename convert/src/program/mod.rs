//! The program `smolconv`: arguments, output, exit codes. Packages for other languages bring it along, too.

mod args;
mod out_name;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process;
use std::time::Instant;

use clap::CommandFactory;
use clap_complete::Shell;

use self::args::{Cli, Command, Convert, QuantizeReport};
use crate::convert::convert_accepted;
use crate::curve::curve;
use crate::error::Error;
use crate::progress::Progress;
use crate::signals::{on_signals, outlive_file_limit};
use crate::terminal::{command_line, escape_json, exit, one_line};
use crate::write::{temp_file, verify};
use crate::{inspect, registry};

/// What the program is called.
const NAME: &str = "smolconv";

/// What a failure exits with.
const FAILURE: u8 = 1;
/// What `clap` exits with, too.
const WRONG_USAGE: u8 = 2;

/// What a shell adds to the number of the signal that ended a program.
const SIGNALED: i32 = 128;

/// Runs the program with these arguments, the first of which is its name, and returns its exit code. Wrong usage, and a
/// signal, end the process.
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    outlive_file_limit();
    let cli: Cli = command_line(args).unwrap_or_else(|error| exit(NAME, &error));
    match run_command(&cli) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("smolconv: error: {}", one_line(&error.to_string()));
            match error {
                Error::Options { .. } => WRONG_USAGE,
                _ => FAILURE,
            }
        }
    }
}

fn run_command(cli: &Cli) -> Result<(), Error> {
    match (&cli.command, &cli.convert) {
        (Some(Command::List { json }), _) => run_list(*json),
        (Some(Command::QuantizeReport(report)), _) => run_quantize_report(report),
        (Some(Command::Inspect { blob, json }), _) => run_inspect(blob, *json),
        (Some(Command::Verify { blob, quiet }), _) => run_verify(blob, *quiet),
        (Some(Command::Completions { shell }), _) => run_completions(*shell),
        (Some(Command::Man { directory }), _) => run_man(directory),
        (None, Some(convert)) => run_convert(convert),
        (None, None) => {
            exit(NAME, &Cli::command().error(clap::error::ErrorKind::MissingRequiredArgument, "SOURCE"))
        }
    }
}

/// Ends the program in an orderly way on a signal from now on: the unfinished file is removed. Where that cannot be arranged, a
/// signal still ends it.
fn end_on_signals() {
    let _ = on_signals(|signal| {
        let _keep = temp_file::remove_all();
        process::exit(SIGNALED + signal);
    });
}

fn run_convert(args: &Convert) -> Result<(), Error> {
    end_on_signals();
    let start = Instant::now();
    let mut options = args.options();
    options.check()?;
    let (progress, notice) = (Progress::new(args.quiet), notice(args.quiet));
    if let Some(found) = registry::fetched(&options.source, &progress, &notice)? {
        (options.source, options.origin) = (found.path, Some(found.origin));
    }
    let accepted = || {
        if !args.names_out() {
            notice(&format!("writing {}", options.out.display()));
        }
    };
    let summary = convert_accepted(&options, &progress, &accepted)?;
    drop(progress);
    if !args.quiet {
        let (out, seconds) = (options.out.display().to_string(), start.elapsed().as_secs_f64());
        let out = one_line(&out);
        let megabytes = summary.file_len as f64 / 1e6;
        eprintln!("smolconv: {out}: {megabytes:.1} MB in {} sections, {seconds:.1} s", summary.sections);
        if let Some(report) = &summary.report {
            eprintln!("smolconv: {out}: {}", report.summary());
        }
    }
    Ok(())
}

/// Says a line to whoever watches, unless `quiet`.
fn notice(quiet: bool) -> impl Fn(&str) {
    move |line| {
        if !quiet {
            eprintln!("smolconv: {}", one_line(line));
        }
    }
}

fn run_quantize_report(args: &QuantizeReport) -> Result<(), Error> {
    end_on_signals();
    let mut options = args.options();
    options.check()?;
    let progress = Progress::new(args.quiet);
    if let Some(found) = registry::fetched(&options.source, &progress, &notice(args.quiet))? {
        options.source = found.path;
    }
    let curve = curve(&options, &progress)?;
    drop(progress);
    let text = if args.json { format!("{:#}\n", curve.to_json()) } else { curve.to_text() };
    let text = if args.json { escape_json(&text) } else { text.into() };
    print(text.as_bytes())
}

fn run_list(json: bool) -> Result<(), Error> {
    let models = registry::models()?;
    let text = if json { registry::to_json(&models) } else { registry::to_text(&models) };
    print(text.as_bytes())
}

fn run_inspect(blob: &Path, json: bool) -> Result<(), Error> {
    let found = inspect::inspect(blob)?;
    let text = if json { format!("{found:#}\n") } else { inspect::to_text(&found) };
    let text = if json { escape_json(&text) } else { text.into() };
    print(text.as_bytes())
}

fn run_completions(shell: Shell) -> Result<(), Error> {
    let mut script = Vec::new(); // the generator panics where it cannot write
    clap_complete::generate(shell, &mut Cli::command(), NAME, &mut script);
    print(&script)
}

fn run_man(directory: &Path) -> Result<(), Error> {
    let result =
        fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(Cli::command(), directory));
    result.map_err(|source| Error::Io { path: directory.to_owned(), source })
}

fn print(bytes: &[u8]) -> Result<(), Error> {
    // A reader that has seen enough, such as `head`, is no failure.
    match io::stdout().write_all(bytes) {
        Err(source) if source.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::Io { path: "standard output".into(), source })
        }
        _ => Ok(()),
    }
}

fn run_verify(blob: &Path, quiet: bool) -> Result<(), Error> {
    let layout = verify::verify(blob, &Progress::new(quiet))?;
    if !quiet {
        let (sections, bytes) = (layout.sections.len(), layout.header.file_len);
        let blob = blob.display().to_string();
        let blob = one_line(&blob);
        eprintln!("smolconv: {blob}: {sections} sections, {bytes} bytes, all as they were written");
    }
    Ok(())
}
