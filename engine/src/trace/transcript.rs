//! The transcript of a trace for a judge: bounded, in order, in the original words.
//!
//! ```text
//! input, final output, ended in error
//! steps: model and tool calls by start; beyond the bound those in the middle are left out and counted
//! ```
//!
//! The question and the answer get at most a quarter of the bound each, a text of a step an eighth. Tool results are present if the
//! conventions keep them.

use std::cell::Cell;

use serde::Serialize;

use super::calls::ModelCall;
use super::shape::Shape;
use super::span_view::{Model, SpanView, TextView, Tool};
use super::tools;
use super::turn::Turn;
use super::{Logs, TraceView};
use crate::convention::whole_words;
use crate::span::{Log, Operation, SpanId, Text, Timestamp};

/// A trace as texts.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Transcript {
    /// The user's text; `None`: not sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// The final answer; `None`: not sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Whether the root failed.
    pub ended_in_error: bool,
    /// Model and tool calls, in order of start.
    pub steps: Vec<TranscriptStep>,
    /// Number of steps left out of the middle because of their size.
    pub steps_left_out: usize,
    /// Whether anything was cut or left out because of its size.
    #[serde(skip)]
    pub truncated: bool,
}

/// A model or tool call, or a call of an agent.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct TranscriptStep {
    /// `model`, `tool` or `agent`.
    pub kind: &'static str,
    /// The tool, the agent or the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// A tool's arguments as canonical JSON; an agent's input; a model's last user message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// A tool's result; a model's or an agent's answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// The tool calls that a model requested, as `name(arguments)`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<String>,
    /// Whether the step failed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
}

/// Room for one text.
#[derive(Clone, Copy)]
struct Room<'a> {
    max_bytes: usize,
    /// Set if a text of the transcript was cut.
    truncated: &'a Cell<bool>,
}

impl Transcript {
    /// Bytes of all texts in it.
    pub fn bytes(&self) -> usize {
        let own = self.input.iter().chain(&self.output).map(String::len);
        own.chain(self.steps.iter().map(TranscriptStep::bytes)).sum()
    }
}

impl TranscriptStep {
    /// Bytes of all texts in it.
    fn bytes(&self) -> usize {
        let texts = self.name.iter().chain(&self.input).chain(&self.output).chain(&self.calls);
        texts.map(String::len).sum()
    }
}

/// The transcript of a trace, of at most about `max_bytes` bytes, and the id of its root, or of its outermost span if
/// the root is missing.
pub fn transcript(trace: &TraceView<'_>, max_bytes: usize) -> (Transcript, Option<SpanId>) {
    let TraceView { shape, logs, .. } = trace;
    let models = shape.model_calls();
    let turn = Turn { shape, models: &models, last: shape.last_model(&models), logs };
    let truncated = Cell::new(false);
    let ends = Room { max_bytes: max_bytes / 4, truncated: &truncated };
    let text = |said: Option<TextView<'_>>| said?.text.map(|text| ends.cut(text));
    let (input, output) = (text(turn.input()), text(turn.output()));
    let own = input.iter().chain(&output).map(String::len).sum();
    let root = shape.root();
    let each = Room { max_bytes: max_bytes / 8, truncated: &truncated };
    let steps = steps(shape, &models, logs, each);
    let (steps, steps_left_out) = bounded(steps, max_bytes.saturating_sub(own));
    let ended_in_error = root.is_some_and(|root| root.failed);
    let truncated = truncated.get() || steps_left_out > 0;
    let transcript = Transcript { input, output, ended_in_error, steps, steps_left_out, truncated };
    let judged =
        root.map(|root| root.span_id).or_else(|| Some(shape.outermost_first().next()?.span_id));
    (transcript, judged)
}

fn steps(
    shape: &Shape<'_>,
    models: &[ModelCall<'_>],
    logs: &Logs<'_>,
    room: Room<'_>,
) -> Vec<TranscriptStep> {
    let tools = shape.tool_spans();
    let root = shape.root().map(|root| root.span_id);
    let below = |span: &&SpanView<'_>| {
        span.operation == Operation::InvokeAgent && Some(span.span_id) != root
    };
    let agents = shape.behaviour().filter(below).map(Done::of);
    let models = models.iter().map(|call| Done {
        end: call.end,
        failed: call.failed,
        model: call.model(),
        input: call.input(),
        output: call.output(),
        ..Done::of(call.span)
    });
    let tools = tools.iter().map(|call| Done {
        end: call.end,
        failed: call.failed,
        tool: call.tool(),
        output: call.output(),
        ..Done::of(call.span)
    });
    let mut all: Vec<Done<'_>> = models.chain(tools).chain(agents).collect();
    all.sort_by_key(|done| (done.span.start, done.end, done.span.span_id));
    let mut asked = None;
    let step = |done: &Done<'_>| {
        let mut step = step(done, logs, room);
        // Every model call of a turn may repeat the user's message; one copy is enough.
        if step.kind == "model" {
            if step.input == asked {
                step.input = None;
            } else {
                asked.clone_from(&step.input);
            }
        }
        step
    };
    all.iter().map(step).collect()
}

