//! Takes traces from the queue, asks the endpoint, and reports what it said to the engine.
//!
//! Every call is checked first: against the deadline of its trace, the budget of the hour and the state of the endpoint. What
//! fails for now is asked again, with growing waits; what fails for good, and what is over the budget, leaves its score
//! absent and counts. Nothing here is waited for by anybody.

use std::pin::pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus::Registry;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::budget::{Breaker, Budget};
use super::case::Case;
use super::meter::Meter;
use super::metric::{Metric, Outcome};
use super::options::JudgeOptions;
use super::prompt::{Prompt, VERSION};
use super::queue::{self, Handle, Inbox, Waiting};
use super::redact::{BadPattern, Redactor};
use super::reply;
use super::stage::Stage;
use super::verdict::{Asked, Judged};
use super::wire::{Call, Dialect};
use crate::clock::Clock;
use crate::engine::expect::Judgements;
use crate::engine::expect::judge::Judgement;
use crate::engine::judging::Score;
use crate::engine::math::Quanta;
use crate::engine::options::{CostOptions, Price};
use crate::engine::price::Prices;
use crate::engine::span::{Timestamp, Tokens};
use crate::ingest::{Batch, Sink};
use crate::outbound::{CallError, Client, ClientOptions, EndpointError, Secret, check};

/// How long calls that are out may take when the daemon stops.
const GRACE: Duration = Duration::from_secs(5);

/// The judge, ready to work.
#[derive(Debug)]
pub struct Judge {
    options: JudgeOptions,
    key: Option<Secret>,
    client: Client,
    prices: Prices,
    redactor: Redactor,
    empty_is_one: bool,
    clock: Clock,
    meter: Arc<Meter>,
    money: Mutex<Money>,
    dialect: AtomicU8,
    inbox: Option<Inbox>,
    told: Option<mpsc::Sender<Score>>,
}

/// Why there can be no judge.
#[derive(Debug, thiserror::Error)]
pub enum JudgeError {
    /// The endpoint cannot be used.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A pattern is none.
    #[error(transparent)]
    Pattern(#[from] BadPattern),
    /// There is no model.
    #[error("`judge.model` must name a model")]
    NoModel,
    /// Its metrics cannot be set up.
    #[error("cannot set up the judge's metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// What the judge is given by the daemon.
#[derive(Debug)]
pub struct Given<'a> {
    /// The key, if the endpoint takes one.
    pub key: Option<Secret>,
    /// Prices by model.
    pub cost: &'a CostOptions,
    /// Nothing to score counts as 1.
    pub empty_is_one: bool,
    /// The clock.
    pub clock: Clock,
    /// Where its metrics go.
    pub registry: &'a Registry,
    /// Where others are told of its scores.
    pub told: Option<mpsc::Sender<Score>>,
}

#[derive(Debug)]
struct Money {
    budget: Budget,
    breaker: Breaker,
}

/// Why a call came to nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Failure {
    name: &'static str,
    /// It may go well later; not before so long.
    again: Option<Duration>,
}

impl Judge {
    /// Sets the judge up; the engine's end of its queue is the second.
    ///
    /// # Errors
    ///
    /// Fails if the endpoint, the model or a pattern cannot be used.
    pub fn new(options: &JudgeOptions, given: Given<'_>) -> Result<(Self, Handle), JudgeError> {
        check("judge.url", "judge.allow_http", &options.url, options.allow_http)?;
        if options.model.is_empty() {
            return Err(JudgeError::NoModel);
        }
        let limits = ClientOptions {
            allow_http: options.allow_http,
            max_reply_bytes: options.max_reply_bytes,
            timeout: options.timeout,
        };
        let client = Client::new("judge.url", limits)?;
        let redactor = Redactor::new(&options.redact_keys, &options.redact_patterns)?;
        let (handle, inbox) = queue::queue(options, Meter::new(given.registry)?);
        let cap = Quanta::from_f64(options.usd_per_hour).unwrap_or_default();
        let money = Money {
            budget: Budget::new(cap),
            breaker: Breaker::new(options.max_failures, options.pause),
        };
        let judge = Self {
            options: options.clone(),
            key: given.key,
            client,
            prices: prices(options, given.cost),
            redactor,
            empty_is_one: given.empty_is_one,
            clock: given.clock,
            meter: inbox.meter.clone(),
            money: Mutex::new(money),
            dialect: AtomicU8::new(0),
            inbox: Some(inbox),
            told: given.told,
        };
        judge.stands();
        Ok((judge, handle))
    }

