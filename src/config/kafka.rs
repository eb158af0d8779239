//! Ranges of the options under `kafka`, as far as they can be checked without a broker.

use std::collections::BTreeSet;

use super::Config;
use super::range::Check;
use crate::ingest::kafka::{KafkaOptions, SaslMechanism};

/// Bytes of the longest topic name that brokers accept.
const MAX_TOPIC_BYTES: usize = 249;

pub(super) fn check(config: &Config, check: &mut Check<'_>) {
    let kafka = &config.kafka;
    if !kafka.enabled() {
        return;
    }
    if !cfg!(feature = "kafka") {
        let expected = "empty in this build, which lacks the feature `kafka`";
        check.fail("kafka.brokers", expected.to_owned(), "a broker");
    }
    for broker in &kafka.brokers {
        let port = broker.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        if port.is_none_or(|(_, port)| port.parse::<u16>().is_err()) || broker.contains(',') {
            let expected = "a list of addresses like broker:9092".to_owned();
            check.fail("kafka.brokers", expected, format!("`{broker}`"));
        }
    }
    if kafka.group.is_empty() {
        check.fail("kafka.group", "a name".to_owned(), "empty");
    }
    topics(kafka, config.fleet.enabled(), check);
    security(kafka, check);
}

fn topics(kafka: &KafkaOptions, fleet: bool, check: &mut Check<'_>) {
    let mut seen = BTreeSet::new();
    for (key, names) in
        [("kafka.traces_topics", &kafka.traces_topics), ("kafka.logs_topics", &kafka.logs_topics)]
    {
        for name in names {
            if !is_topic(name) {
                let expected = "names of letters, digits, `.`, `_` and `-`".to_owned();
                check.fail(key, expected, format!("`{name}`"));
            }
            if !seen.insert(name) {
                check.fail(key, "topics that are named once".to_owned(), format!("`{name}`"));
            }
        }
    }
    // A gateway may accept only requests.
    if seen.is_empty() && !fleet {
        let expected = "topics, here or in `kafka.logs_topics`, as there are brokers".to_owned();
        check.fail("kafka.traces_topics", expected, "empty");
    }
    let dead = &kafka.dead_letter_topic;
    if !dead.is_empty() && (!is_topic(dead) || seen.contains(dead)) {
        let expected = "a topic that is not read".to_owned();
        check.fail("kafka.dead_letter_topic", expected, format!("`{dead}`"));
    }
}

fn security(kafka: &KafkaOptions, check: &mut Check<'_>) {
    let built = cfg!(feature = "kafka-tls");
    let without = || "this build lacks the feature `kafka-tls`".to_owned();
    if kafka.tls && !built {
        check.fail("kafka.tls", format!("false: {}", without()), "true");
    }
    for (key, path) in [
        ("kafka.tls_ca_file", &kafka.tls_ca_file),
        ("kafka.tls_certificate_file", &kafka.tls_certificate_file),
        ("kafka.tls_key_file", &kafka.tls_key_file),
    ] {
        if !path.is_empty() && !built {
            check.fail(key, format!("empty: {}", without()), format!("`{path}`"));
        } else if !path.is_empty() && !kafka.tls {
            check.fail(
                key,
                "empty as long as `kafka.tls` is false".to_owned(),
                format!("`{path}`"),
            );
        }
    }
    if kafka.tls_certificate_file.is_empty() != kafka.tls_key_file.is_empty() {
        let expected = "set where `kafka.tls_certificate_file` is set, and only there".to_owned();
        check.fail("kafka.tls_key_file", expected, format!("`{}`", kafka.tls_key_file));
    }
    let mechanism = kafka.sasl_mechanism;
    let scram = [SaslMechanism::ScramSha256, SaslMechanism::ScramSha512].contains(&mechanism);
    if scram && !built {
        let expected = format!("none or plain: {}", without());
        check.fail("kafka.sasl_mechanism", expected, format!("{mechanism:?}"));
    }
    let password = !kafka.sasl_password.reveal().is_empty();
    if mechanism != SaslMechanism::None {
        if kafka.sasl_username.is_empty() {
            check.fail(
                "kafka.sasl_username",
                "a name for `kafka.sasl_mechanism`".to_owned(),
                "empty",
            );
        }
        if password != kafka.sasl_password_file.is_empty() {
            let expected = "set, or `kafka.sasl_password_file`, but not both".to_owned();
            check.fail("kafka.sasl_password", expected, if password { "both" } else { "neither" });
        }
    } else if password || !kafka.sasl_username.is_empty() || !kafka.sasl_password_file.is_empty() {
        let expected = "set for `kafka.sasl_username` and its password".to_owned();
        check.fail("kafka.sasl_mechanism", expected, "none");
    }
}

pub(super) fn is_topic(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=MAX_TOPIC_BYTES).contains(&name.len()) && name.chars().all(plain)
}
