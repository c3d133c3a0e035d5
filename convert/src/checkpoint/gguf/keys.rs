//! The keys of a GGUF file that belong to its architecture, whose name each of them begins with.

use crate::checkpoint::family::Family;
use crate::error::{Error, Result};
use crate::source::gguf::Metadata;

/// What says which architecture it is.
const ARCHITECTURE: &str = "general.architecture";
/// The keys of an architecture that are read here, or that change no numbers.
const KNOWN: [&str; 20] = [
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "vocab_size",
];
/// Those that change nothing where they are zero.
const ZERO: [&str; 2] = ["expert_count", "expert_used_count"];

/// The metadata of a file, and its architecture.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    pub(super) metadata: &'a Metadata,
    pub(super) family: Family,
}

impl<'a> Keys<'a> {
    /// Of a file whose architecture is known, with no key that is not.
    pub(super) fn new(metadata: &'a Metadata) -> Result<Keys<'a>> {
        let found = metadata.required(ARCHITECTURE, metadata.string(ARCHITECTURE))?;
        let family = Family::IN_GGUF.into_iter().find(|family| family.model_type() == found);
        let family = family.ok_or_else(|| {
            let known = Family::IN_GGUF.map(|family| format!("{:?}", family.model_type()));
            metadata.wrong(ARCHITECTURE, format!("one of {}", known.join(", ")), format!("{found:?}"))
        })?;
        let keys = Keys { metadata, family };
        keys.check_all()?;
        Ok(keys)
    }

    /// Refuses every key of the architecture that is not known: it may change any number.
    fn check_all(self) -> Result<()> {
        let of_architecture = |full: &'a str| full.strip_prefix(self.family.model_type())?.strip_prefix('.');
        for name in self.metadata.keys().filter_map(of_architecture) {
            if KNOWN.contains(&name) {
                continue;
            }
            if !ZERO.contains(&name) {
                return Err(self.wrong(name, "no key of this name", "one"));
            }
            if let Some(found) = self.number(name)?.filter(|&found| found != 0.0) {
                return Err(self.wrong(name, "0", found));
            }
        }
        Ok(())
    }

    /// Whether the file has a key.
    pub(super) fn has(self, name: &str) -> bool {
        let full = self.full(name);
        self.metadata.keys().any(|key| key == full)
    }

    /// The whole key that ends in `name`.
    pub(super) fn full(self, name: &str) -> String {
        format!("{}.{name}", self.family.model_type())
    }

    /// The integer of a key.
    pub(super) fn count(self, name: &str) -> Result<Option<usize>> {
        let count = self.metadata.count(&self.full(name))?;
        count
            .map(|count| usize::try_from(count).map_err(|_| self.wrong(name, "below 2^32", count)))
            .transpose()
    }

    /// The integer of a key that must be there.
    pub(super) fn required_count(self, name: &str) -> Result<usize> {
        self.metadata.required(&self.full(name), self.count(name))
    }

    /// The number of a key, whether it is stored as an integer or a float.
    pub(super) fn number(self, name: &str) -> Result<Option<f64>> {
        let (metadata, full) = (self.metadata, self.full(name));
        metadata.float(&full).or_else(|error| match metadata.count(&full) {
            Ok(count) => Ok(count.map(|count| count as f64)),
            Err(_) => Err(error),
        })
    }

    /// The key should have been `expected`.
    pub(super) fn wrong(self, name: &str, expected: impl Into<String>, found: impl ToString) -> Error {
        self.metadata.wrong(&self.full(name), expected, found)
    }
}
