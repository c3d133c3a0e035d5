//! The model's passes, several at once.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use smolrun::{Activations, Kernels, Model, Session, SessionOptions};

use crate::progress::Progress;

/// A session for each of the passes that run at once, with as few threads as make use of all: a pass on several threads
/// waits for the slowest of them at every step.
pub(super) struct Sessions<'a> {
    model: &'a Model,
    options: SessionOptions,
    /// The instruction set of all of them.
    pub(super) kernels: Kernels,
    /// Those that no thread uses now.
    idle: Mutex<Vec<Session>>,
}

impl<'a> Sessions<'a> {
    /// For at most `passes` at once.
    pub(super) fn new(model: &'a Model, passes: usize, progress: &Progress) -> smolrun::Result<Sessions<'a>> {
        let threads = rayon::current_num_threads().div_ceil(passes);
        let options = SessionOptions::default().threads(threads).cancel(progress.cancel_token());
        let first = Session::new(model, options.clone())?;
        Ok(Sessions { model, options, kernels: first.kernels(), idle: Mutex::new(vec![first]) })
    }

    /// As [`Session::feed_observed`].
    pub(super) fn feed_observed(
        &self,
        tokens: &[u32],
        layers: Range<usize>,
        stream: &mut Vec<f32>,
        see: impl FnMut(Activations<'_>),
    ) -> smolrun::Result<()> {
        let idle = self.idle().pop();
        let mut session = idle.map_or_else(|| Session::new(self.model, self.options.clone()), Ok)?;
        session.feed_observed(tokens, layers, stream, see)?;
        self.idle().push(session);
        Ok(())
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Session>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
