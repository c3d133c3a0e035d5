//! Fetching a registered model into Hugging Face's own cache, laid out as its own tools do it.

use std::path::Path;

use ureq::Response;

use super::cache::{point, remove_if_empty, replace};
use super::content::Content;
use super::download::{Done, at};
use super::hub::{Found, Hub, origin};
use super::{Model, RegisteredFile};
use crate::error::Result;
use crate::progress::Progress;

/// Redirections within the hub, as for a repository that was renamed.
const MAX_REDIRECTS: usize = 10;

/// Gets what `cache` lacks of `model`'s files.
pub(crate) fn fetch(model: &Model, cache: &Path, progress: &Progress, notice: &dyn Fn(&str)) -> Result<()> {
    let hub = Hub::from_env(cache, progress)?;
    let folder = model.folder(cache);
    for file in model.hub_files() {
        let snapshot = model.snapshot(cache)?;
        if !snapshot.is_some_and(|snapshot| snapshot.join(&file.path).exists()) {
            notice(&hub.fetching(&file.path, file.size, &model.hub_id));
            let blobs = folder.join("blobs");
            let fetched = hub.fetch(model, file, &folder);
            let fetched = fetched.map_err(|problem| problem.of(&model.hub_id, &file.path, &blobs));
            fetched.inspect_err(|_| remove_if_empty(&folder))?;
        }
    }
    Ok(())
}

/// A file as the hub has it.
struct Remote {
    /// The commit that the revision is at.
    commit: String,
    /// What the cache calls the file's content.
    etag: String,
}

impl Hub<'_> {
    /// Puts a file into `folder`, where the cache keeps its model.
    fn fetch(&self, model: &Model, file: &RegisteredFile, folder: &Path) -> Done<()> {
        let revision = model.revision.replace('/', "%2F");
        let url = format!("{}/{}/resolve/{revision}/{}", self.endpoint, model.hub_id, file.path);
        let Remote { commit, etag } = self.look(&url)?;
        let blob = folder.join("blobs").join(&etag);
        if !blob.exists() {
            let expected = [Content::registered(file), Content::named(&etag)];
            self.download(&url, &blob, &expected)?;
        }
        let pointer = folder.join("snapshots").join(&commit).join(&file.path);
        point(&blob, &pointer, &file.path).map_err(|error| at(&pointer, error))?;
        let reference = folder.join("refs").join(&model.revision);
        replace(&reference, &commit).map_err(|error| at(&reference, error).into())
    }

    /// Asks for the first byte of `url`, which says what it is; the content itself may lie elsewhere.
    fn look(&self, url: &str) -> Found<Remote> {
        let mut url = url.to_owned();
        for _ in 0..MAX_REDIRECTS {
            let response = self.get(&self.still, &url, Some("bytes=0-0"))?;
            let within = |to: &&str| to.starts_with('/') && !to.starts_with("//");
            let redirected = (300..400).contains(&response.status());
            match response.header("location").filter(within).filter(|_| redirected) {
                Some(path) => url = format!("{}{path}", origin(&self.endpoint)),
                None => return Remote::read(&response),
            }
        }
        Err(format!("more than {MAX_REDIRECTS} redirections").into())
    }
}

impl Remote {
    /// Both become names of files, so they may not be anything.
    fn read(response: &Response) -> Found<Remote> {
        let header = |name| response.header(name).ok_or_else(|| format!("an answer without {name}"));
        let commit = header("x-repo-commit")?;
        if commit.is_empty() || !commit.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(format!("the commit {commit:?}").into());
        }
        let etag = header("x-linked-etag").or_else(|_| header("etag"))?;
        let name = etag.trim_start_matches("W/").trim_matches('"');
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        match !name.is_empty() && name.bytes().all(is_plain) {
            true => Ok(Remote { commit: commit.to_owned(), etag: name.to_owned() }),
            false => Err(format!("the etag {etag:?}").into()),
        }
    }
}
