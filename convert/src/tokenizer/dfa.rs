//! Compiles a pre-tokenizer stage's regex to the automaton of the format.
//!
//! `regex-automata` makes a DFA of the regex. It is then brought into one canonical form, so that the bytes depend on
//! what the regex matches and on nothing else: minimal, its states numbered in breadth-first order, its bytes in as
//! few classes as the transitions allow.

use std::collections::HashMap;

use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::util::primitives::StateID;
use regex_automata::{Anchored, MatchKind, util::start};
use smolrun::format::{DEAD, Dfa};

use crate::error::TokenizerError;

/// GPT-2's regex without `\s+(?!\S)` before the last alternative: that is `splits_trailing_space`.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
/// Llama 3's and Qwen2's, likewise. They differ in how many digits stay together.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
/// The look-ahead that stands before the last alternative of all three.
const LOOK_AHEAD: &str = r"\s+(?!\S)|";
/// What `Digits` takes for a digit: all of `\p{N}` in Unicode 17. The regex crates and Oniguruma, which the other
/// stage follows, know Unicode 16; `tokenizers` asks Rust's standard library, which is at 17.
const DIGIT: &str = r"\p{N}\x{11DE0}-\x{11DE9}\x{16FF4}-\x{16FF6}";

/// A stage of the pre-tokenizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Stage {
    /// `ByteLevel`'s regex.
    Gpt2,
    /// The `Split` of Llama 3.
    Llama3,
    /// The `Split` of Qwen2.
    Qwen2,
    /// `Digits` with `individual_digits`.
    IndividualDigits,
    /// `Digits` without it: runs of digits stay together.
    Digits,
    /// `Metaspace` with `split`: each space begins a word.
    Spaces,
}

/// The stage of a regex as `tokenizer.json` spells it, if it is a known one.
pub(super) fn known(regex: &str) -> Option<Stage> {
    let (before, last) = regex.split_once(LOOK_AHEAD)?;
    let stages = [(GPT2, Stage::Gpt2), (LLAMA3, Stage::Llama3), (QWEN2, Stage::Qwen2)];
    let is_it = |pattern: &str| pattern.strip_prefix(before) == Some(last);
    stages.into_iter().find(|(pattern, _)| is_it(pattern)).map(|(_, stage)| stage)
}

/// The bytes of the stage's automaton.
pub(super) fn compile(stage: Stage) -> Result<Vec<u8>, TokenizerError> {
    let pattern = match stage {
        Stage::Gpt2 => GPT2.to_owned(),
        Stage::Llama3 => LLAMA3.to_owned(),
        Stage::Qwen2 => QWEN2.to_owned(),
        Stage::IndividualDigits => format!("[{DIGIT}]|[^{DIGIT}]+"),
        Stage::Digits => format!("[{DIGIT}]+|[^{DIGIT}]+"),
        Stage::Spaces => " [^ ]*|[^ ]+".to_owned(),
    };
    let trailing_space = match stage {
        Stage::Gpt2 => TrailingSpace::Splits,
        Stage::Llama3 | Stage::Qwen2 => TrailingSpace::SplitsButForNewlines,
        _ => TrailingSpace::Stays,
    };
    compile_pattern(&pattern, trailing_space).map_err(|problem| TokenizerError::Regex { pattern, problem })
}

/// What becomes of the last white space of a match, which the look-ahead would have left.
#[derive(Clone, Copy, PartialEq)]
enum TrailingSpace {
    Stays,
    Splits,
    SplitsButForNewlines,
}

fn compile_pattern(pattern: &str, trailing_space: TrailingSpace) -> Result<Vec<u8>, String> {
    let config = dense::Config::new().start_kind(StartKind::Anchored).match_kind(MatchKind::LeftmostFirst);
    let dfa = dense::Builder::new().configure(config).build(pattern).map_err(|error| error.to_string())?;
    let table = Table::explore(&dfa)?.minimize();
    let (classes, representatives) = table.byte_classes();
    let next = table.next.iter().flat_map(|row| representatives.iter().map(|&byte| row[byte]));
    let next: Option<Vec<u16>> = next.map(|state| u16::try_from(state).ok()).collect();
    let accept: Vec<u8> = table.accept.iter().map(|&accept| u8::from(accept)).collect();
    let dfa = Dfa {
        class_count: representatives.len(),
        start: u16::try_from(table.start).map_err(|error| error.to_string())?,
        splits_trailing_space: trailing_space != TrailingSpace::Stays,
        newlines_stay: trailing_space == TrailingSpace::SplitsButForNewlines,
        classes: &classes,
        accept: &accept,
        next: &next.ok_or("more than 65536 states")?,
    };
    Ok(dfa.to_bytes())
}

