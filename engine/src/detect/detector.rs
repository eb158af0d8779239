//! The detector of one stream: from values to states.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::baseline::{Baseline, Pending, Recent, SequencePosition, ValueSum, cell_within};
use super::budget::{Budget, days};
use super::chances::{Predicted, odds_ratio};
use super::evidence::{Evidence, Mark, Ratios, Starts};
use super::hours::{Hours, Noted};
use super::options::DropLimits;
use super::recovery::{Levels, MOST_DAYS, Recovery};
use super::recurrence::Recurrence;
use crate::span::Timestamp;

/// The detector of one stream of an agent version: it watches for a rise of the level, which is bad.
///
/// Apart from its decisions, its state does not depend on [`DropLimits`]: evidence is in days, and limits are passed with each value.
/// Serialisation is lossless.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Detector {
    // By the values alone; a recurring drop stays critical for longer.
    severity: Severity,
    budget: Budget,
    baseline: Baseline,
    pending: Pending,
    recent: Recent,
    // Recomputed only when the baseline changes.
    nulls: Option<Nulls>,
    /// Evidence against the usual level.
    changed: Evidence,
    /// Evidence against the worst level that is tolerated.
    intolerable: Evidence,
    starts: Starts,
    recovery: Recovery,
    incident: Option<Incident>,
    // Only for a drop that left critical not long ago.
    #[serde(skip_serializing_if = "Option::is_none")]
    over: Option<Box<Recurrence<Incident>>>,
    // Only for a stream that had a drop.
    #[serde(skip_serializing_if = "Option::is_none")]
    hours: Option<Box<Hours>>,
    // Only for a stream of outcomes that has predictions.
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted: Option<Box<Predicted>>,
}

/// One value of a stream: in `[0,1]`, higher is worse.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observation {
    value: f64,
    kind: Kind,
    session: InSession,
}

/// The position of a value in its session.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InSession {
    /// How many earlier values of the session were bad, since its last good one.
    pub failed: usize,
    /// Whether the previous value, of whatever session, belongs to another session.
    pub is_change: bool,
}

/// The kind of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// A verdict, or a measure.
    Plain,
    /// The probability that a run without a known outcome failed.
    Chance,
    /// The outcome of a run, and the earlier probability for the run.
    Outcome(Option<EarlierChance>),
}

/// The probability that a run failed; the outcome replaces it, as far as evidence contains it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EarlierChance {
    /// The chance, in `[0,1]`.
    pub chance: f64,
    /// When the run began.
    pub began: Timestamp,
}

/// How bad a stream is.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// As usual.
    #[default]
    Quiet,
    /// After a drop: much evidence says that it is over, and more is needed.
    Recovering,
    /// Some evidence of a drop; chance alone causes ten times as many warnings as pages.
    Warning,
    /// A drop.
    Critical,
}

/// What the level of a stream is compared with.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Against {
    /// The objective, as there is no past yet.
    Objective,
    /// The agent's own past.
    Past,
}

/// The state of a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DropState {
    /// How bad it is.
    pub severity: Severity,
    /// What its level is compared with.
    pub against: Against,
    /// The usual level, or the level of the objective, in `[0,1]`.
    pub usual: f64,
    /// Evidence of a drop, divided by that of a page: 1 or more is a page.
    pub evidence: f64,
    /// The drop, or a possible one; `None` while the stream is quiet, and for a warning that fades.
    pub drop: Option<DropFound>,
}

/// A drop, or a possible one.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct DropFound {
    /// When its first value arrived, as estimated.
    pub since: Timestamp,
    /// The level before, in `[0,1]`.
    pub from: f64,
    /// The mean since it began or relapsed, in `[0,1]`; without the good values at its end once it recovers.
    pub to: f64,
    /// The number of values in that mean.
    pub traces: u64,
    /// How likely it is that the level really left what is tolerated, in `[0,1]`, if the level of a stream does so once a month.
    pub confidence: f64,
}

/// The greatest means that a stream may have if nothing has changed.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
struct Nulls {
    /// The usual level plus its standard error.
    usual: f64,
    /// The worst level that is tolerated.
    tolerated: f64,
}

/// A drop that paged.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
struct Incident {
    since: Timestamp,
    paged: Timestamp,
    from: f64,
    values: ValueSum,
    /// How many values merely repeat an earlier failure of their session: all such values if sessions alternate, none if there is
    /// only one session.
    repeats: f64,
    one_session: OneSession,
    confidence: f64,
    /// The weight of evidence of a recovery: 1, and a tenth of it after each relapse, so that a level that does not settle needs
    /// more and more evidence of a recovery and of a relapse.
    trust: f64,
}

/// Whether a drop is of one session that fails to its end, judging by its values since the page: no other session fails, and no
/// later value of this session is good. An outage that ends within a session, or continues in the next one, does not count.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
struct OneSession {
    /// By all values so far.
    so_far: bool,
    /// By those before the good ones at its end, and the first of these.
    until_good: bool,
    /// How many values come after another failure of their session.
    within: u64,
}

