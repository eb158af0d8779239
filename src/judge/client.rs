//! Sends questions to the endpoint, within the hourly budget, the deadline of a trace and the circuit breaker.
//!
//! A question that fails temporarily is asked again, with growing waits; one that fails for good, or is over the budget, has no
//! answer, and the error says why. The cost is returned in any case. A call that fits the budget only if the calls in progress cost
//! less than their maximum waits for those.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Notify;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::budget::Budget;
use super::meter::Meter;
use super::money::{Admission, CallBudget, CallCost, Outcome};
use super::options::JudgeOptions;
use super::prompt::Prompt;
use super::reply;
use super::stage::Stage;
use super::wire::{Call, Dialect};
use super::worker::{JudgeError, JudgeParts};
use crate::clock::Clock;
use crate::engine::math::Quanta;
use crate::engine::options::{CostOptions, Price};
use crate::engine::price::Prices;
use crate::engine::span::{ModelFacts, Timestamp, Tokens};
use crate::engine::tenants::TenantHash;
use crate::outbound::breaker::Breaker;
use crate::outbound::{CallError, Client, ClientOptions, backoff};
use crate::secret::Secret;
use crate::telemetry;

/// The client of one endpoint, with its budget.
#[derive(Debug)]
pub(super) struct JudgeClient {
    options: JudgeOptions,
    key: Option<Secret>,
    client: Client,
    prices: Prices,
    clock: Clock,
    meter: Arc<Meter>,
    money: Mutex<CallBudget>,
    /// Notified when a call is settled.
    settled: Notify,
    /// The dialect that was understood last, by model and by whether the schema is closed.
    dialects: Mutex<BTreeMap<(String, bool), Dialect>>,
}

/// One question.
#[derive(Clone, Debug)]
pub(super) struct Question<'a> {
    pub(super) model: &'a str,
    pub(super) tenant: TenantHash,
    pub(super) temperature: f64,
    pub(super) stage: Stage,
    pub(super) prompt: Prompt,
    /// The deadline, after which no call is made.
    pub(super) due: Timestamp,
}

