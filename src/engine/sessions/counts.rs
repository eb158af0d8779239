//! What the stage left out and how often each of its bounds bit.

/// Counts since the stage was made; none of them falls.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Updates without a usable trace id, session, agent or state: dropped.
    pub malformed_updates: u64,
    /// Updates of a lower revision than the one held: dropped.
    pub stale_updates: u64,
    /// Updates of traces that went with their evicted session: dropped.
    pub late_updates: u64,
    /// Updates refused because the session is at `max_traces_per_session`.
    pub refused_traces: u64,
    /// Sessions evicted because of `max_sessions`.
    pub evicted_sessions: u64,
    /// Traces that were not done when their session was evicted: in no score.
    pub evicted_open_traces: u64,
    /// Departed traces forgotten because of `max_departed_traces`: they may count twice.
    pub forgotten_traces: u64,
    /// Updates counted towards `__overflow__` because of `max_agents`.
    pub overflow_updates: u64,
    /// Scores of signals without sums of their own because of `max_signals_per_agent`.
    pub refused_signals: u64,
    /// Done traces that ended before or too far after a window: not in that window.
    pub outside_windows: u64,
    /// Reported scores that are no score: out of [0,1] or from nowhere.
    pub malformed_scores: u64,
    /// Loops of no known kind or severity: in no counter.
    pub malformed_loops: u64,
    /// Reports about something other than a session: dropped.
    pub misrouted_reports: u64,
    /// Reports whose session did not come within `report_wait`.
    pub unmatched_reports: u64,
    /// Waiting reports dropped because of `max_waiting_reports`, the oldest first.
    pub displaced_reports: u64,
    /// Reports of further names because of `max_reports_per_session`.
    pub refused_reports: u64,
}
