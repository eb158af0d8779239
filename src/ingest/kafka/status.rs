//! Whether the source can read from its brokers, for people and for `readyz`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;

/// Counts what the source does, for metrics.
pub trait SourceMetrics: Send + Sync {
    /// Counts an applied record.
    fn applied(&self, topic: &str);

    /// Counts a skipped record, for one of a few reasons.
    fn skipped(&self, topic: &str, reason: &'static str);

    /// Counts records that were deleted from the topic before they were read.
    fn gone(&self, topic: &str, records: u64);

    /// Counts a dead letter, delivered or not.
    fn dead_letter(&self, delivered: bool);

    /// Sets whether the source has paused its partitions.
    fn paused(&self, paused: bool);

    /// Sets whether the source is in its group and knows of no problem.
    fn ready(&self, ready: bool);

    /// Sets how many records of each assigned partition are not applied yet; the lag of partitions left out is unknown.
    fn lags(&self, lags: &BTreeMap<(String, i32), i64>);
}

/// A watch that counts nothing.
pub(crate) struct WithoutMetrics;

/// The status of a source, shared with its probe and with `readyz`.
pub struct Status {
    watch: Arc<dyn SourceMetrics>,
    brokers: String,
    now: Mutex<InputStatus>,
}

#[derive(Debug, Default)]
struct InputStatus {
    joined: bool,
    problem: Option<Problem>,
}

/// What keeps the source from reading. The source keeps trying if this can be mended from outside.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Problem {
    /// No broker can be reached.
    Unreachable { why: String },
    /// The brokers do not accept the credentials.
    Credentials { why: String },
    /// TLS with the brokers fails.
    Tls { why: String },
    /// There is no such topic.
    Missing { topic: String, key: &'static str },
    /// A topic may not be read, or not with this group.
    Forbidden { what: String, key: &'static str },
    /// Any other problem.
    Other { why: String },
}

impl SourceMetrics for WithoutMetrics {
    fn applied(&self, _: &str) {}
    fn skipped(&self, _: &str, _: &'static str) {}
    fn gone(&self, _: &str, _: u64) {}
    fn dead_letter(&self, _: bool) {}
    fn paused(&self, _: bool) {}
    fn ready(&self, _: bool) {}
    fn lags(&self, _: &BTreeMap<(String, i32), i64>) {}
}

impl Status {
    pub(crate) fn new(watch: Arc<dyn SourceMetrics>, brokers: &[String]) -> Self {
        watch.ready(false);
        Self { watch, brokers: brokers.join(", "), now: Mutex::default() }
    }

    /// Succeeds if the source is in its group and has no problem.
    ///
    /// # Errors
    ///
    /// Returns what is wrong, with the option to look at.
    pub fn ready(&self) -> Result<(), String> {
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        match &now.problem {
            Some(problem) => Err(problem.describe(&self.brokers)),
            None if now.joined => Ok(()),
            None => Err("the Kafka source has not joined its group (`kafka.group`) yet".to_owned()),
        }
    }

    /// Sets whether the source is in its group; joining ends a problem of permissions.
    pub(crate) fn joined(&self, joined: bool) {
        self.change(|now| {
            now.joined = joined;
            now.problem.take_if(|problem| joined && matches!(problem, Problem::Forbidden { .. }));
        });
    }

    /// Whether the source is in its group.
    pub(crate) fn has_joined(&self) -> bool {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).joined
    }

    /// Takes an error of a client; an error that a person has to mend becomes a problem.
    pub(crate) fn failed(&self, error: &KafkaError, reason: &str) {
        match error.rdkafka_error_code().and_then(|code| Problem::of(code, reason)) {
            Some(problem) => self.problem(problem),
            None => tracing::debug!(target: "librdkafka", %error, "{reason}"),
        }
    }

    /// Notes a problem, and logs it once.
    pub(crate) fn problem(&self, problem: Problem) {
        let text = problem.describe(&self.brokers);
        let told = self.change(|now| {
            let known = now.problem.as_ref();
            if known.is_some_and(|known| known.explains(&problem)) {
                return true;
            }
            let told = known.is_some_and(|known| known.kind() == problem.kind());
            now.problem = Some(problem);
            told
        });
        // A problem is logged as an error once, until it is over or changes its kind: librdkafka repeats itself.
        if told {
            tracing::debug!("{text}");
        } else {
            tracing::error!("{text}");
        }
    }

    /// Notes that the brokers answer and all topics are there.
    pub(crate) fn well(&self) {
        if self.change(|now| now.problem.take()).is_some() {
            tracing::info!("the Kafka source is well again");
        }
    }

    /// Notes that a broker is connected, which ends problems with connections and no others.
    pub(crate) fn connected(&self) {
        let mended = self.change(|now| now.problem.take_if(|problem| problem.is_with_brokers()));
        if mended.is_some() {
            tracing::info!("a Kafka broker is connected again");
        }
    }

    fn change<T>(&self, how: impl FnOnce(&mut InputStatus) -> T) -> T {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = how(&mut now);
        self.watch.ready(now.joined && now.problem.is_none());
        answer
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Status").field("now", &self.now).finish_non_exhaustive()
    }
}

impl Problem {
    /// The problem behind an error of librdkafka; `None` if it does not last, or the probe finds it.
    pub(crate) fn of(code: Code, reason: &str) -> Option<Self> {
        let why = reason.to_owned();
        let is = |codes: &[Code]| codes.contains(&code);
        if is(&[Code::Authentication, Code::SaslAuthenticationFailed])
            || is(&[Code::UnsupportedSASLMechanism, Code::IllegalSASLState])
        {
            Some(Self::Credentials { why })
        } else if is(&[Code::SSL]) {
            Some(Self::Tls { why })
        } else if is(&[Code::AllBrokersDown, Code::Resolve, Code::BrokerTransportFailure]) {
            Some(Self::Unreachable { why })
        } else if is(&[Code::GroupAuthorizationFailed]) {
            Some(Self::Forbidden { what: "with this group".to_owned(), key: "kafka.group" })
        } else {
            None
        }
    }

    /// Whether `other` only says that no broker can be reached, while this problem says so already or explains why.
    fn explains(&self, other: &Self) -> bool {
        let silent = matches!(other, Self::Unreachable { .. });
        silent && self.is_with_brokers()
    }

    /// Whether it keeps brokers from being connected.
    fn is_with_brokers(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Credentials { .. } | Self::Tls { .. })
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Unreachable { .. } => 0,
            Self::Credentials { .. } => 1,
            Self::Tls { .. } => 2,
            Self::Missing { .. } => 3,
            Self::Forbidden { .. } => 4,
            Self::Other { .. } => 5,
        }
    }

