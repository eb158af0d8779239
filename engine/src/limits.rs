//! Run limits: what a trace or a session must not exceed, even if it repeats nothing.
//!
//! Each limit is one entry in the list of [`RunLimit`]. An open run is compared with its limits by all that is known about it; it
//! is over a limit once it has used as much as the limit says. Exceeding a limit changes no signal and no score.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::facts::AgentKey;
use super::loops::{LoopLabels, Severity};
use super::math::{Quanta, ratio};
use super::named::named;
use super::options::human;

/// What one run has used.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Usage {
    /// Amounts that add up over the traces of a session.
    pub sums: UsageSums,
    /// From the first start to the last end, in nanoseconds.
    pub nanos: u64,
    /// The most model calls in a row without a tool call.
    pub calls_without_tool: u64,
}

/// Amounts that one run has used and that add up over runs.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct UsageSums {
    /// Model calls.
    pub model_calls: u64,
    /// Tool calls.
    pub tool_calls: u64,
    /// Tokens read and written, as far as they are known.
    pub tokens: u64,
    /// Cost in 1e-12 USD, as far as it is known.
    pub cost_quanta: u64,
}

named! {
    /// The kind of run that a limit is for.
    #[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
    pub enum LimitScope {
        /// One trace.
        Trace = "trace",
        /// All traces of a session that are in memory.
        Session = "session",
    }
}

/// A duration as people write it.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct HumanDuration(#[serde(with = "human")] pub Duration);

/// The value of an option.
trait Amount {
    /// How many of the units of [`Usage`] make one unit that is shown.
    const PER_UNIT: i64;

    /// The value in the units of [`Usage`].
    fn units(self) -> u64;
}

impl Amount for u64 {
    const PER_UNIT: i64 = 1;

    fn units(self) -> u64 {
        self
    }
}

impl Amount for f64 {
    const PER_UNIT: i64 = Quanta::ONE;

    fn units(self) -> u64 {
        // Invariant: the option was checked to be in range when it was read.
        Quanta::from_f64(self).and_then(|dollars| u64::try_from(dollars.0).ok()).unwrap_or(u64::MAX)
    }
}

impl Amount for HumanDuration {
    const PER_UNIT: i64 = 1_000_000_000;

