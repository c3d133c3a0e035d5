//! The tokenizer in a GGUF file's metadata: byte-level ones with their merges, and SentencePiece's, whose merges follow from
//! the scores of what they make.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use smolrun::format::TextRules;

use super::alphabet::Alphabet;
use super::definition::{Added, Definition, Merges, check_size};
use super::dfa::Stage;
use crate::error::{Error, Result};
use crate::source::gguf::Metadata;

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const PREFIX: &str = "tokenizer.ggml.add_space_prefix";

const SCORES: &str = "tokenizer.ggml.scores";
/// What would normalize texts in a way of its own.
const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
const REMOVE_SPACES: &str = "tokenizer.ggml.remove_extra_whitespaces";

/// `token_type` of a piece that others are merged to.
const NORMAL: i128 = 1;
/// The same of the token for what has none, of control tokens, of tokens that somebody added, and of rows of the embedding without a token.
const UNKNOWN: i128 = 2;
const CONTROL: i128 = 3;
const USER_DEFINED: i128 = 4;
const UNUSED: i128 = 5;
/// Bytes of the longest piece that is looked at in all its cuts: Llama's have 48.
const MAX_PIECE_LEN: usize = 128;

/// JSON values that `tokenizer.json` has for an added token, and for a merge that is a pair.
const VALUES_OF_ADDED: usize = 8;
const VALUES_OF_A_PAIR: usize = 3;

/// The tokenizer of a GGUF file.
pub fn read(metadata: &Metadata) -> Result<Definition> {
    match metadata.required(MODEL, metadata.string(MODEL))? {
        "gpt2" => byte_level(metadata),
        "llama" => sentencepiece(metadata),
        other => Err(metadata.wrong(MODEL, "\"gpt2\" or \"llama\"", format!("{other:?}"))),
    }
}

/// The tokens that the file has, whatever the tokenizer's kind.
pub fn token_count(metadata: &Metadata) -> Result<usize> {
    Ok(metadata.required(TOKENS, metadata.strings(TOKENS))?.len())
}

/// The chat template, if there is one.
pub fn chat_template(metadata: &Metadata) -> Result<Option<String>> {
    let template = metadata.string("tokenizer.chat_template")?;
    Ok(template.filter(|template| !template.is_empty()).map(str::to_owned))
}

fn byte_level(metadata: &Metadata) -> Result<Definition> {
    if metadata.flag(PREFIX)? == Some(true) {
        return Err(metadata.wrong(PREFIX, "false", true));
    }
    let Pre { rules, stages, ignore_merges, adds_bos } = Pre::read(metadata)?;
    let tokens = Tokens::read(metadata)?;
    let merges = metadata.required(MERGES, metadata.strings(MERGES))?;
    let prompt_prefix = prompt_prefix(metadata, &tokens, adds_bos)?;
    tokens.check_size(metadata, merges.len())?;
    Ok(Definition {
        alphabet: Alphabet::ByteLevel,
        rules,
        stages,
        ignore_merges,
        unk_token: None,
        prompt_prefix,
        added_tokens: tokens.added(),
        vocab: tokens.vocab(),
        merges: Merges::Lines(merges.to_vec()),
    })
}

/// Spaces are written as `▁`; most tokenizers put one before each piece of text, and take it off what they decode.
fn sentencepiece(metadata: &Metadata) -> Result<Definition> {
    if metadata.keys().any(|key| key == CHARSMAP) {
        return Err(metadata.wrong(CHARSMAP, "nothing", "a table"));
    }
    if metadata.flag(REMOVE_SPACES)? == Some(true) {
        return Err(metadata.wrong(REMOVE_SPACES, "false", true));
    }
    let rules = match metadata.flag(PREFIX)?.unwrap_or(true) {
        true => TextRules::NORMALIZE_SPACE.with(TextRules::PREPEND_SPACE).with(TextRules::STRIP_SPACE),
        false => TextRules::NORMALIZE_SPACE,
    };
    let tokens = Tokens::read(metadata)?;
    let prompt_prefix = prompt_prefix(metadata, &tokens, true)?;
    let merges = merges(metadata, &tokens)?;
    tokens.check_size(metadata, VALUES_OF_A_PAIR * merges.len())?;
    Ok(Definition {
        alphabet: Alphabet::Metaspace,
        rules,
        stages: Vec::new(),
        ignore_merges: false,
        unk_token: None,
        prompt_prefix,
        added_tokens: tokens.added(),
        vocab: tokens.vocab(),
        merges: Merges::Pairs(merges),
    })
}

