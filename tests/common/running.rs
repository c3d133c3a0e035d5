//! Programs and other work with a limit to their time: what hangs is a failure with a name.

use std::io::Read;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Longest run of a program: many times what any takes on a machine that is slow and has much else to do.
const PATIENCE: Duration = Duration::from_secs(900);
/// Longest wait for the end of what a program wrote, once it has ended: another may have its pipes.
const AFTERWARDS: Duration = Duration::from_secs(10);
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);

/// A program that runs, with the interface of [`Child`]. It is killed when it takes too long, and when this is dropped.
pub struct Running {
    /// Its standard input, if that is piped.
    pub stdin: Option<ChildStdin>,
    /// Its standard output, if that is piped.
    pub stdout: Option<ChildStdout>,
    /// Its standard error, if that is piped.
    pub stderr: Option<ChildStderr>,
    child: Arc<Mutex<Child>>,
    /// The program and its arguments, for messages.
    command: String,
    patience: Duration,
    is_killed: Arc<AtomicBool>,
    /// Dropped, it ends the watch.
    _watch: Sender<()>,
}

impl Running {
    /// Starts a program.
    ///
    /// # Panics
    /// If there is no such program.
    pub fn start(command: &mut Command) -> Running {
        Running::start_for(PATIENCE, command)
    }

    /// Starts a program that may take so long.
    ///
    /// # Panics
    /// If there is no such program.
    pub fn start_for(patience: Duration, command: &mut Command) -> Running {
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (child, is_killed) = (Arc::new(Mutex::new(child)), Arc::new(AtomicBool::new(false)));
        let (watch, ended) = mpsc::channel();
        let (watched, kills) = (Arc::clone(&child), Arc::clone(&is_killed));
        thread::spawn(move || {
            if ended.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                kills.store(true, Ordering::SeqCst);
                let _ = lock(&watched).kill(); // does nothing to one that has ended
            }
        });
        let command = format!("{command:?}");
        Running { stdin, stdout, stderr, child, command, patience, is_killed, _watch: watch }
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        lock(&self.child).id()
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        lock(&self.child).try_wait().expect("a child can be waited for").is_some()
    }

    /// Waits until it ends, with nothing more at its standard input.
    ///
    /// # Panics
    /// If it took too long.
    pub fn wait(mut self) -> ExitStatus {
        drop(self.stdin.take());
        let status = self.ended();
        assert!(!self.is_killed(), "{}", self.complaint());
        status
    }

    /// Waits until it ends, with nothing more at its standard input, and collects what it writes.
    ///
    /// # Panics
    /// If it took too long.
    pub fn wait_with_output(mut self) -> Output {
        drop(self.stdin.take());
        let (stdout, stderr) = (collect(self.stdout.take()), collect(self.stderr.take()));
        let status = self.ended();
        let whole = |pipe: Receiver<Vec<u8>>| pipe.recv_timeout(AFTERWARDS);
        let (stdout, stderr) = (whole(stdout), whole(stderr));
        if self.is_killed() {
            let text = |bytes: &Result<Vec<u8>, _>| {
                String::from_utf8_lossy(bytes.as_deref().unwrap_or_default()).into_owned()
            };
            panic!("{}; it wrote:\n{}\n{}", self.complaint(), text(&stdout), text(&stderr));
        }
        let (Ok(stdout), Ok(stderr)) = (stdout, stderr) else {
            panic!("{} ended, and left its pipes to a program that did not", self.command);
        };
        Output { status, stdout, stderr }
    }

    fn ended(&self) -> ExitStatus {
        loop {
            if let Some(status) = lock(&self.child).try_wait().expect("a child can be waited for") {
                return status;
            }
            thread::sleep(BETWEEN_LOOKS);
        }
    }

    fn is_killed(&self) -> bool {
        self.is_killed.load(Ordering::SeqCst)
    }

    fn complaint(&self) -> String {
        format!("{} did not end within {:?}, and was killed", self.command, self.patience)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut child = lock(&self.child);
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// What `work` gives. It runs in a thread of its own, which nobody can end.
///
/// # Panics
/// If it panics, or takes too long; `what` names it.
pub fn within<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, result) = mpsc::channel();
    thread::spawn(move || {
        let _ = sender.send(work());
    });
    match result.recv_timeout(PATIENCE) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => panic!("{what}: no result within {PATIENCE:?}"),
        Err(RecvTimeoutError::Disconnected) => panic!("{what}: it panicked, as was said above"),
    }
}

fn lock(child: &Mutex<Child>) -> MutexGuard<'_, Child> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads a pipe to its end, if there is one.
fn collect(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (sender, collected) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes); // what there was until then
        }
        let _ = sender.send(bytes);
    });
    collected
}
