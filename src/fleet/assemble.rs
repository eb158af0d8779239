//! The assemble stage of a partition: spans by trace in, traces by session out.
//!
//! The output of each record depends on the records alone, so an owner that begins at a checkpoint sends at least what the previous
//! one sent after it, in the same order, under a higher generation.

use std::array;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::options::Role;
use super::partition::{Begin, PartitionState, Room, Stage, TakenOver, TimeSource, section};
use super::wire::{Hop, Map, Message, Record, Response, pack};
use crate::engine::assemble::saved::SavedTraces;
use crate::engine::assemble::{AGES, Assembler, Input, Learned, SavedLearned};
use crate::engine::pipeline::EngineOptions;
use crate::engine::resolve::ResponseIndex;
use crate::engine::span::{Report, Target, Timestamp, TraceId};

/// A function that takes a stage's requests to the judge and the embedding model.
pub type Ask = Arc<dyn Fn(&mut Assembler, Timestamp) + Send + Sync>;

/// The stage that assembles traces from spans.
pub(super) struct AssembleStage {
    pub(super) options: EngineOptions,
    pub(super) map: Map,
    pub(super) ask: Ask,
}

/// The shards of a partition, with their open traces.
pub(super) struct TraceShards {
    map: Map,
    partition: u32,
    generation: u64,
    shards: Vec<(u32, Assembler)>,
    // When the next timer of each shard is due.
    due: Vec<Option<Timestamp>>,
    resolve: ResponseIndex,
    // The room that the shards share: bytes, and spans of turns.
    room: (Room, Room),
    // What the shards of this and of other partitions have learned.
    learned: Learned,
    ask: Ask,
    // Whether the partition has caught up. Before that, requests may already have been answered.
    live: bool,
}

impl Stage for AssembleStage {
    type State = TraceShards;

    const ROLE: Role = Role::Assemble;

    const HOP: Hop = Hop::Spans;

    const BEGIN: Begin = Begin::Lookback;

    const PACE: TimeSource = TimeSource::Records;

    fn take_over(&self, taken: &TakenOver<'_>) -> Result<TraceShards, String> {
        let EngineOptions { assemble, shares, .. } = &self.options;
        let mut shards = Vec::new();
        for shard in self.map.shards(taken.partition) {
            let mut stage = self.options.assemble_stage();
            let saved: Option<SavedTraces> = section(taken.checkpoint, &shard.to_string())?;
            saved.into_iter().for_each(|saved| stage.restore(saved));
            shards.push((shard, stage));
        }
        // One for all shards of the partition.
        let max = assemble.max_waiting_reports.saturating_mul(shards.len());
        let mut resolve = ResponseIndex::new(max, assemble.report_wait, shares.clone());
        let saved: Option<ResponseIndex> = section(taken.checkpoint, RESOLVE)?;
        saved.into_iter().for_each(|saved| resolve.restore(saved));
        let mut learned = Learned::new(assemble, shares.clone());
        let saved: Option<SavedLearned> = section(taken.checkpoint, LEARNED)?;
        saved.into_iter().for_each(|saved| learned.restore(saved));
        let due = shards.iter().map(|(_, stage)| stage.poll_timeout()).collect();
        let (map, partition, generation) = (self.map, taken.partition, taken.generation);
        let (ask, live) = (self.ask.clone(), false);
        let room = |all| Room::new(all, shards.len());
        let room = (room(assemble.max_bytes), room(assemble.max_turn_spans));
        Ok(TraceShards {
            map,
            partition,
            generation,
            shards,
            due,
            resolve,
            room,
            learned,
            ask,
            live,
        })
    }
}

