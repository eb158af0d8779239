//! Who is watched, for how long, and how the false pages are shared.

mod together;

use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::*;
use crate::facts::{AgentParts, Effort, PartialSum, ScopedId};
use crate::span::{Report, Source, Target, TraceId};
use crate::view::DropView;

const HOUR: u64 = 3_600_000_000_000;

fn key(version: &str) -> AgentKey {
    AgentParts { agent_version: version.into(), ..AgentParts::default() }.into()
}

/// A trace of this hour.
fn trace(hour: u64, failed: bool) -> DoneTrace {
    DoneTrace {
        trace_id: Some(TraceId(u128::from(hour).to_be_bytes())),
        at_unix_nano: hour * HOUR,
        touched_unix_nano: hour * HOUR,
        failed: Some(failed),
        looped: Some(false),
        signal: if failed { "error" } else { "" }.into(),
        session: ScopedId { id: format!("session {hour}").into(), ..ScopedId::default() },
        ..DoneTrace::default()
    }
}

/// Drops of so many agents at most, and what was counted of them.
struct Fixture {
    drops: Drops,
    counts: Counts,
}

impl Fixture {
    fn new(max_agents: usize) -> Self {
        let drops = Drops::new(DropOptions::default(), max_agents);
        Self { drops, counts: Counts::default() }
    }

    fn observe(&mut self, version: &str, trace: DoneTrace) {
        self.drops.observe(&key(version), [trace], WallShift::default());
        self.drops.settle(&DriftOptions::default(), &mut self.counts);
    }

    /// Something of these agents was rolled out at this hour; returns whether that was new.
    fn deploy(&mut self, agents: &AgentKey, id: &str, accept: bool, hour: u64) -> bool {
        let report = Report {
            target: Target::Agent(Box::new(agents.clone())),
            name: DEPLOYMENT.into(),
            score: Quanta(if accept { Quanta::ONE } else { 0 }),
            label: Some(format!("release {id}").into()),
            success: None,
            explanation: None,
            source: Source::Reported,
            identifier: id.into(),
            judge: None,
            time: Timestamp(hour * HOUR),
            tenant: None,
        };
        let at = Timestamp(hour * HOUR);
        let deployment = Deployment::of(agents, &report, at);
        self.drops.deploy(&deployment, at, &tenants::Shares::default(), &mut self.counts)
    }

    fn view(&self, version: &str) -> Vec<DropView> {
        let mut view = AgentView::default();
        let drift = DriftOptions::default();
        self.drops.look_at(&key(version), &mut view, &drift, WallShift::default());
        view.drops
    }

    /// The longest usual gap of a version's agent, in seconds.
    fn usual_gap(&self, version: &str) -> Option<f64> {
        let mut view = AgentView::default();
        let drift = DriftOptions::default();
        self.drops.look_at(&key(version), &mut view, &drift, WallShift::default());
        view.usual_gap_seconds
    }

    fn saved(&self) -> Vec<u8> {
        rmp_serde::to_vec_named(&self.drops.save()).unwrap()
    }
}

#[test]
fn every_stream_has_a_name_of_its_own_that_is_read_back() {
    let mut told = Fixture::new(10);
    let cost_quanta = PartialSum { traces: 1, sum: 1_000 };
    let effort = Some(Effort { cost_quanta, ..Effort::default() });
    for hour in 1..90 {
        let (outcome_failed, tools_failed) = (Some(hour % 2 == 0), Some(true));
        told.observe("1", DoneTrace { outcome_failed, tools_failed, effort, ..trace(hour, true) });
    }
    let names: Vec<&str> = told.view("1").iter().map(|drop| drop.stream).collect();
    let expected: Vec<&str> = STREAMS.iter().map(|stream| stream.name).collect();
    assert_eq!(names, expected);
    let mut read = Fixture::new(10);
    read.drops.restore(rmp_serde::from_slice(&told.saved()).unwrap());
    assert_eq!(read.saved(), told.saved());
    assert_eq!(read.view("1"), told.view("1"));
}

#[test]
fn what_is_not_known_of_a_trace_is_no_value() {
    let mut told = Fixture::new(10);
    told.observe("1", DoneTrace { failed: None, ..trace(1, false) });
    let names: Vec<&str> = told.view("1").iter().map(|drop| drop.stream).collect();
    assert_eq!(names, ["loops"]);
}

#[test]
fn streams_that_went_silent_leave_their_share_to_others() {
    let mut told = Fixture::new(10);
    for version in ["1", "2", "3"] {
        told.observe(version, trace(1, false));
    }
    assert_eq!((told.drops.shares.paging, told.drops.shares.warning), (3, 3));
    for hour in 2..30 {
        told.observe("3", trace(hour, false));
    }
    assert_eq!((told.drops.shares.paging, told.drops.shares.warning), (1, 1));
}

#[test]
fn a_tenant_whose_versions_change_takes_no_watch_of_another() {
    let of = |tenant: &str, version: &str| -> AgentKey {
        let parts = AgentParts { tenant: tenant.into(), ..AgentParts::clone(&key(version)) };
        parts.into()
    };
    let mut told = Fixture::new(1);
    let tell = |told: &mut Fixture, agent: &AgentKey, hour| {
        told.drops.observe(agent, [trace(hour, false)], WallShift::default());
        told.drops.settle(&DriftOptions::default(), &mut told.counts);
    };
    let quiet = of("quiet", "1");
    tell(&mut told, &quiet, 1);
    for build in 0..20 {
        tell(&mut told, &of("flood", &build.to_string()), 2 + build);
    }
    assert!(told.drops.watches.contains_key(&quiet));
    assert_eq!(told.drops.watches.len(), REMEMBERED);
}

