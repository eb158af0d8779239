//! The present problems, the worst first: drops, running loops, runs over a limit, stalled traces.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::api::worst_drop;
use super::http::Exporter;
use super::params::{AgentParams, bounds};
use super::query::{ListRequest, Query};
use crate::access::Identity;
use crate::engine::agent_facts::AgentFacts;
use crate::engine::explained::{AgentFilter, SessionFilter, SessionRow, Sort};
use crate::engine::limits::RunLimit;
use crate::engine::loops::Severity;
use crate::engine::sessions::Found;
use crate::engine::view::{AgentName, DropView, SessionName, SessionView};
use crate::refused::Refused;

/// The most sessions that are searched for examples of one kind of problem.
const NEWEST: usize = 50;

/// The most agents that get an example of one kind of problem, the worst first.
const EXAMPLES: usize = 20;

/// The present problems, on pages.
#[derive(Debug, JsonSchema, Serialize)]
pub(super) struct ProblemsPage {
    /// The page, the worst first.
    pub(super) problems: Vec<Problem>,
    /// The number of problems on all pages.
    pub(super) total: u64,
}

/// The kinds of problems, the gravest first.
#[derive(Clone, Copy, Debug, Default, Eq, JsonSchema, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ProblemKind {
    /// More of something bad than usual.
    #[default]
    Drop,
    /// Sessions have running loops.
    Loop,
    /// Runs are over a limit.
    RunLimit,
    /// Open traces are silent.
    Stall,
}

/// One problem of one agent.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub(super) struct Problem {
    /// The kind of problem.
    pub(super) kind: ProblemKind,
    /// The stream of a drop, the kind of a loop, or the limit that a run is over.
    pub(super) what: Option<String>,
    /// For a run over a limit, whether it is a trace or a session.
    pub(super) run: Option<&'static str>,
    /// The rule that raises an alert about it.
    pub(super) alert: &'static str,
    /// How bad it is.
    pub(super) severity: Severity,
    /// The agent.
    pub(super) agent: AgentName,
    /// Since when; null if that is not known.
    pub(super) since_unix_nano: Option<String>,
    /// For a drop, traces since it began; for loops and runs over a limit, sessions; for a stall, traces.
    pub(super) count: u64,
    /// For a drop, the probability that it is not chance, in `[0,1]`.
    pub(super) confidence: Option<f64>,
    /// For a drop, the share of failing traces before it.
    pub(super) from: Option<f64>,
    /// For a drop, the share of failing traces since it began.
    pub(super) to: Option<f64>,
    /// Calls of a loop in its example.
    pub(super) calls: Option<u64>,
    /// Dollars that the loops of the example cost; null if unknown.
    pub(super) cost_usd: Option<f64>,
    /// The signal by which most traces fail.
    pub(super) signal: Option<String>,
    /// The tool that fails or loops.
    pub(super) tool: Option<String>,
    /// The kind of error of most failures of a drop; null if it is not reported.
    pub(super) error_type: Option<String>,
    /// A session that shows the problem.
    pub(super) session: Option<SessionName>,
}

impl<Q: Query> Exporter<Q> {
    /// The problems of the requested agents.
    pub(super) async fn problems(
        &self,
        identity: &Identity,
        params: AgentParams,
    ) -> Result<ProblemsPage, Refused> {
        let (limit, offset) = bounds(params.limit, params.offset)?;
        let filter = params.filter(identity);
        let updates = self.board.wanted(|update| filter.admits(Some(&update.agent)));
        let of = |found: fn(&AgentFacts) -> Vec<Problem>| -> Vec<Problem> {
            let mut found: Vec<Problem> = updates.iter().flat_map(|update| found(update)).collect();
            found.sort_by(|one, other| one.place().cmp(&other.place()));
            found
        };
        let open = SessionFilter { agent: filter, open: Some(true), ..SessionFilter::default() };
        let mut problems = of(drops);
        for (found, filter) in [
            (of(over_limits), SessionFilter { over_limit: Some(true), ..open.clone() }),
            (of(stall), SessionFilter { silent: Some(true), ..open.clone() }),
            (of(loop_that_goes_on), SessionFilter { loops: Some(true), ..open.clone() }),
        ] {
            problems.extend(self.with_examples(found, filter).await);
        }
        problems.sort_by(|one, other| one.place().cmp(&other.place()));
        let total = problems.len() as u64;
        let problems = problems.into_iter().skip(offset).take(limit).collect();
        Ok(ProblemsPage { problems, total })
    }

    /// The newest sessions that pass the filter.
    async fn newest(&self, filter: SessionFilter, limit: usize) -> Vec<SessionRow> {
        let request = ListRequest { filter, sort: Sort::Recent, limit, offset: 0 };
        self.query.list(request).await.rows
    }

