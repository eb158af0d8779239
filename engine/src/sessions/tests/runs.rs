//! What came of runs, as it is reported by task and run.

use super::*;
use crate::facts::AgentParts;
use crate::math::Quanta;
use crate::span::{Report, RunTarget, Source, Target};

/// A done trace of task `t`; without a run's id it is part of the run of its session.
fn attempt(id: u8, second: u64, run: Option<&str>) -> TraceFacts {
    let task = Some("t".into());
    let attempt = Attempt { task, run: run.map(Arc::from), ..Attempt::default() };
    TraceFacts { attempt: Some(Box::new(attempt)), ..trace(id, second).done() }
}

/// A report about a run of agent `a` at this second.
fn outcome(run: &str, success: bool, second: u64) -> Report {
    let agent = trace(1, 1).agent.unwrap();
    let target = RunTarget { agent, task: "t".into(), run: run.into(), perturbation: None };
    Report {
        target: Target::Run(Box::new(target)),
        name: "outcome".into(),
        score: Quanta(if success { Quanta::ONE } else { 0 }),
        label: None,
        success: None,
        explanation: None,
        source: Source::Reported,
        identifier: "ci".into(),
        judge: None,
        time: at(second),
        tenant: None,
    }
}

fn failed(stage: &Sessions, session: &str) -> Vec<String> {
    stage.session("", session).unwrap().flagged
}

#[test]
fn a_failed_outcome_of_a_run_fails_its_last_trace_of_each_session() {
    let mut stage = stage();
    stage.handle(attempt(1, 10, Some("r")), at(20));
    stage.handle(attempt(2, 11, Some("r")), at(20));
    stage.handle(attempt(3, 12, Some("other")), at(20));
    let last = TraceFacts { state: TraceState::Sealed, ..attempt(4, 13, Some("r")) };
    stage.handle(last.session("q"), at(20));
    stage.report(outcome("r", false, 21), at(21));
    assert_eq!((failed(&stage, "s"), failed(&stage, "q")), (vec![hex(2)], vec![hex(4)]));
    // Whichever is the last one, in whatever order they come.
    stage.handle(attempt(6, 15, Some("r")), at(22));
    stage.handle(attempt(5, 14, Some("r")), at(23));
    assert_eq!(failed(&stage, "s"), [hex(6)]);
    stage.handle(attempt(6, 15, Some("other")).revision(2), at(24));
    assert_eq!(failed(&stage, "s"), [hex(5)]);
    let gone = TraceFacts { tombstone: true, ..attempt(5, 14, Some("r")).revision(2) };
    stage.handle(gone, at(25));
    assert_eq!(failed(&stage, "s"), [hex(2)]);
    // The last word holds.
    stage.report(outcome("r", true, 20), at(26));
    assert_eq!(failed(&stage, "s"), [hex(2)]);
    stage.report(outcome("r", true, 22), at(27));
    let session = stage.session("", "s").unwrap();
    assert_eq!((session.flagged.len(), session.traces[1].signals["outcome"].score), (0, 1.0));
    assert_eq!(stage.counts().iter().next(), None);
}

#[test]
fn the_run_of_a_session_goes_by_the_sessions_id_and_of_another_agent_there_is_none() {
    let mut stage = stage();
    stage.handle(attempt(1, 10, None), at(20));
    stage.handle(attempt(2, 11, None).agent("b"), at(20));
    stage.handle(trace(3, 12).done(), at(20));
    stage.report(outcome("s", false, 21), at(21));
    assert_eq!(failed(&stage, "s"), [hex(1)]);
}

#[test]
fn an_outcome_that_comes_before_its_run_is_remembered_for_as_long_as_reports_wait() {
    let wait = SessionOptions::default().report_wait;
    let mut stage = stage();
    stage.report(outcome("r", false, 1), at(1));
    assert_eq!(stage.poll_timeout(), Some(at(1).after(wait)));
    stage.handle(attempt(1, 10, Some("r")), at(20));
    stage.handle(attempt(2, 10, Some("r")).session("q"), at(21));
    assert_eq!((failed(&stage, "s"), failed(&stage, "q")), (vec![hex(1)], vec![hex(2)]));
    stage.handle_timeout(at(1).after(wait));
    // The sessions that have it keep it; another one hears nothing of it.
    let later = at(2).after(wait);
    stage.handle(attempt(3, 30, Some("r")), later);
    stage.handle(attempt(4, 30, Some("r")).session("new"), later);
    assert_eq!((failed(&stage, "s"), failed(&stage, "new")), (vec![hex(3)], vec![]));
}

