//! `smolrun MODEL [PROMPT]`: continue a text.

use std::error::Error;
use std::io::{self, IsTerminal};
use std::time::Instant;

use serde::Serialize;
use smolrun::tokenizer::Tokenizer;
use smolrun::{FinishReason, Message, Session, SpecialTokens, Token};

use crate::args::{GenerateArgs, PromptArgs};
use crate::chat;
use crate::exit_code::{self, WrongUsage};
use crate::interrupt::Interrupt;
use crate::logprobs::Logprobs;
use crate::memory;
use crate::model::{Listener, blob_of};
use crate::options::{chat_options, options, prompt_options, session_options, tell_if_not_fast};
use crate::output::Output;
use crate::prompt_cache::PromptCache;
use crate::sampling::Defaults;
use crate::stats::{Stopwatch, Timings};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What `--json` prints, and `--json-lines` at the end, without what its other lines have told.
#[derive(Serialize)]
struct Report {
    prompt_ids: Vec<u32>,
    #[serde(flatten)]
    answer: Option<Answer>,
    finish_reason: &'static str,
    /// The unit of `--fast` that the prompt ran on, if it was not exact.
    #[serde(skip_serializing_if = "Option::is_none")]
    fast: Option<&'static str>,
    /// What decided the draws, if there were any.
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    timings: Timings,
}

/// The generated tokens.
#[derive(Default, Serialize)]
struct Answer {
    ids: Vec<u32>,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<Logprobs>>,
}

/// What `--json-lines` prints of a token.
#[derive(Serialize)]
struct Line<'a> {
    id: u32,
    text: &'a str,
    #[serde(flatten)]
    logprobs: Option<Logprobs>,
}

pub(crate) fn run(args: &GenerateArgs, start: Instant) -> Result<u8> {
    let is_conversation = is_conversation(args);
    check_usage(&args.prompt, is_conversation)?;
    let model = args.model.as_deref().ok_or("no model was named")?;
    let mut cache = args.prompt_cache.as_deref().map(PromptCache::new).transpose()?;
    let blob = blob_of(model, args.dtype.mix(), &Listener::program())?;
    let model = blob.open(args.no_mmap)?;
    if args.verify {
        model
            .verify_with(args.threads, &|_| ())
            .map_err(|error| format!("{}: {error}", blob.path.display()))?;
    }
    let how = session_options(args.threads, args.kv).overflow(args.overflow.into()).fast(args.fast);
    let mut session = Session::new(&model, how)?;
    memory::check_for_sequence(&session)?;
    tell_if_not_fast(&session);
    if is_conversation {
        return chat::run(args, session, &blob.name, cache);
    }
    let waiting = Instant::now();
    let prompt = args.prompt.read()?;
    // Whoever writes the prompt may take their time.
    let mut stopwatch = Stopwatch::new(start + waiting.elapsed());
    let prompt_ids = encode_prompt(&args.prompt, prompt, &session)?;
    if let Some(cache) = &mut cache {
        cache.load(&mut session);
    }
    let kept = session.keep_common_prefix(&prompt_ids);
    let defaults = if args.prompt.is_chat() { Defaults::of_chat(&model) } else { Defaults::CONTINUATION };
    let sampling = args.answer.sampling.sampling(&model, &defaults);
    let interrupt = Interrupt::new()?;
    let mut options = options(&args.answer, sampling.clone(), interrupt.cancel_token());
    options.logprobs = args.logprobs;

    let mut show = Show::new(args, model.tokenizer());
    let mut generator = session.generate(&prompt_ids[kept..], options)?;
    for token in generator.by_ref() {
        let token = token?;
        stopwatch.lap();
        show.token(token)?;
    }
    let finish_reason = generator.finish_reason().unwrap_or(FinishReason::Length);
    let timings = stopwatch.timings(prompt_ids.len(), kept, &session);
    let (is_news, prompt_len) = (kept + 1 < prompt_ids.len(), prompt_ids.len());
    show.end(|answer| Report {
        prompt_ids,
        answer,
        finish_reason: finish_reason.name(),
        fast: session.fast().unit(),
        seed: (sampling.temperature > 0.0).then_some(sampling.seed),
        timings: timings.clone(),
    })?;
    if args.stats {
        timings.print("the start of the process", &sampling, &session);
    }
    if let Some(cache) = &cache {
        session.truncate(prompt_len);
        cache.save(&mut session, is_news)?;
    }
    Ok(interrupt.exit_code().unwrap_or(exit_code::SUCCESS))
}

