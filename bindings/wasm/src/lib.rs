//! smolrun for WebAssembly: what the TypeScript package calls from its worker.
//!
//! One module runs one model, on one thread or on several that share its memory. The page gets a [`BlobBuffer`] of the file's
//! length, writes the file into it wherever its parts arrive, and makes an [`Engine`] of it: the weights are never anywhere else.

mod blob;
mod engine;
mod error;
mod options;
mod threads;

pub use self::blob::BlobBuffer;
pub use self::engine::{Engine, Piece};
pub use self::options::JsOptions;
pub use self::threads::run_thread;
use wasm_bindgen::prelude::wasm_bindgen;

/// A panic would be a bug. It becomes an error that says so, instead of a trap without words.
#[wasm_bindgen(start)]
fn start() {
    std::panic::set_hook(Box::new(|panic| wasm_bindgen::throw_val(error::bug(&panic.to_string()))));
}