/// A value as it is counted.
#[derive(Clone, Copy)]
struct Counted {
    at: Timestamp,
    /// The days that it spends.
    seed: f64,
    /// The value over the greatest means of no change, given what came before.
    ratios: Ratios,
    winnable: Winnable,
    /// The first of the bets that it spends time on.
    first_bet: usize,
    /// Whether the hour is usually worse than is tolerated: its values do not change what is usual at other hours.
    is_bad_hour: bool,
    kind: CountedKind,
}

/// Which bets can win: bets on more than the greatest possible value cannot, and no time is spent on them.
#[derive(Clone, Copy)]
struct Winnable {
    usual: bool,
    tolerated: bool,
}

/// The kind of a value as it is counted.
#[derive(Clone, Copy)]
enum CountedKind {
    /// A value.
    Value(f64, SequencePosition),
    /// A chance.
    Chance(f64),
    /// An outcome, and the ratios of its run's chance if that was counted.
    Outcome(f64, SequencePosition, Option<Ratios>),
}

impl Observation {
    /// A value in `[0,1]`, higher is worse; `None` for any other, and for NaN.
    pub fn level(value: f64) -> Option<Self> {
        (0.0..=1.0).contains(&value).then_some(Self { value, ..Self::verdict(false) })
    }

    /// A verdict: 1 if it failed, else 0.
    pub fn verdict(failed: bool) -> Self {
        let session = InSession { failed: 0, is_change: true };
        Self { value: f64::from(u8::from(failed)), kind: Kind::Plain, session }
    }

    /// The probability that a run without a known outcome failed, in `[0,1]`; `None` for any other number, and for NaN. It belongs
    /// in a stream of [outcomes](Self::outcome).
    pub fn chance(chance: f64) -> Option<Self> {
        Some(Self { kind: Kind::Chance, ..Self::level(chance)? })
    }

    /// The outcome of a run, in a stream that has probabilities for other runs; `earlier` is the run's own, if the run was done
    /// before.
    pub fn outcome(failed: bool, earlier: Option<EarlierChance>) -> Self {
        Self { kind: Kind::Outcome(earlier), ..Self::verdict(failed) }
    }

    /// The same value, in a session with several values; otherwise each value is of a session of its own.
    pub fn within(self, session: InSession) -> Self {
        Self { session, ..self }
    }
}

impl Detector {
    /// Takes the next value; returns the severity if that changed.
    ///
    /// Values count in the order in which they are given. A time before that of the last value counts as the same time.
    pub fn observe(
        &mut self,
        at: Timestamp,
        value: Observation,
        limits: &DropLimits,
    ) -> Option<Severity> {
        let before = self.severity();
        if value.kind != Kind::Plain && self.learn_first(at, value, limits) {
            return None;
        }
        let counted = self.counted(at, value, limits)?;
        let own = self.severity;
        match own {
            Severity::Quiet | Severity::Warning => self.watch(&counted, limits),
            Severity::Critical => self.hold(&counted, limits),
            Severity::Recovering => self.recover(&counted, limits),
        }
        self.follow(own, at);
        let severity = self.severity();
        (severity != before).then_some(severity)
    }

    /// How bad the stream is.
    pub fn severity(&self) -> Severity {
        if self.returned().is_some() { Severity::Critical } else { self.severity }
    }

    /// Whether there is some evidence of a drop: at least a tenth of the evidence for a warning.
    pub fn has_evidence(&self, limits: &DropLimits) -> bool {
        self.days() >= limits.page * WARN * WARN
    }

    /// Whether there is neither a drop nor any stretch of values that speaks for one.
    pub fn is_settled(&self) -> bool {
        self.severity() == Severity::Quiet && self.starts.are_none()
    }

    /// Forgets which probabilities are usual, as another model produces them; they do not count until that is learned again.
    pub fn forget_predictions(&mut self) {
        if let Some(predicted) = &mut self.predicted {
            (predicted.usual, predicted.pending) = Default::default();
            predicted.counted_since = None;
        }
    }

    /// The state after the values so far.
    pub fn state(&self, limits: &DropLimits) -> DropState {
        let against =
            if self.baseline.is_established() { Against::Past } else { Against::Objective };
        DropState {
            severity: self.severity(),
            against,
            usual: self.usual(limits),
            evidence: self.days() / limits.page,
            drop: self.drop(limits),
        }
    }

    /// Whether the level is compared with a past of its own, not with the objective or the past of the version before.
    pub fn has_own_past(&self) -> bool {
        self.baseline.is_established() && self.baseline.is_own()
    }

    /// Accepts the level since the drop began as the usual one; returns whether there is a drop, or a warning of one.
    pub fn accept(&mut self, at: Timestamp) -> bool {
        let values = match (self.incident.as_ref().or_else(|| self.returned()), self.severity()) {
            (Some(incident), Severity::Critical) => incident.values,
            (_, Severity::Warning) => self.since_start(),
            (_, _) => return false,
        };
        self.take_as_usual(values, at);
        self.end();
        true
    }

