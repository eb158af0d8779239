use std::collections::{BTreeMap, BTreeSet};

use prometheus::{Encoder, GaugeVec, Opts, Registry, TextEncoder};

use super::super::families::{COUNTERS, SCORES};
use super::super::gauges::WINDOWS;
use super::super::samples::{STEP_VISITS, families};
use super::*;
use crate::engine::counters::{Counter, Counters};
use crate::engine::drops::STREAMS;
use crate::engine::facts::{AgentParts, Exemplar, ScoreHistogram};
use crate::engine::loops::{Evidence, LoopKind, LoopLabels, Severity};
use crate::engine::math::Quanta;
use crate::engine::run_scores::RunScores;
use crate::engine::span::TraceId;
use crate::engine::view::{
    AgentView, ArsComponentView, ArsView, DropFoundView, DropView, SessionName, VersionView,
    WindowView,
};

pub(in super::super) fn agent(name: &str) -> Arc<AgentFacts> {
    let key =
        AgentParts { service_name: name.into(), agent_name: "a".into(), ..AgentParts::default() }
            .into();
    let window = WindowView {
        traces: 3,
        sessions: 1,
        traces_evaluated: 3,
        traces_with_confidence: 2,
        traces_judged: 0,
        reliability: Some(0.4),
        judged_reliability: None,
        failure_ratio: Some(1.0 / 3.0),
        consistency: Some(0.725),
        max_risk: Some(0.6),
        signals: [("error".into(), 1.0)].into(),
    };
    let exemplar = Exemplar {
        bucket: 1,
        end_unix_nano: 1_700_000_000_250_000_000,
        trace_id: TraceId([0xab; 16]),
        score_quanta: Quanta::from_f64(0.25).unwrap().0,
    };
    let buckets = ScoreHistogram {
        buckets: [0, 1, 0, 2].as_slice().into(),
        count: 3,
        sum_quanta: i128::from(Quanta::ONE),
        exemplars: [exemplar].into_iter().collect(),
    };
    let looping =
        LoopLabels { kind: LoopKind::Cycle, severity: Severity::Warning, evidence: Evidence::Full };
    let mut counters = Counters::default();
    counters.raise(Counter::Traces, &[], 3);
    counters.raise(Counter::CostUsd, &[], 1_500_000_000_000);
    counters.raise(Counter::TraceEvaluations, &["error", "pass"], 3);
    Arc::new(AgentFacts {
        agent: key,
        counters,
        sessions_looping: [(looping, 1)].into(),
        looping: 1,
        open_sessions: [("reliability", buckets.clone())].into(),
        closed_sessions: [("reliability", buckets.clone())].into(),
        trace_signals: [("error".into(), buckets)].into_iter().collect(),
        view: AgentView {
            windows: [("1h".into(), window), ("5m".into(), WindowView::default())].into(),
            ..AgentView::default()
        },
        ..AgentFacts::default()
    })
}

/// A stream of each kind: one that drops, one that is quiet, and one that only warns.
fn drops() -> Vec<DropView> {
    let found = DropFoundView {
        since_unix_nano: "1790000000123456789".to_owned(),
        from: 0.01,
        to: 0.4,
        traces: 24,
        confidence: 0.99,
        signal: Some("error".to_owned()),
        tool: Some("book \"flight\"".to_owned()),
        error_type: Some("TimeoutError".to_owned()),
        sessions: vec![SessionName { session_id: "a\nb".to_owned(), ..SessionName::default() }],
    };
    let verdict = DropView {
        stream: "verdict",
        pages: true,
        severity: "critical",
        against: "version_before",
        version_before: Some("v\\1".to_owned()),
        usual: 0.012,
        drop: Some(found.clone()),
        ..DropView::default()
    };
    let outcome = DropView {
        stream: "outcome",
        severity: "recovering",
        against: "past",
        version_before: None,
        ..verdict.clone()
    };
    let loops = DropView {
        stream: "loops",
        pages: false,
        severity: "warning",
        against: "objective",
        version_before: None,
        drop: Some(DropFoundView {
            signal: None,
            tool: None,
            error_type: None,
            sessions: Vec::new(),
            ..found
        }),
        ..verdict.clone()
    };
    vec![verdict, outcome, loops]
}

