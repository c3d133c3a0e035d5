//! A model: the blob, checked once, and the forward pass over it.

mod activations;
mod attention;
mod batch;
mod engine;
mod rope;
mod weights;

use std::fmt;
#[cfg(feature = "mmap")]
use std::path::Path;
use std::sync::Arc;

pub use self::activations::Activations;
pub use self::batch::{PassError, Rows};
pub use self::engine::{Engine, EngineOptions};
use crate::error::{Error, Result};
pub use crate::exec::Fast;
use crate::format::{Config, Layout};
pub use crate::sequence::{KvDtype, Overflow, PrefixCache, Sequence};
use crate::storage::Storage;

/// An opened blob. Clones share it; it may be used from any number of threads at once.
#[derive(Clone)]
pub struct Model(Arc<Inner>);

struct Inner {
    storage: Arc<Storage>,
    layout: Layout,
}

impl Model {
    /// Maps the blob at `path`: no weight is read, copied or parsed.
    ///
    /// The header, the directory with its hash, and every section's bounds, alignment, dtype and shape are checked; the
    /// sections' content is not ([`Model::verify`] does that). The file must not be changed in place or truncated while
    /// the model lives, see [`Storage::map`]; where that cannot be promised, use [`Model::read`].
    #[cfg(feature = "mmap")]
    pub fn open(path: impl AsRef<Path>) -> Result<Model> {
        let path = path.as_ref();
        Self::from_storage(Storage::map(path).map_err(|source| Error::Io { path: path.into(), source })?)
    }

    /// Reads the blob at `path` into memory: for network mounts, and for files that others may change.
    pub fn read(path: impl AsRef<std::path::Path>) -> Result<Model> {
        let path = path.as_ref();
        Self::from_storage(Storage::read(path).map_err(|source| Error::Io { path: path.into(), source })?)
    }

    /// Uses a blob inside the program, see [`crate::include_blob!`].
    pub fn from_static(bytes: &'static [u8]) -> Result<Model> {
        Self::from_storage(Storage::Static(bytes))
    }

    /// Copies a blob from memory to where it is aligned.
    pub fn from_bytes(bytes: impl AsRef<[u8]>) -> Result<Model> {
        let bytes = bytes.as_ref();
        let out_of_memory = |_| Error::OutOfMemory { what: "the blob", bytes: bytes.len() };
        Self::from_storage(Storage::from_bytes(bytes).map_err(out_of_memory)?)
    }

    /// Uses a blob in place, without another copy: for hosts that put one together in memory themselves.
    ///
    /// Its bytes must start on a multiple of 64, as those of every [`Storage`] but [`Storage::Static`] do.
    pub fn from_storage(storage: Storage) -> Result<Model> {
        let layout = Layout::parse(storage.bytes())?;
        Ok(Model(Arc::new(Inner { storage: Arc::new(storage), layout })))
    }

    /// The hyperparameters.
    pub fn config(&self) -> &Config {
        &self.0.layout.config
    }

    /// The blob's header and sections, and where these lie.
    pub fn layout(&self) -> &Layout {
        &self.0.layout
    }

    /// The blob's bytes.
    pub fn storage(&self) -> &Arc<Storage> {
        &self.0.storage
    }

    /// How sequences keep keys and values unless they are told: in f16 where matrices are quantized, else in f32.
    pub fn default_kv_dtype(&self) -> KvDtype {
        if self.is_quantized() { KvDtype::F16 } else { KvDtype::F32 }
    }

    /// Whether a matrix is.
    pub(crate) fn is_quantized(&self) -> bool {
        self.layout().weights.dtypes().iter().any(|dtype| dtype.code_bits().is_some())
    }

    /// The checkpoint's chat template, Jinja source, if it has one.
    pub fn chat_template(&self) -> Result<Option<&str>> {
        let Some(range) = &self.0.layout.chat_template else { return Ok(None) };
        let bytes = &self.0.storage.bytes()[range.clone()];
        std::str::from_utf8(bytes).map(Some).map_err(|_| {
            let kind = crate::format::Kind::ChatTemplate.name();
            crate::format::FormatError::Table { kind, problem: "not UTF-8".into() }.into()
        })
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("config", self.config()).finish_non_exhaustive()
    }
}
