//! A GGUF file in parts: the first has the metadata, and each has its tensors. A part says which one it is, by its name
//! and its metadata, and how many there are.

use std::ffi::OsStr;
use std::path::PathBuf;

use super::Metadata;
use crate::error::{Error, Result};
use crate::parts::PartName;

/// Which part a file is, from 0 on.
const NUMBER: &str = "split.no";
/// How many there are.
const COUNT: &str = "split.count";
/// How many tensors all of them have.
const TENSORS: &str = "split.tensors.count";
/// Keys that each part has a value of its own for.
const OWN: [&str; 2] = [NUMBER, super::ALIGNMENT_KEY];

/// Where all parts lie, in order, if the file with the metadata `given` is one of several.
pub(in crate::source) fn parts(given: &Metadata) -> Result<Option<Vec<PathBuf>>> {
    let Some(count) = given.count(COUNT)?.filter(|&count| count > 1) else { return Ok(None) };
    let number = given.required(NUMBER, given.count(NUMBER))?;
    let path = given.path();
    let name = path.file_name().and_then(OsStr::to_str).and_then(PartName::of);
    let is_named = |name: &PartName| (name.number as u64 - 1, name.count as u64) == (number, count);
    let name = name.filter(is_named).ok_or_else(|| {
        let expected = format!("*-{:05}-of-{count:05}.gguf", u128::from(number) + 1);
        Error::file(
            path,
            format!("expected a file called {expected} by its {NUMBER} and {COUNT}, found this"),
        )
    })?;
    Ok(Some(name.all().map(|name| path.with_file_name(name)).collect()))
}

/// Refuses a part that is another than its name says, or of another model than the first one.
pub(in crate::source) fn check_part(first: &Metadata, part: &Metadata, number: usize) -> Result<()> {
    let found = part.required(NUMBER, part.count(NUMBER))?;
    if found != number as u64 {
        return Err(part.wrong(NUMBER, format!("{number}, as the file's name says"), found));
    }
    match part.keys().find(|key| !OWN.contains(key) && !part.agrees(first, key)) {
        Some(key) => Err(part.wrong(key, "what the first part has", "another value")),
        None => Ok(()),
    }
}

/// Compares the number of tensors in all parts with what the first one says.
pub(in crate::source) fn check_tensors(first: &Metadata, found: usize) -> Result<()> {
    match first.required(TENSORS, first.count(TENSORS))? {
        expected if expected == found as u64 => Ok(()),
        other => Err(first.wrong(TENSORS, format!("{found}, those of all parts"), other)),
    }
}
