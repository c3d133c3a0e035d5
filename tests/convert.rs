//! `smolconv` from outside: what it writes, and what it refuses.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use smol_tests::common::{
    Checkpoint, Outcome, Quantized, Running, TempDir, TensorDtype, program, run, tales,
};
use smolrun::Model;
use smolrun::format::{Dtype, Kind, Layout, PANEL, Section};
use smolrun::storage::Storage;

const DTYPES: [TensorDtype; 3] = [TensorDtype::Bf16, TensorDtype::F16, TensorDtype::F32];

/// Runs `smolconv SOURCE -o OUT` with `more`.
pub(crate) fn convert(source: &Path, out: &Path, more: &[&str]) -> Outcome {
    let mut args: Vec<OsString> = vec![source.into(), "-o".into(), out.into()];
    args.extend(more.iter().map(OsString::from));
    run("smolconv", &args)
}

fn convert_well(source: &Path, out: &Path) {
    let outcome = convert(source, out, &[]);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert_eq!(outcome.stdout, "");
}

/// A blob and its parts.
struct Blob {
    storage: Storage,
    layout: Layout,
}

impl Blob {
    fn open(path: &Path) -> Blob {
        let storage = Storage::read(path).unwrap();
        let layout = Layout::parse(storage.bytes()).unwrap();
        Blob { storage, layout }
    }

    fn bytes(&self, section: &Section) -> &[u8] {
        &self.storage.bytes()[section.range.clone()]
    }

    fn section(&self, kind: Kind, layer: Option<u32>) -> &Section {
        let layer = layer.unwrap_or(u32::MAX);
        let mut sections = self.layout.sections.iter();
        let section = sections.find(|section| section.kind == Some(kind) && section.entry.layer == layer);
        section.expect("the blob has this section")
    }

    fn floats(&self, kind: Kind, layer: Option<u32>) -> Vec<f32> {
        let section = self.section(kind, layer);
        let bytes = self.bytes(section);
        match section.dtype {
            Some(Dtype::Bf16) => bytes.chunks_exact(4 * PANEL).flat_map(two_columns).collect(),
            _ => bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect(),
        }
    }
}

/// Two columns of a panel of bf16: of each row, the number of one, then that of the other.
fn two_columns(bytes: &[u8]) -> Vec<f32> {
    let number = |at: usize| f32::from_le_bytes([0, 0, bytes[at], bytes[at + 1]]);
    (0..2).flat_map(|column| (0..PANEL).map(move |row| number(4 * row + 2 * column))).collect()
}

/// Panels of f32 the slow way: each element by its own index.
fn naive_panels(rows: &[Vec<f32>]) -> Vec<f32> {
    let columns = rows[0].len();
    let mut panels = vec![0.0; rows.len().div_ceil(PANEL) * PANEL * columns];
    for (row, values) in rows.iter().enumerate() {
        for (column, &value) in values.iter().enumerate() {
            panels[row / PANEL * PANEL * columns + column * PANEL + row % PANEL] = value;
        }
    }
    panels
}

fn rows(checkpoint: &Checkpoint, name: &str) -> Vec<Vec<f32>> {
    let tensor = &checkpoint.tensors[name];
    tensor.values.chunks_exact(tensor.shape[1]).map(<[f32]>::to_vec).collect()
}

/// Every weight of the blob is the checkpoint's.
fn assert_weights(blob: &Blob, checkpoint: &Checkpoint) {
    let panels = |name: &str| naive_panels(&rows(checkpoint, name));
    assert_eq!(blob.floats(Kind::EmbedTokens, None), panels("model.embed_tokens.weight"));
    assert_eq!(blob.floats(Kind::Norm, None), checkpoint.tensors["model.norm.weight"].values);
    if checkpoint.tensors.contains_key("lm_head.weight") {
        assert_eq!(blob.floats(Kind::LmHead, None), panels("lm_head.weight"));
    }
    for layer in 0..blob.layout.config.num_hidden_layers as u32 {
        let name = |name: &str| format!("model.layers.{layer}.{name}.weight");
        let vector = |short: &str| checkpoint.tensors[&name(short)].values.clone();
        let floats = |kind| blob.floats(kind, Some(layer));
        assert_eq!(floats(Kind::InputLayernorm), vector("input_layernorm"));
        assert_eq!(floats(Kind::PostAttentionLayernorm), vector("post_attention_layernorm"));
        assert_eq!(floats(Kind::OProj), panels(&name("self_attn.o_proj")));
        assert_eq!(floats(Kind::DownProj), panels(&name("mlp.down_proj")));
        let qkv = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
        let qkv: Vec<_> = qkv.iter().flat_map(|short| rows(checkpoint, &name(short))).collect();
        assert_eq!(floats(Kind::QkvProj), naive_panels(&qkv));
        let [gate, up] = ["mlp.gate_proj", "mlp.up_proj"].map(|short| panels(&name(short)));
        let panel = PANEL * blob.layout.config.hidden_size;
        let in_turn: Vec<f32> =
            gate.chunks(panel).zip(up.chunks(panel)).flat_map(|(gate, up)| [gate, up].concat()).collect();
        assert_eq!(floats(Kind::GateUpProj), in_turn);
    }
}

#[test]
fn every_dtype_tied_and_untied_gives_the_weights_of_a_naive_packer() {
    for dtype in DTYPES {
        for checkpoint in [Checkpoint::tiny(dtype), Checkpoint::untied(dtype)] {
            let temp = TempDir::new();
            checkpoint.write(&temp.join("model"));
            convert_well(&temp.join("model"), &temp.join("out.bin"));
            assert_weights(&Blob::open(&temp.join("out.bin")), &checkpoint);
            assert_eq!(temp.names(), ["model", "out.bin"]);
        }
    }
}

#[test]
fn a_bf16_blob_of_a_bf16_checkpoint_has_its_very_numbers() {
    for checkpoint in [Checkpoint::tiny(TensorDtype::Bf16), Checkpoint::untied(TensorDtype::Bf16)] {
        let temp = TempDir::new();
        checkpoint.write(&temp.join("model"));
        assert_eq!(convert(&temp.join("model"), &temp.join("out.bin"), &["--dtype", "bf16"]).code, 0);
        let blob = Blob::open(&temp.join("out.bin"));
        assert_weights(&blob, &checkpoint);
        let mut matrices = blob.layout.sections.iter().filter(|section| section.kind.unwrap().is_matrix());
        assert!(matrices.all(|section| section.dtype == Some(Dtype::Bf16)));
    }
}

#[test]
fn bf16_is_rounded_to_the_nearest_and_never_to_infinity() {
    let (temp, mut checkpoint) = (TempDir::new(), Checkpoint::tiny(TensorDtype::F32));
    // bf16 has 8 bits: halfway between two of them goes to the even one.
    let cases = [(1.0 + 1.0 / 256.0, 1.0), (1.0 + 3.0 / 256.0, 1.0 + 1.0 / 64.0), (-1.01, -1.0078125)];
    let values = &mut checkpoint.tensor("model.layers.0.self_attn.q_proj.weight").values;
    values.iter_mut().zip(cases).for_each(|(value, (from, _))| *value = from);
    checkpoint.write(&temp.join("model"));
    let out = temp.join("out.bin");
    assert_eq!(convert(&temp.join("model"), &out, &["--dtype", "bf16"]).code, 0);
    let stored = Blob::open(&out).floats(Kind::QkvProj, Some(0));
    for (column, (from, to)) in cases.into_iter().enumerate() {
        assert_eq!(stored[column * PANEL], to, "{from}");
    }
    checkpoint.tensor("model.layers.0.mlp.up_proj.weight").values[25] = 3.4e38;
    checkpoint.write(&temp.join("model"));
    let refused = convert(&temp.join("model"), &temp.join("other.bin"), &["--dtype", "bf16"]);
    assert_eq!(refused.code, 1);
    let expected = "mlp.up_proj.weight: element [1, 1]: expected a finite number, found inf";
    assert!(refused.stderr.contains(expected), "{refused:?}");
    assert_eq!(temp.names(), ["model", "out.bin"]);
}

/// Both matrices of `down_proj` have 21 columns.
fn with_odd_columns() -> Checkpoint {
    let mut checkpoint = Checkpoint::tiny(TensorDtype::Bf16);
    checkpoint.config["intermediate_size"] = json!(21);
    for layer in 0..2 {
        for (name, shape) in [("gate", [21, 24]), ("up", [21, 24]), ("down", [24, 21])] {
            let name = format!("model.layers.{layer}.mlp.{name}_proj.weight");
            checkpoint.add(&name, TensorDtype::Bf16, &shape);
        }
    }
    checkpoint
}

#[test]
fn bf16_needs_an_even_number_of_columns_and_auto_knows_it() {
    let (temp, checkpoint) = (TempDir::new(), with_odd_columns());
    checkpoint.write(&temp.join("model"));
    let convert_to = |dtype| convert(&temp.join("model"), &temp.join("out.bin"), &["--dtype", dtype]);
    let refused = convert_to("bf16");
    assert_eq!(refused.code, 1);
    let expected =
        "layers.0.mlp.down_proj.weight: columns: expected an even number for bf16, found 21 (f32 takes any)";
    assert!(refused.stderr.contains(expected), "{refused:?}");
    assert_eq!(convert_to("auto").code, 0);
    assert_weights(&Blob::open(&temp.join("out.bin")), &checkpoint);
}

/// A checkpoint of one layer, whose embedding and output have `shape`.
fn with_embedding([vocab_size, hidden_size]: [usize; 2]) -> Checkpoint {
    let mut checkpoint = Checkpoint::untied(TensorDtype::F32);
    checkpoint.config["vocab_size"] = json!(vocab_size);
    checkpoint.config["hidden_size"] = json!(hidden_size);
    checkpoint.config["num_hidden_layers"] = json!(1);
    checkpoint.tensors.clear();
    let mut add = |name: &str, shape: &[usize]| checkpoint.add(name, TensorDtype::F32, shape);
    for name in ["lm_head.weight", "model.embed_tokens.weight"] {
        add(name, &[vocab_size, hidden_size]);
    }
    for name in ["model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"] {
        add(&format!("{name}.weight"), &[hidden_size]);
    }
    for (name, shape) in [
        ("self_attn.q_proj", [32, hidden_size]),
        ("self_attn.k_proj", [16, hidden_size]),
        ("self_attn.v_proj", [16, hidden_size]),
        ("self_attn.o_proj", [hidden_size, 32]),
        ("mlp.gate_proj", [20, hidden_size]),
        ("mlp.up_proj", [20, hidden_size]),
        ("mlp.down_proj", [hidden_size, 20]),
    ] {
        add(&format!("model.layers.0.{name}.weight"), &shape);
    }
    checkpoint
}

