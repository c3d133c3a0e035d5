//! The forward pass of a Llama-family decoder (Touvron et al. 2023; Hugging Face's `LlamaForCausalLM`).
//!
//! Activations are `[features/16][rows][16]`, one row per token, see [`crate::kernels`].

use super::Model;
use super::attention::Attention;
use super::kv_cache::{KvCache, KvDtype};
use super::rope::Rope;
use super::scratch::{Scratch, padded};
use super::team::Team;
use crate::error::{Error, Result};
use crate::kernels::{Kernels, LANES};
use crate::pool::Pool;

/// Most tokens in one pass over the weights: enough to be bound by arithmetic, few enough to stay in the caches.
const MAX_ROWS: usize = 256;
/// Positions whose logits are computed together when all are asked for.
const LOGITS_ROWS: usize = 16;

/// A model with the memory of one sequence: its KV cache and scratch.
pub(crate) struct Forward {
    model: Model,
    team: Team,
    cache: KvCache,
    /// Tokens in the cache.
    position: usize,
    rope: Rope,
    scratch: Scratch,
}

impl Forward {
    pub(crate) fn new(model: &Model, kernels: Kernels, pool: Pool, kv: KvDtype) -> Forward {
        Forward {
            cache: KvCache::new(model.config(), kv),
            model: model.clone(),
            position: 0,
            rope: Rope::default(),
            scratch: Scratch::new(pool.threads()),
            team: Team { kernels, pool },
        }
    }

    pub(crate) fn model(&self) -> &Model {
        &self.model
    }

    pub(crate) fn kernels(&self) -> Kernels {
        self.team.kernels
    }

    pub(crate) fn threads(&self) -> usize {
        self.team.pool.threads()
    }

    /// Tokens of the sequence so far.
    pub(crate) fn position(&self) -> usize {
        self.position
    }

    /// Forgets all tokens from `position` on.
    pub(crate) fn truncate(&mut self, position: usize) {
        self.position = self.position.min(position);
    }

    /// Bytes of the KV cache.
    pub(crate) fn cache_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Appends `tokens` to the sequence and returns the last one's logits, `[vocab_size]`.
    pub(crate) fn feed(&mut self, tokens: &[u32]) -> Result<&[f32]> {
        self.check(tokens)?;
        for tokens in tokens.chunks(MAX_ROWS) {
            self.pass(tokens)?;
        }
        let rows = (tokens.len() - 1) % MAX_ROWS + 1;
        self.logits(rows, rows - 1, 1)?;
        Ok(&self.scratch.logits[..self.model.config().vocab_size])
    }

    /// Appends `tokens` to the sequence and calls `each` with every one's index and logits, `[vocab_size]`.
    pub(crate) fn feed_all(&mut self, tokens: &[u32], each: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        self.check(tokens)?;
        let vocab_size = self.model.config().vocab_size;
        for (chunk, tokens) in tokens.chunks(MAX_ROWS).enumerate() {
            self.pass(tokens)?;
            for first in (0..tokens.len()).step_by(LOGITS_ROWS) {
                let count = LOGITS_ROWS.min(tokens.len() - first);
                self.logits(tokens.len(), first, count)?;
                let s = &mut self.scratch;
                for row in 0..count {
                    copy_rows(&s.logits, count, row, 1, &mut s.logits_row);
                    each(chunk * MAX_ROWS + first + row, &s.logits_row[..vocab_size]);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn check(&self, tokens: &[u32]) -> Result<()> {
        let config = self.model.config();
        if tokens.is_empty() {
            let (expected, found) = ("at least one".into(), "none".into());
            return Err(Error::Argument { name: "tokens", expected, found });
        }
        let needed = self.position.saturating_add(tokens.len());
        if needed > config.max_position_embeddings {
            return Err(Error::ContextFull { needed, limit: config.max_position_embeddings });
        }
        match tokens.iter().find(|&&id| id as usize >= config.vocab_size) {
            Some(&id) => Err(Error::TokenId { id, vocab_size: config.vocab_size }),
            None => Ok(()),
        }
    }

    /// One pass over the layers: leaves the residual stream of `tokens` in `x`, and their keys and values in the cache.
    fn pass(&mut self, tokens: &[u32]) -> Result<()> {
        let Forward { model, team, cache, position, rope, scratch: s } = self;
        let (config, rows) = (model.config(), tokens.len());
        s.resize(config, rows)?;
        cache.reserve(*position + rows)?;
        rope.set(model.rope_inv_freq(), *position, rows);

        for (row, &token) in tokens.iter().enumerate() {
            model.embed_tokens().copy_row(token as usize, &mut s.x, rows, row);
        }
        for layer in 0..config.num_hidden_layers {
            let weights = model.layer(layer);
            let eps = config.rms_norm_eps;
            // x += o_proj(attention(qkv_proj(norm(x))))
            team.rms_norm(&s.x, weights.input_layernorm, eps, &mut s.inverse_rms, &mut s.normed);
            team.project(weights.qkv_proj, &s.normed, rows, &mut s.qkv);
            Attention { config, team, cache, rope, layer, position: *position, rows }.run(s)?;
            team.project_add(weights.o_proj, &s.attention, rows, &mut s.x, &mut s.workers);
            // x += down_proj(silu(gate_proj(norm(x))) * up_proj(norm(x)))
            team.rms_norm(&s.x, weights.post_attention_layernorm, eps, &mut s.inverse_rms, &mut s.normed);
            team.project_gated(weights.gate_up_proj, &s.normed, rows, &mut s.hidden, &mut s.workers);
            team.project_add(weights.down_proj, &s.hidden, rows, &mut s.x, &mut s.workers);
        }
        *position += rows;
        Ok(())
    }

    /// Leaves in `logits` those of `count` rows of the last pass, which had `rows`, from row `first` on.
    fn logits(&mut self, rows: usize, first: usize, count: usize) -> Result<()> {
        let Forward { model, team, scratch: s, .. } = self;
        let config = model.config();
        s.picked.resize(padded(config.hidden_size) * count)?;
        s.logits.resize(padded(config.vocab_size) * count)?;
        s.logits_row.resize(padded(config.vocab_size))?;
        copy_rows(&s.x, rows, first, count, &mut s.picked);
        let (normed, inverse_rms) = (&mut s.normed[..s.picked.len()], &mut s.inverse_rms[..count]);
        team.rms_norm(&s.picked, model.norm(), config.rms_norm_eps, inverse_rms, normed);
        team.project(model.lm_head(), normed, count, &mut s.logits);
        Ok(())
    }
}

/// Copies `count` of `rows` rows, from row `first` on, into activations of their own.
fn copy_rows(from: &[f32], rows: usize, first: usize, count: usize, to: &mut [f32]) {
    let panels = from.chunks_exact(rows * LANES).zip(to.chunks_exact_mut(count * LANES));
    for (from, to) in panels {
        to.copy_from_slice(&from[first * LANES..][..count * LANES]);
    }
}
