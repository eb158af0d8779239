//! Layer 2: which tools were called, how often and in which order. Only a forbidden tool is a failure; everything else is a
//! warning.
//!
//! In this order:
//!
//! ```text
//! max_tool_calls             calls <= limit
//! forbidden_tools            none of them was used                               (FAIL)
//! expected_tools             recall >= min_tool_recall (1 if not given); an empty list: no tool was used
//! min_tool_precision         precision >= limit; only with expected_tools, and if tools were used
//! min_sequence_similarity    LCS similarity with the baseline >= limit
//! max_loops                  adjacent calls of equal name <= limit; always, 3 if not given
//! expected_tool_sequence     equal, call by call
//! match_mode                 against the baseline; always if there is one, `subset` if not given
//! expected_handoff, expected_handoffs_available, max_handoff_count
//! ```
//!
//! A check against a baseline is not made without one, and a note says so. The details have `tool_recall`, `tool_precision` and `tool_f1`
//! if tools are expected, `sequence_similarity` (LCS) and `edit_similarity` if there is a baseline; no rule gates the F1
//! or the edit similarity.
//!
//! Source: AgentCI v2, metrics reference, "Layer 2: Path"; `engine/path.py`.

use std::collections::BTreeSet;

use serde_json::json;

use super::baseline::Baseline;
use super::observed::{Handoffs, Observed};
use super::result::{Findings, LayerResult, LayerStatus, rounded};
use super::sets::{f1, precision, recall};
use super::spec::{MatchMode, PathSpec};
use crate::math::sequence::{adjacent_repeats, edit_similarity, lcs_similarity};

/// The least recall if none is given.
const MIN_RECALL: f64 = 1.0;

/// Checks the tools of a trace against the expectations.
pub fn evaluate(spec: &PathSpec, observed: &Observed, baseline: Option<&Baseline>) -> LayerResult {
    let names = observed.tool_names();
    let used: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    let reference: Option<Vec<&str>> =
        baseline.map(|baseline| baseline.tools.iter().map(String::as_str).collect());
    let mut found = Findings::default();
    if let Some(most) = spec.max_tool_calls {
        found.at_most("tool calls", Some(used.len() as u64), most);
    }
    let forbidden = forbidden(&mut found, spec, &used);
    expected(&mut found, spec, &used);
    similar(&mut found, spec.min_sequence_similarity, &used, reference.as_deref());
    let loops = adjacent_repeats(&used) as u64;
    found.details.insert("loops", json!(loops));
    found.at_most("loops", Some(loops), spec.max_loops);
    if let Some(expected) = &spec.expected_tool_sequence {
        found.details.insert("sequence_matched", json!(*expected == used));
        found.check(
            *expected == used,
            format!("the tools were {}", list(&used)),
            format!("expected the tools {}, were {}", list(expected), list(&used)),
        );
    }
    matched(&mut found, spec.match_mode, &used, reference.as_deref());
    handoffs(&mut found, spec, observed.handoffs.as_ref());
    found.result(if forbidden { LayerStatus::Fail } else { LayerStatus::Warn })
}

impl MatchMode {
    /// Whether the tools that were used fit those of a reference. All modes but `Strict` compare sets.
    pub fn holds(self, used: &[&str], reference: &[&str]) -> bool {
        let (used_set, reference_set) = (set(used), set(reference));
        match self {
            Self::Strict => used == reference,
            Self::Unordered => used_set == reference_set,
            Self::Subset => reference_set.is_subset(&used_set),
            Self::Superset => used_set.is_subset(&reference_set),
        }
    }
}

/// Checks for forbidden tools; returns whether one was used.
fn forbidden(found: &mut Findings, spec: &PathSpec, used: &[&str]) -> bool {
    let forbidden = spec.forbidden_tools.as_deref().unwrap_or_default();
    if forbidden.is_empty() {
        return false;
    }
    let used = set(used);
    let violations: Vec<&str> = set(forbidden).intersection(&used).copied().collect();
    found.details.insert("forbidden", json!(violations));
    found.check(
        violations.is_empty(),
        "no forbidden tool was used".to_owned(),
        format!("forbidden tools were used: {}", list(&violations)),
    );
    !violations.is_empty()
}