#[test]
fn matrices_larger_than_one_piece_are_packed_whole() {
    let (temp, checkpoint) = (TempDir::new(), with_embedding([50_021, 48]));
    checkpoint.write(&temp.join("model"));
    convert_well(&temp.join("model"), &temp.join("out.bin"));
    assert_weights(&Blob::open(&temp.join("out.bin")), &checkpoint);
}

/// The quantized matrix of a section beside its tensors' rows, a panel's at a time.
fn assert_near(blob: &Blob, kind: Kind, layer: Option<u32>, tensors: &[Vec<Vec<f32>>]) -> f64 {
    let section = blob.section(kind, layer);
    let columns = tensors[0][0].len();
    let quantized = Quantized::new(section.entry.dtype, columns, blob.bytes(section));
    let mut panels: Vec<&[Vec<f32>]> = tensors.iter().flat_map(|rows| rows.chunks(16)).collect();
    if kind == Kind::GateUpProj {
        let (gate, up) = panels.split_at(panels.len() / 2);
        panels = gate.iter().zip(up).flat_map(|(gate, up)| [*gate, *up]).collect();
    }
    assert_eq!(quantized.panels(), panels.len());
    let (mut differences, mut squares) = (0.0, 0.0);
    for (panel, rows) in panels.into_iter().enumerate() {
        for (row, numbers) in rows.iter().enumerate() {
            for (column, &number) in numbers.iter().enumerate() {
                let element = quantized.element(panel, row, column);
                differences += (f64::from(number) - f64::from(element)).powi(2);
                squares += f64::from(number).powi(2);
            }
        }
        (rows.len()..16).for_each(|row| assert_eq!(quantized.row_scale(panel, row), 0.0));
    }
    (differences / squares).sqrt()
}