    fn describe(&self, brokers: &str) -> String {
        match self {
            Self::Unreachable { why } => format!(
                "no Kafka broker can be reached at {brokers}: {why}; check `kafka.brokers`, and `kafka.tls` if they \
                 want TLS; trying again"
            ),
            Self::Credentials { why } => format!(
                "the Kafka brokers at {brokers} refuse the credentials: {why}; check `kafka.sasl_mechanism`, \
                 `kafka.sasl_username` and `kafka.sasl_password`; trying again"
            ),
            Self::Tls { why } => format!(
                "no TLS with the Kafka brokers at {brokers}: {why}; check `kafka.tls`, `kafka.tls_ca_file` and \
                 `kafka.tls_certificate_file`; trying again"
            ),
            Self::Missing { topic, key } => format!(
                "there is no Kafka topic `{topic}` at {brokers}; create it, or take it out of `{key}`; trying again"
            ),
            Self::Forbidden { what, key } => format!(
                "the Kafka brokers at {brokers} do not let us read {what}; grant it, or change `{key}`; trying again"
            ),
            Self::Other { why } => format!("the Kafka source cannot read: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Status {
        Status::new(Arc::new(WithoutMetrics), &["broker:9092".to_owned()])
    }

    #[test]
    fn it_is_ready_in_its_group_without_a_problem() {
        let status = status();
        assert!(status.ready().unwrap_err().contains("`kafka.group`"));
        status.joined(true);
        assert_eq!(status.ready(), Ok(()));
        status.problem(Problem::Missing { topic: "x".into(), key: "kafka.logs_topics" });
        let why = status.ready().unwrap_err();
        assert!(why.contains("`x` at broker:9092") && why.contains("`kafka.logs_topics`"), "{why}");
        status.well();
        assert_eq!(status.ready(), Ok(()));
    }

    #[test]
    fn silence_does_not_hide_what_the_brokers_said() {
        let status = status();
        let refused = Problem::of(Code::Authentication, "wrong password").unwrap();
        status.problem(refused);
        status.problem(Problem::of(Code::AllBrokersDown, "1/1 brokers are down").unwrap());
        let why = status.ready().unwrap_err();
        assert!(why.contains("wrong password") && why.contains("`kafka.sasl_password`"), "{why}");
    }

    #[test]
    fn every_problem_names_an_option() {
        for code in [
            Code::AllBrokersDown,
            Code::Resolve,
            Code::Authentication,
            Code::SaslAuthenticationFailed,
            Code::SSL,
            Code::GroupAuthorizationFailed,
        ] {
            let text = Problem::of(code, "because").unwrap().describe("b:1");
            assert!(text.contains("`kafka."), "{text}");
        }
        assert_eq!(Problem::of(Code::NotCoordinator, ""), None);
    }
}