fn expected(found: &mut Findings, spec: &PathSpec, used: &[&str]) {
    let Some(expected) = &spec.expected_tools else { return };
    let (expected, used) = (set(expected), set(used));
    if expected.is_empty() {
        found.check(
            used.is_empty(),
            "no tool was used, as expected".to_owned(),
            format!("expected no tools, were {}", list(&used)),
        );
        return;
    }
    let recall = recall(&expected, &used);
    let least = spec.min_tool_recall.unwrap_or(MIN_RECALL);
    let missing: Vec<&str> = expected.difference(&used).copied().collect();
    found.details.insert("tool_recall", json!(rounded(recall, 3)));
    found.details.insert("tool_f1", json!(rounded(f1(&expected, &used), 3)));
    found.check(
        recall >= least,
        format!("tool recall: {recall:.3} >= {least}"),
        format!("tool recall: {recall:.3} < {least}; missing: {}", list(&missing)),
    );
    if !used.is_empty() {
        let precision = precision(&expected, &used);
        found.details.insert("tool_precision", json!(rounded(precision, 3)));
        match spec.min_tool_precision {
            Some(least) => found.at_least("tool precision", precision, least),
            None => found.note(format!("tool precision: {precision:.3}")),
        }
    }
}

/// Checks the similarity of the sequence of calls to that of the baseline.
fn similar(found: &mut Findings, least: Option<f64>, used: &[&str], reference: Option<&[&str]>) {
    let Some(reference) = reference else {
        if least.is_some() {
            found.cannot("min_sequence_similarity: there is no baseline of this query");
        }
        return;
    };
    let similarity = lcs_similarity(used, reference);
    found.details.insert("sequence_similarity", json!(rounded(similarity, 3)));
    let edits = edit_similarity(used, reference);
    found.details.insert("edit_similarity", json!(rounded(edits, 3)));
    if let Some(least) = least {
        found.at_least("similarity to the baseline's sequence", similarity, least);
    }
}

fn matched(
    found: &mut Findings,
    mode: Option<MatchMode>,
    used: &[&str],
    reference: Option<&[&str]>,
) {
    let Some(reference) = reference else {
        if let Some(mode) = mode {
            let name = mode.name();
            found.cannot(&format!("match_mode {name}: there is no baseline of this query"));
        }
        return;
    };
    let mode = mode.unwrap_or_default();
    let holds = mode.holds(used, reference);
    found.details.insert("match", json!(holds));
    let name = mode.name();
    found.check(
        holds,
        format!("the tools match the baseline's ({name})"),
        format!(
            "the tools {} do not match the baseline's {} ({name})",
            list(used),
            list(reference)
        ),
    );
}

fn handoffs(found: &mut Findings, spec: &PathSpec, observed: Option<&Handoffs>) {
    let expected = spec.expected_handoff.as_deref().filter(|name| !name.is_empty());
    let available = spec.expected_handoffs_available.as_deref().unwrap_or_default();
    if expected.is_none() && available.is_empty() && spec.max_handoff_count.is_none() {
        return;
    }
    let Some(observed) = observed else { return found.cannot("handoffs not known") };
    let targets: Vec<&str> = observed.targets.iter().filter_map(Option::as_deref).collect();
    found.details.insert("handoffs", json!(targets));
    if let Some(expected) = expected {
        found.check(
            targets.contains(&expected),
            format!("work was handed to {expected}"),
            format!("expected work to be handed to {expected}, was to {}", list(&targets)),
        );
    }
    match &observed.available {
        _ if available.is_empty() => {}
        None => found.cannot("who could have taken over is not known"),
        Some(known) => {
            let missing: Vec<&String> =
                available.iter().filter(|name| !known.contains(*name)).collect();
            found.check(
                missing.is_empty(),
                "all expected agents could have taken over".to_owned(),
                format!("could not have taken over: {}", list(&missing)),
            );
        }
    }
    if let Some(most) = spec.max_handoff_count {
        found.at_most("handoffs", Some(observed.targets.len() as u64), most);
    }
}