    fn units(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The list of limits: each has its documentation, its option and default, its label, its kind of run, and the amount that it
/// limits.
macro_rules! limits {
    ($($(#[$about:meta])* $limit:ident, $key:ident: $kind:ty = $most:expr, $label:literal of $run:ident, $used:expr;)*) => {
        /// Limits of runs; 0: no limit.
        #[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct LimitOptions {
            $($(#[$about])* pub $key: $kind,)*
            /// Limits of single agents by name, over those above.
            pub agents: BTreeMap<String, AgentLimits>,
        }

        /// Limits of one agent; what is absent is as for all agents.
        #[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct AgentLimits {
            $(
                $(#[$about])*
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $key: Option<$kind>,
            )*
        }

        impl Default for LimitOptions {
            fn default() -> Self {
                Self { $($key: $most,)* agents: BTreeMap::new() }
            }
        }

        impl LimitOptions {
            /// The limits of an agent.
            fn of(&self, own: &AgentLimits) -> LimitValues {
                LimitValues([$(own.$key.unwrap_or(self.$key).units(),)*])
            }
        }

        /// A limit of runs.
        #[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum RunLimit {
            $($(#[$about])* $limit,)*
        }

        impl RunLimit {
            /// All limits.
            pub const ALL: &'static [Self] = &[$(Self::$limit,)*];

            /// Its name in results and labels.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$limit => $label,)*
                }
            }

            /// The kind of run that it limits.
            pub const fn run(self) -> LimitScope {
                match self {
                    $(Self::$limit => LimitScope::$run,)*
                }
            }

            /// An amount for people to read: in dollars, in seconds, or a number.
            pub fn shown(self, units: u64) -> f64 {
                let per_unit = match self {
                    $(Self::$limit => <$kind>::PER_UNIT,)*
                };
                ratio(i128::from(units), i128::from(per_unit))
            }

            /// How much of it a run has used.
            pub fn used(self, usage: &Usage) -> u64 {
                let of: fn(&Usage) -> u64 = match self {
                    $(Self::$limit => $used,)*
                };
                of(usage)
            }
        }
    };
}

const HOUR: Duration = Duration::from_secs(3600);

limits! {
    /// Model calls of a trace.
    TraceModelCalls, trace_model_calls: u64 = 1_000, "model_calls" of Trace, |used| used.sums.model_calls;
    /// Tool calls of a trace.
    TraceToolCalls, trace_tool_calls: u64 = 2_000, "tool_calls" of Trace, |used| used.sums.tool_calls;
    /// Tokens of a trace, read and written.
    TraceTokens, trace_tokens: u64 = 100_000_000, "tokens" of Trace, |used| used.sums.tokens;
    /// US dollars of a trace.
    TraceCost, trace_cost_usd: f64 = 100.0, "cost_usd" of Trace, |used| used.sums.cost_quanta;
    /// From the first start of a trace to its last end.
    TraceDuration, trace_duration: HumanDuration = HumanDuration(HOUR.saturating_mul(12)), "duration" of Trace, |used| used.nanos;
    /// Model calls of a trace in a row without a tool call.
    TraceCallsWithoutTool, trace_calls_without_tool: u64 = 500, "calls_without_tool" of Trace, |used| used.calls_without_tool;
    /// Model calls of a session.
    SessionModelCalls, session_model_calls: u64 = 20_000, "model_calls" of Session, |used| used.sums.model_calls;
    /// Tool calls of a session.
    SessionToolCalls, session_tool_calls: u64 = 40_000, "tool_calls" of Session, |used| used.sums.tool_calls;
    /// Tokens of a session, read and written.
    SessionTokens, session_tokens: u64 = 2_000_000_000, "tokens" of Session, |used| used.sums.tokens;
    /// US dollars of a session.
    SessionCost, session_cost_usd: f64 = 1_000.0, "cost_usd" of Session, |used| used.sums.cost_quanta;
    /// From the first start of a session to its last end.
    SessionDuration, session_duration: HumanDuration = HumanDuration(Duration::ZERO), "duration" of Session, |used| used.nanos;
    /// Model calls of a session in its last traces, since one had a tool call.
    SessionCallsWithoutTool, session_calls_without_tool: u64 = 0, "calls_without_tool" of Session, |used| used.calls_without_tool;
}

/// The limits of one agent in the units of [`Usage`], in the order of [`RunLimit::ALL`]; 0: no limit.
#[derive(Clone, Debug)]
struct LimitValues([u64; RunLimit::ALL.len()]);

/// The limits of all agents.
#[derive(Clone, Debug)]
pub struct Limits {
    of_all: LimitValues,
    of_agents: BTreeMap<String, LimitValues>,
}

/// A set of limits, with a bit for each.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct LimitSet(u16);

/// A limit that a run has exceeded.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Exceeded {
    /// The limit.
    pub limit: RunLimit,
    /// What was used, in the units of [`Usage`].
    pub used: u64,
    /// The value of the limit, in the units of [`Usage`].
    pub most: u64,
}

/// The reason why a session runs away.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub enum Cause {
    /// A running loop in it.
    Loop(LoopLabels),
    /// It, or a trace of it, runs over a limit.
    Limit(RunLimit),
}

/// The kind of all limits, in results and labels that also have kinds of loops.
pub const KIND: &str = "run_limit";

impl LimitOptions {
    /// The limits of all agents, to compare runs with.
    pub fn limits(&self) -> Limits {
        let of_agents = self.agents.iter().map(|(agent, own)| (agent.clone(), self.of(own)));
        Limits { of_all: self.of(&AgentLimits::default()), of_agents: of_agents.collect() }
    }
}

impl Limits {
    /// The limits that a run of an agent has exceeded, in the order of [`RunLimit::ALL`]. An agent without a name uses the name of
    /// its service.
    pub fn exceeded(
        &self,
        agent: &AgentKey,
        run: LimitScope,
        usage: &Usage,
    ) -> impl Iterator<Item = Exceeded> {
        let LimitValues(most) = self.of(agent);
        let all = RunLimit::ALL.iter().zip(most).filter(move |(limit, _)| limit.run() == run);
        let all = all.map(|(limit, most)| Exceeded {
            limit: *limit,
            used: limit.used(usage),
            most: *most,
        });
        all.filter(|found| found.most > 0 && found.used >= found.most)
    }

    /// Whether an agent has this limit.
    pub fn has(&self, agent: &AgentKey, limit: RunLimit) -> bool {
        self.of(agent).0[limit as usize] > 0
    }

    fn of(&self, agent: &AgentKey) -> &LimitValues {
        let name =
            if agent.agent_name.is_empty() { &agent.service_name } else { &agent.agent_name };
        self.of_agents.get(&**name).unwrap_or(&self.of_all)
    }
}

impl LimitSet {
    /// The set of all limits.
    pub const ALL: Self = Self((1 << RunLimit::ALL.len()) - 1);

    /// Adds a limit; returns whether it is new.
    pub fn insert(&mut self, limit: RunLimit) -> bool {
        let bit = 1 << limit as u16;
        let is_new = self.0 & bit == 0;
        self.0 |= bit;
        is_new
    }
}

impl UsageSums {
    /// The sum of two parts of a session.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.combined(other, u64::saturating_add)
    }

    /// The sums without a part that was added.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        self.combined(other, u64::saturating_sub)
    }

