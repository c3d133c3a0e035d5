//! `smolrun batch`: many requests at once, from a file into a file.

mod input;
mod job;
mod record;
mod request;
mod results;

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use smolconv::Progress;
use smolrun::engine::{Engine, EngineOptions};
use smolrun::scheduler::{Event, Request, RequestId, Scheduler, SchedulerOptions};
use smolrun::tokenizer::Tokenizer;
use smolrun::{CancelToken, FinishReason, GenerateOptions, KvDtype, Model, Sampling, Token};

use self::input::{Line, Lines, MAX_LINE, Survey};
use self::job::{Job, JobFile};
use self::record::Answer;
use self::request::{Defaults, Object, Problem};
use self::results::Results;
use crate::args::BatchArgs;
use crate::exit_code::{self, WrongUsage};
use crate::interrupt::Interrupt;
use crate::logprobs::Logprobs;
use crate::output::{counted, hex, tell};
use crate::sampling;

type Result<T> = std::result::Result<T, Box<dyn Error>>;
type Answers = HashMap<RequestId, Answer>;

/// Requests that wait for those that run: as many as may end in one pass, so that their places are never empty.
const MOST_WAITING: usize = 64;
/// How often the speed is told.
const BETWEEN_WORDS: Duration = Duration::from_millis(500);

pub(crate) fn run(args: &BatchArgs) -> Result<u8> {
    check_usage(args)?;
    let survey = Survey::new(&args.input)?;
    let is_there = results::is_there(&args.out)?;
    let model = args.model.open()?;
    let mut scheduler = scheduler(args, &model)?;
    let (options, ignore_eos) = args.answer.sampling.without_ignore_eos();
    let text = options.sampling(&model, &sampling::Defaults::CONTINUATION);
    let chat = options.sampling(&model, &sampling::Defaults::of_chat(&model).decided());
    for sampling in [&text, &chat] {
        check_defaults(args, sampling, &mut scheduler)?;
    }
    let job = job(args, &model, &survey, &(&text, &chat, ignore_eos));

    let mut file = JobFile::open(&args.out)?;
    let lines = args.shard.lines(survey.lines);
    let goes_on = is_there && !args.force;
    let earlier = if goes_on { file.same(&job)? } else { None };
    if earlier.is_none() && goes_on {
        return Err(file.give_up(&args.out).into());
    }
    let results = match &earlier {
        Some(_) => Results::resume(&args.out, !args.unordered)?,
        None => {
            let results = Results::create(&args.out, !args.unordered)?;
            file.begin(&job)?;
            results
        }
    };
    let now = earlier.as_ref().unwrap_or(&job).start();
    let (max_tokens, stop) = (args.answer.max_tokens(), args.answer.stop.clone());
    let defaults = Defaults { max_tokens, stop, text, chat, ignore_eos, now };
    let interrupt = Interrupt::new()?;
    let mut batch = Batch {
        tokenizer: model.tokenizer(),
        model,
        scheduler,
        defaults,
        source: Source::new(args, lines)?,
        answers: HashMap::new(),
        results,
        meter: Meter::new(),
        begun: 0,
        failed: 0,
    };
    batch.run(&interrupt)?;
    let Batch { begun, failed, .. } = batch;
    let is_complete = batch.is_complete();
    batch.results.end()?;
    if failed > 0 {
        let of = counted(begun, "request");
        tell(&format!("{failed} of {of} failed: the results say why"));
    }
    if !is_complete {
        tell("stopped; the same command goes on from here");
        return Ok(interrupt.exit_code().unwrap_or(exit_code::FAILURE));
    }
    if begun == 0 && earlier.is_some() {
        tell(&format!("{}: it has all results already; --force begins anew", args.out.display()));
    }
    Ok(exit_code::SUCCESS)
}

/// What can be known to be wrong before anything is read.
fn check_usage(args: &BatchArgs) -> Result<()> {
    let wrong = |problem: &str| Err(WrongUsage(problem.to_owned()).into());
    if args.answer.sampling.has_random_seed() {
        return wrong("--seed random: expected a number, so that a batch that goes on draws the same");
    }
    if args.input == Path::new("-") {
        return wrong("IN -: expected a file, which is read twice");
    }
    if args.out == Path::new("-") {
        return wrong("--out -: expected a file, which is read again when a batch goes on");
    }
    let job = JobFile::path(&args.out);
    for read in [&args.input, &args.model.model] {
        if let Some(written) = [&args.out, &job].into_iter().find(|written| is_same_file(read, written)) {
            return wrong(&format!("{}: expected another file than those that are read", written.display()));
        }
    }
    Ok(())
}

