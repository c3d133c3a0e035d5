//! Blobs broken one way at a time: each gives its own error, in the library and in the programs.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use smol_tests::common::blob::{ENTRY_LEN, HEADER_LEN, get_u32, get_u64, put_u32, put_u64, sign};
use smol_tests::common::{Blob, Checkpoint, Outcome, Part, TempDir, TensorDtype, run};
use smolrun::format::{Dtype, Kind};
use smolrun::{GenerateOptions, Model, Session, SessionOptions, SpecialTokens};

const NONE: u32 = u32::MAX;
/// What the programs are asked to continue: two words that merge, and an added token.
const PROMPT: &str = "the end<|endoftext|>and";

/// When a fault is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// On opening: by everything.
    Open,
    /// By the deep check; a program that skips it may or may not stumble.
    Verify,
    /// When it is used, and by the deep check, both with the same words.
    Use,
    /// When it is used; the deep check takes it, since the hash was made to fit.
    UseOnly,
}

/// One broken blob.
struct Case {
    name: String,
    at: At,
    message: String,
    /// What the deep check says, where it has other words.
    verified: Option<String>,
    bytes: Vec<u8>,
}

impl Case {
    fn verified(self, message: &str) -> Case {
        Case { verified: Some(message.to_owned()), ..self }
    }
}

fn case(name: impl Into<String>, at: At, message: impl Into<String>, bytes: Vec<u8>) -> Case {
    Case { name: name.into(), at, message: message.into(), verified: None, bytes }
}

/// A good blob with every kind of section: an output matrix of its own, and a chat template.
fn good() -> &'static Blob {
    static GOOD: OnceLock<Blob> = OnceLock::new();
    GOOD.get_or_init(|| {
        let mut checkpoint = Checkpoint::untied(TensorDtype::F32);
        checkpoint.files.insert("chat_template.jinja".into(), b"{{ messages[0].content }}".to_vec());
        let mut blob = Blob::of(&checkpoint);
        for kind in [Kind::EmbedTokens, Kind::LmHead] {
            split_off_rare(&mut blob, kind);
        }
        let at = blob.index(Kind::Metadata);
        blob.parts.splice(at..at, rare_parts());
        blob
    })
}

/// Puts all rows but the first 16 into a section of their own.
fn split_off_rare(blob: &mut Blob, kind: Kind) {
    let index = blob.index(kind);
    let part = &mut blob.parts[index];
    let mut rare = Part { kind: kind.rare().unwrap().code(), layer: 0, ..part.clone() };
    rare.content.drain(..16 * 24 * 4);
    part.content.truncate(16 * 24 * 4);
    (part.shape[0], rare.shape[0]) = (16, part.shape[0] - 16);
    blob.parts.insert(index + 1, rare);
}

/// The kinds of section that the checkpoint has no need of, with contents that do no harm.
fn rare_parts() -> Vec<Part> {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let floats = |number: f32, count| words(&vec![number.to_bits(); count]);
    let part = |kind: Kind, layer, columns, content: Vec<u8>| {
        let shape = [content.len() as u64 / 4 / columns, columns];
        Part { kind: kind.code(), layer, dtype: kind.dtypes()[0].code(), flags: 1, shape, content }
    };
    let (n, z) = (letter(b'n') as u32, letter(b'z') as u32);
    let mut parts = vec![
        part(Kind::LayerFlags, NONE, 1, words(&[0, 0])),
        part(Kind::TextRules, NONE, 1, words(&[1])),
        part(Kind::CharTokens, NONE, 2, words(&[u32::from(b'n'), n, u32::from(b'z'), z])),
        part(Kind::WholeWords, NONE, 1, words(&[n, z])),
        part(Kind::PromptPrefix, NONE, 1, words(&[0, 0])),
    ];
    for layer in 0..2 {
        parts.push(part(Kind::QkvBias, layer, 1, floats(0.0, 64)));
        parts.push(part(Kind::QkNorm, layer, 1, floats(1.0, 32)));
        parts.push(part(Kind::OBias, layer, 1, floats(0.0, 24)));
        parts.push(part(Kind::GateUpBias, layer, 1, floats(0.0, 40)));
        parts.push(part(Kind::DownBias, layer, 1, floats(0.0, 24)));
    }
    parts
}

/// Whether a blob can be whole without a section of `kind`.
fn may_be_absent(kind: Kind) -> bool {
    use Kind::*;
    kind.is_optional()
        || matches!(
            kind,
            Pretokenizer
                | LayerFlags
                | TextRules
                | CharTokens
                | WholeWords
                | PromptPrefix
                | QkvBias
                | QkNorm
                | OBias
                | GateUpBias
                | DownBias
        )
}

/// A good blob with a tied embedding.
fn tied() -> &'static Blob {
    static TIED: OnceLock<Blob> = OnceLock::new();
    TIED.get_or_init(|| Blob::of(&Checkpoint::tiny(TensorDtype::F32)))
}

/// The good file with some bytes changed.
fn unsigned(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = good().build();
    change(&mut bytes);
    bytes
}

/// The good file with some bytes changed, and a hash that says that it was meant.
fn signed(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = unsigned(change);
    sign(&mut bytes);
    bytes
}

/// The good blob with its sections changed, everything around them in order.
fn rebuilt(change: impl FnOnce(&mut Blob)) -> Vec<u8> {
    let mut blob = good().clone();
    change(&mut blob);
    blob.build()
}

/// The good blob with other bytes in the section of `kind` (of layer 0).
fn content(kind: Kind, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    rebuilt(|blob| change(&mut blob.part(kind).content))
}

/// The good blob with a 32-bit number changed in the section of `kind` (of layer 0).
fn number(kind: Kind, at: usize, value: u32) -> Vec<u8> {
    content(kind, |bytes| put_u32(bytes, at, value))
}

/// The good blob with a 64-bit field of the directory entry of `kind` (of layer 0) changed.
fn entry64(kind: Kind, field: usize, change: impl FnOnce(u64) -> u64) -> Vec<u8> {
    signed(|bytes| {
        let at = good().entry(kind) + field;
        let value = get_u64(bytes, at);
        put_u64(bytes, at, change(value));
    })
}

/// The good blob with a 32-bit field of the directory entry of `kind` (of layer 0) changed.
fn entry32(kind: Kind, field: usize, value: u32) -> Vec<u8> {
    signed(|bytes| put_u32(bytes, good().entry(kind) + field, value))
}

/// How messages name the section of `kind` (of layer 0).
fn place(kind: Kind) -> String {
    place_at(good().index(kind))
}

/// How messages name a section.
fn place_at(index: usize) -> String {
    let Part { kind, layer, .. } = good().parts[index];
    let name = Kind::from_code(kind).map_or("", Kind::name);
    match layer {
        NONE => format!("section {index} ({name})"),
        layer => format!("section {index} ({name}, layer {layer})"),
    }
}

/// Where the section of `kind` (of layer 0) starts.
fn offset(kind: Kind) -> u64 {
    get_u64(&good().build(), good().entry(kind) + 32)
}

