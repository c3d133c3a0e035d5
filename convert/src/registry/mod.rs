//! The models that are known by name, and where the Hugging Face cache of this machine has them.

mod absent;
#[cfg(feature = "hub")]
mod cache;
#[cfg(feature = "hub")]
mod content;
#[cfg(feature = "hub")]
mod download;
#[cfg(feature = "hub")]
mod hub;
mod hub_id;
mod known;
#[cfg(feature = "hub")]
mod registered;
#[cfg(feature = "hub")]
mod repository;

use std::env;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use self::absent::absent;
pub use self::hub_id::HubId;
pub use self::known::{Fetched, Known, known};

use crate::error::{Error, Result};
use crate::files::{hex, sha256};
use crate::json::Document;
use crate::progress::Progress;

/// The registry, which is part of the program.
const REGISTRY: &str = include_str!("../../data/registry.toml");

/// A model that is known by name.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// What it is asked for by.
    pub name: String,
    /// Its repository on the hub.
    pub hub_id: String,
    /// The branch, tag or commit that is asked for.
    pub revision: String,
    /// Its license, as an SPDX identifier.
    pub license: String,
    /// Tokens of its context.
    pub context: u32,
    /// Its architecture.
    pub family: String,
    /// `chat` or `base`.
    pub kind: String,
    /// Its files.
    #[serde(rename = "file")]
    pub files: Vec<RegisteredFile>,
}

/// A file of a model.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RegisteredFile {
    /// Its path in the repository.
    pub path: String,
    /// Where it comes from: `hub`, `stand-in` or `any` of them.
    pub source: String,
    /// Its bytes, where they are known.
    pub size: Option<u64>,
    /// Its hash in hexadecimal digits, where one was verified.
    pub sha256: Option<String>,
}

#[derive(Deserialize)]
struct Registry {
    model: Vec<Model>,
}

/// Where the checkpoint lies that `source` names, fetched unless it is there, and where it came from; nothing if `source`
/// is a path, and an error if it is neither. `notice` is told what is fetched, a line at a time.
pub fn fetched(source: &Path, progress: &Progress, notice: &dyn Fn(&str)) -> Result<Option<Fetched>> {
    match known(source)? {
        Some(known) => known.locate(&cache_from_env()?, progress, notice).map(Some),
        None => absent(source).map_or(Ok(None), Err),
    }
}

/// All models that are known by name.
pub fn models() -> Result<Vec<Model>> {
    let registry: Registry = toml::from_str(REGISTRY)
        .map_err(|error| Error::file(Path::new("convert/data/registry.toml"), error.message()))?;
    Ok(registry.model)
}

/// The model of which `source` is the name, unless there is a file of that name.
pub fn named(source: &Path) -> Result<Option<Model>> {
    if source.exists() {
        return Ok(None);
    }
    Ok(models()?.into_iter().find(|model| Path::new(&model.name) == source))
}

/// The cache that Hugging Face's own tools would use: `HF_HUB_CACHE`, `HF_HOME/hub` or `~/.cache/huggingface/hub`.
pub fn cache_from_env() -> Result<PathBuf> {
    let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let hf_home = || variable("HF_HOME").or_else(|| Some(home()?.join("huggingface")));
    let cache = variable("HF_HUB_CACHE").or_else(|| Some(hf_home()?.join("hub")));
    cache.ok_or_else(|| Error::file(Path::new("HF_HOME"), "expected a directory, found the variable not set"))
}

impl Model {
    /// The directory of the model's files in `cache`, fetched from the hub if they are not all there, after a
    /// comparison with the registry's sizes and hashes. `notice` is told what is fetched, a line at a time.
    ///
    /// Without the feature `hub` nothing is fetched.
    #[cfg_attr(not(feature = "hub"), allow(unused_variables))]
    pub fn locate(&self, cache: &Path, progress: &Progress, notice: &dyn Fn(&str)) -> Result<PathBuf> {
        #[cfg(feature = "hub")]
        if !self.is_in(cache)? {
            registered::fetch(self, cache, progress, notice)?;
        }
        self.find_in_cache(cache)
    }

