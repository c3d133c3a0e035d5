//! The architectures that are Llamas but for some details, as transformers' code has them, and those details.

use serde_json::Value;
use smolrun::format::LayerFlags;

use super::tensor_map::Extras;
use crate::error::Result;
use crate::json::Fields;

/// Transformers' default of `sliding_window` for Mistral and Qwen.
const SLIDING_WINDOW: usize = 4096;
/// Transformers' default of `max_window_layers`.
const MAX_WINDOW_LAYERS: usize = 28;
/// Transformers' default of `no_rope_layer_interval`.
const NO_ROPE_LAYER_INTERVAL: usize = 4;

/// An architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// Llama 1 to 3.2, TinyLlama, SmolLM and SmolLM2.
    Llama,
    /// A sliding window.
    Mistral,
    /// Biases of q, k and v; a sliding window in later layers, if it is switched on.
    Qwen2,
    /// As Qwen2 with norms of queries and keys in place of the biases.
    Qwen3,
    /// Layers without rotary embedding.
    SmolLm3,
}

impl Family {
    const ALL: [Family; 5] = [Family::Llama, Family::Mistral, Family::Qwen2, Family::Qwen3, Family::SmolLm3];
    /// Those that a GGUF file may name. Mistral's are called Llama's there.
    pub(crate) const IN_GGUF: [Family; 4] = [Family::Llama, Family::Qwen2, Family::Qwen3, Family::SmolLm3];

    /// The architecture that `model_type` and `architectures` name.
    pub(crate) fn read(fields: &Fields) -> Result<Family> {
        let expected = Family::ALL.map(|family| format!("{:?}", family.model_type())).join(", ");
        let model_type: String = fields.required("model_type", &expected)?;
        let family = Family::ALL.into_iter().find(|family| family.model_type() == model_type);
        let family = family.ok_or_else(|| fields.wrong("model_type", expected, Value::from(model_type)))?;
        let expected = format!("[{:?}]", family.architecture());
        let architectures: Vec<String> = fields.required("architectures", &expected)?;
        match architectures == [family.architecture()] {
            true => Ok(family),
            false => Err(fields.wrong("architectures", expected, Value::from(architectures))),
        }
    }

