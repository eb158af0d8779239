//! The Prometheus text format and OpenMetrics, from live state at each scrape: a series that ended is gone.
//!
//! The agent's labels are rendered once per agent. A score over nothing has no series.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::families::{
    ARS_COMPONENT, CHANGE_POINT_TIME, CHANGE_POINTS, CONSISTENCY, COUNTERS, CounterFamily, Family,
    Kind, MAX_RISK, OPEN_SESSIONS, PASS_HAT_K, RELIABILITY, RUNS_HELD, SCORE_SAMPLES, SCORES,
    SESSION_CONSISTENCY, SESSION_RELIABILITY, SESSIONS_ACTIVE, SESSIONS_LOOPING, SIGNAL,
    ScoreFamily, TRACE_SIGNAL, VERSION_DIFFERENCE, WINDOW_EVALUATED, WINDOW_SESSIONS,
    WINDOW_TRACES,
};
use crate::engine::agent_update::{AgentUpdate, Buckets};
use crate::engine::math::{Quanta, ratio};
use crate::engine::sessions::SCORE_BOUNDS;
use crate::engine::update::{AgentKey, Exemplar};
use crate::engine::view::WindowView;

/// Label values are cut to this many bytes.
const MAX_LABEL_BYTES: usize = 128;

/// Nanoseconds of a second.
const NANOS: u64 = 1_000_000_000;

/// The format of an exposition.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Format {
    /// Prometheus text 0.0.4.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// The best format that an `Accept` header takes: OpenMetrics if it is named, else text.
    pub fn accepted(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") { Self::OpenMetrics } else { Self::Text }
    }

    /// The content type of an answer.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Renders all agents in one piece. OpenMetrics still wants its `# EOF` after what others have to add.
pub fn render(agents: &[Arc<AgentUpdate>], format: Format, detail: Detail) -> String {
    Exposition::new(agents.to_vec(), format, detail).collect()
}

/// Which families are exported.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Detail {
    /// Those that alerts and the headline need.
    #[default]
    Core,
    /// All.
    Full,
}

/// A page in pieces, one after the other: whoever sends it can let others run between two of them.
///
/// A piece may be empty. It holds up its thread for a bounded time, however many agents there are.
#[derive(Debug)]
pub struct Exposition {
    // Those whose labels are not rendered yet.
    waiting: std::vec::IntoIter<Arc<AgentUpdate>>,
    agents: Vec<Exported>,
    parts: Vec<Part>,
    page: Page,
    // Where it goes on.
    part: usize,
    agent: usize,
}

/// From so many bytes, or so many looks at an agent, a piece is enough.
const PIECE_BYTES: usize = 56 << 10;
const PIECE_LOOKS: usize = 500;

/// Agents that a piece lets go of once everything is written: what was written over since has its last owner here.
const PIECE_AGENTS: usize = 50;

#[derive(Debug)]
struct Exported {
    update: Arc<AgentUpdate>,
    // Rendered once: `service_name="..",...`.
    labels: String,
}

/// Reads one number of a window.
type Reading = fn(&WindowView) -> Option<f64>;

