//! Many requests on one engine: each gets what it would get alone, in its turn, within what was granted.

use std::collections::BTreeMap;

use smol_tests::common::counting::Random;
use smol_tests::common::{TALES, blob_of, scattered_tokens};
use smolrun::engine::{Engine, EngineOptions};
use smolrun::format::Dtype;
use smolrun::scheduler::{Event, Request, RequestId, Scheduler, SchedulerOptions};
use smolrun::{
    CancelToken, Error, FinishReason, GenerateOptions, KvDtype, Model, Overflow, Sampling, Session,
    SessionOptions, Token,
};

/// More passes than any of these requests can need in its turn: who waits longer waits for ever.
const MOST_PASSES: usize = 20_000;

fn model(dtype: Dtype) -> Model {
    Model::open(blob_of(TALES, dtype)).unwrap()
}

fn scheduler(model: &Model, threads: usize, options: SchedulerOptions) -> Scheduler {
    let engine = Engine::new(model, EngineOptions::default().threads(threads)).unwrap();
    Scheduler::new(engine, options).unwrap()
}

/// What a request led to.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    tokens: Vec<Token>,
    finish_reason: Option<FinishReason>,
    /// The error's code.
    failed: Option<&'static str>,
    ends: usize,
}

impl Outcome {
    fn take(&mut self, event: Event) {
        assert_eq!(self.ends, 0, "nothing comes after the end");
        self.ends += usize::from(event.is_last());
        match event {
            Event::Token(token) => {
                self.finish_reason = token.finish_reason;
                self.tokens.push(token);
            }
            Event::Finished(reason) => self.finish_reason = Some(reason),
            Event::Failed(error) => self.failed = Some(error.code()),
            other => panic!("{other:?}"),
        }
    }

    fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }
}

/// What a session of its own gives for a request.
fn alone(session: &mut Session, request: &Request) -> Outcome {
    session.truncate(0);
    let mut outcome = Outcome::default();
    let options = request.options.clone().cancel(&CancelToken::default());
    let mut tokens = session.generate(&request.prompt, options).unwrap();
    for token in tokens.by_ref() {
        outcome.take(token.map_or_else(Event::Failed, Event::Token));
    }
    if outcome.ends == 0 {
        outcome.take(Event::Finished(tokens.finish_reason().unwrap()));
    }
    outcome
}

/// Runs until all is done, and returns what each request led to.
fn run(scheduler: &mut Scheduler) -> BTreeMap<RequestId, Outcome> {
    let mut outcomes: BTreeMap<_, Outcome> = BTreeMap::new();
    for _ in 0..MOST_PASSES {
        if scheduler.is_idle() {
            return outcomes;
        }
        scheduler.step(|id, event| outcomes.entry(id).or_default().take(event)).unwrap();
    }
    panic!("{scheduler:?} never ends");
}

/// A prompt that may begin like others.
fn prompt(random: &mut Random, tokens: &[u32]) -> Vec<u32> {
    let shared = [0, 0, 40, 200, 500][random.below(5)];
    let own = 1 + [3, 20, 90, 300][random.below(4)] * random.below(100) / 100;
    let start = random.below(tokens.len() - own);
    [&tokens[..shared], &tokens[start..start + own]].concat()
}

fn sampling(random: &mut Random, vocab_size: usize) -> Sampling {
    let seeded = Sampling::default().seed(random.below(1000) as u64);
    match random.below(6) {
        0 | 1 => Sampling::default(),
        2 => seeded.temperature(1.0),
        3 => seeded.temperature(2.0).top_k(50).top_p(0.9),
        4 => seeded.temperature(0.7).repetition_penalty(1.3).penalty_window(random.below(30)),
        // Nothing is left to be chosen: an error, and of this request alone.
        _ if random.below(3) == 0 => {
            Sampling::default().logit_bias((0..vocab_size as u32).map(|id| (id, f32::NEG_INFINITY)))
        }
        _ => Sampling::default().logit_bias([(17, 5.0), (99, f32::NEG_INFINITY)]).presence_penalty(0.5),
    }
}

