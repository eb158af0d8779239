//! Loop detection: how different a trace's output is from the ones before it.
//!
//! ```text
//! hybrid = cosine(embeddings) * jaccard(token sets)
//! score  = 1 - max hybrid over the last 3 earlier traces, clamped to [0,1]
//! ```
//!
//! Source: PandaProbe, `trace/loop_detection/metric.py`. The window of three is taken before
//! empty outputs are left out: a trace without output uses up a place. A session's first trace scores 1. Departure: if
//! the output, or every output of the window, is missing, the signal is absent rather than 1.

use super::Computation;
use crate::facts::OutputDigest;
use crate::math::Quanta;
use crate::math::text::Embedding;

/// The signal's name.
pub const NAME: &str = "loop_detection";

/// The computation from the outputs of the trace and of those before it.
pub(super) const COMPUTATION: Computation = Computation {
    score: |facts| score(facts.earlier, facts.output).or(facts.empty),
    evidence: |_, grounds| {
        let repeats = || format!("the output repeats that of {}", grounds.repeated.join(", "));
        let repeats = (!grounds.repeated.is_empty()).then(repeats);
        repeats.into_iter().chain([grounds.compared.clone()]).collect()
    },
    in_documents: true,
};

/// Number of earlier traces that are compared.
pub const WINDOW: usize = 3;

/// Computes the signal from the outputs of the earlier traces of the session, oldest first (at least the last
/// three), and of this one; `None` stands for a missing output.
pub fn score(earlier: &[Option<&OutputDigest>], current: Option<&OutputDigest>) -> Option<Quanta> {
    if earlier.is_empty() {
        return Some(Quanta(Quanta::ONE));
    }
    let current = current?;
    let window = &earlier[earlier.len().saturating_sub(WINDOW)..];
    let mut compared = window.iter().flatten().peekable();
    compared.peek()?;
    let worst = compared.fold(0.0, |worst: f64, other| worst.max(hybrid(current, other, worst)));
    Quanta::from_f64((1.0 - worst).clamp(0.0, 1.0))
}

/// The embeddings of both, if the same model made them. Vectors from different models cannot be compared; hashed embeddings always
/// exist.
pub fn of_one_model<'d>(
    a: &'d OutputDigest,
    b: &'d OutputDigest,
) -> Option<(&'d Embedding, &'d Embedding)> {
    let (a, b) = (a.by_model.as_ref()?, b.by_model.as_ref()?);
    let (one, other) = (&a.embedding, &b.embedding);
    let comparable = a.embedder == b.embedder && one.dimensions() == other.dimensions();
    comparable.then_some((one, other))
}

/// The similarity of two outputs, or 0 if it cannot exceed `floor`: Jaccard is at most 1, so the similarity is at most the
/// cosine.
fn hybrid(a: &OutputDigest, b: &OutputDigest, floor: f64) -> f64 {
    let (one, other) = of_one_model(a, b).unwrap_or((&a.embedding, &b.embedding));
    let cosine = one.cosine(other);
    if cosine <= floor { 0.0 } else { cosine * a.tokens.jaccard(&b.tokens) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::ModelEmbedding;
    use crate::math::text::digest;

    #[test]
    fn where_a_model_embedded_both_its_word_counts() {
        let digest = |embedder, cells: &[i32]| OutputDigest {
            by_model: Some(Box::new(ModelEmbedding { embedding: cells.into(), embedder })),
            ..digest("search flight price").unwrap()
        };
        let (a, b) = (digest(1, &[1_000_000, 0]), digest(1, &[0, 1_000_000]));
        assert_eq!(score(&[Some(&a)], Some(&b)), Some(Quanta(Quanta::ONE)));
        let other = digest(2, &[0, 1_000_000]);
        assert_eq!(score(&[Some(&a)], Some(&other)), Some(Quanta(0)));
        let without = OutputDigest { by_model: None, ..a.clone() };
        assert_eq!(score(&[Some(&a)], Some(&without)), Some(Quanta(0)));
    }

    #[test]
    fn the_same_output_again_is_a_loop() {
        let (a, b) = (digest("search flight price"), digest("order refund policy"));
        let (a, b) = (a.as_ref(), b.as_ref());
        assert_eq!(score(&[], a), Some(Quanta(Quanta::ONE)));
        assert_eq!(score(&[], None), Some(Quanta(Quanta::ONE)));
        assert_eq!(score(&[a], a), Some(Quanta(0)));
        assert_eq!(score(&[a], b), Some(Quanta(Quanta::ONE)));
        assert_eq!(score(&[a, b, b, b], a), Some(Quanta(Quanta::ONE)));
        assert_eq!(score(&[a], None), None);
        assert_eq!(score(&[a, None, None, None], a), None);
    }
}
