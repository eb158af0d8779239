//! The session stage: traces in order, signals that need neighbours, scores of sessions, and
//! what this shard knows of every agent.
//!
//! ```text
//! TraceUpdate --> Session (by tenant and id) --> Summary (by agent) --> SessionUpdate
//! Report -----'   traces, scores, loops           panes, counters
//! ```
//!
//! An update replaces every lower revision of its trace. What the old form gave to sums is
//! taken back exactly before the new form is added, so signals, scores and panes are a function
//! of the traces held and not of how they came. Verdicts and the trajectory gate count a trace
//! once: the traces that are done for the first time between two calls of `drain` are counted
//! in the order of (start, id).
//!
//! What is left out is counted by (what, why):
//!
//! | What | Why | Counts |
//! |---|---|---|
//! | `trace_updates` | `malformed` | updates without a usable trace id, session, agent or state: dropped |
//! | | `stale` | updates of a lower revision than the one held: dropped |
//! | | `late` | updates of traces that went with their evicted session: dropped |
//! | | `session_full` | updates of further traces over `max_traces_per_session`: dropped |
//! | | `agent_overflow` | updates that count towards `__overflow__` because of `max_agents` |
//! | `sessions` | `evicted` | sessions let go of because of `max_sessions` |
//! | | `trace_not_done` | traces that were not done when their session went: in no score |
//! | `departed_traces` | `forgotten` | over `max_departed_traces`: they may count twice |
//! | `signals` | `agent_full` | scores without sums because of `max_signals_per_agent` |
//! | `panes` | `outside_window` | windows that a done trace ended before or too far after |
//! | `reported_scores` | `malformed` | reported scores out of `[0,1]`, without name or of unknown source |
//! | `loops` | `malformed` | loops of no known kind or severity: in no counter |
//! | `reports` | `misdirected` | reports about something other than a session |
//! | | `unmatched` | reports whose session did not come within `report_wait` |
//! | | `waiting_full` | waiting reports dropped for newer ones over `max_waiting_reports` |
//! | | `session_full` | reports of further names over `max_reports_per_session` |

mod chain;
mod departed;
mod exemplar;
mod explain;
mod fleet;
mod held;
mod histogram;
mod key;
mod list;
mod names;
mod pane;
mod rules;
mod run;
mod scoring;
mod session;
mod summary;
mod tally;
#[cfg(test)]
mod tests;
mod verdict;
mod view;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use histogram::SCORE_BOUNDS;
pub use key::SessionId;
pub use list::{Part, Sought};

use departed::{Departed, Fate};
use fleet::Fleet;
use names::Names;
use rules::Rules;
use session::{Session, Shared};
use summary::Summary;
use tally::Tally;
use waiting::Waiting;

use super::count::Counts;
use super::explained::{SessionFilter, TraceExplanation};
use super::options::{AgentOptions, LoopOptions, SessionOptions};
use super::span::{Report, Target, Timestamp, TraceId};
use super::update::{SessionUpdate, TraceState, TraceUpdate};
use super::view::SessionView;

/// The sessions of one shard.
#[derive(Clone, Debug)]
pub struct Sessions {
    sessions: BTreeMap<Arc<SessionId>, Session>,
    // Invariant: every session once, where its standing and quiet time put it.
    quiet: BTreeSet<(Standing, Timestamp, Arc<SessionId>)>,
    loops: BTreeSet<(Timestamp, Arc<SessionId>)>,
    unsettled: BTreeSet<Arc<SessionId>>,
    departed: Departed,
    waiting: Waiting,
    open: usize,
    max_sessions: usize,
    names: Names,
    shared: Shared,
}

/// A shard as it is written down; `S` and `A` are sessions and agents.
#[derive(Debug, Deserialize, Serialize)]
struct Saved<S, D, W, N, A> {
    sessions: Vec<S>,
    departed: D,
    waiting: W,
    names: N,
    fleet: A,
    now: Timestamp,
}

/// A shard that was read back.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub struct SavedSessions(Saved<Session, Departed, Waiting, Names, fleet::Saved<Summary>>);

/// How a session stands; in the order in which sessions are evicted.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Standing {
    /// Its traces all went elsewhere.
    Empty,
    /// It was quiet for `session_idle`.
    Closed,
    /// More may come.
    Open,
}

