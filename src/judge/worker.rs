//! Takes traces from the queue, asks about each in one call after the other, and reports the scores to the engine.
//!
//! If a log is kept, each answer is in it before the next question is asked, so a question that an earlier process got an answer to
//! is not asked again. Nothing waits for the judge.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::canary::{Canary, CanaryError, Round, canaries};
use super::case::TraceCase;
use super::client::JudgeClient;
use super::meter::Meter;
use super::metric::{Metric, Outcome};
use super::noise::{Noise, is_picked};
use super::options::JudgeOptions;
use super::pace::JudgeThroughput;
use super::queue::{self, Handle, Inbox, Waiting};
use super::trace_questions::TraceQuestions;
use super::verdict::{Judged, JudgedTrace, as_score, evaluator, told_of_rules};
use crate::clock::Clock;
use crate::engine::judging::{JudgeReply, JudgeRequest, Score};
use crate::engine::math::Quanta;
use crate::engine::options::CostOptions;
use crate::engine::span::{Report, Timestamp};
use crate::engine::tenants::Shares;
use crate::ingest::{Batch, Sink};
use crate::outbound::redact::{BadRedaction, Redactor};
use crate::outbound::{EndpointError, check, check_keyless};
use crate::registry::Registry;
use crate::secret::Secret;

/// How often the judge updates the metrics of its budget when it is idle.
const LOOK: Duration = Duration::from_secs(5);

/// How long calls in flight may take when the daemon stops.
const GRACE: Duration = Duration::from_secs(5);

/// The judge, ready to work.
#[derive(Debug)]
pub struct Judge {
    options: JudgeOptions,
    pub(super) client: JudgeClient,
    redactor: Redactor,
    empty_is_one: bool,
    pub(super) clock: Clock,
    pub(super) meter: Arc<Meter>,
    inbox: Option<Inbox>,
    pace: Arc<Mutex<JudgeThroughput>>,
    scores_out: Option<mpsc::Sender<Score>>,
    noise: Mutex<Noise>,
    canaries: Vec<Canary>,
}

/// A trace that is being judged, until this is dropped, even by a panic.
struct RunningJudgement<'j> {
    judge: &'j Judge,
    at: Timestamp,
}

impl Drop for RunningJudgement<'_> {
    fn drop(&mut self) {
        self.judge.pace().end(self.at, self.judge.clock.now());
    }
}

