//! Which tool calls follow one another: those made within one call, and separately those of each agent that works in parallel with
//! others.
//!
//! An agent that works alone, as after a handoff, continues the series of its caller. Agents that the same call or agent started,
//! and that work in parallel, have series of their own; those of one name that do not overlap each other, such as one that is
//! started repeatedly beside another, share one. An agent that is started again with another input, without another agent beside
//! it, as for each item of a list, does not continue its earlier series either: those with equal inputs are one series. The
//! children of a span that has not arrived are a series, too, if that span must have overlapped with another such span: while
//! agents are at work, only what is below them has arrived. A log record with the id of the sub-agent that made a call stands for
//! that sub-agent, as records have no agent above them.

use std::collections::BTreeMap;

use super::owner::agent_name;
use super::shape::Shape;
use super::span_view::SpanView;
use crate::loops::begins_before;
use crate::span::{Operation, SpanId};

/// The series of the calls of a trace, as indices of spans; numbers past the last span stand for spans that have not arrived.
#[derive(Debug, Default)]
pub(super) struct Series<'a> {
    /// By index, the agents whose calls are a series apart from the one around them.
    agents: BTreeMap<usize, usize>,
    /// The same for spans that have not arrived.
    absent: BTreeMap<SpanId, usize>,
    /// The ids of sub-agents in records, sorted.
    ids: Vec<&'a str>,
}

/// A time span, and what it belongs to.
struct Lasted<T> {
    what: T,
    start: u64,
    end: u64,
}

impl<'a> Series<'a> {
    /// The series of a trace; `told` has the spans that record calls, in order, each with the index of its call.
    pub(super) fn of(shape: &Shape<'a>, told: &[(usize, usize)]) -> Self {
        let is_agent = |span: &&SpanView<'_>| span.operation == Operation::InvokeAgent;
        let agents = || shape.behaviour().filter(is_agent);
        let loose = || shape.behaviour().filter_map(|span| Some((shape.absent(span)?, span)));
        let mut series = Self::default();
        // Most traces have one agent, and at most one span is missing.
        if agents().nth(1).is_some() {
            series.agents = agents_apart(shape, agents(), told);
        }
        let first = loose().next().map(|(id, _)| id);
        if loose().any(|(id, _)| Some(id) != first) {
            series.absent = absent_apart(loose(), shape.spans.len());
        }
        if shape.recorded {
            series.ids.extend(shape.behaviour().filter_map(recorded_id));
            series.ids.sort_unstable();
            series.ids.dedup();
        }
        series
    }

    /// The series of the span at an index: that of the nearest call or agent above that has one.
    pub(super) fn at(
        &self,
        shape: &Shape<'_>,
        at: usize,
        told: &[(usize, usize)],
    ) -> Option<usize> {
        if let Some(id) = recorded_id(&shape.spans[at]).filter(|_| shape.recorded) {
            let number = self.ids.binary_search(&id).unwrap_or_else(|number| number);
            return Some(shape.spans.len() + self.absent.len() + number);
        }
        let own = |above: &SpanView<'_>| {
            call_at(told, above.at)
                .filter(|call| *call != at)
                .or_else(|| self.agents.get(&above.at).copied())
        };
        let absent = || {
            let outermost = shape.ancestors(at).last().unwrap_or(&shape.spans[at]);
            self.absent.get(&outermost.parent()?).copied()
        };
        let found = shape.ancestors(at).find_map(own);
        if self.absent.is_empty() { found } else { found.or_else(absent) }
    }
}

/// The id of the sub-agent that made a call, if a log record has it.
fn recorded_id<'a>(span: &SpanView<'a>) -> Option<&'a str> {
    span.agent_id().filter(|_| span.is_record())
}

/// The index of the call that the span at an index records.
fn call_at(told: &[(usize, usize)], at: usize) -> Option<usize> {
    let place = told.binary_search_by_key(&at, |(at, _)| *at).ok()?;
    Some(told[place].1)
}

