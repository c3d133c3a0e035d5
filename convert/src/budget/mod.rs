//! A blob that is to lose little for its size: which matrices get how many bits is measured, not fixed.
//!
//! Every matrix is made as every dtype that it may get. A few thousand tokens of the calibration text then tell how much
//! each group of matrices makes the model lose on its own. Losses of groups add up, as far as they are small. So the best
//! mix of a size is a knapsack problem.

pub(crate) mod groups;
mod knapsack;
mod sensitivity;
mod stock;

use smolrun::format::{Dtype, Entry, WEIGHT_ALIGN};

use self::groups::{CHOICES, Group, Groups};
use self::knapsack::Item;
use crate::checkpoint::binding::Binding;
use crate::error::Result;
use crate::progress::Progress;
use crate::quantize::text::Text;
use crate::write::blobs::Blobs;
use crate::write::metadata::Metadata;
use crate::write::shelf::Shelf;

/// All that mixes are put together from, and what they lose.
pub(crate) struct Stock<'a> {
    groups: Groups<'a>,
    /// Every section of any mix.
    pub(crate) shelf: Shelf,
    items: Vec<[Item; CHOICES.len()]>,
}

impl<'a> Stock<'a> {
    /// Quantizes and measures, which takes minutes: for the least loss on `text`, or to the nearest values. What is lost is
    /// measured on the same text, or on the built-in one.
    pub(crate) fn new(
        groups: Groups<'a>,
        blobs: &Blobs,
        metadata: &Metadata,
        text: Option<&Text>,
        progress: &Progress,
    ) -> Result<Stock<'a>> {
        let shelf = stock::fill(&groups, blobs, metadata, text, progress)?;
        let built_in = Text::built_in();
        let text = text.unwrap_or(&built_in);
        let losses = sensitivity::measure(&groups, &shelf, blobs, metadata, text, progress)?;
        let items = groups.groups.iter().zip(losses).map(|(group, losses)| {
            let item =
                |choice: usize| Item { size: pages(&groups, group, CHOICES[choice]), loss: losses[choice] };
            std::array::from_fn(item)
        });
        let items = items.collect();
        Ok(Stock { groups, shelf, items })
    }

    /// All of the blob whose measured losses are least of those that have at most `room` bytes more than the smallest one.
    pub(crate) fn choose(&self, room: u64) -> Vec<Binding<'a>> {
        let room = usize::try_from(room / WEIGHT_ALIGN).unwrap_or(usize::MAX);
        let chosen = knapsack::choose(&self.items, room);
        let mix: Vec<Dtype> = chosen.iter().map(|&item| CHOICES[item]).collect();
        self.groups.bindings(&mix)
    }
}

/// The pages that the sections of a group take.
fn pages(groups: &Groups, group: &Group, dtype: Dtype) -> usize {
    let pages = group.members.iter().map(|&member| {
        let Binding { kind, layer, shape, .. } = groups.parts[member].binding;
        let entry = Entry::new(kind, layer, dtype, shape);
        entry.map_or(0, |entry| entry.length.div_ceil(WEIGHT_ALIGN) as usize)
    });
    pages.sum()
}