/// A model, tool or agent call, assembled from one span or several.
struct Done<'s> {
    span: &'s SpanView<'s>,
    end: Timestamp,
    failed: bool,
    tool: Option<Tool<'s>>,
    model: Option<Model<'s>>,
    input: Option<TextView<'s>>,
    output: Option<TextView<'s>>,
}

impl<'s> Done<'s> {
    fn of(span: &'s SpanView<'s>) -> Self {
        Self {
            span,
            end: span.end,
            failed: span.failed,
            tool: span.tool(),
            model: span.model(),
            input: span.input(),
            output: span.output(),
        }
    }
}

fn step(done: &Done<'_>, logs: &Logs<'_>, room: Room<'_>) -> TranscriptStep {
    let cut = |text: &str| room.cut(text);
    let text = |said: Option<TextView<'_>>| said?.text.map(|text| cut(text));
    let own = TranscriptStep { failed: done.failed, ..TranscriptStep::default() };
    if let Some(tool) = &done.tool {
        return TranscriptStep {
            kind: "tool",
            name: tool.name.map(ToString::to_string),
            input: tool.arguments.and_then(|arguments| arguments.text).map(|text| cut(text)),
            output: text(done.output),
            ..own
        };
    }
    let (input, output) = (text(done.input), text(done.output));
    let Some(model) = &done.model else {
        let name = done.span.agent_name().map(str::to_owned);
        return TranscriptStep { kind: "agent", name, input, output, ..own };
    };
    let logged = |of: fn(&Log) -> Option<&Text>| {
        let logged = logs.of_span(done.span).rev().find_map(of);
        logged.map(|text| cut(&text.text))
    };
    let calls = tools::called(done.span, Some(*model), logs);
    TranscriptStep {
        kind: "model",
        name: model.name.map(|name| name.text.to_string()),
        input: input.or_else(|| logged(|log| log.input.as_ref())),
        output: output.or_else(|| logged(|log| log.output.as_ref())),
        calls: calls.iter().map(|call| cut(&call_text(call))).collect(),
        ..own
    }
}

fn call_text(call: &Tool<'_>) -> String {
    let arguments = call.arguments.and_then(|arguments| arguments.text);
    let name = call.name.map_or("?", |name| name);
    format!("{name}({})", arguments.map_or("", |text| text))
}

/// The first and the last steps that fit, each in half of the room, and the number of steps left out.
fn bounded(steps: Vec<TranscriptStep>, room: usize) -> (Vec<TranscriptStep>, usize) {
    // A step without texts still takes room when it is written.
    let size = |step: &TranscriptStep| step.bytes() + 32;
    let count = steps.len();
    let fitting = |sizes: &mut dyn Iterator<Item = usize>, room: usize| {
        let mut used = 0_usize;
        let fits = |size: &usize| {
            used = used.saturating_add(*size);
            used <= room
        };
        sizes.take_while(fits).count()
    };
    if fitting(&mut steps.iter().map(size), room) == count {
        return (steps, 0);
    }
    let first = fitting(&mut steps.iter().map(size), room / 2);
    let last = fitting(&mut steps.iter().rev().map(size), room / 2).min(count - first);
    let left_out = count - first - last;
    let kept = steps.into_iter().enumerate();
    let kept = kept.filter(|(at, _)| *at < first || *at >= first + left_out);
    (kept.map(|(_, step)| step).collect(), left_out)
}