/// Every matrix is of the dtype that `dtype` tells by its name, as near as that dtype's steps are, and says how near.
fn assert_quantized(path: &Path, checkpoint: &Checkpoint, dtype: impl Fn(&str) -> &'static str) {
    let inspected = inspect(path);
    let blob = Blob::open(path);
    for section in inspected["sections"].as_array().unwrap() {
        let &kind = Kind::ALL.iter().find(|kind| section["kind"] == kind.name()).unwrap();
        let layer = section["layer"].as_u64().map(|layer| layer as u32);
        if !kind.is_matrix() {
            assert_eq!(section["relative_error"], Value::Null, "{section}");
            continue;
        }
        let name = layer.map_or(kind.name().into(), |layer| format!("{}.{layer}", kind.name()));
        assert_eq!(section["dtype"], dtype(&name), "{name}");
        let tensors = |names: &[&str]| -> Vec<_> {
            let layer = layer.filter(|_| kind.is_per_layer());
            let layer = layer.map_or_else(String::new, |layer| format!("layers.{layer}."));
            names.iter().map(|name| rows(checkpoint, &format!("model.{layer}{name}.weight"))).collect()
        };
        let tensors = match kind {
            Kind::EmbedTokens | Kind::EmbedTokensRare => tensors(&["embed_tokens"]),
            Kind::QkvProj => tensors(&["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
            Kind::OProj => tensors(&["self_attn.o_proj"]),
            Kind::GateUpProj => tensors(&["mlp.gate_proj", "mlp.up_proj"]),
            Kind::DownProj => tensors(&["mlp.down_proj"]),
            _ => vec![rows(checkpoint, "lm_head.weight")],
        };
        let tensors = of_section(inspected["sections"].as_array().unwrap(), section, tensors);
        let most = match dtype(&name) {
            "q8" => 0.01,
            "q6" => 0.03,
            "q5" => 0.06,
            "q4" => 0.12,
            "q3" => 0.22,
            _ => {
                assert_eq!(section["relative_error"], Value::Null, "{section}");
                continue;
            }
        };
        let error = assert_near(&blob, kind, layer, &tensors);
        assert!(error < most, "{name}: {error}");
        let said = section["relative_error"].as_f64().unwrap();
        assert!((said / error - 1.0).abs() < 1e-3, "{name}: {said}, not {error}");
    }
}

/// Of a matrix with a row for each token, the rows that are in `section`; each part is the next of them.
fn of_section(sections: &[Value], section: &Value, mut tensors: Vec<Vec<Vec<f32>>>) -> Vec<Vec<Vec<f32>>> {
    let matrix = |section: &Value| section["kind"].as_str().unwrap().trim_end_matches("_rare").to_owned();
    if matrix(section) == "embed_tokens" || matrix(section) == "lm_head" {
        let before = sections.iter().take_while(|other| other["index"] != section["index"]);
        let rows = |section: &Value| section["shape"][0].as_u64().unwrap() as usize;
        let first: usize = before.filter(|other| matrix(other) == matrix(section)).map(rows).sum();
        tensors[0] = tensors[0][first..first + rows(section)].to_vec();
    }
    tensors
}

/// What `smolconv inspect --json` says.
pub(crate) fn inspect(path: &Path) -> Value {
    let outcome = run("smolconv", &["inspect".into(), path.to_owned().into_os_string(), "--json".into()]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    serde_json::from_str(&outcome.stdout).unwrap()
}

/// Of a model of two layers.
fn mix_of_q4(name: &str) -> &'static str {
    match name {
        "embed_tokens" | "lm_head" => "q6",
        name if name.starts_with("gate_up_proj.") || name.starts_with("down_proj.") => "q5",
        _ => "q4",
    }
}

#[test]
fn quantized_blobs_have_the_weights_about() {
    for checkpoint in [Checkpoint::tiny(TensorDtype::Bf16), Checkpoint::untied(TensorDtype::F32)] {
        let temp = TempDir::new();
        checkpoint.write(&temp.join("model"));
        for dtype in ["q8", "q4"] {
            let mix = |name: &str| if dtype == "q8" { "q8" } else { mix_of_q4(name) };
            let out = temp.join(dtype);
            let args = ["--dtype", dtype, "--calibrate", "none"];
            assert_eq!(convert(&temp.join("model"), &out, &args).code, 0);
            assert_quantized(&out, &checkpoint, mix);
            assert_eq!(run("smolconv", &["verify".into(), out.clone().into_os_string()]).code, 0);
            let inspected = inspect(&out);
            let quantisation = &inspected["metadata"]["quantisation"];
            assert_eq!((&quantisation["dtype"], &quantisation["keep"]), (&json!(dtype), &Value::Null));
            let sections = inspected["sections"].as_array().unwrap();
            let matrices = sections.iter().filter(|section| !section["relative_error"].is_null());
            assert_eq!(quantisation["sections"].as_array().unwrap().len(), matrices.count());
        }
    }
}

#[test]
fn quantized_matrices_larger_than_one_piece_are_whole() {
    let (temp, checkpoint) = (TempDir::new(), with_embedding([250_011, 16]));
    checkpoint.write(&temp.join("model"));
    let keep = ["--dtype", "q8", "--keep", "lm_head=q4", "--quiet"];
    assert_eq!(convert(&temp.join("model"), &temp.join("out.bin"), &keep).code, 0);
    assert_quantized(&temp.join("out.bin"), &checkpoint, |name| if name == "lm_head" { "q4" } else { "q8" });
}

#[test]
fn quantized_bytes_do_not_depend_on_the_threads() {
    let more = ["--dtype", "q4", "--calibrate", "none", "--keep", "down_proj=q8", "--keep", "o_proj=bf16"];
    assert_same_on_any_threads(&tales(), &more);
}

/// Converts `source` with 1, 2 and 5 threads.
pub(crate) fn assert_same_on_any_threads(source: &Path, more: &[&str]) {
    let temp = TempDir::new();
    let blobs = ["1", "2", "5"].map(|threads| {
        let out = temp.join(threads);
        let mut command = Command::new(program("smolconv"));
        command.env("RAYON_NUM_THREADS", threads).arg(source).arg("-o").arg(&out).arg("-q").args(more);
        assert!(Running::start(&mut command).wait().success());
        fs::read(out).unwrap()
    });
    assert!(blobs[0] == blobs[1] && blobs[0] == blobs[2]);
}

#[test]
fn keep_decides_matrix_by_matrix() {
    let (temp, checkpoint) = (TempDir::new(), Checkpoint::untied(TensorDtype::Bf16));
    checkpoint.write(&temp.join("model"));
    let out = temp.join("out.bin");
    let keep = ["*_proj.1=q8", "o_proj=bf16", "qkv_proj.1=q6", "lm_*=f32"];
    let more: Vec<&str> = keep
        .iter()
        .flat_map(|keep| ["--keep", keep])
        .chain(["--dtype", "q4", "--calibrate", "none"])
        .collect();
    assert_eq!(convert(&temp.join("model"), &out, &more).code, 0);
    assert_quantized(&out, &checkpoint, |name| match name {
        "lm_head" => "f32",
        "o_proj.0" | "o_proj.1" => "bf16",
        "qkv_proj.1" => "q6",
        "gate_up_proj.1" | "down_proj.1" => "q8",
        other => mix_of_q4(other),
    });
    let inspected = inspect(&out);
    assert_eq!(inspected["metadata"]["quantisation"]["keep"], json!(keep));

    let text = run("smolconv", &["inspect".into(), out.clone().into_os_string()]).stdout;
    let quantisation = r#"dtype q4, keep ["*_proj.1=q8","o_proj=bf16","qkv_proj.1=q6","lm_*=f32"]"#;
    assert!(text.lines().any(|line| line.ends_with(quantisation)), "{text}");
    for section in inspected["sections"].as_array().unwrap() {
        let index = section["index"].to_string();
        let is_of_section = |line: &&str| line.split_whitespace().next() == Some(&index);
        let line = text.lines().rfind(is_of_section).unwrap();
        if let Some(error) = section["relative_error"].as_f64() {
            assert!(line.split_whitespace().any(|word| word == error.to_string()), "{line}");
        }
    }
}

#[test]
fn numbers_are_kept_without_a_word_about_quantisation() {
    let (temp, checkpoint) = (TempDir::new(), Checkpoint::tiny(TensorDtype::Bf16));
    checkpoint.write(&temp.join("model"));
    let out = temp.join("out.bin");
    let keep =
        ["--dtype", "q4", "--keep", "*=f32", "--keep", "embed_tokens=bf16", "--keep", "down_proj.1=auto"];
    assert_eq!(convert(&temp.join("model"), &out, &keep).code, 2); // there is no dtype auto
    assert_eq!(convert(&temp.join("model"), &out, &keep[..6]).code, 0);
    assert_weights(&Blob::open(&out), &checkpoint);
    assert_eq!(inspect(&out)["metadata"]["quantisation"], Value::Null);
}

#[test]
fn keeps_that_cannot_be_are_refused() {
    let (temp, checkpoint) = (TempDir::new(), with_odd_columns());
    checkpoint.write(&temp.join("model"));
    let none = "pattern: expected one of a matrix's name, such as embed_tokens, qkv_proj or down_proj.0, found none that it matches";
    let odd =
        "tensor model.layers.1.mlp.down_proj.weight: columns: expected an even number for bf16, found 21";
    let cases = [
        (1, "norm=q8", format!("--keep norm=q8: {none}")),
        (1, "input_layernorm.*=q8", format!("--keep input_layernorm.*=q8: {none}")),
        (1, "lm_head=q8", format!("--keep lm_head=q8: {none}")),
        (1, "down_proj.2=q8", format!("--keep down_proj.2=q8: {none}")),
        (1, "down_proj.1=bf16", odd.into()),
        (2, "down_proj", "expected PATTERN=DTYPE, found no =".into()),
        (2, "down_proj=q2", "dtype: expected f32, bf16, q8, q6, q5, q4, q3, found \"q2\"".into()),
    ];
    for (code, keep, expected) in cases {
        let refused = convert(&temp.join("model"), &temp.join("out.bin"), &["--dtype", "q8", "--keep", keep]);
        assert_eq!((refused.code, refused.stdout.as_str()), (code, ""), "{keep}");
        assert!(refused.stderr.contains(&expected), "{expected} in {refused:?}");
    }
    assert_eq!(temp.names(), ["model"]);
    let args = ["--dtype", "q4", "--calibrate", "none"];
    assert_eq!(convert(&temp.join("model"), &temp.join("out.bin"), &args).code, 0);
    assert_quantized(&temp.join("out.bin"), &checkpoint, mix_of_q4);
}

#[test]
fn the_largest_numbers_stay_finite_when_quantized() {
    let (temp, mut checkpoint) = (TempDir::new(), Checkpoint::tiny(TensorDtype::F32));
    let up_proj = &mut checkpoint.tensor("model.layers.0.mlp.up_proj.weight").values;
    up_proj[..3].copy_from_slice(&[f32::MAX, f32::MIN, f32::from_bits(1)]);
    checkpoint.write(&temp.join("model"));
    for dtype in ["q8", "q4"] {
        let args = ["--dtype", dtype, "--calibrate", "none"];
        assert_eq!(convert(&temp.join("model"), &temp.join(dtype), &args).code, 0);
        let blob = Blob::open(&temp.join(dtype));
        let section = blob.section(Kind::GateUpProj, Some(0));
        let matrix = Quantized::new(section.entry.dtype, 24, blob.bytes(section));
        let expected = [f32::MAX, f32::MIN, 0.0]; // in q5, the largest value is 15/16 of the smallest
        for (column, expected) in expected.into_iter().enumerate() {
            let element = matrix.element(1, 0, column); // the second panel is the first of up
            assert!(element.is_finite() && (element - expected).abs() < 0.07 * f32::MAX, "{element}");
        }
    }
}

#[test]
fn the_same_input_gives_the_same_bytes_and_force_replaces_them() {
    let temp = TempDir::new();
    let (first, second) = (temp.join("first.bin"), temp.join("second.bin"));
    convert_well(&tales(), &first);
    convert_well(&tales().join("model.safetensors"), &second);
    assert!(fs::read(&first).unwrap() == fs::read(&second).unwrap());

    let refused = convert(&tales(), &first, &[]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("first.bin: exists already; --force replaces it"), "{refused:?}");
    fs::write(&first, "something else").unwrap();
    assert_eq!(convert(&tales(), &first, &[]).code, 1);
    assert_eq!(fs::read(&first).unwrap(), b"something else");
    let forced = convert(&tales(), &first, &["--force", "--quiet"]);
    assert_eq!((forced.code, forced.stderr.as_str()), (0, ""));
    assert!(fs::read(&first).unwrap() == fs::read(&second).unwrap());
    assert_eq!(temp.names(), ["first.bin", "second.bin"]);
}

#[test]
fn the_config_of_tales_arrives_as_it_is() {
    let temp = TempDir::new();
    convert_well(&tales(), &temp.join("out.bin"));
    let blob = Blob::open(&temp.join("out.bin"));
    let config = &blob.layout.config;
    assert_eq!((config.vocab_size, config.hidden_size, config.intermediate_size), (4096, 192, 512));
    assert_eq!((config.num_attention_heads, config.num_key_value_heads, config.head_dim), (6, 2, 32));
    assert_eq!((config.num_hidden_layers, config.max_position_embeddings), (8, 1024));
    assert_eq!((config.rms_norm_eps, config.attention_scale), (1e-5, 0.176_776_69));
    assert_eq!((config.bos_token_id, config.pad_token_id), (Some(0), Some(0)));
    assert_eq!(config.eos_token_ids, [0]);
    assert!(config.tie_word_embeddings);
}

/// By the formula and the roundings that transformers has in its source; the values were not taken from a run of it.
#[test]
fn rotary_frequencies_follow_the_formula_of_transformers() {
    let temp = TempDir::new();
    convert_well(&tales(), &temp.join("out.bin"));
    let found = Blob::open(&temp.join("out.bin")).floats(Kind::RopeInvFreq, None);
    let expected: Vec<f32> =
        (0..16).map(|i| (1.0 / f64::from(10_000f64.powf(f64::from(i) / 16.0) as f32)) as f32).collect();
    assert_eq!(found, expected);
    assert_eq!(found[4], 0.1);
    assert_eq!(found[8], 0.01);
}

#[test]
fn shards_give_the_sections_of_a_single_file() {
    let (temp, checkpoint) = (TempDir::new(), Checkpoint::untied(TensorDtype::Bf16));
    checkpoint.write(&temp.join("single"));
    checkpoint.write_sharded(&temp.join("sharded"), 3);
    convert_well(&temp.join("single"), &temp.join("single.bin"));
    convert_well(&temp.join("sharded"), &temp.join("directory.bin"));
    convert_well(&temp.join("sharded/model.safetensors.index.json"), &temp.join("index.bin"));
    assert!(fs::read(temp.join("directory.bin")).unwrap() == fs::read(temp.join("index.bin")).unwrap());
    let [single, sharded] = ["single.bin", "index.bin"].map(|name| Blob::open(&temp.join(name)));
    assert_eq!(single.layout.sections.len(), sharded.layout.sections.len());
    for (a, b) in single.layout.sections.iter().zip(&sharded.layout.sections) {
        // The metadata names the files, which differ.
        assert!(a.kind == Some(Kind::Metadata) || single.bytes(a) == sharded.bytes(b), "{:?}", a.kind);
    }
}

#[test]
fn config_and_tokenizer_can_lie_elsewhere() {
    let (temp, checkpoint) = (TempDir::new(), Checkpoint::tiny(TensorDtype::F16));
    checkpoint.write(&temp.join("model"));
    convert_well(&temp.join("model"), &temp.join("a.bin"));
    for name in ["config.json", "tokenizer.json"] {
        fs::create_dir_all(temp.join("elsewhere")).unwrap();
        fs::rename(temp.join("model").join(name), temp.join("elsewhere").join(name)).unwrap();
    }
    let [config, tokenizer] =
        ["config.json", "tokenizer.json"].map(|name| temp.join("elsewhere").join(name).display().to_string());
    let more = ["--config", &config, "--tokenizer", &tokenizer, "--dtype", "f32"];
    let outcome = convert(&temp.join("model"), &temp.join("b.bin"), &more);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(fs::read(temp.join("a.bin")).unwrap() == fs::read(temp.join("b.bin")).unwrap());
}

#[test]
fn defaults_and_variants_of_the_config_are_resolved() {
    let (temp, mut checkpoint) = (TempDir::new(), Checkpoint::untied(TensorDtype::F32));
    let config = checkpoint.config.as_object_mut().unwrap();
    for field in ["rms_norm_eps", "rope_theta", "tie_word_embeddings", "hidden_act"] {
        config.remove(field);
    }
    config.insert("rope_parameters".into(), json!({ "rope_theta": 500_000.0, "rope_type": "default" }));
    config.insert("rope_scaling".into(), Value::Null);
    config.insert("rope_interleaved".into(), json!(false));
    config.insert("pretraining_tp".into(), json!(1));
    config.insert("layer_types".into(), json!(["full_attention", "full_attention"]));
    config.insert("bos_token_id".into(), Value::Null);
    config.insert("pad_token_id".into(), json!(-1));
    config.insert("eos_token_id".into(), json!([3, 5]));
    checkpoint.files.insert("generation_config.json".into(), br#"{"eos_token_id": [7, 5]}"#.to_vec());
    // A buffer that old checkpoints carry, of a dtype that no weight may have.
    checkpoint.add("model.layers.0.self_attn.rotary_emb.inv_freq", TensorDtype::I32, &[8]);
    checkpoint.write(&temp.join("model"));
    convert_well(&temp.join("model"), &temp.join("out.bin"));
    let blob = Blob::open(&temp.join("out.bin"));
    let config = &blob.layout.config;
    assert_eq!(config.rms_norm_eps, 1e-6);
    assert_eq!((config.bos_token_id, config.pad_token_id), (None, None));
    assert_eq!(config.eos_token_ids, [7, 5, 3]);
    assert_eq!(blob.floats(Kind::RopeInvFreq, None)[4], 1.0 / 500_000f32.sqrt());
}

#[test]
fn heads_are_derived_where_the_config_does_not_give_them() {
    let (temp, mut checkpoint) = (TempDir::new(), Checkpoint::tiny(TensorDtype::F32));
    checkpoint.config["hidden_size"] = json!(32);
    for field in ["head_dim", "num_key_value_heads"] {
        checkpoint.config.as_object_mut().unwrap().remove(field);
    }
    let names: Vec<String> = checkpoint.tensors.keys().cloned().collect();
    for name in names {
        let tensor = &checkpoint.tensors[&name];
        let mut shape: Vec<usize> = tensor.shape.iter().map(|&n| if n == 24 { 32 } else { n }).collect();
        if name.contains("k_proj") || name.contains("v_proj") {
            shape[0] = 32;
        }
        checkpoint.add(&name, TensorDtype::F32, &shape);
    }
    checkpoint.write(&temp.join("model"));
    convert_well(&temp.join("model"), &temp.join("out.bin"));
    let blob = Blob::open(&temp.join("out.bin"));
    assert_eq!((blob.layout.config.head_dim, blob.layout.config.num_key_value_heads), (16, 2));
    assert_weights(&blob, &checkpoint);
}

#[test]
fn chat_templates_come_from_wherever_the_checkpoint_keeps_them() {
    let config = |template: Value| json!({ "chat_template": template }).to_string().into_bytes();
    let listed = json!([{ "name": "tools", "template": "tools" }, { "name": "default", "template": "listed {{ messages[0].content }}" }]);
    /// What it is about, the files of the checkpoint, and the template that they give.
    type Case<'a> = (&'a str, &'a [(&'a str, Vec<u8>)], Option<&'a str>);
    let cases: [Case; 7] = [
        ("none", &[], None),
        ("null", &[("tokenizer_config.json", config(Value::Null))], None),
        ("empty", &[("tokenizer_config.json", config(json!("")))], None),
        ("string", &[("tokenizer_config.json", config(json!("string ä")))], Some("string ä")),
        ("list", &[("tokenizer_config.json", config(listed))], Some("listed {{ messages[0].content }}")),
        ("no default", &[("tokenizer_config.json", config(json!([{ "name": "a", "template": "b" }])))], None),
        (
            "both",
            &[("tokenizer_config.json", config(json!("config"))), ("chat_template.jinja", b"jinja".to_vec())],
            Some("jinja"),
        ),
    ];
    for (name, files, expected) in cases {
        let (temp, mut checkpoint) = (TempDir::new(), Checkpoint::tiny(TensorDtype::Bf16));
        checkpoint.files.extend(files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.clone())));
        checkpoint.write(&temp.join("model"));
        convert_well(&temp.join("model"), &temp.join("out.bin"));
        let blob = Blob::open(&temp.join("out.bin"));
        let found = blob.layout.chat_template.clone().map(|range| &blob.storage.bytes()[range]);
        assert_eq!(found.map(|bytes| std::str::from_utf8(bytes).unwrap()), expected, "{name}");
    }
}

