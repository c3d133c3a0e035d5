//! Every step against a naive oracle: all probabilities in f64, sorted whole, one rule after the other.

use super::{Sampler, SamplerStep, Sampling};
use crate::error::Error;
use crate::generate::rng::Rng;

/// Ids and probabilities, most likely first, equals by id.
type Distribution = Vec<(u32, f64)>;

/// What `sampling` leaves of `logits` after the tokens of `past`; nothing if that rules all of them out.
fn oracle(sampling: &Sampling, logits: &[f32], past: &[u32]) -> Distribution {
    let mut logits: Vec<(u32, f64)> = (0..).zip(logits.iter().map(|&logit| f64::from(logit))).collect();
    for step in &sampling.sampler_order {
        let probabilities = softmax(&logits);
        let keep: Vec<u32> = match step {
            SamplerStep::Bias => {
                for &(id, bias) in &sampling.logit_bias {
                    logits
                        .iter_mut()
                        .filter(|entry| entry.0 == id)
                        .for_each(|entry| entry.1 += f64::from(bias));
                }
                logits.iter().filter(|entry| entry.1.is_finite()).map(|entry| entry.0).collect()
            }
            SamplerStep::Penalties => {
                logits.iter_mut().for_each(|entry| entry.1 = penalised(sampling, *entry, past));
                continue;
            }
            SamplerStep::Temperature => {
                logits.iter_mut().for_each(|entry| entry.1 /= f64::from(sampling.temperature));
                continue;
            }
            SamplerStep::TopK => {
                let k = if sampling.top_k == 0 { usize::MAX } else { sampling.top_k };
                probabilities.iter().take(k).map(|entry| entry.0).collect()
            }
            SamplerStep::TopP => first_that_reach(&probabilities, sampling.top_p),
            SamplerStep::MinP => {
                let least = f64::from(sampling.min_p) * probabilities[0].1;
                probabilities.iter().filter(|entry| entry.1 >= least).map(|entry| entry.0).collect()
            }
            SamplerStep::Typical => {
                let entropy: f64 = probabilities.iter().map(|(_, p)| -p * p.ln()).sum();
                let mut nearest = probabilities.clone();
                let distance = |entry: &(u32, f64)| (-entry.1.ln() - entropy).abs();
                nearest.sort_by(|a, b| distance(a).total_cmp(&distance(b)));
                first_that_reach(&nearest, sampling.typical_p)
            }
        };
        logits.retain(|entry| keep.contains(&entry.0));
        if logits.is_empty() {
            return Vec::new();
        }
    }
    softmax(&logits)
}

fn penalised(sampling: &Sampling, (id, logit): (u32, f64), past: &[u32]) -> f64 {
    let window = if sampling.penalty_window == 0 { past.len() } else { sampling.penalty_window };
    let count = past.iter().rev().take(window).filter(|&&token| token == id).count();
    if count == 0 {
        return logit;
    }
    let repetition = f64::from(sampling.repetition_penalty);
    let scaled = if logit > 0.0 { logit / repetition } else { logit * repetition };
    scaled - f64::from(sampling.frequency_penalty) * count as f64 - f64::from(sampling.presence_penalty)
}

fn softmax(logits: &[(u32, f64)]) -> Distribution {
    let most = logits.iter().map(|entry| entry.1).fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|entry| (entry.1 - most).exp()).sum();
    let mut sorted: Vec<_> = logits.iter().map(|&(id, logit)| (id, (logit - most).exp() / sum)).collect();
    sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    sorted
}

fn first_that_reach(entries: &[(u32, f64)], share: f32) -> Vec<u32> {
    let mut sum = if share == 1.0 { f64::NEG_INFINITY } else { 0.0 };
    let needed = entries.iter().take_while(|entry| {
        let is_needed = sum < f64::from(share);
        sum += entry.1;
        is_needed
    });
    needed.map(|entry| entry.0).collect()
}

/// Uniform between `low` and `high`.
fn between(rng: &mut Rng, low: f32, high: f32) -> f32 {
    low + (high - low) * (rng.below(1 << 24) as f32 / (1 << 24) as f32)
}

fn random_logits(rng: &mut Rng, count: usize) -> Vec<f32> {
    let spread = between(rng, 0.1, 12.0);
    (0..count).map(|_| between(rng, -spread, spread)).collect()
}

