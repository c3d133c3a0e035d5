//! The memory that a blob is put together in.

use smolrun::Error;
use smolrun::storage::AlignedBuf;
use wasm_bindgen::prelude::*;

use crate::error::to_js;

/// Memory for a blob: aligned, zeroed, and used in place by the model that is made of it.
#[wasm_bindgen]
pub struct BlobBuffer(pub(crate) AlignedBuf<u8>);

#[wasm_bindgen]
impl BlobBuffer {
    /// Room for `length` bytes. The module's memory grows once, and views of it that the page holds become useless.
    #[wasm_bindgen(constructor)]
    pub fn new(length: f64) -> Result<BlobBuffer, JsValue> {
        let bytes = length as usize; // saturates: past what can be addressed there is no memory either
        AlignedBuf::zeroed(bytes)
            .map(BlobBuffer)
            .ok_or_else(|| to_js(Error::OutOfMemory { what: "the blob", bytes }))
    }

    /// Where it begins in the module's memory: the page writes there itself.
    #[wasm_bindgen(getter)]
    pub fn pointer(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }
}
