//! One trace's signals, from whoever is believed most, and the risk they make.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::pane::Unasked;
use super::rules::{Rules, four_decimals};
use crate::engine::few::Few;
use crate::engine::loops::{Evidence, LoopKind, Severity};
use crate::engine::math::Quanta;
use crate::engine::runs::{judged_outcome, told_outcome};
use crate::engine::score::risk::{CONFIDENCE, TraceRisk};
use crate::engine::signal::{self, coherence, loop_detection};
use crate::engine::span::{Source, TraceId};
use crate::engine::update::{Loop, OutputDigest, ReportedScore, TraceState, TraceUpdate};

/// An earlier trace of the session and its output, if any arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Earlier<'a> {
    /// The trace.
    pub(super) id: TraceId,
    /// Its output.
    pub(super) output: Option<&'a OutputDigest>,
}

/// A signal's name; those that are computed are not copied.
pub(super) type SignalName = Cow<'static, str>;

/// What a trace is worth.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Scored {
    /// Signals by name, and who made them.
    pub(super) signals: Few<SignalName, (Quanta, Source)>,
    /// The risks that they make.
    pub(super) risk: TraceRisk,
    /// The output repeats that of an earlier trace; only when the trace is done.
    pub(super) output_repeat: Option<Loop>,
    /// Reported scores that are no score.
    pub(super) malformed: u64,
}

