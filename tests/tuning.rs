//! Scales and norms tuned by gradients: the gradients against differences of the divergence, for every architecture, and
//! whole blobs.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use smol_tests::common::{
    Blob, Checkpoint, Running, TALES, TempDir, TensorDtype, blob, data, program, tales,
};
use smolconv::quantize::tuning::{Gradients, gradients};
use smolrun::format::{Dtype, Kind};
use smolrun::{Kernels, Model, Session, SessionOptions};

use crate::convert::{assert_same_on_any_threads, convert, inspect};
use crate::family;
use crate::perplexity::{compare, session, tokens};

/// How far a norm's weights are moved, as a part of themselves.
const STEP: f32 = 2e-4;
/// One scale of so many is moved, by the smallest step that there is.
const SOME: usize = 31;

/// A blob in which the sections of a kind are moved with or against their gradient, and by how much the divergence changes by
/// that gradient.
struct Moved {
    blob: Blob,
    change: f64,
}

fn moved(blob: &Blob, gradients: &Gradients, kind: Kind, direction: f32) -> Moved {
    let mut moved = Moved { blob: blob.clone(), change: 0.0 };
    let of_kind = gradients.sections.iter().filter(|(of, ..)| *of == kind);
    for (_, layer, gradient) in of_kind {
        let is_it = |code: u32, number: u32| code == kind.code() && number == layer.unwrap_or(u32::MAX);
        let part = moved.blob.parts.iter_mut().find(|part| is_it(part.kind, part.layer)).unwrap();
        let mut go = |number: f32, step: f32, gradient: f32, is_scale: bool| {
            let to = number + step * direction * gradient.signum();
            let by = if is_scale { (to / number).ln() } else { to - number };
            moved.change += f64::from(gradient * by);
            to
        };
        if !kind.is_matrix() {
            for (bytes, &gradient) in part.content.as_chunks_mut().0.iter_mut().zip(gradient) {
                let weight = f32::from_le_bytes(*bytes);
                *bytes = go(weight, STEP * weight.abs(), gradient, false).to_le_bytes();
            }
            continue;
        }
        let blocks = (part.shape[1] as usize).div_ceil(32);
        let panels = gradient.len() / (16 * blocks);
        let table = if part.dtype >= Dtype::Q4.code() { 64 } else { 0 };
        let panel_len = (part.content.len() - table) / panels;
        let bytes = part.content[table..].chunks_exact_mut(panel_len);
        for (panel, gradient) in bytes.zip(gradient.chunks_exact(16 * blocks)) {
            for (scale, &gradient) in panel[32..].iter_mut().zip(gradient).step_by(SOME) {
                if (2..=254).contains(scale) && gradient != 0.0 {
                    *scale = go((*scale).into(), 1.0, gradient, true) as u8;
                }
            }
        }
    }
    moved
}

/// The mean KL divergence over all positions, of what the runtime computes.
fn divergence(model: &Model, reference: &Model, tokens: &[u32]) -> f64 {
    let probabilities = |model: &Model| {
        let (mut session, mut all) = (Session::new(model, SessionOptions::default()).unwrap(), Vec::new());
        let log_softmax = |logits: &[f32]| {
            let most = logits.iter().fold(f32::MIN, |most, &logit| most.max(logit));
            let sum: f64 = logits.iter().map(|&logit| f64::from(logit - most).exp()).sum();
            logits.iter().map(|&logit| f64::from(logit - most) - sum.ln()).collect::<Vec<f64>>()
        };
        session.feed_all(tokens, |_, logits| all.push(log_softmax(logits))).unwrap();
        all
    };
    let (found, expected) = (probabilities(model), probabilities(reference));
    let pairs = found.iter().flatten().zip(expected.iter().flatten());
    pairs.map(|(q, p)| p.exp() * (p - q)).sum::<f64>() / tokens.len() as f64
}

#[test]
fn gradients_are_those_of_the_divergence() {
    let tokens = family::tokens();
    for name in family::names() {
        let directory = family::family(&name);
        let [teacher, student] = [Dtype::F32, Dtype::Q4].map(|dtype| family::convert(&directory, dtype));
        let found = gradients(&student, &teacher, &tokens).unwrap();
        // Other tests compare the runtime's predictions with those of transformers.
        assert_near(&name, found.divergence, divergence(&student, &teacher, &tokens), 0.005);
        let blob = Blob::take_apart(student.storage().bytes());
        let kinds = Kind::ALL.iter().filter(|&kind| found.sections.iter().any(|(of, ..)| of == kind));
        for &kind in kinds {
            let [up, down] = [1.0, -1.0].map(|direction| {
                let Moved { blob, change } = moved(&blob, &found, kind, direction);
                let model = Model::from_bytes(blob.build()).unwrap();
                (gradients(&model, &teacher, &tokens).unwrap().divergence, change)
            });
            assert!(up.1 > 0.0 && down.1 < 0.0, "{name} {}", kind.name());
            assert_near(&format!("{name} {}", kind.name()), up.0 - down.0, up.1 - down.1, 0.03);
        }
    }
}

