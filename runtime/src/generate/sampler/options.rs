//! The options of a sampler.

use std::str::FromStr;

use crate::error::{Error, Result};
use crate::format::Config;

/// How the next token is chosen.
///
/// Each field's neutral value switches its step off. The steps are applied in the order of [`Sampling::sampler_order`]. Those
/// that share a name with Hugging Face's logits processors do what these do.
///
/// ```
/// use smolrun::Sampling;
///
/// let sampling = Sampling::default().temperature(0.7).top_p(0.9).seed(1);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Sampling {
    /// Logits are divided by this; 0 always takes the most likely token (greedy), after bias and penalties.
    pub temperature: f32,
    /// Only the `top_k` most likely tokens are drawn from; 0 for all.
    pub top_k: usize,
    /// Only the most likely tokens that together reach this probability are drawn from (nucleus sampling, Holtzman et
    /// al. 2019); 1 for all.
    pub top_p: f32,
    /// Only tokens that are at least this many times as likely as the most likely one are drawn from (Nguyen et al.
    /// 2024); 0 for all.
    pub min_p: f32,
    /// Only the tokens whose information is closest to the expected, and that together reach this probability, are
    /// drawn from (locally typical sampling, Meister et al. 2022); 1 for all.
    pub typical_p: f32,
    /// Logits of tokens in the window are divided by this where positive, multiplied where negative (Keskar et al.
    /// 2019); 1 for none.
    pub repetition_penalty: f32,
    /// Subtracted from a token's logit for each time it is in the window; 0 for none.
    pub frequency_penalty: f32,
    /// Subtracted from a token's logit if it is in the window; 0 for none.
    pub presence_penalty: f32,
    /// How many of the last tokens the penalties look at, the prompt's included; 0 for all.
    pub penalty_window: usize,
    /// Added to these ids' logits; negative infinity rules an id out.
    pub logit_bias: Vec<(u32, f32)>,
    /// The steps in the order in which they are applied; one that is missing is not applied.
    pub sampler_order: Vec<SamplerStep>,
    /// Decides every draw, the same on every platform.
    pub seed: u64,
}

impl Default for Sampling {
    /// Greedy, with every step neutral.
    fn default() -> Sampling {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_window: 0,
            logit_bias: Vec::new(),
            sampler_order: SamplerStep::ALL.to_vec(),
            seed: 0,
        }
    }
}

impl Sampling {
    /// These options with this temperature; 0 takes the most likely token, see [`Sampling::temperature`](Sampling#structfield.temperature).
    pub fn temperature(self, temperature: f32) -> Sampling {
        Sampling { temperature, ..self }
    }

    /// These options with draws from the `top_k` most likely tokens, see [`Sampling::top_k`](Sampling#structfield.top_k).
    pub fn top_k(self, top_k: usize) -> Sampling {
        Sampling { top_k, ..self }
    }

    /// These options with draws from the most likely tokens that together reach `top_p`, see [`Sampling::top_p`](Sampling#structfield.top_p).
    pub fn top_p(self, top_p: f32) -> Sampling {
        Sampling { top_p, ..self }
    }

    /// These options with draws from the tokens at least `min_p` as likely as the most likely one, see [`Sampling::min_p`](Sampling#structfield.min_p).
    pub fn min_p(self, min_p: f32) -> Sampling {
        Sampling { min_p, ..self }
    }

    /// These options with draws from the most typical tokens that together reach `typical_p`, see [`Sampling::typical_p`](Sampling#structfield.typical_p).
    pub fn typical_p(self, typical_p: f32) -> Sampling {
        Sampling { typical_p, ..self }
    }

    /// These options with this factor on logits of tokens in the window, see [`Sampling::repetition_penalty`](Sampling#structfield.repetition_penalty).
    pub fn repetition_penalty(self, repetition_penalty: f32) -> Sampling {
        Sampling { repetition_penalty, ..self }
    }

    /// These options with this taken from a token's logit for each time it is in the window, see [`Sampling::frequency_penalty`](Sampling#structfield.frequency_penalty).
    pub fn frequency_penalty(self, frequency_penalty: f32) -> Sampling {
        Sampling { frequency_penalty, ..self }
    }

    /// These options with this taken from the logit of each token in the window, see [`Sampling::presence_penalty`](Sampling#structfield.presence_penalty).
    pub fn presence_penalty(self, presence_penalty: f32) -> Sampling {
        Sampling { presence_penalty, ..self }
    }

    /// These options with penalties that look at the last `penalty_window` tokens, see [`Sampling::penalty_window`](Sampling#structfield.penalty_window).
    pub fn penalty_window(self, penalty_window: usize) -> Sampling {
        Sampling { penalty_window, ..self }
    }

    /// These options with these numbers added to the logits of ids, see [`Sampling::logit_bias`](Sampling#structfield.logit_bias).
    pub fn logit_bias(self, logit_bias: impl IntoIterator<Item = (u32, f32)>) -> Sampling {
        Sampling { logit_bias: logit_bias.into_iter().collect(), ..self }
    }

    /// These options with the ids ruled out, too, that end a text of a model with `config`.
    pub fn ignore_eos(mut self, config: &Config) -> Sampling {
        self.logit_bias.extend(config.eos_token_ids.iter().map(|&id| (id, f32::NEG_INFINITY)));
        self
    }