impl Scored {
    /// Scores a trace; `earlier` are the last few traces before it, oldest first, `of_session` is the outcome that was reported of the
    /// session if this is its last trace.
    pub(super) fn new(
        update: &TraceUpdate,
        loop_severity: Option<Severity>,
        earlier: &[Earlier<'_>],
        of_session: Option<bool>,
        rules: &Rules,
    ) -> Self {
        let (mut signals, similarity) = computed(update, loop_severity, earlier, rules);
        let (reported, malformed) = reported(&update.reported);
        signals.extend(reported);
        signals.extend(outcome(update, of_session, rules));
        let scores = signals.iter().map(|(name, (score, _))| (name.as_ref(), *score));
        let risk = TraceRisk::new(scores, &rules.weights);
        let repeats = is_done(update)
            && similarity.is_some_and(|score| score.to_f64() < rules.loop_threshold);
        let output_repeat = repeats.then(|| output_repeat(update, earlier));
        Self { signals, risk, output_repeat, malformed }
    }

    /// Of these the signals that are computed, whatever somebody reported in their place.
    pub(super) fn own(
        &self,
        update: &TraceUpdate,
        loop_severity: Option<Severity>,
        earlier: &[Earlier<'_>],
        rules: &Rules,
    ) -> Few<SignalName, (Quanta, Source)> {
        if self.signals.iter().all(|(_, (_, source))| *source == Source::Computed) {
            return self.signals.clone();
        }
        computed(update, loop_severity, earlier, rules).0
    }
}

/// Returns whether a trace counts in scores: its root ended and it was quiet, or it timed out.
pub(super) fn is_done(update: &TraceUpdate) -> bool {
    matches!(update.state, TraceState::Done | TraceState::Sealed)
}

/// The signals that are computed, and how unlike the output is to those before it.
fn computed(
    update: &TraceUpdate,
    loop_severity: Option<Severity>,
    earlier: &[Earlier<'_>],
    rules: &Rules,
) -> (Few<SignalName, (Quanta, Source)>, Option<Quanta>) {
    let rounded = |score| if rules.pandaprobe { four_decimal_quanta(score) } else { score };
    let outputs: Vec<_> = earlier.iter().map(|trace| trace.output).collect();
    let found = loop_detection::score(&outputs, update.output_digest.as_ref());
    let similarity = found.map(rounded);
    let one = rules.empty_is_one.then_some(Quanta(Quanta::ONE));
    let mut signals = behaviour(update, loop_severity, rules);
    if let Some(score) = similarity.or(one) {
        signals.insert(Cow::Borrowed(loop_detection::NAME), (score, Source::Computed));
    }
    let coherence = update.coherence_quanta.filter(|score| (0..=Quanta::ONE).contains(score));
    if let Some(score) = coherence.map(Quanta).map(rounded) {
        signals.insert(Cow::Borrowed(coherence::NAME), (score, Source::Computed));
    }
    (signals, similarity)
}

/// Those of them that need nothing but the trace.
fn behaviour(
    update: &TraceUpdate,
    loop_severity: Option<Severity>,
    rules: &Rules,
) -> Few<SignalName, (Quanta, Source)> {
    let mut computed = Few::with_capacity(COMPUTED);
    if rules.pandaprobe {
        return computed;
    }
    let scores = [
        (signal::tool_loop::NAME, Some(signal::tool_loop::score(loop_severity))),
        (signal::error::NAME, Some(signal::error::score(update.error))),
        (signal::confidence::NAME, signal::confidence::score(update.steps, update.wasted_steps)),
    ];
    let present =
        scores.into_iter().filter_map(|(name, score)| Some((Cow::Borrowed(name), score?)));
    computed.extend(present.map(|(name, score)| (name, (score, Source::Computed))));
    computed
}

/// What a trace would be worth had our judge not been asked; `None` if it said nothing that has a weight, or if the documents' profile
/// adds up whatever there is.
pub(super) fn unasked(
    update: &TraceUpdate,
    signals: &Few<SignalName, (Quanta, Source)>,
    rules: &Rules,
) -> Option<Unasked> {
    let is_judged =
        |name: &str, source: Source| source == Source::Judge && rules.weights.contains_key(name);
    if rules.pandaprobe || !signals.iter().any(|(name, (_, source))| is_judged(name, *source)) {
        return None;
    }
    let judged = signals.get(CONFIDENCE).is_some_and(|(_, source)| *source == Source::Judge);
    let confidence = || signal::confidence::score(update.steps, update.wasted_steps);
    let confidence = if judged { confidence() } else { None };
    let rest = signals.iter().filter(|(_, (_, source))| *source != Source::Judge);
    let rest = rest.map(|(name, (score, _))| (name.as_ref(), *score));
    let rest = rest.chain(confidence.map(|score| (CONFIDENCE, score)));
    let TraceRisk { risk, uncertainty, .. } = TraceRisk::new(rest, &rules.weights);
    Some(Unasked { risk, uncertainty, confidence })
}

/// The outcome of a trace, if anybody speaks of one.
fn outcome(
    update: &TraceUpdate,
    of_session: Option<bool>,
    rules: &Rules,
) -> Option<(SignalName, (Quanta, Source))> {
    if rules.pandaprobe {
        return None;
    }
    let of_trace = told_outcome(&update.reported, update.attempt.as_deref());
    let judged = judged_outcome(&update.reported);
    let found = signal::outcome::score(of_trace, of_session, judged)?;
    Some((Cow::Borrowed(signal::outcome::NAME), found))
}

/// A name, not copied if it is that of a signal that is computed.
pub(super) fn named(name: &str) -> SignalName {
    let known = signal::SIGNALS.iter().find(|known| known.name == name);
    known.map_or_else(|| Cow::Owned(name.to_owned()), |known| Cow::Borrowed(known.name))
}

/// The score to believe of each name, and how many are no score: of two of one source the later
/// wins, then the greater (identifier, score).
fn reported(scores: &[ReportedScore]) -> (Few<SignalName, (Quanta, Source)>, u64) {
    let mut best: BTreeMap<&str, (Source, u64, &str, i64)> = BTreeMap::new();
    let mut malformed = 0;
    for score in scores {
        let source = match score.source.as_str() {
            "reported" => Source::Reported,
            "judge" => Source::Judge,
            _ => {
                malformed += 1;
                continue;
            }
        };
        if score.name.is_empty() || !(0..=Quanta::ONE).contains(&score.score_quanta) {
            malformed += 1;
            continue;
        }
        let rank = (source, score.time_unix_nano, score.identifier.as_str(), score.score_quanta);
        let held = best.entry(&score.name).or_insert(rank);
        *held = (*held).max(rank);
    }
    let best = best.into_iter();
    let best = best.map(|(name, (source, _, _, score))| (named(name), (Quanta(score), source)));
    (best.collect(), malformed)
}

/// The loop entry of a trace whose output repeats: which earlier one, the newest if several.
fn output_repeat(update: &TraceUpdate, earlier: &[Earlier<'_>]) -> Loop {
    let output = update.output_digest.as_ref();
    let likeness = |trace: &&Earlier<'_>| {
        loop_detection::score(&[trace.output], output).unwrap_or(Quanta(Quanta::ONE))
    };
    let repeated = earlier.iter().rev().min_by_key(likeness);
    let ids = repeated.map(|trace| trace.id).into_iter();
    Loop {
        kind: LoopKind::OutputRepeat,
        severity: Severity::Warning,
        count: 2,
        evidence: Evidence::Text,
        trace_ids: ids.chain([update.trace_id]).collect(),
        ..Loop::default()
    }
}

/// Signals that are computed or known by name, at most.
const COMPUTED: usize = 6;

fn four_decimal_quanta(score: Quanta) -> Quanta {
    Quanta::from_f64(four_decimals(score.to_f64())).unwrap_or(score)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::options::{EmptyScore, LoopOptions, Profile, SessionOptions};
    use crate::engine::update::Attempt;

    fn score(name: &str, source: &str, quanta: i64, time: u64) -> ReportedScore {
        ReportedScore {
            name: name.to_owned(),
            score_quanta: quanta,
            source: source.to_owned(),
            identifier: "judge-1".to_owned(),
            time_unix_nano: time,
            label: None,
            explanation: None,
            judge: None,
        }
    }

    #[test]
    fn somebody_elses_score_is_believed_over_our_judge_over_our_own() {
        let scores = [
            score("confidence", "judge", 7, 9),
            score("confidence", "reported", 5, 1),
            score("confidence", "reported", 4, 2),
            score("error", "judge", 3, 1),
            score("error", "rumour", 2, 1),
            score("error", "judge", -1, 1),
            score("error", "judge", Quanta::ONE + 1, 1),
        ];
        let update = TraceUpdate { reported: scores.into(), steps: 2, ..TraceUpdate::default() };
        let scored = Scored::new(
            &update,
            None,
            &[],
            None,
            &Rules::new(SessionOptions::default(), LoopOptions::default()),
        );
        assert_eq!(scored.signals["confidence"], (Quanta(4), Source::Reported));
        assert_eq!(scored.signals["error"], (Quanta(3), Source::Judge));
        assert_eq!(scored.signals["tool_loop"], (Quanta(Quanta::ONE), Source::Computed));
        assert_eq!(scored.malformed, 3);
    }

    #[test]
    fn an_outcome_is_a_signal_of_whoever_tells_it() {
        let rules = Rules::new(SessionOptions::default(), LoopOptions::default());
        let attempt = Attempt { success: Some(true), ..Attempt::default() };
        let scored = |reported: Vec<ReportedScore>, of_session: Option<bool>| {
            let attempt = Some(Box::new(attempt.clone()));
            let update = TraceUpdate { attempt, reported, ..TraceUpdate::default() };
            Scored::new(&update, None, &[], of_session, &rules)
        };
        let own = scored(Vec::new(), None);
        assert_eq!(own.signals["outcome"], (Quanta(Quanta::ONE), Source::Reported));
        assert!(!own.risk.is_flagged());
        let failed = scored(vec![score("outcome", "reported", Quanta::ONE / 2, 1)], None);
        assert_eq!(failed.signals["outcome"], (Quanta(0), Source::Reported));
        assert!(failed.risk.is_flagged());
        assert!(scored(Vec::new(), Some(false)).risk.is_flagged());
        let none = Scored::new(&TraceUpdate::default(), None, &[], None, &rules);
        assert!(!none.signals.contains_key("outcome"));
    }

    #[test]
    fn the_documents_profile_computes_only_loop_detection() {
        let options = SessionOptions { profile: Profile::Pandaprobe, ..SessionOptions::default() };
        let update = TraceUpdate { steps: 2, error: true, ..TraceUpdate::default() };
        let scored =
            Scored::new(&update, None, &[], None, &Rules::new(options, LoopOptions::default()));
        assert!(scored.signals.iter().map(|(name, _)| name).eq([loop_detection::NAME]));
    }

    #[test]
    fn an_output_that_did_not_arrive_is_absent_unless_the_empty_score_is_one() {
        let earlier = [Earlier { id: TraceId([1; 16]), output: None }];
        let mut options = SessionOptions::default();
        let update = TraceUpdate::default();
        let scored = Scored::new(
            &update,
            None,
            &earlier,
            None,
            &Rules::new(options.clone(), LoopOptions::default()),
        );
        assert!(!scored.signals.contains_key(loop_detection::NAME));
        options.empty_score = EmptyScore::One;
        let scored = Scored::new(
            &update,
            None,
            &earlier,
            None,
            &Rules::new(options.clone(), LoopOptions::default()),
        );
        assert_eq!(scored.signals[loop_detection::NAME].0, Quanta(Quanta::ONE));
    }
}
