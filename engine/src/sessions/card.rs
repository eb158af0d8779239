//! Cards: for each session in memory, the values by which lists are sorted and filtered. A list scans the cards, and reads a
//! session only for what its card lacks.

use super::record::TraceRecord;
use super::session::Session;
use super::summary::SessionScores;
use super::view::is_flagged;
use crate::explained::{AgentFilter, SessionFilter, Sort};
use crate::facts::{AgentKey, OVERFLOW};
use crate::span::Timestamp;
use crate::tenants::{TenantHash, tenant_hash};

/// Sums over the traces of a session, for its card.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Listed {
    // The last end of a trace; too late if `is_stale`.
    end: Timestamp,
    loops: u32,
    // How many traces fail.
    flagged: u32,
    // How many traces have a cost.
    priced: u32,
    // Whether the trace that ended last was removed.
    is_stale: bool,
    pub(super) agents: AgentsHeld,
}

/// How many agents the traces of a session have.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum AgentsHeld {
    /// Not known: its traces have to be scanned.
    #[default]
    Unknown,
    One,
    Several,
}

/// The contribution of a trace to these sums once it is scored.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Marks {
    /// How many of its loops have more evidence than names.
    pub(super) loops: u32,
    /// Whether it fails.
    pub(super) flagged: bool,
}

/// The values by which lists of sessions are sorted and filtered.
#[derive(Clone, Debug)]
pub(super) struct Card {
    /// Start of its first trace, in nanoseconds.
    pub(super) start: u64,
    end: u64,
    // Sort keys: the smaller comes first.
    reliability: u64,
    cost: u64,
    loops: u32,
    tenant: TenantHash,
    /// The agent of its first trace.
    agent: AgentKey,
    open: bool,
    flagged: bool,
    /// Whether it has traces of other agents, too.
    several: bool,
}

/// Cards by session number, in blocks: cards do not move when the table grows.
#[derive(Clone, Debug, Default)]
pub(super) struct Cards(Vec<Vec<Option<Card>>>);

/// How many cards a block has.
const BLOCK: usize = 1_024;

impl Listed {
    /// Adds a trace that is not scored yet.
    pub(super) fn add(&mut self, record: &TraceRecord) {
        if record.sent_end >= self.end {
            (self.end, self.is_stale) = (record.sent_end, false);
        }
        self.priced += u32::from(record.cost().is_some());
    }

    /// Removes a trace, with its marks.
    pub(super) fn remove(&mut self, record: &TraceRecord) {
        self.is_stale |= record.sent_end == self.end;
        self.priced -= u32::from(record.cost().is_some());
        let Marks { loops, flagged } = record.marks();
        self.loops -= loops;
        self.flagged -= u32::from(flagged);
    }

    /// Replaces the marks of a trace by those of its current scores.
    pub(super) fn mark(&mut self, record: &mut TraceRecord) {
        let before = record.marks();
        let loops = u32::try_from(record.weighing_loops().count()).unwrap_or(u32::MAX);
        let after = Marks { loops, flagged: is_flagged(record) };
        if before != after {
            record.set_marks(after);
            self.loops = self.loops + after.loops - before.loops;
            self.flagged = self.flagged + u32::from(after.flagged) - u32::from(before.flagged);
        }
    }
}

impl Session {
    /// Notes the agent of a record that is about to be added, in place of the one with this number, if any.
    pub(super) fn note_agent(&mut self, record: &TraceRecord, number: Option<usize>) {
        let differs = |other: &TraceRecord| other.agent() != record.agent();
        if number.is_some_and(|number| differs(&self.traces[number])) {
            self.listed.agents = AgentsHeld::Unknown;
        } else if self.listed.agents == AgentsHeld::One && self.first().is_some_and(differs) {
            self.listed.agents = AgentsHeld::Several;
        }
    }

