//! Many requests on one engine: continuous batching.

mod budget;
mod options;
mod request;
mod running;

use std::collections::BTreeMap;
use std::fmt;

use self::budget::{Budget, Costs};
pub use self::options::SchedulerOptions;
pub use self::request::{Event, Request, RequestId};
use self::running::Running;
use super::token::FinishReason;
use super::token_stream::{TokenScratch, TokenStream};
use crate::error::{Error, Result};
use crate::model::{Engine, PassError, PrefixCache, Rows, Sequence};
use crate::sequence::KV_BLOCK;

/// How many passes of waiting a priority of one more counts for.
const PASSES_PER_PRIORITY: i64 = 64;
/// Blocks of keys and values that a request which ended gives back in a pass, while others run: the system takes some
/// 0.1 ms for each. A pass fills no more of them ([`Engine::MAX_ROWS`]), so that what has not been given back is bounded by
/// what runs.
const BLOCKS_A_PASS: usize = Engine::MAX_ROWS / KV_BLOCK;

/// Requests in, tokens out: it decides whose tokens make the next pass of its engine.
///
/// Requests join and leave between passes. Each pass takes one token of every stream that waits for its next one, and
/// beside these as much of the prompts that still come in as [`SchedulerOptions::pace`] allows. Prompts take turns, and
/// a part that another one has computed is shared ([`SchedulerOptions::prefix_bytes`]).
///
/// **What a request generates does not depend on the others**: its tokens are those that a
/// [`Session`](crate::Session) of its own would give, to the last bit of every log-probability. The same requests, made
/// before the same passes, also give the same passes.
///
/// Whoever came first is served first, as far as priorities leave it at that. Nothing waits for ever, as long as what
/// runs ends. It runs on the thread that calls [`Scheduler::step`], and on those of its engine while that call lasts.
///
/// ```no_run
/// use smolrun::engine::{Engine, EngineOptions};
/// use smolrun::scheduler::{Event, Request, Scheduler, SchedulerOptions};
/// use smolrun::{GenerateOptions, Model};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let model = Model::open("tales.bin")?;
/// let engine = Engine::new(&model, EngineOptions::default())?;
/// let mut scheduler = Scheduler::new(engine, SchedulerOptions::default())?;
/// for text in ["Once upon a time", "The king said:"] {
///     let prompt = model.encode_prompt(text)?;
///     scheduler.submit(Request::new(prompt, GenerateOptions::default().max_tokens(50)))?;
/// }
/// while !scheduler.is_idle() {
///     scheduler.step(|id, event| match event {
///         Event::Token(token) => println!("{id:?}: {}", token.text),
///         Event::Failed(error) => println!("{id:?}: {error}"),
///         _ => {}
///     })?;
/// }
/// # Ok(())
/// # }
/// ```
pub struct Scheduler {
    engine: Engine,
    options: SchedulerOptions,
    costs: Costs,
    prefixes: PrefixCache,
    /// How often the prefix cache has taken something in.
    stored: u64,
    /// By the order in which they are served: see [`rank`].
    waiting: BTreeMap<(i64, RequestId), Waiting>,
    /// In the order in which they began.
    running: Vec<Running>,
    /// Those that have ended, but for their keys and values, which they give back little by little.
    ended: Vec<Running>,
    /// The sum of what the running requests count for, and those that have ended.
    kv_bytes: usize,
    passes: u64,
    requests: u64,
    /// For each thread.
    scratch: Vec<TokenScratch>,
    /// Indices of running requests whose prompts come in, and of those among them that are in the pass.
    prompts: Vec<usize>,
    granted: Vec<usize>,
    /// Which entry of the pass gives the logits of a running request.
    entries: Vec<Option<usize>>,
    /// Empty between passes; its memory is kept.
    batch: Vec<Rows<'static>>,
}

/// A request that has no sequence yet.
struct Waiting {
    request: Request,
    since: u64,
    kv_bytes: usize,
}

