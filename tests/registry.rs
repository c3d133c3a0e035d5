//! Models by name: the registry that is part of the program, and a Hugging Face cache made on the spot.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;

use sha2::{Digest, Sha256};
use smol_tests::common::{Checkpoint, TempDir, TensorDtype};
use smolconv::registry::{self, Model, RegisteredFile};
use smolconv::{Options, Progress, convert};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

#[test]
fn every_registered_model_can_be_found_and_checked() {
    let models = registry::models().unwrap();
    let names: HashSet<&str> = models.iter().map(|model| model.name.as_str()).collect();
    assert_eq!(names.len(), models.len(), "names are different");
    for model in &models {
        assert!(registry::named(Path::new(&model.name)).unwrap().is_some());
        assert!(["chat", "base"].contains(&model.kind.as_str()) && model.context >= 2048, "{}", model.name);
        for name in ["config.json", "tokenizer.json", "model.safetensors"] {
            let file =
                model.files.iter().find(|file| file.path == name && file.source != "stand-in").unwrap();
            assert_eq!(file.sha256.as_ref().unwrap().len(), 64, "{} of {}", name, model.name);
        }
    }
    let text = registry::to_text(&models);
    assert_eq!(text.lines().count(), models.len() + 1);
    assert!(text.contains("HuggingFaceTB/SmolLM2-135M-Instruct"));
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

/// A hub on this machine that serves the files below `files` and answers everything else with 404; its address.
fn hub(files: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            serve(stream.unwrap(), &files);
        }
    });
    format!("http://{address}")
}

/// Answers one request, all of it or the first byte, as the real hub does.
fn serve(stream: TcpStream, files: &Path) {
    let mut lines = BufReader::new(&stream).lines().map(Result::unwrap);
    let request = lines.next().unwrap();
    let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let path = request.split(' ').nth(1).unwrap();
    let file = path.strip_prefix("/some/model/resolve/main/").map(|name| files.join(name));
    let mut stream = &stream;
    let Some(bytes) = file.and_then(|file| fs::read(file).ok()) else {
        write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
        return;
    };
    let is_probe = headers.iter().any(|line| line.eq_ignore_ascii_case("range: bytes=0-0"));
    let body = if is_probe { &bytes[..1] } else { &bytes[..] };
    let etag = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let (last, len) = (body.len() - 1, bytes.len());
    write!(
        stream,
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes 0-{last}/{len}\r\n\
         ETag: \"{etag}\"\r\nx-repo-commit: {COMMIT}\r\nConnection: close\r\n\r\n",
        body.len()
    )
    .unwrap();
    stream.write_all(body).unwrap();
}

/// Only one test may change the environment: the name of the hub is in it.
#[test]
fn a_model_that_is_not_in_the_cache_is_fetched_once() {
    let temp = TempDir::new();
    let (served, model) = cached(&temp);
    let served = served.join("models--some--model/snapshots").join(COMMIT);
    let cache = temp.join("another/hub");
    let endpoint = hub(served.clone());
    // SAFETY: the other tests of this program, which may run at the same time, neither read nor write the environment.
    unsafe { std::env::set_var("HF_ENDPOINT", endpoint) };
    let found = model.locate(&cache).unwrap();
    assert_eq!(found, cache.join("models--some--model/snapshots").join(COMMIT));
    convert(&Options::new(&found, temp.join("out.bin")), &Progress::new(true)).unwrap();

    // What is there is not asked for again: the hub may be gone.
    let gone = served.join("config.json");
    let config = fs::read(&gone).unwrap();
    fs::remove_file(&gone).unwrap();
    assert_eq!(model.locate(&cache).unwrap(), found);
    let error = model.locate(&temp.join("empty/hub")).unwrap_err().to_string();
    assert!(
        error.contains("some/model: expected config.json from the Hugging Face hub") && error.contains("404")
    );

    // What the hub sends is compared with the registry.
    fs::write(&gone, [&config[..], b" "].concat()).unwrap();
    let error = model.locate(&temp.join("wrong/hub")).unwrap_err().to_string();
    assert!(error.contains("config.json: expected"), "{error}");
}
