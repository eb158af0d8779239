//! Calls an endpoint for sessions that run away, so that it can stop them; calls are signed, paced, and carry evidence.
//!
//! A session runs away when a loop in it reaches the configured severity, or it or one of its traces exceeds a limit, while it
//! runs. Each session is reported once per cooldown, and only a limited number of sessions per minute; by default nothing is sent,
//! and the log shows what would be.

mod body;
mod options;
mod pace;
mod sign;

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus::IntCounterVec;
use tokio::sync::mpsc;

pub use body::Runaway;
pub use options::WebhookOptions;
pub use pace::SavedPace;

use self::pace::{Key, WebhookRate};
use crate::clock::Clock;
use crate::engine::limits::Cause;
use crate::engine::loops::Severity;
use crate::engine::span::Timestamp;
use crate::engine::tenants::{Shares, tenant_hash};
use crate::outbound::{CallError, Client, ClientOptions, EndpointError, backoff, check};
use crate::registry::Registry;
use crate::secret::Secret;
use crate::tenant_queue::{self, Excess, TenantQueue, lock};

/// Why there is no webhook.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// The endpoint cannot be used.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// There is no secret to sign with.
    #[error(
        "`webhook.url` needs a secret in `webhook.secret_file` or `webhook.secret_env`, so that the receiver \
         can tell who calls"
    )]
    NoSecret,
    /// The metrics cannot be set up.
    #[error("cannot set up the webhook's metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// The stages' handle to the webhook, which never waits.
#[derive(Clone, Debug)]
pub struct Handle {
    lines: Arc<Mutex<TenantQueue<Call>>>,
    // Signalled when a call waits; once all clones are dropped, no more come.
    wake: mpsc::Sender<()>,
    severity: Severity,
    pace: SharedPace,
    clock: Clock,
    outcomes: IntCounterVec,
    /// The address at which people reach the page.
    base: Arc<str>,
}

/// The pace of the calls, which a snapshot saves. A call counts as soon as it is queued, so that a snapshot after the last runaway
/// includes all calls, made or not.
#[derive(Clone, Debug)]
pub struct SharedPace(Arc<Mutex<WebhookRate>>);

/// The webhook, which calls the endpoint for one session after the other.
#[derive(Debug)]
pub struct Webhook {
    // Tenants take turns.
    lines: Arc<Mutex<TenantQueue<Call>>>,
    woken: mpsc::Receiver<()>,
    options: WebhookOptions,
    secret: Secret,
    client: Client,
    clock: Clock,
    pace: SharedPace,
    outcomes: IntCounterVec,
    /// Whether a call is in progress.
    is_calling: bool,
    grace: Duration,
}

/// A call that waits for its turn.
#[derive(Debug)]
struct Call {
    session_id: String,
    cause: Cause,
    body: String,
    /// The keys by which the pace recognises its session.
    keys: Vec<Key>,
}

/// The most sessions that wait for the webhook; further ones are left out and counted.
const QUEUE: usize = 256;

/// The most bytes of the endpoint's answer; its content is not used.
const MAX_REPLY_BYTES: usize = 64 * 1024;

/// The wait before the second attempt; it doubles before each further one.
const BACKOFF: Duration = Duration::from_secs(1);

/// How long calls that wait when the daemon stops may still take.
const GRACE: Duration = Duration::from_secs(6);

/// The longest wait between two attempts.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

impl Webhook {
    /// A webhook, which tenants share by `shares`, and the stages' handle to it; its metrics go into `registry`.
    ///
    /// # Errors
    ///
    /// Fails if the endpoint cannot be used or there is no secret.
    pub fn new(
        options: WebhookOptions,
        secret: Option<Secret>,
        shares: Shares,
        clock: Clock,
        registry: &Registry,
    ) -> Result<(Self, Handle), WebhookError> {
        check("webhook.url", "webhook.allow_http", &options.url, options.allow_http)?;
        let secret = secret.ok_or(WebhookError::NoSecret)?;
        let client = Client::new(
            "webhook.url",
            ClientOptions {
                allow_http: options.allow_http,
                max_reply_bytes: MAX_REPLY_BYTES,
                timeout: options.timeout,
            },
        )?;
        let outcomes = outcomes(registry)?;
        // From zero on, so that the first failure shows as a rise.
        for outcome in ["failed", "queue_full"] {
            outcomes.with_label_values(&[outcome]);
        }
        let lines = Arc::new(Mutex::new(TenantQueue::new(shares.clone())));
        let (wake, woken) = mpsc::channel(1);
        let (severity, base) = (options.severity, Arc::default());
        let pace = WebhookRate::new(options.cooldown, options.max_per_minute, shares);
        let pace = SharedPace(Arc::new(Mutex::new(pace)));
        let handle = Handle {
            lines: Arc::clone(&lines),
            wake,
            severity,
            pace: pace.clone(),
            clock: clock.clone(),
            outcomes: outcomes.clone(),
            base,
        };
        let (is_calling, grace) = (false, GRACE);
        let webhook = Self {
            lines,
            woken,
            options,
            secret,
            client,
            clock,
            pace,
            outcomes,
            is_calling,
            grace,
        };
        Ok((webhook, handle))
    }

