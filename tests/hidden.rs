//! Last hidden states, by the library and by `smolrun embed`, against transformers'.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use safetensors::SafeTensors;
use serde_json::{Value, json};
use smol_tests::common::{TALES, blob, data, program};
use smolrun::embedding::Pooling;
use smolrun::{Error, Model, Session, SessionOptions};

const TOLERANCE: f32 = 1e-3;

/// Each prompt's text, ids and hidden states as transformers has them, `[tokens][hidden_size]`.
fn references() -> Vec<(String, Vec<u32>, Vec<f32>)> {
    let rows = fs::read(data("tales-4m/reference.json")).unwrap();
    let rows: Vec<Value> = serde_json::from_slice(&rows).unwrap();
    let states = fs::read(data("tales-4m/hidden.safetensors")).unwrap();
    let states = SafeTensors::deserialize(&states).unwrap();
    assert_eq!(rows.len(), states.len());
    let of = |row: &Value| {
        let state = states.tensor(row["name"].as_str().unwrap()).unwrap();
        let floats = state.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let ids: Vec<u32> = serde_json::from_value(row["ids"].clone()).unwrap();
        (row["text"].as_str().unwrap().to_owned(), ids, floats)
    };
    rows.iter().map(of).collect()
}

fn assert_near(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < TOLERANCE, "they differ by up to {worst:e}");
}

fn mean(states: &[f32], width: usize) -> Vec<f32> {
    let count = (states.len() / width) as f32;
    (0..width).map(|i| states[i..].iter().step_by(width).sum::<f32>() / count).collect()
}

#[test]
fn hidden_states_are_those_of_transformers() {
    let model = Model::open(blob(TALES)).unwrap();
    let width = model.config().hidden_size;
    for threads in [1, 3] {
        let mut session = Session::new(&model, SessionOptions::default().threads(threads)).unwrap();
        for (_, ids, expected) in references() {
            session.truncate(0);
            assert_near(&session.hidden(&ids).unwrap(), &expected);
            session.truncate(0);
            let last = session.embed(&ids, Pooling::Last).unwrap();
            assert_near(&last, &expected[expected.len() - width..]);
            session.truncate(0);
            assert_near(&session.embed(&ids, Pooling::Mean).unwrap(), &mean(&expected, width));
        }
    }
}

#[test]
fn hidden_states_have_the_same_bits_however_the_text_is_split() {
    let model = Model::open(blob(TALES)).unwrap();
    let ids: Vec<u32> = references().into_iter().flat_map(|(_, ids, _)| ids).cycle().take(300).collect();
    let mut session = Session::new(&model, SessionOptions::default().threads(2)).unwrap();
    let expected = session.hidden(&ids).unwrap();
    assert_eq!(expected.len(), 300 * model.config().hidden_size);
    session.truncate(0);
    let split = [1, 40, 259].iter().scan(0, |at, len| {
        *at += len;
        Some(session.hidden(&ids[*at - len..*at]).unwrap())
    });
    assert_eq!(split.collect::<Vec<_>>().concat(), expected);
    assert!(matches!(session.hidden(&[]), Err(Error::Argument { name: "tokens", .. })));
    assert!(matches!(session.embed(&[1 << 20], Pooling::Last), Err(Error::TokenId { .. })));
}

/// Exit code, standard output and standard error of `smolrun embed` on `input`.
fn embed(args: &[&str], input: &str) -> (Option<i32>, String, String) {
    let mut child = Command::new(program("smolrun"))
        .arg("embed")
        .arg(blob(TALES))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_program_embeds_a_text_per_line() {
    // A control token in a text is text here, and was one in the reference.
    let references: Vec<_> =
        references().into_iter().filter(|(text, _, _)| !text.starts_with("<|")).collect();
    let lines: String = references.iter().map(|(text, _, _)| format!("{}\n", json!(text))).collect();
    let width = references[0].2.len() / references[0].1.len();
    for (args, is_mean) in [(&[][..], false), (&["--pooling", "mean", "--threads", "1"], true)] {
        let (code, out, err) = embed(args, &lines);
        assert_eq!((code, err.as_str()), (Some(0), ""));
        assert_eq!(out.lines().count(), references.len());
        for (line, (_, ids, states)) in out.lines().zip(&references) {
            let answer: Value = serde_json::from_str(line).unwrap();
            let found: Vec<f32> = serde_json::from_value(answer["embedding"].clone()).unwrap();
            let expected =
                if is_mean { mean(states, width) } else { states[states.len() - width..].to_vec() };
            assert_near(&found, &expected);
            assert_eq!(answer["tokens"], ids.len());
        }
    }
    let (code, out, err) = embed(&[], "\"once\"\n5\n");
    assert_eq!((code, out.lines().count()), (Some(1), 1));
    assert!(err.contains("standard input, line 2: expected a JSON string"), "{err}");
}
