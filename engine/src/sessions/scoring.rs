//! The signals of one trace, each from its most trusted source, and the resulting risk.

use std::array;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::record::{Course, TraceRecord};
use super::rules::{Rules, four_decimals};
use crate::facts::{Loop, OutputDigest, ReportedScore};
use crate::loops::{Evidence, LoopKind, Severity};
use crate::math::Quanta;
use crate::runs::{judged_outcome, reported_outcome};
use crate::score::risk::TraceRisk;
use crate::signal::loop_detection::{self, WINDOW};
use crate::signal::name::{CONFIDENCE, LOOP_DETECTION, OUTCOME};
use crate::signal::{self, Facts, SignalName};
use crate::small_map::SmallMap;
use crate::span::Source;

/// Signals by name.
pub(super) type Signals = SmallMap<SignalName, Signal>;

/// A signal of a trace.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub(super) struct Signal {
    /// The score.
    pub(super) score: Quanta,
    /// Who made it.
    pub(super) source: Source,
    /// Whether the trace's agent sums it; never while the trace is not done.
    pub(super) is_summed: bool,
}

/// The scores of a trace without the judge's.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub(super) struct UnjudgedScores {
    /// Its greatest weighted risk.
    pub(super) risk: Option<Quanta>,
    /// Its weighted uncertainty.
    pub(super) uncertainty: Option<Quanta>,
    /// The computed confidence, if the judge's replaces it.
    pub(super) confidence: Option<Quanta>,
}

/// The scores of a trace and, once it is done, its contribution to panes. Scores of agents use only what all traces have, so a
/// judged trace counts in them without the judge's scores; with these, it counts in the judged scores.
#[derive(Clone, Debug, Default, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub(super) struct TraceScores {
    /// Signals by name.
    pub(super) signals: Signals,
    /// The risk that follows from them.
    pub(super) risk: TraceRisk,
    /// Present if the trace is done and the judge gave a weighted score.
    pub(super) unasked: Option<Box<UnjudgedScores>>,
}

/// The result of scoring a trace.
#[derive(Clone, Debug, Default)]
pub(super) struct Scoring {
    /// The scores.
    pub(super) scored: TraceScores,
    /// The loop in which the output repeats that of an earlier trace; only if the trace is done.
    pub(super) output_repeat: Option<Loop>,
    /// The number of malformed reported scores.
    pub(super) malformed: u64,
}

impl Scoring {
    /// Scores a trace; `earlier` are the last few traces before it, oldest first, `of_session` is the outcome that was reported for
    /// its session or run if this is the last trace of it, and `signals` is an empty buffer for its signals.
    pub(super) fn new(
        trace: &TraceRecord,
        earlier: &[TraceRecord],
        of_session: Option<bool>,
        rules: &Rules,
        mut signals: Signals,
    ) -> Self {
        compute(&mut signals, trace, earlier, rules);
        let likeness = signals.get(&LOOP_DETECTION).map(|signal| signal.score);
        let (reported, malformed) = reported(&trace.rare().reported);
        signals.extend(reported);
        signals.extend(outcome(trace, of_session, rules));
        let risk = rules.risk(scores(&signals));
        let (mut unasked, mut output_repeat) = (None, None);
        if trace.is_done() {
            unasked = self::unasked(trace, &signals, rules).map(Box::new);
            let repeats = likeness.is_some_and(|score| score.to_f64() < rules.loop_threshold);
            output_repeat = repeats.then(|| self::output_repeat(trace, earlier));
        }
        Self { scored: TraceScores { signals, risk, unasked }, output_repeat, malformed }
    }
}

impl TraceScores {
    /// Marks the signals that the agent of a done trace sums: those with a weight, and others for which the agent has sums.
    pub(super) fn sum(&mut self, rules: &Rules, mut has_sums: impl FnMut(&str) -> bool) {
        for (name, signal) in self.signals.iter_mut() {
            signal.is_summed = rules.weight(name).is_some() || has_sums(name.as_str());
        }
    }

    /// Its risk without the judge's scores.
    pub(super) fn own_risk(&self) -> Option<Quanta> {
        self.unasked.as_ref().map_or(self.risk.risk, |unasked| unasked.risk)
    }

