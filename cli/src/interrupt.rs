//! Signals. The first ends what is being generated, the second the program.
//!
//! Ctrl-C in a conversation only ends an answer. A termination (SIGTERM, and SIGHUP when the terminal goes) ends the
//! program too, in an orderly way: what it was doing stops, what it has to keep is kept, and its exit code tells the
//! signal.

use std::io;
use std::process::exit;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

use smolconv::signals::on_signals;
#[cfg(unix)]
use smolconv::write::temp_file;
use smolrun::CancelToken;

/// The number of an interrupt, Ctrl-C.
const INTERRUPT: u8 = 2;

/// What is called before a signal ends the program.
type LastWish = Box<dyn FnOnce() + Send>;

/// Whether an [`Interrupt`] looks after signals.
static IS_OBEYED: AtomicBool = AtomicBool::new(false);

/// Ends the program in an orderly way on a signal, until an [`Interrupt`] looks after them: nothing unfinished is left.
/// Where that cannot be arranged a signal ends it all the same.
pub(crate) fn end_on_signals() {
    #[cfg(unix)]
    let _ = on_signals(|signal| {
        if !IS_OBEYED.load(SeqCst) {
            let _keep = temp_file::remove_all();
            exit(128 + signal);
        }
    });
}

/// What signals have asked for. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Interrupt(Arc<State>);

#[derive(Default)]
struct State {
    cancel: CancelToken,
    /// The signal that is being obeyed; 0 for none.
    signal: AtomicU8,
    /// Whether the line editor waits for a key.
    is_reading: AtomicBool,
    last_wish: Mutex<Option<LastWish>>,
}

impl Interrupt {
    /// Looks after signals from now on.
    pub(crate) fn new() -> io::Result<Interrupt> {
        let interrupt = Interrupt::default();
        let wrong = |error| io::Error::other(format!("signals cannot be looked after: {error}"));
        let obedient = interrupt.clone();
        on_signals(move |signal| obedient.obey(signal as u8)).map_err(wrong)?;
        IS_OBEYED.store(true, SeqCst);
        Ok(interrupt)
    }

    /// What the first signal cancels.
    pub(crate) fn cancel_token(&self) -> &CancelToken {
        &self.0.cancel
    }

    /// Forgets an interrupt, for the next answer. A termination stays.
    pub(crate) fn reset(&self) {
        self.0.cancel.reset();
        let _ = self.0.signal.compare_exchange(INTERRUPT, 0, SeqCst, SeqCst);
        if self.0.signal.load(SeqCst) != 0 {
            self.0.cancel.cancel();
        }
    }

    /// What a shell reports of a program that the signal ended which came, if one did.
    pub(crate) fn exit_code(&self) -> Option<u8> {
        exit_code(self.0.signal.load(SeqCst))
    }

    /// The same, if the signal was none of those that only end an answer.
    pub(crate) fn termination(&self) -> Option<u8> {
        exit_code(self.0.signal.load(SeqCst)).filter(|&code| code != 128 + INTERRUPT)
    }

    /// Calls `wish` if a second signal ends the program at once.
    pub(crate) fn on_exit(&self, wish: impl FnOnce() + Send + 'static) {
        *self.0.last_wish.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(wish));
    }

    /// Calls `read`, which a termination makes return; nothing if there was one already.
    pub(crate) fn while_reading<T>(&self, read: impl FnOnce() -> T) -> Option<T> {
        // First to say so, then to look: a signal's thread does both the other way around, so one sees the other.
        self.0.is_reading.store(true, SeqCst);
        let result = self.termination().is_none().then(read);
        self.0.is_reading.store(false, SeqCst);
        result
    }

    /// Does what `signal` asks for.
    fn obey(&self, signal: u8) {
        let State { cancel, signal: before, last_wish, .. } = &*self.0;
        match before.load(SeqCst) {
            0 => {}
            // It is our own, which woke the line editor.
            before if before != INTERRUPT && signal == INTERRUPT => return,
            _ => {
                let wish = last_wish.lock().unwrap_or_else(PoisonError::into_inner).take();
                wish.into_iter().for_each(|wish| wish());
                exit(128 + i32::from(signal));
            }
        }
        before.store(signal, SeqCst);
        cancel.cancel();
        if signal != INTERRUPT {
            self.wake_reader();
        }
    }
}

fn exit_code(signal: u8) -> Option<u8> {
    (signal != 0).then(|| 128 + signal)
}

#[cfg(unix)]
impl Interrupt {
    /// Makes the line editor return: of all signals it returns for an interrupt alone, if it has begun to read.
    fn wake_reader(&self) {
        use nix::sys::signal::{Signal, kill};
        use nix::unistd::Pid;

        for _ in 0..100 {
            if !self.0.is_reading.load(SeqCst) {
                return;
            }
            let _ = kill(Pid::this(), Signal::SIGINT); // to oneself it cannot fail
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

#[cfg(not(unix))]
impl Interrupt {
    fn wake_reader(&self) {}
}
