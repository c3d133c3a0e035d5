//! GGUF files as a source: the same blob as from the checkpoint they were made of, and every broken one its own error.

use std::fs;
use std::path::PathBuf;

use safetensors::SafeTensors;
use serde_json::json;
use smol_tests::common::blob::Part;
use smol_tests::common::gguf::{Gguf, GgufTensor, Value};
use smol_tests::common::{Blob, Checkpoint, REAL, TempDir, TensorDtype, data, model_dir, run};
use smolconv::source::Dtype;
use smolconv::{Mix, Options, Progress, convert};
use smolrun::format;
use smolrun::format::Kind;
use smolrun::{Model, SpecialTokens};

/// GGUF's codes of the types that can be read.
const TYPES: [(Dtype, u32); 16] = [
    (Dtype::F32, 0),
    (Dtype::F16, 1),
    (Dtype::BF16, 30),
    (Dtype::Q4_0, 2),
    (Dtype::Q4_1, 3),
    (Dtype::Q5_0, 6),
    (Dtype::Q5_1, 7),
    (Dtype::Q8_0, 8),
    (Dtype::Q4_K, 12),
    (Dtype::Q5_K, 13),
    (Dtype::Q6_K, 14),
    (Dtype::Q2_K, 10),
    (Dtype::Q3_K, 11),
    (Dtype::IQ4_NL, 20),
    (Dtype::IQ4_XS, 23),
    (Dtype::MXFP4, 39),
];

