//! `smolrun bench`: prefill and decode speed in llama-bench's terms, beside what this machine can do at most.
//!
//! Each repetition measures the machine right before and right after the prompt, and again around the generation, and
//! compares with the better of the two: a shared machine has its moods. Where both are far apart, or less than what was
//! reached and cannot be passed, the comparison means nothing, which is said. What is printed are the medians.

use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use serde::Serialize;
use smolrun::engine::{Engine, EngineOptions, Rows};
use smolrun::format::{Config, Dtype, LayerSections, Layout};
use smolrun::{Fast, KvDtype, Machine, Model, Overflow, Session};

use super::args::BenchArgs;
use super::info::dtypes;
use super::options::{session_options, tell_if_not_fast};
use super::output::{Output, Stdout, counted};

/// Least time in which a peak of the machine is looked for.
const PEAK_TIME: Duration = Duration::from_millis(20);
/// By how much the peaks before and after a test may differ.
const MOST_DIFFERENCE: f64 = 0.2;

/// All that is measured, and with what.
#[derive(Serialize)]
struct Report {
    threads: usize,
    isa: &'static str,
    dtype: String,
    kv: &'static str,
    /// The unit of `--fast` that prompts run on, if they are not exact.
    #[serde(skip_serializing_if = "Option::is_none")]
    fast: Option<&'static str>,
    /// Bytes of matrices that each token reads.
    weight_bytes: usize,
    read_gb_s: f64,
    fma_gflop_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pp: Option<Prefill>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tg: Option<Decode>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sequences: Vec<Together>,
}

#[derive(Serialize)]
struct Prefill {
    n: usize,
    depth: usize,
    tokens_per_second: Spread,
    fraction_of_fma: f64,
    /// By how much the peaks before and after differ, and whether the fraction means anything.
    peak_difference: f64,
    is_reliable: bool,
}

#[derive(Serialize)]
struct Decode {
    n: usize,
    depth: usize,
    tokens_per_second: Spread,
    fraction_of_bandwidth: f64,
    /// As [`Prefill::peak_difference`].
    peak_difference: f64,
    is_reliable: bool,
}

/// Sequences that decode together.
#[derive(Serialize)]
struct Together {
    /// How many sequences.
    n: usize,
    /// Of all together, without their prompts.
    tokens_per_second: Spread,
}

#[derive(Serialize)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

pub(crate) fn run(args: &BenchArgs) -> Result<(), Box<dyn Error>> {
    let model = args.model.open()?;
    let mut session = Session::new(&model, session_options(args.threads, args.kv).fast(args.fast))?;
    tell_if_not_fast(&session);
    let mut machine = Machine::new(session.kernels(), session.threads(), weight_bytes(model.layout()))?;
    check(args, model.config())?;

    let (mut pp, mut tg) = (Vec::new(), Vec::new());
    for repetition in 0..=usize::from(args.repetitions) {
        show_progress(repetition, args.repetitions.into());
        let is_measured = repetition > 0; // the first warms up
        let (prompt, n) =
            if is_measured { (args.prompt, args.tokens) } else { (args.prompt.min(32), args.tokens.min(4)) };
        let prefill =
            Run::new(&mut machine, Machine::fma_peak, || prefill(&mut session, args.depth, prompt))?;
        let decode = Run::new(&mut machine, Machine::read_bandwidth, || decode(&mut session, args.depth, n))?;
        if is_measured {
            pp.push(prefill);
            tg.push(decode);
        }
    }
    let sequences = together(args, &model)?;
    print(args, &report(args, &session, &pp, &tg, sequences))
}

/// How fast sequences decode together, for each number of them that was asked for.
fn together(args: &BenchArgs, model: &Model) -> Result<Vec<Together>, Box<dyn Error>> {
    if args.sequences.is_empty() || args.tokens == 0 {
        return Ok(Vec::new());
    }
    let mut options = EngineOptions::default();
    options.threads = args.threads;
    let mut engine = Engine::new(model, options)?;
    let mut results = Vec::new();
    for &n in &args.sequences {
        let mut speeds = Vec::new();
        for repetition in 0..=args.repetitions {
            let is_measured = repetition > 0; // the first warms up
            let steps = if is_measured { args.tokens } else { args.tokens.min(4) };
            let seconds = decode_together(&mut engine, args, n, steps)?;
            if is_measured {
                speeds.push((n * steps) as f64 / seconds);
            }
        }
        results.push(Together { n, tokens_per_second: Spread::of(speeds) });
    }
    Ok(results)
}

