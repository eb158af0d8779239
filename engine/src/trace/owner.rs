//! The session and the agent of a trace.

use std::sync::Arc;

use super::Rules;
use super::shape::Shape;
use super::span_view::SpanView;
use crate::convention::{is_generic, is_random};
use crate::facts::{AgentKey, AgentKeys, SessionKey, TraceFacts};
use crate::options::{SessionFallback, SessionScope};
use crate::span::{Operation, Resource, SessionName, TraceId};

/// The session of a trace: that of the outermost span that names one, else of a resource, else from JSON values. Without a
/// namespace its scope is the agent, which [`scope_by_agent`] fills in.
pub(super) fn session(trace_id: TraceId, shape: &Shape<'_>, rules: &Rules) -> SessionKey {
    let outermost = || shape.outermost_first();
    let by_service = rules.scope == SessionScope::Service;
    let mut resources = shape.resources().filter(|_| by_service);
    let namespace = resources.find_map(|resource| resource.service_namespace.as_ref());
    let tenant = shape.tenant().cloned().unwrap_or_default();
    let key = |source: Arc<str>, id: Arc<str>| SessionKey {
        tenant: Arc::clone(&tenant),
        id,
        scope: namespace.cloned().unwrap_or_default(),
        source,
    };
    let of = |name: &SessionName| key(Arc::clone(&name.attribute), Arc::clone(&name.id));
    let named = outermost().find_map(SpanView::session).map(of);
    let named =
        named.or_else(|| shape.resources().find_map(|resource| resource.session.as_ref().map(of)));
    let in_json = || outermost().find_map(SpanView::session_in_json).map(of);
    if let Some(named) = named.or_else(in_json) {
        return named;
    }
    let instance = shape.resources().find_map(|resource| resource.instance_id.clone());
    match (rules.fallback, instance) {
        (SessionFallback::Instance, Some(instance)) => key(Arc::from("instance"), instance),
        (SessionFallback::Instance, None) | (SessionFallback::Trace, _) => {
            SessionKey { scope: Arc::default(), ..key("trace".into(), trace_id.to_string().into()) }
        }
    }
}

/// Sets the scope of a session that a trace names and that has no namespace: to the name of the trace's agent, or of its service if
/// no agent is named.
pub fn scope_by_agent(update: &mut TraceFacts, scope: SessionScope) {
    let Some((session, agent)) = update.session.as_mut().zip(update.agent.as_ref()) else { return };
    if scope == SessionScope::Tenant || session.is_own() || !session.scope.is_empty() {
        return;
    }
    let name = if agent.agent_name.is_empty() { &agent.service_name } else { &agent.agent_name };
    session.scope.clone_from(name);
}

/// The agent of a trace: the name of the outermost agent span that has one of its own, else that of the outermost other span that
/// names an agent. An agent that another one or a named workflow calls as a tool does only a part of the work, and does not count.
/// Version, environment and service are those of that span, else of its resource; version and environment else those of another
/// resource of its service, as those of other services say which version of them a trace called. If no span names an agent, the
/// name is that of the resource, of the outermost workflow, or the agent's id; empty if there is none.
pub(super) fn agent(shape: &Shape<'_>, known: &mut AgentKeys) -> AgentKey {
    let outermost = || shape.outermost_first();
    let agents = || outermost().filter(|span| span.operation == Operation::InvokeAgent);
    // A log record of an agent that another one started names only a part of the trace, even before the spans above have arrived.
    let begun = |span: &&SpanView<'_>| span.is_record() && span.parent().is_some();
    let whole = |span: &&SpanView<'_>| !begun(span) && !shape.is_called(span.at);
    let mut naming = agents().chain(outermost()).filter(whole);
    let named = naming.find_map(|span| Some((span, agent_name(span)?)));
    let chosen = named
        .as_ref()
        .map(|(span, _)| *span)
        .or_else(|| agents().next())
        .or_else(|| outermost().next());
    let resource = |of: fn(&Resource) -> Option<&Arc<str>>| {
        let own = chosen.and_then(|span| of(span.resource()));
        own.or_else(|| shape.resources().find_map(|resource| of(resource))).map(|name| &**name)
    };
    // Workflows and ids further in name only parts of the trace: they do not replace a generic name of the outermost span.
    let name = named
        .map(|(_, name)| name)
        .or_else(|| resource(|resource| resource.agent_name.as_ref()))
        .or_else(|| outermost().find_map(SpanView::workflow).filter(is_own))
        .or_else(|| {
            outermost().filter(|span| !begun(span)).find_map(SpanView::agent_id).filter(is_own)
        });
    let version = chosen.and_then(SpanView::agent_version);
    let environment = chosen.and_then(SpanView::environment);
    let service = resource(|resource| resource.service_name.as_ref());
    let of_service = |of: fn(&Resource) -> Option<&Arc<str>>| {
        let own = chosen.map(SpanView::resource).map(|own| &**own).into_iter();
        let others = shape.resources().filter(|other| other.service_name.as_deref() == service);
        own.chain(others).find_map(of).map(|name| &**name)
    };
    let parts = [
        resource(|resource| resource.tenant.as_ref()),
        service,
        name,
        version.or_else(|| of_service(|resource| resource.service_version.as_ref())),
        environment.or_else(|| of_service(|resource| resource.environment.as_ref())),
    ];
    known.of(parts.map(Option::unwrap_or_default))
}

/// Whether a name was chosen by a user: neither a library's generic name nor a random id.
pub(super) fn is_own(name: &&str) -> bool {
    !is_generic(name) && !is_random(name)
}

/// The agent that a span names, or after which an agent's span is named; a library's generic name for agents does not count, nor
/// does a model's.
pub(super) fn agent_name<'a>(span: &SpanView<'a>) -> Option<&'a str> {
    let agent = span.operation == Operation::InvokeAgent;
    let from_span = || {
        let name = span.name().trim_start_matches("invoke_agent").trim();
        let is_model = span.model_name().is_some_and(|model| model.starts_with(name));
        Some(name).filter(|name| agent && !name.is_empty() && !is_model && !is_random(name))
    };
    span.agent_name().or_else(from_span).filter(|name| !is_generic(name))
}
