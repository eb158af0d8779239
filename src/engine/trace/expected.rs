//! What a done trace was expected to be.

use crate::engine::expect::{
    Details, Judgements, LayerResult, LayerStatus, Observed, QueryResult, Suite,
};
use crate::engine::update::{Expectation, ExpectedLayer, ExpectedStatus, TraceUpdate};

/// Holds a trace that has its texts against every query that it answers, in the order of the files.
pub fn expectations(trace: &TraceUpdate, suites: &[Suite]) -> Vec<Expectation> {
    let task = trace.attempt.as_ref().and_then(|attempt| attempt.task.as_deref());
    let input = trace.content.as_ref().and_then(|content| content.input.as_deref());
    let mut answered = suites
        .iter()
        .flat_map(|suite| suite.answered(task, input).into_iter().map(move |query| (suite, query)))
        .peekable();
    // Most traces answer none.
    if answered.peek().is_none() {
        return Vec::new();
    }
    let observed = Observed::from(trace);
    answered
        .map(|(suite, query)| {
            let result = suite.evaluate(query, &observed, &Judgements::new());
            expectation(query.query.clone(), result)
        })
        .collect()
}

fn expectation(query: String, result: QueryResult) -> Expectation {
    let hard_fail = result.hard_fail();
    let QueryResult { correctness, path, retrieval, cost } = result;
    Expectation {
        query,
        hard_fail,
        correctness: Some(layer(correctness)),
        path: Some(layer(path)),
        retrieval: Some(layer(retrieval)),
        cost: Some(layer(cost)),
    }
}

fn layer(result: LayerResult) -> ExpectedLayer {
    let LayerResult { status, problems, notes, details } = result;
    let status = match status {
        LayerStatus::Skip => ExpectedStatus::Skip,
        LayerStatus::Pass => ExpectedStatus::Pass,
        LayerStatus::Warn => ExpectedStatus::Warn,
        LayerStatus::Fail => ExpectedStatus::Fail,
    };
    ExpectedLayer { status: status.into(), problems, notes, details: json(details) }
}

fn json(details: Details) -> String {
    let object = details.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    serde_json::Value::Object(object).to_string()
}