    fn combined(self, other: Self, of: fn(u64, u64) -> u64) -> Self {
        Self {
            model_calls: of(self.model_calls, other.model_calls),
            tool_calls: of(self.tool_calls, other.tool_calls),
            tokens: of(self.tokens, other.tokens),
            cost_quanta: of(self.cost_quanta, other.cost_quanta),
        }
    }
}

impl RunLimit {
    /// Values of the labels `kind`, `limit` and `run`.
    pub const fn values(self) -> [&'static str; 3] {
        [KIND, self.name(), self.run().name()]
    }
}

impl Cause {
    /// Its kind in results and labels: that of the loop, or `run_limit`.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Loop(labels) => labels.kind.name(),
            Self::Limit(_) => KIND,
        }
    }

    /// How bad it is: as bad as its loop, critical for a limit.
    pub fn severity(self) -> Severity {
        match self {
            Self::Loop(labels) => labels.severity,
            Self::Limit(_) => Severity::Critical,
        }
    }

    /// The worse of the two.
    #[must_use]
    pub fn worse(self, other: Self) -> Self {
        if other.severity() > self.severity() { other } else { self }
    }

    /// Whether people are notified: not about a loop whose evidence is names alone.
    pub fn weighs(self) -> bool {
        match self {
            Self::Loop(labels) => labels.evidence.weighs(),
            Self::Limit(_) => true,
        }
    }

    /// The loop, if it is one.
    pub fn as_loop(self) -> Option<LoopLabels> {
        match self {
            Self::Loop(labels) => Some(labels),
            Self::Limit(_) => None,
        }
    }

    /// The limit, if it is one.
    pub fn as_limit(self) -> Option<RunLimit> {
        match self {
            Self::Loop(_) => None,
            Self::Limit(limit) => Some(limit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::AgentParts;

    fn agent(name: &str) -> AgentKey {
        AgentParts { agent_name: name.into(), ..AgentParts::default() }.into()
    }

    #[test]
    fn a_run_goes_over_a_limit_with_what_reaches_it_and_an_agent_has_its_own() {
        let own = AgentLimits { trace_model_calls: Some(5), ..AgentLimits::default() };
        let off = AgentLimits { trace_model_calls: Some(0), ..AgentLimits::default() };
        let options = LimitOptions {
            trace_model_calls: 10,
            trace_cost_usd: 0.5,
            trace_duration: HumanDuration(Duration::from_secs(60)),
            agents: [("small".to_owned(), own), ("free".to_owned(), off)].into(),
            ..LimitOptions::default()
        };
        let limits = options.limits();
        let over = |name: &str, usage: Usage| -> Vec<(&str, f64, f64)> {
            let agent = agent(name);
            let found = limits.exceeded(&agent, LimitScope::Trace, &usage);
            found
                .map(|found| {
                    let shown = |units| found.limit.shown(units);
                    (found.limit.name(), shown(found.used), shown(found.most))
                })
                .collect()
        };
        let sums = |sums| Usage { sums, ..Usage::default() };
        let calls = |model_calls| sums(UsageSums { model_calls, ..UsageSums::default() });
        assert_eq!(over("any", calls(9)), []);
        assert_eq!(over("any", calls(10)), [("model_calls", 10.0, 10.0)]);
        assert_eq!(over("small", calls(6)), [("model_calls", 6.0, 5.0)]);
        assert_eq!(over("free", calls(10_000)), []);
        let dear = sums(UsageSums { cost_quanta: 600_000_000_000, ..UsageSums::default() });
        assert_eq!(over("small", dear), [("cost_usd", 0.6, 0.5)]);
        let long = Usage { nanos: 90_000_000_000, ..Usage::default() };
        assert_eq!(over("any", long), [("duration", 90.0, 60.0)]);
        assert!(!limits.has(&agent("any"), RunLimit::SessionDuration));
    }

    #[test]
    fn labels_of_limits_are_told_apart_and_a_set_has_each_once() {
        let mut set = LimitSet::default();
        assert!(RunLimit::ALL.iter().all(|limit| set.insert(*limit) && !set.insert(*limit)));
        assert_eq!(set, LimitSet::ALL);
        let labels: std::collections::BTreeSet<_> =
            RunLimit::ALL.iter().map(|limit| limit.values()).collect();
        assert_eq!(labels.len(), RunLimit::ALL.len());
    }
}
