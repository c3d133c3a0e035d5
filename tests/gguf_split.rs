//! GGUF files in parts: the same blob whichever part is given, and one line for a part that is missing, repeated or of
//! another model.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use smol_tests::common::gguf::{Gguf, Value};
use smol_tests::common::{
    Blob, Checkpoint, FakeHub, Fault, Outcome, Part, Running, TempDir, TensorDtype, program,
};
use smolconv::{Inputs, Options, Progress, convert};
use smolrun::format::Kind;

/// Tensors of [`whole`] in each of three parts; the first may have none.
const TENSORS: [usize; 3] = [0, 5, 15];

fn whole() -> Gguf {
    Gguf::of(&Checkpoint::tiny(TensorDtype::F32))
}

fn name(number: usize) -> String {
    format!("tiny-{number:05}-of-{:05}.gguf", TENSORS.len())
}

/// Writes the parts, and says where they lie.
fn write(temp: &TempDir, parts: &[Gguf]) -> Vec<PathBuf> {
    let paths = (1..).map(|number| temp.join(&name(number)));
    let paths: Vec<PathBuf> = paths.take(parts.len()).collect();
    paths.iter().zip(parts).for_each(|(path, part)| fs::write(path, part.build()).unwrap());
    paths
}

/// All sections but the metadata of the blob that `source` gives.
fn converted(temp: &TempDir, source: &PathBuf) -> Result<Vec<Part>, String> {
    let out = temp.join("out.bin");
    let options = Options { force: true, ..Options::new(source, &out) };
    convert(&options, &Progress::new(true)).map_err(|error| error.to_string())?;
    let parts = Blob::take_apart(&fs::read(out).unwrap()).parts;
    Ok(parts.into_iter().filter(|part| part.kind != Kind::Metadata.code()).collect())
}

#[test]
fn any_part_stands_for_all() {
    let temp = TempDir::new();
    let one = temp.join("one.gguf");
    fs::write(&one, whole().build()).unwrap();
    let expected = converted(&temp, &one).unwrap();
    let paths = write(&temp, &whole().split(&TENSORS));
    let inputs = || paths.iter().map(|path| Inputs::of(&Options::new(path, temp.join("out.bin"))).unwrap());
    let hashes = || inputs().map(|inputs| inputs.sha256(&Progress::new(true)).unwrap()).collect::<Vec<_>>();
    for (path, inputs) in paths.iter().zip(inputs()) {
        assert!(converted(&temp, path).unwrap() == expected, "{}", path.display());
        assert_eq!(inputs.files, paths);
        assert!(inputs.absent.is_empty());
    }
    // Whichever part is given, all of them count.
    let before = hashes();
    assert!(before.windows(2).all(|pair| pair[0] == pair[1]));
    let mut last = fs::read(&paths[2]).unwrap();
    *last.last_mut().unwrap() ^= 1;
    fs::write(&paths[2], last).unwrap();
    assert!(hashes().iter().all(|hash| *hash != before[0]));
}

/// What is changed of good parts, and what has to be said.
#[test]
fn parts_that_do_not_fit_are_refused() {
    type Change = fn(&mut Vec<Gguf>);
    let last = |parts: &mut Vec<Gguf>| parts.pop().map(drop).unwrap();
    #[rustfmt::skip] // one line per case
    let cases: [(Change, &str); 12] = [
        (last, "tiny-00003-of-00003.gguf: expected part 3 of 3, found no such file"),
        (|parts| parts[2] = parts[1].clone(), "tiny-00003-of-00003.gguf: split.no: expected 2, as the file's name says, found 1"),
        (|parts| parts.swap(0, 1), "expected a file called *-00002-of-00003.gguf by its split.no and split.count, found this"),
        (|parts| parts[1].remove("split.no"), "tiny-00002-of-00003.gguf: split.no: expected a value, found nothing"),
        (|parts| parts[1].set("split.no", Value::Text("1".into())), "split.no: expected an integer from 0 on, found a string"),
        (|parts| parts[1].set("split.tensors.count", Value::Raw(5, vec![9, 0, 0, 0])), "tiny-00002-of-00003.gguf: split.tensors.count: expected what the first part has, found another value"),
        (|parts| parts[2].set("split.count", Value::U32(4)), "tiny-00003-of-00003.gguf: split.count: expected what the first part has, found another value"),
        (|parts| parts[2].set("general.name", Value::Text("other".into())), "tiny-00003-of-00003.gguf: general.name: expected what the first part has, found another value"),
        (|parts| drop(parts[2].tensors.pop()), "tiny-00001-of-00003.gguf: split.tensors.count: expected 19, those of all parts, found 20"),
        (|parts| parts[1].tensors[0].kind = 17, "tiny-00002-of-00003.gguf: tensor "),
        (|parts| { let again = parts[1].tensors[0].clone(); parts[2].tensors[0] = again; }, "expected it once, found it in "),
        (|parts| parts.iter_mut().for_each(|part| part.remove("split.tensors.count")), "tiny-00001-of-00003.gguf: split.tensors.count: expected a value, found nothing"),
    ];
    for (change, expected) in cases {
        let temp = TempDir::new();
        let mut parts = whole().split(&TENSORS);
        change(&mut parts);
        let paths = write(&temp, &parts);
        let error = converted(&temp, &paths[0]).expect_err(expected);
        assert!(error.contains(expected), "expected {expected:?} in {error:?}");
        assert!(!error.contains('\n') && error.len() < 400, "{error:?}");
    }
    let temp = TempDir::new();
    let paths = write(&temp, &whole().split(&TENSORS));
    let renamed = temp.join("tiny.gguf");
    fs::rename(&paths[1], &renamed).unwrap();
    let error = converted(&temp, &renamed).unwrap_err();
    assert!(error.contains("tiny.gguf: expected a file called *-00002-of-00003.gguf"), "{error}");
    let error = converted(&temp, &paths[2]).unwrap_err();
    assert!(error.contains("tiny-00002-of-00003.gguf: expected part 2 of 3, found no such file"), "{error}");
}

