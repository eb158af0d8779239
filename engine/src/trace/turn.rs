//! The texts of a turn, and its links to the trace before it and the one after it.

use super::calls::ModelCall;
use super::shape::Shape;
use super::span_view::{SpanView, TextView};
use super::{Logs, tools};
use crate::facts::{Content, ToolCall, TraceFacts, TurnStart};
use crate::math::text::digest;
use crate::span::{Operation, Text};

/// The sources of a turn's texts and links.
pub(super) struct Turn<'s> {
    pub(super) shape: &'s Shape<'s>,
    pub(super) models: &'s [ModelCall<'s>],
    /// The last model call.
    pub(super) last: Option<&'s ModelCall<'s>>,
    pub(super) logs: &'s Logs<'s>,
}

impl<'s> Turn<'s> {
    /// Fills in the texts, and the digest by which outputs are compared.
    pub(super) fn texts(&self, update: &mut TraceFacts, keep_content: bool, done: bool) {
        let output = || self.output().and_then(|said| said.text);
        update.output_digest = done.then(output).flatten().and_then(|text| digest(text));
        update.content = keep_content.then(|| Content {
            input: self.input().and_then(|said| said.text).cloned(),
            output: output().cloned(),
            steps: Vec::new(),
        });
    }

    /// Fills in the links of the trace to the one before it and the one after it.
    ///
    /// A trace began with new user input if a user's message ends the first model call's input or, if that is unknown, if an agent
    /// was invoked or there is an input. The trace ended with an answer if an agent was invoked, or if the last model call made no
    /// tool call.
    pub(super) fn link(&self, update: &mut TraceFacts, calls: &[ToolCall]) {
        let first = self.models.first().and_then(|model| self.asked_by_user(model));
        let invoked = self.shape.has(Operation::InvokeAgent);
        update.turn_start = match first {
            Some(false) => TurnStart::Continued,
            Some(true) => TurnStart::Asked,
            None if invoked || self.input().is_some() => TurnStart::Asked,
            None => TurnStart::Unknown,
        };
        let last = self.last;
        let after_last =
            last.is_none_or(|last| calls.iter().any(|call| call.start_unix_nano >= last.end.0));
        let called = last.is_some_and(|last| !last.called(self.logs).is_empty());
        update.unfinished = !invoked && !calls.is_empty() && (after_last || called);
        if update.turn_start != TurnStart::Asked {
            update.results = tools::results_told(self.models, self.logs);
        }
    }

    /// Whether a user's message ends a model call's input, by its span or else by the last log record that has the input.
    fn asked_by_user(&self, model: &ModelCall<'_>) -> Option<bool> {
        let own = model.model().and_then(|facts| facts.asked_by_user);
        own.or_else(|| self.logs.of_span(model).rev().find_map(|log| log.asked_by_user))
    }

    /// The user's text: that of the root or of the outermost agent, else the first model call's last user message.
    pub(super) fn input(&self) -> Option<TextView<'s>> {
        let said = |text: &'s Text| TextView::of(text);
        let of_model = |span: &'s ModelCall<'s>| {
            let logged =
                || self.logs.of_span(span).rev().find_map(|log| log.input.as_ref()).map(said);
            span.input().or_else(logged)
        };
        let own = self.owners().filter_map(SpanView::input);
        let of_models = self.models.iter().filter_map(of_model);
        let loose = self.logs.all.iter().rev().filter_map(|log| log.input.as_ref()).map(said);
        first_good(own.chain(of_models).chain(loose))
    }

    /// The final answer: that of the root or of the outermost agent, else that of the last model call, if it succeeded.
    pub(super) fn output(&self) -> Option<TextView<'s>> {
        let own = self.owners().filter_map(SpanView::output);
        let of_model = self.last.filter(|span| !span.failed).and_then(|span| {
            let logged = || self.logs.of_span(span).rev().find_map(|log| log.output.as_ref());
            span.output().or_else(|| logged().map(TextView::of))
        });
        first_good(own.chain(of_model))
    }

    /// The spans whose texts are those of the whole turn.
    fn owners(&self) -> impl Iterator<Item = &'s SpanView<'s>> + '_ {
        let agent =
            self.shape.outermost_first().find(|span| span.operation == Operation::InvokeAgent);
        let speaks = |span: &&SpanView<'_>| {
            !matches!(span.operation, Operation::Chat | Operation::ExecuteTool)
        };
        self.shape.root().filter(speaks).into_iter().chain(agent)
    }
}

/// The first proper text; JSON of something else only if there is no proper text.
fn first_good<'a>(texts: impl Iterator<Item = TextView<'a>>) -> Option<TextView<'a>> {
    let mut last_resort = None;
    for text in texts {
        if text.rank < Text::LOOSE {
            return Some(text);
        }
        last_resort = last_resort.or(Some(text));
    }
    last_resort
}
