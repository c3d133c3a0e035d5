//! A reader written from `format-spec.md` alone: proof that the document is enough. It shares no code with the runtime
//! but is compared with it, and with the checkpoint.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use serde_json::Value;
use sha2::{Digest, Sha256};
use smol_tests::common::{self as generated, Quantized, TempDir, TensorDtype, data, run, tales};

const NONE: u32 = u32::MAX;

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()).try_into().unwrap()
}

fn f32_at(bytes: &[u8], at: usize) -> f32 {
    f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

struct Section<'a> {
    dtype: u32,
    rows: usize,
    columns: usize,
    bytes: &'a [u8],
}

/// "Layout of the file", "Header" and "Directory".
struct Blob<'a> {
    sections: HashMap<(u32, u32), Section<'a>>,
}

impl<'a> Blob<'a> {
    fn read(bytes: &'a [u8]) -> Blob<'a> {
        assert_eq!(bytes[..8], [0x89, 0x53, 0x4d, 0x4f, 0x4c, 0x0d, 0x0a, 0x1a]);
        assert_eq!((u16_at(bytes, 8), u16_at(bytes, 10)), (1, 3));
        assert_eq!((u32_at(bytes, 12), u32_at(bytes, 28), u64_at(bytes, 32)), (128, 96, 128));
        assert_eq!(u64_at(bytes, 16), bytes.len());
        assert!(bytes[40..96].iter().all(|&byte| byte == 0));
        let count = u32_at(bytes, 24) as usize;
        let directory = &bytes[128..128 + 96 * count];
        let mut header = bytes[..128].to_vec();
        header[96..].fill(0);
        assert_eq!(Sha256::digest([&header, directory].concat())[..], bytes[96..128]);
        let (mut sections, mut end) = (HashMap::new(), 128 + directory.len());
        for entry in directory.chunks_exact(96) {
            let (kind, layer, dtype) = (u32_at(entry, 0), u32_at(entry, 4), u32_at(entry, 8));
            let (offset, length) = (u64_at(entry, 32), u64_at(entry, 40));
            let (alignment, size) = match kind {
                16 | 18 | 19 | 21 | 22 | 24 | 28 | 29 => (4096, if dtype == 4 { 2 } else { 4 }),
                2..=3 | 5..=7 | 11..=15 | 17 | 20 | 23 | 25..=27 | 30 | 31 => (64, 4),
                _ => (64, 1),
            };
            assert_eq!(offset % alignment, 0);
            assert!(bytes[end..offset].iter().all(|&byte| byte == 0));
            end = offset + length;
            let content = &bytes[offset..end];
            assert_eq!(Sha256::digest(content)[..], entry[64..96]);
            let (rows, columns) = (u64_at(entry, 16), u64_at(entry, 24));
            let padded = match kind {
                21 => (rows / 2).next_multiple_of(16) * 2,
                _ if alignment == 4096 => rows.next_multiple_of(16),
                _ => rows,
            };
            match dtype {
                5.. => assert_eq!(Quantized::new(dtype, columns, content).panels(), padded / 16),
                _ => assert_eq!(length, padded * columns * size),
            }
            assert!(
                sections.insert((kind, layer), Section { dtype, rows, columns, bytes: content }).is_none()
            );
        }
        assert_eq!(end, bytes.len());
        Blob { sections }
    }

    fn section(&self, kind: u32) -> &Section<'a> {
        &self.sections[&(kind, NONE)]
    }

    fn element(&self, kind: u32, layer: u32, row: usize, column: usize) -> f32 {
        self.sections[&(kind, layer)].element(row / 16, row, column)
    }

    /// "Rare tokens".
    fn embedding(&self, row: usize, column: usize) -> f32 {
        let mut row = row;
        for place in [(16, NONE), (28, 0), (28, 1)] {
            match row.checked_sub(self.sections[&place].rows) {
                Some(later) => row = later,
                None => return self.element(place.0, place.1, row, column),
            }
        }
        panic!("there are fewer rows");
    }

