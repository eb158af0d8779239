//! Instances that share the work show the same as a single process, bit for bit; over librdkafka's broker in the process.

#![cfg(feature = "kafka")]
#![expect(clippy::float_cmp, reason = "counts and flags are whole numbers")]

mod support;

use std::time::Duration;

use self::support::{Fleet, Input, failing, failing_alone};
use agentgauge::clock::Clock;
use agentgauge::daemon::Daemon;
use agentgauge::engine::view::DropView;
use agentgauge::fleet::Role;
use rdkafka::mocking::MockCluster;

/// Further back than there is time.
const AGES: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// As many instances with every role, fed by turns.
async fn shows_the_same(instances: usize) {
    let input = Input::new(60);
    let mut fleet = Fleet::new();
    for _ in 0..instances {
        fleet.join().await;
    }
    fleet.ready().await;
    for number in 0..input.len() {
        fleet.send(number % instances, &input.request(number)).await;
        if number % 5 == 0 {
            // Twice, by way of another.
            fleet.send((number + 1) % instances, &input.request(number)).await;
        }
    }
    fleet.shows(&input.replayed()).await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_instance_shows_what_a_replay_shows() {
    shows_the_same(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_instances_show_what_a_replay_shows() {
    shows_the_same(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_instances_show_what_a_replay_shows() {
    shows_the_same(3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_come_and_go_without_a_trace() {
    let input = Input::new(60);
    let mut fleet = Fleet::new();
    fleet.join().await;
    fleet.ready().await;
    let third = input.len() / 3;
    for number in 0..third {
        fleet.send(0, &input.request(number)).await;
    }
    fleet.join().await;
    for number in third..2 * third {
        fleet.send(number % 2, &input.request(number)).await;
        fleet.shown();
    }
    fleet.ready().await;
    fleet.leave(0).await;
    for number in 2 * third..input.len() {
        fleet.send(0, &input.request(number)).await;
    }
    fleet.shows(&input.replayed()).await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_go_and_others_take_up_where_they_left() {
    let input = Input::new(30);
    let mut fleet = Fleet::new();
    fleet.join().await;
    fleet.ready().await;
    let half = input.len() / 2;
    for number in 0..half {
        fleet.send(0, &input.request(number)).await;
    }
    fleet.leave(0).await;
    fleet.join().await;
    for number in half..input.len() {
        fleet.send(0, &input.request(number)).await;
    }
    fleet.shows(&input.replayed()).await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drop_outlives_its_owner_and_is_accepted_by_way_of_any_instance() {
    let base = Clock::system().now().0 - 3_600_000_000_000;
    let mut fleet = Fleet::new();
    fleet.join().await;
    fleet.join().await;
    fleet.ready().await;
    for number in 0..6 {
        fleet.send(number % 2, &failing(number, base)).await;
    }
    fleet.drops(|drop| drop.evidence > 0.0 && drop.severity != "critical").await;
    // In the middle of rising evidence.
    fleet.leave(0).await;
    fleet.leave(0).await;
    fleet.join().await;
    fleet.join().await;
    fleet.ready().await;
    for number in 6..30 {
        fleet.send(number % 2, &failing(number, base)).await;
    }
    // As one process says it, but for the order in which traces of one moment count.
    let said = |view: &DropView| {
        let found = view.drop.as_ref().map(|drop| (drop.from, drop.to, drop.traces));
        (view.severity, view.against, view.usual, found)
    };
    let alone = said(&failing_alone(30, base));
    assert_eq!(
        (alone.0, alone.3.map(|(_, to, traces)| (to, traces))),
        ("critical", Some((1.0, 30)))
    );
    fleet.drops(|drop| said(drop) == alone).await;
    for instance in 0..2 {
        let answer = fleet.accept(instance).await;
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.contains("\"accepted\":1"),
            "{answer}"
        );
    }
    fleet.drops(|drop| drop.severity == "quiet" && drop.usual > 0.7).await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_is_heard_of_whichever_instance_is_told_and_outlives_its_owner() {
    let base = Clock::system().now().0 - 3_600_000_000_000;
    let mut fleet = Fleet::new();
    fleet.join().await;
    fleet.join().await;
    fleet.ready().await;
    for number in 0..30 {
        fleet.send(number % 2, &failing(number, base)).await;
    }
    // The level that is accepted is that of all that came.
    let all = |drop: &DropView| drop.drop.as_ref().is_some_and(|found| found.traces == 30);
    fleet.drops(|drop| drop.severity == "critical" && all(drop)).await;
    for instance in 0..2 {
        let answer = fleet.deploy(instance).await;
        assert!(answer.contains("\"accepted\":1"), "{answer}");
    }
    fleet.drops(|drop| drop.severity == "quiet" && drop.usual > 0.7).await;
    fleet.deployed(1).await;
    fleet.leave(0).await;
    fleet.leave(0).await;
    fleet.join().await;
    fleet.ready().await;
    fleet.deployed(1).await;
    fleet.drops(|drop| drop.severity == "quiet" && drop.usual > 0.7).await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_by_task_and_run_fails_its_trace_whichever_instance_has_that() {
    let input = Input::new(20);
    let mut fleet = Fleet::new();
    fleet.join().await;
    fleet.join().await;
    fleet.ready().await;
    // Before its spans, and after them; neither trace fails by itself.
    let (before, after) = ([1, 6], [2, 13]);
    for trace in before {
        let answer = fleet.report_failure(trace % 2, trace).await;
        assert!(answer.contains("\"accepted\":1"), "{answer}");
    }
    for number in 0..input.len() {
        fleet.send(number % 2, &input.request(number)).await;
    }
    for trace in before {
        fleet.fails(trace).await;
    }
    for trace in after {
        let answer = fleet.report_failure(trace % 2, trace).await;
        assert!(answer.contains("\"accepted\":1"), "{answer}");
        fleet.fails(trace).await;
    }
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_checkpoints_an_instance_reads_back() {
    let input = Input::with_a_neighbour(30);
    let mut fleet = Fleet::new();
    fleet.join().await;
    fleet.ready().await;
    for number in 0..input.len() {
        fleet.send(0, &input.request(number)).await;
    }
    let expected = input.replayed();
    fleet.shows(&expected).await;
    fleet.leave(0).await;
    std::fs::remove_dir_all(fleet.checkpoints.path()).unwrap();
    let mut config = fleet.config(&[Role::Gateway, Role::Assemble, Role::Score, Role::Fleet]);
    // The broker of this test does not find records by their time, so the time is before all of them.
    config.fleet.lookback = AGES;
    fleet.instances.push(Daemon::start(&config).await.unwrap());
    fleet.ready().await;
    assert_eq!(fleet.metric(0, "agentgauge_state_complete").await, 1.0);
    // The agents shown may come from earlier messages; sessions follow from the recovered state.
    let sessions = input.sessions();
    fleet.shows_sessions(0, |shown| *shown == sessions).await;
    fleet.shows(&expected).await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_that_are_made_anew_are_read_from_their_beginning() {
    let input = Input::new(60);
    let mut fleet = Fleet::new();
    fleet.join().await;
    fleet.ready().await;
    let most = 2 * input.len() / 3;
    for number in 0..most {
        fleet.send(0, &input.request(number)).await;
    }
    // All that was acknowledged is in the checkpoints, before it is gone.
    for (topic, role) in [("agentgauge.spans", "assemble"), ("agentgauge.traces", "score")] {
        let applied =
            format!("agentgauge_fleet_records_total{{outcome=\"applied\",role=\"{role}\"}}");
        fleet.applies_all(0, topic, &applied).await;
    }
    fleet.leave(0).await;
    // They are shorter than what the checkpoints have of the old ones.
    fleet.cluster = MockCluster::new(1).unwrap();
    fleet.make_topics();
    fleet.join().await;
    fleet.ready().await;
    for number in most..input.len() {
        fleet.send(0, &input.request(number)).await;
    }
    let sessions = input.sessions();
    fleet.shows_sessions(0, |shown| *shown == sessions).await;
    for role in ["assemble", "score"] {
        let gone = format!("agentgauge_fleet_records_lost_total{{role=\"{role}\"}}");
        assert!(fleet.metric(0, &gone).await > 0.0, "{role}");
    }
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_that_are_made_anew_and_longer_than_before_are_read_from_their_beginning() {
    let input = Input::new(60);
    let mut fleet = Fleet::new();
    fleet.join().await;
    fleet.ready().await;
    let some = input.len() / 3;
    for number in 0..some {
        fleet.send(0, &input.request(number)).await;
    }
    for (topic, role) in [("agentgauge.spans", "assemble"), ("agentgauge.traces", "score")] {
        let applied =
            format!("agentgauge_fleet_records_total{{outcome=\"applied\",role=\"{role}\"}}");
        fleet.applies_all(0, topic, &applied).await;
    }
    let before = fleet.lengths("agentgauge.spans");
    fleet.leave(0).await;
    fleet.cluster = MockCluster::new(1).unwrap();
    fleet.make_topics();
    fleet.join_as(&[Role::Gateway]).await;
    fleet.ready_to_take(0).await;
    // Again and again, until each partition has more than the one before.
    let is_longer = |now: [usize; 8]| now.iter().zip(before).all(|(now, before)| *now > before);
    while !is_longer(fleet.lengths("agentgauge.spans")) {
        for number in some..input.len() {
            fleet.send(0, &input.request(number)).await;
        }
    }
    fleet.leave(0).await;
    fleet.join().await;
    fleet.ready().await;
    let sessions = input.sessions();
    fleet.shows_sessions(0, |shown| *shown == sessions).await;
    let gone = "agentgauge_fleet_records_lost_total{role=\"assemble\"}";
    assert!(fleet.metric(0, gone).await > 0.0);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_holds_up_nothing() {
    let input = Input::new(30);
    let mut fleet = Fleet::new();
    fleet.join().await;
    fleet.ready().await;
    let poison: [&[u8]; 4] = [b"", b"\xff\xff", &[0x22, 1, 0xc1], &[0x2a, 2, 0x90, 0x90]];
    for number in 0..input.len() {
        fleet.send(0, &input.request(number)).await;
        for topic in ["spans", "traces", "agents"] {
            fleet.put(topic, None, poison[number % poison.len()]);
        }
    }
    fleet.shows(&input.replayed()).await;
    let skipped = "agentgauge_fleet_records_total{outcome=\"malformed\",role=\"assemble\"}";
    fleet.counts(0, skipped, input.len() as f64).await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_can_have_an_instance_of_its_own() {
    let input = Input::new(30);
    let mut fleet = Fleet::new();
    for role in [Role::Gateway, Role::Assemble, Role::Score, Role::Fleet] {
        fleet.join_as(&[role]).await;
    }
    fleet.ready().await;
    for number in 0..input.len() {
        fleet.send(0, &input.request(number)).await;
    }
    fleet.shows(&input.replayed()).await;
    assert!(fleet.instances[1].bound().otlp_http.is_none());
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_with_the_instance_that_has_them() {
    let input = Input::new(60);
    let mut fleet = Fleet::new();
    fleet.join().await;
    fleet.join().await;
    fleet.ready().await;
    for number in 0..input.len() {
        fleet.send(number % 2, &input.request(number)).await;
    }
    fleet.shows(&input.replayed()).await;
    let expected = input.sessions();
    let (mut all, one_more) = fleet.sessions(0).await;
    let (others, other_more) = fleet.sessions(1).await;
    assert!(one_more && other_more && !all.is_empty() && !others.is_empty());
    for id in expected.keys() {
        for instance in [0, 1] {
            let has = if instance == 0 { all.contains_key(id) } else { others.contains_key(id) };
            let status = if has { "HTTP/1.1 200" } else { "HTTP/1.1 404" };
            fleet.answers(instance, &format!("/api/v1/sessions/{id}"), &[status]).await;
            let trace = expected[id]["traces"][0]["trace_id"].as_str().unwrap();
            fleet.answers(instance, &format!("/api/v1/traces/{trace}"), &[status]).await;
        }
    }
    let count = all.len() + others.len();
    all.extend(others);
    assert_eq!((count, &all), (expected.len(), &expected));
    // The remaining instance has them all, and says so; an instance without the role has none, and says that.
    fleet.leave(1).await;
    fleet.ready().await;
    assert_eq!(fleet.sessions(0).await, (expected, false));
    fleet.join_as(&[Role::Gateway]).await;
    assert_eq!(fleet.sessions(1).await, ([].into(), true));
    fleet.stop().await;
}

/// The owner of a trace sends it under its own session, because nothing named a session for long enough, and is gone before it
/// reads the span that does.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_timer_told_is_taken_back_by_the_next_owner() {
    let input = Input::new(1);
    let mut fleet = Fleet::new();
    fleet.join().await;
    fleet.ready().await;
    let before = fleet.state_of("spans").await;
    // On its way for as long as that takes: it came before, and arrives after.
    fleet.make_topics_of("held");
    let mut config = fleet.config(&[Role::Gateway]);
    config.fleet.prefix = "held".to_owned();
    fleet.instances.push(Daemon::start(&config).await.unwrap());
    fleet.send(1, &input.request(1)).await;
    fleet.send(0, &input.request(0)).await;
    fleet.shows_sessions(0, |sessions| sessions.len() == 1).await;
    assert!(!fleet.sessions(0).await.0.contains_key("session-0"));
    fleet.leave(0).await;
    // As if it had been killed: the last checkpoint is from before.
    fleet.put_state_back("spans", &before);
    for (partition, record) in fleet.records("held.spans") {
        fleet.put("spans", Some(partition), &record);
    }
    fleet.leave(0).await;
    fleet.join().await;
    let expected = input.sessions();
    fleet.shows_sessions(0, |sessions| *sessions == expected).await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_topic_and_what_makes_it_are_named() {
    let mut fleet = Fleet::without_topics();
    fleet.join().await;
    fleet.answers(0, "/readyz", &["503", "agentgauge.", "topics create", "fleet.prefix"]).await;
    fleet.make_topics();
    fleet.ready().await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_goes_is_named_and_a_request_is_not_acknowledged_without_it() {
    let input = Input::new(2);
    let mut fleet = Fleet::new();
    fleet.join().await;
    fleet.ready().await;
    fleet.cluster.broker_down(1).unwrap();
    let answer = fleet.post(0, &input.request(0)).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    fleet.answers(0, "/readyz", &["503", "kafka.brokers"]).await;
    fleet.cluster.broker_up(1).unwrap();
    for number in 0..input.len() {
        fleet.send(0, &input.request(number)).await;
    }
    fleet.shows(&input.replayed()).await;
    fleet.stop().await;
}
