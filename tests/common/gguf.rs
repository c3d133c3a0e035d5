//! A GGUF file made on the spot, to be changed in one place by each test. Written by what the format's document says,
//! with nothing of the converter's.

use serde_json::Value as Json;

use super::Checkpoint;

/// A metadata value.
#[derive(Clone, Debug)]
pub enum Value {
    /// Type 4.
    U32(u32),
    /// Type 6.
    F32(f32),
    /// Type 7.
    Bool(bool),
    /// Type 8.
    Text(String),
    /// An array of type 8.
    Texts(Vec<String>),
    /// An array of type 5.
    I32s(Vec<i32>),
    /// An array of type 6.
    F32s(Vec<f32>),
    /// A type's code and whatever follows it.
    Raw(u32, Vec<u8>),
}

/// A tensor.
#[derive(Clone, Debug)]
pub struct GgufTensor {
    /// Its name.
    pub name: String,
    /// Its dimensions, the fastest one first.
    pub dims: Vec<u64>,
    /// The code of its type.
    pub kind: u32,
    /// Where it says that it lies, if that is not where it does.
    pub offset: Option<u64>,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Everything that a GGUF file holds.
#[derive(Clone, Debug)]
pub struct Gguf {
    /// Keys and values, in order.
    pub keys: Vec<(String, Value)>,
    /// The tensors, in order.
    pub tensors: Vec<GgufTensor>,
    /// What tensors are aligned to.
    pub alignment: usize,
}

/// What a checkpoint's tensors are called in a GGUF file, without the layer.
const NAMES: [(&str, &str); 14] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("embed_tokens", "token_embd"),
    ("norm", "output_norm"),
    ("lm_head", "output"),
];

impl Gguf {
    /// `checkpoint` with all numbers as F32, as llama.cpp's converter would write it.
    pub fn of(checkpoint: &Checkpoint) -> Gguf {
        let mut gguf = Gguf { keys: config_keys(&checkpoint.config), tensors: Vec::new(), alignment: 32 };
        gguf.keys.extend(tokenizer_keys(&checkpoint.tokenizer));
        let interleaves = matches!(model_type(&checkpoint.config), "llama" | "smollm3");
        for (name, tensor) in &checkpoint.tensors {
            let mut rows: Vec<&[f32]> =
                tensor.values.chunks(tensor.shape.get(1).copied().unwrap_or(1)).collect();
            if interleaves && (name.contains("q_proj") || name.contains("k_proj")) {
                let head_dim = checkpoint.config["head_dim"].as_u64().expect("a head has a width") as usize;
                rows = rows.chunks(head_dim).flat_map(interleaved).collect();
            }
            gguf.tensors.push(GgufTensor {
                name: gguf_name(name),
                dims: tensor.shape.iter().rev().map(|&width| width as u64).collect(),
                kind: 0,
                offset: None,
                bytes: rows.concat().iter().flat_map(|value| value.to_le_bytes()).collect(),
            });
        }
        gguf
    }

    /// Puts `value` at `key`, in the place of what is there.
    pub fn set(&mut self, key: &str, value: Value) {
        match self.keys.iter_mut().find(|(name, _)| name == key) {
            Some((_, old)) => *old = value,
            None => self.keys.push((key.to_owned(), value)),
        }
    }

    /// Takes `key` out.
    pub fn remove(&mut self, key: &str) {
        self.keys.retain(|(name, _)| name != key);
    }

    /// The tensor `name`.
    pub fn tensor(&mut self, name: &str) -> &mut GgufTensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).expect("the file has this tensor")
    }

    /// The same with one tensor for q, k and v of each layer.
    pub fn fused(&self) -> Gguf {
        let mut gguf = self.clone();
        let end = |name: &str, letter: char| {
            ["weight", "bias"].iter().any(|kind| name.ends_with(&format!(".attn_{letter}.{kind}")))
        };
        let [q, k, v] = ['q', 'k', 'v'].map(|letter| {
            self.tensors.iter().filter(|tensor| end(&tensor.name, letter)).cloned().collect::<Vec<_>>()
        });
        gguf.tensors.retain(|tensor| !['q', 'k', 'v'].iter().any(|&letter| end(&tensor.name, letter)));
        for ((mut whole, k), v) in q.into_iter().zip(k).zip(v) {
            whole.name = whole.name.replace("attn_q", "attn_qkv");
            for part in [k, v] {
                *whole.dims.last_mut().expect("a dimension") += part.dims.last().expect("a dimension");
                whole.bytes.extend(part.bytes);
            }
            gguf.tensors.push(whole);
        }
        gguf
    }

    /// The parts of a file with so many tensors each, of which the first has the metadata.
    pub fn split(&self, tensors: &[usize]) -> Vec<Gguf> {
        let mut rest = self.tensors.as_slice();
        let mut parts = Vec::new();
        for (number, &count) in tensors.iter().enumerate() {
            let (mine, others) = rest.split_at(count);
            rest = others;
            let keys = if number == 0 { self.keys.clone() } else { Vec::new() };
            let mut part = Gguf { keys, tensors: mine.to_vec(), alignment: self.alignment };
            part.set("split.no", Value::Raw(2, (number as u16).to_le_bytes().into()));
            part.set("split.count", Value::Raw(2, (tensors.len() as u16).to_le_bytes().into()));
            part.set("split.tensors.count", Value::Raw(5, (self.tensors.len() as i32).to_le_bytes().into()));
            parts.push(part);
        }
        assert!(rest.is_empty(), "every tensor is in a part");
        parts
    }

    /// The file.
    pub fn build(&self) -> Vec<u8> {
        let mut bytes = [&b"GGUF"[..], &3u32.to_le_bytes()].concat();
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            text(&mut bytes, key);
            value.write(&mut bytes);
        }
        let mut data: Vec<u8> = Vec::new();
        for tensor in &self.tensors {
            data.resize(data.len().next_multiple_of(self.alignment), 0);
            text(&mut bytes, &tensor.name);
            bytes.extend((tensor.dims.len() as u32).to_le_bytes());
            bytes.extend(tensor.dims.iter().flat_map(|width| width.to_le_bytes()));
            bytes.extend(tensor.kind.to_le_bytes());
            bytes.extend(tensor.offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend(&tensor.bytes);
        }
        bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
        bytes.extend(data);
        bytes
    }
}