    /// "Gate and up".
    fn gate_or_up(&self, layer: u32, up: bool, row: usize, column: usize) -> f32 {
        self.sections[&(21, layer)].element(row / 16 * 2 + usize::from(up), row, column)
    }
}

impl Section<'_> {
    /// "Panels".
    fn element(&self, panel: usize, row: usize, column: usize) -> f32 {
        if self.dtype >= 5 {
            return Quantized::new(self.dtype, self.columns, self.bytes).element(panel, row, column);
        }
        let panel = panel * self.columns * 16;
        if self.dtype == 4 {
            let number = panel + column / 2 * 32 + row % 16 * 2 + column % 2;
            return f32::from_bits(u32::from(u16_at(self.bytes, 2 * number)) << 16);
        }
        f32_at(self.bytes, 4 * (panel + column * 16 + row % 16))
    }
}

/// "Tokenizer".
struct Tokenizer<'a> {
    blob: &'a Blob<'a>,
}

impl<'a> Tokenizer<'a> {
    fn token(&self, id: u32) -> &'a [u8] {
        let offsets = self.blob.section(3).bytes;
        let [start, end] = [id, id + 1].map(|id| u32_at(offsets, 4 * id as usize) as usize);
        &self.blob.section(4).bytes[start..end]
    }

    /// The words of an optional table.
    fn words(&self, kind: u32) -> Vec<u32> {
        let section = self.blob.sections.get(&(kind, NONE));
        let bytes = section.map_or(&[][..], |section| section.bytes);
        bytes.chunks_exact(4).map(|word| u32_at(word, 0)).collect()
    }

    /// "Text rules".
    fn has_rule(&self, rule: u32) -> bool {
        self.words(11).first().is_some_and(|rules| rules & rule != 0)
    }

    /// "From text to ids".
    fn encode(&self, text: &str, special: bool) -> Vec<u32> {
        let mut ids = Vec::new();
        self.find_added(text, special, 0, &mut ids, &mut |text, at, ids| {
            let mut text = text.to_owned();
            assert!(!self.has_rule(1), "this reader has no tables of Unicode");
            if self.has_rule(2) {
                text = text.replace('▁', " ");
            }
            if self.has_rule(4) {
                text.insert(0, ' ');
            }
            self.find_added(&text, special, 16, ids, &mut |text, inside, ids| {
                let mut text = text.to_owned();
                if self.has_rule(8) {
                    text = text.replace('▁', " ");
                }
                let here = !self.has_rule(32) || at == 0 && inside == 0;
                if self.has_rule(16) && here && !text.starts_with(' ') {
                    text.insert(0, ' ');
                }
                self.pretokenize(&text, 0, ids);
            });
        });
        ids
    }

    /// Pass 1 (`pass` 0) or 2 (`pass` 16): hands the texts between, and where they start, to `rest`.
    fn find_added(
        &self,
        text: &str,
        special: bool,
        pass: u32,
        ids: &mut Vec<u32>,
        rest: &mut dyn FnMut(&str, usize, &mut Vec<u32>),
    ) {
        let records = self.blob.section(7).bytes.chunks_exact(8).map(|r| (u32_at(r, 0), u32_at(r, 4)));
        let records: Vec<_> = records.filter(|(_, flags)| flags & 16 == pass).collect();
        let (mut done, mut at) = (0, 0);
        while at < text.len() {
            let here = &text.as_bytes()[at..];
            let starts = records.iter().filter(|(id, _)| here.starts_with(self.token(*id)));
            let Some(&(id, flags)) = starts.max_by_key(|(id, _)| self.token(*id).len()) else {
                at += 1;
                continue;
            };
            let (mut start, mut end) = (at, at + self.token(id).len());
            at = end;
            if flags & 1 == 0 || special {
                while flags & 2 != 0 && start > done && text[..start].ends_with(char::is_whitespace) {
                    start = text[..start].char_indices().next_back().unwrap().0;
                }
                while flags & 4 != 0 && text[end..].starts_with(char::is_whitespace) {
                    end += text[end..].chars().next().unwrap().len_utf8();
                }
                if done < start {
                    rest(&text[done..start], done, ids);
                }
                ids.push(id);
                done = end;
            }
        }
        if done < text.len() {
            rest(&text[done..], done, ids);
        }
    }

    /// "Pre-tokenizer".
    fn pretokenize(&self, text: &str, stage: u32, ids: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let Some(section) = self.blob.sections.get(&(8, stage)) else { return self.merge(text, ids) };
        let (mut done, mut at) = (0, 0);
        while at < text.len() {
            match match_len(section.bytes, &text[at..]) {
                0 => at += text[at..].chars().next().unwrap().len_utf8(),
                len => {
                    self.pretokenize(&text[done..at], stage + 1, ids);
                    self.pretokenize(&text[at..at + len], stage + 1, ids);
                    at += len;
                    done = at;
                }
            }
        }
        self.pretokenize(&text[done..], stage + 1, ids);
    }

    fn merge(&self, word: &str, ids: &mut Vec<u32>) {
        if let Some(&whole) = self.words(13).iter().find(|&&id| self.token(id) == word.as_bytes()) {
            return ids.push(whole);
        }
        let (byte_tokens, char_tokens) = (self.words(5), self.words(12));
        let symbols = word.chars().flat_map(|c| {
            match char_tokens.chunks_exact(2).find(|entry| entry[0] == u32::from(c)) {
                Some(entry) => vec![entry[1]],
                None => c.to_string().bytes().map(|byte| byte_tokens[usize::from(byte)]).collect(),
            }
        });
        let mut symbols: Vec<u32> = symbols.filter(|&id| id != NONE).collect();
        loop {
            let pairs = symbols.windows(2).enumerate();
            let merges =
                pairs.filter_map(|(at, pair)| self.lookup(pair[0], pair[1]).map(|(rank, id)| (rank, at, id)));
            let Some((_, at, merged)) = merges.min() else { break };
            symbols.splice(at..at + 2, [merged]);
        }
        ids.extend(symbols);
    }

    /// "Merges".
    fn lookup(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        let bytes = self.blob.section(6).bytes;
        let slots = bytes.len() / 16;
        let product = (u64::from(left) << 32 | u64::from(right)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let home = if slots == 1 { 0 } else { product >> (64 - slots.ilog2()) } as usize;
        for step in 0..64 {
            let slot = &bytes[(home + step) % slots * 16..][..16];
            match (u32_at(slot, 0), u32_at(slot, 4)) {
                (NONE, _) => return None,
                pair if pair == (left, right) => return Some((u32_at(slot, 8), u32_at(slot, 12))),
                _ => {}
            }
        }
        None
    }
}