/// Whether two paths lead to the same file, be it by links.
fn is_same_file(path: &Path, other: &Path) -> bool {
    #[cfg(unix)]
    let id = |path: &Path| {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(path).map(|found| (found.dev(), found.ino()))
    };
    #[cfg(not(unix))]
    let id = |path: &Path| fs::canonicalize(path);
    id(path).is_ok_and(|found| id(other).is_ok_and(|other| other == found))
}

/// What lines get that do not say it themselves must make sense: a request with nothing else is taken in and given up.
fn check_defaults(args: &BatchArgs, sampling: &Sampling, scheduler: &mut Scheduler) -> smolrun::Result<()> {
    let cancel = CancelToken::default();
    cancel.cancel();
    let options = GenerateOptions::default().max_tokens(1).stop(&args.answer.stop).cancel(&cancel);
    scheduler.submit(Request::new(vec![0], options.sampling(sampling.clone())))?;
    scheduler.step(|_, _| ())
}

fn scheduler(args: &BatchArgs, model: &Model) -> Result<Scheduler> {
    let mut options = EngineOptions::default();
    options.threads = args.threads;
    let engine = Engine::new(model, options)?;
    let megabytes = |count: usize| count.saturating_mul(1_000_000);
    // All together are to be done soon: none is waited for.
    let mut options = SchedulerOptions::default()
        .max_sequences(args.sequences)
        .pace(f32::INFINITY)
        .kv_bytes(args.kv_memory.map_or(usize::MAX, megabytes))
        .prefix_bytes(megabytes(args.prefix_memory));
    options.kv_dtype = args.kv.map(KvDtype::from);
    Ok(Scheduler::new(engine, options)?)
}

/// All that the results depend on.
fn job(args: &BatchArgs, model: &Model, survey: &Survey, sampling: &impl fmt::Debug) -> Job {
    Job {
        version: env!("CARGO_PKG_VERSION").into(),
        blob: hex(&model.layout().header.directory_sha256),
        input: survey.sha256.clone(),
        shard: args.shard.to_string(),
        order: if args.unordered { "finished" } else { "input" }.into(),
        kv: args.kv.map_or("default".into(), |kv| KvDtype::from(kv).name().into()),
        kv_memory: args.kv_memory.map_or("no limit".into(), |megabytes| megabytes.to_string()),
        defaults: format!("{:?}", (args.answer.max_tokens(), &args.answer.stop, sampling)),
        started: Job::now(),
    }
}

/// The lines of IN that are this batch's.
struct Source {
    lines: Lines,
    range: Range<u64>,
    is_at_end: bool,
}

impl Source {
    fn new(args: &BatchArgs, range: Range<u64>) -> Result<Source> {
        Ok(Source { lines: Lines::new(&args.input)?, range, is_at_end: false })
    }

    fn next(&mut self) -> Result<Option<Line>> {
        while let Some(line) = self.lines.next()? {
            if line.number >= self.range.end {
                break;
            }
            if line.number >= self.range.start {
                return Ok(Some(line));
            }
        }
        self.is_at_end = true;
        Ok(None)
    }
}

/// Requests on their way from IN to OUT.
struct Batch {
    model: Model,
    tokenizer: Tokenizer,
    scheduler: Scheduler,
    defaults: Defaults,
    source: Source,
    /// Of the requests that the scheduler has.
    answers: Answers,
    results: Results,
    meter: Meter,
    /// Requests that this run took in.
    begun: usize,
    /// Those of them that got an error.
    failed: usize,
}

impl Batch {
    /// Until all is done, or a signal comes.
    fn run(&mut self, interrupt: &Interrupt) -> Result<()> {
        let Range { start, end } = self.source.range;
        self.meter.start(end - start, self.results.resumed() as u64);
        while !interrupt.cancel_token().is_cancelled() {
            self.fill()?;
            if self.is_complete() {
                break;
            }
            self.step()?;
            self.results.flush()?;
        }
        Ok(())
    }

    /// Whether every line has its result.
    fn is_complete(&self) -> bool {
        self.source.is_at_end && self.answers.is_empty()
    }