    /// Ends a drop, or a warning of one, and forgets all evidence; the past stays what the level is compared with.
    pub fn end(&mut self) {
        self.calm();
        self.over = None;
    }

    fn calm(&mut self) {
        self.severity = Severity::Quiet;
        self.forget_pending();
        self.pending = Pending::default();
        self.forget_evidence();
        self.starts = Starts::default();
        self.recovery = Recovery::default();
        self.incident = None;
    }

    /// Forgets the past and all evidence: the level is compared with the objective until there is a past again.
    pub fn reset(&mut self) {
        (self.baseline, self.hours) = (Baseline::default(), None);
        self.end();
        (self.nulls, self.predicted) = (None, None);
    }

    /// The detector of the next version of the agent, which is compared with the past of this one. It gets the time that this one
    /// has not spent on false alarms, so that a version that is worse from its first trace on is found soonest, and, unless this
    /// one is in a drop, half of its evidence: versions may change faster than a drop is found, and this one may continue.
    pub fn successor(&mut self, limits: &DropLimits) -> Self {
        let mut next = Self {
            baseline: self.baseline.handed_on(),
            budget: self.budget.take(),
            hours: self.hours.clone(),
            ..Self::default()
        };
        if let Some(predicted) = &mut self.predicted {
            next.predicted = Some(Box::new(predicted.handed_on(self.incident.is_none())));
        }
        if self.incident.is_none() {
            next.pending = self.pending.handed_on();
            (next.recent, next.starts) = (self.recent, self.starts);
            next.changed = self.changed.halve();
            next.intolerable = self.intolerable.halve();
        }
        let saved = std::mem::take(&mut next.budget.saved);
        if let Some(predicted) = &mut next.predicted {
            predicted.told.seed(saved.min(limits.page * MOST_AT_ONCE));
        }
        next.changed.seed(saved.min(limits.page * MOST_AT_ONCE));
        next.intolerable.seed(saved.min(limits.page * EDGE * MOST_AT_ONCE));
        next
    }

    /// Spends no time before this moment, at which the next version began to spend it.
    pub fn spend_from(&mut self, at: Timestamp) {
        self.budget.spend_from(at);
        self.predicted.iter_mut().for_each(|predicted| predicted.budget.spend_from(at));
    }

    /// Takes over the evidence that an earlier version kept when it was replaced, if that version is now silent. While nothing
    /// changes, the evidence of either grows by no more than the time that it spends, and so does their sum.
    pub fn take_over(&mut self, earlier: &mut Self) {
        if self.incident.is_some() || earlier.incident.is_some() {
            return;
        }
        self.changed.add(std::mem::take(&mut earlier.changed));
        self.intolerable.add(std::mem::take(&mut earlier.intolerable));
        if let (Some(own), Some(left)) = (&mut self.predicted, &mut earlier.predicted) {
            own.told.add(std::mem::take(&mut left.told));
        }
    }

    /// The same drop in the next version of the agent, whose values decide when it is over.
    pub fn continued(&self) -> Self {
        Self { budget: Budget::default(), ..self.clone() }
    }

    /// Makes the level of another's drop the usual one.
    pub fn accept_drop_of(&mut self, other: &Self, at: Timestamp) {
        let Some(incident) = other.incident.as_ref().or_else(|| other.returned()) else { return };
        self.take_as_usual(incident.values, at);
        self.hours = None;
    }

    /// Makes the level of these values the usual one. Without any, as only probabilities have arrived, the past stays.
    fn take_as_usual(&mut self, values: ValueSum, at: Timestamp) {
        if values.count > 0 {
            self.baseline = Baseline::accepted(values, at);
        }
        self.nulls = None;
        self.forget_predictions();
    }

    /// Learns what is usual for a stream of outcomes and probabilities, while there is no past: unlike other streams, it is not
    /// compared with the objective. Returns whether nothing else has to be done with the value.
    fn learn_first(&mut self, at: Timestamp, value: Observation, limits: &DropLimits) -> bool {
        let predicted = self.predicted.get_or_insert_default();
        if self.baseline.is_established() {
            return false;
        }
        if value.kind == Kind::Chance {
            predicted.pending.add(value.value);
            return true;
        }
        let place = self.place(value, value.value > 0.5);
        self.pending.add(value.value, place);
        if self.pending.all.count >= LEARNT_TOGETHER {
            self.learn(at, limits);
        }
        true
    }

    /// The position of a value among those before it, to which it is added. A session that failed says something about itself if it
    /// fails again, not about what comes after it.
    fn place(&mut self, value: Observation, is_bad: bool) -> SequencePosition {
        let InSession { failed, is_change } = value.session;
        let cell = if failed > 0 { Some(cell_within(failed)) } else { self.recent.cell() };
        if failed == 0 {
            self.recent.push(is_bad);
        }
        SequencePosition { cell, is_change }
    }