/// Seconds that `steps` tokens of each of `n` sequences take, after a prompt in each that is none of the others'.
fn decode_together(engine: &mut Engine, args: &BenchArgs, n: usize, steps: usize) -> smolrun::Result<f64> {
    let config = engine.model().config();
    let prompt = args.prompt.max(1);
    let texts: Vec<Vec<u32>> = (0..n).map(|i| tokens(config, i * (prompt + steps), prompt + steps)).collect();
    let new = |_| engine.sequence(args.kv.map(KvDtype::from), Overflow::Stop);
    let mut sequences = (0..n).map(new).collect::<smolrun::Result<Vec<_>>>()?;
    for (sequence, text) in sequences.iter_mut().zip(&texts) {
        for tokens in text[..prompt].chunks(Engine::MAX_ROWS) {
            engine.pass(&mut [Rows { sequence: &mut *sequence, tokens, wants_logits: false }])?;
        }
    }
    let start = Instant::now();
    for position in prompt..prompt + steps {
        let rows = sequences.iter_mut().zip(&texts);
        let mut batch: Vec<Rows<'_>> = rows
            .map(|(sequence, text)| Rows { sequence, tokens: &text[position..=position], wants_logits: true })
            .collect();
        engine.pass(&mut batch)?;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// A test and the machine around it.
struct Run {
    seconds: f64,
    peak_before: f64,
    peak_after: f64,
}

impl Run {
    /// Measures with `peak` before and after `test`, which returns the seconds that it took.
    fn new(
        machine: &mut Machine,
        peak: fn(&mut Machine) -> f64,
        test: impl FnOnce() -> smolrun::Result<f64>,
    ) -> smolrun::Result<Run> {
        let peak_before = best(machine, peak);
        let seconds = test()?;
        Ok(Run { seconds, peak_before, peak_after: best(machine, peak) })
    }

    /// What the machine can do at most, as far as was seen.
    fn peak(&self) -> f64 {
        self.peak_before.max(self.peak_after)
    }

    /// The part of the peak by which what was seen before and after differs.
    fn difference(&self) -> f64 {
        (self.peak_before - self.peak_after).abs() / self.peak()
    }
}

/// The best of some measurements: others can only take from what a machine can do.
fn best(machine: &mut Machine, peak: fn(&mut Machine) -> f64) -> f64 {
    let start = Instant::now();
    let mut best = peak(machine);
    while start.elapsed() < PEAK_TIME {
        best = best.max(peak(machine));
    }
    best
}

/// Several runs against the peaks around them.
struct Compared {
    tokens_per_second: Spread,
    /// Of the peak.
    fraction: f64,
    peak_difference: f64,
    is_reliable: bool,
}

impl Compared {
    /// Of `runs` over `n` tokens, each of which takes `cost` of what the peak counts. More than `most` of that is no
    /// measurement.
    fn new(runs: &[Run], n: usize, cost: f64, most: f64) -> Compared {
        let speed = |run: &Run| n as f64 / run.seconds;
        let median = |of: &dyn Fn(&Run) -> f64| Spread::of(runs.iter().map(of).collect()).median;
        let fraction = median(&|run| speed(run) * cost / run.peak());
        let peak_difference = median(&Run::difference);
        Compared {
            tokens_per_second: Spread::of(runs.iter().map(speed).collect()),
            fraction,
            peak_difference,
            is_reliable: fraction <= most && peak_difference <= MOST_DIFFERENCE,
        }
    }
}

/// Where somebody watches.
fn show_progress(repetition: usize, repetitions: usize) {
    if !io::stderr().is_terminal() {
        return;
    }
    match repetition {
        0 => eprint!("warming up"),
        _ => eprint!("\rrepetition {repetition} of {repetitions}"),
    }
    if repetition == repetitions {
        eprint!("\r\x1b[K");
    }
}

/// That everything fits the context, before any time is spent.
fn check(args: &BenchArgs, config: &Config) -> Result<(), String> {
    let (longest, limit) =
        (args.depth.saturating_add(args.prompt.max(args.tokens)), config.max_position_embeddings);
    let together = args.prompt.max(1).saturating_add(args.tokens);
    if !args.sequences.is_empty() && together > limit {
        return Err(format!(
            "--prompt {} and --tokens {} together are more than the model's context of {limit}",
            args.prompt, args.tokens
        ));
    }
    match longest <= limit {
        true => Ok(()),
        false => Err(format!(
            "--depth {} and then {} tokens are more than the model's context of {limit}",
            args.depth,
            args.prompt.max(args.tokens)
        )),
    }
}

/// Seconds that `n` tokens take at once, after `depth` others.
fn prefill(session: &mut Session, depth: usize, n: usize) -> smolrun::Result<f64> {
    go_to(session, depth)?;
    let tokens = tokens(session.model().config(), depth, n);
    let start = Instant::now();
    if n > 0 {
        session.feed(&tokens)?;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Seconds that `n` tokens take one by one, after `depth` others.
fn decode(session: &mut Session, depth: usize, n: usize) -> smolrun::Result<f64> {
    go_to(session, depth)?;
    let tokens = tokens(session.model().config(), depth, n);
    let start = Instant::now();
    for token in tokens {
        session.feed(&[token])?;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Cuts the sequence back to `depth` tokens, or feeds it as many.
fn go_to(session: &mut Session, depth: usize) -> smolrun::Result<()> {
    session.truncate(depth);
    let missing = tokens(session.model().config(), session.position(), depth - session.position());
    if !missing.is_empty() {
        session.feed(&missing)?;
    }
    Ok(())
}

/// Some tokens: which ones does not matter to the time.
fn tokens(config: &Config, first: usize, count: usize) -> Vec<u32> {
    let vocab = config.vocab_size as u32;
    (first..first + count).map(|i| (i as u32).wrapping_mul(2_654_435_761) % vocab).collect()
}

fn report(args: &BenchArgs, session: &Session, pp: &[Run], tg: &[Run], sequences: Vec<Together>) -> Report {
    let (config, layout) = (session.model().config(), session.model().layout());
    let weight_bytes = weight_bytes(layout);
    let position_bytes = session.kv_dtype().bytes_per_token(config);
    // Keys and values of all positions before a token's, on average, and its own.
    let seen = |n: usize| args.depth as f64 + (n as f64 + 1.0) / 2.0;
    let token_bytes = weight_bytes as f64 + seen(args.tokens) * position_bytes as f64;
    let prompt_operations = args.prompt as f64
        * (operations(config) + seen(args.prompt) * attention_operations(config))
        + 2.0 * (config.vocab_size * config.hidden_size) as f64;
    let peak = |runs: &[Run]| Spread::of(runs.iter().map(Run::peak).collect()).median;
    let (read, fma) = (peak(tg), peak(pp));
    // The peak is that of f32. Units for integers or bf16 can pass it.
    let is_f32 = session.fast().unit().is_none()
        && layout.weights.dtypes().iter().all(|dtype| matches!(dtype, Dtype::F32 | Dtype::Bf16));
    let most = if is_f32 { 1.0 } else { f64::INFINITY };
    let pp = Compared::new(pp, args.prompt, prompt_operations / args.prompt as f64, most);
    let tg = Compared::new(tg, args.tokens, token_bytes, 1.0);
    Report {
        threads: session.threads(),
        isa: session.kernels().name(),
        dtype: dtypes(layout),
        kv: session.kv_dtype().name(),
        fast: session.fast().unit(),
        weight_bytes,
        read_gb_s: read / 1e9,
        fma_gflop_s: fma / 1e9,
        pp: (args.prompt > 0).then_some(Prefill {
            n: args.prompt,
            depth: args.depth,
            tokens_per_second: pp.tokens_per_second,
            fraction_of_fma: pp.fraction,
            peak_difference: pp.peak_difference,
            is_reliable: pp.is_reliable,
        }),
        tg: (args.tokens > 0).then_some(Decode {
            n: args.tokens,
            depth: args.depth,
            tokens_per_second: tg.tokens_per_second,
            fraction_of_bandwidth: tg.fraction,
            peak_difference: tg.peak_difference,
            is_reliable: tg.is_reliable,
        }),
        sequences,
    }
}

/// Bytes of the matrices that a token reads: all but the embedding, of which it takes one row, unless that is the head.
fn weight_bytes(layout: &Layout) -> usize {
    let layers = layout.weights.layers.iter().flat_map(LayerSections::matrices);
    layers.chain(&layout.weights.lm_head).map(|matrix| matrix.range.len()).sum()
}

/// Operations of a token in all layers' matrices, a multiply-add being two.
fn operations(config: &Config) -> f64 {
    let attention = config.hidden_size * (config.qkv_rows() + config.attention_width());
    let mlp = 3 * config.hidden_size * config.intermediate_size;
    2.0 * (config.num_hidden_layers * (attention + mlp)) as f64
}

/// Operations of a token's attention for each position that it sees.
fn attention_operations(config: &Config) -> f64 {
    2.0 * (2 * config.num_hidden_layers * config.attention_width()) as f64
}

fn print(args: &BenchArgs, report: &Report) -> Result<(), Box<dyn Error>> {
    if args.json {
        return Output::new().json(report);
    }
    let mut stdout = Stdout::new();
    let fast = report.fast.map_or_else(String::new, |unit| format!(", {}", Fast::On(unit)));
    writeln!(
        stdout,
        "{}, {}, {} weights, {} keys and values{fast}",
        counted(report.threads, "thread"),
        report.isa,
        report.dtype,
        report.kv
    )?;
    writeln!(
        stdout,
        "machine    read {:8.1} GB/s   multiply-add {:8.1} GFLOP/s",
        report.read_gb_s, report.fma_gflop_s
    )?;
    let line = |test: &str, n: usize, depth: usize, speed: &Spread| {
        let at = if depth > 0 { format!(" @ d{depth}") } else { String::new() };
        format!(
            "{:<10} {:9.2} tok/s  ({:.2} to {:.2})",
            format!("{test}{n}{at}"),
            speed.median,
            speed.min,
            speed.max
        )
    };
    if let Some(pp) = &report.pp {
        let speed = line("pp", pp.n, pp.depth, &pp.tokens_per_second);
        let doubt = doubt(pp.is_reliable, pp.peak_difference);
        writeln!(stdout, "{speed}   {:.0} % of the multiply-add peak{doubt}", 100.0 * pp.fraction_of_fma)?;
    }
    if let Some(tg) = &report.tg {
        let speed = line("tg", tg.n, tg.depth, &tg.tokens_per_second);
        let doubt = doubt(tg.is_reliable, tg.peak_difference);
        writeln!(stdout, "{speed}   {:.0} % of the read bandwidth{doubt}", 100.0 * tg.fraction_of_bandwidth)?;
    }
    for Together { n, tokens_per_second: Spread { median, min, max } } in &report.sequences {
        let test = format!("tg{} x {n}", args.tokens);
        writeln!(
            stdout,
            "{test:<10} {median:9.2} tok/s  ({min:.2} to {max:.2})   of {} together",
            counted(*n, "sequence")
        )?;
    }
    Ok(())
}

/// What to say of a comparison that means nothing.
fn doubt(is_reliable: bool, difference: f64) -> String {
    let percent = 100.0 * difference;
    match is_reliable {
        true => String::new(),
        false => format!(
            " (do not trust it: the machine is busy, its peaks around the test differ by {percent:.0} %)"
        ),
    }
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Spread {
        values.sort_unstable_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let last = values.len().saturating_sub(1);
        Spread { median: (at(last / 2) + at(last.div_ceil(2))) / 2.0, min: at(0), max: at(last) }
    }
}

#[cfg(test)]
mod tests {
    use super::{Compared, Run};

    /// Of runs of one token in a second each, which cost 100: the peaks before and after, and what comes of them.
    fn compared(peaks: &[(f64, f64)], most: f64) -> (f64, bool) {
        let run = |&(peak_before, peak_after): &(f64, f64)| Run { seconds: 1.0, peak_before, peak_after };
        let compared = Compared::new(&peaks.iter().map(run).collect::<Vec<_>>(), 1, 100.0, most);
        (compared.fraction, compared.is_reliable)
    }

    #[test]
    fn the_better_peak_counts_and_what_cannot_be_is_doubted() {
        assert_eq!(compared(&[(180.0, 200.0)], 1.0), (0.5, true));
        assert_eq!(compared(&[(200.0, 180.0), (200.0, 200.0), (50.0, 200.0)], 1.0), (0.5, true));
        assert_eq!(compared(&[(200.0, 90.0)], 1.0), (0.5, false));
        assert_eq!(compared(&[(80.0, 75.0)], 1.0), (1.25, false));
        assert_eq!(compared(&[(80.0, 75.0)], f64::INFINITY), (1.25, true));
    }
}
