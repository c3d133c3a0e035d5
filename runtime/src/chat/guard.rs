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

/// `text` with `guard` in everything that is, or could at its borders become part of, one of `controls`.
pub(super) fn guard_text(text: &str, controls: &[&str], guard: char, guarding: Guarding) -> String {
    let mut guarded = String::with_capacity(text.len());
    // Templates trim what they insert, so the borders are those of the trimmed text.
    let inner = strip(text);
    let start = text.len() - lstrip(text).len();
    let end = start + inner.len();
    let first_chars: BTreeSet<char> = controls.iter().filter_map(|control| control.chars().next()).collect();
    let mut spelled: Vec<(&str, ())> = controls.iter().map(|&control| (control, ())).collect();
    spelled.sort_unstable();
    let spelled = Prefixes::new(spelled);
    for (at, character) in text.char_indices() {
        if at == start && ends_a_control(inner, controls) || at == end && begins_a_control(inner, controls) {
            guarded.push(guard);
        }
        guarded.push(character);
        let is_guarded = match guarding {
            Guarding::Spelled => spelled.longest(&text.as_bytes()[at..]).is_some(),
            Guarding::Possible => first_chars.contains(&character),
        };
        if is_guarded {
            guarded.push(guard);
        }
    }
    if end == text.len() && begins_a_control(inner, controls) {
        guarded.push(guard);
    }
    guarded
}

/// Whether `text` starts with a proper suffix of a control token: what comes before it could complete it.
fn ends_a_control(text: &str, controls: &[&str]) -> bool {
    proper_cuts(controls).any(|(_, suffix)| text.starts_with(suffix))
}

/// Whether `text` ends with a proper prefix of a control token: what comes after it could complete it.
fn begins_a_control(text: &str, controls: &[&str]) -> bool {
    proper_cuts(controls).any(|(prefix, _)| text.ends_with(prefix))
}

/// Each control token cut in two at every character, neither part empty.
fn proper_cuts<'a>(controls: &[&'a str]) -> impl Iterator<Item = (&'a str, &'a str)> {
    controls.iter().flat_map(|control| control.char_indices().skip(1).map(|(at, _)| control.split_at(at)))
}

#[cfg(test)]
mod tests {
    use super::{Guarding, guard_text};

    #[test]
    fn a_guard_stands_in_whatever_spells_a_control_token() {
        let controls = ["<|end|>", "<s>"];
        let guarded = |text| guard_text(text, &controls, '!', Guarding::Spelled);
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
    fn a_guard_stands_after_whatever_begins_a_control_token() {
        let controls = ["<|end|>", "[s]"];
        for (text, expected) in [
            ("plain | text", "plain | text"),
            ("<|en/xd|> <b>", "<!|en/xd|> <!b>"),
            ("[1]", "[!1]"),
            ("x <|en", "x <!|en!"),
        ] {
            assert_eq!(guard_text(text, &controls, '!', Guarding::Possible), expected, "{text:?}");
        }
    }
}
