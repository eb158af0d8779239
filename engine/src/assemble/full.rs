//! Sessions that accept no further trace: the response informs the sender, and the session stage does not have to drop the trace
//! silently.
//!
//! For this, the root of the trace and the id of the full session must arrive together. A trace whose root arrives later is
//! accepted, and dropped when it is done (`trace_updates`, `session_full`).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Assembler, OpenTrace};
use crate::facts::SessionId;
use crate::span::{Span, Timestamp};
use crate::tenants::TraceKey;
use crate::trace;

/// The reason for leaving out spans that would begin another trace of a full session.
pub(super) const SESSION_FULL: &str = "session_full";

impl Assembler {
    /// Sets the sessions that accept no new trace; all others do.
    pub fn refuse_traces_of(&mut self, full: BTreeSet<Arc<SessionId>>) {
        self.full_sessions = full;
    }

    /// Whether these spans begin a trace of a full session.
    pub(super) fn is_of_full_session<'s>(
        &mut self,
        id: TraceKey,
        spans: impl Iterator<Item = &'s Span> + Clone,
        now: Timestamp,
    ) -> bool {
        let is_new = || !self.traces.contains(id) && !self.sealed.contains(id);
        if self.full_sessions.is_empty() || !is_new() {
            return false;
        }
        if !spans.clone().any(|span| self.names_full_session(span)) {
            return false;
        }
        let mut trace = OpenTrace::new(id, now, now);
        for span in spans {
            let resource = self.resources.shared(&span.resource);
            trace.parts.spans.add(span, resource, &mut self.symbols, false);
        }
        let view = trace.parts.view();
        let agent = trace::agent(&view, &mut self.agents);
        // No agent is presumed: a trace with its root that names no agent belongs to the agent named after its service in the end.
        let reading = self.read(&trace, &view, agent, None);
        reading.is_some_and(|reading| {
            let session = reading.update.session.as_ref().map(SessionId::from);
            reading.update.complete
                && session.is_some_and(|session| self.full_sessions.contains(&session))
        })
    }

    /// Whether a span names the id of a full session of its tenant, with any scope.
    fn names_full_session(&self, span: &Span) -> bool {
        let tenant = span.resource.tenant.clone().unwrap_or_default();
        let named = [&span.session, &span.session_in_json, &span.resource.session];
        named.into_iter().flatten().any(|name| {
            let (tenant, id) = (Arc::clone(&tenant), Arc::clone(&name.id));
            let first = SessionId { tenant, id, scope: Arc::default() };
            let is_named =
                |full: &Arc<SessionId>| full.tenant == first.tenant && full.id == first.id;
            self.full_sessions.range::<SessionId, _>(&first..).next().is_some_and(is_named)
        })
    }
}
