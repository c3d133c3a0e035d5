//! Models by name: the registry that is part of the program, and a Hugging Face cache made on the spot.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

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
        error.contains("expected some/model in the Hugging Face cache") && error.contains("fetch_model.sh")
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
