//! A line of IN as a request: of our own form, or OpenAI's.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use smolrun::chat::ChatOptions;
use smolrun::scheduler::Request;
use smolrun::{GenerateOptions, Message, Model, PromptOptions, Sampling};

use crate::output::json_problem;

/// What OpenAI's lines ask for.
const CHAT_URL: &str = "/v1/chat/completions";
const TEXT_URL: &str = "/v1/completions";

/// Fields that change nothing here: a name for what the file names already, and what a service keeps of a request.
const IGNORED: [&str; 8] = [
    "model",
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "stream_options",
];

/// Fields that may only say what happens anyway.
const FIXED: [(&str, &[&str]); 8] = [
    ("n", &["1"]),
    ("best_of", &["1"]),
    ("stream", &["false"]),
    ("echo", &["false"]),
    ("suffix", &["\"\""]),
    ("response_format", &["{\"type\":\"text\"}"]),
    ("modalities", &["[\"text\"]"]),
    ("parallel_tool_calls", &["true"]),
];

/// Why a line is no request: what its record says.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) code: &'static str,
    pub(super) message: String,
}

impl Problem {
    fn bad(message: impl Into<String>) -> Problem {
        Problem { code: "bad_request", message: message.into() }
    }

    fn unsupported(message: impl Into<String>) -> Problem {
        Problem { code: "unsupported", message: message.into() }
    }
}

impl From<smolrun::Error> for Problem {
    fn from(error: smolrun::Error) -> Problem {
        Problem { code: error.code(), message: error.to_string() }
    }
}

type Result<T> = std::result::Result<T, Problem>;

/// What lines do not say themselves.
pub(super) struct Defaults {
    pub(super) max_tokens: usize,
    pub(super) stop: Vec<String>,
    /// Of a text to be continued.
    pub(super) text: Sampling,
    /// Of an answer.
    pub(super) chat: Sampling,
    /// Whether the tokens that end a generation are ruled out.
    pub(super) ignore_eos: bool,
    /// The time that chat templates are told.
    pub(super) now: SystemTime,
}

/// A line's object.
pub(super) struct Object<'a> {
    /// What its result is to be called.
    pub(super) custom_id: Option<String>,
    fields: Fields<'a>,
}

/// What an object says, by name; what was asked for is taken out.
#[derive(Deserialize)]
#[serde(transparent)]
struct Fields<'a>(#[serde(borrow)] BTreeMap<String, &'a RawValue>);

impl<'a> Fields<'a> {
    /// What is there under a name, unless it is null.
    fn raw(&mut self, name: &str) -> Option<&'a RawValue> {
        self.0.remove(name).filter(|value| value.get() != "null")
    }

    /// The value under a name; `expected` says what it should be.
    fn take<T: DeserializeOwned>(&mut self, name: &str, expected: &str) -> Result<Option<T>> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        let wrong = |_| Problem::bad(format!("{name}: expected {expected}, found {}", shortened(raw.get())));
        serde_json::from_str(raw.get()).map(Some).map_err(wrong)
    }

    fn number<T: Number>(&mut self, name: &str, into: &mut T) -> Result<()> {
        if let Some(number) = self.take(name, T::EXPECTED)? {
            *into = number;
        }
        Ok(())
    }
}

/// A kind of numbers, and what it is called.
trait Number: DeserializeOwned {
    const EXPECTED: &str;
}

impl Number for f32 {
    const EXPECTED: &str = "a number";
}

impl Number for usize {
    const EXPECTED: &str = "a whole number from 0 up";
}

impl Number for i8 {
    const EXPECTED: &str = "a whole number from -128 to 127";
}

