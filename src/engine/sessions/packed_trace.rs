//! A done trace of a packed session, as bytes: what most traces have as numbers, the rest of it as it travels.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::chain::Link;
use super::codec::Codec;
use super::digest;
use super::held::{Given, Held, Past};
use super::key::{Agent, SessionId};
use super::pane::Contribution;
use super::rules::Rules;
use super::scoring::{Scored, SignalName, named, unasked};
use super::tally::{Growths, Tally};
use crate::engine::bytes::{Reader, Writer};
use crate::engine::few::Few;
use crate::engine::math::Quanta;
use crate::engine::score::risk::TraceRisk;
use crate::engine::span::{Source, Status, Timestamp, TraceId};
use crate::engine::update::{
    Effort, Loop, OutputDigest, SessionKey, Tokens, ToolCall, TraceState, TraceUpdate, TurnStart,
};

// Six bits are state, status and what began it; then one for each of these.
const STATE: u64 = 3;
const COMPLETE: u64 = 1 << 6;
const ERROR: u64 = 1 << 7;
const PARTIAL: u64 = 1 << 8;
const UNFINISHED: u64 = 1 << 9;
const TOKENS: u64 = 1 << 10;
const INPUT: u64 = 1 << 11;
const OUTPUT: u64 = 1 << 12;
const COST: u64 = 1 << 13;
const OWN_NAME: u64 = 1 << 14;
const LINKED: u64 = 1 << 15;
const TELLS: u64 = 1 << 16;
const TOOLS: u64 = 1 << 17;
const DIGEST: u64 = 1 << 18;
const REST: u64 = 1 << 19;
const RARE: u64 = 1 << 20;

// Of a signal, two bits are whose it is; then one for each of these.
const SUMS: u64 = 1 << 2;
const ONE: u64 = 1 << 3;
const ZERO: u64 = 1 << 4;

/// What few traces have.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Rare {
    tally: Option<Tally>,
    growth: Growths,
    link: Option<Box<Link>>,
    output_repeat: Option<Loop>,
    malformed: u64,
}

/// Whether all of a trace follows from what is written of it.
pub(super) fn rests(held: &Held, codec: &Codec) -> bool {
    let update = &held.update;
    let Some(given) = held.given.as_ref().filter(|_| held.rests()) else { return false };
    let worth = &given.contribution;
    let signals = &held.scored.signals;
    let same = |(name, score): (&SignalName, &Quanta)| {
        signals.get(name).is_some_and(|(own, _)| own == score)
    };
    given.agent == held.agent
        && given.start.0 == update.start_unix_nano
        && given.end == held.end()
        && given.effort == Effort::of(update)
        && worth.risk == held.scored.risk.risk
        && worth.uncertainty == held.scored.risk.uncertainty
        && worth.signals.iter().all(same)
        && codec.panes(&given.panes, given.end).is_some()
        && update.trace_id == held.id
}

/// Writes a trace that rests; `base` is a time near its start.
///
/// ```text
/// id (16 bytes), what it has in common with others (a number), times and numbers of its own, the rest
/// ```
pub(super) fn write(held: Held, base: u64, codec: &mut Codec) -> Writer {
    let Held { id, mut update, agent, scored, given, tally, growth, link, run } = held;
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
    let revision = std::mem::take(&mut update.revision);
    let own_name = update.agent.as_ref() == Some(agent.key());
    for (set, flag) in
        [(own_name, OWN_NAME), (linked, LINKED), (run.is_some(), TELLS), (is_rare, RARE)]
    {
        flags |= if set { flag } else { 0 };
    }
    let source = update.session.take().unwrap_or_default().source;
    update.agent = update.agent.filter(|_| !own_name);
    let (mut common, mut own) = (Writer::default(), Writer(Vec::with_capacity(160)));
    codec.agent(&agent, &mut common);
    codec.name(&source, &mut common);
    if let Some(given) = given {
        common.number(codec.panes(&given.panes, given.end).unwrap_or(0));
        signals(&scored.signals, &given.contribution, codec, (&mut common, &mut own));
    }
    numbers(&mut update, flags, base, codec, (&mut common, &mut own));
    update.trace_id = TraceId::default();
    let is_more = update != TraceUpdate::default();
    flags |= if is_more { REST } else { 0 };
    let mut to = Writer(Vec::with_capacity(own.0.len() + 24));
    to.raw(&id.0);
    codec.shape(&shape(flags, revision, &common.0), &mut to);
    if is_more {
        // A list of bytes takes all that is written to it.
        to.bytes(&rmp_serde::to_vec_named(&update).unwrap_or_default());
    }
    to.raw(&own.0);
    if is_rare {
        to.bytes(&rmp_serde::to_vec_named(&rare).unwrap_or_default());
    }
    to
}

