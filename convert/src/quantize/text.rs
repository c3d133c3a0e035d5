//! The texts on which quantized matrices are to lose little, and blobs are compared.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::options::Calibration;

/// Prose, conversations and code, free to use: see `data/README.md`.
const BUILT_IN: &str = include_str!("../../data/calibration.txt");

/// A text to calibrate on.
#[derive(Debug)]
pub struct Text {
    /// Where it comes from, for messages.
    pub path: PathBuf,
    /// What it says.
    pub text: String,
}

impl Text {
    /// That which comes with this program.
    pub fn built_in() -> Text {
        Text { path: "the built-in text".into(), text: BUILT_IN.into() }
    }

    /// Reads a file of UTF-8.
    pub fn read(path: &Path) -> Result<Text> {
        let bytes = fs::read(path).map_err(Error::io(path))?;
        let text = String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            Error::file(path, format!("expected a text in UTF-8, found another byte at {at}"))
        })?;
        Ok(Text { path: path.to_owned(), text })
    }
}

impl Calibration {
    /// The text, if there is to be one: of matrices that are calibrated by default.
    pub fn text(&self) -> Result<Option<Text>> {
        match self {
            Calibration::None => Ok(None),
            Calibration::Auto | Calibration::BuiltIn => Ok(Some(Text::built_in())),
            Calibration::Text(path) => Text::read(path).map(Some),
        }
    }
}
