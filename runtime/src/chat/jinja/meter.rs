//! The two budgets of a rendering: whoever works or allocates pays first. And the guard of its texts.

use std::cell::Cell;

use super::Limits;
use super::fault::{Result, fail};

/// What a text costs besides its bytes: the counters before it, and what an allocator rounds up to.
const TEXT: usize = 48;
/// The size of a value at most, which `value.rs` asserts: the same on every processor, so that the limits are, too.
pub(super) const VALUE: usize = 24;
/// What a value in a list costs: twice its size, as a vector that grows may have twice its length.
const ITEM: usize = 2 * VALUE;

/// What is left of the budgets.
#[derive(Debug)]
pub(super) struct Meter {
    limits: Limits,
    steps: Cell<u64>,
    bytes: Cell<u64>,
    /// What has to stand behind a character that comes to be only now, so that no control token comes to be with it.
    pub(super) guard: Option<char>,
}

impl Meter {
    pub(super) fn new(limits: Limits) -> Meter {
        Meter { limits, steps: Cell::new(limits.steps), bytes: Cell::new(limits.bytes), guard: None }
    }

    /// Pays for `steps`.
    pub(super) fn step(&self, steps: usize) -> Result<()> {
        let Some(left) = self.steps.get().checked_sub(steps as u64) else {
            return fail(format!("it takes more than {} steps", self.limits.steps));
        };
        self.steps.set(left);
        Ok(())
    }

    /// Pays for looking at `bytes` of text.
    pub(super) fn scan(&self, bytes: usize) -> Result<()> {
        self.step(1 + bytes / 8)
    }

    /// Pays for `bytes` of memory, and for filling it.
    pub(super) fn allocate(&self, bytes: usize) -> Result<()> {
        let Some(left) = self.bytes.get().checked_sub(bytes as u64) else {
            return fail(format!("it makes more than {} bytes of text and values", self.limits.bytes));
        };
        self.bytes.set(left);
        self.scan(bytes)
    }

    /// Pays for a text of `len` bytes.
    pub(super) fn text(&self, len: usize) -> Result<()> {
        self.allocate(len.saturating_add(TEXT))
    }

    /// Pays for a list of `len` values, whatever is in them.
    pub(super) fn list(&self, len: usize) -> Result<()> {
        self.allocate(len.saturating_mul(ITEM).saturating_add(TEXT))
    }

    /// Pays for `count` texts of `len` bytes together, in a list.
    pub(super) fn texts(&self, count: usize, len: usize) -> Result<()> {
        self.list(count)?;
        self.allocate(count.saturating_mul(TEXT).saturating_add(len))
    }
}
