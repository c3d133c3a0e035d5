//! A program and its blob, written as one file.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use super::target::Target;
use super::temp_file::{self, TempFile};
use crate::bundle;
use crate::error::{Error, Result};

/// Writes the program at `program`, with the `blob` of the model at `model` and the options that it is told first, to `out`,
/// which is replaced only with `force`, and must be neither program nor model. It has its name when it is whole. Returns how
/// many bytes it has.
///
/// The program must be `smolrun` for Linux, in no bundle yet.
pub fn make(
    program: &Path,
    model: &Path,
    blob: &[u8],
    options: &[String],
    out: &Path,
    force: bool,
) -> Result<u64> {
    let target = Target::new(out, force)?;
    target.must_not_be([program, model].into_iter(), "those that are read")?;
    let bytes = fs::read(program).map_err(Error::io(program))?;
    let parts = bundle::parts(&bytes, program, blob, options)?;
    temp_file::prepare(&target)?;
    let temp = TempFile::create(&target)?;
    let mut file = temp.file()?;
    parts.iter().try_for_each(|part| file.write_all(part)).map_err(Error::io(out))?;
    allow_to_run(&file).map_err(Error::io(out))?;
    temp.persist()?;
    Ok(parts.iter().map(|part| part.len() as u64).sum())
}

/// Whoever may read the file may run it.
#[cfg(unix)]
fn allow_to_run(file: &File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mut permissions = file.metadata()?.permissions();
    permissions.set_mode(permissions.mode() | (permissions.mode() & 0o444) >> 2);
    file.set_permissions(permissions)
}

#[cfg(not(unix))]
fn allow_to_run(_: &File) -> io::Result<()> {
    Ok(())
}
