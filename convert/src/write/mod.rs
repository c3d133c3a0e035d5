//! From a checkpoint to the blob on the disk: where every section goes, its bytes, and a name only for what is complete.

pub(crate) mod blobs;
mod blocks;
pub mod bundle;
pub mod metadata;
pub mod pack;
pub mod plan;
pub mod sections;
pub(crate) mod shelf;
pub mod stream;
pub(crate) mod target;
pub mod temp_file;
pub mod verify;