/// An automaton, a column for each byte. State [`DEAD`] is dead.
struct Table {
    start: usize,
    /// Whether a match ends in a state.
    accept: Vec<bool>,
    next: Vec<[usize; 256]>,
}

impl Table {
    /// Every state that can be reached. `regex-automata` reports a match one byte late; here a state accepts if the
    /// text may end in it.
    fn explore(dfa: &dense::DFA<Vec<u32>>) -> Result<Table, String> {
        let anchored = start::Config::new().anchored(Anchored::Yes);
        let start = dfa.start_state(&anchored).map_err(|error| error.to_string())?;
        let mut states = Numbering::new([StateID::ZERO, start]); // its dead state is its first as well
        let mut table = Table { start: states.number(start), accept: Vec::new(), next: Vec::new() };
        while let Some(&state) = states.order.get(table.next.len()) {
            if dfa.is_quit_state(state) {
                return Err("it depends on bytes that are not looked at".to_owned());
            }
            table.accept.push(dfa.is_match_state(dfa.next_eoi_state(state)));
            table.next.push(std::array::from_fn(|byte| states.number(dfa.next_state(state, byte as u8))));
        }
        Ok(table)
    }

    /// The automaton with one state for each group of states that nothing can tell apart.
    fn minimize(&self) -> Table {
        let group = self.partition();
        let mut groups = Numbering::new([group[usize::from(DEAD)], group[self.start]]);
        let mut table = Table { start: groups.number(group[self.start]), accept: vec![], next: vec![] };
        while let Some(wanted) = groups.order.get(table.next.len()) {
            let member = group.iter().position(|group| group == wanted).unwrap_or(usize::from(DEAD));
            table.accept.push(self.accept[member]);
            table.next.push(self.next[member].map(|state| groups.number(group[state])));
        }
        table
    }

    /// Each state's group: Moore's algorithm, which splits groups until no two members of one differ in acceptance
    /// or in the groups to which the same byte leads.
    fn partition(&self) -> Vec<usize> {
        let mut group: Vec<usize> = self.accept.iter().map(|&accept| accept.into()).collect();
        let mut count = 0;
        loop {
            let mut signatures = Numbering::new([]);
            let signature = |state: usize| (group[state], self.next[state].map(|next| group[next]));
            group = (0..group.len()).map(|state| signatures.number(signature(state))).collect();
            if signatures.order.len() == count {
                return group;
            }
            count = signatures.order.len();
        }
    }

    /// The class of each byte, and one byte of each class: two bytes are in one class if every state sends both to
    /// the same state.
    fn byte_classes(&self) -> (Vec<u8>, Vec<usize>) {
        let mut columns = Numbering::new([]);
        let mut representatives = Vec::new();
        let classes = (0..256).map(|byte| {
            let column: Vec<usize> = self.next.iter().map(|row| row[byte]).collect();
            let class = columns.number(column);
            if class == representatives.len() {
                representatives.push(byte);
            }
            class as u8 // at most 256 classes
        });
        (classes.collect(), representatives)
    }
}

/// Numbers values in the order in which they are first seen.
struct Numbering<T> {
    order: Vec<T>,
    numbers: HashMap<T, usize>,
}

impl<T: Clone + Eq + std::hash::Hash> Numbering<T> {
    fn new(first: impl IntoIterator<Item = T>) -> Numbering<T> {
        let mut numbering = Numbering { order: Vec::new(), numbers: HashMap::new() };
        for value in first {
            numbering.number(value);
        }
        numbering
    }

