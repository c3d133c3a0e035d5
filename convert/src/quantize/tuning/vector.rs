//! A norm's weights, which are tuned.

use super::adam::{Moments, Rate};

/// How far a weight goes in a step at most, about, as a part of its size.
const STEP: f32 = 5e-4;
/// Weights smaller than this part of their mean size go as far as one of this size.
const SMALLEST: f32 = 0.1;

/// Weights of an RMSNorm, and the gradient of a window.
#[derive(Debug)]
pub(super) struct Vector {
    pub(super) weights: Vec<f32>,
    pub(super) gradient: Vec<f32>,
    /// What a step of each is measured in.
    sizes: Vec<f32>,
    moments: Vec<Moments>,
}

impl Vector {
    pub(super) fn new(weights: &[f32]) -> Vector {
        let sum: f32 = weights.iter().map(|weight| weight.abs()).sum();
        let smallest = SMALLEST * sum / weights.len() as f32;
        Vector {
            sizes: weights.iter().map(|weight| weight.abs().max(smallest)).collect(),
            gradient: vec![0.0; weights.len()],
            moments: vec![Moments::default(); weights.len()],
            weights: weights.to_vec(),
        }
    }

    /// Follows the gradient where it is finite, and forgets it.
    pub(super) fn step(&mut self, rate: Rate) {
        let Vector { weights, gradient, sizes, moments } = self;
        let numbers = weights.iter_mut().zip(gradient).zip(sizes).zip(moments);
        for (((weight, gradient), size), moments) in numbers {
            let slope = std::mem::take(gradient) * *size;
            if slope.is_finite() {
                *weight -= STEP * *size * moments.step(slope, rate);
            }
        }
    }
}
