//! `--fast`: near the exact logits, the same for any number of threads, and never where nobody is told.
//!
//! The scalar set imitates AVX512-BF16 bit for bit, and multiplies activations of 8 bits as every set does, so that all this
//! is tested on every machine.

use smol_tests::common::{REAL, TALES, TempDir, blob_of, run, scattered_tokens};
use smolrun::eval::PerplexityOptions;
use smolrun::format::Dtype;
use smolrun::{Error, Fast, Kernels, KvDtype, Model, Session, SessionOptions, SpecialTokens};

/// Three pieces of the fewest tokens that are rounded.
const TOKENS: usize = 96;

fn tokens(model: &Model) -> Vec<u32> {
    scattered_tokens(model, TOKENS)
}

fn tales(dtype: Dtype) -> Model {
    Model::open(blob_of(TALES, dtype)).unwrap()
}

fn options(kernels: Kernels) -> SessionOptions {
    SessionOptions::default().kernels(kernels).threads(2)
}

fn scalar() -> SessionOptions {
    options(Kernels::named("scalar").unwrap())
}

/// The logits after the last of `tokens`, fed so many at a time.
fn logits(model: &Model, options: SessionOptions, tokens: &[u32], split: usize) -> Vec<f32> {
    let mut session = Session::new(model, options).unwrap();
    let mut logits = Vec::new();
    for tokens in tokens.chunks(split) {
        logits = session.feed(tokens).unwrap().to_vec();
    }
    logits
}

fn most_difference(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// The unit for bf16 that the set `name` must find beside it, by what the processor says of itself.
fn unit_of(name: &str) -> Option<&'static str> {
    match name {
        "scalar" => Some("scalar"),
        "avx512" | "avx512vnni" | "avx512amx" if has_avx512_bf16() && has_amx() => Some("amx"),
        "avx512" | "avx512vnni" | "avx512amx" if has_avx512_bf16() && is_amd() => Some("avx512bf16"),
        _ => None,
    }
}

fn has_avx512_bf16() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Whether the processor has AMX with bf16, and Linux lets programs use it: of others we never ask.
fn has_amx() -> bool {
    let flags = cpuinfo("flags");
    cfg!(target_arch = "x86_64") && ["amx_tile", "amx_bf16"].iter().all(|flag| flags.contains(flag))
}

/// Whether AVX512-BF16 is faster than exact products: Intel's is not.
fn is_amd() -> bool {
    let vendor = cpuinfo("vendor_id");
    ["AuthenticAMD", "HygonGenuine"].iter().any(|amd| vendor.ends_with(amd))
}

/// What Linux says of the first processor.
fn cpuinfo(name: &str) -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    cpuinfo.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned()
}

/// The unit for quantized matrices that the set `name` has.
fn quantized_unit_of(name: &str) -> Option<&'static str> {
    match name {
        "scalar" | "avxvnni" | "avx512vnni" | "neondotprod" | "neoni8mm" => Some("int8"),
        "avx512amx" => Some("amx"),
        _ => None,
    }
}

/// Sets that round for `model`, whose matrices are all bf16 or all quantized, by which unit, and their options.
fn fast_sets(model: &Model) -> Vec<(&'static str, SessionOptions)> {
    let is_bf16 = model.layout().weights.dtypes().contains(&Dtype::Bf16);
    let unit_of = if is_bf16 { unit_of } else { quantized_unit_of };
    let expected: Vec<_> = Kernels::available()
        .into_iter()
        .filter_map(|kernels| Some((unit_of(kernels.name())?, options(kernels).fast(true))))
        .collect();
    for (unit, options) in &expected {
        assert_eq!(Session::new(model, options.clone()).unwrap().fast(), Fast::On(unit));
    }
    assert!(!expected.is_empty(), "every machine has scalar");
    expected
}

#[test]
fn fast_logits_are_near_the_exact_ones_on_every_unit() {
    let model = tales(Dtype::Bf16);
    let tokens = tokens(&model);
    let exact = logits(&model, SessionOptions::default(), &tokens, TOKENS);
    let oracle = logits(&model, scalar().fast(true), &tokens, TOKENS);
    for (unit, options) in fast_sets(&model) {
        let fast = logits(&model, options, &tokens, TOKENS);
        let most = most_difference(&exact, &fast);
        assert!(most > 0.0 && most < 0.2, "{unit}: logits differ by {most}");
        assert!(unit == "amx" || fast == oracle, "{unit} has not the oracle's bits");
    }
}

#[test]
fn with_quantized_weights_they_are_near_and_those_of_int8_are_the_same_on_every_set() {
    for dtype in [Dtype::Q8, Dtype::Q4] {
        let model = tales(dtype);
        let tokens = tokens(&model);
        let exact = logits(&model, SessionOptions::default(), &tokens, TOKENS);
        let oracle = logits(&model, scalar().fast(true), &tokens, TOKENS);
        for (unit, options) in fast_sets(&model) {
            let fast = logits(&model, options.clone().threads(1), &tokens, TOKENS);
            let most = most_difference(&exact, &fast);
            assert!(most > 0.0 && most < 0.2, "{unit}, {dtype:?}: logits differ by {most}");
            assert!(unit == "amx" || fast == oracle, "{unit}, {dtype:?}: not the oracle's bits");
            for split in [32, 48] {
                assert!(
                    logits(&model, options.clone(), &tokens, split) == fast,
                    "{dtype:?}, {split} at a time"
                );
            }
            let few = &tokens[..31];
            let exact = logits(&model, SessionOptions::default(), few, 31);
            assert!(logits(&model, options, few, 31) == exact, "fewer than 32 are exact");
        }
    }
}

