//! Stage 1: spans, log records and reports become traces, keyed by trace id.
//!
//! A trace is done when its root ended and it was quiet, or at a timeout; a late span re-opens it; then it is
//! sealed. Every change is sent on as a full [`TraceUpdate`] under a higher revision, once per `drain`, so a loop
//! is told as soon as the span is in that closes it.

mod hearing;
mod sealed;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use self::hearing::{Asked, Hearing};
use self::sealed::Sealed;
use serde::{Deserialize, Serialize};

use super::count::Counts;
use super::embedding::{EmbedRequest, Embedded};
use super::expect::Suite;
use super::judging::{JudgeReply, JudgeRequest, JudgeRules, RubricRequest};
use super::math::Quanta;
use super::options::{AssembleOptions, CostOptions, LoopOptions};
use super::price::Prices;
use super::span::{Log, Report, Span, Target, Timestamp, TraceId};
use super::trace::{Parts, Rules, evaluate, expectations, ignored, transcript};
use super::update::{AgentKey, Loop, SessionKey, ToldLoops, TraceState, TraceUpdate};

/// Nanoseconds in a minute, and minutes for which what was paid is kept: an hour, and the one that is going on.
const MINUTE: u64 = 60_000_000_000;
const MINUTES: u64 = 60;

/// What the stage is fed.
#[derive(Clone, Debug)]
pub enum Input {
    /// A span.
    Span(Box<Span>),
    /// A log record.
    Log(Box<Log>),
    /// A report about a trace.
    Report(Box<Report>),
    /// What a judge says of a trace.
    Judged(Box<JudgeReply>),
    /// What an embedding model made of a trace's texts.
    Embedded(TraceId, Embedded),
}

/// The stage: all traces of one shard.
#[derive(Debug)]
pub struct Assemble {
    options: AssembleOptions,
    rules: Rules,
    // The same, with texts; for expectations.
    with_texts: Rules,
    suites: Arc<[Suite]>,
    judging: Option<JudgeRules>,
    requests: Vec<JudgeRequest>,
    // Bytes of a text that an embedding model is asked about; `None`: there is no model.
    embedding: Option<usize>,
    embed_requests: Vec<EmbedRequest>,
    traces: HashMap<TraceId, Held>,
    // Invariant: one entry per held trace, its deadline.
    deadlines: BTreeSet<(Timestamp, TraceId)>,
    dirty: BTreeSet<TraceId>,
    sealed: Sealed,
    // Reports for traces that are not there yet, by when they give up and then in order of arrival.
    waiting: BTreeMap<(Timestamp, u64), Report>,
    waiting_for: BTreeMap<TraceId, BTreeSet<(Timestamp, u64)>>,
    next_waiting: u64,
    // What the judge was paid, by minute.
    paid: BTreeMap<u64, i64>,
    counts: Counts,
}

/// A trace that can still change.
#[derive(Debug, Deserialize, Serialize)]
struct Held {
    parts: Parts,
    // Who sent its first part. Nobody else can add to it; before there were tenants all was nobody's.
    #[serde(default)]
    tenant: Option<Arc<str>>,
    revision: u64,
    opened: Timestamp,
    touched: Timestamp,
    deadline: Timestamp,
    state: State,
    partial: bool,
    sent: Option<SessionKey>,
    // Loops by agent, as told to the session it is in, and to those that it left.
    telling: BTreeMap<AgentKey, Vec<Loop>>,
    told: BTreeMap<AgentKey, Vec<Loop>>,
    counted_ignored: bool,
    #[serde(default)]
    hearing: Hearing,
    // The texts that an embedding model was asked about, and what it made of them.
    #[serde(default)]
    texts_asked: Option<u64>,
    #[serde(default)]
    embedded: Option<Box<Embedded>>,
    // How it was read when it was done; nothing has come since.
    #[serde(skip)]
    read: Option<Box<TraceUpdate>>,
}

/// A trace as it stands.
struct Reading {
    update: TraceUpdate,
    /// Rules for its answer that nobody has judged.
    rubrics: Vec<RubricRequest>,
    /// Its texts, if they are to be embedded.
    texts: Option<EmbedRequest>,
}

/// A shard as it is written down: traces, sealed ones, waiting reports.
#[derive(Debug, Deserialize, Serialize)]
struct Saved<T, S, W> {
    traces: Vec<(TraceId, T)>,
    sealed: S,
    waiting: W,
    next_waiting: u64,
    #[serde(default)]
    paid: BTreeMap<u64, i64>,
}

