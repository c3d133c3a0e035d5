//! `smolrun` where it could do harm: to the terminal, to files, to a prompt's cache, and when it is ended from outside.
#![cfg(unix)]

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use smol_tests::common::{Blob, Running, TALES, TempDir, Terminal, blob as blob_path, program, run};
use smolrun::format::Kind;
use smolrun::{Model, SpecialTokens};

use crate::smolrun_cli::{PROMPT, assert_error, blob, command, good, outcome, smolrun, text};

/// Characters that a terminal takes for more than text, in a name.
const NAME: &str = "a\u{1b}[2J\u{9b}31m\u{202e}b";

/// An argument that makes the model say nothing but escape characters.
fn only_escapes() -> String {
    let model = Model::open(blob()).unwrap();
    let ids = model.tokenizer().encode("\u{1b}", SpecialTokens::AsText).unwrap();
    assert_eq!(ids.len(), 1);
    format!("--logit-bias={}=10000", ids[0])
}

#[test]
fn no_generated_text_reaches_a_terminal_as_more_than_text() {
    let escapes = only_escapes();
    let args = [blob(), PROMPT, "-n", "5", &escapes];
    // A script gets the exact text.
    assert_eq!(text(&args), format!("{}\n", "\u{1b}".repeat(5)));
    let terminal = Terminal::run(&program("smolrun"), &args, &[]);
    let screen = terminal.wait_for("its end", |screen| screen.ends_with("exit code 0"));
    assert_eq!(screen, format!("{}\nexit code 0", "\u{fffd}".repeat(5)));
    // JSON is the same everywhere, and harmless.
    let json = text(&[&args[..], &["--json"]].concat());
    assert!(!json.contains('\u{1b}') && json.contains("\\u001b"), "{json}");
}

#[test]
fn names_and_metadata_reach_nobody_as_more_than_text() {
    let temp = TempDir::new();
    let mut hostile = Blob::take_apart(&fs::read(blob()).unwrap());
    let metadata = json!({ NAME: { NAME: NAME }, "list": [{ NAME: 1 }], "text": NAME }).to_string();
    let part = hostile.part(Kind::Metadata);
    (part.shape[0], part.content) = (metadata.len() as u64, metadata.into_bytes());
    let path = temp.join(NAME);
    fs::write(&path, hostile.build()).unwrap();
    let path = path.to_str().unwrap();
    let is_harmless = |text: &str| !text.contains(|c: char| (c.is_control() && c != '\n') || c == '\u{202e}');
    for args in [&["inspect", path][..], &["inspect", path, "--json"], &["verify", path]] {
        let outcome = run("smolconv", args);
        assert_eq!(outcome.code, 0, "{outcome:?}");
        assert!(is_harmless(&outcome.stdout) && is_harmless(&outcome.stderr), "{outcome:?}");
    }
    let found: Value = serde_json::from_str(&run("smolconv", &["inspect", path, "--json"]).stdout).unwrap();
    assert_eq!(found["metadata"][NAME][NAME], NAME);
    for args in [
        &["info", path][..],
        &[path, "x", "-n", "1"],
        &[path, "--chat", "x"],
        &["no", NAME, NAME],
        &[NAME, "x"],
    ] {
        let outcome = smolrun(args);
        assert!(is_harmless(&outcome.stdout) && is_harmless(&outcome.stderr), "{args:?}: {outcome:?}");
    }
}

