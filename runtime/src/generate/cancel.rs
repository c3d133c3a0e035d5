//! Ending a generation from somewhere else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A handle that ends a generation from another thread, or from a signal handler. Clones are the same handle.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// Asks every generation with this handle to end with its next token.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether [`CancelToken::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Resets the handle for the next generation.
    pub fn reset(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
