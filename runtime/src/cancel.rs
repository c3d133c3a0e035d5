//! Ending work from somewhere else.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A handle that ends a generation, or what a session does, from another thread or from a signal handler. Clones are
/// the same handle.
#[derive(Clone, Default)]
pub struct CancelToken(Arc<State>);

#[derive(Default)]
struct State {
    is_cancelled: AtomicBool,
    ask: Option<Ask>,
}

type Ask = Box<dyn Fn() -> bool + Send + Sync>;

impl CancelToken {
    /// A handle that also asks `is_cancelled` whenever somebody looks at it: for hosts that must be asked, such as one
    /// whose signals are handled by the thread that computes. It is called between passes, and between
    /// continuations that are scored, on the thread that runs them; of a [`Scheduler`](crate::scheduler::Scheduler)'s
    /// requests on any of its engine's threads.
    pub fn asking(is_cancelled: impl Fn() -> bool + Send + Sync + 'static) -> CancelToken {
        let (ask, is_cancelled): (Ask, _) = (Box::new(is_cancelled), AtomicBool::new(false));
        CancelToken(Arc::new(State { is_cancelled, ask: Some(ask) }))
    }

    /// Asks every generation and session with this handle to end with its next token or pass.
    pub fn cancel(&self) {
        self.0.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether [`CancelToken::cancel`] was called, or who is asked says so.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::Relaxed) || self.0.ask.as_ref().is_some_and(|ask| ask())
    }

    /// Resets the handle for the next generation.
    pub fn reset(&self) {
        self.0.is_cancelled.store(false, Ordering::Relaxed);
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_cancelled = self.0.is_cancelled.load(Ordering::Relaxed);
        f.debug_struct("CancelToken").field("is_cancelled", &is_cancelled).finish_non_exhaustive()
    }
}
