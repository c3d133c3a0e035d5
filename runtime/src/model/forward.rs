//! The forward pass of a Llama-family decoder (Touvron et al. 2023; Hugging Face's `LlamaForCausalLM`, and those of
//! Mistral, Qwen2, Qwen3 and SmolLM3, which differ in their attention).
//!
//! Activations are `[features/16][rows][16]`, one row per token, see [`crate::kernels`].

use std::path::Path;

use super::Model;
use super::activations::{Activations, Observer};
use super::attention::Attention;
use super::rope::Rope;
use crate::error::{Error, Result};
use crate::exec::{ExecContext, FEWEST_ROWS, Fast, Pool, QuantizedActivations, Rounding, Scratch, padded};
use crate::format::{Kind, LayerSections};
use crate::kernels::{Kernels, LANES};
use crate::sequence::{KvDtype, Overflow, Owner, Sequence};

/// Most tokens in one pass over the weights: enough to be bound by arithmetic, few enough to stay in the caches.
const MAX_ROWS: usize = 256;
/// Positions whose logits are computed together when all are asked for.
const LOGITS_ROWS: usize = 16;
// Logits come from the same product however many tokens of a prompt are asked about.
const _: () = assert!(LOGITS_ROWS < FEWEST_ROWS);

/// A model with one sequence and scratch.
pub(crate) struct Forward {
    model: Model,
    exec: ExecContext,
    sequence: Sequence,
    overflow: Overflow,
    fast: Fast,
    rope: Rope,
    scratch: Scratch,
}

impl Forward {
    pub(crate) fn new(
        model: &Model,
        kernels: Kernels,
        pool: Pool,
        kv: Option<KvDtype>,
        overflow: Overflow,
        is_fast: bool,
    ) -> Forward {
        let weights = &model.layout().weights;
        let is_quantized = weights.dtypes().iter().any(|dtype| dtype.code_bits().is_some());
        let kv = kv.unwrap_or(if is_quantized { KvDtype::F16 } else { KvDtype::F32 });
        let matrices = weights.layers.iter().flat_map(LayerSections::matrices);
        let rounding = match is_fast {
            true => Rounding::new(matrices.map(|matrix| matrix.dtype), kernels),
            false => Err(Fast::Off),
        };
        Forward {
            fast: rounding.as_ref().map_or_else(|&instead| instead, Rounding::name),
            sequence: Sequence::new(model.config(), kv),
            model: model.clone(),
            overflow,
            rope: Rope::default(),
            scratch: Scratch::new(pool.threads()),
            exec: ExecContext {
                kernels,
                pool,
                rounding: rounding.ok(),
                quantized: is_quantized.then(QuantizedActivations::default),
            },
        }
    }

    pub(crate) fn model(&self) -> &Model {
        &self.model
    }

    pub(crate) fn kernels(&self) -> Kernels {
        self.exec.kernels
    }

    pub(crate) fn threads(&self) -> usize {
        self.exec.pool.threads()
    }

    pub(crate) fn kv_dtype(&self) -> KvDtype {
        self.sequence.cache.dtype()
    }

    /// The threads it computes with, for what is done with its logits.
    pub(crate) fn pool(&mut self) -> &mut Pool {
        &mut self.exec.pool
    }

    pub(crate) fn fast(&self) -> Fast {
        self.fast
    }

    /// Tokens of the sequence so far.
    pub(crate) fn position(&self) -> usize {
        self.sequence.position()
    }

