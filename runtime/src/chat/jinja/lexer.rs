//! From a template's text to tokens, with whitespace as `trim_blocks` and `lstrip_blocks` have it.

use std::borrow::Cow;

use super::fault::{Fault, Result, fail};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token<'a> {
    /// Text of the template itself.
    Data(&'a str),
    /// `{{`
    PrintBegin,
    /// `}}`
    PrintEnd,
    /// `{%`
    BlockBegin,
    /// `%}`
    BlockEnd,
    Name(&'a str),
    Text(Cow<'a, str>),
    Int(i64),
    Float(f64),
    Symbol(&'static str),
    /// After all others.
    End,
}

/// A token and its line.
pub(super) type Placed<'a> = (Token<'a>, u32);

/// Longer ones first.
const SYMBOLS: [&str; 25] = [
    "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<", ">", "=", ".", ",", ":", "|", "(",
    ")", "[", "]", "{", "}",
];

/// What stands between two delimiters, and how far it goes.
#[derive(Clone, Copy, PartialEq)]
enum Inside {
    Block,
    Print,
}

/// The tokens of `source`, whose lines end with `\n`.
pub(super) fn tokens(source: &str) -> Result<Vec<Placed<'_>>> {
    let source = source.strip_suffix('\n').unwrap_or(source);
    let mut lexer = Lexer { source, at: 0, line: 1, tokens: Vec::new() };
    let result = lexer.all();
    let line = lexer.line;
    result.map_err(|fault| fault.at(line))?;
    lexer.tokens.push((Token::End, line));
    Ok(lexer.tokens)
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: u32,
    tokens: Vec<Placed<'a>>,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn push(&mut self, token: Token<'a>) {
        self.tokens.push((token, self.line));
    }

    /// Goes on by `len` bytes, which are the result.
    fn take(&mut self, len: usize) -> &'a str {
        let taken = &self.rest()[..len];
        self.line += taken.bytes().filter(|&byte| byte == b'\n').count() as u32;
        self.at += len;
        taken
    }

    fn skip_whitespace(&mut self) {
        self.take(self.rest().len() - self.rest().trim_start().len());
    }

    fn skip_newline(&mut self) {
        if self.rest().starts_with('\n') {
            self.take(1);
        }
    }

    fn all(&mut self) -> Result<()> {
        while !self.rest().is_empty() {
            self.data();
            match self.rest().as_bytes() {
                [] => {}
                [_, b'#', ..] => self.comment()?,
                [_, b'%', ..] => self.block()?,
                _ => {
                    self.begin(Token::PrintBegin);
                    self.inside(Inside::Print)?;
                }
            }
        }
        Ok(())
    }

    /// Text up to the next delimiter, or to the end.
    fn data(&mut self) {
        let data = self.rest();
        let Some(start) = delimiter(data) else {
            let data = self.take(data.len());
            return self.push_data(data);
        };
        let before = &data[..start];
        let kept = match data.as_bytes()[start + 1..] {
            [_, b'-', ..] => before.trim_end(),
            [b'{', ..] | [_, b'+', ..] => before,
            _ => self.without_indentation(before),
        };
        self.push_data(kept);
        self.take(start);
    }

    fn push_data(&mut self, data: &'a str) {
        if !data.is_empty() {
            self.push(Token::Data(data));
        }
    }

    /// `before` without the blanks at its end, if there is nothing else before them in their line.
    fn without_indentation(&self, before: &'a str) -> &'a str {
        let kept = before.trim_end_matches(|c: char| c.is_whitespace() && c != '\n');
        let line_before = &self.source[..self.at + kept.len()];
        if line_before.is_empty() || line_before.ends_with('\n') { kept } else { before }
    }

    fn begin(&mut self, token: Token<'a>) {
        self.push(token);
        self.take(2);
        if self.rest().starts_with('-') || self.rest().starts_with('+') {
            self.take(1);
        }
    }

    /// What the sign before a block's or a comment's end says of the text that follows.
    fn trim_after(&mut self, sign: Option<char>) {
        match sign {
            Some('-') => self.skip_whitespace(),
            Some('+') => {}
            _ => self.skip_newline(),
        }
    }

    fn comment(&mut self) -> Result<()> {
        let Some(end) = self.rest()[2..].find("#}") else { return fail("unexpected end of comment") };
        let comment = self.take(end + 4);
        let sign = comment[2..end + 2].chars().next_back();
        self.trim_after(sign);
        Ok(())
    }

    fn block(&mut self) -> Result<()> {
        match tag(self.rest(), "raw") {
            Some((len, sign)) => {
                self.take(len);
                self.raw(sign)
            }
            None => {
                self.begin(Token::BlockBegin);
                self.inside(Inside::Block)
            }
        }
    }

    /// Everything up to `endraw`, as it is.
    fn raw(&mut self, sign: Option<char>) -> Result<()> {
        self.trim_after(sign);
        let rest = self.rest();
        let ends = rest.match_indices("{%").map(|(at, _)| at);
        let end = ends.filter_map(|at| Some((at, tag(&rest[at..], "endraw")?))).next();
        let Some((at, (len, sign))) = end else { return fail("unexpected end of raw block") };
        let before = &rest[..at];
        let kept = match rest.as_bytes().get(at + 2) {
            Some(b'-') => before.trim_end(),
            Some(b'+') => before,
            _ => self.without_indentation(before),
        };
        self.push_data(kept);
        self.take(at + len);
        self.trim_after(sign);
        Ok(())
    }

    /// The tokens up to the end of a block or of an expression to print.
    fn inside(&mut self, inside: Inside) -> Result<()> {
        let mut open = 0_i32;
        loop {
            self.skip_whitespace();
            if open <= 0 && self.end(inside) {
                return Ok(());
            }
            match self.rest().chars().next() {
                None => return fail("syntax error: unexpected end of input"),
                Some(quote @ ('"' | '\'')) => self.text(quote)?,
                Some('0'..='9') => self.number()?,
                Some('a'..='z' | 'A'..='Z' | '_') => {
                    let name = |c: char| c.is_ascii_alphanumeric() || c == '_';
                    let len = self.rest().len() - self.rest().trim_start_matches(name).len();
                    self.push(Token::Name(&self.rest()[..len]));
                    self.take(len);
                }
                Some(other) => {
                    let rest = self.rest();
                    let Some(symbol) = SYMBOLS.into_iter().find(|symbol| rest.starts_with(symbol)) else {
                        return fail(format!("syntax error: unexpected character {other:?}"));
                    };
                    open += i32::from(matches!(symbol, "(" | "[" | "{"));
                    open -= i32::from(matches!(symbol, ")" | "]" | "}"));
                    self.push(Token::Symbol(symbol));
                    self.take(symbol.len());
                }
            }
        }
    }

    /// Whether the block or the expression ends here; if so, what follows is trimmed as it asks.
    fn end(&mut self, inside: Inside) -> bool {
        let rest = self.rest();
        let sign = rest.chars().next().filter(|sign| matches!(sign, '-' | '+'));
        let after = &rest[sign.map_or(0, char::len_utf8)..];
        let (delimiter, token) = match inside {
            Inside::Block => ("%}", Token::BlockEnd),
            Inside::Print => ("}}", Token::PrintEnd),
        };
        if !after.starts_with(delimiter) {
            return false;
        }
        self.push(token);
        self.take(rest.len() - after.len() + 2);
        match inside {
            Inside::Block => self.trim_after(sign),
            Inside::Print if sign == Some('-') => self.skip_whitespace(),
            Inside::Print => {}
        }
        true
    }

    fn text(&mut self, quote: char) -> Result<()> {
        let rest = &self.rest()[1..];
        let mut is_escaped = false;
        let end = rest.find(|c: char| {
            let ends = c == quote && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            ends
        });
        let Some(end) = end else { return fail("syntax error: unexpected end of string") };
        let text = &rest[..end];
        let text = if text.contains('\\') { Cow::Owned(unescape(text)?) } else { Cow::Borrowed(text) };
        self.push(Token::Text(text));
        self.take(end + 2);
        Ok(())
    }

    fn number(&mut self) -> Result<()> {
        let rest = self.rest();
        let digits =
            |text: &str| text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '_').len();
        let mut len = digits(rest);
        // `a.0.1` is two indices.
        let is_index = matches!(self.tokens.last(), Some((Token::Symbol("."), _)));
        let fraction = rest[len..].strip_prefix('.').map_or(0, digits);
        let mut is_float = false;
        if fraction > 0 && !is_index {
            len += 1 + fraction;
            is_float = true;
        }
        let exponent = rest[len..].strip_prefix(['e', 'E']).map(|rest| (rest, rest.strip_prefix(['+', '-'])));
        if let Some((unsigned, signed)) = exponent {
            let power = digits(signed.unwrap_or(unsigned));
            if power > 0 {
                len += 1 + usize::from(signed.is_some()) + power;
                is_float = true;
            }
        }
        let number = self.take(len).replace('_', "");
        let token = if is_float {
            number.parse().map(Token::Float).ok()
        } else {
            number.parse().map(Token::Int).ok()
        };
        self.push(
            token.ok_or_else(|| Fault::new(format!("syntax error: {number} is not a number that fits")))?,
        );
        Ok(())
    }
}

