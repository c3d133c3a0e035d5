//! Ids of models on the hub: `ORG/NAME`, with a revision and a file where somebody wants another than the usual ones.

use std::fmt;
use std::path::Path;
#[cfg(feature = "hub")]
use std::path::PathBuf;
use std::str::FromStr;

#[cfg(feature = "hub")]
use crate::parts::PartName;

/// Longest part of an id that the hub takes, and longest revision or file that is asked for.
const MAX_NAME: usize = 96;
const MAX_PATH: usize = 255;
/// What the files of a checkpoint, of a blob and beside them end in: `a/b.bin` is a file that is not there.
const FILE_ENDS: [&str; 5] = [".safetensors", ".gguf", ".json", ".bin", ".txt"];

/// A repository on the hub: `ORG/NAME`, `ORG/NAME@REVISION`, and `ORG/NAME/FILE.gguf` or `ORG/NAME:FILE.gguf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubId {
    /// `ORG/NAME`.
    pub repository: String,
    /// The branch, tag or commit.
    pub revision: String,
    /// The GGUF file, unless a checkpoint of SafeTensors is meant.
    pub file: Option<String>,
}

impl HubId {
    /// The branch that is asked for where nothing is said.
    pub const MAIN: &str = "main";

    /// The id that `source` is, if it can be one. Nothing in it leads out of a folder.
    pub fn of(source: &Path) -> Option<HubId> {
        source.to_str()?.parse().ok()
    }

    /// The GGUF file, or all parts of it where it is one of several.
    #[cfg(feature = "hub")]
    pub(super) fn gguf_files(&self) -> Vec<String> {
        let parts = self.file.as_deref().and_then(PartName::of).into_iter().flat_map(PartName::all);
        let parts: Vec<String> = parts.collect();
        if parts.is_empty() { self.file.clone().into_iter().collect() } else { parts }
    }

    /// Where `cache` keeps the repository.
    #[cfg(feature = "hub")]
    pub(super) fn folder(&self, cache: &Path) -> PathBuf {
        cache.join(format!("models--{}", self.repository.replace('/', "--")))
    }
}

impl FromStr for HubId {
    type Err = ();

    fn from_str(text: &str) -> Result<HubId, ()> {
        let (rest, file) = match text.split_once(':') {
            Some((rest, file)) => (rest.to_owned(), Some(file.to_owned())),
            None => split_file(text),
        };
        let (repository, revision) = rest.split_once('@').unwrap_or((&rest, HubId::MAIN));
        let (owner, name) = repository.split_once('/').ok_or(())?;
        let is_file = |text: &str| FILE_ENDS.iter().any(|end| text.to_ascii_lowercase().ends_with(end));
        let is_known = file.as_deref().is_none_or(|file| is_path(file) && is_gguf(file));
        match is_name(owner) && is_name(name) && !is_file(name) && is_path(revision) && is_known {
            true => Ok(HubId { repository: repository.to_owned(), revision: revision.to_owned(), file }),
            false => Err(()),
        }
    }
}

impl fmt::Display for HubId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repository)?;
        if self.revision != HubId::MAIN {
            write!(f, "@{}", self.revision)?;
        }
        self.file.iter().try_for_each(|file| write!(f, ":{file}"))
    }
}

/// Takes a third part and what follows it off `text`, if that is a GGUF file.
fn split_file(text: &str) -> (String, Option<String>) {
    let second = text.match_indices('/').nth(1).map(|(at, _)| at);
    match second.filter(|_| is_gguf(text)) {
        Some(at) => (text[..at].to_owned(), Some(text[at + 1..].to_owned())),
        None => (text.to_owned(), None),
    }
}

/// Whether `path` is called as a GGUF file is.
pub(super) fn is_gguf(path: &str) -> bool {
    path.to_ascii_lowercase().ends_with(".gguf")
}

fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let starts_well = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    starts_well && text.len() <= MAX_NAME && !text.contains("..") && text.bytes().all(is_plain)
}

/// Whether `text` is a path that stays below where it starts: for files of a repository and names of branches.
pub(super) fn is_path(text: &str) -> bool {
    let is_part = |part: &str| {
        let is_inside = !part.is_empty() && part != "." && part != "..";
        is_inside && !part.contains(|c: char| c.is_control() || matches!(c, '\\' | ':' | '?' | '#' | '@'))
    };
    text.len() <= MAX_PATH && text.split('/').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_and_written() {
        let main = HubId::MAIN;
        for (text, repository, revision, file, written) in [
            ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", main, None, "Qwen/Qwen3-0.6B"),
            ("a/b@v1.0", "a/b", "v1.0", None, "a/b@v1.0"),
            ("a/b@refs/pr/1", "a/b", "refs/pr/1", None, "a/b@refs/pr/1"),
            ("a/b/m.gguf", "a/b", main, Some("m.gguf"), "a/b:m.gguf"),
            ("a/b@v1/q4/m.GGUF", "a/b", "v1", Some("q4/m.GGUF"), "a/b@v1:q4/m.GGUF"),
            ("a/b@refs/pr/1:m.gguf", "a/b", "refs/pr/1", Some("m.gguf"), "a/b@refs/pr/1:m.gguf"),
        ] {
            let id = HubId::of(Path::new(text)).unwrap();
            let file = file.map(str::to_owned);
            let expected = HubId { repository: repository.into(), revision: revision.into(), file };
            assert_eq!((&id, id.to_string().as_str()), (&expected, written));
        }
        for text in [
            "",
            "a",
            "a/",
            "/a",
            "a/b/c",
            "../b",
            "a/..",
            "./b",
            "a/b@",
            "a/b@../x",
            "a/b@x/../y",
            "a/b.bin",
            "a/model.safetensors",
            "a/b:",
            "a/b:x.bin",
            "a/b:../m.gguf",
            "a/b:/m.gguf",
            "a b/c",
            "https://a/b",
            "a/b/../m.gguf",
            "a\\b/c",
            ".a/b",
            "-a/b",
            "a/b?x",
            "a/b@x#y",
        ] {
            assert_eq!(HubId::of(Path::new(text)), None, "{text}");
        }
    }
}
