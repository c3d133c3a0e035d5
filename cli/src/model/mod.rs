//! What a model's name means: a blob, or a checkpoint that becomes one in the cache, once.

mod args;
mod entry;
mod prepare;
mod record;

use std::error::Error;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use smolconv::bundle::Bundle;
use smolconv::parts::PartName;
use smolconv::{Mix, Progress};
use smolrun::Model;
use smolrun::format::MAGIC;
use smolrun::storage::Storage;

pub(crate) use self::args::{DtypeArgs, ModelArgs};
pub(crate) use self::entry::{Cache, Entry};
use self::prepare::prepare;
use crate::output::tell;
use crate::{interrupt, memory};

/// A result with an error for people.
pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A blob to run.
pub struct Blob {
    /// Where it lies.
    pub path: PathBuf,
    /// What a person calls it.
    pub name: String,
}

/// Who waits while a model is fetched and converted.
pub struct Listener<'a> {
    /// Called before this begins, unless there is nothing to do. It gives the progress that the work reports to.
    pub begin: &'a dyn Fn() -> Progress,
    /// Called with what a person may want to know.
    pub tell: &'a dyn Fn(&str),
}

impl Listener<'_> {
    /// This program: it ends on signals from then on, and has a bar on a terminal.
    pub(crate) fn program() -> Listener<'static> {
        Listener { begin: &begin, tell: &tell }
    }
}

impl ModelArgs {
    /// Opens the model, after it was fetched and converted if that was not done before.
    pub(crate) fn open(&self) -> Result<Model> {
        self.blob()?.open(false)
    }

    /// The blob of the model, made if it is not there.
    pub(crate) fn blob(&self) -> Result<Blob> {
        blob_of(&self.model, self.dtype.mix(), &Listener::program())
    }
}

impl Blob {
    /// Opens the blob, also one in a bundle: mapped, or with `no_mmap` read.
    ///
    /// # Errors
    /// smolrun's, or smolconv's if the file is a damaged bundle.
    pub fn model(&self, no_mmap: bool) -> Result<Model> {
        let path = &self.path;
        let bundle = if begins_as_program(path) { Bundle::find(path)? } else { None };
        Ok(match (bundle, no_mmap) {
            (Some(bundle), _) => open_bundled(path, bundle, no_mmap),
            (None, true) => Model::read(path),
            (None, false) => Model::open(path),
        }?)
    }

    /// As [`Blob::model`], for this program: with errors that name the file, and memory to go on with.
    pub(crate) fn open(&self, no_mmap: bool) -> Result<Model> {
        let model = self.model(no_mmap).map_err(|error| match error.downcast_ref() {
            None | Some(smolrun::Error::Io { .. }) => error, // names the file itself
            Some(of_blob) => format!("{}: {of_blob}", self.path.display()).into(),
        })?;
        memory::check()?; // again, now that the blob has its part
        Ok(model)
    }
}

/// Maps the blob of a bundle where it lies, or copies it from there.
fn open_bundled(path: &Path, bundle: Bundle, no_mmap: bool) -> smolrun::Result<Model> {
    let mapped = Storage::map_range(path, bundle.blob);
    let mapped = mapped.map_err(|source| smolrun::Error::Io { path: path.into(), source })?;
    if no_mmap { Model::from_bytes(mapped.bytes()) } else { Model::from_storage(mapped) }
}

fn begin() -> Progress {
    interrupt::end_on_signals();
    Progress::new(false)
}

/// The blob that `model` means: itself, or what the cache has of it as `mix`, made if it has nothing. A path that is
/// there comes before a name.
pub fn blob_of(model: &Path, mix: Option<Mix>, listener: &Listener<'_>) -> Result<Blob> {
    if is_checkpoint(model) {
        return prepare(model, mix.unwrap_or(Mix::Auto), listener);
    }
    match mix {
        Some(mix) if model.exists() => {
            let (model, dtype) = (model.display(), mix.name());
            Err(format!("{model}: expected a checkpoint for --dtype {dtype}, found a blob or another file")
                .into())
        }
        _ => Ok(Blob { path: model.to_owned(), name: name(model) }),
    }
}

/// Whether `model` is to be converted: a directory, a file that begins as a checkpoint's do, or a name. Everything else
/// is taken for a blob, which says itself what is wrong with it.
fn is_checkpoint(model: &Path) -> bool {
    let Ok(found) = model.metadata() else { return prepare::is_name(model) };
    found.is_dir() || found.is_file() && begins_as_checkpoint(model)
}

/// Whether the file may be a bundle.
fn begins_as_program(file: &Path) -> bool {
    file.is_file() && start_of(file).is_some_and(|start: [u8; 4]| start == *b"\x7fELF")
}

fn start_of<const LEN: usize>(file: &Path) -> Option<[u8; LEN]> {
    let mut start = [0; LEN];
    File::open(file).ok()?.read_exact(&mut start).ok()?;
    Some(start)
}

fn begins_as_checkpoint(file: &Path) -> bool {
    let Some(start) = start_of::<10>(file) else { return false };
    let is_json = start.trim_ascii_start().starts_with(b"{");
    !start.starts_with(&MAGIC) && (start.starts_with(b"GGUF") || &start[8..] == b"{\"" || is_json)
}

/// The last part of `path`, without the end of a file's name, and of a file in parts without its number.
fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    let ends = [".bin", ".gguf", ".safetensors.index.json", ".safetensors"];
    let text = OsStr::to_string_lossy(name);
    let stem = ends.iter().find_map(|end| text.strip_suffix(end)).filter(|stem| !stem.is_empty());
    PartName::of(&text).map(|part| part.stem).or(stem).unwrap_or(&text).to_owned()
}