    /// Works until `stop`, or until nobody can ask any more; then waits a little for what is out.
    pub async fn run<S: Sink>(mut self, sink: S, stop: impl Future<Output = ()> + Send) {
        let Some(mut inbox) = self.inbox.take() else { return };
        let judge = Arc::new(self);
        let mut cases = JoinSet::new();
        let mut stop = pin!(stop);
        loop {
            tokio::select! {
                biased;
                () = &mut stop => break,
                Some(_) = cases.join_next() => {}
                waiting = inbox.next(), if cases.len() < judge.options.concurrency => {
                    let Some(waiting) = waiting else { break };
                    let (judge, sink) = (judge.clone(), sink.clone());
                    cases.spawn(async move { judge.trace(waiting, &sink).await });
                }
            }
        }
        let rest = async { while cases.join_next().await.is_some() {} };
        // What is still out then is given up; its scores stay absent.
        let _ = tokio::time::timeout(GRACE, rest).await;
    }

    /// Judges one trace and reports it.
    async fn trace<S: Sink>(&self, waiting: Waiting, sink: &S) {
        let Waiting { request, due, share } = waiting;
        let transcript = self.redactor.transcript(request.transcript);
        let agent = request.agent.agent_name.as_str();
        let metrics = if request.metrics { self.options.metrics.as_slice() } else { &[] };
        let mut case = Case::new(metrics, &transcript, &self.options.constraints);
        while let Some((metric, stage)) = case.next() {
            let model = self.options.model(metric, agent);
            match self.ask(model, &case.prompt(stage), stage, due).await {
                Ok(answer) => case.answer(stage, answer),
                Err(why) => case.fail(stage, why),
            }
        }
        let mut judgements = Judgements::new();
        for rubric in &request.rubrics {
            let model = self.options.model_of(agent);
            let answer = self.ask(model, &case.rubric(rubric), Stage::Rubric, due).await;
            self.meter.rubric(answer.as_ref().map_or_else(|why| *why, |_| "scored"));
            // A rule that could not be judged stays so: it neither passes nor fails.
            if let Ok(verdict) =
                answer.and_then(|answer| reply::verdict(&answer).ok_or("wrong_form"))
            {
                judgements.insert(rubric.rule.clone(), Judgement::Single(verdict));
            }
        }
        let now = self.clock.now();
        let asked = Asked { trace_id: request.trace_id, root: request.root, agent: request.agent };
        let mut reports = Vec::new();
        for (metric, result) in case.results() {
            self.meter.result(metric, result_name(&result));
            let model = self.options.model(metric, &asked.agent.agent_name);
            let judge = format!("judge/{model}/p{VERSION}");
            let judged = Judged { metric, judge, empty_is_one: self.empty_is_one };
            let Ok(outcome) = result else { continue };
            for verdict in judged.verdicts(outcome, &case) {
                self.tell(verdict.told(&asked, &judged.judge, now));
                reports.push(verdict.report(asked.trace_id, now));
            }
        }
        let judgements = (!judgements.is_empty()).then_some((asked.trace_id, judgements));
        let judgements = judgements.into_iter().collect();
        self.deliver(Batch { arrival: now, reports, judgements, ..Batch::default() }, due, sink)
            .await;
        drop(share);
    }

    /// Tells others of a score, if there is room.
    fn tell(&self, score: Score) {
        if let Some(told) = &self.told
            && told.try_send(score).is_err()
        {
            self.meter.dropped("scores_out_full");
        }
    }

    /// Gives scores to the engine; it may ask to come back later, up to the deadline.
    async fn deliver<S: Sink>(&self, batch: Batch, due: Timestamp, sink: &S) {
        if batch.reports.is_empty() && batch.judgements.is_empty() {
            return;
        }
        loop {
            let again = Batch {
                arrival: self.clock.now(),
                reports: batch.reports.clone(),
                judgements: batch.judgements.clone(),
                ..Batch::default()
            };
            match sink.submit(again).await {
                Ok(()) => return,
                Err(overloaded) if self.clock.now() < due => {
                    tokio::time::sleep(overloaded.retry_after).await;
                }
                Err(_) => return self.meter.dropped("engine_full"),
            }
        }
    }

