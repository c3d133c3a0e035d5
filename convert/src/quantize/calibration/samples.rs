//! What a model is calibrated on: pieces of a text.

use smolrun::{Message, Model, SpecialTokens};

/// Tokens of a window, where the model's context is not shorter.
const WINDOW: usize = 512;
/// Most windows: of a longer text, so many spread evenly over it.
const MOST_WINDOWS: usize = 128;
/// Tokens that a sequence is begun with, on its own: of these a few ...
const FIRSTS: usize = 56;
/// ... and as if so many of them had been the first one of a conversation.
const CONVERSATIONS: usize = 8;

/// Sequences of tokens.
#[derive(Debug, PartialEq)]
pub(crate) struct Samples {
    /// Pieces of the text, all of one length.
    pub(crate) windows: Vec<Vec<u32>>,
    /// Single tokens, and how much each counts, one in all.
    pub(super) firsts: Vec<(u32, f32)>,
}

impl Samples {
    /// Of `text`; an error if there is not one window.
    pub(crate) fn new(model: &Model, text: &str) -> smolrun::Result<Samples> {
        Samples::skipping(0.0, model, text)
    }

    /// The same of windows that begin later, by that part of a window.
    pub(crate) fn skipping(part: f32, model: &Model, text: &str) -> smolrun::Result<Samples> {
        let tokenizer = model.tokenizer();
        let prefix = tokenizer.prompt_prefix()?;
        let tokens = tokenizer.encode(text, SpecialTokens::AsText)?;
        let length = WINDOW.min(model.config().max_position_embeddings);
        let own = length.saturating_sub(prefix.len()).max(1);
        if tokens.len() < own {
            let expected = format!("a text of at least {own} tokens");
            return Err(smolrun::Error::Argument { name: "text", expected, found: tokens.len().to_string() });
        }
        let skipped = ((own as f32 * part) as usize).min(tokens.len() - own);
        let tokens = &tokens[skipped..];
        let windows = spread(tokens.len() / own, MOST_WINDOWS)
            .map(|window| [prefix, &tokens[window * own..][..own]].concat())
            .collect();
        let firsts = match prefix.first() {
            Some(&first) => vec![(first, 1.0)],
            None => firsts(tokens, begins_conversations(model)),
        };
        Ok(Samples { windows, firsts })
    }

    /// At most so many of the windows, evenly.
    pub(crate) fn some_windows(&self, most: usize) -> impl Iterator<Item = &[u32]> {
        spread(self.windows.len(), most).map(|index| self.windows[index].as_slice())
    }

    /// Tokens of all windows.
    pub(super) fn tokens(&self) -> usize {
        self.windows.iter().map(Vec::len).sum()
    }
}

/// At most so many of `count` things, evenly.
fn spread(count: usize, most: usize) -> impl Iterator<Item = usize> {
    let picked = count.min(most);
    (0..picked).map(move |index| index * count / picked)
}

/// A text may begin with any token; a conversation begins with one.
fn firsts(tokens: &[u32], conversation: Option<u32>) -> Vec<(u32, f32)> {
    let ids = spread(tokens.len(), FIRSTS).map(|index| (tokens[index], 1.0));
    let mut firsts: Vec<(u32, f32)> = ids.chain(conversation.map(|id| (id, CONVERSATIONS as f32))).collect();
    let sum: f32 = firsts.iter().map(|(_, share)| share).sum();
    firsts.iter_mut().for_each(|(_, share)| *share /= sum);
    firsts
}

/// The token that the model's conversations begin with, if it has them.
fn begins_conversations(model: &Model) -> Option<u32> {
    let ids = model.encode_chat(&[Message::new("user", "Hello")]).ok()?;
    ids.first().copied()
}