    /// The value to count; `None`: a probability, while it is not known which ones are usual.
    fn counted(
        &mut self,
        at: Timestamp,
        value: Observation,
        limits: &DropLimits,
    ) -> Option<Counted> {
        let nulls = *self.nulls.get_or_insert_with(|| Nulls::of(&self.baseline, limits));
        let (level, usual) = (
            self.baseline.level(limits.objective),
            self.predicted.as_ref().map(|predicted| predicted.usual),
        );
        let first_bet = self.baseline.first_bet();
        let ratios_of =
            |chance: f64| usual?.ratios(chance, odds_ratio(limits.tolerated(level), level));
        if value.kind == Kind::Chance {
            let Some(ratios) = ratios_of(value.value) else {
                if let Some(predicted) = &mut self.predicted {
                    predicted.pending.add(value.value);
                }
                return None;
            };
            if let Some(predicted) = &mut self.predicted {
                predicted.counted_since.get_or_insert(at);
            }
            let seed = self.budget.spend(at);
            let (is_bad_hour, kind) = (false, CountedKind::Chance(value.value));
            let winnable = nulls.winnable();
            return Some(Counted { at, seed, ratios, winnable, first_bet, is_bad_hour, kind });
        }
        let place = self.place(value, value.value > nulls.tolerated);
        let level_after = self.baseline.level_after(place.cell, nulls.usual, &self.pending);
        let failed = value.session.failed;
        let level_after = level_after.max(self.baseline.level_of_long(failed, &self.pending));
        let hour = self.hour(at, value.value, level, limits);
        let hour = hour.filter(|hour| *hour > nulls.tolerated);
        let after = nulls.after(hour.map_or(level_after, |hour| hour.max(level_after)), limits);
        Some(Counted {
            at,
            seed: self.budget.spend(at),
            ratios: Ratios {
                usual: value.value / after.usual,
                tolerated: value.value / after.tolerated,
            },
            winnable: after.winnable(),
            first_bet,
            is_bad_hour: hour.is_some(),
            kind: match value.kind {
                Kind::Outcome(earlier) => {
                    let counted = earlier.filter(|earlier| self.has_counted(earlier));
                    let counted = counted.and_then(|earlier| ratios_of(earlier.chance));
                    CountedKind::Outcome(value.value, place, counted)
                }
                Kind::Plain | Kind::Chance => CountedKind::Value(value.value, place),
            },
        })
    }

    /// Whether evidence holds the chance of a run: chances count by this model since before the run began.
    fn has_counted(&self, earlier: &EarlierChance) -> bool {
        let since = self.predicted.as_ref().and_then(|predicted| predicted.counted_since);
        since.is_some_and(|since| earlier.began >= since)
    }

    /// What this hour was like on earlier days and in earlier weeks, once there was a drop; notes the value for the hour.
    fn hour(&mut self, at: Timestamp, value: f64, usual: f64, limits: &DropLimits) -> Option<f64> {
        let tolerated = self.nulls.map_or(0.0, |nulls| nulls.tolerated);
        let own = self.incident.as_ref().filter(|_| self.severity == Severity::Critical);
        let returned = self.returned();
        let lasts = |most| {
            let paged = own.into_iter().chain(returned).map(|incident| incident.paged);
            paged.min().is_some_and(|paged| at >= paged.after(most))
        };
        let of_day = returned.is_none() && !lasts(LONG);
        let of_week = !lasts(LONGER);
        let hours = self.hours.as_mut()?;
        hours.begin(at, usual, tolerated, limits.ratio);
        hours.note(value, Noted { of_day, of_week });
        Some(hours.level())
    }

    /// Counts a value while there is no drop: collects evidence, and learns what is usual while there is none.
    fn watch(&mut self, counted: &Counted, limits: &DropLimits) {
        self.weigh(counted, counted.seed, counted.seed);
        self.count(counted);
        let days = self.days();
        if days >= limits.page {
            self.page(counted.at, limits);
        } else if self.severity == Severity::Quiet && days >= limits.page * WARN {
            self.severity = Severity::Warning;
        } else if self.severity == Severity::Warning && !self.has_evidence(limits) {
            // The values of a near drop are not usual, but how its failures followed each other may be.
            self.severity = Severity::Quiet;
            self.forget_pending();
            self.starts = Starts::default();
            self.learn(counted.at, limits);
        } else if self.severity == Severity::Quiet
            && self.pending.new_order() >= LEARNT_TOGETHER
            && self.starts.are_none()
        {
            self.learn(counted.at, limits);
        }
    }