    /// Asks until there is an answer of the form, or no more attempts, time or money.
    async fn ask(
        &self,
        model: &str,
        prompt: &Prompt,
        stage: Stage,
        due: Timestamp,
    ) -> Result<Value, &'static str> {
        let mut last = "not_asked";
        for attempt in 0..self.options.max_attempts {
            let failure = match self.attempt(model, prompt, stage, due).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            last = failure.name;
            let Some(at_least) = failure.again else { break };
            let wait = self.wait(attempt, &prompt.user).max(at_least);
            if attempt + 1 == self.options.max_attempts {
                break;
            }
            if self.clock.now().after(wait) >= due {
                return Err("deadline");
            }
            tokio::time::sleep(wait).await;
        }
        Err(last)
    }

    /// One call, if it may go out; a request that the endpoint does not understand is put more plainly at once.
    async fn attempt(
        &self,
        model: &str,
        prompt: &Prompt,
        stage: Stage,
        due: Timestamp,
    ) -> Result<Value, Failure> {
        loop {
            let now = self.clock.now();
            if now >= due {
                return Err(Failure { name: "deadline", again: None });
            }
            let most = self.most(model, prompt);
            self.admit(most, now)?;
            let dialect = self.dialect();
            let call = Call {
                model,
                prompt,
                stage,
                temperature: self.options.temperature,
                max_output_tokens: self.options.max_output_tokens,
                dialect,
            };
            let (outcome, cost) = self.call(&call, most).await;
            let well = !matches!(&outcome, Err(Told::Call(error)) if is_down(*error));
            let name = outcome.as_ref().map_or_else(|told| told.name(), |_| "ok");
            self.settle(most, cost, well);
            self.meter.call(name);
            match outcome {
                Ok(answer) => return Ok(answer),
                Err(Told::Call(CallError::Status { code: 400 | 422, .. })) => {
                    let again = Failure { name, again: None };
                    let plainer = dialect.plainer().ok_or(again)?;
                    // Another call may have found out before; the plainest holds.
                    self.dialect.fetch_max(plainer as u8, Ordering::Relaxed);
                }
                Err(told) => return Err(Failure { name, again: told.again() }),
            }
        }
    }

    /// Sends a call; its answer, and what it cost.
    async fn call(&self, call: &Call<'_>, most: Quanta) -> (Result<Value, Told>, Quanta) {
        let format = self.options.format;
        let Some(request) = format.request(&self.options.url, self.key.as_ref(), call) else {
            return (Err(Told::NotAsked), Quanta(0));
        };
        let body = request.body.to_string().into_bytes();
        let posted = self.client.post(&request.url, &request.headers, "application/json", body);
        let bytes = match posted.await {
            Ok(bytes) => bytes,
            Err(error) => {
                let cost = if error.may_cost() { most } else { Quanta(0) };
                return (Err(Told::Call(error)), cost);
            }
        };
        let reply: Value = match serde_json::from_slice(&bytes) {
            Ok(reply) => reply,
            Err(_) => return (Err(Told::NoAnswer("not_of_format")), most),
        };
        let (answer, missing) = format.answer(&reply);
        let tokens =
            Tokens { input: answer.input_tokens, cached: None, output: answer.output_tokens };
        // An endpoint that does not count its tokens is taken to have used the most.
        let cost = self.price(call.model, tokens).unwrap_or(most);
        self.meter.tokens(answer.input_tokens, answer.output_tokens);
        let read = match missing {
            Some(why) => Err(Told::NoAnswer(why.name())),
            None => reply::read(call.stage, &answer.text).map_err(|why| Told::NoAnswer(why.name())),
        };
        (read, cost)
    }

    /// Sets the most that a call can cost aside.
    fn admit(&self, most: Quanta, now: Timestamp) -> Result<(), Failure> {
        let mut money = self.money();
        let admitted = if !money.budget.reserve(most, now) {
            Err(Failure { name: "over_budget", again: None })
        } else if !money.breaker.admits(now) {
            money.budget.settle(most, Quanta(0), now);
            Err(Failure { name: "endpoint_down", again: None })
        } else {
            Ok(())
        };
        let degraded = admitted.is_err() || money.breaker.is_open();
        self.meter.stands(money.budget.left(now), degraded);
        admitted
    }

    fn settle(&self, most: Quanta, cost: Quanta, well: bool) {
        let now = self.clock.now();
        self.meter.cost(cost);
        let mut money = self.money();
        money.budget.settle(most, cost, now);
        money.breaker.record(well, now);
        self.meter.stands(money.budget.left(now), money.breaker.is_open());
    }

    fn stands(&self) {
        let left = self.money().budget.left(self.clock.now());
        self.meter.stands(left, false);
    }

    fn money(&self) -> MutexGuard<'_, Money> {
        self.money.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a call can cost at most: no tokenizer makes more tokens than there are bytes.
    fn most(&self, model: &str, prompt: &Prompt) -> Quanta {
        let bytes = (prompt.system.len() + prompt.user.len() + FORM_BYTES) as u64;
        let output = u64::from(self.options.max_output_tokens);
        let tokens = Tokens { input: Some(bytes), cached: None, output: Some(output) };
        self.price(model, tokens).unwrap_or(Quanta(i64::MAX))
    }

    fn price(&self, model: &str, tokens: Tokens) -> Option<Quanta> {
        self.prices.cost(model, &tokens)
    }

    /// The wait after an attempt: doubled each time, less up to half by chance, so that calls that failed together do not
    /// come back together.
    fn wait(&self, attempt: u32, text: &str) -> Duration {
        let full = self.options.backoff.saturating_mul(2_u32.saturating_pow(attempt.min(16)));
        let chance = xxh3_64_with_seed(text.as_bytes(), self.clock.now().0) % 512;
        full.mul_f64(1.0 - chance as f64 / 1024.0)
    }

    fn dialect(&self) -> Dialect {
        match self.dialect.load(Ordering::Relaxed) {
            0 => Dialect::Full,
            1 => Dialect::WithoutSchema,
            _ => Dialect::Bare,
        }
    }
}