/// A shard that was read back.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub struct SavedTraces(Saved<Held, Sealed, BTreeMap<(Timestamp, u64), Report>>);

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
enum State {
    Open,
    Done,
    Sealed,
}

impl Assemble {
    /// An empty stage.
    pub fn new(options: AssembleOptions, loops: LoopOptions, cost: &CostOptions) -> Self {
        let rules = Rules {
            fallback: options.session_fallback,
            loops,
            keep_content: options.keep_content,
            prices: Prices::new(cost),
        };
        Self {
            options,
            with_texts: Rules { keep_content: true, ..rules.clone() },
            rules,
            suites: Arc::default(),
            judging: None,
            requests: Vec::new(),
            embedding: None,
            embed_requests: Vec::new(),
            traces: HashMap::new(),
            deadlines: BTreeSet::new(),
            dirty: BTreeSet::new(),
            sealed: Sealed::default(),
            waiting: BTreeMap::new(),
            waiting_for: BTreeMap::new(),
            next_waiting: 0,
            paid: BTreeMap::new(),
            counts: Counts::default(),
        }
    }

    /// Holds every trace that is done against these.
    #[must_use]
    pub fn expecting(self, suites: Arc<[Suite]>) -> Self {
        Self { suites, ..self }
    }

    /// Asks for judgements of the traces that these rules pick; see [`Self::requests`].
    #[must_use]
    pub fn judging(self, rules: Option<JudgeRules>) -> Self {
        Self { judging: rules, ..self }
    }

    /// Asks for embeddings of the texts of done traces, each text of at most so many bytes; see
    /// [`Self::embed_requests`].
    #[must_use]
    pub fn embedding(self, max_text_bytes: Option<usize>) -> Self {
        Self { embedding: max_text_bytes, ..self }
    }

    /// Applies one thing that arrived at `now`.
    pub fn handle(&mut self, input: Input, now: Timestamp) {
        match input {
            Input::Span(span) => self.span(span, now),
            Input::Log(log) => self.log(*log, now),
            Input::Report(report) => self.report(*report, now),
            Input::Judged(reply) => self.judged(*reply, now),
            Input::Embedded(id, embedded) => self.embedded(id, embedded, now),
        }
    }

