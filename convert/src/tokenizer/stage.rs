//! The stages of pre-tokenizers, and the regexes of the ones that many models have, as their `tokenizer.json` spells
//! them.

use super::dialect;

/// What `ByteLevel` has of its own.
pub(super) const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Llama 3's and Qwen2's differ in how many digits stay together.
pub(super) const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
pub(super) const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// In Qwen3.5's, marks are parts of words.
pub(super) const QWEN35: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// In Mistral Nemo's, a word ends where a capital letter follows a small one.
pub(super) const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// Each newline by itself.
pub(super) const NEWLINE: &str = r"[\r\n]";
/// DeepSeek LLM's letters that have cases, its punctuation, and the characters of China, Japan and Korea.
pub(super) const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅ",
    r"Ὀ-Ὅὐ-ὗὙὛὝὟ-\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭ",
    r"ℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
);
pub(super) const DEEPSEEK_MARKS: &str = r"\s?[!-/:-~！-／：-～‘-‟\x{3000}-。]+";
pub(super) const DEEPSEEK_CJK: &str = r"[一-龥ࠀ-一가-퟿]+";

/// Bytes of the longest regex: several times those of any that is known.
const MAX_REGEX_LEN: usize = 4096;

/// A stage of a pre-tokenizer: what it cuts a text into.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Stage {
    /// The matches of a regex and what lies between them.
    Split(String),
    /// White space at the end and what is before it, of texts in which a newline stands alone: `Split` by `\s+$`.
    SpaceAtEnd,
    /// `Digits` with `individual_digits`.
    IndividualDigits,
    /// `Digits` without it: runs of digits stay together.
    Digits,
    /// `Metaspace` with `split`: each space begins a word.
    Spaces,
}

impl Stage {
    /// The stage that `Split` by `regex` is after the stages `before`, or what is supported instead.
    pub(super) fn split(regex: &str, before: &[Stage]) -> Result<Stage, String> {
        if regex.len() > MAX_REGEX_LEN {
            return Err(format!("one of at most {MAX_REGEX_LEN} bytes"));
        }
        if regex == r"\s+$" {
            // It also matches before a newline.
            let is_alone =
                before.iter().any(|stage| matches!(stage, Stage::Split(regex) if is_newline(regex)));
            return if is_alone {
                Ok(Stage::SpaceAtEnd)
            } else {
                Err(format!("`$` after a split by {NEWLINE}"))
            };
        }
        dialect::check(dialect::without_look_ahead(regex).unwrap_or(regex))?;
        Ok(Stage::Split(regex.to_owned()))
    }
}

/// Whether `regex` is [`NEWLINE`], in either of two spellings.
fn is_newline(regex: &str) -> bool {
    [NEWLINE, "[\r\n]"].contains(&regex)
}