/// "A match" and "The trailing-space rule".
fn match_len(stage: &[u8], text: &str) -> usize {
    let [class_count, state_count, start, flags] = [0, 4, 8, 12].map(|at| u32_at(stage, at) as usize);
    let next = &stage[(320 + state_count).next_multiple_of(64)..];
    let (mut state, mut len) = (start, 0);
    for (index, byte) in text.bytes().enumerate() {
        let class = usize::from(stage[64 + usize::from(byte)]);
        state = u16_at(next, 2 * (state * class_count + class)).into();
        if state == 0 {
            break;
        }
        if stage[320 + state] == 1 {
            len = index + 1;
        }
    }
    let last = text[..len].chars().next_back();
    let stays = |last: &char| flags & 2 == 2 && matches!(last, '\n' | '\r');
    match last.filter(|last| flags & 1 == 1 && last.is_whitespace() && !stays(last)).map(char::len_utf8) {
        Some(last) if last < len && len < text.len() => len - last,
        _ => len,
    }
}

/// The tensors of tales, all bfloat16.
struct Checkpoint {
    bytes: Vec<u8>,
    header: Value,
}

impl Checkpoint {
    fn read(path: &Path) -> Checkpoint {
        let bytes = fs::read(path).unwrap();
        let header = serde_json::from_slice(&bytes[8..8 + u64_at(&bytes, 0)]).unwrap();
        Checkpoint { bytes, header }
    }

