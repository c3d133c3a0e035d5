//! The options for choosing tokens.

use clap::Args;
use smolrun::{Model, SamplerStep, Sampling};

#[derive(Args, Debug)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Divide logits by this before drawing; 0 always takes the most likely token.
    #[arg(long, default_value_t = 0.0, value_name = "T", allow_negative_numbers = true)]
    temperature: f32,
    /// Draw from the K most likely tokens; 0 for all.
    #[arg(long, default_value_t = 0, value_name = "K")]
    top_k: usize,
    /// Draw from the most likely tokens that together reach this probability.
    #[arg(long, default_value_t = 1.0, value_name = "P", allow_negative_numbers = true)]
    top_p: f32,
    /// Draw from tokens at least this fraction as likely as the most likely one.
    #[arg(long, default_value_t = 0.0, value_name = "P", allow_negative_numbers = true)]
    min_p: f32,
    /// Draw from tokens as informative as can be expected that together reach this probability.
    #[arg(long, default_value_t = 1.0, value_name = "P", allow_negative_numbers = true)]
    typical_p: f32,
    /// Divide positive logits of tokens in the window by this, multiply negative ones.
    #[arg(long, default_value_t = 1.0, value_name = "X", allow_negative_numbers = true)]
    repetition_penalty: f32,
    /// Take this from a token's logit for each time it is in the window.
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true)]
    frequency_penalty: f32,
    /// Take this from the logit of each token in the window.
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true)]
    presence_penalty: f32,
    /// How many of the last tokens the penalties look at, the prompt's included; 0 for all.
    #[arg(long, default_value_t = 0, value_name = "N")]
    penalty_window: usize,
    /// Add X to the logit of token ID; "-inf" rules it out. May be given several times.
    #[arg(long, value_name = "ID=X", value_parser = parse_bias, allow_hyphen_values = true)]
    logit_bias: Vec<(u32, f32)>,
    /// Rule out the tokens that end a generation.
    #[arg(long)]
    ignore_eos: bool,
    /// The steps to apply and their order [default: bias,penalties,temperature,top-k,top-p,min-p,typical].
    #[arg(long, value_delimiter = ',', value_name = "STEP,STEP,...")]
    sampler_order: Option<Vec<SamplerStep>>,
    /// Decides every draw [default: 0].
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    seed: u64,
}

impl SamplingArgs {
    /// What they mean for `model`.
    pub(crate) fn sampling(&self, model: &Model) -> Sampling {
        let mut logit_bias = self.logit_bias.clone();
        if self.ignore_eos {
            logit_bias.extend(model.config().eos_token_ids.iter().map(|&id| (id, f32::NEG_INFINITY)));
        }
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            penalty_window: self.penalty_window,
            logit_bias,
            order: self.sampler_order.clone().unwrap_or_else(|| SamplerStep::ALL.to_vec()),
            seed: self.seed,
        }
    }
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let wrong = || format!("expected ID=X, such as 17=-2.5, found {text}");
    let (id, bias) = text.split_once('=').ok_or_else(wrong)?;
    Ok((id.parse().map_err(|_| wrong())?, bias.parse().map_err(|_| wrong())?))
}
