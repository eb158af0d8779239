//! Recorded sessions, cut into turns, and stamped anew so that they count as new ones.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value::Value};
use opentelemetry_proto::tonic::logs::v1::{ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

use crate::engine::convention::SESSION_KEYS;

/// A recording as it is kept: requests joined into one of each signal, as protobuf allows.
struct Bundled {
    name: &'static str,
    spans: &'static [u8],
    logs: &'static [u8],
    /// How many of its turns are sent, from the first.
    turns: usize,
}

/// What was recorded. Each of the agents loops in its fourth turn and fails in its sixth; only the first is
/// sent that far.
const RECORDED: &[Bundled] = &[
    Bundled {
        name: "looping",
        spans: include_bytes!("recorded/openinference-traces.pb"),
        logs: &[],
        turns: 6,
    },
    Bundled {
        name: "steady",
        spans: include_bytes!("recorded/genai-traces.pb"),
        logs: &[],
        turns: 3,
    },
    Bundled {
        name: "judged",
        spans: include_bytes!("recorded/judged-traces.pb"),
        logs: include_bytes!("recorded/judged-logs.pb"),
        turns: 3,
    },
];

/// One recorded session.
#[derive(Debug)]
pub(super) struct Recording {
    name: &'static str,
    turns: Vec<Turn>,
}

/// What was sent for one trace.
#[derive(Debug, Default)]
struct Turn {
    start: u64,
    end: u64,
    spans: Vec<ResourceSpans>,
    logs: Vec<ResourceLogs>,
}

/// What tells one sending of a session from another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp {
    /// Of this process.
    pub(super) seed: u64,
    /// Which sending of the recording.
    pub(super) round: u64,
    /// When the turn ended, Unix nanoseconds.
    pub(super) now: u64,
}

/// All recordings.
pub(super) fn all() -> Vec<Recording> {
    RECORDED
        .iter()
        .map(|kept| {
            // Invariant: these are requests; a test reads them.
            let spans = ExportTraceServiceRequest::decode(kept.spans).unwrap_or_default();
            let logs = ExportLogsServiceRequest::decode(kept.logs).unwrap_or_default();
            let mut recording = Recording::new(kept.name, spans, logs);
            recording.turns.truncate(kept.turns);
            recording
        })
        .collect()
}

impl Recording {
    fn new(
        name: &'static str,
        spans: ExportTraceServiceRequest,
        logs: ExportLogsServiceRequest,
    ) -> Self {
        let mut turns: BTreeMap<Vec<u8>, Turn> = BTreeMap::new();
        for of_resource in spans.resource_spans {
            let ResourceSpans { resource, scope_spans, schema_url } = of_resource;
            for ScopeSpans { scope, spans, schema_url: scope_url } in scope_spans {
                for span in spans {
                    let turn = turns.entry(span.trace_id.clone()).or_default();
                    turn.reach(&span);
                    turn.spans.push(ResourceSpans {
                        resource: resource.clone(),
                        schema_url: schema_url.clone(),
                        scope_spans: vec![ScopeSpans {
                            scope: scope.clone(),
                            spans: vec![span],
                            schema_url: scope_url.clone(),
                        }],
                    });
                }
            }
        }
        for of_resource in logs.resource_logs {
            let ResourceLogs { resource, scope_logs, schema_url } = of_resource;
            for ScopeLogs { scope, log_records, schema_url: scope_url } in scope_logs {
                for record in log_records {
                    let Some(turn) = turns.get_mut(&record.trace_id) else { continue };
                    turn.logs.push(ResourceLogs {
                        resource: resource.clone(),
                        schema_url: schema_url.clone(),
                        scope_logs: vec![ScopeLogs {
                            scope: scope.clone(),
                            log_records: vec![record],
                            schema_url: scope_url.clone(),
                        }],
                    });
                }
            }
        }
        let mut turns: Vec<Turn> = turns.into_values().collect();
        turns.sort_by_key(|turn| turn.start);
        Self { name, turns }
    }

    /// How many turns it has.
    pub(super) fn turns(&self) -> usize {
        self.turns.len()
    }

    /// A turn as new spans and log records, or `None` after the last.
    pub(super) fn stamped(
        &self,
        turn: usize,
        stamp: Stamp,
    ) -> Option<(ExportTraceServiceRequest, ExportLogsServiceRequest)> {
        let turn = self.turns.get(turn)?;
        let session = format!("demo-{}-{:08x}-{}", self.name, stamp.seed >> 32, stamp.round);
        let press = Press { turn, stamp, session };
        let mut spans = turn.spans.clone();
        for span in spans.iter_mut().flat_map(|of| &mut of.scope_spans).flat_map(|of| &mut of.spans)
        {
            press.span(span);
        }
        let mut logs = turn.logs.clone();
        for record in
            logs.iter_mut().flat_map(|of| &mut of.scope_logs).flat_map(|of| &mut of.log_records)
        {
            record.trace_id = press.trace_id(&record.trace_id);
            record.span_id = press.span_id(&record.span_id);
            record.time_unix_nano = press.time(record.time_unix_nano);
            record.observed_time_unix_nano = press.time(record.observed_time_unix_nano);
            press.attributes(&mut record.attributes);
        }
        Some((
            ExportTraceServiceRequest { resource_spans: spans },
            ExportLogsServiceRequest { resource_logs: logs },
        ))
    }
}

