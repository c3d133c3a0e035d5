//! Cuts text into the words that byte-pair encoding works on.

use crate::error::Result;
use crate::format::{DEAD, Dfa, FormatError, Kind, MAX_LOOK_AHEAD};

use super::tables::table_error;
use super::work;

/// Hands the words of `text` to `emit`, in order. Each stage cuts every piece of the one before into its matches and
/// what lies between them.
pub(super) fn split<'t>(
    stages: &[Dfa],
    text: &'t str,
    emit: &mut impl FnMut(&'t str) -> Result<()>,
) -> Result<()> {
    let Some((stage, later)) = stages.split_first() else {
        return if text.is_empty() { Ok(()) } else { emit(text) };
    };
    let (mut done, mut at) = (0, 0);
    let mut look_ahead = LookAhead { left: text.len().saturating_mul(MAX_LOOK_AHEAD) };
    while let Some(first) = text[at..].chars().next() {
        let len = match_len(stage, &text[at..], &mut look_ahead)?;
        if len == 0 {
            at += first.len_utf8();
            continue;
        }
        split(later, &text[done..at], emit)?;
        split(later, &text[at..at + len], emit)?;
        at += len;
        done = at;
    }
    split(later, &text[done..], emit)
}

/// Bytes that a stage may still read in vain, so that cutting a text takes time in proportion to it whatever the automaton is:
/// from each place it may look as far ahead as it likes, but not from all of them.
struct LookAhead {
    left: usize,
}

impl LookAhead {
    fn take(&mut self, bytes: usize) -> Result<()> {
        self.left = self.left.checked_sub(bytes).ok_or_else(|| {
            error(&format!(
                "expected to read at most {MAX_LOOK_AHEAD} bytes ahead for each of a text, found more"
            ))
        })?;
        Ok(())
    }
}

/// Bytes of the match at the start of `text`, which end at a character's end; 0 when there is none.
fn match_len(stage: &Dfa, text: &str, look_ahead: &mut LookAhead) -> Result<usize> {
    let (len, read) =
        walk(stage, text.as_bytes()).ok_or_else(|| error("its tables contradict themselves"))?;
    work::steps(read);
    look_ahead.take(read - len)?;
    let parts = text.split_at_checked(len).ok_or_else(|| error("a match ends inside a character"))?;
    let (matched, after) = parts;
    let is_split =
        |last: &char| last.is_whitespace() && !(stage.newlines_stay && matches!(last, '\r' | '\n'));
    let last = matched.chars().next_back().filter(is_split);
    Ok(match last.map(char::len_utf8) {
        Some(last) if stage.splits_trailing_space && last < len && !after.is_empty() => len - last,
        _ => len,
    })
}

/// The last position at which the automaton accepts, and how far it was read to know that; `None` when its tables
/// contradict themselves.
fn walk(stage: &Dfa, text: &[u8]) -> Option<(usize, usize)> {
    let (mut state, mut end) = (stage.start, 0);
    for (index, &byte) in text.iter().enumerate() {
        state = stage.step(state, byte)?;
        if state == DEAD {
            return Some((end, index + 1));
        }
        if stage.accepts(state)? {
            end = index + 1;
        }
    }
    Some((end, text.len()))
}

