//! How the next token is chosen from the logits: on the host, with the same result on every machine.

use convoke_common::error::{Code, Error, Result};
use convoke_graph::{DType, Tensor as HostTensor};
use half::{bf16, f16};

/// How tokens are chosen. The default is the most probable token each time.
///
/// With a temperature above 0 a token is drawn:
///
/// 1. The logits are divided by the temperature.
/// 2. The `top_k` largest stay, if `top_k` is not 0; of equal ones those with lower ids.
/// 3. Softmax of the rest gives their probabilities.
/// 4. From the most probable on, as many stay as together reach the probability `top_p`, at least one.
/// 5. One of them is drawn by a number that only `seed` and the token's place after the prompt decide, in proportion to
///    their probabilities.
///
/// All of it is computed in f64 by operations that round in the same way on every machine, so the same logits and the
/// same seed give the same token everywhere.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// How much probabilities are evened out; 0 takes the most probable token, of equal ones that with the lowest id.
    pub temperature: f32,
    /// How many of the most probable tokens may be drawn; 0 for all.
    pub top_k: usize,
    /// The probability that the tokens which may be drawn reach together, above 0 and up to 1; 1 for all.
    pub top_p: f32,
    /// The state that decides the draws.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            temperature: 0.,
            top_k: 0,
            top_p: 1.,
            seed: 0,
        }
    }
}

/// The logits as f64.
fn numbers(logits: &HostTensor) -> Result<Vec<f64>> {
    Ok(match logits.dtype() {
        DType::F16 => {
            let values = logits.as_slice::<f16>()?.iter();
            values.map(|v| f64::from(*v)).collect()
        }
        DType::BF16 => {
            let values = logits.as_slice::<bf16>()?.iter();
            values.map(|v| f64::from(*v)).collect()
        }
        DType::F64 => logits.as_slice::<f64>()?.to_vec(),
        _ => {
            let values = logits.as_slice::<f32>()?.iter();
            values.map(|v| f64::from(*v)).collect()
        }
    })
}

