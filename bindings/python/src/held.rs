//! What several threads may ask for, one at a time; what can be closed; and what a fork leaves behind.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use pyo3::prelude::*;
use smolrun::CancelToken;

use crate::failure::{Failure, Result};
use crate::signals;

/// How long a thread waits for another one before it looks for signals.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// The token of no thread.
const NOBODY: usize = 0;

/// Something with threads of its own, such as a session.
pub(crate) struct Held<T> {
    /// What a person calls it.
    what: &'static str,
    process: u32,
    /// The thread that uses it.
    user: AtomicUsize,
    /// Nothing once it is closed.
    slot: Mutex<Option<T>>,
}

impl<T: Send> Held<T> {
    pub(crate) fn new(what: &'static str, value: T) -> Held<T> {
        Held { what, process: process::id(), user: AtomicUsize::new(NOBODY), slot: Mutex::new(Some(value)) }
    }

    /// Waits for it, without keeping the interpreter from others, until a signal's handler raises something.
    pub(crate) fn lock(&self, py: Python<'_>) -> Result<Guard<'_, T>> {
        self.lock_unless(py, &CancelToken::default())
    }

    /// The same, which also ends when `cancel` is used.
    pub(crate) fn lock_unless(&self, py: Python<'_>, cancel: &CancelToken) -> Result<Guard<'_, T>> {
        if self.is_foreign() {
            return Err(Failure::forked(self.what));
        }
        if self.user.load(Ordering::Relaxed) == this_thread() {
            return Err(Failure::busy(self.what));
        }
        let slot = match self.slot.try_lock() {
            Some(slot) => slot,
            None => py.detach(|| self.wait(cancel))?,
        };
        if slot.is_none() {
            return Err(Failure::closed(self.what));
        }
        self.user.store(this_thread(), Ordering::Relaxed);
        Ok(Guard { held: self, slot })
    }

    fn wait(&self, cancel: &CancelToken) -> Result<MutexGuard<'_, Option<T>>> {
        loop {
            if let Some(slot) = self.slot.try_lock_for(BETWEEN_LOOKS) {
                return Ok(slot);
            }
            if cancel.is_cancelled() || signals::is_interrupted() {
                return Err(smolrun::Error::Cancelled.into());
            }
        }
    }

    /// Closes it, once nobody uses it. That is nothing if it is closed already.
    pub(crate) fn close(&self, py: Python<'_>) -> Result<()> {
        if self.is_foreign() {
            return Ok(());
        }
        match self.lock(py) {
            Ok(mut guard) => {
                let value = guard.slot.take();
                py.detach(|| drop(value));
                Ok(())
            }
            Err(Failure::Other { code: "closed", .. }) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// Takes it away from whoever may ask for it later, if nobody uses it.
    pub(crate) fn take(&self) -> Option<T> {
        if self.is_foreign() { None } else { self.slot.try_lock()?.take() }
    }

    /// Whether its threads, and whoever had it locked, are another process's.
    fn is_foreign(&self) -> bool {
        self.process != process::id()
    }
}

impl<T> Drop for Held<T> {
    /// In a child, threads that are not there would be waited for.
    fn drop(&mut self) {
        if self.process != process::id() {
            mem::forget(self.slot.get_mut().take());
        }
    }
}

/// The right to use it.
pub(crate) struct Guard<'a, T> {
    held: &'a Held<T>,
    slot: MutexGuard<'a, Option<T>>,
}

impl<T: Send> Guard<'_, T> {
    /// The value, for what takes no time.
    pub(crate) fn get(&mut self) -> Result<&mut T> {
        self.slot.as_mut().ok_or_else(|| Failure::closed(self.held.what))
    }

    /// Works on the value while others have the interpreter. A panic closes it.
    pub(crate) fn run<R: Send>(
        &mut self,
        py: Python<'_>,
        work: impl FnOnce(&mut T) -> Result<R> + Send,
    ) -> Result<R> {
        let value = self.get()?;
        let result = py.detach(|| caught(|| work(value)));
        if matches!(result, Err(Failure::Library(smolrun::Error::Panic { .. }))) {
            self.discard();
        }
        result
    }

    /// Closes it: nobody knows what a panic left.
    pub(crate) fn discard(&mut self) {
        *self.slot = None;
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.held.user.store(NOBODY, Ordering::Relaxed);
    }
}

/// What `work` gives; an error if it panics.
pub(crate) fn caught<R>(work: impl FnOnce() -> Result<R>) -> Result<R> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(smolrun::Error::from_panic(&*panic).into()))
}

/// A number that no other living thread has.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}