fn random_sampling(rng: &mut Rng, vocab_size: u32) -> Sampling {
    let mut order: Vec<SamplerStep> = SamplerStep::ALL.to_vec();
    for last in (1..order.len()).rev() {
        order.swap(last, rng.below(last as u64 + 1) as usize);
    }
    order.truncate(1 + rng.below(7) as usize);
    let mut sometimes =
        |low, high, neutral| if rng.below(2) == 0 { neutral } else { between(rng, low, high) };
    let mut sampling = Sampling {
        temperature: sometimes(0.2, 2.0, 1.0),
        top_p: sometimes(0.05, 1.0, 1.0),
        min_p: sometimes(0.0, 0.3, 0.0),
        typical_p: sometimes(0.05, 1.0, 1.0),
        repetition_penalty: sometimes(0.7, 1.8, 1.0),
        frequency_penalty: sometimes(-1.0, 1.0, 0.0),
        presence_penalty: sometimes(-1.0, 1.0, 0.0),
        sampler_order: order,
        ..Sampling::default()
    };
    sampling.top_k = rng.below(u64::from(vocab_size) + 1) as usize;
    sampling.penalty_window = rng.below(12) as usize;
    for _ in 0..rng.below(4) {
        let bias = if rng.below(3) == 0 { f32::NEG_INFINITY } else { between(rng, -5.0, 5.0) };
        sampling.logit_bias.push((rng.below(u64::from(vocab_size)) as u32, bias));
    }
    sampling
}

#[test]
fn what_is_drawn_from_is_what_the_oracle_leaves() {
    let mut rng = Rng::new(11);
    for _ in 0..4000 {
        let vocab_size = 5 + rng.below(60) as u32;
        let sampling = random_sampling(&mut rng, vocab_size);
        let logits = random_logits(&mut rng, vocab_size as usize);
        let past: Vec<u32> = (0..rng.below(30)).map(|_| rng.below(u64::from(vocab_size)) as u32).collect();
        let mut sampler = Sampler::new(sampling.clone(), vocab_size as usize).unwrap();
        past.iter().for_each(|&id| sampler.accept(id).unwrap());
        let expected = oracle(&sampling, &logits, &past);
        if expected.is_empty() {
            assert!(sampler.probabilities(&logits).is_err(), "{sampling:?}");
            continue;
        }
        let dense = |entries: &[(u32, f64)]| {
            let mut all = vec![0.0; vocab_size as usize];
            entries.iter().for_each(|&(id, probability)| all[id as usize] = probability);
            all
        };
        let found: Vec<_> = sampler.probabilities(&logits).unwrap().collect();
        let (found, expected) = (dense(&found), dense(&expected));
        let is_near = found.iter().zip(&expected).all(|(a, b): (&f64, &f64)| (a - b).abs() < 1e-9);
        assert!(is_near, "{sampling:?}\n{found:?}\n{expected:?}");
    }
}

#[test]
fn a_whole_vocabulary_is_narrowed_as_the_oracle_does() {
    let mut rng = Rng::new(5);
    let logits = random_logits(&mut rng, 3000);
    let base = Sampling { temperature: 0.8, ..Sampling::default() };
    for sampling in [
        Sampling { top_k: 40, ..base.clone() },
        Sampling { top_p: 0.9, ..base.clone() },
        Sampling { min_p: 0.05, ..base.clone() },
        Sampling { typical_p: 0.7, ..base.clone() },
        Sampling { top_k: 900, top_p: 0.8, min_p: 0.01, typical_p: 0.9, ..base },
    ] {
        let mut sampler = Sampler::new(sampling.clone(), logits.len()).unwrap();
        let found: Vec<u32> = sampler.probabilities(&logits).unwrap().map(|entry| entry.0).collect();
        let mut expected: Vec<u32> = oracle(&sampling, &logits, &[]).iter().map(|entry| entry.0).collect();
        expected.sort();
        assert_eq!(found, expected, "{sampling:?}");
    }
}

