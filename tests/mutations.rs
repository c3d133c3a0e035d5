//! The readers over random mutations of small blobs and of saved sessions: whatever a file holds, there is no panic, no allocation that the
//! file does not account for, no endless loop, and no damage that both levels of trust overlook.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::Path;
use std::time::{Duration, Instant};

use smol_tests::common::blob::{
    ENTRY_LEN, HEADER_LEN, get_u32, get_u64, put_u32, put_u64, sign, sign_sections,
};
use smol_tests::common::counting::{Counting, Memory, Random, alone};
use smol_tests::common::{Blob, Checkpoint, SavedSession, TempDir, TensorDtype};
use smolrun::{
    GenerateOptions, Kernels, KvDtype, Message, Model, Overflow, Sampling, Session, SessionOptions,
    SpecialTokens,
};

/// How many there are unless `SMOL_MUTATIONS` says otherwise (100,000 after a change to what reads blobs). Without
/// optimization SHA-256 alone would take minutes.
const MUTATIONS: u64 = if cfg!(debug_assertions) { 4_000 } else { 10_000 };
/// Most bytes in one allocation, and at a time.
const MOST_AT_ONCE: usize = 64 << 20;
const MOST_ALIVE: usize = 256 << 20;
/// Far above what any takes on a busy machine, far below an endless loop.
const MOST_TIME: Duration = Duration::from_secs(10);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Numbers at which something often goes wrong.
const INTERESTING: [u64; 20] = [
    0,
    1,
    2,
    15,
    16,
    36,
    37,
    38,
    64,
    255,
    256,
    4095,
    65_535,
    65_536,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];
/// As f32: NaN, infinities, the largest and the smallest.
const FLOATS: [u32; 5] = [0x7fc0_0000, 0x7f80_0000, 0xff80_0000, 0x7f7f_ffff, 0x0000_0001];

/// Where to change something: the header, the directory, a small table, or anywhere.
fn place(bytes: &[u8], random: &mut Random) -> usize {
    let sections = (get_u32(bytes, 24) as usize).min(64);
    match random.below(8) {
        0 => random.below(HEADER_LEN),
        1..=3 => HEADER_LEN + random.below(sections * ENTRY_LEN),
        4..=6 => {
            let entry = HEADER_LEN + random.below(sections) * ENTRY_LEN;
            let Some(_) = bytes.get(entry..entry + ENTRY_LEN) else { return 0 };
            let [offset, length] = [32, 40].map(|field| get_u64(bytes, entry + field) as usize);
            offset.wrapping_add(random.below(length))
        }
        _ => random.below(bytes.len()),
    }
}

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    if bytes.len() < HEADER_LEN + ENTRY_LEN {
        return;
    }
    let at = place(bytes, random).min(bytes.len() - 1);
    let aligned = at & !7;
    match random.below(12) {
        0 | 1 => bytes[at] ^= 1 << random.below(8),
        2 => bytes[at] = random.pick(&[0, 1, 0x7f, 0x80, 0xfe, 0xff]),
        3..=5 if aligned + 8 <= bytes.len() => {
            let value = random.pick(&INTERESTING).wrapping_add(random.pick(&[0, 0, 1, u64::MAX]));
            put_u64(bytes, aligned, value);
        }
        6..=8 if aligned + 8 <= bytes.len() => {
            let value = random.pick(&INTERESTING).wrapping_add(random.pick(&[0, 0, 1, u64::MAX]));
            put_u32(bytes, aligned + random.pick(&[0, 4]), value as u32);
        }
        9 if aligned + 8 <= bytes.len() => put_u32(bytes, aligned, random.pick(&FLOATS)),
        10 => shuffle(bytes, at, random),
        _ => splice(bytes, at, random),
    }
}

/// Swaps two directory entries, or what two of them say about where their sections lie.
fn shuffle(bytes: &mut [u8], at: usize, random: &mut Random) {
    let sections = (get_u32(bytes, 24) as usize).min((bytes.len() - HEADER_LEN) / ENTRY_LEN);
    let [a, b] = [at % sections.max(1), random.below(sections)].map(|index| HEADER_LEN + index * ENTRY_LEN);
    let fields = random.pick(&[(0, ENTRY_LEN), (32, 16), (16, 16), (0, 8), (64, 32)]);
    if a.max(b) + ENTRY_LEN <= bytes.len() {
        for byte in fields.0..fields.0 + fields.1 {
            bytes.swap(a + byte, b + byte);
        }
    }
}

