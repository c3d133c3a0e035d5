//! The header's structs, field by field, and what they mean to the library.

use std::ffi::c_char;
use std::time::{Duration, SystemTime};

use smolrun_runtime::chat::{ChatOptions, TemplateVariable};
use smolrun_runtime::embedding::Pooling;
use smolrun_runtime::engine::EngineOptions;
use smolrun_runtime::generation::SamplerStep;
use smolrun_runtime::scheduler::SchedulerOptions;
use smolrun_runtime::{
    CancelToken, FinishReason, GenerateOptions, KvDtype, Message, Model, Overflow, Sampling, SessionOptions,
};

use crate::failure::{Failure, Result};
use crate::raw::{self, Struct};

/// As a time: the template knows none.
const NO_TIME: i64 = i64::MIN;

/// `smolrun_model_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CModelInfo {
    pub(crate) size: usize,
    pub(crate) vocab_size: usize,
    pub(crate) hidden_size: usize,
    pub(crate) num_hidden_layers: usize,
    pub(crate) max_position_embeddings: usize,
    pub(crate) parameters: u64,
    pub(crate) bytes: u64,
    pub(crate) bos_token_id: i64,
    pub(crate) has_chat_template: i32,
    pub(crate) is_quantized: i32,
}

/// `smolrun_message`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CMessage {
    pub(crate) role: *const c_char,
    pub(crate) content: *const c_char,
}

/// `smolrun_template_variable`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CTemplateVariable {
    pub(crate) name: *const c_char,
    pub(crate) text: *const c_char,
    pub(crate) flag: i64,
}

/// `smolrun_chat_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CChatOptions {
    pub(crate) size: usize,
    pub(crate) max_tokens: usize,
    pub(crate) tools: *const c_char,
    pub(crate) documents: *const c_char,
    pub(crate) variables: *const CTemplateVariable,
    pub(crate) variables_len: usize,
    pub(crate) now: i64,
    pub(crate) add_generation_prompt: i32,
    pub(crate) reserved: i32,
}

/// `smolrun_session_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CSessionOptions {
    pub(crate) size: usize,
    pub(crate) threads: usize,
    pub(crate) kv: i32,
    pub(crate) overflow: i32,
    pub(crate) fast: i32,
    pub(crate) reserved: i32,
    pub(crate) cancel: *const CancelToken,
}

/// `smolrun_logit_bias`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CLogitBias {
    pub(crate) id: u32,
    pub(crate) bias: f32,
}

/// `smolrun_generate_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CGenerateOptions {
    pub(crate) size: usize,
    pub(crate) max_tokens: usize,
    pub(crate) stop: *const *const c_char,
    pub(crate) stop_len: usize,
    pub(crate) cancel: *const CancelToken,
    pub(crate) seed: u64,
    pub(crate) temperature: f32,
    pub(crate) top_p: f32,
    pub(crate) top_k: usize,
    pub(crate) min_p: f32,
    pub(crate) typical_p: f32,
    pub(crate) repetition_penalty: f32,
    pub(crate) frequency_penalty: f32,
    pub(crate) presence_penalty: f32,
    pub(crate) ignore_eos: i32,
    pub(crate) penalty_window: usize,
    pub(crate) logit_bias: *const CLogitBias,
    pub(crate) logit_bias_len: usize,
    pub(crate) sampler_order: *const i32,
    pub(crate) sampler_order_len: usize,
    pub(crate) logprobs: i64,
}

/// `smolrun_scheduler_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CSchedulerOptions {
    pub(crate) size: usize,
    pub(crate) threads: usize,
    pub(crate) max_sequences: usize,
    pub(crate) max_rows: usize,
    pub(crate) kv_bytes: usize,
    pub(crate) prefix_bytes: usize,
    pub(crate) kv: i32,
    pub(crate) overflow: i32,
    pub(crate) pace: f32,
    pub(crate) reserved: i32,
}

