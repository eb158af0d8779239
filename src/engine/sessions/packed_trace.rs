//! A done trace of a packed session, as bytes: what most traces have as numbers, the rest of it as it travels.

use std::collections::BTreeMap;
use std::sync::Arc;

use prost::Message;
use serde::{Deserialize, Serialize};

use super::bytes::{Reader, Writer};
use super::chain::Link;
use super::codec::Codec;
use super::held::{Given, Held, Past};
use super::key::SessionId;
use super::pane::Contribution;
use super::rules::Rules;
use super::scoring::{Scored, SignalName, named};
use super::tally::{Growth, Tally};
use crate::engine::math::Quanta;
use crate::engine::saved::{Name, by_name};
use crate::engine::score::risk::TraceRisk;
use crate::engine::span::{Source, Timestamp, TraceId};
use crate::engine::update::{Loop, OutputDigest, SessionKey, Tokens, ToolCall, TraceUpdate};

// Six bits are state, status and what began it; then one for each of these.
const COMPLETE: u64 = 1 << 6;
const ERROR: u64 = 1 << 7;
const PARTIAL: u64 = 1 << 8;
const UNFINISHED: u64 = 1 << 9;
const TOKENS: u64 = 1 << 10;
const INPUT: u64 = 1 << 11;
const OUTPUT: u64 = 1 << 12;
const COST: u64 = 1 << 13;
const OWN_NAME: u64 = 1 << 14;
const ALL_COUNTED: u64 = 1 << 15;
const LINKED: u64 = 1 << 16;
const TELLS: u64 = 1 << 17;
const TOOLS: u64 = 1 << 18;
const DIGEST: u64 = 1 << 19;
const REST: u64 = 1 << 20;
const RARE: u64 = 1 << 21;

/// What few traces have.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Rare {
    tally: Option<Tally>,
    #[serde(deserialize_with = "by_name")]
    growth: BTreeMap<Name, Growth>,
    link: Option<Box<Link>>,
    output_repeat: Option<Loop>,
    malformed: u64,
}

/// Whether all of a trace follows from what is written of it.
pub(super) fn rests(held: &Held, codec: &Codec) -> bool {
    let update = &held.update;
    let few = |number: i32| (0..4).contains(&number);
    let Some(given) = held.given.as_ref().filter(|_| held.rests()) else { return false };
    let worth = &given.contribution;
    let signals = &held.scored.signals;
    let same = |(name, score): (&SignalName, &Quanta)| {
        signals.get(name).is_some_and(|(own, _)| own == score)
    };
    given.agent == held.agent
        && given.start.0 == update.start_unix_nano
        && given.end == held.end()
        && worth.risk == held.scored.risk.risk
        && worth.uncertainty == held.scored.risk.uncertainty
        && worth.signals.iter().all(same)
        && codec.panes(&given.panes, given.end).is_some()
        && few(update.state)
        && few(update.status)
        && few(update.turn_start)
        && update.trace_id.as_slice() == held.id.0
}

/// Writes a trace that rests; `base` is a time near its start.
pub(super) fn write(held: Held, base: u64, codec: &mut Codec) -> Writer {
    let Held { id, mut update, agent, scored, given, tally, growth, link, run } = held;
    let mut to = Writer(Vec::with_capacity(192));
    to.raw(&id.0);
    let plain = tally.done && tally.is_all_of(&update);
    let linked = link.as_deref() == Some(&Link::default());
    let rare = Rare {
        tally: (!plain).then_some(tally),
        growth,
        link: link.filter(|_| !linked),
        output_repeat: scored.output_repeat,
        malformed: scored.malformed,
    };
    let is_rare = !plain
        || !rare.growth.is_empty()
        || rare.link.is_some()
        || rare.output_repeat.is_some()
        || rare.malformed > 0;
    let mut flags = flags_of(&update);
    let own_name = update.agent.as_ref() == Some(agent.key());
    for (set, flag) in [
        (own_name, OWN_NAME),
        (plain, ALL_COUNTED),
        (linked, LINKED),
        (run.is_some(), TELLS),
        (is_rare, RARE),
    ] {
        flags |= if set { flag } else { 0 };
    }
    let source = update.session.take().unwrap_or_default().source;
    update.agent = update.agent.filter(|_| !own_name);
    let mut body = Writer(Vec::with_capacity(160));
    numbers(&mut update, flags, base, codec, &mut body);
    update.trace_id = Vec::new();
    let rest = update.encode_to_vec();
    to.number(flags | if rest.is_empty() { 0 } else { REST });
    codec.agent(&agent, &mut to);
    codec.name(&source, &mut to);
    to.raw(&body.0);
    if let Some(given) = given {
        to.number(codec.panes(&given.panes, given.end).unwrap_or(0));
        signals(&scored.signals, &given.contribution, codec, &mut to);
    }
    if !rest.is_empty() {
        to.bytes(&rest);
    }
    if is_rare {
        // A list of bytes takes all that is written to it.
        to.bytes(&rmp_serde::to_vec(&rare).unwrap_or_default());
    }
    to
}