/// Cuts the file off, takes a piece out, or puts a piece of it somewhere else.
fn splice(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let len = random.pick(&[1, 2, 4, 8, 16, 64, 96, 256, 4096]).min(bytes.len() - at);
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

/// How far a mutated blob got.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    opened: u64,
    encoded: u64,
    generated: u64,
    tokens: u64,
    verified: u64,
}

/// Everything that can be asked of a blob, with little work each. Errors are fine.
fn exercise(bytes: &[u8], seed: u64, tally: &mut Tally) {
    let Ok(model) = Model::from_bytes(bytes) else { return };
    tally.opened += 1;
    let is_verified = model.verify_with(Some(1), &|_| ()).is_ok();
    tally.verified += u64::from(is_verified);
    let tokenizer = model.tokenizer();
    let mut prompt = vec![seed as u32 % 64, 1];
    for text in ["the end", "and the inner anther, in than.<|endoftext|>!", "  é\u{1F9D9} \n\n then  "] {
        for special in [SpecialTokens::AsText, SpecialTokens::Parse] {
            let encoded = tokenizer.encode(text, special);
            assert!(encoded.is_ok() || !is_verified, "what was verified can be used: {encoded:?}");
            let Ok(ids) = encoded else { continue };
            assert!(
                ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()),
                "ids are in the vocabulary"
            );
            assert!(ids.len() <= text.len(), "a token stands for a byte at least");
            let _ = tokenizer.decode(&ids, special == SpecialTokens::AsText);
            tally.encoded += 1;
            prompt = ids;
        }
    }
    let _ = (tokenizer.check(), tokenizer.special_tokens());
    if seed.is_multiple_of(8) {
        let _ = model.encode_chat(&[Message::new("user", "the <|endoftext"), Message::new("x", "end")]);
    }
    if seed.is_multiple_of(4) {
        tally.generated += 1;
        let _ = generate(&model, &prompt, seed, tally);
    }
}

fn generate(model: &Model, prompt: &[u32], seed: u64, tally: &mut Tally) -> smolrun::Result<()> {
    let temperature = if seed.is_multiple_of(8) { 0.0 } else { 1.0 };
    let sampling = Sampling::default().temperature(temperature).top_k(9).top_p(0.9).seed(seed);
    let mut session = Session::new(model, SessionOptions::default().threads(1))?;
    let options = GenerateOptions::default().max_tokens(4).sampling(sampling);
    for token in session.generate(&prompt[..prompt.len().min(20)], options)? {
        token?;
        tally.tokens += 1;
    }
    Ok(())
}

fn blobs() -> [Vec<u8>; 2] {
    let template =
        b"{% for message in messages %}{{ message['role'] + bos_token + message.content }}{% endfor %}";
    [Checkpoint::tiny(TensorDtype::F32), Checkpoint::untied(TensorDtype::F32)].map(|mut checkpoint| {
        checkpoint.files.insert("chat_template.jinja".into(), template.to_vec());
        Blob::of(&checkpoint).build()
    })
}

/// The mutation that `seed` stands for, and whether its hash was made to fit.
fn mutation(blobs: &[Vec<u8>; 2], seed: u64) -> (Vec<u8>, bool) {
    let mut random = Random(seed);
    let mut bytes = random.pick(&[&blobs[0], &blobs[1]]).clone();
    let is_signed = random.below(2) == 0;
    for _ in 0..1 + random.below(4) {
        mutate(&mut bytes, &mut random);
    }
    if is_signed && bytes.len() >= HEADER_LEN {
        if random.below(2) == 0 {
            let len = bytes.len() as u64;
            put_u64(&mut bytes, 16, len);
        }
        if random.below(2) == 0 {
            sign_sections(&mut bytes);
        }
        sign(&mut bytes);
    }
    (bytes, is_signed)
}

