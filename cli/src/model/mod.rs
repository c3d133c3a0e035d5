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

use smolconv::parts::PartName;
use smolconv::{Mix, Progress};
use smolrun::Model;
use smolrun::format::MAGIC;

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
    /// Opens the blob, mapped or read.
    pub(crate) fn open(&self, no_mmap: bool) -> Result<Model> {
        let path = &self.path;
        let result = if no_mmap { Model::read(path) } else { Model::open(path) };
        let model = result.map_err(|error| match error {
            smolrun::Error::Io { .. } => error.to_string(), // names the file itself
            error => format!("{}: {error}", path.display()),
        })?;
        memory::check()?; // again, now that the blob has its part
        Ok(model)
    }
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
            Err(format!("{model}: expected a checkpoint for --dtype {dtype}, found a blob or no model")
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

fn begins_as_checkpoint(file: &Path) -> bool {
    let mut start = [0; 10];
    let Ok(mut file) = File::open(file) else { return false };
    let Ok(()) = file.read_exact(&mut start) else { return false };
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
