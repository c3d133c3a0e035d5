//! The forward pass of a Llama-family decoder (Touvron et al. 2023; Hugging Face's `LlamaForCausalLM`, and those of
//! Mistral, Qwen2, Qwen3 and SmolLM3, which differ in their attention), over rows of any sequences.
//!
//! Activations are `[features/16][rows][16]`, one row per token, see [`crate::kernels`].

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::thread::available_parallelism;

use super::Model;
use super::activations::{Activations, Observer};
use super::attention::{self, Attention, QueryTiles};
use super::batch::{PassError, Rows};
use super::rope::Rope;
use crate::cancel::CancelToken;
use crate::error::{Error, Result};
use crate::exec::{
    Columns, ExecContext, FEWEST_ROWS, Fast, Pool, QuantizedActivations, Rounding, Scratch, Spawn, Work,
    copy_row, padded,
};
use crate::format::{Kind, LayerSections};
use crate::kernels::{Kernels, LANES};
use crate::sequence::{KvDtype, Overflow, Owner, Sequence};

/// Rows whose logits are computed together when all are asked for: whole register tiles of every set.
const LOGITS_ROWS: usize = 24;
// Logits are never rounded: an engine that may round has one sequence a pass.
const _: () = assert!(LOGITS_ROWS < FEWEST_ROWS);

/// How an engine computes: the fields are those of [`SessionOptions`](crate::SessionOptions).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct EngineOptions {
    /// Threads, the caller's included; by default as many as the process may use at once.
    pub threads: Option<usize>,
    /// Who starts the threads other than the caller's.
    pub spawn: Option<Spawn>,
    /// Instruction set; by default `SMOLRUN_ISA`'s, or the fastest there is.
    pub kernels: Option<Kernels>,
    /// Whether passes of 32 rows or more may be rounded for speed. Each pass has one sequence then.
    pub fast: bool,
}

impl EngineOptions {
    /// These options with `threads` threads.
    pub fn threads(self, threads: usize) -> EngineOptions {
        EngineOptions { threads: Some(threads), ..self }
    }

    /// These options with threads that `spawn` starts.
    pub fn spawn(self, spawn: impl Fn(Work) -> io::Result<()> + Send + Sync + 'static) -> EngineOptions {
        EngineOptions { spawn: Some(Spawn::new(spawn)), ..self }
    }

    /// These options with this instruction set.
    pub fn kernels(self, kernels: Kernels) -> EngineOptions {
        EngineOptions { kernels: Some(kernels), ..self }
    }

    /// These options with passes that may be rounded for speed, or must be exact.
    pub fn fast(self, fast: bool) -> EngineOptions {
        EngineOptions { fast, ..self }
    }
}

/// A model on this machine: an instruction set, worker threads and scratch. It serves any number of sequences.
///
/// A pass takes rows of several sequences at once, so that the weights are read once for all. What it computes for a
/// sequence, to the last bit, does not depend on the others.
pub struct Engine {
    model: Model,
    exec: ExecContext,
    fast: Fast,
    rope: Rope,
    tiles: QueryTiles,
    scratch: Scratch,
    /// Ends what takes several passes, between these.
    cancel: CancelToken,
    /// Of each entry of the last pass, which logits are its own.
    asked: Vec<Option<usize>>,
}

/// The logits of a pass.
pub(crate) struct PassLogits<'a> {
    asked: &'a [Option<usize>],
    logits: &'a [f32],
    vocab_size: usize,
}

impl PassLogits<'_> {
    /// As [`Engine::logits`].
    pub(crate) fn of(&self, index: usize) -> &[f32] {
        let asked = self.asked.get(index).copied().flatten();
        asked.map_or(&[], |index| &self.logits[index * padded(self.vocab_size)..][..self.vocab_size])
    }
}

impl Engine {
    /// Most rows in one pass over the weights: enough to be bound by arithmetic, few enough to stay in the caches.
    pub const MAX_ROWS: usize = 256;
    /// Most threads an engine may have.
    pub const MAX_THREADS: usize = 1024;

