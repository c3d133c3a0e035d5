//! Where every section goes: pure arithmetic, done before a byte is written.

use smolrun::format::{Dtype, ENTRY_LEN, Entry, HEADER_LEN, Kind, MAX_SECTIONS};

/// What a section is, before it has a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// What it holds.
    pub kind: Kind,
    /// Its layer or, of a pre-tokenizer stage, its number.
    pub layer: Option<u32>,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its shape in the directory.
    pub shape: [u64; 2],
}

/// Every section's entry, complete but for its hash.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The directory.
    pub entries: Vec<Entry>,
    /// Bytes of the whole file.
    pub file_len: u64,
}

impl Plan {
    /// Ends the file at `end`, and with it the last section: bytes whose number was not known.
    pub fn end_at(&mut self, end: u64) {
        if let Some(last) = self.entries.last_mut() {
            last.length = end.saturating_sub(last.offset);
            last.shape = [last.length, 1];
        }
        self.file_len = end;
    }
}

/// Puts sections one after the other, each at the next offset that its alignment allows.
///
/// `None` when the file would not fit 64 bits or has more sections than the format allows.
pub fn plan(specs: &[Spec]) -> Option<Plan> {
    if specs.len() > MAX_SECTIONS as usize {
        return None;
    }
    let mut end = (HEADER_LEN as u64).checked_add((specs.len() * ENTRY_LEN) as u64)?;
    let mut entries = Vec::with_capacity(specs.len());
    for spec in specs {
        let mut entry = Entry::new(spec.kind, spec.layer, spec.dtype, spec.shape)?;
        entry.offset = end.checked_next_multiple_of(spec.kind.alignment())?;
        end = entry.offset.checked_add(entry.length)?;
        entries.push(entry);
    }
    Some(Plan { entries, file_len: end })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(kind: Kind, shape: [u64; 2]) -> Spec {
        Spec { kind, layer: None, dtype: kind.dtypes()[0], shape }
    }

    #[test]
    fn sections_are_aligned_and_adjacent() {
        let embed_tokens = spec(Kind::EmbedTokens, [17, 3]);
        let halves = Spec { dtype: Dtype::Bf16, ..embed_tokens };
        let specs = [spec(Kind::Config, [256, 1]), embed_tokens, halves, spec(Kind::Metadata, [5, 1])];
        let plan = plan(&specs).unwrap();
        let places: Vec<_> = plan.entries.iter().map(|entry| (entry.offset, entry.length)).collect();
        // 128 + 4 * 96 = 512; 17 rows are two panels of 16.
        assert_eq!(places, [(512, 256), (4096, 32 * 3 * 4), (8192, 32 * 3 * 2), (8384, 5)]);
        assert_eq!(plan.file_len, 8389);
    }

    #[test]
    fn the_last_section_ends_with_the_file() {
        let specs = |len| [spec(Kind::EmbedTokens, [17, 3]), spec(Kind::Metadata, [len, 1])];
        let mut late = plan(&specs(0)).unwrap();
        late.end_at(late.file_len + 5);
        let early = plan(&specs(5)).unwrap();
        let last = |plan: &Plan| plan.entries.last().map(|entry| (entry.offset, entry.length, entry.shape));
        assert_eq!((last(&late), late.file_len), (last(&early), early.file_len));
    }

    #[test]
    fn what_does_not_fit_is_none() {
        assert!(plan(&[spec(Kind::EmbedTokens, [u64::MAX, 2])]).is_none());
        let half = spec(Kind::Metadata, [u64::MAX / 2, 1]);
        assert!(plan(&[half, half, half]).is_none());
        assert!(plan(&vec![half; MAX_SECTIONS as usize + 1]).is_none());
    }
}
