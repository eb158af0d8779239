//! Reads the facts of a span from its row, its origin and its rare facts.

use std::ops::Deref;
use std::sync::Arc;

use super::{Answer, MODEL, Origin, Rare, SpanRow, TOOL, TextRow, Who};
use crate::span::{Attempt, IdHash, Remarks, Resource, SessionName, SpanId, Tokens};
use crate::trace::Symbol;
use crate::trace::span_view::{Model, Named, SpanView, TextView, Tool, WholeView};

/// The parts of a span that a view reads on demand.
#[derive(Clone, Copy, Debug)]
pub(in crate::trace) struct Rest<'a> {
    pub(super) row: &'a SpanRow,
    pub(super) origin: &'a Origin,
    pub(super) answer: Answer,
    pub(super) rare: Option<&'a Rare>,
}

impl Deref for SpanView<'_> {
    type Target = SpanRow;

    fn deref(&self) -> &SpanRow {
        self.rest.row
    }
}

impl<'a> SpanView<'a> {
    pub(in crate::trace) fn parent(&self) -> Option<SpanId> {
        self.rest.origin.parent
    }

    pub(in crate::trace) fn scope(&self) -> u64 {
        self.rest.origin.scope
    }

    /// The span's name, if it is of an agent, of no known operation or, if texts are kept, of a model call; else empty.
    pub(in crate::trace) fn name(&self) -> &'a str {
        let Rest { row, rare, .. } = self.rest;
        let own = if row.has(TOOL | MODEL) {
            rare.and_then(|rare| rare.name.as_deref())
        } else {
            row.name.as_deref()
        };
        own.unwrap_or_default()
    }

    pub(in crate::trace) fn remote_parent(&self) -> Option<bool> {
        self.rest.row.remote_parent()
    }

    pub(in crate::trace) fn resource(&self) -> &'a Arc<Resource> {
        &self.rest.origin.resource
    }

    pub(in crate::trace) fn agent_name(&self) -> Option<&'a str> {
        self.who()?.agent_name.as_deref()
    }

    pub(in crate::trace) fn workflow(&self) -> Option<&'a str> {
        self.who()?.further().workflow.as_deref()
    }

    pub(in crate::trace) fn agent_id(&self) -> Option<&'a str> {
        self.who()?.agent_id.as_deref()
    }

    pub(in crate::trace) fn agent_version(&self) -> Option<&'a str> {
        self.who()?.further().agent_version.as_deref()
    }

    pub(in crate::trace) fn environment(&self) -> Option<&'a str> {
        self.who()?.further().environment.as_deref()
    }

    pub(in crate::trace) fn session(&self) -> Option<&'a SessionName> {
        self.who()?.session.as_ref()
    }

    pub(in crate::trace) fn session_in_json(&self) -> Option<&'a SessionName> {
        self.who()?.session_in_json.as_deref()
    }

    pub(in crate::trace) fn user(&self) -> Option<&'a str> {
        self.who()?.user.as_deref()
    }

    pub(in crate::trace) fn tool(&self) -> Option<Tool<'a>> {
        let Rest { row, rare, .. } = self.rest;
        if row.has(TOOL) {
            let call_id = IdHash::of_number(row.number);
            let name = row.name.as_ref().map(Symbol::text);
            return Some(Tool { name, call_id, ..Tool::default() });
        }
        rare?.tool.as_ref().map(|tool| tool.seen())
    }

    /// The name of the called tool.
    pub(in crate::trace) fn tool_name(&self) -> Option<&'a Arc<str>> {
        let Rest { row, rare, .. } = self.rest;
        let name = if row.has(TOOL) { &row.name } else { &rare?.tool.as_ref()?.name };
        name.as_ref().map(Symbol::text)
    }

    /// Whether a tool call is a framework's bookkeeping.
    pub(in crate::trace) fn is_phantom(&self) -> bool {
        let Rest { row, rare, .. } = self.rest;
        let tool = rare.and_then(|rare| rare.tool.as_ref());
        !row.has(TOOL) && tool.is_some_and(|tool| tool.phantom)
    }

    /// The hash of the id of a tool call.
    pub(in crate::trace) fn call_id(&self) -> Option<IdHash> {
        let Rest { row, rare, .. } = self.rest;
        if row.has(TOOL) {
            return IdHash::of_number(row.number);
        }
        rare?.tool.as_ref()?.call_id
    }

    pub(in crate::trace) fn model(&self) -> Option<Model<'a>> {
        let Rest { row, answer, .. } = self.rest;
        if !row.has(MODEL) {
            return self.model_details();
        }
        Some(Model {
            name: row.name.as_ref().map(Named::from),
            requested: row.name.as_ref().and_then(Symbol::requested).map(Named::from),
            response_id: answer.id,
            tokens: row.tokens(&answer),
            asked_by_user: row.asked_by_user(),
            ..Model::default()
        })
    }

    /// The tokens of a model call.
    pub(in crate::trace) fn tokens(&self) -> Option<Tokens> {
        let Rest { row, ref answer, rare, .. } = self.rest;
        if row.has(MODEL) {
            return Some(row.tokens(answer));
        }
        Some(rare?.model.as_ref()?.tokens)
    }

    /// The facts of a model call that do not fit into the row.
    pub(in crate::trace) fn model_details(&self) -> Option<Model<'a>> {
        self.rest.rare?.model.as_ref().map(|model| model.seen())
    }

    /// The hash of the response id of a model call.
    pub(in crate::trace) fn response_id(&self) -> Option<IdHash> {
        let Rest { row, answer, rare, .. } = self.rest;
        if row.has(MODEL) { answer.id } else { rare?.model.as_ref()?.response_id }
    }

    /// Whether the span has facts of a model call.
    pub(in crate::trace) fn has_model(&self) -> bool {
        let Rest { row, rare, .. } = self.rest;
        row.has(MODEL) || rare.is_some_and(|rare| rare.model.is_some())
    }

    /// The name of the model that the span reports.
    pub(in crate::trace) fn model_name(&self) -> Option<&'a str> {
        let Rest { row, rare, .. } = self.rest;
        if row.has(MODEL) {
            return row.name.as_deref();
        }
        rare?.model.as_ref()?.name.as_deref()
    }

    pub(in crate::trace) fn attempt(&self) -> Option<&'a Attempt> {
        self.rest.rare?.attempt.as_deref()
    }

    pub(in crate::trace) fn remarks(&self) -> Option<&'a Remarks> {
        self.rest.rare?.remarks.as_deref()
    }

    pub(in crate::trace) fn begins(&self) -> Option<&'a str> {
        self.remarks()?.begins.as_deref()
    }

    pub(in crate::trace) fn error_type(&self) -> Option<&'a Arc<str>> {
        self.remarks()?.error_type.as_ref()
    }

    pub(in crate::trace) fn input(&self) -> Option<TextView<'a>> {
        self.rest.rare?.input.as_ref().map(TextRow::seen)
    }

    /// The output of the span; for tools only if texts are kept.
    pub(in crate::trace) fn output(&self) -> Option<TextView<'a>> {
        self.rest.rare?.output.as_ref().map(TextRow::seen)
    }

    /// All facts of the span.
    pub(in crate::trace) fn whole(&self) -> WholeView<'a> {
        WholeView {
            span_id: self.span_id,
            parent: self.parent(),
            remote_parent: self.remote_parent(),
            start: self.start,
            end: self.end,
            name: self.name(),
            operation: self.operation,
            status: self.status,
            failed: self.failed,
            stopped: self.stopped,
            streamed: self.streamed,
            scope: self.scope(),
            resource: self.resource(),
            agent_name: self.agent_name(),
            workflow: self.workflow(),
            agent_id: self.agent_id(),
            agent_version: self.agent_version(),
            environment: self.environment(),
            session: self.session(),
            session_in_json: self.session_in_json(),
            user: self.user(),
            tool: self.tool(),
            model: self.model().map(Model::whole),
            attempt: self.attempt(),
            remarks: self.remarks(),
            input: self.input(),
            output: self.output(),
        }
    }

    fn who(&self) -> Option<&'a Who> {
        self.rest.origin.who.as_deref()
    }
}
