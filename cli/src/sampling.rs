//! The options for choosing tokens.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;

use clap::Args;
use serde::Deserialize;
use smolrun::generation::SamplerStep;
use smolrun::{Model, Sampling};

use crate::numbers::{count, number};
use crate::output::counted;

/// What was asked for; the rest is decided by [`SamplingArgs::sampling`].
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Divide logits by T before drawing; 0 always takes the most likely token [default: 0; for chats what the checkpoint
    /// recommends, else 0.7].
    #[arg(long, value_name = "T", value_parser = number, allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Draw from the K most likely tokens; 0 for all [default: 0; for chats what the checkpoint recommends].
    #[arg(long, value_name = "K", value_parser = count, allow_negative_numbers = true)]
    top_k: Option<usize>,
    /// Draw from the most likely tokens that together reach this probability [default: 1; for chats what the
    /// checkpoint recommends, else 0.9].
    #[arg(long, value_name = "P", value_parser = number, allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Draw from tokens that are at least P times as likely as the most likely one [default: 0].
    #[arg(long, value_name = "P", value_parser = number, allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Draw from the tokens closest to the expected information that together reach this probability [default: 1].
    #[arg(long, value_name = "P", value_parser = number, allow_negative_numbers = true)]
    typical_p: Option<f32>,
    /// Divide positive logits of tokens in the window by X and multiply negative ones [default: 1; for chats what the
    /// checkpoint recommends].
    #[arg(long, value_name = "X", value_parser = number, allow_negative_numbers = true)]
    repetition_penalty: Option<f32>,
    /// Subtract X from a token's logit for each time the token is in the window [default: 0].
    #[arg(long, value_name = "X", value_parser = number, allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,
    /// Subtract X from the logit of each token in the window [default: 0].
    #[arg(long, value_name = "X", value_parser = number, allow_negative_numbers = true)]
    presence_penalty: Option<f32>,
    /// How many of the last tokens the penalties look at, including the prompt's; 0 for all [default: 0].
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    penalty_window: Option<usize>,
    /// Add X to the logit of token ID; "-inf" rules it out. May be repeated.
    #[arg(long, value_name = "ID=X", value_parser = parse_bias, allow_hyphen_values = true)]
    logit_bias: Vec<(u32, f32)>,
    /// Rule out the tokens that end a generation.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    ignore_eos: Option<bool>,
    /// Which steps to apply, in which order [default: bias,penalties,temperature,top-k,top-p,min-p,typical].
    #[arg(long, value_delimiter = ',', value_name = "STEP,STEP,...")]
    sampler_order: Option<Vec<SamplerStep>>,
    /// A number, or "random"; it decides every draw [default: 0; for chats random].
    #[arg(long, value_name = "SEED", allow_negative_numbers = true)]
    seed: Option<Seed>,
}

/// A number, or one of its own for each run.
#[derive(Clone, Copy, Debug)]
enum Seed {
    Number(u64),
    Random,
}

impl FromStr for Seed {
    type Err = String;

    fn from_str(text: &str) -> Result<Seed, String> {
        match text {
            "random" => Ok(Seed::Random),
            _ => text.parse().map(Seed::Number).map_err(|_| "expected a number or \"random\"".into()),
        }
    }
}

impl Seed {
    /// Random ones are short enough to type, and for numbers in JSON.
    fn number(self) -> u64 {
        match self {
            Seed::Number(seed) => seed,
            // Its keys are the system's random numbers.
            Seed::Random => RandomState::new().hash_one(0) >> 32,
        }
    }
}

/// Where [`SamplingArgs`] say nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Defaults {
    temperature: f32,
    top_k: usize,
    top_p: f32,
    repetition_penalty: f32,
    seed_is_random: bool,
}

impl Defaults {
    /// Of a text's continuation: always the most likely token.
    pub(crate) const CONTINUATION: Defaults =
        Defaults { temperature: 0.0, top_k: 0, top_p: 1.0, repetition_penalty: 1.0, seed_is_random: false };

