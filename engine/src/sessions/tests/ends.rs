//! Sessions that are quiet, close and go, and agents that come and are forgotten.

use super::*;

#[test]
fn a_quiet_session_closes_counts_once_and_goes_later() {
    let mut stage = stage();
    stage.handle(trace(1, 10).error().done(), at(20));
    assert_eq!(only(stage.drain()).sessions_active, 1);
    stage.handle_timeout(at(20 + 1800));
    assert_eq!(stage.open_sessions(), 0);
    let update = only(stage.drain());
    assert_eq!(counter(&update, Counter::SessionsClosed, &["idle", "fail"]), 1);
    assert_eq!(update.closed_reliability.as_ref().unwrap().count, 1);
    assert_eq!((update.open_reliability, update.sessions_active), (None, 0));
    stage.handle(trace(2, 1900).done(), at(1900));
    assert_eq!(stage.open_sessions(), 1);
    assert!(stage.session("", "s").is_some());
    stage.handle_timeout(at(1900 + 3600));
    assert_eq!((stage.session("", "s"), stage.held_sessions()), (None, 0));
    let update = only(stage.drain());
    assert_eq!(update.closed_reliability.as_ref().unwrap().count, 1);
    assert_eq!((everything(&update).traces, everything(&update).sessions), (2, 1));
}

#[test]
fn over_the_cap_the_quietest_session_goes_and_its_traces_are_final() {
    let options = SessionOptions { max_sessions: 1, ..SessionOptions::default() };
    let mut stage = stage_of(options, AgentOptions::default());
    stage.handle(trace(1, 10).done(), at(20));
    stage.handle(trace(2, 20).session("other").done(), at(30));
    stage.handle(trace(1, 10).revision(2).error().done(), at(31));
    assert_eq!(stage.session("", "s"), None);
    assert_eq!(
        (stage.counts().get("sessions", "evicted"), stage.counts().get("trace_updates", "late")),
        (1, 1)
    );
    let update = only(stage.drain());
    assert_eq!(counter(&update, Counter::SessionsClosed, &["evicted", "pass"]), 1);
    assert_eq!((everything(&update).traces, everything(&update).sessions), (2, 2));
    assert_eq!(update.sessions_active, 1);
}

#[test]
fn over_the_bound_on_bytes_the_quietest_sessions_go() {
    let options = SessionOptions { max_bytes: 100_000, ..SessionOptions::default() };
    let mut stage = stage_of(options, AgentOptions::default());
    // Each answer takes 40,000 bytes.
    let answer: Vec<u64> = (0..5_000).collect();
    for (id, session, second) in [(1, "a", 10), (2, "b", 20), (3, "a", 30), (4, "c", 40)] {
        stage.handle(trace(id, second).session(session).output(&answer).done(), at(second));
        assert!(stage.sessions.bytes() <= 100_000);
    }
    // First `b`, as a second trace of `a` came, then `a`.
    let held: Vec<_> = views(&stage).iter().map(|view| view.name().id.to_string()).collect();
    assert_eq!((held, stage.counts().get("sessions", "evicted")), (vec!["c".to_owned()], 2));
}

#[test]
fn a_session_that_takes_too_many_bytes_takes_no_further_trace_before_one_is_done() {
    let options = SessionOptions { max_session_bytes: 70_000, ..SessionOptions::default() };
    let mut stage = stage_of(options, AgentOptions::default());
    let answer: Vec<u64> = (0..5_000).collect();
    for id in 1..4 {
        let second = u64::from(id) * 10;
        stage.handle(trace(id, second).output(&answer), at(second));
    }
    assert_eq!(ids(&views(&stage)[0]), [hex(1), hex(2)]);
    assert_eq!(stage.counts().get("trace_updates", "session_full"), 1);
    assert_eq!(stage.full_sessions().map(|full| full.len()), Some(1));
    // What it has may still change, and room that comes back is used.
    stage.handle(trace(1, 10).revision(2).done(), at(50));
    assert_eq!(stage.full_sessions().map(|full| full.len()), Some(0));
    stage.handle(trace(3, 30).revision(2).done(), at(51));
    assert_eq!(ids(&views(&stage)[0]), [hex(1), hex(2), hex(3)]);
}

