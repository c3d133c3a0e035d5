//! `smolrun bundle`: one file that runs by itself, and says what happened to it where it cannot.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use smol_tests::common::{Outcome, Running, TempDir, program, run, tales_with_template, within};

use crate::smolrun_cli::{PROMPT, SMOLLM2_TEMPLATE, blob, smolrun};

/// What the built program makes of a blob.
fn bundle(blob: &str, out: &Path, more: &[&str]) {
    let made = smolrun(&[&["bundle", blob, "-o", out.to_str().unwrap()], more].concat());
    assert_eq!(made.code, 0, "{}", made.stderr);
}

/// What a bundle does, without anything around it.
fn run_bundle(path: &Path, args: &[&str]) -> Outcome {
    let mut command = Command::new(path);
    command.args(args).env_clear().current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::start(&mut command).wait_with_output().into()
}

/// Where the blob lies in a bundle, by its trailer.
fn place(bundle: &[u8]) -> (usize, usize) {
    let trailer = &bundle[bundle.len() - 120..];
    let number = |at: usize| u64::from_le_bytes(trailer[at..at + 8].try_into().unwrap()) as usize;
    (number(16), number(24))
}

#[test]
fn a_bundle_is_a_file() {
    let outcome = run("smolrun", &["bundle", blob(), "-o", "-"]);
    assert_eq!(outcome.code, 2, "{outcome:?}");
    assert!(outcome.stderr.contains("--out -: expected a file (one called - is ./-)"), "{outcome:?}");
}

#[test]
fn a_bundle_does_what_the_program_and_the_blob_do() {
    let temp = TempDir::new();
    let (made, elsewhere) = (temp.join("made"), temp.join("tale teller"));
    bundle(blob(), &made, &["--", "-n", "20"]);
    fs::rename(made, &elsewhere).unwrap();
    let told = run_bundle(&elsewhere, &["Once", "upon a time", "--temperature", "0.7", "--seed", "3"]);
    let expected = smolrun(&[blob(), PROMPT, "-n", "20", "--temperature", "0.7", "--seed", "3"]);
    assert_eq!((told.code, told.stdout, told.stderr), (0, expected.stdout, String::new()));
    assert_eq!(
        run_bundle(&elsewhere, &[PROMPT, "-n", "5"]).stdout,
        smolrun(&[blob(), PROMPT, "-n", "5"]).stdout
    );

    // The blob is as it was, where every page size can map it.
    let (bytes, expected) = (fs::read(&elsewhere).unwrap(), fs::read(blob()).unwrap());
    let (start, len) = place(&bytes);
    assert!(start.is_multiple_of(64 << 10) && bytes[start..start + len] == expected);

    // A command's name is a prompt there.
    let told = run_bundle(&elsewhere, &["info", "-n", "3"]);
    assert_eq!(told.stdout, smolrun(&[blob(), "-n", "3", "info"]).stdout, "{}", told.stderr);
    let help = run_bundle(&elsewhere, &["--help"]).stdout;
    assert!(help.contains("Usage: tale teller [OPTIONS] [PROMPT]...") && !help.contains("MODEL:"), "{help}");
    assert!(!help.contains("bundle") && !help.contains("--dtype"), "{help}");
    let wrong = run_bundle(&elsewhere, &["--no-such-option"]);
    assert_eq!((wrong.code, wrong.stderr.contains("tale teller")), (2, true), "{}", wrong.stderr);
}

