//! Where newly assigned partitions begin.
//!
//! A group that begins at the end of a topic commits that end for all of its partitions at once. So a partition without an offset,
//! in a topic where the group has offsets, was added since, and is read from its first record.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::KafkaResult;
use rdkafka::metadata::MetadataTopic;
use rdkafka::{Offset, TopicPartitionList};

use super::context::Context;
use super::options::Start;
use super::probe::{PATIENCE, ask, note_gone, offsets};
use super::status::SourceMetrics;

/// The most attempts to ask the brokers for the offsets of a group that begins at the end.
const ATTEMPTS: usize = 15;

/// Where partitions begin.
pub(super) struct Beginning {
    /// The partitions, with the offsets that differ from those of the group.
    pub(super) partitions: TopicPartitionList,
    /// The offsets to commit for a group that has none in a topic.
    pub(super) ends: TopicPartitionList,
}

/// Determines where newly assigned partitions begin. Logs and counts the records that the brokers deleted before the group read
/// them: the group continues from the first record that exists, so that no later owner counts them again.
pub(super) fn begin(
    consumer: &BaseConsumer<Context>,
    assigned: &TopicPartitionList,
    start: Start,
    watch: &Arc<dyn SourceMetrics>,
    stopping: impl Fn() -> bool,
) -> Beginning {
    notice_gone(consumer, assigned, watch);
    let nothing = || Beginning { partitions: assigned.clone(), ends: TopicPartitionList::new() };
    if start == Start::Earliest || assigned.count() == 0 {
        return nothing();
    }
    for _ in 0..ATTEMPTS {
        match at_the_end(consumer, assigned) {
            Ok(beginning) => return beginning,
            Err(error) => tracing::debug!(%error, "where a Kafka group begins is not known"),
        }
        if stopping() {
            break;
        }
    }
    nothing()
}

/// Where partitions begin if a new group begins at the end.
fn at_the_end(
    consumer: &BaseConsumer<Context>,
    assigned: &TopicPartitionList,
) -> KafkaResult<Beginning> {
    let mut all = TopicPartitionList::new();
    let topics: BTreeSet<String> =
        assigned.elements().iter().map(|element| element.topic().to_owned()).collect();
    for topic in &topics {
        let metadata = consumer.fetch_metadata(Some(topic), PATIENCE)?;
        let found = metadata.topics().iter().filter(|found| found.name() == topic);
        for partition in found.flat_map(MetadataTopic::partitions) {
            all.add_partition(topic, partition.id());
        }
    }
    let committed = offsets(&consumer.committed_offsets(all.clone(), PATIENCE)?);
    let known: BTreeSet<&String> = committed.keys().map(|(topic, _)| topic).collect();
    let mut new = TopicPartitionList::new();
    for element in all.elements().iter().filter(|it| !known.contains(&it.topic().to_owned())) {
        new.add_partition(element.topic(), element.partition());
    }
    let found = if new.count() > 0 { ask(consumer, &new, Offset::End)? } else { BTreeMap::new() };
    let mut ends = TopicPartitionList::new();
    for ((topic, partition), end) in &found {
        ends.add_partition_offset(topic, *partition, Offset::Offset(*end))?;
    }
    let mut partitions = TopicPartitionList::new();
    for element in assigned.elements() {
        let key = (element.topic().to_owned(), element.partition());
        let offset = match (committed.contains_key(&key), found.get(&key)) {
            (true, _) => element.offset(),
            (false, Some(end)) => Offset::Offset(*end),
            (false, None) => Offset::Beginning,
        };
        partitions.add_partition_offset(&key.0, key.1, offset)?;
    }
    Ok(Beginning { partitions, ends })
}

/// Commits these offsets where the group has none yet.
pub(super) fn commit(
    consumer: &BaseConsumer<Context>,
    ends: &TopicPartitionList,
) -> KafkaResult<()> {
    let committed = offsets(&consumer.committed_offsets(ends.clone(), PATIENCE)?);
    let mut missing = TopicPartitionList::new();
    for ((topic, partition), end) in offsets(ends) {
        if !committed.contains_key(&(topic.clone(), partition)) {
            missing.add_partition_offset(&topic, partition, Offset::Offset(end))?;
        }
    }
    if missing.count() == 0 {
        return Ok(());
    }
    consumer.commit(&missing, CommitMode::Sync)
}

fn notice_gone(
    consumer: &BaseConsumer<Context>,
    partitions: &TopicPartitionList,
    watch: &Arc<dyn SourceMetrics>,
) {
    let found = consumer.committed_offsets(partitions.clone(), PATIENCE).and_then(|committed| {
        Ok((offsets(&committed), ask(consumer, partitions, Offset::Beginning)?))
    });
    let (committed, begins) = found.unwrap_or_else(|error| {
        tracing::debug!(%error, "whether records are gone is not known");
        Default::default()
    });
    let mut moved = TopicPartitionList::new();
    for ((topic, partition), begin) in begins {
        let key = (topic, partition);
        let gone = committed.get(&key).map_or(0, |committed| begin.saturating_sub(*committed));
        if let Some(gone) = u64::try_from(gone).ok().filter(|gone| *gone > 0) {
            let (topic, partition) = key;
            note_gone(watch, &topic, partition, gone);
            // Fails for invalid offsets only.
            let _ = moved.add_partition_offset(&topic, partition, Offset::Offset(begin));
        }
    }
    if moved.count() > 0
        && let Err(error) = consumer.commit(&moved, CommitMode::Async)
    {
        tracing::debug!(%error, "Kafka offsets were not committed");
    }
}
