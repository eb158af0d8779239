//! Simulated agents: random traces and failures, through the daemon's stages.

use std::sync::Arc;
use std::time::Duration;

use agentgauge::config::Config;
use agentgauge::engine::pipeline::Pipeline;
use agentgauge::engine::span::{
    Arguments, ModelFacts, Operation, Remarks, Resource, SessionName, Span, SpanId, Status,
    Timestamp, ToolFacts, TraceId,
};
use agentgauge::export::prometheus::{Detail, Format, render};
use serde::Serialize;

/// From this second on this share of traces fails.
pub(super) type Level = (u64, f64);

/// An agent version at work. Times are seconds from the begin of the simulation.
#[derive(Clone)]
pub(super) struct Worker {
    pub(super) agent: &'static str,
    pub(super) version: &'static str,
    pub(super) levels: Vec<Level>,
    /// Mean time between two traces.
    pub(super) every_seconds: u64,
    pub(super) from: u64,
    pub(super) until: Option<u64>,
}

/// Agents at work, and the daemon's stages that watch them.
pub(super) struct Work {
    pipeline: Pipeline,
    /// What each does next, and the chance that decides.
    agents: Vec<(Worker, u64, Random)>,
    traces: u64,
}

/// Random numbers: splitmix64.
pub(super) struct Random(pub(super) u64);

/// The begin of the simulation.
pub(super) const BEGIN: u64 = 1_800_000_000;

pub(super) const SECOND: u64 = 1_000_000_000;

/// Timers that are due within this run together.
pub(super) const STEP: Duration = Duration::from_secs(10);

impl Worker {
    /// The share of its traces that fails at a time.
    pub(super) fn level(&self, now: u64) -> f64 {
        let levels = self.levels.iter().rev();
        levels.clone().find(|(from, _)| from * SECOND <= now).map_or(0.0, |(_, level)| *level)
    }
}

impl Work {
    pub(super) fn new(workers: &[Worker]) -> Self {
        Self::with(&Config::default(), workers)
    }

    pub(super) fn with(config: &Config, workers: &[Worker]) -> Self {
        let options = config.engine_options(Arc::from([]));
        let agents = (1..).zip(workers).map(|(seed, worker)| {
            let mut random = Random(seed);
            let first = worker.from * SECOND + random.gap(worker);
            (worker.clone(), first, random)
        });
        Self { pipeline: Pipeline::new(&options, 2), agents: agents.collect(), traces: 0 }
    }

    /// The page after this many seconds.
    pub(super) fn page(&mut self, seconds: u64) -> String {
        let until = seconds * SECOND;
        while let Some(next) = self.next(until) {
            self.trace(next);
        }
        self.pipeline.advance_in_steps(at(until), STEP);
        let board = self.pipeline.board().values().cloned().map(Arc::new).collect::<Vec<_>>();
        render(&board, Format::Text, Detail::Core)
    }

    /// The serialised size of the stages' state after this many seconds, in bytes.
    pub(super) fn held_bytes(&mut self, seconds: u64) -> usize {
        self.page(seconds);
        let (_, assemble, sessions, agents) = self.pipeline.lasting();
        let assemble = assemble.iter().map(|stage| written(&stage.save())).sum::<usize>();
        let sessions = sessions.iter().map(|stage| written(&stage.save())).sum::<usize>();
        assemble + sessions + written(&agents.save())
    }

    /// The agent whose turn it is, if there is one until then.
    fn next(&self, until: u64) -> Option<usize> {
        let ends = |worker: &Worker| worker.until.map_or(u64::MAX, |until| until * SECOND);
        let due = self.agents.iter().enumerate();
        let due = due.filter(|(_, (worker, at, _))| *at <= until && *at < ends(worker));
        due.min_by_key(|(_, (_, at, _))| *at).map(|(index, _)| index)
    }

    fn trace(&mut self, index: usize) {
        let (worker, time, random) = &mut self.agents[index];
        let now = *time;
        let fails = random.next() < worker.level(now);
        *time += random.gap(worker).max(1);
        self.traces += 1;
        let spans = spans(worker, self.traces, now, fails);
        self.pipeline.advance_in_steps(at(now), STEP);
        self.pipeline.apply(spans, Vec::new(), Vec::new(), at(now));
    }
}

/// A turn that took two seconds: a model call, a tool, and an answer. When it fails, it is by the tool.
pub(super) fn spans(worker: &Worker, number: u64, now: u64, fails: bool) -> Vec<Span> {
    let status = |failed| if failed { Status::Error } else { Status::Ok };
    let ago = |seconds: u64| Timestamp(BEGIN * SECOND + now - seconds * SECOND);
    let root = SpanId([1; 8]);
    let session = format!("{} {}", worker.agent, number);
    let base = Span {
        trace_id: TraceId(u128::from(number).to_be_bytes()),
        convention: Some("test"),
        agent_name: Some(worker.agent.into()),
        agent_version: Some(worker.version.into()),
        resource: Arc::new(Resource {
            service_name: Some("shop".into()),
            environment: Some("prod".into()),
            ..Resource::default()
        }),
        start: ago(2),
        end: ago(0),
        ..Span::default()
    };
    let arguments = serde_json::json!({ "order": number }).to_string();
    let tool = ToolFacts {
        name: Some("find_order".into()),
        arguments: Some(Arguments::from_canonical(arguments.as_bytes(), &[number], true)),
        result_hash: Some(number),
        ..ToolFacts::default()
    };
    let timeout = Remarks { error_type: Some("ConnectTimeout".into()), ..Remarks::default() };
    vec![
        Span {
            span_id: SpanId([2; 8]),
            parent: Some(root),
            end: ago(1),
            operation: Operation::Chat,
            status: Status::Ok,
            model: Some(ModelFacts::default()),
            ..base.clone()
        },
        Span {
            span_id: SpanId([3; 8]),
            parent: Some(root),
            start: ago(1),
            operation: Operation::ExecuteTool,
            status: status(fails),
            failed: fails,
            tool: Some(tool),
            remarks: fails.then(|| Box::new(timeout)),
            ..base.clone()
        },
        Span {
            span_id: root,
            operation: Operation::InvokeAgent,
            status: status(fails),
            failed: fails,
            session: Some(SessionName { attribute: "session.id".into(), id: session.into() }),
            ..base
        },
    ]
}

fn written(state: &impl Serialize) -> usize {
    rmp_serde::to_vec_named(state).unwrap().len()
}

pub(super) fn at(nanos: u64) -> Timestamp {
    Timestamp(BEGIN * SECOND + nanos)
}

impl Random {
    /// In `[0,1)`.
    pub(super) fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Whole nanoseconds, fewer than this.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some minutes")]
    pub(super) fn below(&mut self, nanos: u64) -> u64 {
        (nanos as f64 * self.next()) as u64
    }

    /// Nanoseconds to the next trace: from half to one and a half of the mean, in whole seconds.
    pub(super) fn gap(&mut self, worker: &Worker) -> u64 {
        let seconds = worker.every_seconds as f64 * (0.5 + self.next());
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some minutes")]
        let seconds = seconds as u64;
        seconds * SECOND
    }
}
