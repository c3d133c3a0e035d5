//! From a text, or from messages, to the tokens that a model continues.

#[cfg(feature = "chat")]
use crate::chat::{Chat, ChatOptions, Message};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::tokenizer::{SpecialTokens, Tokenizer};

/// How [`Model::encode_prompt_with`] encodes a text.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PromptOptions {
    /// What becomes of control tokens that the text spells.
    pub special_tokens: SpecialTokens,
    /// Most tokens that the prompt may have, mostly [`Session::most_tokens`](crate::Session::most_tokens). A text that is
    /// far too long is an error before all of it is encoded.
    pub max_tokens: usize,
}

impl Default for PromptOptions {
    /// Control tokens are text, and there is no limit.
    fn default() -> PromptOptions {
        PromptOptions { special_tokens: SpecialTokens::AsText, max_tokens: usize::MAX }
    }
}

impl PromptOptions {
    /// These options with this way to treat control tokens that the text spells.
    pub fn special_tokens(self, special_tokens: SpecialTokens) -> PromptOptions {
        PromptOptions { special_tokens, ..self }
    }

    /// These options with at most `max_tokens` tokens.
    pub fn max_tokens(self, max_tokens: usize) -> PromptOptions {
        PromptOptions { max_tokens, ..self }
    }
}

impl Model {
    /// The model's tokenizer, straight on the blob's tables: making one costs nothing.
    pub fn tokenizer(&self) -> Tokenizer {
        Tokenizer::new(self.storage().clone(), self.layout())
    }

    /// The tokens of `text` as a prompt to be continued: what the model's prompts begin with (`<s>` of Llama 2 and Mistral,
    /// nothing of many others), then those of the text. Control tokens that the text spells are text.
    ///
    /// An empty text is the beginning of a text: the model's `bos_token_id`, or [`Error::Argument`] if it names none.
    ///
    /// A conversation is encoded by `encode_chat` (feature `chat`), whose template says what it begins with.
    /// [`Tokenizer::encode`](crate::tokenizer::Tokenizer::encode) gives the tokens of the text alone.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>> {
        self.encode_prompt_with(text, &PromptOptions::default())
    }

    /// As [`Model::encode_prompt`], with options. A text of too many tokens is [`Error::TextTooLong`].
    pub fn encode_prompt_with(&self, text: &str, options: &PromptOptions) -> Result<Vec<u32>> {
        let PromptOptions { special_tokens, max_tokens } = *options;
        let ids = self.tokenizer().encode_prompt_within(text, special_tokens, max_tokens)?;
        match (ids.is_empty(), self.config().bos_token_id) {
            (false, _) => Ok(ids),
            (true, Some(bos)) => Ok(vec![bos]),
            (true, None) => Err(Error::Argument {
                name: "prompt",
                expected: "a text with tokens, since the model names none that begins a text".into(),
                found: "none".into(),
            }),
        }
    }
}

#[cfg(feature = "chat")]
impl Model {
    /// Renders the blob's chat template over `messages`, followed by what begins the assistant's answer, and encodes it.
    ///
    /// What a message says never becomes a control token. A blob without a template is [`Error::Template`].
    pub fn encode_chat(&self, messages: &[Message]) -> Result<Vec<u32>> {
        self.encode_chat_with(messages, &ChatOptions::default())
    }

    /// As [`Model::encode_chat`], with options. A conversation of too many tokens is [`Error::TextTooLong`].
    pub fn encode_chat_with(&self, messages: &[Message], options: &ChatOptions) -> Result<Vec<u32>> {
        self.chat()?.encode(messages, options)
    }

    /// The text that [`Model::encode_chat_with`] encodes. In it, control tokens that a message spells look like the
    /// template's.
    pub fn render_chat(&self, messages: &[Message], options: &ChatOptions) -> Result<String> {
        self.chat()?.render(messages, options)
    }

    fn chat(&self) -> Result<Chat<'_>> {
        Chat::new(self.chat_template()?, self.tokenizer(), self.config())
    }
}