    /// Its weighted uncertainty without the judge's scores.
    pub(super) fn own_uncertainty(&self) -> Option<Quanta> {
        self.unasked.as_ref().map_or(self.risk.uncertainty, |unasked| unasked.uncertainty)
    }

    /// Its risk with the judge's scores; `None` if the judge was not asked, or gave no weighted score.
    pub(super) fn judged_risk(&self) -> Option<Quanta> {
        self.unasked.as_ref().and(self.risk.risk)
    }

    /// Its signals without the judge's scores.
    pub(super) fn own_signals(&self) -> Signals {
        let Some(unasked) = &self.unasked else { return self.signals.clone() };
        let own = self.signals.iter().filter(|(_, signal)| signal.source != Source::Judge);
        let own = own.map(|(name, signal)| (name.clone(), *signal));
        let confidence = unasked.confidence.map(|score| signal(score, Source::Computed));
        own.chain(confidence.map(|signal| (CONFIDENCE.clone(), signal))).collect()
    }

    /// The signals that have sums: computed and judged confidence are separate.
    pub(super) fn sums(&self) -> impl Iterator<Item = (&SignalName, Quanta)> {
        let computed = self.unasked.as_ref().and_then(|unasked| unasked.confidence);
        let summed = self.signals.iter().filter(|(_, signal)| signal.is_summed);
        let named = summed.map(move |(name, signal)| match computed {
            Some(_) if *name == CONFIDENCE => (&*JUDGED_CONFIDENCE, signal.score),
            Some(_) | None => (name, signal.score),
        });
        computed.map(|score| (&CONFIDENCE, score)).into_iter().chain(named)
    }

    /// Whether both contribute the same to panes.
    pub(super) fn adds_like(&self, other: &Self) -> bool {
        let risks = |scored: &Self| (scored.risk.risk, scored.risk.uncertainty);
        risks(self) == risks(other) && self.unasked == other.unasked && self.sums().eq(other.sums())
    }

    /// The computed signals alone, even if another score of the same name was reported.
    pub(super) fn own(
        &self,
        trace: &TraceRecord,
        earlier: &[TraceRecord],
        rules: &Rules,
    ) -> Cow<'_, Signals> {
        if self.signals.values().all(|signal| signal.source == Source::Computed) {
            return Cow::Borrowed(&self.signals);
        }
        let mut own = Signals::default();
        compute(&mut own, trace, earlier, rules);
        Cow::Owned(own)
    }
}

/// The scores of signals by name.
pub(super) fn scores(signals: &Signals) -> impl Iterator<Item = (&SignalName, Quanta)> {
    signals.iter().map(|(name, signal)| (name, signal.score))
}

/// A signal that no agent sums yet.
fn signal(score: Quanta, source: Source) -> Signal {
    Signal { score, source, is_summed: false }
}

/// Adds the signals that are computed.
fn compute(signals: &mut Signals, trace: &TraceRecord, earlier: &[TraceRecord], rules: &Rules) {
    let outputs = array::from_fn::<_, WINDOW, _>(|at| earlier.get(at)?.output());
    let facts = facts(trace, &outputs[..earlier.len()], rules);
    signals.reserve(COMPUTED);
    signals.extend((0..).zip(signal::SIGNALS).filter_map(|(at, known)| {
        let by = known.computed.filter(|by| by.in_documents || !rules.pandaprobe)?;
        let score = (by.score)(&facts)?;
        let score = if rules.pandaprobe { four_decimal_quanta(score) } else { score };
        Some((SignalName::Ours(at), signal(score, Source::Computed)))
    }));
}

/// The facts from which signals of a trace are computed; `earlier` are the outputs of the traces before it.
pub(super) fn facts<'a>(
    trace: &'a TraceRecord,
    earlier: &'a [Option<&'a OutputDigest>],
    rules: &Rules,
) -> Facts<'a> {
    let Course { error, steps, wasted_steps, .. } = *trace.course;
    Facts {
        error,
        steps,
        wasted_steps,
        tool_calls: trace.course.told_calls(),
        loops: trace.loop_severity(),
        output: trace.output(),
        earlier,
        coherence: trace.rare().coherence,
        empty: rules.empty_is_one.then_some(Quanta(Quanta::ONE)),
    }
}

