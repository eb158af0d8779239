//! Requests to a judge and to an embedding model, and their replies.

use std::mem;

use super::judgement::PendingJudgement;
use super::open_trace::{OpenTrace, Reader, State};
use super::{Assembler, Evaluation, JudgeAvailability, Learned, Quanta, Timestamp, TraceKey};
use crate::embedding::{EmbedRequest, Embedded};
use crate::facts::TraceFacts;
use crate::judging::{JudgeReply, JudgeRequest};
use crate::trace;

/// Nanoseconds in a minute.
const MINUTE: u64 = 60_000_000_000;
/// Minutes, beside the current one, for which the judge's costs are kept.
const MINUTES: u64 = 60;

impl Assembler {
    /// Sets whether the judge reads transcripts from here on; if not, requests have none.
    pub fn attend(&mut self, attention: JudgeAvailability) {
        self.attention = attention;
    }

    /// Takes the requests to the judge since the last call; [`Self::drain`] makes new ones.
    pub fn requests(&mut self) -> Vec<JudgeRequest> {
        mem::take(&mut self.requests)
    }

    /// Takes the requests to the embedding model since the last call; [`Self::drain`] makes new ones.
    pub fn embed_requests(&mut self) -> Vec<EmbedRequest> {
        mem::take(&mut self.embed_requests)
    }

    /// The traces with an unanswered question to a judge or an embedding model.
    pub fn unanswered(&self) -> Vec<TraceKey> {
        let embedding = self.embedding.is_some();
        let waits = |held: &OpenTrace| {
            let open = held.judgement.as_ref().is_some_and(|judgement| judgement.is_open());
            open || (embedding && held.embedding.as_ref().is_some_and(|held| held.is_open()))
        };
        self.deadlines.traces().filter(|id| self.traces.get(*id).is_some_and(&waits)).collect()
    }

    /// Repeats the unanswered requests about a trace; see [`Self::requests`] and [`Self::embed_requests`].
    pub fn ask_again(&mut self, id: TraceKey, known: &Learned) {
        let Some(held) = self.traces.get(id).filter(|held| held.state != State::Open) else {
            return;
        };
        let trace = held.parts.view();
        let agent = trace::agent(&trace, &mut self.agents);
        let reading = self.read(held, &trace, agent, Some(known));
        let Some(Evaluation { update, rubrics, texts }) = reading else { return };
        if let Some(rules) = &self.judging
            && let Some(judgement) = &held.judgement
            && let Some(asked) = judgement.ask_again(rubrics)
        {
            let reader = Reader { rules, unread: !self.attention.reads(id.tenant) };
            self.requests.push(held.request(&trace, &update, asked, reader));
        }
        let embedded = held.embedded().map(|embedded| embedded.texts);
        self.embed_requests.extend(texts.filter(|texts| embedded != Some(texts.texts)));
    }

    /// The judge's costs within the last hour, as (minute, dollars).
    pub fn paid_to_judge(&self) -> impl Iterator<Item = (u64, Quanta)> {
        self.paid.iter().map(|(minute, cost)| (*minute, Quanta(*cost)))
    }

    /// Evaluates the current state of a trace, and makes the resulting requests. If it is undecided whether its texts are kept,
    /// they are kept if it has a loop.
    pub(super) fn read_and_ask(
        &mut self,
        id: TraceKey,
        undecided: bool,
        known: &Learned,
    ) -> Option<Box<TraceFacts>> {
        let held = self.traces.get(id)?;
        let trace = held.parts.view();
        let agent = trace::agent(&trace, &mut self.agents);
        let Evaluation { update, rubrics, texts } = self.read(held, &trace, agent, Some(known))?;
        if undecided && !update.loops.is_empty() {
            self.put_texts(id);
            return self.read_and_ask(id, false, known);
        }
        let uncompared = held.state != State::Open && trace::has_uncompared(&trace);
        self.counts.add_many("calls", "uncompared", u64::from(uncompared));
        let judging = self.judging.as_ref().filter(|_| held.state != State::Open);
        let unread = !self.attention.reads(id.tenant);
        let request = judging.map(|rules| {
            let unasked = PendingJudgement::new(held.decided);
            let judgement = held.judgement.as_deref().unwrap_or(&unasked);
            let asked = judgement.to_ask(|| rules.pick(&update), rubrics);
            asked.map(|asked| held.request(&trace, &update, asked, Reader { rules, unread }))
        });
        request.into_iter().for_each(|request| self.ask_judge(id, request));
        self.ask_embedder(texts);
        if undecided {
            self.drop_texts_of(id);
        }
        Some(update)
    }

    /// Requests embeddings of texts, unless the last request was about the same texts.
    fn ask_embedder(&mut self, texts: Option<EmbedRequest>) {
        let Some(texts) = texts else { return };
        let Some(held) = self.traces.get_mut(texts.trace) else { return };
        let pending = held.embedding.get_or_insert_default();
        if pending.asked.replace(texts.texts) != Some(texts.texts) {
            self.counts.add_many("truncated", "embedded_text", u64::from(texts.truncated));
            self.embed_requests.push(texts);
        }
    }

    /// Applies an embedding model's results for the texts of a trace.
    pub(super) fn embedded(&mut self, id: TraceKey, embedded: Embedded, now: Timestamp) {
        let Some(held) = self.traces.get_mut(id) else {
            self.counts.add("late", "embedding_dropped");
            return;
        };
        held.embedding.get_or_insert_default().embedded = Some(embedded);
        self.reported(id, now);
    }

    /// Makes a request to the judge about a done trace, or notes that there is none.
    fn ask_judge(&mut self, id: TraceKey, request: Option<JudgeRequest>) {
        if let Some(held) = self.traces.get_mut(id) {
            // Most traces are never judged, and have no pending judgement.
            held.decided = true;
            if request.is_some() || held.judgement.is_some() {
                held.judgement().asked(request.as_ref());
            }
            let unread = request.as_ref().is_some_and(|request| request.unread);
            let open = held.judgement.as_ref().is_some_and(|judgement| judgement.is_open());
            if unread || !open {
                self.forgo_texts_of_judge(id);
            }
        }
        if let Some(request) = request {
            let truncated = u64::from(request.transcript.truncated);
            self.counts.add_many("truncated", "transcript", truncated);
            self.requests.push(request);
        }
    }

    /// Applies a judge's reply about a trace.
    pub(super) fn judged(&mut self, reply: JudgeReply, now: Timestamp) {
        self.paid(reply.cost, now);
        let id = reply.trace;
        if reply == (JudgeReply { trace: id, cost: reply.cost, ..JudgeReply::default() }) {
            return;
        }
        let Some(held) = self.traces.get_mut(id) else {
            self.counts.add("late", "judgement_dropped");
            return;
        };
        let judgement = held.judgement();
        let changes = judgement.take(reply);
        if judgement.is_over() {
            self.forgo_texts_of_judge(id);
        }
        if changes {
            self.reported(id, now);
        }
    }

    /// Adds a cost of the judge, by minute, and drops those older than an hour.
    fn paid(&mut self, cost: Quanta, now: Timestamp) {
        if cost.0 > 0 {
            let minute = now.0 / MINUTE;
            self.paid = self.paid.split_off(&minute.saturating_sub(MINUTES));
            let sum = self.paid.entry(minute).or_default();
            *sum = sum.saturating_add(cost.0);
        }
    }
}
