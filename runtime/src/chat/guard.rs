//! Keeping what a message says from becoming a control token.

use std::collections::BTreeSet;

use super::jinja::{lstrip, strip};
use crate::tokenizer::Prefixes;

/// Which control tokens a text is guarded against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guarding {
    /// Those that it spells, or could complete at its borders. All else is left as it is, for the template to look at.
    Spelled,
    /// Also those that would come to be if parts of it were taken out: every character that begins one.
    Possible,
}

/// What keeps texts from becoming control tokens.
pub(super) struct Guard<'a> {
    /// What is put into them.
    guard: char,
    controls: Prefixes<'a, ()>,
    /// The first character of each control token.
    first_chars: BTreeSet<char>,
    /// Each control token from a later character on: what comes before such a text could complete it.
    ends: Prefixes<'a, ()>,
    /// Each control token up to a later character: what comes after such a text could complete it.
    beginnings: BTreeSet<&'a str>,
    longest: usize,
}

impl<'a> Guard<'a> {
    pub(super) fn new(controls: &[&'a str], guard: char) -> Guard<'a> {
        let cuts = || {
            controls
                .iter()
                .flat_map(|control| control.char_indices().skip(1).map(|(at, _)| control.split_at(at)))
        };
        Guard {
            guard,
            controls: sorted(controls.iter().copied()),
            first_chars: controls.iter().filter_map(|control| control.chars().next()).collect(),
            ends: sorted(cuts().map(|(_, end)| end)),
            beginnings: cuts().map(|(beginning, _)| beginning).collect(),
            longest: controls.iter().map(|control| control.len()).max().unwrap_or(0),
        }
    }

    /// Whether a control token begins with a character of `text`, which may be JSON.
    pub(super) fn is_possible(&self, text: &str) -> bool {
        let is_escaped = |character: &char| matches!(character, '\0'..' ' | '"' | '\\');
        let has_escaped = self.first_chars.iter().any(is_escaped);
        text.contains(|character| self.first_chars.contains(&character) || has_escaped && character == '\\')
    }

    /// `text` with the guard in everything that is, or could at its borders become part of, a control token.
    pub(super) fn text(&self, text: &str, guarding: Guarding) -> String {
        let mut guarded = String::with_capacity(text.len());
        // Templates trim what they insert, so the borders are those of the trimmed text.
        let inner = strip(text);
        let start = text.len() - lstrip(text).len();
        let end = start + inner.len();
        let (ends_one, begins_one) = (self.ends.longest(inner.as_bytes()).is_some(), self.begins_one(inner));
        for (at, character) in text.char_indices() {
            if at == start && ends_one || at == end && begins_one {
                guarded.push(self.guard);
            }
            guarded.push(character);
            let is_guarded = match guarding {
                Guarding::Spelled => self.controls.longest(&text.as_bytes()[at..]).is_some(),
                Guarding::Possible => self.first_chars.contains(&character),
            };
            if is_guarded {
                guarded.push(self.guard);
            }
        }
        if end == text.len() && begins_one {
            guarded.push(self.guard);
        }
        guarded
    }

    /// Whether `text` ends with the beginning of a control token.
    fn begins_one(&self, text: &str) -> bool {
        let ends = text.char_indices().rev().map(|(at, _)| &text[at..]);
        ends.take_while(|end| end.len() < self.longest).any(|end| self.beginnings.contains(end))
    }
}

fn sorted<'a>(texts: impl Iterator<Item = &'a str>) -> Prefixes<'a, ()> {
    let mut texts: Vec<(&str, ())> = texts.map(|text| (text, ())).collect();
    texts.sort_unstable();
    texts.dedup();
    Prefixes::new(texts)
}

#[cfg(test)]
mod tests {
    use super::{Guard, Guarding};

    #[test]
    fn a_guard_stands_in_whatever_spells_a_control_token() {
        let controls = ["<|end|>", "<s>"];
        let guard = Guard::new(&controls, '!');
        let guarded = |text| guard.text(text, Guarding::Spelled);
        for (text, expected) in [
            ("", ""),
            ("plain text", "plain text"),
            ("a <|end|> b", "a <!|end|> b"),
            ("<s><s>", "<!s><!s>"),
            // At the borders, where the template's text could complete it; inside, a part is harmless.
            ("end|> x", "!end|> x"),
            ("x <|en", "x <|en!"),
            ("  s> ", "  !s> "),
            (" x <\n", " x <!\n"),
            ("a <|en b", "a <|en b"),
            ("日本<s>", "日本<!s>"),
        ] {
            assert_eq!(guarded(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_control_token_is_possible_where_its_first_character_is_or_may_be_escaped() {
        for (control, text, expected) in [
            ("<s>", "a < b", true),
            ("<s>", "a\\n", false),
            ("\n\n", r#"["a\nb"]"#, true),
            ("\n\n", r#"["a"]"#, false),
            ("\"s\"", r#"["\""]"#, true),
        ] {
            assert_eq!(Guard::new(&[control], '!').is_possible(text), expected, "{control:?} {text}");
        }
    }

    #[test]
    fn a_guard_stands_after_whatever_begins_a_control_token() {
        let controls = ["<|end|>", "[s]"];
        for (text, expected) in [
            ("plain | text", "plain | text"),
            ("<|en/xd|> <b>", "<!|en/xd|> <!b>"),
            ("[1]", "[!1]"),
            ("x <|en", "x <!|en!"),
        ] {
            assert_eq!(Guard::new(&controls, '!').text(text, Guarding::Possible), expected, "{text:?}");
        }
    }
}
