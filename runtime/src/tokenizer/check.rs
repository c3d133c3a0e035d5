//! The deep check: everything that encoding and decoding rely on, in every entry of every table.

use crate::format::{DEAD, Dfa, FormatError, Kind, Merge, NO_TOKEN};

use super::added_tokens::content;
use super::tables::{Tables, table_error};

pub(super) fn check(tables: &Tables, stages: &[Dfa]) -> Result<(), FormatError> {
    check_offsets(tables)?;
    check_byte_tokens(tables)?;
    check_merges(tables)?;
    check_added_tokens(tables)?;
    check_char_tokens(tables)?;
    check_whole_words(tables)?;
    for &id in tables.prompt_prefix {
        tables.known(id, Kind::PromptPrefix)?;
    }
    stages.iter().enumerate().try_for_each(|(index, stage)| check_stage(index, stage))
}

fn check_offsets(tables: &Tables) -> Result<(), FormatError> {
    let error = |problem: String| Err(table_error(Kind::TokenOffsets, problem));
    let (offsets, bytes) = (tables.offsets, tables.bytes.len());
    if offsets.len().checked_sub(1) != Some(tables.vocab_size) {
        return error(format!("expected vocab_size + 1 offsets, found {}", offsets.len()));
    }
    if offsets.first() != Some(&0) || offsets.last().map(|&last| last as usize) != Some(bytes) {
        return error(format!("expected offsets from 0 to the end of token_bytes, {bytes}"));
    }
    match offsets.windows(2).position(|pair| pair[0] > pair[1]) {
        Some(token) => error(format!("token {token} ends before it starts")),
        None => Ok(()),
    }
}

fn check_byte_tokens(tables: &Tables) -> Result<(), FormatError> {
    for byte in 0..=255 {
        let Some(id) = tables.byte_token(byte)? else { continue };
        if tables.token(id)? != [byte] {
            let problem = format!("byte {byte}: token {id} stands for something else");
            return Err(table_error(Kind::ByteTokens, problem));
        }
    }
    Ok(())
}

fn check_merges(tables: &Tables) -> Result<(), FormatError> {
    let error = |problem: String| Err(table_error(Kind::Merges, problem));
    for &[left, right, rank, merged] in tables.merges.slots() {
        if left == NO_TOKEN {
            continue;
        }
        for id in [left, right, merged] {
            tables.known(id, Kind::Merges)?;
        }
        if tables.merges.find(left, right) != Some(Merge { rank, merged }) {
            return error(format!("the merge of {left} and {right} cannot be found where it lies"));
        }
        if tables.token(merged)?.strip_prefix(tables.token(left)?) != Some(tables.token(right)?) {
            return error(format!("tokens {left} and {right} do not add up to {merged}"));
        }
    }
    Ok(())
}

fn check_added_tokens(tables: &Tables) -> Result<(), FormatError> {
    let mut before = None;
    for &token in tables.added {
        let here = (token.is_normalized(), content(tables, token)?);
        if before.is_some_and(|before| before >= here) {
            let problem = format!("token {}: out of order", token.id);
            return Err(table_error(Kind::AddedTokens, problem));
        }
        before = Some(here);
    }
    Ok(())
}

fn check_char_tokens(tables: &Tables) -> Result<(), FormatError> {
    let error = |problem: String| Err(table_error(Kind::CharTokens, problem));
    if let Some(pair) = tables.chars.windows(2).find(|pair| pair[0][0] >= pair[1][0]) {
        return error(format!("code point {}: out of order", pair[1][0]));
    }
    for &[code, id] in tables.chars {
        let Some(c) = char::from_u32(code) else { return error(format!("{code} is no code point")) };
        if tables.token(tables.known(id, Kind::CharTokens)?)? != c.encode_utf8(&mut [0; 4]).as_bytes() {
            return error(format!("{c:?}: token {id} stands for something else"));
        }
    }
    Ok(())
}

fn check_whole_words(tables: &Tables) -> Result<(), FormatError> {
    let mut before: &[u8] = &[];
    for &id in tables.whole_words {
        let bytes = tables.token(tables.known(id, Kind::WholeWords)?)?;
        if bytes <= before {
            return Err(table_error(Kind::WholeWords, format!("token {id}: out of order")));
        }
        before = bytes;
    }
    Ok(())
}