/// Reads a trace; and whether it adds to a run, which is the caller's to say what.
pub(super) fn read(
    record: &[u8],
    (session, base): (&SessionId, u64),
    rules: &Rules,
    codec: &Codec,
) -> (Held, bool) {
    let from = &mut Reader(record);
    let id = TraceId(from.array());
    let flags = from.number();
    let agent = codec.read_agent(from);
    let source = codec.read_name(from);
    let mut update = TraceUpdate::default();
    read_numbers(&mut update, flags, base, codec, from);
    let panes = from.number();
    let (signals, given) = read_signals(codec, from);
    if flags & REST > 0 {
        // What was written here is a message.
        let _ = update.merge(from.bytes());
    }
    update.trace_id = id.0.to_vec();
    let SessionId { tenant, id: name } = session;
    update.session = Some(SessionKey { tenant: tenant.clone(), id: name.clone(), source });
    if flags & OWN_NAME > 0 {
        update.agent = Some(agent.key().clone());
    }
    let rare: Rare = match flags & RARE {
        0 => Rare::default(),
        _ => rmp_serde::from_slice(from.bytes()).unwrap_or_default(),
    };
    let tally = rare.tally.unwrap_or_else(|| Tally::all_of(&update, true));
    let scores = signals.iter().map(|(name, (score, _))| (name.as_ref(), *score));
    let risk = TraceRisk::new(scores, &rules.weights);
    let contribution =
        Contribution { risk: risk.risk, uncertainty: risk.uncertainty, signals: given };
    let past = Past { given: None, tally, growth: rare.growth, run: None };
    let mut held = Held::new(id, update, agent, past);
    let (start, end) = (Timestamp(held.update.start_unix_nano), held.end());
    let (agent, panes) = (held.agent.clone(), codec.read_panes(panes, end));
    held.given = Some(Given { agent, contribution, start, end, panes });
    let Rare { output_repeat, malformed, link, .. } = rare;
    held.scored = Scored { signals, risk, output_repeat, malformed };
    held.link = if flags & LINKED > 0 { Some(Box::default()) } else { link };
    (held, flags & TELLS > 0)
}

fn flags_of(update: &TraceUpdate) -> u64 {
    let few = |number: i32| u64::from(number.cast_unsigned() & 3);
    let tokens = update.tokens.unwrap_or_default();
    let plain = |call: &ToolCall| {
        call.arguments.is_none() && call.argument_values.is_empty() && call.call_id.is_none()
    };
    let small = |digest: &OutputDigest| digest.model_embedding.is_empty() && digest.embedder == 0;
    let bits = [
        (update.complete, COMPLETE),
        (update.error, ERROR),
        (update.partial, PARTIAL),
        (update.unfinished, UNFINISHED),
        (update.tokens.is_some(), TOKENS),
        (tokens.input.is_some(), INPUT),
        (tokens.output.is_some(), OUTPUT),
        (update.cost_quanta.is_some(), COST),
        (update.tools.iter().all(plain), TOOLS),
        (update.output_digest.as_ref().is_some_and(small), DIGEST),
    ];
    let numbers = few(update.state) | few(update.status) << 2 | few(update.turn_start) << 4;
    bits.into_iter().filter(|(set, _)| *set).fold(numbers, |flags, (_, flag)| flags | flag)
}

/// Writes what most traces have, and takes it out of the update.
fn numbers(update: &mut TraceUpdate, flags: u64, base: u64, codec: &mut Codec, to: &mut Writer) {
    let take = std::mem::take::<u64>;
    let (start, end) = (take(&mut update.start_unix_nano), take(&mut update.end_unix_nano));
    to.distance(base, start);
    to.distance(start, end);
    to.distance(end, take(&mut update.touched_unix_nano));
    for number in [
        &mut update.revision,
        &mut update.steps,
        &mut update.wasted_steps,
        &mut update.llm_calls,
        &mut update.failed_model_calls,
        &mut update.adjacent_tool_repeats,
        &mut update.model_nanos,
    ] {
        to.number(take(number));
    }
    let Tokens { input, output } = update.tokens.take().unwrap_or_default();
    input.into_iter().chain(output).for_each(|tokens| to.number(tokens));
    update.cost_quanta.take().into_iter().for_each(|cost| to.signed(cost));
    let models = std::mem::take(&mut update.models);
    to.number(models.len() as u64);
    models.iter().for_each(|model| codec.name(model, to));
    if flags & TOOLS > 0 {
        let tools = std::mem::take(&mut update.tools);
        to.number(tools.len() as u64);
        tools.iter().for_each(|call| tool(call, start, codec, to));
    }
    if flags & DIGEST > 0 {
        digest(&update.output_digest.take().unwrap_or_default(), to);
    }
    (update.state, update.status, update.turn_start) = (0, 0, 0);
    (update.complete, update.error) = (false, false);
    (update.partial, update.unfinished) = (false, false);
}