#[test]
fn what_was_unheard_of_for_longest_is_forgotten_over_the_bound_and_all_in_the_end() {
    let mut told = Fixture::new(1);
    for (hour, version) in (1..).zip(["1", "2", "3", "4", "1", "5"]) {
        told.observe(version, trace(hour, false));
    }
    let held = ["1", "2", "3", "4", "5"].map(|version| told.view(version).len());
    assert_eq!(held, [2, 0, 2, 2, 2]);
    assert_eq!(told.counts.get("drops", "forgotten"), 1);
    told.observe("1", trace(57 * 24, false));
    assert_eq!(told.counts.get("drops", "expired"), 4);
    assert_eq!(told.view("1").len(), 2);
}

#[test]
fn the_version_before_is_the_one_that_was_heard_of_last() {
    let mut told = Fixture::new(10);
    for (hour, version) in [(1, "9"), (2, "1"), (3, "9"), (4, "5")] {
        told.observe(version, trace(hour, false));
    }
    let before = |version| told.drops.watches[&key(version)].before.clone();
    assert_eq!(before("9"), None);
    assert_eq!(before("1").as_deref(), Some("9"));
    assert_eq!(before("5").as_deref(), Some("9"));
}

#[test]
fn the_examples_are_sessions_of_what_carries_most_failures() {
    let mut told = Fixture::new(10);
    let failing = |hour: u64, tool: &str| DoneTrace {
        tool: tool.to_owned(),
        error_type: if hour.is_multiple_of(5) { "refused" } else { "timeout" }.to_owned(),
        ..trace(hour, true)
    };
    let found = (1..60).find_map(|hour| {
        told.observe("1", failing(hour, if hour % 3 == 0 { "rare" } else { "often" }));
        let drop = told.view("1").remove(0);
        (drop.severity == "critical").then(|| (hour, drop.drop.unwrap()))
    });
    let (hour, found) = found.unwrap();
    assert_eq!((found.signal.as_deref(), found.tool.as_deref()), (Some("error"), Some("often")));
    assert_eq!(found.error_type.as_deref(), Some("timeout"));
    let often = (1..=hour).rev().filter(|hour| hour % 3 != 0).take(2);
    let often: Vec<String> = often.map(|hour| format!("session {hour}")).collect();
    let sessions: Vec<String> = found.sessions.into_iter().map(|name| name.session_id).collect();
    assert_eq!(sessions, often);
    assert_eq!(told.view("1")[1].severity, "quiet");
}

#[test]
fn the_kind_of_error_is_that_of_more_than_half_of_the_failures_or_none() {
    let found = |kinds: &[&str]| {
        let mut told = Fixture::new(10);
        (1..60).find_map(|hour| {
            let kind = kinds.get(usize::try_from(hour).unwrap() % kinds.len()).copied();
            let error_type = kind.unwrap_or_default().to_owned();
            told.observe("1", DoneTrace { error_type, ..trace(hour, true) });
            let drop = told.view("1").remove(0);
            (drop.severity == "critical").then(|| drop.drop.unwrap().error_type)
        })
    };
    assert_eq!(found(&["timeout"]), Some(Some("timeout".to_owned())));
    assert_eq!(found(&[""]), Some(None), "it is not told");
    assert_eq!(found(&["a", "b", "c"]), Some(None), "there is no one kind");
}

#[test]
fn a_stream_is_accepted_by_its_name() {
    let mut told = Fixture::new(10);
    for hour in 1..60 {
        told.observe("1", DoneTrace { outcome_failed: Some(true), ..trace(hour, true) });
    }
    let severities =
        |told: &Fixture| told.view("1").iter().map(|drop| drop.severity).collect::<Vec<_>>();
    assert_eq!(severities(&told), ["critical", "critical", "quiet"]);
    let now = Timestamp(60 * HOUR);
    assert!(!told.drops.accept(&key("2"), None, now));
    assert!(!told.drops.accept(&key("1"), Some("loops"), now));
    assert!(told.drops.accept(&key("1"), Some("outcome"), now));
    assert_eq!(severities(&told), ["critical", "quiet", "quiet"]);
    assert!(told.drops.accept(&key("1"), None, now));
    assert_eq!(severities(&told), ["quiet", "quiet", "quiet"]);
}

proptest! {
    /// Messages that arrive together count in the order of arrival, whatever the order in which they were sent.
    #[test]
    fn the_order_of_telling_does_not_matter(
        traces in prop::collection::vec((0..40_u64, 0..2_u8, any::<bool>()), 1..160),
        order in prop::collection::vec(any::<u16>(), 160),
    ) {
        let run = |order: &dyn Fn(usize) -> usize| {
            let mut told = Fixture::new(10);
            let mut numbered: Vec<usize> = (0..traces.len()).collect();
            numbered.sort_by_key(|at| order(*at));
            for at in numbered {
                let (hour, version, failed) = traces[at];
                let calls = hour % 7 + 1;
                let trace = DoneTrace {
                    trace_id: Some(TraceId((at as u128).to_be_bytes())),
                    outcome_failed: (at % 4 > 0).then_some(failed),
                    effort: Some(Effort { model_calls: calls, ..Effort::default() }),
                    ..trace(hour, failed)
                };
                told.drops.observe(&key(&version.to_string()), [trace], WallShift::default());
            }
            told.drops.settle(&DriftOptions::default(), &mut told.counts);
            told.saved()
        };
        let expected = run(&|at| at);
        prop_assert_eq!(run(&|at| usize::from(order[at])), expected);
    }
}

const MINUTE: u64 = 60_000_000_000;

