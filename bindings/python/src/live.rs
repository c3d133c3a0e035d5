//! A session as Python keeps it: with the token that the model has not seen yet, and a count of what was begun.

use smolrun::Session;
use smolrun::generation::Generation;

use crate::failure::{Failure, Result};
use crate::prompt::at_least_one;
use crate::results::{Draft, Piece};

/// A session between calls.
pub(crate) struct Live {
    pub(crate) session: Session,
    /// The last token, where the session does not hold it: that of a generation, until something follows it.
    last: Option<u32>,
    /// What was begun so far: a generation ends when something else begins.
    begun: u64,
}

/// A generation that has begun on a session.
pub(crate) struct Running {
    generation: Generation,
    number: u64,
    tokenizer: smolrun::tokenizer::Tokenizer,
    pub(crate) draft: Draft,
}

impl Live {
    pub(crate) fn new(session: Session) -> Live {
        Live { session, last: None, begun: 0 }
    }

    /// All tokens.
    pub(crate) fn tokens(&self) -> Vec<u32> {
        self.session.tokens().iter().copied().chain(self.last).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.session.position() == 0 && self.last.is_none()
    }

    /// Ends what runs. Returns what is to be appended for `ids` to follow all tokens, and how many of these are not
    /// theirs. After an error nothing has changed.
    pub(crate) fn begin(&mut self, ids: Vec<u32>) -> Result<(Vec<u32>, usize)> {
        if ids.is_empty() {
            self.take_last();
        }
        let ids: Vec<u32> = self.last.into_iter().chain(ids).collect();
        self.session.check(at_least_one(&ids)?)?;
        self.begun += 1;
        Ok((ids, usize::from(self.last.is_some())))
    }

    /// Ends what runs. Makes the session one that begins like `ids`, and returns how many of these it holds then.
    pub(crate) fn begin_anew(&mut self, ids: &[u32]) -> Result<usize> {
        let kept = self.session.keep_common_prefix(at_least_one(ids)?);
        self.begun += 1;
        self.last = None;
        Ok(kept)
    }

    /// Takes the last token out of the session: the model says what follows it only when it sees it once more.
    fn take_last(&mut self) {
        if self.last.is_none() {
            self.last = self.session.tokens().last().copied();
            self.session.truncate(self.session.position().saturating_sub(1));
        }
    }

    /// Does something with the session that appends at least the last token.
    pub(crate) fn append<R>(&mut self, work: impl FnOnce(&mut Session) -> Result<R>) -> Result<R> {
        let before = self.session.position();
        let result = work(&mut self.session);
        if self.session.position() != before {
            self.last = None;
        }
        result
    }

    /// Lets the session hold the last token, too, if its context has a place for it.
    pub(crate) fn settle(&mut self) -> Result<()> {
        self.begun += 1;
        match self.last {
            Some(last) if self.session.check(&[last]).is_ok() => {
                self.append(|session| Ok(session.feed(&[last]).map(|_| ())?))
            }
            _ => Ok(()),
        }
    }

    /// Forgets all tokens from `position` on.
    pub(crate) fn truncate(&mut self, position: usize) {
        self.begun += 1;
        if position <= self.session.position() {
            self.last = None;
        }
        self.session.truncate(position);
    }

    /// Forgets everything, before another sequence is loaded.
    pub(crate) fn forget(&mut self) {
        self.truncate(0);
    }

    /// Another one that goes on from here.
    pub(crate) fn fork(&self) -> Result<Live> {
        Ok(Live { session: self.session.fork()?, last: self.last, begun: 0 })
    }

    /// A generation of what follows `ids` has begun.
    pub(crate) fn run(&self, generation: Generation, draft: Draft) -> Running {
        Running { generation, number: self.begun, tokenizer: self.session.model().tokenizer(), draft }
    }
}

impl Running {
    /// The next token; none after the last one.
    pub(crate) fn step(&mut self, live: &mut Live) -> Result<Option<Piece>> {
        if self.draft.finish_reason().is_some() {
            return Ok(None);
        }
        if self.number != live.begun {
            let message = "the stream has ended: something else was begun on its session".to_owned();
            return Err(Failure::Other { code: "stream_ended", message });
        }
        let Running { generation, tokenizer, draft, .. } = self;
        let token = live.append(|session| Ok(generation.next(session).transpose()?));
        if token.is_err()
            && let Some(reason) = generation.finish_reason()
        {
            draft.finish(reason); // to be cancelled is an error, too
        }
        let piece = token?.map(|token| Piece::of(token, tokenizer)).transpose()?;
        if let Some(piece) = &piece {
            live.last = Some(piece.id());
            draft.push(piece);
        }
        if let Some(reason) = generation.finish_reason() {
            draft.finish(reason);
        }
        Ok(piece)
    }
}