/// The beginning of a text that may be long.
fn shortened(text: &str) -> String {
    const MOST: usize = 60;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

impl<'a> Object<'a> {
    /// Of a line's bytes.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Object<'a>> {
        let wrong = |error| Problem::bad(format!("expected a JSON object: {}", json_problem(&error)));
        let mut fields: Fields<'_> = serde_json::from_slice(bytes).map_err(wrong)?;
        let custom_id = fields.take("custom_id", "a string")?;
        Ok(Object { custom_id, fields })
    }

    /// The request that it is; `seed` decides its draws if it says nothing of that.
    pub(super) fn request(self, model: &Model, defaults: &Defaults, seed: u64) -> Result<Request> {
        let mut fields = self.body()?;
        check_fixed(&mut fields)?;
        let (prompt, is_chat) = take_prompt(&mut fields, model, defaults)?;
        let mut options = GenerateOptions::default().max_tokens(defaults.max_tokens);
        options.stop = take_stop(&mut fields)?.unwrap_or_else(|| defaults.stop.clone());
        let most = ["max_tokens", "max_completion_tokens"];
        most.iter().try_for_each(|name| fields.number(name, &mut options.max_tokens))?;
        let sampling = if is_chat { &defaults.chat } else { &defaults.text };
        options.sampling = take_sampling(&mut fields, sampling.clone().seed(seed))?;
        if fields.take("ignore_eos", "true or false")?.unwrap_or(defaults.ignore_eos) {
            options.sampling = options.sampling.ignore_eos(model.config());
        }
        options.logprobs = take_logprobs(&mut fields)?;
        let mut priority = 0;
        fields.number("priority", &mut priority)?;
        fields.0.retain(|name, _| !IGNORED.contains(&name.as_str()));
        match fields.0.keys().next() {
            None => Ok(Request::new(prompt, options).priority(priority)),
            Some(name) => Err(Problem::unsupported(format!("{}: no such option here", shortened(name)))),
        }
    }

    /// The fields that say what to generate: those of OpenAI's `body`, or its own.
    fn body(self) -> Result<Fields<'a>> {
        let mut fields = self.fields;
        let Some(body) = fields.raw("body") else { return Ok(fields) };
        let (method, url): (Option<String>, Option<String>) =
            (fields.take("method", "a string")?, fields.take("url", "a string")?);
        if let Some(method) = method.filter(|method| method != "POST") {
            let found = shortened(&method);
            return Err(Problem::unsupported(format!("method: expected POST, found {found}")));
        }
        let wrong = |_| Problem::bad(format!("body: expected an object, found {}", shortened(body.get())));
        let body: Fields<'a> = serde_json::from_str(body.get()).map_err(wrong)?;
        let needed = match url.as_deref() {
            None => None,
            Some(CHAT_URL) => Some("messages"),
            Some(TEXT_URL) => Some("prompt"),
            Some(other) => {
                let found = shortened(other);
                return Err(Problem::unsupported(format!(
                    "url: expected {CHAT_URL} or {TEXT_URL}, found {found}"
                )));
            }
        };
        if let Some(name) = needed.filter(|name| !body.0.contains_key(*name)) {
            return Err(Problem::bad(format!("body: expected {name}, found none")));
        }
        match fields.0.keys().next() {
            None => Ok(body),
            Some(name) => Err(Problem::unsupported(format!("{}: not known beside a body", shortened(name)))),
        }
    }
}

fn check_fixed(fields: &mut Fields<'_>) -> Result<()> {
    for (name, allowed) in FIXED {
        let Some(raw) = fields.raw(name) else { continue };
        let text: String = raw.get().chars().filter(|c| !c.is_ascii_whitespace()).collect();
        if !allowed.contains(&text.as_str()) {
            let (expected, found) = (allowed.join(" or "), shortened(raw.get()));
            return Err(Problem::unsupported(format!("{name}: expected {expected}, found {found}")));
        }
    }
    Ok(())
}

/// A text, or its tokens.
#[derive(Deserialize)]
#[serde(untagged)]
enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

/// The tokens to continue, and whether they are a conversation.
fn take_prompt(fields: &mut Fields<'_>, model: &Model, defaults: &Defaults) -> Result<(Vec<u32>, bool)> {
    let prompt: Option<Prompt> = fields.take("prompt", "a string or an array of token ids")?;
    let (messages, tools) = (fields.raw("messages"), fields.raw("tools"));
    let calls_tools = take_tool_choice(fields)?;
    let max_tokens = model.config().max_position_embeddings;
    match (prompt, messages) {
        (Some(_), _) if tools.is_some() => {
            Err(Problem::bad("tools: expected messages beside them, found a prompt"))
        }
        (Some(Prompt::Text(text)), None) => {
            let options = PromptOptions::default().max_tokens(max_tokens);
            Ok((model.encode_prompt_with(&text, &options)?, false))
        }
        (Some(Prompt::Ids(ids)), None) => Ok((ids, false)),
        (None, Some(messages)) => {
            let mut options = ChatOptions::default().now(defaults.now).max_tokens(max_tokens);
            let messages = Message::list_from_json(messages.get())?;
            if let Some(tools) = tools.filter(|_| calls_tools) {
                options = options.tools(tools.get())?;
            }
            Ok((model.encode_chat_with(&messages, &options)?, true))
        }
        (Some(_), Some(_)) => Err(Problem::bad("expected a prompt or messages, found both")),
        (None, None) => Err(Problem::bad("expected a prompt or messages, found neither")),
    }
}