impl Sessions {
    /// No sessions yet. `shard` goes into every message.
    pub fn new(
        shard: u32,
        options: SessionOptions,
        loops: LoopOptions,
        agents: AgentOptions,
    ) -> Self {
        let max_sessions = options.max_sessions.max(1);
        let names = Names::new(agents.max_agents);
        let fleet = Fleet::new(shard, agents, options.session_idle);
        let departed = Departed::new(options.max_departed_traces);
        let waiting = Waiting::new(options.max_waiting_reports, options.report_wait);
        let (counts, now) = (Counts::default(), Timestamp::default());
        Self {
            sessions: BTreeMap::new(),
            quiet: BTreeSet::new(),
            loops: BTreeSet::new(),
            unsettled: BTreeSet::new(),
            departed,
            waiting,
            open: 0,
            max_sessions,
            names,
            shared: Shared {
                rules: Rules::new(options, loops),
                fleet,
                counts,
                now,
                runaways: BTreeSet::new(),
            },
        }
    }

    /// Applies an update of a trace, if it is not older than what is held.
    pub fn handle(&mut self, update: TraceUpdate, now: Timestamp) {
        self.advance(now);
        let Some((id, trace)) = address(&update) else {
            self.shared.counts.add("trace_updates", "malformed");
            return;
        };
        let held = self.sessions.get(&id);
        if held.and_then(|session| session.revision(trace)) > Some(update.revision) {
            self.shared.counts.add("trace_updates", "stale");
        } else if update.tombstone {
            self.forget(&id, trace, &update);
        } else if self.departed.is_evicted(trace) {
            self.shared.counts.add("trace_updates", "late");
        } else if held.is_some_and(|session| {
            session.traces.len() >= self.shared.rules.max_traces
                && !session.traces.contains_key(&trace)
        }) {
            self.shared.counts.add("trace_updates", "session_full");
        } else {
            let tally = self.departed.arrive(trace).or_else(|| Tally::told(&update.told));
            let update = self.names.resolve(update);
            let waited = self.waiting.arrive(&id);
            self.change(&id, |session, shared| {
                session.upsert(trace, update, tally, shared);
                waited.into_iter().for_each(|report| session.report(report, shared));
            });
        }
    }

    /// Takes a score of a session as a whole; one for a session that is not there waits.
    pub fn report(&mut self, report: Report, now: Timestamp) {
        self.advance(now);
        let Target::Session { tenant, id } = &report.target else {
            self.shared.counts.add("reports", "misdirected");
            return;
        };
        let tenant = tenant.as_deref().unwrap_or_default().to_owned();
        let id = Arc::new(SessionId { tenant, id: id.to_string() });
        match self.sessions.get_mut(&id).filter(|session| !session.traces.is_empty()) {
            Some(session) => session.report(report, &mut self.shared),
            None => {
                let displaced = self.waiting.insert(id, report, self.shared.now);
                self.shared.counts.add_many("reports", "waiting_full", u64::from(displaced));
            }
        }
    }

