//! Ranges of the options under `fleet`.

use super::Config;
use super::kafka::is_topic;
use super::range::Check;
use crate::fleet::Role;
use crate::store::Durability;

/// The most bytes of a prefix, so that there is room for the rest of a topic's name.
const MAX_PREFIX_BYTES: usize = 200;

pub(super) fn check(config: &Config, check: &mut Check<'_>) {
    let fleet = &config.fleet;
    if !is_topic(&fleet.prefix) || fleet.prefix.len() > MAX_PREFIX_BYTES {
        let expected = "letters, digits, `.`, `_` and `-`".to_owned();
        check.fail("fleet.prefix", expected, format!("`{}`", fleet.prefix));
    }
    if !fleet.enabled() {
        return;
    }
    if !config.kafka.enabled() {
        let expected = "brokers, as there are `fleet.roles`".to_owned();
        check.fail("kafka.brokers", expected, "empty");
    }
    let keeps = fleet.roles.iter().any(|role| *role != Role::Gateway);
    if keeps && fleet.checkpoints.is_empty() {
        let expected = "a directory or s3://bucket/prefix that all instances share".to_owned();
        check.fail("fleet.checkpoints", expected, "empty");
    }
    if config.store.durability != Durability::Memory {
        let expected = "memory where there are `fleet.roles`: Kafka and checkpoints keep the state";
        check.fail("store.durability", expected.to_owned(), "a log");
    }
}