fn len() -> usize {
    good().build().len()
}

fn header_cases() -> Vec<Case> {
    use At::Open;
    let len = len() as u64;
    let directory_end = (HEADER_LEN + good().parts.len() * ENTRY_LEN) as u64;
    let metadata = offset(Kind::Metadata);
    let windows: Vec<&[u8]> = good_bytes().split(|&byte| byte == b'\n').collect();
    vec![
        case("magic", Open, r#"not a blob: the first bytes are "\x89SMOK\r\n\x1a""#, signed(|b| b[4] = b'K')),
        case(
            "seven bits",
            Open,
            r#"not a blob: the first bytes are "\tSMOL\r\n\x1a""#,
            unsigned(|b| {
                b.iter_mut().for_each(|byte| *byte &= 0x7f);
            }),
        ),
        case(
            "LF as CR LF",
            Open,
            r#"not a blob: the first bytes are "\x89SMOL\r\r\n""#,
            windows.join(&b"\r\n"[..]),
        ),
        case(
            "CR LF as LF",
            Open,
            r#"not a blob: the first bytes are "\x89SMOL\n\x1a\x01""#,
            unsigned(|b| {
                b.remove(5);
            }),
        ),
        case(
            "a text",
            Open,
            r#"not a blob: the first bytes are "Once upo""#,
            "Once upon a time ".repeat(50).into(),
        ),
        case(
            "version 2.0",
            Open,
            "format version 2.0 cannot be read by this version, which reads 1.3: \
            convert the checkpoint again",
            signed(|b| b[8] = 2),
        ),
        case(
            "version 0.3",
            Open,
            "format version 0.3 cannot be read by this version, which reads 1.3: \
            convert the checkpoint again",
            signed(|b| (b[8], b[10]) = (0, 3)),
        ),
        case(
            "header_len",
            Open,
            "header: header_len: expected 128, found 127",
            signed(|b| put_u32(b, 12, 127)),
        ),
        case("file_len", Open, incomplete(len, len + 1), signed(|b| put_u64(b, 16, len + 1))),
        case("huge file_len", Open, incomplete(len, u64::MAX), signed(|b| put_u64(b, 16, u64::MAX))),
        case(
            "more bytes after the end",
            Open,
            format!("the file has {} bytes, its header says {len}: it has bytes too many", len + 4),
            signed(|b| b.extend([0; 4])),
        ),
        case(
            "more bytes in the last section",
            Open,
            format!("header: file_len: expected {len}, the end of the last section, found {}", len + 4),
            signed(|b| {
                b.extend([0; 4]);
                put_u64(b, 16, len + 4);
            }),
        ),
        case(
            "no sections",
            Open,
            format!("header: file_len: expected 128, the end of the last section, found {len}"),
            signed(|b| put_u32(b, 24, 0)),
        ),
        case(
            "a section fewer",
            Open,
            format!(
                "header: file_len: expected {}, the end of the last section, found {len}",
                end_before_metadata()
            ),
            signed(|b| put_u32(b, 24, good().parts.len() as u32 - 1)),
        ),
        case(
            "a section more",
            Open,
            format!(
                "section 0 (config): offset {} overlaps what lies before it, which ends at {}",
                offset(Kind::Config),
                directory_end + 96
            ),
            signed(|b| put_u32(b, 24, good().parts.len() as u32 + 1)),
        ),
        case(
            "section_count past the file",
            Open,
            "header: section_count: expected at most 65536 and a directory inside the file, found 65536",
            signed(|b| put_u32(b, 24, 65_536)),
        ),
        case(
            "section_count past the limit",
            Open,
            "header: section_count: expected at most 65536 and a directory inside the file, found 65537",
            signed(|b| put_u32(b, 24, 65_537)),
        ),
        case(
            "huge section_count",
            Open,
            "header: section_count: expected at most 65536 and a directory inside the file, found 4294967295",
            signed(|b| put_u32(b, 24, u32::MAX)),
        ),
        case("entry_len", Open, "header: entry_len: expected 96, found 95", signed(|b| put_u32(b, 28, 95))),
        case(
            "directory_offset",
            Open,
            "header: directory_offset: expected 128, found 192",
            signed(|b| put_u64(b, 32, 192)),
        ),
        case(
            "huge directory_offset",
            Open,
            "header: directory_offset: expected 128, found 18446744073709551615",
            signed(|b| put_u64(b, 32, u64::MAX)),
        ),
        case("reserved bytes", Open, "header: reserved bytes are not zero", signed(|b| b[95] = 1)),
        case(
            "unsigned",
            Open,
            "header and directory do not match their SHA-256: the file is damaged",
            unsigned(|b| put_u64(b, directory_end as usize - 96 + 40, len - metadata - 1)),
        ),
        case(
            "only 127 bytes",
            Open,
            "not a blob: expected at least the 128 bytes of a header, found 127",
            unsigned(|b| b.truncate(127)),
        ),
        case(
            "only 1 byte",
            Open,
            "not a blob: expected at least the 128 bytes of a header, found 1",
            unsigned(|b| b.truncate(1)),
        ),
        case("empty", Open, "not a blob: expected at least the 128 bytes of a header, found 0", Vec::new()),
    ]
}

fn good_bytes() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| good().build())
}

fn end_before_metadata() -> u64 {
    let at = HEADER_LEN + (good().parts.len() - 2) * ENTRY_LEN;
    get_u64(good_bytes(), at + 32) + get_u64(good_bytes(), at + 40)
}

