//! How many rows of prompts a pass takes beside the streams that wait for their next token. It knows no clock, so that
//! the same requests make the same passes.

use crate::format::Config;

// Measured on two cores with SmolLM2-135M in q8 and bf16: what a pass takes is a sum of these.
/// A pass costs as much as so many rows besides its own: it waits for the weights. (On Zen 4; where memory is slower, it
/// is more, and prompts get fewer rows than they might.)
const BASE_ROWS: u64 = 3;
/// An entry's attention costs as much as that of so many rows besides its own: it waits for keys and values.
const BASE_ATTENTION_ROWS: u64 = 10;

/// What rows cost, in multiplications.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    /// A row's products with the layers' matrices.
    row: u64,
    /// A row's attention to one position. Its multiplications take half as long again as those of matrices.
    position: u64,
}

impl Costs {
    pub(super) fn new(config: &Config) -> Costs {
        let attention = config.hidden_size * (config.qkv_rows() + config.attention_width());
        let mlp = 3 * config.hidden_size * config.intermediate_size;
        Costs {
            row: (config.num_hidden_layers * (attention + mlp)) as u64,
            position: (config.num_hidden_layers * 3 * config.attention_width()) as u64,
        }
    }

    /// Of the first row of an entry with `depth` positions before it.
    fn first_row(&self, depth: usize) -> u64 {
        self.next_row(depth) + BASE_ATTENTION_ROWS * self.position * 2 / 3 * depth as u64
    }

    /// Of each row after it.
    fn next_row(&self, depth: usize) -> u64 {
        self.row + self.position * depth as u64
    }
}

/// What is left of a pass for prompts.
pub(super) struct Budget {
    costs: Costs,
    rows: usize,
    /// In multiplications; none where there is no limit.
    cost: Option<u64>,
    is_used: bool,
}

impl Budget {
    /// Of a pass of at most `max_rows`, of which one goes to each stream; `depths`: the positions before these.
    pub(super) fn new(
        costs: Costs,
        max_rows: usize,
        pace: f32,
        depths: impl Iterator<Item = usize>,
    ) -> Budget {
        let (mut streams, mut needed) = (0, BASE_ROWS * costs.row);
        for depth in depths {
            streams += 1;
            needed += costs.first_row(depth);
        }
        let rows = max_rows.saturating_sub(streams);
        let most = f64::from(pace) * needed as f64;
        let is_limited = streams > 0 && pace.is_finite();
        Budget { costs, rows, cost: is_limited.then(|| (most as u64).saturating_sub(needed)), is_used: false }
    }

    /// Gives rows to a prompt of which `left` tokens are left, after `depth`. The first to ask gets at least one.
    pub(super) fn grant(&mut self, depth: usize, left: usize) -> usize {
        let most = left.min(self.rows);
        let mut granted = 0;
        while granted < most {
            let cost = match granted {
                0 => self.costs.first_row(depth),
                _ => self.costs.next_row(depth + granted),
            };
            match &mut self.cost {
                Some(left) if *left >= cost => *left -= cost,
                Some(_) if self.is_used => break,
                Some(left) => *left = 0,
                None => {}
            }
            self.is_used = true;
            granted += 1;
        }
        self.rows -= granted;
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::{Budget, Costs};

    /// As of a model whose attention to 1,000 positions costs as much as its matrices.
    const COSTS: Costs = Costs { row: 3000, position: 3 };

    /// What prompts get, each with its depth and what is left of it, beside streams at `depths`.
    fn grants(pace: f32, depths: &[usize], prompts: &[(usize, usize)]) -> Vec<usize> {
        let mut budget = Budget::new(COSTS, 256, pace, depths.iter().copied());
        prompts.iter().map(|&(depth, left)| budget.grant(depth, left)).collect()
    }

    #[test]
    fn prompts_alone_fill_a_pass() {
        assert_eq!(grants(2.0, &[], &[(0, 4000)]), [256]);
        assert_eq!(grants(2.0, &[], &[(0, 100), (30_000, 100), (0, 100), (0, 1)]), [100, 100, 56, 0]);
    }

    #[test]
    fn streams_keep_their_pace() {
        let entry = |depth: usize, rows: usize| {
            let attention: usize = (0..rows).map(|row| 3 * (depth + row)).sum();
            3000 * rows + attention + if rows > 0 { 20 * depth } else { 0 }
        };
        for streams in [1, 2, 4, 16, 64, 200] {
            for depth in [0, 100, 3000] {
                for pace in [1.0, 1.5, 2.0, 4.0] {
                    let usual = 3 * 3000 + streams * entry(depth, 1);
                    for prompts in [&[(0, 4000)][..], &[(3900, 100), (0, 7)], &[(0, 1), (0, 1), (0, 1)]] {
                        let granted = grants(pace, &vec![depth; streams], prompts);
                        let parts = prompts.iter().zip(&granted);
                        let added: usize = parts.map(|(&(depth, _), &rows)| entry(depth, rows)).sum();
                        let total = granted.iter().sum::<usize>();
                        assert!(total > 0 && total + streams <= 256, "something comes in: {granted:?}");
                        let is_kept = (usual + added) as f64 <= f64::from(pace) * usual as f64;
                        assert!(is_kept || total == 1, "{granted:?} beside {streams} at {depth}");
                    }
                }
            }
        }
        assert_eq!(grants(2.0, &[0], &[(0, 4000)]), [3], "attention costs, too");
        assert_eq!(grants(f32::INFINITY, &[0], &[(0, 4000)]), [255]);
    }
}
