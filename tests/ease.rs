//! `smolrun` straight from a checkpoint, a GGUF file or a hub: fetched, converted once, and mapped from then on.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use serde_json::Value;
use smol_tests::common::gguf::Gguf;
use smol_tests::common::{
    Checkpoint, FakeHub, Fault, Outcome, Running, TempDir, TensorDtype, program, tales,
};
use smolconv::{Mix, Options, Progress, convert};

use crate::smolrun_cli::{PROMPT, blob};

const CONVERTING: &str = "smolrun: converting ";

/// Runs `smolrun` with a cache in `temp`, and no other place where it might find or leave something.
fn command(temp: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(program("smolrun"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    with_cache(&mut command, temp);
    command
}

fn with_cache(command: &mut Command, temp: &TempDir) {
    command.env("SMOLRUN_CACHE", temp.join("cache")).env("HF_HUB_CACHE", temp.join("hf/hub"));
    command.env("HF_ENDPOINT", "http://127.0.0.1:9").env_remove("HF_TOKEN");
}

fn smolrun(temp: &TempDir, args: &[&str]) -> Outcome {
    Running::start(&mut command(temp, args)).wait_with_output().into()
}

fn from_hub(temp: &TempDir, hub: &FakeHub, args: &[&str]) -> Outcome {
    Running::start(command(temp, args).env("HF_ENDPOINT", &hub.address)).wait_with_output().into()
}

/// What the run prints, which goes well and says `said` at the start of each line.
fn text(outcome: Outcome, said: &[&str]) -> String {
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert_eq!((outcome.code, lines.len()), (0, said.len()), "{outcome:?}");
    assert!(lines.iter().zip(said).all(|(line, said)| line.starts_with(said)), "{outcome:?}");
    outcome.stdout
}

/// Files below `directory`, wherever they lie.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.path()) {
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// The blobs in the cache.
fn blobs(temp: &TempDir) -> Vec<PathBuf> {
    let mut found = files(&temp.join("cache"));
    found.retain(|path| path.extension().is_some_and(|end| end == "bin"));
    found
}

/// The run fails in one line that has `expected` in it, and leaves no file.
fn assert_clean_error(temp: &TempDir, outcome: &Outcome, expected: &str) {
    assert_eq!((outcome.code, outcome.stdout.as_str()), (1, ""), "{outcome:?}");
    let mut lines = outcome.stderr.lines();
    lines
        .next_back()
        .filter(|line| line.starts_with("smolrun: error: ") && line.contains(expected))
        .unwrap_or_else(|| panic!("expected {expected:?} in {outcome:?}"));
    let is_notice = |line: &str| line.starts_with("smolrun: fetching ") || line.starts_with(CONVERTING);
    assert!(lines.all(is_notice), "{outcome:?}");
    for place in ["cache", "hf"] {
        let left = files(&temp.join(place));
        assert!(left.is_empty(), "{left:?}");
    }
}

/// A copy of the model in the repository, which a test may change.
fn copy_of_tales(temp: &TempDir) -> PathBuf {
    let model = temp.join("tales");
    fs::create_dir(&model).unwrap();
    for entry in fs::read_dir(tales()).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), model.join(entry.file_name())).unwrap();
    }
    model
}

/// Changes a file, but neither its length nor its time.
fn change_unseen(path: &Path) {
    let modified = fs::metadata(path).unwrap().modified().unwrap();
    let mut bytes = Vec::new();
    File::open(path).unwrap().read_to_end(&mut bytes).unwrap();
    let middle = (bytes.len() / 2) & !1;
    bytes[middle] ^= 1; // the last bit of a weight
    fs::write(path, bytes).unwrap();
    File::options().write(true).open(path).unwrap().set_modified(modified).unwrap();
}

