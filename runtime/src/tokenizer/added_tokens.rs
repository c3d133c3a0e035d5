//! Added tokens: found in the text, leftmost and longest first, before it is pre-tokenized.

use crate::format::{AddedToken, FormatError, Kind};

use super::SpecialTokens;
use super::tables::{Tables, table_error};

/// A part of the text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Segment<'t> {
    /// Text without any added token; never empty.
    Text(&'t str),
    /// An added token.
    Token(u32),
}

/// Every added token with its text.
pub(super) struct AddedTokens<'a> {
    /// Those looked for in the whole text, then those looked for in what the first left.
    passes: [Pass<'a>; 2],
}

impl<'a> AddedTokens<'a> {
    pub(super) fn new(tables: &Tables<'a>) -> Result<AddedTokens<'a>, FormatError> {
        let second = tables.added.partition_point(|token| !token.is_normalized());
        let (first, second) = tables.added.split_at(second);
        Ok(AddedTokens { passes: [Pass::new(tables, first)?, Pass::new(tables, second)?] })
    }

    /// Hands the parts of `text` to `emit`, in order.
    pub(super) fn split<'t>(
        &self,
        text: &'t str,
        special: SpecialTokens,
        emit: &mut impl FnMut(Segment<'t>) -> Result<(), FormatError>,
    ) -> Result<(), FormatError> {
        split(&self.passes, text, special, emit)
    }
}

fn split<'t>(
    passes: &[Pass],
    text: &'t str,
    special: SpecialTokens,
    emit: &mut impl FnMut(Segment<'t>) -> Result<(), FormatError>,
) -> Result<(), FormatError> {
    let Some((pass, later)) = passes.split_first() else {
        return if text.is_empty() { Ok(()) } else { emit(Segment::Text(text)) };
    };
    let (mut done, mut from) = (0, 0);
    while let Some((start, content, token)) = pass.find(text, from) {
        from = start + content.len();
        if token.is_special() && special == SpecialTokens::AsText {
            continue; // it stays text, and nothing else is looked for inside of it in this pass
        }
        split(later, &text[done..start], special, emit)?;
        emit(Segment::Token(token.id))?;
        done = from;
    }
    split(later, &text[done..], special, emit)
}

/// The tokens that are looked for together.
struct Pass<'a> {
    /// In ascending order of their text, which is never empty.
    tokens: Vec<(&'a str, AddedToken)>,
    /// Whether any of them starts with a byte: most positions of a text are passed over by this alone.
    starts: [bool; 256],
}

impl<'a> Pass<'a> {
    fn new(tables: &Tables<'a>, tokens: &[AddedToken]) -> Result<Pass<'a>, FormatError> {
        let mut pass = Pass { tokens: Vec::with_capacity(tokens.len()), starts: [false; 256] };
        for &token in tokens {
            let content = content(tables, token)?;
            pass.starts[usize::from(content.as_bytes()[0])] = true;
            pass.tokens.push((content, token));
        }
        Ok(pass)
    }

    /// The leftmost token in `text` at `from` or later, the longest of those that start there.
    fn find(&self, text: &str, from: usize) -> Option<(usize, &'a str, AddedToken)> {
        let bytes = text.as_bytes();
        let mut starts = (from..bytes.len()).filter(|&at| self.starts[usize::from(bytes[at])]);
        starts.find_map(|start| {
            self.longest_prefix(&bytes[start..]).map(|(content, token)| (start, content, token))
        })
    }

    /// The longest token that `text` starts with.
    ///
    /// It is the greatest one not above `text`, unless that one goes on differently after some bytes. Then it is at
    /// most these bytes long, and not above them.
    fn longest_prefix(&self, mut text: &[u8]) -> Option<(&'a str, AddedToken)> {
        loop {
            let above = self.tokens.partition_point(|(content, _)| content.as_bytes() <= text);
            let &(content, token) = self.tokens.get(above.checked_sub(1)?)?;
            let shared = content.bytes().zip(text).take_while(|(a, b)| a == *b).count();
            if shared == content.len() {
                return Some((content, token));
            }
            text = text.get(..shared).filter(|shorter| shorter.len() < text.len())?;
        }
    }
}

/// The text of an added token, if it is one that this version can look for.
pub(super) fn content<'a>(tables: &Tables<'a>, token: AddedToken) -> Result<&'a str, FormatError> {
    let AddedToken { id, flags } = token;
    let error = |problem: &str| table_error(Kind::AddedTokens, format!("token {id}: {problem}"));
    if flags & !AddedToken::SUPPORTED != 0 {
        return Err(error("it has flags that this version cannot act on"));
    }
    tables.known(id, Kind::AddedTokens)?;
    match std::str::from_utf8(tables.token(id)?) {
        Ok("") => Err(error("its text is empty")),
        Ok(content) => Ok(content),
        Err(_) => Err(error("its text is not UTF-8")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Damage, Fixture};
    use super::Segment::{Text, Token};
    use super::*;

    const TOKENS: [&str; 7] = ["<a>", "<a>b", "<a>bcd", "é", "--", "-", "x"];

    fn fixture() -> Fixture {
        let (special, normalized) = (AddedToken::SPECIAL, AddedToken::NORMALIZED);
        let added = [
            ("--", 0),
            ("<a>", special),
            ("<a>b", special),
            ("<a>bcd", special),
            ("é", 0),
            ("-", normalized),
            ("x", normalized),
        ];
        Fixture::new(&TOKENS, &[], &added)
    }

    fn split_with<'t>(
        fixture: &Fixture,
        text: &'t str,
        special: SpecialTokens,
    ) -> Result<Vec<Segment<'t>>, FormatError> {
        let mut segments = Vec::new();
        AddedTokens::new(&fixture.tables())?.split(text, special, &mut |segment| {
            segments.push(segment);
            Ok(())
        })?;
        Ok(segments)
    }

    fn split(text: &str, special: SpecialTokens) -> Vec<Segment<'_>> {
        split_with(&fixture(), text, special).unwrap()
    }

    #[test]
    fn the_longest_of_the_leftmost_is_found() {
        let parse = |text| split(text, SpecialTokens::Parse);
        assert_eq!(parse("<a>"), [Token(0)]);
        assert_eq!(parse("<a>bc"), [Token(1), Text("c")]);
        assert_eq!(parse("<a>bcd<a>z"), [Token(2), Token(0), Text("z")]);
        assert_eq!(parse("<<a<a>"), [Text("<<a"), Token(0)]);
        assert_eq!(parse("1é2"), [Text("1"), Token(3), Text("2")]);
        assert_eq!(parse(""), []);
    }

    #[test]
    fn control_tokens_stay_text_unless_asked_for() {
        assert_eq!(split("1<a>b2", SpecialTokens::AsText), [Text("1<a>b2")]);
        assert_eq!(split("<a>--", SpecialTokens::AsText), [Text("<a>"), Token(4)]);
    }

    #[test]
    fn normalized_tokens_are_found_in_what_the_others_left() {
        assert_eq!(split("---", SpecialTokens::Parse), [Token(4), Token(5)]);
        assert_eq!(split("<x>", SpecialTokens::AsText), [Text("<"), Token(6), Text(">")]);
    }

    #[test]
    fn damaged_records_are_errors() {
        let damage: [Damage; 4] = [
            ("below vocab_size", |fixture| fixture.added[0].id = 7),
            ("flags", |fixture| fixture.added[0].flags = AddedToken::LSTRIP),
            ("not UTF-8", |fixture| fixture.bytes.fill(0xff)),
            ("empty", |fixture| fixture.offsets.fill(0)),
        ];
        for (problem, change) in damage {
            let mut fixture = fixture();
            change(&mut fixture);
            let error = split_with(&fixture, "", SpecialTokens::Parse).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn a_table_out_of_order_still_splits() {
        let mut fixture = fixture();
        fixture.added.reverse();
        for text in ["<a>bcd", "---", "éx<a>"] {
            let segments = split_with(&fixture, text, SpecialTokens::Parse).unwrap();
            assert!(!segments.is_empty());
        }
    }
}
