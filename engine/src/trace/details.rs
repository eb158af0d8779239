//! Facts that do not fit into a row: calls with arguments, calls in the output of models, results, texts.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::bytes::{Bytes, of_attempt, of_remarks};
use super::rows::Rare;
use super::span_view::{ArgumentsView, Model, Named, TextView, Tool};
use super::symbol::{Symbol, Symbols};
use crate::math::Quanta;
use crate::span::{Arguments, IdHash, ModelFacts, Text, Tokens, ToolFacts, ToolResult, Values};

/// A tool call.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct ToolRow {
    pub(super) name: Option<Symbol>,
    pub(super) call_id: Option<IdHash>,
    pub(super) arguments: Option<ArgumentsRow>,
    result: Option<u64>,
    pub(super) phantom: bool,
}

/// The arguments of a call.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct ArgumentsRow {
    hash: u64,
    values: Values,
    text: Option<Arc<str>>,
}

/// A model call.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct ModelRow {
    // With the requested model, if the responding one has no shipped price.
    pub(super) name: Option<Symbol>,
    pub(super) response_id: Option<IdHash>,
    pub(super) tokens: Tokens,
    cost: Option<Quanta>,
    pub(super) calls: Vec<ToolRow>,
    results: Vec<ToolResult>,
    pub(super) asked_by_user: Option<bool>,
    compacted: bool,
    local: bool,
    // Time to the first chunk; only people read it.
    first_chunk_nanos: Option<u64>,
}

/// A text, or the fact that there is one.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct TextRow {
    rank: u8,
    // For an agent's input, a part of its hash; zero: none.
    mark: u32,
    text: Option<Arc<str>>,
    // Whether only people and models read it.
    extra: bool,
}

impl ToolRow {
    /// The facts of a tool call, with or without texts.
    pub(super) fn of(facts: &ToolFacts, symbols: &mut Symbols, texts: bool) -> Self {
        Self {
            name: facts.name.as_ref().map(|name| symbols.of(name)),
            call_id: facts.call_id,
            arguments: facts.arguments.as_ref().map(|arguments| ArgumentsRow::of(arguments, texts)),
            result: facts.result_hash,
            phantom: facts.phantom,
        }
    }

    /// Whether the call fits into a row.
    pub(super) fn fits(facts: &ToolFacts) -> bool {
        facts.arguments.is_none() && facts.result_hash.is_none() && !facts.phantom
    }

    pub(super) fn seen(&self) -> Tool<'_> {
        Tool {
            name: self.name.as_ref().map(Symbol::text),
            call_id: self.call_id,
            arguments: self.arguments.as_ref().map(|arguments| ArgumentsView {
                hash: arguments.hash,
                values: &arguments.values,
                text: arguments.text.as_ref(),
            }),
            result: self.result,
            phantom: self.phantom,
        }
    }
}

impl ArgumentsRow {
    fn of(arguments: &Arguments, texts: bool) -> Self {
        Self {
            hash: arguments.hash(),
            values: arguments.values().clone(),
            text: arguments.text().filter(|_| texts).cloned(),
        }
    }
}

impl ModelRow {
    /// The facts of a model call, with or without texts.
    pub(super) fn of(facts: &ModelFacts, symbols: &mut Symbols, texts: bool) -> Self {
        let calls = facts.tool_calls.iter();
        let requested = facts.requested.as_ref();
        Self {
            name: facts.model.as_ref().map(|name| symbols.of_model(name, requested)),
            response_id: facts.response_id,
            tokens: facts.tokens,
            cost: facts.cost,
            calls: calls.map(|call| ToolRow::of(call, symbols, texts)).collect(),
            results: facts.tool_results.clone(),
            asked_by_user: facts.asked_by_user,
            compacted: facts.compacted,
            local: facts.local,
            first_chunk_nanos: facts.first_chunk_nanos.filter(|_| texts),
        }
    }

