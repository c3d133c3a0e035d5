//! Worker threads for steps of a few microseconds: they spin briefly for the next step, then park.
//!
//! The calling thread always works too, and a step ends when its tasks are done, not when every worker has woken up to
//! see it. So a parked or preempted worker costs speed, never a wait, and a pool of one thread is just a loop.

use std::any::Any;
use std::fmt;
use std::hint::spin_loop;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{mem, ptr};

use crate::storage::AlignedBuf;

/// More iterations where `spin_loop` does not make the processor pause, in WebAssembly: one takes some nanoseconds there, and the
/// page some 100 µs between a token and the next, for which parking would cost more than it saves.
const ITERATIONS_PER_PAUSE: u32 = if cfg!(target_family = "wasm") { 60 } else { 1 };
/// Iterations that a worker spins before it parks: natively around 100 µs, longer than what lies between two steps of a token.
const SPINS_BEFORE_PARKING: u32 = 5_000 * ITERATIONS_PER_PAUSE;
/// Iterations that the caller spins for the last task before it lets other threads run.
const SPINS_BEFORE_YIELDING: u32 = 10_000 * ITERATIONS_PER_PAUSE;
/// Bytes of a worker's stack. Kernels that were not optimized need more than the usual 2 MiB: all that they unroll has
/// places of its own.
const STACK: usize = if cfg!(debug_assertions) { 8 << 20 } else { 2 << 20 };

/// Bytes that a thread needs beside its stack to begin: where there are none, neither std nor the system reports an error, but
/// either ends the process.
const BEGINNING: usize = 256 << 10;

/// What a worker thread does: it ends when its session does.
pub type Work = Box<dyn FnOnce() + Send>;

/// Starts a thread that does some work: see [`SessionOptions::spawn`](crate::SessionOptions#structfield.spawn). Clones are the
/// same function.
#[derive(Clone)]
pub struct Spawn(Arc<dyn Fn(Work) -> io::Result<()> + Send + Sync>);

impl Spawn {
    /// What `spawn` starts. It hands the work to a thread and returns at once, or says why there is no thread.
    pub fn new(spawn: impl Fn(Work) -> io::Result<()> + Send + Sync + 'static) -> Spawn {
        Spawn(Arc::new(spawn))
    }
}

impl fmt::Debug for Spawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spawn").finish_non_exhaustive()
    }
}

/// The number of the thread that calls [`Pool::run`]; the workers' are 1 and up.
const CALLER: usize = 0;

/// A fixed number of threads that share the tasks of one step at a time.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: usize,
    /// The workers that std started, and so can be waited for.
    workers: Vec<JoinHandle<()>>,
}

/// [`call`] for the type of a step's task.
type Call = unsafe fn(*const (), usize, usize);

/// Calls `task` for an index below the number of tasks, with the number of the thread that calls it.
///
/// # Safety
/// `task` points to a living `F`.
unsafe fn call<F: Fn(usize, usize) + Sync>(task: *const (), index: usize, thread: usize) {
    // SAFETY: the contract above.
    unsafe { (*task.cast::<F>())(index, thread) }
}

/// A thread's share of the current step.
#[derive(Default)]
struct Share {
    /// How many of its tasks nobody has claimed yet.
    left: AtomicUsize,
    /// A [`Call`]. This and what follows is the step, the same for all threads. So one cache line tells a thread all of it: a line
    /// that another core wrote takes long to come. Only a thread that has claimed a task reads it, which keeps the step alive.
    call: AtomicPtr<()>,
    task: AtomicPtr<()>,
    tasks: AtomicUsize,
    /// What [`memory_size`] was where the step was published.
    memory_size: AtomicUsize,
}

/// A value on cache lines of its own: who writes another one does not take it away. (Processors fetch lines in pairs.)
#[repr(align(128))]
struct Apart<T>(T);