/// An agent with something in every family: names to be escaped, and numbers of every length.
pub(in super::super) fn full(name: &str) -> Arc<AgentFacts> {
    let plain = agent(name);
    let numbers = [0.1, 1e-7, 1.5e21, 123_456.789, 1.0 / 3.0, 9_007_199_254_740_993.0, -0.25];
    let names = SCORES.iter().map(|score| score.score);
    let scores: BTreeMap<_, _> =
        names.zip(numbers.into_iter().cycle().zip([0, 7, 1 << 60].into_iter().cycle())).collect();
    let component = ArsComponentView { score: 70.25, ..ArsComponentView::default() };
    let components = [("task \"a\"\n".to_owned(), component)].into();
    let versions = vec![VersionView {
        baseline: "v\\1\u{2028}é".to_owned(),
        lower: -0.125,
        upper: 2e-9,
        ..VersionView::default()
    }];
    let mut counters = plain.counters.clone();
    counters.retain(|family| {
        family != Counter::TraceEvaluations && family != Counter::LoopWastedCostUsd
    });
    for (labels, value) in [
        (["a", "pass"], 1),
        (["trace_risk", "fail"], 2),
        (["trace_risk", "maybe"], u64::MAX),
        (["z\u{7f}", "\u{85}"], 12_345_678_901),
    ] {
        counters.raise(Counter::TraceEvaluations, &labels, value);
    }
    counters.raise(Counter::LoopWastedCostUsd, &["full"], 1_250_000_007);
    Arc::new(AgentFacts {
        agent: AgentParts { tenant: "t \"1\"".into(), ..AgentParts::clone(&plain.agent) }.into(),
        counters,
        run_scores: [
            ("all".to_owned(), RunScores { scores: scores.clone(), ..RunScores::default() }),
            (
                "5m".to_owned(),
                RunScores { scores, pass_hat_k: [(1, 1.0), (10, 0.062_5)].into(), ars: None },
            ),
        ]
        .into(),
        runs: 12,
        view: AgentView {
            ars: Some(ArsView { score: 70.25, band: "good", components }),
            versions,
            drops: drops(),
            last_trace_unix_nano: Some("1790000000123456789".to_owned()),
            usual_gap_seconds: Some(64.0),
            ..plain.view.clone()
        },
        ..(*plain).clone()
    })
}

/// An agent of which everything is told that is exported in the default detail: all windows, costs, outcomes, and of every tenth
/// a drop and a loop that go on.
fn told(number: usize) -> Arc<AgentFacts> {
    let name = "checkout".to_owned();
    let plain = full(&name);
    let score =
        |at: f64| Some(Quanta::from_f64((at + number as f64 / 7.0).fract()).unwrap().to_f64());
    let window = |traces: u64| WindowView {
        traces,
        sessions: traces / 3,
        reliability: score(0.123_456_789_012),
        judged_reliability: score(0.25),
        failure_ratio: score(0.031_415_926_535),
        consistency: score(0.987_654_321_098),
        ..plain.view.windows["1h"].clone()
    };
    let windows = [("5m", 12), ("1h", 144), ("24h", 3456), ("last_50", 50)];
    let windows = windows.map(|(name, traces)| (name.into(), window(traces)));
    let counted: [(Counter, &[&[&str]]); 13] = [
        (Counter::Traces, &[&[]]),
        (
            Counter::TraceEvaluations,
            &[&["error", "pass"], &["trace_risk", "fail"], &["trace_risk", "pass"]],
        ),
        (Counter::Expectations, &[&["cost", "pass"]]),
        (Counter::LoopsDetected, &[&["cycle", "warning", "full"]]),
        (Counter::LoopWastedTokens, &[&["input", "full"], &["output", "full"]]),
        (Counter::LoopWastedCostUsd, &[&["full"]]),
        (Counter::RunLimits, &[&["run_limit", "steps", "trace"]]),
        (Counter::Tokens, &[&["input"], &["output"]]),
        (Counter::CostUsd, &[&[]]),
        (Counter::ModelCalls, &[&[]]),
        (Counter::ToolCalls, &[&["error"], &["ok"]]),
        (Counter::SessionsClosed, &[&["idle", "fail"], &["idle", "pass"]]),
        (Counter::GateBreaches, &[&["error", "stall"]]),
    ];
    let mut counters = Counters::default();
    for (family, labels) in counted {
        for (labels, value) in labels.iter().zip((number as u64 * 1_234_567..).step_by(89)) {
            counters.raise(family, labels, value);
        }
    }
    let of_streams = STREAMS.iter().map(|stream| DropView {
        stream: stream.name,
        pages: stream.pages,
        severity: "none",
        usual: 0.012_345,
        ..DropView::default()
    });
    let in_trouble = number.is_multiple_of(10);
    let dropping = drops().into_iter().take(usize::from(in_trouble));
    let looping = plain.sessions_looping.iter().take(usize::from(in_trouble));
    Arc::new(AgentFacts {
        agent: AgentParts {
            service_name: name.into(),
            agent_name: format!("planner-{number:04}").into(),
            ..AgentParts::default()
        }
        .into(),
        counters,
        sessions_looping: looping.map(|(labels, sessions)| (*labels, *sessions)).collect(),
        looping: in_trouble.into(),
        view: AgentView {
            windows: windows.into(),
            drops: dropping.chain(of_streams.skip(usize::from(in_trouble))).collect(),
            ..plain.view.clone()
        },
        ..(*plain).clone()
    })
}