/// What llama.cpp calls a pre-tokenizer by one name: all rules that the tokenizers of that name have.
#[derive(Default)]
struct Pre {
    rules: TextRules,
    stages: Vec<Stage>,
    ignore_merges: bool,
    /// Whether a prompt begins with the beginning-of-text token where the file does not say.
    adds_bos: bool,
}

impl Pre {
    fn read(metadata: &Metadata) -> Result<Pre> {
        match metadata.required(PRE, metadata.string(PRE))? {
            "gpt-2" => Ok(Pre { stages: vec![Stage::Gpt2], ..Pre::default() }),
            "smollm" => Ok(Pre { stages: vec![Stage::IndividualDigits, Stage::Gpt2], ..Pre::default() }),
            "llama-bpe" | "llama3" | "llama-v3" => {
                Ok(Pre { stages: vec![Stage::Llama3], ignore_merges: true, adds_bos: true, ..Pre::default() })
            }
            "qwen2" => Ok(Pre { rules: TextRules::NFC, stages: vec![Stage::Qwen2], ..Pre::default() }),
            other => {
                let expected = "\"gpt-2\", \"smollm\", \"llama-bpe\" or \"qwen2\"";
                Err(metadata.wrong(PRE, expected, format!("{other:?}")))
            }
        }
    }
}

/// The beginning-of-text token, if the file puts it before a prompt, or does not say and its kind does.
fn prompt_prefix(metadata: &Metadata, tokens: &Tokens, adds_bos: bool) -> Result<Vec<u32>> {
    if metadata.flag(ADD_EOS)? == Some(true) {
        return Err(metadata.wrong(ADD_EOS, "false", true));
    }
    if !metadata.flag(ADD_BOS)?.unwrap_or(adds_bos) {
        return Ok(Vec::new());
    }
    let Some(id) = metadata.count(BOS)? else { return Ok(Vec::new()) };
    let known = u32::try_from(id).ok().filter(|&id| (id as usize) < tokens.texts.len());
    known.map(|id| vec![id]).ok_or_else(|| metadata.wrong(BOS, "the id of a token", id))
}

/// Tokens and their types. Those that only fill the embedding up, at the end, are left out.
struct Tokens<'a> {
    texts: &'a [String],
    types: Vec<i128>,
}

impl<'a> Tokens<'a> {
    fn read(metadata: &'a Metadata) -> Result<Tokens<'a>> {
        let mut texts = metadata.required(TOKENS, metadata.strings(TOKENS))?;
        let types = metadata.required(TYPES, metadata.integers(TYPES))?;
        if types.len() != texts.len() {
            return Err(metadata.wrong(TYPES, format!("one for each token, {}", texts.len()), types.len()));
        }
        if let Some(other) = types.iter().find(|kind| !(1..=6).contains(*kind)) {
            return Err(metadata.wrong(TYPES, "types from 1 to 6", other));
        }
        let used = types.iter().rposition(|&kind| kind != UNUSED).map_or(0, |last| last + 1);
        texts = &texts[..used];
        let mut seen = HashSet::new();
        match texts.iter().find(|text| !seen.insert(text.as_str())) {
            Some(text) => Err(metadata.wrong(TOKENS, "each token once", format!("{text:?} again"))),
            None => Ok(Tokens { texts, types }),
        }
    }

    fn is_added(&self, id: usize) -> bool {
        matches!(self.types[id], UNKNOWN | CONTROL | USER_DEFINED)
    }

    /// Those that are not only added at the end.
    fn in_vocab(&self) -> &'a [String] {
        let end = (0..self.texts.len()).rposition(|id| !self.is_added(id)).map_or(0, |last| last + 1);
        &self.texts[..end]
    }

