//! Fetching a registered model from the Hugging Face hub into Hugging Face's own cache, laid out as its own tools do it.
//!
//! A hub may be slow for as long as it likes, but not silent: each connection, each answer and each piece of a file has a
//! limit of its own. A download that is cut off goes on where it was: at once if that attempt brought anything, else the
//! next time.

use std::env;
use std::error::Error as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use ureq::{Agent, RedirectAuthHeaders, Response};

use super::cache::{lock, point, replace};
use super::{Model, RegisteredFile};
use crate::error::{Error, Result};
use crate::progress::Progress;

/// Where models come from, unless `HF_ENDPOINT` names another place.
const ENDPOINT: &str = "https://huggingface.co";
/// How long a connection may take at most.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a hub may be silent, unless this variable says otherwise, in seconds, as it does to Hugging Face's own tools.
const SILENCE: Duration = Duration::from_secs(30);
const SILENCE_VARIABLE: &str = "HF_HUB_DOWNLOAD_TIMEOUT";
/// Redirections within the hub, as for a repository that was renamed.
const MAX_REDIRECTS: usize = 10;
/// What goes right, or in words what does not.
type Found<T> = std::result::Result<T, String>;

/// Gets what `cache` lacks of `model`'s files. `HF_ENDPOINT` names another hub; `HF_TOKEN` or the cache's token is used.
pub(crate) fn fetch(model: &Model, cache: &Path, progress: &Progress, notice: &dyn Fn(&str)) -> Result<()> {
    let hub = Hub::from_env(cache, progress)?;
    for file in model.hub_files() {
        let snapshot = model.snapshot(cache)?;
        if !snapshot.is_some_and(|snapshot| snapshot.join(&file.path).exists()) {
            notice(&hub.fetching(model, file));
            hub.fetch(model, file, &model.folder(cache)).map_err(|problem| {
                let expected = format!("expected {} from the Hugging Face hub", file.path);
                Error::file(Path::new(&model.hub_id), format!("{expected}, found: {problem}"))
            })?;
        }
    }
    Ok(())
}

/// A hub, and how it is spoken to.
struct Hub<'a> {
    /// Follows redirections, without the token if they lead elsewhere.
    agent: Agent,
    /// Follows none.
    still: Agent,
    endpoint: String,
    token: Option<String>,
    silence: Duration,
    progress: &'a Progress,
}

/// A file as the hub has it.
struct Remote {
    /// The commit that the revision is at.
    commit: String,
    /// What the cache calls the file's content.
    etag: String,
}

impl<'a> Hub<'a> {
    fn from_env(cache: &Path, progress: &'a Progress) -> Result<Hub<'a>> {
        let silence = silence_from_env()?;
        // A connection that is used again would wait for an answer without a limit.
        let builder = || {
            ureq::builder()
                .try_proxy_from_env(true)
                .max_idle_connections(0)
                .timeout_connect(CONNECT.min(silence))
                .timeout_read(silence)
                .timeout_write(silence)
        };
        let token_file = cache.parent().map(|home| home.join("token"));
        let token = variable("HF_TOKEN").or_else(|| fs::read_to_string(token_file?).ok());
        Ok(Hub {
            agent: builder().redirect_auth_headers(RedirectAuthHeaders::SameHost).build(),
            still: builder().redirects(0).build(),
            endpoint: variable("HF_ENDPOINT").unwrap_or(ENDPOINT.into()).trim_end_matches('/').into(),
            token: token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty()),
            silence,
            progress,
        })
    }

    /// What is about to happen, in a line.
    fn fetching(&self, model: &Model, file: &RegisteredFile) -> String {
        let megabytes = |size| format!(", {:.1} MB,", size as f64 / 1e6);
        let size = file.size.map(megabytes).unwrap_or_default();
        format!("fetching {}{size} of {} from {}", file.path, model.hub_id, self.endpoint)
    }