    /// The next moment at which a timer fires.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let trace = self.deadlines.first().map(|(due, _)| *due);
        let report = self.waiting.first_key_value().map(|((due, _), _)| *due);
        trace.into_iter().chain(report).min()
    }

    /// Runs the timers that are due.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        while let Some((due, id)) = self.deadlines.first().copied().filter(|(due, _)| *due <= now) {
            let Some(held) = self.traces.get_mut(&id) else {
                self.deadlines.remove(&(due, id));
                continue;
            };
            match held.state {
                State::Open => {
                    held.partial = due >= held.opened.after(self.options.trace_max_age);
                    self.close(id, due);
                }
                State::Done | State::Sealed => self.seal(id),
            }
        }
        while let Some(((due, number), report)) = self.waiting.pop_first() {
            if due > now {
                self.waiting.insert((due, number), report);
                break;
            }
            self.forget_waiting(&report, (due, number));
            self.counts.add("reports", "unmatched");
        }
    }

    /// Ends the input: every trace becomes done, then final.
    pub fn finish(&mut self, now: Timestamp) {
        for (_, id) in self.deadlines.clone() {
            if self.traces.get(&id).is_some_and(|held| held.state == State::Open) {
                self.close(id, now);
            }
            self.seal(id);
        }
        let unmatched = std::mem::take(&mut self.waiting).len();
        self.waiting_for.clear();
        self.counts.add_many("reports", "unmatched", unmatched as u64);
    }

    /// Takes what has changed since the last call: tombstones first, then in order of trace id.
    pub fn drain(&mut self) -> Vec<TraceUpdate> {
        let mut tombstones = Vec::new();
        let mut updates = Vec::new();
        for id in std::mem::take(&mut self.dirty) {
            let known = self.traces.get_mut(&id).and_then(|held| held.read.take());
            let update = known.map(|known| *known).or_else(|| self.read_and_ask(id));
            let Some(held) = self.traces.get_mut(&id) else { continue };
            if held.state == State::Done {
                held.read = update.clone().map(Box::new);
            }
            let session = update.as_ref().and_then(|update| update.session.clone());
            if let Some(old) = held.sent.take().filter(|old| Some(old) != session.as_ref()) {
                tombstones.push(TraceUpdate {
                    trace_id: id.0.to_vec(),
                    revision: held.revision,
                    tombstone: true,
                    session: Some(old),
                    ..TraceUpdate::default()
                });
                let telling = std::mem::take(&mut held.telling);
                held.told.extend(telling);
            }
            held.sent = session;
            match update {
                Some(update) => updates.push(held.stamp(update)),
                None if held.state != State::Open && !held.counted_ignored => {
                    held.counted_ignored = true;
                    self.counts.add("traces_ignored", ignored(&held.parts));
                }
                None => {}
            }
            if held.state == State::Sealed {
                self.remove(id);
            }
        }
        tombstones.append(&mut updates);
        tombstones
    }

    /// Takes the judgements asked for since the last call; new ones come with [`Self::drain`].
    pub fn requests(&mut self) -> Vec<JudgeRequest> {
        std::mem::take(&mut self.requests)
    }

    /// Takes the embeddings asked for since the last call; new ones come with [`Self::drain`].
    pub fn embed_requests(&mut self) -> Vec<EmbedRequest> {
        std::mem::take(&mut self.embed_requests)
    }

    /// What could not be used, or did not change anything.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Counts from zero again.
    pub fn restart_counts(&mut self) {
        self.counts = Counts::default();
    }

    /// What outlives the process; nothing may wait to be drained.
    pub fn save(&self) -> impl Serialize + '_ {
        let traces = self.deadlines.iter().filter_map(|(_, id)| Some((*id, self.traces.get(id)?)));
        Saved {
            traces: traces.collect(),
            sealed: &self.sealed,
            waiting: &self.waiting,
            next_waiting: self.next_waiting,
            paid: self.paid.clone(),
        }
    }

    /// Takes over what an earlier process held.
    pub fn restore(&mut self, saved: SavedTraces) {
        let Saved { traces, sealed, waiting, next_waiting, paid } = saved.0;
        for (id, held) in traces {
            self.deadlines.insert((held.deadline, id));
            self.traces.insert(id, held);
        }
        self.sealed.restore(sealed);
        for (key, report) in &waiting {
            if let Target::Trace(id) = report.target {
                self.waiting_for.entry(id).or_default().insert(*key);
            }
        }
        self.waiting = waiting;
        self.next_waiting = next_waiting;
        self.paid = paid;
    }

    /// The traces of which an earlier process had asked a judge or an embedding model something that has not come.
    pub fn unanswered(&self) -> Vec<TraceId> {
        let embedding = self.embedding.is_some();
        let waits = |held: &Held| {
            let embedded = held.embedded.as_ref().map(|embedded| embedded.texts);
            held.hearing.is_open() || (embedding && held.texts_asked != embedded)
        };
        let ids = self.deadlines.iter().map(|(_, id)| *id);
        ids.filter(|id| self.traces.get(id).is_some_and(waits)).collect()
    }

    /// Asks again what is not answered; see [`Self::requests`] and [`Self::embed_requests`].
    pub fn ask_again(&mut self, id: TraceId) {
        let Some(held) = self.traces.get(&id).filter(|held| held.state != State::Open) else {
            return;
        };
        let Some(Reading { update, rubrics, texts }) = self.read(id, held) else { return };
        if let Some(rules) = &self.judging
            && let Some(asked) = held.hearing.ask_again(rubrics)
        {
            self.requests.push(held.request(id, &update, asked, rules));
        }
        let embedded = held.embedded.as_ref().map(|embedded| embedded.texts);
        self.embed_requests.extend(texts.filter(|texts| embedded != Some(texts.texts)));
    }

    /// What the judge was paid within the last hour, as (minute, dollars).
    pub fn paid_to_judge(&self) -> impl Iterator<Item = (u64, Quanta)> {
        self.paid.iter().map(|(minute, cost)| (*minute, Quanta(*cost)))
    }

    /// How many traces can still change.
    pub fn open_traces(&self) -> usize {
        self.traces.len()
    }

    fn span(&mut self, span: Box<Span>, now: Timestamp) {
        let max = self.options.max_spans_per_trace;
        let tenant = &span.resource.tenant;
        let Some(held) = self.open(span.trace_id, tenant, now) else { return };
        if held.tenant != *tenant {
            self.counts.add("spans", "foreign_tenant");
            return;
        }
        if let Some(other) = held.parts.spans.get(&span.span_id) {
            // Of two spans of one id the greater holds, whichever came first.
            if *other >= span {
                self.counts.add("spans", "duplicate");
                return;
            }
        } else if held.parts.spans.len() + held.parts.logs.len() >= max {
            self.counts.add("spans", "trace_full");
            return;
        }
        let id = span.trace_id;
        held.parts.spans.insert(span.span_id, span);
        self.touch(id, now);
    }

    fn log(&mut self, log: Log, now: Timestamp) {
        let max = self.options.max_spans_per_trace;
        let Some(held) = self.open(log.trace_id, &log.tenant, now) else { return };
        if held.tenant != log.tenant {
            self.counts.add("logs", "foreign_tenant");
        } else if let Some(other) = held.parts.logs.get_mut(&log.id) {
            // The position in its request is all that may differ; the lesser holds.
            other.index = other.index.min(log.index);
            self.counts.add("logs", "duplicate");
        } else if held.parts.spans.len() + held.parts.logs.len() >= max {
            self.counts.add("logs", "trace_full");
        } else {
            let id = log.trace_id;
            held.parts.logs.insert(log.id, log);
            self.touch(id, now);
        }
    }

    fn report(&mut self, report: Report, now: Timestamp) {
        let Target::Trace(id) = report.target else {
            self.counts.add("reports", "misdirected");
            return;
        };
        if self.sealed.contains(id) {
            self.counts.add("late", "report_dropped");
        } else if self.traces.contains_key(&id) {
            self.apply_report(id, report, now);
        } else {
            self.wait(id, report, now);
        }
    }

    fn apply_report(&mut self, id: TraceId, report: Report, now: Timestamp) {
        let max = self.options.max_reports_per_trace;
        let Some(held) = self.traces.get_mut(&id) else { return };
        if report.tenant.is_some() && report.tenant != held.tenant {
            self.counts.add("reports", "foreign_tenant");
            return;
        }
        let key = (report.name.clone(), report.identifier.clone());
        let rank = |report: &Report| (report.source, report.time, report.score);
        match held.parts.reports.get(&key) {
            Some(other) if rank(other) >= rank(&report) => self.counts.add("reports", "duplicate"),
            None if held.parts.reports.len() >= max => self.counts.add("reports", "trace_full"),
            Some(_) | None => {
                held.parts.reports.insert(key, report);
                held.read = None;
                held.revision += 1;
                self.counts.add("reports", "applied");
                // A score says nothing about the trace being over: its timers stay.
                held.touched = held.touched.max(now);
                self.dirty.insert(id);
            }
        }
    }

    /// Keeps a report until its trace comes; over the bound the one that has waited longest goes.
    fn wait(&mut self, id: TraceId, report: Report, now: Timestamp) {
        let key = (now.after(self.options.report_wait), self.next_waiting);
        self.next_waiting += 1;
        self.waiting_for.entry(id).or_default().insert(key);
        self.waiting.insert(key, report);
        if self.waiting.len() > self.options.max_waiting_reports
            && let Some((key, report)) = self.waiting.pop_first()
        {
            self.forget_waiting(&report, key);
            self.counts.add("reports", "waiting_full");
        }
    }

    fn forget_waiting(&mut self, report: &Report, key: (Timestamp, u64)) {
        if let Target::Trace(id) = report.target
            && let Some(keys) = self.waiting_for.get_mut(&id)
        {
            keys.remove(&key);
            if keys.is_empty() {
                self.waiting_for.remove(&id);
            }
        }
    }

    /// Returns the trace, opened for this tenant if need be; `None` if it is sealed.
    fn open(
        &mut self,
        id: TraceId,
        tenant: &Option<Arc<str>>,
        now: Timestamp,
    ) -> Option<&mut Held> {
        if self.sealed.contains(id) {
            self.counts.add("late", "dropped");
            return None;
        }
        if !self.traces.contains_key(&id) {
            self.evict();
            let deadline = now.after(self.options.rootless_idle);
            self.deadlines.insert((deadline, id));
            let held = Held {
                parts: Parts::default(),
                tenant: tenant.clone(),
                revision: 0,
                opened: now,
                touched: now,
                deadline,
                state: State::Open,
                partial: false,
                sent: None,
                telling: BTreeMap::new(),
                told: BTreeMap::new(),
                counted_ignored: false,
                hearing: Hearing::default(),
                texts_asked: None,
                embedded: None,
                read: None,
            };
            self.traces.insert(id, held);
            for key in self.waiting_for.remove(&id).unwrap_or_default() {
                if let Some(report) = self.waiting.remove(&key) {
                    self.apply_report(id, report, now);
                }
            }
        }
        self.traces.get_mut(&id)
    }

    /// Makes room for one more trace: the one whose timer is nearest is sealed before its time.
    fn evict(&mut self) {
        if self.traces.len() < self.options.max_open_traces {
            return;
        }
        // Its last word goes out with the next drain; until then it is held beyond the bound.
        let nearest = self.deadlines.first().map(|(_, id)| *id);
        if let Some(id) = nearest {
            if let Some(held) = self.traces.get_mut(&id) {
                held.partial |= held.state == State::Open;
            }
            self.seal(id);
            self.counts.add("traces", "evicted");
        }
    }

    /// Reads a trace as it stands, and asks what its reading leaves to ask.
    fn read_and_ask(&mut self, id: TraceId) -> Option<TraceUpdate> {
        let Reading { update, rubrics, texts } = self.read(id, self.traces.get(&id)?)?;
        self.ask_judge(id, &update, rubrics);
        self.ask_embedder(texts);
        Some(update)
    }

    /// Reads a trace as it stands. Once it is done it is held against expectations, and filled in with what an embedding
    /// model said: these need its texts, which stay here unless they are kept.
    fn read(&self, id: TraceId, held: &Held) -> Option<Reading> {
        let done = held.state != State::Open;
        if !done || (self.suites.is_empty() && self.embedding.is_none()) {
            let update = evaluate(id, &held.parts, &self.rules, done)?;
            return Some(Reading { update, rubrics: Vec::new(), texts: None });
        }
        let mut update = evaluate(id, &held.parts, &self.with_texts, done)?;
        let (expected, rubrics) = expectations(&update, &self.suites, held.hearing.judgements());
        update.expectations = expected;
        let content = update.content.as_ref();
        let texts = self
            .embedding
            .zip(content)
            .and_then(|(max, content)| EmbedRequest::new(id, content, max));
        let embedded = held.embedded.as_ref().zip(texts.as_ref());
        if let Some((embedded, _)) =
            embedded.filter(|(embedded, asked)| embedded.texts == asked.texts)
        {
            embedded.fill(&mut update);
        }
        if !self.rules.keep_content {
            update.content = None;
            update.tools.iter_mut().for_each(|call| call.arguments = None);
        }
        Some(Reading { update, rubrics, texts })
    }

    /// Asks for embeddings of texts that were not asked about before.
    fn ask_embedder(&mut self, texts: Option<EmbedRequest>) {
        let Some(texts) = texts else { return };
        let Some(held) = self.traces.get_mut(&texts.trace_id) else { return };
        if held.texts_asked.replace(texts.texts) != Some(texts.texts) {
            self.embed_requests.push(texts);
        }
    }

    /// Takes what an embedding model made of a trace's texts.
    fn embedded(&mut self, id: TraceId, embedded: Embedded, now: Timestamp) {
        let Some(held) = self.traces.get_mut(&id) else {
            self.counts.add("late", "embedding_dropped");
            return;
        };
        held.embedded = Some(Box::new(embedded));
        held.read = None;
        held.revision += 1;
        held.touched = held.touched.max(now);
        self.dirty.insert(id);
    }

    /// Asks for judgements of a trace, if it is done.
    fn ask_judge(&mut self, id: TraceId, update: &TraceUpdate, rubrics: Vec<RubricRequest>) {
        let Some(rules) = &self.judging else { return };
        let held = self.traces.get_mut(&id).filter(|held| held.state != State::Open);
        let Some(held) = held else { return };
        if let Some(asked) = held.hearing.ask(|| rules.pick(update), rubrics) {
            self.requests.push(held.request(id, update, asked, rules));
        }
    }

    /// Takes what a judge says of a trace.
    fn judged(&mut self, reply: JudgeReply, now: Timestamp) {
        self.paid(reply.cost, now);
        let id = reply.trace_id;
        if reply == (JudgeReply { trace_id: id, cost: reply.cost, ..JudgeReply::default() }) {
            return;
        }
        let Some(held) = self.traces.get_mut(&id) else {
            self.counts.add("late", "judgement_dropped");
            return;
        };
        if held.hearing.take(reply) {
            held.read = None;
            held.revision += 1;
            held.touched = held.touched.max(now);
            self.dirty.insert(id);
        }
    }

    /// Keeps what the judge was paid within an hour, minute by minute.
    fn paid(&mut self, cost: Quanta, now: Timestamp) {
        if cost.0 > 0 {
            let minute = now.0 / MINUTE;
            self.paid = self.paid.split_off(&minute.saturating_sub(MINUTES));
            let sum = self.paid.entry(minute).or_default();
            *sum = sum.saturating_add(cost.0);
        }
    }

    /// Something new was applied: it is open again, and its timer starts anew.
    fn touch(&mut self, id: TraceId, now: Timestamp) {
        let Some(held) = self.traces.get_mut(&id) else { return };
        held.revision += 1;
        held.read = None;
        held.touched = held.touched.max(now);
        if held.state == State::Done {
            held.revision += 1;
            held.state = State::Open;
            self.counts.add("late", "revised");
        }
        let rooted = held.parts.spans.values().any(|span| span.parent.is_none());
        let idle = if rooted { self.options.trace_idle } else { self.options.rootless_idle };
        let oldest = held.opened.after(self.options.trace_max_age);
        self.reschedule(id, now.after(idle).min(oldest.max(now)));
        self.dirty.insert(id);
    }

    fn close(&mut self, id: TraceId, now: Timestamp) {
        let Some(held) = self.traces.get_mut(&id) else { return };
        held.state = State::Done;
        held.revision += 1;
        self.reschedule(id, now.after(self.options.late_horizon));
        self.dirty.insert(id);
    }

    /// Makes a trace final; it leaves with the next drain.
    fn seal(&mut self, id: TraceId) {
        let Some(held) = self.traces.get_mut(&id) else { return };
        self.deadlines.remove(&(held.deadline, id));
        held.state = State::Sealed;
        held.revision += 1;
        self.dirty.insert(id);
        if self.sealed.insert(id, self.options.max_sealed_traces) {
            self.counts.add("sealed_traces", "forgotten");
        }
    }

    fn reschedule(&mut self, id: TraceId, deadline: Timestamp) {
        if let Some(held) = self.traces.get_mut(&id) {
            self.deadlines.remove(&(held.deadline, id));
            held.deadline = deadline;
            self.deadlines.insert((deadline, id));
        }
    }

    fn remove(&mut self, id: TraceId) {
        if let Some(held) = self.traces.remove(&id) {
            self.deadlines.remove(&(held.deadline, id));
        }
        // Gives memory back after a burst.
        if self.traces.capacity() > 4 * self.traces.len().max(1_024) {
            self.traces.shrink_to(2 * self.traces.len());
        }
    }
}