/// What is written of one agent after the other: a family has to be in one place.
#[derive(Clone, Copy, Debug)]
enum Part {
    Window(&'static Family, Reading),
    Evaluated,
    Signal,
    RunScore(&'static ScoreFamily),
    RunSamples(Detail),
    PassHatK,
    ArsComponent,
    RunsHeld,
    ChangePoints,
    ChangePointTime,
    VersionDifference,
    SessionsActive,
    SessionsLooping,
    OpenSessions,
    TraceSignal,
    ClosedSessions(&'static Family, &'static str),
    Counter(&'static CounterFamily),
}

/// What is written so far.
#[derive(Debug)]
struct Page {
    text: String,
    format: Format,
    // The head of a family that has no sample yet, and none if it gets none.
    head: Option<&'static Family>,
}

impl Exposition {
    /// The page of these agents, which come in the order of their names.
    pub fn new(agents: Vec<Arc<AgentUpdate>>, format: Format, detail: Detail) -> Self {
        Self {
            agents: Vec::with_capacity(agents.len()),
            waiting: agents.into_iter(),
            parts: Part::all(detail),
            page: Page { text: String::new(), format, head: None },
            part: 0,
            agent: 0,
        }
    }

    /// Writes a piece.
    fn write(&mut self) -> String {
        self.page.text.reserve(PIECE_BYTES + PIECE_BYTES / 8);
        for _ in 0..PIECE_LOOKS {
            let Some(part) = self.parts.get(self.part) else { break };
            if self.agent == 0 {
                self.page.begin(part);
            }
            if let Some(agent) = self.agents.get(self.agent) {
                self.page.write(part, agent);
            }
            self.agent += 1;
            if self.agent >= self.agents.len() {
                (self.part, self.agent) = (self.part + 1, 0);
            }
            if self.page.text.len() >= PIECE_BYTES {
                break;
            }
        }
        std::mem::take(&mut self.page.text)
    }
}

impl Iterator for Exposition {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        if self.waiting.len() > 0 {
            let labelled = self.waiting.by_ref().take(PIECE_LOOKS).map(Exported::new);
            self.agents.extend(labelled);
        } else if self.part < self.parts.len() {
            return Some(self.write());
        } else {
            let left = self.agents.len().checked_sub(1)?.saturating_sub(PIECE_AGENTS);
            self.agents.truncate(left);
        }
        Some(String::new())
    }
}

impl Exported {
    fn new(update: Arc<AgentUpdate>) -> Self {
        let labels = label_block(&update.agent);
        Self { update, labels }
    }
}

impl Part {
    /// All of them, in the order of the page.
    fn all(detail: Detail) -> Vec<Self> {
        let shown = |score: &&ScoreFamily| score.core || detail == Detail::Full;
        let windows = [
            Self::Window(&RELIABILITY, |window| window.reliability),
            Self::Window(&CONSISTENCY, |window| window.consistency),
            Self::Window(&MAX_RISK, |window| window.max_risk),
            Self::Window(&WINDOW_TRACES, |window| Some(number(window.traces))),
            Self::Window(&WINDOW_SESSIONS, |window| Some(number(window.sessions))),
            Self::Evaluated,
            Self::Signal,
        ];
        let components = (detail == Detail::Full).then_some(Self::ArsComponent);
        let shifts = [
            Self::RunsHeld,
            Self::ChangePoints,
            Self::ChangePointTime,
            Self::VersionDifference,
            Self::SessionsActive,
            Self::SessionsLooping,
            Self::OpenSessions,
            Self::TraceSignal,
            Self::ClosedSessions(&SESSION_RELIABILITY, "reliability"),
            Self::ClosedSessions(&SESSION_CONSISTENCY, "consistency"),
        ];
        let mut parts = windows.to_vec();
        parts.extend(SCORES.iter().filter(shown).map(Self::RunScore));
        parts.extend([Self::RunSamples(detail), Self::PassHatK]);
        parts.extend(components);
        parts.extend(shifts);
        parts.extend(COUNTERS.iter().map(Self::Counter));
        parts
    }

    /// Its family, and whether that has a head even if no agent has a sample.
    fn family(self) -> (&'static Family, bool) {
        match self {
            Self::Window(family, _) | Self::ClosedSessions(family, _) => (family, true),
            Self::Evaluated => (&WINDOW_EVALUATED, true),
            Self::Signal => (&SIGNAL, true),
            Self::RunScore(score) => (&score.family, false),
            Self::RunSamples(_) => (&SCORE_SAMPLES, false),
            Self::PassHatK => (&PASS_HAT_K, false),
            Self::ArsComponent => (&ARS_COMPONENT, false),
            Self::RunsHeld => (&RUNS_HELD, false),
            Self::ChangePoints => (&CHANGE_POINTS, false),
            Self::ChangePointTime => (&CHANGE_POINT_TIME, false),
            Self::VersionDifference => (&VERSION_DIFFERENCE, false),
            Self::SessionsActive => (&SESSIONS_ACTIVE, true),
            Self::SessionsLooping => (&SESSIONS_LOOPING, true),
            Self::OpenSessions => (&OPEN_SESSIONS, true),
            Self::TraceSignal => (&TRACE_SIGNAL, true),
            Self::Counter(counter) => (&counter.family, true),
        }
    }
}

impl Page {
    /// Begins a family.
    fn begin(&mut self, part: &Part) {
        let (family, always) = part.family();
        self.head = Some(family);
        if always {
            self.head();
        }
    }

    /// Writes what a part has of an agent.
    fn write(&mut self, part: &Part, agent: &Exported) {
        let Exported { update, labels } = agent;
        match *part {
            Part::Window(family, of) => self.window(family, of, agent),
            Part::Evaluated => self.evaluated(agent),
            Part::Signal => {
                for (name, window) in &update.windows {
                    for (signal, mean) in &window.signals {
                        self.sample(&SIGNAL, "", labels, &[signal, name], *mean);
                    }
                }
            }
            Part::RunScore(score) => {
                for (name, scores) in &update.run_scores {
                    if let Some((value, _)) = scores.scores.get(score.score) {
                        self.sample(&score.family, "", labels, &[name], *value);
                    }
                }
            }
            Part::RunSamples(detail) => self.run_samples(agent, detail),
            Part::PassHatK => {
                for (name, scores) in &update.run_scores {
                    for (k, chance) in &scores.pass_hat_k {
                        self.sample(&PASS_HAT_K, "", labels, &[&k.to_string(), name], *chance);
                    }
                }
            }
            Part::ArsComponent => {
                let components = update.view.ars.iter().flat_map(|ars| &ars.components);
                for (name, component) in components {
                    self.sample(&ARS_COMPONENT, "", labels, &[name], component.score);
                }
            }
            Part::RunsHeld if update.runs == 0 => {}
            Part::RunsHeld => self.sample(&RUNS_HELD, "", labels, &[], number(update.runs)),
            Part::SessionsActive => {
                self.sample(&SESSIONS_ACTIVE, "", labels, &[], number(update.sessions_active));
            }
            Part::SessionsLooping => self.looping(agent),
            Part::ChangePoints | Part::ChangePointTime | Part::VersionDifference => {
                self.shifts(*part, agent);
            }
            Part::OpenSessions => self.open_sessions(agent),
            Part::TraceSignal => {
                for (signal, buckets) in &update.trace_signals {
                    self.histogram(&TRACE_SIGNAL, labels, &[signal], buckets);
                }
            }
            Part::ClosedSessions(family, score) => {
                if let Some(buckets) = update.closed_sessions.get(score) {
                    self.histogram(family, labels, &[], buckets);
                }
            }
            Part::Counter(counter) => self.counter(counter, agent),
        }
    }

    fn window(&mut self, family: &Family, of: Reading, agent: &Exported) {
        for (name, window) in &agent.update.windows {
            // Which sessions the last traces are of is not known.
            let known = family.name != WINDOW_SESSIONS.name || !name.starts_with("last_");
            if let Some(value) = of(window).filter(|_| known) {
                self.sample(family, "", &agent.labels, &[name], value);
            }
        }
    }

    fn evaluated(&mut self, agent: &Exported) {
        for (name, window) in &agent.update.windows {
            let counts = [
                ("consistency", window.traces_with_confidence),
                ("reliability", window.traces_evaluated),
            ];
            for (score, count) in counts {
                let labels = [score, name.as_str()];
                self.sample(&WINDOW_EVALUATED, "", &agent.labels, &labels, number(count));
            }
        }
    }

    /// How many runs each score is over.
    fn run_samples(&mut self, agent: &Exported, detail: Detail) {
        for (name, scores) in &agent.update.run_scores {
            for score in SCORES.iter().filter(|score| score.core || detail == Detail::Full) {
                if let Some((_, samples)) = scores.scores.get(score.score) {
                    let labels = [score.score, name.as_str()];
                    self.sample(&SCORE_SAMPLES, "", &agent.labels, &labels, number(*samples));
                }
            }
        }
    }

    fn looping(&mut self, agent: &Exported) {
        for (values, sessions) in &agent.update.sessions_looping {
            let values: Vec<&str> = values.iter().map(String::as_str).collect();
            self.sample(&SESSIONS_LOOPING, "", &agent.labels, &values, number(*sessions));
        }
    }

    /// Change points, and versions compared.
    fn shifts(&mut self, part: Part, agent: &Exported) {
        let Exported { update, labels } = agent;
        if let Part::VersionDifference = part {
            for version in &update.view.versions {
                for (bound, value) in [("lower", version.lower), ("upper", version.upper)] {
                    let values = [version.baseline.as_str(), bound];
                    self.sample(&VERSION_DIFFERENCE, "", labels, &values, value);
                }
            }
            return;
        }
        for ((score, direction), (count, last)) in &update.change_points {
            let values = [score.as_str(), direction];
            if let Part::ChangePoints = part {
                self.sample(&CHANGE_POINTS, "_total", labels, &values, number(*count));
            } else {
                let seconds = ratio(i128::from(last.0), i128::from(NANOS));
                self.sample(&CHANGE_POINT_TIME, "", labels, &values, seconds);
            }
        }
    }

    fn open_sessions(&mut self, agent: &Exported) {
        for (score, buckets) in &agent.update.open_sessions {
            for (bound, count) in cumulative(buckets) {
                let values = [score, bound.as_str()];
                self.sample(&OPEN_SESSIONS, "", &agent.labels, &values, number(count));
            }
        }
    }

    fn counter(&mut self, counter: &CounterFamily, agent: &Exported) {
        let zeros = counter.zeros.iter().map(|labels| (labels.to_vec(), 0));
        let mut values: BTreeMap<Vec<&str>, u64> = zeros.collect();
        let counted = agent.update.counters.get(counter.engine).into_iter().flatten();
        values.extend(counted.map(|(labels, value)| {
            let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
            (labels, *value)
        }));
        for (labels, value) in values {
            let value = ratio(i128::from(value), i128::from(counter.per_unit));
            self.sample(&counter.family, "_total", &agent.labels, &labels, value);
        }
    }

    /// The head of the family that was begun, unless it is there.
    fn head(&mut self) {
        if let Some(family) = self.head.take() {
            self.family(family);
        }
    }

    /// The head of a family. In the text format a counter's family carries its `_total`.
    fn family(&mut self, family: &Family) {
        let kind = match family.kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
        };
        let total =
            if self.format == Format::Text && family.kind == Kind::Counter { "_total" } else { "" };
        let name = family.name;
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP {name}{total} {}", family.help);
        let _ = writeln!(self.text, "# TYPE {name}{total} {kind}");
    }

    fn sample(&mut self, family: &Family, suffix: &str, agent: &str, labels: &[&str], value: f64) {
        self.head();
        self.text.push_str(family.name);
        self.text.push_str(suffix);
        self.labels(family, agent, labels);
        self.value(value);
    }

    fn histogram(&mut self, family: &Family, agent: &str, labels: &[&str], buckets: &Buckets) {
        self.head();
        for (bucket, (bound, count)) in (0..).zip(cumulative(buckets)) {
            self.text.push_str(family.name);
            self.text.push_str("_bucket");
            self.labels(family, agent, labels);
            // The closing brace makes room for the bucket's bound.
            self.text.pop();
            let _ = write!(self.text, ",le=\"{bound}\"}} {}", number(count));
            // The text format has no exemplars.
            let exemplars = (self.format == Format::OpenMetrics).then_some(&buckets.exemplars);
            if let Some(exemplar) = exemplars.and_then(|exemplars| exemplars.get(&bucket)) {
                self.exemplar(exemplar);
            }
            self.text.push('\n');
        }
        self.sample(family, "_sum", agent, labels, ratio(buckets.sum, i128::from(Quanta::ONE)));
        self.sample(family, "_count", agent, labels, number(buckets.count));
    }

    /// An example of what is in a bucket: its trace, its score, and when it ended.
    fn exemplar(&mut self, exemplar: &Exemplar) {
        self.text.push_str(" # {trace_id=\"");
        for byte in &exemplar.trace_id {
            let _ = write!(self.text, "{byte:02x}");
        }
        let score = Quanta(exemplar.score_quanta).to_f64();
        let (seconds, nanos) = (exemplar.end_unix_nano / NANOS, exemplar.end_unix_nano % NANOS);
        let _ = write!(self.text, "\"}} {score} {seconds}.{:03}", nanos / 1_000_000);
    }

    fn labels(&mut self, family: &Family, agent: &str, values: &[&str]) {
        self.text.push('{');
        self.text.push_str(agent);
        for (name, value) in family.labels.iter().zip(values) {
            let _ = write!(self.text, ",{name}=\"");
            escape(value, &mut self.text);
            self.text.push('"');
        }
        self.text.push('}');
    }

    fn value(&mut self, value: f64) {
        let _ = writeln!(self.text, " {value}");
    }
}

/// The labels of an agent; absent ones are empty, which Prometheus takes as absent.
fn label_block(agent: &AgentKey) -> String {
    let mut block = String::new();
    let tenant = (!agent.tenant.is_empty()).then_some(("tenant", &agent.tenant));
    let names = [
        ("service_name", &agent.service_name),
        ("gen_ai_agent_name", &agent.agent_name),
        ("gen_ai_agent_version", &agent.agent_version),
        ("deployment_environment_name", &agent.environment),
    ];
    for (name, value) in names.into_iter().chain(tenant) {
        if !block.is_empty() {
            block.push(',');
        }
        let _ = write!(block, "{name}=\"");
        escape(value, &mut block);
        block.push('"');
    }
    block
}

/// Escapes a label value and cuts it; control characters, which some parsers choke on, become spaces.
fn escape(value: &str, text: &mut String) {
    for c in value[..value.floor_char_boundary(MAX_LABEL_BYTES)].chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => text.push(' '),
            c => text.push(c),
        }
    }
}

