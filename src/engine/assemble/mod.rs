//! Stage 1: spans, log records and reports become traces, keyed by trace id.
//!
//! A trace is done when its root ended and it was quiet, or at a timeout; a late span re-opens it; then it is
//! sealed. What it has come to is sent on as a full [`TraceUpdate`] under a higher revision when it is done, re-opened,
//! reported of, sealed. Of a trace that is open only what cannot wait is told before: that a loop began or grew, with the
//! span that closes it, and a trace that may go on with another one, as a loop may be in both. The rest is told once every
//! `trace_idle`.

mod calls;
mod deadlines;
mod hearing;
mod held;
mod resources;
mod sealed;
mod traces;

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

use self::deadlines::Deadlines;
use self::hearing::Hearing;
use self::held::{Held, Look, State};
use self::resources::Resources;
use self::sealed::Sealed;
use self::traces::Traces;

use super::count::Counts;
use super::embedding::{EmbedRequest, Embedded};
use super::expect::{Judgements, Suite};
use super::judging::{Attention, JudgeReply, JudgeRequest, JudgeRules, RubricRequest};
use super::math::Quanta;
use super::options::{AssembleOptions, CostOptions, LoopOptions};
use super::price::Prices;
use super::span::{Log, Operation, Report, Span, Target, Timestamp, TraceId};
use super::trace::{Added, Laid, Rules, Sign, evaluate, expectations, ignored};
use super::update::TraceUpdate;

/// Nanoseconds in a minute, and minutes for which what was paid is kept: an hour, and the one that is going on.
const MINUTE: u64 = 60_000_000_000;
const MINUTES: u64 = 60;

/// What the stage is fed.
#[derive(Clone, Debug, Deserialize, Serialize)]
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
    attention: Attention,
    requests: Vec<JudgeRequest>,
    // Bytes of a text that an embedding model is asked about; `None`: there is no model.
    embedding: Option<usize>,
    embed_requests: Vec<EmbedRequest>,
    traces: Traces,
    resources: Resources,
    // Invariant: one entry per held trace, at the moment that the trace says.
    deadlines: Deadlines,
    // Traces to look at with the next drain; each once, as the trace says.
    dirty: Vec<TraceId>,
    // What is left to say of traces that are gone.
    farewells: Vec<TraceUpdate>,
    sealed: Sealed,
    // For traces that are not there yet.
    waiting: Reports,
    waiting_for: BTreeMap<TraceId, BTreeSet<(Timestamp, u64)>>,
    next_waiting: u64,
    // What the judge was paid, by minute.
    paid: BTreeMap<u64, i64>,
    counts: Counts,
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
    traces: T,
    sealed: S,
    waiting: W,
    next_waiting: u64,
    #[serde(default)]
    paid: BTreeMap<u64, i64>,
}

/// All traces as they are written down: one after the other, so that few are unpacked at a time.
struct Written<'a>(&'a Assemble);

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        // The number of them comes first.
        let held = |id: &TraceId| self.0.traces.contains(*id);
        let ids: Vec<TraceId> = self.0.deadlines.traces().filter(held).collect();
        to.collect_seq(ids.into_iter().map(|id| (id, self.0.traces.get(id))))
    }
}

/// A shard that was read back.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub struct SavedTraces(Read);

type Read = Saved<Vec<(TraceId, Box<Held>)>, Sealed, Reports>;

