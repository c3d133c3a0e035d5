//! `config.json` and `generation_config.json`: the hyperparameters, every default resolved, and the refusal of
//! everything that would change the numbers without this converter knowing how.

use serde_json::Value;
use smolrun::format::{Config, FormatError, LayerFlags};

use super::family::Family;
use super::recommended::Recommended;
use super::rope;
use super::tensor_map::Extras;
use crate::error::{Error, Result};
use crate::json::{Document, Fields};

/// Fields that change the numbers of other architectures, or of fine-tunes of this one, with the values at which they
/// change nothing. Absent and null always are such values. Fields named nowhere are ignored, as transformers does.
const NEUTRAL: &[(&str, &[f64])] = &[
    ("attention_bias", &[0.0]),
    ("attention_multiplier", &[1.0]),
    ("attention_out_bias", &[0.0]),
    ("attn_logit_softcapping", &[]),
    ("clip_qkv", &[]),
    ("embedding_multiplier", &[1.0]),
    ("final_logit_softcapping", &[]),
    ("logit_scale", &[1.0]),
    ("logits_scaling", &[1.0]),
    ("mlp_bias", &[0.0]),
    ("no_rope_layer_interval", &[]),
    ("no_rope_layers", &[]),
    ("num_experts", &[0.0]),
    ("num_local_experts", &[0.0]),
    ("partial_rotary_factor", &[1.0]),
    ("per_layer_config", &[]),
    ("qk_norm", &[0.0]),
    ("quantization_config", &[]),
    ("query_pre_attn_scalar", &[]),
    ("residual_multiplier", &[1.0]),
    ("rope_interleaved", &[0.0]),
    ("sliding_window", &[]),
    ("use_qk_norm", &[0.0]),
    ("use_sliding_window", &[0.0]),
];

/// Transformers' default of `rms_norm_eps`.
const RMS_NORM_EPS: f64 = 1e-6;

/// Fields that transformers renamed: a file that has both must give them the same value.
const RENAMED: &[(&str, &str)] = &[("torch_dtype", "dtype")];

/// A model as `config.json` describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The record that the blob holds.
    pub config: Config,
    /// Rotary inverse frequencies, `[head_dim / 2]`.
    pub rope_inv_freq: Vec<f32>,
    /// What each layer does otherwise than the first Llama's.
    pub layers: Vec<LayerFlags>,
    /// The tensors that the model has beyond that one's.
    pub extras: Extras,
    /// `model_type`, for the metadata.
    pub model_type: String,
    /// How tokens are best chosen, for the metadata.
    pub recommended: Recommended,
}

/// Reads `config.json` and, where there is one, `generation_config.json`.
pub fn read(config: &Document, generation: Option<&Document>) -> Result<ModelConfig> {
    let fields = config.fields()?;
    let family = Family::read(&fields)?;
    check_activation(&fields)?;
    check_neutral(family, &fields)?;
    check_renamed(&fields)?;
    let mut record = hyperparameters(family, &fields)?;
    let generation = generation.map(Document::fields).transpose()?;
    record.eos_token_ids = end_ids(&fields, generation.as_ref())?;
    record.check().map_err(|error| in_file(&fields, error))?;
    let rope = rope::read(&fields, family.rope_theta(), &record)?;
    let (window, layers) = family.layers(&fields, record.num_hidden_layers)?;
    record.max_position_embeddings = rope.positions;
    scale_attention(&mut record, &layers, rope.attention_factor);
    record.sliding_window = window.filter(|_| layers.iter().any(|layer| layer.sliding));
    record.check().map_err(|error| in_file(&fields, error))?;
    let (extras, model_type) = (family.extras(&fields)?, family.model_type().to_owned());
    let recommended = generation.as_ref().map(Recommended::read).unwrap_or_default();
    let rope_inv_freq = rope.inv_freq;
    Ok(ModelConfig { config: record, rope_inv_freq, layers, extras, model_type, recommended })
}

fn check_activation(fields: &Fields) -> Result<()> {
    let hidden_act: Option<String> = fields.optional("hidden_act", "\"silu\"")?;
    match hidden_act {
        Some(act) if act != "silu" => Err(fields.wrong("hidden_act", "\"silu\"", Value::from(act))),
        _ => Ok(()),
    }
}

fn check_neutral(family: Family, fields: &Fields) -> Result<()> {
    for (field, neutral) in NEUTRAL.iter().filter(|(field, _)| !family.knows(field)) {
        let Some(value) = fields.value(field) else { continue };
        let number = value.as_f64().or_else(|| value.as_bool().map(f64::from));
        if !number.is_some_and(|number| neutral.contains(&number)) {
            return Err(fields.wrong(field, neutral_words(neutral, value), value));
        }
    }
    Ok(())
}

