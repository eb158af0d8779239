//! How alike two sequences are.
//!
//! Source: AgentCI, `engine/metrics.py` (metrics.md 3). Two empty sequences are alike (1), an empty and
//! another are not (0).

/// Twice the length of the longest common subsequence over both lengths, in `[0,1]`.
pub fn lcs_similarity<T: PartialEq>(a: &[T], b: &[T]) -> f64 {
    similarity(a, b, |a, b| ratio(2 * lcs_length(a, b), a.len() + b.len()))
}

/// One minus the edit distance over the longer length, in `[0,1]`.
pub fn edit_similarity<T: PartialEq>(a: &[T], b: &[T]) -> f64 {
    similarity(a, b, |a, b| {
        let longer = a.len().max(b.len());
        ratio(longer - edit_distance(a, b), longer)
    })
}

/// How many elements equal the one before them.
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

fn lcs_length<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    let mut row = vec![0; b.len() + 1];
    for x in a {
        let mut diagonal = 0;
        for (at, y) in b.iter().enumerate() {
            let above = row[at + 1];
            row[at + 1] = if x == y { diagonal + 1 } else { above.max(row[at]) };
            diagonal = above;
        }
    }
    row[b.len()]
}

fn edit_distance<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (line, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (at, y) in b.iter().enumerate() {
            let above = row[at + 1];
            row[at + 1] = (diagonal + usize::from(x != y)).min(above + 1).min(row[at] + 1);
            diagonal = above;
        }
    }
    row[b.len()]
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
