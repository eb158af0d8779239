//! Which texts are kept. Few traces are judged, and texts that will not be read are not worth keeping.
//!
//! The root shows whether a trace is judged, unless the trace is flagged. Most traces arrive in one piece or end with their root:
//! so the roots of a batch are read first, and if they show that a new trace is unsampled, its texts are not kept. The batch stays
//! available until the next drain, which evaluates traces that may be flagged; a flagged one gets its texts after all.

use std::cmp::Reverse;
use std::mem;
use std::sync::Arc;

use super::{Assembler, Counts, JudgeRules, OpenTrace, Operation, Span, Timestamp, TraceKey};
use crate::span::TraceId;
use crate::trace::Spans;

/// Spans that arrived together, and a selection of them.
#[derive(Clone, Debug)]
pub struct SpanBatch {
    /// The spans of a whole request, shared by all shards that take some of them.
    pub all: Arc<Vec<Span>>,
    /// The indices of the selected spans.
    pub places: Vec<usize>,
}

/// The batches since the last drain, as long as texts may be missing.
#[derive(Debug, Default)]
pub(super) struct RecentBatches {
    // Traces of the current batch that are judged only if they are flagged, by their roots; sorted.
    unsampled: Vec<TraceKey>,
    batches: Vec<SpanBatch>,
    // Batch and index of each span, by trace and then in order of arrival; built on demand.
    places: Vec<(TraceId, usize, usize)>,
}

/// The readers of texts.
#[derive(Debug)]
pub(super) struct Keeping<'a> {
    // Whether there are readers other than a judge.
    readers: bool,
    // Whether traces are judged.
    judged: bool,
    // The judge's rules, if a judge is the only reader.
    judge: Option<&'a JudgeRules>,
}

impl SpanBatch {
    /// A span that arrived alone.
    pub fn one(span: Span) -> Self {
        Self { all: Arc::new(vec![span]), places: vec![0] }
    }

    /// The selected spans.
    pub fn spans(&self) -> impl Iterator<Item = &Span> {
        self.places.iter().filter_map(|place| self.all.get(*place))
    }
}

impl Assembler {
    /// Applies spans that arrived together at `now`.
    pub fn spans(&mut self, mut together: SpanBatch, now: Timestamp) {
        if !together.spans().any(Span::is_of_turn) {
            return self.together(together, now);
        }
        let of_turn = |place: &usize| together.all.get(*place).is_some_and(Span::is_of_turn);
        let (turns, others): (Vec<_>, _) = together.places.iter().copied().partition(of_turn);
        together.places = others;
        let all = Arc::clone(&together.all);
        self.together(together, now);
        let spans = turns.iter().filter_map(|place| all.get(*place));
        let (mut prompts, spans): (Vec<&Span>, Vec<_>) =
            spans.partition(|span| span.parent.is_none());
        // The latest first, so that each takes only the spans before the next one, which then move once.
        prompts.sort_by_key(|prompt| Reverse((prompt.start, prompt.trace_id)));
        for span in spans.into_iter().chain(prompts) {
            self.add_record_span(span.clone(), now);
        }
    }

    /// Applies spans of known traces that arrived together.
    pub(super) fn together(&mut self, together: SpanBatch, now: Timestamp) {
        self.recent_batches.unsampled = self.unsampled_traces(&together);
        let trace = |place: &usize| {
            together.all.get(*place).map(|span| (span.trace_id, &span.resource.tenant))
        };
        for group in together.places.chunk_by(|one, next| trace(one) == trace(next)) {
            self.group(group.iter().filter_map(|place| together.all.get(*place)), now);
        }
        if !mem::take(&mut self.recent_batches.unsampled).is_empty()
            || !self.recent_batches.batches.is_empty()
        {
            self.recent_batches.batches.push(together);
        }
    }

    /// Decides whether to keep the texts of a trace whose root may show that it is unsampled. Returns whether that is undecided:
    /// then the trace has to be checked for loops.
    pub(super) fn decide(&mut self, id: TraceKey, is_unsampled: bool, may_loop: bool) -> bool {
        let Some(held) = self.traces.get_mut(id) else { return false };
        let unwanted = is_unsampled && held.is_unwanted();
        if unwanted && !may_loop {
            self.drop_texts_of(id);
        } else if !unwanted && held.leaves_texts_out {
            self.put_texts(id);
        }
        unwanted && may_loop
    }

    /// Drops the texts of a trace.
    pub(super) fn drop_texts_of(&mut self, id: TraceKey) {
        if let Some(held) = self.traces.get_mut(id) {
            let before = held.bytes();
            held.drop_texts();
            self.bytes.change(id, before, held.bytes());
        }
    }

    /// Drops the texts of a trace that the judge no longer needs, if there is no other reader.
    pub(super) fn forgo_texts_of_judge(&mut self, id: TraceKey) {
        if !self.has_readers() {
            self.drop_texts_of(id);
        }
    }

