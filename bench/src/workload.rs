//! The workload: traces of agents as OpenTelemetry's GenAI instrumentations write them.
//!
//! A block is 512 spans of about 40 whole traces of 6 to 20 spans, in the order in which they end: one resource of 9 attributes, 2
//! scopes, 35 % model calls, 30 % tool calls, the rest agents and steps between. `content` has the texts of model calls, 2 to 8 KB
//! each and a quarter of it output, and of tool calls; `lean` has none, since recording content is opt-in. The same seed gives the
//! same bytes. The form of spans is in `spans.json`.
//!
//! Ids and times in a block are placeholders, which differ from one another; [`super::stamp`] replaces them.

use std::iter;

use clap::ValueEnum;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, ArrayValue, InstrumentationScope, KeyValue,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Spans of a block.
pub(super) const BLOCK_SPANS: usize = 512;

/// The end of a text in `spans.json` that stands for sixteen characters: the name of the session of the trace, or an id from the span.
pub(super) const SESSION: &str = "{session}";
pub(super) const ID: &str = "{id}";

/// The sixteen characters before they are stamped.
const UNSTAMPED: &str = "0000000000000000";

/// Whether texts are included.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Workload {
    /// Only names and numbers, as instrumentations send by default.
    Lean,
    /// Texts of model and tool calls, too.
    Content,
}

/// Whole traces, in the order in which their spans end.
pub(super) struct Block {
    resource: Resource,
    scopes: Vec<InstrumentationScope>,
    /// The spans, each with the number of its scope.
    spans: Vec<(usize, Span)>,
    /// The number of traces.
    pub(super) traces: u64,
}

/// The templates of spans, from `spans.json`.
#[derive(Debug, Default, Deserialize)]
struct Looks {
    resource: Map<String, Value>,
    scopes: Vec<(String, String)>,
    agent: Look,
    chat: Look,
    tool: Look,
    step: Look,
}

/// The template of spans of one kind.
#[derive(Debug, Default, Deserialize)]
struct Look {
    name: String,
    kind: i32,
    attributes: Map<String, Value>,
    content: Map<String, Value>,
}

