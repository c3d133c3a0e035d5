//! Many requests at once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyException;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator};
use smolrun::engine::{Engine, EngineOptions};
use smolrun::scheduler::{Event, Request, RequestId, Scheduler, SchedulerOptions};
use smolrun::tokenizer::Tokenizer;

use crate::failure::{Failure, Result};
use crate::held::Held;
use crate::model::Shared;
use crate::options::Options;
use crate::prompt::{Prompt, at_least_one, dict_of, is_mapping};
use crate::results::{Completion, Draft, Piece};

/// Requests that wait for those that run: as many as may end in one pass, so that their places are never empty.
const MOST_WAITING: usize = 64;
/// Results that wait for an earlier one.
const MOST_READY: usize = 4096;

/// How a batch is run.
pub(crate) struct How {
    pub(crate) ordered: bool,
    pub(crate) return_exceptions: bool,
    pub(crate) sequences: usize,
    pub(crate) kv_memory: Option<usize>,
    pub(crate) prefix_memory: usize,
}

/// An iterator of the Completions of many requests.
#[pyclass(frozen, generic, weakref, module = "smolrun")]
pub(crate) struct Batch {
    shared: Arc<Shared>,
    how: How,
    requests: Py<PyIterator>,
    /// For all requests.
    options: Option<Py<PyDict>>,
    work: Held<Work>,
    /// Whether whoever runs it is to end, for it is being closed.
    is_closing: AtomicBool,
}

/// Requests on their way to results.
struct Work {
    scheduler: Scheduler,
    tokenizer: Tokenizer,
    /// Of the requests that the scheduler has, with their numbers.
    drafts: HashMap<RequestId, (usize, Draft)>,
    /// Results that were not asked for yet.
    ready: BTreeMap<usize, Result<Completion>>,
    /// The next request's number, and the next result's if they come in order.
    begun: usize,
    given: usize,
    is_at_end: bool,
}