fn entry_cases() -> Vec<Case> {
    use At::Open;
    use Kind::*;
    let len = len();
    let [qkv, o, config, offsets, metadata] = [QkvProj, OProj, Config, TokenOffsets, Metadata].map(place);
    let (qkv_len, o_offset) = (64 * 24 * 4u64, offset(OProj));
    let past = |length: u64, offset: u64| {
        format!("{qkv}: {length} bytes at offset {offset} reach past the file's {len} bytes")
    };
    let index = good().index(QkvProj);
    vec![
        case(
            "an unknown kind that is required",
            Open,
            format!(
                "section {index} (kind 99, layer 0): required, and of a kind that this version does not know"
            ),
            entry32(QkvProj, 0, 99),
        ),
        case(
            "another kind",
            Open,
            format!("section {index} (norm, layer 0): layer: expected no layer (4294967295), found 0"),
            entry32(QkvProj, 0, Norm.code()),
        ),
        case(
            "layer out of range",
            Open,
            format!("section {index} (qkv_proj, layer 2): layer: expected below num_hidden_layers, 2"),
            entry32(QkvProj, 4, 2),
        ),
        case(
            "huge layer",
            Open,
            format!(
                "section {index} (qkv_proj, layer 4294967294): layer: expected below num_hidden_layers, 2"
            ),
            entry32(QkvProj, 4, NONE - 1),
        ),
        case(
            "the other layer",
            Open,
            format!(
                "section {} (qkv_proj, layer 1): a second section of this kind and layer",
                second(QkvProj)
            ),
            entry32(QkvProj, 4, 1),
        ),
        case(
            "no layer",
            Open,
            format!("section {index} (qkv_proj): layer: expected a layer, found 4294967295"),
            entry32(QkvProj, 4, NONE),
        ),
        case(
            "a layer too many",
            Open,
            "section 0 (config, layer 0): layer: expected no layer (4294967295), found 0",
            entry32(Config, 4, 0),
        ),
        case(
            "a stage left out",
            Open,
            format!(
                "section {} (pretokenizer, layer 1): layer: expected number 0",
                good().index(Pretokenizer)
            ),
            entry32(Pretokenizer, 4, 1),
        ),
        case(
            "dtype of another kind",
            Open,
            format!(
                "{qkv}: dtype: expected 3 (f32) or 4 (bf16) or 5 (q8) or 6 (q6) or 7 (q5) or 8 (q4) or 9 (q3), found 2"
            ),
            entry32(QkvProj, 8, 2),
        ),
        case(
            "unknown dtype",
            Open,
            format!(
                "{qkv}: dtype: expected 3 (f32) or 4 (bf16) or 5 (q8) or 6 (q6) or 7 (q5) or 8 (q4) or 9 (q3), found 10"
            ),
            entry32(QkvProj, 8, 10),
        ),
        case(
            "a dtype of fewer bits",
            Open,
            format!("{qkv}: length: expected 1344 for shape [64, 24], found {qkv_len}"),
            entry32(QkvProj, 8, Dtype::Q4.code()),
        ),
        case(
            "half a pair of bf16",
            Open,
            format!("{qkv}: shape [64, 25]: expected an even number of columns of bf16"),
            rebuilt(|blob| {
                let index = blob.index(QkvProj);
                blob.parts[index].dtype = Dtype::Bf16.code();
                blob.parts[index].shape[1] += 1;
            }),
        ),
        case(
            "dtype of a table",
            Open,
            format!("{offsets}: dtype: expected 2 (u32), found 0"),
            entry32(TokenOffsets, 8, 0),
        ),
        case(
            "unknown flags",
            Open,
            format!("{qkv}: flags: expected 0 or 1, found 2"),
            entry32(QkvProj, 12, 2),
        ),
        case(
            "rows",
            Open,
            format!("{qkv}: length: expected 7680 for shape [65, 24], found {qkv_len}"),
            entry64(QkvProj, 16, |rows| rows + 1),
        ),
        case(
            "columns",
            Open,
            format!("{qkv}: length: expected 6400 for shape [64, 25], found {qkv_len}"),
            entry64(QkvProj, 24, |columns| columns + 1),
        ),
        case(
            "rows inside a panel",
            Open,
            format!("{qkv}: shape: the config asks for [64, 24], found [63, 24]"),
            entry64(QkvProj, 16, |rows| rows - 1),
        ),
        case(
            "no rows",
            Open,
            format!("{qkv}: length: expected 0 for shape [0, 24], found {qkv_len}"),
            entry64(QkvProj, 16, |_| 0),
        ),
        case(
            "a shape past 64 bits",
            Open,
            format!("{qkv}: shape [9223372036854775808, 24]: its byte count does not fit 64 bits"),
            entry64(QkvProj, 16, |_| 1 << 63),
        ),
        case(
            "rows past 64 bits when padded",
            Open,
            format!("{qkv}: shape [18446744073709551615, 24]: its byte count does not fit 64 bits"),
            entry64(QkvProj, 16, |_| u64::MAX),
        ),
        case(
            "bytes past 64 bits, elements not",
            Open,
            format!("{qkv}: shape [64, 144115188075855872]: its byte count does not fit 64 bits"),
            entry64(QkvProj, 24, |_| 1 << 57),
        ),
        case(
            "a huge table",
            Open,
            format!("{offsets}: shape [9223372036854775808, 1]: its byte count does not fit 64 bits"),
            entry64(TokenOffsets, 16, |_| 1 << 63),
        ),
        case(
            "gate_up_proj past 64 bits",
            Open,
            format!(
                "{}: shape [18446744073709551614, 24]: its byte count does not fit 64 bits",
                place(GateUpProj)
            ),
            entry64(GateUpProj, 16, |_| u64::MAX - 1),
        ),
        case(
            "misaligned matrix",
            Open,
            format!("{o}: offset {} is not a multiple of 4096", o_offset + 64),
            entry64(OProj, 32, |offset| offset + 64),
        ),
        case(
            "misaligned table",
            Open,
            format!("{offsets}: offset {} is not a multiple of 64", offset(TokenOffsets) + 4),
            entry64(TokenOffsets, 32, |offset| offset + 4),
        ),
        case(
            "overlapping its predecessor",
            Open,
            format!(
                "{o}: offset {} overlaps what lies before it, which ends at {}",
                o_offset - 4096,
                offset(QkvProj) + qkv_len
            ),
            entry64(OProj, 32, |offset| offset - 4096),
        ),
        case(
            "overlapping the directory",
            Open,
            format!(
                "{config}: offset 64 overlaps what lies before it, which ends at {}",
                128 + good().parts.len() * 96
            ),
            entry64(Config, 32, |_| 64),
        ),
        case(
            "overlapping its successor",
            Open,
            format!(
                "{o}: offset {o_offset} overlaps what lies before it, which ends at {}",
                offset(QkvProj) + qkv_len + 2 * 4096
            ),
            signed(|b| {
                let at = good().entry(QkvProj);
                put_u64(b, at + 24, 24 + 32); // 64 rows of 32 more columns are 8192 bytes
                put_u64(b, at + 40, qkv_len + 2 * 4096);
            }),
        ),
        case(
            "out of order",
            Open,
            format!(
                "section {} (qkv_proj, layer 0): offset {} overlaps what lies before it, which ends at {}",
                index + 1,
                offset(QkvProj),
                o_offset + 2 * 16 * 32 * 4
            ),
            signed(|b| {
                let (first, second) = (good().entry(QkvProj), good().entry(OProj));
                let entry: Vec<u8> = b[first..first + 96].to_vec();
                b.copy_within(second..second + 96, first);
                b[second..second + 96].copy_from_slice(&entry);
            }),
        ),
        case("offset past the end", Open, past(qkv_len, 1 << 40), entry64(QkvProj, 32, |_| 1 << 40)),
        case("length past the end", Open, past(1 << 40, offset(QkvProj)), entry64(QkvProj, 40, |_| 1 << 40)),
        case(
            "offset + length past 64 bits",
            Open,
            past(qkv_len, u64::MAX - 4095),
            entry64(QkvProj, 32, |_| u64::MAX - 4095),
        ),
        case("huge length", Open, past(u64::MAX, offset(QkvProj)), entry64(QkvProj, 40, |_| u64::MAX)),
        case(
            "length and shape",
            Open,
            format!("{qkv}: length: expected {qkv_len} for shape [64, 24], found {}", qkv_len - 4),
            entry64(QkvProj, 40, |length| length - 4),
        ),
        case(
            "the last section a byte short",
            Open,
            format!(
                "{metadata}: length: expected {} for shape [{}, 1], found {}",
                metadata_len(),
                metadata_len(),
                metadata_len() - 1
            ),
            entry64(Metadata, 40, |length| length - 1),
        ),
        case(
            "reserved bytes of an entry",
            Open,
            format!("{qkv}: reserved bytes are not zero"),
            signed(|b| b[good().entry(QkvProj) + 63] = 1),
        ),
    ]
}

