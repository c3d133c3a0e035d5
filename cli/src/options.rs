//! What the library is asked for, by what the command line says.

use std::time::SystemTime;

use smolrun::chat::ChatOptions;
use smolrun::{
    CancelToken, Fast, GenerateOptions, KvDtype, PromptOptions, Sampling, Session, SessionOptions,
};

use crate::args::{AnswerArgs, Kv};
use crate::output::tell;

/// How to generate.
pub(crate) fn options(args: &AnswerArgs, sampling: Sampling, cancel: &CancelToken) -> GenerateOptions {
    let options = GenerateOptions::default().max_tokens(args.max_tokens()).sampling(sampling);
    options.stop(&args.stop).cancel(cancel)
}

/// How to compute.
pub(crate) fn session_options(threads: Option<usize>, kv: Option<Kv>) -> SessionOptions {
    let mut options = SessionOptions::default();
    options.threads = threads;
    options.kv_dtype = kv.map(KvDtype::from);
    options
}

/// Where `--fast` changes nothing.
pub(crate) fn tell_if_not_fast(session: &Session) {
    if let fast @ (Fast::NoUnit | Fast::NothingToRound) = session.fast() {
        tell(&format!("--fast: {fast}"));
    }
}

/// How a conversation becomes tokens: as of now, and no more of them than the session can hold.
pub(crate) fn chat_options(options: ChatOptions, session: &Session) -> ChatOptions {
    options.now(SystemTime::now()).max_tokens(session.most_tokens())
}

/// How a text becomes a prompt: no more tokens than the session can hold.
pub(crate) fn prompt_options(session: &Session) -> PromptOptions {
    PromptOptions::default().max_tokens(session.most_tokens())
}