    fn element(&self, name: &str, row: usize, column: usize) -> f32 {
        let tensor = &self.header[name];
        let columns = tensor["shape"][1].as_u64().unwrap() as usize;
        let start = tensor["data_offsets"][0].as_u64().unwrap() as usize + 8 + u64_at(&self.bytes, 0);
        f32::from_bits(u32::from(u16_at(&self.bytes, start + 2 * (row * columns + column))) << 16)
    }

    fn largest_of(&self, name: &str, row: usize) -> f32 {
        let columns = self.header[name]["shape"][1].as_u64().unwrap() as usize;
        (0..columns).map(|column| self.element(name, row, column).abs()).fold(0.0, f32::max)
    }
}

fn tales_blob(dtype: &str) -> Vec<u8> {
    let temp = TempDir::new();
    let out = temp.join("tales.bin");
    let more = ["--dtype", dtype, "--calibrate", "none"].map(AsRef::as_ref);
    let outcome =
        run("smolconv", &[&[tales().as_os_str(), "-o".as_ref(), out.as_os_str()], &more[..]].concat());
    assert_eq!(outcome.code, 0, "{outcome:?}");
    fs::read(out).unwrap()
}

#[test]
fn weights_found_by_the_document_are_the_checkpoints() {
    // The widest steps there are; a difference of half a step is what rounding makes.
    let q3 = ("q3", 48.0 / 127.0);
    for (dtype, tolerance) in [("f32", 0.0), ("bf16", 0.0), ("q8", 1.0 / 127.0), ("q4", 31.0 / 127.0), q3] {
        compare_weights(&Blob::read(&tales_blob(dtype)), tolerance);
    }
}

fn compare_weights(blob: &Blob, tolerance: f32) {
    let checkpoint = Checkpoint::read(&tales().join("model.safetensors"));
    for (row, column) in [(0, 0), (17, 3), (15, 191), (16, 0), (63, 100)] {
        let expect = |found: f32, name: &str| {
            let expected = checkpoint.element(name, row, column);
            let tolerance = tolerance * checkpoint.largest_of(name, row);
            assert!((found - expected).abs() <= tolerance, "{name}: {found}, not {expected}");
        };
        expect(blob.element(16, NONE, row, column), "model.embed_tokens.weight");
        for layer in [0, 7] {
            let name = |name: &str| format!("model.layers.{layer}.{name}_proj.weight");
            expect(blob.element(18, layer, row, column), &name("self_attn.q"));
            expect(blob.element(18, layer, 192 + row, column), &name("self_attn.k"));
            expect(blob.element(18, layer, 256 + row, column), &name("self_attn.v"));
            expect(blob.element(19, layer, row, column), &name("self_attn.o"));
            expect(blob.gate_or_up(layer, false, row, column), &name("mlp.gate"));
            expect(blob.gate_or_up(layer, true, row, column), &name("mlp.up"));
            expect(blob.element(22, layer, row, column), &name("mlp.down"));
        }
    }
    for (row, column) in [(511, 7), (512, 8), (2047, 9), (2048, 10), (4095, 191)] {
        let name = "model.embed_tokens.weight";
        let (found, expected) = (blob.embedding(row, column), checkpoint.element(name, row, column));
        let tolerance = tolerance * checkpoint.largest_of(name, row);
        assert!((found - expected).abs() <= tolerance, "[{row}, {column}]: {found}, not {expected}");
    }
}