fn read_numbers(
    update: &mut TraceUpdate,
    flags: u64,
    base: u64,
    codec: &Codec,
    from: &mut Reader<'_>,
) {
    let few = |bits: u64| i32::from((bits & 3).to_le_bytes()[0]);
    (update.state, update.status) = (few(flags), few(flags >> 2));
    update.turn_start = few(flags >> 4);
    (update.complete, update.error) = (flags & COMPLETE > 0, flags & ERROR > 0);
    (update.partial, update.unfinished) = (flags & PARTIAL > 0, flags & UNFINISHED > 0);
    update.start_unix_nano = from.distance(base);
    update.end_unix_nano = from.distance(update.start_unix_nano);
    update.touched_unix_nano = from.distance(update.end_unix_nano);
    for number in [
        &mut update.revision,
        &mut update.steps,
        &mut update.wasted_steps,
        &mut update.llm_calls,
        &mut update.failed_model_calls,
        &mut update.adjacent_tool_repeats,
        &mut update.model_nanos,
    ] {
        *number = from.number();
    }
    let input = (flags & INPUT > 0).then(|| from.number());
    let output = (flags & OUTPUT > 0).then(|| from.number());
    update.tokens = (flags & TOKENS > 0).then_some(Tokens { input, output });
    update.cost_quanta = (flags & COST > 0).then(|| from.signed());
    update.models = (0..from.size()).map(|_| codec.read_name(from)).collect();
    if flags & TOOLS > 0 {
        let start = update.start_unix_nano;
        update.tools = (0..from.size()).map(|_| read_tool(start, codec, from)).collect();
    }
    if flags & DIGEST > 0 {
        update.output_digest = Some(read_digest(from));
    }
}

/// A call: whether it failed in two bits, one for each hash; `start` is the trace's.
fn tool(call: &ToolCall, start: u64, codec: &mut Codec, to: &mut Writer) {
    codec.name(&call.name, to);
    let error = call.error.map_or(0, |error| 1 + u64::from(error));
    let hashes = [call.result_hash, call.arguments_hash];
    let [result, arguments] = hashes.map(|hash| u64::from(hash.is_some()));
    to.number(error | result << 2 | arguments << 3);
    to.distance(start, call.start_unix_nano);
    to.distance(call.start_unix_nano, call.end_unix_nano);
    hashes.into_iter().flatten().for_each(|hash| to.raw(&hash.to_le_bytes()));
}

fn read_tool(start: u64, codec: &Codec, from: &mut Reader<'_>) -> ToolCall {
    let (name, bits) = (codec.read_name(from), from.number());
    let start_unix_nano = from.distance(start);
    let end_unix_nano = from.distance(start_unix_nano);
    let mut hash = |bit: u64| (bits & bit > 0).then(|| u64::from_le_bytes(from.array()));
    let (result_hash, arguments_hash) = (hash(4), hash(8));
    let error = [None, Some(false), Some(true), None][usize::from((bits & 3).to_le_bytes()[0])];
    ToolCall {
        name,
        result_hash,
        error,
        start_unix_nano,
        end_unix_nano,
        arguments_hash,
        ..ToolCall::default()
    }
}

fn digest(digest: &OutputDigest, to: &mut Writer) {
    to.number(digest.tokens.len() as u64);
    digest.tokens.iter().for_each(|token| to.raw(&token.to_le_bytes()));
    to.number(digest.embedding.len() as u64);
    digest.embedding.iter().for_each(|count| to.signed(i64::from(*count)));
}

fn read_digest(from: &mut Reader<'_>) -> OutputDigest {
    let tokens = (0..from.size()).map(|_| u64::from_le_bytes(from.array())).collect();
    let count = |count: i64| i32::try_from(count).unwrap_or_default();
    let embedding = (0..from.size()).map(|_| count(from.signed())).collect();
    OutputDigest { tokens, embedding, ..OutputDigest::default() }
}

type Signals = BTreeMap<SignalName, (Quanta, Source)>;

/// The signals: which there are, from whom, and which have sums, as one number; then their scores.
fn signals(signals: &Signals, given: &Contribution, codec: &mut Codec, to: &mut Writer) {
    let mut kinds = Writer::default();
    for (name, (_, source)) in signals {
        let source = match source {
            Source::Computed => 0,
            Source::Judge => 1,
            Source::Reported => 2,
        };
        kinds.number(source | u64::from(given.signals.contains_key(name)) << 2);
        codec.name(name, &mut kinds);
    }
    codec.shape(&kinds.0, to);
    signals.values().for_each(|(score, _)| to.score(*score));
}

fn read_signals(codec: &Codec, from: &mut Reader<'_>) -> (Signals, BTreeMap<SignalName, Quanta>) {
    let shape: Arc<[u8]> = codec.read_shape(from);
    let mut kinds = Reader(&shape);
    let (mut signals, mut given) = (BTreeMap::new(), BTreeMap::new());
    while !kinds.0.is_empty() {
        let kind = kinds.number();
        let (name, score) = (named(&codec.read_name(&mut kinds)), from.score());
        let source = match kind & 3 {
            0 => Source::Computed,
            1 => Source::Judge,
            _ => Source::Reported,
        };
        if kind & 4 > 0 {
            given.insert(name.clone(), score);
        }
        signals.insert(name, (score, source));
    }
    (signals, given)
}
