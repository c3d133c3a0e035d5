//! Matrices that get their dtype together: those of one kind in neighboring layers, and each part of a vocabulary.

use std::ops::Range;

use smolrun::format::{Dtype, WEIGHT_ALIGN};

use crate::checkpoint::binding::{Binding, section_name};
use crate::error::{Error, Result};
use crate::options::{Size, Weights};
use crate::quantize::mix::Part;
use crate::write::blobs::Blobs;
use crate::write::metadata::Metadata;

/// What a group's matrices may become, the smallest first. The last is close to any checkpoint.
pub(crate) const CHOICES: [Dtype; 5] = [Dtype::Q3, Dtype::Q4, Dtype::Q5, Dtype::Q6, Dtype::Q8];

/// Bands of about as many layers, between the first two layers and the last.
const INNER_BANDS: u32 = 4;

/// All that a blob holds of a checkpoint's numbers, and which of it is chosen together.
pub(crate) struct Groups<'a> {
    pub(super) parts: Vec<Part<'a>>,
    pub(super) groups: Vec<Group>,
}

/// Matrices with one dtype.
pub(super) struct Group {
    /// A matrix's name, or those of a band of layers, such as `o_proj.2-8`.
    pub(super) name: String,
    /// Which parts they are.
    pub(super) members: Vec<usize>,
}

impl<'a> Groups<'a> {
    /// Of all matrices that `weights` keep as nothing in particular.
    pub(crate) fn new(weights: &Weights, bindings: &[Binding<'a>]) -> Result<Groups<'a>> {
        let parts = weights.parts(bindings)?;
        let in_layers = parts.iter().filter(|part| part.binding.kind.is_per_layer());
        let layers = in_layers.filter_map(|part| part.binding.layer).max().map_or(0, |last| last + 1);
        let mut groups: Vec<Group> = Vec::new();
        for (index, part) in parts.iter().enumerate().filter(|(_, part)| part.is_free) {
            let name = group_name(&part.binding, layers);
            match groups.iter_mut().find(|group| group.name == name) {
                Some(group) => group.members.push(index),
                None => groups.push(Group { name, members: vec![index] }),
            }
        }
        Ok(Groups { parts, groups })
    }

    /// All of a blob with every group as its dtype of `mix`, as far as that goes.
    pub(crate) fn bindings(&self, mix: &[Dtype]) -> Vec<Binding<'a>> {
        let mut bindings: Vec<Binding> = self.parts.iter().map(|part| part.binding.clone()).collect();
        for (group, &dtype) in self.groups.iter().zip(mix) {
            group.members.iter().for_each(|&member| bindings[member].dtype = dtype);
        }
        bindings
    }

    /// All of a blob that is close to the checkpoint.
    pub(crate) fn in_8_bits(&self) -> Vec<Binding<'a>> {
        let mut bindings = self.bindings(&[]);
        let matrices = bindings.iter_mut().filter(|binding| binding.kind.is_matrix());
        matrices.for_each(|binding| binding.dtype = Dtype::Q8);
        bindings
    }

    /// How many bytes more than the smallest blob one of `size` may have; an error if it is too small for any, also for those
    /// of floats, which have `floats` bytes at least. `metadata` are as long as they may become.
    pub(crate) fn room(&self, size: &Size, floats: u64, blobs: &Blobs, metadata: &Metadata) -> Result<u64> {
        let smallest = blobs.most_bytes(&self.smallest(), metadata)?;
        // Mixes are compared by whole pages, but the last section ends before its page does: one page is not given away.
        let room = size.bytes.checked_sub(smallest).map(|room| room.saturating_sub(WEIGHT_ALIGN));
        room.ok_or_else(|| {
            let expected = format!("expected at least {} bytes for this model", smallest.min(floats));
            Error::Options { problem: format!("size {size}: {expected}, found {}", size.bytes) }
        })
    }

    /// All of the smallest blob.
    pub(crate) fn smallest(&self) -> Vec<Binding<'a>> {
        self.bindings(&vec![CHOICES[0]; self.groups.len()])
    }
}

fn group_name(binding: &Binding, layers: u32) -> String {
    let layer = binding.layer.filter(|_| binding.kind.is_per_layer());
    match layer.map(|layer| band(layer, layers)) {
        Some(band) if band.len() > 1 => format!("{}.{}-{}", binding.kind.name(), band.start, band.end - 1),
        _ => section_name(binding.kind, binding.layer),
    }
}

/// The layers that `layer`, one of `layers`, is in a group with.
fn band(layer: u32, layers: u32) -> Range<u32> {
    let last = layers.saturating_sub(1);
    let first = last.min(2);
    let inner = (0..=INNER_BANDS).map(|band| first + (last - first) * band / INNER_BANDS);
    let bounds: Vec<u32> = std::iter::once(0).chain(inner).chain([layers]).collect();
    let band = bounds.array_windows().find(|[start, end]| (start..end).contains(&&layer));
    band.map_or(layer..layer + 1, |&[start, end]| start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layer_is_in_one_band() {
        for layers in 1..70 {
            let mut next = 0;
            while next < layers {
                let found = band(next, layers);
                assert_eq!(found.start, next, "{layers}");
                assert!(found.clone().all(|layer| band(layer, layers) == found), "{layers}");
                next = found.end;
            }
            assert_eq!(next, layers);
        }
    }

    #[test]
    fn the_ends_are_bands_of_their_own() {
        assert_eq!(
            [0, 2, 8, 15, 22, 29].map(|layer| band(layer, 30)),
            [0..2, 2..8, 8..15, 15..22, 22..29, 29..30]
        );
        assert_eq!([0, 1].map(|layer| band(layer, 2)), [0..1, 1..2]);
        assert_eq!([0, 1, 2].map(|layer| band(layer, 3)), [0..2, 0..2, 2..3]);
    }
}
