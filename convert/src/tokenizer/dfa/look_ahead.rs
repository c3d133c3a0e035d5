//! The look-ahead of `|\s+(?!\S)|\s+` as the format has it: a rule about matches that end in white space. It is exact
//! where no other alternative makes such matches, or none but newlines.

use smolrun::format::DEAD;

use super::table::Table;

/// What becomes of the last white space of a match of several characters, which the look-ahead would have left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum TrailingSpace {
    Stays,
    Splits,
    SplitsButForNewlines,
}

/// The rule that stands for the look-ahead after `alternatives`.
pub(super) fn rule(alternatives: &Table) -> Result<TrailingSpace, String> {
    let ends: Vec<char> = white_space().filter(|&c| alternatives.may_end_in(c)).collect();
    if ends.is_empty() {
        return Ok(TrailingSpace::Splits);
    }
    match ends.iter().all(|&c| is_newline(c)) && alternatives.match_before_newlines() {
        true => Ok(TrailingSpace::SplitsButForNewlines),
        false => Err("expected no match but that of the look-ahead to end in white space".to_owned()),
    }
}

fn white_space() -> impl Iterator<Item = char> {
    ('\0'..='\u{3000}').filter(|c| c.is_whitespace()) // the last of them
}

fn is_newline(c: char) -> bool {
    matches!(c, '\r' | '\n')
}

impl Table {
    /// Where `c` leads from `state`.
    fn step(&self, state: usize, c: char) -> usize {
        c.encode_utf8(&mut [0; 4]).bytes().fold(state, |state, byte| self.next[state][usize::from(byte)])
    }

    /// Whether a match of more than one character may end in `c`.
    fn may_end_in(&self, c: char) -> bool {
        let later = |&state: &usize| state != self.start || self.next.iter().any(|row| row.contains(&state));
        (0..self.next.len()).filter(later).any(|state| self.accept[self.step(state, c)])
    }

    /// Whether there is a match in all white space up to a newline, so that none is left to the look-ahead.
    fn match_before_newlines(&self) -> bool {
        let mut reached = vec![self.start];
        let mut index = 0;
        while let Some(&state) = reached.get(index) {
            index += 1;
            for c in white_space() {
                let next = self.step(state, c);
                if self.accept[next] {
                    continue;
                }
                if is_newline(c) || next == usize::from(DEAD) {
                    return false;
                }
                if !reached.contains(&next) {
                    reached.push(next);
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::TrailingSpace::{Splits, SplitsButForNewlines};
    use super::*;

    #[test]
    fn the_rule_is_that_of_the_other_alternatives() {
        let rule = |pattern: &str| rule(&Table::of(pattern).unwrap());
        for (pattern, expected) in [
            (r" ?\p{L}+| ?[^\s\p{L}]+", Splits),
            (r"\p{L}+|[\r\n]", Splits), // of one character
            (r"\p{L}+|\s", Splits),
            (r"\p{L}+|\s*[\r\n]+", SplitsButForNewlines),
            (r"\p{L}+[\r\n]*|\s*[\r\n]+", SplitsButForNewlines),
        ] {
            assert_eq!(rule(pattern), Ok(expected), "{pattern}");
        }
        for pattern in [r"\p{L}+[\r\n]*", r"\p{L}+ ?", r"\s+", r"\p{L}+\s*[\r\n]+", r"\s[\r\n]+", r"(?s:.)+"]
        {
            assert!(rule(pattern).is_err(), "{pattern}");
        }
    }
}