struct Shared {
    /// Of each thread. It works on its own share first, whose tasks lie one after the other in memory, and then on what is left
    /// of others'.
    shares: Box<[Apart<Share>]>,
    /// Tasks of the current step that have ended.
    done: Apart<AtomicUsize>,
    /// Workers that are parked or about to be.
    parked: AtomicUsize,
    stop: AtomicBool,
    lock: Mutex<()>,
    wake: Condvar,
    /// What the first task that panicked in this step said.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Pool {
    /// A pool of `threads` threads, the caller's included; the others are started by `spawn`, or else by std.
    pub(crate) fn new(threads: usize, spawn: Option<Spawn>) -> io::Result<Pool> {
        let shared = Arc::new(Shared {
            shares: (0..threads).map(|_| Apart(Share::default())).collect(),
            done: Apart(AtomicUsize::new(0)),
            parked: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            lock: Mutex::new(()),
            wake: Condvar::new(),
            panic: Mutex::new(None),
        });
        let mut pool = Pool { shared, threads: 1, workers: Vec::new() };
        let (begins, has_begun) = mpsc::channel::<()>();
        while pool.threads < threads {
            let (shared, number) = (Arc::clone(&pool.shared), pool.threads);
            let work = move || shared.work(number);
            match &spawn {
                Some(Spawn(spawn)) => spawn(Box::new(work))?,
                None => {
                    if AlignedBuf::<u8>::zeroed_in_large_pages(STACK + BEGINNING).is_none() {
                        return Err(io::ErrorKind::OutOfMemory.into());
                    }
                    let worker = thread::Builder::new().name(format!("smolrun-{number}")).stack_size(STACK);
                    let begins = begins.clone();
                    let work = move || {
                        drop(begins);
                        work();
                    };
                    pool.workers.push(worker.spawn(work)?);
                }
            }
            pool.threads += 1;
        }
        // What is asked for next must not be the memory that they begin with.
        drop(begins);
        let _ = has_begun.recv(); // nothing comes: it ends when the last one has dropped its end
        Ok(pool)
    }

