//! A pre-tokenizer stage: a regex compiled to a deterministic finite automaton over bytes.
//!
//! The automaton is anchored and leftmost-first: from a position it is walked byte by byte until it is in the dead
//! state or the text ends, and the last accepting position on the way is the end of the match.

use bytemuck::{Pod, Zeroable};

use super::error::FormatError;
use super::layout::Kind;

/// The state from which nothing is accepted any more.
pub const DEAD: u16 = 0;
/// How many bytes a stage may read past the ends of its matches, all together, for each byte of its text. Real patterns read
/// less than 4: Llama 3's looks for another newline to the end of white space. Without a limit a hostile one reads the whole
/// text from every place in it.
pub const MAX_LOOK_AHEAD: usize = 64;
/// Flag: a match that ends in white space is GPT-2's `\s+(?!\S)|\s+`, see [`Dfa::splits_trailing_space`].
const FLAG_TRAILING_SPACE: u32 = 1;
/// Flag, beside the other: but not one that ends in CR or LF, which another alternative matched.
const FLAG_NEWLINES_STAY: u32 = 2;
/// Bytes of the stage's own header.
const STAGE_HEADER_LEN: usize = 64;
/// Bytes before the accept table: the header and the class of each byte.
const ACCEPT_OFFSET: usize = STAGE_HEADER_LEN + 256;

/// The stage's header as it lies in the file.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct StageHeader {
    class_count: u32,
    state_count: u32,
    start: u32,
    flags: u32,
    reserved: [u8; 48],
}

/// The automaton's tables, in place.
#[derive(Clone, Copy, Debug)]
pub struct Dfa<'a> {
    /// Byte classes: columns of `next`.
    pub class_count: usize,
    /// The state before the first byte.
    pub start: u16,
    /// Whether a match of white space that is followed by something else gives its last character back, unless it
    /// is its only one: the look-ahead of `\s+(?!\S)|\s+`, which a DFA cannot express.
    pub splits_trailing_space: bool,
    /// Whether a match that ends in CR or LF is exempt from that: Llama 3's pattern has alternatives of its own for
    /// them.
    pub newlines_stay: bool,
    /// Class of each byte, `[256]`, each below `class_count`.
    pub classes: &'a [u8],
    /// 1 for each state in which a match may end, else 0, `[state_count]`.
    pub accept: &'a [u8],
    /// Next state, `[state_count][class_count]`.
    pub next: &'a [u16],
}

impl<'a> Dfa<'a> {
    /// Reads a stage and checks its sizes. The entries of `classes` and `next` are not read: a walk checks each one
    /// that it uses.
    pub fn parse(bytes: &'a [u8]) -> Result<Dfa<'a>, FormatError> {
        let error = |problem: &str| FormatError::Table {
            kind: Kind::Pretokenizer.name(),
            problem: problem.to_owned(),
        };
        let head = bytes.get(..STAGE_HEADER_LEN).ok_or_else(|| error("shorter than its 64-byte header"))?;
        let head: StageHeader = bytemuck::pod_read_unaligned(head);
        if head.reserved != [0; 48] || head.flags & !(FLAG_TRAILING_SPACE | FLAG_NEWLINES_STAY) != 0 {
            return Err(error("reserved bytes or flags are not zero"));
        }
        if !(1..=256).contains(&head.class_count) || !(1..=1 << 16).contains(&head.state_count) {
            return Err(error("expected 1 to 256 byte classes and 1 to 65536 states"));
        }
        let start = u16::try_from(head.start).ok().filter(|&start| u32::from(start) < head.state_count);
        let start = start.ok_or_else(|| error("the start state is not one of its states"))?;
        let (classes, states) = (head.class_count as usize, head.state_count as usize);
        let tables = split_tables(bytes, classes, states);
        let (accept, next) =
            tables.ok_or_else(|| error("its length does not fit its numbers of states and byte classes"))?;
        let next =
            bytemuck::try_cast_slice(next).map_err(|_| error("the state table is not aligned to 2 bytes"))?;
        Ok(Dfa {
            class_count: classes,
            start,
            splits_trailing_space: head.flags & FLAG_TRAILING_SPACE != 0,
            newlines_stay: head.flags & FLAG_NEWLINES_STAY != 0,
            classes: &bytes[STAGE_HEADER_LEN..ACCEPT_OFFSET],
            accept,
            next,
        })
    }

    /// The stage's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        const { assert!(FLAG_TRAILING_SPACE == 1 && FLAG_NEWLINES_STAY == 1 << 1) };
        let head = StageHeader {
            class_count: self.class_count as u32,
            state_count: self.accept.len() as u32,
            start: self.start.into(),
            flags: u32::from(self.splits_trailing_space) | u32::from(self.newlines_stay) << 1,
            reserved: [0; 48],
        };
        let mut bytes = bytemuck::bytes_of(&head).to_vec();
        bytes.extend_from_slice(self.classes);
        bytes.extend_from_slice(self.accept);
        bytes.resize(next_offset(self.accept.len()), 0);
        bytes.extend_from_slice(bytemuck::cast_slice(self.next));
        bytes
    }

    /// Where `byte` leads from `state`; `None` when the tables contradict themselves.
    #[inline]
    pub fn step(&self, state: u16, byte: u8) -> Option<u16> {
        let class = usize::from(*self.classes.get(usize::from(byte))?);
        let row = usize::from(state).checked_mul(self.class_count)?;
        self.next.get(row.checked_add(class)?).copied()
    }

    /// Whether a match may end in `state`; `None` when there is no such state.
    #[inline]
    pub fn accepts(&self, state: u16) -> Option<bool> {
        self.accept.get(usize::from(state)).map(|&accept| accept != 0)
    }
}

/// The accept table and the bytes of the state table, if they fill `bytes` exactly.
fn split_tables(bytes: &[u8], classes: usize, states: usize) -> Option<(&[u8], &[u8])> {
    let accept = bytes.get(ACCEPT_OFFSET..)?.get(..states)?;
    let next = bytes.get(next_offset(states)..)?;
    let expected = states.checked_mul(classes)?.checked_mul(2)?;
    (next.len() == expected).then_some((accept, next))
}

/// The state table starts at the first multiple of 64 after the accept table.
fn next_offset(states: usize) -> usize {
    ACCEPT_OFFSET.saturating_add(states).next_multiple_of(64)
}
