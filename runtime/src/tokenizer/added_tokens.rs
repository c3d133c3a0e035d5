//! Added tokens: found in the text, leftmost and longest first, before it is pre-tokenized.

use crate::error;
use crate::format::{AddedToken, FormatError, Kind, TextRules};

use super::SpecialTokens;
use super::normalize::normalize;
use super::prefixes::Prefixes;
use super::tables::{Tables, table_error};
use super::work;

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
    rules: TextRules,
    /// Those looked for in the text as it is.
    first: Pass<'a>,
    /// Those looked for in what the first left, normalized.
    second: Pass<'a>,
}

impl<'a> AddedTokens<'a> {
    pub(super) fn new(tables: &Tables<'a>) -> Result<AddedTokens<'a>, FormatError> {
        let second = tables.added.partition_point(|token| !token.is_normalized());
        let (first, second) = tables.added.split_at(second);
        let (first, second) = (Pass::new(tables, first)?, Pass::new(tables, second)?);
        Ok(AddedTokens { rules: tables.rules, first, second })
    }

    /// Hands the parts of `text`, normalized, to `emit`, in order, each with whether the whole begins with it.
    pub(super) fn split(
        &self,
        text: &str,
        special: SpecialTokens,
        emit: &mut impl FnMut(Segment<'_>, bool) -> error::Result<()>,
    ) -> error::Result<()> {
        self.first.split(text, special, &mut |segment, at| {
            let Segment::Text(text) = segment else { return emit(segment, at == 0) };
            let text = normalize(self.rules, text);
            self.second.split(&text, special, &mut |segment, inside| emit(segment, at == 0 && inside == 0))
        })
    }
}

/// The tokens that are looked for together.
struct Pass<'a>(Prefixes<'a, AddedToken>);

impl<'a> Pass<'a> {
    fn new(tables: &Tables<'a>, tokens: &[AddedToken]) -> Result<Pass<'a>, FormatError> {
        let texts = tokens.iter().map(|&token| Ok((content(tables, token)?, token)));
        Ok(Pass(Prefixes::new(texts.collect::<Result<_, _>>()?)))
    }

    /// Hands the parts of `text` to `emit`, in order, each with where it starts.
    fn split<'t>(
        &self,
        text: &'t str,
        special: SpecialTokens,
        emit: &mut impl FnMut(Segment<'t>, usize) -> error::Result<()>,
    ) -> error::Result<()> {
        let (mut done, mut from, mut space_end) = (0, 0, 0);
        while let Some((found, content, token)) = self.0.find(text, from) {
            from = found + content.len();
            if token.is_special() && special == SpecialTokens::AsText {
                continue; // it stays text, and nothing else is looked for inside of it in this pass
            }
            let (mut start, mut end) = (found, from);
            if token.takes_left_space() {
                // Not past `done`: a text of white space and such tokens would be read from each of them on.
                start = done.max(start - trailing_space(&text[done.min(start)..start]));
            }
            if token.takes_right_space() {
                // White space that was measured for a token before this one ends where it did.
                space_end = if end > space_end { end + leading_space(&text[end..]) } else { space_end };
                end = space_end;
            }
            if done < start {
                emit(Segment::Text(&text[done..start]), done)?;
            }
            emit(Segment::Token(token.id), start)?;
            done = end; // white space that one token took along may hold another, which is found all the same
        }
        match done < text.len() {
            true => emit(Segment::Text(&text[done..]), done),
            false => Ok(()),
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
        Ok(content) if content.len() > AddedToken::MAX_LEN => {
            let (most, found) = (AddedToken::MAX_LEN, content.len());
            Err(error(&format!("expected a text of at most {most} bytes, found {found}")))
        }
        Ok(content) => Ok(content),
        Err(_) => Err(error("its text is not UTF-8")),
    }
}

/// Bytes of the white space at the start of `text`.
fn leading_space(text: &str) -> usize {
    let len = text.len() - text.trim_start().len();
    work::steps(len);
    len
}

/// Bytes of the white space at the end of `text`.
fn trailing_space(text: &str) -> usize {
    let len = text.len() - text.trim_end().len();
    work::steps(len);
    len
}

/// The text of an added token without the space behind which a normalized one is looked for.
pub(super) fn spelling<'a>(tables: &Tables<'a>, token: AddedToken) -> Result<&'a str, FormatError> {
    let content = content(tables, token)?;
    let is_behind_space = token.is_normalized() && tables.rules.has(TextRules::PREPEND_SPACE);
    Ok(content.strip_prefix(' ').filter(|_| is_behind_space).unwrap_or(content))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Damage, Fixture};
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

    /// A [`Segment`] that outlives the text.
    #[derive(Debug, PartialEq)]
    enum Found {
        Text(String),
        Token(u32),
    }

    use Found::Token;

    #[allow(non_snake_case)] // reads as the variant does
    fn Text(text: &str) -> Found {
        Found::Text(text.to_owned())
    }

    fn split_with(fixture: &Fixture, text: &str, special: SpecialTokens) -> error::Result<Vec<Found>> {
        let mut segments = Vec::new();
        AddedTokens::new(&fixture.tables())?.split(text, special, &mut |segment, first| {
            assert_eq!(first, segments.is_empty());
            segments.push(match segment {
                Segment::Text(text) => Text(text),
                Segment::Token(id) => Token(id),
            });
            Ok(())
        })?;
        Ok(segments)
    }

    fn split(text: &str, special: SpecialTokens) -> Vec<Found> {
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
    fn tokens_take_white_space_along() {
        let mut fixture = fixture();
        fixture.added[0].flags = AddedToken::LSTRIP | AddedToken::RSTRIP;
        let parse = |text| split_with(&fixture, text, SpecialTokens::Parse).unwrap();
        assert_eq!(parse("a \n-- \u{3000}b"), [Text("a"), Token(4), Text("b")]);
        assert_eq!(parse(" -- -- "), [Token(4), Token(4)]);
        assert_eq!(parse("a é --"), [Text("a "), Token(3), Token(4)]);
    }

    #[test]
    fn damaged_records_are_errors() {
        let damage: [Damage; 4] = [
            ("below vocab_size", |fixture| fixture.added[0].id = 7),
            ("flags", |fixture| fixture.added[0].flags = AddedToken::SINGLE_WORD),
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
