//! The `smolrun` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    smolrun_cli::run(std::env::args_os).into()
}