fn metadata_len() -> usize {
    good().parts.last().map_or(0, |part| part.content.len())
}

/// Index of the section of `kind` of layer 1.
fn second(kind: Kind) -> usize {
    let is_it = |part: &Part| part.kind == kind.code() && part.layer == 1;
    good().parts.iter().position(is_it).expect("the blob has two layers")
}

/// Offsets in the config record, with each a value that it may not have and why not.
fn config_cases() -> Vec<Case> {
    let wrong: [(usize, u32, &str); 36] = [
        (0, 0, "vocab_size: expected 1 to 4194304, found 0"),
        (0, (1 << 22) + 1, "vocab_size: expected 1 to 4194304, found 4194305"),
        (4, 0, "hidden_size: expected 1 to 65536, found 0"),
        (4, NONE, "hidden_size: expected 1 to 65536, found 4294967295"),
        (8, 0, "intermediate_size: expected 1 to 262144, found 0"),
        (8, (1 << 18) + 1, "intermediate_size: expected 1 to 262144, found 262145"),
        (12, 0, "num_hidden_layers: expected 1 to 1024, found 0"),
        (12, 1025, "num_hidden_layers: expected 1 to 1024, found 1025"),
        (12, 1024, "num_hidden_layers: expected at most 26, the number of sections, found 1024"),
        (16, 0, "num_attention_heads: expected 1 to 1024, found 0"),
        (16, NONE, "num_attention_heads: expected 1 to 1024, found 4294967295"),
        (20, 0, "num_key_value_heads: expected 1 to 1024, found 0"),
        (20, 1025, "num_key_value_heads: expected 1 to 1024, found 1025"),
        (20, 3, "num_key_value_heads: expected a divisor of num_attention_heads, 2, found 3"),
        (24, 32, "rotary_dim: expected head_dim, 32, found 16"),
        (28, 0, "max_position_embeddings: expected 1 to 16777216, found 0"),
        (28, NONE, "max_position_embeddings: expected 1 to 16777216, found 4294967295"),
        (32, 8, "rotary_dim: expected head_dim, 16, found 8"),
        (36, 0, "hidden_act: expected 1 (silu), found 0"),
        (36, 2, "hidden_act: expected 1 (silu), found 2"),
        (40, 0, "rms_norm_eps: expected a finite number above 0, found 0"),
        (40, f32::NAN.to_bits(), "rms_norm_eps: expected a finite number above 0, found NaN"),
        (40, (-1f32).to_bits(), "rms_norm_eps: expected a finite number above 0, found -1"),
        (44, f32::INFINITY.to_bits(), "attention_scale: expected a finite number above 0, found inf"),
        (44, 0, "attention_scale: expected a finite number above 0, found 0"),
        (48, 2, "flags: expected 0 or 1, found 2"),
        (52, 37, "bos_token_id: expected an id below vocab_size, 37, found 37"),
        (56, 37, "pad_token_id: expected an id below vocab_size, 37, found 37"),
        (60, 17, "eos_count: expected at most 16, found 17"),
        (64, 37, "eos_token_id: expected an id below vocab_size, 37, found 37"),
        (68, 1, "eos_token_ids: expected zeros after the last id, found other values"),
        (128, 1 << 25, "sliding_window: expected 1 to 16777216, found 33554432"),
        (132, f32::NAN.to_bits(), "no_rope_attention_scale: expected a finite number above 0, found NaN"),
        (132, 1 << 31, "no_rope_attention_scale: expected a finite number above 0, found -0"),
        (136, 1, "reserved: expected zeros, found other values"),
        (252, 1 << 31, "reserved: expected zeros, found other values"),
    ];
    let mut cases: Vec<Case> = wrong
        .into_iter()
        .map(|(at, value, message)| {
            let sections = good().parts.len();
            let message = message.replace("at most 26", &format!("at most {sections}"));
            case(
                format!("config {at}: {value}"),
                At::Open,
                format!("config: {message}"),
                number(Kind::Config, at, value),
            )
        })
        .collect();
    for (head_dim, problem) in [
        (0, "expected 1 to 1024, found 0"),
        (1040, "expected 1 to 1024, found 1040"),
        (24, "expected a multiple of 16, found 24"),
    ] {
        let bytes = content(Kind::Config, |record| {
            put_u32(record, 24, head_dim);
            put_u32(record, 32, head_dim);
        });
        cases.push(case(
            format!("head_dim {head_dim}"),
            At::Open,
            format!("config: head_dim: {problem}"),
            bytes,
        ));
    }
    let mut blob = tied().clone();
    put_u32(&mut blob.part(Kind::Config).content, 48, 0);
    cases.push(case("untied in name only", At::Open, "no section lm_head", blob.build()));
    cases
}

/// The config and the sections disagree: one of them changed in turn.
fn shape_cases() -> Vec<Case> {
    use Kind::*;
    let asks = |kind: Kind, expected: [u64; 2]| {
        let found = good().parts[good().index(kind)].shape;
        format!("{}: shape: the config asks for {expected:?}, found {found:?}", place(kind))
    };
    let rare_of = |kind: Kind, expected| format!("{}: {}", place(kind), expects_rare(expected, [21, 24]));
    let mut cases: Vec<Case> = [
        (0, 38, rare_of(EmbedTokensRare, [38, 24])),
        (4, 32, rare_of(EmbedTokensRare, [37, 32])),
        (8, 21, asks(GateUpBias, [42, 1])),
        (
            12,
            1,
            format!(
                "section {} (input_layernorm, layer 1): layer: expected below num_hidden_layers, 1",
                second(InputLayernorm)
            ),
        ),
        (12, 3, asks(LayerFlags, [3, 1])),
        (16, 1, asks(QkvBias, [48, 1])),
        (20, 2, asks(QkvBias, [96, 1])),
    ]
    .into_iter()
    .map(|(at, value, message)| {
        case(format!("config {at}: {value}"), At::Open, message, number(Config, at, value))
    })
    .collect();
    cases.push(case(
        "another head_dim",
        At::Open,
        asks(RopeInvFreq, [16, 1]),
        content(Config, |record| {
            put_u32(record, 24, 32);
            put_u32(record, 32, 32);
        }),
    ));
    let lm_head = place(LmHead);
    cases.push(case(
        "lm_head beside a tied embedding",
        At::Open,
        format!("{lm_head}: the config has no place for this section"),
        number(Config, 48, 1),
    ));
    for &kind in Kind::ALL {
        cases.push(reshaped(kind));
    }
    cases
}

/// What is wrong with the rare rows of a matrix of shape `whole`.
fn expects_rare([rows, columns]: [u64; 2], found: [u64; 2]) -> String {
    let expected = format!("the last of {rows} rows of {columns}, after a multiple of 16");
    format!("shape: expected {expected}, found {found:?}")
}

