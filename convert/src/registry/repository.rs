//! Fetching any repository of the hub: at the commit that the hub names, each file checked against the size and the
//! hash that the hub reports of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::cache::{point, remove_if_empty, replace};
use super::content::Content;
use super::download::{Done, at};
use super::hub::{Failure, Found, Hub};
use super::hub_id::{HubId, is_gguf, is_path};
use crate::error::{Error, Result};
use crate::json::Document;
use crate::progress::Progress;

/// Most files of a folder that are looked through; the hub lists a thousand at once.
const MAX_FILES: usize = 10_000;
/// GGUF files that an error lists.
const MAX_LISTED: usize = 12;

/// One file of weights, and what names several.
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// What a conversion cannot do without.
const NEEDED: [&str; 2] = ["config.json", "tokenizer.json"];
/// What it reads where it is there.
const OPTIONAL: [&str; 3] = ["generation_config.json", "tokenizer_config.json", "chat_template.jinja"];

/// What the hub says of a revision.
#[derive(Deserialize)]
struct Revision {
    sha: String,
}

/// What the hub says of a file or a folder.
#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    oid: String,
    lfs: Option<Lfs>,
}

/// What it says of a file that lies elsewhere.
#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

/// Gets what `cache` lacks of the repository, and says which commit it is at.
pub(super) fn fetch(id: &HubId, cache: &Path, progress: &Progress, notice: &dyn Fn(&str)) -> Result<String> {
    let hub = Hub::from_env(cache, progress)?;
    let folder = id.folder(cache);
    let wrong = |failure: Failure| {
        let problem = failure.instead_of("a repository on the Hugging Face hub");
        Error::file(Path::new(&id.to_string()), problem)
    };
    let commit = hub.commit(id).map_err(wrong)?;
    let files = hub.files(id, &commit).map_err(wrong)?;
    let fetch = Fetch { id, hub, commit, files, folder, notice };
    fetch.all().inspect_err(|_| remove_if_empty(&fetch.folder))?;
    Ok(fetch.commit)
}

impl Hub<'_> {
    /// The commit that the revision is at.
    fn commit(&self, id: &HubId) -> Found<String> {
        let (repository, revision) = (&id.repository, escape(&id.revision).replace('/', "%2F"));
        let url = format!("{}/api/models/{repository}/revision/{revision}", self.endpoint);
        let Revision { sha } = self.json(&url)?;
        match sha.len() == 40 && sha.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            true => Ok(sha),
            false => Err(format!("the commit {sha:?}").into()),
        }
    }

    /// The files at `commit` in the folder that matters, by their paths.
    fn files(&self, id: &HubId, commit: &str) -> Found<BTreeMap<String, Content>> {
        let below = id.file.as_deref().and_then(|file| file.rsplit_once('/')).map(|(below, _)| escape(below));
        let below = below.map(|below| format!("/{below}")).unwrap_or_default();
        let url = format!("{}/api/models/{}/tree/{commit}{below}", self.endpoint, id.repository);
        let entries: Vec<Entry> = self.json(&url)?;
        if entries.len() > MAX_FILES {
            return Err(format!("more than {MAX_FILES} files").into());
        }
        let files = entries.into_iter().filter(|entry| entry.kind == "file");
        files.map(|entry| Ok((entry.path.clone(), entry.content()?))).collect()
    }
}

impl Entry {
    fn content(self) -> Found<Content> {
        let (size, oid) = self.lfs.map_or((self.size, self.oid), |lfs| (lfs.size, lfs.oid));
        let content = Content::named(&oid).with_size(size);
        match content.has_hash() && is_path(&self.path) {
            true => Ok(content),
            false => Err(format!("the file {:?} with the hash {oid:?}", self.path).into()),
        }
    }
}

/// What is being fetched.
struct Fetch<'a> {
    id: &'a HubId,
    hub: Hub<'a>,
    commit: String,
    files: BTreeMap<String, Content>,
    /// Where the cache keeps the repository.
    folder: PathBuf,
    notice: &'a dyn Fn(&str),
}

