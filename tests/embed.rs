//! What an embedder builds: a separate program with a blob inside and none of the optional features.

use std::path::Path;
use std::process::{Command, Stdio};

use smol_tests::common::{Running, TALES, blob, repository, run};

/// Crates that the library may bring into an embedder's build, itself included: the hash and the casts, with theirs.
const MOST_CRATES: usize = 20;

#[test]
fn a_program_with_the_blob_inside_tells_the_tale() {
    let manifest = repository().join("runtime/examples/embed/Cargo.toml");
    let target = target_dir();
    let cargo = |args: &[&str]| {
        let mut cargo = Command::new(env!("CARGO"));
        // The build must not see this test's own, such as its coverage flags.
        for variable in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER"] {
            cargo.env_remove(variable);
        }
        // Its own profile takes a minute to build, and only makes the program smaller and faster.
        for (setting, value) in [("OPT_LEVEL", "0"), ("LTO", "off"), ("CODEGEN_UNITS", "16")] {
            cargo.env(format!("CARGO_PROFILE_RELEASE_{setting}"), value);
        }
        cargo.args(args).arg("--manifest-path").arg(&manifest).env("CARGO_TARGET_DIR", &target);
        cargo.env("SMOL_BLOB", blob(TALES)).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = Running::start(&mut cargo).wait_with_output();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let told = cargo(&["run", "--release", "--quiet"]);
    let blob = blob(TALES);
    let blob = blob.to_str().unwrap();
    let expected = run("smolrun", &[blob, "Once upon a time", "-n", "40"]).stdout;
    assert_eq!(told, expected, "the same text as the program's");
    assert!(told.len() > 40, "{told:?}");

    let tree = cargo(&["tree", "--edges", "normal", "--prefix", "none", "--no-dedupe"]);
    let mut crates: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    crates.sort_unstable();
    crates.dedup();
    assert!(crates.len() <= MOST_CRATES, "{crates:?}");
    for absent in ["clap", "serde", "serde_json", "minijinja", "memmap2"] {
        assert!(!crates.contains(&absent), "{absent} is for the program only");
    }
}

/// Beside this test's own builds, so that it is kept, and cleaned, with them.
fn target_dir() -> std::path::PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("embed")
}
