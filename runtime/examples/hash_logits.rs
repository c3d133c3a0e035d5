//! Prints the SHA-256 of the logits of 300 positions: two machines, instruction sets or thread counts that compute the
//! same bits print the same line. `cargo run --release --example hash_logits -- BLOB [THREADS] [TOKENS AT A TIME]
//! [POSITIONS] [fast]`; with `fast`, also of those of fast sessions, and how far they are from the exact ones.

use std::env;
use std::error::Error;
use std::io::{Write, stdout};

use sha2::{Digest, Sha256};
use smolrun::{Kernels, Model, Session, SessionOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let blob =
        args.next().ok_or("usage: hash_logits BLOB [THREADS] [TOKENS AT A TIME] [POSITIONS] [fast]")?;
    let threads = args.next().map_or(Ok(1), |threads| threads.parse())?;
    let split = args.next().map_or(Ok(1), |split| split.parse())?;
    let positions: u32 = args.next().map_or(Ok(300), |positions| positions.parse())?;
    let is_fast = args.next().is_some_and(|arg| arg == "fast");

    let model = Model::read(blob)?;
    let vocab = model.config().vocab_size as u32;
    let tokens: Vec<u32> = (0..positions).map(|i| i.wrapping_mul(2_654_435_761) % vocab).collect();
    for kernels in Kernels::available().into_iter().rev() {
        let options = SessionOptions::default().threads(threads).kernels(kernels);
        let (mut exact, mut most) = (Vec::new(), 0f32);
        let keep = |logits: &[f32]| {
            if is_fast {
                exact.extend_from_slice(logits)
            }
        };
        let hash = hash_logits(&mut Session::new(&model, options.clone())?, &tokens, split, keep)?;
        writeln!(
            stdout(),
            "{hash} {}{}",
            kernels.name(),
            if kernels.is_exact() { "" } else { " (not exact)" }
        )?;

        let mut session = Session::new(&model, options.fast(is_fast))?;
        if let Some(unit) = session.fast().unit() {
            let mut exact = exact.iter();
            let compare = |logits: &[f32]| {
                most = logits.iter().zip(exact.by_ref()).map(|(a, b)| (a - b).abs()).fold(most, f32::max);
            };
            let hash = hash_logits(&mut session, &tokens, split, compare)?;
            writeln!(stdout(), "{hash} fast on {unit}, up to {most} from exact")?;
        }
    }
    Ok(())
}

/// Of the logits of every position, which `each` sees too.
fn hash_logits(
    session: &mut Session,
    tokens: &[u32],
    split: usize,
    mut each: impl FnMut(&[f32]),
) -> smolrun::Result<String> {
    let mut hash = Sha256::new();
    for tokens in tokens.chunks(split) {
        session.feed_all(tokens, |_, logits| {
            hash.update(bytemuck::cast_slice(logits));
            each(logits);
        })?;
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