/// The answer, or why there is none, and the cost.
pub(super) type Paid = (Result<Value, &'static str>, Quanta);

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Failure {
    name: &'static str,
    /// The least wait before another attempt; `None` if no other attempt can help.
    again: Option<Duration>,
}

impl JudgeClient {
    /// Sets up the client and the budget.
    ///
    /// # Errors
    ///
    /// Fails if the client cannot be set up.
    pub(super) fn new(
        options: &JudgeOptions,
        given: &JudgeParts<'_>,
        meter: Arc<Meter>,
    ) -> Result<Self, JudgeError> {
        let limits = ClientOptions {
            allow_http: options.allow_http,
            max_reply_bytes: options.max_reply_bytes,
            timeout: options.timeout,
        };
        let cap = Quanta::from_f64(options.usd_per_hour).unwrap_or_default();
        let mut budget = Budget::new(cap, given.shares.clone());
        budget.spent_before(given.paid.iter().copied());
        let breaker = Breaker::new(options.max_failures, options.pause);
        let money = CallBudget::new(budget, breaker);
        let client = Self {
            options: options.clone(),
            key: given.key.clone(),
            client: Client::new("judge.url", limits)?,
            prices: prices(options, given.cost),
            clock: given.clock.clone(),
            meter,
            money: Mutex::new(money),
            settled: Notify::new(),
            dialects: Mutex::default(),
        };
        client.look();
        Ok(client)
    }

    /// Why no call for a tenant to any of these models would be made; `None` if one may.
    pub(super) fn away<'m>(
        &self,
        tenant: TenantHash,
        models: impl IntoIterator<Item = &'m str>,
    ) -> Option<&'static str> {
        let stake = |model| CallCost { model, tenant, most: self.at_most(model, 0) };
        let least = models.into_iter().map(stake).min_by_key(|stake| stake.most)?;
        let now = self.clock.now();
        let mut money = self.money();
        let why = money.away(least, now);
        if why.is_some() {
            self.stands(&mut money, now);
        }
        why
    }

    /// Updates the metrics of the budget, as spending expires even without calls.
    pub(super) fn look(&self) {
        self.stands(&mut self.money(), self.clock.now());
    }

    /// Asks until there is an answer of the right form, or until attempts, time or money run out.
    pub(super) async fn ask(&self, question: &Question<'_>) -> Paid {
        let (mut last, mut paid) = ("not_asked", Quanta(0));
        for attempt in 0..self.options.max_attempts {
            let (outcome, cost) = self.attempt(question).await;
            paid = Quanta(paid.0.saturating_add(cost.0));
            let failure = match outcome {
                Ok(answer) => return (Ok(answer), paid),
                Err(failure) => failure,
            };
            last = failure.name;
            let Some(at_least) = failure.again else { break };
            let wait = self.wait(attempt, &question.prompt.user).max(at_least);
            if attempt + 1 == self.options.max_attempts {
                break;
            }
            if self.clock.now().after(wait) >= question.due {
                return (Err("deadline"), paid);
            }
            tokio::time::sleep(wait).await;
        }
        (Err(last), paid)
    }

    /// Makes one call, if permitted. A request that the endpoint does not understand is repeated at once in a plainer dialect.
    async fn attempt(&self, question: &Question<'_>) -> (Result<Value, Failure>, Quanta) {
        let mut paid = Quanta(0);
        let mut dialect = self.dialect(question);
        loop {
            let settled = self.settled.notified();
            let now = self.clock.now();
            if now >= question.due {
                return (Err(Failure { name: "deadline", again: None }), paid);
            }
            let most = self.most(question);
            let stake = CallCost { model: question.model, tenant: question.tenant, most };
            let reserved = match self.admit(stake, now) {
                Admission::Goes(reserved) => reserved,
                Admission::Waits => {
                    let left = self.clock.until(question.due);
                    let _ = tokio::time::timeout(left, settled).await;
                    continue;
                }
                Admission::Refused(name) => return (Err(Failure { name, again: None }), paid),
            };
            let (outcome, cost) = self.call(question, dialect, reserved).await;
            paid = Quanta(paid.0.saturating_add(cost.0));
            let well = self.went_well(&outcome, question, dialect);
            let name = outcome.as_ref().map_or_else(|told| told.name(), |_| "ok");
            let replied = matches!(outcome, Ok(_) | Err(CallFailure::NoAnswer(_)));
            self.settle(stake, Outcome { reserved, cost, replied, well });
            self.meter.call(name);
            match outcome {
                Err(CallFailure::Call(CallError::Status { code: 400 | 422, .. })) => {
                    let Some(plainer) = dialect.plainer() else {
                        return (Err(Failure { name, again: None }), paid);
                    };
                    dialect = plainer;
                }
                Err(told @ (CallFailure::Call(_) | CallFailure::NotAsked)) => {
                    return (Err(Failure { name, again: told.again() }), paid);
                }
                Err(told @ CallFailure::NoAnswer(_)) => {
                    self.understood(question, dialect);
                    return (Err(Failure { name, again: told.again() }), paid);
                }
                Ok(answer) => {
                    self.understood(question, dialect);
                    return (Ok(answer), paid);
                }
            }
        }
    }

    /// Makes a call; returns its answer and its cost.
    async fn call(
        &self,
        question: &Question<'_>,
        dialect: Dialect,
        most: Quanta,
    ) -> (Result<Value, CallFailure>, Quanta) {
        let format = self.options.format;
        let call = Call {
            model: question.model,
            prompt: &question.prompt,
            stage: question.stage,
            temperature: question.temperature,
            max_output_tokens: self.options.max_output_tokens,
            dialect,
        };
        let Some(request) = format.request(&self.options.url, self.key.as_ref(), &call) else {
            return (Err(CallFailure::NotAsked), Quanta(0));
        };
        let body = request.body.to_string().into_bytes();
        let _step = telemetry::step("judge.call");
        let posted = self.client.post(&request.url, &request.headers, "application/json", body);
        let bytes = match posted.await {
            Ok(bytes) => bytes,
            Err(error) => {
                let cost = if error.may_cost() { most } else { Quanta(0) };
                return (Err(CallFailure::Call(error)), cost);
            }
        };
        let reply: Value = match serde_json::from_slice(&bytes) {
            Ok(reply) => reply,
            Err(_) => return (Err(CallFailure::NoAnswer("not_of_format")), most),
        };
        let (answer, missing) = format.answer(&reply);
        // Without a count of tokens the call is assumed to have cost the most; zero is no count, as every prompt has tokens.
        let input = answer.input_tokens.filter(|tokens| *tokens > 0);
        let tokens = Tokens { input, output: answer.output_tokens, ..Tokens::default() };
        let cost = self.price(call.model, tokens).unwrap_or(most);
        self.meter.tokens(answer.input_tokens, answer.output_tokens);
        let read = match missing {
            Some(why) => Err(CallFailure::NoAnswer(why.name())),
            None => reply::read(call.stage, &answer.text)
                .map_err(|why| CallFailure::NoAnswer(why.name())),
        };
        (read, cost)
    }

    fn admit(&self, stake: CallCost<'_>, now: Timestamp) -> Admission {
        let mut money = self.money();
        let admission = money.admit(stake, now);
        self.stands(&mut money, now);
        admission
    }

    /// Whether the endpoint is up, if the outcome shows it. An endpoint that does not understand a request may only dislike its
    /// content; but one that has understood none, however plain, has no answers to give.
    fn went_well(
        &self,
        outcome: &Result<Value, CallFailure>,
        question: &Question<'_>,
        dialect: Dialect,
    ) -> Option<bool> {
        match outcome {
            Err(CallFailure::Call(CallError::Status { code: 400 | 422, .. })) => {
                (dialect.plainer().is_none() && !self.has_understood(question)).then_some(false)
            }
            Err(CallFailure::Call(error)) => Some(!is_down(*error)),
            Ok(_) | Err(CallFailure::NotAsked | CallFailure::NoAnswer(_)) => Some(true),
        }
    }

    fn settle(&self, stake: CallCost<'_>, outcome: Outcome) {
        let now = self.clock.now();
        self.meter.cost(outcome.cost);
        let mut money = self.money();
        if money.settle(stake, outcome, now) {
            tracing::warn!(
                model = stake.model,
                "a call to the judge cost more than it can by its bytes and max_output_tokens; more is set aside for the next ones"
            );
        }
        self.stands(&mut money, now);
        drop(money);
        self.settled.notify_waiters();
    }

    fn stands(&self, money: &mut CallBudget, now: Timestamp) {
        let (left, degraded) = money.stands(now);
        self.meter.stands(left, degraded);
    }

    fn money(&self) -> MutexGuard<'_, CallBudget> {
        self.money.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn most(&self, question: &Question<'_>) -> Quanta {
        let Question { model, prompt, .. } = question;
        self.at_most(model, prompt.system.len() + prompt.user.len())
    }

    /// The most that a call with this many bytes can cost: no tokenizer makes more tokens than there are bytes.
    fn at_most(&self, model: &str, bytes: usize) -> Quanta {
        let input = (bytes + FORM_BYTES) as u64;
        let output = u64::from(self.options.max_output_tokens);
        let tokens = Tokens { input: Some(input), output: Some(output), ..Tokens::default() };
        self.price(model, tokens).unwrap_or(Quanta(i64::MAX))
    }

    fn price(&self, model: &str, tokens: Tokens) -> Option<Quanta> {
        let facts = ModelFacts { model: Some(Arc::from(model)), tokens, ..ModelFacts::default() };
        self.prices.cost(&facts)
    }

    /// The wait after an attempt: doubled each time, less up to half at random, so that calls that failed together are not repeated
    /// together.
    fn wait(&self, attempt: u32, text: &str) -> Duration {
        let full = backoff(self.options.backoff, attempt);
        let chance = xxh3_64_with_seed(text.as_bytes(), self.clock.now().0) % 512;
        full.mul_f64(1.0 - chance as f64 / 1024.0)
    }

    /// The dialect in which a question is asked first.
    fn dialect(&self, question: &Question<'_>) -> Dialect {
        let dialects = self.dialects.lock().unwrap_or_else(PoisonError::into_inner);
        dialects.get(&spoken(question)).copied().unwrap_or_default()
    }

    /// Whether the model has understood any request.
    fn has_understood(&self, question: &Question<'_>) -> bool {
        let dialects = self.dialects.lock().unwrap_or_else(PoisonError::into_inner);
        [false, true]
            .iter()
            .any(|closed| dialects.contains_key(&(question.model.to_owned(), *closed)))
    }

    /// Keeps the dialect of a request that was understood. A refused request says nothing about dialects: the cause may be its
    /// content, its length or a filter.
    fn understood(&self, question: &Question<'_>, dialect: Dialect) {
        let mut dialects = self.dialects.lock().unwrap_or_else(PoisonError::into_inner);
        dialects.insert(spoken(question), dialect);
    }
}