fn agents_apart<'s>(
    shape: &Shape<'_>,
    agents: impl Iterator<Item = &'s SpanView<'s>>,
    told: &[(usize, usize)],
) -> BTreeMap<usize, usize> {
    let mut by_caller: BTreeMap<Option<usize>, Vec<Lasted<&SpanView<'_>>>> = BTreeMap::new();
    for span in agents {
        let caller = shape.ancestors(span.at).find_map(|above| {
            let is_agent = above.operation == Operation::InvokeAgent;
            call_at(told, above.at).or_else(|| is_agent.then_some(above.at))
        });
        let agent = Lasted { what: span, start: span.start.0, end: span.end.0 };
        by_caller.entry(caller).or_default().push(agent);
    }
    let mut series = BTreeMap::new();
    for agents in by_caller.into_values() {
        let beside = overlaps(&agents);
        let mut by_name: BTreeMap<Option<&str>, Vec<(Lasted<&SpanView<'_>>, bool)>> =
            BTreeMap::new();
        for (agent, beside) in agents.into_iter().zip(beside) {
            by_name.entry(agent_name(agent.what)).or_default().push((agent, beside));
        }
        let is_one = by_name.len() == 1;
        for agents in by_name.into_values() {
            let is_beside = agents.iter().any(|(_, beside)| *beside);
            let agents = agents.into_iter().map(|(agent, _)| agent);
            if is_beside {
                of_one_name(agents, &mut series);
            } else if is_one {
                with_other_inputs(agents, &mut series);
            }
        }
    }
    series
}

/// Adds the series of agents of one name that work one after another: an agent with another input than the first one does not
/// continue the first one's series. All others continue the series around them.
fn with_other_inputs<'s>(
    agents: impl Iterator<Item = Lasted<&'s SpanView<'s>>>,
    series: &mut BTreeMap<usize, usize>,
) {
    let given = |agent: Lasted<&SpanView<'_>>| Some((given(agent.what)?, agent.what.at));
    let mut given = agents.filter_map(given);
    let Some((head, _)) = given.next() else { return };
    let mut firsts: BTreeMap<u32, usize> = BTreeMap::new();
    for (input, place) in given.filter(|(input, _)| *input != head) {
        series.insert(place, *firsts.entry(input).or_insert(place));
    }
}

/// The mark of an agent's input, if that is known.
fn given(agent: &SpanView<'_>) -> Option<u32> {
    agent.input().map(|input| input.mark).filter(|mark| *mark != 0)
}

/// Adds the series of agents of one name, some of which work in parallel with others. Two libraries may record one agent.
fn of_one_name<'s>(
    agents: impl Iterator<Item = Lasted<&'s SpanView<'s>>>,
    series: &mut BTreeMap<usize, usize>,
) {
    let mut by_scope: BTreeMap<u64, Vec<Lasted<&SpanView<'_>>>> = BTreeMap::new();
    agents.for_each(|agent| by_scope.entry(agent.what.scope()).or_default().push(agent));
    let mut in_turn: BTreeMap<Option<u32>, Vec<usize>> = BTreeMap::new();
    for agents in by_scope.into_values() {
        let beside = overlaps(&agents);
        for (agent, beside) in agents.iter().zip(beside) {
            let place = agent.what.at;
            if beside {
                series.insert(place, place);
            } else {
                in_turn.entry(given(agent.what)).or_default().push(place);
            }
        }
    }
    for places in in_turn.into_values() {
        let first = places.iter().min().copied();
        series
            .extend(first.into_iter().flat_map(|first| places.iter().map(move |at| (*at, first))));
    }
}

/// The spans that have not arrived and that overlapped with another one of them, judging by their children; their numbers start at
/// `from`.
fn absent_apart<'s>(
    loose: impl Iterator<Item = (SpanId, &'s SpanView<'s>)>,
    from: usize,
) -> BTreeMap<SpanId, usize> {
    let mut times: BTreeMap<SpanId, (u64, u64)> = BTreeMap::new();
    for (id, span) in loose {
        let (start, end) = times.entry(id).or_insert((span.start.0, span.end.0));
        (*start, *end) = ((*start).min(span.start.0), (*end).max(span.end.0));
    }
    let lasted = |(what, (start, end))| Lasted { what, start, end };
    let mut absent: Vec<Lasted<SpanId>> = times.into_iter().map(lasted).collect();
    absent.sort_by_key(|one| (one.start, one.end, one.what));
    let beside = overlaps(&absent).into_iter().zip(&absent);
    let apart = beside.filter(|(beside, _)| *beside).map(|(_, one)| one.what);
    apart.zip(from..).collect()
}

/// For each of these, in the order of their starts, whether it overlapped with another one.
fn overlaps<T>(all: &[Lasted<T>]) -> Vec<bool> {
    let mut latest = 0;
    let mut beside: Vec<bool> = Vec::with_capacity(all.len());
    for one in all {
        beside.push(begins_before(one.start, latest));
        latest = latest.max(one.end);
    }
    // A span with a start in whole milliseconds may overlap less than one that begins after it.
    let mut ends_after = u64::MAX;
    for (one, beside) in all.iter().zip(&mut beside).rev() {
        *beside |= ends_after < one.end;
        ends_after = ends_after.min(crate::loops::latest_start(one.start));
    }
    beside
}