fn request(random: &mut Random, tokens: &[u32], vocab_size: usize) -> Request {
    let mut options = GenerateOptions::default().max_tokens([0, 1, 3, 12, 40][random.below(5)]);
    options = options.sampling(sampling(random, vocab_size));
    if random.below(4) == 0 {
        options = options.stop([" the", "a", ". "][..1 + random.below(3)].iter().copied());
    }
    if random.below(4) == 0 {
        options = options.logprobs(random.below(4));
    }
    Request::new(prompt(random, tokens), options).priority(random.below(7) as i8 - 3)
}

/// Requests that come, are cancelled and fail at random, under budgets at random: each gets the tokens, texts and
/// log-probabilities of a session of its own, or the first of them where it was cancelled.
fn check_at_random(dtype: Dtype, seeds: std::ops::Range<u64>) {
    let model = model(dtype);
    let vocab_size = model.config().vocab_size;
    let tokens = scattered_tokens(&model, 700);
    for seed in seeds {
        let mut random = Random(seed);
        let kv_dtype = [KvDtype::F32, KvDtype::F16, KvDtype::Q8][random.below(3)];
        let max_rows = [1, 7, 33, 100, 256][random.below(5)];
        let per_token = kv_dtype.bytes_per_token(model.config());
        let kv_bytes = [usize::MAX, 1024 * per_token, 3000 * per_token][random.below(3)];
        let options = SchedulerOptions::default()
            .max_rows(max_rows)
            .max_sequences(1 + random.below(max_rows.min(12)))
            .pace([1.0, 2.0, 5.0, f32::INFINITY][random.below(4)])
            .kv_bytes(kv_bytes)
            .prefix_bytes([0, 300 * per_token, 64 << 20][random.below(3)])
            .kv_dtype(kv_dtype);
        let mut scheduler = scheduler(&model, 1 + random.below(2), options.clone());
        let mut session =
            Session::new(&model, SessionOptions::default().threads(2).kv_dtype(kv_dtype)).unwrap();

        let mut outcomes: BTreeMap<RequestId, Outcome> = BTreeMap::new();
        let (mut requests, mut cancels) = (BTreeMap::new(), Vec::new());
        let mut left = 14;
        for pass in 0.. {
            assert!(pass < MOST_PASSES, "{scheduler:?} never ends");
            while left > 0 && random.below(4) == 0 {
                left -= 1;
                let mut request = request(&mut random, &tokens, vocab_size);
                let cancel = CancelToken::default();
                request.options.cancel = cancel.clone();
                let id = scheduler.submit(request.clone()).unwrap();
                if random.below(4) == 0 {
                    cancels.push((pass + random.below(30), cancel));
                }
                requests.insert(id, request);
                outcomes.insert(id, Outcome::default());
            }
            cancels.iter().filter(|(at, _)| *at == pass).for_each(|(_, cancel)| cancel.cancel());
            if left == 0 && scheduler.is_idle() {
                break;
            }
            scheduler.step(|id, event| outcomes.get_mut(&id).unwrap().take(event)).unwrap();
            assert!(scheduler.kv_bytes() <= options.kv_bytes && scheduler.running() <= options.max_sequences);
            assert!(scheduler.prefix_bytes() <= options.prefix_bytes);
        }
        assert_eq!(scheduler.kv_bytes(), 0);
        for (id, request) in &requests {
            let (found, expected) = (&outcomes[id], alone(&mut session, request));
            assert_eq!(found.ends, 1, "each request ends, once");
            if found.finish_reason != Some(FinishReason::Cancelled) {
                assert_eq!(*found, expected, "seed {seed}, {id:?}");
                continue;
            }
            assert!(request.options.cancel.is_cancelled());
            let count = found.ids().len();
            assert_eq!(found.ids(), expected.ids()[..count], "seed {seed}, {id:?}");
            let before = count.saturating_sub(1); // the last one may have text that had been held back
            assert_eq!(found.tokens[..before], expected.tokens[..before], "seed {seed}, {id:?}");
        }
    }
}

