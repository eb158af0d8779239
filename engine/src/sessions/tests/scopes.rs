//! Sessions of one id under several scopes, and reports that name the id alone.

use super::*;
use crate::math::Quanta;
use crate::span::{Report, Source, Target};

fn scoped(update: TraceFacts, scope: &str) -> TraceFacts {
    let mut update = update;
    update.session.as_mut().unwrap().scope = scope.into();
    update
}

fn outcome(scope: Option<&str>) -> Report {
    Report {
        target: Target::Session { tenant: None, id: "s".into(), scope: scope.map(Into::into) },
        name: "outcome".into(),
        score: Quanta(0),
        label: None,
        success: None,
        explanation: None,
        source: Source::Reported,
        identifier: "x".into(),
        judge: None,
        time: Timestamp(1),
        tenant: None,
    }
}

fn of_scope(stage: &Sessions, scope: &str) -> SessionView {
    match stage.found(("", "s", Some(scope)), &NoSessionStore) {
        Found::One(session) => *session,
        other @ (Found::Nothing | Found::Several(_)) => panic!("{scope}: {other:?}"),
    }
}

fn failed(stage: &Sessions, scope: &str) -> bool {
    of_scope(stage, scope).signals.contains_key("outcome")
}

fn both() -> Sessions {
    let mut stage = stage();
    stage.handle(scoped(trace(1, 10).done(), "billing"), at(20));
    stage.handle(scoped(trace(2, 11).done(), "support"), at(20));
    stage
}

#[test]
fn sessions_of_one_id_are_told_apart_by_their_scopes() {
    let mut stage = both();
    let ids = |scope| ids(&of_scope(&stage, scope));
    assert_eq!((ids("billing"), ids("support")), (vec![hex(1)], vec![hex(2)]));
    assert_eq!(stage.session("", "s"), None);
    let several = Found::Several(vec!["billing".to_owned(), "support".to_owned()]);
    assert_eq!(stage.found(("", "s", None), &NoSessionStore), several);
    assert_eq!(stage.found(("", "s", Some("other")), &NoSessionStore), Found::Nothing);
    let explained = |scope| stage.explain(("", "s", scope), TraceId([2; 16]), &NoSessionStore);
    assert_eq!(explained(None).unwrap().scope, "support");
    assert!(explained(Some("billing")).is_none());
    // They rest as bytes, and are what they were.
    let before = [of_scope(&stage, "billing"), of_scope(&stage, "support")];
    stage.drain();
    stage.handle_timeout(at(60));
    stage.drain();
    assert_eq!([of_scope(&stage, "billing"), of_scope(&stage, "support")], before);
    stage.handle(scoped(trace(3, 30), "billing"), at(61));
    assert_eq!(of_scope(&stage, "billing").total_traces, 2);
    assert_eq!(of_scope(&stage, "support").total_traces, 1);
}

#[test]
fn a_report_that_names_a_scope_is_that_sessions() {
    let mut stage = both();
    stage.report(outcome(Some("support")), at(21));
    assert!(failed(&stage, "support") && !failed(&stage, "billing"));
    // It waits for a session of its scope, whoever else comes.
    stage.report(outcome(Some("sales")), at(22));
    stage.handle(scoped(trace(3, 30), "travel"), at(23));
    assert!(!failed(&stage, "travel"));
    stage.handle(scoped(trace(4, 30), "sales"), at(24));
    assert!(failed(&stage, "sales"));
}

#[test]
fn a_report_that_names_an_id_of_several_sessions_is_nobodys() {
    let mut stage = both();
    stage.report(outcome(None), at(21));
    assert!(!failed(&stage, "support") && !failed(&stage, "billing"));
    stage.handle_timeout(at(700));
    let count = |why| stage.counts().get("reports", why);
    assert_eq!((count("ambiguous"), count("unmatched")), (1, 0));
}

#[test]
fn a_report_waits_while_a_trace_may_leave_for_another_scope() {
    // A second turn, whose root has not come, goes by its service.
    let mut stage = stage();
    stage.handle(scoped(trace(1, 10).done(), "support"), at(20));
    stage.handle(scoped(trace(2, 30), "shop"), at(31));
    stage.report(outcome(None), at(32));
    let tombstone = TraceFacts { tombstone: true, ..trace(2, 30).revision(2) };
    stage.handle(scoped(tombstone, "shop"), at(33));
    assert!(failed(&stage, "support"));
    stage.handle(scoped(trace(2, 30).revision(2), "support"), at(33));
    assert_eq!(of_scope(&stage, "support").total_traces, 2);

    // A first turn likewise: what was reported meanwhile goes with it.
    let mut stage = super::stage();
    stage.handle(scoped(trace(1, 10), "shop"), at(20));
    stage.report(outcome(None), at(21));
    assert!(failed(&stage, "shop"));
    let tombstone = TraceFacts { tombstone: true, ..trace(1, 10).revision(2) };
    stage.handle(scoped(tombstone, "shop"), at(22));
    stage.handle(scoped(trace(1, 10).revision(2), "support"), at(22));
    assert!(failed(&stage, "support"));
    assert_eq!(stage.found(("", "s", Some("shop")), &NoSessionStore), Found::Nothing);
}
