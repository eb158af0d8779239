//! The numbers of an agent, added up over shards: the messages from stage 3 to the board.

use std::borrow::{Borrow, Cow};
use std::collections::BTreeMap;
use std::ops::Add;
use std::sync::{Arc, OnceLock};

use super::counters::{Counted, Counter, Counters};
use super::distributions::Distribution;
use super::explained::TraceExplanation;
use super::facts::{AgentKey, ScopedId, ScoreHistogram, SessionFacts, Silences, SubAgent};
use super::judging::JudgeRules;
use super::limits::RunLimit;
use super::loops::LoopLabels;
use super::math::Quanta;
use super::predict::{KnownRun, Learned, Population, Ranking, Rankings, Spread, TaskRuns};
use super::run_scores::{self, AgentRuns, RunScores};
use super::small_map::SmallMap;
use super::span::Timestamp;
use super::view::{
    AgentName, AgentView, ScoreValue, SessionView, SubAgentView, TokensView, VerdictsView,
    WindowView,
};

/// Everything about an agent that is shown and exported.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentFacts {
    /// The agent.
    pub agent: AgentKey,
    /// Whether it has no numbers left.
    pub gone: bool,
    /// Its counters.
    pub counters: Counters,
    /// Counters of earlier processes, of the families whose totals are shown.
    pub earlier: Counters,
    /// Open sessions.
    pub sessions_active: u64,
    /// How long its traces have been silent.
    pub silences: Silences,
    /// Distributions of what its traces used.
    pub distributions: SmallMap<Distribution, ScoreHistogram>,
    /// Sessions with a loop that is still running, by labels; a session with loops of several kinds counts once for each kind.
    pub sessions_looping: BTreeMap<LoopLabels, u64>,
    /// Sessions with a running loop that has more evidence than names, each counted once.
    pub looping: u64,
    /// Sessions that keep running over a limit, or that have a trace that does.
    pub sessions_over_limit: BTreeMap<RunLimit, u64>,
    /// Scores of open sessions, by score.
    pub open_sessions: SmallMap<&'static str, ScoreHistogram>,
    /// Scores of closed sessions, by score.
    pub closed_sessions: SmallMap<&'static str, ScoreHistogram>,
    /// Scores of traces, by signal.
    pub trace_signals: SmallMap<Cow<'static, str>, ScoreHistogram>,
    /// Scores over runs, by window (`all`, `5m`, ..., `last_50`).
    pub run_scores: BTreeMap<String, RunScores>,
    /// Runs in memory.
    pub runs: u64,
    /// The effort of its sessions, by shard.
    pub spreads: Vec<Arc<Spread>>,
    /// The effort of its traces, by shard.
    pub trace_spreads: Vec<Arc<Spread>>,
    /// The runs at each task that has two or more.
    pub at_tasks: Arc<BTreeMap<Arc<str>, TaskRuns>>,
    /// Sessions whose outcome is known.
    pub known_runs: Arc<[KnownRun]>,
    /// Its sessions by window (`all`, `5m`, `1h`, ...).
    pub populations: SmallMap<Arc<str>, Population>,
    /// What the API shows, without the name, the verdicts and what is learned.
    pub view: AgentView,
    /// What is learned from all of this, computed on first use.
    pub learned: OnceLearned,
}

/// What is learned, computed on first use.
#[derive(Debug, Default)]
pub struct OnceLearned(OnceLock<Box<Learned>>);