/// A trace of this minute that took `model_calls` calls and so long, by a number that chance draws.
fn taking(minute: u64, drawn: u64, times: u64) -> DoneTrace {
    let drawn = xxh3_64_with_seed(&minute.to_be_bytes(), drawn) % 1_000;
    let effort = Effort {
        model_calls: 1 + drawn % 7,
        nanos: times * (1_000 + drawn) * 1_000_000,
        ..Effort::default()
    };
    let at = minute * MINUTE;
    DoneTrace {
        trace_id: Some(TraceId(u128::from(minute).to_be_bytes())),
        start_unix_nano: at,
        at_unix_nano: at,
        touched_unix_nano: at,
        effort: Some(effort),
        ..trace(0, false)
    }
}

fn severity(told: &Fixture, version: &str, stream: &str) -> &'static str {
    let view = told.view(version).into_iter().find(|drop| drop.stream == stream);
    view.map_or("absent", |drop| drop.severity)
}

#[test]
fn traces_that_take_longer_than_usual_are_a_warning_of_latency_alone() {
    let mut told = Fixture::new(10);
    (0..5_000).for_each(|minute| told.observe("1", taking(minute, 1, 1)));
    for stream in ["verdict", "loops", "effort", "latency"] {
        assert_eq!(severity(&told, "1", stream), "quiet", "{stream}");
    }
    assert_eq!(severity(&told, "1", "cost"), "absent", "no trace tells its cost");
    let rise = 5_000..5_060;
    let found = rise.clone().find(|minute| {
        told.observe("1", taking(*minute, 1, 2));
        severity(&told, "1", "latency") == "warning"
    });
    let found = found.expect("twice the time is a rise");
    assert!(found < 5_040, "found after {} traces", found - 5_000);
    assert_eq!(severity(&told, "1", "effort"), "quiet");
    let view = told.view("1").into_iter().find(|drop| drop.stream == "latency").unwrap();
    let drop = view.drop.unwrap();
    assert!((0.4..0.6).contains(&drop.from) && drop.to > 0.8, "from {} to {}", drop.from, drop.to);
    assert_eq!((drop.signal, drop.sessions.is_empty()), (None, false));
}

#[test]
fn what_is_slow_does_not_become_usual_while_it_is_a_warning() {
    let mut told = Fixture::new(10);
    (0..2_000).for_each(|minute| told.observe("1", taking(minute, 1, 1)));
    (2_000..12_000).for_each(|minute| told.observe("1", taking(minute, 1, 3)));
    assert_eq!(severity(&told, "1", "latency"), "warning", "a week later");
    (12_000..14_000).for_each(|minute| told.observe("1", taking(minute, 1, 1)));
    assert_eq!(severity(&told, "1", "latency"), "quiet");
}

#[test]
fn the_return_from_days_of_light_work_is_no_rise() {
    for seed in 0..3 {
        let mut told = Fixture::new(10);
        for minute in (0..45 * 1_440).step_by(14) {
            let is_light = (30 * 1_440..32 * 1_440).contains(&minute);
            told.observe("1", taking(minute, seed, if is_light { 1 } else { 2 }));
            for stream in ["effort", "latency"].iter().filter(|_| minute >= 32 * 1_440) {
                let severity = severity(&told, "1", stream);
                assert_ne!(severity, "warning", "{stream} in minute {minute}, {seed}");
            }
        }
    }
}

#[test]
fn the_return_from_two_weeks_of_light_work_is_no_rise_where_all_traces_are_alike() {
    let mut told = Fixture::new(10);
    for quarter in 0..90 * 96_u64 {
        let is_light = (40 * 96..54 * 96).contains(&quarter);
        if is_light && quarter % 2 == 0 {
            continue;
        }
        let alike = taking(quarter * 15, 1, 1);
        let (model_calls, nanos) = if is_light { (4, 10) } else { (8, 20) };
        let effort =
            Some(Effort { model_calls, nanos: nanos * 1_000_000_000, ..Effort::default() });
        told.observe("1", DoneTrace { effort, ..alike });
        for stream in ["effort", "latency"] {
            assert_ne!(severity(&told, "1", stream), "warning", "{stream} on day {}", quarter / 96);
        }
    }
}

#[test]
fn a_new_version_is_held_against_what_the_one_before_took() {
    let mut told = Fixture::new(10);
    (0..2_000).for_each(|minute| told.observe("1", taking(minute, 1, 1)));
    (2_000..2_060).for_each(|minute| told.observe("2", taking(minute, 1, 3)));
    let view = told.view("2").into_iter().find(|drop| drop.stream == "latency").unwrap();
    assert_eq!((view.severity, view.against), ("warning", "version_before"));
}

#[test]
fn what_traces_take_does_not_warn_by_chance() {
    let warned = (0..3).filter(|seed| {
        let mut told = Fixture::new(10);
        (0..20_000).any(|minute| {
            told.observe("1", taking(minute, *seed, 1));
            ["effort", "latency"].iter().any(|stream| severity(&told, "1", stream) == "warning")
        })
    });
    // The dial allows ten warnings a quarter: 4.6 in three times 14 days.
    assert!(warned.count() <= 1);
}

/// A version that fails in every `nth` trace from this hour on; returns how bad the worst state of its verdicts was.
fn failing(
    told: &mut Fixture,
    version: &str,
    hours: std::ops::Range<u64>,
    nth: u64,
) -> &'static str {
    let mut worst = "quiet";
    for hour in hours {
        told.observe(version, trace(hour, hour % nth == 0));
        if severity(told, version, "verdict") == "critical" {
            worst = "critical";
        }
    }
    worst
}

