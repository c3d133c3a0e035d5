//! What this machine can do at most, measured, so that speeds can be compared with it.

use std::fmt;
use std::time::Instant;

use crate::error::{Error, Result};
use crate::exec::Pool;
use crate::kernels::{Kernels, LANES};
use crate::storage::AlignedBuf;

/// Iterations of multiply-adds of a measurement on each thread: some milliseconds, past which nothing starts up any more.
const ITERATIONS: usize = 1_000_000;
/// Iterations where a multiply-add is done in software, or kept from the registers by a debug build.
const ITERATIONS_WHERE_SLOW: usize = 2_000;

/// Threads and memory to measure this machine with.
///
/// A shared machine's speed changes from second to second. Measure several times, right beside what is compared.
pub struct Machine {
    kernels: Kernels,
    pool: Pool,
    buffer: AlignedBuf<f32>,
}

impl Machine {
    /// Prepares to read `bytes` bytes of memory, rounded down to whole cache lines, with `threads` threads.
    pub fn new(kernels: Kernels, threads: usize, bytes: usize) -> Result<Machine> {
        let pool = Pool::new(threads, None).map_err(|source| Error::Threads { source })?;
        let len = bytes / size_of::<f32>() / LANES * LANES;
        let out_of_memory = Error::OutOfMemory { what: "the buffer to measure with", bytes };
        let mut buffer = AlignedBuf::zeroed(len).ok_or(out_of_memory)?;
        buffer.fill(1.0); // so that each page is one of its own
        Ok(Machine { kernels, pool, buffer })
    }

    /// Reads the buffer once with all threads: bytes per second.
    pub fn read_bandwidth(&mut self) -> f64 {
        let (kernels, start) = (self.kernels, Instant::now());
        let tasks = self.pool.threads();
        self.pool.split(&mut self.buffer, LANES, tasks, |_, run| kernels.read(run));
        size_of_val(&*self.buffer) as f64 / start.elapsed().as_secs_f64()
    }

    /// Multiplies and adds in registers with all threads, for some milliseconds: floating-point operations per second, a
    /// multiply-add being two.
    pub fn fma_peak(&mut self) -> f64 {
        let (kernels, threads) = (self.kernels, self.pool.threads());
        let is_slow = kernels.name() == "scalar" || cfg!(debug_assertions);
        let iterations = if is_slow { ITERATIONS_WHERE_SLOW } else { ITERATIONS };
        let start = Instant::now();
        self.pool.run(threads, &|_, _| kernels.multiply_adds(iterations));
        (threads * iterations * Kernels::ITERATION) as f64 / start.elapsed().as_secs_f64()
    }
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine")
            .field("kernels", &self.kernels)
            .field("bytes", &size_of_val(&*self.buffer))
            .finish()
    }
}
