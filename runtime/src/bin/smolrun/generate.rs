//! `smolrun BLOB [PROMPT]`: continue a text.

use std::error::Error;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use smolrun::{
    FinishReason, GenerateOptions, Message, Model, Sampling, Session, SessionOptions, SpecialTokens, verify,
};

use crate::args::GenerateArgs;
use crate::stats::{Stopwatch, Timings};

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    prompt_ids: Vec<u32>,
    ids: Vec<u32>,
    text: String,
    finish_reason: &'static str,
    timings: Timings,
}

pub(crate) fn run(args: &GenerateArgs, start: Instant) -> Result<(), Box<dyn Error>> {
    let blob = args.blob.as_deref().ok_or("no blob was named")?;
    let model = open(blob, args.no_mmap)?;
    if args.verify {
        verify(model.storage(), model.layout(), args.threads, &|_| ())
            .map_err(|error| format!("{}: {error}", blob.display()))?;
    }
    let mut session = Session::new(&model, session_options(args.threads).kv_dtype(args.kv.into()))?;
    let mut stopwatch = Stopwatch::new(start);
    let prompt_ids = encode_prompt(args, &model)?;

    let sampling =
        Sampling { temperature: args.temperature, top_k: args.top_k, top_p: args.top_p, seed: args.seed };
    let options = GenerateOptions::default().max_tokens(args.max_tokens).sampling(sampling);
    let (mut ids, mut text, mut finish_reason) = (Vec::new(), String::new(), FinishReason::Length);
    let mut stdout = io::stdout().lock();
    for token in session.generate(&prompt_ids, options)? {
        let token = token?;
        stopwatch.lap();
        ids.push(token.id);
        text += &token.text;
        finish_reason = token.finish_reason.unwrap_or(finish_reason);
        if !args.json && !token.text.is_empty() {
            stdout.write_all(token.text.as_bytes())?;
            stdout.flush()?;
        }
    }
    let timings = stopwatch.timings(prompt_ids.len());
    if args.stats {
        timings.print(&session);
    }
    if args.json {
        let finish_reason = finish_reason.name();
        serde_json::to_writer(&mut stdout, &Report { prompt_ids, ids, text, finish_reason, timings })?;
    }
    writeln!(stdout)?;
    Ok(())
}

pub(crate) fn open(blob: &Path, no_mmap: bool) -> Result<Model, Box<dyn Error>> {
    let result = if no_mmap { Model::read(blob) } else { Model::open(blob) };
    result.map_err(|error| match error {
        smolrun::Error::Io { .. } => error.into(), // names the file itself
        error => format!("{}: {error}", blob.display()).into(),
    })
}

pub(crate) fn session_options(threads: Option<usize>) -> SessionOptions {
    let options = SessionOptions::default();
    match threads {
        Some(threads) => options.threads(threads),
        None => options,
    }
}

fn encode_prompt(args: &GenerateArgs, model: &Model) -> Result<Vec<u32>, Box<dyn Error>> {
    let mut prompt = args.prompt.clone();
    if prompt == "-" {
        prompt.clear();
        io::stdin().read_to_string(&mut prompt).map_err(|error| format!("standard input: {error}"))?;
    }
    if args.chat {
        let system = args.system.as_ref().map(|text| Message::new("system", text));
        let messages: Vec<_> = system.into_iter().chain([Message::new("user", prompt)]).collect();
        return Ok(model.encode_chat(&messages)?);
    }
    let special = if args.special { SpecialTokens::Parse } else { SpecialTokens::AsText };
    let ids = model.tokenizer().encode(&prompt, special)?;
    // A model continues something: an empty prompt is the beginning of a text.
    match (ids.is_empty(), model.config().bos_token_id) {
        (false, _) => Ok(ids),
        (true, Some(bos)) => Ok(vec![bos]),
        (true, None) => Err("the prompt has no tokens, and the model names none that begins a text".into()),
    }
}