#[test]
fn a_new_version_begins_anew_if_its_deployment_accepts_its_level() {
    // The version before never fails; one in twelve is within the objective.
    let after = |accept: Option<bool>| {
        let mut told = Fixture::new(10);
        failing(&mut told, "1", 1..600, u64::MAX);
        if let Some(accept) = accept {
            assert!(told.deploy(&key("2"), "7", accept, 600));
        }
        let worst = failing(&mut told, "2", 600..1_400, 12);
        (worst, told.view("2")[0].usual)
    };
    assert_eq!(after(None).0, "critical");
    assert_eq!(after(Some(false)).0, "critical");
    let (worst, usual) = after(Some(true));
    assert_eq!(worst, "quiet");
    assert!((0.06..0.11).contains(&usual), "{usual}");
}

#[test]
fn a_deployment_that_accepts_ends_drops_and_forgets_what_was_usual_of_the_version_that_it_names() {
    let mut told = Fixture::new(10);
    failing(&mut told, "1", 1..600, u64::MAX);
    assert_eq!(failing(&mut told, "2", 600..660, 2), "critical");
    let other = key("2").with(|parts| parts.agent_name = "other".into());
    assert!(told.deploy(&other, "1", true, 660));
    assert!(told.deploy(&key("1"), "1", true, 660));
    assert_eq!(severity(&told, "2", "verdict"), "critical");
    assert_eq!(told.view("1")[0].against, "objective");
    // Of any version.
    assert!(told.deploy(&key(""), "1", true, 660));
    let view = told.view("2").remove(0);
    assert_eq!((view.severity, view.against), ("quiet", "past"));
    assert!((0.4..0.6).contains(&view.usual), "{}", view.usual);
    assert_eq!(failing(&mut told, "2", 660..800, 2), "quiet");
}

/// Traces of five alternating sessions, each with 20 traces; every third session has a failure.
fn alternating(told: &mut Fixture, hours: std::ops::Range<u64>) {
    for hour in hours {
        let session = format!("session {} of lane {}", hour / 100, hour % 5);
        let failed = hour % 300 == 7;
        told.observe("1", trace_of(hour, session, failed));
    }
}

fn trace_of(hour: u64, session: String, failed: bool) -> DoneTrace {
    DoneTrace {
        session: ScopedId { id: session.into(), ..ScopedId::default() },
        ..trace(hour, failed)
    }
}

/// Failures alone from this hour on, of these sessions, until they page; `None`: so many do not.
fn pages_after(
    told: &mut Fixture,
    hours: std::ops::Range<u64>,
    session: impl Fn(u64) -> String,
) -> Option<u64> {
    let first = hours.start;
    for hour in hours {
        told.observe("1", trace_of(hour, session(hour), true));
        if severity(told, "1", "verdict") == "critical" {
            return Some(hour + 1 - first);
        }
    }
    None
}

#[test]
fn a_session_that_fails_alone_pages_nobody_and_makes_no_outage_usual() {
    let mut told = Fixture::new(10);
    let (mut hour, mut pages) = (0, 0);
    for number in 0..20_u64 {
        alternating(&mut told, hour..hour + 1_000);
        hour += 1_000;
        // A session that is beyond help, between two traces of others.
        let failures = if number % 2 == 0 { 12 } else { 25 };
        let beyond = |_| format!("beyond help {number}");
        pages += u64::from(pages_after(&mut told, hour..hour + failures, beyond).is_some());
        hour += failures;
    }
    // In these two years chance alone may page nine times.
    assert!(pages <= 2, "{pages}");
    alternating(&mut told, hour..hour + 1_000);
    hour += 1_000;
    let outage = pages_after(&mut told, hour..hour + 50, |hour| format!("session {}", hour % 5));
    assert!(outage.is_some_and(|traces| traces < 10), "{outage:?}");
}

#[test]
fn a_session_that_fails_alone_pages_nobody_while_the_agent_is_new() {
    let mut told = Fixture::new(10);
    alternating(&mut told, 0..50);
    assert_eq!(pages_after(&mut told, 50..70, |_| "beyond help".to_owned()), None);
    let outage = pages_after(&mut told, 70..100, |hour| format!("session {}", hour % 5));
    assert!(outage.is_some(), "{outage:?}");
}

#[test]
fn where_one_session_is_all_there_is_its_failures_page() {
    let mut told = Fixture::new(10);
    let one = || "the only one".to_owned();
    (0..2_000).for_each(|hour| told.observe("1", trace_of(hour, one(), false)));
    let outage = pages_after(&mut told, 2_000..2_050, |_| one());
    assert!(outage.is_some_and(|traces| traces < 10), "{outage:?}");
}

#[test]
fn a_session_is_good_again_with_its_next_success() {
    let mut told = Fixture::new(10);
    let fails = |told: &mut Fixture, hour: u64, failed: bool| {
        told.observe("1", trace_of(hour, "own".to_owned(), failed));
        let watched = told.drops.watches[&key("1")].streams.get("verdict").unwrap();
        let next = |session: Option<u64>| watched.clone().in_session(session, true);
        let other = next(Some(1));
        assert_eq!((other.failed, other.is_change), (0, true));
        assert_eq!(next(None), other);
        let in_session = next(hashed(&trace_of(hour, "own".to_owned(), failed).session));
        (in_session.failed, in_session.is_change)
    };
    assert_eq!(fails(&mut told, 1, false), (0, false));
    assert_eq!(fails(&mut told, 2, true), (1, false));
    assert_eq!(fails(&mut told, 3, true), (2, false));
    told.observe("1", trace(4, true));
    assert_eq!(fails(&mut told, 5, true), (3, false));
    // However long it fails.
    (6..50).for_each(|hour| _ = fails(&mut told, hour, true));
    assert_eq!(fails(&mut told, 50, true), (48, false));
    assert_eq!(fails(&mut told, 51, false), (0, false));
    assert_eq!(fails(&mut told, 52, true), (1, false));
}