impl Turn {
    fn reach(&mut self, span: &Span) {
        if self.spans.is_empty() || span.start_time_unix_nano < self.start {
            self.start = span.start_time_unix_nano;
        }
        self.end = self.end.max(span.end_time_unix_nano);
    }
}

/// Replaces ids, times and session ids, the same old by the same new ones.
struct Press<'t> {
    turn: &'t Turn,
    stamp: Stamp,
    session: String,
}

impl Press<'_> {
    fn span(&self, span: &mut Span) {
        span.trace_id = self.trace_id(&span.trace_id);
        span.span_id = self.span_id(&span.span_id);
        span.parent_span_id = self.span_id(&span.parent_span_id);
        span.start_time_unix_nano = self.time(span.start_time_unix_nano);
        span.end_time_unix_nano = self.time(span.end_time_unix_nano);
        for event in &mut span.events {
            event.time_unix_nano = self.time(event.time_unix_nano);
        }
        for link in &mut span.links {
            link.trace_id = self.trace_id(&link.trace_id);
            link.span_id = self.span_id(&link.span_id);
        }
        self.attributes(&mut span.attributes);
    }

    fn attributes(&self, attributes: &mut [KeyValue]) {
        for attribute in attributes {
            if SESSION_KEYS.contains(&attribute.key.as_str()) {
                let value = Some(Value::StringValue(self.session.clone()));
                attribute.value = Some(AnyValue { value });
            }
        }
    }

    fn trace_id(&self, old: &[u8]) -> Vec<u8> {
        let seed = self.stamp.seed.wrapping_add(self.stamp.round);
        if old.is_empty() { Vec::new() } else { xxh3_128_with_seed(old, seed).to_be_bytes().into() }
    }

    fn span_id(&self, old: &[u8]) -> Vec<u8> {
        let seed = self.stamp.seed.wrapping_add(self.stamp.round);
        if old.is_empty() { Vec::new() } else { xxh3_64_with_seed(old, seed).to_be_bytes().into() }
    }

    /// Shifts a time so that the turn ends now.
    fn time(&self, old: u64) -> u64 {
        if old == 0 { 0 } else { self.stamp.now.saturating_add(old).saturating_sub(self.turn.end) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { seed: 1, round: 0, now: 1_800_000_000_000_000_000 };

    fn spans(request: &ExportTraceServiceRequest) -> Vec<&Span> {
        let scopes = request.resource_spans.iter().flat_map(|of| &of.scope_spans);
        scopes.flat_map(|of| &of.spans).collect()
    }

    #[test]
    fn every_recording_has_turns_and_one_has_reported_scores() {
        let all = all();
        assert_eq!(all.len(), RECORDED.len());
        for recording in &all {
            assert!(recording.turns() >= 3, "{}", recording.name);
        }
        assert!(all[2].turns.iter().any(|turn| !turn.logs.is_empty()));
    }

    #[test]
    fn a_turn_ends_now_and_keeps_its_shape() {
        for recording in all() {
            let (request, _) = recording.stamped(0, STAMP).unwrap();
            let spans = spans(&request);
            assert_eq!(spans.iter().map(|span| span.end_time_unix_nano).max(), Some(STAMP.now));
            let ids: Vec<_> = spans.iter().map(|span| &span.span_id).collect();
            for span in &spans {
                assert_eq!(span.trace_id, spans[0].trace_id);
                assert!(span.parent_span_id.is_empty() || ids.contains(&&span.parent_span_id));
            }
            assert!(recording.stamped(recording.turns(), STAMP).is_none());
        }
    }

    #[test]
    fn the_next_round_is_another_session_of_other_traces() {
        let recording = &all()[0];
        let (first, _) = recording.stamped(0, STAMP).unwrap();
        let (second, _) = recording.stamped(0, Stamp { round: 1, ..STAMP }).unwrap();
        assert_ne!(spans(&first)[0].trace_id, spans(&second)[0].trace_id);
        let session = |request: &ExportTraceServiceRequest| {
            let attributes = spans(request)[0].attributes.clone();
            attributes.into_iter().find(|attribute| SESSION_KEYS.contains(&attribute.key.as_str()))
        };
        assert_ne!(session(&first), session(&second));
    }
}
