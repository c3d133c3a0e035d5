//! Numbers of the command line: what is none is told in words. Which ones make sense, the library knows.

/// How many of something.
pub(crate) fn count(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "expected a whole number from 0 up".to_owned())
}

pub(crate) fn count_from_1(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&count| count > 0).ok_or_else(|| "expected a whole number from 1 up".to_owned())
}

pub(crate) fn number(text: &str) -> Result<f32, String> {
    text.parse().map_err(|_| "expected a number".to_owned())
}