fn check_renamed(fields: &Fields) -> Result<()> {
    for (old, new) in RENAMED {
        let (Some(before), Some(after)) = (fields.value(old), fields.value(new)) else { continue };
        if before != after {
            return Err(fields.wrong(old, format!("that of {new}, {after}"), before));
        }
    }
    Ok(())
}

fn neutral_words(neutral: &[f64], found: &Value) -> String {
    match neutral.first() {
        None => "null".to_owned(),
        Some(&number) if found.is_boolean() => (number != 0.0).to_string(),
        Some(number) => number.to_string(),
    }
}

fn hyperparameters(family: Family, fields: &Fields) -> Result<Config> {
    let count = |field| fields.required::<usize>(field, "a positive integer");
    let optional_count = |field| fields.optional::<usize>(field, "a positive integer or null");
    let hidden_size = count("hidden_size")?;
    let num_attention_heads = count("num_attention_heads")?;
    let num_key_value_heads = match optional_count("num_key_value_heads")? {
        Some(heads) => heads,
        None if family.derives_heads() => num_attention_heads,
        None => count("num_key_value_heads")?,
    };
    let head_dim = match optional_count("head_dim")? {
        Some(head_dim) => head_dim,
        None if family == Family::Qwen3 => count("head_dim")?,
        None => divide(fields, hidden_size, num_attention_heads)?,
    };
    let rms_norm_eps: Option<f64> = fields.optional("rms_norm_eps", "a number")?;
    let tie_word_embeddings: Option<bool> = fields.optional("tie_word_embeddings", "true or false")?;
    let mut config = Config::default();
    config.vocab_size = count("vocab_size")?;
    config.hidden_size = hidden_size;
    config.intermediate_size = count("intermediate_size")?;
    config.num_hidden_layers = count("num_hidden_layers")?;
    config.num_attention_heads = num_attention_heads;
    config.num_key_value_heads = num_key_value_heads;
    config.head_dim = head_dim;
    config.max_position_embeddings = count("max_position_embeddings")?;
    config.rms_norm_eps = rms_norm_eps.unwrap_or(RMS_NORM_EPS) as f32;
    config.attention_scale = (1.0 / (head_dim as f64).sqrt()) as f32;
    config.tie_word_embeddings = tie_word_embeddings.unwrap_or(family.ties_word_embeddings());
    config.bos_token_id = token_id(fields, "bos_token_id")?;
    config.pad_token_id = token_id(fields, "pad_token_id")?;
    Ok(config)
}

/// A factor of cosines and sines is one of queries and of keys, and so twice one of their products, in the layers that
/// turn them.
pub(super) fn scale_attention(config: &mut Config, layers: &[LayerFlags], factor: f32) {
    let plain = config.attention_scale;
    config.attention_scale = (f64::from(plain) * f64::from(factor).powi(2)) as f32;
    let differs = config.attention_scale != plain && layers.iter().any(|layer| layer.no_rope);
    config.no_rope_attention_scale = differs.then_some(plain);
}

/// `head_dim` where the file does not give it.
fn divide(fields: &Fields, hidden_size: usize, heads: usize) -> Result<usize> {
    match hidden_size.checked_rem(heads) {
        Some(0) => Ok(hidden_size / heads),
        _ => Err(fields.wrong(
            "num_attention_heads",
            format!("a divisor of hidden_size, {hidden_size}"),
            heads,
        )),
    }
}

/// A token id, where null and negative numbers mean that there is none.
fn token_id(fields: &Fields, field: &str) -> Result<Option<u32>> {
    let id: Option<i64> = fields.optional(field, "a token id or null")?;
    let Some(id) = id.filter(|&id| id >= 0) else { return Ok(None) };
    u32::try_from(id).map(Some).map_err(|_| fields.wrong(field, "a token id or null", id))
}

/// The ids that end a generation: those of `generation_config.json` first, as generation uses them, then what
/// `config.json` adds.
fn end_ids(config: &Fields, generation: Option<&Fields>) -> Result<Vec<u32>> {
    let mut ids = match generation {
        Some(fields) => end_ids_of(fields)?,
        None => Vec::new(),
    };
    ids.extend(end_ids_of(config)?);
    let mut seen = Vec::new();
    ids.retain(|id| {
        !seen.contains(id) && {
            seen.push(*id);
            true
        }
    });
    Ok(ids)
}

fn end_ids_of(fields: &Fields) -> Result<Vec<u32>> {
    let (field, expected) = ("eos_token_id", "a token id or a list of them");
    if !fields.value(field).is_some_and(Value::is_array) {
        return Ok(token_id(fields, field)?.into_iter().collect());
    }
    Ok(fields.optional(field, expected)?.unwrap_or_default())
}

/// An error of the record's own checks, told as one of the file it came from.
fn in_file(fields: &Fields, error: FormatError) -> Error {
    match error {
        FormatError::Config { field, expected, found } => fields.wrong(field, expected, found),
        other => fields.wrong("config", "a config that fits the format", other),
    }
}
