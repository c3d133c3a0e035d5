//! LoRAs that PEFT saved, against its own merge of each, and those that are refused.

use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use serde_json::{Value, json};
use smol_tests::common::blob::Part;
use smol_tests::common::gguf::Gguf;
use smol_tests::common::{Blob, Checkpoint, TempDir, TensorDtype, data, run};
use smolconv::{Options, Progress, convert};
use smolrun::format::{Dtype, Kind};

/// The adapters of `tests/data/make/lora.py`.
#[rustfmt::skip] // by kind
const ADAPTERS: [&str; 13] = [
    "plain", "rslora", "patterns", "expression", "layers", "embeddings", "saved", "dora", "fan", "excluded",
    "biased", "biased-all", "biased-only",
];
/// How far a merged number may be from PEFT's.
const TOLERANCE: f32 = 1e-5;

fn put(checkpoint: &mut Checkpoint, file: &str) {
    let bytes = fs::read(data(file)).unwrap();
    for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
        let values = view.data().as_chunks().0.iter().map(|&value| f32::from_le_bytes(value)).collect();
        checkpoint.tensor(&name).values = values;
    }
}

fn base() -> Checkpoint {
    let mut checkpoint = Checkpoint::untied(TensorDtype::F32);
    put(&mut checkpoint, "lora/base.safetensors");
    checkpoint
}

/// The checkpoint that the adapter `name` is for: one with every bias, or with none.
fn base_of(name: &str) -> Checkpoint {
    let mut checkpoint = base();
    if name.starts_with("biased") {
        checkpoint.config["attention_bias"] = json!(true);
        checkpoint.config["mlp_bias"] = json!(true);
        let bytes = fs::read(data("lora/biases.safetensors")).unwrap();
        for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
            checkpoint.add(&name, TensorDtype::F32, view.shape());
        }
        put(&mut checkpoint, "lora/biases.safetensors");
    }
    checkpoint
}

fn floats(parts: &[Part]) -> Vec<f32> {
    let weights = parts.iter().filter(|part| part.dtype == Dtype::F32.code());
    weights
        .flat_map(|part| part.content.as_chunks().0.iter().map(|&value| f32::from_le_bytes(value)))
        .collect()
}

/// The numbers of the blob of `source` with the adapter in `lora`.
fn merged(source: &Path, lora: &Path) -> Result<Vec<f32>, String> {
    let temp = TempDir::new();
    let options = Options { lora: Some(lora.to_owned()), ..Options::new(source, temp.join("out.bin")) };
    convert(&options, &Progress::new(true)).map_err(|error| error.to_string())?;
    Ok(floats(&Blob::take_apart(&fs::read(temp.join("out.bin")).unwrap()).parts))
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn a_merge_equals_pefts() {
    let temp = TempDir::new();
    fs::write(temp.join("model.gguf"), Gguf::of(&base()).build()).unwrap();
    for name in ADAPTERS {
        let mut checkpoint = base_of(name);
        checkpoint.write(&temp.join("model"));
        let plain = floats(&Blob::of(&checkpoint).parts);
        put(&mut checkpoint, &format!("lora/{name}/merged.safetensors"));
        let expected = floats(&Blob::of(&checkpoint).parts);
        let lora = data(&format!("lora/{name}"));
        let worst = distance(&merged(&temp.join("model"), &lora).unwrap(), &expected);
        println!("{name}: within {worst:e} of PEFT's merge");
        assert!(worst < TOLERANCE, "{name}: {worst:e}");
        assert!(distance(&plain, &expected) > 0.1, "{name} changes the model");
        match name {
            "biased" | "biased-all" | "biased-only" => {} // of a model that this GGUF file is not
            "saved" | "embeddings" | "fan" => {
                let error = merged(&temp.join("model.gguf"), &lora).unwrap_err();
                assert!(error.contains("expected the name of a tensor of the SafeTensors model"), "{error}");
            }
            _ => assert!(distance(&merged(&temp.join("model.gguf"), &lora).unwrap(), &expected) < TOLERANCE),
        }
    }
}

#[test]
fn a_gguf_file_with_one_tensor_for_q_k_and_v_takes_no_lora_for_them() {
    let temp = TempDir::new();
    let path = temp.join("model.gguf");
    fs::write(&path, Gguf::of(&base()).fused().build()).unwrap();
    let error = merged(&path, &data("lora/plain")).unwrap_err();
    assert!(
        error.contains("attn_qkv.weight: expected a tensor each for q, k and v to add a LoRA to"),
        "{error}"
    );
}

#[test]
fn the_program_merges_and_names_the_adapter() {
    let temp = TempDir::new();
    base().write(&temp.join("model"));
    let mut args =
        vec![temp.join("model").into_os_string(), "--lora".into(), data("lora/plain").into_os_string()];
    args.extend(["-o".into(), temp.join("out.bin").into_os_string()]);
    assert_eq!(run("smolconv", &args).code, 0);
    let mut blob = Blob::take_apart(&fs::read(temp.join("out.bin")).unwrap());
    let metadata: Value = serde_json::from_slice(&blob.part(Kind::Metadata).content).unwrap();
    let names: Vec<&str> = metadata["sources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|source| source["name"].as_str().unwrap())
        .collect();
    let expected = [
        "adapter_config.json",
        "adapter_model.safetensors",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ];
    assert_eq!(names, expected);
}

/// An adapter that a test changes: its config, and its tensors with their shapes.
struct Adapter {
    config: Value,
    tensors: Vec<(String, Vec<usize>, f32)>,
}

impl Adapter {
    fn new() -> Adapter {
        let config = json!({
            "peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "bias": "none",
        });
        let pair = |layer: usize| {
            let name = format!("base_model.model.model.layers.{layer}.self_attn.q_proj.lora");
            [(format!("{name}_A.weight"), vec![2, 24], 0.5), (format!("{name}_B.weight"), vec![32, 2], 0.5)]
        };
        Adapter { config, tensors: [pair(0), pair(1)].into_iter().flatten().collect() }
    }

    fn add(&mut self, name: &str, shape: &[usize], value: f32) {
        self.tensors.push((format!("base_model.model.{name}"), shape.to_vec(), value));
    }

    fn write(&self, directory: &Path) {
        let (mut header, mut bytes) = (serde_json::Map::new(), Vec::new());
        for (name, shape, value) in &self.tensors {
            let start = bytes.len();
            bytes.extend((0..shape.iter().product()).flat_map(|_: usize| value.to_le_bytes()));
            let record = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, bytes.len()]});
            header.insert(name.clone(), record);
        }
        let header = Value::Object(header).to_string();
        fs::create_dir_all(directory).unwrap();
        let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes].concat();
        fs::write(directory.join("adapter_model.safetensors"), file).unwrap();
        fs::write(directory.join("adapter_config.json"), self.config.to_string()).unwrap();
    }
}