#[test]
fn a_session_that_is_full_ends_and_its_id_begins_anew() {
    let options = SessionOptions { max_traces_per_session: 10, ..SessionOptions::default() };
    let mut stage = stage_of(options, AgentOptions::default());
    // Two are still open, and one is done without a root, when the session is full for the first time.
    let uncertain = |id: u8, second| TraceFacts { uncertain: true, ..trace(id, second).done() };
    for id in 1..36_u8 {
        let second = u64::from(id) * 10;
        match id {
            2 | 9 => stage.handle(trace(id, second), at(second)),
            5 => stage.handle(uncertain(id, second), at(second)),
            _ => stage.handle(trace(id, second).done(), at(second)),
        }
        assert!(stage.held_sessions() == 1 && stage.session("", "s").unwrap().traces.len() <= 10);
    }
    assert_eq!(ids(&views(&stage)[0]), (31..36).map(hex).collect::<Vec<_>>());
    // Those go on in the session that has the id now.
    stage.handle(trace(2, 20).revision(2).done(), at(400));
    stage.handle(trace(9, 90).revision(2).done(), at(400));
    stage.handle(trace(5, 50).revision(2).done(), at(400));
    // What was counted is final, and is not counted again.
    stage.handle(trace(1, 10).revision(2).done(), at(400));
    stage.handle(trace(12, 120).sealed().revision(2), at(400));
    let counts =
        ["late", "session_full", "unheld"].map(|why| stage.counts().get("trace_updates", why));
    assert_eq!(counts, [1, 0, 0]);
    let update = only(stage.drain());
    assert_eq!(counter(&update, Counter::Traces, &[]), 35);
    assert_eq!(everything(&update).traces, 35);
    assert_eq!(counter(&update, Counter::SessionsClosed, &["full", "pass"]), 3);
    assert_eq!((stage.open_sessions(), update.sessions_active), (1, 1));
    assert_eq!(stage.counts().get("sessions", "full"), 3);
}

#[test]
fn the_end_of_input_closes_sessions_and_keeps_them() {
    let mut stage = stage();
    stage.handle(trace(1, 10).done(), at(20));
    stage.finish(at(20));
    let update = only(stage.drain());
    assert_eq!(counter(&update, Counter::SessionsClosed, &["finished", "pass"]), 1);
    assert_eq!((stage.sessions().count(), stage.open_sessions()), (1, 0));
}

#[test]
fn a_trace_is_sealed_as_it_is() {
    let mut stage = stage();
    for (id, second) in [(1, 10), (2, 20)] {
        stage.handle(detailed(trace(id, second).tokens(7, 3).done()), at(100));
    }
    stage.drain();
    let before = views(&stage);
    stage.handle_timeout(at(111));
    stage.drain();
    assert_eq!(views(&stage), before);
    let sealed = |id| trace(id, 10).sealed();
    for word in [sealed(1).revision(2), sealed(1).revision(2)] {
        stage.handle(word, at(112));
        assert_eq!(stage.counts().get("trace_updates", "unheld"), 0);
    }
    for word in [sealed(1).revision(1), sealed(3).revision(2)] {
        stage.handle(word, at(112));
    }
    assert_eq!(stage.counts().get("trace_updates", "unheld"), 2);
    stage.handle(detailed(trace(1, 10).tokens(7, 3).done()), at(112));
    assert_eq!(stage.counts().get("trace_updates", "stale"), 1);
    assert_eq!(views(&stage), before);
    stage.handle(detailed(trace(2, 20).tokens(7, 3).revision(3)), at(113));
    assert_eq!(stage.session("", "s").unwrap().traces_evaluated, 1);
}

#[test]
fn over_the_cap_agents_share_the_overflow() {
    let agents = AgentOptions { max_agents: 1, ..AgentOptions::default() };
    let mut stage = stage_of(SessionOptions::default(), agents);
    for (id, name) in [(1, "a"), (2, "b"), (3, "c"), (4, "a")] {
        stage.handle(trace(id, 10).agent(name).session(name).done(), at(20));
    }
    let updates = stage.drain();
    let traces: Vec<_> = updates
        .iter()
        .map(|update| {
            (update.agent.clone().unwrap().service_name.clone(), everything(update).traces)
        })
        .collect();
    assert_eq!(traces, [("__overflow__".into(), 2), ("svc".into(), 2)]);
    assert_eq!(stage.counts().get("trace_updates", "agent_overflow"), 2);
}

#[test]
fn an_agent_that_a_trace_only_seemed_to_be_leaves_no_trace() {
    let mut stage = stage();
    stage.handle(trace(1, 10).agent("svc"), at(20));
    assert_eq!(only(stage.drain()).sessions_active, 1);
    stage.handle(trace(1, 10).revision(2).agent("real").done(), at(21));
    let updates = stage.drain();
    let gone: Vec<_> = updates.iter().map(|update| (update.tombstone, update.revision)).collect();
    assert_eq!(gone, [(false, 2), (true, 3)]);
    assert_eq!(stage.agents(), 1);
}

