//! `smolrun score`: log-likelihoods of continuations, JSON Lines in and out.

use std::path::Path;

use serde::{Deserialize, Serialize};
use smolrun::{Model, Session, SpecialTokens};

use crate::generate::{open, session_options};
use crate::lines::{Result, each_line};

#[derive(Deserialize)]
struct Question {
    context: String,
    continuations: Vec<String>,
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

pub(crate) fn score(blob: &Path, threads: Option<usize>) -> Result {
    let model = open(blob, false)?;
    let mut session = Session::new(&model, session_options(threads))?;
    each_line("an object with context and continuations", |question: Question| {
        let Question { context, continuations } = question;
        let split = |continuation: &String| split(&model, &context, continuation);
        let pairs = continuations.iter().map(split).collect::<smolrun::Result<Vec<_>>>()?;
        let mut scores = Vec::with_capacity(pairs.len());
        // Nearly always one group: a context's tokens rarely depend on what follows.
        for group in pairs.chunk_by(|a, b| a.0 == b.0) {
            let continuations: Vec<&[u32]> = group.iter().map(|pair| &pair.1[..]).collect();
            scores.extend(session.score(&group[0].0, &continuations)?.into_iter().map(Score::from));
        }
        Ok(Answer { scores })
    })
}

impl From<smolrun::Score> for Score {
    fn from(score: smolrun::Score) -> Score {
        Score { logprob: score.logprob, tokens: score.tokens, is_greedy: score.is_greedy }
    }
}

/// Context and continuation in tokens, as evaluation harnesses cut them: encoded together, and cut where the context
/// alone would end, once the blanks at its end belong to the continuation.
fn split(model: &Model, context: &str, continuation: &str) -> smolrun::Result<(Vec<u32>, Vec<u32>)> {
    let encode = |text: &str| model.tokenizer().encode(text, SpecialTokens::AsText);
    let trimmed = context.trim_end();
    let mut tokens = encode(&format!("{context}{continuation}"))?;
    let first = encode(trimmed)?.len().min(tokens.len());
    let continuation = tokens.split_off(first);
    if tokens.is_empty() {
        tokens.extend(model.config().bos_token_id);
    }
    Ok((tokens, continuation))
}