#[test]
fn a_prompt_cache_that_cannot_be_is_refused_before_anything_is_generated() {
    let temp = TempDir::new();
    let path = |name: &str| temp.join(name).into_os_string().into_string().unwrap();
    fs::write(path("text"), "a text of somebody's").unwrap();
    fs::create_dir(path("directory")).unwrap();
    assert!(Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
    symlink(path("pipe"), path("link")).unwrap();
    for (name, expected) in [
        ("nosuch/cache", "No such file or directory"),
        ("text", "not a session"),
        ("directory", "a regular file"),
        ("pipe", "a regular file"),
        ("link", "a regular file"),
    ] {
        let start = Instant::now();
        let outcome = smolrun(&[blob(), PROMPT, "-n", "2", "--prompt-cache", &path(name)]);
        assert_error(&outcome, expected);
        assert!(outcome.stderr.contains(&path(name)), "{outcome:?}");
        assert!(start.elapsed() < Duration::from_secs(20));
    }
    assert_eq!(fs::read(path("text")).unwrap(), b"a text of somebody's");
    assert_eq!(temp.names(), ["directory", "link", "pipe", "text"]);
}

#[test]
fn a_prompt_cache_of_no_use_is_told_and_replaced() {
    let temp = TempDir::new();
    let cache = temp.join("cache");
    let other = temp.join("other.bin");
    let mut blob_of_other = Blob::take_apart(&fs::read(blob()).unwrap());
    blob_of_other.part(Kind::Metadata).content[0] = b' ';
    fs::write(&other, blob_of_other.build()).unwrap();
    let expected = text(&[blob(), PROMPT, "-n", "4"]);
    let ask = |blob: &str, kv: &str| {
        smolrun(&[blob, PROMPT, "-n", "4", "--kv", kv, "--prompt-cache", cache.to_str().unwrap()])
    };
    let damage = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = fs::read(&cache).unwrap();
        change(&mut bytes);
        fs::write(&cache, bytes).unwrap();
    };
    let other = other.to_str().unwrap();
    fs::write(&cache, "").unwrap(); // as mktemp leaves it
    let empty: &dyn Fn() = &|| ();
    for (spoil, kv, problem) in [
        (empty, "f32", "bytes are less than a header's"),
        (&|| drop(ask(other, "f32")), "f32", "another blob"),
        (&|| drop(ask(blob(), "f16")), "f32", "keys and values: expected f32, found f16"),
        (&|| damage(&|bytes| bytes[70] ^= 1), "f32", "the hash that was written"),
        (&|| damage(&|bytes| bytes.truncate(100)), "f32", "found 100"),
        (&|| damage(&|bytes| *bytes.last_mut().unwrap() ^= 1), "f32", "the checksum that was written"),
    ] {
        spoil();
        let told = ask(blob(), kv);
        assert_eq!((told.code, &told.stdout), (0, &expected), "{told:?}");
        assert!(told.stderr.starts_with("smolrun: --prompt-cache: "), "{told:?}");
        assert!(told.stderr.contains(problem) && told.stderr.contains("written anew"), "{problem}: {told:?}");
        assert_eq!(told.stderr.lines().count(), 1, "{told:?}");
        assert_eq!(good(ask(blob(), kv)), expected, "it was replaced");
    }
    assert_eq!(fs::metadata(&cache).unwrap().mode() & 0o777, 0o600);
    // A link stays one, and what it leads to is written.
    let link = temp.join("link");
    symlink(temp.join("far"), &link).unwrap();
    fs::write(temp.join("far"), "").unwrap();
    let outcome = smolrun(&[blob(), PROMPT, "-n", "4", "--prompt-cache", link.to_str().unwrap()]);
    assert_eq!((outcome.code, &outcome.stdout), (0, &expected));
    assert!(
        fs::symlink_metadata(&link).unwrap().is_symlink()
            && fs::metadata(temp.join("far")).unwrap().len() > 64
    );
}

#[test]
fn a_prompt_cache_that_cannot_be_written_costs_no_answer() {
    let temp = TempDir::new();
    let directory = temp.join("directory");
    fs::create_dir(&directory).unwrap();
    let cache = directory.join("cache");
    let mut child = Running::start(
        command(&[blob(), PROMPT, "-n", "200", "--threads", "1", "--prompt-cache", cache.to_str().unwrap()])
            .env("SMOLRUN_ISA", "scalar"),
    );
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    fs::remove_dir_all(&directory).unwrap();
    let outcome = outcome(child);
    assert_eq!(outcome.code, 1, "{outcome:?}");
    assert!(outcome.stdout.ends_with('\n') && outcome.stdout.len() > 400, "the answer is whole: {outcome:?}");
    assert!(
        outcome.stderr.starts_with("smolrun: error: ") && outcome.stderr.lines().count() == 1,
        "{outcome:?}"
    );
}

#[test]
fn each_signal_has_the_exit_code_that_shells_give_it() {
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        // Whoever runs this test may have them ignored.
        let mut command = Command::new("env");
        command.arg(format!("--default-signal={signal}")).arg(program("smolrun"));
        command.args([blob(), PROMPT, "-n", "1000", "--threads", "1"]).env("SMOLRUN_ISA", "scalar");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Running::start(&mut command);
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        assert!(
            Command::new("kill")
                .arg(format!("-{signal}"))
                .arg(child.id().to_string())
                .status()
                .unwrap()
                .success()
        );
        let output = child.wait_with_output();
        assert_eq!((output.status.code(), output.status.signal()), (Some(code), None), "{signal}");
        assert!(output.stdout.ends_with(b"\n") && output.stderr.is_empty(), "{signal}: {output:?}");
    }
}

