//! The `smolconv` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    smolconv::program::run(std::env::args_os()).into()
}