impl Room<'_> {
    /// The part of a text that fits, with a note if something is left out.
    fn cut(self, text: &str) -> String {
        if text.len() <= self.max_bytes {
            return text.to_owned();
        }
        self.truncated.set(true);
        let kept = whole_words(text, self.max_bytes);
        format!("{kept} [{} bytes left out]", text.len() - kept.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::span::{Arguments, ModelFacts, Span, Timestamp, ToolFacts};
    use crate::trace::{Symbols, TraceContents};

    fn span(id: u8, operation: Operation) -> Span {
        Span {
            span_id: SpanId([id; 8]),
            parent: (id > 1).then_some(SpanId([1; 8])),
            start: Timestamp(u64::from(id)),
            end: Timestamp(100),
            operation,
            ..Span::default()
        }
    }

    fn text(text: &str) -> Text {
        Text { rank: 0, text: Arc::from(text) }
    }

    fn parts(spans: &[Span]) -> TraceContents {
        let mut parts = TraceContents::default();
        for span in spans {
            parts.spans.add(span, &span.resource, &mut Symbols::default(), true);
        }
        parts
    }

    fn turn(result: &str) -> TraceContents {
        let root = Span {
            input: Some(text("refund?")),
            output: Some(text("done")),
            ..span(1, Operation::InvokeAgent)
        };
        let facts = ToolFacts {
            name: Some(Arc::from("search")),
            arguments: Some(Arguments::from_canonical(b"{\"q\":1}", &[], true)),
            ..ToolFacts::default()
        };
        let model = |id| Span {
            model: Some(ModelFacts { tool_calls: vec![facts.clone()], ..ModelFacts::default() }),
            input: Some(text("refund?")),
            ..span(id, Operation::Chat)
        };
        let tool = Span {
            tool: Some(facts.clone()),
            output: Some(text(result)),
            failed: true,
            ..span(3, Operation::ExecuteTool)
        };
        parts(&[root, model(2), tool, model(4)])
    }

    #[test]
    fn steps_stand_in_order_and_the_question_once() {
        let (transcript, root) = transcript(&turn("none").view(), 10_000);
        assert_eq!((root, transcript.truncated), (Some(SpanId([1; 8])), false));
        assert_eq!(
            (transcript.input.as_deref(), transcript.output.as_deref()),
            (Some("refund?"), Some("done"))
        );
        let kinds: Vec<_> = transcript.steps.iter().map(|step| (step.kind, step.failed)).collect();
        assert_eq!(kinds, [("model", false), ("tool", true), ("model", false)]);
        let [first, tool, second] = transcript.steps.as_slice() else { panic!() };
        assert_eq!(first.calls, ["search({\"q\":1})"]);
        assert_eq!(
            (tool.input.as_deref(), tool.output.as_deref()),
            (Some("{\"q\":1}"), Some("none"))
        );
        assert_eq!((first.input.is_some(), second.input.is_some()), (true, false));
    }

    #[test]
    fn no_word_is_cut_in_two() {
        let cut = |text: &str, max_bytes| {
            let truncated = Cell::default();
            let kept = Room { max_bytes, truncated: &truncated }.cut(text);
            assert_eq!(truncated.get(), text.len() > max_bytes);
            kept
        };
        for (text, max, kept) in [
            ("the key sk-abcdef is", 13, "the key  [12 bytes left out]"),
            ("the key sk-abcdef is", 17, "the key sk-abcdef [3 bytes left out]"),
            ("the key sk-abcdef is", 8, "the key  [12 bytes left out]"),
            ("{\"a\":\"eyJh.eyJz.x\"}", 12, "{\"a\":\" [13 bytes left out]"),
            ("abcdef", 3, "abc [3 bytes left out]"),
            ("a é", 3, "a  [2 bytes left out]"),
        ] {
            assert_eq!(cut(text, max), kept, "{text} {max}");
        }
        assert_eq!(cut("abcdef", 6), "abcdef");
        let long = format!("a {}", "x".repeat(9_000));
        assert_eq!(cut(&long, 8_000).len(), 8_000 + " [1002 bytes left out]".len());
    }

    #[test]
    fn the_bound_holds_whatever_comes() {
        let mut spans = Vec::new();
        for id in 1..=60 {
            let facts =
                ToolFacts { name: Some(Arc::from(format!("t{id}"))), ..ToolFacts::default() };
            let tool = span(id, Operation::ExecuteTool);
            spans.push(Span { tool: Some(facts), output: Some(text(&"é".repeat(1_000))), ..tool });
        }
        let (transcript, _) = transcript(&parts(&spans).view(), 4_000);
        assert!(transcript.bytes() <= 4_000, "{}", transcript.bytes());
        assert!(
            transcript.truncated && transcript.steps_left_out > 40 && !transcript.steps.is_empty()
        );
        assert_eq!(transcript.steps.len() + transcript.steps_left_out, 60);
        let (one, _) = super::transcript(&turn(&"x".repeat(9_000)).view(), 800);
        assert!(one.steps[1].output.as_ref().unwrap().ends_with("[8900 bytes left out]"));
        assert!(one.truncated);
    }
}
