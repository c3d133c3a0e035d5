//! The two ways in which `tokenizer.json` writes a token's bytes. GPT-2's byte-level alphabet has one printable character
//! for each byte; SentencePiece's texts are themselves but for spaces, and name single bytes.

/// How SentencePiece writes a space.
pub(super) const METASPACE: &str = "▁";

/// What the texts of tokens are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alphabet {
    /// A character for each byte. Words start as bytes.
    ByteLevel,
    /// Themselves, with `▁` for a space and `<0x0A>` for a byte. Words start as characters.
    Metaspace,
}

impl Alphabet {
    /// The bytes that the token written as `text` stands for.
    pub(super) fn bytes_of(self, text: &str) -> Vec<u8> {
        match self {
            Alphabet::ByteLevel => bytes_of(text),
            Alphabet::Metaspace => match named_byte(text) {
                Some(byte) => vec![byte],
                None => text.replace(METASPACE, " ").into_bytes(),
            },
        }
    }

    /// How the token of `byte` alone is written.
    pub(super) fn text_of(self, byte: u8) -> String {
        match self {
            Alphabet::ByteLevel => char_of(byte).into(),
            Alphabet::Metaspace => format!("<0x{byte:02X}>"),
        }
    }

    /// Whether a word can be written as `text`.
    pub(super) fn can_write(self, text: &str) -> bool {
        match self {
            Alphabet::ByteLevel => text.chars().all(|c| byte_of(c).is_some()),
            Alphabet::Metaspace => !text.contains(' '),
        }
    }
}

/// The byte that `<0x0A>` names, in any spelling of the digits that the library reads.
fn named_byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// The character of `byte`: itself where that is printable in Latin-1, else one from U+0100 on, in ascending order.
pub(super) fn char_of(byte: u8) -> char {
    match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        0..=b' ' => shifted(byte),
        0x7f..=0xa0 => shifted(byte - 0x7f + 33),
        0xad => shifted(67),
    }
}

/// The character of the `index`-th byte that is not printable.
fn shifted(index: u8) -> char {
    char::from_u32(0x100 + u32::from(index)).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The bytes that `token` stands for: one for each character, or its own UTF-8 if any of them is no byte's.
fn bytes_of(token: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

fn byte_of(c: char) -> Option<u8> {
    let byte = match u32::from(c) {
        code @ 0..0x100 => code as u8,
        code @ 0x100..=0x120 => (code - 0x100) as u8,
        code @ 0x121..=0x142 => (code - 0x121) as u8 + 0x7f,
        0x143 => 0xad,
        _ => return None,
    };
    (char_of(byte) == c).then_some(byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition in OpenAI's `bytes_to_unicode`, word for word.
    fn definition() -> Vec<(u8, char)> {
        let printable: Vec<u8> = (b'!'..=b'~').chain(0xa1..=0xac).chain(0xae..=0xff).collect();
        let mut alphabet: Vec<(u8, char)> = printable.iter().map(|&b| (b, char::from(b))).collect();
        let others = (0..=255u8).filter(|byte| !printable.contains(byte));
        alphabet.extend(others.zip('\u{100}'..));
        alphabet
    }

    #[test]
    fn metaspace_texts_are_themselves() {
        let bytes = |text| Alphabet::Metaspace.bytes_of(text);
        assert_eq!(bytes("▁a▁é"), " a é".as_bytes());
        assert_eq!(bytes("<0x0A>"), b"\n");
        assert_eq!(bytes("<0xff>"), b"\xff");
        assert_eq!(bytes("<0x0>"), b"<0x0>");
        assert_eq!(bytes("<0xZZ>"), b"<0xZZ>");
        assert_eq!(Alphabet::Metaspace.text_of(10), "<0x0A>");
    }

    #[test]
    fn every_byte_has_the_character_of_the_definition() {
        assert_eq!(definition().len(), 256);
        for (byte, c) in definition() {
            assert_eq!(char_of(byte), c, "byte {byte:#x}");
            assert_eq!(byte_of(c), Some(byte), "character {c}");
        }
    }

    #[test]
    fn no_other_character_has_a_byte() {
        let alphabet: Vec<char> = definition().into_iter().map(|(_, c)| c).collect();
        for c in ('\0'..='\u{2000}').filter(|c| !alphabet.contains(c)) {
            assert_eq!(byte_of(c), None, "{c:?}");
        }
    }

    #[test]
    fn a_token_with_a_foreign_character_keeps_its_own_bytes() {
        assert_eq!(bytes_of("Ġthe"), b" the");
        assert_eq!(bytes_of("Ã©"), "é".as_bytes());
        assert_eq!(bytes_of("Ġthe "), "Ġthe ".as_bytes());
        assert_eq!(bytes_of("日"), "日".as_bytes());
    }
}
