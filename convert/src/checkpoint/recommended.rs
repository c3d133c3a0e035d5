//! How a checkpoint's makers would have its tokens chosen: what `generation_config.json` says of sampling.

use serde::Serialize;
use serde_json::Value;

use crate::json::Fields;

/// Their recommendation, by transformers' names, for the metadata. What is not there, or is not even of the right kind, is
/// left out: it is advice, and no reason to refuse a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Recommended {
    #[serde(skip_serializing_if = "Option::is_none")]
    do_sample: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_k: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    repetition_penalty: Option<f64>,
}

impl Recommended {
    /// What the fields of `generation_config.json` recommend.
    pub fn read(fields: &Fields) -> Recommended {
        let number = |field: &str| fields.value(field).and_then(Value::as_f64);
        Recommended {
            do_sample: fields.value("do_sample").and_then(Value::as_bool),
            temperature: number("temperature"),
            top_k: fields.value("top_k").and_then(Value::as_u64),
            top_p: number("top_p"),
            repetition_penalty: number("repetition_penalty"),
        }
    }

    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        *self == Recommended::default()
    }
}
