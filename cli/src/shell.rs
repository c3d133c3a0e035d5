//! What makes the program at home in a shell: completions and man pages, out of the command line's own description.

use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Args;
use crate::output::Stdout;

/// What the program is called.
pub(crate) const NAME: &str = "smolrun";

/// Prints completions for `shell`.
pub(crate) fn completions(shell: Shell) -> Result<(), Box<dyn Error>> {
    let mut script = Vec::new(); // the generator panics where it cannot write
    clap_complete::generate(shell, &mut Args::command(), NAME, &mut script);
    Ok(Stdout::new().write_all(&script)?)
}

/// Writes a man page for the program and each of its commands into `directory`.
pub(crate) fn man(directory: &Path) -> Result<(), Box<dyn Error>> {
    let result = fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Args::command().name(NAME), directory));
    result.map_err(|error| format!("{}: {error}", directory.display()).into())
}

/// The command whose name is `name` but for a third of its letters at most.
pub(crate) fn near_command(name: &str) -> Option<String> {
    let args = Args::command();
    let distance = |command: &str| strsim::damerau_levenshtein(command, name);
    let nearest =
        args.get_subcommands().map(clap::Command::get_name).min_by_key(|command| distance(command))?;
    (3 * distance(nearest) <= nearest.len()).then(|| nearest.to_owned())
}