#[test]
fn over_the_bound_the_oldest_outcome_is_forgotten() {
    let options = SessionOptions { max_waiting_reports: 1, ..SessionOptions::default() };
    let mut stage = stage_of(options, AgentOptions::default());
    stage.report(outcome("r", false, 1), at(1));
    stage.report(outcome("q", false, 2), at(2));
    stage.report(outcome("q", false, 2), at(3));
    assert_eq!(stage.counts().get("run_outcomes", "forgotten"), 1);
    // An outcome that has reached its trace, and is forgotten, was no report that waited in vain.
    assert_eq!(stage.counts().get("reports", "waiting_full"), 0);
    stage.handle(attempt(1, 10, Some("r")), at(20));
    stage.handle(attempt(2, 11, Some("q")), at(20));
    assert_eq!(failed(&stage, "s"), [hex(2)]);
}

#[test]
fn a_tenant_with_many_outcomes_forgets_its_own() {
    let of = |tenant: &str, run: &str, second| {
        let mut report = outcome(run, false, second);
        if let Target::Run(target) = &mut report.target {
            target.agent =
                AgentParts { tenant: tenant.into(), ..AgentParts::clone(&target.agent) }.into();
        }
        report
    };
    let options = SessionOptions { max_waiting_reports: 4, ..SessionOptions::default() };
    let mut stage = stage_of(options.clone(), AgentOptions::default());
    stage.report(of("quiet", "r", 1), at(1));
    for second in 2..20 {
        stage.report(of("flood", &second.to_string(), second), at(second));
    }
    let bytes = rmp_serde::to_vec_named(&stage.save()).unwrap();
    let mut after = stage_of(options, AgentOptions::default());
    crate::saved::read_with(&mut bytes.as_slice(), |from| after.restore(from)).unwrap();
    for mut stage in [stage, after] {
        assert_eq!(stage.counts().get("run_outcomes", "forgotten") % 15, 0);
        stage.report(of("flood", "20", 20), at(20));
        let mut facts = attempt(1, 10, Some("r"));
        let agent = facts.agent.take().unwrap();
        facts.agent =
            Some(AgentParts { tenant: "quiet".into(), ..AgentParts::clone(&agent) }.into());
        stage.handle(facts, at(21));
        assert_eq!(failed(&stage, "s"), [hex(1)]);
    }
}

#[test]
fn an_outcome_goes_with_its_trace_into_another_session() {
    let wait = SessionOptions::default().report_wait;
    let mut stage = stage();
    stage.handle(attempt(1, 10, Some("r")), at(20));
    stage.report(outcome("r", false, 21), at(21));
    let now = at(30).after(wait);
    let gone = TraceFacts { tombstone: true, ..attempt(1, 10, Some("r")).revision(2) };
    stage.handle(gone, now);
    stage.handle(attempt(1, 10, Some("r")).session("q").revision(3), now);
    assert_eq!(failed(&stage, "q"), [hex(1)]);
}

#[test]
fn a_restart_forgets_no_outcome_and_no_session_of_a_run() {
    let mut before = stage();
    before.handle(attempt(1, 10, Some("r")), at(20));
    before.report(outcome("r", false, 21), at(21));
    before.report(outcome("q", false, 21), at(21));
    before.drain();
    let bytes = rmp_serde::to_vec_named(&before.save()).unwrap();
    let mut after = stage();
    crate::saved::read_with(&mut bytes.as_slice(), |from| after.restore(from)).unwrap();
    assert_eq!(failed(&after, "s"), [hex(1)]);
    after.handle(attempt(2, 11, Some("q")), at(22));
    assert_eq!(failed(&after, "s"), [hex(1), hex(2)]);
    after.report(outcome("r", true, 23), at(23));
    assert_eq!(failed(&after, "s"), [hex(2)]);
}

#[test]
fn a_restart_with_less_room_forgets_the_oldest_outcomes() {
    let mut before = stage();
    for (run, time) in [("q", 1), ("r", 2), ("t", 3)] {
        before.report(outcome(run, false, time), at(time));
    }
    let bytes = rmp_serde::to_vec_named(&before.save()).unwrap();
    let options = SessionOptions { max_waiting_reports: 1, ..SessionOptions::default() };
    let mut after = stage_of(options, AgentOptions::default());
    crate::saved::read_with(&mut bytes.as_slice(), |from| after.restore(from)).unwrap();
    assert_eq!(after.counts().get("run_outcomes", "forgotten"), 2);
    for (byte, run) in [(1, "q"), (2, "r"), (3, "t")] {
        after.handle(attempt(byte, 10, Some(run)), at(20));
    }
    assert_eq!(failed(&after, "s"), [hex(3)]);
}

#[test]
fn a_session_that_goes_takes_its_runs_along() {
    let idle = SessionOptions::default().session_idle;
    let mut stage = stage();
    stage.handle(attempt(1, 10, Some("r")), at(20));
    stage.report(outcome("r", false, 21), at(21));
    assert_eq!(stage.shared.runs.len(), 1);
    stage.handle_timeout(at(30).after(idle).after(idle));
    assert_eq!((stage.held_sessions(), stage.shared.runs.len()), (0, 0));
}