    fn number(&mut self, value: T) -> usize {
        let unseen = self.order.len();
        let number = *self.numbers.entry(value.clone()).or_insert(unseen);
        if number == unseen {
            self.order.push(value);
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The compiled pattern's bytes, at an even address.
    fn bytes(pattern: &str) -> Vec<u16> {
        let bytes = compile_pattern(pattern, TrailingSpace::Stays).unwrap();
        bytes.chunks_exact(2).map(|pair| u16::from_ne_bytes([pair[0], pair[1]])).collect()
    }

    /// The end of the match at the start of `text`.
    fn match_end(pattern: &str, text: &str) -> usize {
        let bytes = bytes(pattern);
        let dfa = Dfa::parse(bytemuck::cast_slice(&bytes)).unwrap();
        let (mut state, mut end) = (dfa.start, 0);
        for (index, byte) in text.bytes().enumerate() {
            state = dfa.step(state, byte).unwrap();
            if dfa.accepts(state).unwrap() {
                end = index + 1;
            }
        }
        end
    }

    fn size(pattern: &str) -> (usize, usize) {
        let bytes = bytes(pattern);
        let dfa = Dfa::parse(bytemuck::cast_slice(&bytes)).unwrap();
        (dfa.accept.len(), dfa.class_count)
    }

    #[test]
    fn the_first_alternative_that_matches_wins() {
        assert_eq!(match_end("a|ab", "ab"), 1);
        assert_eq!(match_end("ab|a", "ab"), 2);
        assert_eq!(match_end("ab|a", "ac"), 1);
        assert_eq!(match_end("abcd|ab", "abc"), 2, "the text goes on as the longer one, in vain");
        assert_eq!(match_end("é+", "éé-é"), 4);
        assert_eq!(match_end("a+", "baa"), 0);
    }

    #[test]
    fn the_automaton_is_minimal() {
        assert_eq!(size("a"), (3, 2), "dead, start and end; a and all other bytes");
        assert_eq!(size("ac|bc"), (4, 3));
        assert_eq!(size("[a-c]+|[a-c]x"), (3, 2), "the second alternative never wins");
    }

    #[test]
    fn equal_regexes_have_equal_bytes() {
        assert_eq!(bytes("a(b|c)*d"), bytes("(?:ad)|a[bc]+d"));
        assert_ne!(bytes("ab"), bytes("ac"));
    }

    #[test]
    fn dead_is_the_first_state_and_stays() {
        let bytes = bytes(GPT2);
        let dfa = Dfa::parse(bytemuck::cast_slice(&bytes)).unwrap();
        assert_eq!(dfa.accepts(DEAD), Some(false));
        assert!((0..=255).all(|byte| dfa.step(DEAD, byte) == Some(DEAD)));
        assert_eq!(dfa.start, 1);
    }

    /// Far from where a reader gives up: no stage reads much past the ends of its matches, whatever the text is.
    #[test]
    fn no_stage_reads_far_ahead() {
        const PARTS: [&str; 12] = [" ", " ", "\n", "\r", "\u{3000}", "a", "é", "1", "-", "'", "'l", "日"];
        let stages =
            [Stage::Gpt2, Stage::Llama3, Stage::Qwen2, Stage::IndividualDigits, Stage::Digits, Stage::Spaces];
        let mut random = 1u64;
        for stage in stages {
            let bytes = compile(stage).unwrap();
            let bytes: Vec<u16> =
                bytes.chunks_exact(2).map(|two| u16::from_ne_bytes([two[0], two[1]])).collect();
            let dfa = Dfa::parse(bytemuck::cast_slice(&bytes)).unwrap();
            for round in 0..300 {
                let mut next = |end: usize| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (random >> 33) as usize % end
                };
                let (first, count, most) = (next(12), 1 + next(12), 1 + next(40));
                let pieces = (0..200).map(|_| PARTS[(first + next(count)) % 12].repeat(1 + next(most)));
                let text: String = pieces.collect();
                let (mut at, mut ahead) = (0, 0);
                while at < text.len() {
                    let (end, read) = read_match(&dfa, &text.as_bytes()[at..]);
                    ahead += read - end;
                    at += end.max(1);
                }
                assert!(ahead <= 4 * text.len(), "{stage:?}, round {round}: {ahead} for {}", text.len());
            }
        }
    }

    /// The end of the match at the start of `text`, and the bytes that are read to find it.
    fn read_match(dfa: &Dfa, text: &[u8]) -> (usize, usize) {
        let (mut state, mut end) = (dfa.start, 0);
        for (index, &byte) in text.iter().enumerate() {
            state = dfa.step(state, byte).unwrap();
            if state == DEAD {
                return (end, index + 1);
            }
            if dfa.accepts(state).unwrap() {
                end = index + 1;
            }
        }
        (end, text.len())
    }

    #[test]
    fn what_is_no_regex_is_an_error() {
        assert!(compile_pattern("(", TrailingSpace::Stays).is_err());
        assert!(compile_pattern("a(?!b)", TrailingSpace::Stays).is_err(), "look-ahead");
        assert!(compile_pattern(r"\bé", TrailingSpace::Stays).is_err(), "a Unicode word boundary");
    }
}
