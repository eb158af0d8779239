//! Owners of the assemble stage follow one another, each beginning at a checkpoint, or with nothing, and sending again what earlier
//! ones sent: the session stages count and hold the same as with a single owner.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agentgauge::engine::assemble::{Assembler, Input, Learned};
use agentgauge::engine::counters::Counter;
use agentgauge::engine::facts::SessionFacts;
use agentgauge::engine::options::SessionScope;
use agentgauge::engine::pipeline::EngineOptions;
use agentgauge::engine::route::Route;
use agentgauge::engine::sessions::Sessions;
use agentgauge::engine::span::{
    Arguments, ModelFacts, Operation, SessionName, Span, SpanId, Text, Timestamp, ToolFacts,
    TraceId,
};
use agentgauge::engine::tenants::Shares;
use proptest::prelude::*;

const START: Timestamp = Timestamp(1_800_000_000_000_000_000);

/// What follows from the records, whatever was sent meanwhile.
const LASTING: [Counter; 9] = [
    Counter::Traces,
    Counter::Loops,
    Counter::LoopsDetected,
    Counter::LoopWastedTokens,
    Counter::Tokens,
    Counter::CostUsd,
    Counter::ModelCalls,
    Counter::ToolCalls,
    Counter::AdjacentToolRepeats,
];

/// Spans of one trace that come together.
#[derive(Clone, Debug)]
struct Record {
    trace: u8,
    /// Equal tool calls in it.
    calls: u8,
    /// Its root, which names the session.
    root: bool,
    /// How long it was quiet before it came.
    pause: Duration,
}

/// Reads the records from one to before another, having begun with the checkpoint of that one.
#[derive(Clone, Debug)]
struct Owner {
    begin: usize,
    end: usize,
}

fn records() -> impl Strategy<Value = Vec<Record>> {
    let pause = proptest::sample::select(vec![0, 1, 20, 90, 400]);
    let record =
        (0..6_u8, 0..5_u8, any::<bool>(), pause).prop_map(|(trace, calls, root, pause)| Record {
            trace,
            calls,
            root,
            pause: Duration::from_secs(pause),
        });
    proptest::collection::vec(record, 1..20)
}

/// Owners one after the other: each begins no later than those before it had come, and the last reads all that is left.
fn owners(records: usize) -> impl Strategy<Value = Vec<Owner>> {
    let part = (0..=100_usize, 0..=100_usize);
    proptest::collection::vec(part, 1..5).prop_map(move |parts| {
        let (mut come, last) = (0, parts.len() - 1);
        let owner = |(number, (back, on)): (usize, (usize, usize))| {
            let begin = come - come * back / 100;
            come = if number == last { records } else { come + (records - come) * on / 100 };
            Owner { begin, end: come }
        };
        parts.into_iter().enumerate().map(owner).collect()
    })
}

fn scenes() -> impl Strategy<Value = (Vec<Record>, Vec<Owner>, u32)> {
    (records(), 1..4_u32).prop_flat_map(|(records, shards)| {
        let owners = owners(records.len());
        (Just(records), owners, Just(shards))
    })
}

/// The spans of a record. Ids follow from its place, so that nothing replaces anything.
fn spans(place: usize, records: &[Record]) -> Vec<Span> {
    let record = &records[place];
    let id = |number: usize| SpanId(((place * 10 + number + 1) as u64).to_be_bytes());
    let root = SpanId([0xff; 8]);
    let base = Span {
        trace_id: TraceId([record.trace + 1; 16]),
        convention: Some("test"),
        agent_name: Some(Arc::from(format!("agent-{}", record.trace % 2))),
        ..Span::default()
    };
    let at = |number: usize| START.after(Duration::from_millis((place * 100 + number) as u64));
    let mut spans: Vec<Span> = (0..usize::from(record.calls))
        .map(|number| Span {
            span_id: id(number),
            parent: Some(root),
            start: at(2 * number),
            end: at(2 * number + 1),
            operation: Operation::ExecuteTool,
            tool: Some(ToolFacts {
                name: Some(Arc::from("search")),
                arguments: Some(Arguments::from_canonical(b"{}", &[], true)),
                result_hash: Some(1),
                ..ToolFacts::default()
            }),
            ..base.clone()
        })
        .collect();
    let mut model = ModelFacts::default();
    model.tokens.input = Some(7);
    spans.push(Span {
        span_id: id(9),
        parent: Some(root),
        start: at(30),
        end: at(31),
        operation: Operation::Chat,
        model: Some(model),
        ..base.clone()
    });
    if record.root {
        let first = records.iter().position(|other| other.trace == record.trace).unwrap();
        let session = format!("session-{}", record.trace / 3);
        spans.push(Span {
            span_id: root,
            // The same whenever it is sent.
            start: START.after(Duration::from_millis(first as u64 * 100)),
            end: at(40),
            operation: Operation::InvokeAgent,
            session: Some(SessionName {
                attribute: Arc::from("session.id"),
                id: Arc::from(session),
            }),
            output: Some(Text { rank: 0, text: Arc::from(format!("answer {}", record.trace % 2)) }),
            ..base
        });
    }
    spans
}

