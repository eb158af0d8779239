//! The topics that are read, with the signal and encoding of their records.

use super::super::Signal;
use super::options::{KafkaEncoding, KafkaOptions};

/// A topic, with the signal and encoding of its records.
#[derive(Clone, Debug)]
pub(super) struct Topic {
    pub(super) name: String,
    pub(super) signal: Signal,
    pub(super) encoding: KafkaEncoding,
    /// The options that set its name and its encoding.
    pub(super) keys: (&'static str, &'static str),
}

impl Topic {
    /// All topics of these options.
    pub(super) fn all(options: &KafkaOptions) -> Vec<Self> {
        let of = |names: &[String], signal, encoding, keys| -> Vec<Self> {
            names.iter().map(|name| Self { name: name.clone(), signal, encoding, keys }).collect()
        };
        let mut topics = of(
            &options.traces_topics,
            Signal::Traces,
            options.traces_encoding,
            ("kafka.traces_topics", "kafka.traces_encoding"),
        );
        topics.extend(of(
            &options.logs_topics,
            Signal::Logs,
            options.logs_encoding,
            ("kafka.logs_topics", "kafka.logs_encoding"),
        ));
        topics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_topic_knows_its_signal_and_encoding() {
        let options =
            KafkaOptions { logs_encoding: KafkaEncoding::OtlpJson, ..KafkaOptions::default() };
        let topics: Vec<_> = Topic::all(&options)
            .into_iter()
            .map(|t| (t.name, t.signal, t.encoding.name()))
            .collect();
        assert_eq!(
            topics,
            [
                ("otlp_spans".to_owned(), Signal::Traces, "otlp_proto"),
                ("otlp_logs".to_owned(), Signal::Logs, "otlp_json"),
            ]
        );
    }
}