    /// Adds an example to problems of one kind, the worst first: the newest session of the agent that passes the filter.
    async fn with_examples(&self, mut found: Vec<Problem>, of: SessionFilter) -> Vec<Problem> {
        if found.is_empty() {
            return found;
        }
        let rows = self.newest(of.clone(), NEWEST).await;
        let mut newest: BTreeMap<&AgentName, &SessionRow> = BTreeMap::new();
        for row in &rows {
            newest.entry(&row.agent).or_insert(row);
        }
        for problem in found.iter_mut().take(EXAMPLES) {
            let mut row = newest.get(&problem.agent).copied().cloned();
            if row.is_none() {
                // Rows have the agent of the first trace; the problem may be in a trace of another.
                let agent = AgentFilter::exactly(&problem.agent);
                row = self.newest(SessionFilter { agent, ..of.clone() }, 1).await.pop();
            }
            let Some(SessionRow { session_id, scope, agent, .. }) = row else { continue };
            if problem.kind == ProblemKind::Loop {
                let tenant = agent.tenant.as_deref().unwrap_or_default();
                let found = self.query.session(tenant, &session_id, Some(&scope)).await;
                if let Found::One(session) = found {
                    problem.shown_by(&session);
                }
            } else {
                problem.session = Some(SessionName { session_id, scope });
            }
        }
        found
    }
}

impl Problem {
    /// Takes a session with a loop of the agent as the example.
    fn shown_by(&mut self, session: &SessionView) {
        let agent = self.agent.clone();
        let loops = || {
            let traces = session.traces.iter().filter(|trace| trace.agent == agent);
            traces.flat_map(|trace| trace.loops.iter().map(move |found| (trace, found)))
        };
        let weighing = loops().filter(|(_, found)| found.evidence.weighs());
        let Some((trace, last)) = weighing.max_by_key(|(_, found)| (found.severity, found.count))
        else {
            return;
        };
        let first = last.first.and_then(|at| trace.tools.get(usize::try_from(at).ok()?));
        let since = first.map_or(&trace.start_unix_nano, |call| &call.start_unix_nano);
        self.what = Some(last.kind.name().to_owned());
        self.since_unix_nano = Some(since.clone());
        self.calls = Some(last.count);
        self.tool.clone_from(&last.tool);
        let costs = loops().filter_map(|(_, found)| found.cost_usd);
        self.cost_usd = costs.reduce(|sum, cost| sum + cost);
        let (session_id, scope) = (session.session_id.clone(), session.scope.clone());
        self.session = Some(SessionName { session_id, scope });
    }

    /// The order of problems: critical ones first, then by kind, then the greatest count.
    fn place(&self) -> impl Ord + '_ {
        let (severity, count) = (Reverse(self.severity), Reverse(self.count));
        (severity, self.kind, count, &self.agent, &self.what, self.run)
    }
}

/// The drops of the worst severity of an agent: warnings beside a critical drop have the same cause and are left to the agent's
/// view.
fn drops(update: &AgentFacts) -> Vec<Problem> {
    let Some(worst) = worst_drop(update) else { return Vec::new() };
    let on = update.view.drops.iter().filter(|drop| drop.severity == worst.name());
    let problem = |drop: &DropView| {
        let found = drop.drop.as_ref()?;
        Some(Problem {
            kind: ProblemKind::Drop,
            alert: "AgentReliabilityDrop",
            what: Some(drop.stream.to_owned()),
            severity: worst,
            agent: AgentName::from(&update.agent),
            since_unix_nano: Some(found.since_unix_nano.clone()),
            count: found.traces,
            confidence: Some(found.confidence),
            from: Some(found.from),
            to: Some(found.to),
            signal: found.signal.clone(),
            tool: found.tool.clone(),
            error_type: found.error_type.clone(),
            session: found.sessions.first().cloned(),
            ..Problem::default()
        })
    };
    on.filter_map(problem).collect()
}

/// A problem for each limit that sessions of an agent exceed.
fn over_limits(update: &AgentFacts) -> Vec<Problem> {
    let over = update.sessions_over_limit.iter().filter(|(_, sessions)| **sessions > 0);
    let problem = |(limit, sessions): (&RunLimit, &u64)| Problem {
        kind: ProblemKind::RunLimit,
        alert: "AgentRunLimit",
        what: Some(limit.name().to_owned()),
        run: Some(limit.run().name()),
        severity: Severity::Critical,
        agent: AgentName::from(&update.agent),
        count: *sessions,
        ..Problem::default()
    };
    over.map(problem).collect()
}

/// The problem that open traces of an agent are silent.
fn stall(update: &AgentFacts) -> Vec<Problem> {
    let problem = (update.view.traces_stalled > 0).then(|| Problem {
        kind: ProblemKind::Stall,
        alert: "AgentStalled",
        severity: Severity::Warning,
        agent: AgentName::from(&update.agent),
        count: update.view.traces_stalled,
        ..Problem::default()
    });
    problem.into_iter().collect()
}

/// The problem that sessions of an agent have running loops.
fn loop_that_goes_on(update: &AgentFacts) -> Vec<Problem> {
    let problem = (update.looping > 0).then(|| Problem {
        kind: ProblemKind::Loop,
        alert: "AgentSessionLooping",
        severity: severity(update),
        agent: AgentName::from(&update.agent),
        count: update.looping,
        ..Problem::default()
    });
    problem.into_iter().collect()
}

/// The worst severity of the running loops.
fn severity(update: &AgentFacts) -> Severity {
    let weighing = update.sessions_looping.iter().filter(|(labels, _)| labels.evidence.weighs());
    let on = weighing.filter(|(_, sessions)| **sessions > 0);
    let worst = on.map(|(labels, _)| labels.severity).max();
    worst.unwrap_or(Severity::Warning)
}