impl PartitionState for TraceShards {
    fn apply(
        &mut self,
        message: Message,
        _: i64,
        now: Timestamp,
        out: &mut Vec<Record>,
    ) -> Result<(), &'static str> {
        match message {
            Message::Inputs(inputs) => self.inputs(inputs, now, out),
            Message::Report(report) => match self.resolve.report(*report, now) {
                Some(report) => self.forward(report, out),
                None => Ok(()),
            },
            Message::Responses(seen) => {
                for Response { tenant, id, trace_id } in seen {
                    for report in self.resolve.seen(tenant.as_deref(), id, trace_id, now) {
                        self.forward(report, out)?;
                    }
                }
                Ok(())
            }
            Message::Learned(lessons) => {
                self.learned.learn(lessons);
                Ok(())
            }
            Message::Trace(_) | Message::Session(_) | Message::Tick | Message::Began(_) => {
                Err("misdirected")
            }
        }
    }

    fn due(&self) -> Option<Timestamp> {
        self.due.iter().copied().chain([self.resolve.poll_timeout()]).flatten().min()
    }

    fn timers(&mut self, now: Timestamp, out: &mut Vec<Record>) {
        self.resolve.handle_timeout(now);
        for place in 0..self.shards.len() {
            if self.due[place].is_some_and(|due| due <= now) {
                self.make_room(place);
                self.shards[place].1.handle_timeout(now, &self.learned);
                self.hand_on(place, now, out);
            }
        }
    }

    fn publish(&mut self, now: Timestamp, _: &mut Vec<Record>) {
        if std::mem::replace(&mut self.live, true) {
            return;
        }
        for (_, stage) in &mut self.shards {
            // One by one, as each request is as large as a trace.
            for trace in stage.unanswered() {
                stage.ask_again(trace, &self.learned);
                (self.ask)(stage, now);
            }
        }
    }

    fn save(&self) -> Option<BTreeMap<String, Vec<u8>>> {
        let shards = self.shards.iter();
        let mut sections = shards
            .map(|(shard, stage)| Some((shard.to_string(), pack(&stage.save())?)))
            .collect::<Option<BTreeMap<_, _>>>()?;
        sections.insert(RESOLVE.to_owned(), pack(&self.resolve)?);
        sections.insert(LEARNED.to_owned(), pack(&self.learned.save())?);
        Some(sections)
    }

    fn give_up(&mut self) {}

    fn holds(&self) -> (&'static str, usize) {
        ("traces", self.shards.iter().map(|(_, stage)| stage.open_traces()).sum())
    }

    fn holds_bytes(&self) -> Option<(&'static str, usize)> {
        Some(("traces", self.shards.iter().map(|(_, stage)| stage.held_bytes()).sum()))
    }

    fn open_traces(&self, now: Timestamp) -> Option<[usize; AGES.len()]> {
        let ages = self.shards.iter().map(|(_, stage)| stage.ages(now));
        Some(ages.fold([0; AGES.len()], |sum, ages| array::from_fn(|at| sum[at] + ages[at])))
    }

    fn counts(&self) -> Vec<(String, &'static str, &'static str, u64)> {
        let named = |name: String, counts: &crate::engine::count::Counts| {
            let all = counts.iter().map(|(what, why, n)| (name.clone(), what, why, n));
            all.collect::<Vec<_>>()
        };
        let shards = self.shards.iter();
        let shards = shards.flat_map(|(shard, stage)| named(shard.to_string(), stage.counts()));
        let others = [(RESOLVE, self.resolve.counts()), (LEARNED, self.learned.counts())];
        shards
            .chain(others.into_iter().flat_map(|(name, counts)| named(name.to_owned(), counts)))
            .collect()
    }
}

impl TraceShards {
    fn inputs(
        &mut self,
        inputs: Vec<Input>,
        now: Timestamp,
        out: &mut Vec<Record>,
    ) -> Result<(), &'static str> {
        let places: Option<Vec<usize>> =
            inputs.iter().map(|input| self.place(trace_of(input)?)).collect();
        let places = places.ok_or("misdirected")?;
        // All inputs of a record belong to one trace.
        let touched = places.last().copied();
        if let Some(place) = touched {
            self.make_room(place);
        }
        for (place, input) in places.into_iter().zip(inputs) {
            self.shards[place].1.handle(input, now);
        }
        if let Some(place) = touched {
            self.hand_on(place, now, out);
        }
        Ok(())
    }

    /// Gives a shard the room that the other shards leave.
    fn make_room(&mut self, place: usize) {
        let held = |held: fn(&Assembler) -> usize| {
            let all = self.shards.iter().map(|(_, stage)| held(stage)).sum::<usize>();
            (all, held(&self.shards[place].1))
        };
        let (bytes, spans) = (held(Assembler::held_bytes), held(Assembler::held_turn_spans));
        let (bytes, spans) =
            (self.room.0.beside(bytes.0, bytes.1), self.room.1.beside(spans.0, spans.1));
        self.shards[place].1.set_room(bytes, spans);
    }

    /// Forwards a report whose trace is known to that trace.
    fn forward(&self, report: Report, out: &mut Vec<Record>) -> Result<(), &'static str> {
        let Target::Trace(trace) = report.target else { return Err("misdirected") };
        let inputs = vec![Input::Report(Box::new(report))];
        out.push(self.map.to_trace(trace, Message::Inputs(inputs)));
        Ok(())
    }

    /// The index of a trace's shard in `shards`; `None` if it is not in this partition.
    fn place(&self, trace: TraceId) -> Option<usize> {
        let shard = self.map.route().trace(trace);
        let place = self.map.place(shard);
        let found = self.shards.get(place).filter(|(held, _)| usize::try_from(*held) == Ok(shard));
        found.map(|_| place)
    }

    fn hand_on(&mut self, place: usize, now: Timestamp, out: &mut Vec<Record>) {
        let (shard, stage) = &mut self.shards[place];
        let mut sent = Vec::new();
        for mut update in stage.drain(&self.learned) {
            // The generation puts the revision above those of all earlier owners.
            update.revision = update.revision.saturating_add(self.generation << GENERATION);
            sent.push(self.map.to_session(update));
        }
        // The trace may be in a session of any partition.
        let late = stage.late_reports().into_iter();
        sent.extend(late.filter_map(|report| self.map.to_all_sessions(&report)).flatten());
        for mut record in sent {
            record.envelope.shard = *shard;
            record.envelope.generation = self.generation;
            record.envelope.time = now;
            out.push(record);
        }
        let lessons = stage.lessons();
        if !lessons.is_empty() {
            out.extend(self.map.to_other_partitions(self.partition, &lessons));
            self.learned.learn(lessons);
        }
        if self.live {
            (self.ask)(stage, now);
        } else {
            drop((stage.requests(), stage.embed_requests()));
        }
        self.due[place] = stage.poll_timeout();
    }
}

