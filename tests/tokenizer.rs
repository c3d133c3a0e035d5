//! The compiled tokenizer against the `tokenizers` library, which is right by definition.

use std::path::Path;
use std::time::Instant;

use serde_json::Value;
use smol_tests::{real_model, repository, tokenizer};
use smolconv::tokenizer_json::{TokenizerTables, compile};
use smolrun::{SpecialTokens, Tokenizer};
use tokenizers::Tokenizer as Oracle;

/// Cheap stand-in for a random number generator (splitmix64): the same numbers on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

/// Text, and pieces of text, that have broken tokenizers before.
const WORDS: [&str; 30] = [
    "the",
    "of",
    "I'll",
    "we've",
    "don't",
    "HE'S",
    "'tis",
    "rock'n'roll",
    "can't've",
    "naïve",
    "Straße",
    "ﬁ",
    "ǅ",
    "x²",
    "½",
    "Ⅷ",
    "٣",
    "१२",
    "東京",
    "한국어",
    "עברית",
    "العربية",
    "ไทย",
    "🙂",
    "👩‍👩‍👧",
    "🇬🇧",
    "e\u{301}",
    "\u{200d}",
    "\u{feff}",
    "fn main() {\n\tprintln!(\"{}\", 0x1F);\n}\n",
];
const CONTRACTIONS: [&str; 12] = ["'s", "'T", "'re", "'VE", "'m", "'LL", "'d", "''", "'", "'l", "'v", "'r"];
const SPACES: [&str; 13] = [
    " ", "\n", "\t", "\r\n", "\u{a0}", "\u{3000}", "\u{2028}", "\u{b}", "\u{c}", "\u{1c}", "\u{85}",
    "\u{1680}", "\u{200b}",
];
/// Bytes for which SmolLM2 has no token.
const MISSING: [&str; 8] =
    ["\u{4}", "\u{6}", "\u{13}", "\u{14}", "\u{16}", "\u{1d}", "\u{40000}", "\u{80000}"];
/// Numbers of Unicode 16 and 17 that some libraries do not know yet.
const NEW_NUMBERS: [&str; 4] = ["\u{11de0}", "\u{16ff6}", "\u{1ccf0}", "\u{16d70}"];

fn hard_string(random: &mut Random, special: &[&str]) -> String {
    (0..random.below(9)).map(|_| hard_piece(random, special)).collect()
}

fn hard_piece(random: &mut Random, special: &[&str]) -> String {
    match random.below(14) {
        0 => random.pick(&WORDS).to_owned(),
        1 => format!(" {}", random.pick(&WORDS)),
        2 => random.pick(&CONTRACTIONS).to_owned(),
        3 => random.pick(&SPACES).repeat(1 + random.below(40)),
        4 => (0..1 + random.below(4)).map(|_| random.pick(&SPACES)).collect(),
        5 => random.pick(special).to_owned(),
        6 => random.pick(special).chars().take(1 + random.below(9)).collect(),
        7 => (0..1 + random.below(12)).map(|_| random.below(128) as u8 as char).collect(),
        8 => (random.next() >> random.below(64)).to_string(),
        9 => (0..1 + random.below(5)).map(|_| character(random, 0x20000)).collect(),
        10 => character(random, 0x110000).to_string(),
        11 => random.pick(&["a", "e", "i", "x", "Z", "é", "日", "🙂", "="]).repeat(1 + random.below(80)),
        12 => random.pick(&MISSING).to_owned(),
        _ => random.pick(&NEW_NUMBERS).to_owned(),
    }
}

fn character(random: &mut Random, limit: usize) -> char {
    char::from_u32(random.below(limit) as u32).unwrap_or('\u{fffd}')
}

/// A `tokenizer.json` both ways.
struct Pair {
    ours: Tokenizer,
    /// Control tokens are parsed.
    parsing: Oracle,
    /// Control tokens are text.
    plain: Oracle,
}

impl Pair {
    fn new(json: &[u8]) -> Pair {
        let tables = compile(json, vocab_size(json)).unwrap();
        let parsing = Oracle::from_bytes(json).unwrap();
        let mut plain = parsing.clone();
        plain.set_encode_special_tokens(true);
        Pair { ours: tokenizer(&tables), parsing, plain }
    }

    fn compare(&self, text: &str) {
        for (special, oracle) in [(SpecialTokens::Parse, &self.parsing), (SpecialTokens::AsText, &self.plain)]
        {
            let ours = self.ours.encode(text, special).unwrap();
            let theirs = oracle.encode_fast(text, false).unwrap();
            assert_eq!(ours, theirs.get_ids(), "{special:?}: {text:?}");
        }
    }

