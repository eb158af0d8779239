//! How often each tool was called in a trace; shows whether a trace may have a loop without evaluating it.

use xxhash_rust::xxh3::xxh3_64;

use crate::loops::{self, Least};
use crate::options::LoopOptions;
use crate::small_map::SmallMap;
use crate::span::{Log, Span, Timestamp, ToolFacts};
use crate::trace::TraceContents;

/// Calls by the hash of the tool's name; model-requested calls without a name are under the empty name, and may be of any tool.
#[derive(Debug, Default)]
pub(super) struct Calls {
    tools: SmallMap<u64, Called>,
    /// When the trace was last searched for loops.
    pub(super) searched: Timestamp,
}

/// How often a tool was called.
#[derive(Clone, Copy, Debug, Default)]
struct Called {
    /// Number of tool spans with arguments.
    known: usize,
    /// Number of tool spans, with or without arguments.
    spans: usize,
    /// Number of calls in the output of models and in log records.
    said: usize,
    /// Whether the tool is allowed to repeat.
    allowed: bool,
}

impl Calls {
    /// Counts the calls in these spans and log records, from zero.
    pub(super) fn count(&mut self, parts: &TraceContents, options: &LoopOptions) {
        self.tools.clear();
        for (tool, arguments) in parts.spans.called_tools() {
            self.of_span(tool, arguments, options);
        }
        parts.spans.said_tools().for_each(|tool| self.said(tool, options));
        parts.logs().for_each(|log| self.note_log(log, options));
    }

    /// Counts the calls of a span. A span that replaces another counts again: there may be fewer calls than are counted, never
    /// more.
    pub(super) fn note(&mut self, span: &Span, options: &LoopOptions) {
        if let Some(tool) = &span.tool
            && let Some(name) = &tool.name
        {
            self.of_span(name, tool.arguments.is_some(), options);
        }
        let said = span.model.iter().flat_map(|model| &model.tool_calls);
        said.map(name).for_each(|tool| self.said(tool, options));
    }

    /// Counts the calls of a log record.
    pub(super) fn note_log(&mut self, log: &Log, options: &LoopOptions) {
        log.tool_calls.iter().map(name).for_each(|tool| self.said(tool, options));
    }

    /// Whether a tool that is not allowed to repeat was called often enough for a loop; `tools` is the number of all tool spans.
    pub(super) fn may_loop(&self, tools: usize, options: &LoopOptions) -> bool {
        let Least { known, names } = loops::least(options);
        let calls = || self.tools.values();
        if calls().all(|called| called.said == 0) {
            let often = |called: &Called| called.known >= known || called.spans >= names;
            return calls().any(|called| !called.allowed && often(called));
        }
        // A span may take its arguments from a model's output, and its name too, if no model used the span's own name.
        let of_said = |called: &&Called| called.said > 0;
        let named: usize = calls().map(|called| called.spans).sum();
        let named_as_said: usize = calls().filter(of_said).map(|called| called.spans).sum();
        let others = tools.max(named) - named_as_said;
        calls().filter(|called| !called.allowed).any(|called| {
            let renamed = if called.said > 0 { others } else { 0 };
            called.spans + called.said + renamed >= known.min(names)
        })
    }

    fn of_span(&mut self, tool: &str, arguments: bool, options: &LoopOptions) {
        let called = self.tool(tool, options);
        called.known += usize::from(arguments);
        called.spans += 1;
    }

    fn said(&mut self, tool: &str, options: &LoopOptions) {
        self.tool(tool, options).said += 1;
    }

    fn tool(&mut self, tool: &str, options: &LoopOptions) -> &mut Called {
        let called = self.tools.or_default(xxh3_64(tool.as_bytes()));
        if called.spans + called.said == 0 {
            called.allowed = options.allows(tool);
        }
        called
    }
}

fn name(tool: &ToolFacts) -> &str {
    tool.name.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::span::{Arguments, ModelFacts};

    fn facts(name: &str) -> ToolFacts {
        let arguments = Some(Arguments::from_canonical(b"{}", &[], true));
        ToolFacts { name: Some(Arc::from(name)), arguments, ..ToolFacts::default() }
    }

    fn ran(name: &str) -> Span {
        Span { tool: Some(facts(name)), ..Span::default() }
    }

    fn asked(name: &str) -> Span {
        let model = ModelFacts { tool_calls: vec![facts(name)], ..ModelFacts::default() };
        Span { model: Some(model), ..Span::default() }
    }

    fn may_loop(spans: &[Span]) -> bool {
        let options = LoopOptions { allow: vec!["poll_*".to_owned()], ..LoopOptions::default() };
        let mut calls = Calls::default();
        spans.iter().for_each(|span| calls.note(span, &options));
        let tools = spans.iter().filter(|span| span.tool.is_some()).count();
        calls.may_loop(tools, &options)
    }

    #[test]
    fn what_may_be_called_again_and_again_is_no_reason_to_read_a_trace() {
        let polls: Vec<Span> = vec![ran("poll_job"); 1_000];
        assert!(!may_loop(&polls));
        let searches = |count| [&polls[..], &vec![ran("search"); count]].concat();
        assert!(!may_loop(&searches(2)));
        assert!(may_loop(&searches(3)));
    }

    #[test]
    fn nor_where_models_say_what_they_call() {
        let polls = [vec![ran("poll_job"); 500], vec![asked("poll_job"); 500]].concat();
        assert!(!may_loop(&polls));
        let one = [&polls[..], &[asked("search"), ran("search")]].concat();
        assert!(!may_loop(&one));
        assert!(may_loop(&[&one[..], &[asked("search")]].concat()));
    }

    #[test]
    fn a_span_whose_name_no_model_said_may_be_of_a_tool_that_one_called() {
        let spans = [vec![ran("poll_job"); 3], vec![asked("search")]].concat();
        assert!(may_loop(&spans));
        // One that a model called without a name has the arguments that the model said.
        let asked_unnamed = asked("");
        let bare = ToolFacts { arguments: None, ..facts("search") };
        let bare = Span { tool: Some(bare), ..Span::default() };
        assert!(!may_loop(&vec![bare.clone(); 3]));
        assert!(may_loop(&[vec![bare; 3], vec![asked_unnamed]].concat()));
        // A tool without a name, too.
        let unnamed = Span { tool: Some(ToolFacts::default()), ..Span::default() };
        assert!(may_loop(&[vec![unnamed; 3], vec![asked("search")]].concat()));
    }
}