fn error(problem: &str) -> FormatError {
    table_error(Kind::Pretokenizer, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stage by hand: each byte's class, then per state whether it accepts and where each class leads.
    struct Stage {
        classes: [u8; 256],
        accept: Vec<u8>,
        next: Vec<u16>,
        splits_trailing_space: bool,
        newlines_stay: bool,
    }

    impl Stage {
        /// Matches runs of one of the `sets`, each by a state of its own.
        fn runs(sets: &[&[u8]]) -> Stage {
            let mut classes = [0; 256];
            let width = sets.len() + 1;
            let mut next = vec![0; width * (sets.len() + 2)];
            for (set, class) in sets.iter().zip(1..) {
                set.iter().for_each(|&byte| classes[usize::from(byte)] = class as u8);
                next[width + class] = class as u16 + 1;
                next[width * (class + 1) + class] = class as u16 + 1;
            }
            let mut accept = vec![1; sets.len() + 2];
            accept[..2].fill(0);
            Stage { classes, accept, next, splits_trailing_space: false, newlines_stay: false }
        }

        fn dfa(&self) -> Dfa<'_> {
            let Stage { classes, accept, next, splits_trailing_space, newlines_stay } = self;
            let class_count = next.len() / accept.len();
            Dfa {
                class_count,
                start: 1,
                splits_trailing_space: *splits_trailing_space,
                newlines_stay: *newlines_stay,
                classes,
                accept,
                next,
            }
        }
    }

    fn words<'t>(stages: &[Dfa], text: &'t str) -> Result<Vec<&'t str>> {
        let mut words = Vec::new();
        split(stages, text, &mut |word| {
            words.push(word);
            Ok(())
        })?;
        Ok(words)
    }

    #[test]
    fn no_stage_leaves_the_text_whole() {
        assert_eq!(words(&[], "ab c").unwrap(), ["ab c"]);
        assert_eq!(words(&[], "").unwrap(), [""; 0]);
    }

    #[test]
    fn what_lies_between_matches_is_kept() {
        let stage = Stage::runs(&[b"abc"]);
        assert_eq!(words(&[stage.dfa()], "--ab-é-c").unwrap(), ["--", "ab", "-é-", "c"]);
        assert_eq!(words(&[stage.dfa()], "--").unwrap(), ["--"]);
    }

    #[test]
    fn a_later_stage_sees_one_piece_at_a_time() {
        let (first, second) = (Stage::runs(&[b"0"]), Stage::runs(&[b"0a", b"b"]));
        assert_eq!(words(&[first.dfa(), second.dfa()], "aa0b0a").unwrap(), ["aa", "0", "b", "0", "a"]);
        assert_eq!(words(&[second.dfa()], "aa0b0a").unwrap(), ["aa0", "b", "0a"]);
    }

    #[test]
    fn trailing_space_goes_to_what_follows() {
        let mut stage = Stage::runs(&[b" \n", b"a"]);
        assert_eq!(words(&[stage.dfa()], "a  a a \n").unwrap(), ["a", "  ", "a", " ", "a", " \n"]);
        stage.splits_trailing_space = true;
        assert_eq!(words(&[stage.dfa()], "a  a a \n").unwrap(), ["a", " ", " ", "a", " ", "a", " \n"]);
        assert_eq!(words(&[stage.dfa()], "  \na").unwrap(), ["  ", "\n", "a"]);
        stage.newlines_stay = true;
        assert_eq!(words(&[stage.dfa()], "  \na  a").unwrap(), ["  \n", "a", " ", " ", "a"]);
    }

    #[test]
    fn damaged_tables_are_errors() {
        let whole = Stage::runs(&[b"a"]);
        let damage: [fn(&mut Stage); 3] = [
            |stage| stage.next[3] = 900,               // a state that does not exist
            |stage| stage.classes[b'a' as usize] = 90, // a class that does not exist
            |stage| stage.accept.truncate(2),          // states without an accept flag
        ];
        for change in damage {
            let mut stage = Stage::runs(&[b"a"]);
            change(&mut stage);
            let dfa = Dfa { class_count: 2, ..stage.dfa() };
            assert!(words(&[dfa], "aaa").is_err());
        }
        assert!(words(&[whole.dfa()], "aaa").is_ok());
    }

    #[test]
    fn a_match_that_ends_inside_a_character_is_an_error() {
        let stage = Stage::runs(&[&[0xc3]]);
        assert!(words(&[stage.dfa()], "é").unwrap_err().to_string().contains("inside a character"));
    }
}