/// A trace once nothing more will come of it, and its agent; `None` if it is not done, or a later word of it is known.
pub(super) fn seal(record: &[u8], revision: u64, codec: &mut Codec) -> Option<(Vec<u8>, Agent)> {
    let from = &mut Reader(record);
    let id: [u8; 16] = from.array();
    let before = codec.read_shape(from);
    let common = &mut Reader(&before);
    let (flags, known) = (common.number(), common.number());
    let done = [TraceState::Done, TraceState::Sealed].map(|state| state as u64);
    if !done.contains(&(flags & STATE)) || known > revision {
        return None;
    }
    let after = shape(flags & !STATE | TraceState::Sealed as u64, revision, common.0);
    let agent = codec.read_agent(common);
    let mut to = Writer(Vec::with_capacity(record.len() + 8));
    to.raw(&id);
    codec.shape(&after, &mut to);
    to.raw(from.0);
    Some((to.0, agent))
}

/// What a trace has in common with others: what changes last comes first.
fn shape(flags: u64, revision: u64, common: &[u8]) -> Vec<u8> {
    let mut shape = Writer(Vec::with_capacity(common.len() + 8));
    shape.number(flags);
    shape.number(revision);
    shape.raw(common);
    shape.0
}

/// Reads a trace; and whether it adds to a run, which is the caller's to say what. Without rules it has no risk.
pub(super) fn read(
    record: &[u8],
    (session, base): (&SessionId, u64),
    rules: Option<&Rules>,
    codec: &Codec,
) -> (Held, bool) {
    let from = &mut Reader(record);
    let id = TraceId(from.array());
    let shape = codec.read_shape(from);
    let common = &mut Reader(&shape);
    let (flags, revision) = (common.number(), common.number());
    let agent = codec.read_agent(common);
    let source = codec.read_name(common);
    let panes = common.number();
    let mut update: TraceUpdate = match flags & REST {
        0 => TraceUpdate::default(),
        _ => rmp_serde::from_slice(from.bytes()).unwrap_or_default(),
    };
    let (signals, given) = read_signals(codec, common, from);
    read_numbers(&mut update, (flags, base), codec, (common, from));
    (update.trace_id, update.revision) = (id, revision);
    let SessionId { tenant, id: name, scope } = session.clone();
    update.session = Some(SessionKey { tenant, id: name, scope, source });
    if flags & OWN_NAME > 0 {
        update.agent = Some(agent.key().clone());
    }
    let rare: Rare = match flags & RARE {
        0 => Rare::default(),
        _ => rmp_serde::from_slice(from.bytes()).unwrap_or_default(),
    };
    let tally = rare.tally.unwrap_or_else(|| Tally::all_of(&update, true));
    let scores = signals.iter().map(|(name, (score, _))| (name.as_ref(), *score));
    let risk = rules.map(|rules| TraceRisk::new(scores, &rules.weights)).unwrap_or_default();
    let unasked = rules.and_then(|rules| unasked(&update, &signals, rules));
    let TraceRisk { risk: own, uncertainty, .. } = risk;
    let contribution = Contribution { risk: own, uncertainty, signals: given, unasked };
    let past = Past { given: None, tally, growth: rare.growth, run: None };
    let mut held = Held::new(id, update, agent, past);
    let (start, end) = (Timestamp(held.update.start_unix_nano), held.end());
    let (agent, panes) = (held.agent.clone(), codec.read_panes(panes, end));
    let effort = Effort::of(&held.update);
    held.given = Some(Given { agent, contribution, start, end, panes, effort });
    let Rare { output_repeat, malformed, link, .. } = rare;
    held.scored = Scored { signals, risk, output_repeat, malformed };
    held.link = if flags & LINKED > 0 { Some(Box::default()) } else { link };
    (held, flags & TELLS > 0)
}

