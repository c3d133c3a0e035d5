//! One sequence of tokens that several calls go on with.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use numpy::PyArray2;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use smolrun::generation::Generation;

use crate::arrays::{Matrix, vector};
use crate::failure::Result;
use crate::held::Held;
use crate::live::{Live, Running};
use crate::model::Shared;
use crate::options::{self, Options};
use crate::prompt::{Encoding, Prompt};
use crate::results::{Completion, Draft};
use crate::stream::Stream;

/// One sequence of tokens, with keys and values of its own: a conversation, or a text that grows.
///
/// A text or ids are appended to what the session holds. Messages are the whole conversation: what the session holds of
/// it already is not computed again. Threads may share a session; their calls wait for one another.
#[pyclass(frozen, weakref, module = "smolrun")]
pub(crate) struct Session {
    shared: Arc<Shared>,
    live: Arc<Held<Live>>,
}

impl Session {
    pub(crate) fn new(shared: Arc<Shared>, live: Live) -> Session {
        Session { shared, live: Arc::new(Held::new("session", live)) }
    }

    /// Appends `prompt` and lets `work` see it, with the number of tokens before it that are appended, too.
    fn append<R: Send>(
        &self,
        py: Python<'_>,
        prompt: Prompt,
        work: impl FnOnce(&mut smolrun::Session, &[u32], usize) -> Result<R> + Send,
    ) -> Result<R> {
        let mut live = self.live.lock(py)?;
        live.run(py, |live| {
            let (goes_on, most) = (!live.is_empty(), live.session.most_tokens());
            let ids = prompt.encode(live.session.model(), &Encoding::default(), most, goes_on)?;
            let (ids, before) = live.begin(ids)?;
            live.append(|session| work(session, &ids, before))
        })
    }
}

/// What is to be generated, and after what.
pub(crate) struct Request {
    prompt: Prompt,
    options: Options,
    /// Whether the prompt is all of the sequence, not something more.
    is_whole: bool,
    start: Instant,
}

impl Request {
    /// A prompt `is_whole` if it is a conversation, or is said to be.
    pub(crate) fn new(
        model: &smolrun::Model,
        prompt: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
        is_whole: bool,
    ) -> PyResult<Request> {
        let (start, prompt) = (Instant::now(), Prompt::read(prompt)?);
        let mut asked = Options::new(model, prompt.is_chat());
        asked.read(options)?;
        Ok(Request { is_whole: is_whole || prompt.is_chat(), prompt, options: asked, start })
    }

    /// Begins it; `home` is where the session goes when it has ended.
    pub(crate) fn stream(
        self,
        py: Python<'_>,
        live: &Arc<Held<Live>>,
        home: Option<Arc<Shared>>,
    ) -> Result<Stream> {
        let cancel = self.options.cancel_token().clone();
        let running = live.lock_unless(py, &cancel)?.run(py, |live| self.begin(live))?;
        Ok(Stream::new(running, live.clone(), cancel, home))
    }

    /// Generates all of it, with nothing else on the session in between.
    pub(crate) fn complete(self, py: Python<'_>, live: &Held<Live>) -> Result<Completion> {
        live.lock(py)?.run(py, |live| {
            let mut running = self.begin(live)?;
            while running.step(live)?.is_some() {}
            Ok(running.draft.completion())
        })
    }

    fn begin(self, live: &mut Live) -> Result<Running> {
        let Request { prompt, options, is_whole, start } = self;
        let (goes_on, most) = (!is_whole && !live.is_empty(), live.session.most_tokens());
        let ids = prompt.encode(live.session.model(), &options.encoding, most, goes_on)?;
        let generate = options.into_generate(live.session.model());
        // Up to here nothing has changed.
        generate.check(live.session.model())?;
        if generate.cancel.is_cancelled() {
            return Err(smolrun::Error::Cancelled.into());
        }
        let (ids, kept) = match is_whole {
            true => {
                let kept = live.begin_anew(&ids)?;
                (ids, kept)
            }
            false => (live.begin(ids)?.0, 0),
        };
        let draft = Draft::new(&generate, ids.len(), kept, start);
        let generation = Generation::new(&live.session, &ids[kept..], generate)?;
        Ok(live.run(generation, draft))
    }
}

