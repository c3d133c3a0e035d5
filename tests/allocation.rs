//! What is allocated while a model runs: nothing for a token, but the text that is returned.
//!
//! The count is of all threads that work for a session, so that the tests take turns.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use smol_tests::common::counting::alone;
use smol_tests::common::{TALES, blob_of, scattered_tokens};
use smolrun::format::Dtype;
use smolrun::{GenerateOptions, KvDtype, Model, Sampling, Session, SessionOptions};

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
                run(&name, session(&model, options));
            }
        }
    }
}

/// A session whose threads are counted from when they run: to start one takes memory, which a busy machine may do late.
fn session(model: &Model, options: SessionOptions) -> Session {
    let options = options.spawn(|work| {
        let run = || {
            IS_COUNTED.set(true);
            work();
        };
        thread::Builder::new().spawn(run).map(drop)
    });
    Session::new(model, options).unwrap()
}

#[test]
fn tokens_inside_a_block_of_the_cache_allocate_nothing() {
    let _alone = alone();
    each_session(|name, mut session| {
        let tokens = scattered_tokens(session.model(), 512);
        // In the first block after a prompt, and in the second, which a token opens.
        for first in [40, 257] {
            session.feed(&tokens[session.position()..first]).unwrap();
            session.feed(&tokens[first..first + 1]).unwrap(); // the first single one
            let found = allocations(|| {
                for token in &tokens[first + 1..first + 201] {
                    session.feed(&[*token]).unwrap();
                }
            });
            assert_eq!(found, 0, "{name}, from {first} on");
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
fn a_generated_token_allocates_its_text_alone() {
    let _alone = alone();
    let greedy = GenerateOptions::default().max_tokens(200);
    let sampling = Sampling::default().temperature(0.8).top_k(40).top_p(0.9).repetition_penalty(1.1);
    let drawn = greedy.clone().sampling(sampling.seed(1));
    // Text that may yet become a stop string is kept apart, for which it is copied.
    let stopped = greedy.clone().stop(["no tale has these words"]);
    for (options, most) in [(greedy, 1), (drawn, 1), (stopped, 2)] {
        each_session(|name, mut session| {
            let eos = session.model().config().eos_token_ids.iter().map(|&id| (id, f32::NEG_INFINITY));
            let options = options.clone();
            let sampling = options.sampling.clone().logit_bias(eos);
            let prompt = session.model().encode_prompt("Once upon a time").unwrap();
            let mut tokens = session.generate(&prompt, options.sampling(sampling)).unwrap();
            // With these the buffers have grown.
            tokens.by_ref().take(20).for_each(|token| drop(token.unwrap()));
            for number in 20..199 {
                let mut token = None;
                let found = allocations(|| token = tokens.next());
                let token = token.unwrap().unwrap();
                assert!(found <= most, "{name}, {number}: {found} allocations for {:?}", token.text);
            }
        });
    }
}
