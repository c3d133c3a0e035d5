//! Every matrix as every dtype that it may get, made once.

use super::groups::{CHOICES, Groups};
use crate::checkpoint::binding::Binding;
use crate::error::Result;
use crate::progress::Progress;
use crate::quantize::text::Text;
use crate::quantize::{calibration, matrix};
use crate::write::blobs::Blobs;
use crate::write::metadata::Metadata;
use crate::write::shelf::Shelf;

/// Quantizes every matrix as all that it may become, calibrated if there is a text.
pub(super) fn fill(
    groups: &Groups,
    blobs: &Blobs,
    metadata: &Metadata,
    text: Option<&Text>,
    progress: &Progress,
) -> Result<Shelf> {
    let mut shelf = Shelf::new(&blobs.target)?;
    put_nearest(blobs, &groups.in_8_bits(), &mut shelf, progress)?;
    let variants = variants(groups);
    if let Some(text) = text {
        let close = blobs.model(groups.in_8_bits(), Some(&shelf), metadata, progress)?;
        let put = |binding: &Binding, quantized: &_| shelf.put(binding, quantized);
        calibration::quantize(blobs.source, &variants, &close.model, text, progress, put)?;
    }
    put_nearest(blobs, &variants, &mut shelf, progress)?;
    Ok(shelf)
}

/// Puts those of `bindings` that are not there yet, each number the nearest there is.
fn put_nearest(blobs: &Blobs, bindings: &[Binding], shelf: &mut Shelf, progress: &Progress) -> Result<()> {
    let absent: Vec<&Binding> = bindings.iter().filter(|binding| shelf.get(binding).is_none()).collect();
    progress.start("quantizing", absent.iter().map(|binding| matrix::panels_len(binding)).sum());
    for binding in absent {
        if let Some(quantized) = matrix::nearest(blobs.source, binding)? {
            shelf.put(binding, &quantized)?;
        }
        progress.add(matrix::panels_len(binding))?;
    }
    Ok(())
}

/// All matrices as all that they may become but 8 bits, and those that are kept as what they are kept as.
fn variants<'a>(groups: &Groups<'a>) -> Vec<Binding<'a>> {
    let variants = groups.parts.iter().flat_map(|part| {
        let dtypes = if part.is_free { &CHOICES[..CHOICES.len() - 1] } else { &[part.binding.dtype][..] };
        let variants = dtypes.iter().map(|&dtype| Binding { dtype, ..part.binding.clone() });
        variants.collect::<Vec<_>>()
    });
    variants.collect()
}
