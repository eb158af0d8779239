//! One agent version under watch: a detector for each stream, and examples that show people where to look.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::gaps::Gaps;
use super::stream::{PREDICTED, STREAMS, Stream, Value};
use super::{ArrivedTrace, GOES_ON};
use crate::detect::{Against, Detector, DropLimits, DropState, InSession, Observation, Severity};
use crate::drift::sequential::MeanSequence;
use crate::facts::{AgentKey, DoneTrace, Effort, ScopedId};
use crate::predict::learner::Learner;
use crate::predict::spread::Spread;
use crate::saved;
use crate::span::Timestamp;
use crate::time::WallShift;
use crate::view::{DropFoundView, DropView, SessionName};

/// One agent version.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct AgentWatch {
    pub(super) streams: Streams,
    /// The version that was the latest when this one began.
    pub(super) before: Option<Arc<str>>,
    /// Whether it takes nothing over from the version before, as whatever level it has is usual.
    pub(super) starts_fresh: bool,
    /// The gaps between its own traces.
    pub(super) gaps: Gaps,
    /// Efforts of its usual traces: those that arrived while a stream of efforts was in a drop are left out.
    pub(super) usual: Spread,
    /// The model of failures that is learned from outcomes of its traces.
    pub(super) learner: Learner,
    /// Values of 1 - risk, for comparison with other versions.
    pub(super) level: MeanSequence,
    /// When a trace or an outcome of it was last counted.
    pub(super) told: Timestamp,
}

/// The streams of an agent version that have had a value, in the order of [`STREAMS`]; serialised by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Streams(pub(super) Box<[Option<StreamWatch>; STREAMS.len()]>);

/// One stream of an agent version.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct StreamWatch {
    pub(super) detector: Detector,
    /// Whether its baseline is that of the version before, as it has no past of its own yet, and no drop began with that version.
    pub(super) inherited: bool,
    /// The time of the first value; zero: its level was accepted, and evidence of earlier versions says nothing about it.
    began: Timestamp,
    /// The time of the last value.
    pub(super) last: Timestamp,
    // The session of the last value, hashed.
    session: Option<u64>,
    // The latest failures.
    failures: VecDeque<Failure>,
    /// Where to look; present while there is a drop or a warning of one.
    pub(super) example: Option<Example>,
    /// The drop of an earlier version that continues in this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    carried: Option<Box<Carried>>,
}

/// A drop of an earlier version that continues in this one. That version shows it; this one decides by its own values when it is
/// over, and until then is compared with the level of the drop.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Carried {
    /// The version that shows it.
    version: Arc<str>,
    /// The drop, with the past before it.
    detector: Detector,
    /// Since when it seems to be over.
    better: Option<Timestamp>,
}

/// A trace that failed.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Failure {
    at: Timestamp,
    cause: Cause,
    /// The kind of error; empty: not known.
    error_type: String,
    session: ScopedId,
    /// Its session, hashed, until a value of that session is good again.
    failing: Option<u64>,
    /// Its number in a row of failures of its session.
    in_a_row: usize,
}

/// The cause of a failure.
#[derive(Clone, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(super) struct Cause {
    /// The computed signal with the greatest risk; empty: none has any.
    pub(super) signal: Cow<'static, str>,
    /// The tool that failed or loops; empty: none.
    pub(super) tool: String,
}

/// The cause of most failures when the drop was found, and sessions that failed by it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Example {
    pub(super) cause: Cause,
    /// The kind of error of more than half of the failures with that cause; empty: none.
    pub(super) error_type: String,
    /// At most two sessions. They stay as long as the drop, so that a page and its links do not change.
    pub(super) sessions: Vec<ScopedId>,
}