/// The names and texts that are put into one span.
struct Fill {
    names: [(&'static str, String); 4],
    texts: [(&'static str, String); 4],
}

/// A source of pseudo-random numbers; the seed is the number of a block.
struct Random {
    seed: u64,
    drawn: u64,
}

impl Workload {
    /// The block with this number.
    pub(super) fn block(self, number: u64) -> Block {
        let mut random = Random { seed: number, drawn: 0 };
        let looks = Looks::read();
        let service = format!("support-{number}");
        let mut spans = Vec::with_capacity(BLOCK_SPANS);
        let mut traces = 0;
        while spans.len() < BLOCK_SPANS {
            traces += 1;
            self.trace(&looks, traces, &mut random, &mut spans);
        }
        spans.sort_by_key(|(_, span)| span.end_time_unix_nano);
        let fill = Fill { names: names(&service, &mut random), texts: Default::default() };
        let scopes = looks.scopes.iter().map(|(name, version)| InstrumentationScope {
            name: name.clone(),
            version: version.clone(),
            ..InstrumentationScope::default()
        });
        Block {
            resource: Resource {
                attributes: fill.attributes(&looks.resource),
                ..Resource::default()
            },
            scopes: scopes.collect(),
            spans,
            traces,
        }
    }

    /// Adds one turn of an agent, as long as its block has room for it: calls and steps one after the other, then the agent's own
    /// span around them.
    fn trace(self, looks: &Looks, trace: u64, random: &mut Random, spans: &mut Vec<(usize, Span)>) {
        let length = (6 + random.below(15)).min(BLOCK_SPANS - spans.len());
        let id = |position: usize| trace << 32 | (position as u64 + 1);
        let mut time = 1 + random.nanos(2_000_000_000);
        let start = time;
        for position in 0..length {
            let is_root = position + 1 == length;
            let (scope, look) = match random.below(100) {
                _ if is_root => (1, &looks.agent),
                0..38 => (0, &looks.chat),
                38..70 => (1, &looks.tool),
                _ => (1, &looks.step),
            };
            let begun = if is_root { start } else { time };
            time += 1_000_000 + random.nanos(80_000_000);
            let fill = self.fill(random);
            let mut attributes = fill.attributes(&look.attributes);
            if self == Self::Content {
                attributes.extend(fill.attributes(&look.content));
            }
            let span = Span {
                trace_id: u128::from(trace).to_be_bytes().to_vec(),
                span_id: id(position).to_be_bytes().to_vec(),
                parent_span_id: if is_root {
                    Vec::new()
                } else {
                    id(length - 1).to_be_bytes().to_vec()
                },
                flags: 0x101,
                name: fill.text(&look.name),
                kind: look.kind,
                start_time_unix_nano: begun,
                end_time_unix_nano: time,
                attributes,
                ..Span::default()
            };
            spans.push((scope, span));
        }
    }

    fn fill(self, random: &mut Random) -> Fill {
        let names = names("", random);
        if self == Self::Lean {
            return Fill { names, texts: Default::default() };
        }
        let bytes = 2_048 + random.below(6_144);
        let texts = [
            ("{input}", bytes / 4 * 3),
            ("{output}", bytes / 4),
            ("{arguments}", 60),
            ("{result}", 300),
        ];
        Fill { names, texts: texts.map(|(place, bytes)| (place, random.words(bytes))) }
    }
}

impl Block {
    /// The block as requests of at most `batch` spans.
    pub(super) fn requests(&self, batch: usize) -> Vec<ExportTraceServiceRequest> {
        self.spans.chunks(batch.max(1)).map(|spans| self.request(spans)).collect()
    }

    fn request(&self, spans: &[(usize, Span)]) -> ExportTraceServiceRequest {
        let of_scope = |(number, scope): (usize, &InstrumentationScope)| ScopeSpans {
            scope: Some(scope.clone()),
            spans: spans
                .iter()
                .filter(|(of, _)| *of == number)
                .map(|(_, span)| span.clone())
                .collect(),
            ..ScopeSpans::default()
        };
        let mut scope_spans: Vec<_> = self.scopes.iter().enumerate().map(of_scope).collect();
        scope_spans.retain(|scope| !scope.spans.is_empty());
        let resource = Some(self.resource.clone());
        let resource_spans =
            vec![ResourceSpans { resource, scope_spans, ..ResourceSpans::default() }];
        ExportTraceServiceRequest { resource_spans }
    }
}

impl Looks {
    fn read() -> Self {
        // Invariant: the file has this form, which a test checks.
        serde_json::from_str(include_str!("spans.json")).unwrap_or_default()
    }
}

impl Fill {
    fn attributes(&self, looks: &Map<String, Value>) -> Vec<KeyValue> {
        looks
            .iter()
            .map(|(key, value)| KeyValue {
                key: key.clone(),
                value: Some(AnyValue { value: self.value(value) }),
                ..KeyValue::default()
            })
            .collect()
    }

    fn value(&self, look: &Value) -> Option<Any> {
        match look {
            Value::String(text) => Some(Any::StringValue(self.text(text))),
            Value::Number(number) => match number.as_i64() {
                Some(whole) => Some(Any::IntValue(whole)),
                None => number.as_f64().map(Any::DoubleValue),
            },
            Value::Bool(flag) => Some(Any::BoolValue(*flag)),
            Value::Array(values) => {
                let values = values.iter().map(|value| AnyValue { value: self.value(value) });
                Some(Any::ArrayValue(ArrayValue { values: values.collect() }))
            }
            Value::Null | Value::Object(_) => None,
        }
    }

    /// The text with names and texts filled in; ids are stamped later, over sixteen characters.
    fn text(&self, look: &str) -> String {
        let mut text = look.to_owned();
        for (place, name) in self.names.iter().chain(&self.texts) {
            if !place.is_empty() && text.contains(place) {
                text = text.replace(place, name);
            }
        }
        text.replace(SESSION, UNSTAMPED).replace(ID, UNSTAMPED)
    }
}

/// Makes small traces, each with its own session: a model call and tool calls within the agent's span.
#[derive(Debug)]
pub(super) struct Small {
    looks: Looks,
}

impl Small {
    /// Spans of a trace with one tool call.
    pub(super) const SPANS: usize = 3;

    /// A request with one trace in which a tool is called `calls` times with the same arguments and the same result, for the agent
    /// and the session with this number; `calls` must be below 250.
    pub(super) fn looping(&self, number: u64, end: u64, calls: usize) -> ExportTraceServiceRequest {
        let tool = &self.looks.tool;
        let told = tool.attributes.iter().chain(&tool.content);
        let told = Look {
            attributes: told.map(|(key, value)| (key.clone(), value.clone())).collect(),
            name: tool.name.clone(),
            kind: tool.kind,
            ..Look::default()
        };
        let trace = self.spans(number, number, end, iter::repeat_n(&told, calls));
        ExportTraceServiceRequest { resource_spans: vec![trace] }
    }

    /// The trace of a session, which ended at `end`, Unix nanoseconds, with one tool call.
    pub(super) fn trace(&self, agent: u64, session: u64, end: u64) -> ResourceSpans {
        self.spans(agent, session, end, iter::once(&self.looks.tool))
    }

    fn spans<'l>(
        &self,
        agent: u64,
        session: u64,
        end: u64,
        tools: impl Iterator<Item = &'l Look>,
    ) -> ResourceSpans {
        let fill = |number: u64| Fill {
            names: [
                ("{service}", format!("fleet-{agent}")),
                ("{agent}", format!("helper-{agent}")),
                (SESSION, format!("{session:016x}")),
                (ID, format!("{:016x}", session << 8 | number)),
            ],
            texts: [
                ("{tool}", "search_docs".to_owned()),
                ("{model}", "gpt-5.1".to_owned()),
                ("{arguments}", "opening hours".to_owned()),
                ("{result}", "nothing".to_owned()),
            ],
        };
        let start = end.saturating_sub(1_000_000_000);
        // Spans come one after the other, within the root.
        let times = |number| match number {
            1 => (start, end),
            _ => (start + 3_000_000 * number, start + 3_000_000 * number + 2_000_000),
        };
        let span = |number: u64, look: &Look| Span {
            trace_id: (1 << 100 | u128::from(session)).to_be_bytes().to_vec(),
            span_id: (session << 8 | number).to_be_bytes().to_vec(),
            parent_span_id: match number {
                1 => Vec::new(),
                _ => (session << 8 | 1).to_be_bytes().to_vec(),
            },
            name: fill(number).text(&look.name),
            kind: look.kind,
            start_time_unix_nano: times(number).0,
            end_time_unix_nano: times(number).1,
            attributes: fill(number).attributes(&look.attributes),
            ..Span::default()
        };
        let looks = &self.looks;
        let mut spans = vec![span(2, &looks.chat)];
        spans.extend((3..).zip(tools).map(|(number, tool)| span(number, tool)));
        spans.push(span(1, &looks.agent));
        ResourceSpans {
            resource: Some(Resource {
                attributes: fill(1).attributes(&looks.resource),
                ..Resource::default()
            }),
            scope_spans: vec![ScopeSpans { spans, ..ScopeSpans::default() }],
            ..ResourceSpans::default()
        }
    }
}

impl Default for Small {
    fn default() -> Self {
        Self { looks: Looks::read() }
    }
}

/// The keys of the attributes whose values end in `place`.
pub(super) fn ending_in(place: &str) -> Vec<String> {
    let looks = Looks::read();
    let all = [&looks.agent, &looks.chat, &looks.tool, &looks.step];
    let attributes = all.into_iter().flat_map(|look| &look.attributes);
    attributes
        .filter(|(_, value)| value.as_str().is_some_and(|text| text.ends_with(place)))
        .map(|(key, _)| key.clone())
        .collect()
}

/// The names to fill into `spans.json`: of two agents per block, and a few tools and models.
fn names(service: &str, random: &mut Random) -> [(&'static str, String); 4] {
    const TOOLS: [&str; 6] =
        ["search_orders", "get_customer", "refund", "track_parcel", "search_docs", "send_email"];
    [
        ("{service}", service.to_owned()),
        ("{agent}", format!("helper-{}", random.seed)),
        ("{tool}", TOOLS[random.below(TOOLS.len())].to_owned()),
        ("{model}", ["gpt-5.1", "gpt-5.1-mini"][random.below(2)].to_owned()),
    ]
}

impl Random {
    fn next(&mut self) -> u64 {
        self.drawn += 1;
        xxh3_64_with_seed(&self.drawn.to_le_bytes(), self.seed)
    }

    /// A number below `bound`, which is small.
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.nanos(bound as u64)).unwrap_or(0)
    }

    /// A number below `bound`.
    fn nanos(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// At least `bytes` bytes of text, of some two thousand words, so that it compresses about as well as English.
    fn words(&mut self, bytes: usize) -> String {
        const HEADS: [&str; 24] = [
            "re", "con", "de", "pro", "in", "dis", "com", "ex", "sub", "per", "trans", "o", "a",
            "en", "inter", "pre", "un", "for", "sur", "mis", "out", "over", "be", "ad",
        ];
        const TAILS: [&str; 40] = [
            "fund", "der", "tract", "duct", "form", "ply", "tain", "ceive", "mit", "port", "vise",
            "pose", "sist", "sent", "vert", "fer", "cess", "ject", "rupt", "scribe", "spect",
            "struct", "tend", "vent", "view", "voke", "clude", "cur", "dict", "fect", "gress",
            "late", "pel", "press", "quire", "serve", "solve", "sume", "test", "turn",
        ];
        const ENDS: [&str; 4] = [" ", "s ", "ed ", "ing "];
        let mut text = String::with_capacity(bytes + 16);
        while text.len() < bytes {
            text.push_str(HEADS[self.below(HEADS.len())]);
            text.push_str(TAILS[self.below(TAILS.len())]);
            text.push_str(ENDS[self.below(ENDS.len())]);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn spans_look_like_those_of_real_clients() {
        let looks: Looks = serde_json::from_str(include_str!("spans.json")).unwrap();
        assert_eq!((looks.resource.len(), looks.scopes.len()), (9, 2));
        assert_eq!(looks.chat.attributes.len(), 16);
    }

    #[test]
    fn a_block_has_whole_traces_of_the_sizes_and_kinds_it_should() {
        let block = Workload::Lean.block(3);
        assert_eq!(block.spans.len(), BLOCK_SPANS);
        assert!((30..50).contains(&block.traces), "{}", block.traces);
        let count = |start: &str| {
            block.spans.iter().filter(|(_, span)| span.name.starts_with(start)).count()
        };
        assert_eq!(count("invoke_agent") as u64, block.traces);
        assert!((140..220).contains(&count("chat")), "{}", count("chat"));
        assert!((120..190).contains(&count("execute_tool")), "{}", count("execute_tool"));
    }

    #[test]
    fn the_same_number_gives_the_same_bytes_and_another_others() {
        let bytes = |number| Workload::Content.block(number).requests(512)[0].encode_to_vec();
        assert_eq!(bytes(1), bytes(1));
        assert_ne!(bytes(1), bytes(2));
    }

    #[test]
    fn content_is_in_kilobytes_and_lean_is_not() {
        let bytes = |of: Workload| of.block(0).requests(512)[0].encoded_len() / BLOCK_SPANS;
        assert!((350..600).contains(&bytes(Workload::Lean)), "{}", bytes(Workload::Lean));
        assert!((1_900..3_000).contains(&bytes(Workload::Content)), "{}", bytes(Workload::Content));
    }

    #[test]
    fn smaller_batches_hold_the_same_spans() {
        let block = Workload::Lean.block(0);
        for batch in [1, 16, 512] {
            let requests = block.requests(batch);
            assert_eq!(requests.len(), BLOCK_SPANS.div_ceil(batch));
            let spans = requests.iter().flat_map(|request| &request.resource_spans[0].scope_spans);
            assert_eq!(spans.map(|scope| scope.spans.len()).sum::<usize>(), BLOCK_SPANS);
        }
    }
}