    /// Whether a call at that time can still hold back another.
    pub fn still_counts(&self, at: Timestamp, now: Timestamp) -> bool {
        self.pace.lock().still_counts(at, now)
    }

    /// Continues with the pace that an earlier process saved.
    pub fn restore(&mut self, saved: SavedPace) {
        self.pace.lock().restore(saved);
    }

    /// Notes a session that an earlier process reported; such sessions have to come in the order of time.
    pub fn restore_call(&mut self, runaway: &Runaway) {
        let tenant = tenant_hash(Some(&runaway.tenant));
        // What is held back now was held back then.
        let _ = self.pace.lock().admit(&runaway.keys(), tenant, runaway.at);
    }

    /// Calls the endpoint for sessions until the last handle is dropped. After `stop`, which also drops the handles, calls that
    /// wait have `GRACE`; those that are left after that are given up and count as failed.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        let grace = self.grace;
        {
            let mut work = pin!(self.call_all());
            tokio::select! {
                biased;
                () = &mut work => return,
                () = stop => {}
            }
            if tokio::time::timeout(grace, work).await.is_ok() {
                return;
            }
        }
        self.woken.close();
        let waiting = std::iter::from_fn(|| lock(&self.lines).take()).count();
        let given_up =
            u64::try_from(waiting).unwrap_or(u64::MAX).saturating_add(u64::from(self.is_calling));
        self.outcomes.with_label_values(&["failed"]).inc_by(given_up);
        tracing::warn!(
            given_up,
            "the daemon stops before it called the webhook about runaway sessions"
        );
    }

    async fn call_all(&mut self) {
        while let Some(call) = tenant_queue::next(&self.lines, &mut self.woken).await {
            self.is_calling = true;
            let Call { session_id, cause, body, .. } = call;
            let outcome = if self.options.dry_run {
                tracing::warn!(
                    session = session_id,
                    kind = cause.kind(),
                    severity = cause.severity().name(),
                    "a session runs away; the webhook was not called (dry run)"
                );
                "dry_run"
            } else {
                self.call(&session_id, &body).await
            };
            self.outcomes.with_label_values(&[outcome]).inc();
            self.is_calling = false;
        }
    }

    /// Calls the endpoint for one session, with further attempts if they may help; returns the outcome.
    async fn call(&self, session_id: &str, body: &str) -> &'static str {
        for attempt in 1.. {
            let error = match self.attempt(body).await {
                Ok(()) => return "sent",
                Err(error) => error,
            };
            if attempt >= self.options.max_attempts || !error.is_passing() {
                tracing::warn!(
                    session = session_id,
                    error = error.name(),
                    attempt,
                    "the webhook could not be called about a runaway session"
                );
                break;
            }
            let wait = error.asked_wait().unwrap_or_else(|| backoff(BACKOFF, attempt - 1));
            tokio::time::sleep(wait.min(MAX_BACKOFF)).await;
        }
        "failed"
    }

    /// Makes one attempt, with its own signature: a receiver refuses an old one.
    async fn attempt(&self, body: &str) -> Result<(), CallError> {
        let seconds = seconds(self.clock.wall());
        let headers = [
            ("x-agentgauge-timestamp", seconds.to_string()),
            ("x-agentgauge-delivery", sign::delivery(body)),
            ("x-agentgauge-signature", sign::signature(&self.secret, seconds, body)),
        ];
        let reply = self.client.post(
            &self.options.url,
            &headers,
            "application/json",
            body.as_bytes().to_vec(),
        );
        reply.await.map(|_| ())
    }
}

impl Handle {
    /// Whether the webhook is to be called for this severity.
    pub fn wants(&self, severity: Severity) -> bool {
        severity >= self.severity
    }

    /// Adds links to sessions on the page, whose public address is `base`.
    #[must_use]
    pub fn linked(self, base: &str) -> Self {
        Self { base: Arc::from(base), ..self }
    }

    /// The pace of the calls.
    pub fn pace(&self) -> SharedPace {
        self.pace.clone()
    }