#[test]
fn requests_are_numbered_in_their_order() {
    let mut scheduler = scheduler(&model(Dtype::F32), 1, SchedulerOptions::default());
    for number in 0..3 {
        let id = scheduler.submit(Request::new(vec![1, 2, 3], GenerateOptions::default())).unwrap();
        assert_eq!(id.number(), number);
    }
}

#[test]
fn each_request_gets_what_it_would_get_alone() {
    check_at_random(Dtype::F32, 0..12);
}

#[test]
fn so_does_each_of_a_quantized_model() {
    check_at_random(Dtype::Q4, 100..112);
    check_at_random(Dtype::Bf16, 200..204);
}

#[test]
fn the_same_arrivals_make_the_same_passes() {
    let model = model(Dtype::Q8);
    let tokens = scattered_tokens(&model, 700);
    let log = || {
        let mut random = Random(5);
        let mut scheduler = scheduler(&model, 2, SchedulerOptions::default().max_sequences(4).max_rows(40));
        let mut log = Vec::new();
        for pass in 0..300 {
            if pass % 7 == 0 && pass < 100 {
                scheduler.submit(request(&mut random, &tokens, model.config().vocab_size)).unwrap();
            }
            scheduler.step(|id, event| log.push((pass, id, format!("{event:?}")))).unwrap();
        }
        assert!(scheduler.is_idle());
        log
    };
    let first = log();
    assert!(!first.is_empty());
    assert_eq!(log(), first);
}

#[test]
fn what_can_never_run_is_refused_at_once() {
    let model = model(Dtype::F32);
    let config = model.config();
    let kv_bytes = 256 * KvDtype::F32.bytes_per_token(config);
    let mut scheduler = scheduler(&model, 1, SchedulerOptions::default().kv_bytes(kv_bytes));
    let mut code = |prompt: &[u32], options: GenerateOptions| {
        scheduler.submit(Request::new(prompt.to_vec(), options)).map_err(|error| error.code())
    };
    let short = || GenerateOptions::default().max_tokens(10);
    assert_eq!(code(&[], short()), Err("argument"));
    assert_eq!(code(&[1, 4096], short()), Err("argument.token_id"));
    assert_eq!(code(&vec![1; 1025], short()), Err("context_full"));
    assert_eq!(code(&[1; 10], short().stop([""])), Err("argument"));
    assert_eq!(code(&[1; 10], short().sampling(Sampling::default().top_p(0.0))), Err("argument"));
    assert_eq!(code(&[1; 300], short()), Err("kv_budget"));
    assert_eq!(code(&[1; 10], short().max_tokens(usize::MAX)), Err("kv_budget"));
    assert!(code(&[1; 240], short()).is_ok());
    assert_eq!(run(&mut scheduler).len(), 1);
    for options in [
        SchedulerOptions::default().max_sequences(0),
        SchedulerOptions::default().max_sequences(9).max_rows(8),
        SchedulerOptions::default().max_rows(257),
        SchedulerOptions::default().pace(0.5),
        SchedulerOptions::default().pace(f32::NAN),
    ] {
        let engine = Engine::new(&model, EngineOptions::default().threads(1)).unwrap();
        assert!(matches!(Scheduler::new(engine, options), Err(Error::Argument { .. })));
    }
}

