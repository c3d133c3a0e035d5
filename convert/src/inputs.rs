//! Which files a conversion reads, and what identifies it: for a cache of blobs.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::checkpoint::{Checkpoint, tensor_map};
use crate::error::{Error, Result};
use crate::files;
use crate::options::{Mix, Options};
use crate::progress::Progress;
use crate::source;

/// What lies beside a checkpoint's weights and is read where it is there, and the weights themselves.
const BESIDE: [&str; 7] = [
    "model.safetensors",
    "model.safetensors.index.json",
    "config.json",
    "tokenizer.json",
    "generation_config.json",
    "tokenizer_config.json",
    "chat_template.jinja",
];

/// What a conversion reads.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// The files, the weights first.
    pub files: Vec<PathBuf>,
    /// Files that are not there, and would be read if they were.
    pub absent: Vec<PathBuf>,
    /// What the matrices become: [`Mix::Auto`] is decided.
    pub mix: Mix,
}

impl Inputs {
    /// Reads the headers and the small files of the checkpoint that `options` name, and refuses what [`convert()`]
    /// would.
    ///
    /// [`convert()`]: crate::convert()
    pub fn of(options: &Options) -> Result<Inputs> {
        Inputs::read(options).map_err(Error::within(&options.source))
    }

    fn read(options: &Options) -> Result<Inputs> {
        let weights = source::find(&options.source)?;
        let Checkpoint { source, model, documents, .. } = Checkpoint::open(options)?;
        let bindings = tensor_map::bind(&model.config, model.extras, &source)?;
        let mix = options.weights.mix.resolve(&bindings);
        let shards = source.files.iter().map(|file| &file.path);
        let files: Vec<PathBuf> =
            shards.chain(documents.iter().map(|document| &document.path)).cloned().collect();
        let mut absent: Vec<PathBuf> = Vec::new();
        if source.gguf.is_none() {
            absent.extend(BESIDE.iter().map(|name| weights.with_file_name(name)));
            absent.retain(|path| !path.exists());
        }
        Ok(Inputs { files, absent, mix })
    }

    /// Bytes of all files together.
    pub fn bytes(&self) -> Result<u64> {
        self.files.iter().map(|path| Ok(path.metadata().map_err(Error::io(path))?.len())).sum()
    }

    /// A hash of every file's name and content, whatever directory they lie in.
    pub fn sha256(&self, progress: &Progress) -> Result<[u8; 32]> {
        progress.start("hashing", self.bytes()?);
        let mut records = Vec::new();
        for path in &self.files {
            records.push((name(path), files::sha256(path, |read| progress.add(read))?));
        }
        records.sort();
        let mut hasher = Sha256::new();
        for (name, hash) in records {
            hasher.update((name.len() as u64).to_le_bytes());
            hasher.update(name);
            hasher.update(hash);
        }
        Ok(hasher.finalize().into())
    }
}

fn name(path: &Path) -> Vec<u8> {
    path.file_name().unwrap_or_default().as_encoded_bytes().to_vec()
}