    /// Queues the call for a session, if the session still exists and is not held back. Without room, the newest call of the tenant
    /// that holds the most relative to its share is left out, and its session is reported when it runs away again. A waiting call
    /// is as small as its body: a session may be large.
    pub fn enqueue(&self, runaway: impl FnOnce() -> Option<Runaway>) {
        let Some(runaway) = runaway() else { return };
        let tenant = tenant_hash(Some(&runaway.tenant));
        let keys = runaway.keys();
        let admitted = self.pace.lock().admit(&keys, tenant, self.clock.now());
        if let Err(held_back) = admitted {
            return self.outcomes.with_label_values(&[held_back]).inc();
        }
        let body = runaway.body(&self.base);
        let (cause, session_id) = (runaway.cause, runaway.session.session_id);
        let mut lines = lock(&self.lines);
        let bytes = body.len();
        lines.put(tenant, Call { body, cause, session_id, keys }, bytes);
        let is_over = self.wake.is_closed() || lines.len() > QUEUE;
        let left_out = if is_over { lines.evict_last(Excess::Items) } else { None };
        drop(lines);
        if let Some(left_out) = left_out {
            self.pace.lock().take_back(&left_out.keys);
            self.outcomes.with_label_values(&["queue_full"]).inc();
        }
        // Fails if a signal is already pending.
        let _ = self.wake.try_send(());
    }
}

impl SharedPace {
    /// The calls that it has admitted.
    pub fn save(&self) -> SavedPace {
        self.lock().save()
    }

    fn lock(&self) -> MutexGuard<'_, WebhookRate> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn seconds(at: Timestamp) -> u64 {
    at.0 / 1_000_000_000
}

/// Registers the counter of the outcomes of sessions.
pub(crate) fn outcomes(registry: &Registry) -> Result<IntCounterVec, prometheus::Error> {
    let help = "Runaway sessions, by outcome of the webhook call.";
    registry.counters("webhook_sessions_total", help, &["outcome"])
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio::sync::oneshot;

    use super::*;
    use crate::engine::limits::RunLimit;
    use crate::engine::view::SessionView;

    fn runaway(id: &str) -> Runaway {
        Runaway {
            tenant: String::new(),
            cause: Cause::Limit(RunLimit::TraceModelCalls),
            at: Timestamp(1),
            session: Box::new(SessionView { session_id: id.to_owned(), ..SessionView::default() }),
        }
    }

    #[tokio::test]
    async fn tenants_take_turns_and_one_that_floods_takes_no_room_of_another() {
        let registry = Registry::new();
        let options = WebhookOptions {
            url: "https://hook.example/".to_owned(),
            max_per_minute: 10_000,
            ..WebhookOptions::default()
        };
        let (webhook, handle) = Webhook::new(
            options,
            Secret::new("a secret of ours"),
            Shares::default(),
            Clock::system(),
            &registry,
        )
        .unwrap();
        let tell = |tenant: &str, number: usize| {
            let of =
                Runaway { tenant: tenant.to_owned(), ..runaway(&format!("{tenant}-{number}")) };
            handle.enqueue(|| Some(of));
        };
        (0..QUEUE + 10).for_each(|number| tell("flood", number));
        (0..2).for_each(|number| tell("quiet", number));
        assert_eq!(webhook.outcomes.with_label_values(&["queue_full"]).get(), 12);
        // Sessions that were left out are reported when they run away again; waiting ones are not.
        tell("flood", QUEUE + 9);
        tell("flood", 0);
        assert_eq!(webhook.outcomes.with_label_values(&["queue_full"]).get(), 13);
        assert_eq!(webhook.outcomes.with_label_values(&["cooldown"]).get(), 1);
        let mut first = Vec::new();
        for _ in 0..4 {
            first.push(lock(&webhook.lines).take().unwrap().session_id);
        }
        let of_quiet = first.iter().filter(|id| id.starts_with("quiet")).count();
        assert_eq!(of_quiet, 2, "{first:?}");
    }

    #[tokio::test]
    async fn calls_that_are_left_when_the_daemon_stops_count_as_failed() {
        // It accepts connections and answers none.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let registry = Registry::new();
        let options = WebhookOptions {
            url,
            allow_http: true,
            dry_run: false,
            timeout: Duration::from_secs(60),
            ..WebhookOptions::default()
        };
        let secret = Secret::new("a secret of ours");
        let (mut webhook, handle) =
            Webhook::new(options, secret, Shares::default(), Clock::system(), &registry).unwrap();
        webhook.grace = Duration::from_millis(1);
        let outcomes = webhook.outcomes.clone();
        for id in ["a", "b", "c"] {
            handle.enqueue(|| Some(runaway(id)));
        }
        let (stop, stopped) = oneshot::channel::<()>();
        let run = tokio::spawn(webhook.run(async { drop(stopped.await) }));
        let call = listener.accept().await.unwrap();
        drop((stop, handle));
        run.await.unwrap();
        assert_eq!(outcomes.with_label_values(&["failed"]).get(), 3);
        drop(call);
    }
}