#[test]
fn a_thousand_agents_of_which_everything_is_told_are_forty_one_series_each_and_four_mebibytes() {
    let agents: Vec<_> = (0..1000).map(told).collect();
    for format in [Format::Text, Format::OpenMetrics] {
        for agent in &agents[..2] {
            let page = render(&[Arc::clone(agent)], format, Detail::Core);
            let series = page.lines().filter(|line| !line.starts_with('#')).count();
            assert!(series <= 41, "{series}:\n{page}");
        }
        let bytes = render(&agents, format, Detail::Core).len();
        assert!(bytes <= 4 << 20, "{bytes}");
    }
    // What is exported by default is told of them, but for what goes over a limit or stalls.
    let page = render(&agents, Format::Text, Detail::Core);
    for family in families().filter(|family| family.core) {
        let rare = ["agentgauge_sessions_over_limit", "agentgauge_agent_stalled_traces"];
        let has_any = page.contains(&format!("\n{}", family.name));
        assert!(has_any || rare.contains(&family.name), "{}", family.name);
    }
}

#[test]
fn every_family_is_written_as_it_was() {
    let agents = [agent("plain"), full("quo\"te"), full("ünïcode")];
    insta::assert_snapshot!(render(&agents, Format::OpenMetrics, Detail::Full));
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
    let text = render(&[agent("s")], Format::Text, Detail::Full);
    let open = render(&[agent("s")], Format::OpenMetrics, Detail::Full);
    let plain: Vec<&str> =
        open.lines().map(|line| line.split(" # ").next().unwrap_or(line)).collect();
    assert_eq!(samples(&text), samples(&plain.join("\n")));
    assert!(text.contains("# TYPE agentgauge_traces_total counter"));
    assert!(open.contains("# TYPE agentgauge_traces counter"));
}

#[test]
fn a_bucket_of_openmetrics_names_a_trace() {
    let open = render(&[agent("s")], Format::OpenMetrics, Detail::Full);
    let trace = "ab".repeat(16);
    let line = format!("le=\"0.3\"}} 1 # {{trace_id=\"{trace}\"}} 0.25 1700000000.250\n");
    assert!(open.contains(&line), "{open}");
    let text = render(&[agent("s")], Format::Text, Detail::Full);
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
        let labels = ["service_name", "gen_ai_agent_name", "window"];
        let reliability = &WINDOWS[0].family;
        let gauge = GaugeVec::new(Opts::new(reliability.name, reliability.help), &labels).unwrap();
        gauge.with_label_values(&[name, "a", "1h"]).set(0.4);
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
    let page =
        render(&[agent(&format!("a\r\0\u{2028}{}", "x".repeat(500)))], Format::Text, Detail::Core);
    assert!(!page.contains(['\r', '\0', '\u{2028}']));
    assert!(page.lines().all(|line| line.len() < 400));
}

#[test]
fn different_agents_have_different_labels_however_they_are_cut() {
    let long = "x".repeat(200);
    let blue = [format!("{long}blue"), "tab\tbed".to_owned(), "x".repeat(128)];
    let green = [format!("{long}green"), "tab bed".to_owned(), "x".repeat(129)];
    for (one, other) in blue.iter().zip(&green) {
        let page = render(&[agent(one), agent(other)], Format::Text, Detail::Core);
        let lines = page.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(samples(&page).len(), lines, "{one:?} {other:?}");
    }
}

#[test]
fn pieces_are_small_however_many_agents_there_are_and_make_the_same_page() {
    let agents: Vec<_> = (0..600).map(|n| agent(&format!("service-{n:04}"))).collect();
    let one = Exposition::new(vec![agent("service-0000")], Format::Text, Detail::Full);
    let one: usize = one.map(|piece| piece.len()).sum();
    let pieces: Vec<String> = Exposition::new(agents.clone(), Format::Text, Detail::Full).collect();
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
    let nothing = Arc::new(AgentFacts::default());
    let agents = vec![nothing; 2 * STEP_VISITS];
    let pieces = Exposition::new(agents, Format::Text, Detail::Full).count();
    assert!(pieces > 2 * SCORES.len(), "{pieces}");
}

#[test]
fn what_is_there_from_the_beginning_stands_in_order() {
    assert!(COUNTERS.iter().all(|counter| counter.zeros.is_sorted()));
}