#[test]
fn a_directory_is_converted_once_and_not_read_again() {
    let temp = TempDir::new();
    let model = copy_of_tales(&temp);
    let source = model.to_str().unwrap();
    let args = [source, PROMPT, "--temperature", "0", "-n", "24"];
    let expected = crate::smolrun_cli::text(&[&[blob()], &args[1..]].concat());
    let first = smolrun(&temp, &args);
    assert_eq!(first.stderr, format!("{CONVERTING}{source} to bf16 …\n"));
    assert_eq!(text(first, &[CONVERTING]), expected);
    let made = blobs(&temp);
    let written = |path: &PathBuf| fs::metadata(path).unwrap().modified().unwrap();
    let (entry, when) = (&made[0], written(&made[0]));
    assert_eq!(made.len(), 1);
    assert!(entry.file_name().unwrap().to_str().unwrap().starts_with("tales-bf16-"), "{entry:?}");

    // A start that finds its entry does not read the source: it does not see what the file's time does not show.
    let weights = model.join("model.safetensors");
    change_unseen(&weights);
    assert_eq!(text(smolrun(&temp, &args), &[]), expected);
    assert_eq!((blobs(&temp), written(entry)), (made.clone(), when));
    // Once the time shows it, the source is hashed, and its new content is another blob.
    File::options().write(true).open(&weights).unwrap().set_modified(SystemTime::now()).unwrap();
    text(smolrun(&temp, &args), &[CONVERTING]);
    assert_eq!(blobs(&temp).len(), 2);
    // The same content in another place is hashed, but not converted.
    let moved = temp.join("elsewhere");
    fs::create_dir_all(moved.join("tales")).unwrap();
    for file in files(&model) {
        fs::copy(&file, moved.join("tales").join(file.file_name().unwrap())).unwrap();
    }
    text(smolrun(&temp, &[moved.join("tales").to_str().unwrap(), PROMPT, "-n", "1"]), &[]);
    assert_eq!(blobs(&temp).len(), 2);
    // A file that comes to be there counts, too.
    fs::write(model.join("chat_template.jinja"), "{{ messages[0]['content'] }}").unwrap();
    text(smolrun(&temp, &[source, "--chat", "Hello", "-n", "1", "--temperature", "0"]), &[CONVERTING]);
}

#[test]
fn a_second_start_takes_as_long_as_one_from_the_blob() {
    let temp = TempDir::new();
    let source = tales().into_os_string().into_string().unwrap();
    text(smolrun(&temp, &[&source, PROMPT, "-n", "1"]), &[CONVERTING]);
    let entry = blobs(&temp).remove(0).into_os_string().into_string().unwrap();
    let open = |model: &str| {
        let report = text(smolrun(&temp, &[model, PROMPT, "-n", "1", "--threads", "1", "--json"]), &[]);
        serde_json::from_str::<Value>(&report).unwrap()["timings"]["open_ms"].as_f64().unwrap()
    };
    let mut times: Vec<[f64; 2]> = (0..21).map(|_| [open(&source), open(&entry)]).collect();
    let mut median = |which: usize| {
        times.sort_by(|a, b| a[which].total_cmp(&b[which]));
        times[10][which]
    };
    let (cached, direct) = (median(0), median(1));
    assert!(cached < 2.0 * direct + 0.5, "{cached} ms from the source, {direct} ms from its blob");
}

