//! Run limits: usual runs reach none of the default limits.

use agentgauge::engine::limits::LimitOptions;
use agentgauge::engine::options::SessionOptions;
use agentgauge::engine::pipeline::{EngineOptions, Pipeline};
use agentgauge::engine::span::Timestamp;
use agentgauge::engine::view::SessionView;

use crate::captures::folders;
use crate::recorded::{apply, items_in};

const BEGIN: Timestamp = Timestamp(1_800_000_000_000_000_000);

/// Runs over a limit in each capture, by its name.
fn over(limits: &LimitOptions) -> Vec<(String, usize)> {
    let session = SessionOptions { limits: limits.clone(), ..SessionOptions::default() };
    let options = EngineOptions { session, ..EngineOptions::default() };
    let folders = folders().into_iter();
    folders
        .map(|folder| {
            let mut pipeline = Pipeline::new(&options, 2);
            apply(&mut pipeline, &items_in(&folder), BEGIN);
            pipeline.finish(BEGIN);
            let sessions = pipeline.document().sessions;
            let of = |session: &SessionView| {
                session.limits.len()
                    + session.traces.iter().map(|trace| trace.limits.len()).sum::<usize>()
            };
            (folder.display().to_string(), sessions.iter().map(of).sum())
        })
        .collect()
}

#[test]
fn no_capture_reaches_a_limit_that_is_set_by_default() {
    let over = over(&LimitOptions::default());
    assert!(over.len() >= 70, "{}", over.len());
    assert!(over.iter().all(|(_, runs)| *runs == 0), "{over:?}");
}

#[test]
fn captures_reach_limits_that_are_set_low() {
    let options =
        LimitOptions { trace_model_calls: 2, trace_tool_calls: 2, ..LimitOptions::default() };
    let over = over(&options);
    assert!(over.iter().filter(|(_, runs)| *runs > 0).count() >= 40, "{over:?}");
}
