//! `smolconv inspect`: what a blob says about itself.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};
use smolrun::format::{Config, Dtype, Layout, NO_LAYER, Section};

use crate::checkpoint::binding::section_name;
use crate::error::{Error, Result};
use crate::files::hex;
use crate::terminal;
use crate::write::verify::open;

/// Header, config, sections and metadata of the blob at `path`.
pub fn inspect(path: &Path) -> Result<Value> {
    let (storage, layout) = open(path)?;
    let text = |range: &Option<std::ops::Range<usize>>| {
        range.clone().map(|range| String::from_utf8_lossy(&storage.bytes()[range]).into_owned())
    };
    let metadata = match text(&layout.metadata) {
        None => Value::Null,
        Some(metadata) => serde_json::from_str(&metadata)
            .map_err(|error| Error::file(path, format!("metadata: expected JSON: {error}")))?,
    };
    let sections: Vec<_> = layout.sections.iter().map(|entry| section(entry, &metadata)).collect();
    Ok(json!({
        "header": header(&layout),
        "config": config(&layout.config),
        "chat_template": text(&layout.chat_template),
        "metadata": metadata,
        "sections": sections,
    }))
}

fn header(layout: &Layout) -> Value {
    let header = &layout.header;
    json!({
        "version": format!("{}.{}", header.version_major, header.version_minor),
        "file_len": header.file_len,
        "section_count": header.section_count,
        "directory_sha256": hex(&header.directory_sha256),
    })
}

fn config(config: &Config) -> Value {
    json!({
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": shortest(config.rms_norm_eps),
        "attention_scale": shortest(config.attention_scale),
        "no_rope_attention_scale": config.no_rope_attention_scale.map(shortest),
        "sliding_window": config.sliding_window,
        "tie_word_embeddings": config.tie_word_embeddings,
        "bos_token_id": config.bos_token_id,
        "pad_token_id": config.pad_token_id,
        "eos_token_ids": config.eos_token_ids,
    })
}

/// The number with the fewest digits that means the same f32, as somebody wrote it who meant that.
fn shortest(number: f32) -> f64 {
    number.to_string().parse().unwrap_or_else(|_| number.into())
}

fn section(section: &Section, metadata: &Value) -> Value {
    let entry = &section.entry;
    json!({
        "index": section.index,
        "kind": section.kind.map_or_else(|| format!("kind {}", entry.kind), |kind| kind.name().to_owned()),
        "layer": (entry.layer != NO_LAYER).then_some(entry.layer),
        "dtype": Dtype::from_code(entry.dtype).map_or_else(|| entry.dtype.to_string(), |dtype| dtype.name().into()),
        "relative_error": error(section, metadata, "relative_error"),
        "output_error": error(section, metadata, "output_error"),
        "required": entry.flags != 0,
        "shape": entry.shape,
        "offset": entry.offset,
        "length": entry.length,
        "sha256": hex(&entry.sha256),
    })
}

/// What the metadata says that a quantized section lost, null of others.
fn error(section: &Section, metadata: &Value, name: &str) -> Value {
    let Some(kind) = section.kind else { return Value::Null };
    let layer = section.entry.layer;
    let section = section_name(kind, (layer != NO_LAYER).then_some(layer));
    let records = metadata["quantisation"]["sections"].as_array();
    let record = records.into_iter().flatten().find(|record| record["section"] == section.as_str());
    record.map_or(Value::Null, |record| record[name].clone())
}

/// What [`inspect`] found, for people: every object a block of aligned lines, the sections a table.
pub fn to_text(found: &Value) -> String {
    let mut text = String::new();
    for block in ["header", "config", "metadata"] {
        let _ = writeln!(text, "{block}");
        for (name, value) in found[block].as_object().into_iter().flatten() {
            let value = value.as_array().filter(|_| is_table(value)).map_or_else(
                || one_line(value),
                |list| list.iter().map(one_line).collect::<Vec<_>>().join(&format!("\n  {:24}", "")),
            );
            let _ = writeln!(text, "  {:24}{value}", terminal::one_line(name));
        }
    }
    if let Some(template) = found["chat_template"].as_str() {
        let _ = writeln!(text, "chat template\n  {} bytes", template.len());
    }
    let _ = writeln!(
        text,
        "sections\n  {:>5} {:26} {:5} {:6} {:>9} {:>9} {:>17} {:>12} {:>12}  sha256",
        "index", "kind", "layer", "dtype", "error", "of output", "shape", "offset", "length"
    );
    for section in found["sections"].as_array().into_iter().flatten() {
        let column = |name: &str| one_line(&section[name]);
        let shape = format!("[{}, {}]", section["shape"][0], section["shape"][1]);
        let layer = section["layer"].as_u64().map_or_else(String::new, |layer| layer.to_string());
        let error = |name: &str| if section[name].is_null() { String::new() } else { column(name) };
        let hash: String = column("sha256").chars().take(16).collect();
        let _ = writeln!(
            text,
            "  {:>5} {:26} {layer:>5} {:6} {:>9} {:>9} {shape:>17} {:>12} {:>12}  {hash}",
            column("index"),
            column("kind"),
            column("dtype"),
            error("relative_error"),
            error("output_error"),
            column("offset"),
            column("length")
        );
    }
    text
}

fn is_table(value: &Value) -> bool {
    value.as_array().is_some_and(|list| list.iter().any(Value::is_object))
}

/// A string as it is but for what a blob could play tricks on a terminal with; an object as its names and values, without
/// tables: that of quantized sections is a column of the sections'.
fn one_line(value: &Value) -> String {
    match value {
        Value::String(string) => terminal::one_line(string).into_owned(),
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(_, value)| !is_table(value));
            let pairs =
                fields.map(|(name, value)| format!("{} {}", terminal::one_line(name), one_line(value)));
            pairs.collect::<Vec<_>>().join(", ")
        }
        other => terminal::one_line(&other.to_string()).into_owned(),
    }
}