#[test]
fn text_encoded_by_the_document_has_the_runtimes_ids() {
    compare_tokenizers("tales", &tales_blob("f32"));
    for name in ["gpt2", "llama3", "llama2-legacy", "llama2-normalized", "mistral", "metaspace-always"] {
        let json = fs::read(data(&format!("tokenizers/{name}.json"))).unwrap();
        let mut checkpoint = generated::Checkpoint::tiny(TensorDtype::F32);
        checkpoint.use_tokenizer(serde_json::from_slice(&json).unwrap(), 1024);
        let temp = TempDir::new();
        checkpoint.write(&temp.join("model"));
        let (source, out) = (temp.join("model"), temp.join("out.bin"));
        let outcome = run("smolconv", &[source.as_os_str(), "-o".as_ref(), out.as_os_str()]);
        assert_eq!(outcome.code, 0, "{outcome:?}");
        compare_tokenizers(name, &fs::read(out).unwrap());
    }
}

fn compare_tokenizers(name: &str, bytes: &[u8]) {
    let blob = Blob::read(bytes);
    let reader = Tokenizer { blob: &blob };
    let storage = std::sync::Arc::new(smolrun::storage::Storage::from_bytes(bytes).unwrap());
    let layout = smolrun::format::Layout::parse(storage.bytes()).unwrap();
    let runtime = smolrun::tokenizer::Tokenizer::new(storage, &layout);
    let texts = [
        "",
        "Once upon a time, there lived a king who had 3 daughters.",
        "  two  spaces 12  34\n\n and\ttabs \u{3000} ",
        "I'll, it's we've THEY'RE; naïve 日本語 🦊 \u{4}\u{13} end ",
        "a<|endoftext|><|im_start|>user\n<|im_end|> <|im_sta",
        "<|im_end|><|im_end|>",
        "<s>[INST] a <mask>  b <cut>  c \n<both>\n▁d</s> ▁▁ e<s> <s>",
        "12345 \r\n  x\n \n",
    ];
    for text in texts {
        for (special, parse) in
            [(false, smolrun::SpecialTokens::AsText), (true, smolrun::SpecialTokens::Parse)]
        {
            let ids = reader.encode(text, special);
            assert_eq!(ids, runtime.encode(text, parse).unwrap(), "{name}: {text:?}");
            let prompt = [reader.words(14), ids].concat();
            assert_eq!(prompt, runtime.encode_prompt(text, parse).unwrap(), "{name}: {text:?}");
        }
    }
    let text = texts[1];
    let decoded: Vec<u8> =
        reader.encode(text, false).iter().flat_map(|&id| reader.token(id).to_vec()).collect();
    let stripped = if reader.has_rule(64) { &decoded[1..] } else { &decoded };
    assert_eq!(stripped, text.as_bytes(), "{name}");
}

/// The bytes that the document shows are those of a blob made now. What depends on the metadata, and with it on the
/// converter's version, is left out.
#[test]
fn the_documents_example_is_a_real_blob() {
    let bytes = tales_blob("f32");
    let document =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../format-spec.md")).unwrap();
    let mut lines = 0;
    for line in document.lines() {
        let Some((offset, rest)) = line.trim_start().split_once("  ").filter(|(offset, _)| offset.len() == 8)
        else {
            continue;
        };
        let Ok(offset) = usize::from_str_radix(offset, 16) else { continue };
        for (at, byte) in (offset..).zip(rest.split_whitespace()) {
            let depends_on_metadata = (16..24).contains(&at) || (96..128).contains(&at);
            let expected = u8::from_str_radix(byte, 16).unwrap();
            assert!(depends_on_metadata || bytes[at] == expected, "offset {at:#x}: {:02x}", bytes[at]);
        }
        lines += 1;
    }
    assert_eq!(lines, 8 + 6 + 4);
}
