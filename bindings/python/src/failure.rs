//! What goes wrong on the way, until Python hears of it as an exception.

use std::io;
use std::path::Path;

use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;

use crate::signals;

/// An error that is not yet an exception: making one takes the interpreter.
pub(crate) enum Failure {
    Library(smolrun::Error),
    Converter(smolconv::Error),
    /// What the code says, and what a person is told.
    Other {
        code: &'static str,
        message: String,
    },
    Python(PyErr),
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A value that an argument may not have.
    pub(crate) fn argument(message: impl Into<String>) -> Failure {
        Failure::Other { code: "argument", message: message.into() }
    }

    /// Of something that was closed.
    pub(crate) fn closed(what: &str) -> Failure {
        Failure::Other { code: "closed", message: format!("the {what} is closed") }
    }

    /// Of something that has threads in another process.
    pub(crate) fn forked(what: &str) -> Failure {
        let message = format!("the {what} was made before a fork: make another one in this process");
        Failure::Other { code: "forked", message }
    }

    /// Of something that the same thread is using, further up.
    pub(crate) fn busy(what: &str) -> Failure {
        Failure::Other { code: "busy", message: format!("the {what} is being used by this thread already") }
    }
}

impl From<smolrun::Error> for Failure {
    fn from(error: smolrun::Error) -> Failure {
        Failure::Library(error)
    }
}

impl From<smolconv::Error> for Failure {
    fn from(error: smolconv::Error) -> Failure {
        Failure::Converter(error)
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Failure {
        Failure::Python(error)
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        use smolconv::Error as Converter;
        use smolrun::Error as Library;
        match failure {
            Failure::Python(error) => error,
            Failure::Library(Library::Cancelled) | Failure::Converter(Converter::Cancelled) => {
                signals::raised().unwrap_or_else(|| exception("cancelled", "it was cancelled"))
            }
            Failure::Library(Library::Io { path, source })
            | Failure::Converter(Converter::Io { path, source }) => file_error(&path, &source),
            Failure::Library(error) => exception(error.code(), &error.to_string()),
            Failure::Converter(error) => {
                let code = match &error {
                    Converter::Options { .. } => "argument",
                    Converter::Blob { source, .. } => source.code(),
                    _ => "convert",
                };
                exception(code, &error.to_string())
            }
            Failure::Other { code, message } => exception(code, &message),
        }
    }
}

/// The exception of the class that `code` belongs to.
fn exception(code: &str, message: &str) -> PyErr {
    Python::attach(|py| {
        let made = errors(py).and_then(|errors| errors.call_method1("error", (code, message)));
        made.map_or_else(|error| error, PyErr::from_value)
    })
}

/// What Python's own functions raise for such a file, and a `smolrun.Error`.
fn file_error(path: &Path, source: &io::Error) -> PyErr {
    Python::attach(|py| {
        let is_missing = source.kind() == io::ErrorKind::NotFound;
        let args = (source.raw_os_error(), source.to_string(), path, is_missing);
        let made = errors(py).and_then(|errors| errors.call_method1("file_error", args));
        made.map_or_else(|error| error, PyErr::from_value)
    })
}

fn errors(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import("smolrun._errors")
}

/// `value` is not what the argument `name` takes.
pub(crate) fn wrong_type(name: &str, expected: &str, value: &Bound<'_, PyAny>) -> PyErr {
    let found = value.get_type().name().map_or_else(|_| "something else".into(), |name| name.to_string());
    PyTypeError::new_err(format!("{name}: expected {expected}, found {found}"))
}

/// For `map_err`: `refusal` where a value is not what was asked for. What its own methods raise stays as it is.
pub(crate) fn unless_raised<E: Into<PyErr>>(
    py: Python<'_>,
    refusal: impl FnOnce() -> PyErr,
) -> impl FnOnce(E) -> PyErr {
    move |error| {
        let error = error.into();
        let is_refused =
            error.is_instance_of::<PyTypeError>(py) || error.is_instance_of::<PyOverflowError>(py);
        if is_refused { refusal() } else { error }
    }
}