#[test]
fn a_cancelled_request_ends_within_one_pass_wherever_it_is() {
    let model = model(Dtype::F32);
    let tokens = scattered_tokens(&model, 700);
    let options = SchedulerOptions::default().max_sequences(2).max_rows(16);
    for steps in [0, 1, 10, 60] {
        let mut scheduler = scheduler(&model, 1, options.clone());
        let cancels: Vec<CancelToken> = (0..4).map(|_| CancelToken::default()).collect();
        // One that streams, one whose prompt comes in, and two that wait.
        for (cancel, len) in cancels.iter().zip([3, 700, 3, 700]) {
            let generate = GenerateOptions::default().max_tokens(300).cancel(cancel);
            scheduler.submit(Request::new(tokens[..len].to_vec(), generate)).unwrap();
        }
        for _ in 0..steps {
            scheduler.step(|_, event| assert!(!event.is_last())).unwrap();
        }
        cancels.iter().for_each(CancelToken::cancel);
        let mut ends = 0;
        scheduler
            .step(|_, event| {
                let reason = match &event {
                    Event::Token(token) => token.finish_reason,
                    Event::Finished(reason) => Some(*reason),
                    other => panic!("{other:?}"),
                };
                assert_eq!(reason, Some(FinishReason::Cancelled));
                ends += 1;
            })
            .unwrap();
        assert_eq!((ends, scheduler.is_idle()), (4, true), "after {steps} passes");
    }
}

/// A stream, and who comes and ends beside it.
struct Beside {
    scheduler: Scheduler,
    /// Bytes of the stream alone.
    kv_bytes: usize,
}

impl Beside {
    fn stream(model: &Model, options: SchedulerOptions) -> Beside {
        let mut beside = Beside { scheduler: scheduler(model, 1, options.pace(f32::INFINITY)), kv_bytes: 0 };
        let sampling = Sampling::default().ignore_eos(model.config());
        let options = GenerateOptions::default().max_tokens(400).sampling(sampling);
        beside.scheduler.submit(Request::new(vec![1], options)).unwrap();
        beside.scheduler.step(|_, _| {}).unwrap();
        beside.kv_bytes = beside.scheduler.kv_bytes();
        beside
    }

    fn submit(&mut self, prompt: &[u32]) -> RequestId {
        let options = GenerateOptions::default().max_tokens(1);
        self.scheduler.submit(Request::new(prompt.to_vec(), options)).unwrap()
    }

    /// Bytes beside the stream's after a pass, and which requests ended in it.
    fn step(&mut self) -> (usize, Vec<RequestId>) {
        let mut ended = Vec::new();
        self.scheduler
            .step(|id, event| {
                if event.is_last() {
                    ended.push(id);
                }
            })
            .unwrap();
        (self.scheduler.kv_bytes() - self.kv_bytes, ended)
    }

    /// Runs passes until requests end, and returns these.
    fn finish(&mut self) -> Vec<RequestId> {
        (0..MOST_PASSES).find_map(|_| Some(self.step().1).filter(|ended| !ended.is_empty())).unwrap()
    }

    /// Bytes beside the stream's after each of these passes, in blocks.
    fn blocks_after<const PASSES: usize>(&mut self) -> [usize; PASSES] {
        [(); PASSES].map(|()| self.step().0 / self.kv_bytes_of_block())
    }

    fn kv_bytes_of_block(&self) -> usize {
        KvDtype::F32.bytes_per_token(self.scheduler.engine().model().config()) * 64
    }
}

#[test]
fn who_ends_gives_keys_and_values_back_while_others_run() {
    let model = model(Dtype::F32);
    let mut beside = Beside::stream(&model, SchedulerOptions::default().prefix_bytes(0));
    let long = beside.submit(&scattered_tokens(&model, 900));
    assert_eq!(beside.finish(), [long]);
    // 15 blocks, four a pass; it counts until none is left.
    assert_eq!(beside.blocks_after(), [15, 15, 15, 0, 0]);
    assert_eq!(beside.scheduler.running(), 1);
    while !beside.scheduler.is_idle() {
        beside.scheduler.step(|_, _| {}).unwrap();
    }
    assert_eq!(beside.scheduler.kv_bytes(), 0);
}