    /// Threads that work on a step, the caller's included.
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Calls `task` once for each index below `tasks`, on all threads, and returns when all calls have ended. The second
    /// argument is the number of the calling thread, below [`Pool::threads`].
    ///
    /// A task should own what it captures (`move`): each reference to the caller's stack is one more cache line that workers wait
    /// for.
    ///
    /// `&mut self`: there is one step at a time.
    pub(crate) fn run<F: Fn(usize, usize) + Sync>(&mut self, tasks: usize, task: &F) {
        if self.threads == 1 || tasks < 2 {
            return (0..tasks).for_each(|index| task(index, CALLER));
        }
        self.shared.publish(call::<F>, ptr::from_ref(task).cast(), tasks);
        self.shared.help(CALLER);
        self.shared.wait_for_end(tasks);
        let panic = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Splits `data`, a number of units of `unit` elements, into at most `tasks` runs of whole units, as equal as can
    /// be, and calls `f(first unit, run)` for each.
    pub(crate) fn split<T: Send>(
        &mut self,
        data: &mut [T],
        unit: usize,
        tasks: usize,
        f: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let mut nothing = vec![(); self.threads()]; // takes no memory
        self.split_with(data, unit, tasks, &mut nothing, move |first, run, ()| f(first, run));
    }

    /// [`Pool::split`] with a state for each thread: `f(first unit, run, the calling thread's state)`.
    pub(crate) fn split_with<T: Send, S: Send>(
        &mut self,
        data: &mut [T],
        unit: usize,
        tasks: usize,
        states: &mut [S],
        f: impl Fn(usize, &mut [T], &mut S) + Sync,
    ) {
        let units = data.len() / unit;
        assert!(data.len() == units * unit, "whole units");
        assert!(states.len() >= self.threads(), "a state for each thread");
        let tasks = tasks.clamp(1, units.max(1));
        let (data, states) = (Base(data.as_mut_ptr()), Base(states.as_mut_ptr()));
        self.run(tasks, &move |task, thread| {
            let (first, end) = (units * task / tasks, units * (task + 1) / tasks);
            // SAFETY: `first <= end <= units` and each unit lies in one task's run only: the runs are disjoint pieces
            // of `data`, which stays exclusively borrowed until `run` returns, after the last task has ended.
            let run = unsafe { data.run(first, end, unit) };
            // SAFETY: `thread` is below `threads()`, no two threads have the same number, and a thread runs one task
            // at a time: its state is its own until the task ends.
            let state = unsafe { states.run(thread, thread + 1, 1) };
            f(first, run, &mut state[0]);
        });
    }

    /// Cuts `data` into runs that end where `ends` says, one after the other, and calls `f(index, run, the calling
    /// thread's state)` for each.
    pub(crate) fn split_at<T: Send, S: Send>(
        &mut self,
        data: &mut [T],
        ends: &[usize],
        states: &mut [S],
        f: impl Fn(usize, &mut [T], &mut S) + Sync,
    ) {
        assert!(
            ends.is_sorted() && ends.last().is_none_or(|&end| end <= data.len()),
            "runs inside of the data"
        );
        assert!(states.len() >= self.threads(), "a state for each thread");
        let (data, states) = (Base(data.as_mut_ptr()), Base(states.as_mut_ptr()));
        self.run(ends.len(), &move |index, thread| {
            let start = if index == 0 { 0 } else { ends[index - 1] };
            // SAFETY: `ends` ascend and lie inside `data`, and each run lies between two of them: the runs are disjoint
            // pieces of `data`, which stays exclusively borrowed until `run` returns, after the last task has ended.
            let run = unsafe { data.run(start, ends[index], 1) };
            // SAFETY: as in `split_with`.
            let state = unsafe { states.run(thread, thread + 1, 1) };
            f(index, run, &mut state[0]);
        });
    }

    /// Splits columns, a number of units of `unit` of them, as [`Pool::split_with`] does: `f(first unit, columns, the calling
    /// thread's state)`.
    pub(crate) fn split_columns<T: Send + Sync, S: Send>(
        &mut self,
        columns: Columns<'_, T>,
        unit: usize,
        tasks: usize,
        states: &mut [S],
        f: impl Fn(usize, Columns<'_, T>, &mut S) + Sync,
    ) {
        let units = columns.own.len() / unit;
        assert!(columns.own.len() == units * unit, "whole units");
        assert!(states.len() >= self.threads(), "a state for each thread");
        let tasks = tasks.clamp(1, units.max(1));
        let states = Base(states.as_mut_ptr());
        self.run(tasks, &move |task, thread| {
            let (first, end) = (units * task / tasks, units * (task + 1) / tasks);
            // SAFETY: `first <= end <= units` and each unit lies in one task's columns only, and the columns stay exclusively
            // borrowed until `run` returns, after the last task has ended.
            let columns = unsafe { columns.part(first * unit..end * unit) };
            // SAFETY: as in `split_with`.
            let state = unsafe { states.run(thread, thread + 1, 1) };
            f(first, columns, &mut state[0]);
        });
    }

    /// Cuts `items`, and columns, into runs that end where `ends` says, `[item, column]`, one after the other, and calls
    /// `f(index, items, columns, the calling thread's state)` for each.
    pub(crate) fn split_items_and_columns<I: Send, T: Send + Sync, S: Send>(
        &mut self,
        items: &mut [I],
        columns: Columns<'_, T>,
        ends: &[[usize; 2]],
        states: &mut [S],
        f: impl Fn(usize, &mut [I], Columns<'_, T>, &mut S) + Sync,
    ) {
        let [items_end, columns_end] = ends.last().copied().unwrap_or_default();
        assert!(ends.is_sorted_by(|a, b| a[0] <= b[0] && a[1] <= b[1]), "runs one after the other");
        assert!(items_end <= items.len() && columns_end <= columns.own.len(), "runs inside of the data");
        assert!(states.len() >= self.threads(), "a state for each thread");
        let (items, states) = (Base(items.as_mut_ptr()), Base(states.as_mut_ptr()));
        self.run(ends.len(), &move |index, thread| {
            let start = if index == 0 { [0; 2] } else { ends[index - 1] };
            let end = ends[index];
            // SAFETY: `ends` ascend and lie inside `items` and the columns, and each run lies between two of them: the runs are
            // disjoint. Both stay exclusively borrowed until `run` returns, after the last task has ended.
            let (items, columns) =
                unsafe { (items.run(start[0], end[0], 1), columns.part(start[1]..end[1])) };
            // SAFETY: as in `split_with`.
            let state = unsafe { states.run(thread, thread + 1, 1) };
            f(index, items, columns, &mut state[0]);
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        self.shared.wake_parked();
        for worker in self.workers.drain(..) {
            let _ = worker.join(); // a worker catches what its tasks throw, so there is nothing to learn here
        }
    }
}

impl Shared {
    /// Makes these tasks the current step and wakes who is parked. The step before has ended: no thread uses it.
    fn publish(&self, call: Call, task: *const (), tasks: usize) {
        self.done.0.store(0, Relaxed);
        for (owner, Apart(share)) in self.shares.iter().enumerate() {
            share.call.store(call as *mut (), Relaxed);
            share.task.store(task.cast_mut(), Relaxed);
            share.tasks.store(tasks, Relaxed);
            share.memory_size.store(memory_size(), Relaxed);
            share.left.store(self.share_of(owner, tasks).len(), Release);
        }
        // With `parked` in `wake_parked` and `park`: either this thread sees the worker that is about to park, or that
        // worker sees its share.
        fence(SeqCst);
        self.wake_parked();
    }

    /// The tasks of a step of `tasks` that are meant for thread `owner`.
    fn share_of(&self, owner: usize, tasks: usize) -> Range<usize> {
        let threads = self.shares.len();
        tasks * owner / threads..tasks * (owner + 1) / threads
    }

    /// Works on the current step, as thread `thread`, until none of its tasks is left to claim.
    fn help(&self, thread: usize) {
        for owner in (thread..self.shares.len()).chain(0..thread) {
            let share = &self.shares[owner].0;
            let mut ended = 0;
            let claim = |left: usize| left.checked_sub(1);
            while let Ok(left) = share.left.fetch_update(Acquire, Acquire, claim) {
                self.run_task(owner, left, thread);
                ended += 1;
            }
            if ended > 0 {
                self.done.0.fetch_add(ended, Release);
            }
        }
    }

    /// Runs the claimed task of the current step: the one of `owner`'s share with `left` unclaimed ones from itself on.
    fn run_task(&self, owner: usize, left: usize, thread: usize) {
        let Apart(Share { call, task, tasks, memory_size, .. }) = &self.shares[owner];
        learn_of_growth(memory_size.load(Relaxed));
        let (task, tasks) = (task.load(Relaxed).cast_const(), tasks.load(Relaxed));
        // SAFETY: `publish` stored a function there, and the claim's Acquire saw that.
        let call: Call = unsafe { mem::transmute(call.load(Relaxed)) };
        let index = self.share_of(owner, tasks).end - left;
        // SAFETY: the caller has claimed a task of the current step and not said that it ended, so `Pool::run` is still
        // waiting in `wait_for_end` and has the task borrowed, of the type that `call` was made for.
        let run = || unsafe { call(task, index, thread) };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
    }

    fn wait_for_end(&self, tasks: usize) {
        let mut spins = 0;
        while self.done.0.load(Acquire) != tasks {
            spins += 1;
            if spins < SPINS_BEFORE_YIELDING { spin_loop() } else { yield_now() }
        }
    }

    /// A worker's life.
    fn work(&self, thread: usize) {
        let left = &self.shares[thread].0.left;
        let is_idle = || left.load(SeqCst) == 0 && !self.stop.load(SeqCst);
        while !self.stop.load(SeqCst) {
            self.help(thread);
            let mut spins = 0;
            while is_idle() {
                spins += 1;
                if spins < SPINS_BEFORE_PARKING { spin_loop() } else { self.park(&is_idle) }
            }
        }
    }

    fn park(&self, is_idle: &dyn Fn() -> bool) {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.parked.fetch_add(1, SeqCst);
        while is_idle() {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.parked.fetch_sub(1, SeqCst);
    }

    fn wake_parked(&self) {
        if self.parked.load(SeqCst) > 0 {
            let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.wake.notify_all();
        }
    }
}

/// In WebAssembly, the pages of memory that this thread knows of.
fn memory_size() -> usize {
    #[cfg(target_arch = "wasm32")]
    return std::arch::wasm32::memory_size::<0>();
    #[cfg(not(target_arch = "wasm32"))]
    0
}

/// Tells this thread of all memory, if another knows of more. V8 up to September 2026 checks some accesses against what
/// the thread knew when it last looked, and a thread that spins does not look. Copies, and atomics in code that is not
/// yet optimized, would trap. (V8's issues 529880019 and 533026477)
fn learn_of_growth(size: usize) {
    #[cfg(target_arch = "wasm32")]
    if memory_size() < size {
        std::arch::wasm32::memory_grow::<0>(0);
    }
    #[cfg(not(target_arch = "wasm32"))]
    let _ = size;
}

/// Lets other threads run.
fn yield_now() {
    // WebAssembly can only wait: its `yield_now` returns at once.
    if cfg!(target_family = "wasm") { thread::sleep(Duration::from_micros(50)) } else { thread::yield_now() }
}

/// The start of a slice that several threads write disjoint runs of.
struct Base<T>(*mut T);

// SAFETY: a `Base` only hands out disjoint runs (the contract of `run`), which may be sent to threads when `T` may.
unsafe impl<T: Send> Sync for Base<T> {}

impl<T> Base<T> {
    /// The units `first..end` of `unit` elements.
    ///
    /// # Safety
    /// They lie inside the slice, which is exclusively borrowed for `'a`, and no other call's units overlap them.
    #[allow(clippy::mut_from_ref)] // the contract above is what makes the slices exclusive
    unsafe fn run<'a>(&self, first: usize, end: usize, unit: usize) -> &'a mut [T] {
        // SAFETY: inside the slice, initialized and exclusive by the contract above.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(first * unit), (end - first) * unit) }
    }
}

/// Some columns of a matrix that lies row by row.
pub(crate) struct Columns<'a, T> {
    matrix: Base<T>,
    rows: usize,
    /// Of the matrix.
    columns: usize,
    /// Ascending, up to `columns`.
    own: Range<usize>,
    /// These columns are exclusively borrowed.
    borrow: PhantomData<&'a mut [T]>,
}

impl<'a, T> Columns<'a, T> {
    /// All of a matrix, whole rows of so many columns.
    pub(crate) fn new(matrix: &'a mut [T], columns: usize) -> Columns<'a, T> {
        assert!(columns > 0 && matrix.len().is_multiple_of(columns), "whole rows");
        let rows = matrix.len() / columns;
        Columns { matrix: Base(matrix.as_mut_ptr()), rows, columns, own: 0..columns, borrow: PhantomData }
    }

    /// How many rows the matrix has.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// How many columns these are.
    pub(crate) fn count(&self) -> usize {
        self.own.len()
    }

    /// So many of the columns from the `first` on.
    pub(crate) fn slice(&mut self, first: usize, count: usize) -> Columns<'_, T> {
        assert!(first <= self.count() && count <= self.count() - first, "some of the columns");
        // SAFETY: the part lies inside, and borrows `self` exclusively.
        unsafe { self.part(first..first + count) }
    }

    /// These columns of a row.
    pub(crate) fn row(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows, "a row of the matrix");
        let first = row * self.columns;
        // SAFETY: `row` and the columns lie inside the matrix, and these columns are exclusively borrowed. The run borrows
        // `self`, so there is one at a time.
        unsafe { self.matrix.run(first + self.own.start, first + self.own.end, 1) }
    }

    /// Some of the columns.
    ///
    /// # Safety
    /// They lie inside of these, and nobody else uses them during `'p`, in which these are exclusively borrowed.
    unsafe fn part<'p>(&self, part: Range<usize>) -> Columns<'p, T> {
        let own = self.own.start + part.start..self.own.start + part.end;
        let (matrix, rows, columns) = (Base(self.matrix.0), self.rows, self.columns);
        Columns { matrix, rows, columns, own, borrow: PhantomData }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_in_every_step() {
        for threads in [1, 2, 3, 8] {
            let mut pool = Pool::new(threads, None).unwrap();
            assert_eq!(pool.threads(), threads);
            for step in 0..2_000 {
                let counts: Vec<_> = (0..step % 40).map(|_| AtomicUsize::new(0)).collect();
                pool.run(counts.len(), &|i, _| {
                    counts[i].fetch_add(1, Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Relaxed) == 1));
            }
        }
    }

    #[test]
    fn parked_workers_wake_up() {
        let mut pool = Pool::new(2, None).unwrap();
        for _ in 0..5 {
            thread::sleep(Duration::from_millis(5));
            // Both tasks must be running at once for either to end.
            let met = AtomicUsize::new(0);
            pool.run(2, &|_, _| {
                met.fetch_add(1, SeqCst);
                while met.load(SeqCst) < 2 {
                    thread::yield_now();
                }
            });
        }
    }

    #[test]
    fn what_is_left_of_a_share_is_done_by_others() {
        for held_up in [0, 4] {
            let mut pool = Pool::new(2, None).unwrap();
            let ended = AtomicUsize::new(0);
            // The first task of a share waits for all others, those of the same share included.
            pool.run(8, &|index, _| {
                while index == held_up && ended.load(SeqCst) < 7 {
                    thread::yield_now();
                }
                ended.fetch_add(1, SeqCst);
            });
        }
    }

    #[test]
    fn threads_that_another_starts_work_and_end() {
        static RUNNING: AtomicUsize = AtomicUsize::new(0);
        let spawn = Spawn::new(|work| {
            RUNNING.fetch_add(1, SeqCst);
            thread::Builder::new().spawn(|| {
                work();
                RUNNING.fetch_sub(1, SeqCst);
            })?;
            Ok(())
        });
        let mut pool = Pool::new(3, Some(spawn)).unwrap();
        assert_eq!(pool.threads(), 3);
        let met = AtomicUsize::new(0);
        pool.run(3, &|_, _| {
            met.fetch_add(1, SeqCst);
            while met.load(SeqCst) < 3 {
                thread::yield_now();
            }
        });
        assert_eq!(RUNNING.load(SeqCst), 2);
        drop(pool);
        while RUNNING.load(SeqCst) > 0 {
            thread::yield_now();
        }
    }

    #[test]
    fn threads_that_never_start_cost_no_result() {
        let not_started: Arc<Mutex<Vec<Work>>> = Arc::default();
        let kept = Arc::clone(&not_started);
        let keep = Spawn::new(move |work| {
            kept.lock().unwrap().push(work);
            Ok(())
        });
        let mut pool = Pool::new(3, Some(keep)).unwrap();
        let mut data = vec![1; 30];
        pool.split(&mut data, 1, 30, |_, run| run[0] += 1);
        assert_eq!(data, [2; 30]);
        drop(pool);
        not_started.lock().unwrap().drain(..).for_each(|work| work()); // too late, and at an end at once
        let refused = Pool::new(2, Some(Spawn::new(|_| Err(io::ErrorKind::Unsupported.into()))));
        assert_eq!(refused.err().unwrap().kind(), io::ErrorKind::Unsupported);
    }

    #[test]
    fn splits_are_disjoint_whole_and_in_place() {
        let mut pool = Pool::new(3, None).unwrap();
        for units in [0usize, 1, 2, 7, 36] {
            for tasks in [1, 2, 5, 100] {
                let (mut data, mut counts) = (vec![0; units * 3], [0; 3]);
                pool.split_with(&mut data, 3, tasks, &mut counts, |first, run, count| {
                    run.iter_mut().zip(first * 3..).for_each(|(x, i)| *x += i);
                    *count += run.len();
                });
                assert!(data.iter().enumerate().all(|(i, &x)| x == i));
                assert_eq!(counts.iter().sum::<usize>(), data.len());
            }
        }
    }

    #[test]
    fn columns_are_disjoint_whole_and_in_place() {
        const ROWS: usize = 4;
        let mut pool = Pool::new(3, None).unwrap();
        for (columns, unit, tasks) in [(0usize, 1, 3), (1, 1, 5), (7, 1, 3), (36, 4, 5), (36, 4, 100)] {
            let (mut matrix, mut counts) = (vec![0; ROWS * (columns + 2)], [0; 3]);
            let mut all = Columns::new(&mut matrix, columns + 2);
            pool.split_columns(all.slice(1, columns), unit, tasks, &mut counts, |first, mut own, count| {
                let add = |row: usize, run: &mut [usize]| {
                    run.iter_mut().zip(first * unit..).for_each(|(x, i)| *x += 100 * (row + 1) + i);
                };
                (0..own.rows()).for_each(|row| add(row, own.row(row)));
                *count += own.count();
            });
            let wanted =
                |row: usize, i: usize| if (1..=columns).contains(&i) { 100 * (row + 1) + i - 1 } else { 0 };
            let is_right = |(i, &x): (usize, &usize)| x == wanted(i / (columns + 2), i % (columns + 2));
            assert!(matrix.iter().enumerate().all(is_right));
            assert_eq!(counts.iter().sum::<usize>(), columns);
        }
    }

    #[test]
    fn items_and_columns_are_cut_where_it_was_said() {
        const ROWS: usize = 4;
        let mut pool = Pool::new(3, None).unwrap();
        for ends in
            [vec![], vec![[0, 1]], vec![[2, 1], [2, 1], [3, 7]], vec![[1, 3], [2, 4], [3, 5], [9, 11]]]
        {
            let [items, columns] = ends.last().copied().unwrap_or([0, 1]);
            let (mut all, mut matrix, mut counts) = (vec![0; items], vec![0; ROWS * columns], [0; 3]);
            let whole = Columns::new(&mut matrix, columns);
            pool.split_items_and_columns(
                &mut all,
                whole,
                &ends,
                &mut counts,
                |index, items, mut own, count| {
                    items.iter_mut().for_each(|item| *item += index + 1);
                    (0..ROWS)
                        .for_each(|row| own.row(row).iter_mut().for_each(|x| *x += 10 * row + index + 1));
                    *count += items.len();
                },
            );
            let task = |kind: usize, place: usize| ends.partition_point(|end| end[kind] <= place) + 1;
            assert!(all.iter().enumerate().all(|(item, &x)| x == task(0, item)));
            let wanted = |i: usize| 10 * (i / columns) + task(1, i % columns);
            assert!(ends.is_empty() || matrix.iter().enumerate().all(|(i, &x)| x == wanted(i)));
            assert_eq!(counts.iter().sum::<usize>(), items);
        }
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller_and_the_pool_lives_on() {
        let mut pool = Pool::new(2, None).unwrap();
        let step = catch_unwind(AssertUnwindSafe(|| pool.run(8, &|i, _| assert_ne!(i, 5, "the fifth"))));
        assert!(step.is_err());
        let calls = AtomicUsize::new(0);
        pool.run(8, &|_, _| {
            calls.fetch_add(1, Relaxed);
        });
        assert_eq!(calls.load(Relaxed), 8);
    }
}