    #[cfg(feature = "hub")]
    fn is_in(&self, cache: &Path) -> Result<bool> {
        let snapshot = self.snapshot(cache)?;
        Ok(snapshot.is_some_and(|at| self.hub_files().all(|file| at.join(&file.path).exists())))
    }

    /// The files that the hub has.
    pub(crate) fn hub_files(&self) -> impl Iterator<Item = &RegisteredFile> {
        self.files.iter().filter(|file| file.source != "stand-in")
    }

    /// Where `cache` keeps the model.
    pub(crate) fn folder(&self, cache: &Path) -> PathBuf {
        cache.join(format!("models--{}", self.hub_id.replace('/', "--")))
    }

    /// The directory of the model's files in `cache`, if the cache knows the revision.
    pub(crate) fn snapshot(&self, cache: &Path) -> Result<Option<PathBuf>> {
        let folder = self.folder(cache);
        let commit = commit(&folder.join("refs").join(&self.revision))?;
        Ok(commit.map(|commit| folder.join("snapshots").join(commit)))
    }

    /// The directory of the model's files in `cache`, after a comparison with the registry's sizes and hashes.
    pub fn find_in_cache(&self, cache: &Path) -> Result<PathBuf> {
        let Some(snapshot) = self.snapshot(cache)? else {
            let (id, revision, name) = (&self.hub_id, &self.revision, &self.name);
            let problem = format!(
                "expected revision {revision} of {id} in {}, found none; scripts/fetch_model.sh {name} gets it",
                cache.display(),
            );
            return Err(Error::file(Path::new(name), problem));
        };
        self.hub_files().try_for_each(|file| file.check(&snapshot.join(&file.path)))?;
        Ok(snapshot)
    }
}

/// The commit that the cache's file `reference` names, if it is there.
fn commit(reference: &Path) -> Result<Option<String>> {
    let Some(document) = Document::read_optional(reference)? else { return Ok(None) };
    let commit = document.text()?.trim();
    match !commit.is_empty() && commit.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => Ok(Some(commit.to_owned())),
        false => Err(Error::file(reference, format!("expected a commit, found {commit:?}"))),
    }
}

impl RegisteredFile {
    fn check(&self, path: &Path) -> Result<()> {
        let len = path.metadata().map_err(Error::io(path))?.len();
        if let Some(size) = self.size.filter(|&size| size != len) {
            return Err(Error::file(path, format!("expected {size} bytes, found {len}")));
        }
        let Some(expected) = &self.sha256 else { return Ok(()) };
        let found = hex(&sha256(path, |_| Ok(()))?);
        match found == *expected {
            true => Ok(()),
            false => Err(Error::file(path, format!("expected SHA-256 {expected}, found {found}"))),
        }
    }
}

/// The models as a table.
pub fn to_text(models: &[Model]) -> String {
    let mut text =
        format!("{:<26}{:<40}{:<6}{:>8}{:>9}  LICENSE\n", "NAME", "HUB ID", "KIND", "CONTEXT", "MB");
    for model in models {
        let bytes: u64 = model.hub_files().filter_map(|file| file.size).sum();
        let megabytes = if bytes > 0 { format!("{:.0}", bytes as f64 / 1e6) } else { "-".into() };
        let Model { name, hub_id, kind, context, license, .. } = model;
        // A String takes all.
        let _ = writeln!(text, "{name:<26}{hub_id:<40}{kind:<6}{context:>8}{megabytes:>9}  {license}");
    }
    text
}

/// The models as a JSON array.
pub fn to_json(models: &[Model]) -> String {
    let json = serde_json::to_string_pretty(models).unwrap_or_default(); // plain records always serialize
    json + "\n"
}