// SAFETY: `repr(C)`, a size first, and numbers and raw pointers, of which any bytes are values.
unsafe impl Struct for CModelInfo {
    fn defaults() -> CModelInfo {
        CModelInfo {
            size: size_of::<CModelInfo>(),
            vocab_size: 0,
            hidden_size: 0,
            num_hidden_layers: 0,
            max_position_embeddings: 0,
            parameters: 0,
            bytes: 0,
            bos_token_id: -1,
            has_chat_template: 0,
            is_quantized: 0,
        }
    }
}

// SAFETY: as above.
unsafe impl Struct for CChatOptions {
    fn defaults() -> CChatOptions {
        CChatOptions {
            size: size_of::<CChatOptions>(),
            max_tokens: usize::MAX,
            tools: std::ptr::null(),
            documents: std::ptr::null(),
            variables: std::ptr::null(),
            variables_len: 0,
            now: NO_TIME,
            add_generation_prompt: 1,
            reserved: 0,
        }
    }
}

// SAFETY: as above.
unsafe impl Struct for CSessionOptions {
    fn defaults() -> CSessionOptions {
        let size = size_of::<CSessionOptions>();
        let cancel = std::ptr::null();
        CSessionOptions { size, threads: 0, kv: 0, overflow: 0, fast: 0, reserved: 0, cancel }
    }
}

// SAFETY: as above.
unsafe impl Struct for CGenerateOptions {
    fn defaults() -> CGenerateOptions {
        let GenerateOptions { max_tokens, sampling, .. } = GenerateOptions::default();
        CGenerateOptions {
            size: size_of::<CGenerateOptions>(),
            max_tokens,
            stop: std::ptr::null(),
            stop_len: 0,
            cancel: std::ptr::null(),
            seed: sampling.seed,
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            min_p: sampling.min_p,
            typical_p: sampling.typical_p,
            repetition_penalty: sampling.repetition_penalty,
            frequency_penalty: sampling.frequency_penalty,
            presence_penalty: sampling.presence_penalty,
            ignore_eos: 0,
            penalty_window: sampling.penalty_window,
            logit_bias: std::ptr::null(),
            logit_bias_len: 0,
            sampler_order: std::ptr::null(),
            sampler_order_len: 0,
            logprobs: -1,
        }
    }
}

// SAFETY: as above.
unsafe impl Struct for CSchedulerOptions {
    fn defaults() -> CSchedulerOptions {
        let SchedulerOptions { max_sequences, max_rows, pace, kv_bytes, prefix_bytes, .. } =
            SchedulerOptions::default();
        CSchedulerOptions {
            size: size_of::<CSchedulerOptions>(),
            threads: 0,
            max_sequences,
            max_rows,
            kv_bytes,
            prefix_bytes,
            kv: 0,
            overflow: 0,
            pace,
            reserved: 0,
        }
    }
}

impl CModelInfo {
    pub(crate) fn new(model: &Model) -> Result<CModelInfo> {
        let (config, layout) = (model.config(), model.layout());
        let is_quantized = layout.weights.dtypes().iter().any(|dtype| dtype.code_bits().is_some());
        Ok(CModelInfo {
            vocab_size: config.vocab_size,
            hidden_size: config.hidden_size,
            num_hidden_layers: config.num_hidden_layers,
            max_position_embeddings: config.max_position_embeddings,
            parameters: layout.parameters(),
            bytes: layout.header.file_len,
            bos_token_id: config.bos_token_id.map_or(-1, i64::from),
            has_chat_template: model.chat_template()?.is_some().into(),
            is_quantized: is_quantized.into(),
            ..CModelInfo::defaults()
        })
    }
}

impl CMessage {
    /// # Safety
    /// As the header says of a message.
    pub(crate) unsafe fn read(self) -> Result<Message> {
        // SAFETY: the promise is the same for both.
        let (role, content) = unsafe { (raw::text("role", self.role)?, raw::text("content", self.content)?) };
        Ok(Message::new(role, content))
    }
}

