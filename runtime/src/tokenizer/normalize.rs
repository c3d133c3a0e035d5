//! Texts made ready to be cut into words, by the blob's [`TextRules`].

use std::borrow::Cow;

use unicode_normalization_alignments::char::{canonical_combining_class, compose, decompose_canonical};
use unicode_normalization_alignments::{IsNormalized, is_nfc_quick};

use crate::format::TextRules;

/// How vocabularies of SentencePiece's kind write a space.
const LOWER_ONE_EIGHTH_BLOCK: char = '\u{2581}';
/// Bytes of a text that are brought into normal form at a time, if they can be cut there.
const PIECE: usize = 4096;

/// `text`, which is not empty, as normalized tokens are looked for in it.
pub(super) fn normalize(rules: TextRules, text: &str) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(text);
    if rules.has(TextRules::NFC) {
        text = nfc(text);
    }
    if rules.has(TextRules::NORMALIZE_SPACE) {
        text = with_spaces(text);
    }
    if rules.has(TextRules::PREPEND_SPACE) { behind_space(&text) } else { text }
}

/// `text`, in which normalized tokens were looked for, as it is cut into words. `first` says that the whole begins with
/// it.
pub(super) fn prefix(rules: TextRules, text: Cow<'_, str>, first: bool) -> Cow<'_, str> {
    let text = if rules.has(TextRules::METASPACE) { with_spaces(text) } else { text };
    let here = first || !rules.has(TextRules::PREFIX_FIRST);
    let is_bare = !text.is_empty() && !text.starts_with(' ');
    if here && rules.has(TextRules::PREFIX_SPACE) && is_bare { behind_space(&text) } else { text }
}

/// Normal form C of Unicode 9, as in the `tokenizers` library, whose table this is.
fn nfc(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.is_ascii() || matches!(is_nfc_quick(text.chars()), IsNormalized::Yes) {
        return text;
    }
    Cow::Owned(nfc_in_pieces(&text, PIECE))
}

/// [`nfc`] of pieces of about `len` bytes each, so that what lies between them and the result is small.
fn nfc_in_pieces(mut text: &str, len: usize) -> String {
    let mut normal = String::with_capacity(text.len());
    while !text.is_empty() {
        let (piece, after) = text.split_at(piece_end(text, len));
        match is_nfc_quick(piece.chars()) {
            IsNormalized::Yes => normal.push_str(piece),
            _ => normal.extend(composed(decomposed(piece))),
        }
        text = after;
    }
    normal
}

/// The first place in `text`, `len` bytes or more from its start, whose character nothing before it can join.
fn piece_end(text: &str, len: usize) -> usize {
    let stands_alone = |c: char| {
        canonical_combining_class(c) == 0 && matches!(is_nfc_quick([c].into_iter()), IsNormalized::Yes)
    };
    let start = text.ceil_char_boundary(len);
    text[start..].char_indices().find(|&(_, c)| stands_alone(c)).map_or(text.len(), |(at, _)| start + at)
}

/// The characters that `text` consists of, each with its combining class, in canonical order.
///
/// The library's iterators do the same; but they choose between canonical and compatible forms as they run, and so bring
/// both tables into the program: 30 kB of a compressed WebAssembly module.
fn decomposed(text: &str) -> Vec<(u8, char)> {
    let mut chars = Vec::with_capacity(text.len());
    for c in text.chars() {
        decompose_canonical(c, |c| chars.push((canonical_combining_class(c), c)));
    }
    for marks in chars.chunk_by_mut(|left, right| left.0 != 0 && right.0 != 0) {
        marks.sort_by_key(|&(class, _)| class); // stable
    }
    chars
}

/// `chars`, which are [`decomposed`], with each that can be composed with the starter before it composed.
fn composed(chars: Vec<(u8, char)>) -> impl Iterator<Item = char> {
    let mut kept: Vec<(u8, char)> = Vec::with_capacity(chars.len());
    let mut starter = None;
    for (class, c) in chars {
        // What stands between a starter and a character blocks it, unless that is of a lower class.
        let follows = |at: &usize| kept.len() == at + 1 || kept.last().is_some_and(|&(last, _)| last < class);
        let pair = starter.filter(follows).and_then(|at: usize| Some((at, compose(kept[at].1, c)?)));
        match pair {
            Some((at, both)) => kept[at].1 = both,
            None => {
                kept.push((class, c));
                if class == 0 {
                    starter = Some(kept.len() - 1);
                }
            }
        }
    }
    kept.into_iter().map(|(_, c)| c)
}

/// `text` with a space before it.
fn behind_space(text: &str) -> Cow<'static, str> {
    Cow::Owned([" ", text].concat())
}

fn with_spaces(text: Cow<'_, str>) -> Cow<'_, str> {
    match text.contains(LOWER_ONE_EIGHTH_BLOCK) {
        true => Cow::Owned(text.replace(LOWER_ONE_EIGHTH_BLOCK, " ")),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use unicode_normalization_alignments::UnicodeNormalization;

    use super::*;

    const NONE: TextRules = TextRules::NFC;

    /// What decomposes, composes, combines, or does none of it.
    const PARTS: [char; 24] = [
        'a', 'e', 'q', 'é', 'ǖ', 'ấ', 'ạ', 'Å', '\u{212b}', '\u{2126}', '\u{300}', '\u{301}', '\u{302}',
        '\u{308}', '\u{323}', '\u{327}', '\u{345}', '\u{5b0}', '\u{93c}', '\u{915}', '\u{1112}', '\u{1161}',
        '\u{11ab}', '한',
    ];

    #[test]
    fn composing_is_the_librarys() {
        let mut random = 1u64;
        for _ in 0..20_000 {
            let mut next = || {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) as usize
            };
            let text: String = (0..1 + next() % 8).map(|_| PARTS[next() % PARTS.len()]).collect();
            let expected: String = text.chars().nfc().map(|(c, _)| c).collect();
            for len in [1, 5, 100] {
                assert_eq!(nfc_in_pieces(&text, len), expected, "{:?}", text.escape_unicode().to_string());
            }
        }
        for c in '\0'..=char::MAX {
            let expected: String = [c].into_iter().nfc().map(|(c, _)| c).collect();
            assert_eq!(nfc_in_pieces(&c.to_string(), 1), expected, "{c:?}");
        }
    }

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