impl Scheduler {
    /// A scheduler without requests, or an error where an option makes no sense. The engine must not be a
    /// [`fast`](crate::engine::EngineOptions#structfield.fast) one: what it computes would depend on how a prompt is
    /// split.
    pub fn new(engine: Engine, options: SchedulerOptions) -> Result<Scheduler> {
        options.check()?;
        if engine.fast().unit().is_some() {
            let (expected, found) = ("an engine that is exact".into(), "a fast one".into());
            return Err(Error::Argument { name: "engine", expected, found });
        }
        engine.sequence(options.kv_dtype, options.overflow)?; // it can be had
        Ok(Scheduler {
            costs: Costs::new(engine.model().config()),
            prefixes: PrefixCache::new(options.prefix_bytes),
            stored: 0,
            waiting: BTreeMap::new(),
            running: Vec::with_capacity(options.max_sequences),
            ended: Vec::with_capacity(options.max_sequences),
            kv_bytes: 0,
            passes: 0,
            requests: 0,
            scratch: (0..engine.threads()).map(|_| TokenScratch::default()).collect(),
            prompts: Vec::with_capacity(options.max_sequences),
            granted: Vec::with_capacity(options.max_sequences),
            entries: Vec::with_capacity(options.max_sequences),
            batch: Vec::with_capacity(options.max_sequences),
            engine,
            options,
        })
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Takes a request in, which the next [`Scheduler::step`] may begin with. An error if it can never run: its prompt
    /// or options make no sense, or it is too large for the model's context or for [`SchedulerOptions::kv_bytes`].
    pub fn submit(&mut self, request: Request) -> Result<RequestId> {
        request.options.check(self.engine.model())?;
        let (sequence, config) = (self.new_sequence()?, self.engine.model().config());
        sequence.check(config, &request.prompt)?;
        // Of all tokens but the last, which is not fed.
        let positions = request.prompt.len().saturating_add(request.options.max_tokens.saturating_sub(1));
        let kv_bytes = sequence.kv_bytes_for(positions.min(config.max_position_embeddings));
        if kv_bytes > self.options.kv_bytes {
            return Err(Error::KvBudget { needed: kv_bytes, limit: self.options.kv_bytes });
        }
        let id = RequestId(self.requests);
        self.requests += 1;
        let since = self.passes;
        self.waiting.insert((rank(since, request.priority), id), Waiting { request, since, kv_bytes });
        Ok(id)
    }

    /// Requests that have no sequence yet.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Requests that have one.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Whether there is nothing left to do.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Bytes of keys and values that the running requests may come to, and those that ended and have not given all back yet: at
    /// most [`SchedulerOptions::kv_bytes`].
    pub fn kv_bytes(&self) -> usize {
        self.kv_bytes
    }

    /// Bytes of keys and values in the prefix cache: at most [`SchedulerOptions::prefix_bytes`].
    pub fn prefix_bytes(&self) -> usize {
        self.prefixes.bytes()
    }

    /// Runs one pass, if there is anything to run, and tells `each` of every request to which something happened.
    ///
    /// An error is one of the pass as a whole, such as too little memory; then no request has got a token, and the next step
    /// tries again. What is wrong with one request alone is an [`Event::Failed`] of that one.
    pub fn step(&mut self, mut each: impl FnMut(RequestId, Event)) -> Result<()> {
        self.drop_cancelled(&mut each);
        self.give_back();
        self.admit(&mut each);
        self.plan();
        self.pass()?;
        self.choose();
        self.hand_out(&mut each);
        if self.running.is_empty() {
            self.give_back();
        }
        Ok(())
    }

    /// Ends what was cancelled before its first token. What has tokens ends with the next one, which has the rest of
    /// its text.
    fn drop_cancelled(&mut self, each: &mut impl FnMut(RequestId, Event)) {
        let cancelled = || Event::Finished(FinishReason::Cancelled);
        self.waiting.retain(|&(_, id), waiting| {
            let is_cancelled = waiting.request.options.cancel.is_cancelled();
            if is_cancelled {
                each(id, cancelled());
            }
            !is_cancelled
        });
        let ended = self.running.extract_if(.., |running| {
            let is_cancelled = running.is_prompt() && running.stream.is_cancelled();
            if is_cancelled {
                each(running.id, cancelled());
            }
            is_cancelled
        });
        self.ended.extend(ended);
    }

    /// Gives back keys and values of those that have ended: all of them where nobody waits for a token.
    fn give_back(&mut self) {
        let blocks = if self.running.is_empty() { usize::MAX } else { BLOCKS_A_PASS };
        let kv_bytes = &mut self.kv_bytes;
        self.ended.retain_mut(|ended| {
            let is_empty = ended.sequence.give_back(blocks);
            if is_empty {
                *kv_bytes -= ended.kv_bytes;
            }
            !is_empty
        });
    }

    /// Gives sequences to those that wait, in their order, as long as there is room: nobody overtakes one that needs
    /// more of it.
    fn admit(&mut self, each: &mut impl FnMut(RequestId, Event)) {
        while self.running.len() < self.options.max_sequences
            && let Some(first) = self.waiting.first_entry()
            && first.get().kv_bytes <= self.options.kv_bytes - self.kv_bytes
        {
            let ((_, id), waiting) = first.remove_entry();
            match self.begin(id, waiting) {
                Ok(running) => match running.stream.finish_reason() {
                    Some(reason) => each(id, Event::Finished(reason)),
                    None => {
                        self.kv_bytes += running.kv_bytes;
                        self.running.push(running);
                    }
                },
                Err(error) => each(id, Event::Failed(error)),
            }
        }
    }

    fn begin(&mut self, id: RequestId, waiting: Waiting) -> Result<Running> {
        let Waiting { request: Request { prompt, options, priority }, since, kv_bytes } = waiting;
        let mut stream = TokenStream::new(self.engine.model(), options)?;
        prompt.iter().try_for_each(|&id| stream.accept(id))?;
        self.scratch.iter_mut().for_each(|scratch| stream.reserve(scratch));
        let sequence = self.new_sequence()?;
        let (fed, last, rows, outcome, asked) = (0, 0, 0, None, None);
        Ok(Running {
            id,
            priority,
            since,
            kv_bytes,
            sequence,
            stream,
            prompt,
            fed,
            last,
            rows,
            outcome,
            asked,
        })
    }

    /// Decides how many rows of the next pass each running request has.
    fn plan(&mut self) {
        let Scheduler { options, running, prompts, .. } = self;
        let streams = running.iter().filter(|running| !running.is_prompt());
        let depths = streams.map(|stream| stream.sequence.position());
        let mut budget = Budget::new(self.costs, options.max_rows, options.pace, depths);
        prompts.clear();
        for (index, running) in running.iter_mut().enumerate() {
            running.rows = usize::from(!running.is_prompt());
            if running.is_prompt() {
                prompts.push(index);
            }
        }
        prompts.sort_unstable_by_key(|&index| {
            let Running { since, priority, id, .. } = running[index];
            (rank(since, priority), id)
        });
        self.granted.clear();
        for at in 0..self.prompts.len() {
            let index = self.prompts[at];
            self.take_prefix(index);
            let prompt = &self.running[index];
            let follows = |&other: &usize| prompt.could_follow(&self.running[other], KV_BLOCK);
            if self.options.prefix_bytes > 0 && self.granted.iter().any(follows) {
                continue; // the next pass finds it in the prefix cache
            }
            let rows = budget.grant(prompt.sequence.position(), prompt.left());
            if rows == 0 {
                break;
            }
            self.running[index].rows = rows;
            self.granted.push(index);
        }
    }

    /// Gives a running request what the prefix cache has of its prompt, if that is more than it has itself.
    fn take_prefix(&mut self, index: usize) {
        let running = &mut self.running[index];
        // Past the context, the tokens are no longer those that the prompt begins with.
        let can_share = running.prompt.len() <= self.engine.model().config().max_position_embeddings;
        if !can_share || running.asked == Some(self.stored) {
            return;
        }
        running.asked = Some(self.stored);
        let Ok(mut sequence) = self.engine.sequence(self.options.kv_dtype, self.options.overflow) else {
            return;
        };
        let known = self.prefixes.restore(&running.prompt, &mut sequence);
        if known > running.fed {
            (running.sequence, running.fed) = (sequence, known);
        }
    }

    /// Runs the pass that was planned, without those of which something is wrong.
    fn pass(&mut self) -> Result<()> {
        loop {
            let mut batch = emptied(std::mem::take(&mut self.batch));
            batch.extend(self.running.iter_mut().filter_map(Running::entry));
            let result = if batch.is_empty() { Ok(()) } else { self.engine.pass(&mut batch) };
            self.batch = emptied(batch);
            match result {
                Ok(()) => break,
                Err(PassError { entry: Some(entry), error }) => self.fail(entry, error),
                Err(PassError { entry: None, error }) => return Err(error),
            }
        }
        self.passes += 1;
        self.entries.clear();
        let mut entry = 0;
        for running in &mut self.running {
            let (has_rows, before) = (running.rows > 0, running.fed);
            let has_token = has_rows && running.advance(self.passes);
            if running.fed / KV_BLOCK > before / KV_BLOCK {
                self.prefixes.store(&running.sequence);
                self.stored += 1;
            }
            self.entries.push(has_token.then_some(entry));
            entry += usize::from(has_rows);
        }
        Ok(())
    }

    /// Takes the request of the pass's entry number `entry` out of the pass, with its error.
    fn fail(&mut self, entry: usize, error: Error) {
        if let Some(running) = self.running.iter_mut().filter(|running| running.rows > 0).nth(entry) {
            running.rows = 0;
            running.outcome = Some(Err(error));
        }
    }

    /// Chooses the next token of every request whose logits there are, with all threads.
    fn choose(&mut self) {
        let Scheduler { engine, running, entries, scratch, .. } = self;
        let tasks = running.len();
        let (pool, logits) = engine.pool_and_logits();
        pool.split_with(running, 1, tasks, scratch, |first, running, scratch| {
            for (running, entry) in running.iter_mut().zip(&entries[first..]) {
                if let Some(entry) = *entry {
                    running.choose(logits.of(entry), scratch);
                }
            }
        });
    }

    /// Tells of what the pass gave, and takes leave of those that have ended.
    fn hand_out(&mut self, each: &mut impl FnMut(RequestId, Event)) {
        let Scheduler { running, ended, prefixes, stored, .. } = self;
        ended.extend(running.extract_if(.., |running| {
            let Some(outcome) = running.outcome.take() else { return false };
            let event = outcome.map_or_else(Event::Failed, Event::Token);
            let is_last = event.is_last();
            if matches!(&event, Event::Token(_)) && is_last {
                prefixes.store(&running.sequence);
                *stored += 1;
            }
            each(running.id, event);
            is_last
        }));
    }

    fn new_sequence(&self) -> Result<Sequence> {
        self.engine.sequence(self.options.kv_dtype, self.options.overflow)
    }
}

/// The order in which requests are served: by how long they have waited, and by priority.
fn rank(since: u64, priority: i8) -> i64 {
    since as i64 - PASSES_PER_PRIORITY * i64::from(priority)
}

/// The memory of `batch` for another one: taken over, not asked for anew.
fn emptied<'a>(mut batch: Vec<Rows<'_>>) -> Vec<Rows<'a>> {
    batch.clear();
    batch.into_iter().map_while(|_| None).collect()
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler")
            .field("waiting", &self.waiting())
            .field("running", &self.running())
            .field("kv_bytes", &self.kv_bytes())
            .finish_non_exhaustive()
    }
}
