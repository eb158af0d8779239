//! Drops of all agents: which streams are watched, what each is compared with, and how they share the false pages.
//!
//! ```text
//! DoneTrace --> Watch (by agent version) --> Watched (by stream): detector, examples
//! ```
//!
//! A trace counts when its verdicts do, without a delay. Traces that were received between two calls of [`Drops::settle`] count in
//! the order of arrival, so nothing depends on the number of shards. An outcome that is reported after its trace was done counts
//! once, when it is reported; so does an outcome of a session.
//!
//! Streams that page share `drop.false_pages_per_quarter` evenly, if they had a value within a day of the newest; streams that only
//! warn share as many warnings among themselves. A new version of an agent starts with what the latest version before it has
//! learned, and is compared with that until it has learned a hundred values of its own, unless a deployment was reported that
//! accepts whatever level the version has.
//!
//! A drop ends when the values of its stream are good again, or when its stream and its version have been silent for a day, and for
//! longer than is usual, while the agent continues in another version: after a rollback the failed version sends nothing more.
//!
//! A silent agent is remembered for four times `drop.memory`. At most four times `agents.max_agents` are remembered; beyond that,
//! the one that has been silent for longest is forgotten.

mod deployments;
mod gaps;
mod index;
mod stream;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

pub use deployments::DEPLOYMENT;
pub(super) use deployments::Deployment;
pub use stream::{STREAMS, Stream};

use self::deployments::Deployments;
use self::gaps::AgentGaps;
use self::index::Index;
use self::stream::{NO_OBJECTIVE, Value};
use self::watch::{AgentWatch, StreamWatch};
use super::count::Counts;
use super::detect::{DropLimits, DropOptions};
use super::drift::DriftOptions;
use super::drift::sequential::difference;
use super::facts::{AgentKey, DoneTrace, ScopedId};
use super::math::Quanta;
use super::span::Timestamp;
use super::tenants::{self, tenant_hash};
use super::time::WallShift;
use super::view::{AgentView, DeploymentView, VersionView};

/// All agents under watch.
#[derive(Debug)]
pub struct Drops {
    options: DropOptions,
    max: usize,
    watches: BTreeMap<AgentKey, AgentWatch>,
    // Of the watches; not in a snapshot.
    index: Index,
    gaps: AgentGaps,
    deployments: Deployments,
    // Traces that were received and are not counted yet.
    waiting: Vec<ArrivedTrace>,
    // The agents of these traces.
    told: Vec<AgentKey>,
    shares: Shares,
    tenants: tenants::Shares,
}

/// A done trace or an outcome that was received and is not counted yet.
#[derive(Debug)]
struct ArrivedTrace {
    /// The engine time (not the wall time) of the trace's end, or of the arrival of the outcome; never after its arrival.
    at: Timestamp,
    /// The time of its start.
    began: Timestamp,
    agent: AgentKey,
    trace: DoneTrace,
    /// The session of the trace, hashed; `None`: it has none.
    session: Option<u64>,
}

/// Numbers of streams that share the false pages and the false warnings.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
struct Shares {
    paging: usize,
    warning: usize,
    newest: Timestamp,
    // When the streams that continue were last counted.
    counted: Timestamp,
}

/// Drops in a snapshot.
#[derive(Debug, Deserialize, Serialize)]
struct Saved<W> {
    watches: Vec<(AgentKey, W)>,
    gaps: AgentGaps,
    deployments: Deployments,
    shares: Shares,
}

/// Drops, read from a snapshot.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct SavedDrops(Saved<AgentWatch>);

impl Drops {
    /// Watches nothing yet; `max_agents` is the number of agents that may have series of their own.
    pub fn new(options: DropOptions, max_agents: usize) -> Self {
        Self {
            options,
            max: max_agents.saturating_mul(REMEMBERED),
            watches: BTreeMap::new(),
            index: Index::default(),
            gaps: AgentGaps::default(),
            deployments: Deployments::default(),
            waiting: Vec::new(),
            told: Vec::new(),
            shares: Shares::default(),
            tenants: tenants::Shares::default(),
        }
    }

