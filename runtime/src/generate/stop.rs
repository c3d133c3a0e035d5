//! Stop strings: text that ends a generation and is not part of it.

/// Lets text through up to the first stop string, and holds back what might yet become one.
#[derive(Clone, Debug, Default)]
pub(super) struct StopStrings {
    stops: Vec<String>,
    /// A proper prefix of a stop string, or several that overlap.
    held: String,
    is_hit: bool,
}

impl StopStrings {
    /// Stops at any of `stops`, none of which is empty.
    pub(super) fn new(stops: Vec<String>) -> StopStrings {
        StopStrings { stops, ..StopStrings::default() }
    }

    /// Whether a stop string came.
    pub(super) fn is_hit(&self) -> bool {
        self.is_hit
    }

    /// Takes the next text and returns what cannot be part of a stop string, nothing from the first one on.
    pub(super) fn push(&mut self, text: String) -> String {
        if self.stops.is_empty() || self.is_hit {
            return if self.is_hit { String::new() } else { text };
        }
        // Character by character: the stop string that ends first counts, however the text is cut.
        for character in text.chars() {
            self.held.push(character);
            let ends = self.stops.iter().filter(|stop| self.held.ends_with(stop.as_str()));
            if let Some(longest) = ends.map(String::len).max() {
                self.is_hit = true;
                self.held.truncate(self.held.len() - longest);
                return std::mem::take(&mut self.held);
            }
        }
        let decided = self.undecided();
        let shown = self.held[..decided].to_owned();
        self.held.drain(..decided);
        shown
    }

    /// No more text will come: returns what was held back.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Where the longest end of `held` begins that is the beginning of a stop string.
    fn undecided(&self) -> usize {
        let mut starts = self.held.char_indices().map(|(at, _)| at);
        let begins = |&at: &usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[at..]));
        starts.find(begins).unwrap_or(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    use super::StopStrings;

    /// What is shown of `text` that comes `step` characters at a time, and whether it was stopped.
    fn run(stops: &[&str], text: &str, step: usize) -> (String, bool) {
        let mut filter = StopStrings::new(stops.iter().map(|stop| stop.to_string()).collect());
        let characters: Vec<char> = text.chars().collect();
        let mut shown = String::new();
        for piece in characters.chunks(step) {
            shown += &filter.push(piece.iter().collect());
            assert!(!stops.iter().any(|stop| shown.contains(stop)), "leaked: {shown:?}");
        }
        shown += &filter.finish();
        (shown, filter.is_hit())
    }

    #[test]
    fn the_stop_string_that_ends_first_ends_the_text() {
        let cases: [(&[&str], &str, &str, bool); 12] = [
            (&[], "any text", "any text", false),
            (&["\n\n"], "one\ntwo\n\nthree", "one\ntwo", true),
            (&["User:"], "Hi. Use: User", "Hi. Use: User", false),
            (&["aab"], "aaaab", "aa", true),
            (&["abcd", "bc"], "xabcd", "xa", true),
            (&["bc", "abc"], "xabcd", "x", true),
            (&["日本"], "日日本", "日", true),
            (&["é"], "cafe\u{301} café", "cafe\u{301} caf", true),
            (&["👩‍🚀"], "👩‍👩‍🚀", "👩‍", true),
            (&["stop"], "stop", "", true),
            (&["ababac"], "abababac", "ab", true),
            (&["xyz"], "xyxy", "xyxy", false),
        ];
        for (stops, text, expected, is_hit) in cases {
            for step in 1..=text.len().max(1) {
                assert_eq!(run(stops, text, step), (expected.to_owned(), is_hit), "{stops:?} {step}");
            }
        }
    }

    #[test]
    fn what_cannot_become_a_stop_string_is_not_held() {
        let mut filter = StopStrings::new(vec!["END".into(), "ENOUGH".into()]);
        let mut push = |text: &str| filter.push(text.into());
        assert_eq!(push("The E"), "The ");
        assert_eq!(push("N"), "");
        assert_eq!(push("TER"), "ENTER");
        assert_eq!(push(" key EEN"), " key E");
        assert_eq!(push("D and more"), "");
        assert_eq!(push("more"), "");
    }
}
