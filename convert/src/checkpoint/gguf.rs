//! The hyperparameters in a GGUF file's metadata, and the refusal of all that would change the numbers without this
//! converter knowing how.

use smolrun::format::{Config, FormatError, LayerFlags};

use super::config::ModelConfig;
use super::recommended::Recommended;
use super::rope;
use super::tensor_map::{Extras, GGUF_ROPE_FACTORS, gguf_is_tied};
use crate::error::{Error, Result};
use crate::source::gguf::Metadata;
use crate::source::{Source, Tensor};

/// The architecture, and what its keys begin with.
const ARCHITECTURE: &str = "llama";
/// The keys of the architecture that are read here, or that change no numbers.
const KNOWN: &[&str] = &[
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "vocab_size",
];
/// Keys with the number at which they change nothing.
const NEUTRAL: &[(&str, f64)] = &[
    ("expert_count", 0.0),
    ("expert_used_count", 0.0),
    ("rope.scaling.factor", 1.0),
    ("rope.scale_linear", 1.0),
];
/// llama.cpp's default of `rope.freq_base`.
const ROPE_THETA: f64 = 10_000.0;

/// Reads the config of a GGUF file whose vocabulary has `token_count` tokens.
pub fn read(metadata: &Metadata, source: &Source, token_count: usize) -> Result<ModelConfig> {
    check_kind(metadata)?;
    check_keys(metadata)?;
    let config = hyperparameters(metadata, gguf_is_tied(source), token_count)?;
    config.check().map_err(|error| in_file(metadata, error))?;
    check_widths(metadata, config.head_dim)?;
    let theta = metadata.float(&key("rope.freq_base"))?.unwrap_or(ROPE_THETA);
    if !(1.0..=1e30).contains(&theta) {
        return Err(metadata.wrong(&key("rope.freq_base"), "a number from 1 to 1e30", theta));
    }
    let mut rope_inv_freq = rope::inv_freq(theta, config.head_dim);
    if let Some(tensor) = source.tensors.get(GGUF_ROPE_FACTORS) {
        divide(&mut rope_inv_freq, &rope_factors(source, tensor, config.head_dim / 2)?);
    }
    let (layers, model_type) =
        (vec![LayerFlags::default(); config.num_hidden_layers], ARCHITECTURE.to_owned());
    let (extras, recommended) = (Extras::default(), Recommended::default());
    Ok(ModelConfig { config, rope_inv_freq, layers, extras, model_type, recommended })
}

fn key(name: &str) -> String {
    format!("{ARCHITECTURE}.{name}")
}

fn check_kind(metadata: &Metadata) -> Result<()> {
    let architecture = metadata.required("general.architecture", metadata.string("general.architecture"))?;
    if architecture != ARCHITECTURE {
        return Err(metadata.wrong(
            "general.architecture",
            format!("{ARCHITECTURE:?}"),
            format!("{architecture:?}"),
        ));
    }
    match metadata.count("split.count")? {
        Some(files @ 2..) => {
            Err(metadata.wrong("split.count", "a file that is not split", format!("{files} parts")))
        }
        _ => Ok(()),
    }
}

/// Refuses every key of the architecture that is not known: it may change any number.
fn check_keys(metadata: &Metadata) -> Result<()> {
    for full in metadata.keys() {
        let Some(name) = full.strip_prefix(ARCHITECTURE).and_then(|rest| rest.strip_prefix('.')) else {
            continue;
        };
        if KNOWN.contains(&name) {
            continue;
        }
        if name == "rope.scaling.type" {
            check_scaling(metadata, full)?;
            continue;
        }
        let Some(&(_, neutral)) = NEUTRAL.iter().find(|(known, _)| *known == name) else {
            return Err(metadata.wrong(full, "no key of this name", "one"));
        };
        let found = metadata.float(full).or_else(|_| Ok(metadata.count(full)?.map(|count| count as f64)))?;
        if let Some(found) = found.filter(|&found| found != neutral) {
            return Err(metadata.wrong(full, neutral.to_string(), found));
        }
    }
    Ok(())
}

fn check_scaling(metadata: &Metadata, key: &str) -> Result<()> {
    match metadata.string(key)? {
        Some("none") | None => Ok(()),
        Some(kind) => Err(metadata.wrong(key, "\"none\"", format!("{kind:?}"))),
    }
}