/// Shows what is generated as it was asked for.
struct Show {
    output: Output,
    tokenizer: Tokenizer,
    form: Form,
}

/// How it was asked for.
enum Form {
    /// As it comes.
    Text,
    /// When all is there.
    Json(Answer),
    JsonLines,
}

impl Show {
    fn new(args: &GenerateArgs, tokenizer: Tokenizer) -> Show {
        let logprobs = args.logprobs.map(|_| Vec::new());
        let form = match (args.json, args.json_lines) {
            (true, _) => Form::Json(Answer { logprobs, ..Answer::default() }),
            (_, true) => Form::JsonLines,
            _ => Form::Text,
        };
        Show { output: Output::new(), tokenizer, form }
    }

    fn token(&mut self, token: Token) -> Result<()> {
        let new = |logprobs: &_| Logprobs::new(logprobs, &self.tokenizer);
        let logprobs = token.logprobs.as_ref().map(new).transpose()?;
        match &mut self.form {
            Form::Text => self.output.text(&token.text)?,
            Form::Json(answer) => {
                answer.ids.push(token.id);
                answer.text += &token.text;
                if let Some(all) = &mut answer.logprobs {
                    all.extend(logprobs);
                }
            }
            Form::JsonLines => self.output.json(&Line { id: token.id, text: &token.text, logprobs })?,
        }
        Ok(())
    }

    /// The end: `report` makes what JSON has of it, out of what was not shown yet.
    fn end(mut self, report: impl FnOnce(Option<Answer>) -> Report) -> Result<()> {
        match self.form {
            Form::Text => Ok(self.output.text("\n")?),
            Form::Json(answer) => self.output.json(&report(Some(answer))),
            Form::JsonLines => self.output.json(&report(None)),
        }
    }
}

/// Whether someone sits at the terminal and has asked for nothing yet.
fn is_conversation(args: &GenerateArgs) -> bool {
    let is_json = args.json || args.json_lines;
    args.prompt.is_empty() && !is_json && io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// What the arguments alone do not tell clap.
fn check_usage(args: &PromptArgs, is_conversation: bool) -> std::result::Result<(), WrongUsage> {
    let has_system = args.system.is_some() || args.system_file.is_some();
    let given = [("--system", has_system), ("--tools", args.tools.is_some())];
    if let Some((name, _)) = given.iter().find(|(_, is_given)| *is_given)
        && !args.is_chat()
        && !is_conversation
    {
        return Err(WrongUsage(format!("{name} needs --chat, or a conversation on a terminal")));
    }
    Ok(())
}

/// The tokens of a prompt, if the session's context can hold so many.
fn encode_prompt(args: &PromptArgs, prompt: Option<String>, session: &Session) -> Result<Vec<u32>> {
    let model = session.model();
    if args.is_chat() {
        let messages: Option<Vec<Message>> = args.messages(prompt)?;
        let nothing = || WrongUsage("there is nothing to answer: a prompt is needed".into());
        let messages = messages.ok_or_else(nothing)?;
        return Ok(model.encode_chat_with(&messages, &chat_options(args.chat_options()?, session))?);
    }
    let special = if args.special { SpecialTokens::Parse } else { SpecialTokens::AsText };
    let options = prompt_options(session).special_tokens(special);
    Ok(model.encode_prompt_with(&prompt.unwrap_or_default(), &options)?)
}