#[test]
fn a_gguf_file_and_every_dtype_and_command_take_the_same_way() {
    let temp = TempDir::new();
    let (gguf, out) = (temp.join("tiny.gguf"), temp.join("out.bin"));
    fs::write(&gguf, Gguf::of(&Checkpoint::tiny(TensorDtype::F32)).build()).unwrap();
    convert(&Options { weights: Mix::Auto.into(), ..Options::new(&gguf, &out) }, &Progress::new(true))
        .unwrap();
    let (gguf, out) = (gguf.to_str().unwrap(), out.to_str().unwrap());
    let logits =
        |model: &str, said: &[&str]| text(smolrun(&temp, &["logits", model, "--ids", "1,2,3"]), said);
    let expected = logits(out, &[]);
    assert_eq!(logits(gguf, &[CONVERTING]), expected);
    assert_eq!(logits(gguf, &[]), expected);
    text(smolrun(&temp, &[gguf, "a", "-n", "2"]), &[]);

    let source = tales().into_os_string().into_string().unwrap();
    let dtype = |args: &[&str], said: &[&str]| {
        let info = text(smolrun(&temp, &[&["info", &source, "--json"], args].concat()), said);
        serde_json::from_str::<Value>(&info).unwrap()["model"]["dtype"].as_str().unwrap().to_owned()
    };
    for name in ["f32", "bf16", "q8"] {
        assert_eq!(dtype(&["--dtype", name], &[CONVERTING]), name);
        assert_eq!(dtype(&["--dtype", name], &[]), name);
    }
    // The default is one of these, and does not convert again.
    assert_eq!(dtype(&[], &[]), "bf16");
    let safetensors = tales().join("model.safetensors").into_os_string().into_string().unwrap();
    text(smolrun(&temp, &["info", &safetensors]), &[]);
    let mut tokenize = command(&temp, &["tokenize", &source]);
    let mut child = Running::start(tokenize.stdin(Stdio::piped()));
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"\"Once\"\n").unwrap();
    assert!(text(child.wait_with_output().into(), &[]).starts_with('['));

    let error = smolrun(&temp, &[blob(), "x", "--dtype", "q8"]);
    assert!(error.code == 1 && error.stderr.contains("expected a checkpoint for --dtype q8"), "{error:?}");
}

#[test]
fn a_blob_is_known_by_its_first_bytes() {
    let temp = TempDir::new();
    let args = [PROMPT, "-n", "4"];
    let expected = crate::smolrun_cli::text(&[&[blob()], &args[..]].concat());
    for name in ["model.safetensors", "model.gguf", "smollm2-135m-instruct"] {
        let path = temp.join(name);
        fs::copy(blob(), &path).unwrap();
        let mut run = command(&temp, &[&[name], &args[..]].concat());
        let outcome = Running::start(run.current_dir(temp.path())).wait_with_output().into();
        assert_eq!(text(outcome, &[]), expected, "{name}");
        fs::remove_file(path).unwrap();
    }
    // A GGUF file under a blob's name.
    let path = temp.join("tiny.bin");
    fs::write(&path, Gguf::of(&Checkpoint::tiny(TensorDtype::F32)).build()).unwrap();
    text(smolrun(&temp, &[path.to_str().unwrap(), "a", "-n", "1"]), &[CONVERTING]);
}

#[test]
fn any_id_of_a_hub_runs_and_its_blob_tells_where_it_came_from() {
    let temp = TempDir::new();
    let served = temp.join("served");
    let said = "smolrun: fetching ";
    for shards in [1, 2] {
        let checkpoint = Checkpoint::tiny(TensorDtype::Bf16);
        match shards {
            1 => checkpoint.write(&served),
            _ => checkpoint.write_sharded(&served, shards),
        }
        let hub = FakeHub::new(&served, Fault::None);
        let logits = ["logits", "some/model", "--ids", "1,2"];
        let files_of_it = 2 + if shards == 1 { 1 } else { 1 + shards };
        let lines = [&vec![said; files_of_it][..], &[CONVERTING]].concat();
        let first = text(from_hub(&temp, &hub, &logits), &lines);
        // From then on without the hub, and without what was fetched.
        assert_eq!(text(smolrun(&temp, &logits), &[]), first);
        fs::remove_dir_all(temp.join("hf")).unwrap();
        assert_eq!(text(smolrun(&temp, &logits), &[]), first);
        let entry = blobs(&temp).remove(0);
        let inspected = smol_tests::common::run("smolconv", &["inspect", entry.to_str().unwrap(), "--json"]);
        let inspected: Value = serde_json::from_str(&inspected.stdout).unwrap();
        let origin = &inspected["metadata"]["origin"];
        assert_eq!(
            (&origin["repository"], &origin["commit"]),
            (&"some/model".into(), &FakeHub::COMMIT.into())
        );
        assert_eq!(hub.asked.lock().unwrap()[0], "/api/models/some/model/revision/main");
        text(smolrun(&temp, &["cache", "rm", "some/model"]), &[]);
        assert_eq!(files(&temp.join("cache")), [] as [PathBuf; 0]);
        fs::remove_dir_all(&served).unwrap();
    }
}