    /// The same, with tenants sharing the bound on watches.
    #[must_use]
    pub fn shared_by(self, tenants: tenants::Shares) -> Self {
        Self { tenants, ..self }
    }

    /// The watches for a snapshot; must be settled.
    pub(super) fn save(&self) -> impl Serialize + '_ {
        debug_assert!(self.waiting.is_empty());
        let watches = self.watches.iter().map(|(key, watch)| (key.clone(), watch));
        let (gaps, deployments) = (self.gaps.clone(), self.deployments.clone());
        Saved { watches: watches.collect(), gaps, deployments, shares: self.shares }
    }

    /// Removes usual efforts of traces that started in future weeks, as the wall clock was set back since.
    pub(super) fn forget_ahead(&mut self, wall: Timestamp) {
        self.watches.values_mut().for_each(|watch| watch.usual.forget_ahead(wall));
    }

    /// Takes over the watches from a snapshot.
    pub(super) fn restore(&mut self, saved: SavedDrops) {
        let Saved { watches, gaps, deployments, shares } = saved.0;
        self.watches.extend(watches);
        self.index = Index::of(&self.watches);
        self.gaps = gaps;
        self.deployments = deployments;
        self.shares = shares;
    }

    /// Receives traces and outcomes of an agent, to be counted by [`Drops::settle`].
    ///
    /// A trace that was running when the wall clock was set back ended by the old clock, which is in the future of the new one.
    /// Nothing ends after its arrival, which is in engine time; if nothing arrives by a clock, as in a replay, that is zero.
    pub(super) fn observe(
        &mut self,
        agent: &AgentKey,
        traces: impl IntoIterator<Item = DoneTrace>,
        shift: WallShift,
    ) {
        let mut traces = traces.into_iter().peekable();
        if traces.peek().is_none() {
            return;
        }
        let ended = |trace: &DoneTrace| {
            let at = shift.time(Timestamp(trace.at_unix_nano));
            let arrived = Some(Timestamp(trace.touched_unix_nano)).filter(|arrived| arrived.0 > 0);
            arrived.map_or(at, |arrived| at.min(arrived))
        };
        self.waiting.extend(traces.map(|trace| ArrivedTrace {
            at: ended(&trace),
            began: shift.time(Timestamp(trace.start_unix_nano)),
            agent: agent.clone(),
            session: hashed(&trace.session),
            trace,
        }));
        self.told.push(agent.clone());
    }

    /// Counts what was received, in the order of arrival. Returns the agents whose previous version was among these, those with a
    /// drop that ended because the agent continues in another version, and the other versions of agents whose longest usual gap has
    /// changed.
    pub(super) fn settle(&mut self, drift: &DriftOptions, counts: &mut Counts) -> Vec<AgentKey> {
        let mut waiting = mem::take(&mut self.waiting);
        let mut in_turn: Vec<_> = waiting.iter().collect();
        in_turn.sort_by_key(|told| (told.trace.turn(), &told.agent));
        let mut ended = Vec::new();
        for told in in_turn {
            ended.extend(self.pass(told.at, counts));
            ended.extend(self.count(told, drift, counts));
        }
        let told = mem::take(&mut self.told);
        for agent in told.iter().filter(|agent| self.gaps.take_change(agent)) {
            ended.extend(agent.other_versions(&self.watches).map(|(other, _)| other.clone()));
        }
        let after = told.iter().flat_map(|agent| self.index.versions_after(agent)).cloned();
        let after = after.chain(ended).collect();
        // Releases the memory of a burst.
        waiting.clear();
        waiting.shrink_to(ROOM);
        self.waiting = waiting;
        after
    }

    /// Accepts the present level of an agent's stream, or of all its streams, as the usual one; returns whether there was a drop,
    /// or a warning of one.
    pub(super) fn accept(&mut self, agent: &AgentKey, stream: Option<&str>, at: Timestamp) -> bool {
        let Some(watch) = self.watches.get_mut(agent) else { return false };
        let mut any = false;
        for (of, watched) in watch.streams.iter_mut() {
            any |= stream.is_none_or(|wanted| wanted == of.name) && watched.accept(at);
        }
        self.accept_carried(agent, stream);
        any
    }

    /// Makes the level of an agent version's drops the usual one of the versions in which they continue.
    fn accept_carried(&mut self, agent: &AgentKey, stream: Option<&str>) {
        let others = agent.other_versions(&self.watches);
        let others: Vec<AgentKey> = others.map(|(other, _)| other.clone()).collect();
        for other in others {
            let Some(watch) = self.watches.get_mut(&other) else { continue };
            let streams = watch.streams.iter_mut();
            let wanted = streams.filter(|(of, _)| stream.is_none_or(|wanted| wanted == of.name));
            for (_, watched) in wanted {
                watched.accept_carried_from(&agent.agent_version);
            }
        }
    }

    /// Remembers a deployment of these agents. If it accepts whatever level it brings, it ends drops, and other streams start
    /// afresh. Returns whether the deployment is new; `at` is engine time, not wall time.
    pub(super) fn deploy(
        &mut self,
        deployment: &Deployment,
        at: Timestamp,
        shares: &tenants::Shares,
        counts: &mut Counts,
    ) -> bool {
        let max = self.options.max_deployments;
        let (is_new, over) = self.deployments.insert(deployment.clone(), max, shares);
        counts.add_many("deployments", "forgotten", u64::from(over));
        if is_new && deployment.is_accepted {
            let own = self.watches.keys().filter(|agent| deployment.is_of_version(agent));
            let own: Vec<AgentKey> = own.cloned().collect();
            for agent in own {
                self.watches.get_mut(&agent).into_iter().for_each(|watch| watch.renew(at));
                self.accept_carried(&agent, None);
            }
        }
        is_new
    }

    /// The deployments of an agent, of any version, the newest first.
    pub(super) fn deployments(&self, agent: &AgentKey) -> Vec<DeploymentView> {
        let own = self.deployments.of(agent).into_iter().take(SHOWN);
        own.map(|deployment| DeploymentView {
            unix_nano: deployment.at.0.to_string(),
            agent_version: deployment.agents.agent_version.to_string(),
            name: deployment.name.as_ref().map(ToString::to_string),
            accepted: deployment.is_accepted,
        })
        .collect()
    }

    /// Adds to an agent what is known from watching it: its deployments, how its version differs from the one before, the states of
    /// its streams in the order of [`STREAMS`], and its longest usual gap in seconds.
    pub(super) fn look_at(
        &self,
        agent: &AgentKey,
        view: &mut AgentView,
        drift: &DriftOptions,
        shift: WallShift,
    ) {
        view.deployments = self.deployments(agent);
        let Some(watch) = self.watches.get(agent) else { return };
        view.versions = self.version(agent, watch, drift).into_iter().collect();
        let streams = watch.streams.iter().map(|(stream, watched)| {
            let limits = self.shares.limits(&self.options, agent, stream);
            let before = before(agent, watch).filter(|before| {
                // A drop that the version before has, too, is not this version's fault.
                watched.is_held_against_the_version_before(&limits) && !self.drops(before, stream)
            });
            watched.view(stream, &limits, before.map(|key| key.agent_version.to_string()), shift)
        });
        view.drops = streams.collect();
        view.usual_gap_seconds = self.gaps.longest_usual(agent);
    }

    /// When the last done trace of an agent arrived.
    pub(super) fn last_trace(&self, agent: &AgentKey) -> Option<Timestamp> {
        let watch = self.watches.get(agent)?;
        Some(watch.gaps.last()).filter(|last| last.0 > 0)
    }

    /// Whether a stream of an agent is in a drop or a warning.
    fn drops(&self, agent: &AgentKey, stream: &Stream) -> bool {
        let watch = self.watches.get(agent);
        watch.and_then(|watch| watch.streams.get(stream.name)).is_some_and(StreamWatch::drops)
    }

    fn version(
        &self,
        agent: &AgentKey,
        own: &AgentWatch,
        drift: &DriftOptions,
    ) -> Option<VersionView> {
        let before = self.watches.get(&before(agent, own)?)?;
        let found = difference(&before.level, &own.level, drift)?;
        Some(VersionView {
            baseline: own.before.as_deref().unwrap_or_default().to_owned(),
            estimate: found.estimate,
            lower: found.lower,
            upper: found.upper,
            differs: found.excludes_zero(),
        })
    }

    /// Advances the time to `at`: each hour it counts the streams that continue, forgets agents that have been silent for long, and
    /// ends the drops of versions that were replaced. Returns the agents with a drop that ended.
    fn pass(&mut self, at: Timestamp, counts: &mut Counts) -> Vec<AgentKey> {
        self.shares.newest = self.shares.newest.max(at);
        let newest = self.shares.newest;
        if newest < self.shares.counted.after(LOOK) {
            return Vec::new();
        }
        let keep = self.options.memory.saturating_mul(MEMORIES);
        let held = self.watches.len();
        self.watches.retain(|agent, watch| {
            let stays = watch.told.after(keep) >= newest;
            if !stays {
                self.index.remove(agent, watch);
            }
            stays
        });
        counts.add_many("drops", "expired", (held - self.watches.len()) as u64);
        self.gaps.keep(self.watches.keys());
        let streams = self.watches.values().flat_map(|watch| watch.streams.iter());
        let mut shares = Shares { counted: newest, newest, ..Shares::default() };
        for (stream, _) in streams.filter(|(_, watched)| goes_on(watched.last, newest)) {
            shares.add(stream.pages);
        }
        self.shares = shares;
        self.end_replaced()
    }

    /// Ends the drops and warnings of versions that have gone silent, of agents that continue in another version, unless the drops
    /// continue there: after a rollback the failed version sends nothing more. Returns the agents with a drop that ended.
    fn end_replaced(&mut self) -> Vec<AgentKey> {
        let newest = self.shares.newest;
        let mut replaced = Vec::new();
        for (agent, watch) in &self.watches {
            let silent = watch.shown_and_silent(newest);
            let over = silent.filter(|stream| {
                let others = || agent.other_versions(&self.watches).map(|(_, other)| other);
                others().any(|other| goes_on(other.told, newest))
                    && !others().any(|other| other.carries_on(&agent.agent_version, stream, newest))
            });
            replaced.extend(over.map(|stream| (agent.clone(), stream)));
        }
        for (agent, stream) in &replaced {
            self.end(agent, stream);
        }
        replaced.into_iter().map(|(agent, _)| agent).collect()
    }

    /// Ends the drop of a stream, or a warning of one.
    fn end(&mut self, agent: &AgentKey, stream: &str) {
        let watch = self.watches.get_mut(agent);
        let watched = watch.and_then(|watch| watch.streams.get_mut(stream));
        watched.into_iter().for_each(StreamWatch::end);
    }

    /// Ends the drop of an earlier version that has been silent since a later version, in which the drop continued, is good again,
    /// unless it continues in yet another one. Returns the earlier version if it did.
    fn end_mended(&mut self, shown: AgentKey, since: Timestamp, stream: &str) -> Option<AgentKey> {
        let newest = self.shares.newest;
        let is_silent = self.watched(&shown, stream).is_some_and(|watched| watched.last < since);
        let goes_on = shown
            .other_versions(&self.watches)
            .any(|(_, other)| other.carries_on(&shown.agent_version, stream, newest));
        (is_silent && !goes_on).then(|| {
            self.end(&shown, stream);
            shown
        })
    }

    fn watched(&self, agent: &AgentKey, stream: &str) -> Option<&StreamWatch> {
        self.watches.get(agent)?.streams.get(stream)
    }

    /// Makes room for a new agent; returns its new watch.
    fn begin(&mut self, agent: &AgentKey, counts: &mut Counts) -> AgentWatch {
        let before = self.index.latest_before(agent).map(|key| key.agent_version.clone());
        if self.watches.len() >= self.max {
            if let Some(oldest) = self.least_missed(agent) {
                if let Some(watch) = self.watches.remove(&oldest) {
                    self.index.remove(&oldest, &watch);
                }
                if oldest.other_versions(&self.watches).next().is_none() {
                    self.gaps.forget(&oldest);
                }
            }
            counts.add("drops", "forgotten");
        }
        let told = self.shares.newest;
        let starts_fresh = self.deployments.accept(agent);
        let mut watch = AgentWatch { before, told, starts_fresh, ..AgentWatch::default() };
        let left = watch.predecessor(agent).and_then(|key| self.watches.get(&key));
        if let Some(left) = left {
            (watch.usual, watch.learner) = (left.usual.clone(), left.learner.clone());
        }
        watch
    }

    /// The agent that makes room for a new one: the one that has been silent for longest, of the tenant that then holds the most
    /// relative to its share.
    fn least_missed(&self, new: &AgentKey) -> Option<AgentKey> {
        let mut held = BTreeMap::from([(tenant_hash(Some(&new.tenant)), 1)]);
        for (tenant, count) in self.index.held() {
            *held.entry(tenant).or_default() += count;
        }
        let most_over_share = self.tenants.most_over_share(held.into_iter());
        let oldest = most_over_share.and_then(|tenant| self.index.oldest_of(tenant));
        // It may have none but the new one.
        oldest.or_else(|| self.index.oldest()).cloned()
    }

    /// Counts a trace or an outcome; returns the earlier versions with a drop that ended by it.
    fn count(
        &mut self,
        told: &ArrivedTrace,
        drift: &DriftOptions,
        counts: &mut Counts,
    ) -> Vec<AgentKey> {
        let ArrivedTrace { at, agent, trace, .. } = told;
        let mut ended = Vec::new();
        let mut watch = match self.watches.get_mut(agent) {
            Some(watch) => watch,
            None => {
                let begun = self.begin(agent, counts);
                self.index.insert(agent, &begun);
                self.watches.entry(agent.clone()).or_insert(begun)
            }
        };
        for (place, stream) in STREAMS.iter().enumerate() {
            let Some(value) = stream.value(told, watch) else { continue };
            if watch.streams.0[place].is_none() {
                let left = watch.predecessor(agent);
                let begun = self.begin_stream(told, stream, left);
                let Some(own) = self.watches.get_mut(agent) else { return ended };
                watch = own;
                watch.streams.0[place] = Some(begun);
            }
            let limits = self.shares.limits(&self.options, agent, stream);
            let Some(watched) = &mut watch.streams.0[place] else { continue };
            if watched.carried_from().is_none() {
                watched.observe(stream, value, told, &limits);
                continue;
            }
            ended.extend(self.count_carried(stream, value, told, &limits));
            let Some(own) = self.watches.get_mut(agent) else { return ended };
            watch = own;
        }
        let before = watch.told;
        watch.count(*at, trace, self.options.memory);
        self.index.move_to(agent, before, watch.told);
        if trace.is_first() {
            let arrived = Timestamp(trace.touched_unix_nano);
            self.gaps.observe(agent, arrived, self.options.memory);
        }
        let safe = trace.risk_quanta.map(|risk| (Quanta::ONE - risk).clamp(0, Quanta::ONE));
        if let Some(safe) = safe {
            watch.level.observe(Quanta(safe), drift);
        }
        ended
    }

    /// Counts a value of a stream in which the drop of an earlier version continues; returns that version if its drop ended by it.
    fn count_carried(
        &mut self,
        stream: &Stream,
        value: Value,
        told: &ArrivedTrace,
        limits: &DropLimits,
    ) -> Option<AgentKey> {
        let agent = &told.agent;
        let version = Arc::clone(self.watched(agent, stream.name)?.carried_from()?);
        let shown = agent.with(|parts| parts.agent_version = version);
        let is_shown = self.watched(&shown, stream.name).is_some_and(StreamWatch::is_critical);
        let watched = self.watches.get_mut(agent)?.streams.get_mut(stream.name)?;
        if !is_shown {
            watched.show_itself();
        }
        watched.observe(stream, value, told, limits);
        let since = watched.end_carried()?;
        self.end_mended(shown, since, stream.name)
    }

    /// Begins a stream with what it takes over from the previous version, and with the evidence that earlier ones kept.
    fn begin_stream(
        &mut self,
        told: &ArrivedTrace,
        stream: &Stream,
        before: Option<AgentKey>,
    ) -> StreamWatch {
        self.shares.add(stream.pages);
        let limits = self.shares.limits(&self.options, &told.agent, stream);
        let left = before.and_then(|key| {
            let watched = self.watches.get_mut(&key)?.streams.get_mut(stream.name)?;
            let left = watched.successor(&key.agent_version, &limits);
            watched.detector.spend_from(told.at);
            Some(self.gather(left, (&key, stream), &limits))
        });
        left.unwrap_or_default().begin_at(told.at)
    }

    /// Adds to a new stream the evidence that the versions before `before` kept, if they have been silent since that version began:
    /// half of the evidence stays with each replaced version, so otherwise nothing would add up over versions that live for a few
    /// traces.
    fn gather(
        &mut self,
        mut begun: StreamWatch,
        (before, stream): (&AgentKey, &Stream),
        limits: &DropLimits,
    ) -> StreamWatch {
        let mut version = before.clone();
        for _ in 0..GATHERED {
            let Some(earlier) =
                self.watches.get(&version).and_then(|watch| watch.predecessor(&version))
            else {
                break;
            };
            let of = |agent| self.watched(agent, stream.name);
            let outlived = of(&earlier)
                .is_some_and(|kept| of(before).is_some_and(|own| own.has_outlived(kept)));
            let kept = self.watches.get_mut(&earlier).filter(|_| outlived);
            let kept = kept.and_then(|watch| watch.streams.get_mut(stream.name));
            kept.into_iter().for_each(|kept| begun.take_over(kept, limits));
            version = earlier;
        }
        begun
    }
}

