//! How a tokenizer works, and the refusal, by name, of everything that the runtime's does not have.

use smolrun::format::TextRules;

use super::fields::{ModelSettings, Settings, quoted};
use super::{decoder, normalizer, post_processor, pre_tokenizer};
use crate::error::TokenizerError;
use crate::tokenizer::alphabet::Alphabet;
use crate::tokenizer::stage::Stage;

/// Stages of a pre-tokenizer: several times those of any that is known. Each is a section of the blob, and another walk over
/// every text.
const MAX_STAGES: usize = 16;

/// A supported tokenizer, but for its vocabulary.
#[derive(Debug)]
pub(super) struct Pipeline {
    /// What the tokens' texts are written in.
    pub(super) alphabet: Alphabet,
    /// What becomes of a text before it is cut into words, and of decoded text.
    pub(super) rules: TextRules,
    /// The pre-tokenizer's stages.
    pub(super) stages: Vec<Stage>,
    /// Whether a word that is a token becomes it, whatever the merges say.
    pub(super) ignore_merges: bool,
    /// Ids that a prompt begins with.
    pub(super) prompt_prefix: Vec<u32>,
}

/// Checks everything but what depends on the vocabulary.
pub(super) fn check(settings: &Settings) -> Result<Pipeline, TokenizerError> {
    if settings.version != "1.0" {
        return Err(TokenizerError::unsupported("version", "1.0", &settings.version));
    }
    for (field, value) in [("truncation", &settings.truncation), ("padding", &settings.padding)] {
        if let Some(value) = value {
            return Err(TokenizerError::unsupported(field, "null", value));
        }
    }
    check_model(&settings.model)?;
    let (alphabet, decoding) = decoder::read(settings.decoder.as_ref())?;
    check_switches(alphabet, &settings.model)?;
    let normalizing = normalizer::read(alphabet, settings.normalizer.as_ref())?;
    let (stages, cutting) = match alphabet {
        Alphabet::ByteLevel => {
            (pre_tokenizer::byte_level(settings.pre_tokenizer.as_ref())?, TextRules::default())
        }
        Alphabet::Metaspace => pre_tokenizer::metaspace(settings.pre_tokenizer.as_ref())?,
    };
    if stages.len() > MAX_STAGES {
        let field = "pre_tokenizer.pretokenizers";
        return Err(TokenizerError::unsupported(field, format!("up to {MAX_STAGES} stages"), stages.len()));
    }
    let writes_spaces = normalizing.has(TextRules::NORMALIZE_SPACE) || cutting.has(TextRules::METASPACE);
    if alphabet == Alphabet::Metaspace && !writes_spaces {
        let supported = "Metaspace, or a normalizer that replaces spaces";
        return Err(TokenizerError::unsupported("pre_tokenizer", supported, "null"));
    }
    Ok(Pipeline {
        alphabet,
        rules: normalizing.with(cutting).with(decoding),
        stages,
        ignore_merges: settings.model.ignore_merges == Some(true),
        prompt_prefix: post_processor::read(settings.post_processor.as_ref())?,
    })
}

fn check_model(model: &ModelSettings) -> Result<(), TokenizerError> {
    if model.kind != "BPE" {
        return Err(TokenizerError::unsupported("model.type", "BPE", &model.kind));
    }
    if let Some(dropout) = model.dropout.filter(|&dropout| dropout != 0.0) {
        return Err(TokenizerError::unsupported("model.dropout", "null", dropout));
    }
    let affixes = [
        ("model.continuing_subword_prefix", &model.continuing_subword_prefix),
        ("model.end_of_word_suffix", &model.end_of_word_suffix),
    ];
    for (field, affix) in affixes {
        if let Some(affix) = affix.as_ref().filter(|affix| !affix.is_empty()) {
            return Err(TokenizerError::unsupported(field, "null", quoted(affix)));
        }
    }
    Ok(())
}

/// Words of a byte-level tokenizer are bytes already; those of the other kind need the bytes' tokens.
fn check_switches(alphabet: Alphabet, model: &ModelSettings) -> Result<(), TokenizerError> {
    let byte_fallback = model.byte_fallback == Some(true);
    match alphabet {
        Alphabet::ByteLevel if byte_fallback => {
            Err(TokenizerError::unsupported("model.byte_fallback", "false", "true"))
        }
        Alphabet::Metaspace if !byte_fallback => {
            Err(TokenizerError::unsupported("model.byte_fallback", "true", "false"))
        }
        Alphabet::Metaspace if model.ignore_merges == Some(true) => {
            Err(TokenizerError::unsupported("model.ignore_merges", "false", "true"))
        }
        _ => Ok(()),
    }
}
