//! Whatever the order of arrival, however often, and wherever a session was meanwhile: the same is shown, and counters never fall.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::record::TraceRecord;
use super::*;
use crate::explained::{SessionFilter, Sort};
use crate::facts::AgentKey;
use crate::score::agent_consistency::AgentConsistency;
use crate::score::agent_reliability::AgentReliability;

/// One step of a script.
#[derive(Clone, Debug)]
struct Step {
    update: TraceFacts,
    again: bool,
    drain: bool,
}

proptest! {
    #[test]
    fn arrival_does_not_matter(updates in updates(), order in any::<u64>()) {
        let plain = run(script(&updates, None));
        let mixed = run(script(&updates, Some(order)));
        prop_assert_eq!(plain.0.sessions().collect::<Vec<_>>(), mixed.0.sessions().collect::<Vec<_>>());
        prop_assert_eq!(&plain.1, &mixed.1);
    }

    #[test]
    fn what_is_kept_up_to_date_is_what_a_new_start_gives(updates in updates(), order in any::<u64>()) {
        let (stage, panes) = run(script(&updates, Some(order)));
        let (fresh, fresh_panes) = run(newest(&updates).into_iter().map(Step::plain).collect());
        prop_assert_eq!(stage.sessions().collect::<Vec<_>>(), fresh.sessions().collect::<Vec<_>>());
        prop_assert_eq!(panes, fresh_panes);
        for view in stage.sessions() {
            let session = stage.sessions.iter().find(|session| session.id.scoped() == view.name()).unwrap();
            let mut reliability = AgentReliability::default();
            let mut consistency = AgentConsistency::default();
            for trace in session.traces.iter().filter(|trace| trace.is_done()) {
                trace.scored.own_risk().into_iter().for_each(|risk| reliability.observe(risk));
                trace.scored.own_uncertainty().into_iter().for_each(|risk| consistency.observe(risk));
            }
            prop_assert_eq!(view.reliability, reliability.result().map(|result| result.score));
            prop_assert_eq!(view.consistency, consistency.result().map(|result| result.score));
        }
    }

    #[test]
    fn a_session_that_comes_back_is_what_it_was(updates in updates(), order in any::<u64>(), moments in any::<u64>()) {
        let (mut plain, mut moving) = (stage(), stage());
        for (number, step) in script(&updates, Some(order)).into_iter().enumerate() {
            let update = detailed(step.update);
            plain.handle(update.clone(), at(100));
            moving.handle(update, at(100));
            prop_assert_eq!(plain.drain(), moving.drain());
            if moments >> (number % 64) & 1 == 1 {
                move_all(&mut moving);
                prop_assert_eq!(views(&plain), views(&moving));
            }
        }
        plain.handle_timeout(at(400));
        moving.handle_timeout(at(400));
        prop_assert_eq!(plain.drain(), moving.drain());
        move_all(&mut moving);
        for sort in [Sort::Start, Sort::Recent, Sort::Reliability, Sort::Loops, Sort::Cost] {
            for (loops, failing, open) in [
                (None, None, None),
                (Some(true), None, None),
                (None, Some(true), None),
                (Some(false), Some(false), Some(true)),
            ] {
                let filter = SessionFilter { loops, failing, open, ..SessionFilter::default() };
                let expected = sorted(&plain, sort, &filter);
                prop_assert_eq!(listed(&plain, sort, &filter), expected.clone(), "{:?}", sort);
                prop_assert_eq!(listed(&moving, sort, &filter), expected, "{:?}", sort);
            }
        }
        for stage in [&plain, &moving] {
            prop_assert_eq!(stage.sessions.bytes(), held_bytes(stage));
            for trace in (0..8).map(|id| TraceId([id; 16])) {
                let mut holding = stage.sessions.iter().filter(|session| session.traces.number(trace).is_some());
                prop_assert_eq!(stage.find(Some(""), trace, &NoSessionStore), holding.next().map(|session| SessionId::clone(&session.id)));
            }
        }
        prop_assert_eq!(plain.counts(), moving.counts());
        let written = |stage: &Sessions| rmp_serde::to_vec_named(&stage.sessions).unwrap();
        prop_assert_eq!(written(&plain), written(&moving));
        plain.finish(at(100));
        moving.finish(at(100));
        prop_assert_eq!(plain.drain(), moving.drain());
        prop_assert_eq!(views(&plain), views(&moving));
        plain.handle_timeout(at(100_000));
        moving.handle_timeout(at(100_000));
        prop_assert_eq!(plain.drain(), moving.drain());
        prop_assert_eq!((plain.held_sessions(), moving.held_sessions(), moving.open_sessions()), (0, 0, 0));
    }

    #[test]
    fn a_session_that_loops_counts_once_whatever_kinds_of_loops_it_has(updates in updates(), order in any::<u64>()) {
        let mut stage = stage();
        let mut told: BTreeMap<AgentKey, u64> = BTreeMap::new();
        let check = |stage: &mut Sessions, told: &mut BTreeMap<AgentKey, u64>| {
            for update in stage.drain() {
                told.insert(update.agent.unwrap(), update.looping);
            }
            let mut looping: BTreeMap<AgentKey, u64> = BTreeMap::new();
            for session in stage.sessions.iter() {
                let runaways = session.restless.iter().flat_map(|restless| &restless.runaways);
                let loops = runaways.filter(|(_, cause)| cause.as_loop().is_some_and(|labels| labels.evidence.weighs()));
                let agents: BTreeSet<_> = loops.map(|(agent, _)| agent.clone()).collect();
                agents.into_iter().for_each(|agent| *looping.entry(agent).or_default() += 1);
            }
            told.retain(|_, sessions| *sessions > 0);
            (told.clone(), looping)
        };
        for (step, number) in script(&updates, Some(order)).into_iter().zip(0..) {
            stage.handle(step.update, at(100 + 20 * number));
            stage.handle_timeout(at(100 + 20 * number));
            let (told, looping) = check(&mut stage, &mut told);
            prop_assert_eq!(told, looping);
        }
        stage.handle_timeout(at(100_000));
        prop_assert_eq!(check(&mut stage, &mut told), (BTreeMap::new(), BTreeMap::new()));
    }

    #[test]
    fn counters_never_fall_and_gauges_come_back_to_nothing(updates in updates(), order in any::<u64>()) {
        let mut stage = stage();
        let mut counters: BTreeMap<(Arc<str>, Counter, Vec<String>), u64> = BTreeMap::new();
        for step in script(&updates, Some(order)) {
            stage.handle(step.update, at(100));
            for update in stage.drain() {
                let agent = update.agent.clone().unwrap().agent_name.clone();
                for (family, labels, value) in update.counters.iter() {
                    let key = (agent.clone(), *family, labels.to_vec());
                    let before = counters.insert(key, *value).unwrap_or(0);
                    prop_assert!(before <= *value);
                }
            }
        }
        stage.finish(at(100));
        for update in stage.drain() {
            prop_assert_eq!(update.sessions_active, 0);
            prop_assert_eq!((update.open_reliability, update.open_consistency), (None, None));
            prop_assert!(update.sessions_looping.is_empty());
        }
    }
}

