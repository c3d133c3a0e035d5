//! `model.safetensors.index.json`: which shard holds which tensor.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use super::Source;
use crate::error::{Error, Result};
use crate::json::Document;

/// Reads the index at `path` and the headers of every shard it names.
pub(super) fn open(path: &Path) -> Result<Source> {
    let document = Document::read(path)?;
    let expected = "an object of tensor names to shard names";
    let weight_map: BTreeMap<String, String> = document.fields()?.required("weight_map", expected)?;
    let mut source = Source::empty();
    let shards: BTreeSet<&str> = weight_map.values().map(String::as_str).collect();
    for &shard in &shards {
        check_name(path, shard)?;
    }
    for shard in shards {
        source.add_safetensors(&path.with_file_name(shard))?;
    }
    check_map(&source, &weight_map)?;
    source.index = Some(document);
    Ok(source)
}

/// A shard lies beside its index. Anything but a bare name could reach any file of this machine.
fn check_name(index: &Path, shard: &str) -> Result<()> {
    let mut components = Path::new(shard).components();
    let is_bare = matches!(components.next(), Some(Component::Normal(name)) if name == shard);
    match is_bare && components.next().is_none() && !shard.contains(['/', '\\', ':', '\0']) {
        true => Ok(()),
        false => Err(Error::file(index, format!("weight_map: expected bare file names, found {shard:?}"))),
    }
}

/// Every tensor lies in the shard that the index names, and the index names every tensor.
fn check_map(source: &Source, weight_map: &BTreeMap<String, String>) -> Result<()> {
    for (name, shard) in weight_map {
        if !source.tensors.contains_key(name) {
            return Err(Error::tensor(name, format!("expected in {shard} by the index, found nowhere")));
        }
    }
    for (name, tensor) in &source.tensors {
        let path = &source.files[tensor.file].path;
        let indexed = weight_map.get(name).map(String::as_str);
        if indexed.is_none() || indexed.map(Path::new) != path.file_name().map(Path::new) {
            let indexed = indexed.unwrap_or("no shard");
            let found = path.display();
            return Err(Error::tensor(name, format!("expected in {indexed} by the index, found in {found}")));
        }
    }
    Ok(())
}
