//! `config.json` and `generation_config.json`: the hyperparameters, every default resolved, and the refusal of
//! everything that would change the numbers without this converter knowing how.

use serde_json::Value;
use smolrun::format::{Config, FormatError};

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
    ("qk_norm", &[0.0]),
    ("quantization_config", &[]),
    ("query_pre_attn_scalar", &[]),
    ("residual_multiplier", &[1.0]),
    ("rope_interleaved", &[0.0]),
    ("sliding_window", &[]),
    ("use_qk_norm", &[0.0]),
    ("use_sliding_window", &[0.0]),
];

/// Transformers' default of `rope_theta`.
const ROPE_THETA: f64 = 10_000.0;
/// Transformers' default of `rms_norm_eps` for Llama.
const RMS_NORM_EPS: f64 = 1e-6;

/// A model as `config.json` describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The record that the blob holds.
    pub config: Config,
    /// Rotary inverse frequencies, `[head_dim / 2]`.
    pub rope_inv_freq: Vec<f32>,
    /// `model_type`, for the metadata.
    pub model_type: String,
}

/// Reads `config.json` and, where there is one, `generation_config.json`.
pub fn read(config: &Document, generation: Option<&Document>) -> Result<ModelConfig> {
    let fields = config.fields()?;
    let model_type = check_architecture(&fields)?;
    check_neutral(&fields)?;
    let rope_theta = rope_theta(&fields)?;
    let mut record = hyperparameters(&fields)?;
    record.eos_token_ids = end_ids(&fields, generation)?;
    record.check().map_err(|error| in_file(&fields, error))?;
    let rope_inv_freq = rope_inv_freq(rope_theta, record.head_dim);
    Ok(ModelConfig { config: record, rope_inv_freq, model_type })
}

/// Returns the `model_type`.
fn check_architecture(fields: &Fields) -> Result<String> {
    let model_type: String = fields.required("model_type", "\"llama\"")?;
    if model_type != "llama" {
        return Err(fields.wrong("model_type", "\"llama\"", Value::from(model_type)));
    }
    let expected = "[\"LlamaForCausalLM\"]";
    let architectures: Vec<String> = fields.required("architectures", expected)?;
    if architectures != ["LlamaForCausalLM"] {
        return Err(fields.wrong("architectures", expected, Value::from(architectures)));
    }
    let hidden_act: Option<String> = fields.optional("hidden_act", "\"silu\"")?;
    match hidden_act {
        Some(act) if act != "silu" => Err(fields.wrong("hidden_act", "\"silu\"", Value::from(act))),
        _ => Ok(model_type),
    }
}

fn check_neutral(fields: &Fields) -> Result<()> {
    for (field, neutral) in NEUTRAL {
        let Some(value) = fields.value(field) else { continue };
        let number = value.as_f64().or_else(|| value.as_bool().map(f64::from));
        if !number.is_some_and(|number| neutral.contains(&number)) {
            return Err(fields.wrong(field, neutral_words(neutral, value), value));
        }
    }
    let layers: Vec<Value> = fields.optional("layer_types", "a list")?.unwrap_or_default();
    match layers.iter().find(|&layer| layer != "full_attention") {
        Some(layer) => Err(fields.wrong("layer_types", "\"full_attention\" everywhere", layer)),
        None => Ok(()),
    }
}

fn neutral_words(neutral: &[f64], found: &Value) -> String {
    match neutral.first() {
        None => "null".to_owned(),
        Some(&number) if found.is_boolean() => (number != 0.0).to_string(),
        Some(number) => number.to_string(),
    }
}

fn hyperparameters(fields: &Fields) -> Result<Config> {
    let count = |field| fields.required::<usize>(field, "a positive integer");
    let optional_count = |field| fields.optional::<usize>(field, "a positive integer or null");
    let hidden_size = count("hidden_size")?;
    let num_attention_heads = count("num_attention_heads")?;
    let num_key_value_heads = optional_count("num_key_value_heads")?.unwrap_or(num_attention_heads);
    let head_dim = match optional_count("head_dim")? {
        Some(head_dim) => head_dim,
        None => divide(fields, hidden_size, num_attention_heads)?,
    };
    let rms_norm_eps: Option<f64> = fields.optional("rms_norm_eps", "a number")?;
    let tie_word_embeddings: Option<bool> = fields.optional("tie_word_embeddings", "true or false")?;
    Ok(Config {
        vocab_size: count("vocab_size")?,
        hidden_size,
        intermediate_size: count("intermediate_size")?,
        num_hidden_layers: count("num_hidden_layers")?,
        num_attention_heads,
        num_key_value_heads,
        head_dim,
        max_position_embeddings: count("max_position_embeddings")?,
        rms_norm_eps: rms_norm_eps.unwrap_or(RMS_NORM_EPS) as f32,
        attention_scale: (1.0 / (head_dim as f64).sqrt()) as f32,
        tie_word_embeddings: tie_word_embeddings.unwrap_or(false),
        bos_token_id: token_id(fields, "bos_token_id")?,
        pad_token_id: token_id(fields, "pad_token_id")?,
        eos_token_ids: Vec::new(),
        sliding_window: None,
    })
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
fn end_ids(config: &Fields, generation: Option<&Document>) -> Result<Vec<u32>> {
    let mut ids = match generation {
        Some(document) => end_ids_of(&document.fields()?)?,
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

/// `rope_theta`, from where transformers 4 or 5 keep it, after the refusal of every kind of rope scaling.
fn rope_theta(fields: &Fields) -> Result<f64> {
    let mut theta = fields.optional::<f64>("rope_theta", "a number")?;
    for object in ["rope_scaling", "rope_parameters"] {
        let Some(rope) = fields.object(object)? else { continue };
        for key in ["rope_type", "type"] {
            match rope.value(key) {
                Some(kind) if kind != "default" => {
                    return Err(fields.wrong(&format!("{object}.{key}"), "null or \"default\"", kind));
                }
                _ => {}
            }
        }
        check_neutral(&rope)?;
        let inner = rope.optional::<f64>("rope_theta", "a number")?;
        if let (Some(outer), Some(inner)) = (theta, inner.filter(|&inner| Some(inner) != theta)) {
            let expected = format!("rope_theta, {outer}");
            return Err(fields.wrong(&format!("{object}.rope_theta"), expected, inner));
        }
        theta = theta.or(inner);
    }
    let theta = theta.unwrap_or(ROPE_THETA);
    match theta.is_finite() && (1.0..=1e30).contains(&theta) {
        true => Ok(theta),
        false => Err(fields.wrong("rope_theta", "a number from 1 to 1e30", theta)),
    }
}

/// `1 / theta^(2i / head_dim)` with the roundings of transformers, which computes it in f32: each step is rounded
/// once, the power correctly.
fn rope_inv_freq(theta: f64, head_dim: usize) -> Vec<f32> {
    let theta = f64::from(theta as f32);
    let frequency = |i: usize| {
        let exponent = (2 * i) as f32 / head_dim as f32;
        1.0 / (theta.powf(f64::from(exponent)) as f32)
    };
    (0..head_dim / 2).map(frequency).collect()
}

/// An error of the record's own checks, told as one of the file it came from.
fn in_file(fields: &Fields, error: FormatError) -> Error {
    match error {
        FormatError::Config { field, expected, found } => fields.wrong(field, expected, found),
        other => fields.wrong("config", "a config that fits the format", other),
    }
}
