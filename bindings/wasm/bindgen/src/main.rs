//! Puts JavaScript and its types around a module, for a page to import: `smolrun-bindgen MODULE OUT_DIR`.

use std::env;
use std::error::Error;

use wasm_bindgen_cli_support::Bindgen;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [module, out_dir] = &args[..] else { return Err("usage: smolrun-bindgen MODULE OUT_DIR".into()) };
    Ok(Bindgen::new().input_path(module).web(true)?.typescript(true).generate(out_dir)?)
}
