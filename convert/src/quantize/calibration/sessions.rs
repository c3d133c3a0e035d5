//! The model's passes, several at once.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use smolrun::{Activations, Kernels, Model, Session, SessionOptions};

use crate::progress::Progress;

/// As many sessions of one thread as there are passes at once: one pass on several threads would wait for the slowest of
/// them again and again.
pub(super) struct Sessions<'a> {
    model: &'a Model,
    options: SessionOptions,
    /// The instruction set of all of them.
    pub(super) kernels: Kernels,
    /// Those that no thread uses now.
    idle: Mutex<Vec<Session>>,
}

impl<'a> Sessions<'a> {
    pub(super) fn new(model: &'a Model, progress: &Progress) -> smolrun::Result<Sessions<'a>> {
        let options = SessionOptions::default().threads(1).cancel(progress.cancel_token());
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
