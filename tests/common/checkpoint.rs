//! A small Hugging Face checkpoint made on the spot, to be changed in one place by each test.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

/// Element types that the generator writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorDtype {
    /// bfloat16
    Bf16,
    /// IEEE binary16
    F16,
    /// IEEE binary32
    F32,
    /// 32-bit integers, which no weight may be
    I32,
}

/// A tensor with its numbers as f32, each of which its dtype can express.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// How it is stored.
    pub dtype: TensorDtype,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its elements.
    pub values: Vec<f32>,
}

/// Everything that a checkpoint directory holds.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// `config.json`
    pub config: Value,
    /// `tokenizer.json`
    pub tokenizer: Value,
    /// The tensors by name.
    pub tensors: BTreeMap<String, Tensor>,
    /// Other files by name.
    pub files: BTreeMap<String, Vec<u8>>,
}

impl Checkpoint {
    /// Two layers with a tied embedding. Vocabulary, hidden and intermediate size are no multiples of 16, so that every
    /// matrix but `qkv_proj` ends in padding.
    pub fn tiny(dtype: TensorDtype) -> Checkpoint {
        let config = json!({
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
            "vocab_size": 37, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
            "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "tie_word_embeddings": true, "bos_token_id": 0, "eos_token_id": 0,
        });
        let mut checkpoint = Checkpoint {
            config,
            tokenizer: tiny_tokenizer(),
            tensors: BTreeMap::new(),
            files: BTreeMap::new(),
        };
        checkpoint.add("model.embed_tokens.weight", dtype, &[37, 24]);
        checkpoint.add("model.norm.weight", dtype, &[24]);
        for layer in 0..2 {
            let mut add = |name: &str, shape: &[usize]| {
                checkpoint.add(&format!("model.layers.{layer}.{name}.weight"), dtype, shape);
            };
            add("input_layernorm", &[24]);
            add("self_attn.q_proj", &[32, 24]);
            add("self_attn.k_proj", &[16, 24]);
            add("self_attn.v_proj", &[16, 24]);
            add("self_attn.o_proj", &[24, 32]);
            add("post_attention_layernorm", &[24]);
            add("mlp.gate_proj", &[20, 24]);
            add("mlp.up_proj", &[20, 24]);
            add("mlp.down_proj", &[24, 20]);
        }
        checkpoint
    }

    /// As [`Checkpoint::tiny`], with an output matrix of its own.
    pub fn untied(dtype: TensorDtype) -> Checkpoint {
        let mut checkpoint = Checkpoint::tiny(dtype);
        checkpoint.config["tie_word_embeddings"] = json!(false);
        checkpoint.add("lm_head.weight", dtype, &[37, 24]);
        checkpoint
    }

    /// As [`Checkpoint::tiny`], of the architecture `model_type`, with the tensors that it has beyond Llama's. SmolLM3 has
    /// biases, as it may.
    pub fn of_architecture(model_type: &str, dtype: TensorDtype) -> Checkpoint {
        let mut checkpoint = Checkpoint::tiny(dtype);
        let class = match model_type {
            "qwen2" => "Qwen2ForCausalLM",
            "qwen3" => "Qwen3ForCausalLM",
            "smollm3" => "SmolLM3ForCausalLM",
            _ => "LlamaForCausalLM",
        };
        checkpoint.config["model_type"] = json!(model_type);
        checkpoint.config["architectures"] = json!([class]);
        checkpoint.config["attention_bias"] = json!(model_type == "smollm3");
        let extras: &[(&str, usize)] = match model_type {
            "qwen2" => &[("q_proj.bias", 32), ("k_proj.bias", 16), ("v_proj.bias", 16)],
            "qwen3" => &[("q_norm.weight", 16), ("k_norm.weight", 16)],
            "smollm3" => {
                &[("q_proj.bias", 32), ("k_proj.bias", 16), ("v_proj.bias", 16), ("o_proj.bias", 24)]
            }
            _ => &[],
        };
        for layer in 0..2 {
            for (name, width) in extras {
                checkpoint.add(&format!("model.layers.{layer}.self_attn.{name}"), dtype, &[*width]);
            }
        }
        checkpoint
    }

    /// Gives the checkpoint another tokenizer, of `vocab_size` tokens, and an embedding to match.
    pub fn use_tokenizer(&mut self, tokenizer: Value, vocab_size: usize) {
        self.tokenizer = tokenizer;
        self.config["vocab_size"] = json!(vocab_size);
        let Tensor { dtype, shape, .. } = self.tensor("model.embed_tokens.weight").clone();
        self.add("model.embed_tokens.weight", dtype, &[vocab_size, shape[1]]);
    }

