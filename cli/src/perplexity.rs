//! `smolrun perplexity`: how well a model foresees a text, and how far it is from another.

use std::error::Error;
use std::fs;
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;

use serde::Serialize;
use smolrun::eval::{Comparison, Perplexity, PerplexityOptions};
use smolrun::{Model, Session, SpecialTokens};

use crate::args::PerplexityArgs;
use crate::model::{Listener, blob_of};
use crate::options::session_options;
use crate::output::{Output, Stdout};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What is printed.
#[derive(Serialize)]
struct Report {
    perplexity: f64,
    /// In nats.
    mean_nll: f64,
    /// Those that were scored.
    tokens: usize,
    /// All of the text's.
    text_tokens: usize,
    window: usize,
    #[serde(flatten)]
    against: Option<Against>,
}

/// What `--against` adds.
#[derive(Serialize)]
struct Against {
    against_perplexity: f64,
    against_mean_nll: f64,
    /// Kullback-Leibler divergence from the other blob, in nats: its mean, and what 99 % of the tokens do not exceed.
    mean_kl: f64,
    kl_99: f64,
    /// The part of the tokens for which both find the same one likeliest, from 0 to 1.
    top_1_agreement: f64,
}

pub(crate) fn run(args: &PerplexityArgs) -> Result<()> {
    let model = args.model.open()?;
    let text = read(&args.text)?;
    let tokens = model.tokenizer().encode(&text, SpecialTokens::AsText)?;
    let mut session = Session::new(&model, session_options(args.threads, args.kv))?;
    let options = PerplexityOptions::default().window(args.window);
    let (perplexity, against) = match &args.against {
        None => (alone(args, &mut session, &tokens, options)?, None),
        Some(blob) => {
            let other = blob_of(blob, None, &Listener::program())?.open(false)?;
            check_tokens(&other, blob, &text, &tokens)?;
            let mut other = Session::new(&other, session_options(args.threads, None))?;
            let comparison = compare(args, &mut session, &mut other, &tokens, options)?;
            (comparison.perplexity, Some(Against::new(&comparison)))
        }
    };
    let (text_tokens, window) = (tokens.len(), args.window);
    Report::new(perplexity, text_tokens, window, against).print(args.json)
}

/// The text of a file, or of standard input.
fn read(path: &Path) -> Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map_err(|error| format!("standard input: {error}"))?;
        return Ok(text);
    }
    Ok(fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?)
}

/// That the other model sees the same tokens: the probabilities of others could not be compared.
fn check_tokens(other: &Model, blob: &Path, text: &str, tokens: &[u32]) -> Result<()> {
    match other.tokenizer().encode(text, SpecialTokens::AsText)? == tokens {
        true => Ok(()),
        false => Err(format!("{}: its tokenizer makes other tokens of the text", blob.display()).into()),
    }
}

/// An error that names the text where that is too short.
fn of_text(args: &PerplexityArgs, error: smolrun::Error) -> Box<dyn Error> {
    match error {
        smolrun::Error::Argument { name: "tokens", found, .. } => {
            let (text, window) = (args.text.display(), args.window);
            format!("{text}: expected at least {window} tokens (--window), found {found}").into()
        }
        other => other.into(),
    }
}

fn alone(
    args: &PerplexityArgs,
    session: &mut Session,
    tokens: &[u32],
    options: PerplexityOptions,
) -> Result<Perplexity> {
    let mut total = Perplexity::default();
    let windows = session.perplexity(tokens, options).map_err(|error| of_text(args, error))?;
    let progress = Progress::of(windows.size_hint().0);
    for (number, window) in (1..).zip(windows) {
        total += window?;
        progress.show(number, total);
    }
    Ok(total)
}

fn compare(
    args: &PerplexityArgs,
    session: &mut Session,
    other: &mut Session,
    tokens: &[u32],
    options: PerplexityOptions,
) -> Result<Comparison> {
    let mut total = Comparison::default();
    let windows = session.compare(other, tokens, options).map_err(|error| of_text(args, error))?;
    let progress = Progress::of(windows.size_hint().0);
    for (number, window) in (1..).zip(windows) {
        total += window?;
        progress.show(number, total.perplexity);
    }
    Ok(total)
}

/// A line on standard error, where somebody watches, that goes away at the end.
struct Progress {
    windows: usize,
    is_shown: bool,
}

impl Progress {
    fn of(windows: usize) -> Progress {
        let progress = Progress { windows, is_shown: io::stderr().is_terminal() };
        if progress.is_shown {
            eprint!("window 0 of {windows}");
        }
        progress
    }

    fn show(&self, number: usize, so_far: Perplexity) {
        if self.is_shown {
            eprint!("\rwindow {number} of {}: perplexity {:.3}\x1b[K", self.windows, so_far.perplexity());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            eprint!("\r\x1b[K");
        }
    }
}

impl Against {
    fn new(comparison: &Comparison) -> Against {
        Against {
            against_perplexity: comparison.reference.perplexity(),
            against_mean_nll: comparison.reference.mean_nll(),
            mean_kl: comparison.mean_divergence(),
            kl_99: comparison.divergence_at(0.99),
            top_1_agreement: comparison.agreement(),
        }
    }
}

impl Report {
    fn new(of: Perplexity, text_tokens: usize, window: usize, against: Option<Against>) -> Report {
        let (perplexity, mean_nll) = (of.perplexity(), of.mean_nll());
        Report { perplexity, mean_nll, tokens: of.tokens, text_tokens, window, against }
    }

    fn print(&self, json: bool) -> Result<()> {
        if json {
            return Output::new().json(self);
        }
        let mut stdout = Stdout::new();
        let Report { perplexity, mean_nll, tokens, text_tokens, window, against } = self;
        writeln!(stdout, "text        {tokens} of {text_tokens} tokens scored, in windows of {window}")?;
        writeln!(stdout, "perplexity  {perplexity:.4}  (mean NLL {mean_nll:.6})")?;
        let Some(against) = against else { return Ok(()) };
        let Against { against_perplexity, against_mean_nll, mean_kl, kl_99, top_1_agreement } = against;
        writeln!(stdout, "against     {against_perplexity:.4}  (mean NLL {against_mean_nll:.6})")?;
        writeln!(stdout, "KL          mean {mean_kl:.6}, 99 % at most {kl_99:.6}")?;
        writeln!(stdout, "top-1       the same for {:.3} %", 100.0 * top_1_agreement)?;
        Ok(())
    }
}