#[pymethods]
impl Session {
    /// Continue the sequence with prompt, and generate what follows.
    ///
    /// prompt is a str or token ids, which are appended, or messages: the whole conversation. With "" nothing is
    /// appended. Options are those of Model.generate. With stream=True it returns an iterator of pieces, else a
    /// Completion. A stream ends when something else is begun on its session. A call that is refused changes nothing.
    #[pyo3(signature = (prompt, *, stream = false, **options))]
    fn generate(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        stream: bool,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        let request = Request::new(&self.shared.model, prompt, options, false)?;
        match stream {
            true => request.stream(py, &self.live, None)?.into_py_any(py),
            false => request.complete(py, &self.live)?.into_py_any(py),
        }
    }

    /// As generate, in a thread of the event loop's: await it, or with stream=True iterate by async for.
    #[pyo3(signature = (prompt, *, stream = false, **options))]
    fn agenerate(
        slf: &Bound<'_, Self>,
        prompt: &Bound<'_, PyAny>,
        stream: bool,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        crate::model::agenerate(slf, prompt, stream, options)
    }

    /// Append prompt, and return the logits after its last token: a numpy array of f32, [vocab_size]. With all=True
    /// those after each of its tokens, [tokens, vocab_size].
    #[pyo3(signature = (prompt, *, all = false))]
    fn logits(&self, py: Python<'_>, prompt: &Bound<'_, PyAny>, all: bool) -> PyResult<Py<PyAny>> {
        let prompt = Prompt::read(prompt)?;
        if all {
            return self.append(py, prompt, Matrix::logits)?.into_array(py)?.into_py_any(py);
        }
        let logits = self.append(py, prompt, |session, ids, _| Ok(session.feed(ids)?.to_vec()))?;
        vector(py, logits)?.into_py_any(py)
    }

    /// Append prompt, and return the last layer's hidden states of its tokens, after the final norm: a numpy array of
    /// f32, [tokens, hidden_size].
    fn hidden<'py>(
        &self,
        py: Python<'py>,
        prompt: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let prompt = Prompt::read(prompt)?;
        self.append(py, prompt, Matrix::hidden)?.into_array(py)
    }

    /// Another session that goes on from here. Both share what was computed so far.
    fn fork(&self, py: Python<'_>) -> PyResult<Session> {
        let live = self.live.lock(py)?.run(py, |live| live.fork())?;
        Ok(Session::new(self.shared.clone(), live))
    }

    /// Write the sequence with its keys and values to a file, which nobody else may read. Where the context is full, it has no
    /// place for the last token, and neither has the file.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let mut live = self.live.lock(py)?;
        Ok(live.run(py, |live| {
            live.settle()?;
            Ok(live.session.save(&path)?)
        })?)
    }

    /// Become the sequence in a file that save wrote, of the same model. After an error the session is empty. Where the
    /// blob is mapped, so is the file: it must not be changed in place while the session lives.
    fn load(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let mut live = self.live.lock(py)?;
        Ok(live.run(py, |live| {
            live.forget();
            Ok(live.session.load(&path)?)
        })?)
    }

    /// Forget all tokens from position on.
    fn truncate(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = options::position)] position: usize,
    ) -> PyResult<()> {
        self.live.lock(py)?.get()?.truncate(position);
        Ok(())
    }

    /// The tokens so far.
    #[getter]
    fn tokens(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        Ok(self.live.lock(py)?.get()?.tokens())
    }

    /// Bytes that its keys and values take.
    #[getter]
    fn cache_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.live.lock(py)?.get()?.session.cache_bytes())
    }

    /// Let its memory and its threads go. Every later call is an error.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        Ok(self.live.close(py)?)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.live.lock(py)?.get()?.tokens().len())
    }

    /// Always true: it is there, whatever it holds.
    fn __bool__(&self) -> bool {
        true
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }
}