    /// Adds a tensor of numbers that are different everywhere, as far as eight bits of mantissa reach.
    pub fn add(&mut self, name: &str, dtype: TensorDtype, shape: &[usize]) {
        let seed = name.bytes().fold(1u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        let value = |index: u32| {
            let bits = (seed ^ index).wrapping_mul(0x9e37_79b1).rotate_left(15).wrapping_mul(0x85eb_ca77);
            // Sign and eight bits: exact in every dtype, as is their sixteenth.
            let number = f32::from((bits >> 24) as u8) / 256.0 + 1.0 / 32.0;
            if bits & 1 == 0 { number / 16.0 } else { -number }
        };
        let count: usize = shape.iter().product();
        let values = (0u32..).take(count).map(value).map(|value| dtype.round(value)).collect();
        self.tensors.insert(name.to_owned(), Tensor { dtype, shape: shape.to_vec(), values });
    }

    /// The tensor `name`.
    pub fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.get_mut(name).expect("the checkpoint has this tensor")
    }

    /// Writes the checkpoint with all tensors in one file.
    pub fn write(&self, directory: &Path) {
        self.write_rest(directory);
        fs::write(directory.join("model.safetensors"), safetensors(self.tensors.iter())).unwrap();
    }

    /// Writes the checkpoint with its tensors dealt out to `shards` files, and their index.
    pub fn write_sharded(&self, directory: &Path, shards: usize) {
        self.write_rest(directory);
        let mut weight_map = Map::new();
        for shard in 0..shards {
            let name = format!("model-{:05}-of-{shards:05}.safetensors", shard + 1);
            let mine: Vec<_> = self.tensors.iter().skip(shard).step_by(shards).collect();
            weight_map.extend(mine.iter().map(|(tensor, _)| ((*tensor).clone(), name.clone().into())));
            fs::write(directory.join(name), safetensors(mine.into_iter())).unwrap();
        }
        let index = json!({ "metadata": { "total_size": 0 }, "weight_map": weight_map });
        fs::write(directory.join("model.safetensors.index.json"), index.to_string()).unwrap();
    }

    fn write_rest(&self, directory: &Path) {
        fs::create_dir_all(directory).unwrap();
        fs::write(directory.join("config.json"), self.config.to_string()).unwrap();
        fs::write(directory.join("tokenizer.json"), self.tokenizer.to_string()).unwrap();
        for (name, bytes) in &self.files {
            fs::write(directory.join(name), bytes).unwrap();
        }
    }
}

impl TensorDtype {
    fn name(self) -> &'static str {
        match self {
            TensorDtype::Bf16 => "BF16",
            TensorDtype::F16 => "F16",
            TensorDtype::F32 => "F32",
            TensorDtype::I32 => "I32",
        }
    }

    /// A number near `value` that the dtype can express; for f32 one that the other two cannot.
    fn round(self, value: f32) -> f32 {
        match self {
            TensorDtype::Bf16 => f32::from_bits(value.to_bits() & 0xffff_0000),
            TensorDtype::F32 => f32::from_bits(value.to_bits() | 1),
            _ => value,
        }
    }

    fn encode(self, value: f32) -> Vec<u8> {
        match self {
            TensorDtype::Bf16 => value.to_le_bytes()[2..].to_vec(),
            TensorDtype::F16 => f16_bits(value).to_le_bytes().to_vec(),
            TensorDtype::F32 => value.to_le_bytes().to_vec(),
            TensorDtype::I32 => (value as i32).to_le_bytes().to_vec(),
        }
    }
}

/// binary16 of a number that it can express as a normal number, or of an infinity or a NaN.
fn f16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let (sign, mantissa) = ((bits >> 16) as u16 & 0x8000, (bits >> 13) as u16 & 0x3ff);
    let exponent = match (bits >> 23) & 0xff {
        0 => 0,
        255 => 31,
        exponent => u16::try_from(exponent - 112).unwrap(),
    };
    sign | exponent << 10 | mantissa
}

/// The bytes of a `.safetensors` file, written by what its documentation says and nothing of ours.
fn safetensors<'a>(tensors: impl Iterator<Item = (&'a String, &'a Tensor)>) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, tensor) in tensors {
        let start = data.len();
        data.extend(tensor.values.iter().flat_map(|&value| tensor.dtype.encode(value)));
        let offsets = [start, data.len()];
        header.insert(
            name.clone(),
            json!({ "dtype": tensor.dtype.name(), "shape": tensor.shape, "data_offsets": offsets }),
        );
    }
    let header = Value::from(header).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

/// A byte-level BPE of 37 tokens: one special, 26 letters, space (as `Ġ`), seven merges and two full stops.
fn tiny_tokenizer() -> Value {
    let merges = ["t h", "th e", "Ġ the", "i n", "a n", "an d", "e r"];
    let mut tokens = vec!["<|endoftext|>".to_owned()];
    tokens.extend(('a'..='z').map(String::from));
    tokens.extend(["Ġ", ".", "!"].map(String::from));
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    assert_eq!(tokens.len(), 37);
    let vocab: Map<String, Value> =
        tokens.into_iter().enumerate().map(|(id, token)| (token, id.into())).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [{
            "id": 0, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        }],
        "normalizer": null,
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "post_processor": null,
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": merges,
        },
    })
}
