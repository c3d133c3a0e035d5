//! What a function has to say when it fails: a status, and a message that the thread keeps.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use smolrun_runtime::Error;

use crate::status::{self, Status};

pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// Why a call failed.
pub(crate) enum Failure {
    /// The library's error.
    Library(Error),
    /// A pointer that may not be NULL is.
    Null(&'static str),
    /// A text is not UTF-8.
    Utf8 { name: &'static str, at: usize },
    /// Another call uses the handle at this moment.
    Busy,
    /// A call before this one ended in a panic.
    Broken,
    /// What was to be written does not fit.
    TooSmall { name: &'static str, needed: usize, capacity: usize },
}

impl Failure {
    /// An argument with a value that it may not have.
    pub(crate) fn argument(name: &'static str, expected: impl Into<String>, found: impl ToString) -> Failure {
        Failure::Library(Error::Argument { name, expected: expected.into(), found: found.to_string() })
    }

    fn code(&self) -> &'static str {
        match self {
            Failure::Library(error) => error.code(),
            Failure::Null(_) => "null",
            Failure::Utf8 { .. } => "utf8",
            Failure::Busy => "busy",
            Failure::Broken => "panic",
            Failure::TooSmall { .. } => "too_small",
        }
    }

    pub(crate) fn status(&self) -> Status {
        status::of_code(self.code())
    }

    /// Keeps the message for `smolrun_last_error` and gives the status.
    fn tell(self) -> Status {
        remember(&self.to_string());
        self.status()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Library(error) => error.fmt(f),
            Failure::Null(name) => write!(f, "{name}: expected a pointer, found NULL"),
            Failure::Utf8 { name, at } => write!(f, "{name}: expected UTF-8, found another byte at {at}"),
            Failure::Busy => f.write_str("the handle is in use by another call"),
            Failure::Broken => {
                f.write_str("the handle broke when an earlier call panicked; it can only be freed")
            }
            Failure::TooSmall { name, needed, capacity } => {
                write!(f, "{name}: expected room for {needed}, found {capacity}")
            }
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Library(error)
    }
}

/// Runs the body of a function that C calls: its status, whatever happens in it.
pub(crate) fn status_of(body: impl FnOnce() -> Result<()>) -> Status {
    // What is left half done by a panic lies behind a handle's lock, which is poisoned by it.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => status::OK,
        Ok(Err(failure)) => failure.tell(),
        Err(panic) => Failure::Library(Error::from_panic(&*panic)).tell(),
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

fn remember(message: &str) {
    let message = CString::new(message.replace('\0', "\u{fffd}")).unwrap_or_default();
    // Where the thread is about to end there is nobody to read it.
    let _ = LAST.try_with(|last| *last.borrow_mut() = message);
}

/// The message of the thread's last failure, empty before the first.
pub(crate) fn last() -> *const c_char {
    const NONE: &CStr = c"";
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(NONE.as_ptr())
}

#[cfg(test)]
mod tests {
    use super::{Failure, status_of};

    #[test]
    fn a_panic_is_a_status() {
        assert_eq!(status_of(|| panic!("on {}", "purpose")), 22);
        assert_eq!(status_of(|| Err(Failure::Broken)), 22);
        assert_eq!(status_of(|| Ok(())), 0);
    }
}
