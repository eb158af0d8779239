use super::*;
use crate::explained::{AgentFilter, SessionFilter, Sort};

/// Many sessions of two agents, in no order of time.
fn many(sessions: u32) -> Sessions {
    let mut stage = stage();
    for number in 0..sessions {
        let mut id = [1; 16];
        id[..4].copy_from_slice(&number.to_be_bytes());
        let agent = if number % 100 == 0 { "rare" } else { "a" };
        let second = u64::from(number * 7 % 1_000);
        let update = TraceFacts { trace_id: TraceId(id), ..trace(1, second).done() };
        stage.handle(update.session(&format!("s-{number}")).agent(agent), at(2_000));
    }
    stage
}

/// The work of a whole list, and its first sessions.
fn list(stage: &Sessions, wanted: &Wanted<'_>) -> (usize, u64, BTreeSet<ListPosition>) {
    let (mut work, mut total, mut places, mut after) = (0, 0, BTreeSet::new(), None);
    loop {
        let part = stage.places(after, wanted, 500);
        assert!(part.work <= 500 + 2 * LOOK && part.places.len() <= wanted.most);
        (work, total, after) = (work + part.work, total + part.total, part.next);
        places.extend(part.places);
        if after.is_none() {
            return (work, total, places);
        }
    }
}

#[test]
fn a_list_reads_a_card_for_each_session_and_looks_into_those_alone_whose_card_does_not_say() {
    let stage = many(3_000);
    let all = SessionFilter::default();
    for sort in [Sort::Start, Sort::Recent, Sort::Reliability, Sort::Loops, Sort::Cost] {
        let (work, total, places) = list(&stage, &Wanted { filter: &all, sort, most: 25 });
        assert_eq!((work, total), (3_000, 3_000), "{sort:?}");
        let first: Vec<_> = places.into_iter().take(25).map(ListPosition::session).collect();
        assert_eq!(stage.rows(&first, usize::MAX).into_iter().flatten().count(), 25);
    }
    let agent = AgentFilter { agent_name: Some("rare".to_owned()), ..AgentFilter::default() };
    let of_rare = SessionFilter { agent, failing: Some(false), ..SessionFilter::default() };
    let named = SessionFilter { id: Some("00".to_owned()), ..of_rare.clone() };
    let called = SessionFilter { tool: Some("search".to_owned()), ..of_rare.clone() };
    for (filter, looks, fit) in [(of_rare, 0, 30), (named, 30, 29), (called, 60, 0)] {
        let (work, total, _) =
            list(&stage, &Wanted { filter: &filter, sort: Sort::Recent, most: 5 });
        assert_eq!((work, total), (3_000 + looks * LOOK, fit), "{filter:?}");
    }
}

#[test]
fn a_session_is_listed_for_each_agent_that_has_a_trace_in_it() {
    let of = |service: &str, name: &str| AgentFilter {
        service_name: Some(service.to_owned()),
        agent_name: Some(name.to_owned()),
        ..AgentFilter::default()
    };
    let by = |id, second, service: &str, name: &str| {
        let parts = AgentParts {
            service_name: service.into(),
            agent_name: name.into(),
            ..AgentParts::default()
        };
        TraceFacts { agent: Some(parts.into()), ..trace(id, second).done() }
    };
    let mut stage = stage();
    let listed = |stage: &Sessions, agent: AgentFilter| {
        let filter = SessionFilter { agent, ..SessionFilter::default() };
        list(stage, &Wanted { filter: &filter, sort: Sort::Start, most: 5 }).1
    };
    let seen = |stage: &Sessions| {
        let agents = [of("shop", "support"), of("bank", "support"), of("mail", "support")];
        agents.map(|agent| listed(stage, agent))
    };
    stage.handle(by(1, 10, "shop", "support"), at(20));
    stage.handle(by(2, 20, "bank", "support"), at(20));
    assert_eq!(seen(&stage), [1, 1, 0]);
    // Its first trace comes last.
    stage.handle(by(3, 5, "mail", "support"), at(21));
    assert_eq!(seen(&stage), [1, 1, 1]);
    // Traces turn out to be of another agent, or to be part of another session.
    stage.handle(TraceFacts { revision: 9, ..by(2, 20, "shop", "support") }, at(22));
    assert_eq!(seen(&stage), [1, 0, 1]);
    stage
        .handle(TraceFacts { revision: 9, tombstone: true, ..by(3, 5, "mail", "support") }, at(22));
    assert_eq!(seen(&stage), [1, 0, 0]);
    assert_eq!(listed(&stage, AgentFilter::default()), 1);
}

#[test]
fn the_session_of_a_trace_is_found_by_looking_into_it_alone() {
    let mut stage = many(3_000);
    let held = |stage: &Sessions| -> Vec<(TraceId, SessionId)> {
        let sessions = stage.sessions.iter();
        let traces =
            |session: &Session| session.traces.iter().map(|one| one.id).collect::<Vec<_>>();
        sessions
            .flat_map(|one| traces(one).into_iter().map(|id| (id, SessionId::clone(&one.id))))
            .collect()
    };
    let all = held(&stage);
    for (_, session) in all.iter().step_by(3) {
        stage.evict(&Arc::new(session.clone()));
    }
    for (number, (trace, session)) in all.iter().enumerate() {
        let is_held = number % 3 != 0;
        assert_eq!(stage.find(Some(""), *trace, &NoSessionStore), is_held.then(|| session.clone()));
        assert_eq!(stage.sessions.looked_into(*trace), usize::from(is_held));
        assert_eq!(stage.find(Some("other"), *trace, &NoSessionStore), None);
    }
}

#[test]
fn a_place_that_is_free_costs_what_a_card_does_and_is_taken_again() {
    let mut stage = many(40);
    let ids: Vec<_> = stage.sessions.iter().map(|session| SessionId::clone(&session.id)).collect();
    for id in &ids[..30] {
        stage.evict(&Arc::new(id.clone()));
    }
    let all = SessionFilter::default();
    let wanted = Wanted { filter: &all, sort: Sort::Start, most: 25 };
    assert_eq!((list(&stage, &wanted).0, list(&stage, &wanted).1), (40, 10));
    stage.handle(trace(9, 1).session("new").agent("a"), at(2_000));
    let (work, total, places) = list(&stage, &wanted);
    assert_eq!((work, total), (40, 11));
    assert_eq!(places.first().cloned().map(|place| place.session().id), Some("new".into()));
}
