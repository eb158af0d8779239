//! Which agents, and which spans that never arrived, have calls that form a separate series.

use std::collections::BTreeMap;

use super::names::name_of;
use super::tree::Tree;
use crate::engine::span::{Operation, SpanId, Timestamp};

/// The representative of the series of the calls below an agent, by index, if that is not the series around the agent.
///
/// Agents that one call or agent started are separate if any agent of their name overlapped another of them in time: alone, if the
/// agent overlapped one of the same name and library, else with the others of its name that got the same input. If none of a name
/// overlapped another and all have one name, those are separate whose input differs from that of the first.
pub(super) fn of_agents(
    tree: &Tree,
    told_by: &dyn Fn(usize) -> Option<usize>,
) -> BTreeMap<usize, usize> {
    let is_agent = |at: usize| tree.spans[at].operation == Operation::InvokeAgent;
    let agents: Vec<usize> = tree.behaviour().iter().copied().filter(|at| is_agent(*at)).collect();
    let began = |at: usize| {
        let mut above = tree.above(at).iter().copied();
        above.find_map(|above| told_by(above).or_else(|| is_agent(above).then_some(above)))
    };
    let time = |at: usize| (tree.spans[at].start, tree.spans[at].end);
    let beside = |one: usize, other: usize| {
        one != other
            && began(one) == began(other)
            && at_once((one, time(one)), (other, time(other)))
    };
    let name = |at: usize| name_of(&tree.spans[at]);
    let alone = |at: usize| {
        agents.iter().copied().any(|other| {
            beside(at, other)
                && name(other) == name(at)
                && tree.spans[other].scope == tree.spans[at].scope
        })
    };
    let mut series = BTreeMap::new();
    for at in agents.iter().copied() {
        let alike = |other: &usize| name(*other) == name(at) && began(*other) == began(at);
        let namesakes: Vec<usize> = agents.iter().copied().filter(alike).collect();
        let is_busy = |at: &usize| agents.iter().any(|other| beside(*at, *other));
        let input = |at: usize| tree.spans[at].input_hash;
        let same = |other: &usize| input(*other) == input(at);
        if namesakes.iter().any(is_busy) {
            let first = namesakes.iter().copied().find(|other| !alone(*other) && same(other));
            series.insert(at, if alone(at) { at } else { first.unwrap_or(at) });
            continue;
        }
        let others = agents.iter().filter(|other| began(**other) == began(at)).count();
        let first = namesakes.iter().find_map(|at| input(*at));
        if others == namesakes.len() && input(at).is_some() && first != input(at) {
            series.extend(namesakes.iter().copied().find(same).map(|first| (at, first)));
        }
    }
    series
}

/// A number for each span that never arrived, by id, if it must have overlapped another such span.
pub(super) fn of_absent(tree: &Tree) -> BTreeMap<SpanId, usize> {
    let mut lasted: BTreeMap<SpanId, (Timestamp, Timestamp)> = BTreeMap::new();
    for span in tree.own() {
        let parent = span.parent.filter(|id| tree.spans.iter().all(|span| span.span_id != *id));
        let Some(parent) = parent else { continue };
        let time = lasted.entry(parent).or_insert((span.start, span.end));
        *time = (time.0.min(span.start), time.1.max(span.end));
    }
    let all = || lasted.iter().map(|(id, time)| (*id, *time));
    let is_apart = |one| all().any(|other| other != one && at_once(one, other));
    let apart = all().filter(|one| is_apart(*one)).map(|(id, _)| id);
    apart.zip(tree.spans.len()..).collect()
}

/// Whether one of two, each with its time, began before the other had ended; to a millisecond, if it began in whole milliseconds.
fn at_once<T: Ord>(
    (one, (start, end)): (T, (Timestamp, Timestamp)),
    (other, (other_start, other_end)): (T, (Timestamp, Timestamp)),
) -> bool {
    let (later, earlier_end) = if (start, end, one) < (other_start, other_end, other) {
        (other_start, end)
    } else {
        (start, other_end)
    };
    let cut = if later.0 % 1_000_000 == 0 { 1_000_000 } else { 0 };
    later.0 + cut < earlier_end.0
}
