//! The config record: the model's hyperparameters under Hugging Face's names, everything derived resolved.

use bytemuck::{Pod, Zeroable};

use super::error::FormatError;
use super::layout::{CONFIG_LEN, MAX_EOS, NO_TOKEN};
use super::quantized::PANEL;

/// `hidden_act` code of `silu`.
const ACT_SILU: u32 = 1;
/// Flag: `lm_head` is the embedding.
const FLAG_TIED: u32 = 1;

/// The record as it lies in the file, all fields little-endian.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Record {
    vocab_size: u32,
    hidden_size: u32,
    intermediate_size: u32,
    num_hidden_layers: u32,
    num_attention_heads: u32,
    num_key_value_heads: u32,
    head_dim: u32,
    max_position_embeddings: u32,
    rotary_dim: u32,
    hidden_act: u32,
    rms_norm_eps: f32,
    attention_scale: f32,
    flags: u32,
    bos_token_id: u32,
    pad_token_id: u32,
    eos_count: u32,
    eos_token_ids: [u32; MAX_EOS],
    sliding_window: u32,
    no_rope_attention_scale: f32,
    reserved: [u8; 120],
}

const _: () = assert!(size_of::<Record>() == CONFIG_LEN);

/// A model's hyperparameters. Field names are those of Hugging Face's `config.json`.
///
/// The default is all zeros, which is no model: it is for whoever sets the fields.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Rows of the embedding and logits per position.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward layer.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; divides `num_attention_heads`.
    pub num_key_value_heads: usize,
    /// Width of one head; a multiple of 16.
    pub head_dim: usize,
    /// Longest context, in tokens.
    pub max_position_embeddings: usize,
    /// RMSNorm's epsilon.
    pub rms_norm_eps: f32,
    /// The factor of query-key products.
    pub attention_scale: f32,
    /// The same in layers whose queries and keys are not turned, where it differs.
    pub no_rope_attention_scale: Option<f32>,
    /// Whether `lm_head` is the embedding.
    pub tie_word_embeddings: bool,
    /// The id that begins a text, where the checkpoint names one.
    pub bos_token_id: Option<u32>,
    /// The padding id, where the checkpoint names one.
    pub pad_token_id: Option<u32>,
    /// The ids that end a generation, at most 16.
    pub eos_token_ids: Vec<u32>,
    /// Positions that a token sees in the layers with a sliding window, its own included; `None` if no layer has one.
    pub sliding_window: Option<usize>,
}

impl Config {
    /// Rows of `qkv_proj`: all query heads, then the key heads, then the value heads.
    pub fn qkv_rows(&self) -> usize {
        let key_value_heads = self.num_key_value_heads.saturating_mul(2);
        self.num_attention_heads.saturating_add(key_value_heads).saturating_mul(self.head_dim)
    }

    /// Width of all query heads together: what `o_proj` reads.
    pub fn attention_width(&self) -> usize {
        self.num_attention_heads.saturating_mul(self.head_dim)
    }

    /// Query heads that share one key-value head.
    pub fn heads_per_kv(&self) -> usize {
        self.num_attention_heads.checked_div(self.num_key_value_heads).unwrap_or(0)
    }

    /// The record's bytes. `config` must pass [`Config::check`]; a value past 32 bits is written as 2³²-1.
    #[doc(hidden)] // the converter's
    pub fn to_bytes(&self) -> [u8; CONFIG_LEN] {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let mut eos_token_ids = [0; MAX_EOS];
        for (slot, &id) in eos_token_ids.iter_mut().zip(&self.eos_token_ids) {
            *slot = id;
        }
        let record = Record {
            vocab_size: count(self.vocab_size),
            hidden_size: count(self.hidden_size),
            intermediate_size: count(self.intermediate_size),
            num_hidden_layers: count(self.num_hidden_layers),
            num_attention_heads: count(self.num_attention_heads),
            num_key_value_heads: count(self.num_key_value_heads),
            head_dim: count(self.head_dim),
            max_position_embeddings: count(self.max_position_embeddings),
            rotary_dim: count(self.head_dim),
            hidden_act: ACT_SILU,
            rms_norm_eps: self.rms_norm_eps,
            attention_scale: self.attention_scale,
            flags: if self.tie_word_embeddings { FLAG_TIED } else { 0 },
            bos_token_id: self.bos_token_id.unwrap_or(NO_TOKEN),
            pad_token_id: self.pad_token_id.unwrap_or(NO_TOKEN),
            eos_count: count(self.eos_token_ids.len()),
            eos_token_ids,
            sliding_window: self.sliding_window.map_or(0, count),
            no_rope_attention_scale: self.no_rope_attention_scale.unwrap_or(0.0),
            reserved: [0; 120],
        };
        bytemuck::cast(record)
    }

