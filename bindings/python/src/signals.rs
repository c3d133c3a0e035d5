//! Python's signals, which only its main thread hears of, and only when it is asked.

use std::cell::{Cell, RefCell};
use std::process;

use pyo3::prelude::*;

thread_local! {
    /// What a signal's handler raised on this thread.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    /// In which process this was asked, and whether this is its main thread.
    static IS_MAIN: Cell<Option<(u32, bool)>> = const { Cell::new(None) };
}

/// Lets Python handle the signals that have come. Whether a handler raised an exception, such as `KeyboardInterrupt`:
/// then [`raised`] has it. The runtime asks this between passes, on the thread that computes.
pub(crate) fn is_interrupted() -> bool {
    if !is_main_thread() {
        return false;
    }
    let result = Python::try_attach(|py| py.check_signals());
    match result {
        Some(Ok(())) => false,
        Some(Err(error)) => {
            RAISED.set(Some(error));
            true
        }
        None => true, // the interpreter is at its end
    }
}

/// What a handler raised on this thread, once.
pub(crate) fn raised() -> Option<PyErr> {
    RAISED.take()
}

/// Other threads never handle signals: they need not even ask, which would mean to wait for the interpreter.
fn is_main_thread() -> bool {
    let process = process::id();
    match IS_MAIN.get() {
        Some((asked_in, is_main)) if asked_in == process => is_main,
        _ => {
            let is_main = Python::try_attach(|py| ask(py).unwrap_or(true)).unwrap_or(false);
            IS_MAIN.set(Some((process, is_main)));
            is_main
        }
    }
}

fn ask(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    let main = threading.call_method0("main_thread")?.getattr("ident")?;
    threading.call_method0("get_ident")?.eq(main)
}
