//! What hostile files and texts cost: memory in proportion to what holds them, whatever they say. Steps are counted in the
//! runtime's own tests.

use std::fs::{self, File};
use std::path::Path;

use smol_tests::common::counting::{Counting, Memory, Random, alone};
use smol_tests::common::{Blob, Checkpoint, TempDir, TensorDtype, damage, data, tokenizer};
use smolconv::tokenizer::{TokenizerTables, compile};
use smolconv::{Options, Progress, convert};
use smolrun::chat::ChatOptions;
use smolrun::{Error, Message, Model, SpecialTokens};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Memory for a byte of a text that is encoded, all that is copied and kept of it together.
const BYTES_FOR_A_BYTE: usize = 64;
/// Memory for a byte of a text for which there is no room: it is normalized, and no more. Only a run of nothing but combining
/// marks, which are sorted together, comes near.
const BYTES_FOR_A_BYTE_IN_VAIN: usize = 16;
/// What has nothing to do with the text.
const OTHER_BYTES: usize = 2 << 20;

/// Most bytes that `work` takes at a time.
fn memory<T>(work: impl FnOnce() -> T) -> (usize, T) {
    Memory::begin();
    let before = Memory::now().alive;
    let done = work();
    (Memory::now().most - before, done)
}

/// The tables of every kind of tokenizer, by name.
fn all_tables() -> Vec<(String, TokenizerTables)> {
    let mut paths: Vec<_> =
        fs::read_dir(data("tokenizers")).unwrap().map(|file| file.unwrap().path()).collect();
    paths.sort();
    let tables = |path: &Path| {
        let json = fs::read(path).unwrap();
        (path.file_stem().unwrap().to_string_lossy().into_owned(), compile(&json, 4096).unwrap())
    };
    paths.iter().map(|path| tables(path)).collect()
}

/// Texts of about `len` bytes: of one word, of many, of marks that are sorted and composed, and random ones.
fn texts(len: usize, random: &mut Random) -> Vec<String> {
    let repeat = |text: &str| text.repeat(len / text.len());
    let mut texts: Vec<String> = [
        "a",
        " ",
        "ab",
        "the end ",
        "e\u{301}\u{323}",
        "\u{323}\u{301}",
        "\u{2581}",
        "\u{0}",
        "<|im_",
        "日本",
    ]
    .map(repeat)
    .into();
    texts.push(repeat(&format!("\n{}x", " ".repeat(3_000)))); // Llama 3's pattern looks ahead to the end of the spaces
    texts.push(repeat(&format!("\n{}\n\u{3000}\u{3000}\r\t1", " ".repeat(70))));
    let letters = ['a', 'e', ' ', '\n', '1', '\'', 's', 'é', '\u{301}', '<'];
    texts.push((0..len / 2).map(|_| random.pick(&letters)).collect());
    texts
}

#[test]
fn encoding_takes_memory_in_proportion_to_the_text() {
    let (_alone, texts) = (alone(), texts(300_000, &mut Random(1)));
    for (name, tables) in all_tables() {
        let ours = tokenizer(&tables);
        for text in &texts {
            let (most, ids) = memory(|| ours.encode(text, SpecialTokens::AsText).unwrap());
            let start: String = text.chars().take(8).collect();
            assert!(
                most <= BYTES_FOR_A_BYTE * text.len() + OTHER_BYTES,
                "{name}: {most} bytes for {} of {start:?}",
                text.len()
            );
            let (most, _) = memory(|| ours.decode(&ids, true).unwrap());
            assert!(
                most <= BYTES_FOR_A_BYTE * text.len() + OTHER_BYTES,
                "{name}: {most} bytes to decode {start:?}"
            );
        }
    }
}

#[test]
fn whatever_the_tables_are_memory_is_in_proportion_to_the_text() {
    let (_alone, mut random, all) = (alone(), Random(2), all_tables());
    let texts = texts(20_000, &mut random);
    for round in 0..1_000 {
        let mut tables = all[round % all.len()].1.clone();
        for _ in 0..1 + random.below(64) {
            damage(&mut tables, &mut || random.bits());
        }
        let ours = tokenizer(&tables);
        let text = &texts[random.below(texts.len())];
        let (most, _) = memory(|| ours.encode(text, SpecialTokens::Parse));
        assert!(most <= BYTES_FOR_A_BYTE * text.len() + OTHER_BYTES, "round {round}: {most} bytes");
    }
}

#[test]
fn a_text_that_cannot_fit_is_refused_before_it_is_encoded() {
    let (_alone, texts) = (alone(), texts(4_000_000, &mut Random(3)));
    for (name, tables) in all_tables() {
        let ours = tokenizer(&tables);
        for text in &texts {
            let (most, result) = memory(|| ours.encode_within(text, SpecialTokens::AsText, 1000));
            let start: String = text.chars().take(8).collect();
            match result {
                Err(Error::TextTooLong { .. }) => {}
                Ok(ids) => assert!(ids.len() <= 1000, "{name}: {start:?}"), // all or most of it has no token
                Err(error) => panic!("{name}: {error}"),
            }
            assert!(
                most <= BYTES_FOR_A_BYTE_IN_VAIN * text.len() + OTHER_BYTES,
                "{name}: {most} bytes for {} of {start:?}",
                text.len()
            );
        }
    }
}

