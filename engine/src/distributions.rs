//! Distributions of what an agent's traces use; each trace counts once, when its verdicts count.
//!
//! Each distribution is one entry in the list of [`Distribution`]. A trace that does not report an amount is not in its
//! distribution.

use serde::{Deserialize, Serialize};

use super::facts::ScoreHistogram;
use super::limits::Usage;

/// The list of distributions. Each entry has its meaning, how many of its units make one that is shown (a second, a dollar), the
/// upper bounds of its buckets in units (inclusive; one more bucket follows), and how it is read from a trace.
macro_rules! distributions {
    ($($(#[$about:meta])* $distribution:ident, $per_unit:expr, $bounds:expr, $of:expr;)*) => {
        /// A distribution of an amount over traces.
        #[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Distribution {
            $($(#[$about])* $distribution,)*
        }

        impl Distribution {
            /// All distributions.
            pub const ALL: &'static [Self] = &[$(Self::$distribution,)*];

            /// How many of its units make one that is shown.
            pub const fn per_unit(self) -> u64 {
                match self {
                    $(Self::$distribution => $per_unit,)*
                }
            }

            /// Upper bounds of its buckets, in its units.
            pub const fn bounds(self) -> &'static [u64] {
                match self {
                    $(Self::$distribution => &$bounds,)*
                }
            }

            fn of(self, taken: &TraceUsage) -> Option<u64> {
                let of: fn(&TraceUsage) -> Option<u64> = match self {
                    $(Self::$distribution => $of,)*
                };
                of(taken)
            }
        }
    };
}

const SECOND: u64 = 1_000_000_000;

/// A hundredth of a dollar, in 1e-12 USD.
const CENT: u64 = 10_000_000_000;

distributions! {
    /// Time from the first start to the last end, in nanoseconds.
    Duration, SECOND,
        [SECOND, 5 * SECOND, 15 * SECOND, 60 * SECOND, 300 * SECOND, 900 * SECOND, 3_600 * SECOND, 14_400 * SECOND],
        |taken| Some(taken.usage.nanos);
    /// Model calls.
    ModelCalls, 1, [1, 2, 5, 10, 20, 50, 100, 500], |taken| Some(taken.usage.sums.model_calls);
    /// Tool calls.
    ToolCalls, 1, [0, 1, 2, 5, 10, 20, 50, 100, 500], |taken| Some(taken.usage.sums.tool_calls);
    /// Tokens read and written.
    Tokens, 1,
        [1_000, 5_000, 20_000, 100_000, 500_000, 2_000_000, 10_000_000, 50_000_000],
        |taken| taken.tells_tokens.then_some(taken.usage.sums.tokens);
    /// Cost in 1e-12 USD.
    Cost, 100 * CENT,
        [CENT / 10, CENT, 5 * CENT, 20 * CENT, 100 * CENT, 500 * CENT, 2_000 * CENT, 10_000 * CENT],
        |taken| taken.tells_cost.then_some(taken.usage.sums.cost_quanta);
}

/// What a trace used, and which of the amounts are known.
#[derive(Clone, Copy, Debug, Default)]
pub struct TraceUsage {
    /// The amounts.
    pub usage: Usage,
    /// Whether some of its tokens are known.
    pub tells_tokens: bool,
    /// Whether some of its cost is known.
    pub tells_cost: bool,
}

/// The distributions of one agent, in the order of [`Distribution::ALL`].
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Distributions(Vec<ScoreHistogram>);

impl Distributions {
    /// Adds a trace.
    pub fn observe(&mut self, taken: &TraceUsage) {
        self.0.resize(Distribution::ALL.len(), ScoreHistogram::default());
        for (distribution, held) in Distribution::ALL.iter().zip(&mut self.0) {
            let Some(value) = distribution.of(taken) else { continue };
            let bounds = distribution.bounds();
            held.buckets.widen(bounds.len() + 1);
            held.buckets[bounds.partition_point(|bound| *bound < value)] += 1;
            held.count += 1;
            held.sum_quanta += i128::from(value);
        }
    }

    /// The distributions with at least one trace.
    pub fn message(&self) -> impl Iterator<Item = (Distribution, ScoreHistogram)> {
        let all = Distribution::ALL.iter().zip(&self.0).filter(|(_, held)| held.count > 0);
        all.map(|(distribution, held)| (*distribution, held.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::BucketCounts;
    use super::super::limits::UsageSums;
    use super::*;

    #[test]
    fn a_bound_is_inclusive_and_what_is_not_told_is_not_counted() {
        let mut distributions = Distributions::default();
        let sums = UsageSums { model_calls: 2, tokens: 7, ..UsageSums::default() };
        let usage = Usage { sums, nanos: SECOND + 1, ..Usage::default() };
        distributions.observe(&TraceUsage { usage, ..TraceUsage::default() });
        distributions.observe(&TraceUsage { usage, tells_tokens: true, ..TraceUsage::default() });
        let told: Vec<_> = distributions.message().collect();
        let counts: Vec<_> = told.iter().map(|(of, held)| (*of, held.count)).collect();
        let [duration, model_calls] = [Distribution::Duration, Distribution::ModelCalls];
        let [tool_calls, tokens] = [Distribution::ToolCalls, Distribution::Tokens];
        assert_eq!(counts, [(duration, 2), (model_calls, 2), (tool_calls, 2), (tokens, 1)]);
        assert_eq!(told[0].1.buckets[..3], [0, 2, 0]);
        assert_eq!(told[1].1.buckets[..3], [0, 2, 0]);
        assert_eq!(told[1].1.sum_quanta, 4);
    }

    #[test]
    fn bounds_rise() {
        for distribution in Distribution::ALL {
            assert!(distribution.bounds().is_sorted_by(|one, next| one < next), "{distribution:?}");
            let counts = vec![1; distribution.bounds().len() + 1];
            assert_eq!(*BucketCounts::from(counts.as_slice()), counts);
        }
    }
}