/// Draws 10,000 times and compares the counts with the probabilities by Pearson's test.
fn assert_fits(sampling: Sampling, logits: &[f32]) {
    let mut sampler = Sampler::new(sampling, logits.len()).unwrap();
    let expected: Distribution = sampler.probabilities(logits).unwrap().collect();
    let mut counts = vec![0u32; logits.len()];
    (0..10_000).for_each(|_| counts[sampler.sample(logits).unwrap() as usize] += 1);
    let drawn: u32 = expected.iter().map(|&(id, _)| counts[id as usize]).sum();
    assert_eq!(drawn, 10_000, "something else was drawn");
    // Tokens of fewer than 5 expected draws count together.
    let (mut statistic, mut cells, mut rest) = (0.0, 0, (0.0, 0.0));
    for (id, probability) in expected {
        let (expected, count) = (probability * 1e4, f64::from(counts[id as usize]));
        if expected < 5.0 {
            rest = (rest.0 + expected, rest.1 + count);
        } else {
            (statistic, cells) = (statistic + (count - expected).powi(2) / expected, cells + 1);
        }
    }
    if rest.0 >= 5.0 {
        (statistic, cells) = (statistic + (rest.1 - rest.0).powi(2) / rest.0, cells + 1);
    }
    // The 0.999 quantile of the distribution, by Wilson and Hilferty's approximation.
    let degrees = f64::from(cells - 1);
    let spread = 2.0 / (9.0 * degrees);
    let bound = degrees * (1.0 - spread + 3.0902 * spread.sqrt()).powi(3);
    assert!(statistic < bound, "chi-square {statistic:.1} of {cells} cells, above {bound:.1}");
}

#[test]
fn ten_thousand_draws_have_the_frequencies_that_they_should() {
    let mut rng = Rng::new(3);
    let logits = random_logits(&mut rng, 500);
    let base = Sampling { temperature: 1.0, seed: 42, ..Sampling::default() };
    assert_fits(base.clone(), &logits);
    assert_fits(Sampling { temperature: 0.6, top_k: 30, ..base.clone() }, &logits);
    assert_fits(Sampling { top_p: 0.8, ..base.clone() }, &logits);
    assert_fits(Sampling { temperature: 1.7, min_p: 0.02, ..base.clone() }, &logits);
    assert_fits(Sampling { typical_p: 0.5, ..base.clone() }, &logits);
    assert_fits(Sampling { temperature: 3.0, ..base }, &[0.0; 64]);
}

#[test]
fn greedy_takes_the_first_of_the_largest() {
    let sample = |sampling| Sampler::new(sampling, 4).unwrap().sample(&[0.0, 3.0, -1.0, 3.0]).unwrap();
    assert_eq!(sample(Sampling::default()), 1);
    // What narrows the choice does not change the likeliest; what changes logits does.
    assert_eq!(sample(Sampling { typical_p: 0.01, top_k: 2, min_p: 0.9, ..Sampling::default() }), 1);
    assert_eq!(sample(Sampling { logit_bias: vec![(1, -0.5)], ..Sampling::default() }), 3);
    let banned = vec![(1, f32::NEG_INFINITY), (3, f32::NEG_INFINITY)];
    assert_eq!(sample(Sampling { logit_bias: banned, ..Sampling::default() }), 0);
    let mut sampler = Sampler::new(Sampling { repetition_penalty: 4.0, ..Sampling::default() }, 4).unwrap();
    sampler.accept(1).unwrap();
    assert_eq!(sampler.sample(&[0.0, 3.0, -1.0, 3.0]).unwrap(), 3);
}

#[test]
fn a_seed_decides_every_draw() {
    let logits: Vec<f32> = (0..1000).map(|i| ((i * 7919) % 1009) as f32 / 100.0).collect();
    let run = |seed| {
        let sampling = Sampling { temperature: 1.0, top_k: 500, top_p: 0.9, seed, ..Sampling::default() };
        let mut sampler = Sampler::new(sampling, logits.len()).unwrap();
        (0..12).map(|_| sampler.sample(&logits).unwrap()).collect::<Vec<_>>()
    };
    // These ids are a promise: a seed means the same text on every platform and in every later version.
    assert_eq!(run(1), [562, 752, 964, 442, 442, 765, 865, 522, 284, 792, 403, 601]);
    assert_ne!(run(1), run(2));
}

