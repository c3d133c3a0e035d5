//! The names of a GGUF file in parts: `NAME-00001-of-00003.gguf` is the first of three.

/// Most parts: about as many files as systems let a process open.
const MAX_PARTS: usize = 1000;
/// Digits of each number.
const DIGITS: usize = 5;

/// The name of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartName<'a> {
    /// What comes before the numbers: the same for all parts.
    pub stem: &'a str,
    /// Which part it is, from 1 on.
    pub number: usize,
    /// How many there are.
    pub count: usize,
}

impl<'a> PartName<'a> {
    /// Of the file `name`, which may be a path, if it is called as a part is.
    pub fn of(name: &'a str) -> Option<PartName<'a>> {
        let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let (number, count) = (read_number(number)?, read_number(count)?);
        let is_usual = (1..=count).contains(&number) && count <= MAX_PARTS && !stem.is_empty();
        is_usual.then_some(PartName { stem, number, count })
    }

    /// The names of all parts, in order.
    pub fn all(self) -> impl Iterator<Item = String> {
        (1..=self.count)
            .map(move |number| format!("{}-{number:0DIGITS$}-of-{:0DIGITS$}.gguf", self.stem, self.count))
    }
}

fn read_number(digits: &str) -> Option<usize> {
    let is_number = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_known_by_their_names() {
        let part = PartName::of("a/b-00002-of-00003.gguf").unwrap();
        assert_eq!(part, PartName { stem: "a/b", number: 2, count: 3 });
        let all: Vec<String> = part.all().collect();
        assert_eq!(all, ["a/b-00001-of-00003.gguf", "a/b-00002-of-00003.gguf", "a/b-00003-of-00003.gguf"]);
        for other in [
            "model.gguf",
            "model-00001-of-00003.safetensors",
            "model-00000-of-00003.gguf",
            "model-00004-of-00003.gguf",
            "model-00001-of-01001.gguf",
            "model-1-of-3.gguf",
            "model-00001-of-+0003.gguf",
            "model-000001-of-00003.gguf",
            "-00001-of-00003.gguf",
            "00001-of-00003.gguf",
        ] {
            assert_eq!(PartName::of(other), None, "{other}");
        }
    }
}
