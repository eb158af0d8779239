//! Baselines for traces: an earlier trace of the same query that a person found good.
//!
//! AgentCI keeps one in a JSON file: `{"schema_version": 1, "agent", "version", "query", "trace": {"spans": [{"tool_calls":
//! [{"tool_name"}]}], "total_cost_usd"}}` (`baselines.py`). Version 2 holds whole conversations and is not read.

use serde_json::Value;

/// The parts of a good trace with which later ones are compared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Baseline {
    /// Names of its tool calls in order.
    pub tools: Vec<String>,
    /// Its cost, in US dollars; 0 if AgentCI knew no price.
    pub cost_usd: f64,
}

/// The reason why a file has no baseline.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NoBaseline {
    /// The file is of a simulated conversation, or of a later version.
    #[error("its schema_version is not 1")]
    Version,
    /// The file does not name its query.
    #[error("it has no `query`")]
    Query,
    /// The file has no trace.
    #[error("it has no `trace` with `spans` and their `tool_calls`")]
    Trace,
}

impl Baseline {
    /// Reads AgentCI's file: the query and the baseline.
    ///
    /// # Errors
    ///
    /// Fails if the file is something else.
    pub fn read(file: &Value) -> Result<(String, Self), NoBaseline> {
        if file.get("schema_version").is_some_and(|version| version.as_u64() != Some(1)) {
            return Err(NoBaseline::Version);
        }
        let query = file["query"].as_str().filter(|query| !query.is_empty());
        let query = query.ok_or(NoBaseline::Query)?;
        let trace = file["trace"].as_object().ok_or(NoBaseline::Trace)?;
        let tools = trace.get("spans").map_or(Some(Vec::new()), tool_names);
        let cost_usd = trace.get("total_cost_usd").and_then(Value::as_f64).unwrap_or(0.0);
        Ok((query.to_owned(), Self { tools: tools.ok_or(NoBaseline::Trace)?, cost_usd }))
    }
}

/// The names of the tool calls in the order of the file, which is the order that AgentCI compares; `None` if a call has no name.
fn tool_names(spans: &Value) -> Option<Vec<String>> {
    let mut names = Vec::new();
    for span in spans.as_array()? {
        let Some(calls) = span.get("tool_calls") else { continue };
        for call in calls.as_array()? {
            names.push(call["tool_name"].as_str()?.to_owned());
        }
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_file_of_agentci_is_a_baseline() {
        let spans = json!([
            {"tool_calls": [{"tool_name": "a"}, {"tool_name": "b"}]},
            {"kind": "llm_call"},
            {"tool_calls": [{"tool_name": "a"}]},
        ]);
        let file = |version: u64, trace: Value| json!({"schema_version": version, "query": "q", "trace": trace});
        let (query, baseline) =
            Baseline::read(&file(1, json!({"spans": spans, "total_cost_usd": 0.5}))).unwrap();
        assert_eq!((query.as_str(), baseline.cost_usd), ("q", 0.5));
        assert_eq!(baseline.tools, ["a", "b", "a"]);
        let refused = |file: &Value| Baseline::read(file).unwrap_err();
        assert_eq!(refused(&file(2, json!({}))), NoBaseline::Version);
        assert_eq!(refused(&json!({"trace": {}})), NoBaseline::Query);
        assert_eq!(refused(&file(1, json!(null))), NoBaseline::Trace);
        assert_eq!(refused(&file(1, json!({"spans": [{"tool_calls": [{}]}]}))), NoBaseline::Trace);
    }
}