    /// Counts a value in a drop: looks for evidence that the level is good again.
    fn hold(&mut self, counted: &Counted, limits: &DropLimits) {
        self.weigh(counted, counted.seed, counted.seed);
        let confidence = self.confidence();
        let Some(mut incident) = self.incident else { return };
        counted.value().into_iter().for_each(|value| incident.values.add(value));
        incident.confidence = incident.confidence.max(confidence);
        self.look_for_recovery(counted, &incident);
        if let CountedKind::Value(value, place) | CountedKind::Outcome(value, place, _) =
            counted.kind
        {
            self.pending.follow(value, place);
            if place.is_within() {
                incident.repeats += self.baseline.alternation(&self.pending);
            }
            let is_bad = self.nulls.is_some_and(|nulls| value > nulls.tolerated);
            let begins = self.recovery.stretch.count <= 1;
            incident.one_session.observe(place, is_bad, begins);
        }
        let lasted = days(counted.at.0.saturating_sub(incident.since.0));
        if self.recovery.is_better(lasted, incident.trust) {
            incident.values = incident.values.minus(self.recovery.stretch);
            let repeats = incident.one_session.repeats().unwrap_or(incident.repeats);
            if incident.values.count as f64 - repeats > BURST {
                self.pending.forget_order();
            }
            self.pending.all = self.recovery.stretch;
            self.forget_evidence();
            self.severity = Severity::Recovering;
        }
        self.incident = Some(incident);
        if limits.accept_after.is_some_and(|after| counted.at >= incident.paged.after(after)) {
            self.accept(counted.at);
        }
    }

    /// Counts a value in a recovery: looks for more evidence of it, and for a relapse, which takes less evidence than a drop.
    fn recover(&mut self, counted: &Counted, limits: &DropLimits) {
        let Some(mut incident) = self.incident else { return };
        let relapse = limits.page * counted.short() / RELAPSE * incident.trust;
        self.weigh(counted, counted.seed.max(relapse), counted.seed.max(relapse * EDGE));
        self.count(counted);
        self.look_for_recovery(counted, &incident);
        if self.days() >= limits.page {
            // The relapse may have another level than the drop.
            (incident.values, incident.repeats) = (self.since_start(), 0.0);
            incident.one_session = OneSession::after(self.pending.within());
            incident.trust *= TRUST_AGAIN;
            self.begin(incident);
        } else if self.recovery.is_good(incident.trust) {
            let pending = self.pending;
            let chances = self.predicted.as_ref().map(|predicted| predicted.pending);
            self.calm();
            self.pending = pending;
            if let (Some(predicted), Some(chances)) = (&mut self.predicted, chances) {
                predicted.pending = chances;
            }
            self.learn(counted.at, limits);
        }
    }

    /// Follows a drop that is over, which may recur; `before` was the severity before this value.
    fn follow(&mut self, before: Severity, at: Timestamp) {
        match (before, self.severity, self.incident) {
            (Severity::Critical, Severity::Recovering, Some(incident)) => {
                self.over = Some(Box::new(Recurrence::new(at, incident, self.over.as_deref())));
            }
            (Severity::Critical, ..) => {}
            (_, Severity::Critical, _) => {
                let is_same = self.over.as_mut().is_some_and(|over| over.comes_back(at));
                self.over = self.over.take().filter(|_| is_same);
            }
            (..) => self.over = self.over.take().filter(|over| !over.is_past(at)),
        }
    }

    /// The drop that recurred, while it counts as continuing.
    fn returned(&self) -> Option<&Incident> {
        self.over.as_deref().filter(|over| over.goes_on()).map(|over| &over.incident)
    }

    fn look_for_recovery(&mut self, counted: &Counted, incident: &Incident) {
        let tolerated = self.nulls.map_or(0.0, |nulls| nulls.tolerated);
        let before = incident.values.minus(self.recovery.stretch);
        let surely = match self.severity {
            Severity::Critical => self.recovery.level_surely(incident.values),
            // Its values are without the good ones at its end.
            Severity::Quiet | Severity::Recovering | Severity::Warning => 0.0,
        };
        let levels = Levels::of(tolerated, incident.level().max(surely), before);
        if let (CountedKind::Chance(chance), Some(predicted)) = (counted.kind, &self.predicted) {
            let ratio =
                |level| predicted.usual.ratio_of_good(chance, odds_ratio(level, incident.from));
            self.recovery.observe(ratio, None, levels, counted.seed);
        } else if let Some(value) = counted.value() {
            let ratio = |level: f64| (1.0 - value) / (1.0 - level);
            self.recovery.observe(ratio, Some(value), levels, counted.seed);
        }
    }

    fn weigh(&mut self, counted: &Counted, seed: f64, edge_seed: f64) {
        let (Ratios { usual, tolerated }, first) = (counted.ratios, counted.first_bet);
        let if_winnable = |winnable: bool, seed: f64| if winnable { seed } else { 0.0 };
        // A relapse also needs less evidence from outcomes alone.
        let relapse = if seed > counted.seed { seed } else { 0.0 };
        let seed = if_winnable(counted.winnable.usual, seed);
        let edge_seed = if_winnable(counted.winnable.tolerated, edge_seed);
        if let CountedKind::Outcome(_, _, Some(counted)) = counted.kind {
            self.changed.observe_after(usual, counted.usual, seed, first);
            self.intolerable.observe_after(tolerated, counted.tolerated, edge_seed, first);
        } else {
            self.changed.observe(usual, seed, first);
            self.intolerable.observe(tolerated, edge_seed, first);
        }
        if let (CountedKind::Outcome(..), Some(predicted)) = (counted.kind, &mut self.predicted) {
            let seed = predicted.budget.spend(counted.at).max(relapse);
            predicted.told.observe(usual, if_winnable(counted.winnable.usual, seed), first);
        }
    }

