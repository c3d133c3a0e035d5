//! One sequence: its tokens so far, and what is generated after them.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::Path;

use crate::cancel::CancelToken;
use crate::error::Result;
use crate::exec::{Pool, Spawn, Work};
use crate::kernels::Kernels;
use crate::model::{Activations, Engine, EngineOptions, Fast, KvDtype, Model, Overflow, Sequence};
use crate::sequence;

/// How a session computes.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SessionOptions {
    /// Threads, the caller's included; by default as many as the process may use at once. The result does not depend
    /// on it. With 1 no thread is started.
    pub threads: Option<usize>,
    /// Who starts the threads other than the caller's. By default the standard library does, and waits for them when
    /// the session ends. Use this where it cannot, as in a web page, and for threads with a priority or a place of
    /// their own.
    ///
    /// It is called once for each thread. It must see to it that what it is handed is called on a thread that blocks
    /// nobody else. It need not wait for that call to begin: a thread that starts late, or never, costs only speed.
    /// Each call returns soon after its session has ended.
    pub spawn: Option<Spawn>,
    /// Instruction set; by default `SMOLRUN_ISA`'s, or the fastest there is. The result does not depend on it, unless the
    /// session is [`fast`](SessionOptions::fast).
    pub kernels: Option<Kernels>,
    /// How keys and values are kept; by default in f16 where matrices are quantized, which rounds more, else in f32.
    pub kv_dtype: Option<KvDtype>,
    /// What happens when the sequence is as long as the model's context.
    pub overflow: Overflow,
    /// A handle that ends whatever the session does, before its next pass, with [`Error::Cancelled`](crate::Error::Cancelled).
    /// The sequence keeps the tokens of the passes before it, and can go on once the handle is
    /// [reset](CancelToken::reset). A generation has another one, which ends it without an error.
    pub cancel: CancelToken,
    /// Whether prompts may run faster, with activations that are rounded more, on a unit of the processor: **not
    /// bit-exact**. By default everything is exact.
    ///
    /// Bf16 matrices need AMX or AMD's AVX512-BF16, quantized ones AMX, VNNI (of AVX or AVX-512) or Arm's dot product.
    /// [`Session::fast`] says what came of it.
    /// Where the layers run over 32 tokens or more at once, the inputs of a bf16 matrix are rounded to 8 significant
    /// bits. Each output then moves by at most (2^-8 + inputs · 2^-22) times the sum of its products' magnitudes. With
    /// AMX, quantized matrices are rounded so, too, and the bound is twice that. With the others, their inputs are
    /// rounded to 8 bits instead of 12: by at most 1/254 of the largest of 32. In the attention of quantized blobs,
    /// queries, keys and probabilities are rounded likewise, and values by 1/254 of the largest of their position.
    /// Everything else stays exact: logits, and the layers over fewer tokens, and so generation.
    ///
    /// The result is the same for any number of threads. It depends on the unit and on how a prompt is split, because a
    /// piece of fewer than 32 tokens is not rounded. Such a piece may be left over by a prompt's passes of 256.
    pub fast: bool,
}

impl SessionOptions {
    /// These options with `threads` threads.
    pub fn threads(self, threads: usize) -> SessionOptions {
        SessionOptions { threads: Some(threads), ..self }
    }

    /// These options with threads that `spawn` starts, see [`SessionOptions::spawn`](SessionOptions#structfield.spawn).
    pub fn spawn(self, spawn: impl Fn(Work) -> io::Result<()> + Send + Sync + 'static) -> SessionOptions {
        SessionOptions { spawn: Some(Spawn::new(spawn)), ..self }
    }

    /// These options with this instruction set.
    pub fn kernels(self, kernels: Kernels) -> SessionOptions {
        SessionOptions { kernels: Some(kernels), ..self }
    }

    /// These options with keys and values kept in this way.
    pub fn kv_dtype(self, kv_dtype: KvDtype) -> SessionOptions {
        SessionOptions { kv_dtype: Some(kv_dtype), ..self }
    }

