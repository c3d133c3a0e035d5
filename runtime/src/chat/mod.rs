//! Conversations: from messages to a prompt, by the checkpoint's own Jinja template.
//!
//! [`Model::encode_chat`](crate::Model::encode_chat) is what most need.
//!
//! **What a message says never becomes a control token**, whatever it spells. Before the template sees it, a guard
//! character is put into everything in it that could be read as one. The tokenizer takes the guard out again after it
//! has looked for control tokens. What the template itself writes is parsed. Tools, their results, reasoning and
//! documents are guarded in the same way.
//!
//! **A message may have a list of parts**, as OpenAI's clients write it: `[{"type": "text", "text": "Hello"}]`. A template
//! that makes the same of a part as of its text gets the list. Any other gets the texts of the parts, with a line break
//! between two; then a part that is no text is [`Error::Argument`]. A template that fails at a message without content, which
//! only calls tools, gets an empty one.

mod contents;
mod date;
mod guard;
mod jinja;
mod json;
mod message;
mod template;

use std::collections::BTreeSet;
use std::time::SystemTime;

use self::guard::{Guard, Guarding};
use self::json::Json;
pub use self::message::Message;
pub use self::template::ChatTemplate;
use crate::error::{Error, Result};
use crate::format::Config;
use crate::tokenizer::Tokenizer;

/// Unicode's noncharacters: the guard is one of them that occurs nowhere in the conversation.
const GUARDS: std::ops::RangeInclusive<char> = '\u{FDD0}'..='\u{FDEF}';

/// What a template is told besides the messages.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChatOptions {
    /// Whether the text ends with what begins the assistant's answer.
    pub add_generation_prompt: bool,
    /// The time that `strftime_now` returns, in UTC. Without it, `strftime_now` is undefined in the template: the
    /// library has no clock, and the same messages give the same prompt.
    pub now: Option<SystemTime>,
    /// Variables of the template by name, such as `enable_thinking`.
    pub variables: Vec<(String, TemplateVariable)>,
    /// Most tokens that the conversation may make, usually [`Session::most_tokens`](crate::Session::most_tokens). One
    /// that is far too long is an error before all of it is encoded.
    pub max_tokens: usize,
    tools: Option<Json>,
    documents: Option<Json>,
}

/// The value of a template's variable.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TemplateVariable {
    /// True or false.
    Flag(bool),
    /// A text, parsed for control tokens as the template's own text is.
    Text(String),
}

impl From<bool> for TemplateVariable {
    fn from(flag: bool) -> TemplateVariable {
        TemplateVariable::Flag(flag)
    }
}

impl From<&str> for TemplateVariable {
    fn from(text: &str) -> TemplateVariable {
        TemplateVariable::Text(text.to_owned())
    }
}

impl From<String> for TemplateVariable {
    fn from(text: String) -> TemplateVariable {
        TemplateVariable::Text(text)
    }
}

impl Default for ChatOptions {
    fn default() -> ChatOptions {
        ChatOptions {
            add_generation_prompt: true,
            now: None,
            variables: Vec::new(),
            max_tokens: usize::MAX,
            tools: None,
            documents: None,
        }
    }
}

impl ChatOptions {
    /// These options, with or without what begins the assistant's answer.
    pub fn add_generation_prompt(self, add_generation_prompt: bool) -> ChatOptions {
        ChatOptions { add_generation_prompt, ..self }
    }

    /// These options with the present time.
    pub fn now(self, now: SystemTime) -> ChatOptions {
        ChatOptions { now: Some(now), ..self }
    }

    /// These options with at most `max_tokens` tokens.
    pub fn max_tokens(self, max_tokens: usize) -> ChatOptions {
        ChatOptions { max_tokens, ..self }
    }

    /// These options with the tools that the assistant may call: JSON, an array of objects such as
    /// `{"type": "function", "function": {"name": "now", "description": "Tells the time.", "parameters": {}}}`.
    ///
    /// The text has at most 16 MB and 250,000 values, which lie at most 32 deep in one another.
    pub fn tools(self, json: &str) -> Result<ChatOptions> {
        Ok(ChatOptions { tools: Some(Json::parse_objects("tools", json)?), ..self })
    }

    /// These options with documents to answer from: JSON, an array of objects such as `{"title": ..., "text": ...}`,
    /// with the limits of [`ChatOptions::tools`].
    pub fn documents(self, json: &str) -> Result<ChatOptions> {
        Ok(ChatOptions { documents: Some(Json::parse_objects("documents", json)?), ..self })
    }