impl Shares {
    fn add(&mut self, pages: bool) {
        let share = if pages { &mut self.paging } else { &mut self.warning };
        *share += 1;
    }

    /// The limits of a stream of an agent.
    fn limits(&self, options: &DropOptions, agent: &AgentKey, stream: &Stream) -> DropLimits {
        if stream.pages {
            options.limits_against(options.objective_of(&agent.agent_name), self.paging)
        } else if stream.ranks() {
            options.limits_of_ranks(self.warning)
        } else {
            options.limits_against(NO_OBJECTIVE, self.warning)
        }
    }
}

/// A session, hashed; `None`: there is none.
fn hashed(session: &ScopedId) -> Option<u64> {
    let ScopedId { id, scope } = session;
    let seed = || xxh3_64(scope.as_bytes());
    (!id.is_empty()).then(|| xxh3_64_with_seed(id.as_bytes(), seed()))
}

/// Whether a stream with its last value then still continues.
fn goes_on(last: Timestamp, newest: Timestamp) -> bool {
    last.after(GOES_ON) >= newest
}

/// The key of the version that was the latest when this one began.
fn before(agent: &AgentKey, watch: &AgentWatch) -> Option<AgentKey> {
    let version = watch.before.as_ref()?;
    Some(agent.with(|parts| parts.agent_version.clone_from(version)))
}

/// Remembered agents for each that may have series of its own.
const REMEMBERED: usize = 4;

/// How long an agent is remembered, in multiples of `drop.memory`: its past then counts a sixteenth.
const MEMORIES: u32 = 4;

/// How long a stream continues after its last value: as long as the longest gap that counts.
const GOES_ON: Duration = Duration::from_secs(86_400);

/// Time after which the streams that continue are counted again.
const LOOK: Duration = Duration::from_secs(3_600);

/// Number of versions before the previous one whose evidence is gathered: more than one, as the old and the new one may run in
/// parallel for a while.
const GATHERED: usize = 4;

/// Most deployments that are shown for an agent.
const SHOWN: usize = 32;

/// Number of traces for which memory is kept while none wait.
const ROOM: usize = 1_024;