/// The section of `kind` is a well-formed one of a shape that it may not have.
fn reshaped(kind: Kind) -> Case {
    let part = &good().parts[good().index(kind)];
    let [rows, columns] = part.shape;
    let size = kind.dtypes()[0].size().unwrap();
    // Half the rows with twice the columns where only the number of columns is fixed, else another row.
    let (shape, expected) = match kind {
        Kind::Config => ([255, 1], "length: expected 256, found 255".to_owned()),
        Kind::Merges => {
            ([rows - 1, 4], format!("shape: expected [a power of two, 4], found [{}, 4]", rows - 1))
        }
        Kind::AddedTokens => ([2, 1], "shape: expected [n, 2], found [2, 1]".to_owned()),
        Kind::CharTokens => ([4, 1], "shape: expected [n, 2], found [4, 1]".to_owned()),
        Kind::Pretokenizer => ([rows / 2, 2], "shape: expected [n, 1]".to_owned()),
        Kind::TokenBytes | Kind::ChatTemplate | Kind::Metadata | Kind::WholeWords | Kind::PromptPrefix => {
            ([rows / 2, 2], format!("shape: expected [n, 1], found [{}, 2]", rows / 2))
        }
        Kind::EmbedTokensRare => ([37, 24], expects_rare([37, 24], [37, 24])),
        Kind::LmHeadRare => ([0, 24], expects_rare([37, 24], [0, 24])),
        _ => {
            let shape = [rows + 16, columns];
            (shape, format!("shape: the config asks for {:?}, found {shape:?}", part.shape))
        }
    };
    let bytes = rebuilt(|blob| {
        let part = blob.part(kind);
        part.shape = shape;
        let rows = match kind {
            Kind::GateUpProj => (shape[0] / 2).next_multiple_of(16) * 2,
            kind if kind.is_matrix() => shape[0].next_multiple_of(16),
            _ => shape[0],
        };
        part.content.resize((rows * shape[1] * size) as usize, 0);
    });
    case(format!("{} of another shape", kind.name()), At::Open, format!("{}: {expected}", place(kind)), bytes)
}

/// Each kind of section taken out, or there twice.
fn section_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for &kind in Kind::ALL {
        let index = good().index(kind);
        let layer = good().parts[index].layer;
        let name = kind.name();
        let without = rebuilt(|blob| {
            blob.parts.remove(index);
        });
        let whole = [Kind::EmbedTokens, Kind::LmHead].into_iter().find(|whole| whole.rare() == Some(kind));
        let message = match whole {
            Some(whole) => {
                format!("{}: shape: the config asks for [37, 24], found [16, 24]", place(whole))
            }
            None if kind.is_per_layer() => format!("no section {name} for layer 0"),
            None => format!("no section {name}"),
        };
        if !may_be_absent(kind) {
            cases.push(case(format!("without {name}"), At::Open, message, without));
        }
        let twice = rebuilt(|blob| blob.parts.insert(index + 1, blob.parts[index].clone()));
        let place = if layer == NONE { name.to_owned() } else { format!("{name}, layer {layer}") };
        let problem = match kind {
            kind if kind.is_numbered() => "layer: expected number 1",
            _ => "a second section of this kind and layer",
        };
        let message = format!("section {} ({place}): {problem}", index + 1);
        cases.push(case(format!("{name} twice"), At::Open, message, twice));
    }
    cases
}

fn text_cases() -> Vec<Case> {
    use At::{Use, Verify};
    let text = |kind| content(kind, |bytes| bytes[1] = 0xff);
    vec![
        case(
            "chat template not UTF-8",
            Verify,
            "chat_template: expected UTF-8, found another byte at 1",
            text(Kind::ChatTemplate),
        ),
        case(
            "metadata not UTF-8",
            Verify,
            "metadata: expected UTF-8, found another byte at 1",
            text(Kind::Metadata),
        ),
        case(
            "added token not UTF-8",
            Use,
            "added_tokens: token 0: its text is not UTF-8",
            text(Kind::TokenBytes),
        ),
    ]
}

/// The id of the token of a lower-case letter in the tiny tokenizer.
fn letter(letter: u8) -> usize {
    usize::from(letter - b'a') + 1
}

/// The merge table with `change` made to the slot of the merge of `t` and `h`.
fn merge_of_th(change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    content(Kind::Merges, |slots| {
        let pair = [letter(b't'), letter(b'h')].map(|id| id as u32);
        let mut slots = slots.chunks_exact_mut(16);
        let slot = slots.find(|slot| [get_u32(slot, 0), get_u32(slot, 4)] == pair);
        change(slot.expect("the table has this merge"));
    })
}