    /// Counts a value among those that are usual unless they turn out to be part of a drop.
    fn count(&mut self, counted: &Counted) {
        let mark = Mark { at: counted.at, before: self.pending.all };
        self.starts.observe(counted.ratios, mark, counted.first_bet);
        match counted.kind {
            CountedKind::Value(value, _) | CountedKind::Outcome(value, ..)
                if counted.is_bad_hour =>
            {
                self.pending.add_apart(value);
            }
            CountedKind::Value(value, place) | CountedKind::Outcome(value, place, _) => {
                self.pending.add(value, place);
            }
            CountedKind::Chance(chance) => {
                let predicted = self.predicted.iter_mut();
                predicted.for_each(|predicted| predicted.pending.add(chance));
            }
        }
    }

    /// The evidence: the least mean number of days in which chance alone gets this far once.
    fn days(&self) -> f64 {
        let told = self.predicted.as_ref().map(|predicted| predicted.told.days() / TOLD);
        let days = self.changed.days().min(self.intolerable.days() / EDGE);
        told.map_or(days, |told| days.min(told))
    }

    /// How likely it is that a stream that drops once a month has dropped.
    fn confidence(&self) -> f64 {
        let days = self.days();
        days / (days + BETWEEN_DROPS)
    }

    fn page(&mut self, at: Timestamp, limits: &DropLimits) {
        self.begin(Incident {
            since: self.starts.best().map_or(at, |mark| mark.at),
            paged: at,
            from: self.usual(limits),
            values: self.since_start(),
            repeats: 0.0,
            one_session: OneSession::after(self.pending.within()),
            confidence: self.confidence(),
            trust: 1.0,
        });
    }

    fn begin(&mut self, incident: Incident) {
        self.incident = Some(incident);
        self.severity = Severity::Critical;
        self.hours.get_or_insert_with(|| Box::new(Hours::since(incident.paged)));
        self.forget_pending();
        self.starts = Starts::default();
        self.recovery = Recovery::default();
    }

    /// Learns from the pending values: how failures follow each other and, unless the level may have risen, what is usual. The
    /// probabilities of a new model do not count before they are known, and do not wait.
    fn learn(&mut self, at: Timestamp, limits: &DropLimits) {
        self.baseline.take_order(&mut self.pending, at, limits.memory);
        let as_usual = self.starts.allow_learning(at, limits.memory * WAITS);
        if let Some(predicted) = &mut self.predicted {
            let Predicted { usual, pending, .. } = &mut **predicted;
            if as_usual || !usual.are_known() {
                usual.take(pending, at, limits.memory);
            }
        }
        if as_usual {
            self.baseline.take_values(&mut self.pending);
            self.starts = Starts::default();
        }
        self.nulls = Some(Nulls::of(&self.baseline, limits));
    }

    /// Forgets the values that were not learned yet, but not how they followed each other.
    fn forget_pending(&mut self) {
        self.pending.forget_values();
        self.predicted.iter_mut().for_each(|predicted| predicted.pending = Default::default());
    }

    fn forget_evidence(&mut self) {
        (self.changed, self.intolerable) = (Evidence::default(), Evidence::default());
        if let Some(predicted) = &mut self.predicted {
            (predicted.told, predicted.counted_since) = (Evidence::default(), None);
        }
    }

    /// The values since the change began, if one did.
    fn since_start(&self) -> ValueSum {
        let all = self.pending.all;
        self.starts.best().map_or(all, |mark| all.minus(mark.before))
    }

    fn usual(&self, limits: &DropLimits) -> f64 {
        if self.baseline.is_established() {
            self.baseline.level(limits.objective).max(limits.least)
        } else {
            limits.objective
        }
    }

    fn drop(&self, limits: &DropLimits) -> Option<DropFound> {
        if let Some(incident) = self.incident.as_ref().or_else(|| self.returned()) {
            return Some(DropFound {
                since: incident.since,
                from: incident.from,
                to: incident.level(),
                traces: incident.values.count,
                confidence: incident.confidence,
            });
        }
        let mark = self.starts.best().filter(|_| self.severity == Severity::Warning)?;
        let values = self.pending.all.minus(mark.before);
        Some(DropFound {
            since: mark.at,
            from: self.usual(limits),
            to: level_of(values, self.usual(limits)),
            traces: values.count,
            confidence: self.confidence(),
        })
    }
}

impl Incident {
    /// The mean of its values.
    fn level(&self) -> f64 {
        level_of(self.values, self.from)
    }
}

impl OneSession {
    /// After this many values that came after another failure of their session.
    fn after(within: u64) -> Self {
        Self { so_far: true, until_good: true, within }
    }

