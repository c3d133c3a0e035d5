//! Which tokens came lately, and how often: what the penalties look at.

use std::collections::VecDeque;

/// Counts of the tokens in a window over the sequence.
#[derive(Clone, Debug)]
pub(super) struct History {
    /// Times that each id is in the window, `[vocab_size]`.
    counts: Vec<u32>,
    /// The ids whose count is not 0, in no order.
    distinct: Vec<u32>,
    /// The window's tokens; empty where it is the whole sequence and nothing ever leaves it.
    recent: VecDeque<u32>,
    /// Tokens of the window; 0 for all.
    window: usize,
}

impl History {
    /// An empty window of `window` tokens, 0 for all, with memory for a context of 2¹⁷ tokens: what is longer than
    /// that grows it now and then.
    pub(super) fn new(vocab_size: usize, window: usize) -> History {
        const FORESEEN: usize = 1 << 17;
        History {
            counts: vec![0; vocab_size],
            distinct: Vec::with_capacity(vocab_size.min(FORESEEN)),
            recent: VecDeque::with_capacity(window.min(FORESEEN)),
            window,
        }
    }

    /// Appends `id`, which is below the vocabulary's size, to the sequence.
    pub(super) fn push(&mut self, id: u32) {
        if self.window > 0 {
            if self.recent.len() == self.window {
                self.forget_oldest();
            }
            self.recent.push_back(id);
        }
        let count = &mut self.counts[id as usize];
        if *count == 0 {
            self.distinct.push(id);
        }
        *count += 1;
    }

    /// Every id in the window, with the number of times that it is there.
    pub(super) fn counts(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.distinct.iter().map(|&id| (id, self.counts[id as usize]))
    }

    fn forget_oldest(&mut self) {
        let Some(oldest) = self.recent.pop_front() else { return };
        let count = &mut self.counts[oldest as usize];
        *count -= 1;
        if *count == 0
            && let Some(at) = self.distinct.iter().position(|&id| id == oldest)
        {
            self.distinct.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::History;

    #[test]
    fn the_window_slides() {
        let tokens = [3, 1, 3, 3, 0, 2, 2, 3, 1, 1];
        for window in 0..12 {
            let mut history = History::new(4, window);
            for end in 0..=tokens.len() {
                let start = if window == 0 { 0 } else { end.saturating_sub(window) };
                let mut found: Vec<_> = history.counts().collect();
                found.sort();
                let count = |id| tokens[start..end].iter().filter(|&&token| token == id).count() as u32;
                let expected = (0..4).map(|id| (id, count(id))).filter(|(_, count)| *count > 0);
                assert!(expected.eq(found), "window {window}, {end} tokens");
                tokens.get(end).into_iter().for_each(|&id| history.push(id));
            }
        }
    }
}
