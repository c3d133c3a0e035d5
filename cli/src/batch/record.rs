//! A line of OUT.

use serde::Serialize;
use smolrun::FinishReason;

use super::request::Problem;
use crate::logprobs::Logprobs;

/// A line of OUT.
#[derive(Serialize)]
pub(super) struct Record<'a> {
    /// The line of IN, from 1 up.
    pub(super) line: u64,
    pub(super) custom_id: Option<&'a str>,
    #[serde(flatten)]
    pub(super) result: Outcome<'a>,
}

/// What came of a request.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Outcome<'a> {
    Answer {
        text: &'a str,
        ids: &'a [u32],
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<&'a [Logprobs]>,
        finish_reason: &'static str,
        usage: Usage,
    },
    Failure {
        error: Failure<'a>,
    },
}

/// Tokens of a request.
#[derive(Serialize)]
pub(super) struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
}

#[derive(Serialize)]
pub(super) struct Failure<'a> {
    code: &'a str,
    message: &'a str,
}

/// A request that runs, with what it has generated.
pub(super) struct Answer {
    line: u64,
    custom_id: Option<String>,
    prompt_tokens: usize,
    text: String,
    ids: Vec<u32>,
    logprobs: Option<Vec<Logprobs>>,
}

impl Answer {
    pub(super) fn new(
        line: u64,
        custom_id: Option<String>,
        prompt_tokens: usize,
        has_logprobs: bool,
    ) -> Answer {
        let logprobs = has_logprobs.then(Vec::new);
        Answer { line, custom_id, prompt_tokens, text: String::new(), ids: Vec::new(), logprobs }
    }

    /// The line of IN that it answers.
    pub(super) fn line(&self) -> u64 {
        self.line
    }

    /// Adds a token.
    pub(super) fn push(&mut self, id: u32, text: &str, logprobs: Option<Logprobs>) {
        self.ids.push(id);
        self.text += text;
        if let Some(all) = &mut self.logprobs {
            all.extend(logprobs);
        }
    }

    pub(super) fn finished(&self, reason: FinishReason) -> Record<'_> {
        let (prompt_tokens, completion_tokens) = (self.prompt_tokens, self.ids.len());
        let result = Outcome::Answer {
            text: &self.text,
            ids: &self.ids,
            logprobs: self.logprobs.as_deref(),
            finish_reason: reason.name(),
            usage: Usage {
                prompt_tokens,
                completion_tokens,
                total_tokens: prompt_tokens + completion_tokens,
            },
        };
        Record { line: self.line, custom_id: self.custom_id.as_deref(), result }
    }

    pub(super) fn failed<'a>(&'a self, problem: &'a Problem) -> Record<'a> {
        problem.record(self.line, self.custom_id.as_deref())
    }
}

impl Problem {
    /// What OUT says of a line with it.
    pub(super) fn record<'a>(&'a self, line: u64, custom_id: Option<&'a str>) -> Record<'a> {
        let error = Failure { code: self.code, message: &self.message };
        Record { line, custom_id, result: Outcome::Failure { error } }
    }
}
