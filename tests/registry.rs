//! Models by name: the registry that is part of the program, and a Hugging Face cache made on the spot.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use smol_tests::common::{Checkpoint, Running, TempDir, TensorDtype, program};
use smolconv::registry::{self, Model, RegisteredFile};
use smolconv::{Options, Progress, convert};

/// Longest wait for the other side of a connection within this machine.
const PATIENCE: Duration = Duration::from_secs(60);
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

#[test]
fn every_registered_model_can_be_found_and_checked() {
    let models = registry::models().unwrap();
    let names: HashSet<&str> = models.iter().map(|model| model.name.as_str()).collect();
    assert_eq!(names.len(), models.len(), "names are different");
    for model in &models {
        assert!(registry::named(Path::new(&model.name)).unwrap().is_some());
        assert!(["chat", "base"].contains(&model.kind.as_str()) && model.context >= 2048, "{}", model.name);
        // Either every hash is known, or none: then the hub's are taken.
        if model.files.iter().all(|file| file.sha256.is_none()) {
            assert!(model.files.iter().all(|file| file.size.is_none() && file.source == "hub"));
            continue;
        }
        for name in ["config.json", "tokenizer.json", "model.safetensors"] {
            let file =
                model.files.iter().find(|file| file.path == name && file.source != "stand-in").unwrap();
            assert_eq!(file.sha256.as_ref().unwrap().len(), 64, "{} of {}", name, model.name);
        }
    }
    let text = registry::to_text(&models);
    assert_eq!(text.lines().count(), models.len() + 1);
    assert!(text.contains("HuggingFaceTB/SmolLM2-135M-Instruct"));
    assert!(text.lines().next().unwrap().ends_with("LICENSE"));
    let json: serde_json::Value = serde_json::from_str(&registry::to_json(&models)).unwrap();
    assert_eq!(json.as_array().unwrap().len(), models.len());
    assert!(registry::named(Path::new("no-such-model")).unwrap().is_none());
}

/// A cache as huggingface_hub lays it out, with a small model in it, and the model's entry.
fn cached(temp: &TempDir) -> (PathBuf, Model) {
    let folder = temp.join("hub/models--some--model");
    let snapshot = folder.join("snapshots").join(COMMIT);
    Checkpoint::tiny(TensorDtype::Bf16).write(&snapshot);
    fs::create_dir_all(folder.join("refs")).unwrap();
    fs::write(folder.join("refs/main"), COMMIT).unwrap();
    let file = |name: &str| {
        let bytes = fs::read(snapshot.join(name)).unwrap();
        let sha256 = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let (path, source) = (name.to_owned(), "hub".to_owned());
        RegisteredFile { path, source, size: Some(bytes.len() as u64), sha256: Some(sha256) }
    };
    let mut model = registry::models().unwrap().remove(0);
    model.hub_id = "some/model".into();
    model.files = ["config.json", "tokenizer.json", "model.safetensors"].map(file).into();
    (temp.join("hub"), model)
}

#[test]
fn a_model_in_the_cache_converts() {
    let temp = TempDir::new();
    let (cache, model) = cached(&temp);
    let source = model.find_in_cache(&cache).unwrap();
    convert(&Options::new(source, temp.join("out.bin")), &Progress::new(true)).unwrap();
}

#[test]
fn what_is_not_the_registered_model_is_refused() {
    let temp = TempDir::new();
    let (cache, model) = cached(&temp);
    let wrong = |model: &Model| model.find_in_cache(&cache).unwrap_err().to_string();
    let mut other = model.clone();
    other.revision = "v2".into();
    let error = wrong(&other);
    assert!(
        error.contains("expected revision v2 of some/model in") && error.contains("fetch_model.sh"),
        "{error}"
    );
    other = model.clone();
    other.files[0].size = Some(7);
    assert!(wrong(&other).contains("config.json: expected 7 bytes, found"));
    other = model.clone();
    other.files[2].sha256 = Some("00".repeat(32));
    assert!(wrong(&other).contains("model.safetensors: expected SHA-256 0000"));
    other = model.clone();
    other.files[1].path = "missing.json".into();
    assert!(wrong(&other).contains("missing.json"));
    fs::write(cache.join("models--some--model/refs/main"), "../../elsewhere").unwrap();
    assert!(wrong(&model).contains("expected a commit, found \"../../elsewhere\""));
}

/// How a hub answers.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    /// At once.
    Prompt,
    /// Never: it only accepts.
    Silent,
    /// With so many bytes of a file, after which it says no more.
    Stalls(usize),
    /// With a few bytes at a time, and a pause before each.
    Trickles,
    /// With another name for the content.
    Named(&'static str),
}

/// A hub on this machine.
struct Hub {
    address: String,
    /// The ranges that it was asked for.
    ranges: Arc<Mutex<Vec<String>>>,
}

