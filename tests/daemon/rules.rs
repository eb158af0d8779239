//! The rules and dashboards that come with the daemon use only exported series, and every alert is explained.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use agentgauge::engine::span::Timestamp;
use agentgauge::health::Health;
use agentgauge::ingest::RequestCounts;

use serde_json::Value;

use crate::support::daemon::Daemon;
use crate::support::promql::{Parsed, Series, is_selected, parse, series};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn rules() -> String {
    std::fs::read_to_string(folder("deploy/prometheus/agentgauge.rules.yml")).unwrap()
}

/// The values of a key in the rules, a block of several lines as one value.
fn values(text: &str, key: &str) -> Vec<String> {
    let mut values = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(value) = line.trim_start_matches([' ', '-']).strip_prefix(key) else { continue };
        let mut value = value.trim().to_owned();
        if value == "|" {
            value.clear();
            while let Some(line) = lines.next_if(|line| line.starts_with("      ")) {
                value.push_str(line);
                value.push('\n');
            }
        }
        values.push(value);
    }
    values
}

/// What annotations look up, without the labels of their alert.
fn looked_up(text: &str) -> Vec<String> {
    let queries = text.split(r#"with printf \""#).skip(1);
    let queries = queries.map(|rest| rest.split(r#"\" $of"#).next().unwrap());
    queries.map(|query| query.replace("{%s}", "")).collect()
}

#[test]
fn the_committed_rules_are_not_stale() {
    let output = Command::new(env!("CARGO_BIN_EXE_agentgauge")).arg("rules").output().unwrap();
    assert!(
        String::from_utf8(output.stdout).unwrap() == rules(),
        "write them anew with `cargo run -- rules > deploy/prometheus/agentgauge.rules.yml`"
    );
}

#[test]
fn rules_that_cannot_fire_are_refused() {
    for (arguments, words) in [
        (&["--slo", "reliability=0.8"][..], "reliability=0.8@3,1.5"),
        (&["--slo", "reliability=0.95", "--slo", "support:reliability=0.7"], "150 %"),
        (&["--slo", "reliability=0.95", "--slo", "reliability=0.9"], "two objectives"),
        (&["--slo", "tool_loop=0.99"], "metrics.detail"),
        (&["--slo", "tool_loop=0.99", "--format", "sloth"], "metrics.detail"),
        (&["--slo", "support:tool_loop=0.9", "--format", "pyrra"], "metrics.detail"),
        (&["--slo", "reliability=1"], "below 1"),
        (&["--slo", "reliability=95%"], "reliability=0.95"),
        (&["--burn", "2,5"], "5,2"),
        (&["--min-traces", "0"], "--min-traces"),
        (&["--url", "https://ops.example/agentgauge"], "an address without a path"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_agentgauge"));
        let output = command.arg("rules").args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains(words) && output.stdout.is_empty(), "{arguments:?}: {message}");
    }
}

#[test]
fn agents_with_an_objective_of_their_own_have_their_own_budget() {
    let rules = |objectives: &str, arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_agentgauge"));
        command.env("AGENTGAUGE__DROP__OBJECTIVES", objectives).arg("rules").args(arguments);
        let output = command.output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let support = r#"ratio_rate1h{slo="reliability",gen_ai_agent_name="support"}"#;
    let text = rules(r#"{ support = 0.9, batch = 0.0 }"#, &[]);
    assert!(text.contains(&format!("{support} > 0.5\n")), "{text}");
    // If all may fail there is no alert.
    assert!(!text.contains(r#"ratio_rate1h{slo="reliability",gen_ai_agent_name="batch"}"#));
    let text = rules(r#"{ support = 0.7 }"#, &[]);
    assert!(text.contains("write `--slo support:reliability=0.7@2.2,1`"), "{text}");
    // By whichever of its two names.
    for name in ["reliability", "trace_risk"] {
        let own = format!("support:{name}=0.7@2.2,1");
        let given = ["--slo", "reliability=0.95", "--slo", &own];
        let text = rules(r#"{ support = 0.7 }"#, &given);
        assert!(text.contains(&format!("{support} > 0.66\n")), "{text}");
    }
    let text = rules("{}", &["--slo", "reliability=0.95", "--slo", "ops@home:reliability=0.9@5,2"]);
    assert!(text.contains(r#"ratio_rate1h{slo="reliability",gen_ai_agent_name="ops@home"} > 0.5"#));
}

#[test]
fn objectives_of_agents_with_like_names_are_told_apart() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_agentgauge"));
    command.args(["rules", "--format", "pyrra"]);
    for agent in ["a-b", "a.b", "A-B", "日本", "京都"] {
        command.args(["--slo", &format!("{agent}:reliability=0.9")]);
    }
    let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let names: Vec<&str> = text.lines().filter(|line| line.starts_with("  name: ")).collect();
    assert_eq!((names.len(), names.iter().collect::<BTreeSet<_>>().len()), (5, 5), "{text}");
    assert!(names.iter().any(|name| name.ends_with("agentgauge-a-b-reliability\"")), "{names:?}");
}

#[test]
fn every_alert_has_its_place_in_the_runbook_and_its_tests() {
    let runbook = std::fs::read_to_string(folder("docs/runbook.md")).unwrap();
    let headings: BTreeSet<&str> =
        runbook.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let tests = ["agentgauge.test.yml", "drops.test.yml"]
        .map(|name| std::fs::read_to_string(folder("deploy/prometheus").join(name)).unwrap());
    let alerts = values(&rules(), "alert:");
    assert!(alerts.len() > 10);
    for alert in alerts {
        assert!(headings.contains(alert.as_str()), "docs/runbook.md has no heading {alert}");
        let case = format!("alertname: {alert}\n    exp_alerts:\n    - ");
        assert!(tests.iter().any(|text| text.contains(&case)), "no test fires {alert}");
        let case = format!("alertname: {alert}\n    exp_alerts: []");
        assert!(tests.iter().any(|text| text.contains(&case)), "no test keeps {alert} silent");
    }
}

/// What there is to ask for.
struct Known {
    /// The series of a daemon that was sent captures, and of one to which everything has happened.
    scraped: Vec<Series>,
    /// Families by name with their labels, as docs/metrics.md lists them.
    listed: BTreeMap<String, BTreeSet<String>>,
    /// What recording rules make.
    recorded: BTreeMap<String, BTreeSet<String>>,
}

impl Known {
    fn new() -> Self {
        let mut scraped = series(&scrape());
        scraped.extend(series(&unhealthy()));
        // There only while a stream drops.
        let labels =
            r#"service_name="a",gen_ai_agent_name="a",stream="verdict",severity="warning""#;
        scraped.extend(series(&format!("agentgauge_agent_drop{{{labels}}} 1\n")));
        // There only after a loop of ten calls.
        let labels = r#"service_name="a",gen_ai_agent_name="a",kind="cycle",severity="critical",evidence="full""#;
        scraped.extend(series(&format!("agentgauge_sessions_looping{{{labels}}} 1\n")));
        // Prometheus's own series about each scrape.
        scraped.extend(series("up{job=\"agentgauge\",instance=\"gauge:9464\"} 1\n"));
        Self { scraped, listed: listed(), recorded: recorded() }
    }

    /// What is wrong with an expression.
    fn problems(&self, expr: &str) -> Vec<String> {
        let Parsed { selectors, grouping } = parse(expr);
        let mut problems = Vec::new();
        if selectors.is_empty() {
            problems.push(format!("nothing is asked for in {expr}"));
        }
        let mut labels = BTreeSet::new();
        for selector in &selectors {
            let own = self.labels(&selector.name);
            if own.is_empty() {
                problems.push(format!("there is no series {}", selector.name));
            }
            for (label, ..) in &selector.matchers {
                if !own.contains(label.as_str()) {
                    problems.push(format!("{} has no label {label}", selector.name));
                }
            }
            let of_name = || self.scraped.iter().filter(|series| series.0 == selector.name);
            if of_name().next().is_some() && !of_name().any(|series| is_selected(selector, series))
            {
                problems.push(format!("no series fits {selector:?}"));
            }
            labels.extend(own);
        }
        for label in grouping.difference(&labels) {
            problems.push(format!("nothing in {expr} has the label {label}"));
        }
        problems
    }

    /// Labels that a legend shows and the result of the expression does not have.
    fn unknown(&self, expr: &str, shown: &str) -> Vec<String> {
        let Parsed { selectors, grouping } = parse(expr);
        let own = selectors.iter().flat_map(|selector| self.labels(&selector.name));
        let labels = if expr.contains(" by (") { grouping } else { own.collect() };
        let shown = shown.split("{{").skip(1).filter_map(|part| part.split_once("}}"));
        let shown = shown.map(|(label, _)| label).filter(|label| !labels.contains(*label));
        shown.map(|label| format!("{expr} has no label {label} to show")).collect()
    }

    /// The labels of a series; of each, those of its scrape target, too.
    fn labels(&self, name: &str) -> BTreeSet<String> {
        let scraped = self.scraped.iter().filter(|series| series.0 == name);
        let mut labels: BTreeSet<String> =
            scraped.flat_map(|series| series.1.keys().cloned()).collect();
        labels.extend(self.listed.get(name).into_iter().flatten().cloned());
        labels.extend(self.recorded.get(name).into_iter().flatten().cloned());
        let is_known = self.listed.contains_key(name)
            || !labels.is_empty()
            || self.scraped.iter().any(|series| series.0 == name);
        if is_known && !name.contains(':') {
            labels.extend(["job", "instance"].map(str::to_owned));
        }
        if labels.contains("gen_ai_agent_name") {
            // Those without a value are left out of a page.
            let of_agents = ["gen_ai_agent_version", "deployment_environment_name", "tenant"];
            labels.extend(of_agents.map(str::to_owned));
        }
        labels
    }
}

/// Families that only full detail has, as docs/metrics.md says.
fn in_full_detail_alone() -> BTreeSet<String> {
    let page = std::fs::read_to_string(folder("docs/metrics.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| `") && line.ends_with("*full* |"));
    rows.map(|row| row.split('`').nth(1).unwrap().to_owned()).collect()
}

#[test]
fn rules_need_the_default_detail_alone_and_panels_that_need_more_say_so() {
    let full = in_full_detail_alone();
    assert!(full.len() > 30);
    let needs = |expr: &str| {
        let names = parse(expr).selectors.into_iter().map(|selector| selector.name);
        let family = |name: &str| {
            ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| name.strip_suffix(end))
                .map(str::to_owned)
        };
        names
            .filter(|name| {
                full.contains(name) || family(name).is_some_and(|name| full.contains(&name))
            })
            .collect::<Vec<_>>()
    };
    for text in values(&rules(), "expr:").iter().cloned().chain(looked_up(&rules())) {
        assert_eq!(needs(&text), [""; 0], "{text}");
    }
    for file in std::fs::read_dir(folder("deploy/grafana")).unwrap() {
        let board = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let board: Value = serde_json::from_str(&board).unwrap();
        for panel in board["panels"].as_array().unwrap() {
            let targets = panel["targets"].as_array().into_iter().flatten();
            let any = targets.flat_map(|target| needs(target["expr"].as_str().unwrap())).next();
            let says = panel["description"].as_str().unwrap_or_default().contains("metrics.detail");
            assert!(says || any.is_none(), "{} needs {any:?}", panel["title"]);
        }
    }
}

/// What dashboards ask for: where, the expression, and what the legend shows.
fn panels() -> Vec<(String, String, String)> {
    let mut panels = Vec::new();
    let files = std::fs::read_dir(folder("deploy/grafana")).unwrap();
    let files = files.map(|file| file.unwrap().path());
    for path in files.filter(|path| path.extension().is_some_and(|kind| kind == "json")) {
        let board: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let place = |what: &Value| format!("{} / {}", text(&board["title"]), text(what));
        for panel in board["panels"].as_array().unwrap() {
            let targets = panel["targets"].as_array().into_iter().flatten();
            panels.extend(targets.map(|target| {
                (place(&panel["title"]), text(&target["expr"]), text(&target["legendFormat"]))
            }));
        }
        for annotation in board["annotations"]["list"].as_array().unwrap() {
            let shown = text(&annotation["titleFormat"]) + &text(&annotation["textFormat"]);
            panels.push((place(&annotation["name"]), text(&annotation["expr"]), shown));
        }
        for variable in board["templating"]["list"].as_array().unwrap() {
            let query = text(&variable["definition"]);
            if let Some(query) = query.strip_prefix("label_values(") {
                let (expr, label) = query.trim_end_matches(')').rsplit_once(", ").unwrap();
                let shown = format!("{{{{{label}}}}}");
                panels.push((place(&variable["name"]), expr.to_owned(), shown));
            }
            let windows = text(&variable["query"]);
            for window in windows.split(',').filter(|_| variable["name"] == "window") {
                let expr = format!("agentgauge_agent_reliability_score{{window=\"{window}\"}}");
                panels.push((place(&variable["name"]), expr, String::new()));
            }
        }
    }
    assert!(panels.len() > 50);
    panels
}

/// A page of a daemon that was sent a looping session, with costs.
fn scrape() -> String {
    let prices = r#"[{ model = "*", input = 2.5, output = 10.0 }]"#;
    // The spans are old; let them count as new.
    let age = ("AGENTGAUGE__INGEST__MAX_SPAN_AGE", "1s");
    let daemon = Daemon::start_with(&[("AGENTGAUGE__COST__PRICES", prices), age]);
    daemon.send_capture("oi-openai");
    // All of its traces: the first may be done before the others have come.
    daemon.settles_at("agentgauge_agent_window_traces{", 6.0);
    daemon.get("/metrics")
}

/// The daemon's own page when everything has happened to it once.
fn unhealthy() -> String {
    let health = Health::new(Timestamp(0)).unwrap();
    health.received(
        "grpc",
        "protobuf",
        &RequestCounts { spans: 1, logs: 1, metric_points: 1, ..RequestCounts::default() },
    );
    ["too_large", "store_full"].iter().for_each(|why| health.refused(why));
    for what in ["traces", "sessions", "agents"] {
        health.held(what, "0").set(1);
    }
    let counts = [
        ("spans", "trace_full", 1),
        ("spans", "duplicate", 1),
        ("logs", "trace_full", 1),
        ("repaired", "bad_time", 1),
        ("unused", "unknown", 1),
        ("late", "dropped", 1),
        ("late", "revised", 1),
        ("traces_ignored", "no_agent", 1),
        ("reports", "applied", 1),
        ("label_values_limited", "agent", 1),
        ("traces", "evicted", 1),
        ("sealed_traces", "forgotten", 1),
        ("trace_updates", "stale", 1),
    ];
    health.counts("test", counts);
    let families = health.registry().gather();
    prometheus::TextEncoder::new().encode_to_string(&families).unwrap()
}

/// The families of the page of metrics.
fn listed() -> BTreeMap<String, BTreeSet<String>> {
    let page = std::fs::read_to_string(folder("docs/metrics.md")).unwrap();
    let (of_agents, rest) = page.split_once("\n## The daemon itself\n").unwrap();
    let (own, _) = rest.split_once("\n## ").unwrap();
    let rows = |part| {
        let lines = str::lines(part);
        lines.filter_map(|line| line.strip_prefix("| `agentgauge_"))
    };
    let of_agents = rows(of_agents).map(|row| (row, &AGENT[..]));
    let mut families = BTreeMap::new();
    for (row, of_agent) in of_agents.chain(rows(own).map(|row| (row, &[][..]))) {
        let mut cells = row.split(" | ");
        let name = format!("agentgauge_{}", cells.next().unwrap().trim_end_matches('`'));
        let kind = cells.next().unwrap();
        let words = cells.next().unwrap().split(", ").map(|label| label.trim().trim_matches('`'));
        let mut labels: BTreeSet<String> =
            words.filter(|label| !label.is_empty()).map(str::to_owned).collect();
        labels.extend(of_agent.iter().map(|label| (*label).to_owned()));
        if kind == "histogram" {
            for suffix in ["_sum", "_count"] {
                families.insert(format!("{name}{suffix}"), labels.clone());
            }
            labels.insert("le".to_owned());
            families.insert(format!("{name}_bucket"), labels);
        } else {
            families.insert(name, labels);
        }
    }
    assert!(families.len() > 50, "docs/metrics.md is not laid out as expected");
    families
}

/// The recorded series: they have the labels of the agent that they are summed by, and that of the objective.
fn recorded() -> BTreeMap<String, BTreeSet<String>> {
    let by = ["service_name", "gen_ai_agent_name", "deployment_environment_name", "tenant", "slo"];
    let records = values(&rules(), "record:").into_iter();
    records.map(|record| (record, by.map(str::to_owned).into())).collect()
}

const AGENT: [&str; 4] =
    ["service_name", "gen_ai_agent_name", "gen_ai_agent_version", "deployment_environment_name"];

#[test]
fn rules_and_panels_ask_only_for_what_there_is() {
    let known = Known::new();
    let mut problems = Vec::new();
    let looked_up = looked_up(&rules());
    assert!(looked_up.len() > 10);
    for expr in values(&rules(), "expr:").iter().chain(&looked_up) {
        problems.extend(known.problems(expr));
    }
    for (place, expr, shown) in panels() {
        let found = known.problems(&expr).into_iter().chain(known.unknown(&expr, &shown));
        problems.extend(found.map(|problem| format!("{place}: {problem}")));
    }
    assert!(problems.is_empty(), "{problems:#?}");
    // The check can fail.
    let looping = "sum by (kind) (agentgauge_sessions_looping)";
    assert_eq!(known.unknown(looping, "{{kind}} {{severity}}").len(), 1);
    for (expr, words) in [
        ("rate(agentgauge_nothing_total[5m])", "no series agentgauge_nothing_total"),
        ("agentgauge_sessions_looping{window=\"1h\"}", "no label window"),
        ("sum by (trace_id) (agentgauge_sessions_active)", "the label trace_id"),
        ("agentgauge_agent_reliability_score{window=\"7d\"}", "no series fits"),
    ] {
        assert!(
            known.problems(expr).concat().contains(words),
            "{expr}: {:?}",
            known.problems(expr)
        );
    }
}