    /// When `handle_timeout` has something to do next.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let sessions = STANDINGS.iter().filter_map(|standing| self.next_quiet(*standing));
        let sessions = sessions.map(|(deadline, _)| deadline).min();
        let loops = self.loops.first().map(|(deadline, _)| *deadline);
        let fleet = self.shared.fleet.poll_timeout(self.shared.now);
        [sessions, loops, self.waiting.poll_timeout(), fleet].into_iter().flatten().min()
    }

    /// Closes and evicts what was quiet for long enough.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        self.advance(now);
        let now = self.shared.now;
        for standing in STANDINGS {
            while let Some((_, id)) = self.next_quiet(standing).filter(|(due, _)| *due <= now) {
                match standing {
                    Standing::Open => {
                        self.change(&id, |session, shared| session.close(IDLE, shared));
                    }
                    Standing::Empty | Standing::Closed => self.evict(&id),
                }
            }
        }
        while let Some((_, id)) = self.loops.first().filter(|(due, _)| *due <= now).cloned() {
            self.change(&id, Session::refresh);
        }
        self.shared.counts.add_many("reports", "unmatched", self.waiting.handle_timeout(now));
        self.shared.fleet.handle_timeout(now);
    }

    /// The end of input: closes all sessions. They stay to be looked at.
    pub fn finish(&mut self, now: Timestamp) {
        self.advance(now);
        let open = self.quiet.iter().filter(|(standing, ..)| *standing == Standing::Open);
        let open: Vec<_> = open.map(|(_, _, id)| Arc::clone(id)).collect();
        for id in open {
            self.change(&id, |session, shared| session.close(FINISHED, shared));
        }
    }

    /// One message for every agent of which something changed, in the order of their keys:
    /// everything but its panes, of which only those that changed.
    pub fn drain(&mut self) -> Vec<SessionUpdate> {
        for id in std::mem::take(&mut self.unsettled) {
            if let Some(session) = self.sessions.get_mut(&id) {
                session.settle(&mut self.shared);
            }
        }
        self.shared.fleet.drain()
    }

    /// One session, explained; `None` if it is not held. The tenant is empty without tenants.
    pub fn session(&self, tenant: &str, id: &str) -> Option<SessionView> {
        let id = SessionId { tenant: tenant.to_owned(), id: id.to_owned() };
        let session = self.sessions.get(&id).filter(|session| !session.traces.is_empty())?;
        Some(view::session(session, &self.shared.rules))
    }

    /// Rows of the sessions after one that fit, in the order of their tenants and ids, until `budget` traces were looked at.
    pub fn rows(&self, after: Option<SessionId>, filter: &SessionFilter, budget: usize) -> Part {
        list::rows(&self.sessions, after, filter, (budget, &self.shared.rules))
    }

    /// Looks for the session that holds a trace, in `budget` sessions after an id.
    pub fn find(&self, tenant: &str, after: Option<&str>, trace: TraceId, budget: usize) -> Sought {
        list::find(&self.sessions, tenant, after, (trace, budget))
    }

    /// Why a trace has the score that it has; `None` if this session does not hold it.
    pub fn explain(&self, tenant: &str, id: &str, trace: TraceId) -> Option<TraceExplanation> {
        let id = SessionId { tenant: tenant.to_owned(), id: id.to_owned() };
        explain::explain(self.sessions.get(&id)?, trace, &self.shared.rules)
    }

    /// All sessions held, by the start of their first trace, then id.
    pub fn sessions(&self) -> impl Iterator<Item = SessionView> {
        let sessions = self.sessions.values();
        let mut ordered: Vec<_> = sessions
            .filter_map(|session| Some((session.order.first()?.0, &session.id.id, session)))
            .collect();
        // The map is by tenant, then id, and the sort is stable.
        ordered.sort_by_key(|(start, id, _)| (*start, *id));
        ordered.into_iter().map(|(_, _, session)| view::session(session, &self.shared.rules))
    }

    /// Sessions in which a loop began or became critical since this was last asked: tenant, id, kind, severity.
    pub fn runaways(&mut self) -> Vec<(String, String, &'static str, &'static str)> {
        let runaways = std::mem::take(&mut self.shared.runaways).into_iter();
        let named = |id: Arc<SessionId>| (id.tenant.clone(), id.id.clone());
        runaways
            .map(|(id, kind, severity)| (named(id), kind, severity))
            .map(|((tenant, id), kind, severity)| (tenant, id, kind, severity))
            .collect()
    }

    /// What was left out so far.
    pub fn counts(&self) -> &Counts {
        &self.shared.counts
    }

    /// Counts from zero again, for every agent too: counters belong to a process.
    pub fn restart_counts(&mut self) {
        self.shared.counts = Counts::default();
        self.shared.fleet.restart_counts();
    }

    /// What outlives the process; nothing may wait to be drained.
    pub fn save(&self) -> impl Serialize + '_ {
        Saved {
            sessions: self.sessions.values().collect(),
            departed: &self.departed,
            waiting: &self.waiting,
            names: &self.names,
            fleet: self.shared.fleet.save(),
            now: self.shared.now,
        }
    }

    /// Takes over what an earlier process held.
    pub fn restore(&mut self, saved: SavedSessions) {
        let Saved { sessions, departed, waiting, names, fleet, now } = saved.0;
        self.departed.restore(departed);
        self.waiting.restore(waiting);
        self.names.restore(names);
        self.shared.fleet.restore(fleet);
        self.advance(now);
        sessions.into_iter().for_each(|session| self.file(session));
    }

    /// How many sessions are open.
    pub fn open_sessions(&self) -> usize {
        self.open
    }

    /// How many sessions are held, closed ones included.
    pub fn held_sessions(&self) -> usize {
        self.sessions.len()
    }

    /// How many agents are known to this shard.
    pub fn agents(&self) -> usize {
        self.shared.fleet.len()
    }

    fn advance(&mut self, now: Timestamp) {
        self.shared.now = self.shared.now.max(now);
    }

    /// Forgets a trace that moved, and keeps what it counted for where it goes.
    fn forget(&mut self, id: &Arc<SessionId>, trace: TraceId, update: &TraceUpdate) {
        let mut tally = None;
        self.change(id, |session, shared| {
            session.touch(Timestamp(update.touched_unix_nano), shared);
            tally = session.remove(trace, update.revision, shared);
        });
        if let Some(tally) = tally {
            let forgotten = self.departed.insert(trace, Fate::Moved(tally));
            self.shared.counts.add_many("departed_traces", "forgotten", u64::from(forgotten));
        }
    }

    /// Changes a session, making it if need be, and files it where it belongs then.
    fn change(&mut self, id: &Arc<SessionId>, change: impl FnOnce(&mut Session, &mut Shared)) {
        if !self.sessions.contains_key(id) && self.sessions.len() >= self.max_sessions {
            self.make_room();
        }
        let Some(session) = self.sessions.get_mut(id) else {
            let mut session = Session::new(Arc::clone(id));
            change(&mut session, &mut self.shared);
            self.file(session);
            return;
        };
        let (before, deadline) = (place(session), session.loop_deadline);
        change(session, &mut self.shared);
        let after = place(session);
        if before != after {
            self.open -= usize::from(before.0 == Standing::Open);
            self.open += usize::from(after.0 == Standing::Open);
            self.quiet.remove(&before);
            self.quiet.insert(after);
        }
        if deadline != session.loop_deadline {
            if let Some(at) = deadline {
                self.loops.remove(&(at, Arc::clone(&session.id)));
            }
            if let Some(at) = session.loop_deadline {
                self.loops.insert((at, Arc::clone(&session.id)));
            }
        }
        if session.is_unsettled() {
            self.unsettled.insert(Arc::clone(&session.id));
        }
    }

    /// Takes a session out of the indexes.
    fn unfile(&mut self, session: Session) -> Session {
        let place = place(&session);
        self.open -= usize::from(place.0 == Standing::Open);
        self.quiet.remove(&place);
        if let Some(deadline) = session.loop_deadline {
            self.loops.remove(&(deadline, Arc::clone(&session.id)));
        }
        session
    }

    /// Puts a session where it belongs.
    fn file(&mut self, session: Session) {
        let place = place(&session);
        self.open += usize::from(place.0 == Standing::Open);
        self.quiet.insert(place);
        let id = Arc::clone(&session.id);
        if let Some(deadline) = session.loop_deadline {
            self.loops.insert((deadline, Arc::clone(&id)));
        }
        if session.is_unsettled() {
            self.unsettled.insert(Arc::clone(&id));
        }
        self.sessions.insert(id, session);
    }

    /// Evicts a session that is empty, or the one that closed first, or the quietest.
    fn make_room(&mut self) {
        let Some((standing, _, id)) = self.quiet.first().cloned() else { return };
        if standing == Standing::Open {
            self.change(&id, |session, shared| session.close(EVICTED, shared));
        }
        self.shared.counts.add_many("sessions", "evicted", u64::from(standing != Standing::Empty));
        self.evict(&id);
    }

    fn evict(&mut self, id: &Arc<SessionId>) {
        let Some(session) = self.sessions.remove(id) else { return };
        let session = self.unfile(session);
        self.unsettled.remove(id);
        self.shared.runaways.retain(|(runaway, ..)| runaway != id);
        for trace in session.evict(&mut self.shared) {
            let forgotten = self.departed.insert(trace, Fate::Evicted);
            self.shared.counts.add_many("departed_traces", "forgotten", u64::from(forgotten));
        }
    }

    /// The session of this standing that is due first, and when.
    fn next_quiet(&self, standing: Standing) -> Option<(Timestamp, Arc<SessionId>)> {
        let idle = self.shared.rules.session_idle;
        let from = (standing, Timestamp::default(), Arc::default());
        let (found, quiet, id) = self.quiet.range(from..).next()?;
        let due = match standing {
            Standing::Empty | Standing::Open => quiet.after(idle),
            Standing::Closed => quiet.after(idle).after(idle),
        };
        (*found == standing).then(|| (due, Arc::clone(id)))
    }
}

