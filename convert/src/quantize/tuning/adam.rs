//! Adam (Kingma and Ba 2015), and how its rate rises and falls.

/// Decay of the mean of gradients.
const BETA_1: f32 = 0.9;
/// Decay of the mean of their squares.
const BETA_2: f32 = 0.99;
/// Added to the root of that mean.
const EPSILON: f32 = 1e-12;

/// Which part of the steps the rate rises in, before it falls.
const WARM_UP: f32 = 0.1;

/// How far a step goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    /// What each parameter's own step is multiplied with.
    factor: f32,
    /// What brings moments that began at zero up to means.
    mean: f32,
    square: f32,
}

impl Rate {
    /// Of step `step` of `steps`: up to the whole of it in a tenth of them, then down to nothing, in straight lines.
    pub(super) fn of(step: usize, steps: usize) -> Rate {
        let done = step as f32 / steps as f32;
        let risen = (step + 1) as f32 / (WARM_UP * steps as f32);
        let correction = |beta: f32| 1.0 / (1.0 - (0..=step).fold(1.0, |power, _| power * beta));
        Rate { factor: (1.0 - done) * risen.min(1.0), mean: correction(BETA_1), square: correction(BETA_2) }
    }
}

/// What is kept of a parameter's gradients.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moments {
    mean: f32,
    square: f32,
}

impl Moments {
    /// Takes in a gradient, and returns how far the parameter goes down.
    #[inline(always)]
    pub(super) fn step(&mut self, gradient: f32, rate: Rate) -> f32 {
        self.mean += (1.0 - BETA_1) * (gradient - self.mean);
        self.square += (1.0 - BETA_2) * (gradient * gradient - self.square);
        rate.factor * (self.mean * rate.mean) / ((self.square * rate.square).sqrt() + EPSILON)
    }
}