#[test]
fn inspect_shows_every_part_as_json_and_as_text() {
    let (temp, mut checkpoint) = (TempDir::new(), Checkpoint::tiny(TensorDtype::Bf16));
    checkpoint.files.insert("chat_template.jinja".into(), b"hello".to_vec());
    checkpoint.write(&temp.join("model"));
    convert_well(&temp.join("model"), &temp.join("out.bin"));
    let path = temp.join("out.bin").display().to_string();

    let outcome = run("smolconv", &["inspect", &path, "--json"]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    let found: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(found["header"]["version"], "1.3");
    assert_eq!(found["header"]["file_len"], fs::metadata(&path).unwrap().len());
    assert_eq!(found["config"]["rms_norm_eps"], 1e-5);
    assert_eq!(found["config"]["eos_token_ids"], json!([0]));
    assert_eq!(found["config"]["pad_token_id"], Value::Null);
    assert_eq!(found["chat_template"], "hello");
    assert_eq!(found["metadata"]["model_type"], "llama");
    assert_eq!(found["metadata"]["source_dtypes"], json!({ "BF16": 20 }));
    let parameters: usize = checkpoint.tensors.values().map(|tensor| tensor.values.len()).sum();
    assert_eq!(found["metadata"]["parameters"], parameters);
    let sources = found["metadata"]["sources"].as_array().unwrap();
    let names: Vec<_> = sources.iter().map(|source| source["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]);
    // SHA-256 of "hello", from any other implementation.
    let hello = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    assert_eq!((&sources[0]["sha256"], &sources[0]["bytes"]), (&json!(hello), &json!(5)));
    let sections = found["sections"].as_array().unwrap();
    assert_eq!(found["header"]["section_count"], sections.len());
    let template = sections.iter().find(|section| section["kind"] == "chat_template").unwrap();
    assert_eq!((&template["sha256"], &template["dtype"]), (&json!(hello), &json!("u8")));
    assert_eq!(template["required"], false);
    let qkv = sections.iter().find(|section| section["kind"] == "qkv_proj" && section["layer"] == 1).unwrap();
    assert_eq!((&qkv["shape"], &qkv["length"]), (&json!([64, 24]), &json!(64 * 24 * 4)));
    assert_eq!(qkv["offset"].as_u64().unwrap() % 4096, 0);

    let text = run("smolconv", &["inspect", &path]);
    assert_eq!((text.code, text.stderr.as_str()), (0, ""));
    for part in
        ["hidden_size             24", "smolconv 0.1.0", "name model.safetensors", "[64, 24]", "5 bytes"]
    {
        assert!(text.stdout.contains(part), "{part} in {}", text.stdout);
    }
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    let temp = TempDir::new();
    convert_well(&tales(), &temp.join("out.bin"));
    let mut command = Command::new(program("smolconv"));
    command.args(["inspect", "--json"]).arg(temp.join("out.bin"));
    let mut child = Running::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!((child.wait().code(), stderr.as_str()), (Some(0), ""));
}

#[test]
fn verify_finds_a_flipped_bit_in_every_section_and_every_gap() {
    let (temp, mut checkpoint) = (TempDir::new(), Checkpoint::untied(TensorDtype::F32));
    checkpoint.files.insert("chat_template.jinja".into(), b"hello".to_vec());
    checkpoint.write(&temp.join("model"));
    let path = temp.join("out.bin");
    convert_well(&temp.join("model"), &path);
    let verify = || run("smolconv", &["verify".into(), path.clone().into_os_string()]);
    let good = verify();
    assert_eq!((good.code, good.stdout.as_str()), (0, ""), "{good:?}");

    let (bytes, blob) = (fs::read(&path).unwrap(), Blob::open(&path));
    let expect = |offset: usize, expected: &str| {
        let mut changed = bytes.clone();
        changed[offset] ^= 0x10;
        fs::write(&path, changed).unwrap();
        let outcome = verify();
        assert_eq!(outcome.code, 1, "offset {offset}");
        assert!(outcome.stderr.starts_with("smolconv: error: "), "{outcome:?}");
        assert!(outcome.stderr.contains(expected), "offset {offset}: expected {expected}, found {outcome:?}");
        assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    };
    expect(0, "not a blob");
    expect(9, "format version");
    expect(40, "header: reserved bytes");
    expect(100, "header and directory do not match their SHA-256");
    expect(128, "header and directory do not match their SHA-256");
    let mut end = 128 + blob.layout.sections.len() * 96;
    for section in &blob.layout.sections {
        if section.range.start > end {
            expect(end, &format!("the byte at offset {end}, between sections, is not zero"));
        }
        end = section.range.end;
        // Fields of these two are read on opening, which may refuse them in words of its own.
        if let (false, Some(Kind::Config | Kind::Pretokenizer)) = (section.range.is_empty(), section.kind) {
            expect(end - 1, section.kind.map_or("", Kind::name));
        } else if !section.range.is_empty() {
            expect(section.range.start, "content does not match its SHA-256");
            expect(end - 1, &format!("{}: content does not match", section.place()));
        }
    }
}

/// Makes every hash of a blob right again: a blob made wrong on purpose, not by damage.
fn sign(bytes: &mut [u8], sections: &[Section]) {
    for (section, entry) in sections.iter().zip((128..).step_by(96)) {
        let hash = Sha256::digest(&bytes[section.range.clone()]);
        bytes[entry + 64..entry + 96].copy_from_slice(&hash);
    }
    let directory_end = 128 + 96 * sections.len();
    bytes[96..128].fill(0);
    let hash = Sha256::digest(&bytes[..directory_end]);
    bytes[96..128].copy_from_slice(&hash);
}

#[test]
fn verify_looks_behind_the_checksums() {
    let (temp, mut checkpoint) = (TempDir::new(), Checkpoint::tiny(TensorDtype::F32));
    checkpoint.files.insert("chat_template.jinja".into(), b"hello".to_vec());
    checkpoint.write(&temp.join("model"));
    let path = temp.join("out.bin");
    convert_well(&temp.join("model"), &path);
    let (bytes, blob) = (fs::read(&path).unwrap(), Blob::open(&path));
    let verify = || run("smolconv", &["verify".into(), path.clone().into_os_string(), "-q".into()]);
    let merges = blob.storage.bytes()[blob.layout.tokenizer.merges.clone()].chunks_exact(16);
    let filled = merges.take_while(|slot| slot[..4] == [0xff; 4]).count();
    #[rustfmt::skip] // one line per case
    let cases = [
        (Kind::ChatTemplate, 1, "chat_template: expected UTF-8, found another byte at 1"),
        (Kind::Metadata, 0, "metadata: expected UTF-8, found another byte at 0"),
        (Kind::RopeInvFreq, 28, "rope_inv_freq: element 7: expected a finite number"),
        (Kind::Norm, 92, "norm: element 23: expected a finite number"),
        (Kind::InputLayernorm, 0, "input_layernorm: element 0: expected a finite number"),
        (Kind::PostAttentionLayernorm, 4, "post_attention_layernorm: element 1: expected a finite number"),
        (Kind::TokenOffsets, 4 * 37, "token_offsets: "),
        (Kind::Merges, 16 * filled + 12, "merges: expected token ids below vocab_size, 37, found 4294967295"),
        (Kind::Pretokenizer, 64, "pretokenizer: stage 0: "),
    ];
    for (kind, offset, expected) in cases {
        let mut changed = bytes.clone();
        let mut sections = blob.layout.sections.iter();
        let start = sections.find(|section| section.kind == Some(kind)).unwrap().range.start;
        changed[start + offset..][..4].fill(0xff);
        sign(&mut changed, &blob.layout.sections);
        fs::write(&path, changed).unwrap();
        let outcome = verify();
        assert_eq!(outcome.code, 1, "{expected}");
        assert!(outcome.stderr.contains(expected), "expected {expected}, found {outcome:?}");
    }
    let mut unchanged = bytes.clone();
    sign(&mut unchanged, &blob.layout.sections);
    assert!(unchanged == bytes);
}

#[test]
fn verify_reports_the_first_damage_and_all_progress_whatever_the_threads() {
    let temp = TempDir::new();
    convert_well(&tales(), &temp.join("out.bin"));
    let mut bytes = fs::read(temp.join("out.bin")).unwrap();
    let layout = Blob::open(&temp.join("out.bin")).layout;
    let content: u64 = layout.sections.iter().map(|section| section.entry.length).sum();
    let verify = |bytes: &[u8], threads| {
        let (model, done) = (Model::from_bytes(bytes).unwrap(), AtomicU64::new(0));
        let progress = |bytes| {
            done.fetch_add(bytes, Ordering::Relaxed);
        };
        let result = model.verify_with(threads, &progress);
        assert_eq!(done.into_inner(), content);
        result.map_err(|error| error.to_string())
    };
    let threads = [None, Some(0), Some(1), Some(2), Some(1000)];
    for threads in threads {
        assert_eq!(verify(&bytes, threads), Ok(()));
    }
    for section in [&layout.sections[30], &layout.sections[40], layout.sections.last().unwrap()] {
        bytes[section.range.start] ^= 1;
    }
    for threads in threads {
        let error = verify(&bytes, threads).unwrap_err();
        assert!(error.starts_with("section 30 ("), "{error}");
    }
}

/// Whether the temporary file has no name, or one: see `smolconv::write::temp_file`.
#[cfg(unix)]
#[derive(Clone, Copy, Debug)]
enum Temporary {
    Unnamed,
    Named,
}

#[cfg(unix)]
impl Temporary {
    const BOTH: [Temporary; 2] = [Temporary::Unnamed, Temporary::Named];

    fn command(self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        if let Temporary::Named = self {
            command.env("SMOLCONV_NAMED_TEMP", "1");
        }
        command
    }
}

#[cfg(unix)]
#[test]
fn a_disk_that_is_full_leaves_neither_output_nor_litter() {
    let (temp, checkpoint) = (TempDir::new(), Checkpoint::tiny(TensorDtype::F32));
    checkpoint.write(&temp.join("model"));
    // A limit on the size of files gives the same error in the same place.
    let script = "ulimit -f 20; exec \"$0\" \"$1\" -o \"$2\"";
    for temporary in Temporary::BOTH {
        let mut shell = temporary.command("sh");
        shell.args(["-c", script]).args([program("smolconv"), temp.join("model"), temp.join("out.bin")]);
        let output = Running::start(shell.stdout(Stdio::piped()).stderr(Stdio::piped())).wait_with_output();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("out.bin: File too large"), "{stderr}");
        assert_eq!(temp.names(), ["model"]);
    }
}

#[test]
fn verify_and_inspect_refuse_what_is_no_blob() {
    let temp = TempDir::new();
    let path = temp.join("no.bin");
    let expect = |expected: &str| {
        for command in ["verify", "inspect"] {
            let outcome = run("smolconv", &[command.into(), path.clone().into_os_string()]);
            assert_eq!((outcome.code, outcome.stdout.as_str()), (1, ""));
            assert!(outcome.stderr.contains(expected), "{outcome:?}");
        }
    };
    expect("No such file");
    fs::write(&path, "").unwrap();
    expect("not a blob: expected at least the 128 bytes");
    fs::write(&path, [b'x'; 4096]).unwrap();
    expect("not a blob: the first bytes are \"xxxxxxxx\"");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    expect("expected a regular file, found a directory");
}

#[test]
fn an_output_that_would_harm_something_is_refused() {
    let (temp, checkpoint) = (TempDir::new(), Checkpoint::tiny(TensorDtype::Bf16));
    let model = temp.join("model");
    checkpoint.write(&model);
    for name in ["model.safetensors", "config.json", "tokenizer.json"] {
        let before = fs::read(model.join(name)).unwrap();
        let outcome = convert(&model, &model.join("../model").join(name), &["--force"]);
        assert_eq!(outcome.code, 1);
        assert!(outcome.stderr.contains("expected another file than those of the checkpoint"), "{outcome:?}");
        assert_eq!(fs::read(model.join(name)).unwrap(), before);
    }
    for (out, expected) in [
        (model.clone(), "expected a regular file, found a directory"),
        (temp.join("missing/out.bin"), "No such file"),
        (temp.join(".."), "expected a regular file, found a directory"),
    ] {
        let outcome = convert(&model, &out, &["--force"]);
        assert_eq!(outcome.code, 1);
        assert!(outcome.stderr.contains(expected), "{outcome:?}");
    }
    assert_eq!(temp.names(), ["model"]);
}

#[test]
fn usage_errors_exit_with_2_and_help_with_0() {
    let cases: [&[&str]; 6] = [
        &[],
        &["model", "-o", "-"],
        &["-o", "x"],
        &["model", "-o", "x", "--dtype", "q2"],
        &["verify"],
        &["--nonsense"],
    ];
    for args in cases {
        let outcome = run("smolconv", args);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (2, ""), "{args:?}");
    }
    let help = run("smolconv", &["--help"]);
    assert_eq!(help.code, 0);
    assert!(help.stdout.contains("smolconv models/tales-4m -o tales.bin"));
    assert!(help.stdout.contains("[possible values: f32, bf16, q8, q4, q3, auto]"));
    assert!(help.stdout.contains("--keep <PATTERN=DTYPE>"));
}

/// The conversion of a model that takes a while, from `model` to `out.bin`.
#[cfg(unix)]
struct Conversion<'a> {
    temp: &'a TempDir,
    child: Running,
}

