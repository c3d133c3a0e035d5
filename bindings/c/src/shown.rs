//! What is generated, as C sees it: structs of the library's, valid until the next call on their handle.

use std::ffi::c_char;

use smolrun_runtime::scheduler::Event;
use smolrun_runtime::{FinishReason, Token};

use crate::failure::Failure;
use crate::status::{OK, Status};
use crate::structs::finish_reason;

/// `smolrun_alternative`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CAlternative {
    pub(crate) id: u32,
    pub(crate) logprob: f32,
}

/// `smolrun_token`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CToken {
    pub(crate) id: u32,
    pub(crate) finish_reason: i32,
    pub(crate) text: *const c_char,
    pub(crate) text_len: usize,
    pub(crate) top: *const CAlternative,
    pub(crate) top_len: usize,
    pub(crate) logprob: f32,
    pub(crate) reserved: i32,
}

/// `smolrun_event`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CEvent {
    pub(crate) request: u64,
    pub(crate) token: *const CToken,
    pub(crate) finish_reason: i32,
    pub(crate) status: Status,
    pub(crate) message: *const c_char,
}

/// A token with the memory that C reads of it.
#[derive(Default)]
pub(crate) struct ShownToken {
    id: u32,
    finish_reason: i32,
    /// With a NUL at its end.
    text: Vec<u8>,
    top: Vec<CAlternative>,
    logprob: Option<f32>,
}

impl ShownToken {
    pub(crate) fn new(token: Token) -> ShownToken {
        let mut text = token.text.into_bytes();
        text.push(0);
        let top = token.logprobs.iter().flat_map(|logprobs| &logprobs.top);
        ShownToken {
            id: token.id,
            finish_reason: finish_reason(token.finish_reason),
            text,
            top: top.map(|other| CAlternative { id: other.id, logprob: other.logprob }).collect(),
            logprob: token.logprobs.as_ref().map(|logprobs| logprobs.logprob),
        }
    }

    /// The struct over this memory, valid as long as it stays where it is.
    pub(crate) fn view(&self) -> CToken {
        CToken {
            id: self.id,
            finish_reason: self.finish_reason,
            text: self.text.as_ptr().cast(),
            text_len: self.text.len().saturating_sub(1),
            top: self.top.as_ptr(),
            top_len: self.top.len(),
            logprob: self.logprob.unwrap_or(f32::NAN),
            reserved: 0,
        }
    }
}

/// An event with the memory that C reads of it.
pub(crate) struct ShownEvent {
    request: u64,
    token: Option<ShownToken>,
    finish_reason: i32,
    status: Status,
    /// With a NUL at its end.
    message: Vec<u8>,
}

impl ShownEvent {
    pub(crate) fn new(request: u64, event: Event) -> ShownEvent {
        let none = |reason: Option<FinishReason>| ShownEvent {
            request,
            token: None,
            finish_reason: finish_reason(reason),
            status: OK,
            message: vec![0],
        };
        match event {
            Event::Token(token) => {
                let reason = token.finish_reason;
                ShownEvent { token: Some(ShownToken::new(token)), ..none(reason) }
            }
            Event::Finished(reason) => none(Some(reason)),
            Event::Failed(error) => {
                let mut message = error.to_string().replace('\0', "\u{fffd}").into_bytes();
                message.push(0);
                ShownEvent { status: Failure::Library(error).status(), message, ..none(None) }
            }
            _ => none(None),
        }
    }

    /// The token's struct, if it has one.
    pub(crate) fn token(&self) -> Option<CToken> {
        self.token.as_ref().map(ShownToken::view)
    }

    /// The struct over this memory and that of its token.
    pub(crate) fn view(&self, token: Option<&CToken>) -> CEvent {
        CEvent {
            request: self.request,
            token: token.map_or(std::ptr::null(), std::ptr::from_ref),
            finish_reason: self.finish_reason,
            status: self.status,
            message: self.message.as_ptr().cast(),
        }
    }
}