/// Where in `text` the next of `{{`, `{%` and `{#` begins.
fn delimiter(text: &str) -> Option<usize> {
    text.as_bytes().windows(2).position(|pair| matches!(pair, [b'{', b'{' | b'%' | b'#']))
}

/// Length and last sign of the block at the start of `text`, if it has `name` in it and nothing else.
fn tag(text: &str, name: &str) -> Option<(usize, Option<char>)> {
    let inside = text.strip_prefix("{%")?;
    let inside = inside.strip_prefix(['-', '+']).unwrap_or(inside).trim_start();
    let rest = inside.strip_prefix(name)?.trim_start();
    let sign = rest.chars().next().filter(|sign| matches!(sign, '-' | '+'));
    let rest = &rest[sign.map_or(0, char::len_utf8)..];
    Some((text.len() - rest.strip_prefix("%}")?.len(), sign))
}

/// A text's escapes as Python reads them; what is none stays as it is.
fn unescape(text: &str) -> Result<String> {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            plain.push(character);
            continue;
        }
        match characters.next() {
            Some('n') => plain.push('\n'),
            Some('t') => plain.push('\t'),
            Some('r') => plain.push('\r'),
            Some('b') => plain.push('\u{8}'),
            Some('f') => plain.push('\u{c}'),
            Some('v') => plain.push('\u{b}'),
            Some('a') => plain.push('\u{7}'),
            Some('0') => plain.push('\0'),
            Some('\n') => {}
            Some(same @ ('\\' | '\'' | '"' | '/')) => plain.push(same),
            Some('x') => plain.push(code_point(&mut characters, 2)?),
            Some('u') => plain.push(code_point(&mut characters, 4)?),
            Some('U') => plain.push(code_point(&mut characters, 8)?),
            Some(other) => plain.extend(['\\', other]),
            None => plain.push('\\'),
        }
    }
    Ok(plain)
}

/// The character whose number is next, in `digits` hexadecimal digits; of four, two may make one, as in JSON.
fn code_point(characters: &mut std::str::Chars, digits: usize) -> Result<char> {
    let number = |characters: &mut std::str::Chars| {
        let text: String = characters.take(digits).collect();
        u32::from_str_radix(&text, 16).ok().filter(|_| text.len() == digits)
    };
    let wrong = || Fault::new("syntax error: an escape in a string is not a character");
    let first = number(characters).ok_or_else(wrong)?;
    if !(0xd800..0xdc00).contains(&first) || digits != 4 {
        return char::from_u32(first).ok_or_else(wrong);
    }
    let has_second = (characters.next(), characters.next()) == (Some('\\'), Some('u'));
    let second = has_second.then(|| number(characters)).flatten().filter(|second| second >> 10 == 0x37);
    let second = second.ok_or_else(wrong)?;
    char::from_u32(0x1_0000 + ((first & 0x3ff) << 10 | second & 0x3ff)).ok_or_else(wrong)
}