/// The scores of a trace without the judge's; `None` if the judge gave no weighted score, or if the documents' profile adds up all
/// signals.
fn unasked(trace: &TraceRecord, signals: &Signals, rules: &Rules) -> Option<UnjudgedScores> {
    let is_judged = |(name, signal): (&SignalName, &Signal)| {
        signal.source == Source::Judge && rules.weight(name).is_some()
    };
    if rules.pandaprobe || !signals.iter().any(is_judged) {
        return None;
    }
    let judged = signals.get(&CONFIDENCE).is_some_and(|signal| signal.source == Source::Judge);
    let Course { steps, wasted_steps, .. } = &*trace.course;
    let confidence = || signal::confidence::score(*steps, *wasted_steps);
    let confidence = if judged { confidence() } else { None };
    let rest = signals.iter().filter(|(_, signal)| signal.source != Source::Judge);
    let rest = rest.map(|(name, signal)| (name, signal.score));
    let rest = rest.chain(confidence.map(|score| (&CONFIDENCE, score)));
    let TraceRisk { risk, uncertainty, .. } = rules.risk(rest);
    Some(UnjudgedScores { risk, uncertainty, confidence })
}

/// The outcome signal of a trace, if an outcome is known.
fn outcome(
    trace: &TraceRecord,
    of_session: Option<bool>,
    rules: &Rules,
) -> Option<(SignalName, Signal)> {
    if rules.pandaprobe {
        return None;
    }
    let rare = trace.rare();
    let of_trace = reported_outcome(&rare.reported, rare.attempt.as_deref());
    let judged = judged_outcome(&rare.reported);
    let (score, source) = signal::outcome::score(of_trace, of_session, judged)?;
    Some((OUTCOME.clone(), signal(score, source)))
}

/// The reported score for each name from its most trusted source, and the number of malformed ones: of two from one source the
/// later wins, then the greater (identifier, score).
fn reported(scores: &[ReportedScore]) -> (Signals, u64) {
    let mut best: BTreeMap<&str, (Source, u64, &str, i64)> = BTreeMap::new();
    let mut malformed = 0;
    for score in scores {
        if score.name.is_empty() || !(0..=Quanta::ONE).contains(&score.score_quanta) {
            malformed += 1;
            continue;
        }
        let rank =
            (score.source, score.time_unix_nano, score.identifier.as_str(), score.score_quanta);
        let held = best.entry(&score.name).or_insert(rank);
        *held = (*held).max(rank);
    }
    let best = best.into_iter();
    let best =
        best.map(|(name, (source, _, _, score))| (name.into(), signal(Quanta(score), source)));
    (best.collect(), malformed)
}

/// The loop of a trace whose output repeats: with the newest of the earlier traces that it repeats.
fn output_repeat(trace: &TraceRecord, earlier: &[TraceRecord]) -> Loop {
    let output = trace.output();
    let likeness = |before: &&TraceRecord| {
        loop_detection::score(&[before.output()], output).unwrap_or(Quanta(Quanta::ONE))
    };
    let repeated = earlier.iter().rev().min_by_key(likeness);
    let ids = repeated.map(|before| before.id).into_iter();
    Loop {
        kind: LoopKind::OutputRepeat,
        severity: Severity::Warning,
        count: 2,
        evidence: Evidence::Text,
        trace_ids: ids.chain([trace.id]).collect(),
        ..Loop::default()
    }
}

/// Most signals that are computed or known by name.
const COMPUTED: usize = 7;

/// The name of the judge's confidence if another one is computed.
static JUDGED_CONFIDENCE: LazyLock<SignalName> =
    LazyLock::new(|| SignalName::from("judged_confidence"));

fn four_decimal_quanta(score: Quanta) -> Quanta {
    Quanta::from_f64(four_decimals(score.to_f64())).unwrap_or(score)
}

#[cfg(test)]
mod tests {
    use super::super::common::Common;
    use super::*;
    use crate::facts::{AgentKey, TraceFacts};
    use crate::options::{EmptyScore, LoopOptions, Profile, SessionOptions};
    use crate::span::Attempt;