#[test]
fn rounded_attention_depends_on_no_split_however_keys_and_values_are_kept() {
    let model = tales(Dtype::Q8);
    let tokens = tokens(&model);
    for (unit, options) in fast_sets(&model) {
        for kv in [KvDtype::F32, KvDtype::F16, KvDtype::Q8] {
            let options = options.clone().kv_dtype(kv);
            let exact = logits(&model, options.clone().fast(false), &tokens, TOKENS);
            let fast = logits(&model, options.clone().threads(1), &tokens, TOKENS);
            let most = most_difference(&exact, &fast);
            assert!(most > 0.0 && most < 0.2, "{unit}, {kv:?}: logits differ by {most}");
            for (threads, split) in [(1, 48), (2, 32), (3, 40)] {
                let tokens = &tokens[..TOKENS / split * split];
                let [found, expected] = [split, tokens.len()]
                    .map(|split| logits(&model, options.clone().threads(threads), tokens, split));
                assert!(found == expected, "{unit}, {kv:?}, {threads} threads, {split} at a time");
            }
        }
    }
}

#[test]
fn fast_logits_depend_neither_on_threads_nor_on_splits_into_pieces_of_32_and_more() {
    let model = tales(Dtype::Bf16);
    let tokens = tokens(&model);
    for (unit, options) in fast_sets(&model) {
        let expected = logits(&model, options.clone().threads(1), &tokens, TOKENS);
        for (threads, split) in [(1, 32), (2, 48), (3, TOKENS)] {
            let found = logits(&model, options.clone().threads(threads), &tokens, split);
            assert!(found == expected, "{unit}, {threads} threads, {split} at a time");
        }
    }
}

#[test]
fn pieces_of_fewer_than_32_tokens_are_exact() {
    let model = tales(Dtype::Bf16);
    let tokens = &tokens(&model)[..62];
    for (unit, options) in fast_sets(&model) {
        let exact = logits(&model, options.clone().fast(false), tokens, 62);
        assert!(logits(&model, options.clone(), tokens, 31) == exact, "{unit}");
        assert!(logits(&model, options, tokens, 62) != exact, "{unit}");
    }
}

#[test]
fn a_session_tells_what_became_of_it() {
    let (bf16, f32, q8) = (tales(Dtype::Bf16), tales(Dtype::F32), tales(Dtype::Q8));
    let fast = |model, options| Session::new(model, options).unwrap().fast();
    assert_eq!(fast(&bf16, scalar()), Fast::Off);
    assert_eq!(fast(&bf16, scalar().fast(true)), Fast::On("scalar"));
    assert_eq!(fast(&f32, scalar().fast(true)), Fast::NothingToRound);
    for kernels in Kernels::available() {
        let found = fast(&bf16, options(kernels).fast(true));
        let expected = unit_of(kernels.name()).map_or(Fast::NoUnit, Fast::On);
        assert_eq!(found, expected, "{}", kernels.name());
        let found = fast(&q8, options(kernels).fast(true));
        let expected = quantized_unit_of(kernels.name()).map_or(Fast::NoUnit, Fast::On);
        assert_eq!(found, expected, "{}", kernels.name());
        let tokens = &tokens(&f32)[..40];
        let exact = logits(&f32, options(kernels), tokens, 40);
        assert!(logits(&f32, options(kernels).fast(true), tokens, 40) == exact, "f32 stays exact");
    }
}

#[test]
fn an_exact_session_refuses_what_a_fast_one_saved() {
    let (model, temp) = (tales(Dtype::Bf16), TempDir::new());
    let (tokens, path) = (tokens(&model), temp.join("session"));
    let save = |count| {
        let mut session = Session::new(&model, scalar().fast(true)).unwrap();
        session.feed(&tokens[..count]).unwrap();
        session.save(&path).unwrap();
    };
    let load = |options| Session::new(&model, options).unwrap().load(&path);

    save(40);
    let error = load(scalar()).unwrap_err();
    assert!(matches!(error, Error::SavedSession { .. }) && error.to_string().contains("fast"), "{error}");
    load(scalar().fast(true)).unwrap();
    save(31); // nothing was rounded
    load(scalar()).unwrap();
}

#[test]
fn what_is_loaded_or_cut_back_stays_rounded_until_nothing_is_left() {
    let (model, temp) = (tales(Dtype::Bf16), TempDir::new());
    let (tokens, path) = (tokens(&model), temp.join("session"));
    let mut session = Session::new(&model, scalar().fast(true)).unwrap();
    let is_rounded = |session: &mut Session| {
        session.save(&path).unwrap();
        Session::new(&model, scalar()).unwrap().load(&path).is_err()
    };
    session.feed(&tokens[..40]).unwrap();
    session.truncate(10);
    assert!(is_rounded(&mut session));
    session.load(&path).unwrap();
    assert!(is_rounded(&mut session));
    session.truncate(0);
    session.feed(&tokens[..10]).unwrap();
    assert!(!is_rounded(&mut session));
}

