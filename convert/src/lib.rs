//! From a checkpoint to a blob.