#[test]
fn a_drop_is_found_though_no_version_lives_to_see_it() {
    // The version in which it pages.
    let daily = |told: &mut Fixture, mut days: std::ops::Range<u64>, nth: u64| {
        days.find(|day| failing(told, &day.to_string(), day * 24..day * 24 + 3, nth) == "critical")
    };
    let mut told = Fixture::new(100);
    assert_eq!(daily(&mut told, 1..60, u64::MAX), None);
    let found = daily(&mut told, 60..90, 3).expect("a drop");
    // Which began before the version in which it was found, and is no fault of that.
    let view = told.view(&found.to_string()).remove(0);
    assert_eq!(view.against, "past");
    let since: u64 = view.drop.unwrap().since_unix_nano.parse().unwrap();
    assert!(since < found * 24 * HOUR, "{since}");
}

#[test]
fn a_drop_is_found_though_versions_live_for_a_few_traces() {
    for (traces, overlap) in [(3, 0), (3, 2), (1, 0)] {
        let mut told = Fixture::new(1_000);
        let mut number = 0;
        // In a rollout the first trace of the next version may come before the last one of this.
        let mut trace_of = |told: &mut Fixture, failed: bool| {
            number += 1;
            let version = (number + overlap * u64::from(number % traces == 1)) / traces;
            told.observe(&version.to_string(), trace(number, failed));
            let view = told.view(&version.to_string()).remove(0);
            (view.severity, view.against)
        };
        for hour in 0..1_200 {
            let (severity, _) = trace_of(&mut told, hour % 50 == 0);
            assert_ne!(severity, "critical", "{traces} {overlap} {hour}");
        }
        let found = (0..120).find_map(|hour| {
            let (severity, against) = trace_of(&mut told, hour % 5 == 0);
            (severity == "critical").then_some(against)
        });
        assert_eq!(found, Some("past"), "{traces} {overlap}");
    }
}

#[test]
fn a_drop_is_found_though_every_other_trace_is_of_a_version_of_its_own() {
    let mut told = Fixture::new(1_000);
    let mut severity_after = |hour: u64, failed: bool| {
        let once = hour.to_string();
        told.observe(if hour.is_multiple_of(2) { "main" } else { &once }, trace(hour, failed));
        told.view("main").first().map(|view| view.severity)
    };
    for hour in 1..1_200 {
        assert_ne!(severity_after(hour, hour % 50 == 0), Some("critical"), "{hour}");
    }
    let found = (1_200..1_400).find(|hour| severity_after(*hour, hour % 5 > 1) == Some("critical"));
    assert!(found.is_some());
}

#[test]
fn a_drop_of_a_version_that_was_replaced_ends_after_a_day_and_its_past_stays() {
    let mut told = Fixture::new(10);
    failing(&mut told, "1", 1..600, u64::MAX);
    assert_eq!(failing(&mut told, "2", 600..660, 2), "critical");
    // Another agent continues, and this one is silent.
    let other = key("3").with(|parts| parts.agent_name = "other".into());
    for hour in 660..720 {
        told.drops.observe(&other, [trace(hour, false)], WallShift::default());
        let changed = told.drops.settle(&DriftOptions::default(), &mut told.counts);
        assert_eq!(changed, []);
    }
    assert_eq!(severity(&told, "2", "verdict"), "critical");
    let usual = told.view("2")[0].usual;
    // It is rolled back. Nothing has come of the version for a day.
    told.drops.observe(&key("1"), [trace(720, false)], WallShift::default());
    let _ = told.drops.settle(&DriftOptions::default(), &mut told.counts);
    told.drops.observe(&key("1"), [trace(721, false)], WallShift::default());
    let changed = told.drops.settle(&DriftOptions::default(), &mut told.counts);
    assert!(changed.contains(&key("2")));
    let view = told.view("2").remove(0);
    assert_eq!((view.severity, view.drop, view.usual), ("quiet", None, usual));
    // It comes back no better.
    assert_eq!(failing(&mut told, "2", 722..760, 2), "critical");
    // While something comes of it, its drop stays, whatever other versions do.
    for hour in 760..800 {
        told.observe("1", trace(hour, false));
        if hour % 20 == 0 {
            told.observe("2", trace(hour, true));
        }
        assert_eq!(severity(&told, "2", "verdict"), "critical", "{hour}");
    }
}

/// How often the stream of a version pages, and its final severity, with hourly messages.
fn pages_of(
    told: &mut Fixture,
    (version, stream): (&str, &str),
    hours: std::ops::Range<u64>,
    mut tell: impl FnMut(&mut Fixture, u64),
) -> (u32, &'static str) {
    let (mut pages, mut last) = (0, "");
    for hour in hours {
        tell(told, hour);
        let now = severity(told, version, stream);
        pages += u32::from(now == "critical" && last != "critical");
        last = now;
    }
    (pages, last)
}

#[test]
fn a_version_that_rests_is_not_replaced() {
    let mut told = Fixture::new(10);
    // Version 2 works on workdays, beside version 1. From the sixth week on it fails.
    let works = |hour: u64| hour / 24 % 7 < 5 && hour % 24 < 10;
    let work = |told: &mut Fixture, hour: u64| {
        told.observe("1", trace(hour, false));
        if works(hour) {
            told.observe("2", trace(hour, hour >= 35 * 24 && hour.is_multiple_of(2)));
        }
    };
    let found = pages_of(&mut told, ("2", "verdict"), 1..70 * 24, work);
    assert_eq!(found, (1, "critical"));
    // It is rolled back on a Friday: a weekend says nothing, on Tuesday it is over.
    let rolled_back = |told: &mut Fixture, hour: u64| told.observe("1", trace(hour, false));
    let found = pages_of(&mut told, ("2", "verdict"), 70 * 24..70 * 24 + 8, rolled_back);
    assert_eq!(found.1, "critical");
    let found = pages_of(&mut told, ("2", "verdict"), 70 * 24 + 8..72 * 24, rolled_back);
    assert_eq!(found.1, "quiet");
}