impl Clone for OnceLearned {
    /// Empty: a copy may be changed, and then has to learn again.
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for OnceLearned {
    /// Always equal, as it follows from the other fields of an update.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl AgentFacts {
    /// The update of an agent without any remaining state, or without series of its own.
    pub fn gone(agent: AgentKey) -> Self {
        Self { agent, gone: true, ..Self::default() }
    }

    /// What is learned about the agent from its sessions and their outcomes.
    pub fn learned(&self) -> &Learned {
        self.learned.0.get_or_init(|| {
            let rankings = Rankings {
                sessions: Ranking::from(&Spread::of_all(&self.spreads)),
                traces: Ranking::from(&Spread::of_all(&self.trace_spreads)),
                tasks: Arc::clone(&self.at_tasks),
            };
            Box::new(Learned::new(rankings, &self.known_runs, &self.populations))
        })
    }

    /// The complete view for the API.
    pub fn shown(&self) -> AgentView {
        let mut view = AgentView { agent: AgentName::from(&self.agent), ..self.view.clone() };
        self.learned().look_at_agent(&mut view);
        view.verdicts = self.verdicts();
        view
    }

    /// Adds the numbers of one shard.
    pub(super) fn add(&mut self, shard: &SessionFacts) {
        self.counters.add(&shard.counters, |_| true);
        self.earlier.add(&shard.earlier, |_| true);
        self.sessions_active += shard.sessions_active;
        self.silences.add(&shard.silences);
        self.distributions.reserve(shard.distributions.len());
        for (distribution, taken) in shard.distributions.iter() {
            self.distributions.or_default(*distribution).add(taken);
        }
        if !shard.spread.is_empty() {
            self.spreads.push(Arc::clone(&shard.spread));
        }
        if !shard.trace_spread.is_empty() {
            self.trace_spreads.push(Arc::clone(&shard.trace_spread));
        }
        for (labels, sessions) in &shard.sessions_looping {
            *self.sessions_looping.entry(*labels).or_default() += sessions;
        }
        self.looping += shard.looping;
        for (limit, sessions) in &shard.sessions_over_limit {
            *self.sessions_over_limit.entry(*limit).or_default() += sessions;
        }
        for (held, scores) in [
            (&mut self.open_sessions, [&shard.open_reliability, &shard.open_consistency]),
            (&mut self.closed_sessions, [&shard.closed_reliability, &shard.closed_consistency]),
        ] {
            held.reserve(scores.iter().filter(|scores| scores.is_some()).count());
            for (name, scores) in ["reliability", "consistency"].into_iter().zip(scores) {
                scores.iter().for_each(|scores| held.or_default(name).add(scores));
            }
        }
        self.trace_signals.reserve(shard.trace_signals.len());
        for (name, scores) in shard.trace_signals.iter() {
            self.trace_signals.or_default(name.clone()).add(scores);
        }
    }

    /// Adds the scores over runs. `windows` has the start of each window by name; `judging` gives the probability that the judge is
    /// asked about a run.
    pub(super) fn add_runs(
        &mut self,
        runs: &mut AgentRuns,
        windows: &BTreeMap<Arc<str>, Timestamp>,
        judging: Option<&JudgeRules>,
    ) {
        self.runs = runs.len() as u64;
        let agent = &self.agent.agent_name;
        self.known_runs = runs.known(|flagged| judging?.probability(agent, flagged));
        self.at_tasks = runs.at_tasks();
        for (window, population) in self.populations.iter_mut() {
            let begin = windows.get(window).copied().unwrap_or_default();
            let ends = self.known_runs.iter().map(|run| run.end);
            population.told_since = ends.filter(|end| *end >= begin).min();
        }
        self.view.tasks = runs.tasks();
        self.run_scores.clone_from(runs.scores());
        let Some(all) = self.run_scores.get(run_scores::ALL) else { return };
        for (name, (value, samples)) in &all.scores {
            self.view.scores.insert((*name).to_owned(), ScoreValue::One(*value));
            self.view.score_samples.insert((*name).to_owned(), *samples);
        }
        if !all.pass_hat_k.is_empty() {
            let by_k = ScoreValue::ByK(all.pass_hat_k.clone());
            self.view.scores.insert("pass_hat_k".to_owned(), by_k);
        }
        self.view.ars.clone_from(&all.ars);
    }

    /// The counters of a family: those of this process, then those of earlier ones.
    fn both(&self, family: Counter) -> impl Iterator<Item = &Counted> {
        [&self.counters, &self.earlier]
            .into_iter()
            .flat_map(move |counters| counters.family(family))
    }

    /// The counters of a family by their first label, added up over this process and earlier ones.
    fn total(&self, family: Counter) -> BTreeMap<String, u64> {
        let mut total = BTreeMap::new();
        for (_, labels, count) in self.both(family) {
            let Some(label) = labels.first() else { continue };
            *total.entry(label.clone()).or_default() += count;
        }
        total
    }

    /// Verdicts by signal, as they were when they were counted: a later trace may have changed the scores of those after it.
    fn verdicts(&self) -> BTreeMap<String, VerdictsView> {
        let mut verdicts: BTreeMap<String, VerdictsView> = BTreeMap::new();
        for (_, labels, count) in self.both(Counter::TraceEvaluations) {
            let [signal, verdict] = &labels[..] else { continue };
            let counts = verdicts.entry(signal.clone()).or_default();
            match verdict.as_str() {
                "pass" => counts.pass += count,
                "fail" => counts.fail += count,
                _ => {}
            }
        }
        verdicts.retain(|_, counts| *counts != VerdictsView::default());
        verdicts
    }

    /// What the API shows, but for the name: the scores over all done traces, and totals over this process and earlier ones.
    pub(super) fn describe(
        &self,
        all: &WindowView,
        windows: SmallMap<Arc<str>, WindowView>,
    ) -> AgentView {
        let counter = |family: Counter, labels: &[&str]| -> Option<u64> {
            let both = [&self.counters, &self.earlier];
            both.into_iter().filter_map(|counters| counters.get(family, labels)).reduce(u64::add)
        };
        let mut parts: BTreeMap<&str, SubAgent> = BTreeMap::new();
        for family in SubAgent::FAMILIES {
            for (_, labels, count) in self.both(family) {
                let Some((name, labels)) = labels.split_first() else { continue };
                let part = parts.entry(name).or_default();
                part.name.clone_from(name);
                part.count(family, labels, *count);
            }
        }
        let cost = counter(Counter::CostUsd, &[])
            .and_then(|cost| i64::try_from(cost).ok())
            .map(|cost| Quanta(cost).to_f64());
        AgentView {
            sessions: all.sessions,
            traces: all.traces,
            traces_evaluated: all.traces_evaluated,
            reliability: all.reliability,
            consistency: all.consistency,
            loops: self.total(Counter::Loops),
            tokens: TokensView {
                input: counter(Counter::Tokens, &["input"]),
                output: counter(Counter::Tokens, &["output"]),
            },
            cost_usd: cost,
            sub_agents: parts.values().map(SubAgentView::from).collect(),
            unpriced_models: self.total(Counter::UnpricedCalls),
            traces_stalled: self.silences.stalled(),
            windows,
            ..AgentView::default()
        }
    }
}

/// Adds to a session and its traces what is learned about their agents, where the agents are known.
pub fn look_at_session<A: Borrow<AgentFacts>>(
    session: &mut SessionView,
    agent: impl Fn(&AgentKey) -> Option<A>,
) {
    let own = agent(&AgentKey::from(&session.agent));
    if let Some(own) = &own {
        own.borrow().learned().look_at(session);
    }
    let name = session.name();
    for trace in &mut session.traces {
        let is_own = trace.agent == session.agent;
        let other = if is_own { None } else { agent(&AgentKey::from(&trace.agent)) };
        if let Some(found) = if is_own { own.as_ref() } else { other.as_ref() } {
            found.borrow().learned().look_at_trace(&name, trace);
        }
    }
}

/// Adds to an explained trace what is learned about its agent, if that is known, and explains the prediction.
pub fn look_at_explanation<A: Borrow<AgentFacts>>(
    explained: &mut TraceExplanation,
    agent: impl Fn(&AgentKey) -> Option<A>,
) {
    let name = ScopedId {
        id: explained.session_id.as_str().into(),
        scope: explained.scope.as_str().into(),
    };
    if let Some(found) = agent(&AgentKey::from(&explained.trace.agent)) {
        let learned = found.borrow().learned();
        let predicted = learned.look_at_trace(&name, &mut explained.trace);
        explained.prediction = predicted.map(|predicted| learned.explain(&predicted));
    }
}
