//! Expectations: what people wrote down about a trace, in three layers and a half.
//!
//! ```text
//! correctness   the answer                 a failure stops a build
//! path          the tools                  a warning; a forbidden tool is a failure
//! retrieval     what was retrieved         a warning
//! cost          tokens, calls, dollars     a warning
//! ```
//!
//! Source: AgentCI v2, metrics reference, and the package's own code where the page is silent. Each layer has one file; `spec` is
//! the model of the file that people write, `observed` is the input of the checks.

pub mod baseline;
mod checked;
pub mod correctness;
pub mod cost;
pub mod judge;
pub mod observed;
pub mod path;
pub mod pattern;
pub mod result;
pub mod retrieval;
pub mod schema;
pub mod sets;
pub mod span_assertions;
pub mod span_spec;
pub mod spec;
pub mod suite;

mod yaml;

pub use baseline::Baseline;
pub use judge::Judgements;
pub use observed::Observed;
pub use result::{Details, LayerResult, LayerStatus, QueryResult};
pub use spec::{Query, Spec};
pub use suite::Suite;
pub use yaml::SpecError;

/// Checks a trace against one query's expectations.
pub fn evaluate(
    query: &Query,
    observed: &Observed,
    baseline: Option<&Baseline>,
    judgements: &Judgements,
) -> QueryResult {
    let or_skipped = |layer: Option<LayerResult>| layer.unwrap_or_else(LayerResult::skipped);
    let answer = query
        .correctness
        .as_ref()
        .map(|spec| correctness::evaluate(spec, observed.answer.as_deref(), judgements));
    let assertions = (!query.span_assertions.is_empty())
        .then(|| span_assertions::evaluate(&query.span_assertions, observed, judgements));
    let correctness = match (answer, assertions) {
        (Some(answer), Some(assertions)) => Some(answer.and(assertions)),
        (answer, assertions) => answer.or(assertions),
    };
    let path = query.path.as_ref().map(|spec| path::evaluate(spec, observed, baseline));
    let retrieval = query
        .retrieval
        .as_ref()
        .map(|spec| retrieval::evaluate(spec, query.correctness.as_ref(), observed));
    let cost = query.cost.as_ref().map(|spec| cost::evaluate(spec, observed, baseline));
    QueryResult {
        correctness: or_skipped(correctness),
        path: or_skipped(path),
        retrieval: or_skipped(retrieval),
        cost: or_skipped(cost),
    }
}
