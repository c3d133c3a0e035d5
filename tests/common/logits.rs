//! The logits of some tokens, as one number to compare.

use sha2::{Digest, Sha256};
use smolrun::{Model, Session, SessionOptions};

/// So many tokens from all over the vocabulary, the same ones every time.
pub fn scattered_tokens(model: &Model, count: usize) -> Vec<u32> {
    let vocab_size = model.config().vocab_size as u32;
    (0..count as u32).map(|i| i.wrapping_mul(2_654_435_761) % vocab_size).collect()
}

/// SHA-256 of the logits of every position, of `tokens` fed `split` at a time.
///
/// # Panics
/// If they cannot be computed.
pub fn logits_sha256(model: &Model, tokens: &[u32], options: SessionOptions, split: usize) -> String {
    let mut session = Session::new(model, options).expect("a session can be had");
    let mut hash = Sha256::new();
    for tokens in tokens.chunks(split) {
        let update = |_, logits: &[f32]| hash.update(bytemuck::cast_slice(logits));
        session.feed_all(tokens, update).expect("the tokens fit and the logits are finite");
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
