//! The cache of converted models: blobs under names that tell their content, and records of what became of which
//! source.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::record::Record;

/// What a blob's name ends in.
pub(crate) const END: &str = ".bin";
/// The folder of the records, and what a record's name ends in.
const RECORDS: &str = "records";
const RECORD_END: &str = "json";

/// A directory of converted models.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    pub(crate) directory: PathBuf,
}

/// A blob in the cache.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) last_used: SystemTime,
    /// What it was made of, by what people called it.
    pub(crate) sources: Vec<String>,
    /// Where its records lie.
    records: Vec<PathBuf>,
}

impl Cache {
    /// `SMOLRUN_CACHE`, or `smolrun` in `XDG_CACHE_HOME` or `~/.cache`.
    pub(crate) fn from_env() -> Result<Cache, String> {
        let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        let directory = variable("SMOLRUN_CACHE").or_else(|| Some(home()?.join("smolrun")));
        let problem = "SMOLRUN_CACHE: expected a directory for converted models, found the variable not set";
        Ok(Cache { directory: directory.ok_or(problem)? })
    }

    /// Makes the directory and its folders.
    pub(crate) fn create(&self) -> Result<(), String> {
        let records = self.directory.join(RECORDS);
        fs::create_dir_all(&records).map_err(|error| format!("{}: {error}", records.display()))
    }

    /// Removes the directory, if there is nothing in it.
    pub(crate) fn remove_if_empty(&self) {
        let _ = fs::remove_dir(self.directory.join(RECORDS));
        let _ = fs::remove_dir(&self.directory);
    }

    /// Where the record `key` lies.
    pub(crate) fn record(&self, key: &str) -> PathBuf {
        self.directory.join(RECORDS).join(key).with_extension(RECORD_END)
    }

    /// The blob of this content, whatever its source was called when it was made.
    pub(crate) fn blob(&self, content: &str) -> Option<PathBuf> {
        files(&self.directory, &format!("-{content}{END}")).ok()?.into_iter().next()
    }

    /// All blobs, the one that was used last first.
    pub(crate) fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut entries = BTreeMap::new();
        for path in files(&self.directory, END)? {
            if let Some(entry) = Entry::of(&path) {
                entries.insert(path.file_name().unwrap_or_default().to_owned(), entry);
            }
        }
        for path in files(&self.directory.join(RECORDS), ".json")? {
            let Some(record) = Record::read(&path) else { continue };
            if let Some(entry) = entries.get_mut(OsStr::new(&record.blob)) {
                entry.add(path, record);
            }
        }
        let mut entries: Vec<Entry> = entries.into_values().collect();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.last_used));
        Ok(entries)
    }

    /// Removes records of blobs that are not there, and what a process left that was killed as it wrote one.
    pub(crate) fn remove_orphans(&self) -> io::Result<()> {
        let records = self.directory.join(RECORDS);
        let all = files(&records, ".json")?.into_iter().chain(files(&records, ".part")?);
        for path in all {
            let blob = Record::read(&path).map(|record| self.directory.join(record.blob));
            if !blob.is_some_and(|blob| blob.exists()) {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }
}

impl Entry {
    fn of(path: &Path) -> Option<Entry> {
        let found = path.metadata().ok().filter(|found| found.is_file())?;
        let last_used = found.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let (sources, records) = (Vec::new(), Vec::new());
        Some(Entry { path: path.to_owned(), bytes: found.len(), last_used, sources, records })
    }

    fn add(&mut self, path: PathBuf, record: Record) {
        let used = path.metadata().and_then(|found| found.modified());
        self.last_used = self.last_used.max(used.unwrap_or(SystemTime::UNIX_EPOCH));
        if !self.sources.contains(&record.source) {
            self.sources.push(record.source);
        }
        self.records.push(path);
    }

    /// What it is called by.
    pub(crate) fn name(&self) -> String {
        self.path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Whether a person may mean it by `name`: its own, or one of its sources.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        let path = fs::canonicalize(name).map(|path| path.display().to_string());
        let is_meant = |source: &String| source == name || path.as_ref().is_ok_and(|path| path == source);
        name.strip_suffix(END).unwrap_or(name) == self.name() || self.sources.iter().any(is_meant)
    }

    /// Removes the blob and its records: these first, so that none ever leads nowhere. Who runs it may go on.
    pub(crate) fn remove(&self) -> Result<(), String> {
        for path in self.records.iter().chain([&self.path]) {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(format!("{}: {error}", path.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Notes that the record at `path` was used now; that it cannot be noted costs nothing.
pub(crate) fn touch(path: &Path) {
    if let Ok(file) = File::options().append(true).open(path) {
        let _ = file.set_modified(SystemTime::now());
    }
}

/// Files in `directory` whose names end in `end`, sorted; none if it is not there.
fn files(directory: &Path, end: &str) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        !name.starts_with('.') && name.ends_with(end)
    });
    paths.sort();
    Ok(paths)
}