/// Updates of few traces in few sessions: the revisions of a trace are distinct, and when its
/// session changes it leaves the old one first.
fn updates() -> impl Strategy<Value = Vec<TraceFacts>> {
    let form = (1_u8..6, 0_u8..3, 0_u8..2, 1_u64..8, any::<(bool, bool, u8)>(), 0_u64..4);
    prop::collection::vec(form, 1..24).prop_map(|forms| {
        let mut revision = 0;
        let mut sessions: BTreeMap<u8, String> = BTreeMap::new();
        let mut updates = Vec::new();
        for (id, session, agent, start, (error, done, looping), output) in forms {
            revision += 1;
            let session = ["s0", "s0/x", "s1"][usize::from(session)].to_owned();
            if let Some(old) = sessions.insert(id, session.clone()).filter(|old| *old != session) {
                let left = within(trace(id, start).revision(revision), &old);
                updates.push(TraceFacts { tombstone: true, ..left });
            }
            let mut update = within(trace(id, start).revision(revision), &session);
            update = update.agent(&format!("a{agent}")).tokens(output, start);
            update = if output > 0 { update.output(&[output]) } else { update };
            update = if error { update.error() } else { update };
            update.loops = loops(looping, start);
            updates.push(if done { update.done() } else { update });
        }
        updates
    })
}

/// Loops of none, one or several of three kinds, the third known by names alone.
fn loops(kinds: u8, count: u64) -> Vec<Loop> {
    let kinds = [
        (LoopKind::ExactRepeat, Evidence::Full),
        (LoopKind::Cycle, Evidence::Arguments),
        (LoopKind::NearRepeat, Evidence::Names),
    ]
    .into_iter()
    .enumerate()
    .filter(|(bit, _)| kinds >> bit & 1 == 1);
    let made = |(_, (kind, evidence))| Loop {
        kind,
        evidence,
        ..trace(1, 1).looping(count, Severity::Warning).loops.remove(0)
    };
    kinds.map(made).collect()
}

/// The update in the session of this id, and, after a slash, this scope.
fn within(update: TraceFacts, name: &str) -> TraceFacts {
    let (id, scope) = name.split_once('/').unwrap_or((name, ""));
    let mut update = update.session(id);
    update.session.as_mut().unwrap().scope = scope.into();
    update
}

/// The newest update of each trace in each session.
fn newest(updates: &[TraceFacts]) -> Vec<TraceFacts> {
    let keyed =
        updates.iter().map(|update| ((update.session.clone(), update.trace_id), update.clone()));
    keyed.collect::<BTreeMap<_, _>>().into_values().collect()
}