    fn score(name: &str, source: Source, quanta: i64, time: u64) -> ReportedScore {
        ReportedScore {
            name: name.to_owned(),
            score_quanta: quanta,
            source,
            identifier: "judge-1".to_owned(),
            time_unix_nano: time,
            label: None,
            success: None,
            explanation: None,
            judge: None,
        }
    }

    fn scoring(
        update: TraceFacts,
        earlier: &[TraceRecord],
        of_session: Option<bool>,
        rules: &Rules,
    ) -> Scoring {
        let trace = TraceRecord::new(
            Box::new(update),
            AgentKey::overflow(),
            "".into(),
            &mut Common::default(),
        );
        Scoring::new(&trace, earlier, of_session, rules, Signals::default())
    }

    #[test]
    fn somebody_elses_score_is_believed_over_our_judge_over_our_own() {
        let scores = [
            score("confidence", Source::Judge, 7, 9),
            score("confidence", Source::Reported, 5, 1),
            score("confidence", Source::Reported, 4, 2),
            score("error", Source::Judge, 3, 1),
            score("error", Source::Judge, -1, 1),
            score("error", Source::Judge, Quanta::ONE + 1, 1),
        ];
        let update = TraceFacts { reported: scores.into(), steps: 2, ..TraceFacts::default() };
        let rules = Rules::new(SessionOptions::default(), LoopOptions::default());
        let Scoring { scored, malformed, .. } = scoring(update, &[], None, &rules);
        assert_eq!(scored.signals[&CONFIDENCE], signal(Quanta(4), Source::Reported));
        assert_eq!(scored.signals[&"error".into()], signal(Quanta(3), Source::Judge));
        assert_eq!(
            scored.signals[&"tool_loop".into()],
            signal(Quanta(Quanta::ONE), Source::Computed)
        );
        assert_eq!(malformed, 2);
    }

    #[test]
    fn an_outcome_is_a_signal_of_whoever_tells_it() {
        let rules = Rules::new(SessionOptions::default(), LoopOptions::default());
        let attempt = Attempt { success: Some(true), ..Attempt::default() };
        let scored = |reported: Vec<ReportedScore>, of_session: Option<bool>| {
            let attempt = Some(Box::new(attempt.clone()));
            let update = TraceFacts { attempt, reported, ..TraceFacts::default() };
            scoring(update, &[], of_session, &rules).scored
        };
        let own = scored(Vec::new(), None);
        assert_eq!(own.signals[&OUTCOME], signal(Quanta(Quanta::ONE), Source::Reported));
        assert!(!own.risk.is_flagged());
        let failed = scored(vec![score("outcome", Source::Reported, Quanta::ONE / 2, 1)], None);
        assert_eq!(failed.signals[&OUTCOME], signal(Quanta(0), Source::Reported));
        assert!(failed.risk.is_flagged());
        assert!(scored(Vec::new(), Some(false)).risk.is_flagged());
        let none = scoring(TraceFacts::default(), &[], None, &rules).scored;
        assert!(!none.signals.contains_key(&OUTCOME));
    }

    #[test]
    fn the_documents_profile_computes_only_loop_detection() {
        let options = SessionOptions { profile: Profile::Pandaprobe, ..SessionOptions::default() };
        let update = TraceFacts { steps: 2, error: true, ..TraceFacts::default() };
        let rules = Rules::new(options, LoopOptions::default());
        let scored = scoring(update, &[], None, &rules).scored;
        assert!(scored.signals.iter().map(|(name, _)| name).eq([&LOOP_DETECTION]));
    }

    #[test]
    fn an_output_that_did_not_arrive_is_absent_unless_the_empty_score_is_one() {
        let earlier = [TraceRecord::new(
            Box::default(),
            AgentKey::overflow(),
            "".into(),
            &mut Common::default(),
        )];
        let mut options = SessionOptions::default();
        let rules = Rules::new(options.clone(), LoopOptions::default());
        let scored = scoring(TraceFacts::default(), &earlier, None, &rules).scored;
        assert!(!scored.signals.contains_key(&LOOP_DETECTION));
        options.empty_score = EmptyScore::One;
        let rules = Rules::new(options.clone(), LoopOptions::default());
        let scored = scoring(TraceFacts::default(), &earlier, None, &rules).scored;
        assert_eq!(scored.signals[&LOOP_DETECTION].score, Quanta(Quanta::ONE));
    }
}
