//! A model: an opened blob, and what can be asked of it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process;
use std::sync::{Arc, Mutex, PoisonError};

use numpy::{PyArray1, PyArray2};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};
use smolrun::chat::ChatOptions;
use smolrun::embedding::Pooling;
use smolrun::eval::PerplexityOptions;
use smolrun::{CancelToken, KvDtype, Overflow, SessionOptions, SpecialTokens};

use crate::arrays::{Matrix, vector};
use crate::batch::Batch;
use crate::failure::{Failure, Result, unless_raised, wrong_type};
use crate::held::{Held, caught};
use crate::live::Live;
use crate::load::Source;
use crate::options::{self, change, not_one_of};
use crate::prompt::{Encoding, Prompt, at_least_one, is_mapping, json_of, token_ids};
use crate::results::{Perplexity, Score};
use crate::session::{Request, Session};
use crate::signals;

/// A language model. smolrun.load opens one.
///
/// It may be used from any number of threads at once. Each call has a session of its own, with threads of its own; for
/// many prompts at once there is batch. In a child that was forked it works as before. Pickling it sends what it was
/// loaded from.
#[pyclass(frozen, weakref, module = "smolrun")]
pub(crate) struct Model {
    source: Source,
    /// Nothing once it is closed. Held only by who has the interpreter, and so by nobody when it forks.
    shared: Mutex<Option<Arc<Shared>>>,
}

/// A model as its sessions share it.
pub(crate) struct Shared {
    pub(crate) model: smolrun::Model,
    pub(crate) settings: Settings,
    /// The session that was used last, and the process that it has threads in: its next call computes nothing again
    /// that the two have in common. As [`Model::shared`], held only by who has the interpreter.
    idle: Mutex<Option<(u32, smolrun::Session)>>,
}

/// How sessions compute.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) threads: Option<usize>,
    pub(crate) kv: Option<KvDtype>,
    pub(crate) overflow: Overflow,
    pub(crate) fast: bool,
}

impl Shared {
    /// A new session, which ends between passes when a signal's handler raises something.
    fn session(&self) -> Result<smolrun::Session> {
        let Settings { threads, kv, overflow, fast } = self.settings;
        let cancel = CancelToken::asking(signals::is_interrupted);
        let mut options = SessionOptions::default().overflow(overflow).fast(fast).cancel(&cancel);
        (options.threads, options.kv_dtype) = (threads, kv);
        Ok(smolrun::Session::new(&self.model, options)?)
    }

    /// The session that was used last, unless somebody uses it.
    fn take(&self) -> Option<smolrun::Session> {
        let (process, session) = self.idle.try_lock().ok()?.take()?;
        if process == process::id() {
            return Some(session);
        }
        std::mem::forget(session); // its threads are the parent's
        None
    }