    /// Adds the next value; `begins`: the good values at the end of the drop begin with it, as far as is known.
    fn observe(&mut self, place: SequencePosition, is_bad: bool, begins: bool) {
        self.so_far &= place.is_within() == is_bad;
        self.within += u64::from(place.is_within());
        if begins {
            self.until_good = self.so_far;
        }
    }

    /// How many values merely repeat a failure of the one session; `None`: there is no such session.
    fn repeats(self) -> Option<f64> {
        self.until_good.then_some(self.within as f64)
    }
}

/// The mean of values; the level before if there are none, as only probabilities have arrived since.
fn level_of(values: ValueSum, before: f64) -> f64 {
    if values.count == 0 { before } else { values.mean() }
}

impl Counted {
    /// The days that it spends on a relapse.
    fn short(&self) -> f64 {
        self.seed.min(MOST_DAYS)
    }

    /// The value, unless it is a chance.
    fn value(&self) -> Option<f64> {
        match self.kind {
            CountedKind::Value(value, _) | CountedKind::Outcome(value, ..) => Some(value),
            CountedKind::Chance(_) => None,
        }
    }
}

impl Nulls {
    fn of(baseline: &Baseline, limits: &DropLimits) -> Self {
        if !baseline.is_established() {
            return Self { usual: limits.objective, tolerated: limits.objective };
        }
        let level = baseline.level(limits.objective).max(limits.least);
        let error = baseline.error(limits.objective);
        let tolerated = limits.tolerated(level).max(level + ERRORS_TOLERATED * error);
        Self { usual: (level + error).min(1.0), tolerated: tolerated.min(1.0) }
    }

    /// Which bets on more than these means can win.
    fn winnable(self) -> Winnable {
        Winnable { usual: self.usual < 1.0, tolerated: self.tolerated < 1.0 }
    }

    /// The greatest means for a value whose cell has this level.
    fn after(self, level: f64, limits: &DropLimits) -> Self {
        Self {
            usual: self.usual.max(level),
            tolerated: self.tolerated.max(limits.times_worse(level)),
        }
    }
}

impl DropLimits {
    /// The worst level that is tolerated of a stream with this usual level.
    fn tolerated(&self, level: f64) -> f64 {
        (level + self.tolerance).max(self.times_worse(level))
    }

    /// The level at which so many times as many fail, or as few succeed, whichever is less; ranks do neither. It leaves room for a
    /// rise over a level near 1.
    fn times_worse(&self, level: f64) -> f64 {
        let (fail, succeed) = (level * self.ratio, 1.0 - (1.0 - level) / self.ratio);
        let worse = if self.least > 0.0 { fail } else { fail.min(succeed) };
        worse.min(f64::midpoint(1.0, level))
    }
}

/// Evidence for a warning, relative to that for a page.
const WARN: f64 = 0.1;

/// Evidence against the worst tolerated level that a page needs, relative to that against the usual level.
const EDGE: f64 = 0.1;

/// Evidence from outcomes alone that a page needs, relative to that from outcomes and predictions together.
const TOLD: f64 = 0.3;

/// Most of the time to a page with which a new version starts.
const MOST_AT_ONCE: f64 = 0.01;

/// The least mean number of days in which chance alone causes one relapse while a drop recovers.
const RELAPSE: f64 = 2.5;

/// Trust after a relapse, relative to that before.
const TRUST_AGAIN: f64 = 0.1;

/// Number of values of a drop up to which its failures may have one recurring cause: how they followed each other is learned, as it
/// is for one session that failed to its end, however long that was. Whatever fails for longer is an outage each time.
const BURST: f64 = 7.0;

/// Pending values that are enough to be learnt.
const LEARNT_TOGETHER: u64 = 16;

/// How long values that may belong to a rise wait, relative to the half-life of the past.
const WAITS: f64 = 0.25;

/// How long a drop lasts before it stops counting for the hour of the day, or of the week.
const LONG: Duration = Duration::from_secs(43_200);
const LONGER: Duration = Duration::from_secs(3 * 86_400);

/// Standard errors of the usual level that are tolerated, where they are more than the tolerance.
const ERRORS_TOLERATED: f64 = 3.0;

