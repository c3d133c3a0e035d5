//! Whether the real model answers as PyTorch did.

use std::fs;

use serde_json::Value;
use smolrun::{Model, Session, SessionOptions};

use super::{REAL, data};

/// For PyTorch's greedy answers to the conversations of `reference.json`: at how many of their tokens the model, after the
/// same tokens, finds the same one likeliest, and how many these are.
///
/// # Panics
/// If the model is another one, or fails.
pub fn chat_agreement(model: &Model) -> (usize, usize) {
    let reference = fs::read(data(&format!("{REAL}/reference.json"))).expect("the reference is there");
    let rows: Vec<Value> = serde_json::from_slice(&reference).expect("the reference is JSON");
    let chats = rows.iter().filter(|row| row["name"].as_str().is_some_and(|name| name.starts_with("chat-")));
    let found = chats.map(|row| {
        let same = agreement(model, row);
        let (count, before) =
            (same.iter().filter(|same| **same).count(), same.iter().take_while(|same| **same).count());
        println!("{}: {count} of {} tokens, {before} before the first other one", row["name"], same.len());
        (count, same.len())
    });
    found.fold((0, 0), |sum, found| (sum.0 + found.0, sum.1 + found.1))
}

/// For each token of the answer, whether the model finds the same one likeliest.
fn agreement(model: &Model, row: &Value) -> Vec<bool> {
    let ids = |name: &str| -> Vec<u32> { serde_json::from_value(row[name].clone()).expect("ids") };
    let (prompt, answer) = (ids("ids"), ids("greedy"));
    let mut same = Vec::new();
    let mut session = Session::new(model, SessionOptions::default()).expect("the model runs");
    let each = |index: usize, logits: &[f32]| {
        let next = (index + 1).checked_sub(prompt.len()).and_then(|index| answer.get(index));
        if let Some(&next) = next {
            let larger = |best: usize, id: usize| if logits[id] > logits[best] { id } else { best };
            same.push((0..logits.len()).fold(0, larger) == next as usize);
        }
    };
    session.feed_all(&[&prompt[..], &answer].concat(), each).expect("the model runs");
    same
}