/// Cumulative counts with their upper bounds as text, the last of them infinite.
fn cumulative(buckets: &Buckets) -> impl Iterator<Item = (String, u64)> + '_ {
    let bounds = SCORE_BOUNDS.iter().map(|bound| format!("{bound:?}")).chain(["+Inf".to_owned()]);
    let mut sum = 0;
    bounds.zip(buckets.buckets.iter().chain(std::iter::repeat(&0))).map(move |(bound, count)| {
        sum += count;
        (bound, sum)
    })
}

fn number(count: u64) -> f64 {
    ratio(i128::from(count), 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prometheus::{Encoder, GaugeVec, Opts, Registry, TextEncoder};

    use super::*;

    fn agent(name: &str) -> Arc<AgentUpdate> {
        let key = AgentKey {
            service_name: name.to_owned(),
            agent_name: "a".to_owned(),
            ..AgentKey::default()
        };
        let window = WindowView {
            traces: 3,
            sessions: 1,
            traces_evaluated: 3,
            traces_with_confidence: 2,
            reliability: Some(0.4),
            consistency: Some(0.725),
            max_risk: Some(0.6),
            signals: [("error".to_owned(), 1.0)].into(),
        };
        let exemplar = Exemplar {
            bucket: 1,
            end_unix_nano: 1_700_000_000_250_000_000,
            trace_id: vec![0xab; 16],
            score_quanta: Quanta::from_f64(0.25).unwrap().0,
        };
        let buckets = Buckets {
            buckets: vec![0, 1, 0, 2],
            count: 3,
            sum: i128::from(Quanta::ONE),
            exemplars: [(1, exemplar)].into(),
        };
        Arc::new(AgentUpdate {
            agent: key,
            windows: [("1h".to_owned(), window), ("5m".to_owned(), WindowView::default())].into(),
            counters: [
                ("traces".to_owned(), [(vec![], 3)].into()),
                ("cost_usd".to_owned(), [(vec![], 1_500_000_000_000)].into()),
                (
                    "trace_evaluations".to_owned(),
                    [(vec!["error".to_owned(), "pass".to_owned()], 3)].into(),
                ),
            ]
            .into(),
            sessions_looping: [(vec!["cycle".to_owned(), "warning".to_owned()], 1)].into(),
            open_sessions: [("reliability", buckets.clone())].into(),
            closed_sessions: [("reliability", buckets.clone())].into(),
            trace_signals: [("error".to_owned(), buckets)].into(),
            ..AgentUpdate::default()
        })
    }

    /// The samples of a page: name and labels to value.
    fn samples(page: &str) -> BTreeMap<String, String> {
        let lines = page.lines().filter(|line| !line.starts_with('#'));
        lines
            .filter_map(|line| line.rsplit_once(' '))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    #[test]
    fn a_page_is_as_it_was() {
        insta::assert_snapshot!(render(&[agent("s")], Format::Text, Detail::Core));
    }

    #[test]
    fn a_score_over_nothing_has_no_series() {
        let page = render(&[agent("s")], Format::Text, Detail::Core);
        let scores: Vec<&str> = page
            .lines()
            .filter(|line| line.starts_with("agentgauge_agent_reliability_score{"))
            .collect();
        assert_eq!(scores.len(), 1);
        assert!(scores[0].contains("window=\"1h\"") && scores[0].ends_with(" 0.4"));
    }

    #[test]
    fn the_formats_differ_in_the_names_of_counters_and_in_exemplars_alone() {
        let text = render(&[agent("s")], Format::Text, Detail::Core);
        let open = render(&[agent("s")], Format::OpenMetrics, Detail::Core);
        let plain: Vec<&str> =
            open.lines().map(|line| line.split(" # ").next().unwrap_or(line)).collect();
        assert_eq!(samples(&text), samples(&plain.join("\n")));
        assert!(text.contains("# TYPE agentgauge_traces_total counter"));
        assert!(open.contains("# TYPE agentgauge_traces counter"));
    }

    #[test]
    fn a_bucket_of_openmetrics_names_a_trace() {
        let open = render(&[agent("s")], Format::OpenMetrics, Detail::Core);
        let trace = "ab".repeat(16);
        let line = format!("le=\"0.3\"}} 1 # {{trace_id=\"{trace}\"}} 0.25 1700000000.250\n");
        assert!(open.contains(&line), "{open}");
        let text = render(&[agent("s")], Format::Text, Detail::Core);
        assert!(!text.contains(&trace));
    }

    #[test]
    fn every_family_has_one_head_and_every_series_is_unique() {
        let page = render(&[agent("s"), agent("t")], Format::Text, Detail::Core);
        let heads: Vec<&str> = page.lines().filter(|line| line.starts_with("# TYPE")).collect();
        assert_eq!(heads.len(), heads.iter().collect::<BTreeSet<_>>().len());
        let lines: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(lines.len(), samples(&page).len());
    }

    #[test]
    fn hostile_labels_come_out_as_the_library_writes_them() {
        for name in ["plain", "quo\"te", "back\\slash", "new\nline", "ünïcode"] {
            let registry = Registry::new();
            let labels = [
                "service_name",
                "gen_ai_agent_name",
                "gen_ai_agent_version",
                "deployment_environment_name",
                "window",
            ];
            let gauge =
                GaugeVec::new(Opts::new(RELIABILITY.name, RELIABILITY.help), &labels).unwrap();
            gauge.with_label_values(&[name, "a", "", "", "1h"]).set(0.4);
            registry.register(Box::new(gauge)).unwrap();
            let mut expected = Vec::new();
            TextEncoder::new().encode(&registry.gather(), &mut expected).unwrap();
            let page = render(&[agent(name)], Format::Text, Detail::Core);
            // The library sorts labels; the sets are the same.
            let set = |line: &str| {
                let inner = line.split_once('{').unwrap().1.rsplit_once('}').unwrap().0.to_owned();
                inner
                    .split("\",")
                    .map(|label| label.trim_end_matches('"').to_owned())
                    .collect::<BTreeSet<_>>()
            };
            let line = |text: &str| {
                text.lines()
                    .find(|line| line.starts_with("agentgauge_agent_reliability_score{"))
                    .unwrap()
                    .to_owned()
            };
            let expected = line(&String::from_utf8(expected).unwrap());
            assert_eq!(set(&line(&page)), set(&expected));
        }
    }

    #[test]
    fn long_and_control_characters_do_not_reach_a_label() {
        let page = render(
            &[agent(&format!("a\r\0\u{2028}{}", "x".repeat(500)))],
            Format::Text,
            Detail::Core,
        );
        assert!(!page.contains(['\r', '\0', '\u{2028}']));
        assert!(page.lines().all(|line| line.len() < 400));
    }

    #[test]
    fn pieces_are_small_however_many_agents_there_are_and_make_the_same_page() {
        let agents: Vec<_> = (0..600).map(|n| agent(&format!("service-{n:04}"))).collect();
        let one = Exposition::new(vec![agent("service-0000")], Format::Text, Detail::Full);
        let one: usize = one.map(|piece| piece.len()).sum();
        let pieces: Vec<String> =
            Exposition::new(agents.clone(), Format::Text, Detail::Full).collect();
        assert!(pieces.len() > 3);
        assert!(pieces.iter().all(|piece| piece.len() <= PIECE_BYTES + one));
        let heads = |page: &str| page.lines().filter(|line| line.starts_with('#')).count();
        let page = pieces.concat();
        let alone = render(&[agent("service-0000")], Format::Text, Detail::Full);
        assert_eq!(heads(&page), heads(&alone));
        assert_eq!(samples(&page).len(), 600 * samples(&alone).len());
    }

    #[test]
    fn agents_that_have_nothing_to_say_do_not_make_a_piece_long() {
        let nothing = Arc::new(AgentUpdate::default());
        let agents = vec![nothing; 2 * PIECE_LOOKS];
        let pieces = Exposition::new(agents, Format::Text, Detail::Full).count();
        assert!(pieces > 2 * SCORES.len(), "{pieces}");
    }
}
