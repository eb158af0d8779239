//! Finds the agent and the session of a trace.

use std::sync::Arc;

use super::tree::{Tree, is_record};
use crate::engine::convention::generic_names;
use crate::engine::options::{SessionFallback, SessionScope};
use crate::engine::pipeline::EngineOptions;
use crate::engine::span::{Operation, Resource, Span, TraceId};
use crate::engine::view::AgentName;

/// The key of a session, and what named it.
#[derive(Clone, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct SessionKey {
    pub(super) tenant: String,
    pub(super) id: String,
    pub(super) scope: String,
    pub(super) source: String,
}

/// The agent of a trace. Its name is from the outermost agent span that names one, else from the outermost other span that does,
/// neither of them below a tool that an agent called; then from the resource, the outermost workflow, the agent's id, the service.
/// Version, environment and service are from that span, else from its resource; the first two then from others of its service.
pub(super) fn agent(tree: &Tree, outermost: &[&Span]) -> AgentName {
    let agents: Vec<&Span> =
        outermost.iter().filter(|span| span.operation == Operation::InvokeAgent).copied().collect();
    let both = || agents.iter().chain(outermost);
    // A record of an agent that another agent started names only a part of the trace.
    let begun = |span: &Span| is_record(span) && span.parent.is_some();
    let named =
        both().find(|span| !begun(span) && !tree.is_called(span) && name_of(span).is_some());
    let chosen = named.or_else(|| both().next());
    let resource = |of: fn(&Resource) -> &Option<Arc<str>>| {
        let spans = chosen.into_iter().chain(outermost);
        spans.filter_map(|span| of(&span.resource).as_deref()).next().map(str::to_owned)
    };
    let outer = |of: fn(&Span) -> &Option<Arc<str>>| {
        let first = outermost.iter().find_map(|span| of(span).as_deref());
        first.filter(|name| !is_generic(name) && !is_random(name)).map(str::to_owned)
    };
    // Nor does the id of such an agent name the trace.
    let agent_id = || {
        let mut whole = outermost.iter().filter(|span| !begun(span));
        let first = whole.find_map(|span| span.agent_id.as_deref());
        first.filter(|name| !is_generic(name) && !is_random(name)).map(str::to_owned)
    };
    let service_name = resource(|resource| &resource.service_name);
    let of_service = |of: fn(&Resource) -> &Option<Arc<str>>| {
        let others = outermost
            .iter()
            .filter(|span| span.resource.service_name.as_deref() == service_name.as_deref());
        let mut spans = chosen.into_iter().chain(others);
        spans.find_map(|span| of(&span.resource).as_deref()).map(str::to_owned)
    };
    let own = |of: fn(&Span) -> &Option<Arc<str>>| {
        chosen.and_then(|span| of(span).as_deref()).map(str::to_owned)
    };
    AgentName {
        agent_name: named
            .and_then(|span| name_of(span))
            .or_else(|| resource(|resource| &resource.agent_name))
            .or_else(|| outer(|span| &span.workflow))
            .or_else(agent_id)
            .or_else(|| service_name.clone()),
        agent_version: own(|span| &span.agent_version)
            .or_else(|| of_service(|resource| &resource.service_version)),
        environment: own(|span| &span.environment)
            .or_else(|| of_service(|resource| &resource.environment)),
        tenant: resource(|resource| &resource.tenant),
        service_name,
    }
}

/// The session of a trace: from the outermost span that names one, then from resources, then from JSON values; else a session of
/// its own. Its scope is the namespace of its services, else its agent.
pub(super) fn session(
    id: TraceId,
    all: &[Span],
    outermost: &[&Span],
    agent: &AgentName,
    options: &EngineOptions,
) -> SessionKey {
    let named = outermost.iter().find_map(|span| span.session.as_ref());
    let named = named.or_else(|| outermost.iter().find_map(|span| span.resource.session.as_ref()));
    let named = named.or_else(|| outermost.iter().find_map(|span| span.session_in_json.as_ref()));
    let instance = outermost.iter().find_map(|span| span.resource.instance_id.as_deref());
    let instance =
        instance.filter(|_| options.assemble.session_fallback == SessionFallback::Instance);
    let (source, session) = match (named, instance) {
        (Some(name), _) => (name.attribute.to_string(), name.id.to_string()),
        (None, Some(instance)) => ("instance".to_owned(), instance.to_owned()),
        (None, None) => ("trace".to_owned(), id.to_string()),
    };
    let namespace = outermost.iter().find_map(|span| span.resource.service_namespace.as_deref());
    let agent = agent.agent_name.as_deref().or(agent.service_name.as_deref());
    let tenant = all.iter().find_map(|span| span.resource.tenant.as_deref());
    let scoped = source != "trace" && options.session.scope == SessionScope::Service;
    let scope = namespace.or(agent).filter(|_| scoped);
    SessionKey {
        tenant: tenant.unwrap_or_default().to_owned(),
        id: session,
        scope: scope.unwrap_or_default().to_owned(),
        source,
    }
}

/// The agent that a span names, or that an agent's span is named after. A name that a library gives to every agent does not count,
/// nor does the model's.
pub(super) fn name_of(span: &Span) -> Option<String> {
    let after = span.name.trim_start_matches("invoke_agent").trim();
    let model = span.model.as_ref().and_then(|model| model.model.as_deref());
    let is_after = span.operation == Operation::InvokeAgent
        && !after.is_empty()
        && !model.is_some_and(|model| model.starts_with(after))
        && !is_random(after);
    let name = span.agent_name.as_deref().or_else(|| is_after.then_some(after))?;
    (!is_generic(name)).then(|| name.to_owned())
}

fn is_generic(name: &str) -> bool {
    generic_names().any(|generic| generic.eq_ignore_ascii_case(name))
}

/// Whether a name is a UUID, or hex of that length.
fn is_random(name: &str) -> bool {
    name.len() >= 32 && name.chars().all(|c| c == '-' || c.is_ascii_hexdigit())
}