/// The updates as they are, or, with a seed, mixed up and some of them twice.
fn script(updates: &[TraceFacts], seed: Option<u64>) -> Vec<Step> {
    let Some(mut seed) = seed else { return updates.iter().cloned().map(Step::plain).collect() };
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 33
    };
    let steps = updates.iter().cloned();
    let mut steps: Vec<_> = steps
        .map(|update| (next(), Step { update, again: next() % 3 == 0, drain: next() % 3 == 0 }))
        .collect();
    let twice: Vec<_> = steps.iter().filter(|(_, step)| step.again).cloned().collect();
    steps.extend(twice.into_iter().map(|(_, step)| (next(), step)));
    steps.sort_by_key(|(rank, _)| *rank);
    steps.into_iter().map(|(_, step)| step).collect()
}

/// Panes by agent, width and index.
type PanesOfAgents = BTreeMap<(Arc<str>, u64, u64), PaneSum>;

/// Runs a script; returns the stage and the panes that a receiver ends up with.
fn run(steps: Vec<Step>) -> (Sessions, PanesOfAgents) {
    let mut stage = stage();
    let mut panes = PanesOfAgents::new();
    let mut receive = |updates: Vec<SessionFacts>| {
        for update in updates {
            let agent = update.agent.unwrap().agent_name.clone();
            if update.tombstone {
                panes.retain(|(other, ..), _| *other != agent);
            }
            for pane in update.panes {
                let key = (agent.clone(), pane.width_nanos, pane.index);
                if pane.traces == 0 {
                    panes.remove(&key);
                } else {
                    panes.insert(key, pane);
                }
            }
        }
    };
    for step in steps {
        stage.handle(step.update, at(100));
        if step.drain {
            receive(stage.drain());
        }
    }
    stage.finish(at(100));
    receive(stage.drain());
    (stage, panes)
}

impl Step {
    fn plain(update: TraceFacts) -> Self {
        Self { update, again: false, drain: false }
    }
}

/// Has every session leave and come back.
/// The bytes of all sessions, recounted.
fn held_bytes(stage: &Sessions) -> usize {
    let of_traces =
        |session: &Session| session.traces.iter().map(TraceRecord::bytes).sum::<usize>();
    let sessions = stage.sessions.iter();
    sessions.map(|one| size_of::<Session>() + one.id.id.len() + of_traces(one)).sum()
}

fn move_all(stage: &mut Sessions) {
    let ids: Vec<_> = stage.sessions.iter().map(|session| Arc::clone(&session.id)).collect();
    for id in ids {
        let session = stage.sessions.remove(&id).unwrap();
        stage.unfile(&session);
        let bytes = rmp_serde::to_vec_named(&session).unwrap();
        stage.put(rmp_serde::from_slice(&bytes).unwrap());
    }
}

/// Ids in an order, asked for a session at a time.
fn listed(stage: &Sessions, sort: Sort, filter: &SessionFilter) -> Vec<SessionId> {
    let (mut places, mut after, mut total) = (BTreeSet::new(), None, 0);
    loop {
        let part = stage.places(after, &Wanted { filter, sort, most: 9 }, 1);
        places.extend(part.places);
        total += part.total;
        after = part.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(total, places.len() as u64);
    places.into_iter().map(ListPosition::session).collect()
}

/// The same by rows of all sessions.
fn sorted(stage: &Sessions, sort: Sort, filter: &SessionFilter) -> Vec<SessionId> {
    let ids: Vec<_> = stage.sessions.iter().map(|session| SessionId::clone(&session.id)).collect();
    let mut rows: Vec<_> = stage.rows(&ids, usize::MAX).into_iter().flatten().collect();
    rows.retain(|row| filter.loops.is_none_or(|loops| loops == (row.loops > 0)));
    rows.retain(|row| filter.failing.is_none_or(|failing| failing == (row.flagged > 0)));
    rows.retain(|row| filter.open.is_none_or(|open| open == row.open));
    let nanos = |text: &str| text.parse::<u64>().unwrap();
    let by = |row: &SessionRow| match sort {
        Sort::Start => 0.0,
        Sort::Recent => -(nanos(&row.end_unix_nano) as f64),
        Sort::Reliability => row.reliability.unwrap_or(f64::INFINITY),
        Sort::Loops => -(row.loops as f64),
        // What costs less than nothing costs nothing.
        Sort::Cost => row.cost_usd.map_or(f64::INFINITY, |cost| -cost.max(0.0)),
    };
    let by_time = |row: &SessionRow| match sort {
        Sort::Start | Sort::Recent => nanos(&row.start_unix_nano),
        Sort::Reliability | Sort::Loops | Sort::Cost => u64::MAX - nanos(&row.end_unix_nano),
    };
    let rest = |row: &SessionRow| (by_time(row), row_id(row));
    rows.sort_by(|a, b| by(a).total_cmp(&by(b)).then_with(|| rest(a).cmp(&rest(b))));
    rows.iter().map(row_id).collect()
}

fn row_id(row: &SessionRow) -> SessionId {
    SessionId::from(("", row.session_id.as_str(), row.scope.as_str()))
}