#[cfg(unix)]
impl Conversion<'_> {
    /// Starts it, and returns once it is writing. (Whoever runs the test may have signals ignored.)
    fn start(temp: &TempDir, temporary: Temporary) -> Conversion<'_> {
        Self::start_with("--default-signal=INT,HUP", temp, temporary)
    }

    /// The same with an option of `env` for `signals`.
    fn start_with<'a>(signals: &str, temp: &'a TempDir, temporary: Temporary) -> Conversion<'a> {
        if !temp.join("model").exists() {
            let mut checkpoint = Checkpoint::tiny(TensorDtype::F32);
            checkpoint.config["vocab_size"] = json!(1_000_000);
            checkpoint.add("model.embed_tokens.weight", TensorDtype::F32, &[1_000_000, 24]);
            checkpoint.write(&temp.join("model"));
        }
        let mut command = temporary.command("env");
        command.arg(signals).arg(program("smolconv"));
        command.arg(temp.join("model")).args(["-q", "-o"]).arg(temp.join("out.bin"));
        let others = temp.names();
        let running = Conversion { temp, child: Running::start(&mut command) };
        let start = Instant::now();
        while !running.writes(temporary, &others) {
            assert!(start.elapsed() < Duration::from_secs(60), "a temporary file grows");
            std::thread::sleep(Duration::from_millis(1));
        }
        running
    }

    /// Whether there is a temporary file that is not one of `others`, with something in it.
    fn writes(&self, temporary: Temporary, others: &[String]) -> bool {
        let descriptors = format!("/proc/{}/fd", self.child.id());
        let is_in_use = |path: &Path| match temporary {
            Temporary::Named => {
                let name = path.file_name().unwrap().to_string_lossy();
                name.ends_with(".part") && !others.contains(&name.into_owned())
            }
            Temporary::Unnamed => fs::read_link(path).is_ok_and(|path| {
                path.starts_with(self.temp.path()) && path.to_string_lossy().ends_with("(deleted)")
            }),
        };
        let directory = match temporary {
            Temporary::Named => self.temp.path(),
            Temporary::Unnamed => Path::new(&descriptors),
        };
        let mut paths = fs::read_dir(directory).unwrap().flatten().map(|entry| entry.path());
        paths.any(|path| is_in_use(&path) && fs::metadata(&path).is_ok_and(|found| found.len() > 1 << 20))
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    fn code(self) -> Option<i32> {
        self.child.wait().code()
    }
}

/// What a run of this system may be made with: only Linux has files without a name.
#[cfg(unix)]
fn temporaries() -> &'static [Temporary] {
    if cfg!(target_os = "linux") { &Temporary::BOTH } else { &[Temporary::Named] }
}

#[test]
fn a_wrong_command_line_is_quoted_without_its_control_characters() {
    let output = Command::new(program("smolconv")).arg("--dtype=\u{1b}[31m\u{202e}q4").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("q4") && !stderr.contains(['\u{1b}', '\u{202e}']), "{stderr:?}");
}

