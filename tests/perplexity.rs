//! Perplexity and divergence, by the library and by `smolrun perplexity`, against transformers'.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use safetensors::SafeTensors;
use serde::Deserialize;
use serde_json::Value;
use smol_tests::common::{
    REAL, Running, TALES, TempDir, Terminal, blob, blob_of, data, is_long, model_dir, program, run, tales,
};
use smolconv::{Options, Progress, convert};
use smolrun::eval::{Comparison, Perplexity, PerplexityOptions};
use smolrun::format::Dtype;
use smolrun::{CancelToken, Error, Model, Session, SessionOptions, SpecialTokens};

/// Of means over thousands of tokens, whose single figures differ from PyTorch's by sums in another order.
const TOLERANCE: f64 = 1e-5;

/// What transformers says of [`blob`] and [`other`], see `tests/data/make/perplexity.py`.
#[derive(Debug, Deserialize)]
struct Expected {
    window: usize,
    tokens: usize,
    text_tokens: usize,
    mean_nll: f64,
    perplexity: f64,
    other_mean_nll: f64,
    other_perplexity: f64,
    mean_kl: f64,
    kl_99: f64,
    top_1_agreement: f64,
}

fn expected() -> Vec<Expected> {
    serde_json::from_slice(&fs::read(data("tales-4m/perplexity.json")).unwrap()).unwrap()
}

/// The model in the repository without the last layer's `down_proj`.
fn other(temp: &TempDir) -> PathBuf {
    let (source, out) = (temp.join("other"), temp.join("other.bin"));
    fs::create_dir(&source).unwrap();
    for name in ["config.json", "tokenizer.json"] {
        fs::copy(tales().join(name), source.join(name)).unwrap();
    }
    let mut bytes = fs::read(tales().join("model.safetensors")).unwrap();
    let weight = tensor(&bytes, "model.layers.7.mlp.down_proj.weight");
    bytes[weight].fill(0);
    fs::write(source.join("model.safetensors"), bytes).unwrap();
    convert(&Options::new(source, &out), &Progress::new(true)).unwrap();
    out
}

/// Where a tensor's numbers lie in a file.
fn tensor(file: &[u8], name: &str) -> std::ops::Range<usize> {
    let tensors = SafeTensors::deserialize(file).unwrap();
    let data = tensors.tensor(name).unwrap().data();
    let start = data.as_ptr() as usize - file.as_ptr() as usize;
    start..start + data.len()
}

pub(crate) fn session(blob: &Path) -> Session {
    Session::new(&Model::open(blob).unwrap(), SessionOptions::default()).unwrap()
}

pub(crate) fn tokens(session: &Session) -> Vec<u32> {
    let text = fs::read_to_string(data("ppl.txt")).unwrap();
    session.model().tokenizer().encode(&text, SpecialTokens::AsText).unwrap()
}

fn options(window: usize) -> PerplexityOptions {
    PerplexityOptions::default().window(window)
}

fn perplexity(session: &mut Session, tokens: &[u32], window: usize) -> Perplexity {
    let mut total = Perplexity::default();
    session.perplexity(tokens, options(window)).unwrap().for_each(|window| total += window.unwrap());
    total
}

pub(crate) fn compare(
    session: &mut Session,
    reference: &mut Session,
    tokens: &[u32],
    window: usize,
) -> Comparison {
    let mut total = Comparison::default();
    let windows = session.compare(reference, tokens, options(window)).unwrap();
    windows.for_each(|window| total += window.unwrap());
    total
}

fn assert_near(what: &str, found: f64, expected: f64, tolerance: f64) {
    assert!((found - expected).abs() < tolerance, "{what}: expected {expected}, found {found}");
}

#[test]
fn two_models_are_as_far_apart_as_transformers_finds_them() {
    let temp = TempDir::new();
    let (mut tales, mut other) = (session(&blob(TALES)), session(&other(&temp)));
    let tokens = tokens(&tales);
    let [first, of_the_program, last] = expected().try_into().unwrap();
    assert_eq!(of_the_program.window, 256, "see the test after this one");
    for expected in [first, last] {
        let found = compare(&mut other, &mut tales, &tokens, expected.window);
        assert_eq!((tokens.len(), found.perplexity.tokens), (expected.text_tokens, expected.tokens));
        assert_near("mean NLL", found.reference.mean_nll(), expected.mean_nll, TOLERANCE);
        assert_near("its mean NLL", found.perplexity.mean_nll(), expected.other_mean_nll, TOLERANCE);
        assert_near("mean KL", found.mean_divergence(), expected.mean_kl, TOLERANCE);
        assert_near("99 % KL", found.divergence_at(0.99), expected.kl_99, 20.0 * TOLERANCE);
        // A few tokens have two that are equally likely but for rounding.
        assert_near("agreement", found.agreement(), expected.top_1_agreement, 3.0 / expected.tokens as f64);
    }
}