#[test]
fn all_that_takes_a_blob_takes_a_bundle() {
    let temp = TempDir::new();
    let path = temp.join("tale");
    bundle(blob(), &path, &[]);
    let path = path.to_str().unwrap();
    let info =
        |path: &str| serde_json::from_str::<Value>(&smolrun(&["info", path, "--json"]).stdout).unwrap();
    assert_eq!(info(path)["config"], info(blob())["config"]);
    assert_eq!(smolrun(&[path, PROMPT, "-n", "5"]).stdout, smolrun(&[blob(), PROMPT, "-n", "5"]).stdout);
    assert_eq!(run("smolconv", &["inspect", path]).stdout, run("smolconv", &["inspect", blob()]).stdout);
    assert_eq!(run("smolconv", &["verify", path]).code, 0);
    let again = temp.join("again");
    bundle(path, &again, &[]);
    assert_eq!(fs::read(again).unwrap(), fs::read(path).unwrap(), "reproducible, and of a bundle's blob");

    let mut bytes = fs::read(path).unwrap();
    let (start, len) = place(&bytes);
    bytes[start + len - 1] ^= 1;
    fs::write(path, bytes).unwrap();
    let found = run("smolconv", &["verify", path]);
    assert_eq!((found.code, found.stderr.contains("SHA-256")), (1, true), "{}", found.stderr);
}

#[test]
fn what_a_bundle_is_told_its_user_may_change() {
    let temp = TempDir::new();
    let with_template = tales_with_template(&temp, SMOLLM2_TEMPLATE);
    let blob = with_template.to_str().unwrap();
    let path = temp.join("chat");
    bundle(blob, &path, &["--system", "Tell tales.", "--", "--temperature", "0.5", "--seed", "7", "-n", "9"]);
    let answer = |system: &str, more: &[&str]| {
        let given = ["--chat", "Hello", "--system", system, "--temperature", "0.5", "--seed", "7"];
        smolrun(&[&[blob], &given[..], more].concat()).stdout
    };
    assert_eq!(run_bundle(&path, &["Hello"]).stdout, answer("Tell tales.", &["-n", "9"]));
    let changed = run_bundle(&path, &["Hello", "-n", "4", "--system", "Be short."]);
    assert_eq!(changed.stdout, answer("Be short.", &["-n", "4"]), "{}", changed.stderr);

    let text = temp.join("text");
    bundle(blob, &text, &["--no-chat", "--", "-n", "6"]);
    assert_eq!(run_bundle(&text, &["Hello"]).stdout, smolrun(&[blob, "Hello", "-n", "6"]).stdout);
}

#[test]
fn a_bundle_without_its_model_says_what_happened() {
    let temp = TempDir::new();
    let path = temp.join("tale");
    bundle(blob(), &path, &[]);
    let bytes = fs::read(&path).unwrap();
    let own_len = fs::metadata(program("smolrun")).unwrap().len() as usize;
    // What `strip` leaves, half of the blob, and all but a byte.
    for len in [own_len, (own_len + bytes.len()) / 2, bytes.len() - 1] {
        let cut = temp.join("cut");
        write_program(&cut, &format!("head -c {len} '{}'", path.display()));
        let said = run_bundle(&cut, &[PROMPT]);
        let expected = format!("expected the {} bytes of a program with its model, found {len}", bytes.len());
        assert!(
            said.stderr.contains(&expected) && said.stderr.contains("stripped or cut off"),
            "{}",
            said.stderr
        );
        assert_eq!((said.code, said.stderr.lines().count(), said.stdout), (1, 1, String::new()));
    }
    let longer = temp.join("longer");
    write_program(&longer, &format!("cat '{}'; echo more", path.display()));
    assert!(run_bundle(&longer, &[PROMPT]).stderr.contains("found something else there"));
}

