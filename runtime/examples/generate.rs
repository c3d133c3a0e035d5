//! The smallest use of the library: `cargo run --release -p smolrun --example generate -- tales.bin "Once"`

use smolrun::{GenerateOptions, Model, Session, SessionOptions};

fn main() -> smolrun::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let model = Model::open(arguments.next().unwrap_or_else(|| "tales.bin".into()))?;
    let prompt = arguments.next().unwrap_or_else(|| "Once upon a time".into());
    let prompt = model.encode_prompt(&prompt)?;
    let mut session = Session::new(&model, SessionOptions::default())?;
    for token in session.generate(&prompt, GenerateOptions::default().max_tokens(100))? {
        print!("{}", token?.text);
    }
    println!();
    Ok(())
}