#[test]
fn the_program_says_what_transformers_says() {
    let temp = TempDir::new();
    let expected = &expected()[1];
    let (window, text) = (expected.window.to_string(), data("ppl.txt"));
    let mut command = Command::new(program("smolrun"));
    command.arg("perplexity").arg(other(&temp)).arg(text).arg("--against").arg(blob(TALES));
    command.args(["--window", &window, "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = Running::start(&mut command).wait_with_output();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let number = |name: &str| found[name].as_f64().unwrap_or_else(|| panic!("{name} in {found}"));
    for (name, expected, tolerance) in [
        ("perplexity", expected.other_perplexity, 1e-3),
        ("mean_nll", expected.other_mean_nll, TOLERANCE),
        ("against_perplexity", expected.perplexity, 1e-3),
        ("against_mean_nll", expected.mean_nll, TOLERANCE),
        ("mean_kl", expected.mean_kl, TOLERANCE),
        ("kl_99", expected.kl_99, 20.0 * TOLERANCE),
        ("top_1_agreement", expected.top_1_agreement, 3.0 / expected.tokens as f64),
    ] {
        assert_near(name, number(name), expected, tolerance);
    }
    for (name, expected) in
        [("tokens", expected.tokens), ("text_tokens", expected.text_tokens), ("window", expected.window)]
    {
        assert_eq!(found[name], expected, "{name}");
    }
}

/// Of the first sixth of the text, or of all of it with `SMOL_LONG=1`, which takes a minute of two cores.
#[test]
#[ignore = "needs the real model: scripts/fetch_model.sh smollm2-135m-instruct"]
fn the_program_has_pytorchs_perplexity_of_the_real_model() {
    assert!(model_dir(REAL).is_dir());
    let temp = TempDir::new();
    let (blob, part) = (blob(REAL), temp.join("part.txt"));
    let mut text = fs::read(data("ppl.txt")).unwrap();
    let expected = if is_long() {
        ["19437 of 19817 tokens scored, in windows of 1024\n", "perplexity  16.8682  "]
    } else {
        text.truncate(12_500);
        ["3069 of 3171 tokens scored, in windows of 1024\n", "perplexity  19.7025  "]
    };
    fs::write(&part, text).unwrap();
    let outcome = run("smolrun", &["perplexity".as_ref(), blob.as_os_str(), part.as_os_str()]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    expected.iter().for_each(|line| assert!(outcome.stdout.contains(line), "{outcome:?}"));
}

/// The study of what quantizing costs found 0.0011 over the whole text, and the perplexity 0.12 % higher.
#[test]
#[ignore = "needs the real model: scripts/fetch_model.sh smollm2-135m-instruct"]
fn smollm2_135m_in_q8_expects_what_f32_expects() {
    let (mut q8, mut f32) = (session(&blob_of(REAL, Dtype::Q8)), session(&blob(REAL)));
    let tokens = tokens(&f32);
    let found = compare(&mut q8, &mut f32, &tokens[..2048], 512);
    assert!(found.mean_divergence() < 0.002, "{}", found.mean_divergence());
    assert!(found.agreement() > 0.97, "{}", found.agreement());
    let loss = found.perplexity.perplexity() / found.reference.perplexity() - 1.0;
    assert!(loss.abs() < 0.005, "{loss}");
}

#[test]
fn quantized_blobs_are_the_farther_apart_the_fewer_bits_they_have() {
    let mut f32 = session(&blob(TALES));
    let tokens = tokens(&f32);
    let mut before = 0.0;
    // A bit less is about four times the divergence.
    let most =
        [(Dtype::Q8, 0.0005), (Dtype::Q6, 0.002), (Dtype::Q5, 0.008), (Dtype::Q4, 0.032), (Dtype::Q3, 0.128)];
    for (dtype, most) in most {
        let found = compare(&mut session(&blob_of(TALES, dtype)), &mut f32, &tokens[..2000], 256);
        let divergence = found.mean_divergence();
        assert!(divergence > before && divergence < most, "{}: {divergence}", dtype.name());
        before = divergence;
    }
}

#[test]
fn a_blob_and_its_bf16_twin_are_not_apart_at_all() {
    let (mut f32, mut bf16) = (session(&blob(TALES)), session(&blob_of(TALES, Dtype::Bf16)));
    let mut again = session(&blob(TALES));
    let tokens = tokens(&f32);
    let tokens = &tokens[..2000];
    for reference in [&mut again, &mut bf16] {
        let found = compare(&mut f32, reference, tokens, 300);
        assert_eq!(found.perplexity, found.reference);
        assert_eq!(found.divergences, vec![0.0; 6 * 299]);
        assert_eq!((found.mean_divergence(), found.divergence_at(0.99), found.agreement()), (0.0, 0.0, 1.0));
    }
}

#[test]
fn windows_are_what_score_says_of_them_and_no_thread_changes_that() {
    const WINDOW: usize = 150;
    let (mut whole, mut alone) = (session(&blob(TALES)), session(&blob(TALES)));
    let tokens = tokens(&whole);
    let tokens = &tokens[..5 * WINDOW - 1];
    // What was in the session before does not matter.
    whole.feed(&tokens[..WINDOW]).unwrap();
    let windows: Vec<_> = whole.perplexity(tokens, options(WINDOW)).unwrap().map(Result::unwrap).collect();
    assert_eq!(windows.len(), 4);
    for (window, found) in tokens.chunks(WINDOW).zip(&windows) {
        let score = alone.score(&window[..1], &[&window[1..]]).unwrap()[0];
        assert_eq!(found.tokens, score.tokens);
        assert_near("NLL", found.nll, -score.logprob, 1e-9);
    }
    for threads in [1, 3] {
        let options = SessionOptions::default().threads(threads);
        let mut session = Session::new(whole.model(), options).unwrap();
        let found: Vec<_> =
            session.perplexity(tokens, self::options(WINDOW)).unwrap().map(Result::unwrap).collect();
        assert_eq!(found, windows);
    }
}

#[test]
fn percentiles_lie_between_the_divergences_in_proportion() {
    let mut comparison = Comparison::default();
    assert!(comparison.divergence_at(0.5).is_nan() && comparison.mean_divergence().is_nan());
    comparison.divergences = vec![4.0, 1.0, 2.0];
    for (fraction, expected) in [(0.0, 1.0), (0.25, 1.5), (0.5, 2.0), (0.75, 3.0), (1.0, 4.0), (7.0, 4.0)] {
        assert_eq!(comparison.divergence_at(fraction), expected, "{fraction}");
    }
}

#[test]
fn it_ends_when_it_is_cancelled() {
    let mut session = session(&blob(TALES));
    let tokens = tokens(&session);
    let cancel = CancelToken::default();
    let mut windows = session.perplexity(&tokens, options(100).cancel(&cancel)).unwrap();
    assert_eq!(windows.size_hint(), (222, Some(222)));
    assert!(windows.next().is_some_and(|window| window.is_ok()));
    assert_eq!(windows.size_hint(), (221, Some(221)));
    cancel.cancel();
    assert!(windows.next().is_none() && windows.next().is_none());
    assert_eq!(windows.size_hint(), (0, Some(0)));
}

#[test]
fn what_cannot_be_measured_is_an_error() {
    let (mut tales, mut again) = (session(&blob(TALES)), session(&blob(TALES)));
    let limit = tales.model().config().max_position_embeddings;
    let vocab_size = tales.model().config().vocab_size as u32;
    let many = vec![1; 2 * limit];
    let argument = |result: Option<Error>, expected: &str| {
        assert!(matches!(result, Some(Error::Argument { name, .. }) if name == expected), "{result:?}");
    };
    for (length, window, name) in [
        (limit, 0, "window"),
        (limit, 1, "window"),
        (2 * limit, limit + 1, "window"),
        (limit, usize::MAX, "window"),
        (0, 2, "tokens"),
        (99, 100, "tokens"),
    ] {
        argument(tales.perplexity(&many[..length], options(window)).err(), name);
        argument(tales.compare(&mut again, &many[..length], options(window)).err(), name);
    }
    // The last token of a window is not fed, and one after the last window is not scored.
    for place in [0, 9, 19] {
        let mut tokens = vec![1; 20];
        tokens[place] = vocab_size;
        assert!(matches!(tales.perplexity(&tokens, options(10)), Err(Error::TokenId { .. })), "{place}");
    }
    assert_eq!(perplexity(&mut tales, &many[..20], 10).tokens, 18);
}

/// Exit code, standard output and standard error of `smolrun perplexity` on `input`.
fn program_on(args: &[&str], input: &[u8]) -> (i32, String, String) {
    let mut command = Command::new(program("smolrun"));
    command.arg("perplexity").args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Running::start(&mut command);
    // It may have ended before it read everything.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

#[test]
fn a_text_may_come_from_standard_input_and_problems_are_one_line() {
    let path = blob(TALES);
    let path = path.to_str().unwrap();
    let text = "Once upon a time there was a king who had three sons. ".repeat(20);
    let (code, stdout, stderr) =
        program_on(&[path, "-", "--window", "64", "--threads", "1"], text.as_bytes());
    assert_eq!((code, stderr.as_str(), stdout.lines().count()), (0, "", 2), "{stdout}");
    assert!(stdout.contains("in windows of 64\nperplexity  "), "{stdout}");
    let (code, stdout, _) = program_on(&[path, "-", "--window", "64", "--against", path], text.as_bytes());
    assert_eq!((code, stdout.lines().count()), (0, 5), "{stdout}");
    assert!(
        stdout.ends_with("mean 0.000000, 99 % at most 0.000000\ntop-1       the same for 100.000 %\n"),
        "{stdout}"
    );
    assert!(program_on(&["--help"], b"").1.contains("smolrun perplexity smol.bin book.txt"));

    for (args, input, code, expected) in [
        (&[path, "-"][..], &b"too short"[..], 1, "-: expected at least 1024 tokens (--window), found 3"),
        (&[path, "-", "--window", "1"], b"", 2, "window: expected 2 to the model's context of 1024, found 1"),
        (
            &[path, "-", "--window", "2000"],
            b"",
            2,
            "window: expected 2 to the model's context of 1024, found 2000",
        ),
        (&[path, "-"], b"\xff", 1, "standard input: stream did not contain valid UTF-8"),
        (&[path, "/no/such.txt"], b"", 1, "/no/such.txt: No such file"),
        (&["/no/such.bin", "-"], b"", 1, "/no/such.bin: No such file"),
        (&[path, "-", "--against", "/no/such.bin"], b"", 1, "/no/such.bin: No such file"),
        (&[path, "-", "--window", "x"], b"", 2, "invalid value 'x'"),
        (&[path], b"", 2, "<TEXT>"),
    ] {
        let (found, stdout, stderr) = program_on(args, input);
        assert_eq!((found, stdout.as_str()), (code, ""), "{args:?}: {stderr}");
        assert!(
            stderr.contains(expected) && (code == 2 || stderr.lines().count() == 1),
            "{args:?}: {stderr}"
        );
    }
}

#[test]
fn a_blob_with_another_tokenizer_is_refused() {
    let temp = TempDir::new();
    let (source, out) = (temp.join("family"), temp.join("family.bin"));
    let (path, text) = (blob(TALES), "Once upon a time there was a king. ".repeat(20));
    fs::create_dir(&source).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(tales().join(name), source.join(name)).unwrap();
    }
    let mut tokenizer: Value =
        serde_json::from_slice(&fs::read(tales().join("tokenizer.json")).unwrap()).unwrap();
    tokenizer["model"]["merges"].as_array_mut().unwrap().truncate(500);
    fs::write(source.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    convert(&Options::new(source, &out), &Progress::new(true)).unwrap();
    let args = [path.to_str().unwrap(), "-", "--window", "64", "--against", out.to_str().unwrap()];
    let (code, stdout, stderr) = program_on(&args, text.as_bytes());
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(stderr.contains("family.bin: its tokenizer makes other tokens of the text"), "{stderr}");
}

#[cfg(unix)]
#[test]
fn somebody_who_watches_sees_how_far_it_is_and_then_only_the_result() {
    let (path, temp) = (blob(TALES), TempDir::new());
    let text = temp.join("text");
    // Enough to be watched, and little enough for a build that counts lines.
    let whole = fs::read_to_string(data("ppl.txt")).unwrap();
    fs::write(&text, whole.split_inclusive('\n').take(150).collect::<String>()).unwrap();
    let args = ["perplexity", path.to_str().unwrap(), text.to_str().unwrap(), "--window", "64"];
    let terminal = Terminal::run(&program("smolrun"), &args, &[]);
    terminal.wait_for("the progress", |screen| screen.contains("of 72: perplexity "));
    let screen = terminal.wait_for("the end", |screen| screen.contains("exit code 0"));
    let lines: Vec<&str> = screen.lines().collect();
    assert_eq!(lines[0], "text        4536 of 4644 tokens scored, in windows of 64");
    assert!(lines[1].starts_with("perplexity  ") && lines[2] == "exit code 0", "{screen}");
}
