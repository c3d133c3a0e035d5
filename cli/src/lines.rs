//! The subcommands for scripts: JSON Lines in, JSON Lines out.

use std::error::Error;
use std::io::{self, BufRead};

use serde::Serialize;
use serde::de::DeserializeOwned;
use smolrun::{Session, SpecialTokens};

use crate::model::ModelArgs;
use crate::options::session_options;
use crate::output::{Output, json_problem};

pub(crate) type Result = std::result::Result<(), Box<dyn Error>>;

pub(crate) fn tokenize(model: &ModelArgs, special: bool) -> Result {
    let tokenizer = model.open()?.tokenizer();
    let special = if special { SpecialTokens::Parse } else { SpecialTokens::AsText };
    each_line("a JSON string", |text: String| tokenizer.encode(&text, special))
}

pub(crate) fn detokenize(model: &ModelArgs) -> Result {
    let tokenizer = model.open()?.tokenizer();
    each_line("a JSON array of token ids", |ids: Vec<u32>| tokenizer.decode(&ids, false))
}

pub(crate) fn logits(model: &ModelArgs, ids: &[u32], threads: Option<usize>) -> Result {
    let model = model.open()?;
    let mut session = Session::new(&model, session_options(threads, None))?;
    let logits = session.feed(ids)?;
    if logits.iter().any(|logit| !logit.is_finite()) {
        return Err(smolrun::Error::NotFinite.into()); // JSON has no NaN
    }
    Output::new().json(&logits)
}

/// Answers each line of standard input with one of standard output, at once: the other side may wait for it.
pub(crate) fn each_line<Question: DeserializeOwned, Answer: Serialize>(
    expected: &str,
    mut answer: impl FnMut(Question) -> smolrun::Result<Answer>,
) -> Result {
    let mut output = Output::new();
    for (number, line) in (1..).zip(io::stdin().lock().lines()) {
        let line = line.map_err(|error| format!("standard input, line {number}: {error}"))?;
        let input = serde_json::from_str(&line)
            .map_err(|error| format!("expected {expected}: {}", json_problem(&error)))
            .map_err(|problem| format!("standard input, line {number}: {problem}"))?;
        let answer = answer(input).map_err(|error| format!("standard input, line {number}: {error}"))?;
        output.json(&answer)?;
    }
    Ok(())
}
