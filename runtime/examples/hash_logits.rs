//! Prints the SHA-256 of the logits of 300 positions: two machines, instruction sets or thread counts that compute the
//! same bits print the same line. `cargo run --release --example hash_logits -- BLOB [THREADS] [TOKENS AT A TIME]`

use std::env;
use std::error::Error;

use sha2::{Digest, Sha256};
use smolrun::{Kernels, Model, Session, SessionOptions};

const POSITIONS: u32 = 300;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let blob = args.next().ok_or("usage: hash_logits BLOB [THREADS] [TOKENS AT A TIME]")?;
    let threads = args.next().map_or(Ok(1), |threads| threads.parse())?;
    let split = args.next().map_or(Ok(1), |split| split.parse())?;

    let model = Model::read(blob)?;
    let vocab = model.config().vocab_size as u32;
    let tokens: Vec<u32> = (0..POSITIONS).map(|i| i.wrapping_mul(2_654_435_761) % vocab).collect();
    for kernels in Kernels::available().into_iter().rev() {
        let mut session = Session::new(&model, SessionOptions::default().threads(threads).kernels(kernels))?;
        let mut hash = Sha256::new();
        for tokens in tokens.chunks(split) {
            let update = |_, logits: &[f32]| hash.update(bytemuck::cast_slice(logits));
            session.feed_all(tokens, update)?;
        }
        let hex: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        println!("{hex} {}{}", kernels.name(), if kernels.is_exact() { "" } else { " (not exact)" });
    }
    Ok(())
}
