//! Compiles a stage of a pre-tokenizer to the automaton of the format.
//!
//! `regex-automata` makes a DFA of the regex. It is then brought into one canonical form, so that the bytes depend on
//! what the regex matches and on nothing else: minimal, its states numbered in breadth-first order, its bytes in as
//! few classes as the transitions allow.

mod look_ahead;
mod table;

use smolrun::format::Dfa;

use self::look_ahead::TrailingSpace;
use self::table::Table;
use super::dialect;
use super::stage::Stage;
use crate::error::TokenizerError;

/// What `Digits` takes for a digit: all of `\p{N}` in Unicode 17. The regex crates and Oniguruma, which the other
/// stage follows, know Unicode 16; `tokenizers` asks Rust's standard library, which is at 17.
const DIGIT: &str = r"\p{N}\x{11DE0}-\x{11DE9}\x{16FF4}-\x{16FF6}";

/// The bytes of the stage's automaton.
pub(super) fn compile(stage: &Stage) -> Result<Vec<u8>, TokenizerError> {
    match stage {
        Stage::Split(regex) => match dialect::without_look_ahead(regex) {
            Some(alternatives) => looking_ahead(alternatives),
            None => without_rule(regex.clone()),
        },
        // What is before the white space is as long as it can be, and so a match of white space is all that is left.
        Stage::SpaceAtEnd => without_rule(r"(?s:.*)\S|\s+".to_owned()),
        Stage::IndividualDigits => without_rule(format!("[{DIGIT}]|[^{DIGIT}]+")),
        Stage::Digits => without_rule(format!("[{DIGIT}]+|[^{DIGIT}]+")),
        Stage::Spaces => without_rule(" [^ ]*|[^ ]+".to_owned()),
    }
}

fn without_rule(pattern: String) -> Result<Vec<u8>, TokenizerError> {
    let bytes = Table::of(&pattern).and_then(|table| to_bytes(&table, TrailingSpace::Stays));
    bytes.map_err(|problem| TokenizerError::Regex { pattern, problem })
}

/// `alternatives`, and after them the look-ahead, which becomes the trailing-space rule.
fn looking_ahead(alternatives: &str) -> Result<Vec<u8>, TokenizerError> {
    let pattern = format!(r"{alternatives}|\s+");
    let rule = Table::of(alternatives).and_then(|table| look_ahead::rule(&table));
    let bytes = rule.and_then(|rule| to_bytes(&Table::of(&pattern)?, rule));
    bytes.map_err(|problem| TokenizerError::Regex { pattern: alternatives.to_owned(), problem })
}

fn to_bytes(table: &Table, rule: TrailingSpace) -> Result<Vec<u8>, String> {
    let table = table.minimize()?;
    if table.accept[table.start] {
        return Err("expected no match of nothing".to_owned());
    }
    let (classes, representatives) = table.byte_classes();
    let next = table.next.iter().flat_map(|row| representatives.iter().map(|&byte| row[byte]));
    let next: Option<Vec<u16>> = next.map(|state| u16::try_from(state).ok()).collect();
    let accept: Vec<u8> = table.accept.iter().map(|&accept| u8::from(accept)).collect();
    let dfa = Dfa {
        class_count: representatives.len(),
        start: u16::try_from(table.start).map_err(|error| error.to_string())?,
        splits_trailing_space: rule != TrailingSpace::Stays,
        newlines_stay: rule == TrailingSpace::SplitsButForNewlines,
        classes: &classes,
        accept: &accept,
        next: &next.ok_or("more than 65536 states")?,
    };
    Ok(dfa.to_bytes())
}

#[cfg(test)]
mod tests {
    use smolrun::format::DEAD;

    use super::*;
    use crate::tokenizer::stage;

    /// The compiled pattern's bytes, at an even address.
    fn bytes(pattern: &str) -> Vec<u16> {
        let bytes = without_rule(pattern.to_owned()).unwrap();
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
        let bytes = bytes(r"a+|[b-z]+|\s+");
        let dfa = Dfa::parse(bytemuck::cast_slice(&bytes)).unwrap();
        assert_eq!(dfa.accepts(DEAD), Some(false));
        assert!((0..=255).all(|byte| dfa.step(DEAD, byte) == Some(DEAD)));
        assert_eq!(dfa.start, 1);
    }

    /// Far from where a reader gives up: no stage reads much past the ends of its matches, whatever the text is.
    #[test]
    fn no_stage_reads_far_ahead() {
        const PARTS: [&str; 12] = [" ", " ", "\n", "\r", "\u{3000}", "a", "é", "1", "-", "'", "'l", "日"];
        let stages = [Stage::SpaceAtEnd, Stage::IndividualDigits, Stage::Digits, Stage::Spaces];
        let regexes = [
            stage::GPT2,
            stage::LLAMA3,
            stage::QWEN2,
            stage::QWEN35,
            stage::TEKKEN,
            stage::DEEPSEEK_LETTERS,
            stage::DEEPSEEK_MARKS,
        ];
        let regexes = regexes.map(|regex| Stage::Split(regex.to_owned()));
        let mut random = 1u64;
        for stage in stages.into_iter().chain(regexes) {
            let bytes = compile(&stage).unwrap();
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
        let problem = |pattern: &str| without_rule(pattern.to_owned()).unwrap_err().to_string();
        for pattern in
            ["(", "a(?!b)", r"\bé", "(a|b)*a(a|b){16}", "a{1000}", "a{1000000}", r"\p{L}{5000}", "a*"]
        {
            let problem = problem(pattern);
            assert!(!problem.contains('\n') && problem.len() < 300, "{problem:?}");
        }
        assert!(problem("a*").contains("expected no match of nothing"));
        assert!(problem("(a|b)*a(a|b){16}").contains("at most 8192 states"));
        assert!(problem("a{1000}").contains("at most 256 bytes"));
    }
}
