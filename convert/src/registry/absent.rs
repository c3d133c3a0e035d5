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
        _ => None,
    };
    let told = match meant {
        Some(meant) => io::Error::new(error.kind(), format!("{error}; {meant}")),
        None => error,
    };
    Some(Error::io(path)(told))
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
    let known = models.iter().find(|model| model.hub_id.eq_ignore_ascii_case(id));
    let name = known.map_or(id, |model| &model.name);
    format!("a model on the Hugging Face hub is given by its id, and fetched: {name}")
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
        let known = absent("https://huggingface.co/huggingfacetb/smollm2-135m-instruct/tree/main");
        assert!(known.ends_with("by its id, and fetched: smollm2-135m-instruct"), "{known}");
        assert!(absent("https://huggingface.co/some/model").ends_with("fetched: some/model"));
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
