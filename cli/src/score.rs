//! `smolrun score`: log-likelihoods of continuations, JSON Lines in and out.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use smolrun::Session;

use crate::lines::{Result, each_line};
use crate::model::ModelArgs;
use crate::options::session_options;

#[derive(Deserialize)]
#[serde(try_from = "Fields")]
struct Question {
    context: String,
    continuations: Vec<String>,
}

/// All that an object says.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Fields {
    context: String,
    continuations: Vec<String>,
    #[serde(flatten)]
    others: BTreeMap<String, IgnoredAny>,
}

impl TryFrom<Fields> for Question {
    type Error = String;

    fn try_from(fields: Fields) -> std::result::Result<Question, String> {
        match fields.others.keys().next() {
            None => Ok(Question { context: fields.context, continuations: fields.continuations }),
            Some(name) => Err(format!("no such field: {name}")),
        }
    }
}

#[derive(Serialize)]
struct Answer {
    scores: Vec<Score>,
}

#[derive(Serialize)]
struct Score {
    logprob: f64,
    tokens: usize,
    is_greedy: bool,
}

pub(crate) fn score(model: &ModelArgs, threads: Option<usize>) -> Result {
    let model = model.open()?;
    let mut session = Session::new(&model, session_options(threads, None))?;
    each_line("an object with context and continuations", |question: Question| {
        let scores = session.score_texts(&question.context, &question.continuations)?;
        Ok(Answer { scores: scores.into_iter().map(Score::from).collect() })
    })
}

impl From<smolrun::eval::Score> for Score {
    fn from(score: smolrun::eval::Score) -> Score {
        Score { logprob: score.logprob, tokens: score.tokens, is_greedy: score.is_greedy }
    }
}
