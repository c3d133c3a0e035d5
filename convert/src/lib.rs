//! From a checkpoint to a blob.

pub mod tokenizer_json;
