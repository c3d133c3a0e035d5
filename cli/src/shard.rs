//! `--shard I/N`: a share of the lines.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// The share number I of N, from 1 up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shard {
    index: u64,
    count: u64,
}

impl Default for Shard {
    /// All of it.
    fn default() -> Shard {
        Shard { index: 1, count: 1 }
    }
}

impl Shard {
    /// The numbers, from 1 up, of its lines of so many: the results of all shards, one after the other, are those of
    /// the whole.
    pub(crate) fn lines(self, lines: u64) -> Range<u64> {
        let at = |index: u64| (u128::from(lines) * u128::from(index) / u128::from(self.count)) as u64;
        at(self.index - 1) + 1..at(self.index) + 1
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Shard, String> {
        let numbers = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match numbers {
            Some((index, count)) if (1..=count).contains(&index) => Ok(Shard { index, count }),
            _ => Err("expected I/N with I from 1 to N, such as 2/4".into()),
        }
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::Shard;

    #[test]
    fn every_line_is_in_one_shard() {
        for lines in [0, 1, 2, 7, 100, u64::MAX - 1] {
            for count in [1, 2, 3, 7, 1000] {
                let shards: Vec<_> = (1..=count)
                    .map(|index| format!("{index}/{count}").parse::<Shard>().unwrap().lines(lines))
                    .collect();
                assert_eq!((shards[0].start, shards[shards.len() - 1].end), (1, lines + 1));
                assert!(
                    shards
                        .windows(2)
                        .all(|pair| pair[0].end == pair[1].start && pair[0].start <= pair[0].end)
                );
            }
        }
    }

    #[test]
    fn what_is_no_shard_is_refused() {
        for text in ["", "1", "0/2", "3/2", "1/0", "-1/2", "1/2/3", "a/b", " 1/2"] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
    }
}