#[test]
fn an_agent_that_a_trace_only_seems_to_be_takes_no_place() {
    let agents = AgentOptions { max_agents: 1, ..AgentOptions::default() };
    let mut stage = stage_of(SessionOptions::default(), agents);
    let of = |id: u8, agent| trace(id, 10).session(&id.to_string()).agent(agent);
    let seems = |id, agent| TraceFacts { uncertain: true, ..of(id, agent) };
    let named = |updates: Vec<SessionFacts>| -> Vec<(String, bool)> {
        let named =
            |update: SessionFacts| (update.agent.unwrap().agent_name.to_string(), update.tombstone);
        updates.into_iter().map(named).collect()
    };
    stage.handle(seems(1, "seems"), at(20));
    stage.handle(seems(2, "other"), at(20));
    assert_eq!(stage.counts().get("trace_updates", "agent_overflow"), 1);
    let [seemed, is, shared] = ["seems", "is", ""].map(str::to_owned);
    let updates = stage.drain();
    assert!(updates.iter().all(|update| update.uncertain));
    assert_eq!(named(updates), [(shared.clone(), false), (seemed.clone(), false)]);
    stage.handle(of(1, "is").revision(2).done(), at(21));
    let updates = stage.drain();
    assert!(updates.iter().all(|update| update.tombstone || !update.uncertain));
    assert_eq!(named(updates), [(is, false), (seemed, true)]);
    // Its place is taken by what is certain, whoever came first.
    stage.handle(of(2, "other").revision(2).done(), at(21));
    assert_eq!(named(stage.drain()), [(shared, false)]);
}

#[test]
fn an_agent_is_forgotten_when_its_memory_is_over() {
    let memory = Duration::from_secs(2 * 86_400);
    let agents = AgentOptions { memory, ..AgentOptions::default() };
    let mut stage = stage_of(SessionOptions::default(), agents);
    stage.handle(trace(1, 10).done(), at(20));
    let mut now = at(20);
    let mut last = stage.drain();
    while let Some(next) = stage.poll_timeout() {
        assert!(next > now, "time goes on");
        now = next;
        stage.handle_timeout(now);
        let updates = stage.drain();
        last = if updates.is_empty() { last } else { updates };
    }
    assert!(only(last).tombstone);
    assert_eq!(now, at(20 + 2 * 86_400));
    assert_eq!((stage.agents(), stage.held_sessions()), (0, 0));
}

#[test]
fn a_quiet_agent_makes_room_for_another_one_after_the_longest_window() {
    let agents = AgentOptions { max_agents: 1, ..AgentOptions::default() };
    let mut stage = stage_of(SessionOptions::default(), agents);
    stage.handle(trace(1, 10).done(), at(20));
    stage.handle_timeout(at(4_000));
    for (second, forgotten, agent) in [(86_400, 0, "__overflow__"), (90_000, 1, "svc")] {
        stage.handle_timeout(at(second));
        stage.drain();
        assert_eq!(stage.counts().get("agents", "forgotten"), forgotten);
        let id = if forgotten == 0 { 2 } else { 3 };
        stage.handle(trace(id, second).agent("b").session("b").done(), at(second + 1));
        let updates = stage.drain();
        assert!(
            updates.iter().any(|update| *update.agent.clone().unwrap().service_name == *agent),
            "{agent} at {second}"
        );
    }
}

#[test]
fn what_a_weekly_agent_has_shown_outlives_a_restart() {
    let mut stage = stage();
    stage.handle(trace(1, 10).tokens(7, 3).looping(4, Severity::Warning).done(), at(20));
    stage.handle_timeout(at(6 * 86_400));
    stage.drain();
    let saved = rmp_serde::to_vec_named(&stage.save()).unwrap();
    let mut next = self::stage();
    crate::saved::read_with(&mut saved.as_slice(), |from| next.restore(from)).unwrap();
    next.restart_counts();
    next.handle_timeout(at(7 * 86_400));
    let update = only(next.drain());
    assert!(!update.tombstone && update.counters.is_empty());
    assert_eq!((update.last.len(), everything(&update).traces), (1, 1));
    let mut earlier: Vec<Counter> = update.earlier.iter().map(|(family, ..)| *family).collect();
    earlier.dedup();
    assert_eq!(earlier, [Counter::Loops, Counter::Tokens]);
    next.handle(trace(2, 7 * 86_400).session("t").tokens(1, 1).done(), at(7 * 86_400 + 1));
    let mut agents = crate::agents::Agents::new(Default::default());
    agents.handle(only(next.drain()), at(7 * 86_400 + 1));
    let shown = agents.drain().remove(0);
    assert_eq!(shown.view.tokens.input, Some(8));
    assert_eq!(shown.view.loops["exact_repeat"], 1);
    assert_eq!(shown.view.windows["last_50"].traces, 2);
    assert_eq!(shown.counters.get(Counter::Tokens, &["input"]), Some(1));
}

#[test]
fn efforts_of_weeks_to_come_are_left_out_when_the_wall_clock_was_set_back() {
    let mut stage = stage();
    let ahead: i64 = 9 * 7 * 86_400;
    stage.shift_to(WallShift(ahead * 1_000_000_000));
    stage.handle(trace(1, ahead.unsigned_abs() + 10).done(), at(20));
    let update = only(stage.drain());
    assert!(!update.spread.is_empty() && !update.trace_spread.is_empty());
    stage.shift_to(WallShift(0));
    let update = only(stage.drain());
    assert!(update.spread.is_empty() && update.trace_spread.is_empty());
    stage.handle(trace(2, 30).session("other").done(), at(40));
    assert!(!only(stage.drain()).spread.is_empty());
}