    /// Of answers, where the checkpoint recommends nothing: the likeliest alone go round in circles.
    const CHAT: Defaults =
        Defaults { temperature: 0.7, top_p: 0.9, seed_is_random: true, ..Defaults::CONTINUATION };

    /// The same with draws that are decided: by the seed 0.
    pub(crate) fn decided(self) -> Defaults {
        Defaults { seed_is_random: false, ..self }
    }

    /// Of answers of `model`: what its checkpoint's generation_config.json says, as the blob's metadata have it.
    pub(crate) fn of_chat(model: &Model) -> Defaults {
        let metadata = model.layout().metadata.clone().map(|range| &model.storage().bytes()[range]);
        // Metadata are for people and tools: nothing in them, be it no JSON at all, keeps a blob from running.
        let metadata = metadata.and_then(|bytes| serde_json::from_slice(bytes).ok());
        metadata.map_or(Defaults::CHAT, |Metadata { generation }| generation.defaults())
    }
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    generation: Recommended,
}

/// What a checkpoint recommends, by the names of transformers. Anybody can have written it: what cannot be right counts as
/// not there.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Recommended {
    do_sample: serde_json::Value,
    temperature: serde_json::Value,
    top_k: serde_json::Value,
    top_p: serde_json::Value,
    repetition_penalty: serde_json::Value,
}

impl Recommended {
    fn defaults(&self) -> Defaults {
        let within = |value: &serde_json::Value, range: std::ops::RangeInclusive<f64>| {
            value.as_f64().filter(|number| range.contains(number)).map(|number| number as f32)
        };
        let temperature = within(&self.temperature, 0.0..=10.0);
        let top_p = within(&self.top_p, 1e-6..=1.0);
        let top_k = self.top_k.as_u64().filter(|&k| k <= 1 << 22).map(|k| k as usize);
        let repetition_penalty = within(&self.repetition_penalty, 0.1..=10.0).unwrap_or(1.0);
        let is_given = temperature.is_some() || top_p.is_some() || top_k.is_some();
        match self.do_sample.as_bool() {
            Some(false) => Defaults { repetition_penalty, seed_is_random: true, ..Defaults::CONTINUATION },
            None if !is_given => Defaults { repetition_penalty, ..Defaults::CHAT },
            // What is missing is what transformers would take.
            _ => Defaults {
                temperature: temperature.unwrap_or(1.0),
                top_k: top_k.unwrap_or(50),
                top_p: top_p.unwrap_or(1.0),
                repetition_penalty,
                seed_is_random: true,
            },
        }
    }
}

impl SamplingArgs {
    /// Whether each run is to have a seed of its own.
    pub(crate) fn has_random_seed(&self) -> bool {
        matches!(self.seed, Some(Seed::Random))
    }

    /// The same without `--ignore-eos`, and what that says.
    pub(crate) fn without_ignore_eos(&self) -> (SamplingArgs, bool) {
        (SamplingArgs { ignore_eos: None, ..self.clone() }, self.ignore_eos == Some(true))
    }

    /// What they mean for `model`, with `defaults` for what they do not say. Each call draws a random seed of its own.
    pub(crate) fn sampling(&self, model: &Model, defaults: &Defaults) -> Sampling {
        let neutral = Sampling::default();
        let seed = if defaults.seed_is_random { Seed::Random } else { Seed::Number(0) };
        let sampling = neutral
            .clone()
            .temperature(self.temperature.unwrap_or(defaults.temperature))
            .top_k(self.top_k.unwrap_or(defaults.top_k))
            .top_p(self.top_p.unwrap_or(defaults.top_p))
            .min_p(self.min_p.unwrap_or(neutral.min_p))
            .typical_p(self.typical_p.unwrap_or(neutral.typical_p))
            .repetition_penalty(self.repetition_penalty.unwrap_or(defaults.repetition_penalty))
            .frequency_penalty(self.frequency_penalty.unwrap_or(neutral.frequency_penalty))
            .presence_penalty(self.presence_penalty.unwrap_or(neutral.presence_penalty))
            .penalty_window(self.penalty_window.unwrap_or(neutral.penalty_window))
            .logit_bias(self.logit_bias.clone())
            .sampler_order(self.sampler_order.clone().unwrap_or(neutral.sampler_order))
            .seed(self.seed.unwrap_or(seed).number());
        if self.ignore_eos == Some(true) { sampling.ignore_eos(model.config()) } else { sampling }
    }
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let wrong = || format!("expected ID=X, such as 17=-2.5, found {text}");
    let (id, bias) = text.split_once('=').ok_or_else(wrong)?;
    Ok((id.parse().map_err(|_| wrong())?, bias.parse().map_err(|_| wrong())?))
}