    /// These options with these steps, in their order.
    pub fn sampler_order(self, order: impl IntoIterator<Item = SamplerStep>) -> Sampling {
        Sampling { sampler_order: order.into_iter().collect(), ..self }
    }

    /// These options with draws that `seed` decides.
    pub fn seed(self, seed: u64) -> Sampling {
        Sampling { seed, ..self }
    }
}

/// One step from logits to the tokens that may be drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SamplerStep {
    /// [`Sampling::logit_bias`]
    Bias,
    /// [`Sampling::repetition_penalty`], [`Sampling::frequency_penalty`] and [`Sampling::presence_penalty`]
    Penalties,
    /// [`Sampling::temperature`]
    Temperature,
    /// [`Sampling::top_k`]
    TopK,
    /// [`Sampling::top_p`]
    TopP,
    /// [`Sampling::min_p`]
    MinP,
    /// [`Sampling::typical_p`]
    Typical,
}

impl SamplerStep {
    /// Every step, in the order in which Hugging Face's `generate` applies them.
    pub const ALL: &[SamplerStep] = &[
        SamplerStep::Bias,
        SamplerStep::Penalties,
        SamplerStep::Temperature,
        SamplerStep::TopK,
        SamplerStep::TopP,
        SamplerStep::MinP,
        SamplerStep::Typical,
    ];

    /// `bias`, `penalties`, `temperature`, `top-k`, `top-p`, `min-p` or `typical`.
    pub fn name(self) -> &'static str {
        match self {
            SamplerStep::Bias => "bias",
            SamplerStep::Penalties => "penalties",
            SamplerStep::Temperature => "temperature",
            SamplerStep::TopK => "top-k",
            SamplerStep::TopP => "top-p",
            SamplerStep::MinP => "min-p",
            SamplerStep::Typical => "typical",
        }
    }
}

impl FromStr for SamplerStep {
    type Err = Error;

    fn from_str(name: &str) -> Result<SamplerStep> {
        Self::ALL.iter().copied().find(|step| step.name() == name).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|step| step.name()).collect();
            let names = names.join(", ");
            wrong("sampler_order", &format!("one of {names}"), name)
        })
    }
}

impl Sampling {
    /// An error where a field makes no sense for a vocabulary of `vocab_size`.
    pub(super) fn check(&self, vocab_size: usize) -> Result<()> {
        let most = Config::MAX_VOCAB_SIZE;
        if !(1..=most).contains(&vocab_size) {
            return Err(wrong("vocab_size", &format!("1 to {most}"), &vocab_size.to_string()));
        }
        let at_least_0 = |x: f32| x.is_finite() && x >= 0.0;
        let share = |x: f32| x > 0.0 && x <= 1.0;
        let (from_0, above_0) = ("a finite number from 0 up", "a number above 0, at most 1");
        let ranges = [
            ("temperature", self.temperature, from_0, at_least_0(self.temperature)),
            ("top_p", self.top_p, above_0, share(self.top_p)),
            ("min_p", self.min_p, "a number from 0 to 1", (0.0..=1.0).contains(&self.min_p)),
            ("typical_p", self.typical_p, above_0, share(self.typical_p)),
            (
                "repetition_penalty",
                self.repetition_penalty,
                "a finite number above 0",
                at_least_0(self.repetition_penalty) && self.repetition_penalty > 0.0,
            ),
            (
                "frequency_penalty",
                self.frequency_penalty,
                "a finite number",
                self.frequency_penalty.is_finite(),
            ),
            ("presence_penalty", self.presence_penalty, "a finite number", self.presence_penalty.is_finite()),
        ];
        match ranges.into_iter().find(|(.., is_right)| !is_right) {
            Some((name, found, expected, _)) => Err(wrong(name, expected, &found.to_string())),
            None => self.check_bias(vocab_size).and_then(|()| self.check_order()),
        }
    }

    fn check_bias(&self, vocab_size: usize) -> Result<()> {
        for &(id, bias) in &self.logit_bias {
            if id as usize >= vocab_size {
                return Err(Error::TokenId { id, vocab_size });
            }
            if !(bias.is_finite() || bias == f32::NEG_INFINITY) {
                return Err(wrong("logit_bias", "a finite number or negative infinity", &bias.to_string()));
            }
        }
        Ok(())
    }

    fn check_order(&self) -> Result<()> {
        let mut twice = self
            .sampler_order
            .iter()
            .enumerate()
            .filter(|(at, step)| self.sampler_order[..*at].contains(step));
        match twice.next() {
            Some((_, step)) => {
                Err(wrong("sampler_order", "each step at most once", &format!("{} twice", step.name())))
            }
            None => Ok(()),
        }
    }

    /// Whether the most likely token is taken, without a draw.
    pub(super) fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Whether tokens of the past change a logit.
    pub(super) fn has_penalties(&self) -> bool {
        let is_on =
            self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0;
        is_on && self.sampler_order.contains(&SamplerStep::Penalties)
    }

    /// Whether some id's logit is changed whatever came before.
    pub(super) fn has_bias(&self) -> bool {
        !self.logit_bias.is_empty() && self.sampler_order.contains(&SamplerStep::Bias)
    }
}

fn wrong(name: &'static str, expected: &str, found: &str) -> Error {
    Error::Argument { name, expected: expected.to_owned(), found: found.to_owned() }
}
