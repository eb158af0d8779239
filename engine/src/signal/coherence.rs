//! Coherence: how similar a trace's output is to its input.
//!
//! ```text
//! gap   = 1 - cosine(embedding of the input, embedding of the output), clamped to [0,1]
//! score = 1 - gap
//! ```
//!
//! Source: PandaProbe, `trace/coherence/metric.py`. A zero vector has a gap of 1. An embedding model is
//! needed, as a hashed embedding agrees with one too little to stand in for it. Departure: if a side is empty,
//! or has no embedding, the signal is absent rather than 1.

use super::Computation;
use crate::math::Quanta;

/// The signal's name.
pub const NAME: &str = "coherence";

/// The coherence from the embeddings, if it is in `[0,1]`.
pub(super) const COMPUTATION: Computation = Computation {
    score: |facts| facts.coherence.filter(|score| (0..=Quanta::ONE).contains(&score.0)),
    evidence: |_, _| {
        vec!["how close the output is to the input, by the embedding model".to_owned()]
    },
    in_documents: true,
};

/// Computes the signal from the embeddings of the input and of the output.
///
/// `None` if one is empty, if their lengths differ, so that they are from different models, or if they contain something that is
/// not a finite number.
pub fn score<T: Copy + Into<f64>>(input: &[T], output: &[T]) -> Option<Quanta> {
    if input.is_empty() || input.len() != output.len() {
        return None;
    }
    let norms = dot(input, input).sqrt() * dot(output, output).sqrt();
    if norms.is_nan() {
        return None;
    }
    let cosine = if norms > 0.0 { dot(input, output) / norms } else { 0.0 };
    // NaN stays NaN when it is clamped, and has no quanta.
    Quanta::from_f64(cosine.clamp(0.0, 1.0))
}

fn dot<T: Copy + Into<f64>>(a: &[T], b: &[T]) -> f64 {
    a.iter().zip(b).map(|(x, y)| (*x).into() * (*y).into()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_angle_counts_and_not_the_length() {
        assert_eq!(score(&[1.0, 2.0], &[10.0, 20.0]), Some(Quanta(Quanta::ONE)));
        assert_eq!(score(&[1.0_f32, 1.0], &[1.0, 0.0]), Quanta::from_f64(0.5_f64.sqrt()));
        assert_eq!(score(&[1.0, 0.0], &[-1.0, 0.0]), Some(Quanta(0)));
        assert_eq!(score(&[0.0, 0.0], &[1.0, 0.0]), Some(Quanta(0)));
    }

    #[test]
    fn what_cannot_be_compared_has_no_coherence() {
        assert_eq!(score::<f32>(&[], &[]), None);
        assert_eq!(score(&[1.0], &[1.0, 0.0]), None);
        assert_eq!(score(&[f64::NAN, 1.0], &[1.0, 0.0]), None);
        assert_eq!(score(&[f64::INFINITY, 1.0], &[1.0, 0.0]), None);
        assert_eq!(score(&[f64::INFINITY, 1.0], &[0.0, 0.0]), None);
    }
}
