//! A source becomes a blob in the cache, unless it has become one before.
//!
//! A record says which blob a source became. It is trusted as long as the source's files are what they were; so a start
//! reads no source. Else the source is hashed, and the blob of that content is taken, or made.

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use smolconv::registry::{self, Known};
use smolconv::write::verify::verify;
use smolconv::{Inputs, Mix, Options, Origin, Progress, convert};
use smolrun::format::{VERSION_MAJOR, VERSION_MINOR};

use super::entry::{Cache, END, touch};
use super::record::Record;
use super::{Blob, Listener, Result, name};
use crate::output::hex;

/// Hexadecimal digits of a hash in a name.
const DIGITS: usize = 24;
/// Longest name of a source in a blob's.
const MAX_NAME: usize = 64;

/// Whether `model`, which is no file, is the name of a model, or what a person may have thought to be one.
pub(super) fn is_name(model: &Path) -> bool {
    // The registry says more of a name than the system does.
    let is_meant =
        |error| matches!(error, smolconv::Error::Io { source, .. } if source.raw_os_error().is_none());
    !matches!(registry::known(model), Ok(None)) || registry::absent(model).is_some_and(is_meant)
}

/// The blob of the model that `source` names, as `mix`.
pub(super) fn prepare(source: &Path, mix: Mix, listener: &Listener<'_>) -> Result<Blob> {
    let cache = Cache::from_env()?;
    let request = Request::new(source, mix)?;
    let path = cache.record(&request.key());
    let blob = match Record::read(&path).and_then(|record| usable(&cache, &record)) {
        Some(blob) => {
            touch(&path);
            blob
        }
        None => {
            let progress = (listener.begin)();
            cache.create()?;
            request.blob(&cache, &path, &progress, listener.tell).inspect_err(|_| cache.remove_if_empty())?
        }
    };
    Ok(Blob { path: blob, name: request.name() })
}

/// The blob of a record that can be trusted.
fn usable(cache: &Cache, record: &Record) -> Option<PathBuf> {
    let blob = cache.directory.join(&record.blob);
    let is_whole = blob.metadata().is_ok_and(|found| found.len() == record.bytes);
    (is_whole && record.holds()).then_some(blob)
}

/// What is asked for.
struct Request<'a> {
    given: &'a Path,
    source: Source,
    mix: Mix,
}

enum Source {
    /// A path without links.
    Path(PathBuf),
    Known(Box<Known>),
}

impl<'a> Request<'a> {
    fn new(given: &'a Path, mix: Mix) -> Result<Request<'a>> {
        let source = match registry::known(given)? {
            Some(known) => Source::Known(Box::new(known)),
            None => match registry::absent(given) {
                Some(error) => return Err(error.into()),
                None => Source::Path(
                    fs::canonicalize(given).map_err(|error| format!("{}: {error}", given.display()))?,
                ),
            },
        };
        Ok(Request { given, source, mix })
    }

    /// What its record is called by.
    fn key(&self) -> String {
        let mut hasher = hasher();
        match &self.source {
            Source::Path(path) => hasher.update([b"path", path.as_os_str().as_encoded_bytes()].concat()),
            Source::Known(known) => hasher.update(format!("known{known}")),
        }
        hasher.update([0]);
        hasher.update(self.mix.name());
        digits(hasher)
    }

    /// What a person calls the model.
    fn name(&self) -> String {
        match &self.source {
            Source::Path(path) if self.given.file_name().is_none() => name(path), // such as "."
            _ => name(self.given),
        }
    }

    /// What a list calls its source.
    fn label(&self) -> String {
        match &self.source {
            Source::Path(path) => path.display().to_string(),
            Source::Known(_) => self.given.display().to_string(),
        }
    }

    /// Makes the blob, or finds the one of the same content, and writes the record at `record`.
    fn blob(
        &self,
        cache: &Cache,
        record: &Path,
        progress: &Progress,
        tell: &dyn Fn(&str),
    ) -> Result<PathBuf> {
        let (path, origin) = self.fetched(progress, tell)?;
        let options = Options { weights: self.mix.into(), ..Options::new(&path, &cache.directory) };
        let inputs = Inputs::of(&options)?;
        let may_go = matches!(self.source, Source::Known(_));
        let new_record = || Record::new(self.label(), &inputs.files, &inputs.absent, may_go);
        let before = new_record();
        let content = content(&inputs, origin.as_ref(), progress)?;
        let out = match cache.blob(&content) {
            Some(blob) => blob,
            None => cache.directory.join(format!("{}-{content}{END}", self.plain_name())),
        };
        if !is_good(&out, progress) {
            tell(&format!("converting {} to {} …", self.given.display(), inputs.mix.name()));
            let (weights, out) = (inputs.mix.into(), out.clone());
            convert(&Options { weights, out, force: true, origin, ..options }, progress)?;
        }
        if !before.agrees_with(&new_record()) {
            let _ = fs::remove_file(&out);
            return Err(
                format!("{}: expected files that stay as they are, found changes", path.display()).into()
            );
        }
        let bytes = out.metadata().map_err(|error| format!("{}: {error}", out.display()))?.len();
        let name = out.file_name().unwrap_or_default().to_string_lossy().into_owned();
        before.of_blob(name, bytes).write(record);
        Ok(out)
    }

    /// Where the checkpoint lies on this machine, and where it came from.
    fn fetched(&self, progress: &Progress, tell: &dyn Fn(&str)) -> Result<(PathBuf, Option<Origin>)> {
        match &self.source {
            Source::Path(path) => Ok((path.clone(), None)),
            Source::Known(known) => {
                let fetched = known.locate(&registry::cache_from_env()?, progress, tell)?;
                Ok((fetched.path, Some(fetched.origin)))
            }
        }
    }

    /// What the blob is called before its hash.
    fn plain_name(&self) -> String {
        let is_plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let name: String = self.name().chars().filter(is_plain).take(MAX_NAME).collect();
        name.trim_start_matches('.').to_owned()
    }
}

/// What a blob is made of and by, at the end of its name: its dtype, and a hash of the source's content, of where it
/// came from and of what converts it.
fn content(inputs: &Inputs, origin: Option<&Origin>, progress: &Progress) -> Result<String> {
    let mut hasher = hasher();
    hasher.update(inputs.mix.name());
    for text in origin.iter().flat_map(|origin| [&origin.repository, &origin.commit]) {
        hasher.update([0]);
        hasher.update(text);
    }
    hasher.update([0]);
    hasher.update(inputs.sha256(progress)?);
    Ok(format!("{}-{}", inputs.mix.name(), digits(hasher)))
}

/// Whether the blob is there and every byte of it as it was written.
fn is_good(blob: &Path, progress: &Progress) -> bool {
    blob.exists() && verify(blob, progress).is_ok()
}

/// A hash that another converter's or format's differs from.
fn hasher() -> Sha256 {
    let format = format!("{VERSION_MAJOR}.{VERSION_MINOR}");
    Sha256::new().chain_update(format!("smolrun cache 1, smolconv {}, {format}\0", smolconv::VERSION))
}

fn digits(hasher: Sha256) -> String {
    let mut digits = hex(&hasher.finalize());
    digits.truncate(DIGITS);
    digits
}