    /// Restores the texts of a trace whose texts were left out, if there is room for them.
    pub(super) fn put_texts(&mut self, id: TraceKey) {
        if !self.traces.get(id).is_some_and(|held| held.leaves_texts_out) {
            return;
        }
        let mut recent_batches = mem::take(&mut self.recent_batches);
        let own = |span: &&Span| TraceKey::from(*span) == id;
        let spans: Vec<&Span> = recent_batches.of(id.id).filter(own).collect();
        let has_room = self.make_text_room(id, spans.iter().copied());
        self.counts.add_many("texts", "full", u64::from(!has_room));
        if let Some(held) = self.traces.get_mut(id) {
            held.leaves_texts_out = false;
            if has_room {
                let before = held.bytes();
                held.lacks_judge_texts = false;
                held.parts.spans = Spans::default();
                for span in spans {
                    if held.has_room_for(span, &self.options)
                        || held.parts.spans.contains(span.span_id)
                    {
                        let resource = self.resources.shared(&span.resource);
                        held.parts.spans.add(span, resource, &mut self.symbols, true);
                    }
                }
                self.bytes.change(id, before, held.bytes());
            }
        }
        self.recent_batches = recent_batches;
    }

    /// The traces of a batch whose roots in it all show that they are unsampled, sorted.
    fn unsampled_traces(&self, together: &SpanBatch) -> Vec<TraceKey> {
        let keeping = Keeping::new(self.has_readers(), true, self.judging.as_ref());
        if keeping.judge.is_none() {
            return Vec::new();
        }
        let roots = together.spans().filter(|span| span.parent.is_none());
        let roots = roots.map(|root| (TraceKey::from(root), keeping.is_unsampled_root(root)));
        let mut roots: Vec<_> = roots.filter(|(id, _)| self.attention.reads(id.tenant)).collect();
        roots.sort_unstable();
        // For each trace, a root that is sampled sorts before one that is not.
        roots.dedup_by_key(|(id, _)| *id);
        roots.into_iter().filter_map(|(id, passes)| passes.then_some(id)).collect()
    }

    /// Whether there are readers of texts other than a judge.
    pub(super) fn has_readers(&self) -> bool {
        self.rules.keep_content || !self.suites.is_empty() || self.embedding.is_some()
    }
}

impl<'a> Keeping<'a> {
    /// The readers: `readers` is whether there are any other than a judge, `reads` whether a judge reads if there is one.
    pub(super) fn new(readers: bool, reads: bool, judging: Option<&'a JudgeRules>) -> Self {
        let judge = judging.filter(|_| reads && !readers);
        Self { readers, judged: judging.is_some(), judge }
    }

    /// Whether texts other than the final answer are kept: they have a reader and, if that is the judge alone, there is room.
    pub(super) fn texts(&self, text_bytes: usize, counts: &mut Counts) -> bool {
        let has_room = self.judge.map(|rules| text_bytes < rules.max_open_bytes);
        if has_room == Some(false) {
            counts.add("texts", "full");
        }
        self.readers || has_room == Some(true)
    }

    /// Notes whether this span makes it likely that the judge reads the trace; `texts`: its texts are kept.
    pub(super) fn note(&self, held: &mut OpenTrace, span: &Span, texts: bool) {
        let is_unsampled = texts && self.is_unsampled_root(span);
        let failed = span.failed && span.operation != Operation::ExecuteTool;
        held.lacks_judge_texts |= self.judged && !texts;
        held.is_unsampled |= is_unsampled;
        held.wanted |= failed || (texts && span.parent.is_none() && !is_unsampled);
    }

    /// Whether a span is the root of a trace that no judge will read unless it is flagged.
    fn is_unsampled_root(&self, span: &Span) -> bool {
        self.judge.is_some_and(|rules| rules.leaves_unsampled(span))
    }
}

impl RecentBatches {
    /// Whether no batch is kept.
    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Drops the batches.
    pub(super) fn forget(&mut self) {
        self.batches.clear();
        self.places.clear();
    }

    /// Leaves out the texts of a new trace if its roots in the current batch show that it is unsampled.
    pub(super) fn begins(&self, id: TraceKey, held: &mut OpenTrace) {
        if self.unsampled.binary_search(&id).is_ok() {
            held.drop_texts();
            held.leaves_texts_out = true;
        }
    }

    /// The spans of a trace, in order of arrival.
    fn of(&mut self, id: TraceId) -> impl Iterator<Item = &Span> {
        if self.places.is_empty() {
            for (number, batch) in self.batches.iter().enumerate() {
                let places = batch.places.iter();
                let of = |place: &usize| batch.all.get(*place).map(|span| span.trace_id);
                self.places.extend(places.filter_map(|at| Some((of(at)?, number, *at))));
            }
            self.places.sort_by_key(|(id, ..)| *id);
        }
        let first = self.places.partition_point(|(other, ..)| *other < id);
        let own = self.places.iter().skip(first).take_while(move |(other, ..)| *other == id);
        own.filter_map(|(_, batch, at)| self.batches.get(*batch)?.all.get(*at))
    }
}

impl OpenTrace {
    /// Whether its spans gave a judge no reason to read the trace: nothing but tool calls failed, no root is sampled, and no other
    /// process, from which more may arrive, takes part in it. Loops are not searched for.
    pub(super) fn is_unwanted(&self) -> bool {
        !self.wanted && self.parts.spans.are_of_one_process()
    }
}
