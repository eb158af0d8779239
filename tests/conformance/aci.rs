//! AgentCI: sequences, sets, layers.

use agentgauge::engine::math::sequence::{adjacent_repeats, edit_similarity, lcs_similarity};
use serde_json::{Value, json};

use super::{Check, same};

pub(super) fn check_of(family: &str) -> Option<Check> {
    match family {
        "aci-sequences" => Some(sequences),
        _ => None,
    }
}

fn sequences(case: &Value, tolerance: f64) -> Result<(), String> {
    let list = |name: &str| -> Vec<String> {
        case["input"][name]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item.as_str().unwrap().to_owned())
            .collect()
    };
    let (a, b) = (list("a"), list("b"));
    let expected = &case["expected"];
    same("lcs", &expected["lcs"], &json!(lcs_similarity(&a, &b)), tolerance)?;
    same("edit", &expected["edit"], &json!(edit_similarity(&a, &b)), tolerance)?;
    same("loops_a", &expected["loops_a"], &json!(adjacent_repeats(&a)), tolerance)
}