#[test]
fn extreme_options_are_no_trouble() {
    let logits = [f32::MAX, f32::MIN, 1.0, -1.0];
    for temperature in [f32::from_bits(1), 1e-42, 1.0, f32::MAX] {
        for penalty in [f32::MIN, -1.0, f32::MAX] {
            let sampling = Sampling {
                temperature,
                frequency_penalty: penalty,
                presence_penalty: penalty,
                repetition_penalty: f32::MAX,
                logit_bias: vec![(2, f32::MAX), (3, f32::MIN)],
                top_p: f32::from_bits(1),
                ..Sampling::default()
            };
            let mut sampler = Sampler::new(sampling, 4).unwrap();
            (0..4).for_each(|id| sampler.accept(id).unwrap());
            assert!(sampler.sample(&logits).unwrap() < 4);
            assert!(sampler.probabilities(&logits).unwrap().all(|entry| entry.1.is_finite()));
        }
    }
}

#[test]
fn senseless_options_and_logits_are_errors() {
    let base = Sampling { temperature: 1.0, ..Sampling::default() };
    let not_numbers = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let mut wrong = Vec::new();
    for bad in not_numbers.into_iter().chain([-1.0]) {
        wrong.push(("temperature", Sampling { temperature: bad, ..base.clone() }));
        wrong.push(("repetition_penalty", Sampling { repetition_penalty: bad, ..base.clone() }));
    }
    for bad in not_numbers.into_iter().chain([-0.5, 1.5]) {
        wrong.push(("top_p", Sampling { top_p: bad, ..base.clone() }));
        wrong.push(("typical_p", Sampling { typical_p: bad, ..base.clone() }));
        wrong.push(("min_p", Sampling { min_p: bad, ..base.clone() }));
    }
    for bad in not_numbers {
        wrong.push(("frequency_penalty", Sampling { frequency_penalty: bad, ..base.clone() }));
        wrong.push(("presence_penalty", Sampling { presence_penalty: bad, ..base.clone() }));
    }
    wrong.push(("top_p", Sampling { top_p: 0.0, ..base.clone() }));
    wrong.push(("typical_p", Sampling { typical_p: 0.0, ..base.clone() }));
    wrong.push(("repetition_penalty", Sampling { repetition_penalty: 0.0, ..base.clone() }));
    wrong.push(("logit_bias", Sampling { logit_bias: vec![(0, f32::NAN)], ..base.clone() }));
    wrong.push(("logit_bias", Sampling { logit_bias: vec![(0, f32::INFINITY)], ..base.clone() }));
    wrong.push((
        "sampler_order",
        Sampling { sampler_order: vec![SamplerStep::TopK, SamplerStep::TopK], ..base.clone() },
    ));
    for (expected, sampling) in wrong {
        let error = Sampler::new(sampling.clone(), 2).unwrap_err();
        assert!(matches!(error, Error::Argument { name, .. } if name == expected), "{sampling:?}: {error}");
    }
    let bias = Sampling { logit_bias: vec![(2, 1.0)], ..base.clone() };
    assert!(matches!(Sampler::new(bias, 2), Err(Error::TokenId { id: 2, vocab_size: 2 })));
    let all = vec![(0, f32::NEG_INFINITY), (1, f32::NEG_INFINITY)];
    let mut none_left = Sampler::new(Sampling { logit_bias: all, ..base.clone() }, 2).unwrap();
    assert!(matches!(none_left.sample(&[0.0, 1.0]), Err(Error::Argument { name: "logit_bias", .. })));

    for sampling in [base, Sampling::default()] {
        let mut sampler = Sampler::new(sampling, 2).unwrap();
        for bad in not_numbers {
            assert!(matches!(sampler.sample(&[0.0, bad]), Err(Error::NotFinite)));
        }
        assert!(matches!(sampler.sample(&[0.0]), Err(Error::Argument { name: "logits", .. })));
        assert!(matches!(sampler.accept(2), Err(Error::TokenId { id: 2, vocab_size: 2 })));
    }
}

#[test]
fn a_step_has_a_name() {
    for &step in SamplerStep::ALL {
        assert_eq!(step.name().parse::<SamplerStep>().unwrap(), step);
    }
    let error = "top_k".parse::<SamplerStep>().unwrap_err().to_string();
    assert!(error.contains("bias, penalties, temperature, top-k, top-p, min-p, typical"), "{error}");
}

#[test]
fn a_vocabulary_of_no_model_is_refused() {
    for sampling in [Sampling::default(), Sampling::default().temperature(1.0)] {
        for vocab_size in [0, 1 << 23, usize::MAX / 2, usize::MAX] {
            let error = Sampler::new(sampling.clone(), vocab_size).unwrap_err();
            assert!(matches!(error, Error::Argument { name: "vocab_size", .. }), "{error}");
        }
    }
}