impl Value {
    fn write(&self, bytes: &mut Vec<u8>) {
        let code: u32 = match self {
            Value::U32(_) => 4,
            Value::F32(_) => 6,
            Value::Bool(_) => 7,
            Value::Text(_) => 8,
            Value::Texts(_) | Value::I32s(_) | Value::F32s(_) => 9,
            Value::Raw(code, _) => *code,
        };
        bytes.extend(code.to_le_bytes());
        match self {
            Value::U32(number) => bytes.extend(number.to_le_bytes()),
            Value::F32(number) => bytes.extend(number.to_le_bytes()),
            Value::Bool(flag) => bytes.push((*flag).into()),
            Value::Text(string) => text(bytes, string),
            Value::Texts(strings) => {
                array(bytes, 8, strings.len());
                strings.iter().for_each(|string| text(bytes, string));
            }
            Value::I32s(numbers) => {
                array(bytes, 5, numbers.len());
                bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
            }
            Value::F32s(numbers) => {
                array(bytes, 6, numbers.len());
                bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
            }
            Value::Raw(_, raw) => bytes.extend(raw),
        }
    }
}

/// The rows of a head with the halves of each rotary pair side by side.
fn interleaved<'a>(head: &[&'a [f32]]) -> Vec<&'a [f32]> {
    let (first, second) = head.split_at(head.len() / 2);
    first.iter().zip(second).flat_map(|(a, b)| [*a, *b]).collect()
}

fn gguf_name(name: &str) -> String {
    let (name, kind) = name.rsplit_once('.').expect("a weight or a bias");
    let name = name.strip_prefix("model.").unwrap_or(name);
    let short = |name: &str| NAMES.iter().find(|(theirs, _)| *theirs == name).expect("a known name").1;
    match name.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
        Some((layer, name)) => format!("blk.{layer}.{}.{kind}", short(name)),
        None => format!("{}.{kind}", short(name)),
    }
}

fn model_type(config: &Json) -> &str {
    config["model_type"].as_str().expect("a string")
}

fn config_keys(config: &Json) -> Vec<(String, Value)> {
    let architecture = model_type(config);
    let number = |field: &str| Value::U32(config[field].as_u64().expect("a number") as u32);
    let float = |field: &str| Value::F32(config[field].as_f64().expect("a number") as f32);
    let keys = [
        ("general.architecture", Value::Text(architecture.into())),
        ("*.vocab_size", number("vocab_size")),
        ("*.context_length", number("max_position_embeddings")),
        ("*.embedding_length", number("hidden_size")),
        ("*.block_count", number("num_hidden_layers")),
        ("*.feed_forward_length", number("intermediate_size")),
        ("*.attention.head_count", number("num_attention_heads")),
        ("*.attention.head_count_kv", number("num_key_value_heads")),
        ("*.attention.key_length", number("head_dim")),
        ("*.attention.value_length", number("head_dim")),
        ("*.rope.dimension_count", number("head_dim")),
        ("*.rope.freq_base", float("rope_theta")),
        ("*.attention.layer_norm_rms_epsilon", float("rms_norm_eps")),
        ("tokenizer.ggml.bos_token_id", number("bos_token_id")),
        ("tokenizer.ggml.eos_token_id", number("eos_token_id")),
    ];
    keys.map(|(key, value)| (key.replace('*', architecture), value)).into()
}

fn tokenizer_keys(tokenizer: &Json) -> Vec<(String, Value)> {
    let vocab = tokenizer["model"]["vocab"].as_object().expect("a vocabulary");
    let mut tokens = vec![String::new(); vocab.len()];
    for (token, id) in vocab {
        tokens[id.as_u64().expect("an id") as usize].clone_from(token);
    }
    let added = tokenizer["added_tokens"].as_array().expect("added tokens");
    let is_added = |token: &String| added.iter().any(|added| added["content"] == **token);
    let types = tokens.iter().map(|token| if is_added(token) { 3 } else { 1 });
    let merges = tokenizer["model"]["merges"].as_array().expect("merges");
    let merges = merges.iter().map(|merge| merge.as_str().expect("a line").to_owned());
    let keys = [
        ("tokenizer.ggml.model", Value::Text("gpt2".into())),
        ("tokenizer.ggml.pre", Value::Text("gpt-2".into())),
        ("tokenizer.ggml.token_type", Value::I32s(types.collect())),
        ("tokenizer.ggml.merges", Value::Texts(merges.collect())),
        ("tokenizer.ggml.tokens", Value::Texts(tokens)),
    ];
    keys.map(|(key, value)| (key.to_owned(), value)).into()
}

fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

fn array(bytes: &mut Vec<u8>, kind: u32, count: usize) {
    bytes.extend(kind.to_le_bytes());
    bytes.extend((count as u64).to_le_bytes());
}