#[test]
fn no_mutation_of_a_blob_does_harm() {
    let _alone = alone();
    let mutations = std::env::var("SMOL_MUTATIONS").map_or(MUTATIONS, |number| number.parse().unwrap());
    let blobs = blobs();
    let (before, start, mut tally) = (Memory::now(), Instant::now(), Tally::default());
    let hook = take_hook();
    set_hook(Box::new(|_| ())); // the seed says it all
    let mut failures = Vec::new();
    for seed in 0..mutations {
        let (bytes, is_signed) = mutation(&blobs, seed);
        let (verified, began) = (tally.verified, Instant::now());
        Memory::begin();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| exercise(&bytes, seed, &mut tally))) {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied());
            failures.push(format!("seed {seed}: panic: {}", text.unwrap_or("?")));
        }
        let memory = Memory::now();
        if memory.largest > MOST_AT_ONCE || memory.most.saturating_sub(before.alive) > MOST_ALIVE {
            failures.push(format!("seed {seed}: allocates {} bytes", memory.largest));
        }
        if began.elapsed() > MOST_TIME {
            failures.push(format!("seed {seed}: takes {:?}", began.elapsed()));
        }
        if !is_signed && tally.verified > verified && !blobs.contains(&bytes) {
            failures.push(format!("seed {seed}: damage that nobody finds"));
        }
    }
    set_hook(hook);
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{mutations} mutations in {seconds:.1} s, {:.0} per second: {tally:?}",
        mutations as f64 / seconds
    );
    assert!(
        failures.is_empty(),
        "{} failures, the first ones: {:#?}",
        failures.len(),
        &failures[..failures.len().min(20)]
    );
    // The mutations would mean little if none of them got anywhere.
    assert!(tally.opened > mutations / 10 && tally.tokens > mutations / 20, "{tally:?}");
}

/// Mutations of saved sessions unless `SMOL_MUTATIONS` says otherwise.
const SESSION_MUTATIONS: u64 = if cfg!(debug_assertions) { 200 } else { 1_200 };
/// Long enough to slide, and no multiple of a block.
const CONTEXT: usize = 600;
/// Offsets of the header's numbers.
const SESSION_FIELDS: [usize; 6] = [8, 12, 16, 20, 24, 28];
/// Counts at which something often goes wrong with sequences.
const COUNTS: [usize; 14] = [0, 1, 15, 16, 17, 100, 255, 256, 257, 272, 511, 512, CONTEXT - 1, CONTEXT];

/// How keys and values may be kept, in the order of the numbers that stand for it in a file.
const KV_DTYPES: [KvDtype; 3] = [KvDtype::F32, KvDtype::F16, KvDtype::Q8];

/// Models that sessions are saved with: of f32, and of bf16, which may be rounded.
fn session_models() -> [Model; 2] {
    [TensorDtype::F32, TensorDtype::Bf16].map(|dtype| {
        let mut checkpoint = Checkpoint::tiny(dtype);
        checkpoint.config["max_position_embeddings"] = CONTEXT.into();
        Model::from_bytes(Blob::of(&checkpoint).build()).unwrap()
    })
}

/// A session of any kind that `model` may have, but for how keys and values are kept.
fn any_session(model: &Model, kv_dtype: KvDtype, random: &mut Random) -> Session {
    let options = SessionOptions::default()
        .threads(1)
        .kernels(Kernels::named("scalar").unwrap())
        .kv_dtype(kv_dtype)
        .overflow(random.pick(&[Overflow::Stop, Overflow::Slide]))
        .fast(random.below(2) == 0);
    Session::new(model, options).unwrap()
}

fn any_tokens(count: usize, random: &mut Random) -> Vec<u32> {
    (0..count).map(|_| random.below(37) as u32).collect()
}

/// What some session saved: short, long, after it slid, cut off.
fn any_saved(model: &Model, path: &Path, random: &mut Random) -> SavedSession {
    let kv_dtype = random.pick(&KV_DTYPES);
    let mut session = any_session(model, kv_dtype, random);
    let most = session.most_tokens().min(2 * CONTEXT);
    let count = random.pick(&[0, 1, 20, 100, 256, 300, 500, CONTEXT, CONTEXT + 200]).min(most);
    if count > 0 {
        session.feed(&any_tokens(count, random)).unwrap();
    }
    if random.below(3) == 0 {
        session.truncate(random.below(count + 1));
    }
    session.save(path).unwrap();
    SavedSession::take_apart(&fs::read(path).unwrap(), 2, 16)
}

/// Changes a field, what a field says together with what it speaks of, or any byte.
fn mutate_session(saved: &mut SavedSession, random: &mut Random) {
    let value = random.pick(&INTERESTING).wrapping_add(random.pick(&[0, 0, 1, u64::MAX])) as u32;
    match random.below(8) {
        0 => put_u32(&mut saved.header, random.pick(&SESSION_FIELDS), random.pick(&[0, 1, 1, 2])),
        1 => put_u32(&mut saved.header, random.pick(&SESSION_FIELDS), value),
        2 | 3 => saved.resize(random.pick(&COUNTS)),
        4 => put_u32(&mut saved.header, random.pick(&[20, 24]), 1),
        5 if !saved.tokens.is_empty() => {
            let at = random.below(saved.tokens.len());
            let known = random.below(37) as u32;
            saved.tokens[at] = random.pick(&[value, known]);
        }
        6 if !saved.blocks.is_empty() => {
            let block = random.below(saved.blocks.len());
            let at = random.below(saved.blocks[block].len()) & !3;
            put_u32(&mut saved.blocks[block], at, random.pick(&FLOATS));
        }
        _ => saved.header[random.below(64)] ^= 1 << random.below(8),
    }
}