/// However many end in a pass: what is left behind does not pile up.
#[test]
fn who_was_short_gives_all_back_in_the_next_pass() {
    let model = model(Dtype::F32);
    let tokens = scattered_tokens(&model, 20);
    let mut beside = Beside::stream(&model, SchedulerOptions::default().prefix_bytes(0));
    for _ in 0..3 {
        let short: Vec<RequestId> = (0..10).map(|_| beside.submit(&tokens)).collect();
        let (bytes, ended) = beside.step();
        assert_eq!(ended, short, "all in one pass");
        assert_eq!(bytes, 10 * beside.kv_bytes_of_block(), "only those of this pass");
    }
    assert_eq!(beside.blocks_after(), [0]);
}

/// What others share costs nothing to leave: the next one that waits for memory begins at once.
#[test]
fn who_shares_gives_it_back_in_the_next_pass() {
    let model = model(Dtype::F32);
    let tokens = scattered_tokens(&model, 900);
    // Room for the stream, which may come to 400 positions, and for one of the others.
    let kv_bytes = (7 + 15) * 64 * KvDtype::F32.bytes_per_token(model.config());
    let mut beside = Beside::stream(&model, SchedulerOptions::default().kv_bytes(kv_bytes));
    let first = beside.submit(&tokens);
    assert_eq!(beside.finish(), [first]);
    // 14 blocks of 15 are the prefix cache's, too.
    assert_eq!(beside.blocks_after(), [0]);
    let second = beside.submit(&tokens);
    assert_eq!(beside.step(), (15 * beside.kv_bytes_of_block(), vec![second]));
    let third = beside.submit(&tokens);
    assert_eq!(beside.step(), (15 * beside.kv_bytes_of_block(), vec![third]));
    assert_eq!(beside.blocks_after(), [0]);
}

/// However much comes with a higher priority, and however long the prompts before it are.
#[test]
fn nobody_waits_for_ever() {
    let model = model(Dtype::F32);
    let tokens = scattered_tokens(&model, 900);
    for (priority, most) in [(0, 800), (-1, 1500)] {
        let mut scheduler = scheduler(&model, 2, SchedulerOptions::default().max_sequences(2).max_rows(32));
        let short = || GenerateOptions::default().max_tokens(2);
        let flood = |scheduler: &mut Scheduler, pass: usize| {
            // Different from the start, so that nothing is shared.
            let prompt = tokens[pass % 100..][..300].to_vec();
            scheduler.submit(Request::new(prompt, short()).priority(1)).unwrap();
        };
        (0..5).for_each(|pass| flood(&mut scheduler, pass));
        let waiting = Request::new(tokens[..5].to_vec(), short()).priority(priority);
        let id = scheduler.submit(waiting).unwrap();
        let is_done_in = |pass| {
            let mut is_done = false;
            flood(&mut scheduler, pass);
            scheduler.step(|other, event| is_done |= other == id && event.is_last()).unwrap();
            is_done
        };
        assert!((0..most).any(is_done_in), "priority {priority}: not within {most} passes");
    }
}

#[test]
fn a_higher_priority_goes_first() {
    let model = model(Dtype::F32);
    let tokens = scattered_tokens(&model, 700);
    let mut scheduler = scheduler(&model, 2, SchedulerOptions::default().max_sequences(1));
    let mut submit = |priority| {
        let options = GenerateOptions::default().max_tokens(1);
        scheduler.submit(Request::new(tokens[..20].to_vec(), options).priority(priority)).unwrap()
    };
    let ids: Vec<_> = [0, -1, 1, 0, 1].map(&mut submit).into();
    let mut order = Vec::new();
    while !scheduler.is_idle() {
        scheduler.step(|id, _| order.push(id)).unwrap();
    }
    assert_eq!(order, [2, 4, 0, 3, 1].map(|index| ids[index]));
}