/// Prior number of days between two drops of one stream.
const BETWEEN_DROPS: f64 = 30.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::DropOptions;

    #[test]
    fn a_page_takes_evidence_against_the_usual_level_and_against_what_is_tolerated() {
        let mut detector = Detector::default();
        detector.changed.seed(8.0);
        assert!(detector.days() < 1e-9);
        detector.intolerable.seed(0.5);
        assert!((detector.days() - 5.0).abs() < 1e-9);
        detector.intolerable.seed(0.5);
        assert!((detector.days() - 8.0).abs() < 1e-9);
    }

    #[test]
    fn what_a_version_kept_goes_on_once() {
        let limits = DropOptions::default().limits(1);
        let mut versions = [Detector::default(), Detector::default(), Detector::default()];
        versions[0].changed.seed(8.0);
        versions[0].intolerable.seed(4.0);
        let [first, second, third] = &mut versions;
        *second = first.successor(&limits);
        *third = second.successor(&limits);
        third.take_over(first);
        for (version, days) in [(&*first, 0.0), (&*second, 2.0), (&*third, 6.0)] {
            assert!((version.changed.days() - days).abs() < 1e-9, "{days} {version:?}");
            assert!((version.intolerable.days() - days / 2.0).abs() < 1e-9, "{days} {version:?}");
        }
        // What speaks for a drop is no evidence of a change from its level.
        third.page(Timestamp(1), &limits);
        third.take_over(second);
        assert!((second.changed.days() - 2.0).abs() < 1e-9);
    }

    #[test]
    fn values_are_held_against_what_usually_follows_if_that_is_more() {
        let limits = DropOptions::default().limits(1);
        let nulls = Nulls { usual: 0.02, tolerated: 0.05 };
        assert_eq!(nulls.after(0.01, &limits), nulls);
        let after = nulls.after(0.5, &limits);
        assert!((after.usual - 0.5).abs() < 1e-9 && (after.tolerated - 0.8 / 1.3).abs() < 1e-9);
        assert!(nulls.after(0.9, &limits).tolerated < 1.0);
    }

    #[test]
    fn the_chances_of_a_new_model_are_learnt_while_values_wait() {
        let limits = DropOptions::default().limits(1);
        let (mut detector, mut now) = (Detector::default(), Timestamp(0));
        let mut tell = |detector: &mut Detector, every: u64, count: u64| {
            for number in 1..=count {
                now = Timestamp(now.0 + 60_000_000_000);
                detector.observe(now, Observation::outcome(number % every == 0, None), &limits);
                detector.observe(now, Observation::chance(0.1).unwrap(), &limits);
            }
        };
        let known = |detector: &Detector| {
            detector.predicted.as_ref().unwrap().usual.ratios(0.1, 1.0).is_some()
        };
        tell(&mut detector, 100, 3_000);
        // Tolerated, but more than usual.
        tell(&mut detector, 33, 600);
        assert!(known(&detector) && detector.pending.all.count > 500);
        detector.forget_predictions();
        assert!(!known(&detector));
        tell(&mut detector, 33, 300);
        assert!(known(&detector));
    }

    #[test]
    fn a_drop_without_values_is_accepted_with_the_past_as_it_is() {
        let limits = DropOptions::default().limits(1);
        let (mut detector, mut now) = (Detector::default(), Timestamp(0));
        for number in 0..2_000 {
            now = Timestamp(now.0 + 60_000_000_000);
            detector.observe(now, Observation::verdict(number % 50 == 0), &limits);
        }
        let usual = detector.state(&limits).usual;
        detector.page(now, &limits);
        detector.incident.iter_mut().for_each(|incident| incident.values = ValueSum::default());
        assert!(detector.accept(now));
        assert!((detector.state(&limits).usual - usual).abs() < 1e-9, "{usual}");
        assert_eq!(detector.severity(), Severity::Quiet);
    }

    #[test]
    fn an_outcome_replaces_only_a_chance_that_was_counted() {
        let limits = DropOptions::default().limits(1);
        let (mut detector, mut now) = (Detector::default(), Timestamp(0));
        let mut tell = |detector: &mut Detector, value: Observation| {
            now = Timestamp(now.0 + 60_000_000_000);
            detector.observe(now, value, &limits);
            now
        };
        let chance = |chance| Observation::chance(chance).unwrap();
        for number in 1..=3_000 {
            tell(&mut detector, Observation::outcome(number % 20 == 0, None));
            tell(&mut detector, chance(0.05));
        }
        // A new model is made in the night; of the day no chance counts until outcomes come in the night after.
        detector.forget_predictions();
        let day = tell(&mut detector, chance(0.1));
        (0..200).for_each(|_| _ = tell(&mut detector, chance(0.1)));
        let earlier = |began| Some(EarlierChance { chance: 0.6, began });
        (0..30).for_each(|_| _ = tell(&mut detector, Observation::outcome(false, earlier(day))));
        let predicted = detector.predicted.as_ref().unwrap();
        assert!(predicted.usual.are_known());
        let (mut one, mut other) = (detector.clone(), detector.clone());
        let night = tell(&mut one, Observation::outcome(true, earlier(day)));
        other.observe(night, Observation::outcome(true, None), &limits);
        assert_eq!(one, other);
        // On the next day they count.
        let next = tell(&mut detector, chance(0.6));
        let (mut one, mut other) = (detector.clone(), detector.clone());
        let night = tell(&mut one, Observation::outcome(true, earlier(next)));
        other.observe(night, Observation::outcome(true, None), &limits);
        assert!(one.days() < other.days(), "{} {}", one.days(), other.days());
        // What evidence has forgotten is not replaced.
        detector.forget_evidence();
        let (mut one, mut other) = (detector.clone(), detector);
        let night = tell(&mut one, Observation::outcome(true, earlier(next)));
        other.observe(night, Observation::outcome(true, None), &limits);
        assert_eq!(one, other);
    }
}
