//! Sampling from outside: transformers' probabilities, and the same text however it is computed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;

use serde_json::Value;
use smol_tests::common::{TALES, blob, data};
use smolrun::generation::{Sampler, SamplerStep};
use smolrun::{GenerateOptions, Kernels, Model, Sampling, Session, SessionOptions, SpecialTokens};

/// The system's memory, with a count of what each thread asks for.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the same promises to this call.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; the pointer came from there.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Every step switched on.
fn everything() -> Sampling {
    Sampling::default()
        .temperature(0.9)
        .top_k(200)
        .top_p(0.95)
        .min_p(0.001)
        .typical_p(0.95)
        .repetition_penalty(1.1)
        .frequency_penalty(0.1)
        .presence_penalty(0.1)
        .penalty_window(64)
        .logit_bias([(5, -1.0), (7, f32::NEG_INFINITY)])
        .seed(7)
}

/// The options of a reference case; only their steps, in their order.
fn sampling(options: &Value) -> Sampling {
    let mut sampling = Sampling::default().temperature(1.0).sampler_order([]);
    for option in options.as_array().unwrap() {
        let value = option[1].as_f64().unwrap();
        let (field, step) = match option[0].as_str().unwrap() {
            "temperature" => (&mut sampling.temperature, SamplerStep::Temperature),
            "top_p" => (&mut sampling.top_p, SamplerStep::TopP),
            "min_p" => (&mut sampling.min_p, SamplerStep::MinP),
            "typical_p" => (&mut sampling.typical_p, SamplerStep::Typical),
            "repetition_penalty" => (&mut sampling.repetition_penalty, SamplerStep::Penalties),
            "top_k" => {
                sampling.top_k = value as usize;
                sampling.sampler_order.push(SamplerStep::TopK);
                continue;
            }
            other => panic!("{other} is not known"),
        };
        *field = value as f32;
        sampling.sampler_order.push(step);
    }
    sampling
}

#[test]
fn probabilities_are_those_of_transformers() {
    let reference: Value = serde_json::from_slice(&fs::read(data("sampling.json")).unwrap()).unwrap();
    let past: Vec<u32> = serde_json::from_value(reference["past"].clone()).unwrap();
    let mut cases = 0;
    for row in reference["rows"].as_array().unwrap() {
        let logits: Vec<f32> = serde_json::from_value(row["logits"].clone()).unwrap();
        for case in row["cases"].as_array().unwrap() {
            let mut sampler = Sampler::new(sampling(&case["options"]), logits.len()).unwrap();
            past.iter().for_each(|&id| sampler.accept(id).unwrap());
            let found: Vec<(u32, f64)> = sampler.probabilities(&logits).unwrap().collect();
            let mut differences = vec![0.0; logits.len()];
            found.iter().for_each(|&(id, probability)| differences[id as usize] += probability);
            let expected: Vec<(u32, f64)> = serde_json::from_value(case["probabilities"].clone()).unwrap();
            expected.iter().for_each(|&(id, probability)| differences[id as usize] -= probability);
            let worst = differences.into_iter().map(f64::abs).fold(0.0, f64::max);
            assert!(worst < 1e-6, "{}: {worst:e}", case["options"]);
            cases += 1;
        }
    }
    assert_eq!(cases, 48);
}

#[test]
fn a_seed_means_the_same_text_on_every_thread_count_and_instruction_set() {
    let model = Model::open(blob(TALES)).unwrap();
    let prompt = model.tokenizer().encode("Once upon a time", SpecialTokens::AsText).unwrap();
    let text = |options: SessionOptions| -> String {
        let mut session = Session::new(&model, options).unwrap();
        let options = GenerateOptions::default().max_tokens(60).sampling(everything());
        session.generate(&prompt, options).unwrap().map(|token| token.unwrap().text).collect()
    };
    let expected = text(SessionOptions::default().threads(1));
    assert!(expected.len() > 60, "{expected:?}");
    for kernels in Kernels::available() {
        for threads in [1, 2, 5] {
            let found = text(SessionOptions::default().threads(threads).kernels(kernels));
            assert_eq!(found, expected, "{}, {threads} threads", kernels.name());
        }
    }
}

#[test]
fn choosing_a_token_allocates_nothing() {
    let logits: Vec<f32> = (0..49_152).map(|i| ((i * 7919) % 49_157) as f32 / 4000.0).collect();
    for sampling in [Sampling::default(), everything(), everything().penalty_window(0)] {
        let mut sampler = Sampler::new(sampling, logits.len()).unwrap();
        let before = ALLOCATIONS.get();
        for _ in 0..100 {
            let id = sampler.sample(&logits).unwrap();
            sampler.accept(id).unwrap();
        }
        assert_eq!(ALLOCATIONS.get() - before, 0);
    }
}