/// A trace, as far as lists of sessions go by it.
#[derive(Debug)]
pub(super) struct Skimmed {
    /// Its agent, as the wire has it.
    pub(super) agent: Option<Agent>,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) loops: u64,
    pub(super) cost: Option<i64>,
    /// Only if it was asked for.
    pub(super) risk: Option<Quanta>,
}

impl Skimmed {
    /// Of a trace that is there as a whole; its agent and its risk apart.
    pub(super) fn of(held: &Held) -> Self {
        Self {
            agent: None,
            start: held.update.start_unix_nano,
            end: held.update.end_unix_nano,
            loops: held.weighing_loops().count() as u64,
            cost: held.update.cost_quanta,
            risk: None,
        }
    }
}

/// Reads as much of a trace; its risk, if there are rules for it.
pub(super) fn skim(record: &[u8], base: u64, rules: Option<&Rules>, codec: &Codec) -> Skimmed {
    let from = &mut Reader(record);
    from.array::<16>();
    let shape = codec.read_shape(from);
    let common = &mut Reader(&shape);
    let (flags, _) = (common.number(), common.number());
    let agent = codec.read_agent(common);
    if flags & (REST | RARE) > 0 || flags & OWN_NAME == 0 {
        return skim_whole(record, base, rules, codec);
    }
    codec.look_at_name(common);
    common.number();
    let mut signals = Vec::new();
    for _ in 0..common.size() {
        let (_, name, score) = read_signal(codec, common, from);
        signals.extend(rules.map(|_| (name, score)));
    }
    let risk = rules.and_then(|rules| {
        TraceRisk::new(signals.iter().map(|(name, score)| (&**name, *score)), &rules.weights).risk
    });
    let start = from.apart(base);
    let end = from.apart(start);
    from.apart(end);
    from.time();
    let tokens = (flags & INPUT).count_ones() + (flags & OUTPUT).count_ones();
    for _ in 0..tokens {
        from.number();
    }
    let cost = (flags & COST > 0).then(|| from.signed());
    Skimmed { agent: Some(agent), start, end, loops: 0, cost, risk }
}

/// Likewise, of a trace that has what few have.
fn skim_whole(record: &[u8], base: u64, rules: Option<&Rules>, codec: &Codec) -> Skimmed {
    let (held, _) = read(record, (&SessionId::default(), base), rules, codec);
    Skimmed {
        agent: held.update.agent.clone().map(Agent::from),
        risk: held.scored.risk.risk,
        ..Skimmed::of(&held)
    }
}

fn flags_of(update: &TraceUpdate) -> u64 {
    let tokens = update.tokens.unwrap_or_default();
    let small = |digest: &OutputDigest| {
        let words = digest.tokens.is_sorted_by(|one, next| one < next);
        words && digest.model_embedding.is_empty() && digest.embedder == 0
    };
    let bits = [
        (update.complete, COMPLETE),
        (update.error, ERROR),
        (update.partial, PARTIAL),
        (update.unfinished, UNFINISHED),
        (update.tokens.is_some(), TOKENS),
        (tokens.input.is_some(), INPUT),
        (tokens.output.is_some(), OUTPUT),
        (update.cost_quanta.is_some(), COST),
        (in_order(update), TOOLS),
        (update.output_digest.as_ref().is_some_and(small), DIGEST),
    ];
    let status = update.status.map_or(0, |status| 1 + status as u64);
    let numbers = update.state as u64 | status << 2 | (update.turn_start as u64) << 4;
    bits.into_iter().filter(|(set, _)| *set).fold(numbers, |flags, (_, flag)| flags | flag)
}