fn assemble(scope: SessionScope) -> Assembler {
    let options = EngineOptions::default();
    Assembler::new(options.assemble, options.loops, &options.cost).scoped_by(scope)
}

/// Applies a record as a partition does: timers that were due first.
fn apply(
    (stage, known): (&mut Assembler, &Learned),
    (place, records): (usize, &[Record]),
    now: Timestamp,
) {
    while let Some(due) = stage.poll_timeout().filter(|due| *due <= now) {
        stage.handle_timeout(due, known);
    }
    for span in spans(place, records) {
        stage.handle(Input::Span(Box::new(span)), now);
    }
}

/// The session stages after everything that these owners sent, and the counts of each.
fn told(
    records: &[Record],
    owners: &[Owner],
    (shards, scope): (u32, SessionScope),
) -> (Vec<String>, Vec<String>) {
    let options = EngineOptions::default();
    let route = Route::new(shards, 0);
    let stage = |shard| {
        let EngineOptions { session, loops, agents, .. } = options.clone();
        Sessions::new(shard, session, loops, agents)
    };
    let mut stages: Vec<Sessions> = (0..shards).map(stage).collect();
    let mut latest: BTreeMap<(u32, String), SessionFacts> = BTreeMap::new();
    let mut now = START;
    let times: Vec<Timestamp> = records
        .iter()
        .map(|record| {
            now = now.after(record.pause);
            now
        })
        .collect();
    let checkpoints = checkpoints(records, &times, scope);
    for (generation, owner) in (1_u64..).zip(owners) {
        let (mut assemble, mut known) = (assemble(scope), nothing());
        let (saved, saved_known) = &checkpoints[owner.begin];
        assemble.restore(rmp_serde::from_slice(saved).unwrap());
        known.restore(rmp_serde::from_slice(saved_known).unwrap());
        for (place, time) in times.iter().enumerate().take(owner.end).skip(owner.begin) {
            apply((&mut assemble, &known), (place, records), *time);
            let updates = assemble.drain(&known);
            known.learn(assemble.lessons());
            for mut update in updates {
                update.revision += generation << 32;
                let session = update.session.clone().unwrap();
                let shard = route.session(&session.tenant, &session.id);
                stages[shard].handle(update, *time);
            }
            for update in stages.iter_mut().flat_map(Sessions::drain) {
                let agent = update.agent.clone().unwrap().agent_name.to_string();
                latest.insert((update.shard, agent), update);
            }
        }
    }
    let mut counted: BTreeMap<String, u64> = BTreeMap::new();
    for ((_, agent), update) in &latest {
        for (family, labels, value) in
            update.counters.iter().filter(|(family, ..)| LASTING.contains(family))
        {
            *counted.entry(format!("{agent} {family:?} {labels:?}")).or_default() += value;
        }
    }
    let held = stages.iter().flat_map(Sessions::sessions);
    let held = held.map(|session| serde_json::to_string(&session).unwrap()).collect();
    let counted = counted.into_iter().filter(|(_, n)| *n > 0);
    (held, counted.map(|(name, n)| format!("{name} {n}")).collect())
}

/// A table in which nothing is known.
fn nothing() -> Learned {
    Learned::new(&EngineOptions::default().assemble, Shares::default())
}

/// What the stage and its table hold before each record, and after all.
fn checkpoints(
    records: &[Record],
    times: &[Timestamp],
    scope: SessionScope,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (mut stage, mut known) = (assemble(scope), nothing());
    let save = |stage: &Assembler, known: &Learned| {
        let known = rmp_serde::to_vec_named(&known.save()).unwrap();
        (rmp_serde::to_vec_named(&stage.save()).unwrap(), known)
    };
    let mut saved = vec![save(&stage, &known)];
    for (place, time) in times.iter().enumerate() {
        apply((&mut stage, &known), (place, records), *time);
        stage.drain(&known);
        known.learn(stage.lessons());
        saved.push(save(&stage, &known));
    }
    saved
}

proptest! {
    #[test]
    fn what_is_told_again_counts_once((records, owners, shards) in scenes()) {
        for scope in [SessionScope::Service, SessionScope::Tenant] {
            let all = [Owner { begin: 0, end: records.len() }];
            let once = told(&records, &all, (1, scope));
            let again = told(&records, &owners, (shards, scope));
            prop_assert_eq!(&once.1, &again.1);
            let sorted = |mut held: Vec<String>| { held.sort(); held };
            prop_assert_eq!(sorted(once.0), sorted(again.0));
        }
    }
}