    /// Whether the call fits into a row.
    pub(super) fn fits(facts: &ModelFacts, texts: bool) -> bool {
        let Tokens { input, cached, cache_written, output } = facts.tokens;
        let short = |count: Option<u64>| count.is_none_or(|count| u32::try_from(count).is_ok());
        short(input)
            && short(output)
            && short(cached)
            && cache_written.is_none()
            && facts.cost.is_none()
            && !facts.compacted
            && !facts.local
            && (facts.first_chunk_nanos.is_none() || !texts)
            && facts.tool_calls.is_empty()
            && facts.tool_results.is_empty()
    }

    pub(super) fn seen(&self) -> Model<'_> {
        Model {
            name: self.name.as_ref().map(Named::from),
            requested: self.name.as_ref().and_then(Symbol::requested).map(Named::from),
            response_id: self.response_id,
            tokens: self.tokens,
            cost: self.cost,
            calls: &self.calls,
            results: &self.results,
            asked_by_user: self.asked_by_user,
            compacted: self.compacted,
            local: self.local,
            first_chunk_nanos: self.first_chunk_nanos,
        }
    }
}

impl TextRow {
    /// A text, or the fact that there is one; `extra`: only people and models read it.
    pub(super) fn of(text: &Text, kept: bool, extra: bool) -> Self {
        Self { rank: text.rank, mark: 0, text: kept.then(|| Arc::clone(&text.text)), extra }
    }

    /// The text with the hash of an agent's input.
    pub(super) fn marked(self, hash: Option<IdHash>) -> Self {
        let [.., a, b, c, d] = hash.map_or(0, IdHash::number).to_be_bytes();
        Self { mark: u32::from_be_bytes([a, b, c, d]), ..self }
    }

    pub(super) fn seen(&self) -> TextView<'_> {
        TextView { rank: self.rank, mark: self.mark, text: self.text.as_ref() }
    }
}

impl Rare {
    /// The bytes of memory that they take.
    pub(super) fn bytes(&self) -> Bytes {
        let mut facts = size_of::<Self>();
        if let Some(model) = &self.model {
            facts += size_of::<ModelRow>() + size_of_val(&*model.results);
            facts += size_of_val(&*model.calls);
        }
        for tool in self.calls() {
            let values = tool.arguments.as_ref().map_or(0, |asked| size_of_val(&*asked.values));
            facts += values + tool.name.as_deref().map_or(0, str::len);
        }
        facts += self.attempt.as_deref().map_or(0, of_attempt);
        facts += self.remarks.as_deref().map_or(0, of_remarks);
        Bytes::of(facts, self.texts())
    }

    /// All texts, each with whether only people and models read it.
    pub(super) fn texts(&self) -> impl Iterator<Item = (&Arc<str>, bool)> {
        let arguments = self.calls().filter_map(|call| call.arguments.as_ref()?.text.as_ref());
        let said = [&self.input, &self.output].into_iter().flatten();
        let said = said.filter_map(|said| Some((said.text.as_ref()?, said.extra)));
        arguments.map(|text| (text, true)).chain(said)
    }

    fn calls(&self) -> impl Iterator<Item = &ToolRow> {
        self.model.iter().flat_map(|model| &model.calls).chain(&self.tool)
    }

    /// Drops all texts, but keeps the fact that there were some.
    pub(super) fn drop_texts(&mut self) {
        self.drop_readable_texts();
        let said = [&mut self.input, &mut self.output].into_iter().flatten();
        said.for_each(|said| said.text = None);
    }

    /// Drops the texts that only people and models read.
    pub(super) fn drop_readable_texts(&mut self) {
        self.model.iter_mut().for_each(|model| model.first_chunk_nanos = None);
        let calls = self.model.iter_mut().flat_map(|model| &mut model.calls);
        let calls = calls.chain(&mut self.tool);
        for arguments in calls.filter_map(|call| call.arguments.as_mut()) {
            arguments.text = None;
        }
        let said = [&mut self.input, &mut self.output].into_iter().flatten();
        said.filter(|said| said.extra).for_each(|said| said.text = None);
    }
}
