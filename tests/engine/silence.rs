//! When an agent has stopped, as the rule `AgentStopped` finds it: however long its traces wait for late spans or for a root, the alert
//! is silent while traces come, and fires soon after the last one.

use std::sync::Arc;
use std::time::Duration;

use agentgauge::engine::facts::{AgentKey, AgentParts};
use agentgauge::engine::options::AssembleOptions;
use agentgauge::engine::pipeline::{EngineOptions, Pipeline};
use agentgauge::engine::span::{Operation, Resource, Span, SpanId, Timestamp, TraceId};

const BEGIN: Timestamp = Timestamp(1_800_000_000_000_000_000);
const MINUTE: Duration = Duration::from_secs(60);
const DAY: u64 = 1_440;

/// The silence from which on the rule fires at the earliest.
const LEAST: f64 = 600.0;

/// An engine to which a trace comes each minute.
struct Run {
    pipeline: Pipeline,
    now: Timestamp,
    traces: u64,
}

impl Run {
    fn new(assemble: AssembleOptions) -> Self {
        let options = EngineOptions { assemble, ..EngineOptions::default() };
        Self { pipeline: Pipeline::new(&options, 2), now: BEGIN, traces: 0 }
    }

    /// Traces with these spans for this many minutes; returns whether the alert fired meanwhile.
    fn minutes(&mut self, minutes: u64, agent: &AgentKey, spans: &[&str]) -> bool {
        let mut fired = false;
        for _ in 0..minutes {
            self.traces += 1;
            let spans = spans.iter().zip(2..).map(|(name, id)| self.span(id, name)).collect();
            self.pipeline.apply(spans, vec![], vec![], self.now);
            self.now = self.now.after(MINUTE);
            self.pipeline.advance(self.now);
            fired |= self.fires(agent);
        }
        fired
    }

    /// A model call of the trace, or the run of an agent that is its root.
    fn span(&self, id: u8, name: &str) -> Span {
        let is_root = name.starts_with("root");
        let agent = name.trim_start_matches("root ");
        Span {
            trace_id: TraceId((u128::from(self.traces) + 1).to_be_bytes()),
            span_id: SpanId([if is_root { 1 } else { id }; 8]),
            parent: (!is_root).then_some(SpanId([1; 8])),
            start: self.now,
            end: self.now,
            name: Arc::from("chat"),
            operation: if is_root { Operation::InvokeAgent } else { Operation::Chat },
            agent_name: (!agent.is_empty()).then(|| Arc::from(agent)),
            convention: Some("test"),
            scope: 7,
            resource: Arc::new(Resource {
                service_name: Some(Arc::from("shop")),
                ..Resource::default()
            }),
            ..Span::default()
        }
    }

    fn fires(&self, agent: &AgentKey) -> bool {
        let Some(told) = self.pipeline.board().get(agent) else { return false };
        let last = told.view.last_trace_unix_nano.as_ref().map(|last| last.parse::<u64>().unwrap());
        let silence = last.map(|last| (self.now.0 - last) as f64 / 1e9);
        silence
            .zip(told.view.usual_gap_seconds)
            .is_some_and(|(silence, usual)| silence > usual.max(LEAST))
    }

    /// The minutes since the last trace came, once the alert fires.
    fn fires_after(&mut self, agent: &AgentKey) -> u64 {
        let firing = (1..300).find(|_| {
            self.now = self.now.after(MINUTE);
            self.pipeline.advance(self.now);
            self.fires(agent)
        });
        firing.unwrap() + 1
    }
}

fn agent(name: &str) -> AgentKey {
    let (service_name, agent_name) = ("shop".into(), name.into());
    AgentParts { service_name, agent_name, ..AgentParts::default() }.into()
}

fn minutes(minutes: u32) -> Duration {
    MINUTE * minutes
}

#[test]
fn an_agent_whose_roots_never_come_has_not_stopped_however_late_its_traces_are_final() {
    for late in [5, 15, 60] {
        let mut run =
            Run::new(AssembleOptions { late_horizon: minutes(late), ..AssembleOptions::default() });
        let support = agent("support");
        assert!(!run.minutes(DAY + 300, &support, &["support"]), "{late}");
        assert_eq!(run.fires_after(&support), 11, "{late}");
    }
}

#[test]
fn an_agent_whose_roots_are_lost_for_hours_has_not_stopped() {
    let mut run = Run::new(AssembleOptions::default());
    let support = agent("support");
    assert!(!run.minutes(DAY + 60, &support, &["support", "root support"]));
    assert!(!run.minutes(180, &support, &["support"]));
    assert_eq!(run.fires_after(&support), 11);
}

#[test]
fn an_agent_whose_traces_are_done_late_has_not_stopped() {
    let mut run =
        Run::new(AssembleOptions { trace_idle: minutes(30), ..AssembleOptions::default() });
    let support = agent("support");
    assert!(!run.minutes(DAY + 120, &support, &["support", "root support"]));
    let after = run.fires_after(&support);
    assert!((30..40).contains(&after), "{after}");
}

#[test]
fn an_agent_that_is_named_at_the_end_has_not_stopped() {
    let mut run =
        Run::new(AssembleOptions { late_horizon: minutes(15), ..AssembleOptions::default() });
    let shop = agent("shop");
    // Two other agents are in that service, so the agent of a trace is unknown before it is final.
    for other in ["root support", "root billing"] {
        run.minutes(10, &shop, &[other]);
    }
    let mut fired = false;
    for _ in 0..DAY + 300 {
        fired |= run.minutes(1, &shop, &[""]);
        run.traces += 1;
        let other = vec![run.span(1, "root support")];
        run.pipeline.apply(other, vec![], vec![], run.now);
    }
    assert!(!fired);
    assert!(run.fires_after(&shop) < 30);
}

#[test]
fn an_agent_of_which_one_trace_goes_on_for_hours_has_not_stopped() {
    let mut run = Run::new(AssembleOptions::default());
    let support = agent("support");
    assert!(!run.minutes(DAY + 60, &support, &["support", "root support"]));
    let mut fired = false;
    for minute in 0..200_u8 {
        let spans = vec![Span { span_id: SpanId([minute + 20; 8]), ..run.span(3, "support") }];
        run.pipeline.apply(spans, vec![], vec![], run.now);
        run.now = run.now.after(MINUTE);
        run.pipeline.advance(run.now);
        fired |= run.fires(&support);
    }
    assert!(!fired);
    assert_eq!(run.fires_after(&support), 11);
}
