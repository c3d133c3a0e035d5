//! Which of many texts another one begins with.

use super::work;

/// Texts in ascending order, each with something that belongs to it. They are never empty.
pub(crate) struct Prefixes<'a, T> {
    texts: Vec<(&'a str, T)>,
    /// Whether any of them starts with a byte: most places of a text are passed over by this alone.
    starts: [bool; 256],
}

impl<'a, T: Copy> Prefixes<'a, T> {
    /// Of texts in ascending order. In another order they are not all found.
    pub(crate) fn new(texts: Vec<(&'a str, T)>) -> Prefixes<'a, T> {
        let mut starts = [false; 256];
        for byte in texts.iter().filter_map(|(text, _)| text.as_bytes().first()) {
            starts[usize::from(*byte)] = true;
        }
        Prefixes { texts, starts }
    }

    /// The first place in `text`, at `from` or later, at which one of them starts, with the longest that does.
    pub(crate) fn find(&self, text: &str, from: usize) -> Option<(usize, &'a str, T)> {
        let bytes = text.as_bytes();
        let mut places = (from..bytes.len()).filter(|&at| self.starts[usize::from(bytes[at])]);
        places.find_map(|at| self.longest(&bytes[at..]).map(|(found, with)| (at, found, with)))
    }

    /// The longest that `text` begins with.
    ///
    /// Byte by byte, those that begin as `text` does are a shorter and shorter stretch of them all. No more bytes are
    /// looked at than the longest has.
    pub(crate) fn longest(&self, text: &[u8]) -> Option<(&'a str, T)> {
        let (mut candidates, mut longest) = (&self.texts[..], None);
        for (depth, &byte) in text.iter().enumerate() {
            work::steps(1);
            let here = |(text, _): &(&str, T)| text.as_bytes().get(depth).copied();
            if [candidates.first(), candidates.last()].iter().any(|end| end.and_then(here) != Some(byte)) {
                let start = candidates.partition_point(|candidate| here(candidate) < Some(byte));
                let end = candidates.partition_point(|candidate| here(candidate) <= Some(byte));
                candidates = candidates.get(start..end).unwrap_or_default();
            }
            match candidates.first() {
                None => break,
                Some(first) if first.0.len() == depth + 1 => longest = Some(*first),
                Some(_) => {}
            }
        }
        // Texts out of order lead anywhere.
        longest.filter(|(found, _)| text.starts_with(found.as_bytes()))
    }
}