    /// Takes a session back that nobody uses any more.
    pub(crate) fn put(&self, session: smolrun::Session) {
        if let Ok(mut idle) = self.idle.try_lock() {
            let earlier = idle.replace((process::id(), session));
            drop(idle);
            forget_if_foreign(earlier);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        forget_if_foreign(self.idle.get_mut().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// Drops a session, but for one whose threads are another process's: these would be waited for.
fn forget_if_foreign(idle: Option<(u32, smolrun::Session)>) {
    if let Some((process, session)) = idle
        && process != process::id()
    {
        std::mem::forget(session);
    }
}

impl Model {
    pub(crate) fn new(source: Source, model: smolrun::Model, settings: Settings) -> Model {
        let shared = Shared { model, settings, idle: Mutex::new(None) };
        Model { source, shared: Mutex::new(Some(Arc::new(shared))) }
    }

    fn shared(&self) -> Result<Arc<Shared>> {
        let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.clone().ok_or_else(|| Failure::closed("model"))
    }

    /// Works with a session while others have the interpreter.
    fn with_session<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut smolrun::Session) -> Result<R> + Send,
    ) -> Result<R> {
        let shared = self.shared()?;
        let idle = shared.take();
        let (result, session) = py.detach(|| {
            let mut session = match idle.map_or_else(|| shared.session(), Ok) {
                Ok(session) => session,
                Err(failure) => return (Err(failure), None),
            };
            let result = caught(|| work(&mut session));
            let is_sound = !matches!(result, Err(Failure::Library(smolrun::Error::Panic { .. })));
            (result, is_sound.then_some(session))
        });
        session.into_iter().for_each(|session| shared.put(session));
        result
    }

    /// As [`Model::with_session`], with the tokens of `prompt`.
    fn with_prompt<R: Send>(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        work: impl FnOnce(&mut smolrun::Session, &[u32]) -> Result<R> + Send,
    ) -> PyResult<R> {
        let prompt = Prompt::read(prompt)?;
        Ok(self.with_session(py, |session| {
            let most = session.most_tokens();
            let ids = prompt.encode(&session.model().clone(), &Encoding::default(), most, false)?;
            work(session, at_least_one(&ids)?)
        })?)
    }
}

/// What a method `agenerate` returns: see `smolrun._aio`.
pub(crate) fn agenerate(
    of: &Bound<'_, PyAny>,
    prompt: &Bound<'_, PyAny>,
    stream: bool,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<Py<PyAny>> {
    let options = options.map_or_else(|| PyDict::new(of.py()), Bound::clone);
    let name = if stream { "stream" } else { "complete" };
    let module = of.py().import("smolrun._aio")?;
    Ok(module.getattr(name)?.call1((of, prompt, options))?.unbind())
}

#[pymethods]
impl Model {
    /// Generate what follows prompt: a str or token ids to continue, or messages to answer.
    ///
    /// Messages are dicts with a role and a content, as the model's chat template has them. Returns a Completion, or
    /// with stream=True an iterator of pieces. The interpreter is free for other threads while the model runs. Ctrl-C
    /// ends it within one pass of at most 256 tokens, in a long prompt, too.
    ///
    /// Options, by the names of the program smolrun's:
    ///
    /// max_tokens: most tokens to generate (256)
    /// stop: a str or a list of them, which end the text and are not part of it
    /// logprobs: True for each token's log-probability, or how many of the likeliest tokens to name in its place, too
    /// temperature, top_k, top_p, min_p, typical_p: how tokens are drawn; a temperature of 0 takes the likeliest. By
    ///     default a text is continued with the likeliest tokens, and messages are answered as the checkpoint
    ///     recommends
    /// repetition_penalty, frequency_penalty, presence_penalty, penalty_window: against repetition
    /// logit_bias: a dict of numbers by token ids, which are added to logits; ignore_eos: whether to rule out the end
    /// sampler_order: the names of the steps in their order
    /// seed: decides every draw (0 for a text, another one each time for messages: see Completion.seed)
    /// special: whether control tokens that a text spells are parsed (False)
    /// tools, documents: lists of dicts for the chat template; template: a dict of its variables; now: the time that it
    ///     is told, in seconds since 1970 (the present)
    #[pyo3(signature = (prompt, *, stream = false, **options))]
    fn generate(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        stream: bool,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        let shared = self.shared()?;
        let request = Request::new(&shared.model, prompt, options, true)?;
        let session = match shared.take() {
            Some(session) => session,
            None => py.detach(|| shared.session())?,
        };
        let live = Arc::new(Held::new("session", Live::new(session)));
        if stream {
            return request.stream(py, &live, Some(shared))?.into_py_any(py);
        }
        let completion = request.complete(py, &live);
        live.take().into_iter().for_each(|live| shared.put(live.session));
        completion?.into_py_any(py)
    }

    /// As generate, in a thread of the event loop's: await it, or with stream=True iterate by async for.
    ///
    /// Cancelling the task ends the generation within one pass.
    #[pyo3(signature = (prompt, *, stream = false, **options))]
    fn agenerate(
        slf: &Bound<'_, Self>,
        prompt: &Bound<'_, PyAny>,
        stream: bool,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        agenerate(slf, prompt, stream, options)
    }

    /// Generate for many requests at once, which takes far less time than one after the other.
    ///
    /// requests is an iterable of prompts as generate takes them, or of dicts with a "prompt" or "messages" and
    /// options of their own; it is read as far as needed. The options given here hold for all. What a request
    /// generates does not depend on the others. Request number i, counted from 0, draws by seed + i, unless it names
    /// a seed itself.
    ///
    /// Returns an iterator of Completions in the order of the requests, or with ordered=False of pairs (i,
    /// Completion) as they come. What is wrong with one request is raised in its place, and the next call goes on;
    /// with return_exceptions=True it is returned in its place.
    ///
    /// sequences: most requests at the same time; kv_memory: most megabytes of their keys and values; prefix_memory:
    /// megabytes that are kept for prompts that begin alike.
    #[pyo3(signature = (
        requests, *, ordered = true, return_exceptions = false, sequences = 64, kv_memory = None, prefix_memory = 256,
        **options
    ))]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword of Python's")]
    fn batch(
        &self,
        py: Python<'_>,
        requests: &Bound<'_, PyAny>,
        ordered: bool,
        return_exceptions: bool,
        #[pyo3(from_py_with = options::sequences)] sequences: usize,
        #[pyo3(from_py_with = options::kv_memory)] kv_memory: Option<usize>,
        #[pyo3(from_py_with = options::prefix_memory)] prefix_memory: usize,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Batch> {
        if requests.is_instance_of::<PyString>() || is_mapping(requests)? {
            return Err(wrong_type("requests", "an iterable of prompts, or of dicts", requests));
        }
        let how = crate::batch::How { ordered, return_exceptions, sequences, kv_memory, prefix_memory };
        Batch::new(py, self.shared()?, requests.try_iter()?, how, options)
    }