/// Whether the model may call tools: else it is not told of any.
fn take_tool_choice(fields: &mut Fields<'_>) -> Result<bool> {
    match fields.raw("tool_choice").map(RawValue::get) {
        None | Some("\"auto\"") => Ok(true),
        Some("\"none\"") => Ok(false),
        Some(other) => {
            let found = shortened(other);
            Err(Problem::unsupported(format!("tool_choice: expected \"auto\" or \"none\", found {found}")))
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Stop {
    One(String),
    Some(Vec<String>),
}

fn take_stop(fields: &mut Fields<'_>) -> Result<Option<Vec<String>>> {
    let stop = fields.take("stop", "a string or an array of strings")?;
    Ok(stop.map(|stop| match stop {
        Stop::One(text) => vec![text],
        Stop::Some(texts) => texts,
    }))
}

fn take_sampling(fields: &mut Fields<'_>, mut sampling: Sampling) -> Result<Sampling> {
    let to = &mut sampling;
    fields.number("temperature", &mut to.temperature)?;
    fields.number("top_k", &mut to.top_k)?;
    fields.number("top_p", &mut to.top_p)?;
    fields.number("min_p", &mut to.min_p)?;
    fields.number("typical_p", &mut to.typical_p)?;
    fields.number("repetition_penalty", &mut to.repetition_penalty)?;
    fields.number("frequency_penalty", &mut to.frequency_penalty)?;
    fields.number("presence_penalty", &mut to.presence_penalty)?;
    fields.number("penalty_window", &mut to.penalty_window)?;
    if let Some(Seed(seed)) = fields.take("seed", "a whole number of 64 bits")? {
        to.seed = seed;
    }
    let bias = fields.take::<BTreeMap<u32, f32>>("logit_bias", "an object of numbers by token ids")?;
    to.logit_bias.extend(bias.into_iter().flatten());
    Ok(sampling)
}

/// Some clients write it with a sign.
struct Seed(u64);

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Seed, D::Error> {
        let number = serde_json::Number::deserialize(from)?;
        let whole = number.as_u64().or_else(|| number.as_i64().map(i64::cast_unsigned));
        whole.map(Seed).ok_or_else(|| D::Error::custom("no whole number of 64 bits"))
    }
}

/// Most alternatives of a token, as of OpenAI's API: a result has them all, for each token.
const MOST_LOGPROBS: usize = 20;

/// `logprobs` says how many alternatives, as for texts, or whether there are any, as for chats; then `top_logprobs`
/// says how many.
#[derive(Deserialize)]
#[serde(untagged)]
enum WantsLogprobs {
    Flag(bool),
    Count(usize),
}

fn take_logprobs(fields: &mut Fields<'_>) -> Result<Option<usize>> {
    let wants = fields.take("logprobs", "true, false or a whole number from 0 up")?;
    let top: Option<usize> = fields.take("top_logprobs", usize::EXPECTED)?;
    let at_most = |name: &str, count: usize| match count {
        ..=MOST_LOGPROBS => Ok(Some(count)),
        _ => Err(Problem::bad(format!(
            "{name}: expected a whole number from 0 to {MOST_LOGPROBS}, found {count}"
        ))),
    };
    match (wants, top) {
        (Some(WantsLogprobs::Count(count)), _) => at_most("logprobs", count),
        (Some(WantsLogprobs::Flag(true)), top) => at_most("top_logprobs", top.unwrap_or(0)),
        (None | Some(WantsLogprobs::Flag(false)), None | Some(0)) => Ok(None),
        (_, Some(_)) => Err(Problem::bad("top_logprobs: expected \"logprobs\": true beside it")),
    }
}