fn check_stage(index: usize, stage: &Dfa) -> Result<(), FormatError> {
    let error = |problem: &str| Err(table_error(Kind::Pretokenizer, format!("stage {index}: {problem}")));
    let states = stage.accept.len();
    if stage.classes.iter().any(|&class| usize::from(class) >= stage.class_count) {
        return error("a byte has a class that is not one of its classes");
    }
    if stage.next.iter().any(|&next| usize::from(next) >= states) {
        return error("a transition leads to a state that is not one of its states");
    }
    if stage.accept.iter().any(|&accept| accept > 1) {
        return error("an accept flag is neither 0 nor 1");
    }
    let stays_dead = stage.next.iter().take(stage.class_count).all(|&next| next == DEAD);
    if !stays_dead || stage.accepts(DEAD) != Some(false) {
        return error("the dead state accepts or can be left");
    }
    match stage.accepts(stage.start) {
        Some(false) => Ok(()),
        _ => error("it matches where there is no text"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Damage, Fixture};
    use super::*;
    use crate::format::AddedToken;

    fn fixture() -> Fixture {
        let added = [("<a>", AddedToken::SPECIAL), ("<b>", 0)];
        let mut fixture = Fixture::new(&["a", "b", "ab", "<a>", "<b>"], &[("a", "b")], &added);
        fixture.chars = vec![[97, 0], [98, 1]];
        fixture.whole_words = vec![0, 2];
        fixture
    }

    #[test]
    fn whole_tables_pass() {
        check(&fixture().tables(), &[]).unwrap();
    }

    #[test]
    fn damaged_tables_are_found() {
        fn merge_to(f: &mut Fixture, merged: u32) {
            f.merges.iter_mut().for_each(|slot| slot[3] = merged);
        }
        let damage: [Damage; 18] = [
            ("expected offsets from 0", |f| f.offsets[0] = 1),
            ("to the end of token_bytes, 11", |f| f.bytes.push(0)),
            ("token 1 ends before it starts", |f| f.offsets[1] = 3),
            ("byte_tokens: expected token ids below", |f| f.byte_tokens[7] = 5),
            ("byte 97: token 1 stands for something else", |f| f.byte_tokens[97] = 1),
            ("byte 255 has no entry", |f| drop(f.byte_tokens.drain(255..))),
            ("merges: expected token ids below", |f| merge_to(f, 5)),
            ("tokens 0 and 1 do not add up to 3", |f| merge_to(f, 3)),
            ("cannot be found where it lies", |f| f.merges = vec![[0, 1, 0, 2], [0, 1, 1, 2]]),
            ("token 3: out of order", |f| f.added.swap(0, 1)),
            ("token 4: out of order", |f| f.added[0] = f.added[1]),
            ("code point 97: out of order", |f| f.chars.swap(0, 1)),
            ("55296 is no code point", |f| f.chars[1] = [0xd800, 0]),
            ("'c': token 1 stands for something else", |f| f.chars[1][0] = 99),
            ("char_tokens: expected token ids below", |f| f.chars[1][1] = 5),
            ("whole_words: expected token ids below", |f| f.whole_words[1] = 5),
            ("token 0: out of order", |f| f.whole_words[1] = 0),
            ("prompt_prefix: expected token ids below", |f| f.prompt_prefix = vec![0, 5]),
        ];
        for (problem, change) in damage {
            let mut fixture = fixture();
            change(&mut fixture);
            let error = check(&fixture.tables(), &[]).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}, not {problem}");
        }
    }

    #[test]
    fn too_few_offsets_are_found() {
        let fixture = fixture();
        let tables = Tables { vocab_size: 6, ..fixture.tables() };
        assert!(check(&tables, &[]).unwrap_err().to_string().contains("vocab_size + 1 offsets"));
    }

    /// A stage that matches one byte: dead, start and accepting state, one class.
    #[test]
    fn damaged_stages_are_found() {
        let (classes, other_classes) = ([0; 256], [1; 256]);
        let whole = Dfa {
            class_count: 1,
            start: 1,
            splits_trailing_space: false,
            newlines_stay: false,
            classes: &classes,
            accept: &[0, 0, 1],
            next: &[0, 2, 0],
        };
        check_stage(0, &whole).unwrap();
        let damaged = [
            ("class", Dfa { classes: &other_classes, ..whole }),
            ("transition", Dfa { next: &[0, 3, 0], ..whole }),
            ("accept flag", Dfa { accept: &[0, 0, 2], ..whole }),
            ("dead state", Dfa { accept: &[1, 0, 1], ..whole }),
            ("dead state", Dfa { next: &[1, 2, 0], ..whole }),
            ("no text", Dfa { start: 2, ..whole }),
        ];
        for (problem, stage) in damaged {
            let error = check_stage(3, &stage).unwrap_err().to_string();
            assert!(error.contains("stage 3") && error.contains(problem), "{error}, not {problem}");
        }
    }
}