#[test]
fn a_revision_and_a_gguf_file_of_a_hub_can_be_named() {
    let temp = TempDir::new();
    let served = temp.join("served");
    fs::create_dir(&served).unwrap();
    fs::write(served.join("tiny.Q8_0.gguf"), Gguf::of(&Checkpoint::tiny(TensorDtype::F32)).build()).unwrap();
    let hub = FakeHub::new(&served, Fault::None);
    let error = from_hub(&temp, &hub, &["some/model", "x"]);
    let expected = "found GGUF files (some/model/tiny.Q8_0.gguf names one): tiny.Q8_0.gguf";
    assert_clean_error(&temp, &error, expected);
    let error = from_hub(&temp, &hub, &["some/model/other.gguf", "x"]);
    assert_clean_error(&temp, &error, "expected other.gguf, found GGUF files");
    let lines = ["smolrun: fetching tiny.Q8_0.gguf", CONVERTING];
    let text_of = |id: &str, lines: &[&str]| text(from_hub(&temp, &hub, &[id, "a", "-n", "2"]), lines);
    let expected = text_of("some/model/tiny.Q8_0.gguf", &lines);
    assert_eq!(text_of("some/model:tiny.Q8_0.gguf", &[]), expected);
    // Another revision at the same commit: what was fetched is taken, and the blob of the same content.
    assert_eq!(text_of("some/model@v1/tiny.Q8_0.gguf", &[]), expected);
    let error = from_hub(&temp, &hub, &["some/model@v2/tiny.Q8_0.gguf", "x"]);
    assert!(error.stderr.contains("404 Not Found") && error.stderr.lines().count() == 1, "{error:?}");
    assert_eq!(blobs(&temp).len(), 1);
}

#[test]
fn what_a_hub_does_wrong_is_one_line_and_leaves_nothing() {
    let served = TempDir::new();
    Checkpoint::tiny(TensorDtype::Bf16).write(served.path());
    let weights = "model.safetensors";
    for (fault, expected) in [
        (Fault::Wrong(weights), "some/model: model.safetensors: expected SHA-256 "),
        (Fault::Wrong("config.json"), "some/model: config.json: expected Git's SHA-1 "),
        (Fault::Half(weights), "expected model.safetensors from the Hugging Face hub, found: "),
        (Fault::Gated("secret"), "set HF_TOKEN to a token of yours"),
        (Fault::Path("../../../escaped"), "found: the file \"../../../escaped\""),
        (Fault::Path("/tmp/escaped"), "found: the file \"/tmp/escaped\""),
        (Fault::Commit("../../escaped"), "found: the commit \"../../escaped\""),
    ] {
        let (temp, hub) = (TempDir::new(), FakeHub::new(served.path(), fault));
        assert_clean_error(
            &temp,
            &good_files_gone(&temp, from_hub(&temp, &hub, &["some/model", "x"])),
            expected,
        );
    }
    let (temp, hub) = (TempDir::new(), FakeHub::new(served.path(), Fault::Gated("secret")));
    let outcome = Running::start(
        command(&temp, &["logits", "some/model", "--ids", "1"])
            .env("HF_ENDPOINT", &hub.address)
            .env("HF_TOKEN", "secret"),
    );
    assert_eq!(outcome.wait_with_output().status.code(), Some(0));
    let unreached = ": could not reach the Hugging Face hub: http://127.0.0.1:9/";
    for (name, expected) in [
        ("no-such-model", "no-such-model: "),
        ("some/model", &format!("some/model{unreached}")),
        ("smollm2-360m", unreached),
        ("smollm2-135m-instruct", unreached),
    ] {
        let temp = TempDir::new();
        assert_clean_error(&temp, &smolrun(&temp, &[name, "x"]), expected);
    }
}