/// Whether the calls have no more than what is written of each, and each time is at or after the one that it is told by.
fn in_order(update: &TraceUpdate) -> bool {
    let plain = |call: &ToolCall| {
        call.arguments.is_none() && call.argument_values.is_empty() && call.call_id.is_none()
    };
    let starts = update.tools.iter().map(|call| call.start_unix_nano);
    update.tools.iter().all(|call| plain(call) && call.start_unix_nano <= call.end_unix_nano)
        && std::iter::once(update.start_unix_nano).chain(starts).is_sorted()
}

/// Writes what most traces have, and takes it out of the update: what many have in common, and what is its own.
fn numbers(
    update: &mut TraceUpdate,
    flags: u64,
    base: u64,
    codec: &mut Codec,
    (common, own): (&mut Writer, &mut Writer),
) {
    let take = std::mem::take::<u64>;
    let (start, end) = (take(&mut update.start_unix_nano), take(&mut update.end_unix_nano));
    own.apart(base, start);
    own.apart(start, end);
    own.apart(end, take(&mut update.touched_unix_nano));
    for number in counts(update) {
        common.number(take(number));
    }
    own.time(take(&mut update.model_nanos));
    let Tokens { input, output } = update.tokens.take().unwrap_or_default();
    input.into_iter().chain(output).for_each(|tokens| own.number(tokens));
    update.cost_quanta.take().into_iter().for_each(|cost| own.signed(cost));
    let models = std::mem::take(&mut update.models);
    common.number(models.len() as u64);
    models.iter().for_each(|model| codec.name(model, common));
    if flags & TOOLS > 0 {
        let tools = std::mem::take(&mut update.tools);
        common.number(tools.len() as u64);
        let mut before = start;
        for call in &tools {
            tool(call, before, codec, (common, own));
            before = call.start_unix_nano;
        }
    }
    if flags & DIGEST > 0 {
        digest::write(&update.output_digest.take().unwrap_or_default(), codec, own);
    }
    update.state = TraceState::default();
    (update.status, update.turn_start) = (None, TurnStart::default());
    (update.complete, update.error) = (false, false);
    (update.partial, update.unfinished) = (false, false);
}

fn read_numbers(
    update: &mut TraceUpdate,
    (flags, base): (u64, u64),
    codec: &Codec,
    (common, own): (&mut Reader<'_>, &mut Reader<'_>),
) {
    let few = |bits: u64| usize::from((bits & 3).to_le_bytes()[0]);
    let states = [TraceState::Open, TraceState::Done, TraceState::Sealed];
    update.state = states.get(few(flags)).copied().unwrap_or_default();
    let statuses = [Status::Unset, Status::Ok, Status::Error];
    update.status = few(flags >> 2).checked_sub(1).and_then(|status| statuses.get(status).copied());
    let starts = [TurnStart::Unknown, TurnStart::Asked, TurnStart::Continued];
    update.turn_start = starts.get(few(flags >> 4)).copied().unwrap_or_default();
    (update.complete, update.error) = (flags & COMPLETE > 0, flags & ERROR > 0);
    (update.partial, update.unfinished) = (flags & PARTIAL > 0, flags & UNFINISHED > 0);
    update.start_unix_nano = own.apart(base);
    update.end_unix_nano = own.apart(update.start_unix_nano);
    update.touched_unix_nano = own.apart(update.end_unix_nano);
    for number in counts(update) {
        *number = common.number();
    }
    update.model_nanos = own.time();
    let input = (flags & INPUT > 0).then(|| own.number());
    let output = (flags & OUTPUT > 0).then(|| own.number());
    update.tokens = (flags & TOKENS > 0).then_some(Tokens { input, output });
    update.cost_quanta = (flags & COST > 0).then(|| own.signed());
    update.models = (0..common.size()).map(|_| codec.read_name(common)).collect();
    if flags & TOOLS > 0 {
        let mut before = update.start_unix_nano;
        let calls = (0..common.size()).map(|_| {
            let call = read_tool(before, codec, (&mut *common, &mut *own));
            before = call.start_unix_nano;
            call
        });
        update.tools = calls.collect();
    }
    if flags & DIGEST > 0 {
        update.output_digest = Some(digest::read(codec, own));
    }
}