/// A number in 0..1 that a seed and a place decide: the output of SplitMix64 for their mixture, as 53 bits.
fn uniform(seed: u64, place: u64) -> f64 {
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let step = 0x9e37_79b9_7f4a_7c15;
    let own = mix(seed.wrapping_add(step));
    let bits = mix(own.wrapping_add(place.wrapping_add(1).wrapping_mul(step)));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

impl Sampling {
    /// Fails where a setting makes no sense.
    pub(super) fn check(&self) -> Result<()> {
        let msg = if !(self.temperature >= 0. && self.temperature.is_finite()) {
            format!("a temperature of {} makes no sense", self.temperature)
        } else if !(self.top_p > 0. && self.top_p <= 1.) {
            format!(
                "top_p is {}, expected more than 0 and at most 1",
                self.top_p
            )
        } else {
            return Ok(());
        };
        Err(Error::new(Code::InvalidArgument, msg))
    }

    /// Chooses the token that has this place after the prompt.
    pub(super) fn choose(&self, logits: &HostTensor, place: u64) -> Result<u32> {
        let mut logits = numbers(logits)?;
        // The two zeros are equal.
        logits.iter_mut().for_each(|logit| *logit += 0.0);
        // A NaN is no logit: it is never chosen, and it does not affect the others.
        let mut tokens: Vec<u32> = (0..).take(logits.len()).collect();
        tokens.retain(|t| !logits[*t as usize].is_nan());
        let none = || {
            let count = logits.len();
            let msg = format!("none of the {count} logits after token {place} is a number");
            Error::new(Code::InvalidModel, msg).advise(
                "run the model by itself and look at its values: an input or a weight may be wrong",
            )
        };
        let logit = |t: &u32| logits[*t as usize];
        let order = |a: &u32, b: &u32| logit(b).total_cmp(&logit(a)).then(a.cmp(b));
        let best = tokens.iter().copied().min_by(order).ok_or_else(none)?;
        if self.temperature == 0. {
            return Ok(best);
        }
        if self.top_k != 0 && self.top_k < tokens.len() {
            tokens.select_nth_unstable_by(self.top_k - 1, order);
            tokens.truncate(self.top_k);
        }
        tokens.sort_unstable_by(order);
        let (most, temperature) = (logit(&best), f64::from(self.temperature));
        // An infinite logit takes all of the probability.
        let weight = |t: &u32| match logit(t) == most {
            true => 1.,
            false => libm::exp((logit(t) - most) / temperature),
        };
        let mut weights: Vec<f64> = tokens.iter().map(weight).collect();
        let reached = f64::from(self.top_p) * weights.iter().sum::<f64>();
        let mut sum = 0.;
        let enough = weights.iter().position(|w| {
            sum += w;
            sum >= reached
        });
        weights.truncate(enough.map_or(weights.len(), |last| last + 1));
        let drawn = uniform(self.seed, place) * weights.iter().sum::<f64>();
        let mut sum = 0.;
        let at = weights.iter().position(|w| {
            sum += w;
            sum > drawn
        });
        // Rounding may leave the last sum no greater than the number that was drawn.
        Ok(tokens[at.unwrap_or(weights.len() - 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(values: &[f32]) -> HostTensor {
        HostTensor::from_slice(&[1, values.len()], values).unwrap()
    }

    /// How often each token is drawn, of 4,000.
    fn drawn(sampling: Sampling, values: &[f32]) -> Vec<u32> {
        let mut counts = vec![0; values.len()];
        for place in 0..4000 {
            counts[sampling.choose(&logits(values), place).unwrap() as usize] += 1;
        }
        counts
    }

    const WARM: Sampling = Sampling {
        temperature: 1.,
        top_k: 0,
        top_p: 1.,
        seed: 7,
    };

    #[test]
    fn the_most_probable_token_is_the_first_of_the_largest() {
        let greedy = Sampling::default();
        let nan = f32::NAN;
        for (values, token) in [
            (&[0., 3., 1., 3.][..], 1),
            (&[-1., -2.], 0),
            (&[-3., -0., 0.], 1),
            (&[nan, -5., nan, 2.], 3),
            (&[f32::NEG_INFINITY, f32::INFINITY], 1),
        ] {
            assert_eq!(greedy.choose(&logits(values), 0).unwrap(), token);
        }
        let e = greedy.choose(&logits(&[nan]), 3).unwrap_err();
        assert_eq!(e.code, Code::InvalidModel);
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let quarters = [0.25f32.ln(), 0.5f32.ln(), 0.25f32.ln()];
        let counts = drawn(WARM, &quarters);
        // The deviation of such counts is about 30.
        assert!(
            counts[1].abs_diff(2000) < 150 && counts[0].abs_diff(1000) < 150,
            "{counts:?}"
        );
        let cold = Sampling {
            temperature: 0.01,
            ..WARM
        };
        assert_eq!(drawn(cold, &quarters), [0, 4000, 0]);
        assert_eq!(drawn(WARM, &[0., f32::INFINITY]), [0, 4000]);
    }

    #[test]
    fn top_k_and_top_p_leave_the_most_probable() {
        let values = [0.1f32.ln(), 0.4f32.ln(), 0.1f32.ln(), 0.4f32.ln()];
        let left = |top_k, top_p| {
            let counts = drawn(
                Sampling {
                    top_k,
                    top_p,
                    ..WARM
                },
                &values,
            );
            counts.iter().map(|c| *c > 0).collect::<Vec<_>>()
        };
        assert_eq!(left(1, 1.), [false, true, false, false]);
        assert_eq!(left(3, 1.), [true, true, false, true]);
        assert_eq!(left(0, 0.3), [false, true, false, false]);
        assert_eq!(left(0, 0.7), [false, true, false, true]);
        assert_eq!(left(9, 1.), [true; 4]);
    }

    #[test]
    fn a_seed_decides_the_draws() {
        let values: Vec<f32> = (0..64).map(|i| (i as f32).sin()).collect();
        let tokens = |seed| -> Vec<u32> {
            let sampling = Sampling { seed, ..WARM };
            let choose = |place| sampling.choose(&logits(&values), place).unwrap();
            (0..6).map(choose).collect()
        };
        // As a program in Python draws them.
        assert_eq!(tokens(7), [63, 9, 59, 57, 45, 39]);
        assert_eq!(tokens(8), [2, 15, 59, 26, 32, 59]);
    }

    #[test]
    fn settings_without_sense_are_refused() {
        for sampling in [
            Sampling {
                temperature: -1.,
                ..WARM
            },
            Sampling {
                temperature: f32::NAN,
                ..WARM
            },
            Sampling { top_p: 0., ..WARM },
            Sampling { top_p: 1.5, ..WARM },
        ] {
            assert_eq!(sampling.check().unwrap_err().code, Code::InvalidArgument);
        }
        WARM.check().unwrap();
    }
}
