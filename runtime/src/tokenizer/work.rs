//! What encoding costs, counted where its loops are, so that tests can hold it against the length of the text. A program
//! that is no test counts nothing.

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// So many things were done, each of which takes as long whatever the text and the tables are, but for a logarithm.
#[inline(always)]
#[cfg_attr(not(test), allow(unused_variables))]
pub(super) fn steps(count: usize) {
    #[cfg(test)]
    STEPS.set(STEPS.get() + count as u64);
}

#[cfg(test)]
mod tests {
    use super::super::SpecialTokens;
    use super::super::added_tokens::AddedTokens;
    use super::super::bpe::Bpe;
    use super::super::check::check;
    use super::super::fixture::Fixture;
    use super::super::ids::Ids;
    use super::super::pretokenizer::split;
    use super::*;
    use crate::error::{Error, Result};
    use crate::format::{AddedToken, Dfa, MAX_LOOK_AHEAD};

    /// What [`Tokenizer::encode`](crate::Tokenizer::encode) promises of each byte of a text.
    const ADDED_TOKEN_STEPS: usize = AddedToken::MAX_LEN;
    const STAGE_STEPS: usize = MAX_LOOK_AHEAD + 3;
    const BPE_STEPS: usize = 6;

    /// The steps that this thread takes in `work`.
    fn count<T>(work: impl FnOnce() -> T) -> (usize, T) {
        let before = STEPS.get();
        let done = work();
        ((STEPS.get() - before) as usize, done)
    }

    /// SplitMix64.
    struct Random(u64);