    /// Reads the record and checks every field.
    pub fn parse(bytes: &[u8; CONFIG_LEN]) -> Result<Config, FormatError> {
        let record: Record = bytemuck::pod_read_unaligned(bytes);
        if record.reserved != [0; 120] {
            return Err(wrong("reserved", "zeros", "other values"));
        }
        if record.hidden_act != ACT_SILU {
            return Err(wrong("hidden_act", "1 (silu)", record.hidden_act));
        }
        if record.rotary_dim != record.head_dim {
            return Err(wrong("rotary_dim", format!("head_dim, {}", record.head_dim), record.rotary_dim));
        }
        if record.flags & !FLAG_TIED != 0 {
            return Err(wrong("flags", "0 or 1", record.flags));
        }
        let eos = record.eos_token_ids.get(..record.eos_count as usize);
        let eos = eos.ok_or_else(|| wrong("eos_count", format!("at most {MAX_EOS}"), record.eos_count))?;
        if record.eos_token_ids.iter().skip(eos.len()).any(|&id| id != 0) {
            return Err(wrong("eos_token_ids", "zeros after the last id", "other values"));
        }
        let token = |id: u32| (id != NO_TOKEN).then_some(id);
        let config = Config {
            vocab_size: record.vocab_size as usize,
            hidden_size: record.hidden_size as usize,
            intermediate_size: record.intermediate_size as usize,
            num_hidden_layers: record.num_hidden_layers as usize,
            num_attention_heads: record.num_attention_heads as usize,
            num_key_value_heads: record.num_key_value_heads as usize,
            head_dim: record.head_dim as usize,
            max_position_embeddings: record.max_position_embeddings as usize,
            rms_norm_eps: record.rms_norm_eps,
            attention_scale: record.attention_scale,
            no_rope_attention_scale: (record.no_rope_attention_scale.to_bits() != 0)
                .then_some(record.no_rope_attention_scale),
            tie_word_embeddings: record.flags & FLAG_TIED != 0,
            bos_token_id: token(record.bos_token_id),
            pad_token_id: token(record.pad_token_id),
            eos_token_ids: eos.to_vec(),
            sliding_window: (record.sliding_window != 0).then_some(record.sliding_window as usize),
        };
        config.check()?;
        Ok(config)
    }

    /// The most tokens that a vocabulary may have.
    pub const MAX_VOCAB_SIZE: usize = 1 << 22;

    /// Checks every field against its bounds and the others. The bounds leave room for any model this runtime is
    /// meant for, and keep every product of two of them far below 2⁶⁴.
    pub fn check(&self) -> Result<(), FormatError> {
        let bounded = [
            ("vocab_size", self.vocab_size, Config::MAX_VOCAB_SIZE),
            ("hidden_size", self.hidden_size, 1 << 16),
            ("intermediate_size", self.intermediate_size, 1 << 18),
            ("num_hidden_layers", self.num_hidden_layers, 1 << 10),
            ("num_attention_heads", self.num_attention_heads, 1 << 10),
            ("num_key_value_heads", self.num_key_value_heads, 1 << 10),
            ("head_dim", self.head_dim, 1 << 10),
            ("max_position_embeddings", self.max_position_embeddings, 1 << 24),
            ("sliding_window", self.sliding_window.unwrap_or(1), 1 << 24),
        ];
        for (field, found, most) in bounded {
            if found == 0 || found > most {
                return Err(wrong(field, format!("1 to {most}"), found));
            }
        }
        if !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) {
            let expected = format!("a divisor of num_attention_heads, {}", self.num_attention_heads);
            return Err(wrong("num_key_value_heads", expected, self.num_key_value_heads));
        }
        if !self.head_dim.is_multiple_of(PANEL) {
            return Err(wrong("head_dim", format!("a multiple of {PANEL}"), self.head_dim));
        }
        let factors = [
            ("rms_norm_eps", self.rms_norm_eps),
            ("attention_scale", self.attention_scale),
            ("no_rope_attention_scale", self.no_rope_attention_scale.unwrap_or(1.0)),
        ];
        for (field, found) in factors {
            if !(found.is_finite() && found > 0.0) {
                return Err(wrong(field, "a finite number above 0", found));
            }
        }
        if self.eos_token_ids.len() > MAX_EOS {
            return Err(wrong("eos_token_ids", format!("at most {MAX_EOS} ids"), self.eos_token_ids.len()));
        }
        let named = [("bos_token_id", self.bos_token_id), ("pad_token_id", self.pad_token_id)];
        let named = named.into_iter().filter_map(|(field, id)| id.map(|id| (field, id)));
        for (field, id) in named.chain(self.eos_token_ids.iter().map(|&id| ("eos_token_id", id))) {
            if id as usize >= self.vocab_size {
                return Err(wrong(field, format!("an id below vocab_size, {}", self.vocab_size), id));
            }
        }
        Ok(())
    }
}

fn wrong(field: &'static str, expected: impl Into<String>, found: impl ToString) -> FormatError {
    FormatError::Config { field, expected: expected.into(), found: found.to_string() }
}
