//! Opening, tokenizing, prefill, decode and sampling of a whole model.
//!
//! `cargo bench -p smol-benches`, on the blob that `SMOL_BLOB` names.

use std::hint::black_box;
use std::path::PathBuf;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use smolrun::generation::Sampler;
use smolrun::{Model, Sampling, Session, SessionOptions, SpecialTokens};

const TEXT: &str = "There was once a miller who had three sons, and when he died he left them his mill, his donkey and \
    his cat. The eldest took the mill, the second took the donkey, and nothing was left for the youngest but the cat. ";

fn blob() -> PathBuf {
    let path = std::env::var_os("SMOL_BLOB").map(PathBuf::from);
    path.expect("SMOL_BLOB names a blob: SMOL_BLOB=$PWD/smol.bin cargo bench -p smol-benches")
}

fn open(c: &mut Criterion) {
    let path = blob();
    c.bench_function("open", |b| b.iter(|| Model::open(&path).expect("the blob opens")));
}

fn tokenize(c: &mut Criterion) {
    let model = Model::open(blob()).expect("the blob opens");
    let text = TEXT.repeat(50);
    let mut group = c.benchmark_group("tokenize");
    group.throughput(Throughput::Bytes(text.len() as u64));
    group.bench_function("encode", |b| {
        b.iter(|| model.tokenizer().encode(black_box(&text), SpecialTokens::AsText).expect("it encodes"))
    });
    group.finish();
}

fn generate(c: &mut Criterion) {
    let model = Model::open(blob()).expect("the blob opens");
    let tokens = model.tokenizer().encode(&TEXT.repeat(20), SpecialTokens::AsText).expect("it encodes");
    let mut group = c.benchmark_group("generate");
    group.sample_size(10).measurement_time(Duration::from_secs(10));
    for threads in [1, 2] {
        let options = SessionOptions::default().threads(threads);
        let mut session = Session::new(&model, options).expect("the threads start");
        group.throughput(Throughput::Elements(512));
        group.bench_function(format!("prefill 512, {threads} threads"), |b| {
            b.iter(|| {
                session.truncate(0);
                session.feed(&tokens[..512]).expect("it runs")[0]
            })
        });
        session.truncate(0);
        session.feed(&tokens[..128]).expect("it runs");
        group.throughput(Throughput::Elements(1));
        group.bench_function(format!("decode at 128, {threads} threads"), |b| {
            b.iter(|| {
                session.truncate(128);
                session.feed(&tokens[128..129]).expect("it runs")[0]
            })
        });
    }
    group.finish();
}

fn sample(c: &mut Criterion) {
    let logits: Vec<f32> = (0..49152).map(|i| ((i * 7919) % 49_157) as f32 / 4000.0).collect();
    let cases = [
        ("greedy", Sampling::default()),
        ("top_k 40, top_p 0.9", Sampling::default().temperature(0.8).top_k(40).top_p(0.9).seed(1)),
        ("top_p 0.9", Sampling::default().temperature(0.8).top_p(0.9).seed(1)),
    ];
    let mut group = c.benchmark_group("sample of 49152");
    for (name, sampling) in cases {
        let mut sampler = Sampler::new(sampling, logits.len()).expect("the options make sense");
        group.bench_function(name, |b| b.iter(|| sampler.sample(black_box(&logits)).expect("it draws")));
    }
    group.finish();
}

criterion_group!(benches, open, tokenize, generate, sample);
criterion_main!(benches);