    /// Puts a file into `folder`, where the cache keeps its model.
    fn fetch(&self, model: &Model, file: &RegisteredFile, folder: &Path) -> Found<()> {
        let revision = model.revision.replace('/', "%2F");
        let url = format!("{}/{}/resolve/{revision}/{}", self.endpoint, model.hub_id, file.path);
        let Remote { commit, etag } = self.look(&url)?;
        let blob = folder.join("blobs").join(&etag);
        if !blob.exists() {
            self.download(&url, &blob).map_err(|problem| problem.in_words(&blob))?;
        }
        let pointer = folder.join("snapshots").join(&commit).join(&file.path);
        point(&blob, &pointer, &file.path).map_err(|error| at(&pointer, error))?;
        let reference = folder.join("refs").join(&model.revision);
        replace(&reference, &commit).map_err(|error| at(&reference, error))
    }

    /// Asks for the first byte of `url`, which says what it is; the content itself may lie elsewhere.
    fn look(&self, url: &str) -> Found<Remote> {
        let mut url = url.to_owned();
        for _ in 0..MAX_REDIRECTS {
            let response = self.get(&self.still, &url, "bytes=0-0")?;
            let within = |to: &&str| to.starts_with('/') && !to.starts_with("//");
            let redirected = (300..400).contains(&response.status());
            match response.header("location").filter(within).filter(|_| redirected) {
                Some(path) => url = format!("{}{path}", origin(&self.endpoint)),
                None => return Remote::read(&response),
            }
        }
        Err(format!("more than {MAX_REDIRECTS} redirections"))
    }

    fn get(&self, agent: &Agent, url: &str, range: &str) -> Found<Response> {
        let agent_name = concat!("smolconv/", env!("CARGO_PKG_VERSION"));
        let mut request = agent.get(url).set("User-Agent", agent_name).set("Accept-Encoding", "identity");
        if let Some(token) = &self.token {
            request = request.set("Authorization", &format!("Bearer {token}"));
        }
        match request.set("Range", range).call() {
            Ok(response) | Err(ureq::Error::Status(416, response)) => Ok(response),
            Err(ureq::Error::Status(code, response)) => {
                let is_private = matches!(code, 401 | 403);
                let advice = if is_private { " (set HF_TOKEN to a token that may read it)" } else { "" };
                Err(format!("{code} {}{advice}", response.status_text()))
            }
            Err(ureq::Error::Transport(error)) => Err(self.transport(&error)),
        }
    }

    fn transport(&self, error: &ureq::Transport) -> String {
        let mut source = error.source();
        while let Some(error) = source {
            if error.downcast_ref::<io::Error>().is_some_and(is_timeout) {
                return self.no_answer();
            }
            source = error.source();
        }
        error.to_string()
    }

    fn no_answer(&self) -> String {
        let seconds = self.silence.as_secs_f64();
        format!(
            "no answer from {} for {seconds} s ({SILENCE_VARIABLE} sets how long it may take)",
            self.endpoint
        )
    }

    /// Downloads `url` to a file beside `blob`, which takes its name when it is whole.
    fn download(&self, url: &str, blob: &Path) -> std::result::Result<(), Problem> {
        let mut name = blob.as_os_str().to_owned();
        name.push(".part");
        let part = Path::new(&name);
        fs::create_dir_all(blob.parent().unwrap_or(blob))?;
        let mut file = OpenOptions::new().create(true).append(true).open(part)?;
        lock(&file)?;
        if blob.exists() {
            return Ok(()); // by who had the lock
        }
        loop {
            let before = file.metadata()?.len();
            match self.receive(url, &mut file, before) {
                Err(Problem::Hub(_)) if file.metadata()?.len() > before => {}
                received => break received?,
            }
        }
        Ok(fs::rename(part, blob)?)
    }