#[cfg(unix)]
#[test]
fn an_interrupt_leaves_neither_output_nor_litter() {
    let temp = TempDir::new();
    for &temporary in temporaries() {
        for (signal, code) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
            let running = Conversion::start(&temp, temporary);
            running.signal(signal);
            assert_eq!(running.code(), Some(code));
            assert_eq!(temp.names(), ["model"]);
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_conversion_goes_on_that_is_to_ignore_a_signal() {
    let temp = TempDir::new();
    let running = Conversion::start_with("--ignore-signal=INT", &temp, Temporary::Unnamed);
    running.signal("-INT");
    assert_eq!(running.code(), Some(0));
    assert_eq!(temp.names(), ["model", "out.bin"]);
}

/// The temporary names in the directory.
#[cfg(unix)]
fn parts(temp: &TempDir) -> Vec<String> {
    temp.names().into_iter().filter(|name| name.ends_with(".part")).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn a_killed_conversion_leaves_nothing_where_files_need_no_name() {
    let temp = TempDir::new();
    let running = Conversion::start(&temp, Temporary::Unnamed);
    running.signal("-KILL");
    assert_eq!(running.code(), None);
    assert_eq!(temp.names(), ["model"]);
}

#[cfg(unix)]
#[test]
fn what_a_killed_conversion_left_the_next_one_removes_but_nothing_that_is_in_use() {
    let temp = TempDir::new();
    let running = Conversion::start(&temp, Temporary::Named);
    running.signal("-KILL");
    assert_eq!(running.code(), None);
    let left = parts(&temp);
    assert_eq!(left.len(), 1);
    // Not ours, whatever they are called like.
    let others = [".smolconv-1.part", ".smolconv-0123456789abcdeg.part", "0123456789abcdef.part"];
    others.iter().for_each(|name| fs::write(temp.join(name), "precious").unwrap());
    fs::create_dir(temp.join(".smolconv-0123456789abcdef.part")).unwrap();

    let running = Conversion::start(&temp, Temporary::Named);
    running.signal("-STOP");
    let in_use: Vec<String> = parts(&temp)
        .into_iter()
        .filter(|name| name.starts_with(".smolconv-") && !left.contains(name))
        .collect();
    assert_eq!(in_use.len(), 4); // one, and three that only look like it
    for &temporary in temporaries() {
        let out = temp.join("other.bin");
        let mut command = temporary.command(program("smolconv"));
        assert!(command.arg(tales()).arg("-qo").arg(&out).arg("--force").status().unwrap().success());
        let names = temp.names();
        assert!(!names.contains(&left[0]), "{names:?}");
        assert!(
            in_use.iter().chain(&others.map(str::to_owned)).all(|name| names.contains(name)),
            "{names:?}"
        );
        assert_eq!(run("smolconv", &["verify".into(), out.into_os_string()]).code, 0);
    }
    running.signal("-CONT");
    assert_eq!(running.code(), Some(0));
    assert_eq!(run("smolconv", &["verify".into(), temp.join("out.bin").into_os_string()]).code, 0);
    assert_eq!(parts(&temp).len(), others.len() + 1);
}

#[cfg(unix)]
#[test]
fn of_two_writers_one_wins_and_nothing_is_replaced_unasked() {
    let temp = TempDir::new();
    for (&first, &second) in
        temporaries().iter().flat_map(|first| temporaries().iter().map(move |second| (first, second)))
    {
        let running = Conversion::start(&temp, first);
        running.signal("-STOP"); // it has looked whether it may write
        let out = temp.join("out.bin");
        let mut command = second.command(program("smolconv"));
        assert!(command.arg(tales()).arg("-qo").arg(&out).status().unwrap().success());
        let before = fs::read(&out).unwrap();
        running.signal("-CONT");
        assert_eq!(running.code(), Some(1), "{first:?}, {second:?}");
        assert!(fs::read(&out).unwrap() == before);
        assert_eq!(temp.names(), ["model", "out.bin"]);
        fs::remove_file(out).unwrap();
    }
}

#[cfg(unix)]
#[test]
fn an_output_that_is_a_link_is_followed() {
    use std::os::unix::fs::symlink;
    let temp = TempDir::new();
    convert_well(&tales(), &temp.join("expected.bin"));
    let expected = fs::read(temp.join("expected.bin")).unwrap();
    fs::create_dir(temp.join("there")).unwrap();
    symlink("there/file.bin", temp.join("link")).unwrap();
    symlink(temp.join("link"), temp.join("there/chain")).unwrap();
    for (number, &temporary) in temporaries().iter().enumerate() {
        for (out, more) in
            [("link", &["-q"][..]), ("there/chain", &["-q", "--force"]), ("link", &["-q", "--force"])]
        {
            let status = temporary
                .command(program("smolconv"))
                .arg(tales())
                .arg("-o")
                .arg(temp.join(out))
                .args(more)
                .status();
            assert!(status.unwrap().success(), "{out}");
            assert!(fs::read(temp.join("there/file.bin")).unwrap() == expected);
            fs::write(temp.join("there/file.bin"), "other").unwrap();
        }
        let refused = convert(&tales(), &temp.join("there/chain"), &[]);
        assert!(
            refused.code == 1 && refused.stderr.contains("chain: exists already; --force"),
            "{refused:?}"
        );
        assert_eq!(fs::read(temp.join("there/file.bin")).unwrap(), b"other");
        assert_eq!(fs::read_link(temp.join("link")).unwrap(), Path::new("there/file.bin"));
        assert!(temp.join("there/chain").is_symlink(), "{number}");
        fs::remove_file(temp.join("there/file.bin")).unwrap();
    }
    assert_eq!(temp.names(), ["expected.bin", "link", "there"]);
}

/// The source is not there: what is said is said before anything is read.
#[cfg(unix)]
#[test]
fn what_is_no_file_is_refused_before_any_work() {
    use std::os::unix::fs::symlink;
    let temp = TempDir::new();
    let _socket = std::os::unix::net::UnixListener::bind(temp.join("socket")).unwrap();
    assert!(Command::new("mkfifo").arg(temp.join("pipe")).status().unwrap().success());
    for (link, to) in
        [("null", "/dev/null"), ("circle", "circle"), ("to-pipe", "pipe"), ("into-nothing", "no/file")]
    {
        symlink(to, temp.join(link)).unwrap();
    }
    let names = temp.names();
    for (out, expected) in [
        ("null", "null: expected a regular file, found a device"),
        ("pipe", "pipe: expected a regular file, found a pipe"),
        ("to-pipe", "to-pipe: expected a regular file, found a pipe"),
        ("socket", "socket: expected a regular file, found a socket"),
        (".", ": expected a regular file, found a directory"),
        ("circle", "circle: Too many levels of symbolic links"),
        ("into-nothing", "into-nothing: No such file or directory"),
        ("new/", "new/: expected the name of a file"),
        ("missing/out.bin", "missing/out.bin: No such file or directory"),
    ] {
        let outcome = convert(&temp.join("absent"), &temp.join(out), &["--force"]);
        assert_eq!(outcome.code, 1, "{outcome:?}");
        assert!(outcome.stderr.contains(expected), "{outcome:?}");
    }
    let outcome = run("smolconv", &["absent", "--force", "-o", "/dev/stdout"]);
    assert!(
        outcome.code == 1 && outcome.stderr.contains("/dev/stdout: expected a regular file, found a pipe"),
        "{outcome:?}"
    );
    let outcome = run("smolconv", &["absent", "--force", "-o", "-"]);
    assert!(outcome.code == 2 && outcome.stderr.contains("cannot go to standard output"), "{outcome:?}");
    assert_eq!(temp.names(), names);
    assert_eq!(fs::read_link(temp.join("null")).unwrap(), Path::new("/dev/null"));
}

#[test]
fn a_blob_without_a_name_is_called_as_its_source() {
    let (temp, source) = (TempDir::new(), fs::canonicalize(tales()).unwrap());
    let convert = |more: &[&str]| {
        let output = Command::new(program("smolconv"))
            .current_dir(temp.path())
            .arg(&source)
            .args(more)
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = convert(&[]);
    assert!(
        code == Some(0) && said.starts_with("smolconv: writing tales-4m.bin\nsmolconv: tales-4m.bin: "),
        "{said}"
    );
    assert_eq!(convert(&["--dtype", "q8", "-q"]), (Some(0), String::new()));
    assert_eq!(temp.names(), ["tales-4m-q8.bin", "tales-4m.bin"]);
    fs::write(temp.join("tales-4m.bin"), "precious").unwrap();
    let (code, said) = convert(&["--dtype", "bf16"]);
    assert_eq!(
        (code, said.as_str()),
        (Some(1), "smolconv: error: tales-4m.bin: exists already; --force replaces it\n")
    );
    assert_eq!(fs::read(temp.join("tales-4m.bin")).unwrap(), b"precious");
    assert_eq!(convert(&["-q", "--force"]).0, Some(0));
}

#[test]
fn no_name_is_said_of_a_blob_that_will_not_be() {
    let temp = TempDir::new();
    fs::create_dir(temp.join("empty")).unwrap();
    let mut other = Checkpoint::tiny(TensorDtype::Bf16);
    other.config["num_hidden_layers"] = json!(3);
    other.write(&temp.join("other"));
    let blob = crate::smolrun_cli::blob();
    for source in [temp.join("empty").to_str().unwrap(), temp.join("other").to_str().unwrap(), blob] {
        let mut command = Command::new(program("smolconv"));
        let output = command.current_dir(temp.path()).arg(source).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let named = format!("smolconv: error: {source}: ");
        assert!(said.starts_with(&named) && said.lines().count() == 1, "{said}");
    }
}

/// Here a link that leads to itself, which nobody can follow; where one may not look, that is said likewise.
#[cfg(unix)]
#[test]
fn a_directory_that_cannot_be_looked_into_is_not_called_empty() {
    let name = "model.safetensors";
    refuses("a link", ": Too many levels of symbolic links", |model| {
        fs::create_dir(model).unwrap();
        std::os::unix::fs::symlink(name, model.join(name)).unwrap();
    });
}

#[test]
fn a_text_to_calibrate_on_is_not_ignored() {
    let (temp, checkpoint) = (TempDir::new(), Checkpoint::tiny(TensorDtype::Bf16));
    checkpoint.write(&temp.join("model"));
    let cases: [&[&str]; 4] = [
        &["--calibrate", "built-in"],
        &["--calibrate", "missing.txt", "--dtype", "bf16"],
        &["--calibrate", "built-in", "--dtype", "auto"],
        &["--calibrate", "built-in", "--dtype", "q4", "--keep", "*=f32"],
    ];
    for more in cases {
        let outcome = convert(&temp.join("model"), &temp.join("out.bin"), more);
        let expected =
            "--calibrate: expected matrices to quantize (--dtype q8, q4 or q3, or --keep), found none";
        assert!(outcome.code == 2 && outcome.stderr.contains(expected), "{outcome:?}");
        assert_eq!(temp.names(), ["model"]);
    }
    for more in [&["--calibrate", "none"][..], &["--keep", "down_proj=q8", "--calibrate", "none"]] {
        assert_eq!(
            convert(&temp.join("model"), &temp.join("out.bin"), &[more, &["--force"]].concat()).code,
            0
        );
    }
}

#[test]
fn what_is_given_by_mistake_is_called_what_it_is() {
    let (temp, checkpoint) = (TempDir::new(), Checkpoint::tiny(TensorDtype::Bf16));
    let model = temp.join("model");
    checkpoint.write(&model);
    let [blob, config, tokenizer, torch] =
        ["blob.bin", "model/config.json", "model/tokenizer.json", "pytorch_model.bin"]
            .map(|name| temp.join(name));
    convert_well(&model, &blob);
    fs::write(&torch, b"PK\x03\x04 and more of an archive").unwrap();
    fs::create_dir(temp.join("adapter")).unwrap();
    fs::write(temp.join("adapter/adapter_config.json"), r#"{"peft_type": "LORA"}"#).unwrap();
    let says = |source: &Path, option: Option<(&str, &Path)>, expected: &str| {
        let option = option.map(|(name, path)| [name, path.to_str().unwrap()]);
        let outcome = convert(source, &temp.join("out.bin"), option.as_ref().map_or(&[], |option| option));
        assert_eq!(outcome.code, 1, "{outcome:?}");
        assert!(outcome.stderr.contains(expected), "expected {expected:?} in {outcome:?}");
    };
    says(
        &blob,
        None,
        "blob.bin: expected a checkpoint, found a blob, which is what smolconv makes: smolrun runs it",
    );
    says(&torch, None, "pytorch_model.bin: expected a checkpoint, found a PyTorch file: save_pretrained");
    says(&config, None, "found a config.json: give the directory that it lies in");
    says(&temp.join("adapter"), None, "found an adapter: give the directory to --lora");
    says(temp.path(), None, "found PyTorch files: save_pretrained");
    says(
        Path::new("smollm2"),
        None,
        "smollm2: No such file or directory (os error 2); nor is it a name of a model: smolconv list",
    );
    says(
        Path::new("https://huggingface.co/HuggingFaceTB/SmolLM2-135M"),
        None,
        "a model on the Hugging Face hub is given by its id, and fetched: smollm2-135m",
    );
    let tokenizer_expected =
        "expected a tokenizer.json, found a config.json: give the tokenizer.json that lies beside";
    says(&model, Some(("--tokenizer", &config)), tokenizer_expected);
    says(&model, Some(("--tokenizer", &blob)), "expected a tokenizer.json, found a blob");
    says(&model, Some(("--tokenizer", &model)), "model: expected a regular file, found a directory");
    says(
        &model,
        Some(("--config", &tokenizer)),
        "expected a config.json, found a tokenizer.json: give the config.json",
    );
    assert_eq!(temp.names(), ["adapter", "blob.bin", "model", "pytorch_model.bin"]);
}

#[test]
fn a_tokenizer_of_too_many_stages_is_called_by_its_name() {
    refuses(
        "stages",
        "tokenizer.json: pre_tokenizer.pretokenizers: 70001 is not supported, only up to 16 stages",
        |model| {
            Checkpoint::tiny(TensorDtype::F32).write(model);
            let path = model.join("tokenizer.json");
            let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            let mut stages = vec![json!({ "type": "Digits", "individual_digits": true }); 70_000];
            stages.push(json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true }));
            tokenizer["pre_tokenizer"] = json!({ "type": "Sequence", "pretokenizers": stages });
            fs::write(path, tokenizer.to_string()).unwrap();
        },
    );
}

#[test]
fn a_text_that_is_read_is_not_replaced() {
    let (temp, checkpoint) = (TempDir::new(), Checkpoint::tiny(TensorDtype::Bf16));
    checkpoint.write(&temp.join("model"));
    let text = temp.join("text.txt");
    fs::write(&text, "precious").unwrap();
    for option in ["--calibrate", "--report"] {
        let more = ["--dtype", "q8", "--force", option, text.to_str().unwrap()];
        let outcome = convert(&temp.join("model"), &text, &more);
        assert!(
            outcome.stderr.contains("text.txt: expected another file than the text that is read"),
            "{outcome:?}"
        );
        assert_eq!((outcome.code, fs::read(&text).unwrap().as_slice()), (1, &b"precious"[..]));
    }
}

/// The conversion of what `make` leaves in a directory fails with `expected`, says so in one line, and leaves nothing.
fn refuses(name: &str, expected: &str, make: impl FnOnce(&Path)) {
    let temp = TempDir::new();
    let model = temp.join("model");
    make(&model);
    let outcome = convert(&model, &temp.join("out.bin"), &[]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (1, ""), "{name}: {outcome:?}");
    let named = format!("smolconv: error: {}", model.display());
    assert!(outcome.stderr.starts_with(&named), "{name}: {outcome:?}");
    assert!(outcome.stderr.contains(expected), "{name}: expected {expected:?} in {:?}", outcome.stderr);
    assert_eq!(outcome.stderr.lines().count(), 1, "{name}: {outcome:?}");
    assert_eq!(temp.names(), ["model"], "{name}");
}

#[test]
fn broken_configs_are_refused() {
    let absent = || json!("absent");
    #[rustfmt::skip] // one line per case
    let cases: Vec<(&str, Value, &str)> = vec![
        ("model_type", json!("mixtral"), r#"config.json: model_type: expected "llama", "mistral", "qwen2", "qwen3", "smollm3", found "mixtral""#),
        ("model_type", absent(), r#"config.json: model_type: expected "llama", "mistral", "qwen2", "qwen3", "smollm3", found nothing"#),
        ("architectures", json!(["LlamaForSequenceClassification"]), r#"architectures: expected ["LlamaForCausalLM"], found ["LlamaForSequence"#),
        ("architectures", absent(), "architectures: expected [\"LlamaForCausalLM\"], found nothing"),
        ("hidden_act", json!("gelu"), r#"hidden_act: expected "silu", found "gelu""#),
        ("attention_bias", json!(true), "tensor model.layers.0.self_attn.q_proj.bias: expected a tensor of shape [32], found none"),
        ("mlp_bias", json!(true), "mlp.gate_proj.bias: expected a tensor of shape [20], found none"),
        ("rope_scaling", json!({ "type": "dynamic", "factor": 2.0 }), r#"rope_scaling.type: expected null, "default", "linear", "llama3", "yarn" or "longrope", found "dynamic""#),
        ("rope_scaling", json!(7), "rope_scaling: expected an object or null, found 7"),
        ("rope_parameters", json!({ "rope_type": "llama3" }), "low_freq_factor: expected a number above 0, found nothing"),
        ("rope_parameters", json!({ "rope_theta": 5.0 }), "rope_parameters.rope_theta: expected rope_theta, 10000, found 5"),
        ("rope_parameters", json!({ "partial_rotary_factor": 0.5 }), "partial_rotary_factor: expected 1, found 0.5"),
        ("rope_theta", json!(0.5), "rope_theta: expected a number from 1 to 1e30, found 0.5"),
        ("rope_theta", json!("many"), "rope_theta: expected a number, found \"many\""),
        ("partial_rotary_factor", json!(0.25), "partial_rotary_factor: expected 1, found 0.25"),
        ("sliding_window", json!(4096), "sliding_window: expected null, found 4096"),
        ("quantization_config", json!({ "bits": 4 }), "quantization_config: expected null, found {\"bits\":4}"),
        ("layer_types", json!(["full_attention", "sliding_attention"]), r#"layer_types: expected "full_attention" everywhere, found others"#),
        ("hidden_size", json!("24"), r#"hidden_size: expected a positive integer, found "24""#),
        ("hidden_size", json!(-24), "hidden_size: expected a positive integer, found -24"),
        ("hidden_size", absent(), "hidden_size: expected a positive integer, found nothing"),
        ("hidden_size", json!(0), "hidden_size: expected 1 to 65536, found 0"),
        ("vocab_size", json!(1u64 << 40), "vocab_size: expected 1 to 4194304, found 1099511627776"),
        ("num_hidden_layers", json!(u64::MAX), "num_hidden_layers: expected 1 to 1024, found 18446744073709551615"),
        ("head_dim", json!(15), "head_dim: expected a multiple of 16, found 15"),
        ("head_dim", absent(), "head_dim: expected a multiple of 16, found 12"),
        ("num_key_value_heads", json!(3), "num_key_value_heads: expected a divisor of num_attention_heads, 2, found 3"),
        ("num_attention_heads", json!(0), "num_attention_heads: expected 1 to 1024, found 0"),
        ("rms_norm_eps", json!(0.0), "rms_norm_eps: expected a finite number above 0, found 0"),
        ("tie_word_embeddings", json!("yes"), r#"tie_word_embeddings: expected true or false, found "yes""#),
        ("eos_token_id", json!(37), "eos_token_id: expected an id below vocab_size, 37, found 37"),
        ("eos_token_id", json!(["a"]), r#"eos_token_id: expected a token id or a list of them, found ["a"]"#),
        ("eos_token_id", json!((0..17).collect::<Vec<_>>()), "eos_token_ids: expected at most 16 ids, found 17"),
        ("bos_token_id", json!(1u64 << 33), "bos_token_id: expected a token id or null, found 8589934592"),
        ("num_hidden_layers", json!(3), "tensor model.layers.2.input_layernorm.weight: expected a tensor of shape [24], found none"),
        ("num_hidden_layers", json!(1), "tensor model.layers.1.input_layernorm.weight: expected no tensor of this name"),
        ("intermediate_size", json!(21), "tensor model.layers.0.mlp.gate_proj.weight: shape: expected [21, 24], found [20, 24]"),
        ("tie_word_embeddings", json!(false), "tensor lm_head.weight: expected it, as tie_word_embeddings is false, found none"),
        ("tie_word_embeddings", absent(), "tensor lm_head.weight: expected it, as tie_word_embeddings is false, found none"),
    ];
    for (field, value, expected) in cases {
        refuses(&format!("{field} {value}"), expected, |model| {
            let mut checkpoint = Checkpoint::tiny(TensorDtype::Bf16);
            let config = checkpoint.config.as_object_mut().unwrap();
            match value == absent() {
                true => drop(config.remove(field)),
                false => drop(config.insert(field.into(), value)),
            }
            checkpoint.write(model);
        });
    }
    refuses(
        "heads that do not divide",
        "num_attention_heads: expected a divisor of hidden_size, 24, found 5",
        |model| {
            let mut checkpoint = Checkpoint::tiny(TensorDtype::Bf16);
            checkpoint.config.as_object_mut().unwrap().remove("head_dim");
            checkpoint.config["num_attention_heads"] = json!(5);
            checkpoint.write(model);
        },
    );
}

#[test]
fn broken_tensors_are_refused() {
    type Change = fn(&mut Checkpoint);
    #[rustfmt::skip] // one line per case
    let cases: [(&str, Change); 13] = [
        ("tensor model.norm.weight: expected a tensor of shape [24], found none", |c| drop(c.tensors.remove("model.norm.weight"))),
        ("tensor model.extra.weight: expected no tensor of this name in a model of this config, found one", |c| c.add("model.extra.weight", TensorDtype::F32, &[1])),
        ("tensor model.layers.0.self_attn.q_proj.bias: expected no tensor", |c| c.add("model.layers.0.self_attn.q_proj.bias", TensorDtype::F32, &[32])),
        ("tensor a\\nb\\u{1b}[31m: expected no tensor", |c| c.add("a\nb\u{1b}[31m", TensorDtype::F32, &[1])),
        ("tensor model.norm.weight: shape: expected [24], found [24, 1]", |c| c.tensor("model.norm.weight").shape = vec![24, 1]),
        ("tensor model.norm.weight: shape: expected [24], found []", |c| c.add("model.norm.weight", TensorDtype::F32, &[])),
        ("tensor model.embed_tokens.weight: shape: expected [37, 24], found [24, 37]", |c| c.tensor("model.embed_tokens.weight").shape = vec![24, 37]),
        ("tensor model.norm.weight: dtype: expected BF16, F16 or F32, found I32", |c| c.add("model.norm.weight", TensorDtype::I32, &[24])),
        ("tensor model.layers.1.mlp.up_proj.weight: element [2, 3]: expected a finite number, found NaN", |c| c.tensor("model.layers.1.mlp.up_proj.weight").values[51] = f32::NAN),
        ("tensor model.norm.weight: element [23]: expected a finite number, found inf", |c| c.tensor("model.norm.weight").values[23] = f32::INFINITY),
        ("tensor lm_head.weight: expected none beside model.embed_tokens.weight, as tie_word_embeddings is true, found it", |c| c.add("lm_head.weight", TensorDtype::F32, &[37, 24])),
        ("tensor model.embed_tokens.weight: expected a tensor of shape [37, 24], found none", |c| c.tensors.clear()),
        ("tensor model.norm.weight: shape: expected [24], found [0]", |c| c.add("model.norm.weight", TensorDtype::F32, &[0])),
    ];
    for (expected, change) in cases {
        refuses(expected, expected, |model| {
            let mut checkpoint = Checkpoint::tiny(TensorDtype::Bf16);
            change(&mut checkpoint);
            checkpoint.write(model);
        });
    }
    for dtype in DTYPES {
        // Past the first 1024 elements, which are looked at together, and the first of several.
        let expected =
            "tensor model.embed_tokens.weight: element [45, 20]: expected a finite number, found -inf";
        refuses(expected, expected, |model| {
            let mut checkpoint = Checkpoint::tiny(dtype);
            checkpoint.config["vocab_size"] = json!(99);
            checkpoint.add("model.embed_tokens.weight", dtype, &[99, 24]);
            for index in [45 * 24 + 20, 45 * 24 + 21, 98 * 24] {
                checkpoint.tensor("model.embed_tokens.weight").values[index] = f32::NEG_INFINITY;
            }
            checkpoint.write(model);
        });
    }
}

/// A `.safetensors` file with this header and `data` bytes of zeroes.
fn with_header(header: &str, data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat()
}

#[test]
fn broken_safetensors_are_refused() {
    let tensor = |name: &str, start: usize, end: usize| {
        format!(
            r#""{name}":{{"dtype":"F32","shape":[{}],"data_offsets":[{start},{end}]}}"#,
            (end - start) / 4
        )
    };
    let two = |first: String, second: String| format!("{{{first},{second}}}");
    let small: Vec<(&str, Vec<u8>, &str)> = vec![
        ("empty", vec![], "not a safetensors file: expected at least 8 bytes, found 0"),
        ("no header", vec![9; 8], "header length: expected at most 0, found 651061555542690057"),
        (
            "header past the end",
            with_header("{}", 0)[..9].to_vec(),
            "header length: expected at most 1, found 2",
        ),
        ("not JSON", with_header("{nonsense}", 0), "not a safetensors file: header: key must be a string"),
        ("not UTF-8", [&2u64.to_le_bytes()[..], b"\"\xff"].concat(), "not a safetensors file: header: "),
        (
            "unknown dtype",
            with_header(r#"{"a":{"dtype":"X9","shape":[],"data_offsets":[0,0]}}"#, 0),
            "header: ",
        ),
        (
            "overlap",
            with_header(&two(tensor("a", 0, 8), tensor("b", 4, 12)), 12),
            "header: invalid offset for tensor `b`",
        ),
        (
            "gap",
            with_header(&two(tensor("a", 0, 8), tensor("b", 12, 16)), 16),
            "invalid offset for tensor `b`",
        ),
        (
            "overflow",
            with_header(
                &format!(r#"{{"a":{{"dtype":"F32","shape":[{0},{0}],"data_offsets":[0,4]}}}}"#, 1u64 << 40),
                4,
            ),
            "overflow computing buffer size",
        ),
        (
            "length",
            with_header(r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#, 8),
            "invalid shape, data type, or offset",
        ),
        (
            "trailing bytes",
            with_header(&format!("{{{}}}", tensor("a", 0, 8)), 9),
            "announces 70 bytes, found 71",
        ),
    ];
    for (name, bytes, expected) in small {
        refuses(name, expected, |model| {
            Checkpoint::tiny(TensorDtype::F32).write(model);
            fs::write(model.join("model.safetensors"), bytes).unwrap();
        });
    }
    refuses("truncated", "model.safetensors: not a safetensors file: its header announces", |model| {
        Checkpoint::tiny(TensorDtype::F32).write(model);
        let file = File::options().write(true).open(model.join("model.safetensors")).unwrap();
        file.set_len(file.metadata().unwrap().len() - 1).unwrap();
    });
    refuses("header too long", "header length: expected at most 67108864, found 67108865", |model| {
        Checkpoint::tiny(TensorDtype::F32).write(model);
        fs::write(model.join("model.safetensors"), 67_108_865u64.to_le_bytes()).unwrap();
        let file = File::options().write(true).open(model.join("model.safetensors")).unwrap();
        file.set_len(200_000_000).unwrap(); // sparse
    });
}

/// Writes two shards and their index after `change`.
fn change_index(change: impl FnOnce(&mut Value)) -> impl FnOnce(&Path) {
    |model| {
        Checkpoint::tiny(TensorDtype::F32).write_sharded(model, 2);
        let index = model.join("model.safetensors.index.json");
        let mut value: Value = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
        change(&mut value);
        fs::write(index, value.to_string()).unwrap();
    }
}

#[test]
fn broken_shards_are_refused() {
    let norm = "model.norm.weight";
    let traversal = ["../model.safetensors", "/etc/passwd", "a/b", "..", ".", "", "a\\b", "c:d", "a/"];
    for shard in traversal {
        let expected = format!("weight_map: expected bare file names, found {shard:?}");
        refuses(shard, &expected, change_index(|value| value["weight_map"][norm] = json!(shard)));
    }
    let other = if shard_of(norm) == 1 { 2 } else { 1 };
    let moved = format!("model-{other:05}-of-00002.safetensors");
    let expected = format!("tensor {norm}: expected in {moved} by the index, found in ");
    refuses("moved", &expected, change_index(|value| value["weight_map"][norm] = json!(moved)));
    let expected =
        "tensor model.absent: expected in model-00001-of-00002.safetensors by the index, found nowhere";
    let first = "model-00001-of-00002.safetensors";
    refuses("absent", expected, change_index(|value| value["weight_map"]["model.absent"] = json!(first)));
    let expected = format!("tensor {norm}: expected in no shard by the index, found in ");
    refuses(
        "unlisted",
        &expected,
        change_index(|value| {
            value["weight_map"].as_object_mut().unwrap().remove(norm);
        }),
    );
    let expected = "weight_map: expected an object of tensor names to shard names, found 7";
    refuses("map of another type", expected, change_index(|value| value["weight_map"] = json!(7)));
    refuses("no map", "weight_map: expected an object", change_index(|value| *value = json!({})));
    refuses("missing shard", "model-00002-of-00002.safetensors: No such file", |model| {
        Checkpoint::tiny(TensorDtype::F32).write_sharded(model, 2);
        fs::remove_file(model.join("model-00002-of-00002.safetensors")).unwrap();
    });
    refuses("twice", ": expected it once, found it in ", |model| {
        Checkpoint::tiny(TensorDtype::F32).write_sharded(model, 2);
        fs::copy(model.join(first), model.join("model-00002-of-00002.safetensors")).unwrap();
    });
}

/// Which of two shards holds a tensor of the tiny checkpoint.
fn shard_of(name: &str) -> usize {
    let checkpoint = Checkpoint::tiny(TensorDtype::F32);
    checkpoint.tensors.keys().position(|key| key == name).unwrap() % 2 + 1
}

#[test]
fn broken_directories_are_refused() {
    let remove = |name: &'static str| {
        move |model: &Path| {
            Checkpoint::tiny(TensorDtype::F32).write(model);
            fs::remove_file(model.join(name)).unwrap();
        }
    };
    let replace = |name: &'static str, bytes: &'static [u8]| {
        move |model: &Path| {
            Checkpoint::tiny(TensorDtype::F32).write(model);
            fs::write(model.join(name), bytes).unwrap();
        }
    };
    let temp = TempDir::new();
    let outcome = convert(&temp.join("model"), &temp.join("out.bin"), &[]);
    assert!(outcome.code == 1 && outcome.stderr.contains("model: No such file"), "{outcome:?}");
    refuses("an empty directory", "expected model.safetensors or model.safetensors.index.json", |model| {
        fs::create_dir(model).unwrap();
    });
    refuses("no config", "config.json: No such file", remove("config.json"));
    refuses("no tokenizer", "tokenizer.json: No such file", remove("tokenizer.json"));
    refuses("no weights", "expected model.safetensors or", remove("model.safetensors"));
    refuses("config not JSON", "config.json: expected a JSON object: ", replace("config.json", b"nonsense"));
    refuses("config a list", "config.json: expected a JSON object: ", replace("config.json", b"[1]"));
    let deep: &'static [u8] = Box::leak(vec![b'['; 1 << 17].into_boxed_slice());
    refuses("config too deep", "config.json: expected a JSON object: ", replace("config.json", deep));
    refuses("tokenizer not JSON", "tokenizer.json: ", replace("tokenizer.json", b"nonsense"));
    let template = "tokenizer_config.json: chat_template: expected a string or a list";
    refuses("template", template, replace("tokenizer_config.json", br#"{"chat_template": 7}"#));
    refuses("template list", template, replace("tokenizer_config.json", br#"{"chat_template": [7]}"#));
    let jinja = "chat_template.jinja: expected UTF-8, found another byte at 1";
    refuses("template not UTF-8", jinja, replace("chat_template.jinja", b"a\xff"));
    let generation = "generation_config.json: eos_token_id: expected";
    refuses("end id", generation, replace("generation_config.json", br#"{"eos_token_id": "x"}"#));
    refuses("a directory as config", "config.json: expected a regular file", |model| {
        Checkpoint::tiny(TensorDtype::F32).write(model);
        fs::remove_file(model.join("config.json")).unwrap();
        fs::create_dir(model.join("config.json")).unwrap();
    });
    refuses("a file too large to read whole", "config.json: expected at most 16777216 bytes", |model| {
        Checkpoint::tiny(TensorDtype::F32).write(model);
        let file = File::create(model.join("config.json")).unwrap();
        file.set_len((16 << 20) + 1).unwrap(); // sparse
    });
}