impl Fetch<'_> {
    fn all(&self) -> Result<()> {
        match &self.id.file {
            Some(_) => self.id.gguf_files().iter().try_for_each(|file| self.required(file))?,
            None => self.checkpoint()?,
        }
        // Last, so that a revision in the cache is one that is whole.
        let reference = self.folder.join("refs").join(&self.id.revision);
        replace(&reference, &self.commit).map_err(Error::io(&reference))
    }

    fn checkpoint(&self) -> Result<()> {
        let index = [WEIGHTS, INDEX].into_iter().find(|&name| self.files.contains_key(name));
        let Some(weights) = index else { return Err(self.no_weights()) };
        for name in NEEDED {
            self.required(name)?;
        }
        for name in OPTIONAL.into_iter().filter(|&name| self.files.contains_key(name)) {
            self.required(name)?;
        }
        self.required(weights)?;
        let shards = if weights == INDEX { shards(&self.pointer(INDEX))? } else { BTreeSet::new() };
        shards.iter().try_for_each(|shard| self.required(shard))
    }

    /// Gets a file that must be there.
    fn required(&self, path: &str) -> Result<()> {
        let Some(content) = self.files.get(path) else {
            let has = if self.id.file.is_some() { self.list_of_gguf() } else { "none".into() };
            return Err(self.wrong(format!("expected {path}, found {has}")));
        };
        let blob = self.folder.join("blobs").join(content.name());
        self.fetch(path, content, &blob).map_err(|problem| problem.of(&self.id.repository, path, &blob))
    }

    fn fetch(&self, path: &str, content: &Content, blob: &Path) -> Done<()> {
        let (hub, id) = (&self.hub, &self.id.repository);
        if !blob.exists() {
            (self.notice)(&hub.fetching(path, content.size, id));
            let url = format!("{}/{id}/resolve/{}/{}", hub.endpoint, self.commit, escape(path));
            hub.download(&url, blob, std::slice::from_ref(content))?;
        }
        let pointer = self.pointer(path);
        point(blob, &pointer, path).map_err(|error| at(&pointer, error).into())
    }

    fn pointer(&self, path: &str) -> PathBuf {
        self.folder.join("snapshots").join(&self.commit).join(path)
    }

    fn wrong(&self, problem: String) -> Error {
        Error::file(Path::new(&self.id.to_string()), problem)
    }

    /// What the repository has instead of weights that can be read.
    fn no_weights(&self) -> Error {
        let is_pytorch = |name: &String| name.starts_with("pytorch_model") && name.ends_with(".bin");
        let found = match self.files.keys().any(is_pytorch) {
            true => {
                "PyTorch files: save_pretrained of transformers makes a directory with SafeTensors".into()
            }
            false => self.list_of_gguf(),
        };
        self.wrong(format!("expected {WEIGHTS} or {INDEX}, found {found}"))
    }

    fn list_of_gguf(&self) -> String {
        let all: Vec<&str> = self.files.keys().map(String::as_str).filter(|path| is_gguf(path)).collect();
        let Some(first) = all.first() else { return "none".into() };
        let repository = &self.id.repository;
        let shown = all[..all.len().min(MAX_LISTED)].join(", ");
        let more = if all.len() > MAX_LISTED { ", ..." } else { "" };
        format!("GGUF files ({repository}/{first} names one): {shown}{more}")
    }
}

/// The shards that the index at `path` names.
pub(super) fn shards(path: &Path) -> Result<BTreeSet<String>> {
    let document = Document::read(path)?;
    let expected = "an object of tensor names to shard names";
    let weight_map: BTreeMap<String, String> = document.fields()?.required("weight_map", expected)?;
    let shards: BTreeSet<String> = weight_map.into_values().collect();
    match shards.iter().find(|shard| !is_path(shard) || shard.contains('/')) {
        Some(shard) => {
            Err(Error::file(path, format!("weight_map: expected bare file names, found {shard:?}")))
        }
        None => Ok(shards),
    }
}

/// `path` for a web address.
fn escape(path: &str) -> String {
    let mut escaped = String::new();
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                escaped.push(byte.into());
            }
            _ => escaped += &format!("%{byte:02X}"),
        }
    }
    escaped
}