    /// Appends to `file`, which has `start` bytes, what comes after them.
    fn receive(&self, url: &str, file: &mut File, start: u64) -> std::result::Result<(), Problem> {
        let response = self.get(&self.agent, url, &format!("bytes={start}-"))?;
        let content_range = response.header("content-range").and_then(ContentRange::parse);
        let len = match (response.status(), content_range) {
            (206, Some(ContentRange { first: Some(first), len })) if first == start => len,
            (416, Some(ContentRange { len, .. })) if len == Some(start) => return Ok(()),
            (200, _) => {
                file.set_len(0)?;
                response.header("content-length").and_then(|len| len.parse().ok())
            }
            (416, _) => {
                file.set_len(0)?;
                return Err(Problem::Hub(format!(
                    "less than the {start} bytes that were fetched; they are dropped"
                )));
            }
            (status, _) => {
                return Err(Problem::Hub(format!("status {status} without the bytes from {start} on")));
            }
        };
        self.append(response, file, len)?;
        let found = file.metadata()?.len();
        match len {
            Some(len) if len != found => Err(Problem::Hub(format!("an end after {found} of {len} bytes"))),
            _ => Ok(()),
        }
    }

    fn append(
        &self,
        response: Response,
        file: &mut File,
        len: Option<u64>,
    ) -> std::result::Result<(), Problem> {
        self.progress.start("fetching", len.unwrap_or(0));
        self.progress.add(file.metadata()?.len());
        let (mut reader, mut buffer) = (response.into_reader(), vec![0; 1 << 16]);
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(read) => {
                    file.write_all(&buffer[..read])?;
                    self.progress.add(read as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_timeout(&error) => return Err(Problem::Hub(self.no_answer())),
                Err(error) => return Err(Problem::Hub(error.to_string())),
            }
        }
    }
}

impl Remote {
    /// Both become names of files, so they may not be anything.
    fn read(response: &Response) -> Found<Remote> {
        let header = |name| response.header(name).ok_or_else(|| format!("an answer without {name}"));
        let commit = header("x-repo-commit")?;
        if commit.is_empty() || !commit.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(format!("the commit {commit:?}"));
        }
        let etag = header("x-linked-etag").or_else(|_| header("etag"))?;
        let name = etag.trim_start_matches("W/").trim_matches('"');
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        match !name.is_empty() && name.bytes().all(is_plain) {
            true => Ok(Remote { commit: commit.to_owned(), etag: name.to_owned() }),
            false => Err(format!("the etag {etag:?}")),
        }
    }
}

/// Why a download ended early.
enum Problem {
    /// What the hub did, in words; another attempt may go on.
    Hub(String),
    /// What this machine's disk did.
    Disk(io::Error),
}

impl Problem {
    fn in_words(self, path: &Path) -> String {
        match self {
            Problem::Hub(problem) => problem,
            Problem::Disk(error) => at(path, error),
        }
    }
}

impl From<String> for Problem {
    fn from(problem: String) -> Problem {
        Problem::Hub(problem)
    }
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Problem {
        Problem::Disk(error)
    }
}

/// `bytes first-last/len` or `bytes */len`.
struct ContentRange {
    first: Option<u64>,
    len: Option<u64>,
}

impl ContentRange {
    fn parse(header: &str) -> Option<ContentRange> {
        let (range, len) = header.strip_prefix("bytes ")?.split_once('/')?;
        let first = range.split_once('-').and_then(|(first, _)| first.parse().ok());
        Some(ContentRange { first, len: len.parse().ok() })
    }
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn silence_from_env() -> Result<Duration> {
    let Some(value) = variable(SILENCE_VARIABLE) else { return Ok(SILENCE) };
    let duration = value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.filter(|duration| !duration.is_zero()).ok_or_else(|| {
        Error::file(Path::new(SILENCE_VARIABLE), format!("expected seconds above 0, found {value:?}"))
    })
}

/// Of `https://host/path`, `https://host`.
fn origin(endpoint: &str) -> &str {
    let host = endpoint.find("://").map_or(0, |at| at + 3);
    endpoint[host..].find('/').map_or(endpoint, |end| &endpoint[..host + end])
}

/// On Unix a read that takes too long would block.
fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

fn at(path: &Path, error: io::Error) -> String {
    format!("{}: {error}", path.display())
}