impl CTemplateVariable {
    /// # Safety
    /// As the header says of a variable.
    unsafe fn read(self) -> Result<(String, TemplateVariable)> {
        // SAFETY: the promise is the same for both.
        let (name, text) = unsafe {
            (raw::text("variables: name", self.name)?, raw::optional_text("variables: text", self.text)?)
        };
        let flag = || TemplateVariable::Flag(self.flag != 0);
        Ok((name.to_owned(), text.map_or_else(flag, TemplateVariable::from)))
    }
}

impl CChatOptions {
    /// # Safety
    /// As the header says of the fields.
    pub(crate) unsafe fn read(self) -> Result<ChatOptions> {
        zero(self.reserved)?;
        let mut options = ChatOptions::default().max_tokens(self.max_tokens);
        options.add_generation_prompt = flag("add_generation_prompt", self.add_generation_prompt)?;
        options.now = time(self.now)?;
        // SAFETY: the promise is the same for these.
        let (tools, documents, variables) = unsafe {
            (
                raw::optional_text("tools", self.tools)?,
                raw::optional_text("documents", self.documents)?,
                raw::items("variables", self.variables, self.variables_len)?,
            )
        };
        for variable in variables {
            // SAFETY: the promise is the same for each.
            options.variables.push(unsafe { variable.read()? });
        }
        if let Some(json) = tools {
            options = options.tools(json)?;
        }
        if let Some(json) = documents {
            options = options.documents(json)?;
        }
        Ok(options)
    }
}

impl CSessionOptions {
    /// # Safety
    /// As the header says of the fields.
    pub(crate) unsafe fn read(self) -> Result<SessionOptions> {
        zero(self.reserved)?;
        let mut options = SessionOptions::default();
        // SAFETY: the promise is the same.
        options.cancel = unsafe { self.cancel.as_ref() }.cloned().unwrap_or_default();
        options.threads = (self.threads > 0).then_some(self.threads);
        options.kv_dtype = kv_dtype(self.kv)?;
        options.overflow = overflow(self.overflow)?;
        options.fast = flag("fast", self.fast)?;
        Ok(options)
    }
}

impl CGenerateOptions {
    /// For `model`, whose end ids `ignore_eos` rules out.
    ///
    /// # Safety
    /// As the header says of the fields.
    pub(crate) unsafe fn read(self, model: &Model) -> Result<GenerateOptions> {
        // SAFETY: the promise is the same for these.
        let (stop, bias, cancel) = unsafe {
            (
                raw::items("stop", self.stop, self.stop_len)?,
                raw::items("logit_bias", self.logit_bias, self.logit_bias_len)?,
                self.cancel.as_ref(),
            )
        };
        // SAFETY: the promise is the same for each.
        let stop = stop.iter().map(|&text| unsafe { raw::text("stop", text) }).collect::<Result<Vec<_>>>()?;
        let mut sampling = Sampling::default()
            .temperature(self.temperature)
            .top_k(self.top_k)
            .top_p(self.top_p)
            .min_p(self.min_p)
            .typical_p(self.typical_p)
            .repetition_penalty(self.repetition_penalty)
            .frequency_penalty(self.frequency_penalty)
            .presence_penalty(self.presence_penalty)
            .penalty_window(self.penalty_window)
            .logit_bias(bias.iter().map(|&CLogitBias { id, bias }| (id, bias)))
            .seed(self.seed);
        if flag("ignore_eos", self.ignore_eos)? {
            sampling = sampling.ignore_eos(model.config());
        }
        if !self.sampler_order.is_null() {
            // SAFETY: the promise is the same.
            let order = unsafe { raw::items("sampler_order", self.sampler_order, self.sampler_order_len)? };
            sampling = sampling
                .sampler_order(order.iter().map(|&step| sampler_step(step)).collect::<Result<Vec<_>>>()?);
        }
        let mut options =
            GenerateOptions::default().max_tokens(self.max_tokens).sampling(sampling).stop(stop);
        options.logprobs = logprobs(self.logprobs)?;
        options.cancel = cancel.cloned().unwrap_or_default();
        Ok(options)
    }
}

