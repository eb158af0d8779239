//! The task of an assemble shard.

use std::collections::BTreeMap;

use tokio::sync::{mpsc, watch};

use super::{
    BURST, Common, FullSessions, Gone, LeftOut, ToAssemble, ToSessions, save, sleep_until,
};
use crate::embed;
use crate::engine::assemble::Assemble;
use crate::engine::assemble::texts::SpanBatch;
use crate::engine::route::Route;
use crate::engine::span::Timestamp;
use crate::engine::update::TraceUpdate;
use crate::judge;

/// How many timers of traces a task runs before it hands on what came of them, and others have their turn: what a trace has come
/// to takes many times the memory of the trace, so that of thousands, done at once, it is never there for all.
const TIMERS: usize = 64;

/// Runs one assemble shard until its channel closes.
pub(in crate::daemon) async fn run(
    shard: usize,
    mut stage: Assemble,
    (mut inbox, sessions): (mpsc::Receiver<ToAssemble>, Vec<mpsc::Sender<ToSessions>>),
    (route, mut full): (Route, Vec<watch::Receiver<FullSessions>>),
    common: Common,
) {
    // What an earlier process has asked and not been told, one by one: each is as large as a trace.
    for id in stage.unanswered() {
        stage.ask_again(id);
        ask(&mut stage, &common, common.clock.now());
    }
    let mut burst = Vec::with_capacity(BURST);
    loop {
        let wait = sleep_until(stage.poll_timeout(), &common.clock);
        tokio::select! {
            taken = inbox.recv_many(&mut burst, BURST) => if taken == 0 { return },
            () = wait => {}
        }
        let now = common.clock.now();
        common.judge.iter().for_each(|judge| stage.attend(judge.attention(now)));
        // Fails only while the daemon goes down.
        if full.iter().any(|full| full.has_changed().unwrap_or(false)) {
            let named = full.iter_mut().flat_map(|full| full.borrow_and_update().clone());
            stage.refuse_traces_of(named.collect());
        }
        let (mut acknowledgements, mut taken) = (Vec::new(), 0);
        for message in burst.drain(..) {
            match message {
                ToAssemble::Inputs { spans, share, now: arrival, acknowledge } => {
                    taken += share.spans.len() + share.inputs.len();
                    let before = stage.refused();
                    stage.spans(SpanBatch { all: spans, places: share.spans }, arrival);
                    share.inputs.into_iter().for_each(|input| stage.handle(input, arrival));
                    let after = stage.refused();
                    let left_out = LeftOut {
                        trace_full: after.trace_full.saturating_sub(before.trace_full),
                        session_full: after.session_full.saturating_sub(before.session_full),
                    };
                    acknowledgements.push((acknowledge, left_out));
                }
                ToAssemble::Barrier(barrier) => {
                    // What came before it goes before it, and only that is saved.
                    stage.tell_all();
                    if hand_on(shard, &mut stage, &sessions, route, now).await.is_err() {
                        return;
                    }
                    ask(&mut stage, &common, now);
                    save(&common, barrier, || Some((format!("assemble/{shard}"), stage.save())));
                    for session in &sessions {
                        if session.send(ToSessions::Barrier(shard, barrier)).await.is_err() {
                            return;
                        }
                    }
                }
            }
        }
        // A trace has two timers, and spans: they keep up with what comes, and what comes does not wait for all of them.
        let mut owed = 2 * taken;
        loop {
            let all = stage.handle_some_timeouts(now, TIMERS);
            if hand_on(shard, &mut stage, &sessions, route, now).await.is_err() {
                return;
            }
            ask(&mut stage, &common, now);
            // A sender that has gone does not need to know.
            for (acknowledge, left_out) in acknowledgements.drain(..) {
                let _ = acknowledge.send(left_out);
            }
            owed = owed.saturating_sub(TIMERS);
            if all || (owed == 0 && !inbox.is_empty()) {
                break;
            }
            tokio::task::yield_now().await;
        }
        let source = format!("assemble/{shard}");
        common.health.counts(&source, stage.counts().iter());
        common.health.held("traces", &source, stage.open_traces());
        common.health.open_traces(&source, stage.ages(now));
    }
}

/// Offers the judge and the embedding model, if there are any, what the stage would ask them.
fn ask(stage: &mut Assemble, common: &Common, now: Timestamp) {
    offer(stage, common.embedder.as_ref(), common.judge.as_ref(), now);
}

/// Likewise, by themselves.
pub(in crate::daemon) fn offer(
    stage: &mut Assemble,
    embedder: Option<&embed::Handle>,
    judge: Option<&judge::Handle>,
    now: Timestamp,
) {
    if let Some(embedder) = embedder {
        stage.embed_requests().into_iter().for_each(|request| embedder.offer(request));
    }
    if let Some(judge) = judge {
        stage.requests().into_iter().for_each(|request| judge.offer(request, now));
        stage.attend(judge.attention(now));
    }
}

/// Sends what an assemble stage has to say; fails when the daemon is going down, and what is lost was never
/// acknowledged.
async fn hand_on(
    shard: usize,
    stage: &mut Assemble,
    sessions: &[mpsc::Sender<ToSessions>],
    route: Route,
    now: Timestamp,
) -> Result<(), Gone> {
    let mut parts: BTreeMap<usize, Vec<TraceUpdate>> = BTreeMap::new();
    for update in stage.drain() {
        let session = update.session.as_ref();
        let to = session.map_or(0, |session| route.session(&session.tenant, &session.id));
        parts.entry(to).or_default().push(update);
    }
    for (to, updates) in parts {
        sessions[to].send(ToSessions::Traces(shard, updates, now)).await.map_err(|_| Gone)?;
    }
    Ok(())
}
