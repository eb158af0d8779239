//! Which traces a judge is asked about, and what it is given: the engine asks, and never waits for the answer.
//!
//! ```text
//! sampled = hash(tenant, session) / 2^64 < rate of the agent,  or the trace is flagged
//! flagged = it ended in error, has a loop, or fails an expectation hard
//! ```
//!
//! Whole sessions are sampled, so that their scores are of one kind, and by hash, so that every machine decides alike. A
//! trace is asked about once, when it is done for the first time: a late span does not cost another judgement. Rules in
//! files of expectations are judged whatever the rate: somebody asked for them by name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::expect::Judgements;
use super::math::Quanta;
use super::span::{Span, SpanId, Timestamp, TraceId};
use super::tenants::{TenantHash, TraceKey};
use super::trace::Transcript;
use super::update::{AgentKey, TraceUpdate};

/// Which traces are judged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JudgeRules {
    /// Share of sessions, in `[0,1]`.
    pub sample_rate: f64,
    /// The same of single agents, by name.
    pub sample_rates: BTreeMap<String, f64>,
    /// Traces that are flagged are judged whatever the rate.
    pub flagged: bool,
    /// Bytes of texts in one transcript.
    pub max_transcript_bytes: usize,
    /// Bytes of long texts that are held for a judge in all traces of a shard, which tenants share.
    pub max_open_bytes: usize,
}

/// Whether a judge reads what it is asked. Where it does not, nothing is kept for it of what comes in either.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Attention {
    /// It does.
    #[default]
    Reads,
    /// It has more to do than it gets done: what is asked now of these tenants, who have all of their share, would be thrown away.
    Full(Arc<BTreeSet<TenantHash>>),
    /// No call would go out.
    Away,
}

impl Attention {
    /// Whether it reads what it is asked of a tenant's traces.
    pub fn reads(&self, tenant: TenantHash) -> bool {
        match self {
            Self::Reads => true,
            Self::Full(tenants) => !tenants.contains(&tenant),
            Self::Away => false,
        }
    }
}

/// A trace that is to be judged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JudgeRequest {
    /// The trace.
    pub trace_id: TraceId,
    /// Its root, or the outermost span that is there.
    pub root: Option<SpanId>,
    /// Whose it is.
    pub agent: AgentKey,
    /// Its metrics are to be judged: by the rate, or because it is flagged.
    pub metrics: bool,
    /// Rules of expectations that its answer is to be held against.
    pub rubrics: Vec<RubricRequest>,
    /// What it says; empty where nobody would have read it.
    pub transcript: Transcript,
    /// Nobody would have read it; see [`Attention`].
    pub unread: bool,
    /// What an earlier process was answered, by question: that is not asked again.
    pub answered: BTreeMap<String, String>,
}

/// What a judge says of a trace: answers one by one, and in the end what came of them.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct JudgeReply {
    /// The trace; all zero: none.
    pub trace: TraceKey,
    /// Answers as JSON, by question; both are the judge's own.
    pub answered: BTreeMap<String, String>,
    /// What is judged of its answer, by rule.
    pub judgements: Judgements,
    /// Of its metrics there will be no more: those that are missing stay so.
    pub metrics_over: bool,
    /// Nor of these rules.
    pub rules_over: Vec<String>,
    /// What was paid since the last one, in dollars.
    pub cost: Quanta,
}

/// A rule that somebody wrote into a file of expectations, for the answer or for a field of a span.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RubricRequest {
    /// What its judgement goes by: the rule, and which text if it is not the answer.
    pub key: String,
    /// The rule.
    pub rule: String,
    /// The field that it is for; `None`: the answer.
    pub judged: Option<JudgedText>,
    /// What each score stands for, if that was written.
    pub scale: Vec<String>,
    /// How others were judged.
    pub examples: Vec<Value>,
    /// Who is to judge.
    pub judges: Judges,
}

/// A field of a span that is to be judged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JudgedText {
    /// The field, as the file has it.
    pub field: String,
    /// What it says.
    pub text: String,
}

/// Who a file of expectations wants its rules to be judged by.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Judges {
    /// Models, each of which is asked; none: the configured one.
    pub models: Vec<String>,
    /// They decide together, by the rule for several judges.
    pub ensemble: bool,
    /// How freely they answer; `None`: as configured.
    pub temperature: Option<f64>,
}

/// A score that others are told of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Score {
    /// The trace.
    pub trace_id: TraceId,
    /// The span, the trace's root or its outermost one; `None`: not known.
    pub span_id: Option<SpanId>,
    /// Whose trace it is.
    pub agent: AgentKey,
    /// The score's name.
    pub name: String,
    /// The score, in `[0,1]`.
    pub score: Quanta,
    /// What it is called, if it is.
    pub label: Option<String>,
    /// Why, if it was said.
    pub explanation: Option<String>,
    /// Who made it: judge, model and version of the prompts.
    pub evaluator: String,
    /// The rule that was broken, or that was judged by.
    pub rule: Option<String>,
    /// When.
    pub time: Timestamp,
}

