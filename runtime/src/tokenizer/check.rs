//! The deep check: everything that encoding and decoding rely on, in every entry of every table.

use crate::format::{DEAD, Dfa, FormatError, Kind, Merge, NO_TOKEN};

use super::added_tokens::content;
use super::tables::{Tables, table_error};

pub(super) fn check(tables: &Tables, stages: &[Dfa]) -> Result<(), FormatError> {
    check_offsets(tables)?;
    check_byte_tokens(tables)?;
    check_merges(tables)?;
    check_added_tokens(tables)?;
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
