//! How a scheduler shares an engine.

use crate::error::{Error, Result};
use crate::model::{Engine, KvDtype, Overflow};

/// How a [`Scheduler`](super::Scheduler) shares its engine between requests.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SchedulerOptions {
    /// Most requests that run at the same time; others wait. From 1 to [`SchedulerOptions::max_rows`].
    pub max_sequences: usize,
    /// Most tokens in one pass, of all requests together. At most [`Engine::MAX_ROWS`].
    pub max_rows: usize,
    /// How much longer a pass may take for the parts of prompts in it, where others wait for their next token: at most
    /// so many times as long, by an estimate that knows no clock. From 1 up; infinity lets prompts in as fast as they
    /// go, which serves all together best.
    pub pace: f32,
    /// Bytes of keys and values that the running requests may take together, and those that ended until they have given theirs
    /// back. Each counts with all that it may come to, whether or not it shares some of it. A request that does not fit now waits.
    pub kv_bytes: usize,
    /// Bytes of keys and values that are kept for prompts that begin alike, beside
    /// [`SchedulerOptions::kv_bytes`]; 0 keeps none.
    pub prefix_bytes: usize,
    /// How keys and values are kept, as [`SessionOptions::kv_dtype`](crate::SessionOptions#structfield.kv_dtype) says.
    pub kv_dtype: Option<KvDtype>,
    /// What happens to a sequence that is as long as the model's context.
    pub overflow: Overflow,
}

impl Default for SchedulerOptions {
    /// 64 requests, about twice the usual time for a token while a prompt comes in, any number of bytes for requests,
    /// and 256 MB for what prompts share.
    fn default() -> SchedulerOptions {
        SchedulerOptions {
            max_sequences: 64,
            max_rows: Engine::MAX_ROWS,
            pace: 2.0,
            kv_bytes: usize::MAX,
            prefix_bytes: 256 << 20,
            kv_dtype: None,
            overflow: Overflow::Stop,
        }
    }
}

impl SchedulerOptions {
    /// These options with at most so many requests at the same time.
    pub fn max_sequences(self, max_sequences: usize) -> SchedulerOptions {
        SchedulerOptions { max_sequences, ..self }
    }

    /// These options with at most so many tokens in a pass.
    pub fn max_rows(self, max_rows: usize) -> SchedulerOptions {
        SchedulerOptions { max_rows, ..self }
    }

    /// These options with this pace, see [`SchedulerOptions::pace`](SchedulerOptions#structfield.pace).
    pub fn pace(self, pace: f32) -> SchedulerOptions {
        SchedulerOptions { pace, ..self }
    }

    /// These options with so many bytes of keys and values for running requests.
    pub fn kv_bytes(self, kv_bytes: usize) -> SchedulerOptions {
        SchedulerOptions { kv_bytes, ..self }
    }

    /// These options with so many bytes of keys and values for what prompts share.
    pub fn prefix_bytes(self, prefix_bytes: usize) -> SchedulerOptions {
        SchedulerOptions { prefix_bytes, ..self }
    }

    /// These options with keys and values kept in this way.
    pub fn kv_dtype(self, kv_dtype: KvDtype) -> SchedulerOptions {
        SchedulerOptions { kv_dtype: Some(kv_dtype), ..self }
    }

    /// These options with this behavior past the model's context.
    pub fn overflow(self, overflow: Overflow) -> SchedulerOptions {
        SchedulerOptions { overflow, ..self }
    }

    /// An error where an option makes no sense.
    pub(super) fn check(&self) -> Result<()> {
        let wrong = |name, expected, found| Err(Error::Argument { name, expected, found });
        let SchedulerOptions { max_sequences, max_rows, pace, .. } = *self;
        if !(1..=Engine::MAX_ROWS).contains(&max_rows) {
            return wrong("max_rows", format!("1 to {}", Engine::MAX_ROWS), max_rows.to_string());
        }
        if !(1..=max_rows).contains(&max_sequences) {
            let expected = format!("1 to max_rows, {max_rows}");
            return wrong("max_sequences", expected, max_sequences.to_string());
        }
        if pace.is_nan() || pace < 1.0 {
            return wrong("pace", "a number from 1 up".into(), pace.to_string());
        }
        Ok(())
    }
}
