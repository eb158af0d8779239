//! Resource consistency: does a task cost the same each time?
//!
//! ```text
//! C_res = exp(-mean of the CVs that exist)      CV = sample standard deviation / mean
//! ```
//!
//! Cost, time, API calls, actions, errors, latency of a call. Zeros count as unknown and are dropped, except for errors, where 0
//! is a value. A CV needs two values and a mean above 0 (the source has an infinite one for errors whose mean
//! is 0 and that differ, and leaves it out of the mean). Not conditioned on success.
//!
//! Source: Princeton, agent reliability, "Resource Consistency".

use super::Resources;

/// `C_res` of runs in the order given; `None` if no resource has a CV.
pub(super) fn consistency<'r, I>(runs: &I) -> Option<f64>
where
    I: Iterator<Item = &'r Resources> + Clone,
{
    let used = |of: fn(&Resources) -> Option<f64>| {
        variation(runs.clone().filter_map(of).filter(|value| *value > 0.0))
    };
    let variations = [
        used(|run| run.cost_usd),
        used(|run| run.time_seconds),
        used(|run| run.api_calls),
        used(|run| run.actions),
        variation(runs.clone().filter_map(|run| run.errors)),
        used(|run| run.call_latency_seconds),
    ];
    let present = variations.iter().flatten().count();
    (present > 0).then(|| (-variations.iter().flatten().sum::<f64>() / present as f64).exp())
}

fn variation(values: impl Iterator<Item = f64> + Clone) -> Option<f64> {
    let values = values.filter(|value| value.is_finite());
    let n = values.clone().count();
    let mean = values.clone().sum::<f64>() / n as f64;
    if n < 2 || mean <= 0.0 {
        return None;
    }
    let squares: f64 = values.map(|value| (value - mean) * (value - mean)).sum();
    Some((squares / (n as f64 - 1.0)).sqrt() / mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_dropped_but_not_those_of_errors() {
        let run = |cost, errors| Resources {
            cost_usd: Some(cost),
            errors: Some(errors),
            ..Resources::default()
        };
        let free = [run(0.0, 0.0), run(2.0, 0.0), run(2.0, 0.0)];
        assert!((consistency(&free.iter()).unwrap() - 1.0).abs() < 1e-12);
        assert_eq!(consistency(&[run(0.0, 0.0), run(1.0, 0.0)].iter()), None);
        let failing = [run(0.0, 0.0), run(0.0, 2.0), run(0.0, 0.0), run(0.0, 1.0)];
        let errors = consistency(&failing.iter()).unwrap();
        assert!((errors - (-1.276_569_477_008_450_8_f64).exp()).abs() < 1e-12);
    }
}