fn table_cases() -> Vec<Case> {
    use At::{Use, Verify};
    use Kind::*;
    let bytes_len = good().parts[good().index(TokenBytes)].content.len();
    let (th, e) = (30, letter(b'e'));
    vec![
        case(
            "first offset",
            Verify,
            format!("token_offsets: expected offsets from 0 to the end of token_bytes, {bytes_len}"),
            number(TokenOffsets, 0, 1),
        ),
        case(
            "last offset",
            Verify,
            format!("token_offsets: expected offsets from 0 to the end of token_bytes, {}", bytes_len - 1),
            rebuilt(|blob| {
                let part = blob.part(TokenBytes);
                part.content.pop();
                part.shape[0] -= 1;
            }),
        ),
        case(
            "offsets descending",
            Verify,
            "token_offsets: token 2 ends before it starts",
            number(TokenOffsets, 12, 3),
        ),
        case(
            "offset past token_bytes",
            Use,
            "token_offsets: token 0: its bytes are not inside token_bytes",
            number(TokenOffsets, 4, 1 << 30),
        )
        .verified("token_offsets: token 1 ends before it starts"),
        case(
            "byte token past the vocabulary",
            Use,
            "byte_tokens: expected token ids below vocab_size, 37, found 37",
            number(ByteTokens, 4 * usize::from(b'e'), 37),
        ),
        case(
            "byte token without bytes of its own",
            Verify,
            "byte_tokens: byte 101: token 6 stands for something else",
            number(ByteTokens, 4 * usize::from(b'e'), 6),
        ),
        case(
            "left id past the vocabulary",
            Verify,
            "merges: expected token ids below vocab_size, 37, found 4000",
            merge_of_th(|slot| put_u32(slot, 0, 4000)),
        ),
        case(
            "right id past the vocabulary",
            Verify,
            "merges: expected token ids below vocab_size, 37, found 4001",
            merge_of_th(|slot| put_u32(slot, 4, 4001)),
        ),
        case(
            "merged id past the vocabulary",
            Use,
            "merges: expected token ids below vocab_size, 37, found 4294967295",
            merge_of_th(|slot| put_u32(slot, 12, NONE)),
        ),
        case(
            "a merge into something else",
            Verify,
            format!("merges: tokens {} and {} do not add up to {e}", letter(b't'), letter(b'h')),
            merge_of_th(|slot| put_u32(slot, 12, e as u32)),
        ),
        case(
            "a full table of one merge",
            Verify,
            format!(
                "merges: the merge of {} and {} cannot be found where it lies",
                letter(b't'),
                letter(b'h')
            ),
            content(Merges, |slots| {
                for (rank, slot) in (0u32..).zip(slots.chunks_exact_mut(16)) {
                    put_u32(slot, 0, letter(b't') as u32);
                    put_u32(slot, 4, letter(b'h') as u32);
                    put_u32(slot, 8, rank);
                    put_u32(slot, 12, th);
                }
            }),
        ),
        case(
            "a full table that finds nothing",
            Verify,
            "merges: tokens 36 and 36 do not add up to 36",
            content(Merges, |slots| slots.chunks_exact_mut(4).for_each(|number| put_u32(number, 0, 36))),
        ),
        case(
            "added token past the vocabulary",
            Use,
            "added_tokens: expected token ids below vocab_size, 37, found 37",
            number(AddedTokens, 0, 37),
        ),
        case(
            "added token with unknown flags",
            Use,
            "added_tokens: token 0: it has flags that this version cannot act on",
            number(AddedTokens, 4, 9),
        ),
        case(
            "character past the vocabulary",
            Use,
            "char_tokens: expected token ids below vocab_size, 37, found 37",
            number(CharTokens, 4, 37),
        ),
        case("no character", Verify, "char_tokens: 55296 is no code point", number(CharTokens, 8, 0xd800)),
        case(
            "characters out of order",
            Verify,
            "char_tokens: code point 122: out of order",
            number(CharTokens, 0, 122),
        ),
        case(
            "character of another token",
            Verify,
            "char_tokens: 'n': token 1 stands for something else",
            number(CharTokens, 4, 1),
        ),
        case(
            "word past the vocabulary",
            Verify,
            "whole_words: expected token ids below vocab_size, 37, found 37",
            number(WholeWords, 0, 37),
        ),
        case("words out of order", Verify, "whole_words: token 1: out of order", number(WholeWords, 4, 1)),
        case(
            "prompt past the vocabulary",
            Verify,
            "prompt_prefix: expected token ids below vocab_size, 37, found 37",
            number(PromptPrefix, 4, 37),
        ),
        case(
            "unknown rules",
            At::Open,
            format!("{}: rules: expected 0 to 127, found 128", place(TextRules)),
            number(TextRules, 0, 128),
        ),
        case(
            "unknown layer flags",
            At::Open,
            format!("{}: flags: expected 0 to 3, found 4", place(LayerFlags)),
            number(LayerFlags, 0, 4),
        ),
        case(
            "a layer with a window that there is not",
            At::Open,
            format!(
                "{}: a layer with a sliding window, but the config has no sliding_window",
                place(LayerFlags)
            ),
            number(LayerFlags, 4, 2),
        ),
        case(
            "added token without text",
            Use,
            "added_tokens: token 0: its text is empty",
            number(TokenOffsets, 4, 0),
        )
        .verified("byte_tokens: byte 97: token 1 stands for something else"),
        case(
            "added tokens out of order",
            Verify,
            "added_tokens: token 0: out of order",
            rebuilt(|blob| {
                let part = blob.part(AddedTokens);
                part.content.extend_from_within(..);
                part.shape[0] = 2;
            }),
        ),
    ]
}

/// The pre-tokenizer's record: a header, the byte classes at 64, the accept flags at 320, then the transitions.
fn dfa_cases() -> Vec<Case> {
    use At::{Open, Use, Verify};
    use Kind::Pretokenizer;
    let record = &good().parts[good().index(Pretokenizer)].content;
    let [classes, states, start] = [0, 4, 8].map(|at| get_u32(record, at) as usize);
    let next = (320 + states).next_multiple_of(64);
    let edit = |change: &dyn Fn(&mut Vec<u8>)| content(Pretokenizer, |bytes| change(bytes));
    let resized = |len: usize| {
        rebuilt(|blob| {
            let part = blob.part(Pretokenizer);
            part.content.resize(len, 0);
            part.shape[0] = len as u64;
        })
    };
    let length = "pretokenizer: its length does not fit its numbers of states and byte classes";
    let counts = "pretokenizer: expected 1 to 256 byte classes and 1 to 65536 states";
    let contradiction = "pretokenizer: its tables contradict themselves";
    let stage = |problem: &str| format!("pretokenizer: stage 0: {problem}");
    vec![
        case("no classes", Open, counts, number(Pretokenizer, 0, 0)),
        case("257 classes", Open, counts, number(Pretokenizer, 0, 257)),
        case("a class fewer", Open, length, number(Pretokenizer, 0, classes as u32 - 1)),
        case("no states", Open, counts, number(Pretokenizer, 4, 0)),
        case("65537 states", Open, counts, number(Pretokenizer, 4, 65_537)),
        case("a state more", Open, length, number(Pretokenizer, 4, states as u32 + 1)),
        case(
            "start past the states",
            Open,
            "pretokenizer: the start state is not one of its states",
            number(Pretokenizer, 8, states as u32),
        ),
        case(
            "start past 16 bits",
            Open,
            "pretokenizer: the start state is not one of its states",
            number(Pretokenizer, 8, 65_536 + start as u32),
        ),
        case(
            "unknown flags of a stage",
            Open,
            "pretokenizer: reserved bytes or flags are not zero",
            number(Pretokenizer, 12, 4),
        ),
        case(
            "reserved bytes of a stage",
            Open,
            "pretokenizer: reserved bytes or flags are not zero",
            number(Pretokenizer, 60, 1),
        ),
        case("a stage cut short", Open, length, resized(record.len() - 2)),
        case("a stage too long", Open, length, resized(record.len() + 2)),
        case("a stage without a header", Open, "pretokenizer: shorter than its 64-byte header", resized(63)),
        case("an empty stage", Open, "pretokenizer: shorter than its 64-byte header", resized(0)),
        case(
            "a class that there is not",
            Verify,
            stage("a byte has a class that is not one of its classes"),
            edit(&|bytes| bytes[64 + usize::from(b'Z')] = 255),
        ),
        case(
            "transitions past the states",
            Use,
            contradiction,
            edit(&|bytes| bytes[next + 2 * classes..].fill(0xff)),
        )
        .verified(&stage("a transition leads to a state that is not one of its states")),
        case(
            "classes past the table",
            Use,
            contradiction,
            edit(&|bytes| {
                bytes[64..320].fill(255);
                put_u32(bytes, 8, states as u32 - 1); // the last state, whose row ends the table
            }),
        )
        .verified(&stage("a byte has a class that is not one of its classes")),
        case(
            "an accept flag of 2",
            Verify,
            stage("an accept flag is neither 0 nor 1"),
            edit(&|bytes| bytes[320 + states - 1] = 2),
        ),
        case(
            "a dead state that can be left",
            Verify,
            stage("the dead state accepts or can be left"),
            edit(&|bytes| bytes[next] = 1),
        ),
        case(
            "a dead state that accepts",
            Verify,
            stage("the dead state accepts or can be left"),
            edit(&|bytes| bytes[320] = 1),
        ),
        case(
            "the empty match",
            Verify,
            stage("it matches where there is no text"),
            edit(&|bytes| bytes[320 + start] = 1),
        ),
        case(
            "a match that ends inside a character",
            Verify,
            stage("it matches where there is no text"),
            edit(&|bytes| bytes[320 + 1..320 + states].fill(1)),
        ),
        case(
            "17 stages",
            Use,
            "pretokenizer: expected at most 16 stages, found 17",
            rebuilt(|blob| {
                let index = blob.index(Pretokenizer);
                for layer in 1..17 {
                    let stage = Part { layer, ..blob.parts[index].clone() };
                    blob.parts.insert(index + layer as usize, stage);
                }
            }),
        ),
    ]
}