/// The name of the section with the reports that wait for their responses.
const RESOLVE: &str = "resolve";

/// The name of the section with what was learned.
const LEARNED: &str = "learned";

/// The number of bits of a revision that are below the generation.
pub(super) const GENERATION: u32 = 32;

/// The trace that an input is about; `None` if it is about something else.
fn trace_of(input: &Input) -> Option<TraceId> {
    match input {
        Input::Span(span) => Some(span.trace_id),
        Input::Log(log) => Some(log.trace_id),
        Input::Judged(reply) => Some(reply.trace.id),
        Input::Embedded(trace, _) => Some(trace.id),
        Input::Report(report) => match report.target {
            Target::Trace(trace) => Some(trace),
            Target::Response { .. }
            | Target::Session { .. }
            | Target::Run(_)
            | Target::Agent(_) => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::score::ScoreStage;
    use super::super::start::spread;
    use super::*;
    use crate::engine::math::Quanta;
    use crate::engine::span::{Operation, Resource, Source, Span, SpanId, Text, ToolFacts};
    use crate::fleet::checkpoint::Checkpoint;

    const NOW: Timestamp = Timestamp(1_800_000_000_000_000_000);

    fn stage() -> AssembleStage {
        let ask: Ask = Arc::new(|_, _| {});
        AssembleStage { options: EngineOptions::default(), map: Map::new(2), ask }
    }

    fn taken(partition: u32, checkpoint: Option<&Checkpoint>) -> TraceShards {
        stage().take_over(&TakenOver { partition, generation: 1, checkpoint }).unwrap()
    }

    /// The input of a span of the service `shop`, in a trace of this partition.
    fn span(partition: u32, number: u8, span: Span) -> Message {
        let of = |trace_id| stage().map.to_trace(trace_id, Message::Tick).partition;
        let traces = (1_u128..).map(|id| TraceId((id << 8 | u128::from(number)).to_be_bytes()));
        let resource = Resource { service_name: Some("shop".into()), ..Resource::default() };
        let span = Span {
            trace_id: traces.into_iter().find(|id| of(*id) == partition).unwrap(),
            span_id: SpanId([2; 8]),
            resource: Arc::new(resource),
            convention: Some("test"),
            start: NOW,
            end: NOW,
            ..span
        };
        Message::Inputs(vec![Input::Span(Box::new(span))])
    }

    fn root() -> Span {
        let agent_name = Some("support".into());
        Span { operation: Operation::InvokeAgent, agent_name, ..Span::default() }
    }

    fn call() -> Span {
        let tool = Some(ToolFacts { name: Some("search".into()), ..ToolFacts::default() });
        let parent = Some(SpanId([1; 8]));
        Span { operation: Operation::ExecuteTool, tool, parent, ..Span::default() }
    }

    /// The output of an input within half a minute.
    fn follows(part: &mut TraceShards, input: Message) -> Vec<Record> {
        let mut out = Vec::new();
        part.apply(input, 0, NOW, &mut out).unwrap();
        part.timers(NOW.after(Duration::from_secs(30)), &mut out);
        out
    }

    /// The agents of the traces in these records.
    fn agents(records: &[Record]) -> Vec<String> {
        let agents = records.iter().filter_map(|record| {
            let Message::Trace(update) = &record.envelope.message else { return None };
            update.agent.as_ref().map(|agent| agent.agent_name.to_string())
        });
        agents.collect()
    }

    #[test]
    fn what_a_partition_learned_is_known_to_others_and_to_the_next_owner() {
        let (mut first, mut second) = (taken(0, None), taken(1, None));
        assert_eq!(agents(&follows(&mut second, span(1, 1, call()))), [""]);
        let records = follows(&mut first, span(0, 1, root()));
        assert_eq!(agents(&records), ["support"]);
        let learned = |record: &&Record| matches!(record.envelope.message, Message::Learned(_));
        let told: Vec<&Record> = records.iter().filter(learned).collect();
        assert_eq!(told.len(), 1);
        for _ in 0..2 {
            for record in &told {
                assert_eq!((record.hop, record.partition), (Hop::Spans, 1));
                assert_eq!(record.envelope.time, Timestamp(0), "it moves no time");
                let mut out = Vec::new();
                second.apply(record.envelope.message.clone(), 0, NOW, &mut out).unwrap();
                assert!(out.is_empty());
            }
        }
        assert_eq!(agents(&follows(&mut second, span(1, 2, call()))), ["support"]);
        // What is known is not sent again.
        let again = follows(&mut first, span(0, 2, root()));
        assert_eq!(again.iter().filter(learned).count(), 0);
        let sections = second.save().unwrap();
        let checkpoint = Checkpoint { now: NOW, sections, ..Checkpoint::default() };
        let mut next = taken(1, Some(&checkpoint));
        assert_eq!(agents(&follows(&mut next, span(1, 3, call()))), ["support"]);
    }

    #[test]
    fn a_shard_has_the_room_that_others_leave_and_all_together_hold_no_more_than_twice_that() {
        const MIB: usize = 1 << 20;
        let text = |bytes: usize| Span {
            operation: Operation::Chat,
            parent: Some(SpanId([1; 8])),
            output: Some(Text { rank: 0, text: "x".repeat(bytes).into() }),
            ..Span::default()
        };
        let mut stage = stage();
        stage.map = Map::new(16);
        spread(&mut stage.options, 4, 16);
        let mut part =
            stage.take_over(&TakenOver { partition: 0, generation: 1, checkpoint: None }).unwrap();
        let mut traces = (1_u128..).map(|id| TraceId((id << 64).to_be_bytes()));
        let mut put = |part: &mut TraceShards, bytes: usize| {
            let trace_id = traces.find(|id| part.place(*id).is_some()).unwrap();
            let Message::Inputs(mut inputs) = span(0, 1, text(bytes)) else { return };
            let [Input::Span(span)] = &mut inputs[..] else { return };
            span.trace_id = trace_id;
            part.apply(Message::Inputs(inputs), 0, NOW, &mut Vec::new()).unwrap();
        };
        let evicted = |part: &TraceShards| {
            let counts = part.counts();
            let evicted =
                counts.iter().filter(|(_, what, why, _)| (*what, *why) == ("traces", "evicted"));
            evicted.map(|(.., count)| count).sum::<u64>()
        };
        put(&mut part, 15 * MIB);
        assert_eq!((evicted(&part), part.holds().1), (0, 1), "one large trace, and nothing else");
        (0..100).for_each(|_| put(&mut part, MIB));
        assert!(evicted(&part) > 0);
        let held = part.holds_bytes().unwrap().1;
        assert!((32 * MIB..=128 * MIB).contains(&held), "{held}");
    }

    #[test]
    fn a_report_about_a_sealed_trace_reaches_the_session_that_has_it() {
        let mut part = taken(0, None);
        let mut sent = follows(&mut part, span(0, 1, root()));
        let told = sent.iter().find_map(|record| {
            let Message::Trace(update) = &record.envelope.message else { return None };
            Some(update.trace_id)
        });
        let sealed = NOW.after(Duration::from_secs(600));
        part.timers(sealed, &mut sent);
        let outcome = Report {
            target: Target::Trace(told.unwrap()),
            name: "outcome".into(),
            score: Quanta(0),
            label: None,
            success: None,
            explanation: None,
            source: Source::Reported,
            identifier: "".into(),
            judge: None,
            time: sealed,
            tenant: None,
        };
        let input = Message::Inputs(vec![Input::Report(Box::new(outcome))]);
        part.apply(input, 0, sealed, &mut sent).unwrap();
        let (options, map) = (EngineOptions::default(), Map::new(2));
        let tell_all_interval = Duration::from_secs(3_600);
        let score = ScoreStage { options, map, runaways: Arc::new(|_, _| {}), tell_all_interval };
        let mut told = Vec::new();
        for partition in 0..2 {
            let taken = TakenOver { partition, generation: 1, checkpoint: None };
            let mut sessions = score.take_over(&taken).unwrap();
            let here =
                |record: &&Record| (record.hop, record.partition) == (Hop::Traces, partition);
            for record in sent.iter().filter(here) {
                sessions
                    .apply(record.envelope.message.clone(), 0, sealed, &mut Vec::new())
                    .unwrap();
                sessions.publish(sealed, &mut told);
            }
        }
        let updates = told.iter().filter_map(|record| {
            let Message::Session(update) = &record.envelope.message else { return None };
            Some(&update.done_traces)
        });
        let outcomes: Vec<_> = updates.flatten().filter_map(|done| done.outcome_failed).collect();
        assert_eq!(outcomes, [true]);
    }
}
