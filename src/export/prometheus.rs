//! The Prometheus text format and OpenMetrics, from live state at each scrape: a series that ended is gone.
//!
//! The agent's labels are rendered once per agent. A score over nothing has no series.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::families::{
    ARS_COMPONENT, CHANGE_POINT_TIME, CHANGE_POINTS, CONSISTENCY, COUNTERS, Family, Kind, MAX_RISK,
    OPEN_SESSIONS, PASS_HAT_K, RELIABILITY, RUNS_HELD, SCORE_SAMPLES, SCORES, SESSION_CONSISTENCY,
    SESSION_RELIABILITY, SESSIONS_ACTIVE, SESSIONS_LOOPING, SIGNAL, ScoreFamily, TRACE_SIGNAL,
    VERSION_DIFFERENCE, WINDOW_EVALUATED, WINDOW_SESSIONS, WINDOW_TRACES,
};
use crate::engine::agents::{AgentUpdate, Buckets};
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

/// Renders all agents. OpenMetrics still wants its `# EOF` after what others have to add.
pub fn render(agents: &[Arc<AgentUpdate>], format: Format, detail: Detail) -> String {
    let blocks: Vec<String> = agents.iter().map(|update| label_block(&update.agent)).collect();
    let agents: Vec<Exported<'_>> =
        agents.iter().zip(&blocks).map(|(update, labels)| Exported { update, labels }).collect();
    let mut page = Page { text: String::with_capacity(8_192 * (agents.len() + 1)), format };
    page.scores(&agents);
    page.run_scores(&agents, detail);
    page.sessions(&agents);
    page.histograms(&agents);
    page.counters(&agents);
    page.text
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

struct Exported<'a> {
    update: &'a AgentUpdate,
    // Rendered once: `service_name="..",...`.
    labels: &'a str,
}

/// Reads one number of a window.
type Reading = fn(&WindowView) -> Option<f64>;

/// A page in the making.
struct Page {
    text: String,
    format: Format,
}

