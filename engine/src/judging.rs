//! Which traces a judge is asked about, and with what text: the engine asks, and never waits for the answer.
//!
//! ```text
//! sampled = hash(tenant, session) / 2^64 < rate of the agent,  or the trace is flagged
//! flagged = it ended in error, has a loop, or fails an expectation hard
//! ```
//!
//! Whole sessions are sampled, so that their scores are comparable, and by hash, so that every machine decides alike. A trace is
//! judged once, when it is first done: a late span does not cost another judgement. Rules in files of expectations are always
//! judged, whatever the rate, as a person wrote them down for that purpose.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::expect::Judgements;
use super::facts::{AgentKey, TraceFacts};
use super::math::Quanta;
use super::span::{Span, SpanId, Timestamp, TraceId};
use super::tenants::{TenantHash, TraceKey};
use super::trace::Transcript;

/// Which traces are judged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JudgeRules {
    /// Share of sessions that are judged, in `[0,1]`.
    pub sample_rate: f64,
    /// Shares of sessions for single agents, by the agent's name.
    pub sample_rates: BTreeMap<String, f64>,
    /// Whether flagged traces are judged whatever the rate.
    pub flagged: bool,
    /// Most bytes of texts in one transcript.
    pub max_transcript_bytes: usize,
    /// Most bytes of long texts that all traces of a shard hold for a judge; tenants share them.
    pub max_open_bytes: usize,
}

/// Whether a judge reads requests. Texts are kept for it only if it does.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum JudgeAvailability {
    /// It reads all requests.
    #[default]
    Available,
    /// Its queue is full: it would drop a request about a trace of these tenants, who have used up their shares.
    Full(Arc<BTreeSet<TenantHash>>),
    /// It makes no calls.
    Away,
}

impl JudgeAvailability {
    /// Whether it reads requests about a tenant's traces.
    pub fn reads(&self, tenant: TenantHash) -> bool {
        match self {
            Self::Available => true,
            Self::Full(tenants) => !tenants.contains(&tenant),
            Self::Away => false,
        }
    }
}

/// A request to judge a trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JudgeRequest {
    /// The trace.
    pub trace_id: TraceId,
    /// Its root, else its outermost span.
    pub root: Option<SpanId>,
    /// The agent of the trace.
    pub agent: AgentKey,
    /// Whether its metrics are to be judged, because it is sampled or flagged.
    pub metrics: bool,
    /// Rules of expectations to judge it by.
    pub rubrics: Vec<RubricRequest>,
    /// Its texts; empty if `unread`.
    pub transcript: Transcript,
    /// Whether the judge does not read this request; see [`JudgeAvailability`].
    pub unread: bool,
    /// Answers that an earlier process got, by question; these questions are not asked again.
    pub answered: BTreeMap<String, String>,
}

/// A judge's reply about a trace: first single answers, in the end the judgements that follow from them.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct JudgeReply {
    /// The trace; all zero: none.
    pub trace: TraceKey,
    /// Answers as JSON, by question; only the judge reads them.
    pub answered: BTreeMap<String, String>,
    /// Judgements, by rule.
    pub judgements: Judgements,
    /// Whether no more of its metrics will follow: those that are missing stay missing.
    pub metrics_over: bool,
    /// Rules for which no judgement will follow.
    pub rules_over: Vec<String>,
    /// Cost since the last reply, in US dollars.
    pub cost: Quanta,
}

/// A request to judge an answer or a field of a span by a rule from a file of expectations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RubricRequest {
    /// The key of its judgement: the rule, and the judged text if that is not the answer.
    pub key: String,
    /// The rule.
    pub rule: String,
    /// The field to judge; `None`: the answer.
    pub judged: Option<JudgedText>,
    /// The meaning of each score, if the file gives it.
    pub scale: Vec<String>,
    /// Examples of judgements.
    pub examples: Vec<Value>,
    /// The models that are to judge.
    pub judges: Judges,
}

/// A field of a span that is to be judged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JudgedText {
    /// The field, as written in the file.
    pub field: String,
    /// Its text.
    pub text: String,
}

