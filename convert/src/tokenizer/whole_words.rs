//! `ignore_merges`: a word that is a token becomes it, also where the merges would make something else of it. Where they
//! make that token of it anyway, nothing need be said.

use std::collections::HashMap;

use smolrun::format::NO_TOKEN;

/// Rank and result of each pair's merge.
pub(super) type Merges = HashMap<(u32, u32), (u32, u32)>;

/// Of `tokens`, ids with the bytes of each, those that the merges do not make of their own bytes, by their bytes.
pub(super) fn find(tokens: Vec<(u32, Vec<u8>)>, byte_tokens: &[u32; 256], merges: &Merges) -> Vec<u32> {
    let is_missed = |(id, bytes): &(u32, Vec<u8>)| merge(bytes, byte_tokens, merges) != [*id];
    let mut missed: Vec<(u32, Vec<u8>)> =
        tokens.into_iter().filter(|token| !token.1.is_empty()).filter(is_missed).collect();
    missed.sort_by(|(_, a), (_, b)| a.cmp(b));
    missed.into_iter().map(|(id, _)| id).collect()
}

/// Byte-pair encoding as it is defined: the pair of the lowest rank, the leftmost of equals, until there is none.
fn merge(bytes: &[u8], byte_tokens: &[u32; 256], merges: &Merges) -> Vec<u32> {
    let tokens = bytes.iter().map(|&byte| byte_tokens[usize::from(byte)]);
    let mut ids: Vec<u32> = tokens.filter(|&id| id != NO_TOKEN).collect();
    loop {
        let pairs = ids.windows(2).enumerate();
        let found = pairs.filter_map(|(at, pair)| {
            merges.get(&(pair[0], pair[1])).map(|&(rank, merged)| (rank, at, merged))
        });
        let Some((_, at, merged)) = found.min() else { return ids };
        ids.splice(at..at + 2, [merged]);
    }
}