fn set<T: AsRef<str>>(names: &[T]) -> BTreeSet<&str> {
    names.iter().map(AsRef::as_ref).collect()
}

/// Names for people; `none` for no names.
fn list<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expect::observed::ObservedTool;

    fn calls(names: &[Option<&str>]) -> Observed {
        let tool = |name: &Option<&str>| ObservedTool {
            name: name.map(str::to_owned),
            ..ObservedTool::default()
        };
        Observed { tools: names.iter().map(tool).collect(), ..Observed::default() }
    }

    #[test]
    fn unknown_tools_are_no_loop_and_match_nothing() {
        let observed = calls(&[None, None, None, None, None]);
        let result = evaluate(&PathSpec::default(), &observed, None);
        assert_eq!((result.status, &result.details["loops"]), (LayerStatus::Pass, &json!(0)));
        let baseline = Baseline { tools: vec![String::new()], cost_usd: 0.0 };
        let result = evaluate(&PathSpec::default(), &observed, Some(&baseline));
        assert_eq!(result.status, LayerStatus::Warn);
    }

    #[test]
    fn an_expected_sequence_is_compared_call_by_call() {
        let spec = PathSpec {
            expected_tool_sequence: Some(vec!["a".into(), "b".into()]),
            ..PathSpec::default()
        };
        let status = |names: &[Option<&str>]| evaluate(&spec, &calls(names), None).status;
        assert_eq!(status(&[Some("a"), Some("b")]), LayerStatus::Pass);
        assert_eq!(status(&[Some("b"), Some("a")]), LayerStatus::Warn);
        assert_eq!(status(&[Some("a")]), LayerStatus::Warn);
    }

    #[test]
    fn sets_and_sequences_stand_in_the_details() {
        let spec = PathSpec {
            expected_tools: Some(vec!["a".into(), "b".into(), "d".into()]),
            match_mode: Some(MatchMode::Strict),
            min_sequence_similarity: Some(0.9),
            ..PathSpec::default()
        };
        let observed = calls(&[Some("a"), Some("c"), Some("b")]);
        let baseline = Baseline { tools: vec!["a".into(), "b".into(), "c".into()], cost_usd: 0.0 };
        let compared = evaluate(&spec, &observed, Some(&baseline));
        let detail = |name: &str| compared.details[name].as_f64().unwrap();
        for name in ["tool_recall", "tool_precision", "tool_f1", "sequence_similarity"] {
            assert!((detail(name) - 0.667).abs() < 1e-9, "{name}: {}", detail(name));
        }
        assert!((detail("edit_similarity") - 0.333).abs() < 1e-9);

        let alone = evaluate(&spec, &observed, None);
        let unchecked = alone.notes.iter().filter(|note| note.starts_with("not checked: "));
        let unchecked: Vec<&str> = unchecked.map(String::as_str).collect();
        assert_eq!(
            unchecked,
            [
                "not checked: min_sequence_similarity: there is no baseline of this query",
                "not checked: match_mode strict: there is no baseline of this query",
            ]
        );
        assert_eq!(alone.details.get("edit_similarity"), None);
    }

    #[test]
    fn handoffs_are_checked_only_where_they_are_known() {
        let spec = PathSpec {
            expected_handoff: Some("Billing".into()),
            expected_handoffs_available: Some(vec!["Billing".into(), "Sales".into()]),
            max_handoff_count: Some(1),
            ..PathSpec::default()
        };
        let mut observed = Observed::default();
        let unknown = evaluate(&spec, &observed, None);
        assert_eq!(unknown.status, LayerStatus::Pass);
        assert!(unknown.notes.iter().any(|note| note.contains("handoffs not known")));
        observed.handoffs = Some(Handoffs {
            targets: vec![Some("Billing".into()), None],
            available: Some(BTreeSet::from(["Billing".to_owned()])),
        });
        let known = evaluate(&spec, &observed, None);
        assert_eq!((known.status, known.problems.len()), (LayerStatus::Warn, 2), "{known:?}");
    }
}