/// Takes away the files that came whole and right before the one that did not: they are no litter, but the next run's.
fn good_files_gone(temp: &TempDir, outcome: Outcome) -> Outcome {
    for path in files(&temp.join("hf")) {
        let name = path.file_name().unwrap().to_str().unwrap();
        let is_small = path.is_symlink() || [40, 64].contains(&name.len());
        assert!(!name.contains("part"), "{path:?}");
        if is_small {
            fs::remove_file(path).unwrap();
        }
    }
    outcome
}

#[cfg(unix)]
#[test]
fn a_full_disk_is_one_line_and_leaves_nothing() {
    let served = TempDir::new();
    Checkpoint::tiny(TensorDtype::F32).write(served.path());
    let hub = FakeHub::new(served.path(), Fault::None);
    let script = "ulimit -f 20; exec \"$0\" \"$@\"";
    for model in ["some/model", served.path().to_str().unwrap()] {
        let temp = TempDir::new();
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).arg(program("smolrun")).args([model, "x"]);
        with_cache(shell.env("HF_ENDPOINT", &hub.address), &temp);
        shell
            .env("HF_ENDPOINT", &hub.address)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let outcome = good_files_gone(&temp, Running::start(&mut shell).wait_with_output().into());
        assert_clean_error(&temp, &outcome, "File too large");
    }
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_a_conversion_and_leaves_nothing() {
    for named in [false, true] {
        let temp = TempDir::new();
        let source = tales().into_os_string().into_string().unwrap();
        // Whoever started the tests may ignore interrupts, as `nohup` and a shell's background jobs do.
        let mut run = Command::new("env");
        run.arg("--default-signal=INT").arg(program("smolrun")).args([&source, PROMPT, "--dtype", "q4"]);
        run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        with_cache(&mut run, &temp);
        if named {
            run.env("SMOLCONV_NAMED_TEMP", "1");
        }
        let mut child = Running::start(&mut run);
        let mut said = [0; CONVERTING.len()];
        child.stderr.as_mut().unwrap().read_exact(&mut said).unwrap();
        assert_eq!(said, CONVERTING.as_bytes());
        std::thread::sleep(Duration::from_millis(300));
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
        assert_eq!(child.wait_with_output().status.code(), Some(130));
        assert_eq!(files(&temp.join("cache")), [] as [PathBuf; 0]);
    }
}

#[test]
fn several_at_once_make_one_good_entry() {
    let temp = TempDir::new();
    let source = tales().into_os_string().into_string().unwrap();
    let args = [source.as_str(), PROMPT, "-n", "8"];
    let expected = crate::smolrun_cli::text(&[&[blob()], &args[1..]].concat());
    let runs: Vec<Running> = (0..4).map(|_| Running::start(&mut command(&temp, &args))).collect();
    for run in runs {
        let outcome: Outcome = run.wait_with_output().into();
        assert_eq!((outcome.code, outcome.stdout.as_str()), (0, expected.as_str()), "{outcome:?}");
    }
    assert_eq!((blobs(&temp).len(), files(&temp.join("cache")).len()), (1, 2));
    // An entry that is damaged is made again.
    let entry = blobs(&temp).remove(0);
    fs::write(&entry, b"cut off").unwrap();
    assert_eq!(text(smolrun(&temp, &args), &[CONVERTING]), expected);
}