    fn vocab(&self) -> HashMap<String, u32> {
        self.in_vocab().iter().cloned().zip(0..).collect()
    }

    fn added_ids(&self) -> impl Iterator<Item = usize> {
        (0..self.texts.len()).filter(|&id| self.is_added(id))
    }

    fn added(&self) -> Vec<Added> {
        let record = |id: usize| Added {
            id: id as u32, // the header has no room for more
            content: self.texts[id].clone(),
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            special: self.types[id] != USER_DEFINED,
        };
        self.added_ids().map(record).collect()
    }

    /// Holds a GGUF file to the limit of a `tokenizer.json` that says the same, with so many values of merges.
    fn check_size(&self, metadata: &Metadata, merges: usize) -> Result<()> {
        let values = self.in_vocab().len() + VALUES_OF_ADDED * self.added_ids().count() + merges;
        check_size(values).map_err(|source| Error::Tokenizer { path: metadata.path().to_owned(), source })
    }
}

/// Each cut of a piece into two others, in the order of the pieces' scores, the longest left part first.
fn merges(metadata: &Metadata, tokens: &Tokens) -> Result<Vec<[String; 2]>> {
    let pieces = pieces(metadata, tokens)?;
    let mut merges = Vec::new();
    for (&piece, &score) in &pieces {
        let cuts = piece.char_indices().skip(1).map(|(at, _)| piece.split_at(at));
        let whole = cuts.filter(|(left, right)| pieces.contains_key(left) && pieces.contains_key(right));
        merges.extend(whole.map(|(left, right)| (score, piece, left, right)));
    }
    let chars = |text: &str| text.chars().count();
    merges.sort_by(|a, b| {
        let by_length = || Reverse(chars(a.2)).cmp(&Reverse(chars(b.2)));
        b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)).then_with(by_length)
    });
    match merges.windows(2).find(|pair| pair[0].0 == pair[1].0 && pair[0].1 != pair[1].1) {
        Some(pair) => {
            let found = format!("{} for {:?} and {:?}", pair[0].0, pair[0].1, pair[1].1);
            Err(metadata.wrong(SCORES, "a score of its own for each piece that is merged", found))
        }
        None => Ok(merges.into_iter().map(|(_, _, left, right)| [left, right].map(str::to_owned)).collect()),
    }
}

/// The pieces that merges are made of, with their scores.
fn pieces<'a>(metadata: &Metadata, tokens: &Tokens<'a>) -> Result<HashMap<&'a str, f64>> {
    let scores = metadata.required(SCORES, metadata.floats(SCORES))?;
    if scores.len() != tokens.types.len() || scores.iter().any(|score| !score.is_finite()) {
        let expected = format!("a finite number for each token, {}", tokens.types.len());
        return Err(metadata.wrong(SCORES, expected, scores.len()));
    }
    let all = tokens.texts.iter().map(String::as_str).zip(tokens.types.iter().zip(scores));
    let normal = all.filter(|(_, (kind, _))| **kind == NORMAL).map(|(text, (_, score))| (text, score));
    let pieces: HashMap<&str, f64> = normal.collect();
    match pieces.keys().find(|piece| piece.len() > MAX_PIECE_LEN) {
        Some(piece) => {
            let expected = format!("pieces of at most {MAX_PIECE_LEN} bytes");
            Err(metadata.wrong("tokenizer.ggml.tokens", expected, piece.len()))
        }
        None => Ok(pieces),
    }
}
