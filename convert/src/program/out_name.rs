//! What a blob is called where nobody says so.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::parts::PartName;

/// What the names of a checkpoint's files end in, the longest first.
const ENDS: [&str; 4] = [".safetensors.index.json", ".safetensors", ".gguf", ".json"];

/// The name of the checkpoint, of its adapter and, if these are said in it, of its `weights`, in this directory.
pub(crate) fn out_name(source: &Path, lora: Option<&Path>, weights: Option<&str>) -> PathBuf {
    let mut name = of_source(source);
    for more in lora.map(of_directory).into_iter().chain(weights.map(OsString::from)) {
        name.push("-");
        name.push(more);
    }
    name.push(".bin");
    name.into()
}

/// The name of a file, or of the directory of one that is called as in every directory.
fn of_source(source: &Path) -> OsString {
    let name = source.file_name().unwrap_or_default().to_string_lossy();
    let lower = name.to_ascii_lowercase();
    let stem = ENDS.iter().find(|end| lower.ends_with(*end)).map(|end| &name[..name.len() - end.len()]);
    let stem = PartName::of(&name).map(|part| part.stem).or(stem);
    match stem {
        _ if source.is_dir() => of_directory(source),
        None => name.into_owned().into(),
        Some("model" | "") => of_directory(source.parent().unwrap_or(source)),
        Some(stem) => stem.into(),
    }
}

/// The name of a directory, or of the model that it is a snapshot of in Hugging Face's cache.
fn of_directory(directory: &Path) -> OsString {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let directory = fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    let mut above = directory.ancestors().skip(1);
    let is_snapshot = above.next().is_some_and(|above| above.ends_with("snapshots"));
    let model = above.next().filter(|_| is_snapshot).and_then(Path::file_name);
    let model =
        model.and_then(|model| Some(model.to_str()?.strip_prefix("models--")?.rsplit_once("--")?.1.into()));
    model.or_else(|| directory.file_name().map(OsString::from)).unwrap_or_else(|| "smol".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_are_called_as_their_checkpoints() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).file_name().unwrap().to_str().unwrap();
        let cases = [
            ("model.gguf", None, None, format!("{here}.bin")),
            ("SmolLM2.Q8_0.GGUF", None, None, "SmolLM2.Q8_0.bin".into()),
            ("a/tales-00002-of-00003.gguf", None, Some("q8"), "tales-q8.bin".into()),
            ("a/b/model-00001-of-00003.gguf", None, None, "b.bin".into()),
            ("a/tales.safetensors", None, None, "tales.bin".into()),
            ("tales.safetensors.index.json", None, Some("q4"), "tales-q4.bin".into()),
            ("a/b/model.safetensors", None, Some("q3"), "b-q3.bin".into()),
            (".", None, None, format!("{here}.bin")),
            ("src/", None, Some("q8"), "src-q8.bin".into()),
            ("smollm2-1.7b", None, None, "smollm2-1.7b.bin".into()),
            ("src", Some("my/adapter"), Some("q4"), "src-adapter-q4.bin".into()),
            ("c/models--some--model-1/snapshots/abc/model.safetensors", None, None, "model-1.bin".into()),
            ("/", None, None, "smol.bin".into()),
        ];
        for (source, lora, mix, expected) in cases {
            assert_eq!(
                out_name(Path::new(source), lora.map(Path::new), mix),
                Path::new(&expected),
                "{source}"
            );
        }
    }
}