impl AgentWatch {
    /// Counts a trace's arrival, its outcome, and its effort unless a stream of efforts is in a drop.
    pub(super) fn count(&mut self, at: Timestamp, trace: &DoneTrace, memory: Duration) {
        self.told = self.told.max(at);
        if trace.is_first() {
            self.gaps.observe(Timestamp(trace.touched_unix_nano), memory);
        }
        let Some(effort) = &trace.effort else { return };
        let rises = |(stream, watched): (&Stream, &StreamWatch)| stream.ranks() && watched.drops();
        if trace.is_first() && !self.streams.iter().any(rises) {
            self.usual.add(Timestamp(trace.start_unix_nano), effort);
        }
        if let Some(failed) = trace.outcome_failed {
            self.learn(effort, failed);
        }
    }

    /// Learns from a trace's outcome while the stream of predictions is quiet.
    fn learn(&mut self, effort: &Effort, failed: bool) {
        let mut watched = self.streams.get_mut(PREDICTED);
        let detector = watched.as_ref().map(|watched| &watched.detector);
        let carries = watched.as_ref().is_some_and(|watched| watched.carried.is_some());
        let is_settled = !carries && detector.is_none_or(Detector::is_settled);
        if !carries && detector.is_none_or(|detector| detector.severity() == Severity::Quiet) {
            self.learner.learn(effort, &self.usual, failed);
        }
        if is_settled && self.learner.renew() {
            watched.iter_mut().for_each(|watched| watched.detector.forget_predictions());
        }
    }

    /// The silent streams that are in a drop or a warning.
    pub(super) fn shown_and_silent(&self, newest: Timestamp) -> impl Iterator<Item = &'static str> {
        let shown = self.streams.iter().filter(|(_, watched)| watched.is_shown());
        shown.filter(move |(_, watched)| self.is_silent(watched, newest)).map(|(of, _)| of.name)
    }

    /// Whether the drop of that version's stream continues in this one, which still has values.
    pub(super) fn carries_on(&self, version: &str, stream: &str, newest: Timestamp) -> bool {
        self.streams
            .get(stream)
            .is_some_and(|watched| watched.carries_on(version) && !self.is_silent(watched, newest))
    }

    /// Whether a stream, and its whole version, has been silent for a day and for longer than is usual for the version: a version
    /// that works on workdays, once a week or seldom is not replaced while it rests, nor one whose outcomes are reported once a
    /// week.
    fn is_silent(&self, watched: &StreamWatch, newest: Timestamp) -> bool {
        let usual = self.gaps.usual().map_or(GOES_ON, Duration::from_secs_f64);
        watched.last.max(self.gaps.last()).after(usual.clamp(GOES_ON, RESTS)) < newest
    }

    /// The version before this one, if this one takes something over from it.
    pub(super) fn predecessor(&self, agent: &AgentKey) -> Option<AgentKey> {
        if self.starts_fresh { None } else { super::before(agent, self) }
    }

    /// Makes the level from here on the usual one; for a stream in a drop, the level since the drop began.
    pub(super) fn renew(&mut self, at: Timestamp) {
        for (stream, watched) in self.streams.iter_mut() {
            // Ranks among formerly usual traces say nothing about ranks among future ones.
            if stream.ranks() || !watched.accept(at) {
                watched.renew();
            }
        }
        (self.starts_fresh, self.usual) = (true, Spread::default());
    }
}

impl Streams {
    /// All streams that have had a value.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static Stream, &StreamWatch)> {
        STREAMS.iter().zip(&*self.0).filter_map(|(stream, held)| Some((stream, held.as_ref()?)))
    }

    /// All streams that have had a value, mutable.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&'static Stream, &mut StreamWatch)> {
        let all = STREAMS.iter().zip(&mut *self.0);
        all.filter_map(|(stream, held)| Some((stream, held.as_mut()?)))
    }

    /// The stream of this name.
    pub(super) fn get(&self, name: &str) -> Option<&StreamWatch> {
        self.iter().find(|(stream, _)| stream.name == name).map(|(_, watched)| watched)
    }

    /// The stream of this name, mutable.
    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut StreamWatch> {
        self.iter_mut().find(|(stream, _)| stream.name == name).map(|(_, watched)| watched)
    }
}

