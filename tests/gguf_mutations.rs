//! The reader of GGUF files over random mutations of small ones, one of each architecture, with each type, whole and in
//! parts: no panic, no allocation that the file does not account for, no endless loop.

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

/// Quantized types by their codes, with the numbers and bytes of a block: those that fit rows of 32, then the others.
const TYPES: [(u32, usize, usize); 13] = [
    (2, 32, 18),
    (3, 32, 20),
    (6, 32, 22),
    (7, 32, 24),
    (8, 32, 34),
    (20, 32, 18),
    (39, 32, 17),
    (10, 256, 84),
    (11, 256, 110),
    (12, 256, 144),
    (13, 256, 176),
    (14, 256, 210),
    (23, 256, 136),
];

/// A small model, whole or in parts.
struct Base {
    /// The names and the bytes of its files.
    files: Vec<(&'static str, Vec<u8>)>,
    /// Bytes of each before its tensors' numbers.
    header_lens: Vec<usize>,
}

impl Base {
    fn new(names: &[&'static str], parts: &[Gguf]) -> Base {
        let files: Vec<_> = names.iter().copied().zip(parts.iter().map(Gguf::build)).collect();
        let header_len = |(part, (_, bytes)): (&Gguf, &(_, Vec<u8>))| {
            let last = part.tensors.last().expect("each part has a tensor").name.as_bytes();
            bytes.windows(last.len()).rposition(|window| window == last).expect("it is there") + 64
        };
        let header_lens = parts.iter().zip(&files).map(header_len).collect();
        Base { files, header_lens }
    }

    /// Writes the files, one of them with mutations.
    fn write(&self, temp: &TempDir, random: &mut Random) {
        let changed = random.below(self.files.len());
        for (index, (name, bytes)) in self.files.iter().enumerate() {
            let mut bytes = bytes.clone();
            if index == changed {
                (0..1 + random.below(3)).for_each(|_| mutate(&mut bytes, self.header_lens[index], random));
            }
            fs::write(temp.join(name), bytes).unwrap();
        }
    }

    /// The one of each seed, by its remainder. That with all types is ten times as large as others.
    fn all() -> [Base; 16] {
        let of = |architecture| {
            let checkpoint = common::Checkpoint::of_architecture(architecture, TensorDtype::F32);
            let mut gguf = Gguf::of(&checkpoint);
            gguf.set(&format!("{architecture}.rope.scaling.type"), Value::Text("yarn".into()));
            gguf.set(&format!("{architecture}.rope.scaling.factor"), Value::F32(4.0));
            gguf.set(&format!("{architecture}.rope.scaling.yarn_beta_fast"), Value::F32(16.0));
            Base::new(&["model.gguf"], &[gguf])
        };
        let parts =
            || Base::new(&PARTS, &Gguf::of(&common::Checkpoint::tiny(TensorDtype::F32)).split(&[8, 12]));
        std::array::from_fn(|index| match index {
            0 => Base::new(&["model.gguf"], &[with_types()]),
            1..5 => parts(),
            5..7 => of("qwen2"),
            7..9 => of("qwen3"),
            9..11 => of("smollm3"),
            _ => Base::new(&["model.gguf"], &[with_all_metadata()]),
        })
    }
}

/// What the parts of a model are called.
const PARTS: [&str; 2] = ["model-00001-of-00002.gguf", "model-00002-of-00002.gguf"];

/// A model with a tensor of each type. Zeroes are numbers that all of them have.
fn with_types() -> Gguf {
    let mut checkpoint = common::Checkpoint::tiny(TensorDtype::F32);
    for (field, width) in [("hidden_size", 256), ("intermediate_size", 32)] {
        checkpoint.config[field] = width.into();
    }
    let width = |&old: &usize| match old {
        24 => 256,
        20 => 32,
        other => other,
    };
    let names: Vec<String> = checkpoint.tensors.keys().cloned().collect();
    for name in names {
        let shape: Vec<usize> = checkpoint.tensor(&name).shape.iter().map(width).collect();
        checkpoint.add(&name, TensorDtype::F32, &shape);
    }
    let mut gguf = Gguf::of(&checkpoint);
    let (mut small, mut large) = (TYPES[..7].iter().rev().cycle(), TYPES.iter().rev().cycle());
    for tensor in gguf.tensors.iter_mut().filter(|tensor| tensor.dims.len() == 2) {
        let types = if tensor.dims[0] == 256 { &mut large } else { &mut small };
        let (kind, numbers, bytes) = types.next().expect("a cycle has no end");
        tensor.kind = *kind;
        tensor.bytes = vec![0; tensor.dims.iter().product::<u64>() as usize / numbers * bytes];
    }
    gguf
}

/// A small file with metadata of every kind.
fn with_all_metadata() -> Gguf {
    let mut gguf = Gguf::of(&common::Checkpoint::untied(TensorDtype::F32));
    gguf.set("tokenizer.chat_template", Value::Text("{{ messages }}".into()));
    gguf.set("general.alignment", Value::U32(32));
    gguf.set("x.floats", Value::F32s(vec![1.0, 2.0]));
    gguf.set("x.flag", Value::Bool(true));
    gguf.set("llama.expert_count", Value::U32(0));
    gguf.set("llama.rope.scaling.type", Value::Text("linear".into()));
    gguf.set("llama.rope.scaling.factor", Value::F32(1.0));
    let mut factors = gguf.tensor("output_norm.weight").clone();
    factors.name = "rope_freqs.weight".into();
    (factors.dims, factors.bytes) =
        (vec![8], [1.0f32, 1.0, 1.5, 2.0, 8.0, 8.0, 8.0, 8.0].map(f32::to_le_bytes).concat());
    gguf.tensors.push(factors);
    gguf
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
    let (bases, temp) = (Base::all(), TempDir::new());
    let before = Memory::now();
    let (mut failures, mut converted) = (Vec::new(), 0u64);
    let hook = take_hook();
    set_hook(Box::new(|_| ())); // the seed says it all
    for seed in 0..mutations {
        let (base, mut random) = (&bases[seed as usize % bases.len()], Random(seed));
        let options =
            Options::new(temp.join(base.files[random.below(base.files.len())].0), temp.join("out.bin"));
        base.write(&temp, &mut random);
        let began = Instant::now();
        Memory::begin();
        match catch_unwind(AssertUnwindSafe(|| exercise(&options, seed.is_multiple_of(63)))) {
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