impl Hub {
    /// Serves the files below `files`, whatever the model, and answers everything else with 404.
    fn new(files: &Path, manner: Manner) -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (files, ranges) = (files.to_owned(), Arc::new(Mutex::new(Vec::new())));
        let asked = ranges.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (files, asked) = (files.clone(), asked.clone());
                // Whoever asked may be gone before the answer is.
                thread::spawn(move || serve(&stream.unwrap(), &files, manner, &asked).ok());
            }
        });
        Hub { address, ranges }
    }
}

/// Answers one request from the byte on that it asks for, the first one alone if that is all, as the real hub does.
fn serve(mut stream: &TcpStream, files: &Path, manner: Manner, asked: &Mutex<Vec<String>>) -> io::Result<()> {
    if manner == Manner::Silent {
        thread::sleep(Duration::from_secs(3600));
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let request = lines.next().unwrap();
    let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let file = request.split(' ').nth(1).unwrap().split_once("/resolve/main/");
    let Some(bytes) = file.and_then(|(_, name)| fs::read(files.join(name)).ok()) else {
        return write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    };
    let range = headers
        .iter()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("range: bytes=").map(str::to_owned));
    let (first, last) = range.as_deref().unwrap().split_once('-').unwrap();
    asked.lock().unwrap().push(range.clone().unwrap());
    let (first, is_probe): (usize, bool) = (first.parse().unwrap(), last == "0");
    let body = if is_probe { &bytes[..1] } else { &bytes[first..] };
    let etag = match manner {
        Manner::Named(etag) => etag.to_owned(),
        _ => Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
    };
    let (last, len) = (first + body.len() - 1, bytes.len());
    write!(
        stream,
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {first}-{last}/{len}\r\n\
         ETag: \"{etag}\"\r\nx-repo-commit: {COMMIT}\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    match manner {
        Manner::Stalls(bytes) if !is_probe && bytes < body.len() => {
            stream.write_all(&body[..bytes])?;
            thread::sleep(Duration::from_secs(3600));
            Ok(())
        }
        Manner::Trickles => body.chunks(body.len().div_ceil(8)).try_for_each(|piece| {
            thread::sleep(Duration::from_millis(100));
            stream.write_all(piece)
        }),
        _ => stream.write_all(body),
    }
}

