//! SentencePiece's merges, which follow from its pieces: any two neighbors merge that are a piece together, those of
//! the highest score first, and of equals the leftmost.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::tokens::{NORMAL, TOKENS, Tokens, UNUSED, USER_DEFINED};
use crate::error::Result;
use crate::source::gguf::Metadata;

const SCORES: &str = "tokenizer.ggml.scores";
/// Bytes of the longest piece that is looked at in all its cuts: Llama's have 48.
const MAX_PIECE_LEN: usize = 128;

/// Each cut of a piece into two symbols. Those of equal score have equal ranks.
pub(super) fn merges(metadata: &Metadata, tokens: &Tokens) -> Result<Vec<(u32, [String; 2])>> {
    let pieces = Pieces::read(metadata, tokens)?;
    pieces.check_unused()?;
    let mut merges = Vec::new();
    for (piece, score) in pieces.of_kind(NORMAL) {
        for (left, right) in pieces.cuts(piece) {
            pieces.check_symbol(left, piece)?;
            pieces.check_symbol(right, piece)?;
            merges.push((score, piece, left, right));
        }
    }
    let chars = |text: &str| text.chars().count();
    merges.sort_by(|a, b| {
        let by_length = || Reverse(chars(a.2)).cmp(&Reverse(chars(b.2)));
        b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)).then_with(by_length)
    });
    let ranks = merges.chunk_by(|a, b| a.0 == b.0).zip(0..);
    let ranked = ranks.flat_map(|(equals, rank)| equals.iter().map(move |merge| (rank, merge)));
    Ok(ranked.map(|(rank, &(_, _, left, right))| (rank, [left, right].map(str::to_owned))).collect())
}

/// Every token with its score, and the type of each text.
struct Pieces<'t, 'a> {
    metadata: &'a Metadata,
    tokens: &'t Tokens<'a>,
    scores: Vec<f32>,
    kinds: HashMap<&'a str, i128>,
}

impl<'t, 'a> Pieces<'t, 'a> {
    fn read(metadata: &'a Metadata, tokens: &'t Tokens<'a>) -> Result<Pieces<'t, 'a>> {
        let scores = metadata.required(SCORES, metadata.floats(SCORES))?;
        let scores: Vec<f32> = scores.into_iter().map(|score| score as f32).collect();
        if scores.len() != tokens.types.len() || scores.iter().any(|score| !score.is_finite()) {
            let expected = format!("a finite number for each token, {}", tokens.types.len());
            return Err(metadata.wrong(SCORES, expected, scores.len()));
        }
        let mut kinds = HashMap::new();
        for (text, &kind) in tokens.all.iter().zip(&tokens.types) {
            kinds.entry(text.as_str()).or_insert(kind); // rows at the end may repeat the text of another
        }
        let pieces = Pieces { metadata, tokens, scores, kinds };
        let mut cut = pieces.of_kind(NORMAL).chain(pieces.of_kind(UNUSED));
        match cut.find(|(piece, _)| piece.len() > MAX_PIECE_LEN) {
            Some((piece, _)) => {
                let expected = format!("pieces of at most {MAX_PIECE_LEN} bytes");
                Err(metadata.wrong(TOKENS, expected, piece.len()))
            }
            None => {
                drop(cut);
                Ok(pieces)
            }
        }
    }

    /// The pieces of this type, with their scores. No text has spaces any more when it is cut, and so none becomes a
    /// piece that has some.
    fn of_kind(&self, wanted: i128) -> impl Iterator<Item = (&'a str, f32)> {
        let kinds = self.tokens.types.iter().zip(&self.scores);
        let all = self.tokens.all.iter().map(String::as_str).zip(kinds);
        let wanted = all.filter(move |(text, (kind, _))| **kind == wanted && !text.contains(' '));
        wanted.map(|(text, (_, &score))| (text, score))
    }

    /// The ways in which `piece` is two symbols.
    fn cuts(&self, piece: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let cuts = piece.char_indices().skip(1).map(move |(at, _)| piece.split_at(at));
        cuts.filter(|(left, right)| self.is_symbol(left) && self.is_symbol(right))
    }

    /// Whether a part of a text can be `text` at some time, and merge: any character, or a piece. What somebody
    /// defined is cut out of a text before.
    fn is_symbol(&self, text: &str) -> bool {
        match self.kinds.get(text) {
            Some(&NORMAL) => true,
            Some(&USER_DEFINED) => false,
            _ => is_one_char(text),
        }
    }

    /// A character without a piece becomes bytes, which merge no more.
    fn check_symbol(&self, symbol: &str, piece: &str) -> Result<()> {
        match self.kinds.get(symbol) {
            Some(&NORMAL) => Ok(()),
            _ => {
                let expected = "a normal piece for each character that is merged";
                Err(self.metadata.wrong(TOKENS, expected, format!("none for {symbol:?} of {piece:?}")))
            }
        }
    }

    /// SentencePiece takes unused pieces apart again, by the merges that it looked at before. llama.cpp does not.
    fn check_unused(&self) -> Result<()> {
        let is_reached =
            |&(piece, _): &(&'a str, f32)| is_one_char(piece) || self.cuts(piece).next().is_some();
        match self.of_kind(UNUSED).find(is_reached) {
            Some((piece, _)) => {
                let expected = "no unused piece that a text can become";
                Err(self.metadata.wrong(TOKENS, expected, format!("{piece:?}")))
            }
            None => Ok(()),
        }
    }
}

fn is_one_char(text: &str) -> bool {
    text.chars().nth(1).is_none() && !text.is_empty()
}
