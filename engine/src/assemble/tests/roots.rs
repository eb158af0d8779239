//! Roots that never come, and roots that come late.

use super::*;

const HOUR: u64 = 3_600;

/// A stage and what is known to all shards.
struct Shard {
    stage: Assembler,
    known: Learned,
    now: u64,
    traces: u8,
}

impl Shard {
    fn new(options: AssembleOptions) -> Self {
        let known = Learned::new(&options, Shares::default());
        let stage = Assembler::new(options, LoopOptions::default(), &CostOptions::default());
        Self { stage, known, now: 0, traces: 0 }
    }

    /// A shard that has learned that roots never come.
    fn without_roots() -> Self {
        let mut shard = Self::new(AssembleOptions::default());
        for _ in 0..3 {
            let trace = shard.rootless();
            assert_eq!(shard.sealed_after(trace), HOUR);
        }
        shard
    }

    fn send(&mut self, trace: u8, span: Span) {
        let span = Span { trace_id: TraceId([trace; 16]), ..span };
        self.stage.handle(Input::Span(Box::new(span)), at(self.now));
        self.look();
    }

    fn look(&mut self) -> Vec<Box<TraceFacts>> {
        self.stage.handle_timeout(at(self.now), &self.known);
        let updates = self.stage.drain(&self.known);
        self.known.learn(self.stage.lessons());
        updates
    }

    /// Begins a trace whose root does not come.
    fn rootless(&mut self) -> u8 {
        self.traces += 1;
        self.send(self.traces, tool(2));
        self.traces
    }

    /// Runs the clock until a trace is sealed; returns how many seconds that took.
    fn sealed_after(&mut self, trace: u8) -> u64 {
        let (began, id) = (self.now, TraceId([trace; 16]));
        let is_sealed = |updates: Vec<Box<TraceFacts>>| {
            updates.iter().any(|update| update.trace_id == id && update.state == TraceState::Sealed)
        };
        while !is_sealed(self.look()) {
            self.now += 10;
            assert!(self.now - began <= 2 * HOUR, "it is never sealed");
        }
        self.now - began
    }

    /// A trace whose root does not come: how many seconds it takes until that is final.
    fn rest(&mut self) -> u64 {
        let trace = self.rootless();
        self.sealed_after(trace)
    }
}

#[test]
fn a_root_that_is_sent_twice_did_not_come_late() {
    let mut shard = Shard::without_roots();
    assert_eq!(shard.rest(), 310);
    // A job of the service has a root, and a sender's queue sends it again, long after.
    let job = Span { parent: Some(SpanId([9; 8])), scope: 5, ..tool(3) };
    let root = Span { span_id: SpanId([9; 8]), ..root() };
    for span in [job, root.clone()] {
        shard.send(200, span);
    }
    assert_eq!(shard.sealed_after(200), 310);
    shard.now += 60;
    shard.send(200, root);
    assert_eq!(shard.stage.counts().get("late", "dropped"), 1);
    assert_eq!(shard.rest(), 310);
}

#[test]
fn a_root_that_comes_late_has_others_waited_for_until_that_is_long_ago() {
    let mut shard = Shard::without_roots();
    let trace = shard.rootless();
    assert_eq!(shard.sealed_after(trace), 310);
    shard.now += 60;
    shard.send(trace, root());
    let late = shard.now;
    assert_eq!(shard.rest(), HOUR);
    // A late root counts once, however often it is sent.
    shard.now = late + 20 * HOUR;
    shard.send(trace, root());
    assert_eq!(shard.rest(), HOUR);
    shard.now = late + 24 * HOUR;
    assert_eq!(shard.rest(), 310);
}

#[test]
fn roots_that_would_be_late_have_others_waited_for_as_long_as_they_come() {
    let mut shard = Shard::without_roots();
    let trace = shard.rootless();
    assert_eq!(shard.sealed_after(trace), 310);
    shard.now += 60;
    shard.send(trace, root());
    for time in 0..4 {
        shard.now += 4 * HOUR;
        let trace = shard.rootless();
        shard.now += 10;
        shard.look();
        shard.now += 590;
        shard.send(trace, root());
        assert_eq!(shard.stage.counts().get("late", "root_dropped"), 1, "{time}");
        // More traces than it takes to learn that roots do not come.
        (0..17).for_each(|_| assert!(shard.rest() >= HOUR, "{time}"));
    }
}

#[test]
fn the_root_of_a_trace_that_made_room_did_not_come_late() {
    let options = AssembleOptions { max_open_traces: 10, ..AssembleOptions::default() };
    let mut shard = Shard::new(options);
    for _ in 0..3 {
        shard.rest();
    }
    let first = shard.rootless();
    for _ in 0..10 {
        shard.rootless();
    }
    shard.now += 5;
    shard.send(first, root());
    assert_eq!(shard.stage.counts().get("late", "root_dropped"), 1);
    assert_eq!(shard.rest(), 310);
}