#[test]
fn the_cache_is_listed_and_emptied() {
    let temp = TempDir::new();
    let list = || -> Value {
        serde_json::from_str(&text(smolrun(&temp, &["cache", "list", "--json"]), &[])).unwrap()
    };
    assert_eq!((list()["models"].as_array().unwrap().len(), &list()["total_bytes"]), (0, &0.into()));
    assert!(text(smolrun(&temp, &["cache", "list"]), &[]).starts_with("0 models, 0.0 MB in "));
    let source = tales().canonicalize().unwrap().into_os_string().into_string().unwrap();
    for dtype in ["f32", "q8"] {
        text(smolrun(&temp, &["info", &source, "--dtype", dtype]), &[CONVERTING]);
    }
    let listed = list();
    let models = listed["models"].as_array().unwrap();
    assert_eq!((models.len(), &models[0]["dtype"], &models[1]["dtype"]), (2, &"q8".into(), &"f32".into()));
    assert_eq!(models[0]["sources"], serde_json::json!([source]));
    let bytes: u64 = models.iter().map(|model| model["bytes"].as_u64().unwrap()).sum();
    assert_eq!(listed["total_bytes"], bytes);
    // What is used becomes the last one used.
    std::thread::sleep(Duration::from_millis(20));
    text(smolrun(&temp, &["info", &source, "--dtype", "f32"]), &[]);
    assert_eq!(list()["models"][0]["dtype"], "f32");
    let shown = text(smolrun(&temp, &["cache", "list"]), &[]);
    assert!(
        shown.contains("tales-4m-q8-") && shown.contains("today") && shown.contains("2 models, "),
        "{shown}"
    );

    let name = list()["models"][1]["name"].as_str().unwrap().to_owned();
    let error = smolrun(&temp, &["cache", "rm", &name, "nonsense"]);
    assert!(error.code == 1 && error.stderr.contains("nonsense: expected a name"), "{error:?}");
    assert_eq!(blobs(&temp).len(), 2);
    assert!(text(smolrun(&temp, &["cache", "rm", &name]), &[]).starts_with("removed tales-4m-q8-"));
    assert_eq!(blobs(&temp).len(), 1);
    text(smolrun(&temp, &["cache", "prune"]), &[]);
    assert_eq!(blobs(&temp).len(), 1);
    // As if it had not been used for long.
    let long_ago = SystemTime::now() - Duration::from_secs(31 * 24 * 60 * 60);
    for file in files(&temp.join("cache")) {
        File::options().write(true).open(file).unwrap().set_modified(long_ago).unwrap();
    }
    text(smolrun(&temp, &["cache", "prune", "--keep-days", "40"]), &[]);
    assert_eq!(blobs(&temp).len(), 1);
    assert!(text(smolrun(&temp, &["cache", "prune"]), &[]).starts_with("removed tales-4m-f32-"));
    assert_eq!(files(&temp.join("cache")), [] as [PathBuf; 0]);
    let help = text(smolrun(&temp, &["cache", "--help"]), &[]);
    assert!(help.contains("Examples:") && help.contains("smolrun cache prune --keep-days 7"), "{help}");
}

#[test]
fn words_without_quotes_are_one_prompt() {
    let temp = TempDir::new();
    let words = |words: &[&str]| text(smolrun(&temp, &[&[blob()], words, &["-n", "8"]].concat()), &[]);
    assert_eq!(words(&["Once", "upon", "a", "time"]), words(&["Once upon a time"]));
    let with_template = smol_tests::common::tales_with_template(&temp, crate::smolrun_cli::SMOLLM2_TEMPLATE);
    let model = with_template.to_str().unwrap();
    let more = ["--chat", "-n", "8", "--temperature", "0"];
    let quoted = text(smolrun(&temp, &[&[model, "Tell me more"], &more[..]].concat()), &[]);
    assert_eq!(text(smolrun(&temp, &[&[model, "Tell", "me"], &more[..], &["more"]].concat()), &[]), quoted);
}