/// What is counted of a trace, which is the same of many.
fn counts(update: &mut TraceUpdate) -> [&mut u64; 5] {
    [
        &mut update.steps,
        &mut update.wasted_steps,
        &mut update.llm_calls,
        &mut update.failed_model_calls,
        &mut update.adjacent_tool_repeats,
    ]
}

/// A call: whether it failed in two bits, one for each hash, one for whether it is timed; `before` is when the one before it
/// started.
fn tool(
    call: &ToolCall,
    before: u64,
    codec: &mut Codec,
    (common, own): (&mut Writer, &mut Writer),
) {
    codec.name(&call.name, common);
    let error = call.error.map_or(0, |error| 1 + u64::from(error));
    let hashes = [call.result_hash, call.arguments_hash];
    let [result, arguments] = hashes.map(|hash| u64::from(hash.is_some()));
    common.number(error | result << 2 | arguments << 3 | u64::from(call.timed) << 4);
    own.time(call.start_unix_nano.saturating_sub(before));
    own.time(call.end_unix_nano.saturating_sub(call.start_unix_nano));
    hashes.into_iter().flatten().for_each(|hash| own.raw(&hash.to_le_bytes()));
}

fn read_tool(
    before: u64,
    codec: &Codec,
    (common, own): (&mut Reader<'_>, &mut Reader<'_>),
) -> ToolCall {
    let (name, bits) = (codec.read_name(common), common.number());
    let start_unix_nano = before.wrapping_add(own.time());
    let end_unix_nano = start_unix_nano.wrapping_add(own.time());
    let mut hash = |bit: u64| (bits & bit > 0).then(|| u64::from_le_bytes(own.array()));
    let (result_hash, arguments_hash) = (hash(4), hash(8));
    let error = [None, Some(false), Some(true), None][usize::from((bits & 3).to_le_bytes()[0])];
    ToolCall {
        name,
        result_hash,
        error,
        start_unix_nano,
        end_unix_nano,
        arguments_hash,
        timed: bits & 16 > 0,
        ..ToolCall::default()
    }
}

type Signals = Few<SignalName, (Quanta, Source)>;

/// The signals: which there are, from whom, which have sums and which are one or zero; then the other scores.
fn signals(
    signals: &Signals,
    given: &Contribution,
    codec: &mut Codec,
    (common, own): (&mut Writer, &mut Writer),
) {
    common.number(signals.len() as u64);
    for (name, (score, source)) in signals.iter() {
        let source = match source {
            Source::Computed => 0,
            Source::Judge => 1,
            Source::Reported => 2,
        };
        let whole = match score.0 {
            Quanta::ONE => ONE,
            0 => ZERO,
            other => {
                own.signed(other);
                0
            }
        };
        let sums = if given.signals.contains_key(name) { SUMS } else { 0 };
        common.number(source | sums | whole);
        codec.name(name, common);
    }
}

fn read_signals(
    codec: &Codec,
    common: &mut Reader<'_>,
    own: &mut Reader<'_>,
) -> (Signals, Few<SignalName, Quanta>) {
    let (mut signals, mut given) = (Few::default(), Few::default());
    for _ in 0..common.size() {
        let (kind, name, score) = read_signal(codec, common, own);
        let name = named(&name);
        let source = match kind & 3 {
            0 => Source::Computed,
            1 => Source::Judge,
            _ => Source::Reported,
        };
        if kind & SUMS > 0 {
            given.insert(name.clone(), score);
        }
        signals.insert(name, (score, source));
    }
    (signals, given)
}

/// What it is of, its name and the score.
fn read_signal<'b, 'r: 'b>(
    codec: &'b Codec,
    common: &mut Reader<'r>,
    own: &mut Reader<'_>,
) -> (u64, Cow<'b, str>, Quanta) {
    let kind = common.number();
    let name = codec.look_at_name(common);
    let score = match kind & (ONE | ZERO) {
        0 => Quanta(own.signed()),
        ONE => Quanta(Quanta::ONE),
        _ => Quanta(0),
    };
    (kind, name, score)
}
