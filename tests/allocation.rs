//! What is allocated while a model runs: nothing for a token, but the text that is returned.
//!
//! The count is of all threads that work for a session, so that the tests take turns.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use smol_tests::common::counting::alone;
use smol_tests::common::{REAL, TALES, blob_of, scattered_tokens};
use smolrun::engine::{Engine, EngineOptions, Rows, Sequence};
use smolrun::format::Dtype;
use smolrun::scheduler::{Event, Request, Scheduler, SchedulerOptions};
use smolrun::threads::Work;
use smolrun::{GenerateOptions, Kernels, KvDtype, Model, Overflow, Sampling, Session, SessionOptions};

/// Positions of a block of the KV cache.
const BLOCK: usize = 64;
/// Most allocations of a token that opens one: the block and its count of owners, the list of blocks, that of tokens,
/// and room for scores.
const BLOCK_COSTS: usize = 5;

/// The system's memory, with a count of how often it is asked for some.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Whether the thread works for a session. The test harness has threads, too.
    static IS_COUNTED: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    if IS_COUNTED.get() {
        ALLOCATIONS.fetch_add(1, SeqCst);
    }
}

// SAFETY: every call goes on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the same promises to this call.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above; the memory came from there.
        unsafe { System.realloc(start, layout, size) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often `work` asks for memory.
fn allocations(work: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.load(SeqCst);
    IS_COUNTED.set(true);
    work();
    IS_COUNTED.set(false);
    ALLOCATIONS.load(SeqCst) - before
}

/// Calls `run` with a session of each kind that takes another way through the kernels or the cache.
fn each_session(run: impl Fn(&str, Session)) {
    for dtype in [Dtype::F32, Dtype::Q4] {
        let model = Model::open(blob_of(TALES, dtype)).unwrap();
        for threads in [1, 2] {
            for kv in [KvDtype::F32, KvDtype::F16] {
                let options = SessionOptions::default().threads(threads).kv_dtype(kv);
                let name = format!("{}, {threads} threads, {kv:?} keys and values", dtype.name());
                run(&name, Session::new(&model, options.spawn(counted)).unwrap());
            }
        }
    }
}

/// Starts a thread that is counted from when it runs: to start it takes memory, which a busy machine may do late.
fn counted(work: Work) -> io::Result<()> {
    let run = || {
        IS_COUNTED.set(true);
        work();
    };
    thread::Builder::new().spawn(run).map(drop)
}

#[test]
fn tokens_allocate_nothing_but_the_blocks_of_the_cache() {
    let _alone = alone();
    each_session(|name, mut session| {
        let tokens = scattered_tokens(session.model(), 512);
        // Less than one step of the room for scores, and more.
        for first in [40, 257] {
            session.feed(&tokens[session.position()..first]).unwrap();
            session.feed(&tokens[first..first + 1]).unwrap(); // the first single one
            for at in first + 1..first + 201 {
                let found = allocations(|| _ = session.feed(&tokens[at..=at]).unwrap());
                let most = if at.is_multiple_of(BLOCK) { BLOCK_COSTS } else { 0 };
                assert!(found <= most, "{name}, at {at}: {found} allocations");
            }
        }
        assert_eq!(session.position(), 458);
    });
}

#[test]
fn a_prompt_of_a_known_size_allocates_nothing() {
    let _alone = alone();
    each_session(|name, mut session| {
        let tokens = scattered_tokens(session.model(), 300);
        session.feed(&tokens).unwrap(); // two passes, and two blocks of the cache
        for size in [300, 256, 100, 2] {
            session.truncate(0);
            let found = allocations(|| _ = session.feed(&tokens[..size]).unwrap());
            assert_eq!(found, 0, "{name}, {size} tokens");
        }
        // Elsewhere in the same blocks, and with every token's logits.
        session.truncate(7);
        let found = allocations(|| _ = session.feed(&tokens[7..207]).unwrap());
        assert_eq!(found, 0, "{name}, from position 7 on");
        session.feed_all(&tokens[207..240], |_, _| ()).unwrap();
        let found = allocations(|| session.feed_all(&tokens[240..273], |_, _| ()).unwrap());
        assert_eq!(found, 0, "{name}, all logits");
    });
}

#[test]
fn a_fast_prompt_goes_on_in_the_same_blocks_without_memory() {
    let _alone = alone();
    let model = Model::open(blob_of(TALES, Dtype::Q4)).unwrap();
    let scalar = Kernels::named("scalar").unwrap(); // which rounds on every machine
    let options = SessionOptions::default().kernels(scalar).threads(2).fast(true);
    let mut session = Session::new(&model, options.spawn(counted)).unwrap();
    let tokens = scattered_tokens(&model, 128);
    session.feed(&tokens[..70]).unwrap(); // two blocks
    for first in [70, 96] {
        session.truncate(first);
        let found = allocations(|| _ = session.feed(&tokens[first..first + 32]).unwrap());
        assert_eq!(found, 0, "from position {first} on");
    }
}

#[test]
fn a_generated_token_allocates_its_text_alone() {
    let _alone = alone();
    let greedy = GenerateOptions::default().max_tokens(200);
    let sampling = Sampling::default().temperature(0.8).top_k(40).top_p(0.9).repetition_penalty(1.1);
    let drawn = greedy.clone().sampling(sampling.seed(1));
    // Text that may yet become a stop string is kept apart, for which it is copied.
    let stopped = greedy.clone().stop(["no tale has these words"]);
    for (options, most) in [(greedy, 1), (drawn, 1), (stopped, 2)] {
        each_session(|name, mut session| {
            let options = options.clone();
            let sampling = options.sampling.clone().ignore_eos(session.model().config());
            let prompt = session.model().encode_prompt("Once upon a time").unwrap();
            let mut tokens = session.generate(&prompt, options.sampling(sampling)).unwrap();
            // With these the buffers have grown.
            tokens.by_ref().take(20).for_each(|token| drop(token.unwrap()));
            for number in 20..199 {
                let mut token = None;
                let found = allocations(|| token = tokens.next());
                let token = token.unwrap().unwrap();
                let opens_block = (prompt.len() + number - 1).is_multiple_of(BLOCK);
                let most = if opens_block { most + BLOCK_COSTS } else { most };
                assert!(found <= most, "{name}, {number}: {found} allocations for {:?}", token.text);
            }
        });
    }
}

#[test]
fn a_running_batch_allocates_nothing() {
    let _alone = alone();
    for (dtype, kv_dtype, threads) in
        [(Dtype::F32, KvDtype::F32, 1), (Dtype::Q4, KvDtype::F16, 2), (Dtype::Bf16, KvDtype::Q8, 3)]
    {
        let model = Model::open(blob_of(TALES, dtype)).unwrap();
        let options = EngineOptions::default().threads(threads).spawn(counted);
        let mut engine = Engine::new(&model, options).unwrap();
        let tokens = scattered_tokens(&model, 128);
        let new = |_| engine.sequence(Some(kv_dtype), Overflow::Stop).unwrap();
        let mut sequences: Vec<Sequence> = (0..12).map(new).collect();
        // One pass over tokens of all, of which the last three take chunks.
        let mut pass = |sequences: &mut [Sequence], single: usize, chunk: usize| {
            let batch = sequences.iter_mut().enumerate().map(|(index, sequence)| {
                let count = if index < 9 { single } else { chunk };
                let tokens = &tokens[sequence.position()..][..count];
                Rows { sequence, tokens, wants_logits: index != 10 }
            });
            let mut batch: Vec<_> = batch.collect();
            let found = allocations(|| engine.pass(&mut batch).unwrap());
            assert_eq!(engine.logits(0).len(), model.config().vocab_size);
            found
        };
        pass(&mut sequences, 20, 20); // 240 rows: more than any later pass has
        pass(&mut sequences, 1, 3);
        for number in 0..10 {
            let found = pass(&mut sequences, 1, 3);
            assert_eq!(found, 0, "{}, {threads} threads, pass {number}", dtype.name());
        }
        assert!(sequences.iter().all(|sequence| sequence.position() < BLOCK));
    }
}

/// Of many requests in one pass, each token that comes out allocates its text, and nothing else is allocated, but where
/// sequences begin a KV block.
#[test]
fn a_running_batch_allocates_what_it_hands_out() {
    let _alone = alone();
    let drawn = Sampling::default().temperature(0.8).top_k(40).top_p(0.9).repetition_penalty(1.1);
    for dtype in [Dtype::F32, Dtype::Q4] {
        let model = Model::open(blob_of(TALES, dtype)).unwrap();
        let tokens = scattered_tokens(&model, 400);
        for threads in [1, 2] {
            let options = EngineOptions::default().threads(threads).spawn(counted);
            let engine = Engine::new(&model, options).unwrap();
            let mut scheduler = Scheduler::new(engine, SchedulerOptions::default()).unwrap();
            for i in 0..8 {
                let sampling = if i % 2 == 0 { Sampling::default() } else { drawn.clone().seed(i) };
                let options =
                    GenerateOptions::default().max_tokens(200).sampling(sampling.ignore_eos(model.config()));
                let prompt = tokens[i as usize * 40..][..20].to_vec();
                scheduler.submit(Request::new(prompt, options)).unwrap();
            }
            let (mut passes, mut checked) = (0, 0);
            while !scheduler.is_idle() && passes < 199 {
                let (mut texts, mut count) = (0, 0);
                let found = allocations(|| {
                    let each = |_, event| {
                        if let Event::Token(token) = &event {
                            texts += usize::from(token.text.capacity() > 0);
                            count += 1;
                        }
                    };
                    scheduler.step(each).unwrap();
                });
                passes += 1;
                // The first passes make buffers grow; and after the prompt's 20 tokens and so many others a block is full.
                if passes > 20 && (20 + passes - 2) % BLOCK != 0 {
                    assert_eq!(count, 8);
                    assert!(found <= texts, "{}, {threads} threads, pass {passes}: {found}", dtype.name());
                    checked += 1;
                }
            }
            assert!(checked > 150);
        }
    }
}

/// Memory of this process that no file backs, in bytes.
#[cfg(target_os = "linux")]
fn anonymous_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
#[cfg(target_os = "linux")]
#[ignore = "needs the real model: scripts/fetch_model.sh smollm2-135m-instruct"]
fn smollm2_135m_has_64_sequences_of_100_tokens_in_6_mb_each() {
    let _alone = alone();
    // What keys and values take does not depend on the weights.
    let model = Model::open(blob_of(REAL, Dtype::Q8)).unwrap();
    let tokens = scattered_tokens(&model, 100);
    // Fewer say as much of the smaller ones.
    for (kv_dtype, count, each) in [(KvDtype::F32, 64, 6_000_000), (KvDtype::F16, 16, 3_000_000)] {
        let most = count * each;
        let before = anonymous_memory();
        let mut engine = Engine::new(&model, EngineOptions::default()).unwrap();
        let sequence = |_| {
            let mut sequence = engine.sequence(Some(kv_dtype), Overflow::Stop).unwrap();
            engine
                .pass(&mut [Rows { sequence: &mut sequence, tokens: &tokens, wants_logits: true }])
                .unwrap();
            sequence
        };
        let sequences: Vec<_> = (0..count).map(sequence).collect();
        let (bytes, grown) =
            (sequences.iter().map(Sequence::kv_bytes).sum::<usize>(), anonymous_memory() - before);
        eprintln!("{kv_dtype:?}: {bytes} bytes of keys and values, {grown} of memory");
        assert!(bytes <= most, "{kv_dtype:?}: {bytes} bytes");
        assert!(grown <= most as u64 + 32_000_000, "{kv_dtype:?}: {grown} bytes, with scratch");
    }
}