/// The session and the trace that an update is about, if it is fit for use.
fn address(update: &TraceUpdate) -> Option<(Arc<SessionId>, TraceId)> {
    let trace = TraceId(<[u8; 16]>::try_from(update.trace_id.as_slice()).ok()?);
    let session = update.session.as_ref().filter(|session| !session.id.is_empty())?;
    let complete = update.agent.is_some() && update.state() != TraceState::Unspecified;
    let usable = !trace.is_zero() && (update.tombstone || complete);
    let id = SessionId { tenant: session.tenant.clone(), id: session.id.clone() };
    usable.then(|| (Arc::new(id), trace))
}

fn place(session: &Session) -> (Standing, Timestamp, Arc<SessionId>) {
    let standing = match (session.traces.is_empty(), session.closed) {
        (true, _) => Standing::Empty,
        (false, true) => Standing::Closed,
        (false, false) => Standing::Open,
    };
    (standing, session.touched, Arc::clone(&session.id))
}

/// All standings; a session that closes may be due to be let go of right away.
const STANDINGS: [Standing; 3] = [Standing::Open, Standing::Closed, Standing::Empty];

/// Why sessions close.
const IDLE: &str = "idle";
/// They had to make room.
const EVICTED: &str = "evicted";
/// The input ended.
const FINISHED: &str = "finished";