impl Page {
    fn scores(&mut self, agents: &[Exported<'_>]) {
        let windows: [(&Family, Reading); 5] = [
            (&RELIABILITY, |window| window.reliability),
            (&CONSISTENCY, |window| window.consistency),
            (&MAX_RISK, |window| window.max_risk),
            (&WINDOW_TRACES, |window| Some(number(window.traces))),
            (&WINDOW_SESSIONS, |window| Some(number(window.sessions))),
        ];
        for (family, of) in windows {
            self.family(family);
            for agent in agents {
                for (name, window) in &agent.update.windows {
                    // Which sessions the last traces are of is not known.
                    let known = family.name != WINDOW_SESSIONS.name || !name.starts_with("last_");
                    if let Some(value) = of(window).filter(|_| known) {
                        self.sample(family, "", agent.labels, &[name], value);
                    }
                }
            }
        }
        self.family(&WINDOW_EVALUATED);
        for agent in agents {
            for (name, window) in &agent.update.windows {
                let counts = [
                    ("consistency", window.traces_with_confidence),
                    ("reliability", window.traces_evaluated),
                ];
                for (score, count) in counts {
                    self.sample(&WINDOW_EVALUATED, "", agent.labels, &[score, name], number(count));
                }
            }
        }
        self.family(&SIGNAL);
        for agent in agents {
            for (name, window) in &agent.update.windows {
                for (signal, mean) in &window.signals {
                    self.sample(&SIGNAL, "", agent.labels, &[signal, name], *mean);
                }
            }
        }
    }

    /// Scores over runs; a family that no agent has anything in has no head either.
    fn run_scores(&mut self, agents: &[Exported<'_>], detail: Detail) {
        let shown = |score: &&ScoreFamily| score.core || detail == Detail::Full;
        for score in SCORES.iter().filter(shown) {
            let samples = agents.iter().flat_map(|agent| {
                let windows = agent.update.run_scores.iter();
                windows.filter_map(|(name, scores)| {
                    let (value, _) = scores.scores.get(score.score)?;
                    Some((agent.labels, vec![name.clone()], *value))
                })
            });
            self.gauges(&score.family, samples.collect());
        }
        let counts = agents.iter().flat_map(|agent| {
            let windows = agent.update.run_scores.iter();
            windows.flat_map(|(name, scores)| {
                let known = SCORES.iter().filter(shown).filter_map(|score| {
                    let (_, samples) = scores.scores.get(score.score)?;
                    Some((
                        agent.labels,
                        vec![score.score.to_owned(), name.clone()],
                        number(*samples),
                    ))
                });
                known.collect::<Vec<_>>()
            })
        });
        self.gauges(&SCORE_SAMPLES, counts.collect());
        let chances = agents.iter().flat_map(|agent| {
            let windows = agent.update.run_scores.iter();
            windows.flat_map(|(name, scores)| {
                let chances = scores.pass_hat_k.iter();
                chances
                    .map(|(k, chance)| (agent.labels, vec![k.to_string(), name.clone()], *chance))
            })
        });
        self.gauges(&PASS_HAT_K, chances.collect());
        if detail == Detail::Full {
            let components = agents.iter().flat_map(|agent| {
                let components = agent.update.view.ars.iter().flat_map(|ars| &ars.components);
                components
                    .map(|(name, component)| (agent.labels, vec![name.clone()], component.score))
            });
            self.gauges(&ARS_COMPONENT, components.collect());
        }
        let held = agents.iter().filter(|agent| agent.update.runs > 0);
        let held = held.map(|agent| (agent.labels, Vec::new(), number(agent.update.runs)));
        self.gauges(&RUNS_HELD, held.collect());
        self.shifts(agents);
    }

    /// Change points, and versions compared.
    fn shifts(&mut self, agents: &[Exported<'_>]) {
        let points = || {
            agents.iter().flat_map(|agent| {
                let points = agent.update.change_points.iter();
                points.map(|((score, direction), (count, last))| {
                    (agent.labels, vec![score.clone(), (*direction).to_owned()], *count, *last)
                })
            })
        };
        if points().next().is_some() {
            self.family(&CHANGE_POINTS);
            for (agent, labels, count, _) in points() {
                let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
                self.sample(&CHANGE_POINTS, "_total", agent, &labels, number(count));
            }
        }
        let times = points().map(|(agent, labels, _, last)| {
            (agent, labels, ratio(i128::from(last.0), 1_000_000_000))
        });
        self.gauges(&CHANGE_POINT_TIME, times.collect());
        let bounds = agents.iter().flat_map(|agent| {
            agent.update.view.versions.iter().flat_map(|version| {
                [("lower", version.lower), ("upper", version.upper)].map(|(bound, value)| {
                    (agent.labels, vec![version.baseline.clone(), bound.to_owned()], value)
                })
            })
        });
        self.gauges(&VERSION_DIFFERENCE, bounds.collect());
    }

    /// A family of gauges, unless there are none.
    fn gauges(&mut self, family: &Family, samples: Vec<(&str, Vec<String>, f64)>) {
        if samples.is_empty() {
            return;
        }
        self.family(family);
        for (agent, labels, value) in samples {
            let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
            self.sample(family, "", agent, &labels, value);
        }
    }

    fn sessions(&mut self, agents: &[Exported<'_>]) {
        self.family(&SESSIONS_ACTIVE);
        for agent in agents {
            self.sample(
                &SESSIONS_ACTIVE,
                "",
                agent.labels,
                &[],
                number(agent.update.sessions_active),
            );
        }
        self.family(&SESSIONS_LOOPING);
        for agent in agents {
            for (labels, sessions) in &agent.update.sessions_looping {
                let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
                self.sample(&SESSIONS_LOOPING, "", agent.labels, &labels, number(*sessions));
            }
        }
        self.family(&OPEN_SESSIONS);
        for agent in agents {
            for (score, buckets) in &agent.update.open_sessions {
                for (bound, count) in cumulative(buckets) {
                    self.sample(&OPEN_SESSIONS, "", agent.labels, &[score, &bound], number(count));
                }
            }
        }
    }

    fn histograms(&mut self, agents: &[Exported<'_>]) {
        self.family(&TRACE_SIGNAL);
        for agent in agents {
            for (signal, buckets) in &agent.update.trace_signals {
                self.histogram(&TRACE_SIGNAL, agent.labels, &[signal], buckets);
            }
        }
        for (family, score) in
            [(&SESSION_RELIABILITY, "reliability"), (&SESSION_CONSISTENCY, "consistency")]
        {
            self.family(family);
            for agent in agents {
                if let Some(buckets) = agent.update.closed_sessions.get(score) {
                    self.histogram(family, agent.labels, &[], buckets);
                }
            }
        }
    }

    fn counters(&mut self, agents: &[Exported<'_>]) {
        for counter in COUNTERS {
            self.family(&counter.family);
            for agent in agents {
                let zeros = counter.zeros.iter().map(|labels| (labels.to_vec(), 0));
                let mut values: BTreeMap<Vec<&str>, u64> = zeros.collect();
                let counted = agent.update.counters.get(counter.engine).into_iter().flatten();
                values.extend(
                    counted.map(|(labels, value)| {
                        (labels.iter().map(String::as_str).collect(), *value)
                    }),
                );
                for (labels, value) in values {
                    let value = ratio(i128::from(value), i128::from(counter.per_unit));
                    self.sample(&counter.family, "_total", agent.labels, &labels, value);
                }
            }
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
        self.text.push_str(family.name);
        self.text.push_str(suffix);
        self.labels(family, agent, labels);
        self.value(value);
    }

    fn histogram(&mut self, family: &Family, agent: &str, labels: &[&str], buckets: &Buckets) {
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
}
