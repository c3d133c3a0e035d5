//! What somebody may have meant by a source that is not there.

use std::io;
use std::path::{Component, Path};

use super::models;
use crate::error::Error;

/// Why there is no source at `path`, and what else it may have meant; `None` where there is one.
pub fn absent(path: &Path) -> Option<Error> {
    let error = path.metadata().err()?;
    let text = path.to_string_lossy();
    let parts: Vec<_> = path.components().collect();
    let are_names = parts.iter().all(|part| matches!(part, Component::Normal(_)));
    let meant = match parts.len() {
        _ if error.kind() != io::ErrorKind::NotFound => None,
        _ if text.contains("://") => Some(web_address(&text)),
        1 if are_names && !is_file_name(&text) => Some(unknown_name(&text)),
        2 if are_names && !Path::new(parts[0].as_os_str()).exists() => Some(hub_id(&text)),
        _ => None,
    };
    Some(match meant {
        Some(meant) => Error::file(path, format!("{error}; {meant}")),
        None => Error::io(path)(error),
    })
}

fn is_file_name(name: &str) -> bool {
    [".safetensors", ".gguf", ".json", ".bin"].iter().any(|end| name.ends_with(end))
}

fn unknown_name(name: &str) -> String {
    let models = models().unwrap_or_default();
    let name = name.to_ascii_lowercase();
    let near = models.iter().find(|model| model.name.starts_with(&name) || name.starts_with(&model.name));
    let near = near.map(|model| format!(", such as {}", model.name)).unwrap_or_default();
    format!("nor is it a name of a model: smolconv list shows them{near}")
}

fn hub_id(id: &str) -> String {
    let models = models().unwrap_or_default();
    match models.iter().find(|model| model.hub_id.eq_ignore_ascii_case(id)) {
        Some(model) => {
            let name = &model.name;
            format!(
                "as the id of a model on the Hugging Face hub it is {name} here: smolconv {name} fetches it"
            )
        }
        None => format!(
            "if it is the id of a model on the Hugging Face hub: hf download {id} --local-dir DIR fetches it, and \
             smolconv DIR converts it (smolconv itself fetches those of smolconv list)"
        ),
    }
}

fn web_address(address: &str) -> String {
    let path = address.split_once("://").and_then(|(_, rest)| Some(rest.split_once('/')?.1));
    let parts: Vec<&str> = path.unwrap_or_default().split('/').take(2).collect();
    match parts[..] {
        [owner, name] if address.contains("://huggingface.co/") => hub_id(&format!("{owner}/{name}")),
        _ => "a web address is not fetched: download it, and give the file or directory".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn absent(path: &str) -> String {
        super::absent(Path::new(path)).unwrap().to_string()
    }

    #[test]
    fn what_is_not_there_may_be_a_name_an_id_or_an_address() {
        let name = absent("smollm2");
        assert!(name.ends_with("smolconv list shows them, such as smollm2-135m-instruct"), "{name}");
        assert!(absent("SmolLM2-135M-Instruct-2").contains("such as smollm2-135m"));
        assert!(absent("phi").ends_with("nor is it a name of a model: smolconv list shows them"));
        let fetches = "smolconv smollm2-135m-instruct fetches it";
        for known in [
            "HuggingFaceTB/SmolLM2-135M-Instruct",
            "https://huggingface.co/huggingfacetb/smollm2-135m-instruct/tree/main",
        ] {
            assert!(absent(known).ends_with(fetches), "{}", absent(known));
        }
        assert!(absent("Qwen/Qwen3-0.6B").contains("hf download Qwen/Qwen3-0.6B --local-dir DIR"));
        assert!(
            absent("https://example.org/model.gguf").ends_with("download it, and give the file or directory")
        );
        assert!(absent("smollm2-1.7b").contains("smolconv list"));
        assert!(super::absent(Path::new("src")).is_none());
        for path in ["/no/where", "src/nowhere", "a/b/c", "../x", "model.safetensors"] {
            assert!(!absent(path).contains(';'), "{}", absent(path));
        }
    }
}