impl CSchedulerOptions {
    pub(crate) fn read(self) -> Result<(EngineOptions, SchedulerOptions)> {
        zero(self.reserved)?;
        let mut engine = EngineOptions::default();
        engine.threads = (self.threads > 0).then_some(self.threads);
        let mut options = SchedulerOptions::default()
            .max_sequences(self.max_sequences)
            .max_rows(self.max_rows)
            .kv_bytes(self.kv_bytes)
            .prefix_bytes(self.prefix_bytes)
            .pace(self.pace)
            .overflow(overflow(self.overflow)?);
        options.kv_dtype = kv_dtype(self.kv)?;
        Ok((engine, options))
    }
}

/// `smolrun_finish_reason`; 0 is none.
pub(crate) fn finish_reason(reason: Option<FinishReason>) -> i32 {
    match reason {
        None => 0,
        Some(FinishReason::Eos) => 1,
        Some(FinishReason::Stop) => 2,
        Some(FinishReason::Length) => 3,
        Some(FinishReason::Context) => 4,
        Some(FinishReason::Cancelled) => 5,
        Some(_) => 99,
    }
}

/// `smolrun_pooling`.
pub(crate) fn pooling(number: i32) -> Result<Pooling> {
    match number {
        0 => Ok(Pooling::Last),
        1 => Ok(Pooling::Mean),
        other => Err(Failure::argument("pooling", "0 or 1", other)),
    }
}

/// A number of 0 or 1.
pub(crate) fn flag(name: &'static str, number: i32) -> Result<bool> {
    match number {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Failure::argument(name, "0 or 1", other)),
    }
}

fn zero(reserved: i32) -> Result<()> {
    match reserved {
        0 => Ok(()),
        other => Err(Failure::argument("reserved", "0", other)),
    }
}

fn kv_dtype(number: i32) -> Result<Option<KvDtype>> {
    match number {
        0 => Ok(None),
        1 => Ok(Some(KvDtype::F32)),
        2 => Ok(Some(KvDtype::F16)),
        3 => Ok(Some(KvDtype::Q8)),
        other => Err(Failure::argument("kv", "a number from 0 to 3", other)),
    }
}

fn overflow(number: i32) -> Result<Overflow> {
    match number {
        0 => Ok(Overflow::Stop),
        1 => Ok(Overflow::Slide),
        other => Err(Failure::argument("overflow", "0 or 1", other)),
    }
}

fn sampler_step(number: i32) -> Result<SamplerStep> {
    let step = usize::try_from(number).ok().and_then(|number| SamplerStep::ALL.get(number));
    step.copied().ok_or_else(|| {
        let expected = format!("steps from 0 to {}", SamplerStep::ALL.len() - 1);
        Failure::argument("sampler_order", expected, number)
    })
}

fn logprobs(number: i64) -> Result<Option<usize>> {
    match number {
        -1 => Ok(None),
        0.. => Ok(Some(usize::try_from(number).unwrap_or(usize::MAX))),
        other => Err(Failure::argument("logprobs", "-1 for none, or a number from 0 up", other)),
    }
}

fn time(seconds: i64) -> Result<Option<SystemTime>> {
    if seconds == NO_TIME {
        return Ok(None);
    }
    let distance = Duration::from_secs(seconds.unsigned_abs());
    let time = match seconds >= 0 {
        true => SystemTime::UNIX_EPOCH.checked_add(distance),
        false => SystemTime::UNIX_EPOCH.checked_sub(distance),
    };
    time.map(Some).ok_or_else(|| Failure::argument("now", "seconds that a clock can count", seconds))
}
