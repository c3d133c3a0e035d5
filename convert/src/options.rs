//! What a conversion is asked for: plain data, which every other module may read.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Serialize;
use smolrun::format::{Dtype, Kind};

/// What to convert, and where to.
#[derive(Clone, Debug)]
pub struct Options {
    /// A `.safetensors` file, an index of several, the directory that holds them, or a GGUF file or any
    /// part of one.
    pub source: PathBuf,
    /// The blob.
    pub out: PathBuf,
    /// `config.json`, where it does not lie beside the source.
    pub config: Option<PathBuf>,
    /// `tokenizer.json`, where it does not lie beside the source.
    pub tokenizer: Option<PathBuf>,
    /// The directory of a PEFT LoRA that is merged into the weights.
    pub lora: Option<PathBuf>,
    /// What matrices are stored as.
    pub weights: Weights,
    /// The most bytes that the blob may have: if given, dtypes are chosen by what matrices lose, whatever the
    /// mix of `weights`.
    pub size: Option<Size>,
    /// The text that quantized ones are to lose little on.
    pub calibration: Calibration,
    /// Epochs over that text in which scales and norms are tuned by gradients; 0 for none.
    pub tune: u32,
    /// A text on which the blob is compared with its checkpoint; what comes of it is in the blob's metadata.
    pub report: Option<PathBuf>,
    /// Whether an existing blob may be replaced.
    pub force: bool,
    /// Where on a hub the source came from; the blob's metadata say so.
    pub origin: Option<Origin>,
}

/// A repository on a hub, and the state of it that was fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// Its id, `ORG/NAME`.
    pub repository: String,
    /// The commit, in hexadecimal digits.
    pub commit: String,
}

impl Options {
    /// Converts `source` to `out` with the defaults of the program.
    pub fn new(source: impl Into<PathBuf>, out: impl Into<PathBuf>) -> Options {
        Options {
            source: source.into(),
            out: out.into(),
            config: None,
            tokenizer: None,
            lora: None,
            weights: Mix::F32.into(),
            size: None,
            calibration: Calibration::Auto,
            tune: 0,
            report: None,
            force: false,
            origin: None,
        }
    }

    /// The files that are read beside the checkpoint's.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &Path> {
        self.report.as_deref().into_iter().chain(self.calibration.path())
    }
}

/// What the matrices of a blob are stored as. Vectors are always of f32.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weights {
    /// What holds for all of them.
    pub mix: Mix,
    /// What holds for some instead; of two for the same matrix, the later one.
    pub keep: Vec<Keep>,
}

/// A dtype for each kind of matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Of `F32` and `Bf16` the smaller one that keeps about the source's precision.
    Auto,
    /// f32 everywhere.
    F32,
    /// bf16 everywhere; other numbers are rounded.
    Bf16,
    /// 8 bits everywhere.
    Q8,
    /// 4 bits but where more buy most: 6 for the common tokens' rows of the embedding and the output matrix, 5 for the
    /// feed-forward matrices of the first two layers and of the last.
    Q4,
    /// 4 bits but where a fourth buys least, 3: the rare tokens' rows, `o_proj`, and the feed-forward matrices of the
    /// middle third of the layers; 6 for the common tokens' rows.
    Q3,
}

/// A dtype for the matrices whose names match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keep {
    /// A kind's name, `qkv_proj`, or that of one layer's matrix, `qkv_proj.0`; each `*` stands for any characters.
    pub pattern: String,
    /// What these are stored as: any dtype of a matrix.
    pub dtype: Dtype,
}

impl From<Mix> for Weights {
    fn from(mix: Mix) -> Weights {
        Weights { mix, keep: Vec::new() }
    }
}

impl Weights {
    /// All matrices of one dtype.
    pub fn all(dtype: Dtype) -> Weights {
        Weights { mix: Mix::F32, keep: vec![Keep { pattern: "*".into(), dtype }] }
    }

    /// Whether any matrix may become a quantized one.
    pub fn quantizes(&self) -> bool {
        let is_quantized = matches!(self.mix, Mix::Q8 | Mix::Q4 | Mix::Q3);
        is_quantized || self.keep.iter().any(|keep| keep.dtype.code_bits().is_some())
    }
}

