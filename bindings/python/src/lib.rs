//! smolrun for Python: classes over the runtime's public API.

mod arrays;
mod batch;
mod failure;
mod held;
mod live;
mod load;
mod model;
mod options;
mod prompt;
mod results;
mod session;
mod signals;
mod stream;

use std::ffi::OsString;

use pyo3::prelude::*;

/// The extension module of the package smolrun.
#[pymodule]
mod _smolrun {
    use super::*;

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
    #[pymodule_export]
    use super::batch::Batch;
    #[pymodule_export]
    use super::load::{convert, load};
    #[pymodule_export]
    use super::model::Model;
    #[pymodule_export]
    use super::results::{
        Alternative, Completion, Perplexity, Piece, Score, Summary, Timings, TokenLogprobs,
    };
    #[pymodule_export]
    use super::session::Session;
    #[pymodule_export]
    use super::stream::{Cancel, Stream};

    /// Run the program smolrun with these arguments, the first of which is its name, and return its exit code.
    #[pyfunction]
    fn run_smolrun(py: Python<'_>, args: Vec<OsString>) -> u8 {
        py.detach(|| smolrun_cli::run(|| args))
    }

    /// Run the program smolconv with these arguments, the first of which is its name, and return its exit code.
    #[pyfunction]
    fn run_smolconv(py: Python<'_>, args: Vec<OsString>) -> u8 {
        py.detach(|| smolconv::program::run(args))
    }
}
