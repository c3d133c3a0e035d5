//! The tensors of a checkpoint: where they lie, and how their bytes are read.

pub mod check;
mod delta;
mod dtype;
pub mod gguf;
pub(crate) mod mistaken;
mod safetensors;
mod shards;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

pub use self::delta::Delta;
pub use self::dtype::Dtype;
pub use self::safetensors::MAX_HEADER_LEN;

use self::mistaken::Sort;
use crate::error::{Error, Result};
use crate::json::Document;

/// Most tensors of a checkpoint; a model of a thousand layers has about ten thousand.
const MAX_TENSORS: usize = 1 << 16;

/// One file with tensors.
#[derive(Debug)]
pub struct SourceFile {
    /// Where it lies.
    pub path: PathBuf,
    /// Bytes of the file.
    pub len: u64,
    /// Where its tensors start.
    pub data_start: u64,
    file: File,
}

impl SourceFile {
    /// Fills `buffer` from `offset` on.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        read_exact_at(&self.file, buffer, offset).map_err(Error::io(&self.path))
    }
}

/// One tensor as its file's header describes it.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Index of its file in [`Source::files`].
    pub file: usize,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Where it starts in its file.
    pub offset: u64,
    /// Its bytes.
    pub len: u64,
}

/// Every tensor of a checkpoint.
#[derive(Debug)]
pub struct Source {
    /// The files that hold the tensors.
    pub files: Vec<SourceFile>,
    /// The tensors by name.
    pub tensors: BTreeMap<String, Tensor>,
    /// The index that names the files, where there are several.
    pub index: Option<Document>,
    /// The metadata of a GGUF file, or of its first part, which names its tensors in a way of its own.
    pub gguf: Option<gguf::Metadata>,
    /// What an adapter adds to matrices, by the names that they have in a SafeTensors file.
    pub deltas: BTreeMap<String, Delta>,
}

impl Source {
    /// Reads the headers of the checkpoint at `path`: a `.safetensors` file, an index of such files, or a GGUF
    /// file or any part of one.
    pub fn open(path: &Path) -> Result<Source> {
        if path.extension().is_some_and(|extension| extension == "json") {
            return mistaken::or_named(shards::open(path), path, Sort::Index);
        }
        let mut source = Source::empty();
        if gguf::is_gguf(path)? {
            source.add_gguf(path)?;
        } else {
            mistaken::or_named(source.add_safetensors(path), path, Sort::SafeTensors)?;
        }
        Ok(source)
    }

    fn empty() -> Source {
        Source {
            files: Vec::new(),
            tensors: BTreeMap::new(),
            index: None,
            gguf: None,
            deltas: BTreeMap::new(),
        }
    }

    /// Adds the tensors of the `.safetensors` file at `path`.
    fn add_safetensors(&mut self, path: &Path) -> Result<()> {
        let (file, tensors) = safetensors::open(path, self.files.len())?;
        self.add(file, tensors)
    }

    /// Adds the tensors and the metadata of the GGUF file at `path`, and of all other parts where it is one of several.
    fn add_gguf(&mut self, path: &Path) -> Result<()> {
        let (file, tensors, given) = gguf::open(path, 0)?;
        let Some(parts) = gguf::split::parts(&given)? else {
            self.gguf = Some(given);
            return self.add(file, tensors);
        };
        for (index, path) in parts.iter().enumerate() {
            if !path.exists() {
                let problem = format!("expected part {} of {}, found no such file", index + 1, parts.len());
                return Err(Error::file(path, problem));
            }
            let (file, tensors, metadata) = gguf::open(path, index).map_err(Error::within(path))?;
            gguf::split::check_part(self.gguf.as_ref().unwrap_or(&metadata), &metadata, index)?;
            self.add(file, tensors)?;
            self.gguf.get_or_insert(metadata);
        }
        self.gguf.iter().try_for_each(|first| gguf::split::check_tensors(first, self.tensors.len()))
    }

    /// Adds a file with its tensors; none of them may be there already.
    fn add(&mut self, file: SourceFile, tensors: Vec<Tensor>) -> Result<()> {
        let path = file.path.clone();
        let found = self.tensors.len() + tensors.len();
        if found > MAX_TENSORS {
            let problem =
                format!("expected at most {MAX_TENSORS} tensors in all files, found {found} with this one's");
            return Err(Error::file(&path, problem));
        }
        self.files.push(file);
        for tensor in tensors {
            if let Some(other) = self.tensors.get(&tensor.name) {
                let (first, second) = (self.files[other.file].path.display(), path.display());
                return Err(Error::tensor(
                    &tensor.name,
                    format!("expected it once, found it in {first} and {second}"),
                ));
            }
            self.tensors.insert(tensor.name.clone(), tensor);
        }
        Ok(())
    }

    /// The tensors of file `index` in the order of their bytes.
    pub fn tensors_of(&self, index: usize) -> Vec<&Tensor> {
        let mut tensors: Vec<&Tensor> = self.tensors.values().filter(|tensor| tensor.file == index).collect();
        tensors.sort_by_key(|tensor| (tensor.offset, tensor.len));
        tensors
    }
}

/// The checkpoint that `path` means: itself, or what the directory at `path` holds.
pub fn find(path: &Path) -> Result<PathBuf> {
    if !path.metadata().map_err(Error::io(path))?.is_dir() {
        return Ok(path.to_owned());
    }
    let names = ["model.safetensors", "model.safetensors.index.json"];
    for name in names {
        let file = path.join(name);
        if file.try_exists().map_err(Error::io(path))? {
            return Ok(file);
        }
    }
    let advice = mistaken::in_directory(path);
    Err(Error::file(path, format!("expected {} or {} in this directory, found {advice}", names[0], names[1])))
}

#[cfg(unix)]
fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buffer.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, buffer, offset)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => {
                buffer = &mut buffer[read..];
                offset += read as u64;
            }
        }
    }
    Ok(())
}
