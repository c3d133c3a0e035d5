//! What llama.cpp calls a pre-tokenizer by one name: all rules that the tokenizers of that name have. The regexes are
//! those of the models' own `tokenizer.json`.

use smolrun::format::TextRules;

use crate::error::Result;
use crate::source::gguf::Metadata;
use crate::tokenizer::stage::{self, Stage};

const PRE: &str = "tokenizer.ggml.pre";

/// The names that are known.
const NAMES: &str = "\"gpt-2\", \"smollm\", \"llama-bpe\", \"falcon3\", \"tekken\", \"qwen2\", \"qwen35\", \
    \"deepseek-r1-qwen\", \"deepseek-llm\", \"deepseek-coder\", \"starcoder\", \"refact\", \"command-r\" or \"mpt\"";

/// The rules of a name.
#[derive(Default)]
pub(super) struct Pre {
    pub(super) rules: TextRules,
    pub(super) stages: Vec<Stage>,
    pub(super) ignore_merges: bool,
    /// Whether a prompt begins with the beginning-of-text token where the file does not say.
    pub(super) adds_bos: bool,
}

impl Pre {
    pub(super) fn read(metadata: &Metadata) -> Result<Pre> {
        match metadata.required(PRE, metadata.string(PRE))? {
            "gpt-2" => Ok(Pre::of(vec![split(stage::GPT2)])),
            "mpt" => Ok(Pre::of(vec![split(stage::GPT2)]).composed()),
            "smollm" | "starcoder" | "refact" => Ok(Pre::of(single_digits())),
            "command-r" => Ok(Pre::of(single_digits()).composed()),
            // By llama.cpp, Falcon 3's is Llama 3's.
            "llama-bpe" | "llama3" | "llama-v3" | "falcon3" => {
                Ok(Pre::of(vec![split(stage::LLAMA3)]).of_words())
            }
            "tekken" => Ok(Pre::of(vec![split(stage::TEKKEN)]).of_words()),
            "qwen2" | "deepseek-r1-qwen" => Ok(Pre::of(vec![split(stage::QWEN2)]).composed()),
            // The ids that are published with its vocabulary are those of texts that nothing composes.
            "qwen35" => Ok(Pre::of(vec![split(stage::QWEN35)])),
            "deepseek-llm" => Ok(Pre::of(deepseek_llm())),
            "deepseek-coder" => Ok(Pre::of(deepseek_coder())),
            other => Err(metadata.wrong(PRE, NAMES, format!("{other:?}"))),
        }
    }

    fn of(stages: Vec<Stage>) -> Pre {
        Pre { stages, ..Pre::default() }
    }

    /// With texts in normal form C.
    fn composed(self) -> Pre {
        Pre { rules: TextRules::NFC, ..self }
    }

    /// With words that are tokens whatever the merges say, and a token at the beginning of a prompt.
    fn of_words(self) -> Pre {
        Pre { ignore_merges: true, adds_bos: true, ..self }
    }
}

fn split(regex: &str) -> Stage {
    Stage::Split(regex.to_owned())
}

fn single_digits() -> Vec<Stage> {
    vec![Stage::IndividualDigits, split(stage::GPT2)]
}

fn deepseek_llm() -> Vec<Stage> {
    let splits = [stage::NEWLINE, stage::DEEPSEEK_LETTERS, stage::DEEPSEEK_MARKS].map(split);
    splits
        .into_iter()
        .chain([Stage::SpaceAtEnd, split(stage::DEEPSEEK_CJK), Stage::IndividualDigits])
        .collect()
}

fn deepseek_coder() -> Vec<Stage> {
    let splits = [stage::NEWLINE, r"\s?\p{L}+", r"\s?\p{P}+", stage::DEEPSEEK_CJK].map(split);
    splits.into_iter().chain([Stage::IndividualDigits]).collect()
}
