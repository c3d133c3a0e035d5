//! How single decoder layers differ from those of the first Llama.

use super::config::Config;

/// Flag: queries and keys are not turned.
const NO_ROPE: u32 = 1;
/// Flag: a token sees no more than the config's `sliding_window` positions.
const SLIDING: u32 = 2;

/// One layer's differences; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerFlags {
    /// Queries and keys are not turned by their positions (SmolLM3's `no_rope_layers`).
    pub no_rope: bool,
    /// A token sees no more than the config's `sliding_window` positions.
    pub sliding: bool,
}

impl LayerFlags {
    /// The layer's entry in the section.
    pub fn to_bits(self) -> u32 {
        let no_rope = if self.no_rope { NO_ROPE } else { 0 };
        no_rope | if self.sliding { SLIDING } else { 0 }
    }

    /// Reads an entry; the error says what is wrong with it.
    pub(super) fn from_bits(bits: u32, config: &Config) -> Result<LayerFlags, String> {
        if bits & !(NO_ROPE | SLIDING) != 0 {
            return Err(format!("flags: expected 0 to 3, found {bits}"));
        }
        let flags = LayerFlags { no_rope: bits & NO_ROPE != 0, sliding: bits & SLIDING != 0 };
        match flags.sliding && config.sliding_window.is_none() {
            true => Err("a layer with a sliding window, but the config has no sliding_window".to_owned()),
            false => Ok(flags),
        }
    }
}