    /// Its card, given its scores; `None` while it has no traces.
    pub(super) fn card(&mut self, scores: SessionScores) -> Option<Card> {
        if self.listed.is_stale {
            let last = self.traces.iter().map(|record| record.sent_end).max();
            (self.listed.end, self.listed.is_stale) = (last.unwrap_or_default(), false);
        }
        if self.listed.agents == AgentsHeld::Unknown {
            let mut agents = self.traces.iter().map(TraceRecord::agent);
            let first = agents.next();
            let one = agents.all(|agent| Some(agent) == first);
            self.listed.agents = if one { AgentsHeld::One } else { AgentsHeld::Several };
        }
        let first = self.first()?;
        let Listed { end, loops, flagged, priced, agents, .. } = self.listed;
        let reliability = scores.reliability().map(|score| u64::try_from(score.0).unwrap_or(0));
        Some(Card {
            start: first.start.0,
            end: end.0,
            reliability: reliability.unwrap_or(u64::MAX),
            cost: if priced > 0 {
                (u64::MAX - 1).saturating_sub(self.used.cost_quanta)
            } else {
                u64::MAX
            },
            loops,
            tenant: tenant_hash(Some(&self.id.tenant)),
            agent: first.agent().clone(),
            open: !self.closed,
            flagged: flagged > 0,
            several: agents == AgentsHeld::Several,
        })
    }

    /// Recomputes the sums of its traces for its card.
    pub(super) fn list(&mut self) {
        self.listed = Listed::default();
        for record in self.traces.iter_mut() {
            record.set_marks(Marks::default());
            self.listed.add(record);
            self.listed.mark(record);
        }
    }
}

impl Card {
    /// Its sort key in an order, and the tie-breaker; the smaller comes first.
    pub(super) fn rank(&self, sort: Sort) -> (u64, u64) {
        let (start, newest) = (self.start, u64::MAX - self.end);
        match sort {
            Sort::Start => (0, start),
            Sort::Recent => (newest, start),
            Sort::Reliability => (self.reliability, newest),
            Sort::Loops => (u64::from(u32::MAX - self.loops), newest),
            Sort::Cost => (self.cost, newest),
        }
    }

    /// Whether the session may pass a filter, and belongs to the tenant of this hash if one is given. Conditions that the card
    /// cannot decide are ignored.
    pub(super) fn may_fit(&self, filter: &SessionFilter, tenant: Option<TenantHash>) -> bool {
        filter.open.is_none_or(|open| open == self.open)
            && filter.loops.is_none_or(|loops| loops == (self.loops > 0))
            && filter.failing.is_none_or(|failing| failing == self.flagged)
            && tenant.is_none_or(|tenant| tenant == self.tenant)
            && (self.lacks_agents() || filter.agent.admits(Some(&self.agent)))
    }

    /// Whether only its traces can show whether it belongs to a requested agent.
    pub(super) fn asks_agents(&self, agent: &AgentFilter) -> bool {
        let is_told = || !self.is_overflow() && agent.admits(Some(&self.agent));
        self.lacks_agents() && *agent != AgentFilter::default() && !is_told()
    }

    /// Whether it has traces of agents whose names the card lacks.
    fn lacks_agents(&self) -> bool {
        self.several || self.is_overflow()
    }

    fn is_overflow(&self) -> bool {
        &*self.agent.service_name == OVERFLOW
    }
}

impl Cards {
    /// Sets the card of a session, or removes it.
    pub(super) fn set(&mut self, number: u32, card: Option<Card>) {
        let (block, at) = place(number);
        while self.0.len() <= block {
            self.0.push(Vec::new());
        }
        let Some(cards) = self.0.get_mut(block) else { return };
        if cards.is_empty() {
            cards.reserve_exact(BLOCK);
        }
        while cards.len() <= at {
            cards.push(None);
        }
        if let Some(place) = cards.get_mut(at) {
            *place = card;
        }
    }

    /// All cards from a number on, with `None` for numbers without one.
    pub(super) fn from(&self, first: u32) -> impl Iterator<Item = (u32, Option<&Card>)> {
        let (block, at) = place(first);
        let blocks = self.0.iter().skip(block).enumerate();
        let cards = blocks
            .flat_map(move |(later, cards)| cards.iter().skip(if later == 0 { at } else { 0 }));
        (first..).zip(cards.map(Option::as_ref))
    }
}

fn place(number: u32) -> (usize, usize) {
    let number = usize::try_from(number).unwrap_or(usize::MAX);
    (number / BLOCK, number % BLOCK)
}
