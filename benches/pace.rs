//! How long a stream waits from one token to the next while a long prompt comes in beside it.
//!
//! `cargo bench -p smol-benches --bench pace`, on the blob that `SMOL_BLOB` names.
//!
//! The scheduler knows no clock, so every run is made of the same passes. A gap is the median of what its pass took in a few
//! runs: what takes long in most of them is ours, and what takes long in one is the machine's.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use smolrun::engine::{Engine, EngineOptions};
use smolrun::scheduler::{Request, Scheduler, SchedulerOptions};
use smolrun::{GenerateOptions, Model};

/// Tokens of the prompt that comes in.
const PROMPT: usize = 4000;
/// Gaps of which the usual one is the median.
const USUAL: usize = 50;
/// How often each pass is measured.
const RUNS: usize = 3;

fn main() {
    let path = std::env::var_os("SMOL_BLOB").map(PathBuf::from);
    let path = path
        .expect("SMOL_BLOB names a blob: SMOL_BLOB=$PWD/smol.bin cargo bench -p smol-benches --bench pace");
    let model = Model::open(path).expect("the blob opens");
    for streams in [1, 4, 16] {
        let Gaps { usual, during, after, ratios, seconds } =
            gaps((0..RUNS).map(|_| run(&model, streams)).collect());
        let median = percentile(&usual, 50);
        println!(
            "{streams} streams of 32 tokens and more, and a prompt of {PROMPT} tokens in {seconds:.1} s:"
        );
        show("usual gap", &usual, median);
        show("beside the prompt", &during, median);
        show("usual, so much later", &after, median);
        let [p50, p90, p99, most] = [50, 90, 99, 100].map(|percent| percentile(&ratios, percent));
        println!(
            "  beside the prompt, over what is usual at that length: median {p50:.2}x, p90 {p90:.2}x, p99 {p99:.2}x, \
             longest {most:.2}x"
        );
    }
}

/// The gaps between the tokens of streams, pass by pass.
struct Run {
    usual: Vec<Duration>,
    /// While a prompt comes in.
    during: Vec<Duration>,
    /// When it is gone: the streams have grown in the meantime.
    after: Vec<Duration>,
}

/// The median gaps of some runs, sorted.
struct Gaps {
    usual: Vec<Duration>,
    during: Vec<Duration>,
    after: Vec<Duration>,
    /// What a prompt takes to come in.
    seconds: f64,
    /// The gaps beside the prompt over the usual one, which grows evenly from `usual` to `after`.
    ratios: Vec<f64>,
}

fn gaps(runs: Vec<Run>) -> Gaps {
    let medians = |of: fn(&Run) -> &Vec<Duration>| -> Vec<Duration> {
        let passes = of(&runs[0]).len();
        assert!(runs.iter().all(|run| of(run).len() == passes), "all runs are of the same passes");
        let median = |pass| {
            let mut gaps: Vec<Duration> = runs.iter().map(|run| of(run)[pass]).collect();
            gaps.sort_unstable();
            percentile(&gaps, 50)
        };
        (0..passes).map(median).collect()
    };
    let [mut usual, mut during, mut after] =
        [medians(|run| &run.usual), medians(|run| &run.during), medians(|run| &run.after)];
    let seconds = during.iter().sum::<Duration>().as_secs_f64();
    [&mut usual, &mut after].into_iter().for_each(|gaps| gaps.sort_unstable());
    let [begin, end] = [&usual, &after].map(|gaps| percentile(gaps, 50).as_secs_f64());
    let grown = |pass: usize| begin + (end - begin) * pass as f64 / during.len() as f64;
    let ratio = |(pass, gap): (usize, &Duration)| gap.as_secs_f64() / grown(pass);
    let mut ratios: Vec<f64> = during.iter().enumerate().map(ratio).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    during.sort_unstable();
    Gaps { usual, during, after, seconds, ratios }
}

fn run(model: &Model, streams: usize) -> Run {
    let engine = Engine::new(model, EngineOptions::default()).expect("the threads start");
    let options = SchedulerOptions::default().prefix_bytes(0);
    let mut scheduler = Scheduler::new(engine, options).expect("the options make sense");
    let vocab_size = model.config().vocab_size as u32;
    let mut next = 0u32;
    let mut submit = |scheduler: &mut Scheduler, len: usize, max_tokens: usize| {
        let prompt = (0..len).map(|_| {
            next = next.wrapping_add(2_654_435_761);
            next % vocab_size
        });
        let sampling = smolrun::Sampling::default().ignore_eos(model.config());
        let options = GenerateOptions::default().max_tokens(max_tokens).sampling(sampling);
        scheduler.submit(Request::new(prompt.collect(), options)).expect("it fits")
    };
    for _ in 0..streams {
        submit(&mut scheduler, 32, usize::MAX);
    }
    for _ in 0..4 {
        scheduler.step(|_, _| {}).expect("it runs"); // all have begun
    }
    let step = |scheduler: &mut Scheduler| {
        let start = Instant::now();
        let mut ids = Vec::new();
        scheduler.step(|id, _| ids.push(id)).expect("it runs");
        (start.elapsed(), ids)
    };
    let usual = (0..USUAL).map(|_| step(&mut scheduler).0).collect();
    let prompt = submit(&mut scheduler, PROMPT, 1);
    let mut during = Vec::new();
    loop {
        let (gap, ids) = step(&mut scheduler);
        during.push(gap);
        if ids.contains(&prompt) {
            break;
        }
        assert_eq!(ids.len(), streams, "each stream has a token in every pass");
    }
    let after = (0..USUAL).map(|_| step(&mut scheduler).0).collect();
    Run { usual, during, after }
}

fn percentile<T: Copy>(sorted: &[T], percent: usize) -> T {
    sorted[(sorted.len() * percent).div_ceil(100).saturating_sub(1)]
}

fn show(name: &str, sorted: &[Duration], usual: Duration) {
    let [p50, p90, p99, most] = [50, 90, 99, 100].map(|percent| {
        let gap = percentile(sorted, percent);
        format!("{:.1} ms ({:.2}x)", gap.as_secs_f64() * 1e3, gap.as_secs_f64() / usual.as_secs_f64())
    });
    println!("  {name:<20} {:5} gaps: median {p50}, p90 {p90}, p99 {p99}, longest {most}", sorted.len());
}