/// While a long prompt comes in, who has begun gets a token in every pass.
#[test]
fn running_streams_have_a_token_in_every_pass() {
    let model = model(Dtype::F32);
    let tokens = scattered_tokens(&model, 1000);
    let mut scheduler = scheduler(&model, 2, SchedulerOptions::default());
    let sampling = Sampling::default().temperature(1.5).ignore_eos(model.config());
    let stream = GenerateOptions::default().max_tokens(1010).sampling(sampling);
    let stream = scheduler.submit(Request::new(tokens[..10].to_vec(), stream)).unwrap();
    let long = GenerateOptions::default().max_tokens(1);
    scheduler.step(|_, _| {}).unwrap();
    let long = scheduler.submit(Request::new(tokens.clone(), long)).unwrap();
    let (mut passes, mut has_ended) = (0, false);
    while !has_ended {
        let mut has_token = false;
        scheduler
            .step(|id, event| {
                has_token |= id == stream;
                has_ended |= id == long && event.is_last();
            })
            .unwrap();
        assert!(has_token);
        passes += 1;
    }
    assert!((1000 / 8..=1000).contains(&passes), "{passes} passes: a few tokens of the prompt in each");
}

#[test]
fn past_the_context_a_request_goes_on_as_a_session_does() {
    let model = model(Dtype::Q8);
    let tokens = scattered_tokens(&model, 1500);
    let options = SchedulerOptions::default().overflow(Overflow::Slide).max_rows(200);
    let mut scheduler = scheduler(&model, 2, options);
    let mut requests = Vec::new();
    for len in [1500, 1020, 30] {
        let generate = GenerateOptions::default().max_tokens(20);
        let request = Request::new(tokens[..len].to_vec(), generate);
        requests.push((scheduler.submit(request.clone()).unwrap(), request));
    }
    let outcomes = run(&mut scheduler);
    let options = SessionOptions::default().threads(2).overflow(Overflow::Slide);
    for (id, request) in requests {
        let mut session = Session::new(&model, options.clone()).unwrap();
        assert_eq!(outcomes[&id], alone(&mut session, &request));
    }
}

/// What many prompts begin with is computed by one of them, also if all come at once, and kept once.
#[test]
fn a_common_beginning_is_computed_and_kept_once() {
    let model = model(Dtype::F32);
    let tokens = scattered_tokens(&model, 1000);
    let per_token = KvDtype::F32.bytes_per_token(model.config());
    let passes = |prefix_bytes: usize| {
        let options = SchedulerOptions::default().prefix_bytes(prefix_bytes);
        let mut scheduler = scheduler(&model, 2, options);
        let requests: Vec<Request> = (0..40)
            .map(|i| {
                let prompt = [&tokens[..900], &tokens[i..i + 10]].concat();
                Request::new(prompt, GenerateOptions::default().max_tokens(1))
            })
            .collect();
        let ids: Vec<_> = requests.iter().map(|request| scheduler.submit(request.clone()).unwrap()).collect();
        let (mut passes, mut firsts) = (0, BTreeMap::new());
        while !scheduler.is_idle() {
            let each = |id, event: Event| match event {
                Event::Token(token) => drop(firsts.insert(id, token.id)),
                other => panic!("{other:?}"),
            };
            scheduler.step(each).unwrap();
            passes += 1;
        }
        let firsts: Vec<u32> = ids.iter().map(|id| firsts[id]).collect();
        (passes, firsts, scheduler.prefix_bytes())
    };
    let (without, expected, none) = passes(0);
    let (with, found, kept) = passes(64 << 20);
    assert_eq!((found, none), (expected, 0));
    assert!(with * 8 <= without, "{with} passes, {without} without it");
    // 900 tokens in whole blocks, and at most as much again of what comes after them.
    assert!((850 * per_token..1100 * per_token).contains(&kept), "{kept} bytes");
}
