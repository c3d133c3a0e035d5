//! Perplexity of a text, with the time and memory it takes: `perplexity BLOB TEXT [TOKENS]`.
//!
//! The text begins again if it has fewer than TOKENS, and goes past the model's context with `Overflow::Slide`. A line for
//! each 1,024 tokens: their perplexity, the mean time for one of those fed together, the median time for one of the last
//! 16, which are fed one by one as in a generation, and the bytes of keys and values.

use std::error::Error;
use std::time::Instant;
use std::{env, fs};

use smolrun::{Model, Overflow, Session, SessionOptions, SpecialTokens};

/// Tokens of a line, and those of them that are fed one by one.
const WINDOW: usize = 1024;
const ONE_BY_ONE: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [blob, text, count @ ..] = &args[..] else {
        return Err("usage: perplexity BLOB TEXT [TOKENS]".into());
    };
    let model = Model::open(blob)?;
    let tokens = model.tokenizer().encode(&fs::read_to_string(text)?, SpecialTokens::AsText)?;
    let count = count.first().map_or(Ok(tokens.len()), |count| count.parse())?;
    // One more: each token is asked how likely the next one was.
    let tokens: Vec<u32> = tokens.iter().copied().cycle().take(count + 1).collect();
    let mut session = Session::new(&model, SessionOptions::default().overflow(Overflow::Slide))?;

    println!("tokens  perplexity  ms together  ms alone  KV bytes");
    let mut total = 0.0;
    for first in (0..count).step_by(WINDOW) {
        let window = &tokens[first..(first + WINDOW).min(count) + 1];
        let together = (window.len() - 1).saturating_sub(ONE_BY_ONE);
        let mut nats = 0.0;
        let start = Instant::now();
        session.feed_all(&window[..together], |i, logits| nats += surprise(logits, window[i + 1]))?;
        let together_ms = millis(start) / together as f64;
        let mut alone = Vec::new();
        for pair in window[together..].windows(2) {
            let start = Instant::now();
            nats += surprise(session.feed(&pair[..1])?, pair[1]);
            alone.push(millis(start));
        }
        alone.sort_unstable_by(f64::total_cmp);
        let (end, median, bytes) = (first + window.len() - 1, alone[alone.len() / 2], session.cache_bytes());
        let perplexity = (nats / (window.len() - 1) as f64).exp();
        println!("{end:6}  {perplexity:10.3}  {together_ms:11.2}  {median:8.2}  {bytes}");
        total += nats;
    }
    println!("   all  {:10.3}", (total / count as f64).exp());
    Ok(())
}

fn millis(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

/// How little `id` was to be expected, in nats.
fn surprise(logits: &[f32], id: u32) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
    sum.ln() - f64::from(logits[id as usize] - largest)
}
