//! A tiny random model of every architecture: its logits against transformers', at every position, short and past any
//! sliding window or scaling boundary. `tests/data/make/make_family.py` made the models and the numbers.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use smol_tests::common::{Checkpoint, TempDir, TensorDtype, data};
use smolconv::{Options, Progress, Weights};
use smolrun::format::Dtype;
use smolrun::{Fast, Kernels, Model, Overflow, Session, SessionOptions};

/// The largest difference that the design allows.
const TOLERANCE: f32 = 2e-3;

pub(crate) fn family(name: &str) -> PathBuf {
    data("family").join(name)
}

pub(crate) fn names() -> Vec<String> {
    let entries = fs::read_dir(data("family")).unwrap().map(|entry| entry.unwrap());
    let directories = entries.filter(|entry| entry.file_type().unwrap().is_dir());
    let mut names: Vec<String> = directories.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

pub(crate) fn tokens() -> Vec<u32> {
    serde_json::from_slice(&fs::read(data("family/tokens.json")).unwrap()).unwrap()
}

/// The reference's tensor `name`: the logits of each position.
fn reference(model: &str, name: &str) -> Vec<Vec<f32>> {
    let bytes = fs::read(family(model).join("logits.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = tensors.tensor(name).unwrap();
    let numbers: Vec<f32> =
        tensor.data().as_chunks().0.iter().map(|&number| f32::from_le_bytes(number)).collect();
    numbers.chunks_exact(tensor.shape()[1]).map(<[f32]>::to_vec).collect()
}

/// The model in `directory`, converted, with the tokenizer of the tests' checkpoints beside it.
pub(crate) fn convert(directory: &Path, dtype: Dtype) -> Model {
    let temp = TempDir::new();
    let tokenizer = temp.join("tokenizer.json");
    fs::write(&tokenizer, Checkpoint::tiny(TensorDtype::F32).tokenizer.to_string()).unwrap();
    let out = temp.join("blob.bin");
    let options =
        Options { tokenizer: Some(tokenizer), weights: Weights::all(dtype), ..Options::new(directory, &out) };
    smolconv::convert(&options, &Progress::new(true)).unwrap_or_else(|error| panic!("{error}"));
    Model::read(&out).unwrap()
}

/// Every position's logits; the text is fed in pieces that end after `cuts` tokens.
fn logits(model: &Model, threads: usize, cuts: &[usize]) -> Vec<Vec<f32>> {
    let mut session = Session::new(model, SessionOptions::default().threads(threads)).unwrap();
    let (tokens, mut logits, mut start) = (tokens(), Vec::new(), 0);
    for &end in cuts {
        session.feed_all(&tokens[start..end], |_, row| logits.push(row.to_vec())).unwrap();
        start = end;
    }
    logits
}

fn largest_difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!((a.len(), a[0].len()), (b.len(), b[0].len()));
    let pairs = a.iter().flatten().zip(b.iter().flatten());
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn bits(logits: &[Vec<f32>]) -> Vec<u32> {
    logits.iter().flatten().map(|logit| logit.to_bits()).collect()
}

#[test]
fn a_fast_session_sees_the_same_through_a_window_however_a_prompt_is_split() {
    let scalar = Kernels::named("scalar").unwrap();
    for name in ["mistral", "qwen2.5-window"] {
        let (model, tokens) = (convert(&family(name), Dtype::Q8), tokens());
        let logits = |kernels, fast, split: usize| {
            let options = SessionOptions::default().kernels(kernels).threads(1).fast(fast);
            let (mut session, mut logits) = (Session::new(&model, options).unwrap(), Vec::new());
            for piece in tokens[..96].chunks(split) {
                session.feed_all(piece, |_, row| logits.push(row.to_vec())).unwrap();
            }
            logits
        };
        let exact = logits(scalar, false, 96);
        let expected = logits(scalar, true, 96);
        // A random model amplifies what is rounded: here and there a logit differs by 1.
        let pairs = exact.iter().flatten().zip(expected.iter().flatten());
        let mean = pairs.map(|(a, b)| (a - b).abs()).sum::<f32>() / expected.iter().flatten().count() as f32;
        assert!(mean > 0.0 && mean < 0.2, "{name}: logits differ by {mean}");
        let units = Kernels::available().into_iter().filter(|kernels| kernels.name() != "avx512amx");
        for (kernels, split) in units.flat_map(|kernels| [96, 32, 48].map(|split| (kernels, split))) {
            let options = SessionOptions::default().kernels(kernels).fast(true);
            if matches!(Session::new(&model, options).unwrap().fast(), Fast::On(_)) {
                assert_eq!(bits(&logits(kernels, true, split)), bits(&expected), "{name} {}", kernels.name());
            }
        }
    }
}

#[test]
fn logits_are_those_of_transformers() {
    let names = names();
    assert_eq!(names.len(), 28);
    for name in names {
        let found = logits(&convert(&family(&name), Dtype::F32), 1, &[96]);
        let difference = largest_difference(&found, &reference(&name, "logits"));
        println!("{name}: {difference:e}");
        assert!(difference < TOLERANCE, "{name}: {difference}");
    }
}

/// Windows begin anywhere, in prompts of any length and one token after the other, on any number of threads; and the
/// checkpoints are bf16.
#[test]
fn any_split_of_a_text_gives_the_same_bits() {
    for name in names() {
        let model = convert(&family(&name), Dtype::F32);
        let expected = bits(&logits(&model, 1, &[96]));
        let one_by_one: Vec<usize> = (1..=96).collect();
        for (threads, cuts) in [(1, one_by_one.as_slice()), (3, &[96]), (2, &[1, 2, 19, 20, 21, 50, 70, 96])]
        {
            assert!(bits(&logits(&model, threads, cuts)) == expected, "{name}: {threads} threads, {cuts:?}");
        }
        let halves = convert(&family(&name), Dtype::Bf16);
        assert!(bits(&logits(&halves, 2, &[3, 96])) == expected, "{name}: bf16");
    }
}

/// The model cut off after each of its layers: what a layer does wrong shows at its own.
#[test]
fn smollm3_agrees_layer_by_layer() {
    for name in ["smollm3", "smollm3-window"] {
        for layers in 1..=5 {
            let temp = TempDir::new();
            cut_off(name, layers, temp.path());
            let found = logits(&convert(temp.path(), Dtype::F32), 1, &[96]);
            let difference = largest_difference(&found, &reference(name, &format!("logits.{layers}")));
            println!("{name}, {layers} layers: {difference:e}");
            assert!(difference < TOLERANCE, "{name}, {layers} layers: {difference}");
        }
    }
}

/// Writes the model `name` with its first `layers` layers only to `directory`.
fn cut_off(name: &str, layers: usize, directory: &Path) {
    let mut config = config(name);
    config["num_hidden_layers"] = json!(layers);
    if let Some(list) = config["no_rope_layers"].as_array_mut() {
        list.truncate(layers);
    }
    fs::write(directory.join("config.json"), config.to_string()).unwrap();
    let bytes = fs::read(family(name).join("model.safetensors")).unwrap();
    let is_kept = |name: &str| {
        let number = name.strip_prefix("model.layers.").and_then(|rest| rest.split('.').next());
        number.is_none_or(|number| number.parse::<usize>().unwrap() < layers)
    };
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let kept: BTreeMap<String, TensorView> =
        tensors.tensors().into_iter().filter(|(name, _)| is_kept(name)).collect();
    fs::write(directory.join("model.safetensors"), safetensors::serialize(kept, None).unwrap()).unwrap();
}

fn config(name: &str) -> Value {
    serde_json::from_slice(&fs::read(family(name).join("config.json")).unwrap()).unwrap()
}

/// Sliding over the context's end turns keys back by what they move up, but not those that were never turned: in a single
/// layer without rotary embedding, what is kept is as if nothing else had been there.
#[test]
fn keys_that_were_not_turned_are_not_turned_back() {
    let temp = TempDir::new();
    cut_off("smollm3", 1, temp.path());
    let mut config = config("smollm3");
    config["num_hidden_layers"] = json!(1);
    config["no_rope_layers"] = json!([0]);
    config["max_position_embeddings"] = json!(512);
    fs::write(temp.join("config.json"), config.to_string()).unwrap();
    let model = convert(temp.path(), Dtype::F32);
    let session =
        |overflow| Session::new(&model, SessionOptions::default().threads(1).overflow(overflow)).unwrap();
    let tokens: Vec<u32> = (0..600).map(|i| (i * i * 7 + 3 * i + 5) % 37).collect();
    let kept = [&tokens[..256], &tokens[512..]].concat();
    let slid = session(Overflow::Slide).feed(&tokens).unwrap().to_vec();
    assert!(bits(&[slid]) == bits(&[session(Overflow::Stop).feed(&kept).unwrap().to_vec()]));
}

/// Changes to a model's config and what is said about them.
#[test]
fn what_is_not_supported_is_refused_by_name() {
    let llama3 = |field: &str, value: Value| {
        let mut scaling = config("llama3.1")["rope_scaling"].clone();
        scaling[field] = value;
        scaling
    };
    let yarn = |field: &str, value: Value| {
        let mut scaling = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32});
        scaling[field] = value;
        scaling
    };
    let longrope = |field: &str, value: Value| {
        let mut scaling = config("longrope")["rope_scaling"].clone();
        scaling[field] = value;
        scaling
    };
    let of_types =
        |full: Value, sliding: Value| json!({"full_attention": full, "sliding_attention": sliding});
    #[rustfmt::skip] // one line per case
    let cases: Vec<(&str, &str, Value, &str)> = vec![
        ("qwen2", "rope_scaling", json!({"rope_type": "dynamic", "factor": 4.0}), r#"rope_scaling.rope_type: expected null, "default", "linear", "llama3", "yarn" or "longrope", found "dynamic""#),
        ("qwen2", "rope_scaling", yarn("factor", json!(4)), ""),
        ("qwen2", "rope_scaling", yarn("factor", json!(-4)), "rope_scaling.factor: expected a number above 0, found -4"),
        ("qwen2", "rope_scaling", yarn("factor", json!(1e-300)), "rope_scaling: expected a scaling to finite frequencies, found"),
        ("qwen2", "rope_scaling", yarn("factor", json!(1e9)), "max_position_embeddings: expected 1 to 16777216, found 32000000000"),
        ("qwen2", "rope_scaling", json!({"type": "yarn"}), "rope_scaling.factor: expected a number above 0, found nothing"),
        ("qwen2", "rope_scaling", yarn("type", json!("linear")), "rope_scaling.type: expected rope_type, \"yarn\", found \"linear\""),
        ("qwen2", "rope_scaling", yarn("attention_factor", json!(0)), "rope_scaling.attention_factor: expected a number above 0, found 0"),
        ("qwen2", "rope_scaling", yarn("attention_factor", json!(1e30)), "attention_scale: expected a finite number above 0, found inf"),
        ("qwen2", "rope_scaling", yarn("truncate", json!("no")), "truncate: expected true or false, found \"no\""),
        ("qwen2", "rope_scaling", yarn("partial_rotary_factor", json!(0.5)), "rope_scaling.partial_rotary_factor: expected 1, found 0.5"),
        ("qwen2", "rope_scaling", yarn("rope_theta", json!(1e4)), "rope_scaling.rope_theta: expected rope_theta, 1000000, found 10000"),
        ("yarn-factor", "original_max_position_embeddings", json!(32), ""),
        ("v5-yarn", "original_max_position_embeddings", json!(64), "rope_parameters.original_max_position_embeddings: expected original_max_position_embeddings, 64, found 32"),
        ("v5-yarn", "rope_theta", json!(20000), "rope_parameters.rope_theta: expected rope_theta, 20000, found 10000"),
        ("v5-yarn", "rope_scaling", json!({"rope_type": "default"}), "rope_parameters: expected the scaling of rope_scaling, found another"),
        ("v5-yarn", "rope_parameters", of_types(yarn("rope_theta", json!(1)), yarn("rope_theta", json!(1))), "rope_theta: expected a number above 1, found 1"),
        ("v5-yarn", "rope_parameters", of_types(yarn("factor", json!(4)), yarn("factor", json!(4))), ""),
        ("v5-yarn", "rope_parameters", of_types(yarn("factor", json!(4)), yarn("factor", json!(8))), "rope_parameters.sliding_attention: expected the scaling of rope_parameters.full_attention, found another"),
        ("v5-yarn", "rope_parameters", of_types(yarn("factor", json!(4)), json!({})), "rope_parameters.sliding_attention: expected the scaling of rope_parameters.full_attention, found another"),
        ("v5-yarn", "rope_parameters", of_types(yarn("factor", json!(4)), Value::Null), "rope_parameters.sliding_attention: expected an object, found null"),
        ("v5-yarn", "torch_dtype", json!("bfloat16"), ""),
        ("v5-yarn", "torch_dtype", json!("float16"), "torch_dtype: expected that of dtype, \"bfloat16\", found \"float16\""),
        ("longrope", "rope_scaling", longrope("short_factor", json!([1.0])), "rope_scaling.short_factor: expected a list of 8 numbers above 0, found [1.0]"),
        ("longrope", "rope_scaling", longrope("long_factor", Value::Null), "rope_scaling.long_factor: expected a list of 8 numbers above 0, found []"),
        ("longrope", "rope_scaling", longrope("factor", json!(4)), ""),
        ("qwen2", "no_rope_layers", json!([1, 1, 0]), "no_rope_layers: expected null"),
        ("qwen2", "layer_types", json!(["full_attention"; 3].to_vec()), ""),
        ("qwen2", "layer_types", json!(["full_attention", "sliding_attention", "full_attention"]), "as there is no sliding window"),
        ("qwen2", "layer_types", json!(["full_attention"]), "layer_types: expected a list of 3 layers, found 1 of them"),
        ("qwen2", "layer_types", json!(["full_attention", "linear_attention", "full_attention"]), "found \"linear_attention\""),
        ("qwen2", "num_key_value_heads", Value::Null, "num_key_value_heads: expected a positive integer, found nothing"),
        ("qwen2.5-window", "sliding_window", json!(0), "sliding_window: expected 1 to 16777216, found 0"),
        ("qwen2.5-window", "sliding_window", Value::Null, ""),
        ("qwen3", "head_dim", Value::Null, "head_dim: expected a positive integer, found nothing"),
        ("qwen3", "attention_bias", json!(true), "q_proj.bias: expected a tensor of shape [96], found none"),
        ("qwen3-biased-window", "attention_bias", json!(false), "k_proj.bias: expected no tensor of this name"),
        ("mistral", "attention_bias", json!(true), "attention_bias: expected false, found true"),
        ("mistral", "use_sliding_window", json!(true), "use_sliding_window: expected false, found true"),
        ("mistral", "layer_types", json!(["full_attention", "full_attention", "full_attention"]), "\"sliding_attention\" everywhere"),
        ("mistral", "sliding_window", json!("wide"), "sliding_window: expected a positive integer or null"),
        ("smollm3", "no_rope_layers", json!([1, 0]), "no_rope_layers: expected a list of 5 numbers, found 2 of them"),
        ("smollm3-window", "no_rope_layer_interval", json!(0), "no_rope_layer_interval: expected a positive integer, found 0"),
        ("smollm3", "mlp_bias", json!(true), "gate_proj.bias: expected a tensor of shape [40], found none"),
        ("mlp-biased", "mlp_bias", json!(false), "bias: expected no tensor of this name"),
        ("qwen2", "mlp_bias", json!(true), "mlp_bias: expected false, found true"),
        ("llama3.1", "rope_scaling", llama3("factor", json!(0)), "factor: expected a number above 0, found 0"),
        ("llama3.1", "rope_scaling", llama3("low_freq_factor", json!(4)), "high_freq_factor: expected above low_freq_factor, 4, found 4"),
        ("llama3.1", "rope_scaling", llama3("high_freq_factor", Value::Null), "high_freq_factor: expected a number above 0, found nothing"),
        ("llama3.1", "rope_scaling", llama3("original_max_position_embeddings", Value::Null), ""),
        ("llama3.1", "rope_parameters", llama3("factor", json!(9)), "rope_parameters: expected the scaling of rope_scaling"),
        ("llama3.1", "rope_parameters", llama3("factor", json!(8)), ""),
        ("smollm", "architectures", json!(["Qwen2ForCausalLM"]), r#"architectures: expected ["LlamaForCausalLM"]"#),
        ("smollm", "model_type", json!("gemma"), r#"model_type: expected "llama", "mistral", "qwen2", "qwen3", "smollm3", found "gemma""#),
    ];
    for (model, field, value, expected) in cases {
        let temp = TempDir::new();
        fs::copy(family(model).join("model.safetensors"), temp.join("model.safetensors")).unwrap();
        let mut config = config(model);
        config[field] = value;
        fs::write(temp.join("config.json"), config.to_string()).unwrap();
        fs::write(temp.join("tokenizer.json"), Checkpoint::tiny(TensorDtype::F32).tokenizer.to_string())
            .unwrap();
        let options = Options::new(temp.path(), temp.join("out.bin"));
        let outcome = smolconv::convert(&options, &Progress::new(true)).map_err(|error| error.to_string());
        match (outcome, expected) {
            (Ok(_), "") => {}
            (outcome, expected) => {
                let error = outcome.map(|_| ()).unwrap_err();
                assert!(!expected.is_empty() && error.contains(expected), "{model}: {error}, not {expected}");
            }
        }
    }
}

/// Yarn makes a context longer than the config says it is; of LongRoPE only the original one has one set of angles.
#[test]
fn a_scaled_context_is_as_long_as_its_angles_hold() {
    let of = |name: &str| convert(&family(name), Dtype::F32).config().clone();
    assert_eq!(of("v5-yarn").max_position_embeddings, 128);
    assert_eq!(of("yarn-factor").max_position_embeddings, 128);
    let longrope = of("longrope");
    assert_eq!(longrope.max_position_embeddings, 128);
    let (plain, factor) = (0.25, 1.0 + 4f32.ln() / 128f32.ln());
    assert!((longrope.attention_scale / plain - factor).abs() < 1e-6);
    let unturned = of("yarn-unturned");
    assert_eq!((unturned.attention_scale, unturned.no_rope_attention_scale), (plain * 1.5625, Some(plain)));
    assert_eq!(of("smollm3").no_rope_attention_scale, None);
}

/// A Mistral whose config does not say what its window is has transformers' default one.
#[test]
fn defaults_are_those_of_transformers() {
    let with = |model: &str, change: fn(&mut serde_json::Map<String, Value>)| {
        let temp = TempDir::new();
        fs::copy(family(model).join("model.safetensors"), temp.join("model.safetensors")).unwrap();
        let mut config = config(model);
        change(config.as_object_mut().unwrap());
        fs::write(temp.join("config.json"), config.to_string()).unwrap();
        convert(temp.path(), Dtype::F32)
    };
    let mistral = with("mistral", |config| drop(config.remove("sliding_window")));
    assert_eq!(mistral.config().sliding_window, Some(4096));
    let smollm3 = with("smollm3-window", |config| {
        for field in ["no_rope_layer_interval", "rope_theta", "tie_word_embeddings", "use_sliding_window"] {
            config.remove(field);
        }
    });
    let no_rope: Vec<bool> =
        smollm3.layout().weights.layers.iter().map(|layer| layer.flags.no_rope).collect();
    assert_eq!(no_rope, [false, false, false, true, false]);
    assert!(smollm3.config().tie_word_embeddings && smollm3.config().sliding_window.is_none());
    assert_eq!(convert(&family("llama3.1"), Dtype::F32).config().eos_token_ids, [1, 8, 9]);
}