    pub(crate) fn model_type(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Mistral => "mistral",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
            Family::SmolLm3 => "smollm3",
        }
    }

    fn architecture(self) -> &'static str {
        match self {
            Family::Llama => "LlamaForCausalLM",
            Family::Mistral => "MistralForCausalLM",
            Family::Qwen2 => "Qwen2ForCausalLM",
            Family::Qwen3 => "Qwen3ForCausalLM",
            Family::SmolLm3 => "SmolLM3ForCausalLM",
        }
    }

    /// Fields that the architecture reads, or never has in effect, although they change the numbers of others.
    pub(crate) fn knows(self, field: &str) -> bool {
        match field {
            "attention_bias" => self != Family::Mistral,
            "mlp_bias" => matches!(self, Family::Llama | Family::SmolLm3),
            "sliding_window" => self != Family::Llama,
            "use_sliding_window" => !matches!(self, Family::Llama | Family::Mistral),
            "no_rope_layers" | "no_rope_layer_interval" => self == Family::SmolLm3,
            _ => false,
        }
    }

    /// Transformers' default of `rope_theta`.
    pub(crate) fn rope_theta(self) -> f64 {
        if self == Family::SmolLm3 { 2_000_000.0 } else { 10_000.0 }
    }

    /// Transformers' default of `tie_word_embeddings`.
    pub(crate) fn ties_word_embeddings(self) -> bool {
        self == Family::SmolLm3
    }

    /// Whether a config may leave `num_key_value_heads` out: elsewhere its default is that of one model.
    pub(crate) fn derives_heads(self) -> bool {
        self == Family::Llama
    }

    /// The tensors that a model has beyond those of the first Llama.
    pub(crate) fn extras(self, fields: &Fields) -> Result<Extras> {
        let is_on = |field| -> Result<bool> { Ok(fields.optional(field, "true or false")?.unwrap_or(false)) };
        let (none, biased) = (Extras::default(), is_on("attention_bias")?);
        let attention = Extras { qkv_bias: biased, o_bias: biased, ..none };
        Ok(match self {
            Family::Llama | Family::SmolLm3 => Extras { mlp_bias: is_on("mlp_bias")?, ..attention },
            Family::Mistral => none,
            Family::Qwen2 => Extras { qkv_bias: true, ..none },
            Family::Qwen3 => Extras { qk_norm: true, ..attention },
        })
    }

    /// What each of `count` layers does in a GGUF file, which says nothing of it: no layer has a window.
    pub(crate) fn gguf_layers(self, count: usize) -> Vec<LayerFlags> {
        let no_rope = |layer: usize| self == Family::SmolLm3 && layer.is_multiple_of(NO_ROPE_LAYER_INTERVAL);
        (1..=count).map(|layer| LayerFlags { no_rope: no_rope(layer), sliding: false }).collect()
    }

    /// The tensors that a GGUF file has beyond those of the first Llama, where `found` are its biases.
    pub(crate) fn gguf_extras(self, found: Extras) -> Extras {
        Extras {
            qkv_bias: found.qkv_bias || self == Family::Qwen2,
            qk_norm: self == Family::Qwen3,
            interleaved: matches!(self, Family::Llama | Family::SmolLm3),
            ..found
        }
    }

    /// The window of the layers that have one, and what each of `count` layers does.
    pub(crate) fn layers(self, fields: &Fields, count: usize) -> Result<(Option<usize>, Vec<LayerFlags>)> {
        let no_rope = self.no_rope_layers(fields, count)?;
        let window = self.window(fields)?;
        let by_default = |layer: usize| {
            window.is_some()
                && match self {
                    Family::SmolLm3 => no_rope[layer],
                    Family::Qwen2 | Family::Qwen3 => layer >= max_window_layers(fields),
                    Family::Llama | Family::Mistral => true,
                }
        };
        let default: Vec<bool> = (0..count).map(by_default).collect();
        let sliding = match layer_types(fields, count)? {
            None => default,
            // These two do what they do whatever the list says.
            Some(given) if matches!(self, Family::Llama | Family::Mistral) && given != default => {
                let kind = if window.is_some() { "sliding_attention" } else { "full_attention" };
                return Err(fields.wrong("layer_types", format!("{kind:?} everywhere"), "others"));
            }
            Some(given) if window.is_none() && given.contains(&true) => {
                let expected = "\"full_attention\" everywhere, as there is no sliding window";
                return Err(fields.wrong("layer_types", expected, "\"sliding_attention\""));
            }
            Some(given) => given,
        };
        let flags = no_rope.into_iter().zip(sliding);
        let flags = flags.map(|(no_rope, sliding)| LayerFlags { no_rope, sliding }).collect();
        Ok((window, flags))
    }

    /// Whether queries and keys are left as they are in each layer. The list's name is misleading: transformers turns
    /// them where it holds 1.
    fn no_rope_layers(self, fields: &Fields, count: usize) -> Result<Vec<bool>> {
        if self != Family::SmolLm3 {
            return Ok(vec![false; count]);
        }
        let expected = format!("a list of {count} numbers");
        if let Some(uses_rope) = fields.optional::<Vec<i64>>("no_rope_layers", &expected)? {
            return match uses_rope.len() == count {
                true => Ok(uses_rope.into_iter().map(|uses_rope| uses_rope == 0).collect()),
                false => {
                    Err(fields.wrong("no_rope_layers", expected, format!("{} of them", uses_rope.len())))
                }
            };
        }
        let field = "no_rope_layer_interval";
        let interval = fields.optional(field, "a positive integer")?.unwrap_or(NO_ROPE_LAYER_INTERVAL);
        match interval {
            0 => Err(fields.wrong(field, "a positive integer", 0)),
            _ => Ok((1..=count).map(|layer| layer % interval == 0).collect()),
        }
    }

    fn window(self, fields: &Fields) -> Result<Option<usize>> {
        let is_on = match self {
            Family::Llama => false,
            Family::Mistral => true,
            _ => fields.optional("use_sliding_window", "true or false")?.unwrap_or(false),
        };
        if !is_on {
            return Ok(None);
        }
        match fields.optional("sliding_window", "a positive integer or null")? {
            // Here null and nothing differ: one is no window, the other the default one.
            None if fields.has("sliding_window") || self == Family::SmolLm3 => Ok(None),
            None => Ok(Some(SLIDING_WINDOW)),
            given => Ok(given),
        }
    }
}

fn max_window_layers(fields: &Fields) -> usize {
    let given = fields.value("max_window_layers").and_then(Value::as_u64);
    given.map_or(MAX_WINDOW_LAYERS, |layers| layers as usize)
}

/// Whether each layer has a sliding window, if `layer_types` says so.
fn layer_types(fields: &Fields, count: usize) -> Result<Option<Vec<bool>>> {
    let expected = format!("a list of {count} layers");
    let Some(types) = fields.optional::<Vec<Value>>("layer_types", &expected)? else { return Ok(None) };
    if types.len() != count {
        return Err(fields.wrong("layer_types", expected, format!("{} of them", types.len())));
    }
    let sliding = types.iter().map(|kind| match kind.as_str() {
        Some("full_attention") => Ok(false),
        Some("sliding_attention") => Ok(true),
        _ => Err(fields.wrong("layer_types", "\"full_attention\" or \"sliding_attention\"", kind)),
    });
    sliding.collect::<Result<_>>().map(Some)
}