impl Serialize for Streams {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let named: BTreeMap<_, _> = self.iter().map(|(stream, held)| (stream.name, held)).collect();
        named.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Streams {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut named = saved::by_name(from)?;
        let mut streams = Self::default();
        for (stream, held) in STREAMS.iter().zip(&mut *streams.0) {
            *held = named.remove(stream.name);
        }
        Ok(streams)
    }
}

impl StreamWatch {
    /// Adds the next value. A time before that of the last one counts as the same time: the trace arrived late, or the wall clock
    /// was set forward while it was running.
    pub(super) fn observe(
        &mut self,
        stream: &Stream,
        value: Value,
        told: &ArrivedTrace,
        limits: &DropLimits,
    ) {
        let (at, trace) = (told.at.max(self.last), &told.trace);
        let cause = || Cause::of(stream, trace);
        let session = self.in_session(told.session, value.bad);
        if value.bad {
            let error_type = if stream.ranks() { String::new() } else { trace.error_type.clone() };
            self.failures.push_back(Failure {
                at,
                cause: cause(),
                error_type,
                session: trace.session.clone(),
                failing: told.session,
                in_a_row: session.failed + 1,
            });
            if self.failures.len() > FAILURES {
                self.failures.pop_front();
            }
        }
        let found = self.take(at, value.observation.within(session), limits);
        self.last = at;
        self.inherited &= !self.detector.has_own_past();
        match found {
            Some(Severity::Warning | Severity::Critical) => self.example = self.find(limits),
            Some(Severity::Quiet) => self.example = None,
            Some(Severity::Recovering) | None if value.bad => self.find_another(&cause(), trace),
            Some(Severity::Recovering) | None => {}
        }
    }

    /// Adds a value to the detector and to the drop that continues here; returns the severity if that changed.
    fn take(&mut self, at: Timestamp, value: Observation, limits: &DropLimits) -> Option<Severity> {
        let before = self.detector.severity();
        self.detector.observe(at, value, limits);
        if let Some(carried) = &mut self.carried {
            carried.observe(at, value, limits);
        }
        let severity = self.detector.severity();
        (severity != before).then_some(severity)
    }

    /// The version that shows the drop that continues in this one.
    pub(super) fn carried_from(&self) -> Option<&Arc<str>> {
        self.carried.as_ref().map(|carried| &carried.version)
    }

    /// Ends the continuation of a drop that is over by this version's values; returns since when it seemed so.
    pub(super) fn end_carried(&mut self) -> Option<Timestamp> {
        let over = |carried: &mut Box<Carried>| carried.detector.severity() == Severity::Quiet;
        let carried = self.carried.take_if(over)?;
        (self.detector, self.example) = (carried.detector, None);
        carried.better
    }

    /// Notes that the version that showed the drop no longer does: from here on this one is compared with the past before the drop.
    pub(super) fn show_itself(&mut self) {
        let Some(carried) = self.carried.take() else { return };
        let has_own = self.detector.severity() == Severity::Critical;
        self.detector = carried.detector;
        if !has_own && self.detector.severity() == Severity::Critical {
            self.detector.end();
        }
    }

    /// Makes the level of that version's drop the usual one, if the drop continues in this one.
    pub(super) fn accept_carried_from(&mut self, version: &Arc<str>) {
        self.carried.take_if(|carried| carried.version == *version);
    }

    /// Whether the drop of that version continues in this one.
    fn carries_on(&self, version: &str) -> bool {
        self.carried.as_ref().is_some_and(|carried| {
            &*carried.version == version && carried.detector.severity() == Severity::Critical
        })
    }

    /// The stream of the next version of the agent, compared with the past of this one or, while this one is in a drop, with the
    /// level of that; `own` is this version.
    pub(super) fn successor(&mut self, own: &Arc<str>, limits: &DropLimits) -> Self {
        let inherited = !self.detector.has_evidence(limits);
        let is_own = self.detector.severity() == Severity::Critical;
        let carried = match &self.carried {
            Some(carried) if is_own => {
                Some(Carried { version: Arc::clone(own), ..(**carried).clone() })
            }
            Some(carried) => Some((**carried).clone()),
            None if is_own => {
                let detector = self.detector.continued();
                Some(Carried { version: Arc::clone(own), detector, better: None })
            }
            None => None,
        };
        let mut detector = self.detector.successor(limits);
        if is_own {
            detector.accept_drop_of(&self.detector, self.last);
        }
        Self {
            detector,
            inherited,
            carried: carried.map(Box::new),
            session: self.session,
            failures: self.failures.clone(),
            ..Self::default()
        }
    }

