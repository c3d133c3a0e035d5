//! A regex as an automaton over bytes, and its canonical form.

use std::collections::HashMap;
use std::hash::Hash;

use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson;
use regex_automata::util::primitives::StateID;
use regex_automata::{Anchored, MatchKind, util::start};
use smolrun::format::DEAD;

/// States of the largest automaton: three times those of any that is known.
const MAX_STATES: usize = 8192;
/// Bytes that may be needed to tell two of its states apart: several times as many as in any that is known.
const MAX_ROUNDS: usize = 256;
/// Bytes that `regex-automata` may take for one.
const MAX_SIZE: usize = 16 << 20;

/// An automaton, a column for each byte. State [`DEAD`] is dead.
pub(super) struct Table {
    pub(super) start: usize,
    /// Whether a match ends in a state.
    pub(super) accept: Vec<bool>,
    pub(super) next: Vec<[usize; 256]>,
}

impl Table {
    /// That of the regex `pattern`.
    pub(super) fn of(pattern: &str) -> Result<Table, String> {
        let limits = thompson::Config::new().nfa_size_limit(Some(MAX_SIZE));
        let config = dense::Config::new()
            .start_kind(StartKind::Anchored)
            .match_kind(MatchKind::LeftmostFirst)
            .dfa_size_limit(Some(MAX_SIZE))
            .determinize_size_limit(Some(MAX_SIZE));
        let dfa = dense::Builder::new().configure(config).thompson(limits).build(pattern);
        let one_line = |error: String| error.lines().last().unwrap_or_default().to_owned();
        Table::explore(&dfa.map_err(|error| one_line(error.to_string()))?)
    }

    /// Every state that can be reached. `regex-automata` reports a match one byte late; here a state accepts if the
    /// text may end in it.
    fn explore(dfa: &dense::DFA<Vec<u32>>) -> Result<Table, String> {
        let anchored = start::Config::new().anchored(Anchored::Yes);
        let start = dfa.start_state(&anchored).map_err(|error| error.to_string())?;
        let mut states = Numbering::new([StateID::ZERO, start]); // its dead state is its first as well
        let mut table = Table { start: states.number(start), accept: Vec::new(), next: Vec::new() };
        while let Some(&state) = states.order.get(table.next.len()) {
            if table.next.len() == MAX_STATES {
                return Err(format!("expected at most {MAX_STATES} states, found more"));
            }
            if dfa.is_quit_state(state) {
                return Err("it depends on bytes that are not looked at".to_owned());
            }
            table.accept.push(dfa.is_match_state(dfa.next_eoi_state(state)));
            table.next.push(std::array::from_fn(|byte| states.number(dfa.next_state(state, byte as u8))));
        }
        Ok(table)
    }

    /// The automaton with one state for each group of states that nothing can tell apart.
    pub(super) fn minimize(&self) -> Result<Table, String> {
        let group = self.partition()?;
        let mut groups = Numbering::new([group[usize::from(DEAD)], group[self.start]]);
        let mut table = Table { start: groups.number(group[self.start]), accept: vec![], next: vec![] };
        while let Some(wanted) = groups.order.get(table.next.len()) {
            let member = group.iter().position(|group| group == wanted).unwrap_or(usize::from(DEAD));
            table.accept.push(self.accept[member]);
            table.next.push(self.next[member].map(|state| groups.number(group[state])));
        }
        Ok(table)
    }

    /// Each state's group: Moore's algorithm, which splits groups until no two members of one differ in acceptance
    /// or in the groups to which the same byte leads.
    fn partition(&self) -> Result<Vec<usize>, String> {
        let (_, representatives) = self.byte_classes();
        let mut group: Vec<usize> = self.accept.iter().map(|&accept| accept.into()).collect();
        let mut count = 0;
        for _ in 0..MAX_ROUNDS {
            let mut signatures = Numbering::new([]);
            let signature = |state: usize| {
                let next: Vec<usize> =
                    representatives.iter().map(|&byte| group[self.next[state][byte]]).collect();
                (group[state], next)
            };
            group = (0..group.len()).map(|state| signatures.number(signature(state))).collect();
            if signatures.order.len() == count {
                return Ok(group);
            }
            count = signatures.order.len();
        }
        Err(format!("expected states that at most {MAX_ROUNDS} bytes tell apart, found others"))
    }

    /// The class of each byte, and one byte of each class: two bytes are in one class if every state sends both to
    /// the same state.
    pub(super) fn byte_classes(&self) -> (Vec<u8>, Vec<usize>) {
        let mut columns = Numbering::new([]);
        let mut representatives = Vec::new();
        let classes = (0..256).map(|byte| {
            let column: Vec<usize> = self.next.iter().map(|row| row[byte]).collect();
            let class = columns.number(column);
            if class == representatives.len() {
                representatives.push(byte);
            }
            class as u8 // at most 256 classes
        });
        (classes.collect(), representatives)
    }
}

/// Numbers values in the order in which they are first seen.
struct Numbering<T> {
    order: Vec<T>,
    numbers: HashMap<T, usize>,
}

impl<T: Clone + Eq + Hash> Numbering<T> {
    fn new(first: impl IntoIterator<Item = T>) -> Numbering<T> {
        let mut numbering = Numbering { order: Vec::new(), numbers: HashMap::new() };
        for value in first {
            numbering.number(value);
        }
        numbering
    }

    fn number(&mut self, value: T) -> usize {
        let unseen = self.order.len();
        let number = *self.numbers.entry(value.clone()).or_insert(unseen);
        if number == unseen {
            self.order.push(value);
        }
        number
    }
}