impl Mix {
    /// The name that the program takes.
    pub fn name(self) -> &'static str {
        match self {
            Mix::Auto => "auto",
            Mix::F32 => "f32",
            Mix::Bf16 => "bf16",
            Mix::Q8 => "q8",
            Mix::Q4 => "q4",
            Mix::Q3 => "q3",
        }
    }
}

impl FromStr for Keep {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Keep, String> {
        let (pattern, dtype) = text.rsplit_once('=').ok_or("expected PATTERN=DTYPE, found no =")?;
        let known = matrix_dtypes().iter().find(|known| known.name() == dtype);
        let dtype =
            known.ok_or_else(|| format!("dtype: expected {}, found {dtype:?}", matrix_dtype_names()))?;
        Ok(Keep { pattern: pattern.to_owned(), dtype: *dtype })
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.pattern, self.dtype.name())
    }
}

/// How many bytes a file may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Size {
    /// So many.
    pub bytes: u64,
    /// As it was written, such as `70MB`.
    text: String,
}

/// What sizes end in, each with its bytes, those first that end in another one's name.
const UNITS: [(&str, u32); 7] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("B", 1),
];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Size, String> {
        let expected = "expected bytes, such as 70MB, 66.5MiB or 70000000";
        let is_unit = |unit: &str| {
            let start = text.len().checked_sub(unit.len());
            start.filter(|&start| text.get(start..).is_some_and(|end| end.eq_ignore_ascii_case(unit)))
        };
        let unit = UNITS.iter().find_map(|&(unit, bytes)| Some((is_unit(unit)?, bytes)));
        let (end, unit) = unit.unwrap_or((text.len(), 1));
        let number = text[..end].trim_end();
        let is_plain = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let number: f64 =
            number.parse().ok().filter(|_| is_plain).ok_or_else(|| format!("{expected}, found {text:?}"))?;
        let bytes = (number * f64::from(unit)).round();
        match bytes {
            1.0..9e15 => Ok(Size { bytes: bytes as u64, text: text.to_owned() }),
            _ => Err(format!("{expected}, of 1 byte to 9 PB, found {text:?}")),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Which text the errors of quantized matrices are measured on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Calibration {
    /// The one that comes with this program for [`Mix::Q4`], [`Mix::Q3`] and a [`Size`], none for others.
    #[default]
    Auto,
    /// None: each number becomes the nearest there is.
    None,
    /// The one that comes with this program.
    BuiltIn,
    /// That of a file, UTF-8.
    Text(PathBuf),
}

impl Calibration {
    /// The file that it names, if it names one.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Calibration::Text(path) => Some(path),
            _ => None,
        }
    }
}

/// Every dtype that a matrix may have.
pub(crate) fn matrix_dtypes() -> &'static [Dtype] {
    Kind::EmbedTokens.dtypes()
}

pub(crate) fn matrix_dtype_names() -> String {
    matrix_dtypes().iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_with_or_without_a_unit() {
        let cases = [
            ("70000000", 70_000_000),
            ("70MB", 70_000_000),
            ("70 mb", 70_000_000),
            ("66.5MiB", 69_730_304),
            ("0.5GB", 500_000_000),
            ("2GiB", 2 << 30),
            ("1kb", 1000),
            ("1KiB", 1024),
            ("7B", 7),
        ];
        for (text, bytes) in cases {
            let size: Size = text.parse().unwrap();
            assert_eq!((size.bytes, size.to_string().as_str()), (bytes, text));
        }
        for text in
            ["", "MB", "x", "-1MB", "0", "1e9", "inf", "nan", "7.7.7MB", "70M", "99999999999GB", "€MB"]
        {
            let refused = text.parse::<Size>().unwrap_err();
            let expected = "expected bytes, such as 70MB, 66.5MiB or 70000000";
            assert!(refused.starts_with(expected) && refused.contains("found"), "{text}: {refused}");
        }
    }

    #[test]
    fn a_keep_is_written_as_it_is_read() {
        for text in ["*=f32", "down_proj.*=bf16", "a=b=q6", "=q4"] {
            assert_eq!(text.parse::<Keep>().unwrap().to_string(), text);
        }
        assert_eq!("qkv_proj".parse::<Keep>().unwrap_err(), "expected PATTERN=DTYPE, found no =");
        let expected = r#"dtype: expected f32, bf16, q8, q6, q5, q4, q3, found "u8""#;
        assert_eq!("qkv_proj=u8".parse::<Keep>().unwrap_err(), expected);
    }
}