impl Batch {
    pub(crate) fn new(
        py: Python<'_>,
        shared: Arc<Shared>,
        requests: Bound<'_, PyIterator>,
        how: How,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Batch> {
        // What is wrong with the options is said at once.
        Options::new(&shared.model, false).read(options)?;
        let work = py.detach(|| Work::new(&shared, &how))?;
        let options = options.map(|options| options.copy()).transpose()?.map(Bound::unbind);
        let (requests, work) = (requests.unbind(), Held::new("batch", work));
        Ok(Batch { shared, how, requests, options, work, is_closing: AtomicBool::new(false) })
    }

    /// Reads requests, so that the scheduler always has one to go on with.
    fn fill(&self, py: Python<'_>, work: &mut Work) -> Result<()> {
        while work.wants_more() {
            match self.requests.bind(py).clone().next() {
                None => work.is_at_end = true,
                Some(request) => {
                    let (number, request) = (work.begun, request?);
                    work.begun += 1;
                    if let Err(failure) = self.submit(&request, number, work) {
                        work.refuse(py, number, failure)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn submit(&self, request: &Bound<'_, PyAny>, number: usize, work: &mut Work) -> Result<()> {
        let (py, model, start) = (request.py(), &self.shared.model, Instant::now());
        let (prompt, own) = parts(request)?;
        let prompt = Prompt::read(&prompt)?;
        let mut options = Options::new(model, prompt.is_chat());
        options.read(self.options.as_ref().map(|options| options.bind(py)))?;
        let seed = options.generate.sampling.seed.wrapping_add(number as u64);
        options.has_seed = false;
        options.read(own.as_ref())?;
        if !options.has_seed {
            options.generate.sampling.seed = seed;
        }
        let most = model.config().max_position_embeddings;
        let ids = py.detach(|| prompt.encode(model, &options.encoding, most, false))?;
        let generate = options.into_generate(model);
        let draft = Draft::new(&generate, ids.len(), 0, start);
        at_least_one(&ids)?;
        let id = work.scheduler.submit(Request::new(ids, generate))?;
        work.drafts.insert(id, (number, draft));
        Ok(())
    }

    /// What is returned for a result.
    fn result(&self, py: Python<'_>, number: usize, result: Result<Completion>) -> PyResult<Py<PyAny>> {
        let result = match result.map_err(PyErr::from) {
            Ok(completion) => completion.into_py_any(py)?,
            Err(error) if self.how.return_exceptions => error.into_value(py).into_py_any(py)?,
            Err(error) => return Err(error),
        };
        if self.how.ordered { Ok(result) } else { (number, result).into_py_any(py) }
    }
}

/// The prompt of a request, and its own options.
fn parts<'py>(request: &Bound<'py, PyAny>) -> Result<(Bound<'py, PyAny>, Option<Bound<'py, PyDict>>)> {
    if !is_mapping(request)? {
        return Ok((request.clone(), None));
    }
    let own = dict_of(request)?;
    let mut given = Vec::new();
    for name in ["prompt", "messages"] {
        if let Some(prompt) = own.get_item(name)? {
            own.del_item(name)?;
            given.push(prompt);
        }
    }
    let count = given.len();
    match given.pop() {
        Some(prompt) if count == 1 => Ok((prompt, Some(own))),
        _ => {
            let found = if count == 0 { "neither" } else { "both" };
            Err(Failure::argument(format!("a request: expected a prompt or messages, found {found}")))
        }
    }
}

impl Work {
    fn new(shared: &Shared, how: &How) -> Result<Work> {
        if !(1..=Engine::MAX_ROWS).contains(&how.sequences) {
            let (most, found) = (Engine::MAX_ROWS, how.sequences);
            return Err(Failure::argument(format!("sequences: expected 1 to {most}, found {found}")));
        }
        let mut engine = EngineOptions::default();
        engine.threads = shared.settings.threads;
        let megabytes = |count: usize| count.saturating_mul(1_000_000);
        // All together are to be done soon: none is waited for.
        let mut options = SchedulerOptions::default()
            .max_sequences(how.sequences)
            .pace(f32::INFINITY)
            .kv_bytes(how.kv_memory.map_or(usize::MAX, megabytes))
            .prefix_bytes(megabytes(how.prefix_memory))
            .overflow(shared.settings.overflow);
        options.kv_dtype = shared.settings.kv;
        Ok(Work {
            scheduler: Scheduler::new(Engine::new(&shared.model, engine)?, options)?,
            tokenizer: shared.model.tokenizer(),
            drafts: HashMap::new(),
            ready: BTreeMap::new(),
            begun: 0,
            given: 0,
            is_at_end: false,
        })
    }

    /// A request's failure is its result. What is no failure of its own, such as Ctrl-C, is raised at once.
    fn refuse(&mut self, py: Python<'_>, number: usize, failure: Failure) -> Result<()> {
        let (result, raised) = match failure {
            Failure::Python(error) if !error.is_instance_of::<PyException>(py) => {
                (smolrun::Error::Cancelled.into(), Err(error.into()))
            }
            failure => (failure, Ok(())),
        };
        self.ready.insert(number, Err(result));
        raised
    }

    fn wants_more(&self) -> bool {
        !self.is_at_end && self.scheduler.waiting() < MOST_WAITING && self.ready.len() < MOST_READY
    }

    /// The next result to give, if it is there.
    fn next_ready(&mut self, ordered: bool) -> Option<(usize, Result<Completion>)> {
        if ordered {
            let result = self.ready.remove(&self.given)?;
            self.given += 1;
            return Some((self.given - 1, result));
        }
        self.ready.pop_first()
    }

    /// Runs passes until one of them has ended a request.
    fn step(&mut self) -> Result<()> {
        let Work { scheduler, tokenizer, drafts, ready, .. } = self;
        scheduler.step(|id, event| {
            let is_last = event.is_last();
            let Some((number, draft)) = drafts.get_mut(&id) else { return };
            let outcome = match event {
                Event::Token(token) => {
                    let reason = token.finish_reason;
                    Piece::of(token, tokenizer).map(|piece| {
                        draft.push(&piece);
                        reason.into_iter().for_each(|reason| draft.finish(reason));
                    })
                }
                Event::Finished(reason) => {
                    draft.finish(reason);
                    Ok(())
                }
                Event::Failed(error) => Err(error.into()),
                _ => Ok(()),
            };
            if is_last || outcome.is_err() {
                ready.insert(*number, outcome.map(|()| draft.completion()));
                drafts.remove(&id);
            }
        })?;
        Ok(())
    }
}

#[pymethods]
impl Batch {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let mut guard = self.work.lock(py)?;
        loop {
            if self.is_closing.load(Ordering::Relaxed) {
                return Err(Failure::closed("batch").into());
            }
            let work = guard.get()?;
            if let Some((number, result)) = work.next_ready(self.how.ordered) {
                drop(guard);
                return self.result(py, number, result).map(Some);
            }
            self.fill(py, work)?;
            if work.is_at_end && work.scheduler.is_idle() && work.ready.is_empty() {
                return Ok(None);
            }
            if !work.scheduler.is_idle() {
                guard.run(py, Work::step)?;
            }
            py.check_signals()?;
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        visit.call(&self.requests)?;
        visit.call(&self.options)
    }

    /// End all that runs, within one pass, and let its memory and its threads go. Every later call is an error.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.is_closing.store(true, Ordering::Relaxed);
        Ok(self.work.close(py)?)
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }
}
