//! Layer 3: the cost of the trace, against limits and a baseline. An exceeded limit is a warning, never a failure.
//!
//! ```text
//! max_cost_multiplier    actual cost / baseline cost <= multiplier; without a baseline cost over 0 not checked
//! max_total_tokens, max_llm_calls, max_latency_ms, max_cost_usd    actual <= limit
//! ```
//!
//! Source: AgentCI v2, metrics reference, "Layer 3: Cost"; `engine/cost.py`. There a model without a price costs
//! nothing; here an unknown value is not checked.

use serde_json::{Value, json};

use super::baseline::Baseline;
use super::observed::Observed;
use super::result::{Findings, LayerResult, LayerStatus, rounded};
use super::spec::CostSpec;

/// Checks a trace against its limits.
pub fn evaluate(spec: &CostSpec, observed: &Observed, baseline: Option<&Baseline>) -> LayerResult {
    let mut found = Findings::default();
    if let (Some(most), Some(baseline)) = (spec.max_cost_multiplier, baseline) {
        multiplier(&mut found, observed.cost_usd, baseline.cost_usd, most);
    }
    if let Some(most) = spec.max_total_tokens {
        found.at_most("tokens", observed.total_tokens, most);
    }
    if let Some(most) = spec.max_llm_calls {
        found.at_most("model calls", Some(observed.llm_calls), most);
    }
    if let Some(most) = spec.max_latency_ms {
        found.at_most("milliseconds", observed.duration_ms, most as f64);
    }
    if let Some(most) = spec.max_cost_usd {
        found.at_most("dollars", observed.cost_usd, most);
    }
    found.result(LayerStatus::Warn)
}

fn multiplier(found: &mut Findings, cost: Option<f64>, baseline: f64, most: f64) {
    let times = cost.filter(|_| baseline > 0.0).map(|cost| cost / baseline);
    let shown = times.map_or(Value::Null, |times| json!(rounded(times, 3)));
    found.details.insert("cost_multiplier", shown);
    match times {
        None if cost.is_none() => found.cannot("dollars not known"),
        None => found.note("not checked: the baseline cost nothing".to_owned()),
        Some(times) => found.check(
            times <= most,
            format!("dollars: {times:.2} times the baseline <= {most}"),
            format!("dollars: {times:.2} times the baseline > {most}"),
        ),
    }
}