impl Held {
    /// What the judge is given.
    fn request(
        &self,
        trace_id: TraceId,
        update: &TraceUpdate,
        (metrics, rubrics): Asked,
        rules: &JudgeRules,
    ) -> JudgeRequest {
        let (transcript, root) = transcript(&self.parts, rules.max_transcript_bytes);
        let agent = update.agent.clone().unwrap_or_default();
        let answered = self.hearing.answered().clone();
        JudgeRequest { trace_id, root, agent, metrics, rubrics, transcript, answered }
    }

    /// Fills in what the stage knows.
    fn stamp(&mut self, update: TraceUpdate) -> TraceUpdate {
        if !update.loops.is_empty() {
            self.telling.insert(update.agent.clone().unwrap_or_default(), update.loops.clone());
        }
        let told = self.told.iter();
        let told = told
            .map(|(agent, loops)| ToldLoops { agent: Some(agent.clone()), loops: loops.clone() });
        let state = match self.state {
            State::Open => TraceState::Open,
            State::Done => TraceState::Done,
            State::Sealed => TraceState::Sealed,
        };
        TraceUpdate {
            revision: self.revision,
            state: state.into(),
            touched_unix_nano: self.touched.0,
            partial: self.partial,
            told: told.collect(),
            ..update
        }
    }
}

#[cfg(test)]
mod tests;