/// Everything that can be done with a session that was loaded, in any order. Errors are fine; of what is in a file, all that
/// is used must have been looked at when it was loaded.
fn use_session(session: &mut Session, saved: &SavedSession, path: &Path, random: &mut Random) -> bool {
    if session.load(path).is_err() {
        assert_eq!(session.position(), 0, "nothing of a refused file stays");
        return false;
    }
    assert_eq!(session.tokens(), saved.tokens);
    for _ in 0..4 {
        match random.below(6) {
            0 | 1 => {
                let mut prompt = session.tokens()[..random.below(session.position() + 1)].to_vec();
                prompt.extend(any_tokens(random.below(20), random));
                let kept = session.keep_common_prefix(&prompt);
                assert!(kept < prompt.len().max(1) && session.tokens() == &prompt[..kept]);
            }
            2 => drop(session.feed(&any_tokens(1 + random.below(40), random))),
            3 => {
                let options = GenerateOptions::default().max_tokens(2);
                if let Ok(tokens) = session.generate(&any_tokens(1, random), options) {
                    tokens.for_each(drop);
                }
            }
            4 => session.truncate(random.pick(&COUNTS)),
            _ => {
                let tokens = session.tokens().to_vec();
                session.save(path).unwrap();
                session.load(path).expect("what a session saved it loads");
                assert_eq!(session.tokens(), tokens);
            }
        }
    }
    true
}

#[test]
fn no_mutation_of_a_saved_session_does_harm() {
    let _alone = alone();
    let mutations =
        std::env::var("SMOL_MUTATIONS").map_or(SESSION_MUTATIONS, |number| number.parse().unwrap());
    let (models, temp) = (session_models(), TempDir::new());
    let path = temp.join("session");
    let saved: Vec<Vec<SavedSession>> = models
        .iter()
        .map(|model| (0..40).map(|seed| any_saved(model, &path, &mut Random(seed))).collect())
        .collect();
    let (before, hook) = (Memory::now(), take_hook());
    set_hook(Box::new(|_| ()));
    let (mut loaded, mut failures) = (0, Vec::new());
    for seed in 0..mutations {
        let mut random = Random(seed);
        let (from, model) = (random.below(2), random.pick(&[0, 0, 0, 1]));
        let mut changed = saved[from][random.below(40)].clone();
        let (own, any) = (KV_DTYPES[usize::from(changed.header[12])], random.pick(&KV_DTYPES));
        let kv_dtype = random.pick(&[own, any]);
        let mut session = any_session(&models[from ^ model], kv_dtype, &mut random);
        for _ in 0..random.below(4) {
            mutate_session(&mut changed, &mut random);
        }
        let mut bytes = changed.build();
        if random.below(8) == 0 {
            let at = random.below(bytes.len());
            splice(&mut bytes, at, &mut random);
        }
        fs::write(&path, bytes).unwrap();
        let began = Instant::now();
        Memory::begin();
        match catch_unwind(AssertUnwindSafe(|| use_session(&mut session, &changed, &path, &mut random))) {
            Ok(is_loaded) => loaded += u64::from(is_loaded),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                failures.push(format!(
                    "seed {seed}: panic: {}",
                    text.or(panic.downcast_ref().copied()).unwrap_or("?")
                ));
            }
        }
        let memory = Memory::now();
        if memory.largest > MOST_AT_ONCE || memory.most.saturating_sub(before.alive) > MOST_ALIVE {
            failures.push(format!("seed {seed}: allocates {} bytes", memory.largest));
        }
        if began.elapsed() > MOST_TIME {
            failures.push(format!("seed {seed}: takes {:?}", began.elapsed()));
        }
    }
    set_hook(hook);
    assert!(
        failures.is_empty(),
        "{} failures, the first ones: {:#?}",
        failures.len(),
        &failures[..failures.len().min(20)]
    );
    println!("{mutations} mutations of saved sessions, of which {loaded} were loaded");
    assert!(loaded > mutations / 10, "{loaded} of {mutations} were loaded");
}
