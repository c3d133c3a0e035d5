//! A connection to the Hugging Face hub.
//!
//! A hub may be slow for as long as it likes, but not silent: each connection, each answer and each piece of a file has
//! a limit of its own.

use std::env;
use std::error::Error as _;
use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use ureq::{Agent, RedirectAuthHeaders, Response};

use crate::error::{Error, Result};
use crate::json::Count;
use crate::progress::Progress;

/// Where models come from, unless `HF_ENDPOINT` names another place.
const ENDPOINT: &str = "https://huggingface.co";
/// How long a connection may take at most.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a hub may be silent, unless this variable says otherwise, in seconds, as it does to Hugging Face's own
/// tools.
const SILENCE: Duration = Duration::from_secs(30);
const SILENCE_VARIABLE: &str = "HF_HUB_DOWNLOAD_TIMEOUT";
/// Largest answer that is JSON, and most values in it: a repository of a thousand files has a tenth of these.
const MAX_JSON_LEN: u64 = 16 << 20;
const MAX_JSON_VALUES: usize = 1 << 18;

/// What goes right, or why not.
pub(super) type Found<T> = std::result::Result<T, Failure>;

/// Why a hub did not give what it was asked for.
pub(super) struct Failure {
    /// Whether it answered at all.
    answered: bool,
    /// What it answered, or why it did not, in words.
    pub(super) words: String,
}

impl Failure {
    /// What to say where `expected` was asked for.
    pub(super) fn instead_of(self, expected: &str) -> String {
        let words = self.words;
        match self.answered {
            true => format!("expected {expected}, found: {words}"),
            false => format!("could not reach the Hugging Face hub: {words}"),
        }
    }
}

impl From<String> for Failure {
    /// Of a hub that answered.
    fn from(words: String) -> Failure {
        Failure { answered: true, words }
    }
}

/// A hub, and how it is spoken to.
pub(super) struct Hub<'a> {
    /// Follows redirections, without the token if they lead elsewhere.
    pub(super) agent: Agent,
    /// Follows none.
    pub(super) still: Agent,
    pub(super) endpoint: String,
    token: Option<String>,
    silence: Duration,
    pub(super) progress: &'a Progress,
}

impl<'a> Hub<'a> {
    /// `HF_ENDPOINT` names another hub; `HF_TOKEN` or the token beside `cache` is used.
    pub(super) fn from_env(cache: &Path, progress: &'a Progress) -> Result<Hub<'a>> {
        let silence = silence_from_env()?;
        // A connection that is used again would wait for an answer without a limit.
        let builder = || {
            ureq::builder()
                .try_proxy_from_env(true)
                .max_idle_connections(0)
                .timeout_connect(CONNECT.min(silence))
                .timeout_read(silence)
                .timeout_write(silence)
        };
        let token_file = cache.parent().map(|home| home.join("token"));
        let token = variable("HF_TOKEN").or_else(|| fs::read_to_string(token_file?).ok());
        Ok(Hub {
            agent: builder().redirect_auth_headers(RedirectAuthHeaders::SameHost).build(),
            still: builder().redirects(0).build(),
            endpoint: variable("HF_ENDPOINT").unwrap_or(ENDPOINT.into()).trim_end_matches('/').into(),
            token: token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty()),
            silence,
            progress,
        })
    }

    /// What is about to happen, in a line.
    pub(super) fn fetching(&self, path: &str, size: Option<u64>, repository: &str) -> String {
        let megabytes = |size| format!(", {:.1} MB,", size as f64 / 1e6);
        let size = size.map(megabytes).unwrap_or_default();
        format!("fetching {path}{size} of {repository} from {}", self.endpoint)
    }

    /// Asks for `url`, or for a range of its bytes.
    pub(super) fn get(&self, agent: &Agent, url: &str, range: Option<&str>) -> Found<Response> {
        let agent_name = concat!("smolconv/", env!("CARGO_PKG_VERSION"));
        let mut request = agent.get(url).set("User-Agent", agent_name).set("Accept-Encoding", "identity");
        if let Some(token) = &self.token {
            request = request.set("Authorization", &format!("Bearer {token}"));
        }
        if let Some(range) = range {
            request = request.set("Range", range);
        }
        match request.call() {
            Ok(response) | Err(ureq::Error::Status(416, response)) => Ok(response),
            Err(ureq::Error::Status(code, response)) => {
                Err(format!("{code} {}{}", response.status_text(), self.advice(code)).into())
            }
            Err(ureq::Error::Transport(error)) => {
                Err(Failure { answered: false, words: self.transport(&error) })
            }
        }
    }

    /// What to do about a status. The hub says 401 of what is not there, too, to whoever has no token.
    fn advice(&self, code: u16) -> String {
        if !matches!(code, 401 | 403) {
            return String::new();
        }
        let page = &self.endpoint;
        let agree = format!("agree to the model's terms on {page} and set HF_TOKEN to a token of yours");
        match self.token {
            Some(_) => format!(" (the token may not read it: {agree} that may)"),
            None => format!(" (it is gated or private, or not there: if it is gated, {agree})"),
        }
    }

    /// The JSON that `url` answers with.
    pub(super) fn json<T: DeserializeOwned>(&self, url: &str) -> Found<T> {
        let response = self.get(&self.agent, url, None)?;
        let mut bytes = Vec::new();
        let read = response.into_reader().take(MAX_JSON_LEN + 1).read_to_end(&mut bytes);
        read.map_err(|error| self.broken_off(&error))?;
        let values = Count::of(&bytes).values;
        if bytes.len() as u64 > MAX_JSON_LEN || values > MAX_JSON_VALUES {
            return Err(format!("more than {MAX_JSON_LEN} bytes or {MAX_JSON_VALUES} values of JSON").into());
        }
        serde_json::from_slice(&bytes)
            .map_err(|error| format!("an answer that is not understood: {error}").into())
    }

    /// Why an answer ended early.
    pub(super) fn broken_off(&self, error: &io::Error) -> String {
        if is_timeout(error) { self.no_answer() } else { error.to_string() }
    }

    /// Why there is no answer.
    fn transport(&self, error: &ureq::Transport) -> String {
        let mut source = error.source();
        while let Some(error) = source {
            if error.downcast_ref::<io::Error>().is_some_and(is_timeout) {
                return self.no_answer();
            }
            source = error.source();
        }
        error.to_string()
    }

    fn no_answer(&self) -> String {
        let seconds = self.silence.as_secs_f64();
        format!(
            "no answer from {} for {seconds} s ({SILENCE_VARIABLE} sets how long it may take)",
            self.endpoint
        )
    }
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn silence_from_env() -> Result<Duration> {
    let Some(value) = variable(SILENCE_VARIABLE) else { return Ok(SILENCE) };
    let duration = value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.filter(|duration| !duration.is_zero()).ok_or_else(|| {
        Error::file(Path::new(SILENCE_VARIABLE), format!("expected seconds above 0, found {value:?}"))
    })
}

/// Of `https://host/path`, `https://host`.
pub(super) fn origin(endpoint: &str) -> &str {
    let host = endpoint.find("://").map_or(0, |at| at + 3);
    endpoint[host..].find('/').map_or(endpoint, |end| &endpoint[..host + end])
}

/// On Unix a read that takes too long would block.
fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}