    /// These options with one more variable; of two with the same name the last counts.
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<TemplateVariable>) -> ChatOptions {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// With all texts of tools and documents as `change` has them.
    fn map(&self, change: &dyn Fn(&str) -> String) -> Result<ChatOptions> {
        let map = |json: &Option<Json>| json.as_ref().map(|json| json.map(change)).transpose();
        Ok(ChatOptions { tools: map(&self.tools)?, documents: map(&self.documents)?, ..self.clone() })
    }

    /// What tools, documents and variables say.
    fn texts(&self) -> impl Iterator<Item = &str> {
        let variables = self.variables.iter().filter_map(|(_, value)| match value {
            TemplateVariable::Flag(_) => None,
            TemplateVariable::Text(text) => Some(text.as_str()),
        });
        self.data().chain(variables)
    }

    /// What tools and documents say.
    fn data(&self) -> impl Iterator<Item = &str> {
        self.tools.iter().chain(&self.documents).map(Json::as_str)
    }
}

/// A model's chat template, and what turns its text into tokens.
pub(crate) struct Chat<'a> {
    template: &'a str,
    tokenizer: Tokenizer,
    config: &'a Config,
}

impl<'a> Chat<'a> {
    /// Of a model with this template, if it has one.
    pub(crate) fn new(
        template: Option<&'a str>,
        tokenizer: Tokenizer,
        config: &'a Config,
    ) -> Result<Chat<'a>> {
        let template = template.ok_or_else(|| Error::Template {
            problem: "the blob has none: its checkpoint is no chat model".into(),
        })?;
        Ok(Chat { template, tokenizer, config })
    }

    /// The tokens of a conversation.
    pub(crate) fn encode(&self, messages: &[Message], options: &ChatOptions) -> Result<Vec<u32>> {
        let (text, guard) = self.render_guarded(messages, options)?;
        self.tokenizer.encode_guarded_within(&text, guard, options.max_tokens)
    }

    /// The text of a conversation.
    pub(crate) fn render(&self, messages: &[Message], options: &ChatOptions) -> Result<String> {
        let (text, guard) = self.render_guarded(messages, options)?;
        Ok(text.replace(guard, ""))
    }

    fn render_guarded(&self, messages: &[Message], options: &ChatOptions) -> Result<(String, char)> {
        let mut all = self.token_variables()?;
        all.extend_from_slice(&options.variables);
        let told = ChatOptions { variables: all, ..options.clone() };
        let template = ChatTemplate::new(self.template)?;
        let messages = &*contents::readable(messages, &template, &told)?;
        let special = self.tokenizer.special_tokens()?;
        let controls: Vec<&str> = special.into_iter().map(|(_, text)| text).collect();
        let texts = || messages.iter().flat_map(Message::texts).chain(options.data());
        let guard = find_guard(self.template, texts)?;
        let guardian = Guard::new(&controls, guard);
        let render = |guarding| {
            let guarded = |text: &str| guardian.text(text, guarding);
            let messages = messages.iter().map(|said| said.map(&guarded)).collect::<Result<Vec<_>>>()?;
            template.render_guarded(&messages, &told.map(&guarded)?, Some(guard))
        };
        let text = render(Guarding::Spelled)?;
        // A template that takes something out of a message may join what is left to a control token. Then it gets the
        // message so guarded that it cannot, at the price that it may not know its own marks in it.
        if !texts().any(|text| guardian.is_possible(text)) {
            return Ok((text, guard));
        }
        let safe = render(Guarding::Possible)?;
        let max_tokens = options.max_tokens;
        let is_same =
            self.controls_in(&text, guard, max_tokens)? == self.controls_in(&safe, guard, max_tokens)?;
        Ok((if is_same { text } else { safe }, guard))
    }

    /// The control tokens that are parsed in a guarded text.
    fn controls_in(&self, text: &str, guard: char, max_tokens: usize) -> Result<Vec<u32>> {
        let mut ids = self.tokenizer.encode_guarded_within(text, guard, max_tokens)?;
        let special: BTreeSet<u32> = self.tokenizer.special_tokens()?.into_iter().map(|(id, _)| id).collect();
        ids.retain(|id| special.contains(id));
        Ok(ids)
    }

    /// `bos_token` and `eos_token` by the config; a template says itself where the checkpoint calls others so.
    fn token_variables(&self) -> Result<Vec<(String, TemplateVariable)>> {
        let Config { bos_token_id, eos_token_ids, .. } = self.config;
        let tokens = [("bos_token", *bos_token_id), ("eos_token", eos_token_ids.first().copied())];
        let named = tokens.into_iter().filter_map(|(name, id)| Some((name, id?)));
        named
            .map(|(name, id)| Ok((name.to_owned(), TemplateVariable::Text(self.tokenizer.token_text(id)?))))
            .collect()
    }
}

/// A character that is neither in the template nor in one of `texts`.
fn find_guard<'a, I: Iterator<Item = &'a str>>(template: &str, texts: impl Fn() -> I) -> Result<char> {
    let is_free = |guard: &char| !template.contains(*guard) && !texts().any(|text| text.contains(*guard));
    GUARDS
        .into_iter()
        .find(is_free)
        .ok_or_else(|| Error::Template { problem: "the messages use all of Unicode's noncharacters".into() })
}