    impl Random {
        fn below(&mut self, end: usize) -> usize {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) % end as u64) as usize
        }

        /// Of few letters, so that it repeats itself.
        fn text(&mut self, len: usize) -> String {
            let letters = 1 + self.below(4);
            (0..len).map(|_| ['a', 'b', ' ', 'c'][self.below(letters)]).collect()
        }
    }

    /// A stage by hand, of states that accept or not and where a byte's class, its value modulo `classes`, leads from each.
    struct Stage {
        classes: [u8; 256],
        accept: Vec<u8>,
        next: Vec<u16>,
    }

    impl Stage {
        fn new(accept: Vec<u8>, next: Vec<u16>) -> Stage {
            let count = next.len() / accept.len();
            Stage { classes: std::array::from_fn(|byte| (byte % count) as u8), accept, next }
        }

        /// Any states, few of which accept, and which seldom lead to the dead one.
        fn random(random: &mut Random) -> Stage {
            let (states, classes) = (3 + random.below(60), 1 + random.below(4));
            let rare = 1 + random.below(40);
            let accept = (0..states).map(|state| u8::from(state > 1 && random.below(rare) == 0)).collect();
            let live = |random: &mut Random| 1 + random.below(states - 1);
            let next =
                (0..states * classes).map(|_| if random.below(rare) == 0 { 0 } else { live(random) as u16 });
            let mut next: Vec<u16> = next.collect();
            next[..classes].fill(0);
            Stage::new(accept, next)
        }

        /// A match of one byte where `bytes` more are read after it in vain.
        fn looks_ahead(bytes: usize) -> Stage {
            let states = bytes + 4;
            let mut accept = vec![0; states];
            accept[2] = 1;
            let next =
                (0..states).map(|state| if state == 0 || state + 1 == states { 0 } else { state as u16 + 1 });
            Stage::new(accept, next.collect())
        }

        fn dfa(&self) -> Dfa<'_> {
            Dfa {
                class_count: self.next.len() / self.accept.len(),
                start: 1,
                splits_trailing_space: self.accept.len().is_multiple_of(2),
                newlines_stay: false,
                classes: &self.classes,
                accept: &self.accept,
                next: &self.next,
            }
        }
    }

    /// Whether `text` can be cut by `stages`, which must not take longer than they may.
    fn cut(stages: &[Dfa], text: &str) -> Result<()> {
        let (taken, result) = count(|| split(stages, text, &mut |_| Ok(())));
        let most = stages.len() * STAGE_STEPS * text.len();
        assert!(taken <= most, "{taken} steps for {} bytes", text.len());
        result
    }

    /// Any byte leads from the start to a state that does not accept, and stays there.
    fn endless() -> Stage {
        Stage::new(vec![0, 0, 0], vec![0, 2, 2])
    }

    #[test]
    fn a_stage_that_never_decides_is_an_error_after_linear_work() {
        for (len, is_error) in [(100, false), (1_000, true), (100_000, true)] {
            assert_eq!(cut(&[endless().dfa()], &"a".repeat(len)).is_err(), is_error, "{len}");
        }
        let problem = cut(&[endless().dfa()], &"a".repeat(1_000)).unwrap_err().to_string();
        assert!(problem.contains("at most 64 bytes ahead for each of a text"), "{problem}");
    }

    #[test]
    fn looking_far_ahead_is_fine_where_it_is_rare() {
        // One match of `a`, then the rest of the text in vain; what follows is dead at once.
        let (mut accept, mut next) = (vec![0; 4], vec![0u16; 8]);
        accept[2] = 1;
        (next[2], next[3], next[4], next[5], next[6], next[7]) = (0, 2, 3, 0, 3, 0);
        let stage = Stage::new(accept, next);
        cut(&[stage.dfa()], &format!("a{}", "b".repeat(100_000))).unwrap();
        for (bytes, is_fine) in
            [(0, true), (3, true), (MAX_LOOK_AHEAD - 2, true), (MAX_LOOK_AHEAD + 1, false)]
        {
            let stage = Stage::looks_ahead(bytes);
            assert_eq!(cut(&[stage.dfa()], &"a".repeat(20_000)).is_ok(), is_fine, "{bytes}");
        }
    }

    #[test]
    fn whatever_the_stages_are_they_take_linear_work() {
        let (mut random, mut cuts) = (Random(1), 0);
        for _ in 0..2_000 {
            let stages: Vec<Stage> = (0..1 + random.below(3)).map(|_| Stage::random(&mut random)).collect();
            let text = random.text(1_000);
            cuts += usize::from(cut(&stages.iter().map(Stage::dfa).collect::<Vec<_>>(), &text).is_ok());
        }
        assert!((200..1_900).contains(&cuts), "{cuts} texts were cut");
    }

    /// Tokens for a run of one letter up to a length, and all of them merge.
    fn runs(len: usize) -> Vec<String> {
        (1..=len).map(|len| "a".repeat(len)).collect()
    }

    #[test]
    fn one_long_word_takes_linear_work() {
        let runs = runs(16);
        let tokens: Vec<&str> = runs.iter().map(String::as_str).chain(["b", "ab", "abab", "aab"]).collect();
        let mut merges = vec![("a", "b"), ("ab", "ab"), ("a", "ab")];
        merges.extend((1..16).map(|len| (tokens[0], tokens[len - 1])));
        let fixture = Fixture::new(&tokens, &merges, &[]);
        let mut random = Random(2);
        let mut texts = vec!["a".repeat(1 << 20), "ab".repeat(1 << 19), "aab".repeat(1 << 18)];
        texts.extend((0..20).map(|_| random.text(1 << 16)));
        for text in texts {
            let mut ids = Ids::new(usize::MAX);
            let (taken, result) = count(|| Bpe::new(fixture.tables()).encode(&text, &mut ids));
            result.unwrap();
            assert!(taken <= BPE_STEPS * text.len(), "{taken} steps for {} bytes", text.len());
        }
    }

    #[test]
    fn whatever_the_merges_are_they_take_linear_work() {
        let mut random = Random(3);
        for _ in 0..200 {
            let mut fixture = Fixture::new(&["a", "b", " ", "c"], &[], &[]);
            // Tokens become one another in circles, with ranks that repeat.
            fixture.merges = (0..64)
                .map(|_| std::array::from_fn(|column| random.below([4, 4, 3, 4][column]) as u32))
                .collect();
            let text = random.text(5_000);
            let mut ids = Ids::new(usize::MAX);
            let (taken, result) = count(|| Bpe::new(fixture.tables()).encode(&text, &mut ids));
            result.unwrap();
            assert!(taken <= BPE_STEPS * text.len(), "{taken} steps for {} bytes", text.len());
        }
    }

    #[test]
    fn a_word_for_which_there_is_no_room_is_refused_without_work() {
        let runs = runs(16);
        let tokens: Vec<&str> = runs.iter().map(String::as_str).collect();
        let fixture = Fixture::new(&tokens, &[("a", "a")], &[]);
        let mut ids = Ids::new(100);
        let (taken, result) = count(|| Bpe::new(fixture.tables()).encode(&"a".repeat(1 << 20), &mut ids));
        assert!(matches!(result, Err(Error::TextTooLong { needed: 101, limit: 100 })));
        assert!(taken <= 100 * 16, "{taken} steps");
        // What has no token needs no room.
        Bpe::new(fixture.tables()).encode(&"-".repeat(1 << 20), &mut ids).unwrap();
    }

    /// Looks for `added` in `text`.
    fn look_for(added: &[(&str, u32)], text: &str) {
        let tokens: Vec<&str> = added.iter().map(|token| token.0).collect();
        let fixture = Fixture::new(&tokens, &[], added);
        let tables = fixture.tables();
        let added = AddedTokens::new(&tables).unwrap();
        for special in [SpecialTokens::Parse, SpecialTokens::AsText] {
            let (taken, result) = count(|| added.split(text, special, &mut |_, _| Ok(())));
            result.unwrap();
            // Two passes, and white space is measured at both ends.
            let most = 2 * (ADDED_TOKEN_STEPS + 2) * text.len();
            assert!(taken <= most, "{taken} steps for {} bytes", text.len());
        }
    }

    #[test]
    fn added_tokens_that_nearly_occur_everywhere_take_linear_work() {
        let (long, text) = ("a".repeat(AddedToken::MAX_LEN - 1) + "b", "a".repeat(30_000));
        look_for(&[(&long, 0)], &text);
        let all: Vec<String> = (1..AddedToken::MAX_LEN).rev().map(|len| "a".repeat(len) + "b").collect();
        let all: Vec<_> = all.iter().map(|token| (token.as_str(), AddedToken::SPECIAL)).collect();
        look_for(&all, &text);
        look_for(&all, &format!("{text}b").repeat(2));
    }

    #[test]
    fn added_tokens_that_take_white_space_measure_it_once() {
        let flags = [AddedToken::LSTRIP, AddedToken::RSTRIP, AddedToken::LSTRIP | AddedToken::RSTRIP];
        for flags in flags.into_iter().flat_map(|flags| [flags, flags | AddedToken::NORMALIZED]) {
            look_for(&[(" ", flags)], &" ".repeat(100_000));
            look_for(&[(" ", flags), (" a", 0)], &"  a".repeat(30_000));
        }
    }

    #[test]
    fn an_added_token_may_be_so_long_and_no_longer() {
        let (longest, longer) = ("a".repeat(AddedToken::MAX_LEN), "a".repeat(AddedToken::MAX_LEN + 1));
        for (token, is_sound) in [(&longest, true), (&longer, false)] {
            let fixture = Fixture::new(&[token], &[], &[(token, 0)]);
            assert_eq!(AddedTokens::new(&fixture.tables()).is_ok(), is_sound);
            let checked = check(&fixture.tables(), &[]);
            assert_eq!(checked.is_ok(), is_sound);
            assert!(is_sound || checked.unwrap_err().to_string().contains("at most 256 bytes, found 257"));
        }
    }
}
