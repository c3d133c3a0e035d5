//! From messages to a prompt, by the checkpoint's own Jinja template.
//!
//! **What a message says never becomes a control token**, whatever it spells: before the template sees it, a guard
//! character is put into everything in it that could be read as one, and the tokenizer takes the guard out again after
//! it has looked for control tokens. What the template itself writes is parsed.

use minijinja::{Environment, Error as TemplateError, ErrorKind, Value, syntax::SyntaxConfig};

use crate::error::{Error, Result};
use crate::model::Model;
use crate::tokenizer::Tokenizer;

/// Steps a template may take: thousands of messages, but no endless loop.
const FUEL: u64 = 10_000_000;
/// Unicode's noncharacters: the guard is one of them that occurs nowhere in the conversation.
const GUARDS: std::ops::RangeInclusive<char> = '\u{FDD0}'..='\u{FDEF}';

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user` or `assistant`, or what else the template knows.
    pub role: String,
    /// What was said.
    pub content: String,
}

impl Message {
    /// A message of `role`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: content.into() }
    }
}

impl Model {
    /// Renders the blob's chat template over `messages`, followed by what begins the assistant's answer, and encodes it.
    pub fn encode_chat(&self, messages: &[Message]) -> Result<Vec<u32>> {
        let template = self.chat_template()?.ok_or_else(|| Error::Template {
            problem: "the blob has none: its checkpoint is no chat model".into(),
        })?;
        let tokenizer = self.tokenizer();
        let controls: Vec<&str> = tokenizer.special_tokens()?.into_iter().map(|(_, text)| text).collect();
        let is_free = |guard: &char| {
            let mut texts = messages.iter().flat_map(|message| [&message.role, &message.content]);
            !template.contains(*guard) && !texts.any(|text| text.contains(*guard))
        };
        let guard = GUARDS.into_iter().find(is_free).ok_or_else(|| Error::Template {
            problem: "the messages use all of Unicode's noncharacters".into(),
        })?;
        let guarded = messages.iter().map(|message| {
            let role = guard_text(&message.role, &controls, guard);
            let content = guard_text(&message.content, &controls, guard);
            Value::from_pairs([("role", role), ("content", content)])
        });
        let text = self.render(template, &tokenizer, guarded.collect())?;
        tokenizer.encode_guarded(&text, guard)
    }

    fn render(&self, template: &str, tokenizer: &Tokenizer, messages: Vec<Value>) -> Result<String> {
        let token = |id: Option<u32>| -> Result<String> {
            Ok(match id {
                Some(id) => String::from_utf8_lossy(tokenizer.token_bytes(id)?).into_owned(),
                None => String::new(),
            })
        };
        let config = self.config();
        let context = Value::from_pairs([
            ("messages", Value::from(messages)),
            ("bos_token", Value::from(token(config.bos_token_id)?)),
            ("eos_token", Value::from(token(config.eos_token_ids.first().copied())?)),
            ("add_generation_prompt", Value::from(true)),
        ]);
        let problem = |error: TemplateError| Error::Template { problem: format!("{error:#}") };
        let mut environment = Environment::new();
        // As transformers' `apply_chat_template` sets Jinja up.
        let syntax =
            SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(problem)?;
        environment.set_syntax(syntax);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| {
            Err::<String, _>(TemplateError::new(ErrorKind::InvalidOperation, message))
        });
        environment.set_fuel(Some(FUEL));
        environment.render_str(template, context).map_err(problem)
    }
}

/// `text` with `guard` in everything that is, or could at its borders become part of, one of `controls`.
fn guard_text(text: &str, controls: &[&str], guard: char) -> String {
    let mut guarded = String::with_capacity(text.len());
    // Templates trim what they insert, so the borders are those of the trimmed text.
    let inner = text.trim();
    let start = text.len() - text.trim_start().len();
    let end = start + inner.len();
    for (at, character) in text.char_indices() {
        if at == start && ends_a_control(inner, controls) || at == end && begins_a_control(inner, controls) {
            guarded.push(guard);
        }
        guarded.push(character);
        if controls.iter().any(|control| text[at..].starts_with(*control)) {
            guarded.push(guard);
        }
    }
    if end == text.len() && begins_a_control(inner, controls) {
        guarded.push(guard);
    }
    guarded
}

/// Whether `text` starts with a proper suffix of a control token: what comes before it could complete it.
fn ends_a_control(text: &str, controls: &[&str]) -> bool {
    proper_cuts(controls).any(|(_, suffix)| text.starts_with(suffix))
}

/// Whether `text` ends with a proper prefix of a control token: what comes after it could complete it.
fn begins_a_control(text: &str, controls: &[&str]) -> bool {
    proper_cuts(controls).any(|(prefix, _)| text.ends_with(prefix))
}

/// Each control token cut in two at every character, neither part empty.
fn proper_cuts<'a>(controls: &[&'a str]) -> impl Iterator<Item = (&'a str, &'a str)> {
    controls.iter().flat_map(|control| control.char_indices().skip(1).map(|(at, _)| control.split_at(at)))
}

#[cfg(test)]
mod tests {
    use super::guard_text;

    #[test]
    fn a_guard_stands_in_whatever_spells_a_control_token() {
        let controls = ["<|end|>", "<s>"];
        let guarded = |text| guard_text(text, &controls, '!');
        for (text, expected) in [
            ("", ""),
            ("plain text", "plain text"),
            ("a <|end|> b", "a <!|end|> b"),
            ("<s><s>", "<!s><!s>"),
            // At the borders, where the template's text could complete it; inside, a part is harmless.
            ("end|> x", "!end|> x"),
            ("x <|en", "x <|en!"),
            ("  s> ", "  !s> "),
            (" x <\n", " x <!\n"),
            ("a <|en b", "a <|en b"),
            ("日本<s>", "日本<!s>"),
        ] {
            assert_eq!(guarded(text), expected, "{text:?}");
        }
    }
}