fn assert_near(what: &str, found: f64, expected: f64, tolerance: f64) {
    assert!((found / expected - 1.0).abs() < tolerance, "{what}: {found}, expected {expected}");
}

/// A text that tuning does not take long for.
fn short_text(temp: &TempDir) -> String {
    let text = fs::read_to_string(data("ppl.txt")).unwrap();
    let path = temp.join("short.txt");
    fs::write(&path, text.chars().take(9000).collect::<String>()).unwrap();
    path.display().to_string()
}

#[test]
fn a_tuned_blob_has_as_many_bytes_and_expects_more_of_what_the_model_expects() {
    let temp = TempDir::new();
    let text = short_text(&temp);
    let [plain, tuned] = [("plain", &[][..]), ("tuned", &["--tune", "8"])].map(|(name, tune)| {
        let out = temp.join(name);
        let all_widths =
            ["--dtype", "q4", "--keep", "o_proj=q3", "--keep", "qkv_proj=q8", "--calibrate", &text];
        let more = [&all_widths[..], tune].concat();
        assert_eq!(convert(&tales(), &out, &more).code, 0);
        out
    });
    let matrices = |path: &Path| -> u64 {
        let sections = inspect(path)["sections"].as_array().unwrap().clone();
        let weights = sections.iter().filter(|section| section["kind"] != "metadata");
        weights.map(|section| section["length"].as_u64().unwrap()).sum()
    };
    assert_eq!(matrices(&plain), matrices(&tuned));
    let [before, after] = [&plain, &tuned].map(|path| inspect(path)["metadata"]["quantisation"].clone());
    assert_eq!((&before["tuned_epochs"], &after["tuned_epochs"]), (&Value::Null, &json!(8)));
    let sections = [&before, &after].map(|quantization| quantization["sections"].as_array().unwrap());
    assert_eq!(sections[0].len(), sections[1].len());
    for (before, after) in sections[0].iter().zip(sections[1]) {
        let error = |section: &Value| section["relative_error"].as_f64().unwrap();
        assert_near(&after["section"].to_string(), error(after), error(before), 0.1); // scales moved by little
        assert!(before.get("output_error").is_some() && after.get("output_error").is_none(), "{after}");
    }
    let mut f32 = session(&blob(TALES));
    let tokens = tokens(&f32);
    let [plain, tuned] = [&plain, &tuned]
        .map(|path| compare(&mut session(path), &mut f32, &tokens[4096..8192], 512).mean_divergence());
    // The text has only so much to teach: of the built-in one, two epochs bring 8 %.
    assert!(tuned < 0.985 * plain, "{tuned}, {plain}");
}

#[test]
fn tuned_bytes_depend_on_neither_threads_nor_instruction_sets() {
    let (temp, checkpoint) = (TempDir::new(), Checkpoint::untied(TensorDtype::F32));
    checkpoint.write(&temp.join("model"));
    let text = "the cat and the dog ran in the rain and then the sun shone. ".repeat(40);
    fs::write(temp.join("text.txt"), text).unwrap();
    let text = temp.join("text.txt").display().to_string();
    let more = ["--dtype", "q4", "--keep", "o_proj=q8", "--calibrate", &text, "--tune", "2"];
    assert_same_on_any_threads(&temp.join("model"), &more);
    let blobs: Vec<Vec<u8>> = Kernels::available()
        .into_iter()
        .map(|kernels| {
            let out = temp.join(kernels.name());
            let mut command = Command::new(program("smolconv"));
            command.env("SMOLRUN_ISA", kernels.name()).arg(temp.join("model")).arg("-o").arg(&out).args(more);
            assert!(Running::start(&mut command).wait().success());
            fs::read(out).unwrap()
        })
        .collect();
    assert!(blobs.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn what_is_not_calibrated_is_not_tuned() {
    let temp = TempDir::new();
    for more in [&["--dtype", "bf16"][..], &["--dtype", "q8"], &["--dtype", "q4", "--calibrate", "none"]] {
        let outcome = convert(&tales(), &temp.join("out"), &[more, &["--tune", "1"]].concat());
        assert_eq!(outcome.code, 2, "{outcome:?}");
        let expected =
            "--tune: expected matrices that are calibrated (--dtype q4 or q3, --size, or --calibrate)";
        assert!(outcome.stderr.contains(expected) && outcome.stderr.contains("found none"), "{outcome:?}");
        assert_eq!(temp.names(), [""; 0]);
    }
    let outcome = convert(&tales(), &temp.join("out"), &["--dtype", "q4", "--tune", "0"]);
    assert_eq!(outcome.code, 2, "{outcome:?}");
}
