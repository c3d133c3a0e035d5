//! Which batch a file of results belongs to: a small file beside it, which stays there.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

/// The largest such file: those that were written here are far smaller.
const MAX_LEN: u64 = 16 << 20;

/// All that the results depend on, and what else must stay as it was.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Job {
    /// The version of the program.
    pub(super) version: String,
    /// The hash in the header of the blob.
    pub(super) blob: String,
    /// The hash of IN.
    pub(super) input: String,
    pub(super) shard: String,
    /// `input`, or `finished` for `--unordered`.
    pub(super) order: String,
    /// How keys and values are kept.
    pub(super) kv: String,
    /// What `--kv-memory` allows: a request that can never fit has an error as its result.
    pub(super) kv_memory: String,
    /// What is generated where lines say nothing.
    pub(super) defaults: String,
    /// What chat templates are told of the time: seconds since 1970. A batch that goes on keeps that of its start.
    pub(super) started: u64,
}

impl Job {
    pub(super) fn now() -> u64 {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }

    /// The time that chat templates are told.
    pub(super) fn start(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
            .checked_add(Duration::from_secs(self.started))
            .unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// What of it another one has otherwise.
    fn difference(&self, other: &Job) -> Option<&'static str> {
        let fields = [
            ("the program's version", &self.version, &other.version),
            ("the model", &self.blob, &other.blob),
            ("IN", &self.input, &other.input),
            ("--shard", &self.shard, &other.shard),
            ("--unordered", &self.order, &other.order),
            ("--kv", &self.kv, &other.kv),
            ("--kv-memory", &self.kv_memory, &other.kv_memory),
            ("an option such as -n or --temperature", &self.defaults, &other.defaults),
        ];
        fields.into_iter().find(|(_, ours, theirs)| ours != theirs).map(|(name, ..)| name)
    }
}

/// The file of a job, locked for as long as this lives.
pub(super) struct JobFile {
    path: PathBuf,
    file: File,
    /// Whether it was not there before.
    is_new: bool,
    /// What an earlier run left of the same job.
    earlier: Option<Job>,
}

impl JobFile {
    /// Where that of the results at `out` lies.
    pub(super) fn path(out: &Path) -> PathBuf {
        let mut path = out.as_os_str().to_owned();
        path.push(".job");
        path.into()
    }

    /// Beside the results at `out`; an error if another process has it, or if it is somebody's file.
    pub(super) fn open(out: &Path) -> Result<JobFile, String> {
        let path = JobFile::path(out);
        let wrong = |error: io::Error| format!("{}: {error}", path.display());
        let found = fs::symlink_metadata(&path);
        let is_new = found.is_err();
        if found.is_ok_and(|found| !found.is_file()) {
            return Err(format!("{}: expected a regular file", path.display()));
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(&path).map_err(wrong)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                return Err(format!("{}: another smolrun is at work on it", path.display()));
            }
            Err(TryLockError::Error(error)) if error.kind() != io::ErrorKind::Unsupported => {
                return Err(wrong(error));
            }
            _ => {}
        }
        let mut text = Vec::new();
        (&file).take(MAX_LEN).read_to_end(&mut text).map_err(wrong)?;
        let earlier = match text.is_empty() {
            true => None, // none was there, or one that was not begun
            false => Some(serde_json::from_slice(&text).map_err(|_| {
                format!(
                    "{}: expected what smolrun batch writes, found another file; it is kept",
                    path.display()
                )
            })?),
        };
        Ok(JobFile { earlier, is_new, path, file })
    }

    /// The earlier job, if it is `job`, of which only the time may differ; an error if it is another.
    pub(super) fn same(&self, job: &Job) -> Result<Option<Job>, String> {
        let Some(earlier) = &self.earlier else { return Ok(None) };
        match earlier.difference(job) {
            None => Ok(Some(earlier.clone())),
            Some(name) => Err(format!(
                "{}: the results are of another batch: {name} is not the same; --force begins anew",
                self.path.display()
            )),
        }
    }

    /// Begins `job`.
    pub(super) fn begin(&mut self, job: &Job) -> Result<(), String> {
        let mut write = || {
            self.file.set_len(0)?;
            self.file.rewind()?;
            self.file.write_all(serde_json::to_string(job)?.as_bytes())?;
            self.file.write_all(b"\n")?;
            self.file.sync_all()
        };
        write().map_err(|error: io::Error| {
            let _ = self.file.set_len(0); // half a job would be taken for somebody's file
            format!("{}: {error}", self.path.display())
        })
    }

    /// Leaves nothing behind where results are there, and nothing says which batch they are of. Returns what to tell.
    pub(super) fn give_up(self, out: &Path) -> String {
        let (out, job) = (out.display(), self.path.display());
        if !self.is_new {
            return format!(
                "{job}: it is empty, and does not say which batch {out} is of; --force replaces both"
            );
        }
        let _ = fs::remove_file(&self.path);
        format!("{out}: it exists, and there is no {job} to say which batch it is of; --force replaces it")
    }
}