#[test]
fn a_part_of_another_model_is_refused() {
    let temp = TempDir::new();
    let mut parts = whole().split(&TENSORS);
    parts[2] = Gguf::of(&Checkpoint::untied(TensorDtype::F32)).split(&[0, 5, 16]).remove(2);
    let paths = write(&temp, &parts);
    let error = converted(&temp, &paths[0]).unwrap_err();
    assert!(error.contains("tiny-00003-of-00003.gguf: split.tensors.count: expected what"), "{error}");
}

/// Runs `smolrun` with a cache in `temp`.
fn smolrun(temp: &TempDir, hub: &str, args: &[&str]) -> Outcome {
    let mut command = std::process::Command::new(program("smolrun"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("SMOLRUN_CACHE", temp.join("cache")).env("HF_HUB_CACHE", temp.join("hf/hub"));
    command.env("HF_ENDPOINT", hub).env_remove("HF_TOKEN");
    Running::start(&mut command).wait_with_output().into()
}

#[test]
fn smolrun_takes_a_part_and_sees_when_another_changes() {
    let temp = TempDir::new();
    let paths = write(&temp, &whole().split(&TENSORS));
    let logits = |path: &PathBuf, converts: bool| {
        let outcome =
            smolrun(&temp, "http://127.0.0.1:9", &["logits", path.to_str().unwrap(), "--ids", "1,2"]);
        assert_eq!((outcome.code, outcome.stderr.is_empty()), (0, !converts), "{outcome:?}");
        outcome.stdout
    };
    let first = logits(&paths[0], true);
    assert_eq!(logits(&paths[0], false), first);
    assert_eq!(logits(&paths[2], false), first, "the same content");
    let mut last = fs::read(&paths[2]).unwrap();
    let len = last.len();
    last[len - 4..].copy_from_slice(&0.5f32.to_le_bytes());
    fs::write(&paths[2], last).unwrap();
    assert_ne!(logits(&paths[0], true), first);
    assert!(
        fs::read_dir(temp.join("cache"))
            .unwrap()
            .any(|entry| { entry.unwrap().file_name().to_string_lossy().starts_with("tiny-f32-") })
    );
}

#[test]
fn all_parts_are_fetched_from_a_hub() {
    let (temp, served) = (TempDir::new(), TempDir::new());
    write(&served, &whole().split(&TENSORS));
    let hub = FakeHub::new(served.path(), Fault::None);
    let id = format!("some/model/{}", name(2));
    let args = ["logits", id.as_str(), "--ids", "1,2"];
    let outcome = smolrun(&temp, &hub.address, &args);
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert_eq!((outcome.code, lines.len()), (0, 4), "{outcome:?}");
    for (line, number) in lines.iter().zip(1..4) {
        assert!(line.starts_with(&format!("smolrun: fetching {}", name(number))), "{line}");
    }
    let again = smolrun(&temp, "http://127.0.0.1:9", &args);
    assert_eq!((again.code, again.stderr.as_str(), again.stdout), (0, "", outcome.stdout));
}
