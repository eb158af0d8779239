//! The results that a run got from its tools, as a small sketch, so that runs at one task can be compared.

use serde::{Deserialize, Serialize};

/// Most hashes that are kept for a run.
const MOST: usize = 16;

/// The least hashes of the distinct results of a run, at most [`MOST`], in order. Such sketches of two sets show how much the sets
/// have in common (A. Broder, On the resemblance and containment of documents, 1997).
#[derive(Clone, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Results(Vec<u64>);

impl FromIterator<u64> for Results {
    fn from_iter<I: IntoIterator<Item = u64>>(hashes: I) -> Self {
        let mut least: Vec<u64> = hashes.into_iter().collect();
        least.sort_unstable();
        least.dedup();
        least.truncate(MOST);
        least.shrink_to_fit();
        Self(least)
    }
}

impl Results {
    /// The results of several traces of one run.
    pub fn of_all<'r>(traces: impl Iterator<Item = &'r Self>) -> Self {
        traces.flat_map(|results| &results.0).copied().collect()
    }

    /// The estimated share of common results among those that either has, in `[0,1]`; `None` if neither has any.
    pub fn in_common(&self, other: &Self) -> Option<f64> {
        let (mut own, mut others) = (&*self.0, &*other.0);
        let (mut all, mut common) = (0, 0);
        while all < MOST
            && let Some(least) = own.first().into_iter().chain(others.first()).min().copied()
        {
            let has = [&mut own, &mut others].map(|rest| {
                let has = rest.first() == Some(&least);
                *rest = &rest[usize::from(has)..];
                has
            });
            all += 1;
            common += usize::from(has == [true, true]);
        }
        (all > 0).then(|| common as f64 / all as f64)
    }

    /// The bytes of memory that the hashes take.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

#[cfg(test)]
mod tests {
    use xxhash_rust::xxh3::xxh3_64;

    use super::*;

    fn of(results: std::ops::Range<u64>) -> Results {
        results.map(|result| xxh3_64(&result.to_le_bytes())).collect()
    }

    #[test]
    fn few_results_are_compared_exactly_and_many_nearly_so() {
        assert_eq!(of(0..4).in_common(&of(2..6)), Some(2.0 / 6.0));
        assert_eq!(
            (of(0..3).in_common(&of(0..0)), of(0..0).in_common(&of(0..0))),
            (Some(0.0), None)
        );
        let of_many: Vec<f64> = (0..50)
            .map(|from| {
                of(1_000 * from..1_000 * from + 300)
                    .in_common(&of(1_000 * from + 100..1_000 * from + 400))
                    .unwrap()
            })
            .collect();
        let mean = of_many.iter().sum::<f64>() / 50.0;
        assert!((0.45..0.55).contains(&mean), "{mean}");
        assert_eq!((of(0..300).bytes(), of(0..3).bytes()), (8 * MOST, 24));
    }

    #[test]
    fn of_the_traces_of_a_run_it_has_the_same_as_of_all_results_at_once() {
        let traces = [of(0..40), of(20..90), of(0..0)];
        assert_eq!(Results::of_all(traces.iter()), of(0..90));
    }
}
