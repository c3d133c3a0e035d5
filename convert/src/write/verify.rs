//! `smolconv verify`: a blob is what its converter wrote.

use std::path::Path;
use std::sync::Arc;

use smolrun::Model;
use smolrun::format::Layout;
use smolrun::storage::Storage;

use crate::bundle::Bundle;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::tokenizer::chat_template;

/// Maps the blob at `path`, also one in a bundle, and runs every check that opening it runs.
pub(crate) fn open(path: &Path) -> Result<(Arc<Storage>, Layout)> {
    let storage = map(path, Bundle::find(path)?.as_ref())?;
    let layout = Layout::parse(storage.bytes()).map_err(Error::blob(path))?;
    Ok((Arc::new(storage), layout))
}

fn map(path: &Path, bundle: Option<&Bundle>) -> Result<Storage> {
    let mapped = match bundle {
        Some(bundle) => Storage::map_range(path, bundle.blob.clone()),
        None => Storage::map(path),
    };
    mapped.map_err(Error::io(path))
}

/// Opens the blob at `path`, also one in a bundle, and checks all of its content, also that its chat template can be
/// compiled. Returns how it is laid out.
pub fn verify(path: &Path, progress: &Progress) -> Result<Layout> {
    let bundle = Bundle::find(path)?;
    let model = Model::from_storage(map(path, bundle.as_ref())?).map_err(Error::blob(path))?;
    let layout = model.layout();
    progress.start("verifying", layout.sections.iter().map(|section| section.entry.length).sum());
    let count = |bytes| {
        let _ = progress.add(bytes); // it ends soon by itself
    };
    model.verify_with(None, &count).map_err(Error::blob(path))?;
    progress.add(0)?;
    if let Some(bundle) = bundle {
        bundle.verify(path, model.storage().bytes())?;
    }
    let template = model.chat_template().map_err(Error::blob(path))?;
    template.map_or(Ok(()), |template| chat_template::check(path, template))?;
    Ok(layout.clone())
}