/// Blocks of a type, and the numbers that gguf-py reads from them.
fn reference(dtype: Dtype) -> (Vec<u8>, Vec<f32>) {
    let file = fs::read(data("gguf/blocks.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let bytes = |name: &str| tensors.tensor(&format!("{dtype}.{name}")).unwrap().data().to_vec();
    let values = bytes("values").as_chunks().0.iter().map(|&value| f32::from_le_bytes(value)).collect();
    (bytes("bytes"), values)
}

#[test]
fn every_dequantizer_equals_gguf_py_bit_for_bit() {
    for (dtype, _) in TYPES {
        let (bytes, expected) = reference(dtype);
        let mut found = vec![0.0; expected.len()];
        assert_eq!(bytes.len() / dtype.block_bytes() * dtype.block_len(), found.len(), "{dtype}");
        dtype.decode(&bytes, &mut found);
        let mut pairs = found.iter().zip(&expected);
        let wrong = pairs.position(|(a, b)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan()));
        assert_eq!(wrong, None, "{dtype}");
    }
}

fn convert_bytes(bytes: &[u8]) -> Result<Vec<Part>, String> {
    let temp = TempDir::new();
    let (source, out) = (temp.join("model.gguf"), temp.join("out.bin"));
    fs::write(&source, bytes).unwrap();
    let converted = convert(&Options::new(source, &out), &Progress::new(true));
    match converted {
        Ok(_) => Ok(parts(&fs::read(out).unwrap())),
        Err(error) => {
            assert_eq!(temp.names(), ["model.gguf"], "nothing is left behind");
            Err(error.to_string())
        }
    }
}

/// All sections but the metadata, which names the source.
fn parts(blob: &[u8]) -> Vec<Part> {
    let parts = Blob::take_apart(blob).parts;
    parts.into_iter().filter(|part| part.kind != Kind::Metadata.code()).collect()
}

#[test]
fn a_gguf_file_gives_the_blob_of_its_checkpoint() {
    for checkpoint in [Checkpoint::tiny(TensorDtype::F32), Checkpoint::untied(TensorDtype::F32)] {
        let expected = parts(&Blob::of(&checkpoint).build());
        let gguf = Gguf::of(&checkpoint);
        assert!(convert_bytes(&gguf.build()).unwrap() == expected);
        let mut other = gguf.clone();
        other.alignment = 256;
        other.set("general.alignment", Value::U32(256));
        other.remove("llama.vocab_size");
        other.remove("llama.rope.dimension_count");
        other.set("llama.expert_count", Value::U32(0));
        other.set("llama.rope.scaling.type", Value::Text("none".into()));
        other.set("split.count", Value::Raw(2, vec![1, 0]));
        let mut bytes = other.build();
        bytes[4] = 2; // the version before, which differs in nothing
        assert!(convert_bytes(&bytes).unwrap() == expected);
    }
}

/// Each architecture has keys under its own name, and its own tensors and order of rows.
#[test]
fn a_gguf_file_of_any_architecture_gives_the_blob_of_its_checkpoint() {
    for architecture in ["llama", "qwen2", "qwen3", "smollm3"] {
        let checkpoint = Checkpoint::of_architecture(architecture, TensorDtype::F32);
        let expected = parts(&Blob::of(&checkpoint).build());
        let gguf = Gguf::of(&checkpoint);
        assert!(convert_bytes(&gguf.build()).unwrap() == expected, "{architecture}");
        assert!(convert_bytes(&gguf.fused().build()).unwrap() == expected, "{architecture}, fused");
    }
}

/// What may be missing from one architecture may not from another, and what one has, another must not.
#[test]
fn tensors_of_another_architecture_are_refused() {
    let of = |architecture| Gguf::of(&Checkpoint::of_architecture(architecture, TensorDtype::F32));
    let cases: [(&str, &str, &str); 5] = [
        (
            "qwen2",
            "blk.0.attn_q.bias",
            "tensor blk.0.attn_q.bias: expected a tensor of shape [32], found none",
        ),
        (
            "qwen3",
            "blk.1.attn_k_norm.weight",
            "attn_k_norm.weight: expected a tensor of shape [16], found none",
        ),
        ("smollm3", "blk.0.attn_q.bias", "tensor blk.0.attn_k.bias: expected no tensor of this name"),
        (
            "smollm3",
            "blk.1.attn_v.bias",
            "tensor blk.1.attn_v.bias: expected a tensor of shape [16], found none",
        ),
        (
            "smollm3",
            "blk.0.attn_output.bias",
            "tensor blk.1.attn_output.bias: expected no tensor of this name",
        ),
    ];
    for (architecture, missing, expected) in cases {
        let mut gguf = of(architecture);
        gguf.tensors.retain(|tensor| tensor.name != missing);
        let error = convert_bytes(&gguf.build()).unwrap_err();
        assert!(error.contains(expected), "{architecture}: {error}");
    }
    let mut llama = of("llama");
    llama.tensors.extend(of("qwen3").tensors.into_iter().filter(|tensor| {
        tensor.name.contains("_norm.weight")
            && (tensor.name.contains("q_norm") || tensor.name.contains("k_norm"))
    }));
    let error = convert_bytes(&llama.build()).unwrap_err();
    assert!(error.contains("tensor blk.0.attn_k_norm.weight: expected no tensor of this name"), "{error}");
}

#[test]
fn a_gguf_file_is_known_by_its_first_bytes() {
    let temp = TempDir::new();
    fs::write(temp.join("model"), Gguf::of(&Checkpoint::tiny(TensorDtype::F32)).build()).unwrap();
    let args = [temp.join("model").into_os_string(), "-o".into(), temp.join("out.bin").into_os_string()];
    assert_eq!(run("smolconv", &args).code, 0);
    assert_eq!(temp.names(), ["model", "out.bin"]);
}

/// A model of matrices that are `block`s, cyclically, and of the numbers in them.
fn of_blocks(dtype: Dtype, code: u32) -> (Gguf, Checkpoint) {
    let (bytes, values) = reference(dtype);
    // The last blocks have the scales of a model.
    let (bytes, values) =
        (&bytes[bytes.len() - 4 * dtype.block_bytes()..], &values[values.len() - 4 * dtype.block_len()..]);
    let mut checkpoint = Checkpoint::tiny(TensorDtype::F32);
    for (field, width) in [("hidden_size", 256), ("intermediate_size", 256), ("num_attention_heads", 16)] {
        checkpoint.config[field] = json!(width);
    }
    let width = |old: usize| if matches!(old, 37 | 16) { old } else { 256 };
    let names: Vec<(String, Vec<usize>)> =
        checkpoint.tensors.iter().map(|(name, tensor)| (name.clone(), tensor.shape.clone())).collect();
    for (name, shape) in names {
        let shape: Vec<usize> = shape.iter().map(|&old| width(old)).collect();
        checkpoint.add(&name, TensorDtype::F32, &shape);
        if shape.len() == 2 {
            let count = shape.iter().product();
            checkpoint.tensor(&name).values = values.iter().copied().cycle().take(count).collect();
        }
    }
    let mut gguf = Gguf::of(&checkpoint);
    for tensor in gguf.tensors.iter_mut().filter(|tensor| tensor.dims.len() == 2) {
        let count = tensor.dims.iter().product::<u64>() as usize / dtype.block_len();
        tensor.kind = code;
        tensor.bytes = bytes.iter().copied().cycle().take(count * dtype.block_bytes()).collect();
    }
    (gguf, checkpoint)
}

#[test]
fn matrices_of_every_type_are_packed() {
    for (dtype, code) in TYPES {
        let (gguf, mut checkpoint) = of_blocks(dtype, code);
        // In the file the blocks of q and k are in its own order of rows, so the checkpoint's are in the other one.
        for layer in 0..2 {
            for name in ["q_proj", "k_proj"] {
                let tensor = checkpoint.tensor(&format!("model.layers.{layer}.self_attn.{name}.weight"));
                let rows: Vec<Vec<f32>> = tensor.values.chunks(256).map(<[f32]>::to_vec).collect();
                let halves = |head: &[Vec<f32>]| {
                    let every_second = |from: usize| head.iter().skip(from).step_by(2).cloned();
                    every_second(0).chain(every_second(1)).collect::<Vec<_>>()
                };
                tensor.values = rows.chunks(16).flat_map(halves).collect::<Vec<_>>().concat();
            }
        }
        let expected = parts(&Blob::of(&checkpoint).build());
        assert!(convert_bytes(&gguf.build()).unwrap() == expected, "{dtype}");
    }
}

#[test]
fn auto_keeps_about_the_sources_precision() {
    let cases = [
        (Dtype::F32, "f32"),
        (Dtype::F16, "f32"),
        (Dtype::BF16, "bf16"),
        (Dtype::Q8_0, "bf16"),
        (Dtype::Q4_K, "bf16"),
    ];
    for (dtype, expected) in cases {
        let code = TYPES.iter().find(|(known, _)| *known == dtype).unwrap().1;
        let temp = TempDir::new();
        fs::write(temp.join("model.gguf"), of_blocks(dtype, code).0.build()).unwrap();
        let options = Options {
            weights: Mix::Auto.into(),
            ..Options::new(temp.join("model.gguf"), temp.join("out.bin"))
        };
        convert(&options, &Progress::new(true)).unwrap();
        let mut blob = Blob::take_apart(&fs::read(temp.join("out.bin")).unwrap());
        let found = format::Dtype::from_code(blob.part(Kind::DownProj).dtype).unwrap().name();
        assert_eq!(found, expected, "{dtype}");
    }
}

#[test]
fn rope_factors_divide_the_frequencies() {
    let mut gguf = Gguf::of(&Checkpoint::tiny(TensorDtype::F32));
    let plain = convert_bytes(&gguf.build()).unwrap();
    let factors = [1.0, 1.0, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0f32];
    let bytes = factors.iter().flat_map(|factor| factor.to_le_bytes()).collect();
    gguf.tensors.push(GgufTensor {
        name: "rope_freqs.weight".into(),
        dims: vec![8],
        kind: 0,
        offset: None,
        bytes,
    });
    let scaled = convert_bytes(&gguf.build()).unwrap();
    let frequencies = |parts: &[Part]| -> Vec<f32> {
        let part = parts.iter().find(|part| part.kind == Kind::RopeInvFreq.code()).unwrap();
        part.content.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
    };
    let expected: Vec<f32> =
        frequencies(&plain).iter().zip(factors).map(|(plain, factor)| plain / factor).collect();
    assert_eq!(frequencies(&scaled), expected);
}

/// llama.cpp takes a factor for one of linear scaling where the file does not say what it is, and 0 for none.
#[test]
fn linear_scaling_is_that_of_a_config() {
    let with = |keys: &[(&str, Value)]| {
        let mut gguf = Gguf::of(&Checkpoint::tiny(TensorDtype::F32));
        keys.iter().for_each(|(key, value)| gguf.set(key, value.clone()));
        convert_bytes(&gguf.build()).unwrap()
    };
    let mut checkpoint = Checkpoint::tiny(TensorDtype::F32);
    let plain = parts(&Blob::of(&checkpoint).build());
    checkpoint.config["rope_scaling"] = json!({ "type": "linear", "factor": 6.0 });
    let scaled = parts(&Blob::of(&checkpoint).build());
    assert!(plain != scaled);
    let (factor, linear) =
        ("llama.rope.scaling.factor", ("llama.rope.scaling.type", Value::Text("linear".into())));
    assert!(with(&[(factor, Value::F32(6.0)), linear.clone()]) == scaled);
    assert!(with(&[(factor, Value::U32(6))]) == scaled);
    assert!(with(&[("llama.rope.scale_linear", Value::F32(6.0))]) == scaled);
    assert!(with(&[(factor, Value::F32(0.0)), linear]) == plain);
}

#[test]
fn yarn_is_that_of_a_config() {
    let mut checkpoint = Checkpoint::of_architecture("qwen2", TensorDtype::F32);
    let mut gguf = Gguf::of(&checkpoint);
    let keys = [
        ("type", Value::Text("yarn".into())),
        ("factor", Value::F32(4.0)),
        ("original_context_length", Value::U32(32)),
    ];
    keys.into_iter().for_each(|(key, value)| gguf.set(&format!("qwen2.rope.scaling.{key}"), value));
    checkpoint.config["rope_scaling"] =
        json!({ "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32 });
    assert!(convert_bytes(&gguf.build()).unwrap() == parts(&Blob::of(&checkpoint).build()));
    for (key, field, number) in [
        ("yarn_beta_fast", "beta_fast", 16.0f32),
        ("yarn_beta_slow", "beta_slow", 0.5),
        ("yarn_attn_factor", "attention_factor", 1.25),
    ] {
        gguf.set(&format!("qwen2.rope.scaling.{key}"), Value::F32(number));
        checkpoint.config["rope_scaling"][field] = json!(number);
        assert!(convert_bytes(&gguf.build()).unwrap() == parts(&Blob::of(&checkpoint).build()), "{key}");
    }
}

/// Changes one thing in a good file, and says what has to be said about it.
type Case = (&'static str, fn(&mut Gguf));

fn u32(gguf: &mut Gguf, key: &str, value: u32) {
    gguf.set(key, Value::U32(value));
}

fn text(gguf: &mut Gguf, key: &str, value: &str) {
    gguf.set(key, Value::Text(value.into()));
}

/// The strings of `key` after a change.
fn texts(gguf: &mut Gguf, key: &str, change: impl FnOnce(&mut Vec<String>)) {
    let (_, Value::Texts(strings)) = gguf.keys.iter_mut().find(|(name, _)| name == key).unwrap() else {
        panic!("{key} has strings")
    };
    change(strings);
}

/// Makes the tokenizer SentencePiece's, with `pieces` and their types in the place of some others.
fn pieces(gguf: &mut Gguf, pieces: [(&str, i32); 3]) {
    text(gguf, "tokenizer.ggml.model", "llama");
    gguf.set("tokenizer.ggml.scores", Value::F32s(vec![1.0; 37]));
    let mut types = vec![1; 37];
    for (kind, (_, of_piece)) in types[20..].iter_mut().zip(pieces) {
        *kind = of_piece;
    }
    gguf.set(TYPE, Value::I32s(types));
    texts(gguf, TOKENS, |tokens| {
        for (slot, (text, _)) in tokens[20..].iter_mut().zip(pieces) {
            *slot = text.into();
        }
    });
}

/// A piece of 130 bytes.
const LONG: &str = "0123456789012345678901234567890123456789012345678901234567890123456789\
    012345678901234567890123456789012345678901234567890123456789";
const NORM: &str = "output_norm.weight";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPE: &str = "tokenizer.ggml.token_type";

#[rustfmt::skip] // one line per case
const BROKEN: &[Case] = &[
    ("general.architecture: expected a value, found nothing", |g| g.remove("general.architecture")),
    ("general.architecture: expected one of \"llama\", \"qwen2\", \"qwen3\", \"smollm3\", found \"mamba\"", |g| text(g, "general.architecture", "mamba")),
    ("general.architecture: expected a string, found 7", |g| u32(g, "general.architecture", 7)),
    ("general.alignment: expected a power of two up to 65536, found 0", |g| u32(g, "general.alignment", 0)),
    ("general.alignment: expected a power of two up to 65536, found 48", |g| u32(g, "general.alignment", 48)),
    ("general.alignment: expected a power of two up to 65536, found 2147483648", |g| u32(g, "general.alignment", 1 << 31)),
    ("general.alignment: expected an integer from 0 on, found a string", |g| text(g, "general.alignment", "32")),
    ("general.alignment: expected an integer from 0 on, found -1", |g| g.set("general.alignment", Value::Raw(5, vec![255; 4]))),
    ("split.no: expected a value, found nothing", |g| g.set("split.count", Value::Raw(2, vec![3, 0]))),
    ("model.gguf: expected a file called *-00002-of-00003.gguf by its split.no and split.count, found this", |g| { u32(g, "split.count", 3); u32(g, "split.no", 1); }),
    ("smollm3.embedding_length: expected a value, found nothing", |g| text(g, "general.architecture", "smollm3")),
    ("llama.block_count: expected it once, found it twice", |g| g.keys.push(("llama.block_count".into(), Value::U32(2)))),
    ("metadata key 20: expected a name, found an empty one", |g| g.keys.push((String::new(), Value::U32(2)))),
    ("metadata key 20: expected at most 65535 bytes, found 65536", |g| g.keys.push(("k".repeat(65536), Value::U32(2)))),
    ("x: expected a type from 0 to 12, found 13", |g| g.set("x", Value::Raw(13, vec![0; 8]))),
    ("x: expected a type from 0 to 12, found 4294967295", |g| g.set("x", Value::Raw(9, vec![255; 12]))),
    ("x: expected an array of plain values, found one of arrays", |g| g.set("x", Value::Raw(9, vec![9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]))),
    ("x: expected 0 or 1 for a bool, found 2", |g| g.set("x", Value::Raw(7, vec![2]))),
    ("x: expected 0 or 1 for a bool, found 3", |g| g.set("x", Value::Raw(9, vec![7, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 3]))),
    ("x at byte 1479: expected 147573952589676412920 bytes, found ", |g| g.set("x", Value::Raw(9, [&[8, 0, 0, 0][..], &[255; 8]].concat()))),
    ("x at byte 1479: expected 18446744073709551616 bytes, found ", |g| g.set("x", Value::Raw(9, [&[10, 0, 0, 0, 0, 0, 0, 0][..], &[0, 0, 0, 32]].concat()))),
    ("x: expected at most 16777216 bytes, found 18446744073709551615", |g| g.set("x", Value::Raw(8, vec![255; 8]))),
    ("x at byte", |g| g.set("x", Value::Raw(8, vec![0, 0, 255, 0, 0, 0, 0, 0]))),
    ("x: expected UTF-8, found another byte at", |g| g.set("x", Value::Raw(8, vec![2, 0, 0, 0, 0, 0, 0, 0, b'a', 255]))),
    ("llama.block_count: expected an integer from 0 on, found 2", |g| g.set("llama.block_count", Value::F32(2.0))),
    ("llama.block_count: expected 1 to 1024, found 4294967295", |g| u32(g, "llama.block_count", u32::MAX)),
    ("llama.embedding_length: expected a value, found nothing", |g| g.remove("llama.embedding_length")),
    ("llama.embedding_length: expected 1 to 65536, found 0", |g| u32(g, "llama.embedding_length", 0)),
    ("llama.context_length: expected 1 to 16777216, found 4294967295", |g| u32(g, "llama.context_length", u32::MAX)),
    ("llama.attention.head_count: expected a divisor of llama.embedding_length, 24, found 0", |g| { g.remove("llama.attention.key_length"); u32(g, "llama.attention.head_count", 0); }),
    ("llama.attention.head_count: expected an integer from 0 on, found an array, each an integer", |g| g.set("llama.attention.head_count", Value::I32s(vec![2, 2]))),
    ("llama.attention.head_count_kv: expected a divisor of num_attention_heads, 2, found 3", |g| u32(g, "llama.attention.head_count_kv", 3)),
    ("llama.attention.key_length: expected a multiple of 16, found 15", |g| u32(g, "llama.attention.key_length", 15)),
    ("llama.attention.value_length: expected the width of a head, 16, found 8", |g| u32(g, "llama.attention.value_length", 8)),
    ("llama.rope.dimension_count: expected the width of a head, 16, found 4", |g| u32(g, "llama.rope.dimension_count", 4)),
    ("llama.rope.freq_base: expected a number from 1 to 1e30, found NaN", |g| g.set("llama.rope.freq_base", Value::F32(f32::NAN))),
    ("llama.rope.scaling.type: expected \"none\", \"linear\" or \"yarn\", found \"longrope\"", |g| text(g, "llama.rope.scaling.type", "longrope")),
    ("llama.rope.scaling.factor: expected 1, as rope.scaling.type is \"none\", found 8", |g| { text(g, "llama.rope.scaling.type", "none"); g.set("llama.rope.scaling.factor", Value::F32(8.0)); }),
    ("llama.rope.scaling.factor: expected a number above 0, found -8", |g| g.set("llama.rope.scaling.factor", Value::F32(-8.0))),
    ("llama.rope.scale_linear: expected a number above 0, found NaN", |g| g.set("llama.rope.scale_linear", Value::F32(f32::NAN))),
    ("llama.rope.scaling.yarn_beta_fast: expected none, as rope.scaling.type is not \"yarn\", found one", |g| g.set("llama.rope.scaling.yarn_beta_fast", Value::F32(32.0))),
    ("llama.rope.scaling.yarn_beta_slow: expected a number above 0, found 0", |g| { text(g, "llama.rope.scaling.type", "yarn"); g.set("llama.rope.scaling.yarn_beta_slow", Value::F32(0.0)); }),
    ("llama.rope.scaling.original_context_length: expected a positive integer, found 0", |g| { text(g, "llama.rope.scaling.type", "yarn"); u32(g, "llama.rope.scaling.original_context_length", 0); }),
    ("llama.rope.freq_base: expected a number above 1, found 1", |g| { text(g, "llama.rope.scaling.type", "yarn"); g.set("llama.rope.freq_base", Value::F32(1.0)); }),
    ("llama.rope.freq_base: expected a base and a scaling to finite frequencies, found inf", |g| g.set("llama.rope.scaling.factor", Value::F32(1e-45))),
    ("llama.rope.scaling.attn_factor: expected no key of this name, found one", |g| g.set("llama.rope.scaling.attn_factor", Value::F32(1.0))),
    ("llama.rope.scaling.factor: expected a number, found a string", |g| text(g, "llama.rope.scaling.factor", "8")),
    ("tensor rope_freqs.weight: expected no such tensor beside other scaling, found one", |g| { u32(g, "llama.rope.scaling.factor", 8); let mut more = g.tensor(NORM).clone(); more.name = "rope_freqs.weight".into(); g.tensors.push(more); }),
    ("llama.expert_count: expected 0, found 8", |g| u32(g, "llama.expert_count", 8)),
    ("llama.attention.sliding_window: expected no key of this name, found one", |g| u32(g, "llama.attention.sliding_window", 8)),
    ("llama.attention.layer_norm_rms_epsilon: expected a finite number above 0, found inf", |g| g.set("llama.attention.layer_norm_rms_epsilon", Value::F32(f32::INFINITY))),
    ("tokenizer.ggml.eos_token_id: expected an id below vocab_size, 37, found 37", |g| u32(g, "tokenizer.ggml.eos_token_id", 37)),
    ("tokenizer.ggml.padding_token_id: expected an id below vocab_size, 37, found 4294967294", |g| u32(g, "tokenizer.ggml.padding_token_id", u32::MAX - 1)),
    ("tokenizer.ggml.model: expected", |g| text(g, "tokenizer.ggml.model", "rwkv")),
    ("tokenizer.ggml.pre: expected", |g| text(g, "tokenizer.ggml.pre", "default")),
    ("tokenizer.ggml.tokens: expected a value, found nothing", |g| g.remove(TOKENS)),
    ("tokenizer.ggml.tokens: expected an array of strings, found an array, each an integer", |g| g.set(TOKENS, Value::I32s(vec![1]))),
    ("tokenizer.ggml.tokens: expected each token once, found \"a\" again", |g| texts(g, TOKENS, |tokens| tokens[2] = "a".into())),
    ("expected at most vocab_size tokens, 37, found 38", |g| { texts(g, TOKENS, |tokens| tokens.push("z!".into())); g.set(TYPE, Value::I32s(vec![1; 38])); }),
    ("tokenizer.ggml.token_type: expected one for each token, 37, found 36", |g| g.set(TYPE, Value::I32s(vec![1; 36]))),
    ("tokenizer.ggml.token_type: expected types from 1 to 6, found 7", |g| g.set(TYPE, Value::I32s(vec![7; 37]))),
    ("tokenizer.ggml.token_type: expected an array of integers, found an array, each a number", |g| g.set(TYPE, Value::F32s(vec![1.0; 37]))),
    ("model.merges[0]: expected a token of the vocabulary", |g| texts(g, "tokenizer.ggml.merges", |merges| merges[0] = "q q".into())),
    ("tokenizer.ggml.add_eos_token: expected false, found true", |g| g.set("tokenizer.ggml.add_eos_token", Value::Bool(true))),
    ("tokenizer.ggml.scores: expected a value, found nothing", |g| text(g, "tokenizer.ggml.model", "llama")),
    ("tokenizer.ggml.scores: expected a finite number for each token, 37, found 1", |g| { text(g, "tokenizer.ggml.model", "llama"); g.set("tokenizer.ggml.scores", Value::F32s(vec![1.0])); }),
    ("expected a normal piece for each character that is merged, found none for \"ü\" of \"éü\"", |g| pieces(g, [("é", 1), ("éü", 1), ("éé", 1)])),
    ("expected a normal piece for each character that is merged, found none for \"ê\" of \"éê\"", |g| pieces(g, [("é", 1), ("éê", 1), ("ê", 3)])),
    ("tokenizer.ggml.tokens: expected no unused piece that a text can become, found \"éé\"", |g| pieces(g, [("é", 1), ("éé", 5), ("ê", 1)])),
    ("tokenizer.ggml.tokens: expected no unused piece that a text can become, found \"ê\"", |g| pieces(g, [("é", 1), ("éé", 1), ("ê", 5)])),
    ("tokenizer.ggml.tokens: expected pieces of at most 128 bytes, found 130", |g| pieces(g, [("é", 1), (LONG, 1), ("ê", 1)])),
    ("tokenizer.ggml.precompiled_charsmap: expected nothing, found", |g| { text(g, "tokenizer.ggml.model", "llama"); g.set("tokenizer.ggml.precompiled_charsmap", Value::I32s(vec![1])); }),
    ("tokenizer.ggml.remove_extra_whitespaces: expected false, found true", |g| { text(g, "tokenizer.ggml.model", "llama"); g.set("tokenizer.ggml.remove_extra_whitespaces", Value::Bool(true)); }),
    ("tokenizer.ggml.add_space_prefix: expected false, found true", |g| g.set("tokenizer.ggml.add_space_prefix", Value::Bool(true))),
    ("name of tensor 0: expected a name, found an empty one", |g| g.tensors[0].name.clear()),
    ("name of tensor 0: expected at most 64 bytes, found 65", |g| g.tensors[0].name = "n".repeat(65)),
    ("tensor output_norm.weight: expected it once, found it in", |g| { let again = g.tensor(NORM).clone(); g.tensors.push(again); }),
    ("tensor output_norm.weight: expected 1 to 4 dimensions, found 0", |g| g.tensor(NORM).dims.clear()),
    ("tensor output_norm.weight: expected 1 to 4 dimensions, found 5", |g| g.tensor(NORM).dims = vec![1; 5]),
    ("tensor output_norm.weight: expected a dimension from 1 to 2^63 - 1, found 0", |g| g.tensor(NORM).dims = vec![0]),
    ("tensor output_norm.weight: expected a dimension from 1 to 2^63 - 1, found 18446744073709551615", |g| g.tensor(NORM).dims = vec![u64::MAX]),
    ("tensor output_norm.weight: expected fewer than 2^64 bytes", |g| g.tensor(NORM).dims = vec![1 << 40, 1 << 40]),
    ("tensor output_norm.weight: 17592186044416 bytes at offset", |g| g.tensor(NORM).dims = vec![1 << 42]),
    ("tensor output_norm.weight: type: expected one of F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, BF16, MXFP4, found IQ2_XS", |g| g.tensor(NORM).kind = 17),
    ("found the unknown type 99", |g| g.tensor(NORM).kind = 99),
    ("tensor output_norm.weight: expected rows of whole blocks of 32, found rows of 24", |g| g.tensor(NORM).kind = 8),
    ("tensor output_norm.weight: expected offset", |g| g.tensor(NORM).offset = Some(0)),
    ("after the tensor before, found 18446744073709551615", |g| g.tensor(NORM).offset = Some(u64::MAX)),
    ("tensor output_norm.weight: shape: expected [24], found [8]", |g| { g.tensor(NORM).dims = vec![8]; g.tensor(NORM).bytes.truncate(32); }),
    ("tensor output_norm.weight: expected a tensor of shape [24], found none", |g| g.tensor(NORM).name = "x".into()),
    ("tensor blk.2.attn_q.weight: expected no tensor of this name", |g| { let mut more = g.tensor(NORM).clone(); more.name = "blk.2.attn_q.weight".into(); g.tensors.push(more); }),
    ("tensor output_norm.weight: element [3]: expected a finite number, found inf", |g| g.tensor(NORM).bytes[12..16].copy_from_slice(&f32::INFINITY.to_le_bytes())),
    ("tensor rope_freqs.weight: expected 8 floats, found F32 of shape [24]", |g| { let mut more = g.tensor(NORM).clone(); more.name = "rope_freqs.weight".into(); g.tensors.push(more); }),
    ("expected the file to end with its last tensor, found 64 bytes more", |g| g.tensors.last_mut().unwrap().bytes.extend([0; 64])),
];

#[test]
fn broken_files_are_refused_each_in_its_own_words() {
    for &(expected, change) in BROKEN {
        let mut gguf = Gguf::of(&Checkpoint::tiny(TensorDtype::F32));
        change(&mut gguf);
        let error = convert_bytes(&gguf.build()).expect_err(expected);
        assert!(error.contains(expected), "expected {expected:?} in {error:?}");
        assert!(error.contains("model.gguf: "), "{error:?} names the file");
        assert!(!error.contains('\n') && error.len() < 400, "{error:?}");
    }
    let mut words: Vec<&str> = BROKEN.iter().map(|(expected, _)| *expected).collect();
    words.sort_unstable();
    words.dedup();
    assert_eq!(words.len(), BROKEN.len(), "no two are told in the same words");
}

#[test]
fn broken_starts_are_refused() {
    let whole = Gguf::of(&Checkpoint::tiny(TensorDtype::F32)).build();
    let patched = |at: usize, bytes: &[u8]| {
        let mut file = whole.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    let cases = [
        ("model.gguf: expected a GGUF file, found an empty file", Vec::new()),
        ("not a GGUF file: expected it to begin with GGUF, found GGML", patched(0, b"GGML")),
        (
            "model.gguf: version at byte 4: expected 4 bytes, found 2, as the file ends within its header",
            whole[..6].to_vec(),
        ),
        ("GGUF version: expected 2 or 3, found 1", patched(4, &[1])),
        ("GGUF version: expected 2 or 3, found 4", patched(4, &[4])),
        ("expected a little-endian GGUF file, found a big-endian one", patched(4, &[0, 0, 0, 3])),
        ("tensor count at byte 8", whole[..12].to_vec()),
        ("metadata count at byte 16", whole[..20].to_vec()),
        ("tensor count: expected at most 65536, found 18446744073709551615", patched(8, &[255; 8])),
        ("metadata count: expected at most 65536, found 18446744073709551615", patched(16, &[255; 8])),
        ("metadata key 0 at byte 24", whole[..24].to_vec()),
        ("metadata key 0: expected at most 65535 bytes", patched(24, &[255; 8])),
    ];
    for (expected, bytes) in cases {
        let error = convert_bytes(&bytes).expect_err(expected);
        assert!(error.contains(expected), "expected {expected:?} in {error:?}");
    }
}

/// Cut off anywhere, a file is an error that says so: of the header, or of a tensor that goes past the end.
#[test]
fn no_part_of_a_file_is_taken_for_the_whole() {
    let whole = Gguf::of(&Checkpoint::tiny(TensorDtype::F32)).build();
    for len in (0..whole.len()).step_by(97) {
        let error = convert_bytes(&whole[..len]).expect_err("a part is not the whole");
        let words = ["found an empty file", "as the file ends within its header", "it is incomplete"];
        let says_so = words.iter().any(|words| error.ends_with(words));
        assert!(says_so && error.contains("model.gguf: "), "cut at {len}: {error}");
    }
}

#[test]
fn a_vocabulary_alone_is_called_one() {
    let mut gguf = Gguf::of(&Checkpoint::tiny(TensorDtype::F32));
    gguf.tensors.clear();
    let error = convert_bytes(&gguf.build()).unwrap_err();
    let expected = "model.gguf: expected a model, found a vocabulary of 37 tokens, and no tensors";
    assert!(error.ends_with(expected), "{error}");
}

#[test]
fn what_a_gguf_file_has_itself_is_not_asked_for_beside_it() {
    let (temp, checkpoint) = (TempDir::new(), Checkpoint::tiny(TensorDtype::F32));
    checkpoint.write(&temp.join("model"));
    let source = temp.join("model.gguf");
    let mut gguf = Gguf::of(&checkpoint);
    gguf.set("tokenizer.ggml.pre", Value::Text("somebody's own".into()));
    fs::write(&source, gguf.build()).unwrap();
    let mut options = Options::new(source, temp.join("out.bin"));
    options.tokenizer = Some(temp.join("model/tokenizer.json"));
    convert(&options, &Progress::new(true)).unwrap();
    let blob = parts(&fs::read(temp.join("out.bin")).unwrap());
    assert!(blob == parts(&Blob::of(&checkpoint).build()), "the given tokenizer is taken");
    options.config = Some(temp.join("model/config.json"));
    options.force = true;
    let error = convert(&options, &Progress::new(true)).unwrap_err().to_string();
    assert!(error.contains("config.json: expected no config beside a GGUF file"), "{error}");
}

/// The real file that the stand-in was dequantized from. Rounded to bf16 as the stand-in was, every section but the
/// metadata has the same bytes, so that logits and greedy ids on all of `reference.json` are the same bit for bit, and
/// what `tests/reference.rs` finds of the one blob holds for the other.
#[test]
#[ignore = "needs the stand-in and the GGUF file it was made of: scripts/test.sh gets both"]
fn the_real_gguf_file_gives_the_blob_of_the_checkpoint_made_of_it() {
    let gguf = std::env::var_os("SMOL_REAL_GGUF").map(PathBuf::from).expect("SMOL_REAL_GGUF names the file");
    let temp = TempDir::new();
    let convert_to = |name: &str, source: PathBuf| {
        let options = Options { weights: Mix::Bf16.into(), ..Options::new(source, temp.join(name)) };
        convert(&options, &Progress::new(true)).unwrap();
        parts(&fs::read(temp.join(name)).unwrap())
    };
    let (ours, expected) = (convert_to("gguf.bin", gguf), convert_to("hf.bin", model_dir(REAL)));
    assert_eq!(ours.len(), expected.len());
    for (ours, expected) in ours.iter().zip(&expected) {
        assert!(ours == expected, "section of kind {}, layer {}", ours.kind, ours.layer);
    }
}

/// `gguf` with the tokenizer `json` of `tests/data/make/gguf_sentencepiece.py`.
pub(crate) fn with_sentencepiece(json: &serde_json::Value) -> Vec<u8> {
    let list = |name: &str| json[name].as_array().unwrap().iter();
    let tokens: Vec<String> = list("tokens").map(|token| token.as_str().unwrap().into()).collect();
    let mut checkpoint = Checkpoint::tiny(TensorDtype::F32);
    checkpoint.config["vocab_size"] = json!(tokens.len());
    checkpoint.add("model.embed_tokens.weight", TensorDtype::F32, &[tokens.len(), 24]);
    let mut gguf = Gguf::of(&checkpoint);
    let scores = list("scores").map(|score| score.as_f64().unwrap() as f32).collect();
    let types = list("types").map(|kind| kind.as_i64().unwrap() as i32).collect();
    gguf.set("tokenizer.ggml.model", Value::Text("llama".into()));
    gguf.set("tokenizer.ggml.scores", Value::F32s(scores));
    gguf.set(TYPE, Value::I32s(types));
    gguf.set(TOKENS, Value::Texts(tokens));
    gguf.set("tokenizer.ggml.bos_token_id", Value::U32(1));
    gguf.set("tokenizer.ggml.eos_token_id", Value::U32(2));
    gguf.remove("tokenizer.ggml.pre");
    gguf.remove("tokenizer.ggml.merges");
    gguf.build()
}

#[test]
fn a_sentencepiece_tokenizer_gives_sentencepieces_ids() {
    let json: serde_json::Value =
        serde_json::from_slice(&fs::read(data("gguf/sentencepiece.json")).unwrap()).unwrap();
    let temp = TempDir::new();
    let (source, out) = (temp.join("model.gguf"), temp.join("out.bin"));
    fs::write(&source, with_sentencepiece(&json)).unwrap();
    convert(&Options::new(source, &out), &Progress::new(true)).unwrap();
    let model = Model::read(out).unwrap();
    let cases = json["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 1000);
    for case in cases {
        let text = case[0].as_str().unwrap();
        let ids = model.tokenizer().encode(text, SpecialTokens::AsText).unwrap();
        assert_eq!(json!(ids), case[1], "{text:?}");
    }
}

#[test]
fn pre_tokenizers_are_those_of_the_tokenizers_of_their_name() {
    let whole = |pre: &str| {
        let mut gguf = Gguf::of(&Checkpoint::tiny(TensorDtype::F32));
        gguf.set("tokenizer.ggml.pre", Value::Text(pre.into()));
        convert_bytes(&gguf.build()).unwrap()
    };
    let with = |name: &str| {
        let from = fs::read(data(&format!("tokenizers/{name}.json"))).unwrap();
        let from: serde_json::Value = serde_json::from_slice(&from).unwrap();
        let mut checkpoint = Checkpoint::tiny(TensorDtype::F32);
        for part in ["normalizer", "pre_tokenizer"] {
            checkpoint.tokenizer[part] = from[part].clone();
        }
        checkpoint.tokenizer["model"]["ignore_merges"] = from["model"]["ignore_merges"].clone();
        parts(&Blob::of(&checkpoint).build())
    };
    for (pre, name) in [("gpt-2", "gpt2"), ("smollm", "smollm"), ("qwen2", "qwen2")] {
        assert!(whole(pre) == with(name), "{pre}");
    }
    // Llama 3's also begin with their first token, as the file does not say otherwise.
    let (prefix, others): (Vec<_>, Vec<_>) =
        whole("llama-bpe").into_iter().partition(|part| part.kind == Kind::PromptPrefix.code());
    assert!(others == with("llama3"));
    assert_eq!(prefix[0].content, 0u32.to_le_bytes());
    assert!(whole("falcon3") == whole("llama-bpe") && whole("deepseek-r1-qwen") == whole("qwen2"));
    // Mistral Nemo's regex, as its `tokenizer.json` has it.
    let (capitals, smalls) = (r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]");
    let (before, others) =
        (r"[^\r\n\p{L}\p{N}]?", r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+");
    let regex = format!("{before}{capitals}*{smalls}+|{before}{capitals}+{smalls}*|{others}");
    let mut checkpoint = Checkpoint::tiny(TensorDtype::F32);
    let split =
        json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    checkpoint.tokenizer["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [split, bytes]});
    checkpoint.tokenizer["model"]["ignore_merges"] = json!(true);
    let (_, others): (Vec<_>, Vec<_>) =
        whole("tekken").into_iter().partition(|part| part.kind == Kind::PromptPrefix.code());
    assert!(others == parts(&Blob::of(&checkpoint).build()));
}
