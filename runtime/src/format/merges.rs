//! The merge table: an open-addressed hash table from a pair of token ids to the merge's rank and result.

use super::error::FormatError;
use super::layout::{Kind, MAX_PROBE, NO_TOKEN};

/// 2⁶⁴ divided by the golden ratio: consecutive keys land far apart (Fibonacci hashing).
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
/// Slots per merge at which [`Merges::build`] gives up: only pairs chosen to collide need as many.
const MAX_SLOTS_PER_MERGE: usize = 256;
/// A slot that holds no merge.
const EMPTY: [u32; 4] = [NO_TOKEN, 0, 0, 0];

/// What a pair of neighboring tokens becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merge {
    /// The pair with the lowest rank in a word is merged first.
    pub rank: u32,
    /// The token that takes the place of both.
    pub merged: u32,
}

/// The table, in place.
#[derive(Clone, Copy, Debug)]
pub struct Merges<'a> {
    slots: &'a [[u32; 4]],
}

impl<'a> Merges<'a> {
    /// Reads the table and checks its size. Its slots are not read.
    pub fn parse(bytes: &'a [u8]) -> Result<Merges<'a>, FormatError> {
        let slots: &[[u32; 4]] =
            bytemuck::try_cast_slice(bytes).map_err(|_| error("not a table of four 32-bit numbers each"))?;
        match slots.len().is_power_of_two() {
            true => Ok(Merges { slots }),
            false => Err(error(format!("expected a power of two slots, found {}", slots.len()))),
        }
    }

    /// Every slot: left id, right id, rank and merged id, the left id [`NO_TOKEN`] where the slot is empty.
    pub fn slots(&self) -> &'a [[u32; 4]] {
        self.slots
    }

    /// What `left` and `right` merge to. Looks at [`MAX_PROBE`] slots at most, whatever the table holds.
    #[inline]
    pub fn find(&self, left: u32, right: u32) -> Option<Merge> {
        for index in probe(left, right, self.slots.len()) {
            let &[l, r, rank, merged] = self.slots.get(index)?;
            if (l, r) == (left, right) {
                return Some(Merge { rank, merged });
            }
            if l == NO_TOKEN {
                return None;
            }
        }
        None
    }

    /// The smallest table, at most half full, that has every one of `entries` (left id, right id, rank, merged id)
    /// within [`MAX_PROBE`] slots of its home. `None` if there is none of a sensible size.
    ///
    /// No two entries may have the same pair.
    pub fn build(entries: &[[u32; 4]]) -> Option<Vec<[u32; 4]>> {
        let most = entries.len().checked_mul(MAX_SLOTS_PER_MERGE)?;
        let mut len = entries.len().checked_mul(2)?.checked_next_power_of_two()?.max(1);
        loop {
            if let Some(slots) = place(entries, len) {
                return Some(slots);
            }
            len = len.checked_mul(2).filter(|&len| len <= most)?;
        }
    }
}

/// Puts every entry in the first free slot from its home on, if each finds one near enough.
fn place(entries: &[[u32; 4]], len: usize) -> Option<Vec<[u32; 4]>> {
    let mut slots = vec![EMPTY; len];
    for &entry in entries {
        let [left, right, ..] = entry;
        let free = probe(left, right, len).find(|&index| slots[index] == EMPTY)?;
        slots[free] = entry;
    }
    Some(slots)
}

/// The slots in which a pair may lie, its home slot first: the topmost bits of the product choose it.
#[inline]
fn probe(left: u32, right: u32, len: usize) -> impl Iterator<Item = usize> {
    let key = u64::from(left) << 32 | u64::from(right);
    let unused_bits = 64u32.saturating_sub(len.trailing_zeros());
    let home = key.wrapping_mul(MULTIPLIER).checked_shr(unused_bits).unwrap_or(0) as usize;
    (0..MAX_PROBE).map(move |step| home.wrapping_add(step) & len.wrapping_sub(1))
}

fn error(problem: impl Into<String>) -> FormatError {
    FormatError::Table { kind: Kind::Merges.name(), problem: problem.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(slots: &[[u32; 4]]) -> Merges<'_> {
        Merges::parse(bytemuck::cast_slice(slots)).unwrap()
    }

    #[test]
    fn every_entry_is_found_and_nothing_else() {
        let entries: Vec<[u32; 4]> =
            (0..5000u32).map(|i| [i / 7, i.wrapping_mul(31) % 4096 + i % 7, i, 5000 + i]).collect();
        let distinct: std::collections::HashMap<_, _> = entries.iter().map(|e| ((e[0], e[1]), *e)).collect();
        let entries: Vec<[u32; 4]> = distinct.into_values().collect();
        let slots = Merges::build(&entries).unwrap();
        assert!(slots.len() >= 2 * entries.len() && slots.len().is_power_of_two());
        let merges = view(&slots);
        for &[left, right, rank, merged] in &entries {
            assert_eq!(merges.find(left, right), Some(Merge { rank, merged }));
            assert_eq!(merges.find(left, right + 100_000), None);
        }
    }

    #[test]
    fn an_empty_table_finds_nothing() {
        let slots = Merges::build(&[]).unwrap();
        assert_eq!(slots, [EMPTY]);
        assert_eq!(view(&slots).find(0, 0), None);
    }

    #[test]
    fn a_table_without_an_empty_slot_ends_the_search() {
        let slots = vec![[1, 1, 0, 0]; 1 << 12];
        assert_eq!(view(&slots).find(2, 2), None);
    }

    #[test]
    fn pairs_that_share_a_home_make_the_table_grow() {
        // The multiplier is odd, so it has an inverse, and any home slots can be asked for.
        let inverse =
            (0..6).fold(MULTIPLIER, |x, _| x.wrapping_mul(2u64.wrapping_sub(MULTIPLIER.wrapping_mul(x))));
        let colliding = |spread: u32| -> Vec<[u32; 4]> {
            let keys = (0..100u64).map(|i| (i << spread).wrapping_mul(inverse));
            keys.map(|key| [(key >> 32) as u32, key as u32, 0, 0]).collect()
        };
        let slots = Merges::build(&colliding(52)).unwrap();
        assert!(slots.len() > 256);
        assert_eq!(Merges::build(&colliding(0)), None);
    }

    #[test]
    fn sizes_that_are_no_table_are_refused() {
        let slots = [EMPTY; 3];
        assert!(Merges::parse(bytemuck::cast_slice(&slots)).is_err());
        assert!(Merges::parse(&[]).is_err());
        assert!(Merges::parse(&bytemuck::cast_slice(&slots)[..40]).is_err());
    }
}