    /// These options with this behavior past the model's context.
    pub fn overflow(self, overflow: Overflow) -> SessionOptions {
        SessionOptions { overflow, ..self }
    }

    /// These options with a handle that ends what the session does, see
    /// [`SessionOptions::cancel`](SessionOptions#structfield.cancel).
    pub fn cancel(self, cancel: &CancelToken) -> SessionOptions {
        SessionOptions { cancel: cancel.clone(), ..self }
    }

    /// These options with prompts that may be rounded for speed, or must be exact.
    pub fn fast(self, fast: bool) -> SessionOptions {
        SessionOptions { fast, ..self }
    }
}

/// One sequence of tokens over a model, with an engine of its own: worker threads and scratch.
///
/// The sequence takes memory as it grows. Sessions over one model share its weights. For many sequences at once there
/// is [`engine`](crate::engine).
pub struct Session {
    engine: Engine,
    sequence: Sequence,
    /// For another one like it.
    options: SessionOptions,
}

impl Session {
    /// An empty sequence.
    pub fn new(model: &Model, options: SessionOptions) -> Result<Session> {
        let engine = engine(model, &options)?;
        let sequence = engine.sequence(options.kv_dtype, options.overflow)?;
        Ok(Session { engine, sequence, options })
    }

    /// Another session that goes on from here, with the same options and an engine of its own. Both share the keys and
    /// values so far, and copy a block of them before they write to it.
    pub fn fork(&self) -> Result<Session> {
        let engine = engine(self.model(), &self.options)?;
        Ok(Session { engine, sequence: self.sequence.fork(), options: self.options.clone() })
    }

    /// The model it runs.
    pub fn model(&self) -> &Model {
        self.engine.model()
    }

    /// Tokens of the sequence so far, without what it forgot.
    pub fn position(&self) -> usize {
        self.sequence.position()
    }

    /// Threads it computes with.
    pub fn threads(&self) -> usize {
        self.engine.threads()
    }

    /// How it keeps keys and values.
    pub fn kv_dtype(&self) -> KvDtype {
        self.sequence.kv_dtype()
    }

    /// The instruction set it computes with.
    pub fn kernels(&self) -> Kernels {
        self.engine.kernels()
    }

    /// What became of [`SessionOptions::fast`].
    pub fn fast(&self) -> Fast {
        self.engine.fast()
    }

    /// Bytes its KV cache has reserved.
    pub fn cache_bytes(&self) -> usize {
        self.sequence.kv_bytes()
    }

    /// The sequence so far, without what it forgot ([`Overflow::Slide`]).
    pub fn tokens(&self) -> &[u32] {
        self.sequence.tokens()
    }

    /// Forgets all tokens from `position` on.
    pub fn truncate(&mut self, position: usize) {
        self.sequence.truncate(position);
    }

    /// Forgets everything from where the sequence and `tokens` begin to differ, and returns how many tokens are left.
    /// Feed what follows them in `tokens`: at least one token, if there are any.
    pub fn keep_common_prefix(&mut self, tokens: &[u32]) -> usize {
        let prefix = &self.tokens()[..self.sequence.prefix()];
        let common = prefix.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        self.truncate(common.min(tokens.len().saturating_sub(1)));
        self.position()
    }

    /// An error if `tokens` cannot be appended, as [`Session::feed`] would give.
    pub fn check(&self, tokens: &[u32]) -> Result<()> {
        self.sequence.check(self.engine.model().config(), tokens)
    }

    /// An error once it is to end, see [`SessionOptions::cancel`](SessionOptions#structfield.cancel).
    pub(crate) fn check_cancelled(&self) -> Result<()> {
        self.engine.check_cancelled()
    }