fn hyperparameters(metadata: &Metadata, tied: bool, token_count: usize) -> Result<Config> {
    let optional = |name: &str| {
        let key = key(name);
        let count = metadata.count(&key)?;
        count
            .map(|count| usize::try_from(count).map_err(|_| metadata.wrong(&key, "below 2^32", count)))
            .transpose()
    };
    let count = |name: &str| metadata.required(&key(name), optional(name));
    let hidden_size = count("embedding_length")?;
    let num_attention_heads = count("attention.head_count")?;
    let head_dim = match optional("attention.key_length")? {
        Some(head_dim) => head_dim,
        None => divided(metadata, hidden_size, num_attention_heads)?,
    };
    let epsilon = key("attention.layer_norm_rms_epsilon");
    let mut config = Config::default();
    config.vocab_size = optional("vocab_size")?.unwrap_or(token_count);
    config.hidden_size = hidden_size;
    config.intermediate_size = count("feed_forward_length")?;
    config.num_hidden_layers = count("block_count")?;
    config.num_attention_heads = num_attention_heads;
    config.num_key_value_heads = optional("attention.head_count_kv")?.unwrap_or(num_attention_heads);
    config.head_dim = head_dim;
    config.max_position_embeddings = count("context_length")?;
    config.rms_norm_eps = metadata.required(&epsilon, metadata.float(&epsilon))? as f32;
    config.attention_scale = (1.0 / (head_dim as f64).sqrt()) as f32;
    config.tie_word_embeddings = tied;
    config.bos_token_id = token_id(metadata, "bos_token_id")?;
    config.pad_token_id = token_id(metadata, "padding_token_id")?;
    config.eos_token_ids = end_ids(metadata)?;
    Ok(config)
}

/// The width of a head where the file does not give it.
fn divided(metadata: &Metadata, hidden_size: usize, heads: usize) -> Result<usize> {
    match hidden_size.checked_rem(heads) {
        Some(0) => Ok(hidden_size / heads),
        _ => {
            let expected = format!("a divisor of {}, {hidden_size}", key("embedding_length"));
            Err(metadata.wrong(&key("attention.head_count"), expected, heads))
        }
    }
}

/// Keys, values and the turned part of a head all are as wide as the head.
fn check_widths(metadata: &Metadata, head_dim: usize) -> Result<()> {
    for name in ["attention.value_length", "rope.dimension_count"] {
        match metadata.count(&key(name))? {
            Some(width) if width != head_dim as u64 => {
                return Err(metadata.wrong(&key(name), format!("the width of a head, {head_dim}"), width));
            }
            _ => {}
        }
    }
    Ok(())
}

fn token_id(metadata: &Metadata, role: &str) -> Result<Option<u32>> {
    let key = format!("tokenizer.ggml.{role}");
    let id = metadata.count(&key)?;
    id.map(|id| u32::try_from(id).map_err(|_| metadata.wrong(&key, "a token id", id))).transpose()
}

/// The ids that end a generation: of a text, a turn and a message.
fn end_ids(metadata: &Metadata) -> Result<Vec<u32>> {
    let mut ids = Vec::new();
    for role in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        let id = token_id(metadata, role)?;
        ids.extend(id.filter(|id| !ids.contains(id)));
    }
    Ok(ids)
}

/// What each rotary frequency is divided by: the scaling of Llama 3, computed when the file was made.
fn rope_factors(source: &Source, tensor: &Tensor, expected: usize) -> Result<Vec<f32>> {
    if tensor.shape != [expected] || tensor.dtype.block_len() != 1 || !tensor.dtype.is_weight() {
        let (dtype, shape) = (tensor.dtype, &tensor.shape);
        let problem = format!("expected {expected} floats, found {dtype} of shape {shape:?}");
        return Err(Error::tensor(&tensor.name, problem));
    }
    let (mut bytes, mut factors) = (vec![0; tensor.len as usize], vec![0.0; expected]);
    source.files[tensor.file].read_at(&mut bytes, tensor.offset)?;
    tensor.dtype.decode(&bytes, &mut factors);
    match factors.iter().find(|factor| !(factor.is_finite() && **factor > 0.0)) {
        Some(factor) => Err(Error::tensor(&tensor.name, format!("expected numbers above 0, found {factor}"))),
        None => Ok(factors),
    }
}

fn divide(frequencies: &mut [f32], factors: &[f32]) {
    frequencies.iter_mut().zip(factors).for_each(|(frequency, factor)| *frequency /= factor);
}

/// An error of the record's own checks, told as one of the key it came from.
fn in_file(metadata: &Metadata, error: FormatError) -> Error {
    let FormatError::Config { field, expected, found } = error else {
        return metadata.wrong("config", "a config that fits the format", error);
    };
    let full = match field {
        "vocab_size" => key("vocab_size"),
        "hidden_size" => key("embedding_length"),
        "intermediate_size" => key("feed_forward_length"),
        "num_hidden_layers" => key("block_count"),
        "num_attention_heads" => key("attention.head_count"),
        "num_key_value_heads" => key("attention.head_count_kv"),
        "head_dim" => key("attention.key_length"),
        "max_position_embeddings" => key("context_length"),
        "rms_norm_eps" => key("attention.layer_norm_rms_epsilon"),
        "pad_token_id" => "tokenizer.ggml.padding_token_id".to_owned(),
        other => format!("tokenizer.ggml.{other}"),
    };
    metadata.wrong(&full, expected, found)
}
