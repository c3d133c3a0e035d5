//! Models in the repository or fetched beside it, converted as a user would.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::{env, process};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use smolconv::{Calibration, Keep, Mix, Options, Progress, Weights, convert};
use smolrun::format::Dtype;

use super::TempDir;

/// Name of the small model in the repository.
pub const TALES: &str = "tales-4m";
/// Name of the real model, which is too large for the repository.
pub const REAL: &str = "smollm2-135m-instruct";

/// The root of the repository.
pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The directory of the model `name`: the one in the repository, or the real one, which `SMOL_REAL_MODEL` may name.
///
/// # Panics
/// If it is not there.
pub fn model_dir(name: &str) -> PathBuf {
    let elsewhere = (name == REAL).then(|| env::var_os("SMOL_REAL_MODEL")).flatten();
    let path = elsewhere.map_or_else(|| repository().join("models").join(name), PathBuf::from);
    assert!(path.is_dir(), "{}: not there: run scripts/fetch_model.sh {name}", path.display());
    path
}

/// The directory of the model in the repository.
pub fn tales() -> PathBuf {
    model_dir(TALES)
}

/// The model in the repository with a chat template, as a blob in `temp`.
pub fn tales_with_template(temp: &TempDir, template: &str) -> PathBuf {
    changed(TALES, Dtype::F32, temp, |source| {
        fs::write(source.join("chat_template.jinja"), template).expect("the directory can be written");
    })
}

/// The model in the repository with prompts that begin with a control token, as those of Llama 2 and Mistral do, and without
/// a chat template; as a blob in `temp`. The token is the second return value.
pub fn tales_with_prefix(temp: &TempDir) -> (PathBuf, u32) {
    const TOKEN: &str = "<|im_start|>";
    const ID: u32 = 1;
    let out = changed(TALES, Dtype::F32, temp, |source| {
        let path = source.join("tokenizer.json");
        let json = fs::read(&path).expect("the tokenizer is there");
        let mut tokenizer: Value = serde_json::from_slice(&json).expect("the tokenizer is JSON");
        let (token, text) = (json!({ "id": TOKEN, "type_id": 0 }), json!({ "id": "A", "type_id": 0 }));
        tokenizer["post_processor"] = json!({
            "type": "TemplateProcessing",
            "single": [{ "SpecialToken": token }, { "Sequence": text }],
            "pair": [{ "SpecialToken": token }, { "Sequence": text }],
            "special_tokens": { TOKEN: { "id": TOKEN, "ids": [ID], "tokens": [TOKEN] } },
        });
        fs::write(path, tokenizer.to_string()).expect("the file can be written");
    });
    (out, ID)
}

/// The real model in q8 with a context of so many tokens, as a blob in `temp`.
pub fn real_with_context(temp: &TempDir, context: usize) -> PathBuf {
    changed(REAL, Dtype::Q8, temp, |source| {
        let path = source.join("config.json");
        let json = fs::read(&path).expect("the config is there");
        let mut config: Value = serde_json::from_slice(&json).expect("the config is JSON");
        config["max_position_embeddings"] = context.into();
        fs::write(path, config.to_string()).expect("the file can be written");
    })
}

/// The model `name` after `change` of a copy, as a blob in `temp` with matrices of `dtype`.
fn changed(name: &str, dtype: Dtype, temp: &TempDir, change: impl FnOnce(&Path)) -> PathBuf {
    let short = name.split('-').next().expect("a name"); // `smolrun` tells it
    let (source, out) = (temp.join("model"), temp.join(short).with_extension("bin"));
    fs::create_dir(&source).expect("the directory can be written");
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(model_dir(name).join(file), source.join(file)).expect("the file can be copied");
    }
    change(&source);
    let options = Options { weights: Weights::all(dtype), ..Options::new(source, &out) };
    convert(&options, &Progress::new(true)).expect("the model converts");
    out
}

/// The f32 blob of the model `name`, converted anew once in each test program.
pub fn blob(name: &str) -> PathBuf {
    blob_of(name, Dtype::F32)
}

/// The blob of the model `name` with matrices of `dtype`, converted anew once in each test program.
pub fn blob_of(name: &str, dtype: Dtype) -> PathBuf {
    blob_with(name, dtype.name(), Weights::all(dtype), Calibration::None)
}

/// Whether three tests of the real model take all of a text, or all of its context, instead of a part.
pub fn is_long() -> bool {
    env::var_os("SMOL_LONG").is_some()
}

