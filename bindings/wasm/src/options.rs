//! The page's options for a generation.

use js_sys::Array;
use smolrun::{GenerateOptions, Sampling};
use wasm_bindgen::prelude::*;

use crate::error::argument;

#[wasm_bindgen]
extern "C" {
    /// `GenerateOptions` of the TypeScript package: what is missing is the library's default.
    pub type JsOptions;

    #[wasm_bindgen(method, getter, js_name = maxTokens)]
    fn max_tokens(this: &JsOptions) -> Option<f64>;
    #[wasm_bindgen(method, getter)]
    fn temperature(this: &JsOptions) -> Option<f32>;
    #[wasm_bindgen(method, getter, js_name = topK)]
    fn top_k(this: &JsOptions) -> Option<f64>;
    #[wasm_bindgen(method, getter, js_name = topP)]
    fn top_p(this: &JsOptions) -> Option<f32>;
    #[wasm_bindgen(method, getter, js_name = minP)]
    fn min_p(this: &JsOptions) -> Option<f32>;
    #[wasm_bindgen(method, getter, js_name = repetitionPenalty)]
    fn repetition_penalty(this: &JsOptions) -> Option<f32>;
    #[wasm_bindgen(method, getter)]
    fn seed(this: &JsOptions) -> Option<f64>;
    #[wasm_bindgen(method, getter)]
    fn stop(this: &JsOptions) -> Option<Array>;
}

impl JsOptions {
    pub(crate) fn read(&self) -> Result<GenerateOptions, JsValue> {
        let defaults = GenerateOptions::default();
        let stop: Option<Vec<String>> =
            self.stop().unwrap_or_default().iter().map(|text| text.as_string()).collect();
        Ok(GenerateOptions::default()
            .max_tokens(count("maxTokens", self.max_tokens(), defaults.max_tokens)?)
            .stop(stop.ok_or_else(|| argument("stop", "texts", "something else"))?)
            .sampling(self.sampling(defaults.sampling)?))
    }

    fn sampling(&self, defaults: Sampling) -> Result<Sampling, JsValue> {
        let sampling = Sampling::default()
            .temperature(self.temperature().unwrap_or(defaults.temperature))
            .top_k(count("topK", self.top_k(), defaults.top_k)?)
            .top_p(self.top_p().unwrap_or(defaults.top_p))
            .min_p(self.min_p().unwrap_or(defaults.min_p))
            .repetition_penalty(self.repetition_penalty().unwrap_or(defaults.repetition_penalty))
            .seed(count("seed", self.seed(), 0)? as u64);
        Ok(sampling)
    }
}

/// A whole number that JavaScript can hold and this machine can count to.
fn count(name: &'static str, number: Option<f64>, default: usize) -> Result<usize, JsValue> {
    match number {
        None => Ok(default),
        Some(number) if number.fract() == 0.0 && (0.0..=usize::MAX as f64).contains(&number) => {
            Ok(number as usize)
        }
        Some(number) => Err(argument(name, "a whole number of 0 to 4294967295", number)),
    }
}