/// Bytes of a request beside its words: the schema, and what the format adds.
const FORM_BYTES: usize = 2_048;

/// What came of a call instead of an answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Told {
    /// The judge has no format.
    NotAsked,
    /// No reply.
    Call(CallError),
    /// A reply without an answer of the form.
    NoAnswer(&'static str),
}

impl Told {
    fn name(self) -> &'static str {
        match self {
            Self::NotAsked => "not_asked",
            Self::Call(error) => error.name(),
            Self::NoAnswer(why) => why,
        }
    }

    /// Whether to ask again, and the least wait before that.
    fn again(self) -> Option<Duration> {
        match self {
            Self::NotAsked | Self::NoAnswer("refused") => None,
            Self::NoAnswer(_) => Some(Duration::ZERO),
            Self::Call(CallError::Status { code, retry_after }) => {
                let error = CallError::Status { code, retry_after };
                error.is_passing().then(|| retry_after.unwrap_or_default())
            }
            Self::Call(error) => error.is_passing().then_some(Duration::ZERO),
        }
    }
}

/// Whether an error says that the endpoint is not there, rather than that it does not like this call.
fn is_down(error: CallError) -> bool {
    match error {
        CallError::Connect | CallError::Timeout | CallError::BrokenOff | CallError::Redirect => {
            true
        }
        CallError::TooLarge => false,
        CallError::Status { code, .. } => matches!(code, 401 | 403 | 429 | 500..),
    }
}

/// The prices of the configuration, and last the one of every other model.
fn prices(options: &JudgeOptions, cost: &CostOptions) -> Prices {
    let mut cost = cost.clone();
    cost.prices.push(Price {
        model: "*".to_owned(),
        input: options.input_usd_per_million,
        output: options.output_usd_per_million,
        cached: None,
    });
    Prices::new(&cost)
}

fn result_name(result: &Result<Outcome, &'static str>) -> &'static str {
    match result {
        Ok(Outcome::Score(..) | Outcome::Violations(_)) => "scored",
        Ok(Outcome::Nothing(_)) => "nothing",
        Err(why) => why,
    }
}

/// The metrics that are judged; for messages at the start.
pub fn names(metrics: &[Metric]) -> String {
    metrics.iter().map(|metric| metric.name()).collect::<Vec<_>>().join(", ")
}
