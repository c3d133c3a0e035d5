//! What stands behind the handles that one call at a time may use: a session, a scheduler.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, TryLockError};

use smolrun_runtime::engine::Engine;
use smolrun_runtime::generation::Generation;
use smolrun_runtime::scheduler::{Event, Request, RequestId, Scheduler};
use smolrun_runtime::{CancelToken, FinishReason, GenerateOptions, Model, Session, SessionOptions};

use crate::failure::{Failure, Result};
use crate::raw::View;
use crate::shown::{CEvent, CToken, ShownEvent, ShownToken};
use crate::structs::CSchedulerOptions;

/// What one call at a time may use. A second call at the same time is told so, and so is any after a panic.
pub(crate) struct Handle<T>(Mutex<T>);

impl<T> Handle<T> {
    pub(crate) fn new(inner: T) -> Handle<T> {
        Handle(Mutex::new(inner))
    }

    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, T>> {
        self.0.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => Failure::Busy,
            TryLockError::Poisoned(_) => Failure::Broken,
        })
    }
}

/// `smolrun_session`.
pub(crate) type SessionHandle = Handle<Generator>;
/// `smolrun_scheduler`.
pub(crate) type SchedulerHandle = Handle<Events>;

/// What C may hand from thread to thread, and use from several.
const _: () = {
    const fn is_for_threads<T: Send + Sync>() {}
    is_for_threads::<SessionHandle>();
    is_for_threads::<SchedulerHandle>();
    is_for_threads::<Model>();
    is_for_threads::<CancelToken>();
};

/// A session with what it generates.
pub(crate) struct Generator {
    session: Session,
    generation: Option<Generation>,
    finish_reason: Option<FinishReason>,
    /// What C reads, and its memory.
    view: View<Option<CToken>>,
    token: ShownToken,
}

impl Generator {
    pub(crate) fn new(model: &Model, options: SessionOptions) -> Result<Generator> {
        Ok(Generator::of(Session::new(model, options)?))
    }

    fn of(session: Session) -> Generator {
        let (generation, finish_reason, view, token) = Default::default();
        Generator { session, generation, finish_reason, view, token }
    }

    /// Another one that goes on from here, without what this one is generating.
    pub(crate) fn fork(&self) -> Result<Generator> {
        Ok(Generator::of(self.session.fork()?))
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// The session, to be changed: what was being generated ends.
    pub(crate) fn change(&mut self) -> &mut Session {
        self.generation = None;
        &mut self.session
    }

    pub(crate) fn begin(&mut self, prompt: &[u32], options: GenerateOptions) -> Result<()> {
        let generation = Generation::new(&self.session, prompt, options)?;
        self.finish_reason = generation.finish_reason();
        self.generation = Some(generation);
        Ok(())
    }

    /// The next token; none after the last.
    pub(crate) fn next(&mut self) -> Result<Option<&CToken>> {
        *self.view = None;
        let Some(generation) = &mut self.generation else { return Ok(None) };
        let token = generation.next(&mut self.session).transpose();
        self.finish_reason = generation.finish_reason(); // after an error, too: to be cancelled is one
        let Some(token) = token? else { return Ok(None) };
        self.token = ShownToken::new(token);
        Ok(Some(self.view.insert(self.token.view())))
    }

    /// Why the last generation ended, once it has.
    pub(crate) fn finish_reason(&self) -> Option<FinishReason> {
        self.finish_reason
    }
}

/// A scheduler with what it has told of.
pub(crate) struct Events {
    scheduler: Scheduler,
    waiting: VecDeque<(RequestId, Event)>,
    /// What C reads, and its memory.
    token: View<Option<CToken>>,
    view: View<Option<CEvent>>,
    shown: Option<ShownEvent>,
}

impl Events {
    pub(crate) fn new(model: &Model, options: CSchedulerOptions) -> Result<Events> {
        let (engine, options) = options.read()?;
        let scheduler = Scheduler::new(Engine::new(model, engine)?, options)?;
        let (waiting, token, view, shown) = Default::default();
        Ok(Events { scheduler, waiting, token, view, shown })
    }

    pub(crate) fn model(&self) -> &Model {
        self.scheduler.engine().model()
    }

    pub(crate) fn submit(&mut self, request: Request) -> Result<u64> {
        Ok(self.scheduler.submit(request)?.number())
    }

    /// The next event, after as many passes as it takes; none if there is nothing left to do.
    pub(crate) fn next(&mut self) -> Result<Option<&CEvent>> {
        (*self.view, *self.token) = (None, None);
        while self.waiting.is_empty() && !self.scheduler.is_idle() {
            self.scheduler.step(|id, event| self.waiting.push_back((id, event)))?;
        }
        let Some((id, event)) = self.waiting.pop_front() else { return Ok(None) };
        let shown = self.shown.insert(ShownEvent::new(id.number(), event));
        *self.token = shown.token();
        Ok(Some(self.view.insert(shown.view(self.token.as_ref()))))
    }
}