/// Why the judge cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum JudgeError {
    /// The endpoint cannot be used.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A pattern is no regular expression.
    #[error(transparent)]
    Pattern(#[from] BadRedaction),
    /// The traces with known answers cannot be read.
    #[error(transparent)]
    Canaries(#[from] CanaryError),
    /// No model is named.
    #[error("`judge.model` must name a model")]
    NoModel,
    /// Its metrics cannot be set up.
    #[error("cannot set up the judge's metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// The parts that the daemon gives to the judge.
#[derive(Debug)]
pub struct JudgeParts<'a> {
    /// The key, if the endpoint takes one.
    pub key: Option<Secret>,
    /// Prices by model.
    pub cost: &'a CostOptions,
    /// Whether nothing to score counts as 1.
    pub empty_is_one: bool,
    /// The clock.
    pub clock: Clock,
    /// The registry of its metrics.
    pub registry: &'a Registry,
    /// The channel of scores for recipients other than the engine.
    pub scores_out: Option<mpsc::Sender<Score>>,
    /// The spending of earlier processes, as (minute, dollars).
    pub paid: Vec<(u64, Quanta)>,
    /// The shares of tenants in its queue and its budget.
    pub shares: Shares,
}

impl Judge {
    /// Sets up the judge; returns it with the engine's end of its queue.
    ///
    /// # Errors
    ///
    /// Fails if the endpoint, the model or a pattern cannot be used.
    pub fn new(
        options: &JudgeOptions,
        given: JudgeParts<'_>,
    ) -> Result<(Self, Handle), JudgeError> {
        let url = check("judge.url", "judge.allow_http", &options.url, options.allow_http)?;
        check_keyless("judge.url", &url)?;
        if options.model.is_empty() {
            return Err(JudgeError::NoModel);
        }
        let redactor = Redactor::new(&options.redact_keys, &options.redact_patterns)?;
        let (handle, inbox) =
            queue::queue(options, Meter::new(given.registry)?, given.shares.clone());
        let meter = inbox.meter.clone();
        let wanted = !options.canary_interval.is_zero();
        let canaries = if wanted { canaries(&options.canaries_file)? } else { Vec::new() };
        let judge = Self {
            options: options.clone(),
            client: JudgeClient::new(options, &given, meter.clone())?,
            redactor,
            empty_is_one: given.empty_is_one,
            clock: given.clock,
            meter,
            pace: inbox.pace.clone(),
            inbox: Some(inbox),
            scores_out: given.scores_out,
            noise: Mutex::default(),
            canaries,
        };
        Ok((judge, handle))
    }

    /// Works until `stop`, or until the engine's end of the queue is dropped; then waits a while for the traces in progress.
    pub async fn run<S: Sink>(mut self, sink: S, stop: impl Future<Output = ()> + Send) {
        let Some(mut inbox) = self.inbox.take() else { return };
        let judge = Arc::new(self);
        let mut cases = JoinSet::new();
        let mut stop = pin!(stop);
        let every = judge.options.canary_interval;
        let round = || {
            let (judge, sink) = (judge.clone(), sink.clone());
            async move { judge.round(&sink).await }
        };
        if !every.is_zero() {
            cases.spawn(round());
        }
        let mut due = Box::pin(pause(every));
        let mut look = tokio::time::interval(LOOK);
        let stopped = loop {
            tokio::select! {
                biased;
                () = &mut stop => break true,
                Some(_) = cases.join_next() => {}
                _ = look.tick() => judge.client.look(),
                () = &mut due => {
                    cases.spawn(round());
                    due = Box::pin(pause(every));
                }
                waiting = inbox.next(), if cases.len() < judge.options.concurrency => {
                    let Some(waiting) = waiting else { break false };
                    let (judge, sink) = (judge.clone(), sink.clone());
                    cases.spawn(async move { judge.trace(waiting, &sink).await });
                }
            }
        };
        let patience = if stopped { GRACE } else { judge.options.deadline };
        let rest = async { while cases.join_next().await.is_some() {} };
        // Traces that are not judged until then are given up; if a log is kept, the next process asks the rest.
        let _ = tokio::time::timeout(patience, rest).await;
    }

    /// Judges one trace, or gives it up, and reports that.
    async fn trace<S: Sink>(&self, waiting: Waiting, sink: &S) {
        let Waiting { request, due, left, share } = waiting;
        let away = self.away(&request);
        let now = self.clock.now();
        self.pace().away = away.map(|why| (why, now));
        if let Some(why) = away.or(left) {
            return self.leave(request, why, due, sink).await;
        }
        self.pace().begin(now);
        let _begun = RunningJudgement { judge: self, at: now };
        self.judge(request, due, sink).await;
        drop(share);
    }

    /// Asks about one trace and reports the scores.
    async fn judge<S: Sink>(&self, mut request: JudgeRequest, due: Timestamp, sink: &S) {
        let trace = request.trace();
        let transcript = self.redactor.transcript(request.transcript);
        for judged in request.rubrics.iter_mut().filter_map(|rubric| rubric.judged.as_mut()) {
            judged.text = self.redactor.field(&judged.field, &judged.text);
        }
        let agent = &*request.agent.agent_name;
        let metrics = if request.metrics { self.options.metrics.as_slice() } else { &[] };
        let mut case = TraceCase::new(metrics, &transcript, &self.options.constraints);
        let mut questions = TraceQuestions::new(self, sink, trace, due, request.answered);
        questions.ask_all(&mut case, &self.options, agent).await;
        let judgements = questions.rubrics(&case, &request.rubrics, &self.options, agent).await;
        let reply = JudgeReply {
            trace,
            judgements,
            metrics_over: request.metrics,
            rules_over: request.rubrics.into_iter().map(|rubric| rubric.key).collect(),
            cost: questions.unreported_cost(),
            ..JudgeReply::default()
        };
        let asked =
            JudgedTrace { trace_id: request.trace_id, root: request.root, agent: request.agent };
        let now = self.clock.now();
        told_of_rules(&reply.judgements, &asked, now).for_each(|score| self.send_score(score));
        let reports = self.reports(&case, &asked);
        self.deliver(reply, reports, due, sink).await;
        if !metrics.is_empty() && is_picked(asked.trace_id, self.options.rejudge_rate) {
            let again = TraceCase::new(metrics, &transcript, &self.options.constraints);
            self.judge_again(&case, again, &asked.agent.agent_name, sink).await;
        }
    }

    /// Judges a trace a second time, to measure how much the scores differ from the first ones.
    async fn judge_again<S: Sink>(
        &self,
        first: &TraceCase,
        mut second: TraceCase,
        agent: &str,
        sink: &S,
    ) {
        let due = self.clock.now().after(self.options.deadline);
        let mut questions = TraceQuestions::passing(self, sink, due);
        questions.ask_all(&mut second, &self.options, agent).await;
        for ((metric, first), (_, second)) in first.results().zip(second.results()) {
            let pair = [first, second].map(|result| as_score(&result.ok()?));
            if let [Some(first), Some(second)] = pair {
                let mut noise = self.noise.lock().unwrap_or_else(PoisonError::into_inner);
                self.meter.noise(metric, noise.observe(metric, first, second));
            }
        }
        self.paid(questions.unreported_cost(), due, sink).await;
    }

    /// Judges the traces with known answers, and measures the drift.
    async fn round<S: Sink>(&self, sink: &S) {
        let due = self.clock.now().after(self.options.deadline);
        let mut questions = TraceQuestions::passing(self, sink, due);
        let mut round = Round::default();
        for canary in &self.canaries {
            let known = |metric: &&Metric| canary.known.contains_key(metric);
            let metrics: Vec<Metric> = self.options.metrics.iter().filter(known).copied().collect();
            let trace = format!("{:#}", canary.trace);
            let mut case = TraceCase::of(&metrics, trace, &self.options.constraints);
            questions.ask_all(&mut case, &self.options, "").await;
            for (metric, result) in case.results() {
                self.meter.canary(result_name(&result));
                let judged = result.ok().and_then(|outcome| as_score(&outcome));
                if let Some((judged, known)) = judged.zip(canary.known.get(&metric)) {
                    round.observe(metric, judged, *known);
                }
            }
        }
        let metrics = self.options.metrics.iter();
        metrics.for_each(|metric| self.meter.drift(*metric, round.drift(*metric)));
        self.paid(questions.unreported_cost(), due, sink).await;
    }

    /// Reports a cost that belongs to no trace to the engine.
    async fn paid<S: Sink>(&self, cost: Quanta, due: Timestamp, sink: &S) {
        let reply = JudgeReply { cost, ..JudgeReply::default() };
        self.deliver(reply, Vec::new(), due, sink).await;
    }

    fn pace(&self) -> MutexGuard<'_, JudgeThroughput> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why nothing can be asked about a trace; `None` if something may be. Then its texts are not even redacted, so that an
    /// unavailable judge costs little.
    fn away(&self, request: &JudgeRequest) -> Option<&'static str> {
        let agent = &*request.agent.agent_name;
        let metrics = self.options.metrics.iter().filter(|_| request.metrics);
        let own = metrics.map(|metric| self.options.model(*metric, agent));
        let named = request.rubrics.iter().flat_map(|rubric| &rubric.judges.models);
        let models = own.chain([self.options.model_of(agent)]).chain(named.map(String::as_str));
        // Answers from before may be all that is needed.
        request.answered.is_empty().then(|| self.client.away(request.trace().tenant, models))?
    }

    /// Gives up a trace: counts why, and tells the engine that its judgement is over.
    async fn leave<S: Sink>(
        &self,
        request: JudgeRequest,
        why: &'static str,
        due: Timestamp,
        sink: &S,
    ) {
        let ruled = !self.options.constraints.is_empty();
        let asked = self.options.metrics.iter().filter(|_| request.metrics);
        asked
            .filter(|metric| ruled || **metric != Metric::ConstraintViolation)
            .for_each(|metric| self.meter.result(*metric, why));
        request.rubrics.iter().for_each(|_| self.meter.rubric(why));
        let reply = JudgeReply {
            trace: request.trace(),
            metrics_over: request.metrics,
            rules_over: request.rubrics.into_iter().map(|rubric| rubric.key).collect(),
            ..JudgeReply::default()
        };
        self.deliver(reply, Vec::new(), due, sink).await;
    }

    /// The scores of the metrics as reports; also sends them to other recipients.
    fn reports(&self, case: &TraceCase, asked: &JudgedTrace) -> Vec<Report> {
        let wall = self.clock.wall();
        let mut reports = Vec::new();
        for (metric, result) in case.results() {
            self.meter.result(metric, result_name(&result));
            let model = self.options.model(metric, &asked.agent.agent_name);
            let judged =
                Judged { metric, judge: evaluator(model), empty_is_one: self.empty_is_one };
            let Ok(outcome) = result else { continue };
            for verdict in judged.verdicts(outcome, case) {
                self.send_score(verdict.score(asked, &judged.judge, wall));
                reports.push(verdict.report(asked, wall));
            }
        }
        reports
    }

    /// Sends a score to other recipients, if there is room.
    fn send_score(&self, score: Score) {
        if let Some(scores_out) = &self.scores_out
            && scores_out.try_send(score).is_err()
        {
            self.meter.dropped("scores_out_full");
        }
    }

    /// Gives a reply and reports to the engine; if it is overloaded, retries until the deadline.
    pub(super) async fn deliver<S: Sink>(
        &self,
        reply: JudgeReply,
        reports: Vec<Report>,
        due: Timestamp,
        sink: &S,
    ) {
        loop {
            let batch = Batch {
                arrival: self.clock.now(),
                reports: reports.clone(),
                judged: vec![reply.clone()],
                ..Batch::default()
            };
            match sink.submit(batch).await {
                Ok(_) => return,
                Err(overloaded) if self.clock.now() < due => {
                    tokio::time::sleep(overloaded.retry_after).await;
                }
                Err(_) => return self.meter.dropped("engine_full"),
            }
        }
    }
}

/// Waits until the next round; for ever if there are no rounds.
async fn pause(every: Duration) {
    if every.is_zero() {
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(every).await;
}

fn result_name(result: &Result<Outcome, &'static str>) -> &'static str {
    match result {
        Ok(Outcome::Score(..) | Outcome::Violations(_)) => "scored",
        Ok(Outcome::Nothing(_)) => "nothing",
        Err(why) => why,
    }
}

/// The names of the judged metrics, for messages at the start.
pub fn names(metrics: &[Metric]) -> String {
    metrics.iter().map(|metric| metric.name()).collect::<Vec<_>>().join(", ")
}
