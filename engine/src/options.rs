//! The engine's options: the number of every rule and every bound, with its default.
//!
//! `config` reads these from TOML, the environment and flags; `config/agentgauge.toml` lists them. The documentation of a bound
//! says what happens when it is reached, and which counter shows it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::limits::LimitOptions;
use super::loops::LoopKind;
use super::math::glob::fits;
use super::signal::SIGNALS;

/// Declares options: each has its documentation, its type, its default and, if it has one, its range. `in` names their section of
/// the configuration.
#[macro_export]
macro_rules! options {
    (
        $(#[$about:meta])*
        pub struct $name:ident in $section:literal {
            $($(#[$doc:meta])* pub $option:ident: $kind:ty = $default:expr $(, within $range:expr)?;)*
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug, ::serde::Deserialize, PartialEq, ::serde::Serialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $($(#[$doc])* pub $option: $kind,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($option: $default,)* }
            }
        }

        impl $crate::options::Ranges for $name {
            fn ranges(&self, outside: $crate::options::Outside<'_>) {
                // Unused where no option has a range.
                let _ = &outside;
                $($($crate::options::within(concat!($section, ".", stringify!($option)), self.$option, $range, outside);)?)*
            }
        }
    };
}

/// A millisecond.
pub const MILLISECOND: Duration = Duration::from_millis(1);

/// A second.
pub const SECOND: Duration = Duration::from_secs(1);

/// A minute.
pub const MINUTE: Duration = Duration::from_secs(60);

/// An hour.
pub const HOUR: Duration = Duration::from_secs(3600);

/// A day.
pub const DAY: Duration = Duration::from_secs(86_400);

/// Options, some of which have a range.
pub trait Ranges {
    /// Reports each option that is outside its range.
    fn ranges(&self, outside: Outside<'_>);
}

/// A callback that receives the key of an option, its range, and its value.
pub type Outside<'o> = &'o mut dyn FnMut(&'static str, String, String);

/// A type that can have a range.
pub trait Bounded: Copy + PartialOrd {
    /// The value as the configuration writes it.
    fn shown(&self) -> String;
}

macro_rules! bounded {
    ($($number:ty)*) => {$(
        impl Bounded for $number {
            fn shown(&self) -> String {
                self.to_string()
            }
        }
    )*};
}

bounded!(f64 u32 u64 usize);

impl Bounded for Duration {
    fn shown(&self) -> String {
        human::render(*self)
    }
}

/// Reports an option that is outside its range; NaN is outside.
pub fn within<T: Bounded>(
    key: &'static str,
    was: T,
    range: RangeInclusive<T>,
    outside: Outside<'_>,
) {
    if !range.contains(&was) {
        let (least, most) = (range.start().shown(), range.end().shown());
        outside(key, format!("from {least} to {most}"), was.shown());
    }
}

/// A list of words, as options hold it.
pub fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

options! {
    /// How spans are read.
    pub struct ConventionOptions in "convention" {
        /// Attributes that name a session, best first; the first found on the outermost span that has any wins.
        pub session_keys: Vec<String> = words(super::convention::SESSION_KEYS);
        /// Attributes whose JSON value may hold a session id, as `attribute{key}`.
        pub session_json_keys: Vec<String> = words(super::convention::SESSION_JSON_KEYS);
        /// Attributes of your own: concept to attribute names, such as `{ tool_name = ["my.tool"] }`; read before those of any
        /// convention.
        pub attributes: BTreeMap<String, Vec<String>> = BTreeMap::new();
        /// Agents of your own that send log records, each as `[[convention.logs]]`; docs/guides/logs.md has an example.
        pub logs: Vec<super::convention::LogConvention> = Vec::new();
        /// Reported score names to signal names, such as `{ ToolCorrectness = "tool_correctness" }`.
        pub score_names: BTreeMap<String, String> = BTreeMap::new();
        /// Ranges of reported scores that are not in `[0,1]`, such as `{ quality = [1, 5] }`.
        pub score_ranges: BTreeMap<String, [f64; 2]> = BTreeMap::new();
        /// Keep results of tools and inputs as texts, while their trace is held; set where a judge, an embedding model, expectations or
        /// the page are to see them.
        #[serde(skip)]
        pub keep_texts: bool = false;
        /// Scores from which graded outcomes are a success; set from `session.signal_thresholds`.
        #[serde(skip)]
        pub signal_thresholds: BTreeMap<String, f64> = BTreeMap::new();
        /// Longest text of one input or output, in bytes; the rest is cut.
        pub max_text_bytes: usize = 65_536, within 1..=16 << 20;
        /// Longest name (agent, tool, model) or id (session, task, run), in bytes; the rest is cut. A longer id ends in a hash of the whole.
        pub max_name_bytes: usize = 256, within 16..=4096;
    }
}

options! {
    /// How traces are assembled.
    pub struct AssembleOptions in "assemble" {
        /// A trace whose root has ended is done after being quiet for this long.
        #[serde(with = "human")]
        pub trace_idle: Duration = 10 * SECOND, within MILLISECOND..=DAY;
        /// Quiet time after which a trace without a root is done, if neither the flags of its spans nor earlier traces say
        /// whether a root will come. It also ends the turn of an agent that sends log records, unless the session's next turn
        /// has begun.
        #[serde(with = "human")]
        pub rootless_idle: Duration = 5 * MINUTE, within MILLISECOND..=DAY;
        /// A trace is done at the latest this long after it opened. An expected root is waited for until then; after that,
        /// whatever arrives reopens the trace until it has been quiet for as long.
        #[serde(with = "human")]
        pub trace_max_age: Duration = HOUR, within MILLISECOND..=DAY;
        /// How long a late span can reopen a done trace. A trace that was done without its root can be reopened until it has
        /// been quiet for `trace_max_age`.
        #[serde(with = "human")]
        pub late_horizon: Duration = 5 * MINUTE, within Duration::ZERO..=DAY;
        /// How long a report waits for its target.
        #[serde(with = "human")]
        pub report_wait: Duration = 10 * MINUTE, within Duration::ZERO..=DAY;
        /// What a trace without a session key becomes: trace (its own session), instance (one session per service.instance.id).
        pub session_fallback: SessionFallback = SessionFallback::Trace;
        /// Keep the texts and the arguments of traces for the API.
        pub keep_content: bool = false;
        /// Open and done traces held by each of `engine.shards`; beyond that, the first done one is sealed, else the quietest
        /// one.
        pub max_open_traces: usize = 100_000, within 1..=1 << 30;
        /// Bytes of memory that open and done traces take in each of `engine.shards`, estimated; beyond that, traces are sealed
        /// in the same order.
        pub max_bytes: usize = 256 << 20, within 1 << 20..=1 << 40;
        /// Spans and logs of one trace; further ones are dropped. Half of the places are reserved for model calls, tools and
        /// agents; roots and agents get 1 % more, at least 64.
        pub max_spans_per_trace: usize = 10_000, within 1..=1 << 30;
        /// Bytes of memory that one trace takes, estimated; above it, the trace's texts are dropped; if it is still too large,
        /// so are further spans and logs.
        pub max_trace_bytes: usize = 16 << 20, within 1 << 16..=1 << 30;
        /// Sealed trace ids remembered by each of `engine.shards`; beyond that, the oldest is forgotten.
        pub max_sealed_traces: usize = 1_000_000, within 1..=1 << 30;
        /// Reports waiting for their target, and response ids remembered; beyond that, the oldest is dropped.
        pub max_waiting_reports: usize = 100_000, within 1..=1 << 30;
        /// Reported scores of one trace; further ones are dropped.
        pub max_reports_per_trace: usize = 100, within 1..=1 << 30;
        /// Most kinds of spans whose parents are tracked, and most service scopes whose agents are tracked, for all of
        /// `engine.shards` together; beyond that, the least recently seen are forgotten.
        pub max_learned: usize = 10_000, within 1..=1 << 30;
        /// Sessions of agents that send log records whose prompts each of `engine.shards` remembers; beyond that, the quietest
        /// is forgotten.
        pub max_turn_sessions: usize = 10_000, within 1..=1 << 30;
        /// Spans from log records that are assigned to a turn by order alone, held by each of `engine.shards` while a late
        /// prompt could still move them; beyond that, those of the quietest sessions are fixed in their turn. Each KiB of texts
        /// counts as one more.
        pub max_turn_spans: usize = 50_000, within 1..=1 << 30;
    }
}

/// Where a trace without a session key goes.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionFallback {
    /// The trace is its own session.
    #[default]
    Trace,
    /// All such traces of one `service.instance.id` are one session.
    Instance,
}

options! {
    /// Tool loops.
    pub struct LoopOptions in "loops" {
        /// From this many equal calls in a row it is a loop: a warning.
        pub warning: u64 = 3, within 2..=u64::MAX;
        /// From this many it is critical.
        pub critical: u64 = 10;
        /// From this many it is a loop if spans carry no arguments; it never becomes critical. If they carry no results either,
        /// it is shown and counted with evidence="names", and changes no score, no counter of waste and no alert.
        pub names_only: u64 = 5, within 2..=u64::MAX;
        /// Tools that may be called again and again, such as "poll_*": repeating only these is no loop. * stands for any text.
        pub allow: Vec<String> = Vec::new();
        /// Thresholds of single kinds, such as `{ cycle = { warning = 2, critical = 5 } }`: cycle, `error_retry`, `exact_repeat`,
        /// `near_repeat`.
        pub by_kind: BTreeMap<LoopKind, Thresholds> = BTreeMap::new();
        /// A call nearly repeats the one before if its arguments are at least this similar: Jaccard, from 0.5 to 1.
        pub near_repeat_similarity: f64 = 0.9, within 0.5..=1.0;
        /// Traces of a session through which a repetition is followed; after that, counting starts again.
        pub max_traces: usize = 256, within 2..=10_000;
    }
}

/// From how many calls a run is a loop.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Thresholds {
    /// A warning.
    pub warning: u64,
    /// Critical.
    pub critical: u64,
}

/// The greatest price, in dollars per million tokens; a higher one is a mistake, and the cost of a call must not overflow.
pub const MAX_PRICE: f64 = 1_000_000.0;

/// What a model costs, in US dollars per million tokens.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// The model's name; `*` stands for any text.
    pub model: String,
    /// Tokens read.
    pub input: f64,
    /// Tokens written.
    pub output: f64,
    /// Tokens read from a cache; if absent, they cost what other input tokens cost.
    pub cached: Option<f64>,
    /// Input tokens that are written to a cache; likewise.
    pub cache_written: Option<f64>,
}

options! {
    /// What model calls cost where their spans do not say.
    pub struct CostOptions in "cost" {
        /// What model calls cost where their spans do not say, in US dollars per million tokens; the first match applies,
        /// before the built-in prices, such as `[{ model = "our-model*", input = 0.15, output = 0.6, cached = 0.075,
        /// cache_written = 0.19 }]`.
        pub prices: Vec<Price> = Vec::new();
        /// Use the built-in table for models that are not listed; a model in neither has no cost.
        pub shipped: bool = true;
    }
}

options! {
    /// How sessions are scored.
    pub struct SessionOptions in "session" {
        /// What session ids are unique within, beside the tenant: service (`service.namespace`; without one, the name of the
        /// outermost agent), tenant (nothing; for conversations that span services or agents).
        pub scope: SessionScope = SessionScope::Service;
        /// A session closes after being quiet for this long.
        #[serde(with = "human")]
        pub session_idle: Duration = 30 * MINUTE, within MILLISECOND..=30 * DAY;
        /// How long a loop counts as ongoing after it last grew, whether or not its trace is done by then. Keep it above
        /// Alertmanager's `group_wait`, or Alertmanager misses short loops.
        #[serde(with = "human")]
        pub loop_hold: Duration = 5 * MINUTE, within MILLISECOND..=30 * DAY;
        /// Least silence after which an open trace counts as stalled. (A span arrives only when its step ends.) For an agent
        /// whose steps often take longer, the limit rises to up to sixteen times this, once twenty of its traces are done. Only
        /// traces that are known to stay open for longer (`assemble.trace_max_age`) can stall.
        #[serde(with = "human")]
        pub stall_after: Duration = 15 * MINUTE, within MILLISECOND..=30 * DAY;
        /// What traces and sessions must not go over.
        #[serde(skip)]
        pub limits: LimitOptions = LimitOptions::default();
        /// Sessions held in memory by each of `engine.shards`; beyond that, the quietest is evicted to disk if there is a store
        /// (flush, fsync), and restored when something arrives for it; without a store, or without room in it, it is closed and
        /// removed.
        pub max_sessions: usize = 200_000, within 1..=1 << 30;
        /// Bytes of memory that sessions take in each of `engine.shards`, estimated; beyond that, sessions are evicted in the
        /// same order.
        pub max_bytes: usize = 512 << 20, within 1 << 20..=1 << 40;
        /// Traces of one session; with one more it closes, and its id starts a new session. While none of them is done, more
        /// are refused.
        pub max_traces_per_session: usize = 10_000, within 1..=1 << 30;
        /// Bytes of memory that the traces of one session take, estimated; with one more trace it closes likewise.
        pub max_session_bytes: usize = 64 << 20, within 1 << 16..=1 << 40;
        /// Names of scores reported for one session as a whole; further ones are refused.
        pub max_reports_per_session: usize = 100, within 1..=1 << 20;
        /// How long a score reported for a session waits for it.
        #[serde(with = "human")]
        pub report_wait: Duration = 10 * MINUTE, within Duration::ZERO..=30 * DAY;
        /// Scores that wait for their session; beyond that, the oldest is dropped.
        pub max_waiting_reports: usize = 1_000, within 1..=1 << 30;
        /// Traces remembered by each of `engine.shards` after they moved to another session or their session was evicted;
        /// beyond that, the oldest is forgotten.
        pub max_departed_traces: usize = 100_000, within 1..=1 << 30;
        /// Sessions and traces that ended without an outcome that may still be reported, in each of `engine.shards`; beyond
        /// that, the oldest is forgotten, and its outcome does not count. Each takes less than a kilobyte.
        pub max_outstanding_outcomes: usize = 10_000, within 0..=1 << 30;
        /// Which formulas apply: agentgauge, pandaprobe (the documents' four signals and four decimals).
        pub profile: Profile = Profile::Agentgauge;
        /// What a score over nothing is: absent, or one (as the documents say).
        pub empty_score: EmptyScore = EmptyScore::Absent;
        /// Weight of each signal; those set here override the defaults, and a signal without a weight has no part in scores.
        pub signal_weights: BTreeMap<String, f64> = weights();
        /// Scores from which signals pass, where not 0.5 or the source's own, such as `{ coherence = 0.7 }`.
        pub signal_thresholds: BTreeMap<String, f64> = BTreeMap::new();
        /// `loop_detection` finds a loop in outputs that are at least this similar, in `[0,1]`.
        pub loop_detection_threshold: f64 = 0.5, within 0.0..=1.0;
        /// Trajectory gate: traces without gain after which a score below target stalls.
        pub gate_window: u64 = 5, within 1..=1 << 20;
        /// Trajectory gate: the score below which no gain is a stall.
        pub gate_target: f64 = 0.5, within 0.0..=1.0;
        /// Trajectory gate: what counts as gain.
        pub gate_gain: f64 = 0.02, within 0.0..=1.0;
        /// Trajectory gate: the drop below the peak that counts as regression.
        pub gate_drop: f64 = 0.15, within 0.0..=1.0;
    }
}

/// The weights of all signals that have one.
fn weights() -> BTreeMap<String, f64> {
    SIGNALS.iter().filter_map(|signal| Some((signal.name.to_owned(), signal.weight?))).collect()
}

/// What distinguishes session ids, beside the tenant.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionScope {
    /// `service.namespace`, or, without one, the name of the outermost agent.
    #[default]
    Service,
    /// Nothing: one id is one session, whichever services its traces come from.
    Tenant,
}

/// Which formulas apply.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// All signals, unrounded.
    #[default]
    Agentgauge,
    /// `PandaProbe`'s four signals, rounded to four decimals as it does.
    Pandaprobe,
}

/// What a score over nothing is.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EmptyScore {
    /// Not there.
    #[default]
    Absent,
    /// 1.0, as the documents say.
    One,
}