#[test]
fn a_version_that_goes_on_is_not_replaced_though_its_outcomes_are_told_once_a_week() {
    let mut told = Fixture::new(10);
    let work = |told: &mut Fixture, hour: u64| {
        told.observe("1", trace(hour, false));
        told.observe("2", trace(hour, false));
        if hour.is_multiple_of(7 * 24) {
            for session in 0..40 {
                let id = format!("outcome {hour} {session}").into();
                told.observe(
                    "2",
                    DoneTrace {
                        trace_id: None,
                        failed: None,
                        looped: None,
                        outcome_failed: Some(hour >= 35 * 24 && session % 2 == 0),
                        session: ScopedId { id, ..ScopedId::default() },
                        ..trace(hour, false)
                    },
                );
            }
        }
    };
    assert_eq!(pages_of(&mut told, ("2", "outcome"), 1..70 * 24, work), (1, "critical"));
}

#[test]
fn the_usual_silence_is_that_of_the_agent_whatever_its_versions() {
    let mut told = Fixture::new(100);
    // A trace an hour; one in twenty is of a canary, and each day has a version of its own.
    let version = |hour: u64| format!("{}", hour / 24);
    for hour in 1..1_000 {
        let of = if hour % 20 == 0 { "canary".to_owned() } else { version(hour) };
        told.observe(&of, trace(hour, false));
    }
    let mut next = Fixture::new(100);
    next.drops.restore(rmp_serde::from_slice(&told.saved()).unwrap());
    for told in [&told, &next] {
        for of in ["canary", "1", "40", "41"] {
            assert_eq!(told.usual_gap(of), Some(2.5 * 3_600.0), "{of}");
        }
        assert_eq!(told.saved(), next.saved());
    }
    // It works every ten hours: its other versions are sent again.
    let mut shown = 0;
    for hour in (1_000..2_000).step_by(10) {
        told.drops.observe(&key("41"), [trace(hour, false)], WallShift::default());
        let changed = told.drops.settle(&DriftOptions::default(), &mut told.counts);
        shown += changed.iter().filter(|other| **other == key("canary")).count();
    }
    assert_eq!((shown, told.usual_gap("canary")), (2, Some(2.5 * 36_000.0)));
    // Of an agent that is forgotten, nothing is left.
    let other = key("1").with(|parts| parts.agent_name = "other".into());
    for hour in [9_000, 9_002] {
        told.drops.observe(&other, [trace(hour, false)], WallShift::default());
        let _ = told.drops.settle(&DriftOptions::default(), &mut told.counts);
    }
    assert_eq!(told.drops.gaps.len(), 1);
}

#[test]
fn what_traces_take_after_an_accepted_deployment_is_usual() {
    let mut told = Fixture::new(10);
    (0..2_000).for_each(|minute| told.observe("1", taking(minute, 1, 1)));
    assert!(told.deploy(&key("1"), "1", true, 2_000 / 60));
    let warned = (2_000..4_000).any(|minute| {
        told.observe("1", taking(minute, 1, 3));
        severity(&told, "1", "latency") == "warning"
    });
    assert!(!warned);
}

#[test]
fn deployments_are_shown_with_their_agents_and_count_once() {
    let mut told = Fixture::new(10);
    assert!(told.deploy(&key("1"), "a", false, 5));
    assert!(!told.deploy(&key("1"), "a", true, 9), "one id is one deployment");
    assert!(told.deploy(&key("2"), "", false, 7));
    assert!(!told.deploy(&key("2"), "", false, 7));
    assert!(told.deploy(&key("2"), "", true, 8));
    let of_service =
        AgentKey::from(AgentParts { service_name: "shop".into(), ..AgentParts::default() });
    assert!(told.deploy(&of_service, "b", false, 6));
    let shown = |told: &Fixture, agent: &AgentKey| -> Vec<(String, bool)> {
        let shown = told.drops.deployments(agent).into_iter();
        shown.map(|one| (one.agent_version, one.accepted)).collect()
    };
    let named = |version: &str, accepted| (version.to_owned(), accepted);
    let own = [named("2", true), named("2", false), named("1", false)];
    assert_eq!(shown(&told, &key("3")), own);
    let elsewhere = of_service.with(|parts| parts.agent_name = "support".into());
    let all = [named("2", true), named("2", false), named("", false), named("1", false)];
    assert_eq!(shown(&told, &elsewhere), all);
    let of_tenant = elsewhere.with(|parts| parts.tenant = "bank".into());
    assert_eq!(shown(&told, &of_tenant), []);
    let mut read = Fixture::new(10);
    read.drops.restore(rmp_serde::from_slice(&told.saved()).unwrap());
    assert_eq!(shown(&read, &key("3")), own);
}