    /// Begins with a value of this time.
    pub(super) fn begin_at(self, began: Timestamp) -> Self {
        Self { began, ..self }
    }

    /// Whether an earlier version kept evidence for nothing: it has had no value since this one began, and this one is in no drop.
    pub(super) fn has_outlived(&self, earlier: &Self) -> bool {
        let is_in_none = matches!(self.detector.severity(), Severity::Quiet | Severity::Warning);
        is_in_none && self.carried.is_none() && earlier.last < self.began
    }

    /// Takes over the evidence that an earlier version kept; a drop to which that adds is not this version's fault.
    pub(super) fn take_over(&mut self, earlier: &mut Self, limits: &DropLimits) {
        self.inherited &= !earlier.detector.has_evidence(limits);
        self.detector.take_over(&mut earlier.detector);
    }

    /// The position of the next value in its session.
    pub(super) fn in_session(&mut self, session: Option<u64>, is_bad: bool) -> InSession {
        let is_change = session.is_none() || session != self.session;
        self.session = session;
        let mut failed = 0;
        for failure in self.failures.iter_mut().filter(|failure| failure.failing.is_some()) {
            if failure.failing == session {
                failed = failed.max(failure.in_a_row);
                failure.failing = session.filter(|_| is_bad);
            }
        }
        InSession { failed, is_change }
    }

    /// The view of the stream; `before` is the version before, if the level is compared with that version's past.
    pub(super) fn view(
        &self,
        stream: &'static Stream,
        limits: &DropLimits,
        before: Option<String>,
        shift: WallShift,
    ) -> DropView {
        let state = self.state(stream, limits);
        let example = self.example.clone().unwrap_or_default();
        let named = |name: String| Some(name).filter(|name| !name.is_empty());
        DropView {
            stream: stream.name,
            pages: stream.pages,
            severity: match state.severity {
                Severity::Quiet => "quiet",
                Severity::Recovering => "recovering",
                Severity::Warning => "warning",
                Severity::Critical => "critical",
            },
            against: match (state.against, &before) {
                (Against::Objective, _) => "objective",
                (Against::Past, None) => "past",
                (Against::Past, Some(_)) => "version_before",
            },
            version_before: before,
            usual: state.usual,
            evidence: state.evidence,
            drop: state.drop.map(|drop| DropFoundView {
                since_unix_nano: shift.wall(drop.since).0.to_string(),
                from: drop.from,
                to: drop.to,
                traces: drop.traces,
                confidence: drop.confidence,
                signal: named(example.cause.signal.into_owned()),
                tool: named(example.cause.tool),
                error_type: named(example.error_type),
                sessions: example.sessions.into_iter().map(SessionName::from).collect(),
            }),
        }
    }

    /// Its state; a stream that does not page is at most a warning.
    fn state(&self, stream: &Stream, limits: &DropLimits) -> DropState {
        let mut state = self.detector.state(limits);
        if let Some(carried) = self.carried.as_ref().filter(|_| state.drop.is_none()) {
            state.usual = carried.detector.state(limits).usual;
        }
        let most = if stream.pages { Severity::Critical } else { Severity::Warning };
        DropState { severity: state.severity.min(most), ..state }
    }

    /// Whether it is in a drop, possibly one that continues from an earlier version, or in a warning.
    pub(super) fn drops(&self) -> bool {
        let carried = self.carried.as_ref().map(|carried| carried.detector.severity());
        self.detector.severity().max(carried.unwrap_or_default()) >= Severity::Warning
    }