fn number_cases() -> Vec<Case> {
    use At::{Use, UseOnly};
    use Kind::*;
    let not_finite = "the model's logits are not finite: its weights are damaged";
    let mut cases = Vec::new();
    for (kind, name) in [
        (RopeInvFreq, "rope_inv_freq"),
        (InputLayernorm, "input_layernorm"),
        (Norm, "norm"),
        (PostAttentionLayernorm, "post_attention_layernorm"),
    ] {
        for number in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let bytes = content(kind, |bytes| put_u32(bytes, 8, number.to_bits()));
            let verified = format!("{name}: element 2: expected a finite number");
            cases.push(case(format!("{number} in {name}"), Use, not_finite, bytes).verified(&verified));
        }
    }
    for kind in [QkvProj, OProj, GateUpProj, DownProj, LmHead, LmHeadRare] {
        for number in [f32::NAN, f32::INFINITY] {
            let fill = |bytes: &mut Vec<u8>| {
                bytes.chunks_exact_mut(4).for_each(|at| put_u32(at, 0, number.to_bits()))
            };
            let name = format!("{number} in {}", kind.name());
            cases.push(case(name, UseOnly, not_finite, content(kind, fill)));
        }
    }
    cases
}

/// A byte changed in each section and each gap, and nobody told.
fn flipped_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut end = HEADER_LEN + good().parts.len() * ENTRY_LEN;
    for (index, part) in good().parts.iter().enumerate() {
        let at = HEADER_LEN + index * ENTRY_LEN;
        let offset = get_u64(good_bytes(), at + 32) as usize;
        let place = place_at(index);
        if offset > end {
            for gap in [end, offset - 1] {
                cases.push(case(
                    format!("padding before {place} at {gap}"),
                    At::Verify,
                    format!("the byte at offset {gap}, between sections, is not zero"),
                    unsigned(|b| b[gap] = 1),
                ));
            }
        }
        end = offset + part.content.len();
        // What is read on opening is changed to something else that could be.
        let (byte, bit) = match Kind::from_code(part.kind) {
            Some(Kind::Config) => (offset + 28, 0x10), // a shorter context
            Some(Kind::Pretokenizer) => (end - 1, 0x10),
            Some(Kind::TextRules) => (offset, 0x10), // another rule
            Some(Kind::LayerFlags) => (offset, 1),   // no rotary embedding
            _ => (offset + part.content.len() / 2, 0x10),
        };
        cases.push(case(
            format!("a bit of {place}"),
            At::Verify,
            format!("{place}: content does not match its SHA-256: the file is damaged"),
            unsigned(|b| b[byte] ^= bit),
        ));
        let hash = signed(|b| b[at + 95] ^= 1);
        cases.push(case(
            format!("hash of {place}"),
            At::Verify,
            format!("{place}: content does not match its SHA-256: the file is damaged"),
            hash,
        ));
    }
    cases
}

/// The file cut at every edge of a section, and one byte to its sides.
fn truncated_cases() -> Vec<Case> {
    let (whole, sections) = (good_bytes(), good().parts.len());
    let entry = |index: usize| HEADER_LEN + index * ENTRY_LEN;
    let bounds = |index: usize| [32, 40].map(|field| get_u64(whole, entry(index) + field) as usize);
    let ends = (0..sections).map(bounds).flat_map(|[offset, length]| [offset, offset + length]);
    let edges = [1, 128, entry(1), entry(sections)].into_iter().chain(ends);
    let mut cuts: Vec<usize> = edges.flat_map(|edge| [edge - 1, edge, edge + 1]).collect();
    cuts.retain(|&cut| cut < whole.len());
    cuts.sort_unstable();
    cuts.dedup();
    let mut cases = Vec::new();
    for cut in cuts {
        let message = match cut < HEADER_LEN {
            true => format!("not a blob: expected at least the 128 bytes of a header, found {cut}"),
            false => incomplete(cut as u64, whole.len() as u64),
        };
        cases.push(case(format!("cut at {cut}"), At::Open, message, whole[..cut].to_vec()));
        if cut < HEADER_LEN {
            continue;
        }
        // With a header that admits it, the directory is the next to notice.
        let mut admitted = whole[..cut].to_vec();
        put_u64(&mut admitted, 16, cut as u64);
        sign(&mut admitted);
        let lost = (0..sections).find(|&index| bounds(index).iter().sum::<usize>() > cut);
        let lost = lost.expect("something is cut off");
        let [offset, length] = bounds(lost);
        let message = match cut < entry(sections) {
            true => format!(
                "header: section_count: expected at most 65536 and a directory inside the file, found {sections}"
            ),
            false => format!(
                "{}: {length} bytes at offset {offset} reach past the file's {cut} bytes",
                place_at(lost)
            ),
        };
        cases.push(case(format!("admittedly cut at {cut}"), At::Open, message, admitted));
    }
    cases
}

/// Faults with words of their own: no two of these cases have the same message.
fn distinct_cases() -> Vec<Case> {
    let tables = [header_cases(), entry_cases(), shape_cases(), section_cases(), text_cases()];
    tables.into_iter().flatten().collect()
}

/// Faults of which several share a message.
fn other_cases() -> Vec<Case> {
    let tables =
        [config_cases(), table_cases(), dfa_cases(), number_cases(), flipped_cases(), truncated_cases()];
    tables.into_iter().flatten().collect()
}

fn all_cases() -> Vec<Case> {
    distinct_cases().into_iter().chain(other_cases()).collect()
}

/// Opens the blob, encodes and continues the prompt.
fn use_blob(bytes: &[u8]) -> smolrun::Result<()> {
    let model = Model::from_bytes(bytes)?;
    let prompt = model.tokenizer().encode(PROMPT, SpecialTokens::Parse)?;
    let mut session = Session::new(&model, SessionOptions::default().threads(1))?;
    session.generate(&prompt, GenerateOptions::default().max_tokens(4))?.try_for_each(|token| token.map(drop))
}

fn verify_blob(bytes: &[u8]) -> smolrun::Result<()> {
    let model = Model::from_bytes(bytes)?;
    model.verify_with(Some(2), &|_| ())
}

fn message(result: smolrun::Result<()>) -> String {
    result.err().map_or_else(|| "no error".to_owned(), |error| error.to_string())
}

