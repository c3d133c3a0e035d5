//! `smolrun BLOB [PROMPT]`: continue a text.

use std::error::Error;
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use clap::CommandFactory;
use clap::error::ErrorKind;
use serde::Serialize;
use smolrun::{
    CancelToken, ChatOptions, Fast, FinishReason, GenerateOptions, Message, Model, Session, SessionOptions,
    SpecialTokens, Tokenizer, verify,
};

use crate::args::{Args, GenerateArgs};
use crate::chat;
use crate::interrupt::{self, INTERRUPTED};
use crate::stats::{Stopwatch, Timings};

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    prompt_ids: Vec<u32>,
    ids: Vec<u32>,
    text: String,
    finish_reason: &'static str,
    /// The unit of `--fast` that the prompt ran on, if it was not exact.
    #[serde(skip_serializing_if = "Option::is_none")]
    fast: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<Logprobs>>,
    timings: Timings,
}

/// Of one token.
#[derive(Serialize)]
struct Logprobs {
    logprob: f32,
    top: Vec<Alternative>,
}

#[derive(Serialize)]
struct Alternative {
    id: u32,
    text: String,
    logprob: f32,
}

impl Logprobs {
    fn new(of: &smolrun::Logprobs, tokenizer: &Tokenizer) -> smolrun::Result<Logprobs> {
        let alternative = |&smolrun::Alternative { id, logprob }: &_| {
            let text = String::from_utf8_lossy(tokenizer.token_bytes(id)?).into_owned();
            Ok(Alternative { id, text, logprob })
        };
        Ok(Logprobs {
            logprob: of.logprob,
            top: of.top.iter().map(alternative).collect::<smolrun::Result<_>>()?,
        })
    }
}

pub(crate) fn run(args: &GenerateArgs, start: Instant) -> Result<ExitCode, Box<dyn Error>> {
    let is_conversation = is_conversation(args);
    if args.system.is_some() && !args.chat && !is_conversation {
        let problem = "--system needs --chat, or a conversation on a terminal";
        Args::command().error(ErrorKind::MissingRequiredArgument, problem).exit();
    }
    let blob = args.blob.as_deref().ok_or("no blob was named")?;
    let model = open(blob, args.no_mmap)?;
    if args.verify {
        verify(model.storage(), model.layout(), args.threads, &|_| ())
            .map_err(|error| format!("{}: {error}", blob.display()))?;
    }
    let mut session = Session::new(
        &model,
        session_options(args.threads).kv_dtype(args.kv.into()).overflow(args.overflow.into()).fast(args.fast),
    )?;
    tell_if_not_fast(&session);
    if is_conversation {
        chat::run(args, session, blob)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut stopwatch = Stopwatch::new(start);
    let prompt_ids = encode_prompt(args, &model)?;
    let kept = match &args.prompt_cache {
        Some(file) => resume(&mut session, file, &prompt_ids)?,
        None => 0,
    };
    let options = options(args, &model, &interrupt::cancel_token()?);

    let tokenizer = model.tokenizer();
    let mut logprobs = args.logprobs.map(|_| Vec::new());
    let (mut ids, mut text) = (Vec::new(), String::new());
    let mut stdout = io::stdout().lock();
    let mut generator = session.generate(&prompt_ids[kept..], options)?;
    for token in generator.by_ref() {
        let token = token?;
        stopwatch.lap();
        ids.push(token.id);
        text += &token.text;
        if let (Some(all), Some(one)) = (&mut logprobs, &token.logprobs) {
            all.push(Logprobs::new(one, &tokenizer)?);
        }
        if !args.json && !token.text.is_empty() {
            stdout.write_all(token.text.as_bytes())?;
            stdout.flush()?;
        }
    }
    let finish_reason = generator.finish_reason().unwrap_or(FinishReason::Length);
    let timings = stopwatch.timings(prompt_ids.len(), kept, &session);
    if let Some(file) = &args.prompt_cache
        && kept + 1 < prompt_ids.len()
    {
        session.truncate(prompt_ids.len());
        session.save(file)?;
    }
    if args.stats {
        timings.print(&session);
    }
    if args.json {
        let finish_reason = finish_reason.name();
        serde_json::to_writer(
            &mut stdout,
            &Report { prompt_ids, ids, text, finish_reason, fast: session.fast().unit(), logprobs, timings },
        )?;
    }
    writeln!(stdout)?;
    let is_interrupted = finish_reason == FinishReason::Cancelled;
    Ok(if is_interrupted { INTERRUPTED.into() } else { ExitCode::SUCCESS })
}

/// Loads what an earlier run left in `file`, if there is one, and returns how many of the prompt's tokens need not be
/// run again.
fn resume(session: &mut Session, file: &Path, prompt_ids: &[u32]) -> smolrun::Result<usize> {
    if file.exists() {
        session.load(file)?;
    }
    Ok(session.keep_common_prefix(prompt_ids))
}

/// Whether someone sits at the terminal and has asked for nothing yet.
fn is_conversation(args: &GenerateArgs) -> bool {
    args.prompt.is_none() && !args.json && io::stdin().is_terminal() && io::stdout().is_terminal()
}

pub(crate) fn options(args: &GenerateArgs, model: &Model, cancel: &CancelToken) -> GenerateOptions {
    let options = GenerateOptions::default()
        .max_tokens(args.max_tokens)
        .sampling(args.sampling.sampling(model))
        .stop(&args.stop)
        .cancel(cancel);
    match args.logprobs {
        Some(top) => options.logprobs(top),
        None => options,
    }
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

/// Where `--fast` changes nothing.
pub(crate) fn tell_if_not_fast(session: &Session) {
    if let fast @ (Fast::NoUnit | Fast::NoBf16) = session.fast() {
        eprintln!("smolrun: --fast: {fast}");
    }
}

fn encode_prompt(args: &GenerateArgs, model: &Model) -> Result<Vec<u32>, Box<dyn Error>> {
    let mut prompt = args.prompt.clone().unwrap_or_default();
    if prompt == "-" {
        prompt.clear();
        io::stdin().read_to_string(&mut prompt).map_err(|error| format!("standard input: {error}"))?;
    }
    if args.chat {
        let system = args.system.as_ref().map(|text| Message::new("system", text));
        let messages: Vec<_> = system.into_iter().chain([Message::new("user", prompt)]).collect();
        return Ok(model.encode_chat_with(&messages, &ChatOptions::default().now(SystemTime::now()))?);
    }
    let special = if args.special { SpecialTokens::Parse } else { SpecialTokens::AsText };
    let ids = model.tokenizer().encode_prompt(&prompt, special)?;
    // A model continues something: an empty prompt is the beginning of a text.
    match (ids.is_empty(), model.config().bos_token_id) {
        (false, _) => Ok(ids),
        (true, Some(bos)) => Ok(vec![bos]),
        (true, None) => Err("the prompt has no tokens, and the model names none that begins a text".into()),
    }
}
