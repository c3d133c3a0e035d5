//! Bytes in, text out: a token may end in the middle of a character.

/// Bytes of a token that need no memory besides: hardly any has more.
const USUAL_BYTES: usize = 128;

/// Turns a stream of bytes into text without ever cutting a character: all pieces together are what
/// `String::from_utf8_lossy` makes of all bytes together.
#[derive(Clone, Debug)]
pub struct TextStream {
    /// The start of a character whose end has not come yet: between calls at most 3 bytes.
    pending: Vec<u8>,
}

impl Default for TextStream {
    fn default() -> TextStream {
        TextStream { pending: Vec::with_capacity(USUAL_BYTES) }
    }
}

impl TextStream {
    /// Takes bytes and returns the text that is complete with them, which is all that it allocates.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let (mut text, mut done) = (String::new(), 0);
        loop {
            let rest = &self.pending[done..];
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    done += valid.len();
                    break;
                }
                Err(error) => {
                    let valid = &rest[..error.valid_up_to()];
                    text.push_str(&String::from_utf8_lossy(valid)); // borrows: it is valid
                    done += valid.len();
                    let Some(len) = error.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    done += len;
                }
            }
        }
        self.pending.drain(..done);
        text
    }

    /// No more bytes will come: returns what is left, an unfinished character as U+FFFD.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::TextStream;

    #[test]
    fn any_split_gives_the_text_of_the_whole() {
        let texts: [&[u8]; 7] = [
            "naïve 日本語 👩‍🚀 Ω".as_bytes(),
            b"plain",
            b"\xff\xfe\x80",
            b"a\xe6\x97",
            b"\xf0\x9f\x98x\xc3",
            b"\xed\xa0\x80",
            b"",
        ];
        for bytes in texts {
            for step in 1..=4 {
                let mut stream = TextStream::default();
                let mut text: String = bytes.chunks(step).map(|chunk| stream.push(chunk)).collect();
                text += &stream.finish();
                assert_eq!(text, String::from_utf8_lossy(bytes), "{step} bytes at a time");
            }
        }
    }

    #[test]
    fn half_a_character_waits() {
        let mut stream = TextStream::default();
        assert_eq!(stream.push("é".as_bytes().split_at(1).0), "");
        assert_eq!(stream.push("é".as_bytes().split_at(1).1), "é");
        assert_eq!(stream.finish(), "");
    }
}
