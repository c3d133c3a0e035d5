//! Numbers of the command line: what is none is told in words. Which ones make sense, the library knows.

/// How many of something.
pub(crate) fn count(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "expected a whole number from 0 up".to_owned())
}

pub(crate) fn number(text: &str) -> Result<f32, String> {
    text.parse().map_err(|_| "expected a number".to_owned())
}
