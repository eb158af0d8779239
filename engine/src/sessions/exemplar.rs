//! A distribution of scores with an example in each bucket: the trace that ended last.
//!
//! The example does not depend on the order of arrival. Scores are never subtracted from it.

use serde::{Deserialize, Serialize};

use super::histogram::{Histogram, bucket};
use crate::facts::{Exemplar, ScoreHistogram};
use crate::math::Quanta;
use crate::small_map::SmallMap;
use crate::span::{Timestamp, TraceId};

/// A histogram, with the newest trace in each bucket.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Exemplified {
    histogram: Histogram,
    newest: SmallMap<usize, ((Timestamp, TraceId), Quanta)>,
}

impl Exemplified {
    /// Adds a score, with the trace that has it or caused it, if there is one, and the end of that trace.
    pub(super) fn observe(&mut self, score: Quanta, trace: Option<(Timestamp, TraceId)>) {
        self.histogram.observe(score);
        let Some(trace) = trace else { return };
        let (bucket, example) = (bucket(score), (trace, score));
        if self.newest.get(&bucket).is_none_or(|newest| *newest < example) {
            self.newest.insert(bucket, example);
        }
    }

    /// The histogram as it is sent; `None` if it is empty.
    pub(super) fn message(&self) -> Option<ScoreHistogram> {
        let exemplars = self.newest.iter().map(|(bucket, ((end, trace), score))| Exemplar {
            bucket: u32::try_from(*bucket).unwrap_or(u32::MAX),
            end_unix_nano: end.0,
            trace_id: *trace,
            score_quanta: score.0,
        });
        Some(ScoreHistogram { exemplars: exemplars.collect(), ..self.histogram.message()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_a_bucket_is_the_trace_that_ended_last() {
        let score = |score| Quanta::from_f64(score).unwrap();
        let seen = [(0.4, 7), (0.45, 9), (0.41, 8), (0.9, 3)];
        let told = |order: &[(f64, u64)]| {
            let mut scores = Exemplified::default();
            for (value, end) in order {
                scores.observe(score(*value), Some((Timestamp(*end), TraceId([1; 16]))));
            }
            scores.message().unwrap()
        };
        let message = told(&seen);
        assert_eq!(message.count, 4);
        let examples: Vec<_> =
            message.exemplars.iter().map(|e| (e.bucket, e.end_unix_nano, e.score_quanta)).collect();
        assert_eq!(examples, [(2, 9, score(0.45).0), (5, 3, score(0.9).0)]);
        let mut turned = seen;
        turned.reverse();
        assert_eq!(told(&turned), message);
    }
}