    /// Starts the threads.
    pub fn new(model: &Model, options: EngineOptions) -> Result<Engine> {
        let threads = options.threads.unwrap_or_else(|| available_parallelism().map_or(1, usize::from));
        if !(1..=Self::MAX_THREADS).contains(&threads) {
            let (expected, found) = (format!("1 to {}", Self::MAX_THREADS), threads.to_string());
            return Err(Error::Argument { name: "threads", expected, found });
        }
        let kernels = options.kernels.map_or_else(Kernels::from_env, Ok)?;
        let pool = Pool::new(threads, options.spawn).map_err(|source| Error::Threads { source })?;
        let matrices = model.layout().weights.layers.iter().flat_map(LayerSections::matrices);
        let rounding = match options.fast {
            true => Rounding::new(matrices.map(|matrix| matrix.dtype), kernels),
            false => Err(Fast::Off),
        };
        Ok(Engine {
            fast: rounding.as_ref().map_or_else(|&instead| instead, Rounding::name),
            model: model.clone(),
            rope: Rope::default(),
            tiles: QueryTiles::default(),
            scratch: Scratch::new(threads),
            cancel: CancelToken::default(),
            asked: Vec::new(),
            exec: ExecContext {
                kernels,
                pool,
                rounding: rounding.ok(),
                quantized: model.is_quantized().then(QuantizedActivations::default),
            },
        })
    }

    /// An empty sequence, which has no memory yet. Keys and values are kept as [`Model::default_kv_dtype`] says unless
    /// `kv_dtype` does. An error if the model's context is too short to slide over.
    pub fn sequence(&self, kv_dtype: Option<KvDtype>, overflow: Overflow) -> Result<Sequence> {
        let kv_dtype = kv_dtype.unwrap_or(self.model.default_kv_dtype());
        let blob = self.model.layout().header.directory_sha256;
        Sequence::new(self.model.config(), blob, kv_dtype, overflow)
    }

    /// The model it runs.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The instruction set it computes with.
    pub fn kernels(&self) -> Kernels {
        self.exec.kernels
    }

    /// Threads it computes with.
    pub fn threads(&self) -> usize {
        self.exec.pool.threads()
    }

    /// What became of [`EngineOptions::fast`].
    pub fn fast(&self) -> Fast {
        self.fast
    }

    /// The threads it computes with, for what is done with its logits.
    pub(crate) fn pool(&mut self) -> &mut Pool {
        &mut self.exec.pool
    }

