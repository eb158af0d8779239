//! Drops: has an agent version become worse than it usually is, permanently and not by chance?
//!
//! One [`Detector`] watches one stream of one agent version: its verdicts (1: failed) or any measure in `[0,1]` where higher is
//! worse. It takes one value per trace, in the order of the verdicts, and decides with each of them.
//!
//! ```text
//! M(m) = sum over k of R_k     R_k <- (R_k + w_k b) (1 - f_k + f_k x / m)
//! page    if M(usual) >= N   and M(tolerated) >= N/10         N = quarter * streams / false_pages_per_quarter
//! warning if M(usual) >= N/10 and M(tolerated) >= N/100
//!
//! usual     = p + s                                           p, s: level of the past and its standard error
//! tolerated = max(p + tolerance, min(p r, 1 - (1 - p) / r), p + 3 s)     r = tolerance_ratio
//! ```
//!
//! `b` is the time that a value spends, and the sum of all `b` is never more than the time that has passed. So `M(m)` less that
//! time is a supermartingale while the mean of each value, given all before it, is at most `m`, and the mean time until `M(m) >= N`
//! is at least `N`, whatever the distribution, at any rate of values: one false page in a quarter for all streams at their usual
//! level, and ten anywhere within what is tolerated. Nothing else is assumed about the values; `m` is higher after failures by
//! which others usually come, and at hours that are usually bad, as the stream's own past has it.
//!
//! A stream of outcomes may also have predictions for runs without a known outcome. Both are bets on one change, in one `M`: a
//! prediction as in [`chances`], and an outcome that arrives after its run's prediction replaces it (its bet divided by the
//! replaced one). Runs may change without failing more often, so a page also needs `M(usual) >= 0.3 N` from outcomes alone.
//!
//! Source: J. Shin, A. Ramdas and A. Rinaldo, "E-detectors: a nonparametric framework for sequential change detection", The New
//! England Journal of Statistics in Data Science 2 (2024), arXiv 2203.03532: the Shiryaev-Roberts e-detector and its mixture over
//! bets. New here are the time that values spend (instead of one unit each), the part of it that new versions get, the two means at
//! once, and means that depend on earlier values. `docs/detection.md` has measurements.

mod baseline;
mod budget;
mod chances;
mod detector;
mod evidence;
mod hours;
mod options;
mod recovery;
mod recurrence;
#[cfg(test)]
mod tests;

pub use detector::{
    Against, Detector, DropFound, DropState, EarlierChance, InSession, Observation, Severity,
};
pub use options::{DropLimits, DropOptions};
