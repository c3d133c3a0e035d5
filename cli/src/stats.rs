//! Times and memory, for `--stats` and `--json`.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use serde::Serialize;
use smolrun::{Sampling, Session};

use crate::output::counted;
use crate::sampling::Described;

/// Notes when each token came.
pub(crate) struct Stopwatch {
    start: Instant,
    opened: Instant,
    tokens: Vec<Instant>,
}

/// All times in milliseconds.
#[derive(Clone, Serialize)]
pub(crate) struct Timings {
    /// From the start of the process to a session ready to run.
    open_ms: f64,
    /// Tokens of the prompt.
    prompt_tokens: usize,
    /// Those of them that `--prompt-cache` knew.
    cached_tokens: usize,
    /// From there to the first token: encoding the prompt and running it.
    prompt_ms: f64,
    /// From the start of the process to the first token.
    first_token_ms: f64,
    /// Generated tokens.
    tokens: usize,
    /// From the first token to the last.
    decode_ms: f64,
    /// Tokens after the first, per second of `decode_ms`.
    tokens_per_second: Option<f64>,
    /// Percentiles of the time between one token and the next.
    token_p50_ms: Option<f64>,
    token_p95_ms: Option<f64>,
    token_p99_ms: Option<f64>,
    /// The process's largest resident memory, where the system tells (Linux).
    peak_rss_bytes: Option<u64>,
    /// Memory that keys and values have.
    kv_bytes: usize,
}

impl Stopwatch {
    /// `start`: when the process started, or a message was sent. The time until now is that of opening.
    pub(crate) fn new(start: Instant) -> Stopwatch {
        Stopwatch { start, opened: Instant::now(), tokens: Vec::new() }
    }

    /// A token came.
    pub(crate) fn lap(&mut self) {
        self.tokens.push(Instant::now());
    }

    pub(crate) fn timings(&self, prompt_tokens: usize, cached_tokens: usize, session: &Session) -> Timings {
        let first = self.tokens.first().copied().unwrap_or(self.opened);
        let last = self.tokens.last().copied().unwrap_or(first);
        let mut steps: Vec<_> = self.tokens.windows(2).map(|pair| pair[1] - pair[0]).collect();
        steps.sort_unstable();
        let percentile = |percent| percentile(&steps, percent).map(millis);
        let decode = last - first;
        Timings {
            open_ms: millis(self.opened - self.start),
            prompt_tokens,
            cached_tokens,
            prompt_ms: millis(first - self.opened),
            first_token_ms: millis(first - self.start),
            tokens: self.tokens.len(),
            decode_ms: millis(decode),
            tokens_per_second: (!steps.is_empty()).then(|| steps.len() as f64 / decode.as_secs_f64()),
            token_p50_ms: percentile(50),
            token_p95_ms: percentile(95),
            token_p99_ms: percentile(99),
            peak_rss_bytes: peak_rss_bytes(),
            kv_bytes: session.cache_bytes(),
        }
    }
}

impl Timings {
    /// Prints them to standard error. `start` says from when on the first token's time counts.
    pub(crate) fn print(&self, start: &str, sampling: &Sampling, session: &Session) {
        let mut text = Vec::new();
        let _ = self.write(&mut text, start, sampling, session); // memory takes everything
        let _ = io::stderr().write_all(&text); // nobody is left who could be told
    }

    fn write(
        &self,
        out: &mut impl Write,
        start: &str,
        sampling: &Sampling,
        session: &Session,
    ) -> io::Result<()> {
        let or_dash = |number: Option<f64>, unit: &str| match number {
            Some(number) => format!("{number:.2} {unit}"),
            None => "-".to_owned(),
        };
        let tokens = |count: usize| counted(count, "token");
        let prompt_speed = (self.tokens > 0)
            .then(|| (self.prompt_tokens - self.cached_tokens) as f64 / (self.prompt_ms / 1e3));
        writeln!(out, "\nopen          {:9.2} ms", self.open_ms)?;
        let (prompt_tokens, prompt_speed) = (tokens(self.prompt_tokens), or_dash(prompt_speed, "tok/s"));
        let cached = match self.cached_tokens {
            0 => String::new(),
            count => format!(", {count} of them cached"),
        };
        writeln!(out, "prompt        {:9.2} ms   {prompt_tokens}{cached}, {prompt_speed}", self.prompt_ms)?;
        writeln!(out, "first token   {:9.2} ms   from {start}", self.first_token_ms)?;
        let (steps, speed) =
            (tokens(self.tokens.saturating_sub(1)), or_dash(self.tokens_per_second, "tok/s"));
        writeln!(out, "decode        {:9.2} ms   {steps}, {speed}", self.decode_ms)?;
        let [p50, p95, p99] =
            [self.token_p50_ms, self.token_p95_ms, self.token_p99_ms].map(|time| or_dash(time, "ms"));
        writeln!(out, "per token     p50 {p50}, p95 {p95}, p99 {p99}")?;
        let rss = or_dash(self.peak_rss_bytes.map(|bytes| bytes as f64 / 1e6), "MB");
        writeln!(out, "memory        peak RSS {rss}, KV cache {:.2} MB", self.kv_bytes as f64 / 1e6)?;
        writeln!(out, "chosen by     {}", Described(sampling))?;
        let threads = counted(session.threads(), "thread");
        writeln!(out, "computed with {threads}, {}, {}", session.kernels().name(), session.fast())
    }
}

/// The smallest of `sorted` that at least `percent` of them do not exceed.
fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// `VmHWM` of this process, where there is a /proc.
fn peak_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}