    /// The sequence so far.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.sequence.tokens
    }

    /// Forgets all tokens from `position` on.
    pub(crate) fn truncate(&mut self, position: usize) {
        self.sequence.truncate(position);
    }

    /// Tokens that the first so many, and nothing else, led to.
    pub(crate) fn prefix(&self) -> usize {
        self.sequence.prefix()
    }

    /// Most tokens that an empty sequence can be fed.
    pub(crate) fn most_tokens(&self) -> usize {
        match self.overflow {
            Overflow::Stop => self.model.config().max_position_embeddings,
            Overflow::Slide => usize::MAX,
        }
    }

    /// Whether the sequence has come to the end of the model's context and may not go on.
    pub(crate) fn is_full(&self) -> bool {
        self.overflow == Overflow::Stop && self.position() == self.model.config().max_position_embeddings
    }

    /// Splits off of `tokens` what the next pass can take.
    fn next_pass<'a>(&mut self, tokens: &mut &'a [u32]) -> &'a [u32] {
        let limit = self.model.config().max_position_embeddings;
        if self.position() == limit {
            self.slide();
        }
        let (now, later) = tokens.split_at(tokens.len().min(MAX_ROWS).min(limit - self.position()));
        *tokens = later;
        now
    }

    fn slide(&mut self) {
        self.rope.set(self.model.rope_inv_freq(), Overflow::STEP, 1);
        let layers = &self.model.layout().weights.layers;
        let turns = |layer: usize| !layers[layer].flags.no_rope;
        self.sequence.slide(&mut self.exec, self.rope.first(), turns);
    }

    /// Writes the sequence to a file: see [`Sequence::save`].
    pub(crate) fn save(&mut self, path: &Path) -> Result<()> {
        let Forward { model, exec, sequence, fast, .. } = self;
        sequence.save(exec, &owner(model, *fast), path)
    }

    /// Makes the sequence the one in a file: see [`Sequence::load`].
    pub(crate) fn load(&mut self, path: &Path) -> Result<()> {
        let Forward { model, exec, sequence, fast, .. } = self;
        sequence.load(exec, &owner(model, *fast), path)
    }

    /// Bytes of the KV cache.
    pub(crate) fn cache_bytes(&self) -> usize {
        self.sequence.cache.bytes()
    }

    /// Appends `tokens` to the sequence and returns the last one's logits, `[vocab_size]`.
    pub(crate) fn feed(&mut self, tokens: &[u32]) -> Result<&[f32]> {
        self.check(tokens)?;
        let (mut rest, mut rows) = (tokens, 0);
        while !rest.is_empty() {
            let tokens = self.next_pass(&mut rest);
            rows = tokens.len();
            self.pass(tokens, &mut |_| {})?;
        }
        self.logits(rows, rows - 1, 1)?;
        Ok(&self.scratch.logits[..self.model.config().vocab_size])
    }

    /// Appends `tokens` to the sequence and calls `each` with every one's index and logits, `[vocab_size]`.
    pub(crate) fn feed_all(&mut self, tokens: &[u32], each: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        self.check(tokens)?;
        let vocab_size = self.model.config().vocab_size;
        let (mut rest, mut done) = (tokens, 0);
        while !rest.is_empty() {
            let tokens = self.next_pass(&mut rest);
            self.pass(tokens, &mut |_| {})?;
            for first in (0..tokens.len()).step_by(LOGITS_ROWS) {
                let count = LOGITS_ROWS.min(tokens.len() - first);
                self.logits(tokens.len(), first, count)?;
                let s = &mut self.scratch;
                for row in 0..count {
                    copy_rows(&s.logits, count, row, 1, &mut s.logits_row);
                    each(done + first + row, &s.logits_row[..vocab_size]);
                }
            }
            done += tokens.len();
        }
        Ok(())
    }

    /// Appends `tokens` to the sequence and shows `see` what every matrix is multiplied with.
    pub(crate) fn feed_observed(&mut self, tokens: &[u32], see: &mut Observer) -> Result<()> {
        self.check(tokens)?;
        let mut rest = tokens;
        while !rest.is_empty() {
            let tokens = self.next_pass(&mut rest);
            self.pass(tokens, see)?;
            let Forward { model, exec, scratch: s, .. } = self;
            let (weight, eps, rows) = (model.norm(), model.config().rms_norm_eps, tokens.len());
            exec.rms_norm(&s.x, weight, eps, &mut s.inverse_rms, &mut s.normed);
            see(Activations { kind: Kind::LmHead, layer: None, rows, panels: &s.normed });
        }
        Ok(())
    }

    pub(crate) fn check(&self, tokens: &[u32]) -> Result<()> {
        let config = self.model.config();
        if tokens.is_empty() {
            let (expected, found) = ("at least one".into(), "none".into());
            return Err(Error::Argument { name: "tokens", expected, found });
        }
        let needed = self.position().saturating_add(tokens.len());
        if self.overflow == Overflow::Stop && needed > config.max_position_embeddings {
            return Err(Error::ContextFull { needed, limit: config.max_position_embeddings });
        }
        match tokens.iter().find(|&&id| id as usize >= config.vocab_size) {
            Some(&id) => Err(Error::TokenId { id, vocab_size: config.vocab_size }),
            None => Ok(()),
        }
    }

    /// One pass over the layers: leaves the residual stream of `tokens` in `x`, and their keys and values in the cache, and
    /// shows `see` what each layer's matrices are multiplied with.
    fn pass(&mut self, tokens: &[u32], see: &mut Observer) -> Result<()> {
        let Forward { model, exec, sequence, rope, scratch: s, .. } = self;
        let (config, position, rows) = (model.config(), sequence.position(), tokens.len());
        s.resize(config, rows)?;
        exec.resize(config, rows)?;
        sequence.is_rounded |= exec.rounds(rows);
        sequence.reserve(position + rows)?;
        rope.set(model.rope_inv_freq(), position, rows);

        for (row, &token) in tokens.iter().enumerate() {
            model.embed(token as usize, &mut s.x, rows, row);
        }
        for layer in 0..config.num_hidden_layers {
            let weights = model.layer(layer);
            let eps = config.rms_norm_eps;
            let mut see = |kind, panels: &[f32]| see(Activations { kind, layer: Some(layer), rows, panels });
            // x += o_proj(attention(qkv_proj(norm(x))))
            exec.rms_norm(&s.x, weights.input_layernorm, eps, &mut s.inverse_rms, &mut s.normed);
            see(Kind::QkvProj, &s.normed);
            exec.project(weights.qkv_proj, weights.qkv_bias, &s.normed, rows, &mut s.qkv);
            let cache = &mut sequence.cache;
            Attention { config, weights: &weights, exec, cache, rope, layer, position, rows }.run(s)?;
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
        sequence.tokens.extend_from_slice(tokens);
        Ok(())
    }

    /// Leaves in `logits` those of `count` rows of the last pass, which had `rows`, from row `first` on.
    fn logits(&mut self, rows: usize, first: usize, count: usize) -> Result<()> {
        let Forward { model, exec, scratch: s, .. } = self;
        let config = model.config();
        s.picked.resize(padded(config.hidden_size) * count)?;
        s.logits.resize(padded(config.vocab_size) * count)?;
        s.logits_row.resize(padded(config.vocab_size))?;
        copy_rows(&s.x, rows, first, count, &mut s.picked);
        let (normed, inverse_rms) = (&mut s.normed[..s.picked.len()], &mut s.inverse_rms[..count]);
        exec.rms_norm(&s.picked, model.norm(), config.rms_norm_eps, inverse_rms, normed);
        let mut logits = &mut s.logits[..];
        for w in model.lm_head() {
            let (now, later) = logits.split_at_mut(w.count() * LANES * count);
            exec.project(w, None, normed, count, now);
            logits = later;
        }
        Ok(())
    }
}

/// What the file of a sequence has to agree with.
fn owner(model: &Model, fast: Fast) -> Owner<'_> {
    Owner { blob: &model.layout().header.directory_sha256, config: model.config(), fast }
}

/// Copies `count` of `rows` rows, from row `first` on, into activations of their own.
fn copy_rows(from: &[f32], rows: usize, first: usize, count: usize, to: &mut [f32]) {
    let panels = from.chunks_exact(rows * LANES).zip(to.chunks_exact_mut(count * LANES));
    for (from, to) in panels {
        to.copy_from_slice(&from[first * LANES..][..count * LANES]);
    }
}
