//! Facts about the stage, and the property that arrival does not matter; here what they share.

mod done_traces;
mod ends;
mod limits;
mod lists;
mod loops;
mod properties;
mod runs;
mod scopes;
mod scores;
mod traces;

use std::time::Duration;

use super::*;
use crate::counters::Counter;
use crate::facts::{
    AgentParts, Loop, OutputDigest, PaneSum, Remarks, ReportedScore, SessionKey, Tokens, ToolCall,
    TraceState,
};
use crate::loops::{Evidence, LoopKind, Severity};
use crate::span::Attempt;

fn stage() -> Sessions {
    stage_of(SessionOptions::default(), AgentOptions::default())
}

fn stage_of(options: SessionOptions, agents: AgentOptions) -> Sessions {
    Sessions::new(3, options, LoopOptions::default(), agents)
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::default().after(Duration::from_secs(seconds))
}

/// An open trace of session `s` and agent `a` that starts at this second.
fn trace(id: u8, second: u64) -> TraceFacts {
    TraceFacts {
        trace_id: TraceId([id; 16]),
        revision: 1,
        session: Some(SessionKey { source: "session.id".into(), ..SessionKey::default() }),
        agent: Some(AgentParts { service_name: "svc".into(), ..AgentParts::default() }.into()),
        state: TraceState::Open,
        start_unix_nano: at(second).0,
        end_unix_nano: at(second).0 + 1,
        steps: 4,
        wasted_steps: 1,
        ..TraceFacts::default()
    }
    .session("s")
    .agent("a")
}

impl TraceFacts {
    fn done(self) -> Self {
        Self { state: TraceState::Done, ..self }
    }

    /// The word that nothing more comes of it.
    fn sealed(self) -> Self {
        let Self { trace_id, revision, session, .. } = self;
        let state = TraceState::Sealed;
        Self { trace_id, revision, session, state, unchanged: true, ..Self::default() }
    }

    fn revision(self, revision: u64) -> Self {
        Self { revision, ..self }
    }

    fn session(mut self, id: &str) -> Self {
        self.session.as_mut().unwrap().id = id.into();
        self
    }

    fn agent(mut self, name: &str) -> Self {
        self.agent = self.agent.map(|agent| agent.with(|parts| parts.agent_name = name.into()));
        self
    }

    fn error(self) -> Self {
        Self { error: true, ..self }
    }

    fn tokens(self, input: u64, output: u64) -> Self {
        Self { tokens: Some(Tokens { input: Some(input), output: Some(output) }), ..self }
    }

    fn output(self, tokens: &[u64]) -> Self {
        let embedding = (0..16).map(|index| i32::from(tokens.contains(&index))).collect();
        let tokens = tokens.iter().copied().collect();
        let digest = OutputDigest { tokens, embedding, ..OutputDigest::default() };
        Self { output_digest: Some(digest), ..self }
    }

    fn looping(mut self, count: u64, severity: Severity) -> Self {
        self.loops = vec![Loop {
            kind: LoopKind::ExactRepeat,
            severity,
            tool: Arc::from("search"),
            count,
            evidence: Evidence::Full,
            tokens: Some(Tokens { input: Some(5), output: None }),
            ..Loop::default()
        }];
        self
    }

    fn reported(mut self, name: &str, score_quanta: i64) -> Self {
        let name = name.to_owned();
        self.reported.push(ReportedScore { name, score_quanta, ..ReportedScore::default() });
        self
    }
}

/// An update with something of everything, as its start decides.
fn detailed(update: TraceFacts) -> TraceFacts {
    let number = update.start_unix_nano / 1_000_000_000;
    let odd = |what: u64| (number >> what) & 1 == 1;
    let call = |at: u64| ToolCall {
        name: Arc::from(format!("tool {}", at % 3)),
        error: [None, Some(false), Some(true)][usize::try_from((at + number) % 3).unwrap()],
        start_unix_nano: update.start_unix_nano + at,
        end_unix_nano: update.start_unix_nano + 7 * at,
        arguments_hash: odd(0).then_some(at),
        result_hash: odd(1).then_some(u64::MAX - at),
        arguments: (at == 4).then(|| Arc::from("{}")),
        ..ToolCall::default()
    };
    let attempt = Attempt { task: Some("t".into()), ..Attempt::default() };
    let remarks = Remarks { accepted_edits: number, ..Remarks::default() };
    TraceFacts {
        tools: (0..number).map(call).collect(),
        cost_quanta: odd(1).then_some(-5 + 9 * i64::try_from(number).unwrap()),
        models: (0..number % 3).map(|model| Arc::from(format!("model {model}"))).collect(),
        user: odd(2).then(|| "someone".to_owned()),
        attempt: odd(2).then(|| Box::new(attempt)),
        remarks: odd(2).then(|| Box::new(remarks)),
        complete: odd(0),
        llm_calls: number,
        model_nanos: number << 40,
        longest_model_nanos: number << 30,
        touched_unix_nano: at(90).0 + number,
        ..update
    }
}

fn views(stage: &Sessions) -> Vec<SessionView> {
    stage.sessions().collect()
}

fn only(updates: Vec<SessionFacts>) -> SessionFacts {
    assert_eq!(updates.len(), 1, "{updates:?}");
    updates.into_iter().next().unwrap()
}

fn everything(update: &SessionFacts) -> PaneSum {
    update.panes.iter().find(|pane| pane.width_nanos == 0).cloned().unwrap()
}

fn counter(update: &SessionFacts, family: Counter, labels: &[&str]) -> u64 {
    update.counters.get(family, labels).unwrap_or(0)
}

fn looping(update: &SessionFacts) -> Vec<(&'static str, u64)> {
    let looping = update.sessions_looping.iter();
    looping.map(|(labels, sessions)| (labels.severity.name(), *sessions)).collect()
}

fn ids(view: &SessionView) -> Vec<String> {
    view.traces.iter().map(|trace| trace.trace_id.clone()).collect()
}

fn hex(id: u8) -> String {
    TraceId([id; 16]).to_string()
}