#[test]
fn what_cannot_be_bundled_is_named() {
    let temp = TempDir::new();
    let (out, bundled) = (temp.join("out"), temp.join("bundled"));
    bundle(blob(), &bundled, &[]);
    let [windows, macos, script] =
        [("a.exe", &b"MZ\x90\0"[..]), ("mac", b"\xcf\xfa\xed\xfe\x0c\0\0\x01"), ("script", b"#!/bin/sh\n")]
            .map(|(name, bytes)| {
                fs::write(temp.join(name), bytes).unwrap();
                temp.join(name).to_str().unwrap().to_owned()
            });
    let refused = |more: &[&str], found: &str| {
        let said = smolrun(&[&["bundle", blob(), "-o", out.to_str().unwrap()], more].concat());
        assert!(said.code != 0 && said.stderr.contains(found), "{more:?}: {}", said.stderr);
        assert_eq!(said.code == 2, more[0] == "--", "{more:?}: options after -- are a matter of usage");
        assert!(!out.exists(), "{more:?}");
    };
    refused(&["--program", &windows], "found one for Windows (PE)");
    refused(&["--program", &macos], "found one for macOS (Mach-O)");
    refused(&["--program", &script], "found no program");
    refused(&["--program", program("smolconv").to_str().unwrap()], "found another program");
    refused(&["--program", bundled.to_str().unwrap()], "found one that has a model already");
    refused(&["--system", "Be short."], "expected a model with a chat template");
    refused(&["--", "--no-such-option"], "error: unexpected argument '--no-such-option' found\n");
    refused(&["--", "--temperature", "-1"], "temperature: expected a finite number");
    refused(&["--", "--stop", ""], "a value is required for '--stop <TEXT>'");
    refused(&["--", "--dtype", "q4"], "found --dtype, which belongs before it");
    refused(&["--", "--prompt-file", "x"], "found a prompt: --prompt-file");
    refused(&["--", "--chat"], "found --chat for a model without a chat template");
    refused(&["--", "-n", "5", "Hello"], "found a prompt: Hello");
    let exists = smolrun(&["bundle", blob(), "-o", bundled.to_str().unwrap()]);
    assert!(exists.code != 0 && exists.stderr.contains("--force"), "{}", exists.stderr);
    bundle(blob(), &bundled, &["--force"]);

    // What is read is no place to write to, whatever it is called by.
    let (copy, link, smolrun_copy) = (temp.join("copy.bin"), temp.join("link"), temp.join("smolrun"));
    fs::copy(blob(), &copy).unwrap();
    fs::copy(program("smolrun"), &smolrun_copy).unwrap();
    symlink(&copy, &link).unwrap();
    let (copy, link, own) = (copy.to_str().unwrap(), link.to_str().unwrap(), smolrun_copy.to_str().unwrap());
    for args in [&[copy, "-o", link][..], &[link, "-o", copy], &[blob(), "--program", own, "-o", own]] {
        let before = [copy, own].map(|file| fs::read(file).unwrap());
        let said = smolrun(&[&["bundle", "--force"], args].concat());
        assert!(
            said.code == 1 && said.stderr.contains("expected another file than those that are read"),
            "{said:?}"
        );
        assert!(before == [copy, own].map(|file| fs::read(file).unwrap()), "{args:?}");
    }
}

/// Pages of the file itself, at the blob's place in it.
#[test]
fn the_blob_is_mapped_and_not_copied() {
    let temp = TempDir::new();
    let path = temp.join("tale");
    bundle(blob(), &path, &[]);
    let (start, _) = place(&fs::read(&path).unwrap());
    let mut command = Command::new(&path);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::start(&mut command);
    let maps = PathBuf::from(format!("/proc/{}/maps", running.id()));
    let wanted = format!(" {start:08x} ");
    let name = path.to_str().unwrap().to_owned();
    within("a bundle maps its blob", move || {
        let is_mapped = |line: &str| line.contains(&wanted) && line.ends_with(&name);
        while !fs::read_to_string(&maps).unwrap_or_default().lines().any(is_mapped) {
            thread::sleep(Duration::from_millis(1));
        }
    });
    running.stdin.take().unwrap().write_all(PROMPT.as_bytes()).unwrap();
    let told: Outcome = running.wait_with_output().into();
    assert_eq!((told.code, told.stdout), (0, smolrun(&[blob(), PROMPT]).stdout));
}

/// Writes a program by what a shell prints. This process must not: what it starts meanwhile would have the file open, and
/// nothing that is open for writing runs.
fn write_program(path: &Path, printed: &str) {
    let script = format!("rm -f \"$0\"; {{ {printed}; }} >\"$0\"; chmod +x \"$0\"");
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).arg(path);
    assert!(Running::start(&mut command).wait().success());
}