#[test]
fn the_program_says_where_fast_changes_nothing() {
    let (bf16, f32) = (blob_of(TALES, Dtype::Bf16), blob_of(TALES, Dtype::F32));
    let [bf16, f32] = [&bf16, &f32].map(|path| path.to_str().unwrap());
    let exact = run("smolrun", &[f32, "Once upon a time", "-n", "8"]);
    let fast = run("smolrun", &[f32, "Once upon a time", "-n", "8", "--fast"]);
    assert_eq!((fast.code, &fast.stdout), (0, &exact.stdout));
    assert_eq!(
        fast.stderr,
        "smolrun: --fast: exact, because the blob's matrices are neither bf16 nor quantized\n"
    );

    let outcome = run("smolrun", &["bench", bf16, "-p", "40", "-n", "0", "-r", "1", "--fast"]);
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    let (stderr, stdout) = (&outcome.stderr, &outcome.stdout);
    // The program runs the fastest set that there is, or the one that the environment names.
    match unit_of(Kernels::from_env().unwrap().name()) {
        Some(unit) => {
            let note = format!("prompts rounded for {unit}, not bit-exact");
            assert!(stderr.is_empty() && stdout.contains(&note), "{stderr}{stdout}");
        }
        None => {
            let note = "smolrun: --fast: exact, because the processor has, or may use, no unit for it: AMX, \
                        AMD's AVX512-BF16 for bf16 matrices, VNNI or Arm's dot product for quantized ones\n";
            assert!(stderr == note && !stdout.contains("not bit-exact"), "{stderr}{stdout}");
        }
    }
}

#[test]
#[ignore = "needs the real model: scripts/fetch_model.sh smollm2-135m-instruct"]
fn smollm2_135m_fast_stays_near_the_exact_logits() {
    let model = Model::open(blob_of(REAL, Dtype::Bf16)).unwrap();
    let text = std::fs::read_to_string(smol_tests::common::repository().join("tests/data/ppl.txt")).unwrap();
    let tokens = &model.tokenizer().encode(&text, SpecialTokens::AsText).unwrap()[..32];
    let exact = logits(&model, SessionOptions::default(), tokens, 32);
    let fast = logits(&model, scalar().fast(true), tokens, 32);
    let most = most_difference(&exact, &fast);
    println!("logits differ by {most}");
    assert!(most > 0.0 && most < 1.0, "logits differ by {most}");
}

/// The divergence that rounding may add to that of the blob from its checkpoint.
const MOST_DIVERGENCE: f64 = 0.005;

#[test]
#[ignore = "needs the real model: scripts/fetch_model.sh smollm2-135m-instruct"]
fn smollm2_135m_in_q8_diverges_little_when_fast() {
    let model = Model::open(blob_of(REAL, Dtype::Q8)).unwrap();
    let text = std::fs::read_to_string(smol_tests::common::repository().join("tests/data/ppl.txt")).unwrap();
    let tokens = &model.tokenizer().encode(&text, SpecialTokens::AsText).unwrap()[..2048];
    let mut exact = Session::new(&model, SessionOptions::default()).unwrap();
    let mut fast = Session::new(&model, SessionOptions::default().fast(true)).unwrap();
    // Without a unit nothing is rounded for it to diverge.
    let unit = quantized_unit_of(Kernels::from_env().unwrap().name());
    assert_eq!(fast.fast(), unit.map_or(Fast::NoUnit, Fast::On));
    let windows = fast.compare(&mut exact, tokens, PerplexityOptions::default()).unwrap();
    let divergences: Vec<f64> = windows.flat_map(|window| window.unwrap().divergences).collect();
    let mean = divergences.iter().sum::<f64>() / divergences.len() as f64;
    println!("{} tokens diverge by {mean:.2e}", divergences.len());
    assert!(mean < MOST_DIVERGENCE, "{mean}");
}

#[test]
fn who_looks_on_sees_the_same_bits_on_every_set() {
    let model = tales(Dtype::Q8);
    let tokens = tokens(&model);
    // So few that they are not rounded to 8 bits, and more.
    for count in [20, 25, 31, 47, TOKENS] {
        let observed = |kernels| {
            let (mut session, mut seen) = (Session::new(&model, options(kernels)).unwrap(), Vec::new());
            let layers = 0..model.config().num_hidden_layers;
            session
                .feed_observed(&tokens[..count], layers, &mut Vec::new(), |inputs| {
                    seen.extend(inputs.panels.iter().map(|number| number.to_bits()));
                })
                .unwrap();
            seen
        };
        let expected = observed(Kernels::named("scalar").unwrap());
        for kernels in Kernels::available() {
            assert!(observed(kernels) == expected, "{}, {count} tokens", kernels.name());
        }
    }
}