/// The blob of the model `name` as `smolconv --dtype` makes it. `scripts/test_web.sh` takes the real one of `q3` for the page.
pub fn blob_of_mix(name: &str, mix: Mix) -> PathBuf {
    blob_with(name, &format!("{}-mix", mix.name()), mix.into(), Calibration::Auto)
}

/// A blob of the model in the repository with matrices of every quantized dtype.
pub fn blob_with_all_widths() -> PathBuf {
    blob_with(TALES, "all-widths", all_widths(), Calibration::None)
}

/// Every quantized dtype for some of the matrices.
pub fn all_widths() -> Weights {
    let keep = [("o_proj", Dtype::Q8), ("qkv_proj", Dtype::Q6), ("embed_tokens_rare.1", Dtype::Q3)];
    let keep = keep.map(|(pattern, dtype)| Keep { pattern: pattern.into(), dtype });
    Weights { mix: Mix::Q4, keep: keep.into() }
}

fn blob_with(name: &str, label: &str, weights: Weights, calibration: Calibration) -> PathBuf {
    static DONE: Mutex<BTreeMap<PathBuf, Arc<OnceLock<()>>>> = Mutex::new(BTreeMap::new());
    let test = env::current_exe().expect("a test knows its own path");
    let directory = test.ancestors().nth(2).expect("a test lies in a profile's directory").join("test-blobs");
    let out = directory.join(format!("{name}-{label}.bin"));
    let done = DONE.lock().unwrap_or_else(PoisonError::into_inner).entry(out.clone()).or_default().clone();
    done.get_or_init(|| {
        fs::create_dir_all(&directory).expect("the target directory can be written");
        let takes_minutes = name == REAL && calibration == Calibration::Auto;
        let options = Options { weights, calibration, force: true, ..Options::new(model_dir(name), &out) };
        let convert = || convert(&options, &Progress::new(true)).map(drop).expect("the model converts");
        if takes_minutes { kept(&out, &model_dir(name), convert) } else { convert() }
    });
    out
}

/// Makes `out` once for a source and a converter: what is kept in `SMOL_CACHE` is named after the hash of both.
fn kept(out: &Path, source: &Path, make: impl FnOnce()) {
    let home = || PathBuf::from(env::var_os("HOME").expect("a home directory"));
    let caches = || env::var_os("XDG_CACHE_HOME").map_or_else(|| home().join(".cache"), PathBuf::from);
    let cache = env::var_os("SMOL_CACHE").map_or_else(|| caches().join("smolconv"), PathBuf::from);
    let mut hash = Sha256::new();
    for folder in [&repository().join("convert"), &repository().join("runtime/src"), source] {
        hash_files(folder, &mut hash);
    }
    let hash: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let stem = out.file_stem().expect("a blob has a name").to_string_lossy();
    let folder = cache.join("test-blobs").join(stem.as_ref());
    let entry = folder.join(format!("{hash}.bin"));
    if !entry.exists() {
        make();
        let _ = fs::remove_dir_all(&folder); // of another source or converter
        fs::create_dir_all(&folder).expect("the cache can be written");
        let partial = folder.join(format!("{hash}.{}", process::id()));
        fs::copy(out, &partial).expect("the blob can be kept");
        fs::rename(&partial, &entry).expect("the blob can be kept");
        return;
    }
    let beside = out.with_extension(process::id().to_string());
    fs::copy(&entry, &beside).expect("the kept blob can be read");
    fs::rename(&beside, out).expect("the target directory can be written");
}

/// Every file below `folder`, by name and content.
fn hash_files(folder: &Path, hash: &mut Sha256) {
    let entries = fs::read_dir(folder).expect("the folder can be read").map(|entry| entry.unwrap().path());
    for path in entries.collect::<BTreeSet<_>>() {
        if path.is_dir() {
            hash_files(&path, hash);
            continue;
        }
        hash.update(path.file_name().unwrap_or_default().as_encoded_bytes());
        let mut file = BufReader::with_capacity(1 << 20, File::open(&path).expect("the file can be read"));
        loop {
            let part = file.fill_buf().expect("the file can be read");
            let len = part.len();
            if len == 0 {
                break;
            }
            hash.update(part);
            file.consume(len);
        }
    }
}

/// A file of `tests/data`.
pub fn data(name: &str) -> PathBuf {
    repository().join("tests/data").join(name)
}
