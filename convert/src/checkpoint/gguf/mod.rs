//! The hyperparameters in a GGUF file's metadata, and the refusal of all that would change the numbers without this
//! converter knowing how.

mod keys;
mod rope;

use smolrun::format::{Config, FormatError};

use self::keys::Keys;
use super::config::{ModelConfig, scale_attention};
use super::recommended::Recommended;
use super::tensor_map::{gguf_biases, gguf_is_tied};
use crate::error::{Error, Result};
use crate::source::Source;
use crate::source::gguf::Metadata;

/// Reads the config of a GGUF file whose vocabulary has `token_count` tokens.
pub fn read(metadata: &Metadata, source: &Source, token_count: usize) -> Result<ModelConfig> {
    let keys = Keys::new(metadata)?;
    let mut config = hyperparameters(keys, gguf_is_tied(source), token_count)?;
    config.check().map_err(|error| in_file(keys, error))?;
    check_widths(keys, config.head_dim)?;
    let rope = rope::read(keys, source, &config)?;
    let layers = keys.family.gguf_layers(config.num_hidden_layers);
    config.max_position_embeddings = rope.positions;
    scale_attention(&mut config, &layers, rope.attention_factor);
    config.check().map_err(|error| in_file(keys, error))?;
    Ok(ModelConfig {
        rope_inv_freq: rope.inv_freq,
        layers,
        extras: keys.family.gguf_extras(gguf_biases(source)),
        model_type: keys.family.model_type().to_owned(),
        recommended: Recommended::default(),
        config,
    })
}

fn hyperparameters(keys: Keys, tied: bool, token_count: usize) -> Result<Config> {
    let hidden_size = keys.required_count("embedding_length")?;
    let num_attention_heads = keys.required_count("attention.head_count")?;
    let head_dim = match keys.count("attention.key_length")? {
        Some(head_dim) => head_dim,
        None => divided(keys, hidden_size, num_attention_heads)?,
    };
    let epsilon = keys.full("attention.layer_norm_rms_epsilon");
    let mut config = Config::default();
    config.vocab_size = keys.count("vocab_size")?.unwrap_or(token_count);
    config.hidden_size = hidden_size;
    config.intermediate_size = keys.required_count("feed_forward_length")?;
    config.num_hidden_layers = keys.required_count("block_count")?;
    config.num_attention_heads = num_attention_heads;
    config.num_key_value_heads = keys.count("attention.head_count_kv")?.unwrap_or(num_attention_heads);
    config.head_dim = head_dim;
    config.max_position_embeddings = keys.required_count("context_length")?;
    config.rms_norm_eps = keys.metadata.required(&epsilon, keys.metadata.float(&epsilon))? as f32;
    config.attention_scale = (1.0 / (head_dim as f64).sqrt()) as f32;
    config.tie_word_embeddings = tied;
    config.bos_token_id = token_id(keys.metadata, "bos_token_id")?;
    config.pad_token_id = token_id(keys.metadata, "padding_token_id")?;
    config.eos_token_ids = end_ids(keys.metadata)?;
    Ok(config)
}

/// The width of a head where the file does not give it.
fn divided(keys: Keys, hidden_size: usize, heads: usize) -> Result<usize> {
    match hidden_size.checked_rem(heads) {
        Some(0) => Ok(hidden_size / heads),
        _ => {
            let expected = format!("a divisor of {}, {hidden_size}", keys.full("embedding_length"));
            Err(keys.wrong("attention.head_count", expected, heads))
        }
    }
}

/// Keys, values and the turned part of a head all are as wide as the head.
fn check_widths(keys: Keys, head_dim: usize) -> Result<()> {
    for name in ["attention.value_length", "rope.dimension_count"] {
        match keys.count(name)? {
            Some(width) if width != head_dim => {
                return Err(keys.wrong(name, format!("the width of a head, {head_dim}"), width));
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

/// An error of the record's own checks, told as one of the key it came from.
fn in_file(keys: Keys, error: FormatError) -> Error {
    let FormatError::Config { field, expected, found } = error else {
        return keys.metadata.wrong("config", "a config that fits the format", error);
    };
    let full = match field {
        "vocab_size" => keys.full("vocab_size"),
        "hidden_size" => keys.full("embedding_length"),
        "intermediate_size" => keys.full("feed_forward_length"),
        "num_hidden_layers" => keys.full("block_count"),
        "num_attention_heads" => keys.full("attention.head_count"),
        "num_key_value_heads" => keys.full("attention.head_count_kv"),
        "head_dim" => keys.full("attention.key_length"),
        "max_position_embeddings" => keys.full("context_length"),
        "rms_norm_eps" => keys.full("attention.layer_norm_rms_epsilon"),
        "attention_scale" | "no_rope_attention_scale" => keys.full("rope.scaling.factor"),
        "pad_token_id" => "tokenizer.ggml.padding_token_id".to_owned(),
        other => format!("tokenizer.ggml.{other}"),
    };
    keys.metadata.wrong(&full, expected, found)
}