/// A sampling in words: how much is drawn, by what, with which seed.
pub(crate) struct Described<'a>(pub(crate) &'a Sampling);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sampling { temperature, top_k, top_p, min_p, typical_p, seed, .. } = self.0;
        let Sampling { repetition_penalty, frequency_penalty, presence_penalty, .. } = self.0;
        let Sampling { penalty_window, logit_bias, sampler_order, .. } = self.0;
        let is_greedy = *temperature == 0.0;
        match is_greedy {
            true => write!(f, "the likeliest token")?,
            false => write!(f, "temperature {temperature}")?,
        }
        let drawn = [
            ("top-k", *top_k as f32, 0.0),
            ("top-p", *top_p, 1.0),
            ("min-p", *min_p, 0.0),
            ("typical-p", *typical_p, 1.0),
        ];
        let penalties = [
            ("repetition-penalty", *repetition_penalty, 1.0),
            ("frequency-penalty", *frequency_penalty, 0.0),
            ("presence-penalty", *presence_penalty, 0.0),
        ];
        let shown = drawn.iter().filter(|_| !is_greedy).chain(&penalties);
        for (name, value, _) in shown.filter(|(_, value, neutral)| value != neutral) {
            write!(f, ", {name} {value}")?;
        }
        if *penalty_window > 0 {
            write!(f, ", penalty-window {penalty_window}")?;
        }
        if !logit_bias.is_empty() {
            write!(f, ", logits of {} changed", counted(logit_bias.len(), "token"))?;
        }
        if sampler_order != SamplerStep::ALL {
            let steps: Vec<_> = sampler_order.iter().map(|step| step.name()).collect();
            write!(f, ", sampler-order {}", steps.join(","))?;
        }
        match is_greedy {
            true => Ok(()),
            false => write!(f, ", seed {seed}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Defaults, Metadata};

    fn defaults(json: &str) -> Defaults {
        serde_json::from_str::<Metadata>(json).map_or(Defaults::CHAT, |found| found.generation.defaults())
    }

    #[test]
    fn a_checkpoint_s_recommendation_counts_as_far_as_it_makes_sense() {
        let chat = Defaults::CHAT;
        for (json, expected) in [
            ("{}", chat),
            (r#"{"generation": {}}"#, chat),
            (r#"{"generation": {"repetition_penalty": 1.1}}"#, Defaults { repetition_penalty: 1.1, ..chat }),
            (
                r#"{"generation": {"do_sample": false, "temperature": 0.5}}"#,
                Defaults { temperature: 0.0, top_p: 1.0, ..chat },
            ),
            (
                r#"{"generation": {"do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 20}}"#,
                Defaults { temperature: 0.6, top_p: 0.95, top_k: 20, ..chat },
            ),
            (
                r#"{"generation": {"top_p": 0.5}}"#,
                Defaults { temperature: 1.0, top_k: 50, top_p: 0.5, ..chat },
            ),
            (
                r#"{"generation": {"temperature": 1e30, "top_p": -1, "top_k": "x", "repetition_penalty": 0}}"#,
                chat,
            ),
            (r#"{"generation": {"temperature": "hot", "do_sample": 7}}"#, chat),
            (r#"{"generation": []}"#, chat),
            ("[1, 2", chat),
        ] {
            assert_eq!(defaults(json), expected, "{json}");
        }
    }
}
