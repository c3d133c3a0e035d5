//! One file that tells a tale: the model is inside the program.
//!
//! `smolconv models/tales-4m -o tales.bin && SMOL_BLOB=$PWD/tales.bin cargo run --release` in this directory.

use smolrun::{GenerateOptions, Model, Session, SessionOptions};

static TALES: &[u8] = smolrun::include_blob!(env!("SMOL_BLOB"));

fn main() -> smolrun::Result<()> {
    let model = Model::from_static(TALES)?;
    let prompt = model.encode_prompt("Once upon a time")?;
    let mut session = Session::new(&model, SessionOptions::default())?;
    for token in session.generate(&prompt, GenerateOptions::default().max_tokens(40))? {
        print!("{}", token?.text);
    }
    println!();
    Ok(())
}