    fn compare_decoded(&self, ids: &[u32]) {
        for skip_special in [false, true] {
            let theirs = self.parsing.decode(ids, skip_special).unwrap();
            assert_eq!(self.ours.decode(ids, skip_special).unwrap(), theirs, "{ids:?}");
        }
    }

    fn compare_random(&self, seed: u64, strings: usize) {
        println!("seed {seed}");
        let mut random = Random(seed);
        let special = self.ours.special_tokens().unwrap();
        let special: Vec<&str> = special.into_iter().map(|(_, text)| text).collect();
        for _ in 0..strings {
            self.compare(&hard_string(&mut random, &special));
        }
        for _ in 0..strings {
            let ids = (0..random.below(40)).map(|_| random.below(self.ours.vocab_size()) as u32);
            self.compare_decoded(&ids.collect::<Vec<u32>>());
        }
    }
}

fn vocab_size(json: &[u8]) -> usize {
    let json: Value = serde_json::from_slice(json).unwrap();
    json["model"]["vocab"].as_object().unwrap().len()
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn small() -> Vec<u8> {
    read(&repository().join("models/tales-4m/tokenizer.json"))
}

fn real() -> Vec<u8> {
    read(&real_model().join("tokenizer.json"))
}

#[test]
fn random_strings_small() {
    Pair::new(&small()).compare_random(1, 10_000);
}

#[test]
#[ignore = "needs the real model: scripts/fetch_model.sh smollm2-135m-instruct"]
fn random_strings_real() {
    Pair::new(&real()).compare_random(2, 20_000);
}

/// Every character of the planes in which Unicode has assigned any, at the places where its category matters.
#[test]
fn every_character() {
    let pair = Pair::new(&small());
    let assigned = (0..0x3_4000).chain(0xe_0000..0xe_0200).chain(0x10_ff00..0x11_0000);
    let characters: Vec<char> = assigned.filter_map(char::from_u32).collect();
    for some in characters.chunks(256) {
        let text: String = some.iter().map(|c| format!("a{c}1{c}.{c}  {c}{c}\n")).collect();
        pair.compare(&text);
    }
}

#[test]
#[ignore = "needs the real model: scripts/fetch_model.sh smollm2-135m-instruct"]
fn reference_cases() {
    let ours = tokenizer(&compile(&real(), 49152).unwrap());
    let cases = read(&repository().join("tests/data/tokenizer_cases.jsonl"));
    let cases = serde_json::Deserializer::from_slice(&cases).into_iter::<Value>();
    let mut count = 0;
    for case in cases {
        let case = case.unwrap();
        let text = case["text"].as_str().unwrap();
        let ids = |field: &str| serde_json::from_value::<Vec<u32>>(case[field].clone()).unwrap();
        assert_eq!(ours.encode(text, SpecialTokens::Parse).unwrap(), ids("ids"), "{text:?}");
        assert_eq!(ours.encode(text, SpecialTokens::AsText).unwrap(), ids("plain_ids"), "{text:?}");
        assert_eq!(ours.decode(&ids("ids"), false).unwrap(), case["decoded"].as_str().unwrap());
        count += 1;
    }
    assert_eq!(count, 2000);
}

#[test]
#[ignore = "a measurement: cargo test --release --test tokenizer -- --ignored --nocapture speed"]
fn speed() {
    let json = real();
    let started = Instant::now();
    let tables = compile(&json, 49152).unwrap();
    println!("compile {:?}", started.elapsed());
    report(&tables);
    let pair = Pair::new(&json);
    let text = String::from_utf8(read(Path::new("/work/shared/reference/ppl.txt"))).unwrap();
    for (name, text) in [("english", text.clone()), ("one word", "a".repeat(1 << 20))] {
        let started = Instant::now();
        let runs = 20;
        for _ in 0..runs {
            pair.ours.encode(&text, SpecialTokens::AsText).unwrap();
        }
        let ours = started.elapsed() / runs;
        let started = Instant::now();
        for _ in 0..3 {
            pair.plain.encode_fast(text.as_str(), false).unwrap();
        }
        let theirs = started.elapsed() / 3;
        let rate = |time: std::time::Duration| text.len() as f64 / 1e6 / time.as_secs_f64();
        println!("{name}: ours {:.1} MB/s, theirs {:.1} MB/s", rate(ours), rate(theirs));
    }
}

fn report(tables: &TokenizerTables) {
    let sizes: Vec<usize> = tables.stages.iter().map(Vec::len).collect();
    println!(
        "merges {} slots, token bytes {}, stages {sizes:?}",
        tables.merges.len(),
        tables.token_bytes.len()
    );
    for stage in &tables.stages {
        let words: [u32; 2] = bytemuck::pod_read_unaligned(&stage[..8]);
        println!("  classes {} states {}", words[0], words[1]);
    }
}
