//! A generation token by token.

use std::sync::Arc;

use pyo3::prelude::*;
use smolrun::CancelToken;

use crate::failure::{Failure, Result};
use crate::held::Held;
use crate::live::{Live, Running};
use crate::model::Shared;
use crate::results::{Completion, Piece};

/// A handle that ends a generation, even one that waits for its session: for `smolrun._aio`.
#[pyclass(frozen, module = "smolrun._smolrun")]
pub(crate) struct Cancel(pub(crate) CancelToken);

#[pymethods]
impl Cancel {
    #[new]
    fn new() -> Cancel {
        Cancel(CancelToken::default())
    }

    fn cancel(&self) {
        self.0.cancel();
    }
}

/// An iterator of the pieces of a generated text.
///
/// Each step runs the model for one token, the first one for the prompt, too, while other threads have the interpreter.
/// It may be used from any thread. To leave it early, just drop it, or close it.
#[pyclass(frozen, weakref, module = "smolrun")]
pub(crate) struct Stream {
    running: Held<Running>,
    live: Arc<Held<Live>>,
    cancel: CancelToken,
    /// Whose session it has borrowed.
    home: Option<Arc<Shared>>,
}

impl Stream {
    pub(crate) fn new(
        running: Running,
        live: Arc<Held<Live>>,
        cancel: CancelToken,
        home: Option<Arc<Shared>>,
    ) -> Stream {
        Stream { running: Held::new("stream", running), live, cancel, home }
    }

    /// Runs for one piece, or `to_end`.
    fn advance(&self, py: Python<'_>, to_end: bool) -> Result<Option<Piece>> {
        let mut running = self.running.lock(py)?;
        if running.get()?.draft.finish_reason().is_some() {
            return Ok(None);
        }
        let mut live = self.live.lock(py)?;
        let piece = running.run(py, |running| {
            // The session's lock is held by this thread all the while.
            let live = live.get()?;
            while let Some(piece) = running.step(live)? {
                if !to_end {
                    return Ok(Some(piece));
                }
            }
            Ok(None)
        });
        if matches!(piece, Err(Failure::Library(smolrun::Error::Panic { .. }))) {
            live.discard();
        }
        let is_finished = running.get().is_ok_and(|running| running.draft.finish_reason().is_some());
        drop(live);
        if is_finished {
            self.give_back();
        }
        piece
    }

    /// Leaves the session to whoever asks its model next.
    fn give_back(&self) {
        if let (Some(home), Some(live)) = (&self.home, self.home.as_ref().and_then(|_| self.live.take())) {
            home.put(live.session);
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[pymethods]
impl Stream {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Piece>> {
        Ok(self.advance(py, false)?)
    }

    /// Run to the end and return all of it: also what came before, as pieces.
    fn completion(&self, py: Python<'_>) -> PyResult<Completion> {
        self.advance(py, true)?;
        Ok(self.running.lock(py)?.get()?.draft.completion())
    }

    /// The text so far.
    #[getter]
    fn text(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.running.lock(py)?.get()?.draft.text().to_owned())
    }

    /// The tokens so far.
    #[getter]
    fn ids(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        Ok(self.running.lock(py)?.get()?.draft.ids().to_vec())
    }

    /// Why it ended: "eos", "stop", "length", "context" or "cancelled"; None before its end.
    #[getter]
    fn finish_reason(&self, py: Python<'_>) -> PyResult<Option<&'static str>> {
        Ok(self.running.lock(py)?.get()?.draft.finish_reason().map(|reason| reason.name()))
    }

    /// End it with its next token, or within one pass of its prompt. Any thread may call this at any time.
    fn cancel(&self) {
        self.cancel.cancel();
    }

    /// End it, and let its session go. What was generated is lost, and every later call is an error.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.cancel.cancel();
        self.running.close(py)?;
        self.give_back();
        Ok(())
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }
}
