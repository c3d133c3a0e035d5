//! Texts made ready to be cut into words, by the blob's [`TextRules`].

use std::borrow::Cow;

use unicode_normalization_alignments::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use crate::format::TextRules;

/// How vocabularies of SentencePiece's kind write a space.
const LOWER_ONE_EIGHTH_BLOCK: char = '\u{2581}';

/// `text`, which is not empty, as normalized tokens are looked for in it.
pub(super) fn normalize(rules: TextRules, text: &str) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(text);
    if rules.has(TextRules::NFC) {
        text = nfc(text);
    }
    if rules.has(TextRules::NORMALIZE_SPACE) {
        text = with_spaces(text);
    }
    if rules.has(TextRules::PREPEND_SPACE) {
        text.to_mut().insert(0, ' ');
    }
    text
}

/// `text`, in which normalized tokens were looked for, as it is cut into words. `first` says that the whole begins with
/// it.
pub(super) fn prefix(rules: TextRules, text: Cow<'_, str>, first: bool) -> Cow<'_, str> {
    let mut text = if rules.has(TextRules::METASPACE) { with_spaces(text) } else { text };
    let here = first || !rules.has(TextRules::PREFIX_FIRST);
    if here && rules.has(TextRules::PREFIX_SPACE) && !text.is_empty() && !text.starts_with(' ') {
        text.to_mut().insert(0, ' ');
    }
    text
}

/// Normal form C of Unicode 9, as in the `tokenizers` library, whose table this is.
fn nfc(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.is_ascii() || matches!(is_nfc_quick(text.chars()), IsNormalized::Yes) {
        return text;
    }
    Cow::Owned(text.chars().nfc().map(|(c, _)| c).collect())
}

fn with_spaces(text: Cow<'_, str>) -> Cow<'_, str> {
    match text.contains(LOWER_ONE_EIGHTH_BLOCK) {
        true => Cow::Owned(text.replace(LOWER_ONE_EIGHTH_BLOCK, " ")),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: TextRules = TextRules::NFC;

    #[test]
    fn characters_are_composed() {
        for (text, composed) in
            [("plain", "plain"), ("é", "é"), ("e\u{301}x", "éx"), ("\u{1112}\u{1161}\u{11ab}", "한")]
        {
            assert_eq!(normalize(TextRules::NFC, text), composed);
        }
        assert_eq!(normalize(TextRules::default(), "e\u{301}\u{2581}"), "e\u{301}\u{2581}");
    }

    #[test]
    fn a_space_is_put_before() {
        let legacy = TextRules::NORMALIZE_SPACE.with(TextRules::PREPEND_SPACE);
        assert_eq!(normalize(legacy, "a\u{2581}b"), " a b");
        assert_eq!(normalize(legacy, " a"), "  a", "also where there is one");
        let always = TextRules::METASPACE.with(TextRules::PREFIX_SPACE);
        let first = always.with(TextRules::PREFIX_FIRST);
        for (rules, text, is_first, expected) in [
            (always, "a", false, " a"),
            (always, "\u{2581}a", false, " a"),
            (first, "a", false, "a"),
            (first, "a", true, " a"),
            (first, "", true, ""),
            (NONE, "\u{2581}a", true, "\u{2581}a"),
        ] {
            assert_eq!(prefix(rules, text.into(), is_first), expected, "{text:?}");
        }
    }
}
