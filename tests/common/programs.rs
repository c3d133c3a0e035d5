//! The programs of this workspace, built as the tests were.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use super::Running;

/// Longest wait for Cargo, which may build everything first, or wait for another one that does.
const BUILDING: Duration = Duration::from_secs(3600);

/// What a program did.
#[derive(Debug)]
pub struct Outcome {
    /// Its exit code; -1 if a signal ended it.
    pub code: i32,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

/// Runs `program` (see [`program`]) with `args` until it ends.
pub fn run<S: AsRef<OsStr>>(name: &str, args: &[S]) -> Outcome {
    let mut command = Command::new(program(name));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::start(&mut command).wait_with_output().into()
}

impl From<Output> for Outcome {
    fn from(Output { status, stdout, stderr }: Output) -> Outcome {
        Outcome {
            code: status.code().unwrap_or(-1),
            stdout: String::from_utf8(stdout).expect("standard output is UTF-8"),
            stderr: String::from_utf8(stderr).expect("standard error is UTF-8"),
        }
    }
}

/// Where the program `name` lies, for the profile and target that this test was built for.
///
/// Cargo does not build programs of other packages for a test, so the first call does.
pub fn program(name: &str) -> PathBuf {
    static PROFILE_DIR: OnceLock<PathBuf> = OnceLock::new();
    PROFILE_DIR.get_or_init(build).join(format!("{name}{}", env::consts::EXE_SUFFIX))
}

/// Builds every program of the workspace; returns the directory they are in.
fn build() -> PathBuf {
    // <target>/[<triple>/]<profile>/deps/<test>
    let test = env::current_exe().expect("a test knows its own path");
    let profile_dir = test.ancestors().nth(2).expect("a test lies in a profile's directory").to_owned();
    let above = profile_dir.parent().expect("a profile lies in a target directory");
    // Not every target directory has a CACHEDIR.TAG: Cargo puts it only into one that it has made itself.
    let is_target_dir = ["CACHEDIR.TAG", ".rustc_info.json"].iter().any(|name| above.join(name).exists());
    let triple = (!is_target_dir).then(|| above.file_name()).flatten();
    let target_dir = if triple.is_some() { above.parent().unwrap_or(above) } else { above };
    let profile = match profile_dir.file_name() {
        Some(name) if name == "debug" => OsStr::new("dev"),
        Some(name) => name,
        None => OsStr::new("dev"),
    };
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    // A test beside the programs, which is there already: with it, Cargo chooses the features of all dependencies as
    // for `scripts/test.sh`, and only the programs are left to be built.
    cargo.args(["build", "--quiet", "--bins", "--test", "registry"]);
    cargo.args(["--workspace", "--exclude", "smol-benches", "--profile"]).arg(profile);
    cargo.arg("--target-dir").arg(target_dir);
    if let Some(triple) = triple {
        cargo.arg("--target").arg(triple);
    }
    // What Cargo tells a test of its package: build scripts that ask for it (ring's) would run again, and all that stands on
    // them would be built again.
    let told = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let is_of_package = |name: &String| {
        ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_EXE_"].iter().any(|start| name.starts_with(start))
            || name == "CARGO_CRATE_NAME"
            || name == "CARGO_PRIMARY_PACKAGE"
    };
    told.filter(is_of_package).for_each(|name| _ = cargo.env_remove(name));
    assert!(Running::start_for(BUILDING, &mut cargo).wait().success(), "cargo builds the programs");
    profile_dir
}
