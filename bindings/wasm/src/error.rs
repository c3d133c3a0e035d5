//! Errors as the page sees them: a JavaScript `Error` with the library's message and a `code` to branch on.

use js_sys::Reflect;
use smolrun::Error;
use wasm_bindgen::JsValue;

/// The library's error as a JavaScript one.
pub(crate) fn to_js(error: Error) -> JsValue {
    with_code(code(error.code()), &error.to_string())
}

/// An argument that the page may not pass.
pub(crate) fn argument(name: &'static str, expected: &str, found: impl ToString) -> JsValue {
    to_js(Error::Argument { name, expected: expected.into(), found: found.to_string() })
}

/// What became of a panic.
pub(crate) fn bug(panic: &str) -> JsValue {
    with_code("BUG", &format!("this is a bug of smolrun: {panic}"))
}

/// The package's code for one of the library's, [`Error::code`].
fn code(code: &str) -> &'static str {
    match code {
        "not_finite" => "BAD_BLOB",
        code if code.starts_with("blob.") => "BAD_BLOB",
        "out_of_memory" => "OUT_OF_MEMORY",
        "context_full" | "text_too_long" => "CONTEXT_FULL",
        "argument" | "argument.token_id" => "BAD_ARGUMENT",
        "chat_template" => "CHAT_TEMPLATE",
        _ => "BUG", // files, threads and saved sessions: there are none here
    }
}

fn with_code(code: &str, message: &str) -> JsValue {
    let error = js_sys::Error::new(message);
    // An error is an object like any other: setting a property of it cannot fail.
    let _ = Reflect::set(&error, &"code".into(), &code.into());
    error.into()
}
