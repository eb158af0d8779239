//! Room for the texts that are kept for a judge alone: `judge.max_open_bytes`, which tenants share.
//!
//! A tenant may take all of it while no other tenant wants any. If there is none left, traces of the tenant with the most in
//! proportion to its share lose their texts, the quietest first, until there is room; if that is the tenant that needs room, its new
//! spans are kept without their texts.

use std::collections::BTreeMap;

use super::{Assemble, TraceKey};
use crate::span::Span;
use crate::tenants::{Shares, TenantHash};

/// Bytes of the long texts that only people and models read.
#[derive(Debug, Default)]
pub(super) struct TextBytes {
    all: usize,
    // By tenant, of those that have any.
    of: BTreeMap<TenantHash, usize>,
}

impl TextBytes {
    /// The bytes of all tenants.
    pub(super) fn all(&self) -> usize {
        self.all
    }

    /// Notes that the bytes of a trace changed.
    pub(super) fn change(&mut self, id: TraceKey, before: usize, after: usize) {
        if before == after {
            return;
        }
        self.all = self.all.saturating_sub(before).saturating_add(after);
        let own = self.of.entry(id.tenant).or_default();
        *own = own.saturating_sub(before).saturating_add(after);
        if *own == 0 {
            self.of.remove(&id.tenant);
        }
    }

    /// The tenant that has the most in proportion to its share, counting what the newcomer wants.
    fn greediest(&self, shares: &Shares, newcomer: (TenantHash, usize)) -> Option<TenantHash> {
        let (tenant, wanted) = newcomer;
        let own = self.of.get(&tenant).copied().unwrap_or(0).saturating_add(wanted);
        let others = self.of.iter().filter(|(other, _)| **other != tenant);
        let others = others.map(|(other, bytes)| (*other, *bytes));
        shares.greediest(others.chain([(tenant, own)]))
    }
}

impl Assemble {
    /// Makes room for the texts of spans of one trace, as far as other tenants have to give it; returns whether there is any.
    pub(super) fn make_text_room<'s>(
        &mut self,
        id: TraceKey,
        spans: impl Iterator<Item = &'s Span>,
    ) -> bool {
        let Some(max_bytes) = self.judging.as_ref().map(|rules| rules.max_open_bytes) else {
            return true;
        };
        let wanted = spans.map(said_bytes).fold(0, usize::saturating_add);
        while self.text_bytes.all().saturating_add(wanted) > max_bytes {
            let greediest = self.text_bytes.greediest(&self.shares, (id.tenant, wanted));
            let giver = greediest.filter(|tenant| *tenant != id.tenant);
            let Some(quietest) = giver.and_then(|tenant| self.quietest_with_texts(tenant)) else {
                break;
            };
            self.forgo_texts(quietest);
            self.counts.add("texts", "given_up");
        }
        self.text_bytes.all() < max_bytes
    }

    fn quietest_with_texts(&mut self, tenant: TenantHash) -> Option<TraceKey> {
        let all = self.deadlines.traces_of(tenant);
        self.quietest_with_texts
            .next(tenant, &self.traces, all, |held| held.parts.spans.text_bytes() > 0)
    }
}

/// Bytes of all texts of a span, at least as many as are kept of it.
fn said_bytes(span: &Span) -> usize {
    let said = [&span.input, &span.output].into_iter().flatten().map(|said| said.text.len());
    let calls = span.model.iter().flat_map(|model| &model.tool_calls).chain(&span.tool);
    let arguments = calls.filter_map(|call| call.arguments.as_ref()?.text());
    said.chain(arguments.map(|text| text.len())).sum()
}