#[test]
fn the_library_has_an_error_for_each() {
    let cases = all_cases();
    for Case { name, at, message: expected, verified, bytes } in &cases {
        let opened = Model::from_bytes(bytes).map(drop);
        assert_eq!(opened.is_err(), *at == At::Open, "{name}: {}", message(opened));
        if *at != At::Verify {
            assert_eq!(&message(use_blob(bytes)), expected, "{name}");
        }
        let verified = verified.as_ref().unwrap_or(expected);
        match at {
            At::UseOnly => assert!(verify_blob(bytes).is_ok(), "{name}"),
            _ => assert_eq!(&message(verify_blob(bytes)), verified, "{name}, verified"),
        }
    }
    println!("{} broken blobs", cases.len());
}

/// What is said of a file of `found` bytes whose header says more.
fn incomplete(found: u64, expected: u64) -> String {
    format!("the file has {found} bytes, its header says {expected}: it is incomplete")
}

/// One line that starts with the program's name and the file's, exit code 1, nothing on standard output.
fn assert_fails(name: &str, outcome: &Outcome, program: &str, path: &Path, expected: &str) {
    assert_eq!((outcome.code, outcome.stdout.as_str()), (1, ""), "{name}: {outcome:?}");
    let named = format!("{program}: error: {}: {expected}\n", path.display());
    let unnamed = format!("{program}: error: {expected}\n");
    assert!(
        outcome.stderr == named || outcome.stderr == unnamed,
        "{name}: expected {named}found {outcome:?}"
    );
}

#[test]
fn the_programs_say_so_in_one_line() {
    let temp = TempDir::new();
    let path = temp.join("broken.bin");
    let file = path.to_str().expect("a temporary path is text");
    for Case { name, at, message, verified, bytes } in &all_cases() {
        fs::write(&path, bytes).unwrap();
        let verified = verified.as_ref().unwrap_or(message);
        if *at != At::Verify {
            let outcome = run("smolrun", &[file, PROMPT, "--special", "-n", "4", "--threads", "1"]);
            assert_fails(name, &outcome, "smolrun", &path, message);
        }
        if *at != At::UseOnly {
            assert_fails(name, &run("smolrun", &[file, "x", "--verify"]), "smolrun", &path, verified);
            assert_fails(name, &run("smolconv", &["verify", file]), "smolconv", &path, verified);
        }
        if *at == At::Open {
            assert_fails(name, &run("smolconv", &["inspect", file]), "smolconv", &path, message);
            assert_fails(name, &run("smolrun", &[file, "x", "--no-mmap"]), "smolrun", &path, message);
        }
    }
    assert_eq!(temp.names(), ["broken.bin"]);
}

#[test]
fn every_fault_has_words_of_its_own() {
    let mut names: HashMap<String, String> = HashMap::new();
    for Case { name, message, .. } in distinct_cases() {
        if let Some(other) = names.insert(message.clone(), name.clone()) {
            panic!("{name} and {other}: {message}");
        }
    }
    assert!(names.len() >= 100, "{}", names.len());
}

#[test]
fn what_is_only_unusual_is_no_fault() {
    let spare = |kind: u32, flags: u32| Part {
        kind,
        layer: NONE,
        dtype: 77,
        flags,
        shape: [3, 9],
        content: b"from a later version".to_vec(),
    };
    let without = |kind: Kind| {
        rebuilt(|blob| {
            let index = blob.index(kind);
            blob.parts.remove(index);
        })
    };
    let cases: [(&str, Vec<u8>); 9] = [
        ("as it was", good_bytes().to_vec()),
        ("tied", tied().build()),
        ("a newer minor version", signed(|bytes| bytes[10] = 1)),
        ("a much newer minor version", signed(|bytes| bytes[10..12].fill(0xff))),
        ("an unknown section that is optional", rebuilt(|blob| blob.parts.insert(3, spare(99, 0)))),
        ("two of them", rebuilt(|blob| blob.parts.splice(0..0, [spare(99, 0), spare(99, 0)]).for_each(drop))),
        ("no chat template", without(Kind::ChatTemplate)),
        ("no metadata", without(Kind::Metadata)),
        ("no pre-tokenizer", without(Kind::Pretokenizer)),
    ];
    for (name, bytes) in cases {
        assert_eq!(message(use_blob(&bytes)), "no error", "{name}");
        assert_eq!(message(verify_blob(&bytes)), "no error", "{name}, verified");
    }
}

#[test]
fn a_damaged_chat_template_is_an_error_where_it_is_used() {
    let temp = TempDir::new();
    let path = temp.join("blob.bin");
    let chat = |template: &[u8]| {
        let bytes = rebuilt(|blob| {
            let part = blob.part(Kind::ChatTemplate);
            part.content = template.to_vec();
            part.shape[0] = template.len() as u64;
        });
        fs::write(&path, bytes).unwrap();
        run("smolrun", &[path.to_str().unwrap(), "--chat", "the", "-n", "1"])
    };
    assert_eq!(chat(b"{{ messages[0].content }}").code, 0);
    for (template, expected) in [
        (&b"a\xff"[..], "chat_template: not UTF-8"),
        (b"{% if %}", "chat template: syntax error: "),
        (b"{{ messages[0].content", "chat template: syntax error: "),
        (b"{{ 1 / 0 }}", "chat template: "),
        (b"{{ raise_exception('two\nlines \x1b[31m') }}", "chat template: two\\nlines \\u{1b}[31m"),
        (b"{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", "steps"),
        (b"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "more than 150 deep"),
        (b"{% include 'x' %}", "chat template: "),
    ] {
        let outcome = chat(template);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (1, ""), "{outcome:?}");
        assert!(
            outcome.stderr.starts_with("smolrun: error: ") && outcome.stderr.contains(expected),
            "{outcome:?}"
        );
        assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    }
}

#[test]
fn logits_that_json_cannot_express_are_an_error() {
    let temp = TempDir::new();
    let path = temp.join("blob.bin");
    fs::write(&path, content(Kind::Norm, |bytes| put_u32(bytes, 0, f32::NAN.to_bits()))).unwrap();
    let outcome = run("smolrun", &["logits", path.to_str().unwrap(), "--ids", "1,2"]);
    let expected = "the model's logits are not finite: its weights are damaged";
    assert_fails("logits", &outcome, "smolrun", &path, expected);
}

#[test]
fn what_is_no_regular_file_is_refused() {
    let temp = TempDir::new();
    let path = temp.join("it");
    let file = path.to_str().unwrap();
    let refused = |expected: &str| {
        for args in [
            &[file, "x"][..],
            &[file, "x", "--no-mmap"],
            &["tokenize", file],
            &["logits", file, "--ids", "1"],
        ] {
            assert_fails(expected, &run("smolrun", args), "smolrun", &path, expected);
        }
    };
    refused("No such file or directory (os error 2)");
    fs::create_dir(&path).unwrap();
    refused("expected model.safetensors or model.safetensors.index.json in this directory, found neither");
    fs::remove_dir(&path).unwrap();
    // Opening a pipe would wait for a writer who never comes.
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    refused("not a regular file");
}