options! {
    /// Windows, series and bounds of agents.
    pub struct AgentOptions in "agents" {
        /// Rolling windows, in whole minutes. Metrics name them in the largest whole unit up to hours: 24h, not 1d.
        #[serde(with = "human_list")]
        pub windows: Vec<Duration> = [300, 3600, 86_400].map(Duration::from_secs).into();
        /// Also score the last this many traces, whatever their age.
        pub last_traces: usize = 50, within 1..=10_000;
        /// Most agents with series of their own; the rest share `__overflow__` until agents that have been quiet for longer
        /// than the longest window make room, the quietest first. Up to as many again are held that only unfinished traces
        /// point to; they get series while there is room.
        pub max_agents: usize = 1_000, within 1..=1_000_000;
        /// How long a silent agent is remembered, with its last traces, totals and counters.
        #[serde(with = "human")]
        pub memory: Duration = 30 * DAY, within MINUTE..=366 * DAY;
        /// Signals without a weight for which an agent has sums; further names have none.
        pub max_signals_per_agent: usize = 32, within 1..=10_000;
        /// Names of models without a price, and of sub-agents, for which an agent has series; further ones share
        /// `__overflow__`, and `agentgauge_label_values_limited_total{label="agent_names"}` counts.
        pub max_names_per_agent: usize = 32, within 1..=10_000;
        /// Runs of an agent that scores over runs are computed from; beyond that, the oldest is dropped.
        pub max_runs: usize = 10_000, within 1..=1_000_000;
        /// Traces of one run, and as many reports; further ones are left out.
        pub max_traces_per_run: usize = 1_000, within 1..=100_000;
        /// Bytes of memory that the runs of all agents take, estimated; beyond that, the oldest of the agent whose runs take
        /// most are dropped, first of the tenant whose runs take most in proportion to its share.
        pub max_run_bytes: usize = 1 << 30, within 1 << 20..=1 << 40;
        /// How long an agent keeps its runs when nothing else of it is held.
        #[serde(with = "human")]
        pub run_memory: Duration = 7 * DAY, within MINUTE..=366 * DAY;
    }
}