/// Reports by when they give up and then in order of arrival.
type Reports = BTreeMap<(Timestamp, u64), Report>;

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
            attention: Attention::default(),
            requests: Vec::new(),
            embedding: None,
            embed_requests: Vec::new(),
            traces: Traces::default(),
            resources: Resources::default(),
            deadlines: Deadlines::default(),
            dirty: Vec::new(),
            farewells: Vec::new(),
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
        self.traces.advance(now);
        match input {
            Input::Span(span) => self.span(&span, now),
            Input::Log(log) => self.log(*log, now),
            Input::Report(report) => self.report(*report, now),
            Input::Judged(reply) => self.judged(*reply, now),
            Input::Embedded(id, embedded) => self.embedded(id, embedded, now),
        }
    }

    /// The next moment at which a timer fires.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let trace = self.deadlines.next();
        let report = self.waiting.first_key_value().map(|((due, _), _)| *due);
        trace.into_iter().chain(report).min()
    }

    /// Runs the timers that are due.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        self.handle_some_timeouts(now, usize::MAX);
    }

    /// Runs at most so many of the timers of traces that are due, the earliest first, and returns whether all have been run:
    /// of thousands of traces that are done at once only a few are looked at, told and let go at a time.
    pub fn handle_some_timeouts(&mut self, now: Timestamp, at_most: usize) -> bool {
        self.traces.advance(now);
        for _ in 0..at_most {
            let due = self.deadlines.first().filter(|(due, _)| *due <= now);
            let Some((due, id)) = due else {
                self.give_up_reports(now);
                return true;
            };
            match self.traces.head(id).map(|held| held.state) {
                None => self.deadlines.remove(&(due, id)),
                Some(State::Open) => self.look_at_open(id, due),
                Some(State::Done | State::Sealed) => self.seal(id),
            }
        }
        false
    }

    /// Something may have to be done about a trace that is open.
    fn look_at_open(&mut self, id: TraceId, due: Timestamp) {
        let Some(held) = self.traces.get_mut(id) else { return };
        if held.deadline <= due {
            held.partial = due >= held.opened.after(self.options.trace_max_age);
            return self.close(id, due);
        }
        let tell = held.tell_at <= due;
        held.tell_at = if tell { NEVER } else { held.tell_at };
        self.reschedule(id);
        self.mark(id, if tell { Look::Tell } else { Look::No });
    }

    /// Gives up reports whose trace has not come in time.
    fn give_up_reports(&mut self, now: Timestamp) {
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
        for id in self.deadlines.traces().collect::<Vec<_>>() {
            if self.traces.get(id).is_some_and(|held| held.state == State::Open) {
                self.close(id, now);
            }
            self.seal(id);
        }
        let unmatched = mem::take(&mut self.waiting).len();
        self.waiting_for.clear();
        self.counts.add_many("reports", "unmatched", unmatched as u64);
    }

    /// Has everything told with the next drain, even what could wait.
    pub fn tell_all(&mut self) {
        for id in self.deadlines.open().collect::<Vec<_>>() {
            let Some(held) = self.traces.get_mut(id) else { continue };
            if mem::replace(&mut held.tell_at, NEVER) != NEVER {
                self.mark(id, Look::Tell);
            }
        }
    }

    /// Takes what there is to tell since the last call: tombstones first, then in order of trace id.
    pub fn drain(&mut self) -> Vec<TraceUpdate> {
        let (mut tombstones, mut updates) = (Vec::new(), mem::take(&mut self.farewells));
        let farewells = updates.len();
        let mut dirty = mem::take(&mut self.dirty);
        dirty.sort_unstable();
        for id in &dirty {
            let Some(held) = self.traces.get_mut(*id) else { continue };
            let look = mem::take(&mut held.look);
            if held.is_rooted() {
                // Most traces are whole when their root is in.
                held.parts.spans.shrink();
            }
            let due = look == Look::Tell || held.state != State::Open || held.is_linked();
            let passed_over = mem::take(&mut held.passed_over) && !held.failed;
            let may_loop = (passed_over || !due) && held.may_loop(&self.rules.loops);
            if passed_over && !may_loop {
                held.forgo_texts();
            }
            if !due && !may_loop {
                continue;
            }
            let update = self.read_and_ask(*id);
            let Some(held) = self.traces.get_mut(*id) else { continue };
            if !due && !held.has_news(update.as_ref()) {
                continue;
            }
            held.tell_at = NEVER;
            held.done_at = (held.state == State::Done).then_some(held.revision);
            let session = update.as_ref().and_then(|update| update.session.as_ref());
            tombstones.extend(held.leave(*id, session));
            match update {
                Some(update) => updates.push(held.stamp(update)),
                None if held.state != State::Open && !held.counted_ignored => {
                    held.counted_ignored = true;
                    self.counts.add("traces_ignored", ignored(&held.parts));
                }
                None => {}
            }
            if held.state == State::Sealed {
                self.remove(*id);
            }
        }
        dirty.clear();
        self.dirty = dirty;
        self.traces.rest();
        if farewells > 0 {
            updates.sort_by(|a, b| a.trace_id.cmp(&b.trace_id));
        }
        tombstones.append(&mut updates);
        tombstones
    }

    /// Whether the judge reads what it is asked from here on; if not, it is asked without a transcript.
    pub fn attend(&mut self, attention: Attention) {
        self.attention = attention;
    }

    /// Takes the judgements asked for since the last call; new ones come with [`Self::drain`].
    pub fn requests(&mut self) -> Vec<JudgeRequest> {
        mem::take(&mut self.requests)
    }

    /// Takes the embeddings asked for since the last call; new ones come with [`Self::drain`].
    pub fn embed_requests(&mut self) -> Vec<EmbedRequest> {
        mem::take(&mut self.embed_requests)
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
        Saved {
            traces: Written(self),
            sealed: &self.sealed,
            waiting: &self.waiting,
            next_waiting: self.next_waiting,
            paid: self.paid.clone(),
        }
    }

    /// Takes over what an earlier process held.
    pub fn restore(&mut self, saved: SavedTraces) {
        let Saved { traces, sealed, waiting, next_waiting, paid } = saved.0;
        for (id, mut held) in traces {
            held.restored();
            self.deadlines.insert((held.queued, id), held.state != State::Open);
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
            let open = held.hearing.as_ref().is_some_and(|hearing| hearing.is_open());
            open || (embedding && held.texts_asked != embedded)
        };
        self.deadlines
            .traces()
            .filter(|id| self.traces.get(*id).is_some_and(|held| waits(&held)))
            .collect()
    }

    /// Asks again what is not answered; see [`Self::requests`] and [`Self::embed_requests`].
    pub fn ask_again(&mut self, id: TraceId) {
        let Some(held) = self.traces.get(id).filter(|held| held.state != State::Open) else {
            return;
        };
        let trace = held.parts.laid_out();
        let Some(Reading { update, rubrics, texts }) = self.read(id, &held, &trace) else { return };
        if let Some(rules) = &self.judging
            && let Some(hearing) = &held.hearing
            && let Some(asked) = hearing.ask_again(rubrics)
        {
            let rules = (rules, self.attention != Attention::Reads);
            self.requests.push(held.request((id, &trace), &update, asked, rules));
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

    /// Applies a span that arrived at `now`.
    pub fn span(&mut self, span: &Span, now: Timestamp) {
        let (max, texts) = (self.options.max_spans_per_trace, self.needs_texts());
        let untold = self.judging.is_some() && !texts;
        let passed_over = texts
            && !self.has_readers()
            && self.judging.as_ref().is_some_and(|rules| rules.passes_over(span));
        self.traces.advance(now);
        let tenant = &span.resource.tenant;
        let resource = self.resources.shared(&span.resource);
        let Some(held) = self.open(span.trace_id, tenant, now) else { return };
        if held.tenant != *tenant {
            self.counts.add("spans", "foreign_tenant");
        } else if held.parts.len() >= max && !held.parts.spans.contains(span.span_id) {
            self.counts.add("spans", "trace_full");
        } else if held.parts.spans.add_from(span, &resource, texts) == Added::Known {
            self.counts.add("spans", "duplicate");
        } else {
            held.note(Sign::of(span));
            held.untold |= untold;
            held.passed_over |= passed_over;
            held.failed |= span.failed && span.operation != Operation::ExecuteTool;
            self.touch(span.trace_id, now);
        }
    }

    /// Whether anybody reads what was said, beyond the final answer.
    fn needs_texts(&self) -> bool {
        self.has_readers() || (self.judging.is_some() && self.attention == Attention::Reads)
    }

    /// Whether anybody but a judge does.
    fn has_readers(&self) -> bool {
        self.rules.keep_content || !self.suites.is_empty() || self.embedding.is_some()
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
        } else if held.parts.len() >= max {
            self.counts.add("logs", "trace_full");
        } else {
            let id = log.trace_id;
            held.note_log(&log);
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
        } else if self.traces.contains(id) {
            self.apply_report(id, report, now);
        } else {
            self.wait(id, report, now);
        }
    }

    fn apply_report(&mut self, id: TraceId, report: Report, now: Timestamp) {
        let max = self.options.max_reports_per_trace;
        let Some(held) = self.traces.get_mut(id) else { return };
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
                self.counts.add("reports", "applied");
                self.reported(id, now);
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
        let state = self.traces.get_mut(id).map(|held| held.state);
        if state.map_or_else(|| self.sealed.contains(id), |state| state == State::Sealed) {
            self.counts.add("late", "dropped");
            return None;
        }
        if state.is_none() {
            self.evict();
            let held = Held::new(tenant.clone(), now, now.after(self.options.rootless_idle));
            self.deadlines.insert((held.queued, id), false);
            self.traces.insert(id, Box::new(held));
            for key in self.waiting_for.remove(&id).unwrap_or_default() {
                if let Some(report) = self.waiting.remove(&key) {
                    self.apply_report(id, report, now);
                }
            }
        }
        self.traces.get_mut(id)
    }

    /// Makes room for one more trace: one is sealed before its time, of those that are done if there are any.
    fn evict(&mut self) {
        if self.traces.len() < self.options.max_open_traces {
            return;
        }
        // Its last word goes out with the next drain; until then it is held beyond the bound.
        if let Some((_, id)) = self.deadlines.least_lost() {
            let open = self.traces.head(id).is_some_and(|held| held.state == State::Open);
            if let Some(held) = self.traces.get_mut(id).filter(|_| open) {
                held.partial = true;
            }
            self.seal(id);
            self.counts.add("traces", "evicted");
        }
    }

    /// Reads a trace as it stands, and asks what its reading leaves to ask.
    fn read_and_ask(&mut self, id: TraceId) -> Option<TraceUpdate> {
        let held = self.traces.get(id)?;
        let trace = held.parts.laid_out();
        let Reading { update, rubrics, texts } = self.read(id, &held, &trace)?;
        let judging = self.judging.as_ref().filter(|_| held.state != State::Open);
        let unread = self.attention != Attention::Reads;
        let request = judging.map(|rules| {
            let unheard = Hearing::new(held.decided);
            let hearing = held.hearing.as_deref().unwrap_or(&unheard);
            let asked = hearing.to_ask(|| rules.pick(&update), rubrics);
            asked.map(|asked| held.request((id, &trace), &update, asked, (rules, unread)))
        });
        drop(trace);
        drop(held);
        request.into_iter().for_each(|request| self.ask_judge(id, request));
        self.ask_embedder(texts);
        Some(update)
    }

    /// Reads a trace as it stands. Once it is done it is held against expectations, and filled in with what an embedding
    /// model said: these need its texts, which stay here unless they are kept.
    fn read(&self, id: TraceId, held: &Held, trace: &Laid<'_>) -> Option<Reading> {
        let done = held.state != State::Open;
        if !done || (self.suites.is_empty() && self.embedding.is_none()) {
            let update = evaluate(id, trace, &self.rules, done)?;
            return Some(Reading { update, rubrics: Vec::new(), texts: None });
        }
        let mut update = evaluate(id, trace, &self.with_texts, done)?;
        let none = Judgements::new();
        let judgements = held.hearing.as_ref().map_or(&none, |hearing| hearing.judgements());
        let (expected, rubrics) = expectations((&update, trace), &self.suites, judgements);
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
        let Some(held) = self.traces.get_mut(texts.trace_id) else { return };
        if held.texts_asked.replace(texts.texts) != Some(texts.texts) {
            self.embed_requests.push(texts);
        }
    }

    /// Takes what an embedding model made of a trace's texts.
    fn embedded(&mut self, id: TraceId, embedded: Embedded, now: Timestamp) {
        let Some(held) = self.traces.get_mut(id) else {
            self.counts.add("late", "embedding_dropped");
            return;
        };
        held.embedded = Some(Box::new(embedded));
        self.reported(id, now);
    }

    /// Asks for judgements of a trace that is done, or for none.
    fn ask_judge(&mut self, id: TraceId, request: Option<JudgeRequest>) {
        if let Some(held) = self.traces.get_mut(id) {
            // Of most traces nothing is asked: they have nothing but that.
            held.decided = true;
            if request.is_some() || held.hearing.is_some() {
                held.hearing().asked(request.as_ref());
            }
        }
        self.requests.extend(request);
    }

    /// Takes what a judge says of a trace.
    fn judged(&mut self, reply: JudgeReply, now: Timestamp) {
        self.paid(reply.cost, now);
        let id = reply.trace_id;
        if reply == (JudgeReply { trace_id: id, cost: reply.cost, ..JudgeReply::default() }) {
            return;
        }
        let Some(held) = self.traces.get_mut(id) else {
            self.counts.add("late", "judgement_dropped");
            return;
        };
        if held.hearing().take(reply) {
            self.reported(id, now);
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
        let Some(held) = self.traces.get_mut(id) else { return };
        held.revision += 1;
        held.touched = held.touched.max(now);
        let idle =
            if held.is_rooted() { self.options.trace_idle } else { self.options.rootless_idle };
        let oldest = held.opened.after(self.options.trace_max_age);
        held.deadline = now.after(idle).min(oldest.max(now));
        let reopened = held.state == State::Done;
        if reopened {
            held.revision += 1;
            held.state = State::Open;
            self.counts.add("late", "revised");
        }
        if held.tell_at == NEVER {
            held.tell_at = now.after(self.options.trace_idle);
        }
        // As `mark` does it: spans are many, and one look-up is enough.
        if held.look == Look::No {
            self.dirty.push(id);
        }
        held.look = held.look.max(if reopened { Look::Tell } else { Look::News });
        if reopened || held.due() < held.queued {
            self.reschedule(id);
        }
    }

    /// Something was said of the trace, which tells nothing about its being over: its timers stay.
    fn reported(&mut self, id: TraceId, now: Timestamp) {
        let Some(held) = self.traces.get_mut(id) else { return };
        held.revision += 1;
        held.touched = held.touched.max(now);
        if held.state == State::Open {
            self.wait_to_tell(id, now);
        } else {
            self.mark(id, Look::News);
        }
    }

    /// What is new of an open trace is told in a while, if nothing tells it before.
    fn wait_to_tell(&mut self, id: TraceId, now: Timestamp) {
        let Some(held) = self.traces.get_mut(id) else { return };
        if held.tell_at == NEVER {
            held.tell_at = now.after(self.options.trace_idle);
        }
        if held.due() < held.queued {
            self.reschedule(id);
        }
    }

    /// Has the trace looked at with the next drain.
    fn mark(&mut self, id: TraceId, look: Look) {
        let Some(held) = self.traces.get_mut(id) else { return };
        if held.look == Look::No && look != Look::No {
            self.dirty.push(id);
        }
        held.look = held.look.max(look);
    }

    fn close(&mut self, id: TraceId, now: Timestamp) {
        let Some(held) = self.traces.get_mut(id) else { return };
        held.state = State::Done;
        held.revision += 1;
        held.deadline = now.after(self.options.late_horizon);
        self.reschedule(id);
        self.mark(id, Look::News);
    }

    /// Makes a trace final; it leaves with the next drain, or at once if all of it was told.
    fn seal(&mut self, id: TraceId) {
        let told = self.traces.head(id).filter(|held| held.is_told());
        if let Some(held) = told {
            let farewell = held.farewell(id);
            drop(held);
            self.farewells.extend(farewell);
            self.remove(id);
            return self.note_sealed(id);
        }
        let Some(held) = self.traces.get_mut(id) else { return };
        self.deadlines.remove(&(held.queued, id));
        held.state = State::Sealed;
        held.revision += 1;
        self.mark(id, Look::News);
        self.note_sealed(id);
    }

    /// Remembers that nothing more is taken of a trace.
    fn note_sealed(&mut self, id: TraceId) {
        if self.sealed.insert(id, self.options.max_sealed_traces) {
            self.counts.add("sealed_traces", "forgotten");
        }
    }

    /// Moves the entry of a trace to where it is due.
    fn reschedule(&mut self, id: TraceId) {
        if let Some(held) = self.traces.get_mut(id) {
            self.deadlines.remove(&(held.queued, id));
            held.queued = held.due();
            self.deadlines.insert((held.queued, id), held.state != State::Open);
        }
    }

    fn remove(&mut self, id: TraceId) {
        if let Some(queued) = self.traces.remove(id) {
            self.deadlines.remove(&(queued, id));
        }
    }
}

/// Nothing is waiting to be told.
const NEVER: Timestamp = Timestamp(u64::MAX);

#[cfg(test)]
mod tests;