    /// A new session: one sequence that several calls go on with.
    fn session(&self, py: Python<'_>) -> PyResult<Session> {
        let shared = self.shared()?;
        let session = py.detach(|| shared.session())?;
        Ok(Session::new(shared, Live::new(session)))
    }

    /// The token ids of text alone, or with prompt=True as generate takes it: after what the model's prompts begin
    /// with. With special=True control tokens that it spells are parsed.
    #[pyo3(signature = (text, *, prompt = false, special = false))]
    fn tokenize(&self, py: Python<'_>, text: String, prompt: bool, special: bool) -> PyResult<Vec<u32>> {
        let (shared, how) = (self.shared()?, Encoding { special, ..Encoding::default() });
        Ok(py.detach(|| Prompt::Text(text).encode(&shared.model, &how, usize::MAX, !prompt))?)
    }

    /// The text of token ids. With skip_special=True control tokens are left out.
    #[pyo3(signature = (ids, *, skip_special = false))]
    fn detokenize(&self, py: Python<'_>, ids: &Bound<'_, PyAny>, skip_special: bool) -> PyResult<String> {
        let (tokenizer, ids) = (self.shared()?.model.tokenizer(), token_ids(ids)?);
        Ok(py.detach(|| tokenizer.decode(&ids, skip_special)).map_err(Failure::from)?)
    }