fn merge_into(checkpoint: &Checkpoint, change: impl FnOnce(&mut Adapter)) -> Result<Vec<f32>, String> {
    let (temp, mut adapter) = (TempDir::new(), Adapter::new());
    change(&mut adapter);
    adapter.write(&temp.join("adapter"));
    checkpoint.write(&temp.join("model"));
    merged(&temp.join("model"), &temp.join("adapter"))
}

type Case = (&'static str, fn(&mut Adapter));

#[rustfmt::skip] // one line per case
const REFUSED: &[Case] = &[
    ("peft_type: expected \"LORA\", found \"LOHA\"", |a| a.config["peft_type"] = json!("LOHA")),
    ("layers.0.self_attn.q_proj: expected 32 numbers more, as use_dora is true, found none", |a| a.config["use_dora"] = json!(true)),
    ("use_dora: expected a bool, found 1", |a| a.config["use_dora"] = json!(1)),
    ("layers.0.self_attn.q_proj: expected 32 numbers more, as lora_bias is true, found none", |a| a.config["lora_bias"] = json!(true)),
    ("bias: expected \"none\", \"all\" or \"lora_only\", found \"some\"", |a| a.config["bias"] = json!("some")),
    ("init_lora_weights: expected a start that leaves the model's own matrices as they are, found \"pissa\"", |a| a.config["init_lora_weights"] = json!("pissa")),
    ("layer_replication: expected null or false, found [[0,2]]", |a| a.config["layer_replication"] = json!([[0, 2]])),
    ("trainable_token_indices: expected null or false, found [1]", |a| a.config["trainable_token_indices"] = json!([1])),
    ("r: expected a positive integer, found 0", |a| a.config["r"] = json!(0)),
    ("r: expected a positive integer, found nothing", |a| a.config["r"] = json!(null)),
    ("rank_pattern: expected names of modules, found \"q_pro.*\"", |a| a.config["rank_pattern"] = json!({"q_pro.*": 2})),
    ("target_modules: expected a list of names, found 3", |a| a.config["target_modules"] = json!(3)),
    ("layers.0.self_attn.q_proj: expected a module of target_modules", |a| a.config["target_modules"] = json!(["k_proj"])),
    ("k_proj: expected a LoRA, as target_modules names it, found none", |a| a.config["target_modules"] = json!(["q_proj", "k_proj"])),
    ("expected A and B of rank 3, found 2 and 2", |a| a.config["r"] = json!(3)),
    ("expected A and B of a LoRA, found only one of them", |a| drop(a.tensors.pop())),
    ("expected A and B of a LoRA or DoRA, found another kind of tensor", |a| a.add("model.layers.0.self_attn.q_proj.lora_C.weight", &[32], 1.0)),
    ("q_proj.lora_magnitude_vector: expected none, as use_dora is false, found one", |a| a.add("model.layers.0.self_attn.q_proj.lora_magnitude_vector", &[32], 1.0)),
    ("q_proj.lora_B.bias: expected none, as lora_bias is false, found one", |a| a.add("model.layers.0.self_attn.q_proj.lora_B.bias", &[32], 1.0)),
    ("lora_magnitude_vector: expected 32 floats, found F32 of shape [31]", |a| {
        a.config["use_dora"] = json!(true);
        a.add("model.layers.0.self_attn.q_proj.lora_magnitude_vector", &[31], 1.0);
    }),
    ("expected finite numbers with the LoRA, found", |a| {
        (a.config["use_dora"], a.tensors[0].2, a.tensors[1].2) = (json!(true), 3e38, 3e38);
        (0..2).for_each(|layer| a.add(&format!("model.layers.{layer}.self_attn.q_proj.lora_magnitude_vector"), &[32], 1.0));
    }),
    ("model.embed_tokens: expected A and B alone of an embedding, found a DoRA or a bias", |a| {
        a.config["target_modules"] = json!(["embed_tokens", "q_proj"]);
        a.add("model.embed_tokens.lora_embedding_A", &[2, 37], 0.5);
        a.add("model.embed_tokens.lora_embedding_B", &[24, 2], 0.5);
        a.add("model.embed_tokens.lora_magnitude_vector", &[24], 0.5);
    }),
    ("model.layers.0.self_attn.q_proj.bias: expected a tensor of the model, found a LoRA of another", |a| {
        a.config["lora_bias"] = json!(true);
        (0..2).for_each(|layer| a.add(&format!("model.layers.{layer}.self_attn.q_proj.lora_B.bias"), &[32], 1.0));
    }),
    ("expected a name that begins with base_model.model.", |a| a.tensors[0].0 = "x".into()),
    ("expected a weight or a bias of the model", |a| a.add("x.scale", &[1], 1.0)),
    ("x.bias: expected the name of a tensor of the SafeTensors model", |a| a.add("x.bias", &[1], 1.0)),
    ("x.weight: expected the name of a tensor of the SafeTensors model", |a| a.add("x.weight", &[1], 1.0)),
    ("expected a matrix of floats, found F32 of shape [2, 24, 1]", |a| a.tensors[0].1.push(1)),
    ("expected a LoRA of shape [32, 24], found [32, 12]", |a| a.tensors[0].1 = vec![2, 12]),
    ("expected finite numbers, found NaN", |a| a.tensors[0].2 = f32::NAN),
    ("expected finite numbers with the LoRA, found", |a| { a.tensors[0].2 = 3e38; a.tensors[1].2 = 3e38; }),
    ("model.layers.9.self_attn.q_proj.weight: expected a tensor of the model, found a LoRA of another", |a| {
        a.add("model.layers.9.self_attn.q_proj.lora_A.weight", &[2, 24], 0.5);
        a.add("model.layers.9.self_attn.q_proj.lora_B.weight", &[32, 2], 0.5);
    }),
    ("shape: expected [37, 24], found [38, 24]", |a| a.add("model.embed_tokens.weight", &[38, 24], 0.5)),
];

#[test]
fn what_is_no_plain_lora_is_refused_by_name() {
    merge_into(&base(), |_| ()).unwrap();
    for &(expected, change) in REFUSED {
        let error = merge_into(&base(), change).expect_err(expected);
        assert!(error.contains(expected), "expected {expected:?} in {error:?}");
        assert!(error.contains("/adapter") || error.contains("/model: tensor "), "{error:?} names a file");
    }
}

#[test]
fn a_tied_model_stays_tied() {
    let tied = Checkpoint::tiny(TensorDtype::F32);
    let saved = |embedding: f32, head: Option<f32>, as_module: bool| {
        merge_into(&tied, |adapter| {
            adapter.add("model.embed_tokens.weight", &[37, 24], embedding);
            if let Some(head) = head {
                adapter.add("lm_head.weight", &[37, 24], head);
            }
            if as_module {
                adapter.config["modules_to_save"] = json!(["embed_tokens"]);
            }
        })
    };
    let alone = saved(0.25, None, false).unwrap();
    assert!(alone.iter().filter(|&&value| value == 0.25).count() >= 37 * 24);
    assert_eq!(saved(0.25, Some(0.25), true).unwrap(), alone);
    for refused in [saved(0.25, Some(0.5), false), saved(0.25, None, true)] {
        let error = refused.unwrap_err();
        assert!(error.contains("expected an adapter that leaves embedding and output the same"), "{error}");
    }
}
