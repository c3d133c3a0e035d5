//! What a generation gives: its tokens, and why it ended.

use super::logprobs::Logprobs;

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model generated one of its end ids.
    Eos,
    /// A stop string came.
    Stop,
    /// `max_tokens` were generated.
    Length,
    /// The context is full.
    Context,
    /// The [`CancelToken`](crate::CancelToken) was used.
    Cancelled,
}

impl FinishReason {
    /// `eos`, `stop`, `length`, `context` or `cancelled`.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Eos => "eos",
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Context => "context",
            FinishReason::Cancelled => "cancelled",
        }
    }
}

/// A generated token.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// The text that is complete with it. There is none while a character is unfinished or a stop string may be coming,
    /// and none for a control token.
    pub text: String,
    /// How likely it was, if that was asked for.
    pub logprobs: Option<Logprobs>,
    /// Why it is the last one, if it is.
    pub finish_reason: Option<FinishReason>,
}