    /// Appends each entry's tokens to its sequence, [`Engine::MAX_ROWS`] tokens together at most.
    ///
    /// After an error no sequence has changed. Where it names an entry, the others can still make a pass.
    pub fn pass(&mut self, batch: &mut [Rows<'_>]) -> std::result::Result<(), PassError> {
        self.pass_without_logits(batch)?;
        let asking = self.asked.iter().flatten().count();
        if asking > 0 {
            let rows = batch.iter().map(|entry| entry.tokens.len()).sum();
            let mut end = 0;
            let picked = batch.iter().filter_map(|entry| {
                end += entry.tokens.len();
                entry.wants_logits.then_some(end - 1)
            });
            self.compute_logits(rows, picked, asking);
        }
        Ok(())
    }

    /// After a pass, the logits after the last token of entry `index` of its batch, `[vocab_size]`: nothing if the
    /// entry did not ask for them.
    pub fn logits(&self, index: usize) -> &[f32] {
        let asked = self.asked.get(index).copied().flatten();
        asked.map_or(&[], |index| self.logits_row(index))
    }

    fn logits_row(&self, index: usize) -> &[f32] {
        let vocab_size = self.model.config().vocab_size;
        &self.scratch.logits[index * padded(vocab_size)..][..vocab_size]
    }

    /// The threads it computes with, and what [`Engine::logits`] gives: for all that is done with the logits of a pass.
    pub(crate) fn pool_and_logits(&mut self) -> (&mut Pool, PassLogits<'_>) {
        let vocab_size = self.model.config().vocab_size;
        (&mut self.exec.pool, PassLogits { asked: &self.asked, logits: &self.scratch.logits, vocab_size })
    }

    /// As [`Engine::pass`], without logits: leaves the residual stream of all rows in `x`.
    fn pass_without_logits(&mut self, batch: &mut [Rows<'_>]) -> std::result::Result<(), PassError> {
        let rows = self.begin(batch)?;
        self.embed(batch, rows);
        self.run_layers(0..self.model.config().num_hidden_layers, batch, rows, &mut |_| {});
        self.end(batch, rows);
        Ok(())
    }

    /// Makes all ready for a pass, and returns its number of rows. Nothing can fail after it.
    fn begin(&mut self, batch: &mut [Rows<'_>]) -> std::result::Result<usize, PassError> {
        self.asked.clear();
        let rows = self.check(batch)?;
        self.reserve(batch, rows)?;
        self.slide(batch);
        let positions = |entry: &Rows<'_>| {
            let first = entry.sequence.position();
            first..first + entry.tokens.len()
        };
        let positions = batch.iter().flat_map(positions);
        self.rope.set(self.exec.kernels, self.model.rope_inv_freq(), positions);
        Ok(rows)
    }

    /// Begins the residual stream.
    fn embed(&mut self, batch: &[Rows<'_>], rows: usize) {
        for (row, &token) in batch.iter().flat_map(|entry| entry.tokens).enumerate() {
            self.model.embed(token as usize, &mut self.scratch.x, rows, row);
        }
    }

    /// Takes the residual stream through some layers, and shows `see` what each one's matrices are multiplied with.
    fn run_layers(&mut self, layers: Range<usize>, batch: &mut [Rows<'_>], rows: usize, see: &mut Observer) {
        let Engine { model, exec, rope, tiles, scratch: s, .. } = self;
        let config = model.config();
        for layer in layers {
            let weights = model.layer(layer);
            let eps = config.rms_norm_eps;
            let mut see = |kind, panels: &[f32]| see(Activations { kind, layer: Some(layer), rows, panels });
            // x += o_proj(attention(qkv_proj(norm(x))))
            exec.rms_norm(&s.x, weights.input_layernorm, eps, &mut s.inverse_rms, &mut s.normed);
            see(Kind::QkvProj, &s.normed);
            exec.project(weights.qkv_proj, weights.qkv_bias, &s.normed, rows, &mut s.qkv);
            Attention { config, weights: &weights, exec, batch, tiles, rope, layer, rows }.run(s);
            see(Kind::OProj, &s.attention);
            exec.project_add(weights.o_proj, weights.o_bias, &s.attention, rows, &mut s.x, &mut s.workers);
            // x += down_proj(silu(gate_proj(norm(x))) * up_proj(norm(x)))
            exec.rms_norm(&s.x, weights.post_attention_layernorm, eps, &mut s.inverse_rms, &mut s.normed);
            see(Kind::GateUpProj, &s.normed);
            let (gate_up, bias) = (weights.gate_up_proj, weights.gate_up_bias);
            exec.project_gated(gate_up, bias, &s.normed, rows, &mut s.hidden, &mut s.workers);
            see(Kind::DownProj, &s.hidden);
            exec.project_add(weights.down_proj, weights.down_bias, &s.hidden, rows, &mut s.x, &mut s.workers);
        }
    }

    /// Appends what was passed.
    fn end(&mut self, batch: &mut [Rows<'_>], rows: usize) {
        let mut asking = 0;
        for entry in batch {
            entry.sequence.append(entry.tokens, self.exec.rounds(rows));
            self.asked.push(entry.wants_logits.then_some(asking));
            asking += usize::from(entry.wants_logits);
        }
    }

    /// The number of rows; an error if there can be no such pass.
    fn check(&self, batch: &[Rows<'_>]) -> std::result::Result<usize, PassError> {
        let (config, blob) = (self.model.config(), &self.model.layout().header.directory_sha256);
        for (index, entry) in batch.iter().enumerate() {
            entry.sequence.check_pass(config, blob, entry.tokens).map_err(PassError::of(index))?;
        }
        let argument = |expected, found| Error::Argument { name: "batch", expected, found };
        if self.exec.rounding.is_some() && batch.len() > 1 {
            let found = format!("{} entries", batch.len());
            return Err(argument("one sequence, because the engine is a fast one".into(), found).into());
        }
        let rows = batch.iter().fold(0, |rows: usize, entry| rows.saturating_add(entry.tokens.len()));
        match (1..=Self::MAX_ROWS).contains(&rows) {
            true => Ok(rows),
            false => Err(argument(format!("1 to {} rows", Self::MAX_ROWS), rows.to_string()).into()),
        }
    }

    /// Makes room for all that a pass needs, so that nothing can fail after it.
    fn reserve(&mut self, batch: &mut [Rows<'_>], rows: usize) -> std::result::Result<(), PassError> {
        for (index, entry) in batch.iter_mut().enumerate() {
            entry.sequence.reserve(entry.tokens.len()).map_err(PassError::of(index))?;
        }
        let Engine { model, exec, tiles, scratch: s, .. } = self;
        let config = model.config();
        s.resize(config, rows)?;
        exec.resize(config, rows)?;
        attention::reserve(tiles, config, exec, batch, s)?;
        let asking = batch.iter().filter(|entry| entry.wants_logits).count();
        self.reserve_logits(asking)?;
        Ok(())
    }

    /// Makes room for the logits of so many rows.
    fn reserve_logits(&mut self, rows: usize) -> Result<()> {
        let (config, s) = (self.model.config(), &mut self.scratch);
        s.picked.resize(padded(config.hidden_size) * rows)?;
        s.logits.resize(padded(config.vocab_size) * rows)
    }

    /// Slides the sequences that are at the end of the context.
    fn slide(&mut self, batch: &mut [Rows<'_>]) {
        let layers = &self.model.layout().weights.layers;
        for entry in batch.iter_mut().filter(|entry| entry.sequence.must_slide()) {
            let step = [Overflow::STEP].into_iter();
            self.rope.set(self.exec.kernels, self.model.rope_inv_freq(), step);
            let turns = |layer: usize| !layers[layer].flags.no_rope;
            entry.sequence.slide(&mut self.exec, self.rope.first(), turns);
        }
    }

    /// Leaves in `logits`, `[count][vocab_size, rounded up]`, those of `count` rows of the last pass, which had
    /// `rows`. There is room for them.
    fn compute_logits(&mut self, rows: usize, picked: impl Iterator<Item = usize>, count: usize) {
        let Engine { model, exec, scratch: s, .. } = self;
        let config = model.config();
        for (to, row) in picked.enumerate() {
            copy_row(&s.x, rows, row, &mut s.picked, count, to);
        }
        let (normed, inverse_rms) = (&mut s.normed[..s.picked.len()], &mut s.inverse_rms[..count]);
        exec.rms_norm(&s.picked, model.norm(), config.rms_norm_eps, inverse_rms, normed);
        let mut first = 0;
        for w in model.lm_head() {
            let len = w.count() * LANES;
            match count {
                // Of one row, panels are the row.
                1 => exec.project(w, None, normed, 1, &mut s.logits[first..][..len]),
                _ => {
                    let mut logits = Columns::new(&mut s.logits, padded(config.vocab_size));
                    exec.project_by_row(w, normed, logits.slice(first, len), &mut s.workers);
                }
            }
            first += len;
        }
    }
}

/// What a session does with its engine and its one sequence.
impl Engine {
    /// This engine with a handle that ends what takes several passes.
    pub(crate) fn cancel(self, cancel: CancelToken) -> Engine {
        Engine { cancel, ..self }
    }

    /// An error once the handle was used that ends what takes several passes.
    pub(crate) fn check_cancelled(&self) -> Result<()> {
        if self.cancel.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Appends `tokens`, any number of them, and returns the last one's logits, `[vocab_size]`.
    pub(crate) fn feed(&mut self, sequence: &mut Sequence, tokens: &[u32]) -> Result<&[f32]> {
        self.in_passes(sequence, tokens, |engine, sequence, now| {
            let wants_logits = now.end == tokens.len();
            Ok(engine.pass(&mut [Rows { sequence, tokens: &tokens[now], wants_logits }])?)
        })?;
        Ok(self.logits(0))
    }

    /// Appends `tokens` and calls `each` with every one's index and logits, `[vocab_size]`.
    pub(crate) fn feed_all(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        self.in_passes(sequence, tokens, |engine, sequence, now| {
            engine.pass(&mut [Rows { sequence, tokens: &tokens[now.clone()], wants_logits: false }])?;
            for first in (0..now.len()).step_by(LOGITS_ROWS) {
                let count = LOGITS_ROWS.min(now.len() - first);
                engine.reserve_logits(count)?;
                engine.compute_logits(now.len(), first..first + count, count);
                (0..count).for_each(|row| each(now.start + first + row, engine.logits_row(row)));
            }
            Ok(())
        })
    }

    /// As [`Session::feed_observed`](crate::Session::feed_observed).
    pub(crate) fn feed_observed(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        layers: Range<usize>,
        stream: &mut Vec<f32>,
        see: &mut Observer,
    ) -> Result<()> {
        let config = self.model.config();
        let (width, last) = (padded(config.hidden_size), config.num_hidden_layers);
        let (is_first, is_last) = (layers.start == 0, layers.end == last);
        if layers.start > layers.end || layers.end > last {
            let (expected, found) = (format!("layers up to {last}"), format!("{layers:?}"));
            return Err(Error::Argument { name: "layers", expected, found });
        }
        if is_first {
            stream.clear();
            stream.resize(width * tokens.len(), 0.0);
        } else if stream.len() != width * tokens.len() {
            let (expected, found) = (format!("{width} numbers a token"), stream.len().to_string());
            return Err(Error::Argument { name: "stream", expected, found });
        }
        sequence.truncate(0);
        let rounding = self.exec.rounding.replace(Rounding::to_8_bits());
        let done = self.in_passes(sequence, tokens, |engine, sequence, now| {
            let rows = now.len();
            let stream = &mut stream[now.start * width..now.end * width];
            let batch = &mut [Rows { sequence, tokens: &tokens[now], wants_logits: false }];
            engine.begin(batch)?;
            match is_first {
                true => engine.embed(batch, rows),
                false => engine.scratch.x.copy_from_slice(stream),
            }
            engine.run_layers(layers.clone(), batch, rows, see);
            engine.end(batch, rows);
            stream.copy_from_slice(&engine.scratch.x);
            if is_last {
                see(Activations { kind: Kind::LmHead, layer: None, rows, panels: engine.last_hidden() });
            }
            Ok(())
        });
        self.exec.rounding = rounding;
        sequence.truncate(0);
        done
    }

    /// Appends `tokens` and calls `each` with every one's index and last hidden state, `[hidden_size]`.
    pub(crate) fn feed_hidden(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        let hidden_size = self.model.config().hidden_size;
        self.in_passes(sequence, tokens, |engine, sequence, now| {
            engine.pass(&mut [Rows { sequence, tokens: &tokens[now.clone()], wants_logits: false }])?;
            engine.last_hidden();
            let s = &mut engine.scratch;
            s.picked.resize(padded(hidden_size))?;
            for row in 0..now.len() {
                copy_row(&s.normed, now.len(), row, &mut s.picked, 1, 0);
                each(now.start + row, &s.picked[..hidden_size]);
            }
            Ok(())
        })
    }

    /// Has `pass` append `tokens` in as few passes as they take: it gets those of each as a range of `tokens`. An error
    /// before a pass if it was cancelled.
    fn in_passes(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        mut pass: impl FnMut(&mut Engine, &mut Sequence, Range<usize>) -> Result<()>,
    ) -> Result<()> {
        sequence.check(self.model.config(), tokens)?;
        let mut start = 0;
        while start < tokens.len() {
            self.check_cancelled()?;
            let end = tokens.len().min(start + Self::MAX_ROWS.min(sequence.room()));
            pass(self, sequence, start..end)?;
            start = end;
        }
        Ok(())
    }

    /// The last hidden states of the last pass's rows, after the final norm: `[hidden_size/16, rounded up][rows][16]`.
    fn last_hidden(&mut self) -> &[f32] {
        let Engine { model, exec, scratch: s, .. } = self;
        exec.rms_norm(&s.x, model.norm(), model.config().rms_norm_eps, &mut s.inverse_rms, &mut s.normed);
        &s.normed
    }

    /// Writes a sequence to a file: see [`Sequence::save`].
    pub(crate) fn save(&mut self, sequence: &Sequence, path: &Path) -> Result<()> {
        let Engine { model, exec, fast, .. } = self;
        sequence.save(exec, &owner(model, *fast), path)
    }

    /// Makes a sequence the one in a file: see [`Sequence::load`].
    pub(crate) fn load(&mut self, sequence: &mut Sequence, path: &Path) -> Result<()> {
        let Engine { model, exec, fast, .. } = self;
        sequence.load(exec, &owner(model, *fast), path)
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("threads", &self.threads())
            .field("kernels", &self.kernels())
            .finish_non_exhaustive()
    }
}

/// What the file of a sequence has to agree with.
fn owner(model: &Model, fast: Fast) -> Owner<'_> {
    Owner {
        blob: &model.layout().header.directory_sha256,
        config: model.config(),
        fast,
        is_mapped: model.storage().is_mapped(),
    }
}