/// The key of a dialect: models differ, and schemas with open objects differ from closed ones.
fn spoken(question: &Question<'_>) -> (String, bool) {
    (question.model.to_owned(), question.stage.is_closed())
}

/// Bytes of a request besides its prompt: the schema, and the overhead of the format.
const FORM_BYTES: usize = 2_048;

/// The failure of a call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum CallFailure {
    /// No call was made, as the judge has no format.
    NotAsked,
    /// There was no reply.
    Call(CallError),
    /// The reply has no answer of the right form.
    NoAnswer(&'static str),
}

impl CallFailure {
    fn name(self) -> &'static str {
        match self {
            Self::NotAsked => "not_asked",
            Self::Call(error) => error.name(),
            Self::NoAnswer(why) => why,
        }
    }

    /// The least wait before another attempt; `None` if there must be none.
    fn again(self) -> Option<Duration> {
        match self {
            Self::NotAsked | Self::NoAnswer("refused") => None,
            Self::NoAnswer(_) => Some(Duration::ZERO),
            Self::Call(error) => error.is_passing().then(|| error.asked_wait().unwrap_or_default()),
        }
    }
}

/// Whether an error means that the endpoint is down, rather than that it rejects this call.
fn is_down(error: CallError) -> bool {
    match error {
        CallError::Connect | CallError::Timeout | CallError::BrokenOff | CallError::Redirect => {
            true
        }
        CallError::TooLarge => false,
        CallError::Status { code, .. } => matches!(code, 401..=404 | 429 | 500..),
    }
}

/// The prices of the configuration, followed by the price of all other models.
fn prices(options: &JudgeOptions, cost: &CostOptions) -> Prices {
    let mut cost = cost.clone();
    cost.prices.push(Price {
        model: "*".to_owned(),
        input: options.input_usd_per_million,
        output: options.output_usd_per_million,
        cached: None,
        cache_written: None,
    });
    Prices::new(&cost)
}