#[test]
fn a_signal_that_is_to_be_ignored_is() {
    let mut command = Command::new("env");
    command.arg("--ignore-signal=HUP").arg(program("smolrun")).args([blob(), PROMPT, "-n", "300"]);
    let mut child = Running::start(command.stdin(Stdio::null()).stdout(Stdio::piped()));
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    assert!(Command::new("kill").args(["-HUP", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output();
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stdout.len() > 500);
}

/// What cannot be written is told, and where: a script would take half an answer for a whole one.
#[cfg(target_os = "linux")]
#[test]
fn every_command_says_that_standard_output_is_full() {
    let temp = TempDir::new();
    let commands: [&[&str]; 8] = [
        &[blob(), PROMPT, "-n", "4"],
        &["info", blob()],
        &["info", blob(), "--json"],
        &["bench", blob(), "-p", "4", "-n", "4", "-r", "1"],
        &["cache", "list"],
        &["completions", "bash"],
        &["--version"],
        &["batch", "--help"],
    ];
    for args in commands {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = Command::new(program("smolrun"));
        command.args(args).env("SMOLRUN_CACHE", temp.path()).stdin(Stdio::null()).stdout(full);
        let outcome = outcome(Running::start(command.stderr(Stdio::piped())));
        assert_eq!(outcome.code, 1, "{args:?}: {outcome:?}");
        let wrong = "smolrun: error: standard output: No space left on device (os error 28)";
        assert!(outcome.stderr.lines().last().is_some_and(|line| line == wrong), "{args:?}: {outcome:?}");
    }
}

/// The signal that tells of a file's limit would end a program without a word.
#[cfg(unix)]
#[test]
fn a_file_limit_is_an_error_in_words() {
    let temp = TempDir::new();
    let (out, pages) = (temp.join("out").display().to_string(), temp.join("pages").display().to_string());
    let commands: [(&str, &[&str], &str); 4] = [
        ("smolrun", &["logits", blob(), "--ids", "1"], "standard output"),
        ("smolrun", &["man", &pages], "pages"),
        ("smolrun", &["bundle", blob(), "-o", &out], "out"),
        ("smolconv", &["inspect", blob(), "--json"], "standard output"),
    ];
    for (name, args, place) in commands {
        let script = "ulimit -f 1; exec \"$0\" \"$@\"";
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).arg(program(name)).args(args).stdin(Stdio::null());
        let output = shell.stdout(File::create(temp.join("stdout")).unwrap()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
        assert!(stderr.contains("File too large") && stderr.contains(place), "{args:?}: {stderr}");
    }
}

/// From what the system can just begin it with to enough.
#[test]
fn too_little_memory_is_an_error_in_words() {
    let (temp, blob) = (TempDir::new(), blob_path(TALES));
    let text = temp.join("text");
    fs::write(&text, "").unwrap();
    let run = |kilobytes: u32, more: &str| {
        let script = format!("ulimit -v {kilobytes}; exec \"$0\" \"$1\" Once -n 2 {more}");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).arg(program("smolrun")).arg(&blob).stdin(File::open(&text).unwrap());
        shell.output().unwrap()
    };
    // Neither the system nor Rust's own beginning stopped it before `main`.
    let has_begun = |output: &Output| {
        let stderr = String::from_utf8_lossy(&output.stderr);
        output.status.success() || stderr.starts_with("smolrun: ") || stderr.starts_with("memory allocation")
    };
    // Where it begins is between these two.
    let (mut too_little, mut enough) = (0, 40_000);
    while enough - too_little > 1 {
        let middle = (too_little + enough) / 2;
        if has_begun(&run(middle, "")) { enough = middle } else { too_little = middle }
    }
    let (mut errors, mut answers) = (0, 0);
    // Steps as small as what the program asks for at once; then larger ones.
    let steps = (enough..enough + 3_000).step_by(20).chain((enough + 3_000..40_000).step_by(500));
    for (kilobytes, more) in steps.flat_map(|kilobytes| [(kilobytes, ""), (kilobytes, "--no-mmap")]) {
        let output = run(kilobytes, more);
        let stderr = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0) => answers += 1,
            Some(1) => {
                assert!(
                    stderr.starts_with("smolrun: error: ") && stderr.lines().count() == 1,
                    "{kilobytes}: {stderr}"
                );
                errors += 1;
            }
            // How much Rust's own beginning needs depends on where the system puts things.
            _ if stderr.contains("thread 'main'") && stderr.contains("an alternative stack") => {}
            _ => panic!("{kilobytes} {more}: {output:?}"),
        }
    }
    assert!(errors > 50 && answers > 1, "{errors} errors, {answers} answers");
}
