//! The functions of `include/smolrun.h`, in its order. What they ask of a caller is said there, and each SAFETY comment
//! leans on it.
//!
//! A handle comes as `Option<&T>`: NULL, or what the caller has from this library and has not freed. A result goes to an
//! `Out`: NULL, or room for one.

use std::ffi::c_char;

use smolrun_runtime::scheduler::Request;
use smolrun_runtime::{CancelToken, Message, Model, PromptOptions, SpecialTokens};

use crate::failure::{self, Failure, Result, status_of};
use crate::handles::{Events, Generator, Handle, SchedulerHandle, SessionHandle};
use crate::raw::{self, Out, given};
use crate::shown::{CEvent, CToken};
use crate::status::{self, Status};
use crate::structs::{
    self, CChatOptions, CGenerateOptions, CMessage, CModelInfo, CSchedulerOptions, CSessionOptions,
    finish_reason, flag,
};

/// `SMOLRUN_ABI_VERSION`.
pub(crate) const ABI_VERSION: u32 = 1;

// The library.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn smolrun_abi_version() -> u32 {
    ABI_VERSION
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn smolrun_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn smolrun_last_error() -> *const c_char {
    failure::last()
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn smolrun_status_name(status: Status) -> *const c_char {
    status::name(status).as_ptr()
}

// Models.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_model_open(path: *const c_char, out: Out<'_, *mut Model>) -> Status {
    // SAFETY: `path` is NULL or a text.
    status_of(|| raw::put_new(out, || Ok(Model::open(unsafe { raw::path(path)? })?)))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_model_read(path: *const c_char, out: Out<'_, *mut Model>) -> Status {
    // SAFETY: `path` is NULL or a text.
    status_of(|| raw::put_new(out, || Ok(Model::read(unsafe { raw::path(path)? })?)))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_model_from_bytes(
    bytes: *const u8,
    len: usize,
    out: Out<'_, *mut Model>,
) -> Status {
    // SAFETY: `bytes` has `len` bytes.
    status_of(|| raw::put_new(out, || Ok(Model::from_bytes(unsafe { raw::items("bytes", bytes, len)? })?)))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_model_free(model: *mut Model) {
    // SAFETY: it is NULL or of `raw::put_new`, and the caller's last use of it.
    unsafe { free(model) };
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn smolrun_model_verify(model: Option<&Model>) -> Status {
    status_of(|| Ok(given("model", model)?.verify()?))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_model_info_get(
    model: Option<&Model>,
    info: *mut CModelInfo,
) -> Status {
    status_of(|| {
        let found = CModelInfo::new(given("model", model)?)?;
        // SAFETY: `info` is NULL or has the bytes that its first field says.
        unsafe { raw::put_struct("info", found, info, raw::size_of_struct("info", info)?) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_model_eos_token_ids(
    model: Option<&Model>,
    ids: *mut u32,
    capacity: usize,
    len: Out<'_, usize>,
) -> Status {
    // SAFETY: `ids` has room for `capacity` ids.
    status_of(|| unsafe { put_ids(&given("model", model)?.config().eos_token_ids, ids, capacity, len) })
}

// Texts and tokens.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_tokenize(
    model: Option<&Model>,
    text: *const c_char,
    text_len: usize,
    special: i32,
    ids: *mut u32,
    capacity: usize,
    len: Out<'_, usize>,
) -> Status {
    status_of(|| {
        let tokenizer = given("model", model)?.tokenizer();
        // SAFETY: `text` has `text_len` bytes, or ends with NUL.
        let text = unsafe { raw::text_of("text", text, text_len)? };
        let found = tokenizer.encode(text, special_tokens(special)?)?;
        // SAFETY: `ids` has room for `capacity` ids.
        unsafe { put_ids(&found, ids, capacity, len) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_encode_prompt(
    model: Option<&Model>,
    text: *const c_char,
    text_len: usize,
    special: i32,
    ids: *mut u32,
    capacity: usize,
    len: Out<'_, usize>,
) -> Status {
    status_of(|| {
        let model = given("model", model)?;
        // SAFETY: `text` has `text_len` bytes, or ends with NUL.
        let text = unsafe { raw::text_of("text", text, text_len)? };
        let options = PromptOptions::default().special_tokens(special_tokens(special)?);
        // SAFETY: `ids` has room for `capacity` ids.
        unsafe { put_ids(&model.encode_prompt_with(text, &options)?, ids, capacity, len) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_encode_chat(
    model: Option<&Model>,
    messages: *const CMessage,
    messages_len: usize,
    options: *const CChatOptions,
    ids: *mut u32,
    capacity: usize,
    len: Out<'_, usize>,
) -> Status {
    status_of(|| {
        let model = given("model", model)?;
        // SAFETY: `messages` has `messages_len` messages, whose texts end with NUL.
        let messages: Vec<Message> = unsafe {
            let messages = raw::items("messages", messages, messages_len)?;
            messages.iter().map(|message| message.read()).collect::<Result<_>>()?
        };
        // SAFETY: `options` and `ids` are as the header asks.
        unsafe { put_chat(model, &messages, options, ids, capacity, len) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_encode_chat_json(
    model: Option<&Model>,
    json: *const c_char,
    json_len: usize,
    options: *const CChatOptions,
    ids: *mut u32,
    capacity: usize,
    len: Out<'_, usize>,
) -> Status {
    status_of(|| {
        let model = given("model", model)?;
        // SAFETY: `json` has `json_len` bytes, or ends with NUL.
        let messages = Message::list_from_json(unsafe { raw::text_of("json", json, json_len)? })?;
        // SAFETY: `options` and `ids` are as the header asks.
        unsafe { put_chat(model, &messages, options, ids, capacity, len) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_detokenize(
    model: Option<&Model>,
    ids: *const u32,
    ids_len: usize,
    skip_special: i32,
    text: *mut u8,
    capacity: usize,
    len: Out<'_, usize>,
) -> Status {
    status_of(|| {
        let tokenizer = given("model", model)?.tokenizer();
        // SAFETY: `ids` has `ids_len` ids, and `text` room for `capacity` bytes.
        let (ids, room) = unsafe { (raw::items("ids", ids, ids_len)?, raw::room("text", text, capacity)?) };
        raw::fill_text("text", &tokenizer.decode(ids, flag("skip_special", skip_special)?)?, room, len)
    })
}

// Cancel tokens.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn smolrun_cancel_token_new(out: Out<'_, *mut CancelToken>) -> Status {
    status_of(|| raw::put_new(out, || Ok(CancelToken::default())))
}

/// It may run in a signal handler: one atomic store, and nothing else.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn smolrun_cancel_token_cancel(token: Option<&CancelToken>) {
    if let Some(token) = token {
        token.cancel();
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn smolrun_cancel_token_is_cancelled(token: Option<&CancelToken>) -> i32 {
    token.is_some_and(CancelToken::is_cancelled).into()
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn smolrun_cancel_token_reset(token: Option<&CancelToken>) {
    if let Some(token) = token {
        token.reset();
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_cancel_token_free(token: *mut CancelToken) {
    // SAFETY: it is NULL or of `raw::put_new`, and the caller's last use of it.
    unsafe { free(token) };
}

// Sessions.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_session_new(
    model: Option<&Model>,
    options: *const CSessionOptions,
    out: Out<'_, *mut SessionHandle>,
) -> Status {
    status_of(|| {
        raw::put_new(out, || {
            let model = given("model", model)?;
            // SAFETY: `options` is NULL or as the header asks.
            let options = unsafe { raw::options("options", options)?.read()? };
            Ok(Handle::new(Generator::new(model, options)?))
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn smolrun_session_fork(
    session: Option<&SessionHandle>,
    out: Out<'_, *mut SessionHandle>,
) -> Status {
    status_of(|| raw::put_new(out, || Ok(Handle::new(given("session", session)?.lock()?.fork()?))))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_session_free(session: *mut SessionHandle) {
    // SAFETY: it is NULL or of `raw::put_new`, and the caller's last use of it.
    unsafe { free(session) };
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn smolrun_session_position(
    session: Option<&SessionHandle>,
    position: Out<'_, usize>,
) -> Status {
    status_of(|| {
        let position = given("position", position)?;
        position.write(given("session", session)?.lock()?.session().position());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_session_tokens(
    session: Option<&SessionHandle>,
    ids: *mut u32,
    capacity: usize,
    len: Out<'_, usize>,
) -> Status {
    status_of(|| {
        let session = given("session", session)?.lock()?;
        // SAFETY: `ids` has room for `capacity` ids.
        unsafe { put_ids(session.session().tokens(), ids, capacity, len) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_session_feed(
    session: Option<&SessionHandle>,
    ids: *const u32,
    ids_len: usize,
    logits: Out<'_, *const f32>,
) -> Status {
    status_of(|| {
        let mut session = given("session", session)?.lock()?;
        // SAFETY: `ids` has `ids_len` ids.
        let found = session.change().feed(unsafe { raw::items("ids", ids, ids_len)? })?;
        raw::put(logits, found.as_ptr());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_session_feed_all(
    session: Option<&SessionHandle>,
    ids: *const u32,
    ids_len: usize,
    logits: *mut f32,
    capacity: usize,
) -> Status {
    status_of(|| {
        let mut session = given("session", session)?.lock()?;
        let vocab_size = session.session().model().config().vocab_size;
        // SAFETY: `ids` has `ids_len` ids, and `logits` room for `capacity` numbers.
        let (ids, room) =
            unsafe { (raw::items("ids", ids, ids_len)?, raw::room("logits", logits, capacity)?) };
        let needed = ids.len().saturating_mul(vocab_size);
        let room = room.get_mut(..needed).ok_or(Failure::TooSmall { name: "logits", needed, capacity })?;
        let mut rows = room.chunks_exact_mut(vocab_size);
        Ok(session.change().feed_all(ids, |_, logits| {
            if let Some(row) = rows.next() {
                row.write_copy_of_slice(logits);
            }
        })?)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_session_keep_common_prefix(
    session: Option<&SessionHandle>,
    ids: *const u32,
    ids_len: usize,
    kept: Out<'_, usize>,
) -> Status {
    status_of(|| {
        let mut session = given("session", session)?.lock()?;
        // SAFETY: `ids` has `ids_len` ids.
        raw::put(kept, session.change().keep_common_prefix(unsafe { raw::items("ids", ids, ids_len)? }));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn smolrun_session_truncate(
    session: Option<&SessionHandle>,
    position: usize,
) -> Status {
    status_of(|| {
        given("session", session)?.lock()?.change().truncate(position);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_session_save(
    session: Option<&SessionHandle>,
    path: *const c_char,
) -> Status {
    // SAFETY: `path` is NULL or a text.
    status_of(|| Ok(given("session", session)?.lock()?.change().save(unsafe { raw::path(path)? })?))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_session_load(
    session: Option<&SessionHandle>,
    path: *const c_char,
) -> Status {
    // SAFETY: `path` is NULL or a text.
    status_of(|| Ok(given("session", session)?.lock()?.change().load(unsafe { raw::path(path)? })?))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_session_hidden(
    session: Option<&SessionHandle>,
    ids: *const u32,
    ids_len: usize,
    states: *mut f32,
    capacity: usize,
) -> Status {
    status_of(|| {
        let mut session = given("session", session)?.lock()?;
        // SAFETY: `ids` has `ids_len` ids, and `states` room for `capacity` numbers.
        let (ids, room) =
            unsafe { (raw::items("ids", ids, ids_len)?, raw::room("states", states, capacity)?) };
        let needed = ids.len().saturating_mul(session.session().model().config().hidden_size);
        if needed > capacity {
            return Err(Failure::TooSmall { name: "states", needed, capacity });
        }
        raw::fill("states", &session.change().hidden(ids)?, room, None)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_session_embed(
    session: Option<&SessionHandle>,
    ids: *const u32,
    ids_len: usize,
    pooling: i32,
    vector: *mut f32,
    capacity: usize,
) -> Status {
    status_of(|| {
        let mut session = given("session", session)?.lock()?;
        // SAFETY: `ids` has `ids_len` ids, and `vector` room for `capacity` numbers.
        let (ids, room) =
            unsafe { (raw::items("ids", ids, ids_len)?, raw::room("vector", vector, capacity)?) };
        let needed = session.session().model().config().hidden_size;
        if needed > capacity {
            return Err(Failure::TooSmall { name: "vector", needed, capacity });
        }
        raw::fill("vector", &session.change().embed(ids, structs::pooling(pooling)?)?, room, None)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_session_generate(
    session: Option<&SessionHandle>,
    prompt: *const u32,
    prompt_len: usize,
    options: *const CGenerateOptions,
) -> Status {
    status_of(|| {
        let mut session = given("session", session)?.lock()?;
        // SAFETY: `prompt` has `prompt_len` ids; `options` is NULL or as the header asks.
        let (prompt, options) = unsafe {
            let options = raw::options("options", options)?.read(session.session().model())?;
            (raw::items("prompt", prompt, prompt_len)?, options)
        };
        session.begin(prompt, options)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn smolrun_session_next(
    session: Option<&SessionHandle>,
    token: Out<'_, *const CToken>,
) -> Status {
    status_of(|| {
        let token = given("token", token)?.write(std::ptr::null());
        let mut session = given("session", session)?.lock()?;
        *token = session.next()?.map_or(std::ptr::null(), std::ptr::from_ref);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn smolrun_session_finish_reason(
    session: Option<&SessionHandle>,
    reason: Out<'_, i32>,
) -> Status {
    status_of(|| {
        let reason = given("reason", reason)?;
        reason.write(finish_reason(given("session", session)?.lock()?.finish_reason()));
        Ok(())
    })
}

// Schedulers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_scheduler_new(
    model: Option<&Model>,
    options: *const CSchedulerOptions,
    out: Out<'_, *mut SchedulerHandle>,
) -> Status {
    status_of(|| {
        raw::put_new(out, || {
            // SAFETY: `options` is NULL or has the bytes that its first field says.
            let options = unsafe { raw::options("options", options)? };
            Ok(Handle::new(Events::new(given("model", model)?, options)?))
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_scheduler_free(scheduler: *mut SchedulerHandle) {
    // SAFETY: it is NULL or of `raw::put_new`, and the caller's last use of it.
    unsafe { free(scheduler) };
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_scheduler_submit(
    scheduler: Option<&SchedulerHandle>,
    prompt: *const u32,
    prompt_len: usize,
    options: *const CGenerateOptions,
    priority: i8,
    request: Out<'_, u64>,
) -> Status {
    status_of(|| {
        let mut scheduler = given("scheduler", scheduler)?.lock()?;
        // SAFETY: `prompt` has `prompt_len` ids; `options` is NULL or as the header asks.
        let (prompt, options) = unsafe {
            let options = raw::options("options", options)?.read(scheduler.model())?;
            (raw::items("prompt", prompt, prompt_len)?, options)
        };
        raw::put(request, scheduler.submit(Request::new(prompt.to_vec(), options).priority(priority))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn smolrun_scheduler_next(
    scheduler: Option<&SchedulerHandle>,
    event: Out<'_, *const CEvent>,
) -> Status {
    status_of(|| {
        let event = given("event", event)?.write(std::ptr::null());
        let mut scheduler = given("scheduler", scheduler)?.lock()?;
        *event = scheduler.next()?.map_or(std::ptr::null(), std::ptr::from_ref);
        Ok(())
    })
}

// Options with their defaults.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_session_options_init(
    options: *mut CSessionOptions,
    size: usize,
) -> Status {
    // SAFETY: `options` is NULL or has room for `size` bytes.
    status_of(|| unsafe { raw::put_defaults("options", options, size) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_generate_options_init(
    options: *mut CGenerateOptions,
    size: usize,
) -> Status {
    // SAFETY: `options` is NULL or has room for `size` bytes.
    status_of(|| unsafe { raw::put_defaults("options", options, size) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_chat_options_init(options: *mut CChatOptions, size: usize) -> Status {
    // SAFETY: `options` is NULL or has room for `size` bytes.
    status_of(|| unsafe { raw::put_defaults("options", options, size) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn smolrun_scheduler_options_init(
    options: *mut CSchedulerOptions,
    size: usize,
) -> Status {
    // SAFETY: `options` is NULL or has room for `size` bytes.
    status_of(|| unsafe { raw::put_defaults("options", options, size) })
}

fn special_tokens(special: i32) -> Result<SpecialTokens> {
    Ok(if flag("special", special)? { SpecialTokens::Parse } else { SpecialTokens::AsText })
}

/// # Safety
/// `ids` is NULL or has room for `capacity` ids.
unsafe fn put_ids(found: &[u32], ids: *mut u32, capacity: usize, len: Out<'_, usize>) -> Result<()> {
    // SAFETY: the promise is the same.
    raw::fill("ids", found, unsafe { raw::room("ids", ids, capacity)? }, len)
}

/// # Safety
/// As the header says of `smolrun_encode_chat`.
unsafe fn put_chat(
    model: &Model,
    messages: &[Message],
    options: *const CChatOptions,
    ids: *mut u32,
    capacity: usize,
    len: Out<'_, usize>,
) -> Result<()> {
    // SAFETY: the promise is the same.
    let options = unsafe { raw::options("options", options)?.read()? };
    // SAFETY: the promise is the same.
    unsafe { put_ids(&model.encode_chat_with(messages, &options)?, ids, capacity, len) }
}

/// # Safety
/// `pointer` is one of [`raw::put_new`] that is used for the last time, or NULL.
unsafe fn free<T>(pointer: *mut T) {
    status_of(|| {
        // SAFETY: the promise is the same.
        unsafe { raw::free(pointer) };
        Ok(())
    });
}
