//! What calls return: plain data, which can be compared and pickled.

use std::time::Instant;

use pyo3::prelude::*;
use smolrun::generation::{self, Logprobs};
use smolrun::tokenizer::Tokenizer;
use smolrun::{FinishReason, Token};

use crate::failure::Result;

/// A token that could have been chosen.
#[pyclass(frozen, eq, get_all, from_py_object, module = "smolrun")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Alternative {
    /// Its id.
    id: u32,
    /// Its text, with U+FFFD for what is no whole character.
    text: String,
    /// The natural logarithm of its probability.
    logprob: f32,
}

/// How likely a generated token was, before any sampling option.
#[pyclass(frozen, eq, get_all, from_py_object, module = "smolrun")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenLogprobs {
    /// Its id.
    id: u32,
    /// Its text, with U+FFFD for what is no whole character.
    text: String,
    /// The natural logarithm of its probability.
    logprob: f32,
    /// The likeliest tokens in its place, likeliest first.
    top: Vec<Alternative>,
}

/// A token of a stream, and the text that is complete with it; str() is this text.
#[pyclass(frozen, eq, get_all, module = "smolrun")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Piece {
    /// The token's id.
    id: u32,
    /// The text that is complete with it: empty while a character is unfinished or a stop string may be coming.
    text: String,
    /// How likely it was, if that was asked for.
    logprobs: Option<TokenLogprobs>,
    /// Why it is the last one, if it is: "eos", "stop", "length", "context" or "cancelled".
    finish_reason: Option<String>,
}

/// How long a generation took.
#[pyclass(frozen, eq, get_all, from_py_object, module = "smolrun")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Timings {
    /// Tokens of the prompt.
    prompt_tokens: usize,
    /// Those of them that were computed before.
    cached_tokens: usize,
    /// Milliseconds from the call to the first token: encoding the prompt and running it.
    prompt_ms: f64,
    /// Generated tokens.
    tokens: usize,
    /// Milliseconds from the first token to the last.
    decode_ms: f64,
    /// Tokens after the first, per second of decode_ms; None if there are none.
    tokens_per_second: Option<f64>,
}

/// A generated text; str() is the text itself.
#[pyclass(frozen, eq, get_all, module = "smolrun")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Completion {
    /// The text, without stop strings and control tokens.
    text: String,
    /// The tokens.
    ids: Vec<u32>,
    /// Why it ended: "eos", "stop", "length" (max_tokens), "context" (which is full) or "cancelled".
    finish_reason: String,
    /// How likely each token was, if that was asked for.
    logprobs: Option<Vec<TokenLogprobs>>,
    /// What decided every draw; None if the likeliest token was always taken.
    seed: Option<u64>,
    /// How long it took.
    timings: Timings,
}

/// How likely the model finds a continuation.
#[pyclass(frozen, eq, get_all, module = "smolrun")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Score {
    /// The sum of its tokens' log-probabilities, each given all before it.
    logprob: f64,
    /// How many tokens were scored.
    tokens: usize,
    /// Whether each of them is the most likely in its place.
    is_greedy: bool,
}

/// How well the model foresees a text.
#[pyclass(frozen, eq, get_all, module = "smolrun")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Perplexity {
    /// The sum of the tokens' negative log-likelihoods, in nats.
    nll: f64,
    /// How many tokens were scored.
    tokens: usize,
    /// The mean negative log-likelihood of a token, in nats.
    mean_nll: f64,
    /// e to that mean: the model is as uncertain as among so many equally likely tokens.
    perplexity: f64,
}

/// What a conversion wrote.
#[pyclass(frozen, eq, get_all, module = "smolrun")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Summary {
    /// Where the blob is.
    pub(crate) path: std::path::PathBuf,
    /// Its bytes.
    pub(crate) bytes: u64,
    /// Its sections.
    pub(crate) sections: usize,
    /// How far it is from its checkpoint, in words, where a report was asked for.
    pub(crate) report: Option<String>,
}

/// Gives a class a constructor of all its fields, pickling by it, and a repr that shows it.
macro_rules! record {
    ($name:ident { $($field:ident: $type:ty),* } $(shows $text:ident)?) => {
        #[pymethods]
        impl $name {
            #[new]
            fn new($($field: $type),*) -> $name {
                $name { $($field),* }
            }

            fn __getnewargs__(&self) -> ($($type,)*) {
                ($(self.$field.clone(),)*)
            }

            fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
                let fields = [$(stringify!($field)),*];
                let shown = fields.iter().map(|name| Ok(format!("{name}={}", slf.getattr(*name)?.repr()?)));
                let shown: Vec<String> = shown.collect::<PyResult<_>>()?;
                Ok(format!("{}({})", stringify!($name), shown.join(", ")))
            }

            $(
                fn __str__(&self) -> &str {
                    &self.$text
                }
            )?
        }
    };
}
record!(Alternative { id: u32, text: String, logprob: f32 });
record!(TokenLogprobs { id: u32, text: String, logprob: f32, top: Vec<Alternative> });
record!(Piece {
    id: u32,
    text: String,
    logprobs: Option<TokenLogprobs>,
    finish_reason: Option<String>
} shows text);
record!(Timings {
    prompt_tokens: usize,
    cached_tokens: usize,
    prompt_ms: f64,
    tokens: usize,
    decode_ms: f64,
    tokens_per_second: Option<f64>
});
record!(Completion {
    text: String,
    ids: Vec<u32>,
    finish_reason: String,
    logprobs: Option<Vec<TokenLogprobs>>,
    seed: Option<u64>,
    timings: Timings
} shows text);
record!(Score { logprob: f64, tokens: usize, is_greedy: bool });
record!(Perplexity { nll: f64, tokens: usize, mean_nll: f64, perplexity: f64 });
record!(Summary { path: std::path::PathBuf, bytes: u64, sections: usize, report: Option<String> });