#[test]
fn over_the_bound_the_oldest_deployment_is_forgotten_of_the_tenant_that_has_most() {
    let mut told = Fixture::new(10);
    told.drops.options.max_deployments = 3;
    let of = |tenant: &str| AgentKey::first_of(tenant);
    assert!(told.deploy(&of("shop"), "1", false, 1));
    for id in ["1", "2", "3", "4"] {
        assert!(told.deploy(&of("bank"), id, false, 2));
    }
    let names = |tenant: &str| -> Vec<String> {
        told.drops.deployments(&of(tenant)).into_iter().filter_map(|one| one.name).collect()
    };
    assert_eq!(
        (names("shop"), names("bank")),
        (vec!["release 1".to_owned()], vec!["release 3".to_owned(), "release 4".to_owned()],)
    );
    assert_eq!(told.counts.get("deployments", "forgotten"), 2);
}

/// An agent of a trace in five minutes, of whatever version.
struct Rollouts {
    told: Fixture,
    minute: u64,
    /// Pages so far, by version.
    pages: Vec<String>,
    severities: BTreeMap<String, &'static str>,
}

impl Rollouts {
    /// With a past of version 0, which fails in one of a hundred traces.
    fn new() -> Self {
        let told = Fixture::new(100);
        let mut agent = Self { told, minute: 0, pages: Vec::new(), severities: BTreeMap::new() };
        agent.traces(&["0"], 3_000, 1);
        assert!(agent.pages.is_empty());
        agent
    }

    /// So many traces, alternating between these versions; this percentage fails.
    fn traces(&mut self, versions: &[&str], count: u64, percent: u64) {
        for number in 0..count {
            self.minute += 5;
            let at = self.minute * MINUTE;
            let failed = xxh3_64_with_seed(&self.minute.to_be_bytes(), 7) % 100 < percent;
            let version = versions[usize::try_from(number).unwrap() % versions.len()];
            let session = format!("session {}", self.minute);
            let trace = DoneTrace {
                trace_id: Some(TraceId(u128::from(self.minute).to_be_bytes())),
                at_unix_nano: at,
                touched_unix_nano: at,
                ..trace_of(0, session, failed)
            };
            self.told.observe(version, trace);
            self.look(version);
        }
    }

    fn look(&mut self, version: &str) {
        self.severities.entry(version.to_owned()).or_insert("");
        for (version, before) in &mut self.severities {
            let now = severity(&self.told, version, "verdict");
            if now == "critical" && *before != now {
                self.pages.push(version.clone());
            }
            *before = now;
        }
    }

    fn restart(&mut self) {
        let mut next = Fixture::new(100);
        next.drops.restore(rmp_serde::from_slice(&self.told.saved()).unwrap());
        assert_eq!(next.saved(), self.told.saved());
        self.told = next;
    }

    fn is_all_quiet(&self) -> bool {
        self.severities.values().all(|severity| *severity == "quiet")
    }
}

#[test]
fn a_drop_goes_on_in_the_versions_that_are_deployed_in_it_until_one_mends_it() {
    for percent in [15, 40, 100] {
        let mut agent = Rollouts::new();
        agent.traces(&["0"], 150, percent);
        for version in ["1", "2", "3", "4", "5"] {
            agent.traces(&[version], 288, percent);
            agent.restart();
            assert_eq!(agent.severities["0"], "critical", "{percent}: in version {version}");
        }
        let usual = agent.told.view("5")[0].usual;
        assert!(usual < 0.02, "{usual}: what it was before the drop");
        agent.traces(&["6"], 1_000, 1);
        assert_eq!(agent.pages, ["0"], "{percent}");
        assert!(agent.is_all_quiet(), "{percent}: {:?}", agent.severities);
        // And then it is held against what was usual before the drop.
        agent.traces(&["6"], 150, percent);
        assert_eq!(agent.pages, ["0", "6"], "{percent}");
    }
}

#[test]
fn a_version_that_is_much_worse_than_the_drop_that_goes_on_pages() {
    let mut agent = Rollouts::new();
    agent.traces(&["0"], 150, 20);
    agent.traces(&["1"], 288, 20);
    agent.traces(&["2"], 60, 90);
    assert_eq!(agent.pages, ["0", "2"]);
    // The next one carries that on.
    agent.traces(&["3"], 576, 90);
    assert_eq!((agent.pages.len(), agent.severities["2"]), (2, "critical"));
    agent.traces(&["4"], 576, 1);
    assert!(agent.pages.len() == 2 && agent.is_all_quiet(), "{:?}", agent.severities);
}

#[test]
fn a_version_that_is_bad_pages_though_the_drop_in_which_it_began_is_over() {
    let mut agent = Rollouts::new();
    agent.traces(&["0"], 150, 40);
    agent.traces(&["0", "1"], 100, 40);
    assert_eq!(agent.pages, ["0"]);
    // Version 0 is good again by itself, version 1 is not.
    for _ in 0..300 {
        agent.traces(&["0"], 1, 1);
        agent.traces(&["1"], 1, 40);
    }
    assert_eq!(agent.pages, ["0", "1"]);
    assert_eq!(agent.severities["0"], "quiet");
}

#[test]
fn a_drop_that_goes_on_is_accepted_wherever_it_does() {
    let mut agent = Rollouts::new();
    agent.traces(&["0"], 150, 40);
    agent.traces(&["1"], 288, 40);
    assert!(agent.told.drops.accept(&key("0"), None, Timestamp(agent.minute * MINUTE)));
    agent.traces(&["1"], 1_000, 40);
    agent.traces(&["2"], 1_000, 40);
    assert!(agent.pages == ["0"] && agent.is_all_quiet(), "{:?}", agent.severities);
    agent.traces(&["2"], 60, 95);
    assert_eq!(agent.pages, ["0", "2"]);
}

