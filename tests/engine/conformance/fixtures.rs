//! AgentCI's recordings: what its importer reads from an export, compared with what `replay` reads from it.
//!
//! The recordings stay in the reference's repository. `tests/data/agentci` has one with the same structure for each, with the same
//! numbers and other texts; `AGENTGAUGE_FIXTURES` names a directory with the originals, all of which must exist if it is set.

use std::path::{Path, PathBuf};

use agentgauge::config::Config;
use agentgauge::engine::pipeline::Pipeline;
use agentgauge::engine::span::{Operation, Span, Timestamp};
use agentgauge::engine::view::TraceView;
use agentgauge::ingest::decode::Decoder;
use agentgauge::ingest::file;
use serde_json::{Value, json};

use super::same;

/// The recordings for a case; none if it names a missing one.
pub(super) fn of(case: &Value) -> Vec<PathBuf> {
    let named = case["input"]["fixture"].as_str().unwrap();
    let name = Path::new(named).file_name().unwrap();
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/agentci").join(name);
    let mut vars = std::env::vars_os();
    let originals = vars.find(|(key, _)| key == "AGENTGAUGE_FIXTURES");
    let original = originals.map(|(_, folder)| Path::new(&folder).join(name));
    Some(own).filter(|own| own.exists()).into_iter().chain(original).collect()
}

/// The facts of a case, out of every recording of it.
pub(super) fn check(case: &Value, tolerance: f64) -> Result<(), String> {
    of(case).iter().try_for_each(|path| {
        let ours = facts(path).map_err(|why| format!("{}: {why}", path.display()))?;
        let what = path.file_name().unwrap().to_string_lossy();
        same(&what, &case["expected"], &ours, tolerance)
    })
}

fn facts(path: &Path) -> Result<Value, String> {
    let mut config = Config::default();
    config.assemble.keep_content = true;
    let options = config.engine_options([].into());
    let decoder = Decoder::new(config.ingest, config.convention);
    let batches = file::read(path, &decoder).map_err(|error| error.to_string())?;
    let spans: Vec<Span> = batches.iter().flat_map(|batch| batch.spans.clone()).collect();
    let mut pipeline = Pipeline::new(&options, 1);
    let end = spans.iter().map(|span| span.end).max().unwrap_or_default();
    for batch in batches {
        pipeline.apply(batch.spans, batch.logs, batch.reports, Timestamp::default());
    }
    pipeline.finish(end);
    let document = pipeline.document();
    let traces: Vec<&TraceView> =
        document.sessions.iter().flat_map(|session| &session.traces).collect();
    let [trace] = traces[..] else { return Err(format!("{} traces", traces.len())) };
    let time = |text: &str| text.parse::<u64>().unwrap();
    let nanos = time(&trace.end_unix_nano) - time(&trace.start_unix_nano);
    let tokens = trace.tokens.input.zip(trace.tokens.output).map(|(input, output)| input + output);
    Ok(json!({
        "spans": spans.len(),
        "framework": framework(&spans),
        "agent_name": agent_name(trace, &spans),
        "tool_call_sequence": trace.tools.iter().map(|tool| &tool.name).collect::<Vec<_>>(),
        "llm_calls": trace.llm_calls,
        "total_tokens": tokens.map(|tokens| tokens - thoughts(path)),
        "duration_ms": nanos as f64 / 1e6,
        "has_query": trace.input.is_some(),
        "has_final_output": trace.output.is_some(),
    }))
}

/// The convention, as AgentCI calls it.
fn framework(spans: &[Span]) -> &'static str {
    let any = |name: &str| {
        spans.iter().any(|span| span.convention.as_ref().is_some_and(|own| **own == *name))
    };
    if any("google_adk") {
        "otel-adk"
    } else if any("langfuse") {
        "otel-langfuse"
    } else {
        "otel-genai"
    }
}

/// The agent, which AgentCI calls by its span if it has no name, and somehow if it has no span either.
fn agent_name<'a>(trace: &'a TraceView, spans: &'a [Span]) -> &'a str {
    let span = spans.iter().find(|span| span.operation == Operation::InvokeAgent);
    let own = trace.agent.agent_name.as_deref();
    own.unwrap_or_else(|| span.map_or("imported-agent", |span| &span.name))
}

/// Tokens that a Gemini model thought with, which AgentCI leaves out and we count as written.
fn thoughts(path: &Path) -> u64 {
    let spans: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let calls = spans.as_array().unwrap().iter().filter(|span| span["name"] == "call_llm");
    let thought = calls.map(|span| &span["attributes"]["gen_ai.usage.reasoning.output_tokens"]);
    thought.filter_map(Value::as_u64).sum()
}
