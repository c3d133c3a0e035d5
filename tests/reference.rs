//! The whole way against PyTorch: token ids, logits, greedy continuations and perplexity of transformers in float32.
//!
//! `tests/data/README.md` says how the reference was made.

use std::fs;

use safetensors::SafeTensors;
use serde_json::Value;
use smol_tests::common::{REAL, TALES, blob, blob_of, chat_agreement, data};
use smolrun::format::Dtype;
use smolrun::{GenerateOptions, Message, Model, Session, SessionOptions, SpecialTokens};

/// Logits may differ from PyTorch's by this much: sums in another order.
const LOGIT_TOLERANCE: f32 = 2e-3;
/// Where the two best logits are at least this far apart at every step, the greedy tokens must be the same.
const GREEDY_MARGIN: f64 = 0.005;

#[test]
fn tales_4m_equals_pytorch() {
    check(TALES, Dtype::F32);
}

#[test]
#[ignore = "needs the real model: scripts/fetch_model.sh smollm2-135m-instruct"]
fn smollm2_135m_equals_pytorch() {
    // Half the bytes, and the bits of f32: see `determinism`.
    check(REAL, Dtype::Bf16);
}

fn check(name: &str, dtype: Dtype) {
    let model = Model::open(blob_of(name, dtype)).unwrap();
    let reference = fs::read(data(&format!("{name}/reference.json"))).unwrap();
    let logits = fs::read(data(&format!("{name}/logits.safetensors"))).unwrap();
    let logits = SafeTensors::deserialize(&logits).unwrap();
    let rows: Vec<Value> = serde_json::from_slice(&reference).unwrap();
    assert_eq!(rows.len(), logits.len(), "a row of logits for each prompt");
    for row in &rows {
        let prompt = row["name"].as_str().unwrap();
        check_prompt(&model, row, &floats(logits.tensor(prompt).unwrap().data()))
            .unwrap_or_else(|problem| panic!("{name}, prompt {prompt}: {problem}"));
    }
}

fn check_prompt(model: &Model, row: &Value, expected: &[f32]) -> Result<(), String> {
    let text = row["text"].as_str().unwrap();
    // The reference parsed control tokens only where a chat template wrote them, or the prompt begins with one.
    let special = if text.starts_with("<|") { SpecialTokens::Parse } else { SpecialTokens::AsText };
    let ids = model.tokenizer().encode(text, special).unwrap();
    if ids != ids_of(&row["ids"]) {
        return Err(format!("token ids {ids:?}"));
    }
    let mut session = Session::new(model, SessionOptions::default()).unwrap();
    let found = session.feed(&ids).unwrap();
    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    let worst = differences.fold(0.0, f32::max);
    if found.len() != expected.len() || worst >= LOGIT_TOLERANCE {
        return Err(format!("logits differ by up to {worst:e}"));
    }
    session.truncate(0);
    let greedy = session.generate(&ids, GenerateOptions::default().max_tokens(64)).unwrap();
    let greedy: Vec<u32> = greedy.map(|token| token.unwrap().id).collect();
    let margin = row["smallest_greedy_margin"].as_f64().unwrap();
    if margin > GREEDY_MARGIN && greedy != ids_of(&row["greedy"]) {
        return Err(format!("greedy ids {greedy:?}"));
    }
    println!("{:<14} {:4} ids, logits within {worst:.1e}, margin {margin:.4}", row["name"], ids.len());
    Ok(())
}

#[test]
#[ignore = "needs the real model: scripts/fetch_model.sh smollm2-135m-instruct"]
fn conversations_have_the_ids_of_transformers_chat_template() {
    let model = Model::open(blob(REAL)).unwrap();
    let read = |name: &str| fs::read(data(&format!("{REAL}/{name}"))).unwrap();
    let prompts: Vec<Value> = serde_json::from_slice(&read("prompts.json")).unwrap();
    let rows: Vec<Value> = serde_json::from_slice(&read("reference.json")).unwrap();
    let mut conversations = 0;
    for (prompt, row) in prompts.iter().zip(&rows) {
        let Some(messages) = prompt["messages"].as_array() else { continue };
        let text = |message: &Value, field: &str| message[field].as_str().unwrap().to_owned();
        let messages = messages.iter().map(|m| Message::new(text(m, "role"), text(m, "content")));
        let ids = model.encode_chat(&messages.collect::<Vec<_>>()).unwrap();
        assert_eq!((&prompt["name"], ids), (&row["name"], ids_of(&row["ids"])));
        conversations += 1;
    }
    assert_eq!(conversations, 4);
}

#[test]
#[ignore = "needs the real model: scripts/fetch_model.sh smollm2-135m-instruct"]
fn smollm2_135m_in_q8_answers_as_pytorch_does() {
    let model = Model::open(blob_of(REAL, Dtype::Q8)).unwrap();
    let (same, tokens) = chat_agreement(&model);
    assert!(same * 100 >= tokens * 97, "{same} of {tokens}");
}

fn ids_of(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}
