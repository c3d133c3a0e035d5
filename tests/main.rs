//! The black-box tests that can share a process: one program links once, and its tests keep both cores busy.
//!
//! Those with an allocator or an environment of their own are programs of their own (see `Cargo.toml`).

mod architecture;
mod batch;
mod bench;
mod bindings;
mod broken_blobs;
mod bundle;
mod calibrate;
mod chat;
mod codegen;
mod convert;
mod determinism;
mod ease;
mod embed;
mod engine;
mod family;
mod fast;
mod generation;
mod gguf;
mod gguf_family;
mod gguf_split;
mod hidden;
mod import_graph;
mod info;
mod limits;
mod lora;
mod overflow;
mod perplexity;
mod published_templates;
mod quantize;
mod reference;
mod saved_session;
mod scheduler;
mod scoring;
mod session;
mod smolrun_cli;
mod smolrun_harm;
mod smolrun_input;
mod smolrun_sampling;
mod spec_reader;
mod terminal;
mod terminal_commands;
mod tokenizer;
mod versions;
mod vocabularies;
