//! The reader of GGUF files over random mutations of a small one: no panic, no allocation that the file does not
//! account for, no endless loop.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::time::{Duration, Instant};

use smol_tests::common::counting::{Counting, Memory, Random};
use smol_tests::common::gguf::{Gguf, Value};
use smol_tests::common::{self, TempDir, TensorDtype};
use smolconv::checkpoint::{self, Checkpoint, tensor_map};
use smolconv::quantize::{Codes, Quantizer, matrix};
use smolconv::source::{Source, check};
use smolconv::tokenizer;
use smolconv::write::pack;
use smolconv::{Options, Progress};
use smolrun::format::Dtype;

/// How many there are unless `SMOL_MUTATIONS` says otherwise (100,000 after a change to what reads GGUF).
const MUTATIONS: u64 = if cfg!(debug_assertions) { 4_000 } else { 10_000 };
/// Most bytes in one allocation, and at a time. The converter itself reads and packs pieces of 8 MB.
const MOST_AT_ONCE: usize = 16 << 20;
const MOST_ALIVE: usize = 64 << 20;
/// Far above what any takes on a busy machine, far below an endless loop.
const MOST_TIME: Duration = Duration::from_secs(10);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Numbers at which something often goes wrong.
const INTERESTING: [u64; 16] = [
    0,
    1,
    2,
    8,
    9,
    12,
    13,
    32,
    255,
    65_536,
    0x7fff_ffff,
    0xffff_ffff,
    0x0fff_ffff_ffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// A small file with metadata of every kind.
fn file() -> Vec<u8> {
    let mut gguf = Gguf::of(&common::Checkpoint::untied(TensorDtype::F32));
    gguf.set("tokenizer.chat_template", Value::Text("{{ messages }}".into()));
    gguf.set("general.alignment", Value::U32(32));
    gguf.set("x.floats", Value::F32s(vec![1.0, 2.0]));
    gguf.set("x.flag", Value::Bool(true));
    gguf.set("llama.expert_count", Value::U32(0));
    gguf.set("llama.rope.scaling.type", Value::Text("none".into()));
    gguf.build()
}

/// Most changes are to the header: what follows it is numbers, of which almost any will do.
fn mutate(bytes: &mut Vec<u8>, header_len: usize, random: &mut Random) {
    if bytes.len() < 16 {
        return;
    }
    let end = if random.below(16) == 0 { bytes.len() } else { header_len.min(bytes.len()) };
    let at = random.below(end - 8);
    let value = random.pick(&INTERESTING).wrapping_add(random.pick(&[0, 0, 1, u64::MAX]));
    match random.below(12) {
        0..=3 => bytes[at] ^= 1 << random.below(8),
        4 => bytes[at] = random.pick(&[0, 1, 0x7f, 0x80, 0xfe, 0xff]),
        5 | 6 => bytes[at..at + 8].copy_from_slice(&value.to_le_bytes()),
        7 | 8 => bytes[at..at + 4].copy_from_slice(&value.to_le_bytes()[..4]),
        9 => bytes[at] = bytes[at].wrapping_add(random.pick(&[1, 255])),
        _ => splice(bytes, at, random),
    }
}

/// Cuts the file off, takes a piece out, or puts a piece of it somewhere else.
fn splice(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let len = random.pick(&[1, 2, 4, 8, 16, 64, 256]).min(bytes.len() - at);
    match random.below(4) {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(at..at + len)),
        2 => {
            let to = random.below(bytes.len() - len + 1);
            bytes.copy_within(at..at + len, to);
        }
        _ => {
            let piece = bytes[at..at + len].to_vec();
            bytes.splice(at..at, piece);
        }
    }
}

/// Everything that a conversion does before it writes. Compiling a tokenizer takes a hundred times as long as all the
/// rest, so that only some do.
fn exercise(options: &Options, compiles: bool) -> smolconv::Result<()> {
    let source = Source::open(&options.source)?;
    let Some(metadata) = &source.gguf else { return Ok(()) };
    let model = checkpoint::gguf::read(metadata, &source, tokenizer::gguf::token_count(metadata)?)?;
    tokenizer::gguf::read(metadata)?;
    tokenizer::gguf::chat_template(metadata)?;
    let bindings = tensor_map::bind(&model.config, model.extras, &source)?;
    let in_bf16 = source.tensors.keys().map(String::as_str).collect();
    check::check(&source, &in_bf16, &Progress::new(true))?;
    for binding in &bindings {
        let codes = Codes::of(Dtype::Q4).filter(|_| binding.kind.is_matrix());
        let quantizer = codes.and_then(|codes| Quantizer::new(codes, binding.columns(), None));
        for piece in pack::pieces(binding) {
            pack::pack(&source, binding, piece.clone())?;
            if let Some(quantizer) = &quantizer {
                matrix::quantize(&source, binding, quantizer, piece)?;
            }
        }
    }
    if compiles {
        Checkpoint::open(options)?;
    }
    Ok(())
}

#[test]
fn no_mutation_of_a_gguf_file_does_harm() {
    let mutations = std::env::var("SMOL_MUTATIONS").map_or(MUTATIONS, |number| number.parse().unwrap());
    let (whole, temp) = (file(), TempDir::new());
    let tensors_end = b"token_embd.weight";
    let header_len = whole.windows(tensors_end.len()).rposition(|window| window == tensors_end).unwrap() + 64;
    let options = Options::new(temp.join("model.gguf"), temp.join("out.bin"));
    let before = Memory::now();
    let (mut failures, mut converted) = (Vec::new(), 0u64);
    let hook = take_hook();
    set_hook(Box::new(|_| ())); // the seed says it all
    for seed in 0..mutations {
        let (mut bytes, mut random) = (whole.clone(), Random(seed));
        for _ in 0..1 + random.below(3) {
            mutate(&mut bytes, header_len, &mut random);
        }
        fs::write(&options.source, &bytes).unwrap();
        drop(bytes);
        let began = Instant::now();
        Memory::begin();
        match catch_unwind(AssertUnwindSafe(|| exercise(&options, seed.is_multiple_of(64)))) {
            Ok(outcome) => converted += u64::from(outcome.is_ok()),
            Err(_) => failures.push(format!("seed {seed}: panic")),
        }
        let memory = Memory::now();
        if memory.largest > MOST_AT_ONCE || memory.most.saturating_sub(before.alive) > MOST_ALIVE {
            failures.push(format!("seed {seed}: allocates {} bytes, {} in all", memory.largest, memory.most));
        }
        if began.elapsed() > MOST_TIME {
            failures.push(format!("seed {seed}: takes {:?}", began.elapsed()));
        }
    }
    set_hook(hook);
    println!("{mutations} mutations, {converted} of them convert");
    let shown = &failures[..failures.len().min(20)];
    assert!(failures.is_empty(), "{} failures, the first ones: {shown:#?}", failures.len());
    // The mutations would mean little if all or none of them were refused.
    assert!((mutations / 50..mutations / 2).contains(&converted), "{converted} of {mutations} convert");
}
