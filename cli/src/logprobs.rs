//! Log-probabilities as JSON has them.

use serde::Serialize;
use smolrun::generation;
use smolrun::tokenizer::Tokenizer;

/// Of one token.
#[derive(Serialize)]
pub(crate) struct Logprobs {
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
    pub(crate) fn new(of: &generation::Logprobs, tokenizer: &Tokenizer) -> smolrun::Result<Logprobs> {
        let alternative = |&generation::Alternative { id, logprob, .. }: &_| {
            let text = String::from_utf8_lossy(tokenizer.token_bytes(id)?).into_owned();
            Ok(Alternative { id, text, logprob })
        };
        Ok(Logprobs {
            logprob: of.logprob,
            top: of.top.iter().map(alternative).collect::<smolrun::Result<_>>()?,
        })
    }
}
