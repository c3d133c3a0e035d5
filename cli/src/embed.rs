//! `smolrun embed`: texts as vectors, JSON Lines in and out.

use serde::Serialize;
use smolrun::Session;
use smolrun::embedding;

use crate::args::Pooling;
use crate::lines::{Result, each_line};
use crate::model::ModelArgs;
use crate::options::{prompt_options, session_options};

#[derive(Serialize)]
struct Answer {
    embedding: Vec<f32>,
    tokens: usize,
}

pub(crate) fn embed(model: &ModelArgs, pooling: Pooling, threads: Option<usize>) -> Result {
    let model = model.open()?;
    let mut session = Session::new(&model, session_options(threads, None))?;
    let options = prompt_options(&session);
    let pooling = match pooling {
        Pooling::Last => embedding::Pooling::Last,
        Pooling::Mean => embedding::Pooling::Mean,
    };
    each_line("a JSON string", |text: String| {
        let tokens = model.encode_prompt_with(&text, &options)?;
        session.truncate(0);
        Ok(Answer { embedding: session.embed(&tokens, pooling)?, tokens: tokens.len() })
    })
}
