//! The topics between the stages: their creation, and the check that they match the options.

use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::{Client, DefaultClientContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};

use super::options::FleetOptions;
use super::outbox::MAX_RECORD_BYTES;
use super::wire::{HOPS, Hop};
use crate::ingest::kafka::{KafkaOptions, SourceError, client};

/// How long the brokers may take to create the topics.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long the brokers may take to describe a topic.
const LOOK: Duration = Duration::from_secs(5);

/// What is wrong with the topics, in words; `None` if all have as many partitions as `fleet.partitions` says. With another number,
/// instances would look for a trace in different partitions.
pub(super) fn look<C: ClientContext>(
    client: &Client<C>,
    prefix: &str,
    partitions: u32,
) -> KafkaResult<Option<String>> {
    let wanted = usize::try_from(partitions).unwrap_or(0);
    // All topics: brokers may create a topic that a client requests by name.
    let all = client.fetch_metadata(None, LOOK)?;
    for topic in HOPS.map(|hop| hop.topic(prefix)) {
        let found = all.topics().iter().find(|found| found.name() == topic);
        let found = found.map_or(0, |found| found.partitions().len());
        if found == 0 {
            return Ok(Some(format!(
                "there is no topic `{topic}`; `agentgauge topics create` creates those of `fleet.prefix`; trying again"
            )));
        }
        if found != wanted {
            return Ok(Some(format!(
                "topic `{topic}` has {found} partitions, and `fleet.partitions` is {wanted}, which has to be the same, in all \
                 instances; set it to {found}, or make topics under another `fleet.prefix`; trying again"
            )));
        }
    }
    Ok(None)
}

/// A topic, and whether it was created.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Made {
    /// Its name.
    pub topic: String,
    /// Whether it was created; otherwise it existed.
    pub new: bool,
}

/// Why topics cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum TopicsError {
    /// The client cannot be set up.
    #[error(transparent)]
    Client(#[from] SourceError),
    /// The brokers do not answer, or refuse the request.
    #[error("cannot create the topics at {brokers} (`kafka.brokers`): {source}")]
    Brokers {
        /// The brokers.
        brokers: String,
        /// Their error, or that they did not answer.
        source: KafkaError,
    },
    /// A topic was refused.
    #[error(
        "topic `{topic}` was not created: {code}; see `fleet.partitions` and `fleet.replication`"
    )]
    Refused {
        /// The topic.
        topic: String,
        /// The error of the brokers.
        code: RDKafkaErrorCode,
    },
}

/// Creates the missing topics; existing ones do not change.
///
/// # Errors
///
/// Fails if the brokers do not create one of them.
pub async fn create(kafka: &KafkaOptions, fleet: &FleetOptions) -> Result<Vec<Made>, TopicsError> {
    let admin: AdminClient<DefaultClientContext> =
        client(kafka)?.create().map_err(SourceError::from)?;
    let names = HOPS.map(|hop| hop.topic(&fleet.prefix));
    let retention = fleet.retention.as_millis().to_string();
    let bytes = MAX_RECORD_BYTES.to_string();
    let replicas = i32::try_from(fleet.replication).unwrap_or(1);
    let partitions = i32::try_from(fleet.partitions).unwrap_or(1);
    let topics = HOPS.iter().zip(&names).map(|(hop, name)| {
        let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(replicas))
            .set("retention.ms", &retention)
            .set("max.message.bytes", &bytes);
        match hop {
            Hop::Spans | Hop::Traces => topic.set("cleanup.policy", "delete"),
            // Records that are not sent again expire: those that are sent once, and those of forgotten agents.
            Hop::Agents => topic.set("cleanup.policy", "compact,delete"),
        }
    });
    let options = AdminOptions::new().request_timeout(Some(PATIENCE));
    let brokers = kafka.brokers.join(", ");
    let fail = |source| TopicsError::Brokers { brokers, source };
    let made = admin.create_topics(topics.collect::<Vec<_>>().iter(), &options).await;
    let results = made.map_err(fail)?;
    let made = results.into_iter().map(|result| match result {
        Ok(topic) => Ok(Made { topic, new: true }),
        Err((topic, RDKafkaErrorCode::TopicAlreadyExists)) => Ok(Made { topic, new: false }),
        Err((topic, code)) => Err(TopicsError::Refused { topic, code }),
    });
    made.collect()
}