/// Runs `smolconv smollm2-135m-instruct` with an empty cache. Returns what it says, too.
fn fetch_from(hub: &Hub, temp: &TempDir, more: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(program("smolconv"));
    command.arg("smollm2-135m-instruct").arg("-o").arg(temp.join("out.bin")).args(more);
    command.env("HF_ENDPOINT", &hub.address).env("HF_HUB_CACHE", temp.join("cache/hub"));
    command.env("HF_HUB_DOWNLOAD_TIMEOUT", "0.5").stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = Running::start(&mut command).wait_with_output();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_hub_that_is_silent_is_an_error_soon() {
    let temp = TempDir::new();
    fs::write(temp.join("config.json"), "{}").unwrap();
    let expected = "expected config.json from the Hugging Face hub, found: no answer from ";
    for (manner, expected) in [
        (Manner::Silent, "could not reach the Hugging Face hub: no answer from "),
        (Manner::Stalls(0), expected),
    ] {
        let (hub, start) = (Hub::new(temp.path(), manner), Instant::now());
        let (code, said) = fetch_from(&hub, &temp, &[]);
        assert_eq!(code, Some(1), "{said}");
        assert!(start.elapsed() < Duration::from_secs(60));
        let lines: Vec<&str> = said.lines().collect();
        let what = "smolconv: fetching config.json, 0.0 MB, of HuggingFaceTB/SmolLM2-135M-Instruct from ";
        assert_eq!(lines[0], format!("{what}{}", hub.address));
        assert!(lines[1].contains(&format!("{expected}{} for 0.5 s", hub.address)), "{said}");
        assert!(lines[1].contains("HF_HUB_DOWNLOAD_TIMEOUT") && lines.len() == 2, "{said}");
    }
    let (_, said) = fetch_from(&Hub::new(temp.path(), Manner::Silent), &temp, &["--quiet"]);
    assert!(said.starts_with("smolconv: error: ") && said.lines().count() == 1, "{said}");
}

#[test]
fn nothing_is_fetched_for_an_output_that_may_not_be() {
    let temp = TempDir::new();
    fs::write(temp.join("out.bin"), "precious").unwrap();
    let hub = Hub::new(temp.path(), Manner::Prompt);
    let (code, said) = fetch_from(&hub, &temp, &[]);
    assert_eq!((code, hub.ranges.lock().unwrap().len()), (Some(1), 0));
    assert!(
        said.contains("out.bin: exists already; --force replaces it") && said.lines().count() == 1,
        "{said}"
    );
    let (code, said) = fetch_from(&hub, &temp, &["--force", "--calibrate", "built-in"]);
    assert_eq!((code, said.lines().count()), (Some(2), 1), "{said}");
    assert_eq!(temp.names(), ["out.bin"]);
}

/// Only one test may change the environment: the name of the hub is in it, and how long it may be silent.
#[test]
fn a_model_that_is_not_in_the_cache_is_fetched_once() {
    let temp = TempDir::new();
    let (served, model) = cached(&temp);
    let served = served.join("models--some--model/snapshots").join(COMMIT);
    let set = |name: &str, value: &str| {
        // SAFETY: the other tests of this program, which may run at the same time, neither read nor write the environment;
        // the programs that they start are given theirs by the standard library, which locks it.
        unsafe { std::env::set_var(name, value) };
    };
    let notices = RefCell::new(Vec::new());
    let locate = |cache: &str, hub: &Hub| {
        set("HF_ENDPOINT", &hub.address);
        let notice = |line: &str| notices.borrow_mut().push(line.to_owned());
        model.locate(&temp.join(cache), &Progress::new(true), &notice)
    };
    set("HF_HUB_DOWNLOAD_TIMEOUT", "0.5");
    let (hub, cache) = (Hub::new(&served, Manner::Prompt), temp.join("another/hub"));
    let found = locate("another/hub", &hub).unwrap();
    assert_eq!(found, cache.join("models--some--model/snapshots").join(COMMIT));
    convert(&Options::new(&found, temp.join("out.bin")), &Progress::new(true)).unwrap();
    let fetched = notices.take();
    assert_eq!(fetched.len(), 3);
    assert!(fetched[2].starts_with("fetching model.safetensors, 0.0 MB, of some/model from http://127"));
    #[cfg(unix)]
    {
        let blob = fs::read_link(found.join("config.json")).unwrap();
        assert!(blob.starts_with("../../blobs") && found.join(blob).is_file());
    }

    // A hub may be slow, and one that breaks off is asked for the rest: a third of the model each time.
    let len = fs::metadata(served.join("model.safetensors")).unwrap().len() as usize;
    let stalls = Hub::new(&served, Manner::Stalls(len.div_ceil(3)));
    for (cache, hub) in [("slow/hub", &Hub::new(&served, Manner::Trickles)), ("stalls/hub", &stalls)] {
        let found = locate(cache, hub).unwrap();
        assert!(
            fs::read(found.join("model.safetensors")).unwrap()
                == fs::read(served.join("model.safetensors")).unwrap()
        );
    }
    let asked = stalls.ranges.lock().unwrap().clone();
    assert_eq!(asked[asked.len() - 2..], [1, 2].map(|part| format!("{}-", part * len.div_ceil(3))));
    // What another run began is gone on with.
    let blobs = temp.join("begun/hub/models--some--model/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let config = fs::read(served.join("config.json")).unwrap();
    let name = model.files[0].sha256.as_ref().unwrap();
    fs::write(blobs.join(format!("{name}.part")), &config[..10]).unwrap();
    let hub = Hub::new(&served, Manner::Prompt);
    locate("begun/hub", &hub).unwrap();
    assert_eq!(hub.ranges.lock().unwrap()[1], "10-");

    // A hub may not choose where files go.
    for name in ["../../../../escaped", "/etc/escaped", "a/b", "..", ""] {
        let error = locate("hostile/hub", &Hub::new(&served, Manner::Named(name))).unwrap_err().to_string();
        assert!(error.contains("found: the etag"), "{error}");
    }
    assert!(!temp.join("hostile").exists());

    // What is there is not asked for again: the hub may be gone.
    let hub = Hub::new(&served, Manner::Prompt);
    let gone = served.join("config.json");
    fs::remove_file(&gone).unwrap();
    notices.take();
    assert_eq!(locate("another/hub", &hub).unwrap(), found);
    assert!(notices.take().is_empty());
    let error = locate("empty/hub", &hub).unwrap_err().to_string();
    assert!(
        error.contains("some/model: expected config.json from the Hugging Face hub") && error.contains("404")
    );

    // What the hub sends is compared with the registry.
    fs::write(&gone, [&config[..], b" "].concat()).unwrap();
    let error = locate("wrong/hub", &hub).unwrap_err().to_string();
    assert!(error.contains("config.json: expected"), "{error}");
    set("HF_HUB_DOWNLOAD_TIMEOUT", "soon");
    let error = locate("empty/hub", &hub).unwrap_err().to_string();
    assert_eq!(error, "HF_HUB_DOWNLOAD_TIMEOUT: expected seconds above 0, found \"soon\"");
}
