//! `smolrun cache`: what the cache of converted models holds, and how it becomes less.

use std::error::Error;
use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Subcommand;
use serde::Serialize;
use smolconv::terminal::one_line;
use smolrun::Model;

use crate::info::dtypes;
use crate::model::{Cache, Entry};
use crate::output::{Output, Stdout, say};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const DAY: u64 = 24 * 60 * 60;

/// What to do with the cache.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  smolrun cache list
  smolrun cache list --json
  smolrun cache rm smollm2-135m-instruct
  smolrun cache prune --keep-days 7

The cache lies in SMOLRUN_CACHE, or else in XDG_CACHE_HOME/smolrun or ~/.cache/smolrun. What was fetched lies in the
Hugging Face cache, which this leaves alone.")]
pub(crate) enum CacheCommand {
    /// Show the converted models, the one that was used last first.
    List {
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Remove converted models. Where they are asked for again, they are converted again.
    Rm {
        /// A name or a source that `smolrun cache list` shows.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Remove the models that were not used for some days.
    Prune {
        /// Keep what was used in the last N days; 0 keeps nothing.
        #[arg(long, default_value_t = 30, value_name = "N")]
        keep_days: u32,
    },
}

/// What `list --json` prints.
#[derive(Serialize)]
struct Report {
    directory: String,
    models: Vec<Line>,
    total_bytes: u64,
}

#[derive(Serialize)]
struct Line {
    name: String,
    /// Of the matrices, as `smolrun info` has it; none if the blob is damaged.
    dtype: Option<String>,
    bytes: u64,
    /// Seconds since 1970.
    last_used: u64,
    /// What it was made of.
    sources: Vec<String>,
}

pub(crate) fn run(command: &CacheCommand) -> Result<()> {
    let cache = Cache::from_env()?;
    let entries = cache.entries().map_err(|error| format!("{}: {error}", cache.directory.display()))?;
    match command {
        CacheCommand::List { json } => list(&cache, &entries, *json),
        CacheCommand::Rm { names } => remove(&chosen(&entries, names)?),
        CacheCommand::Prune { keep_days } => {
            let least = Duration::from_secs(u64::from(*keep_days) * DAY);
            let is_old = |entry: &&Entry| age(entry) >= least;
            remove(&entries.iter().filter(is_old).collect::<Vec<_>>())?;
            Ok(cache.remove_orphans().map_err(|error| format!("{}: {error}", cache.directory.display()))?)
        }
    }
}

/// What the names mean: nothing is removed unless all of them mean something.
fn chosen<'a>(entries: &'a [Entry], names: &[String]) -> Result<Vec<&'a Entry>> {
    let mut chosen: Vec<&Entry> = Vec::new();
    for name in names {
        let is_meant = |entry: &&Entry| entry.is_called(name);
        let mut meant = entries.iter().filter(is_meant).peekable();
        if meant.peek().is_none() {
            return Err(format!(
                "{name}: expected a name or a source that smolrun cache list shows, found neither"
            )
            .into());
        }
        let is_new = |entry: &&Entry| !chosen.iter().any(|other| other.path == entry.path);
        chosen.extend(meant.filter(is_new).collect::<Vec<_>>());
    }
    Ok(chosen)
}

fn remove(entries: &[&Entry]) -> Result<()> {
    for entry in entries {
        entry.remove()?;
        say(&format!("removed {}, {:.1} MB", one_line(&entry.name()), megabytes(entry.bytes)))?;
    }
    Ok(())
}

fn list(cache: &Cache, entries: &[Entry], json: bool) -> Result<()> {
    let total_bytes = entries.iter().map(|entry| entry.bytes).sum();
    let lines = entries.iter().map(Line::of).collect();
    let directory = cache.directory.display().to_string();
    let report = Report { directory, models: lines, total_bytes };
    if json {
        return Output::new().json(&report);
    }
    let mut stdout = Stdout::new();
    let width = report.models.iter().map(|line| line.name.chars().count()).max().unwrap_or(0).max(4);
    if !entries.is_empty() {
        writeln!(stdout, "{:width$}  {:<11}{:>10}  {:<14}SOURCE", "NAME", "DTYPE", "MB", "LAST USED")?;
    }
    for (line, entry) in report.models.iter().zip(entries) {
        let (dtype, sources) = (line.dtype.as_deref().unwrap_or("damaged"), line.sources.join(", "));
        let (name, sources) = (one_line(&line.name), one_line(&sources));
        let (size, used) = (megabytes(line.bytes), days(age(entry)));
        writeln!(stdout, "{name:width$}  {dtype:<11}{size:>10.1}  {used:<14}{sources}")?;
    }
    let (count, size, directory) = (entries.len(), megabytes(total_bytes), one_line(&report.directory));
    let models = if count == 1 { "model" } else { "models" };
    writeln!(stdout, "{count} {models}, {size:.1} MB in {directory}")?;
    Ok(())
}

impl Line {
    fn of(entry: &Entry) -> Line {
        let last_used = entry.last_used.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let dtype = Model::open(&entry.path).ok().map(|model| dtypes(model.layout()));
        let (name, bytes, sources) = (entry.name(), entry.bytes, entry.sources.clone());
        Line { name, dtype, bytes, last_used, sources }
    }
}

fn age(entry: &Entry) -> Duration {
    SystemTime::now().duration_since(entry.last_used).unwrap_or_default()
}

fn days(age: Duration) -> String {
    match age.as_secs() / DAY {
        0 => "today".to_owned(),
        1 => "yesterday".to_owned(),
        days => format!("{days} days ago"),
    }
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