/// The models that judge by the rules of a file of expectations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Judges {
    /// Models, each of which is asked; empty: the configured one.
    pub models: Vec<String>,
    /// Whether they decide together, by the rule for several judges.
    pub ensemble: bool,
    /// Their temperature; `None`: as configured.
    pub temperature: Option<f64>,
}

/// A score that is sent to other systems.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Score {
    /// The trace.
    pub trace_id: TraceId,
    /// The trace's root or its outermost span; `None`: not known.
    pub span_id: Option<SpanId>,
    /// The agent of the trace.
    pub agent: AgentKey,
    /// The score's name.
    pub name: String,
    /// The score, in `[0,1]`.
    pub score: Quanta,
    /// The score's label, if it has one.
    pub label: Option<String>,
    /// The reason for the score, if one was given.
    pub explanation: Option<String>,
    /// Who made it: judge, model and version of the prompts.
    pub evaluator: String,
    /// The rule that was broken, or by which the trace was judged.
    pub rule: Option<String>,
    /// When the score was made.
    pub time: Timestamp,
}

impl JudgeRequest {
    /// The key of the trace among those of all tenants.
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
    /// Whether a trace with this root is unsampled: it is not judged unless a model call failed, it has a loop, or it fails an
    /// expectation. The root usually arrives last, so the texts of most unsampled traces are held only while a request is read.
    pub fn leaves_unsampled(&self, root: &Span) -> bool {
        let (None, Some(session), false) = (root.parent, &root.session, root.failed) else {
            return false;
        };
        let rate = match root.agent_name.as_deref() {
            Some(name) => self.sample_rates.get(name).copied().unwrap_or(self.sample_rate),
            None if self.sample_rates.is_empty() => self.sample_rate,
            // Another span may name the agent.
            None => return false,
        };
        let tenant = root.resource.tenant.as_deref().unwrap_or_default();
        !sampled(tenant, &session.id, rate)
    }

    /// The probability that a session of this agent is judged, in `(0,1]`; `None`: none is.
    pub fn probability(&self, agent: &str, is_flagged: bool) -> Option<f64> {
        let rate = self.sample_rates.get(agent).copied().unwrap_or(self.sample_rate);
        let chance = if is_flagged && self.flagged { 1.0 } else { rate.min(1.0) };
        (chance > 0.0).then_some(chance)
    }

    /// Whether the metrics of a done trace are judged.
    pub fn pick(&self, update: &TraceFacts) -> bool {
        let agent = update.agent.as_ref().map(|agent| &*agent.agent_name);
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

/// Whether a session is sampled, by its tenant and its id.
fn sampled(tenant: &str, id: &str, rate: f64) -> bool {
    let hash = xxh3_64_with_seed(id.as_bytes(), xxh3_64_with_seed(tenant.as_bytes(), 0));
    // 53 bits: a float holds them exactly.
    ((hash >> 11) as f64) < rate * (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::AgentParts;
    use crate::facts::{Loop, SessionKey};

    fn trace(session: u32, agent: &str) -> TraceFacts {
        let session = SessionKey { id: session.to_string().into(), ..SessionKey::default() };
        let agent = AgentParts { agent_name: agent.into(), ..AgentParts::default() }.into();
        TraceFacts { session: Some(session), agent: Some(agent), ..TraceFacts::default() }
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
        let looping = TraceFacts { loops: vec![Loop::default()], ..trace(1, "a") };
        let failed = TraceFacts { error: true, ..trace(1, "a") };
        assert!(rules(0.0).pick(&looping) && rules(0.0).pick(&failed));
        assert_eq!(rules(0.1).probability("a", true), Some(1.0));
        assert_eq!(rules(0.1).probability("a", false), Some(0.1));
        assert_eq!(rules(0.1).probability("vip", false), Some(1.0));
        let rules = JudgeRules { flagged: false, ..rules(0.0) };
        assert!(!rules.pick(&failed));
        assert_eq!(rules.probability("a", true), None);
    }
}
