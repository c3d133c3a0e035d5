//! Signals, for both programs.

use std::io;

/// Calls `work` with each signal that asks a program to end, in a thread of its own: SIGINT (Ctrl-C), SIGTERM, and SIGHUP, when
/// the terminal goes. Signals that the program was started to ignore, as by `nohup`, stay ignored.
///
/// # Errors
/// If the system refuses the handlers or the thread.
#[cfg(unix)]
pub fn on_signals(work: impl Fn(i32) + Send + 'static) -> io::Result<()> {
    use std::sync::mpsc;

    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;

    let ignored = ignored_signals();
    let heard = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let mut signals = Signals::new(heard)?;
    let (begins, has_begun) = mpsc::channel::<()>();
    let work = move || {
        drop(begins);
        signals.forever().for_each(work);
    };
    std::thread::Builder::new().name("signals".into()).spawn(work)?;
    let _ = has_begun.recv(); // what is asked for next must not be the memory that it begins with
    Ok(())
}

/// The same where Ctrl-C is all there is: `work` is called with SIGINT's number.
///
/// # Errors
/// If there is a handler already, or the system refuses one.
#[cfg(not(unix))]
pub fn on_signals(work: impl Fn(i32) + Send + 'static) -> io::Result<()> {
    const INTERRUPT: i32 = 2;
    ctrlc::set_handler(move || work(INTERRUPT)).map_err(io::Error::other)
}

/// Makes a file that grows beyond a limit (`ulimit -f`) an error for whoever writes it: else the signal that says so ends the
/// program, and nobody is told why. Where the system refuses, it stays so.
pub fn outlive_file_limit() {
    #[cfg(unix)]
    {
        let heard = std::sync::Arc::<std::sync::atomic::AtomicBool>::default();
        let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, heard);
    }
}

/// The signals that the process was started to ignore, where the system tells (Linux): signal 1 is the lowest bit.
#[cfg(unix)]
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