    /// Appends `tokens` and returns the logits after the last one, `[vocab_size]`.
    ///
    /// After an error in the middle of a long prompt, [`Session::position`] says how many tokens were taken.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<&[f32]> {
        self.engine.feed(&mut self.sequence, tokens)
    }

    /// Appends `tokens` and calls `each` for every token, with its index in `tokens` and the logits after it,
    /// `[vocab_size]`.
    pub fn feed_all(&mut self, tokens: &[u32], mut each: impl FnMut(usize, &[f32])) -> Result<()> {
        self.engine.feed_all(&mut self.sequence, tokens, &mut each)
    }

    /// Runs `tokens` through some of the model's layers, in passes of at most 256 tokens, and shows `see` what their matrices
    /// are multiplied with, in the order of the products; after the last layer, the output matrix's inputs, too. What the
    /// sequence had is forgotten, and so are the tokens.
    ///
    /// `stream` is the residual stream that the layers before left, and becomes what these leave: of each pass
    /// `[hidden_size/16, rounded up][tokens][16]`. With the first layer it is begun.
    ///
    /// In passes of 32 tokens or more, what quantized matrices are multiplied with gets 8 bits, on every processor. An error
    /// if there are no such layers, or the stream is not one of so many tokens. It serves whoever studies or quantizes a
    /// model.
    #[doc(hidden)] // the converter's
    pub fn feed_observed(
        &mut self,
        tokens: &[u32],
        layers: Range<usize>,
        stream: &mut Vec<f32>,
        mut see: impl FnMut(Activations<'_>),
    ) -> Result<()> {
        self.engine.feed_observed(&mut self.sequence, tokens, layers, stream, &mut see)
    }

    /// Appends `tokens` and calls `each` for every token with its index and its last hidden state, `[hidden_size]`.
    pub(super) fn feed_hidden(&mut self, tokens: &[u32], each: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        self.engine.feed_hidden(&mut self.sequence, tokens, each)
    }

    /// Most tokens that the sequence can be fed from its start: those of the model's context, or any number if it goes on past
    /// that ([`Overflow::Slide`]). It is what to encode a prompt within, see
    /// [`PromptOptions::max_tokens`](crate::PromptOptions::max_tokens).
    pub fn most_tokens(&self) -> usize {
        self.sequence.most_tokens()
    }

    /// Whether nothing can be appended.
    pub(super) fn is_full(&self) -> bool {
        self.sequence.room() == 0
    }

    /// The threads it computes with, for what is done with its logits.
    pub(crate) fn pool(&mut self) -> &mut Pool {
        self.engine.pool()
    }
}

impl Session {
    /// What a file that [`Session::save`] wrote begins with.
    pub const SAVED_MAGIC: [u8; 8] = sequence::MAGIC;

    /// Writes the sequence and its keys and values to `path`. A temporary file beside it is written first. Nobody else
    /// may read either: the tokens in them are somebody's text.
    pub fn save(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.engine.save(&self.sequence, path.as_ref())
    }

    /// Says whether [`Session::save`] could write to `path` now, as far as that can be known in advance.
    pub fn check_save(path: impl AsRef<Path>) -> io::Result<()> {
        sequence::check_save(path.as_ref())
    }

    /// Loads the sequence that [`Session::save`] wrote to `path`. It must be of the same blob, with keys and values
    /// kept in the same way. What a fast session rounded ([`SessionOptions::fast`](crate::SessionOptions::fast)) only a
    /// session that was asked to be fast takes. After an error the sequence is empty.
    ///
    /// Where the model's blob is mapped, so is the file: it must not be changed in place or truncated while the session
    /// lives. [`Session::save`] never does that. A session of [`Model::read`](crate::Model::read) takes a copy.
    ///
    /// [`Session::keep_common_prefix`] then says which tokens of a prompt must still be fed.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.engine.load(&mut self.sequence, path.as_ref())
    }
}

/// The engine of a session with `options`.
fn engine(model: &Model, options: &SessionOptions) -> Result<Engine> {
    let SessionOptions { threads, spawn, kernels, cancel, fast, .. } = options.clone();
    Ok(Engine::new(model, EngineOptions { threads, spawn, kernels, fast })?.cancel(cancel))
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("position", &self.position())
            .field("threads", &self.threads())
            .field("kernels", &self.kernels())
            .finish_non_exhaustive()
    }
}