#[test]
fn a_drop_ends_after_a_rollback_from_the_version_in_which_it_went_on() {
    let mut agent = Rollouts::new();
    agent.traces(&["1"], 150, 40);
    agent.traces(&["2"], 20, 40);
    agent.traces(&["0"], 2 * 288, 1);
    assert!(agent.pages == ["1"] && agent.is_all_quiet(), "{:?}", agent.severities);
    agent.traces(&["2"], 60, 40);
    assert_eq!(agent.pages, ["1", "2"]);
}

/// The watches after a trace that ended so many hours ahead of its arrival, by what the wall clock has been set to since.
fn with_a_trace_ahead(hours: u64) -> (Vec<u8>, Vec<DropView>) {
    let mut told = Fixture::new(10);
    for hour in 1..60 {
        told.observe("1", trace(hour, false));
        told.observe("2", trace(hour, hour % 30 == 0));
    }
    told.observe("1", DoneTrace { at_unix_nano: (60 + hours) * HOUR, ..trace(60, true) });
    for hour in 61..200 {
        told.observe("1", trace(hour, hour > 180));
        told.observe("2", trace(hour, hour > 180));
    }
    let views = ["1", "2"].map(|version| told.view(version)).concat();
    (told.saved(), views)
}

#[test]
fn a_trace_that_ends_after_its_arrival_ends_then() {
    let expected = with_a_trace_ahead(0);
    assert!(expected.1.iter().any(|drop| drop.severity == "critical"), "{:?}", expected.1);
    for hours in [1, 5 * 24, 400 * 24] {
        assert!(with_a_trace_ahead(hours) == expected, "{hours}");
    }
}

#[test]
fn where_no_arrival_is_known_a_trace_ends_when_it_says() {
    let found = |is_known: bool| {
        let mut told = Fixture::new(10);
        for hour in 1..200 {
            let known = trace(hour, hour > 150);
            let touched_unix_nano = if is_known { known.touched_unix_nano } else { 0 };
            told.observe("1", DoneTrace { touched_unix_nano, ..known });
        }
        severity(&told, "1", "verdict")
    };
    assert_eq!((found(true), found(false)), ("critical", "critical"));
}

#[test]
fn traces_that_ended_before_the_last_one_count_at_the_same_time() {
    let found = |hours: u64| {
        let mut told = Fixture::new(10);
        (1..400).for_each(|hour| told.observe("1", trace(hour, hour % 50 == 0)));
        let traces = (400..450_u64).find(|hour| {
            let at_unix_nano = hour.saturating_sub(hours) * HOUR;
            told.observe("1", DoneTrace { at_unix_nano, ..trace(*hour, true) });
            severity(&told, "1", "verdict") == "critical"
        });
        let drop = told.view("1").remove(0).drop.unwrap();
        assert_eq!(drop.since_unix_nano, (399 * HOUR).to_string(), "{hours}");
        assert!(!drop.sessions.is_empty(), "{hours}");
        (traces, told.saved())
    };
    assert!(found(60) == found(10_000));
}

#[test]
fn versions_are_found_as_among_all_of_them_whatever_came_and_went() {
    let agent = |number: u64| -> AgentKey {
        let parts = AgentParts {
            tenant: ["", "a"][usize::from(number.is_multiple_of(7))].into(),
            service_name: format!("{}", number % 3).into(),
            agent_version: format!("{}", number % 11).into(),
            environment: ["", "test"][usize::from(number.is_multiple_of(5))].into(),
            ..AgentParts::default()
        };
        parts.into()
    };
    let mut told = Fixture::new(6);
    let mut hour = 1_000;
    for step in 0..3_000_u64 {
        let dice = xxh3_64_with_seed(&[], step);
        // Some are late, and now and then all are silent for so long that they are forgotten.
        hour += if dice.is_multiple_of(400) { 50_000 } else { dice % 3 };
        let observed = agent(dice >> 32);
        let of = trace(hour - dice % 40, dice.is_multiple_of(2));
        told.drops.observe(&observed, [of], WallShift::default());
        let after = told.drops.settle(&DriftOptions::default(), &mut told.counts);
        let watches = &told.drops.watches;
        assert_eq!(told.drops.index, Index::of(watches), "{step}");
        for asked in (0..20).map(agent) {
            let others = || asked.other_versions(watches);
            let latest = others().max_by_key(|(other, watch)| (watch.told, *other));
            assert_eq!(told.drops.index.latest_before(&asked), latest.map(|(other, _)| other));
            let own = Some(&*asked.agent_version);
            let later = others().filter(|(_, watch)| watch.before.as_deref() == own);
            let later: Vec<&AgentKey> = later.map(|(other, _)| other).collect();
            let found: Vec<&AgentKey> = told.drops.index.versions_after(&asked).collect();
            assert!(found.len() == later.len() && later.iter().all(|key| found.contains(key)));
            assert!(asked != observed || later.iter().all(|key| after.contains(key)));
        }
        let oldest = watches.iter().min_by_key(|(key, watch)| (watch.told, *key));
        assert_eq!(told.drops.index.oldest(), oldest.map(|(key, _)| key));
        if step % 500 == 499 {
            let mut read = Fixture::new(6);
            read.drops.restore(rmp_serde::from_slice(&told.saved()).unwrap());
            assert_eq!(read.drops.index, told.drops.index);
        }
    }
    let counts = ["forgotten", "expired"].map(|why| told.counts.get("drops", why));
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

/// Versions that are numbers of builds. If each trace looked at all of them, this would take minutes.
#[test]
fn a_trace_costs_as_much_with_thousands_of_versions() {
    let mut told = Fixture::new(1_000);
    for number in 0..20_000_u64 {
        let version = if number < 12_000 { number % 4_000 } else { number };
        told.observe(&version.to_string(), trace(1, number % 9 == 0));
    }
    assert_eq!(told.drops.watches.len(), 4_000);
}
