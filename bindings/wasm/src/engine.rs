//! A model with the one sequence that it runs, driven token by token so that the worker can listen in between.

use js_sys::{Array, Object, Reflect};
use smolrun::chat::ChatOptions;
use smolrun::generation::Generation;
use smolrun::storage::Storage;
use smolrun::{Kernels, Message, Model, PromptOptions, Session, SessionOptions, SpecialTokens};
use wasm_bindgen::prelude::*;

use crate::blob::BlobBuffer;
use crate::error::to_js;
use crate::options::JsOptions;
use crate::threads::spawn;

/// Tokens of a prompt between one look at the worker's messages and the next: some 100 ms, and enough rows for the kernels.
const PREFILL_TOKENS: usize = 64;

/// A model and its sequence.
#[wasm_bindgen]
pub struct Engine {
    model: Model,
    session: Session,
    /// What is being generated, once its prompt but for the end has run.
    generation: Option<Generation>,
}

/// What one step has generated.
#[wasm_bindgen(getter_with_clone)]
pub struct Piece {
    /// The token's id.
    pub id: u32,
    /// The text that is complete with it.
    pub text: String,
    /// Why it is the last, if it is.
    #[wasm_bindgen(js_name = finishReason)]
    pub finish_reason: Option<String>,
}

#[wasm_bindgen]
impl Engine {
    /// Makes a model of a blob that is whole; the blob moves into it. More threads than one need as many that the page has
    /// started or will, but for this one.
    #[wasm_bindgen(constructor)]
    pub fn new(blob: BlobBuffer, threads: usize) -> Result<Engine, JsValue> {
        let model = Model::from_storage(Storage::Owned(blob.0)).map_err(to_js)?;
        let options = SessionOptions::default().threads(threads).spawn(spawn).kernels(Kernels::detect());
        let session = Session::new(&model, options).map_err(to_js)?;
        Ok(Engine { model, session, generation: None })
    }

    /// What the model is: the fields of the package's `ModelInfo` that the blob knows.
    pub fn info(&self) -> Result<Object, JsValue> {
        let (config, layout) = (self.model.config(), self.model.layout());
        let dtypes: Vec<_> = layout.weights.dtypes().iter().map(|dtype| dtype.name()).collect();
        let has_template = self.model.chat_template().map_err(to_js)?.is_some();
        let eos: Array = config.eos_token_ids.iter().map(|&id| JsValue::from(id)).collect();
        object([
            ("parameters", (layout.parameters() as f64).into()),
            ("quantisation", dtypes.join("+").into()),
            ("bytes", (layout.header.file_len as f64).into()),
            ("layers", (config.num_hidden_layers as f64).into()),
            ("hiddenSize", (config.hidden_size as f64).into()),
            ("vocabSize", (config.vocab_size as f64).into()),
            ("contextLength", (config.max_position_embeddings as f64).into()),
            ("eosTokenIds", eos.into()),
            ("hasChatTemplate", has_template.into()),
            ("threads", (self.session.threads() as f64).into()),
            ("kernels", self.session.kernels().name().into()),
            ("isExact", self.session.kernels().is_exact().into()),
        ])
    }

    /// The tokens of a text; `special` parses control tokens that it spells.
    pub fn tokenize(&self, text: &str, special: bool) -> Result<Vec<u32>, JsValue> {
        let special = if special { SpecialTokens::Parse } else { SpecialTokens::AsText };
        self.model.tokenizer().encode(text, special).map_err(to_js)
    }

    /// The text of tokens, without the control tokens among them if `skip_special`.
    pub fn detokenize(&self, ids: &[u32], skip_special: bool) -> Result<String, JsValue> {
        self.model.tokenizer().decode(ids, skip_special).map_err(to_js)
    }

    /// The tokens of a text to be continued. An empty one is the beginning of a text.
    #[wasm_bindgen(js_name = encodePrompt)]
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, JsValue> {
        let options = PromptOptions::default().max_tokens(self.session.most_tokens());
        self.model.encode_prompt_with(text, &options).map_err(to_js)
    }

    /// The tokens of a conversation by the model's chat template, with what begins the answer.
    #[wasm_bindgen(js_name = encodeChat)]
    pub fn encode_chat(&self, roles: Vec<String>, contents: Vec<String>) -> Result<Vec<u32>, JsValue> {
        let messages: Vec<_> =
            roles.into_iter().zip(contents).map(|(role, content)| Message::new(role, content)).collect();
        let options = ChatOptions::default().max_tokens(self.session.most_tokens());
        self.model.encode_chat_with(&messages, &options).map_err(to_js)
    }

    /// The logits after `ids`.
    pub fn logits(&mut self, ids: &[u32]) -> Result<Vec<f32>, JsValue> {
        self.generation = None;
        let kept = self.session.keep_common_prefix(ids);
        self.session.feed(&ids[kept..]).map(<[f32]>::to_vec).map_err(to_js)
    }

    /// Goes back to where the sequence and `ids` begin to differ, and returns how many of `ids` need not be run again.
    pub fn rewind(&mut self, ids: &[u32]) -> usize {
        self.generation = None;
        self.session.keep_common_prefix(ids)
    }

    /// Runs some of `ids` after what the sequence has of them, and returns how many it has then. When the number stays as
    /// it was, the few that are left are for [`Engine::begin`].
    pub fn prefill(&mut self, ids: &[u32]) -> Result<usize, JsValue> {
        let position = self.session.position();
        let end = position + PREFILL_TOKENS;
        if end < ids.len() {
            self.session.feed(&ids[position..end]).map_err(to_js)?;
        }
        Ok(self.session.position())
    }

    /// Makes ready to generate after `ids`, of which the sequence has the beginning.
    pub fn begin(&mut self, ids: &[u32], options: &JsOptions) -> Result<(), JsValue> {
        let rest = &ids[self.session.position().min(ids.len())..];
        self.generation = Some(Generation::new(&self.session, rest, options.read()?).map_err(to_js)?);
        Ok(())
    }

    /// The next token; none after the last.
    pub fn step(&mut self) -> Result<Option<Piece>, JsValue> {
        let Some(generation) = &mut self.generation else { return Ok(None) };
        let Some(token) = generation.next(&mut self.session) else { return Ok(None) };
        let token = token.map_err(to_js)?;
        let finish_reason = token.finish_reason.map(|reason| reason.name().to_owned());
        Ok(Some(Piece { id: token.id, text: token.text, finish_reason }))
    }
}

fn object<const N: usize>(fields: [(&str, JsValue); N]) -> Result<Object, JsValue> {
    let object = Object::new();
    for (name, value) in fields {
        Reflect::set(&object, &name.into(), &value)?;
    }
    Ok(object)
}