#[test]
fn a_conversation_that_cannot_fit_is_refused_before_it_is_encoded() {
    let _alone = alone();
    let mut checkpoint = Checkpoint::tiny(TensorDtype::F32);
    let template = "{% for message in messages %}{{ message.content }}{% endfor %}";
    checkpoint.files.insert("chat_template.jinja".into(), template.into());
    let model = Model::from_bytes(Blob::of(&checkpoint).build()).unwrap();
    let messages = [Message::new("user", "the end ".repeat(500_000))];
    let options = ChatOptions::default().max_tokens(64);
    let (most, result) = memory(|| model.encode_chat_with(&messages, &options));
    assert!(matches!(result, Err(Error::TextTooLong { needed: 65, limit: 64 })), "{result:?}");
    // The message is guarded and rendered.
    assert!(most <= 8 * messages[0].content.len() + OTHER_BYTES, "{most} bytes");
}

/// What the converter says of a checkpoint after `change`, and the memory that it took.
fn refusal(change: impl FnOnce(&Path)) -> (usize, String) {
    let temp = TempDir::new();
    let source = temp.join("model");
    Checkpoint::tiny(TensorDtype::F32).write(&source);
    change(&source);
    let options = Options::new(source, temp.join("blob.bin"));
    let (most, result) = memory(|| convert(&options, &Progress::new(true)));
    (most, result.map(drop).unwrap_err().to_string())
}

/// A `.safetensors` header of so many empty tensors.
fn empty_tensors(count: usize) -> Vec<u8> {
    let tensor = |index| format!(r#""t{index}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#);
    let header = format!("{{{}}}", (0..count).map(tensor).collect::<Vec<_>>().join(","));
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()
}

#[test]
fn a_header_of_too_many_tensors_is_refused_before_it_is_parsed() {
    let _alone = alone();
    let (million, many) = (empty_tensors(1_200_000), empty_tensors((1 << 16) + 2));
    let cases = [
        (
            &million,
            1,
            "model.safetensors: not a safetensors file: header length: expected at most 67108864, found",
        ),
        (&many, many.len(), "header: expected at most 65537 entries, found 65538"),
    ];
    for (bytes, len, expected) in cases {
        let (most, problem) = refusal(|model| fs::write(model.join("model.safetensors"), bytes).unwrap());
        assert!(problem.contains(expected), "{problem}");
        assert!(most <= 2 * len + OTHER_BYTES, "{most} bytes for a file of {}", bytes.len());
    }
    let deep = format!(r#"{{"__metadata__":{}1{}}}"#, "[".repeat(1 << 21), "]".repeat(1 << 21));
    let deep = [&(deep.len() as u64).to_le_bytes()[..], deep.as_bytes()].concat();
    let (most, problem) = refusal(|model| fs::write(model.join("model.safetensors"), &deep).unwrap());
    assert!(problem.contains("header: expected at most 1048576 JSON values, found 2097153"), "{problem}");
    assert!(most <= 2 * deep.len() + OTHER_BYTES, "{most} bytes for a file of {}", deep.len());
}

/// Every JSON file that a checkpoint brings: deep, long, of many keys, and too large to be looked at.
#[test]
fn other_files_are_refused_before_they_are_parsed() {
    let _alone = alone();
    let keys = |count: usize| {
        let pairs: Vec<String> = (0..count).map(|key| format!("\"{key}\":0")).collect();
        format!("{{{}}}", pairs.join(","))
    };
    let many = 1 << 19;
    let shapes = [
        format!("{{\"x\":{}{}}}", "[".repeat(many), "]".repeat(many)),
        format!("{{\"x\":[0{}]}}", ",0".repeat(many)),
        format!("{{\"x\":[{{}}{}]}}", ",{\"a\":[]}".repeat(many)),
        keys(many),
    ];
    let files =
        ["config.json", "generation_config.json", "tokenizer_config.json", "model.safetensors.index.json"];
    for file in files {
        let write = |model: &Path, bytes: &[u8]| {
            if file.contains("index") {
                fs::remove_file(model.join("model.safetensors")).unwrap();
            }
            fs::write(model.join(file), bytes).unwrap();
        };
        for shape in &shapes {
            let (most, problem) = refusal(|model| write(model, shape.as_bytes()));
            assert!(
                problem.contains(file) && problem.contains("at most 262144 JSON values, found"),
                "{problem}"
            );
            assert!(most <= 3 * shape.len() + OTHER_BYTES, "{file}: {most} bytes for {}", shape.len());
        }
        let (most, problem) = refusal(|model| {
            write(model, b"");
            File::options().write(true).open(model.join(file)).unwrap().set_len((16 << 20) + 1).unwrap();
        });
        assert!(
            problem.contains(file) && problem.contains("at most 16777216 bytes, found 16777217"),
            "{problem}"
        );
        assert!(most <= OTHER_BYTES, "{file}: {most} bytes");
    }
    let merges = format!("{{\"x\":[0{}]}}", ",0".repeat(1 << 23));
    let (most, problem) = refusal(|model| fs::write(model.join("tokenizer.json"), &merges).unwrap());
    assert!(
        problem.contains("tokenizer.json: expected at most 8388608 JSON values, found 8388610"),
        "{problem}"
    );
    assert!(most <= 3 * merges.len() + OTHER_BYTES, "{most} bytes for {}", merges.len());
}
