//! Ctrl-C: the first ends what is being generated, the second the program.

use std::process::exit;

use smolrun::CancelToken;

/// What a shell reports of a program that an interrupt ended.
pub(crate) const INTERRUPTED: u8 = 130;

/// A handle that the first interrupt cancels. One that comes when it is cancelled already ends the program.
pub(crate) fn cancel_token() -> Result<CancelToken, ctrlc::Error> {
    let token = CancelToken::default();
    let handle = token.clone();
    ctrlc::set_handler(move || {
        if handle.is_cancelled() {
            exit(INTERRUPTED.into());
        }
        handle.cancel();
    })?;
    Ok(token)
}