impl JudgeRequest {
    /// The trace among those of all tenants.
    pub fn trace(&self) -> TraceKey {
        TraceKey::new(self.trace_id, Some(&self.agent.tenant))
    }

    /// Bytes of all texts in it.
    pub fn bytes(&self) -> usize {
        let judged = self.rubrics.iter().filter_map(|rubric| rubric.judged.as_ref());
        self.transcript.bytes() + judged.map(|judged| judged.text.len()).sum::<usize>()
    }
}

impl JudgeRules {
    /// Whether a trace with this root is not judged unless a model call failed, it has a loop, or it fails an expectation. Of most traces the
    /// root is the last span, so their texts are held no longer than it takes to read a request.
    pub fn passes_over(&self, root: &Span) -> bool {
        let (None, Some(session), false) = (root.parent, &root.session, root.failed) else {
            return false;
        };
        let rate = match root.agent_name.as_deref() {
            Some(name) => self.sample_rates.get(name).copied().unwrap_or(self.sample_rate),
            None if self.sample_rates.is_empty() => self.sample_rate,
            // Another span may say whose it is.
            None => return false,
        };
        let tenant = root.resource.tenant.as_deref().unwrap_or_default();
        !sampled(tenant, &session.id, rate)
    }

    /// The chance that a session of this agent is judged, flagged or not, in `(0,1]`; `None`: none is.
    pub fn probability(&self, agent: &str, is_flagged: bool) -> Option<f64> {
        let rate = self.sample_rates.get(agent).copied().unwrap_or(self.sample_rate);
        let chance = if is_flagged && self.flagged { 1.0 } else { rate.min(1.0) };
        (chance > 0.0).then_some(chance)
    }

    /// Whether the metrics of a trace that is done are judged.
    pub fn pick(&self, update: &TraceUpdate) -> bool {
        let agent = update.agent.as_ref().map(|agent| agent.agent_name.as_str());
        let rate = agent.and_then(|name| self.sample_rates.get(name)).copied();
        let session = update.session.as_ref();
        if session.is_some_and(|session| {
            sampled(&session.tenant, &session.id, rate.unwrap_or(self.sample_rate))
        }) {
            return true;
        }
        let failed = update.expectations.iter().any(|expectation| expectation.hard_fail);
        let flagged = update.error || !update.loops.is_empty() || failed;
        self.flagged && flagged
    }
}

/// Whether a session is, by its tenant and its id.
fn sampled(tenant: &str, id: &str, rate: f64) -> bool {
    let hash = xxh3_64_with_seed(id.as_bytes(), xxh3_64_with_seed(tenant.as_bytes(), 0));
    // 53 bits, which a float holds exactly.
    ((hash >> 11) as f64) < rate * (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::update::{Loop, SessionKey};

    fn trace(session: u32, agent: &str) -> TraceUpdate {
        let session = SessionKey { id: session.to_string(), ..SessionKey::default() };
        let agent = AgentKey { agent_name: agent.to_owned(), ..AgentKey::default() };
        TraceUpdate { session: Some(session), agent: Some(agent), ..TraceUpdate::default() }
    }

    fn rules(rate: f64) -> JudgeRules {
        JudgeRules {
            sample_rate: rate,
            sample_rates: [("vip".to_owned(), 1.0)].into(),
            flagged: true,
            max_transcript_bytes: 1_000,
            max_open_bytes: 1_000_000,
        }
    }

    #[test]
    fn a_share_of_sessions_is_judged() {
        let picked = |rate| {
            let rules = rules(rate);
            (0..10_000).filter(|id| rules.pick(&trace(*id, "a"))).count()
        };
        assert_eq!((picked(0.0), picked(1.0)), (0, 10_000));
        assert!((900..1_100).contains(&picked(0.1)), "{}", picked(0.1));
        assert!(rules(0.0).pick(&trace(1, "vip")));
    }

    #[test]
    fn what_is_flagged_is_always_judged() {
        let looping = TraceUpdate { loops: vec![Loop::default()], ..trace(1, "a") };
        let failed = TraceUpdate { error: true, ..trace(1, "a") };
        assert!(rules(0.0).pick(&looping) && rules(0.0).pick(&failed));
        assert_eq!(rules(0.1).probability("a", true), Some(1.0));
        assert_eq!(rules(0.1).probability("a", false), Some(0.1));
        assert_eq!(rules(0.1).probability("vip", false), Some(1.0));
        let rules = JudgeRules { flagged: false, ..rules(0.0) };
        assert!(!rules.pick(&failed));
        assert_eq!(rules.probability("a", true), None);
    }
}
