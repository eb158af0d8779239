//! Similarity of two sequences.
//!
//! Source: AgentCI, `engine/metrics.py`. Two empty sequences have a similarity of 1, an empty and
//! another one of 0.

use super::myers::{Pattern, Sequence};

/// Twice the length of the longest common subsequence over the sum of both lengths, in `[0,1]`.
pub fn lcs_similarity<T: Ord>(a: &[T], b: &[T]) -> f64 {
    similarity(a, b, |a, b| {
        let (one, other) = numbered(a, b);
        ratio(2 * Pattern::new(&one).common(&other), a.len() + b.len())
    })
}

/// One minus the edit distance over the longer length, in `[0,1]`.
pub fn edit_similarity<T: Ord>(a: &[T], b: &[T]) -> f64 {
    similarity(a, b, |a, b| {
        let longer = a.len().max(b.len());
        let (one, other) = numbered(a, b);
        ratio(longer - Pattern::new(&one).edit_distance(&other), longer)
    })
}

/// The number of elements that equal the previous one.
pub fn adjacent_repeats<T: PartialEq>(sequence: &[T]) -> usize {
    sequence.windows(2).filter(|pair| pair[0] == pair[1]).count()
}

fn similarity<T>(a: &[T], b: &[T], of: impl Fn(&[T], &[T]) -> f64) -> f64 {
    match (a.is_empty(), b.is_empty()) {
        (true, true) => 1.0,
        (true, false) | (false, true) => 0.0,
        (false, false) => of(a, b),
    }
}

fn ratio(part: usize, whole: usize) -> f64 {
    part as f64 / whole as f64
}

/// Both sequences as numbers; equal elements get equal numbers.
fn numbered<T: Ord>(a: &[T], b: &[T]) -> (Sequence, Sequence) {
    let mut known: Vec<&T> = a.iter().collect();
    known.sort_unstable();
    known.dedup();
    // All elements that are not in `a` share one number, as only differences from `a` matter.
    let number = |of: &T| known.binary_search(&of).unwrap_or(known.len()) as u64;
    let numbers = |of: &[T]| Sequence::new(&of.iter().map(number).collect::<Vec<_>>());
    (numbers(a), numbers(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_compare_as_agentci_does() {
        let empty: [&str; 0] = [];
        assert!((lcs_similarity(&empty, &empty) - 1.0).abs() < 1e-12);
        assert!(edit_similarity(&["a"], &empty) < 1e-12);
        let (a, b) = (["a", "b", "c", "d", "e"], ["a", "c", "b", "d", "e"]);
        assert!((lcs_similarity(&a, &b) - 0.8).abs() < 1e-12);
        assert!((edit_similarity(&a, &b) - 0.6).abs() < 1e-12);
        assert!((lcs_similarity(&["a", "b", "c"], &["a"]) - 0.5).abs() < 1e-12);
        assert_eq!(adjacent_repeats(&["a", "a", "b", "b", "b"]), 3);
    }
}
