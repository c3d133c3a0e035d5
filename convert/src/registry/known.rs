//! What somebody means who gives no file: a registered name, or the id of a model on the hub.

use std::fmt;
use std::path::{Path, PathBuf};

#[cfg(feature = "hub")]
use super::content::{Content, Wrong};
use super::{HubId, Model, models, named};
#[cfg(feature = "hub")]
use super::{commit, repository};
use crate::error::{Error, Result};
use crate::options::Origin;
use crate::progress::Progress;

/// A model that can be fetched.
#[derive(Clone, Debug)]
pub enum Known {
    /// One of the registry.
    Registered(Model),
    /// Any other of the hub.
    Hub(HubId),
}

/// A checkpoint on this machine that came from a hub.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// Its directory, or its GGUF file.
    pub path: PathBuf,
    /// Where it came from.
    pub origin: Origin,
}

/// What `source` names, unless there is a file of that name, or it looks like one in a directory that is there.
pub fn known(source: &Path) -> Result<Option<Known>> {
    if source.exists() {
        return Ok(None);
    }
    if let Some(model) = named(source)? {
        return Ok(Some(Known::Registered(model)));
    }
    let Some(id) = HubId::of(source) else { return Ok(None) };
    if id.repository.split('/').next().is_some_and(|owner| Path::new(owner).exists()) {
        return Ok(None);
    }
    let text = id.to_string();
    let registered = models()?.into_iter().find(|model| model.hub_id == text);
    Ok(Some(registered.map_or(Known::Hub(id), Known::Registered)))
}

impl Known {
    /// The checkpoint in `cache`, fetched from the hub unless it is all there. `notice` is told what is fetched, a line
    /// at a time.
    pub fn locate(&self, cache: &Path, progress: &Progress, notice: &dyn Fn(&str)) -> Result<Fetched> {
        match self {
            Known::Registered(model) if model.is_pinned() => {
                let path = model.locate(cache, progress, notice)?;
                Ok(Fetched { origin: origin(&model.hub_id, &path), path })
            }
            Known::Registered(model) => model.id().locate(cache, progress, notice),
            Known::Hub(id) => id.locate(cache, progress, notice),
        }
    }
}

impl fmt::Display for Known {
    /// The id on the hub: the same for all ways to name a model.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Known::Registered(model) => model.id().fmt(f),
            Known::Hub(id) => id.fmt(f),
        }
    }
}

impl Model {
    /// Whether the registry knows what its files must be.
    fn is_pinned(&self) -> bool {
        self.files.iter().any(|file| file.sha256.is_some())
    }

    fn id(&self) -> HubId {
        HubId { repository: self.hub_id.clone(), revision: self.revision.clone(), file: None }
    }
}

impl HubId {
    #[cfg(feature = "hub")]
    fn locate(&self, cache: &Path, progress: &Progress, notice: &dyn Fn(&str)) -> Result<Fetched> {
        let snapshots = self.folder(cache).join("snapshots");
        let snapshot = match self.whole_in(cache)? {
            None => snapshots.join(repository::fetch(self, cache, progress, notice)?),
            Some(commit) => {
                let snapshot = snapshots.join(commit);
                self.check(&snapshot, progress)?;
                snapshot
            }
        };
        let path = self.file.as_ref().map_or(snapshot.clone(), |file| snapshot.join(file));
        Ok(Fetched { path, origin: origin(&self.repository, &snapshot) })
    }

    #[cfg(not(feature = "hub"))]
    fn locate(&self, _: &Path, _: &Progress, _: &dyn Fn(&str)) -> Result<Fetched> {
        let problem =
            "expected a file or a directory, found the id of a model: this program cannot fetch any";
        Err(Error::file(Path::new(&self.to_string()), problem))
    }

    /// The commit that the revision is at, if the cache has every file that it takes.
    #[cfg(feature = "hub")]
    fn whole_in(&self, cache: &Path) -> Result<Option<String>> {
        let folder = self.folder(cache);
        let Some(commit) = commit(&folder.join("refs").join(&self.revision))? else { return Ok(None) };
        let snapshot = folder.join("snapshots").join(&commit);
        let is_whole = self.files_in(&snapshot)?.is_some_and(|files| files.iter().all(|file| file.exists()));
        Ok(is_whole.then_some(commit))
    }

    /// The files of a checkpoint in `snapshot` that must be there, if it has one.
    #[cfg(feature = "hub")]
    fn files_in(&self, snapshot: &Path) -> Result<Option<Vec<PathBuf>>> {
        if self.file.is_some() {
            return Ok(Some(self.gguf_files().iter().map(|file| snapshot.join(file)).collect()));
        }
        let mut names = vec!["config.json".to_owned(), "tokenizer.json".to_owned()];
        let index = snapshot.join("model.safetensors.index.json");
        match (snapshot.join("model.safetensors").exists(), index.exists()) {
            (true, _) => names.push("model.safetensors".into()),
            (_, true) => names.extend(repository::shards(&index)?),
            _ => return Ok(None),
        }
        Ok(Some(names.iter().map(|name| snapshot.join(name)).collect()))
    }

    /// Compares files that lie under their hashes with these.
    #[cfg(feature = "hub")]
    fn check(&self, snapshot: &Path, progress: &Progress) -> Result<()> {
        for path in self.files_in(snapshot)?.unwrap_or_default() {
            let Ok(blob) = path.read_link() else { continue };
            let name = blob.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Content::named(&name).check(&path, progress).map_err(|wrong| match wrong {
                Wrong::File(error) => error,
                Wrong::Content(problem) => {
                    let advice = "remove the file, and the next run fetches it again";
                    Error::file(&path, format!("{problem}; {advice}"))
                }
            })?;
        }
        Ok(())
    }
}

/// Of the snapshot at `path`, which is called by its commit.
fn origin(repository: &str, path: &Path) -> Origin {
    let commit = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Origin { repository: repository.to_owned(), commit }
}