    /// Whether it is in a drop, recovering from one, or in a warning.
    fn is_shown(&self) -> bool {
        self.detector.severity() != Severity::Quiet || self.carried.is_some()
    }

    /// Whether it shows a drop, which may continue in other versions.
    pub(super) fn is_critical(&self) -> bool {
        self.detector.severity() == Severity::Critical
    }

    /// Ends a drop, or a warning of one, and keeps the past.
    pub(super) fn end(&mut self) {
        if let Some(carried) = self.carried.take() {
            self.detector = carried.detector;
        }
        self.detector.end();
        self.example = None;
    }

    /// Whether its level is compared with the past of the version before.
    pub(super) fn is_held_against_the_version_before(&self, limits: &DropLimits) -> bool {
        self.inherited && self.detector.state(limits).against == Against::Past
    }

    /// Accepts the level since the drop began as the usual one; returns whether there was a drop, or a warning of one.
    pub(super) fn accept(&mut self, at: Timestamp) -> bool {
        let accepted = self.detector.accept(at) | self.carried.take().is_some();
        if accepted {
            (self.inherited, self.example) = (false, None);
            self.began = Timestamp::default();
        }
        accepted
    }

    /// Forgets the past and all evidence.
    fn renew(&mut self) {
        self.detector.reset();
        (self.inherited, self.example, self.carried) = (false, None, None);
    }

    /// The cause of most failures since the drop began, and the latest sessions that failed by it.
    fn find(&self, limits: &DropLimits) -> Option<Example> {
        let since = self.detector.state(limits).drop?.since;
        let failures = || self.failures.iter().rev().filter(|failure| failure.at >= since);
        let (cause, count) = most(failures().map(|failure| &failure.cause))?;
        let of_cause = failures().filter(|failure| failure.cause == *cause);
        let (error_type, alike) = most(of_cause.map(|failure| &failure.error_type))?;
        let error_type = if alike * 2 > count { error_type.clone() } else { String::new() };
        let mut example = Example { cause: cause.clone(), error_type, sessions: Vec::new() };
        failures().for_each(|failure| example.add(&failure.cause, &failure.session));
        Some(example)
    }

    /// Adds a trace's session to the example, if that has room and the same cause.
    fn find_another(&mut self, cause: &Cause, trace: &DoneTrace) {
        if let Some(example) = &mut self.example {
            example.add(cause, &trace.session);
        }
    }
}

impl Carried {
    fn observe(&mut self, at: Timestamp, value: Observation, limits: &DropLimits) {
        match self.detector.observe(at, value, limits) {
            Some(Severity::Critical) => self.better = None,
            Some(Severity::Recovering | Severity::Quiet) => self.better = self.better.or(Some(at)),
            Some(Severity::Warning) | None => {}
        }
    }
}

impl Cause {
    /// The cause of a trace's failure; none in a stream of ranks, as slow or costly traces need not fail.
    fn of(stream: &Stream, trace: &DoneTrace) -> Self {
        if stream.ranks() {
            return Self::default();
        }
        Self { signal: trace.signal.clone(), tool: trace.tool.clone() }
    }
}

impl Example {
    fn add(&mut self, cause: &Cause, session: &ScopedId) {
        let known = self.sessions.iter().any(|held| held == session);
        if self.sessions.len() < SESSIONS
            && *cause == self.cause
            && !known
            && !session.id.is_empty()
        {
            self.sessions.push(session.clone());
        }
    }
}

/// The most frequent value, and its count; of equals the greatest.
fn most<T: Ord>(values: impl Iterator<Item = T>) -> Option<(T, usize)> {
    let mut counts: BTreeMap<T, usize> = BTreeMap::new();
    values.for_each(|value| *counts.entry(value).or_default() += 1);
    counts.into_iter().max_by_key(|(_, count)| *count)
}

/// How long a version that usually rests may rest without being replaced: a weekly job may be a day late.
const RESTS: Duration = Duration::from_secs(8 * 86_400);

/// Most failures from which the cause of a drop is found.
const FAILURES: usize = 16;

/// Most sessions of an example.
const SESSIONS: usize = 2;