    /// The bytes that a token stands for: any part of a text in UTF-8.
    fn token_bytes<'py>(&self, py: Python<'py>, id: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        let wrong = || not_one_of("id", "a token id", "an int", id);
        let (tokenizer, id) =
            (self.shared()?.model.tokenizer(), id.extract().map_err(unless_raised(py, wrong))?);
        Ok(PyBytes::new(py, tokenizer.token_bytes(id).map_err(Failure::from)?))
    }

    /// The text that the chat template makes of messages.
    #[pyo3(signature = (messages, *, add_generation_prompt = true, tools = None))]
    fn render_chat(
        &self,
        messages: &Bound<'_, PyAny>,
        add_generation_prompt: bool,
        tools: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<String> {
        let Prompt::Messages(messages) = Prompt::read(messages)? else {
            return Err(wrong_type("messages", "a list of dicts with role and content", messages));
        };
        let mut chat = ChatOptions::default()
            .now(std::time::SystemTime::now())
            .add_generation_prompt(add_generation_prompt);
        if let Some(tools) = tools {
            change(&mut chat, |chat| Ok(chat.tools(&json_of(tools)?)?))?;
        }
        Ok(self.shared()?.model.render_chat(&messages, &chat).map_err(Failure::from)?)
    }

    /// The logits after prompt: a numpy array of f32, [vocab_size]. With all=True those after each of its tokens,
    /// [tokens, vocab_size].
    #[pyo3(signature = (prompt, *, all = false))]
    fn logits(&self, py: Python<'_>, prompt: &Bound<'_, PyAny>, all: bool) -> PyResult<Py<PyAny>> {
        if all {
            let logits = self.with_prompt(py, prompt, |session, ids| {
                session.truncate(0);
                Matrix::logits(session, ids, 0)
            })?;
            return logits.into_array(py)?.into_py_any(py);
        }
        let logits = self.with_prompt(py, prompt, |session, ids| {
            let kept = session.keep_common_prefix(ids);
            Ok(session.feed(&ids[kept..])?.to_vec())
        })?;
        vector(py, logits)?.into_py_any(py)
    }

    /// The last layer's hidden states of prompt's tokens, after the final norm: a numpy array of f32,
    /// [tokens, hidden_size].
    fn hidden<'py>(
        &self,
        py: Python<'py>,
        prompt: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let states = self.with_prompt(py, prompt, |session, ids| {
            session.truncate(0);
            Matrix::hidden(session, ids, 0)
        })?;
        states.into_array(py)
    }

    /// Prompt as one vector: a numpy array of f32, [hidden_size]. pooling takes the hidden state of the "last" token,
    /// or the "mean" of all.
    #[pyo3(signature = (prompt, *, pooling = "last"))]
    fn embed<'py>(
        &self,
        py: Python<'py>,
        prompt: &Bound<'py, PyAny>,
        pooling: &str,
    ) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let pooling = match pooling {
            "last" => Pooling::Last,
            "mean" => Pooling::Mean,
            other => {
                return Err(
                    Failure::argument(format!("pooling: expected last or mean, found {other}")).into()
                );
            }
        };
        let embedding = self.with_prompt(py, prompt, |session, ids| {
            session.truncate(0);
            Ok(session.embed(ids, pooling)?)
        })?;
        vector(py, embedding)
    }

    /// How likely each of continuations is after context: a list of Scores.
    ///
    /// All of them are strs, in which control tokens are text, or all are token ids. The blanks at the end of a text's
    /// context belong to the continuation. The context is computed once for all.
    fn score(
        &self,
        py: Python<'_>,
        context: &Bound<'_, PyAny>,
        continuations: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<Score>> {
        if continuations.is_instance_of::<PyString>() {
            return Err(wrong_type("continuations", "an iterable of strs, or of token ids", continuations));
        }
        let given: Vec<Bound<'_, PyAny>> = continuations.try_iter()?.collect::<PyResult<_>>()?;
        let scores = match context.cast::<PyString>() {
            Ok(context) => {
                let context = context.to_str()?;
                let text = |text: &Bound<'_, PyAny>| {
                    let wrong = || wrong_type("continuations", "strs, as context is one", text);
                    text.extract::<String>().map_err(unless_raised(py, wrong))
                };
                let texts: Vec<String> = given.iter().map(text).collect::<PyResult<_>>()?;
                self.with_session(py, |session| Ok(session.score_texts(context, &texts)?))?
            }
            Err(_) => {
                let context = token_ids(context)?;
                let all: Vec<Vec<u32>> = given.iter().map(token_ids).collect::<PyResult<_>>()?;
                let all: Vec<&[u32]> = all.iter().map(Vec::as_slice).collect();
                self.with_session(py, |session| Ok(session.score(&context, &all)?))?
            }
        };
        Ok(scores.into_iter().map(Score::from).collect())
    }

    /// How well the model foresees text, a str or token ids. It is cut into windows of so many tokens that do not
    /// overlap, and the rest is dropped; by default 1024 of them, or the model's context if that is shorter.
    #[pyo3(signature = (text, *, window = None))]
    fn perplexity(
        &self,
        py: Python<'_>,
        text: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = options::window)] window: Option<usize>,
    ) -> PyResult<Perplexity> {
        let prompt = Prompt::read(text)?;
        if prompt.is_chat() {
            return Err(wrong_type("text", "a str or token ids", text));
        }
        Ok(self.with_session(py, |session| {
            let model = session.model().clone();
            let tokens = match prompt {
                Prompt::Text(text) => model.tokenizer().encode(&text, SpecialTokens::AsText)?,
                other => other.encode(&model, &Encoding::default(), usize::MAX, true)?,
            };
            let mut options = PerplexityOptions::default();
            options.window = window.unwrap_or(options.window.min(model.config().max_position_embeddings));
            let window = options.window;
            let too_short = |error| match error {
                smolrun::Error::Argument { name: "tokens", found, .. } => Failure::argument(format!(
                    "text: expected at least {window} tokens (window), found {found}"
                )),
                other => other.into(),
            };
            let mut sum = smolrun::eval::Perplexity::default();
            for window in session.perplexity(&tokens, options).map_err(too_short)? {
                sum += window?;
            }
            Ok(sum.into())
        })?)
    }

    /// What it was loaded from.
    #[getter]
    fn source(&self) -> PathBuf {
        self.source.given.clone()
    }

    /// Where its blob is.
    #[getter]
    fn path(&self) -> PathBuf {
        self.source.blob.clone()
    }

    /// What identifies its blob: the hash in the header, of all sections' hashes, in hexadecimal digits.
    #[getter]
    fn sha256(&self) -> PyResult<String> {
        let hash = self.shared()?.model.layout().header.directory_sha256;
        Ok(hash.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The text of every control token by its id.
    #[getter]
    fn special_tokens(&self) -> PyResult<BTreeMap<u32, String>> {
        let tokenizer = self.shared()?.model.tokenizer();
        let tokens = tokenizer.special_tokens().map_err(Failure::from)?;
        Ok(tokens.into_iter().map(|(id, text)| (id, text.to_owned())).collect())
    }

    /// How many token ids there are.
    #[getter]
    fn vocab_size(&self) -> PyResult<usize> {
        Ok(self.shared()?.model.config().vocab_size)
    }

    /// Most tokens of a sequence.
    #[getter]
    fn context_size(&self) -> PyResult<usize> {
        Ok(self.shared()?.model.config().max_position_embeddings)
    }

    /// Numbers of a hidden state.
    #[getter]
    fn hidden_size(&self) -> PyResult<usize> {
        Ok(self.shared()?.model.config().hidden_size)
    }

    /// The token that begins a text, if the model names one.
    #[getter]
    fn bos_token_id(&self) -> PyResult<Option<u32>> {
        Ok(self.shared()?.model.config().bos_token_id)
    }

    /// The tokens that end a generation.
    #[getter]
    fn eos_token_ids(&self) -> PyResult<Vec<u32>> {
        Ok(self.shared()?.model.config().eos_token_ids.to_vec())
    }

    /// The source of its chat template, if it has one.
    #[getter]
    fn chat_template(&self) -> PyResult<Option<String>> {
        let shared = self.shared()?;
        Ok(shared.model.chat_template().map_err(Failure::from)?.map(str::to_owned))
    }

    /// Let its blob and its threads go, once what runs has ended. Every later call is an error.
    fn close(&self, py: Python<'_>) {
        let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(shared));
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyDict>,))> {
        Ok((py.import("smolrun._pickled")?.getattr("model")?, (self.source.arguments(py)?,)))
    }

    fn __repr__(&self) -> String {
        format!("smolrun.load({:?})", self.source.given)
    }
}
