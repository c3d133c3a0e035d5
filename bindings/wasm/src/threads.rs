//! Threads: WebAssembly cannot start any, the page can. Each of its workers instantiates the module over the one shared
//! memory and calls [`run_thread`], which takes what a session has for another thread to do.

use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, PoisonError};

use smolrun::threads::Work;
use wasm_bindgen::prelude::wasm_bindgen;

/// Work that no thread has taken yet.
static WAITING: Mutex<VecDeque<Work>> = Mutex::new(VecDeque::new());
static ARRIVED: Condvar = Condvar::new();

/// Leaves `work` for the next thread that has none.
pub(crate) fn spawn(work: Work) -> io::Result<()> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner).push_back(work);
    ARRIVED.notify_one();
    Ok(())
}

/// The life of a thread, until the page ends its worker. A module without shared memory has nobody to call it.
#[wasm_bindgen(js_name = runThread)]
pub fn run_thread() {
    loop {
        take()();
    }
}

fn take() -> Work {
    let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        // What is left here may be in memory that this thread does not know of yet, as in the pool of smolrun.
        #[cfg(target_arch = "wasm32")]
        std::arch::wasm32::memory_grow::<0>(0);
        match waiting.pop_front() {
            Some(work) => return work,
            None => waiting = ARRIVED.wait(waiting).unwrap_or_else(PoisonError::into_inner),
        }
    }
}