    /// Reads requests, so that the scheduler always has one to go on with.
    fn fill(&mut self) -> Result<()> {
        while !self.source.is_at_end && self.scheduler.waiting() < MOST_WAITING && self.results.has_room() {
            match self.source.next()? {
                Some(line) if !self.results.has(line.number) => self.begin(&line)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Hands a line's request to the scheduler; what is none has its result already.
    fn begin(&mut self, line: &Line) -> Result<()> {
        self.results.begin(line.number)?;
        self.begun += 1;
        let mut custom_id = None;
        if let Err(problem) = self.submit(line, &mut custom_id) {
            self.failed += 1;
            self.results.put(line.number, &problem.record(line.number, custom_id.as_deref()))?;
            self.meter.done(1);
        }
        Ok(())
    }

    fn submit(&mut self, line: &Line, custom_id: &mut Option<String>) -> std::result::Result<(), Problem> {
        let bytes = line.bytes.as_ref().ok_or_else(|| Problem {
            code: "line_too_long",
            message: format!("expected a line of at most {MAX_LINE} bytes"),
        })?;
        let mut object = Object::parse(bytes)?;
        *custom_id = object.custom_id.take();
        let seed = self.defaults.text.seed.wrapping_add(line.number);
        let request = object.request(&self.model, &self.defaults, seed)?;
        let (prompt_tokens, has_logprobs) = (request.prompt.len(), request.options.logprobs.is_some());
        let id = self.scheduler.submit(request)?;
        let answer = Answer::new(line.number, custom_id.take(), prompt_tokens, has_logprobs);
        self.answers.insert(id, answer);
        Ok(())
    }

    /// Runs one pass, and takes what it gives.
    fn step(&mut self) -> Result<()> {
        let Batch { scheduler, answers, results, meter, tokenizer, failed, .. } = self;
        let mut outcome = Ok(());
        scheduler.step(|id, event| {
            if outcome.is_err() {
                return;
            }
            if event.is_last() {
                meter.done(1);
            }
            outcome = match event {
                Event::Token(token) => {
                    meter.token();
                    take(token, id, answers, tokenizer, results)
                }
                Event::Finished(reason) => end(answers, id, results, Ok(reason)),
                Event::Failed(error) => {
                    *failed += 1;
                    end(answers, id, results, Err(error.into()))
                }
                _ => Ok(()),
            };
        })?;
        Ok(outcome?)
    }
}

/// Takes another token of a request.
fn take(
    token: Token,
    id: RequestId,
    answers: &mut Answers,
    tokenizer: &Tokenizer,
    results: &mut Results,
) -> std::result::Result<(), String> {
    let Some(answer) = answers.get_mut(&id) else { return Ok(()) };
    let logprobs = token.logprobs.as_ref().map(|logprobs| Logprobs::new(logprobs, tokenizer));
    answer.push(token.id, &token.text, logprobs.transpose().map_err(|error| error.to_string())?);
    token.finish_reason.map_or(Ok(()), |reason| end(answers, id, results, Ok(reason)))
}

/// A request has ended.
fn end(
    answers: &mut Answers,
    id: RequestId,
    results: &mut Results,
    how: std::result::Result<FinishReason, Problem>,
) -> std::result::Result<(), String> {
    let Some(answer) = answers.remove(&id) else { return Ok(()) };
    match how {
        Ok(reason) => results.put(answer.line(), &answer.finished(reason)),
        Err(problem) => results.put(answer.line(), &answer.failed(&problem)),
    }
}

/// What is told of the progress.
struct Meter {
    progress: Progress,
    start: Instant,
    tokens: u64,
    told: Instant,
}

impl Meter {
    fn new() -> Meter {
        let now = Instant::now();
        Meter { progress: Progress::new(false), start: now, tokens: 0, told: now }
    }

    fn start(&mut self, requests: u64, done: u64) {
        self.progress.start_requests("answering", requests, done);
        (self.start, self.told) = (Instant::now(), Instant::now());
    }

    fn token(&mut self) {
        self.tokens += 1;
        if self.told.elapsed() > BETWEEN_WORDS {
            self.told = Instant::now();
            let speed = self.tokens as f64 / self.start.elapsed().as_secs_f64();
            self.progress.say(format!("{speed:.0} tok/s"));
        }
    }

    /// So many requests more are done.
    fn done(&self, requests: u64) {
        let _ = self.progress.add(requests); // signals end a batch, not this
    }
}