impl From<smolrun::eval::Score> for Score {
    fn from(score: smolrun::eval::Score) -> Score {
        Score { logprob: score.logprob, tokens: score.tokens, is_greedy: score.is_greedy }
    }
}

impl From<smolrun::eval::Perplexity> for Perplexity {
    fn from(sum: smolrun::eval::Perplexity) -> Perplexity {
        let (mean_nll, perplexity) = (sum.mean_nll(), sum.perplexity());
        Perplexity { nll: sum.nll, tokens: sum.tokens, mean_nll, perplexity }
    }
}

impl TokenLogprobs {
    fn of(id: u32, of: &Logprobs, tokenizer: &Tokenizer) -> Result<TokenLogprobs> {
        let text =
            |id| Ok::<_, smolrun::Error>(String::from_utf8_lossy(tokenizer.token_bytes(id)?).into_owned());
        let alternative = |&generation::Alternative { id, logprob, .. }: &_| {
            Ok(Alternative { id, text: text(id)?, logprob })
        };
        let top = of.top.iter().map(alternative).collect::<smolrun::Result<_>>()?;
        Ok(TokenLogprobs { id, text: text(id)?, logprob: of.logprob, top })
    }
}

impl Piece {
    pub(crate) fn of(token: Token, tokenizer: &Tokenizer) -> Result<Piece> {
        let logprobs = token.logprobs.as_ref().map(|of| TokenLogprobs::of(token.id, of, tokenizer));
        Ok(Piece {
            id: token.id,
            text: token.text,
            logprobs: logprobs.transpose()?,
            finish_reason: token.finish_reason.map(|reason| reason.name().to_owned()),
        })
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }
}

/// A completion that grows.
pub(crate) struct Draft {
    ids: Vec<u32>,
    text: String,
    logprobs: Option<Vec<TokenLogprobs>>,
    seed: Option<u64>,
    prompt_tokens: usize,
    cached_tokens: usize,
    start: Instant,
    first: Option<Instant>,
    last: Option<Instant>,
    finish_reason: Option<FinishReason>,
}

impl Draft {
    /// Without tokens; `start` is when it was asked for.
    pub(crate) fn new(
        options: &smolrun::GenerateOptions,
        prompt_tokens: usize,
        cached_tokens: usize,
        start: Instant,
    ) -> Draft {
        let sampling = &options.sampling;
        Draft {
            ids: Vec::new(),
            text: String::new(),
            logprobs: options.logprobs.map(|_| Vec::new()),
            seed: (sampling.temperature > 0.0).then_some(sampling.seed),
            prompt_tokens,
            cached_tokens,
            start,
            first: None,
            last: None,
            finish_reason: None,
        }
    }

    /// Another token came.
    pub(crate) fn push(&mut self, piece: &Piece) {
        let now = Instant::now();
        self.first.get_or_insert(now);
        self.last = Some(now);
        self.ids.push(piece.id);
        self.text += &piece.text;
        if let (Some(all), Some(new)) = (&mut self.logprobs, &piece.logprobs) {
            all.push(new.clone());
        }
    }

    /// No more will come.
    pub(crate) fn finish(&mut self, reason: FinishReason) {
        self.finish_reason = Some(reason);
    }

    pub(crate) fn finish_reason(&self) -> Option<FinishReason> {
        self.finish_reason
    }

    /// The text so far.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The tokens so far.
    pub(crate) fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The completion so far. What has not ended yet was cancelled.
    pub(crate) fn completion(&self) -> Completion {
        let reason = self.finish_reason.unwrap_or(FinishReason::Cancelled);
        let first = self.first.unwrap_or(self.start);
        let decode = self.last.unwrap_or(first).duration_since(first);
        let steps = self.ids.len().saturating_sub(1);
        Completion {
            text: self.text.clone(),
            ids: self.ids.clone(),
            finish_reason: reason.name().to_owned(),
            logprobs: self.logprobs.clone(),
            seed: self.seed,
            timings: Timings {
                prompt_tokens: self.prompt_tokens,
                cached_tokens: self.cached_tokens,
                prompt_ms: first.duration_since(self.start).as_secs_f64() * 1e3,
                tokens: self.ids.len(),
                decode_ms: decode.as_secs_f64() * 1e3,
                tokens_per_second: (steps > 0).then(|| steps as f64 / decode.as_secs_f64()),
            },
        }
    }
}