impl LoopOptions {
    /// The thresholds of a kind.
    pub fn of_kind(&self, kind: LoopKind) -> Thresholds {
        let both = Thresholds { warning: self.warning, critical: self.critical };
        self.by_kind.get(&kind).copied().unwrap_or(both)
    }

    /// Whether a tool may be called again and again.
    pub fn allows(&self, tool: &str) -> bool {
        self.allow.iter().any(|pattern| fits(pattern, tool))
    }
}

/// Durations as people write them: `10s`, `5m`, `1h`, `250ms`, `1h30m`.
pub mod human {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    /// Units, greatest first.
    const UNITS: [(&str, u64); 5] =
        [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

    /// Reads a duration.
    ///
    /// # Errors
    ///
    /// Fails on anything but numbers with units of `d`, `h`, `m`, `s`, `ms`.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse(&text).ok_or_else(|| {
            serde::de::Error::custom(format!(
                "`{text}` is not a duration; write one like `10s`, `5m` or `1h30m`"
            ))
        })
    }

    /// Writes a duration.
    ///
    /// # Errors
    ///
    /// As the serializer does.
    pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&render(*value))
    }

    /// Reads `1h30m` and the like; `None` if it is not a duration.
    pub fn parse(text: &str) -> Option<Duration> {
        let mut millis = 0_u64;
        let mut rest = text;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit())?;
            let number: u64 = rest.get(..digits)?.parse().ok()?;
            let tail = rest.get(digits..)?;
            let unit = tail.find(|c: char| c.is_ascii_digit()).map_or(tail, |at| &tail[..at]);
            let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
            millis = millis.checked_add(number.checked_mul(*factor)?)?;
            rest = &tail[unit.len()..];
        }
        (!text.is_empty()).then(|| Duration::from_millis(millis))
    }

    /// Writes `1h30m` and the like.
    pub fn render(value: Duration) -> String {
        let mut millis = u64::try_from(value.as_millis()).unwrap_or(u64::MAX);
        let mut text = String::new();
        for (unit, factor) in UNITS {
            if millis >= factor {
                text.push_str(&(millis / factor).to_string());
                text.push_str(unit);
                millis %= factor;
            }
        }
        if text.is_empty() { "0s".to_owned() } else { text }
    }
}

/// Lists of durations as people write them.
pub mod human_list {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Deserialize, Serialize)]
    struct Item(#[serde(with = "super::human")] Duration);

    /// Reads a list of durations.
    ///
    /// # Errors
    ///
    /// Fails if one of them is not a duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<Duration>, D::Error> {
        Ok(Vec::<Item>::deserialize(deserializer)?.into_iter().map(|item| item.0).collect())
    }

    /// Writes a list of durations.
    ///
    /// # Errors
    ///
    /// As the serializer does.
    pub fn serialize<S: Serializer>(values: &[Duration], serializer: S) -> Result<S::Ok, S::Error> {
        values.iter().map(|value| Item(*value)).collect::<Vec<_>>().serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_reads_back_as_written() {
        for text in ["10s", "5m", "1h30m", "250ms", "1d", "0s"] {
            assert_eq!(human::render(human::parse(text).unwrap()), text);
        }
        for text in ["", "10", "s", "10 s", "1y", "-1s"] {
            assert_eq!(human::parse(text), None, "{text}");
        }
    }
}
