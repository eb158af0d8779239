//! Princeton's agent reliability: consistency, predictability, robustness, safety.

use std::collections::BTreeMap;
use std::sync::Arc;

use agentgauge::engine::math::Quanta;
use agentgauge::engine::score::princeton::{
    AgentTasks, AggregateWeights, Condition, Formula, Name, Resources, RunRecord, Score, Scores,
    Severity, TaskOptions, aggregate as engine_aggregate,
};
use agentgauge::engine::span::Timestamp;
use agentgauge::reference::princeton::consistency::{self, Trajectory};
use agentgauge::reference::princeton::predictability::{self, Prediction};
use agentgauge::reference::princeton::{self, safety};
use serde_json::{Value, json};

use super::{Check, same};

/// Resources in the order of the formula, under the names that the vectors have for them.
const RESOURCES: [(&str, &str); 6] = [
    ("costs", "cost_cv"),
    ("times", "time_cv"),
    ("api_calls", "api_calls_cv"),
    ("num_actions", "actions_cv"),
    ("num_errors", "errors_cv"),
    ("call_latencies", "call_latency_cv"),
];

/// Parts and aggregates: the vectors' names and the engine's.
const NAMES: [(&str, &str); 12] = [
    ("c_out", "outcome_consistency"),
    ("c_traj_d", "trajectory_distribution_consistency"),
    ("c_traj_s", "trajectory_sequence_consistency"),
    ("c_res", "resource_consistency"),
    ("p_brier", "brier"),
    ("r_fault", "fault_robustness"),
    ("r_struct", "environment_robustness"),
    ("r_prompt", "prompt_robustness"),
    ("r_con", "consistency"),
    ("r_pred", "predictability"),
    ("r_rob", "robustness"),
    ("r_overall", "reliability"),
];

/// Scores of whole experiments: the vectors' names and the engine's.
const END_TO_END: [(&str, &str); 10] = [
    ("accuracy", "accuracy"),
    ("consistency_outcome", "outcome_consistency"),
    ("consistency_trajectory_distribution", "trajectory_distribution_consistency"),
    ("consistency_trajectory_sequence", "trajectory_sequence_consistency"),
    ("consistency_confidence", "confidence_consistency"),
    ("consistency_resource", "resource_consistency"),
    ("p_cal", "calibration"),
    ("p_auroc", "auroc"),
    ("p_brier", "brier"),
    ("r_con", "consistency"),
];

pub(super) fn check_of(family: &str) -> Option<Check> {
    match family {
        "hal-aggregate" => Some(aggregate),
        "hal-confidence-consistency" => Some(confidence),
        "hal-outcome-consistency" => Some(outcome),
        "hal-predictability" => Some(predictability),
        "hal-published" => Some(published),
        "hal-resource-consistency" => Some(resource),
        "hal-robustness" => Some(robustness),
        "hal-runs-end-to-end" => Some(runs_end_to_end),
        "hal-safety" => Some(safety),
        "hal-trajectory-consistency" => Some(trajectory),
        _ => None,
    }
}

fn outcome(case: &Value, tolerance: f64) -> Result<(), String> {
    let (input, expected) = (&case["input"]["successes"], &case["expected"]);
    let rewards = floats(input);
    let ours = json!({
        "head": consistency::outcome(&rewards, Formula::Corrected),
        "legacy_seed_formula": consistency::outcome(&rewards, Formula::Methodology),
    });
    same("outcome", expected, &ours, tolerance)?;
    // A run of the engine's succeeded or did not.
    if rewards.iter().any(|reward| reward.fract() > 0.0) {
        return Ok(());
    }
    for (name, formula) in
        [("head", Formula::Corrected), ("legacy_seed_formula", Formula::Methodology)]
    {
        let runs = successes(input)
            .into_iter()
            .map(|success| RunRecord { success: Some(success), ..RunRecord::default() });
        let scores = engine(runs.collect(), formula);
        incremental(&scores, &[("outcome_consistency", &expected[name])])?;
    }
    Ok(())
}

fn trajectory(case: &Value, tolerance: f64) -> Result<(), String> {
    let (input, expected) = (&case["input"], &case["expected"]);
    let trajectories: Vec<Trajectory> =
        input["trajectories"].as_array().unwrap().iter().map(actions).collect();
    let outcomes = successes(&input["successes"]);
    let right: Vec<Trajectory> = trajectories
        .iter()
        .zip(outcomes.iter().copied())
        .filter(|(_, success)| *success)
        .map(|(trajectory, _)| trajectory.clone())
        .collect();
    for (name, formula) in [
        ("distribution_head_jsd_base2", Formula::Corrected),
        ("distribution_legacy_js_distance_nat", Formula::Methodology),
    ] {
        let ours = consistency::trajectory_distribution(&right, formula);
        same(name, &expected[name], &json!(ours), tolerance)?;
        let runs = trajectories.iter().zip(&outcomes).map(|(actions, success)| RunRecord {
            success: Some(*success),
            actions: actions.clone(),
            ..RunRecord::default()
        });
        let scores = engine(runs.collect(), formula);
        incremental(
            &scores,
            &[
                ("trajectory_distribution_consistency", &expected[name]),
                ("trajectory_sequence_consistency", &expected["sequence"]),
            ],
        )?;
    }
    let sequence = consistency::trajectory_sequence(&right);
    same("sequence", &expected["sequence"], &json!(sequence), tolerance)
}

fn confidence(case: &Value, tolerance: f64) -> Result<(), String> {
    let (input, expected) = (&case["input"], &case["expected"]);
    let said: Vec<(Option<f64>, bool)> = input["confidences"]
        .as_array()
        .unwrap()
        .iter()
        .map(Value::as_f64)
        .zip(successes(&input["successes"]))
        .collect();
    let of = |wanted: Option<bool>| -> Vec<f64> {
        let wanted = said.iter().filter(|(_, success)| wanted.is_none_or(|y| y == *success));
        wanted.filter_map(|(confidence, _)| *confidence).collect()
    };
    let ours = consistency::confidence(&of(None));
    same("score", &expected["consistency_confidence"], &json!(ours), tolerance)?;
    let runs = said.iter().map(|(confidence, success)| RunRecord {
        confidence: confidence.and_then(Quanta::from_f64),
        success: Some(*success),
        ..RunRecord::default()
    });
    let scores = engine(runs.collect(), Formula::Corrected);
    incremental(&scores, &[("confidence_consistency", &expected["consistency_confidence"])])?;
    for (name, outcome) in
        [("cv_overall", None), ("cv_success", Some(true)), ("cv_failure", Some(false))]
    {
        let ours = consistency::coefficient_of_variation(&of(outcome));
        same(name, &expected["breakdown"][name], &json!(ours), tolerance)?;
    }
    Ok(())
}

fn resource(case: &Value, tolerance: f64) -> Result<(), String> {
    let (input, expected) = (&case["input"], &case["expected"]);
    let values = RESOURCES.map(|(name, _)| floats(&input[name]));
    let variations = consistency::resource_variations(&values);
    let mut cv: BTreeMap<&str, Value> =
        RESOURCES.iter().zip(variations).map(|((_, name), cv)| (*name, variation(cv))).collect();
    let finite: Vec<f64> = variations.into_iter().flatten().filter(|cv| cv.is_finite()).collect();
    cv.insert("avg_cv", json!(princeton::mean(&finite)));
    let ours = json!({"consistency_resource": consistency::resource(&values), "cv": cv});
    same("resource", expected, &ours, tolerance)?;
    let longest = values.iter().map(Vec::len).max().unwrap_or(0);
    let runs = (0..longest).map(|at| {
        let [cost_usd, time_seconds, api_calls, actions, errors, call_latency_seconds] =
            values.each_ref().map(|values| values.get(at).copied());
        RunRecord {
            resources: Resources {
                cost_usd,
                time_seconds,
                api_calls,
                actions,
                errors,
                call_latency_seconds,
            },
            ..RunRecord::default()
        }
    });
    let scores = engine(runs.collect(), Formula::Corrected);
    incremental(&scores, &[("resource_consistency", &expected["consistency_resource"])])
}

/// A variation as the vectors write it.
fn variation(cv: Option<f64>) -> Value {
    if cv == Some(f64::INFINITY) { json!("inf") } else { json!(cv) }
}

fn predictability(case: &Value, tolerance: f64) -> Result<(), String> {
    let (input, expected) = (&case["input"], &case["expected"]);
    let predictions: Vec<Prediction> =
        floats(&input["confidences"]).into_iter().zip(successes(&input["successes"])).collect();
    let right = predictions.iter().filter(|(_, success)| *success).count();
    let bins: Vec<Value> = predictability::bins(&predictions)
        .into_iter()
        .map(|bin| {
            json!({
                "bin_center": bin.center,
                "count": bin.count,
                "avg_confidence": bin.confidence,
                "avg_accuracy": bin.accuracy,
            })
        })
        .collect();
    let mut ours = vec![
        ("p_cal", json!(predictability::calibration(&predictions))),
        ("ece", json!(predictability::ece(&predictions))),
        ("bins", json!(bins)),
        ("p_auroc", json!(predictability::auroc(&predictions))),
        ("n_pos", json!(right)),
        ("n_neg", json!(predictions.len() - right)),
        ("p_brier", json!(predictability::brier(&predictions))),
    ];
    let mut wanted = vec![("calibration", "p_cal"), ("auroc", "p_auroc"), ("brier", "p_brier")];
    // Equal confidences with different outcomes: the source's curve depends on its sort.
    if expected["p_rc_tie_dependent"] == json!(false) {
        ours.push(("p_rc", json!(predictability::risk_coverage(&predictions))));
        wanted.push(("risk_coverage", "p_rc"));
    }
    if !has_mixed_ties(&predictions) {
        ours.push(("aurc", json!(predictability::aurc(&predictions))));
    }
    ours.iter().try_for_each(|(name, ours)| same(name, &expected[*name], ours, tolerance))?;
    let wanted: Vec<(&str, &Value)> =
        wanted.into_iter().map(|(ours, theirs)| (ours, &expected[theirs])).collect();
    incremental(&engine(predicted(&predictions), Formula::Corrected), &wanted)
}

fn predicted(predictions: &[Prediction]) -> Vec<RunRecord> {
    let run = |(confidence, success): &Prediction| RunRecord {
        confidence: Quanta::from_f64(*confidence),
        success: Some(*success),
        ..RunRecord::default()
    };
    predictions.iter().map(run).collect()
}

fn has_mixed_ties(predictions: &[Prediction]) -> bool {
    predictions.iter().any(|(a, right)| {
        predictions.iter().any(|(b, other)| right != other && a.total_cmp(b).is_eq())
    })
}

fn robustness(case: &Value, tolerance: f64) -> Result<(), String> {
    let (input, expected) = (&case["input"], &case["expected"]);
    let pooled = |name: &str| -> Vec<bool> {
        input[name].as_array().unwrap().iter().flat_map(successes).collect()
    };
    let baseline = pooled("baseline_rewards");
    // In its list form any score above 0 is a success.
    let disturbed: Vec<bool> = match input["perturbed_list_scores"].as_array() {
        Some(lists) => lists.iter().flat_map(floats).map(|score| score > 0.0).collect(),
        None => pooled("perturbed_rewards"),
    };
    let ours = json!({
        "ratio": princeton::robustness(&baseline, &disturbed),
        "acc_baseline": princeton::accuracy(&baseline),
        "acc_perturbed": princeton::accuracy(&disturbed),
    });
    same("robustness", expected, &ours, tolerance)?;
    for (name, condition) in [
        ("fault_robustness", Condition::Fault),
        ("environment_robustness", Condition::Environment),
        ("prompt_robustness", Condition::Prompt),
    ] {
        let under = |outcomes: &[bool], condition: Condition| -> Vec<RunRecord> {
            let run = |success: &bool| RunRecord {
                success: Some(*success),
                condition,
                ..RunRecord::default()
            };
            outcomes.iter().map(run).collect()
        };
        let runs = [under(&baseline, Condition::Baseline), under(&disturbed, condition)].concat();
        let scores = engine(runs, Formula::Corrected);
        incremental(&scores, &[(name, &expected["ratio"])])?;
    }
    Ok(())
}

fn safety(case: &Value, tolerance: f64) -> Result<(), String> {
    let (runs, expected) = (case["input"]["tasks"].as_array().unwrap(), &case["expected"]);
    let analysed: Vec<&Vec<Value>> = runs.iter().filter_map(Value::as_array).collect();
    let severities = |of: &dyn Fn(&Value) -> bool| -> Vec<Vec<Severity>> {
        let severity = |violation: &Value| Severity::named(violation[1].as_str());
        analysed.iter().map(|run| run.iter().filter(|x| of(x)).map(severity).collect()).collect()
    };
    let all = severities(&|_| true);
    let ours = safety::safety(&all);
    let constraints = expected["per_constraint"].as_object().unwrap().keys().map(|constraint| {
        let ours = safety::safety(&severities(&|violation| violation[0] == constraint.as_str()));
        (constraint.clone(), ours.map(|ours| ours.compliance))
    });
    let ours = json!({
        "s_comp": ours.map(|ours| ours.compliance),
        "s_harm": ours.map(|ours| ours.harm),
        "r_saf": ours.map(|ours| ours.safety),
        "num_violations": all.iter().map(Vec::len).sum::<usize>(),
        "tasks_analyzed": analysed.len(),
        "total_tasks": runs.len(),
        "per_task_scores": all.iter().map(|run| safety::worst(run)).collect::<Vec<_>>(),
        "per_constraint": constraints.collect::<BTreeMap<_, _>>(),
    });
    same("safety", expected, &ours, tolerance)?;
    let unseen = vec![None; runs.len() - all.len()];
    let records = all.into_iter().map(Some).chain(unseen).map(|violations| RunRecord {
        looked: violations.is_some(),
        violations,
        ..RunRecord::default()
    });
    let wanted = [
        ("compliance", &expected["s_comp"]),
        ("harm", &expected["s_harm"]),
        ("safety", &expected["r_saf"]),
    ];
    incremental(&engine(records.collect(), Formula::Corrected), &wanted)
}

fn aggregate(case: &Value, tolerance: f64) -> Result<(), String> {
    let mut scores: princeton::Scores = NAMES
        .into_iter()
        .filter_map(|(theirs, ours)| Some((ours, case["input"].get(theirs)?.as_f64()?)))
        .collect();
    let mut samples = Scores::default();
    for name in Name::ALL {
        let value = scores.get(name.name()).copied();
        samples.set(name, value.map(|value| Score { value, samples: 1 }));
    }
    princeton::aggregate(&mut scores, &AggregateWeights::default());
    same_named(&case["expected"], &scores, tolerance)?;
    engine_aggregate::complete(&mut samples, &AggregateWeights::default());
    let values = samples.iter().map(|(name, score)| (name, score.value)).collect();
    same_named(&case["expected"], &values, tolerance)
}

/// Compares what the vector expects with the engine's scores under the engine's names.
fn same_named(expected: &Value, ours: &princeton::Scores, tolerance: f64) -> Result<(), String> {
    let names: BTreeMap<&str, &str> = NAMES.into();
    expected.as_object().unwrap().iter().try_for_each(|(name, wanted)| {
        let ours = names.get(name.as_str()).and_then(|name| ours.get(name));
        same(name, wanted, &json!(ours), tolerance)
    })
}

/// Published figures, each kind with other inputs.
fn published(case: &Value, tolerance: f64) -> Result<(), String> {
    let (input, expected) = (&case["input"], &case["expected"]);
    if input.get("confidences_success").is_some() {
        published_predictability(input, expected, tolerance)
    } else if let Some(rates) = input["success_rate_per_task_of_5_runs"].as_object() {
        published_outcomes(rates, expected, tolerance)
    } else if input.get("risks_at_100_coverages").is_some() {
        let count = |name: &str| usize::try_from(input[name].as_u64().unwrap()).unwrap();
        let (right, wrong) = (count("n_success"), count("n_failure"));
        let curve = floats(&input["risks_at_100_coverages"]);
        let ours = predictability::risk_coverage_of_curve(&curve, wrong, right + wrong);
        same("p_rc", &expected["p_rc"], &json!(ours), tolerance)
    } else {
        aggregate(case, tolerance)
    }
}

fn published_predictability(input: &Value, expected: &Value, tolerance: f64) -> Result<(), String> {
    let of = |name: &str, success: bool| {
        floats(&input[name]).into_iter().map(move |confidence| (confidence, success))
    };
    let predictions: Vec<Prediction> =
        of("confidences_success", true).chain(of("confidences_failure", false)).collect();
    let (confidences, outcomes): (Vec<f64>, Vec<bool>) = predictions.iter().copied().unzip();
    let ours = json!({
        "accuracy": princeton::accuracy(&outcomes),
        "mean_confidence": princeton::mean(&confidences),
        "p_cal": predictability::calibration(&predictions),
        "p_auroc": predictability::auroc(&predictions),
        "p_brier": predictability::brier(&predictions),
    });
    let wanted = expected.as_object().unwrap().iter();
    wanted.into_iter().try_for_each(|(name, wanted)| same(name, wanted, &ours[name], tolerance))?;
    let wanted = [
        ("accuracy", &expected["accuracy"]),
        ("mean_confidence", &expected["mean_confidence"]),
        ("calibration", &expected["p_cal"]),
        ("auroc", &expected["p_auroc"]),
        ("brier", &expected["p_brier"]),
    ];
    incremental(&engine(predicted(&predictions), Formula::Corrected), &wanted)
}

fn published_outcomes(
    rates: &serde_json::Map<String, Value>,
    expected: &Value,
    tolerance: f64,
) -> Result<(), String> {
    let tasks: Vec<Vec<bool>> = rates
        .values()
        .map(|rate| (0..5).map(|run| f64::from(run) + 0.5 < rate.as_f64().unwrap() * 5.0).collect())
        .collect();
    let reward = |success: &bool| f64::from(u8::from(*success));
    let rewards: Vec<Vec<f64>> =
        tasks.iter().map(|task| task.iter().map(reward).collect()).collect();
    let mean = |formula: Formula| {
        let scores: Vec<f64> =
            rewards.iter().filter_map(|task| consistency::outcome(task, formula)).collect();
        princeton::mean(&scores)
    };
    let ours = json!({
        "accuracy": princeton::accuracy(&tasks.concat()),
        "c_out_legacy_seed_formula_published": mean(Formula::Methodology),
        "c_out_head_formula_computed": mean(Formula::Corrected),
    });
    same("outcomes", expected, &ours, tolerance)?;
    for (name, formula) in [
        ("c_out_legacy_seed_formula_published", Formula::Methodology),
        ("c_out_head_formula_computed", Formula::Corrected),
    ] {
        let runs = tasks.iter().enumerate().flat_map(|(task, outcomes)| {
            outcomes.iter().map(move |success| RunRecord {
                task: Some(Arc::from(format!("task {task}"))),
                success: Some(*success),
                ..RunRecord::default()
            })
        });
        let scores = engine(runs.collect(), formula);
        incremental(&scores, &[("outcome_consistency", &expected[name])])?;
    }
    Ok(())
}

/// The engine's scores of these runs: runs without a name get one, and a task if they have none; they arrive last first, some
/// twice, and others come and go in between.
fn engine(runs: Vec<RunRecord>, formula: Formula) -> princeton::Scores {
    let options =
        TaskOptions { last_runs: AgentTasks::MAX_LAST_RUNS, formula, ..TaskOptions::default() };
    let mut agent = AgentTasks::new(options);
    let task: Arc<str> = Arc::from("task");
    for (at, run) in runs.into_iter().enumerate().rev() {
        let run = RunRecord {
            task: run.task.or_else(|| Some(Arc::clone(&task))),
            id: Arc::from(format!("{at} {}", run.id)),
            start: Timestamp(u64::try_from(at).unwrap()),
            ..run
        };
        let revised = RunRecord {
            success: run.success.map(|success| !success),
            actions: vec![Arc::from("other")],
            violations: Some(vec![Severity::High]),
            looked: true,
            ..run.clone()
        };
        let other = RunRecord { id: Arc::from("other"), ..run.clone() };
        if at % 3 == 0 {
            agent.upsert(revised);
        }
        agent.upsert(run);
        if at % 3 == 1 {
            agent.upsert(other.clone());
            agent.remove(other.task.as_deref(), &other.id);
        }
    }
    agent.scores().iter().map(|(name, score)| (name, score.value)).collect()
}

/// Compares the engine's scores, unrounded.
fn incremental(scores: &princeton::Scores, wanted: &[(&str, &Value)]) -> Result<(), String> {
    wanted.iter().try_for_each(|(name, wanted)| {
        same(&format!("incremental {name}"), wanted, &json!(scores.get(name)), 1e-9)
    })
}

fn floats(list: &Value) -> Vec<f64> {
    list.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}

fn actions(list: &Value) -> Trajectory {
    list.as_array().unwrap().iter().map(|name| Arc::from(name.as_str().unwrap())).collect()
}

/// Rewards are cut to whole numbers: 0.99 is a failure.
fn successes(list: &Value) -> Vec<bool> {
    floats(list).into_iter().map(|reward| reward.trunc() >= 1.0).collect()
}

fn runs_end_to_end(case: &Value, tolerance: f64) -> Result<(), String> {
    let records = records(&case["input"]["runs"]);
    let options = TaskOptions { last_runs: 50, ..TaskOptions::default() };
    let ours = princeton::scores(&records, &options);
    let outcomes = princeton::outcomes_by_task(&records);
    let repeated = outcomes.iter().filter(|task| task.len() >= 2).count();
    let mut found = json!({
        "tasks_in_consistency": repeated,
    });
    for (theirs, name) in END_TO_END {
        found[theirs] = json!(ours.get(name));
    }
    let expected = &case["expected"];
    same("scores", expected, &found, tolerance)?;
    let wanted = END_TO_END.map(|(theirs, ours)| (ours, &expected[theirs]));
    incremental(&engine(records, Formula::Corrected), &wanted)
}

/// The runs of an experiment, each a map of tasks to what was observed.
fn records(runs: &Value) -> Vec<RunRecord> {
    let mut records = Vec::new();
    for (at, run) in runs.as_array().unwrap().iter().enumerate() {
        for (task, seen) in run.as_object().unwrap() {
            let latencies = floats(&seen["call_latencies_ms"]);
            let calls: Trajectory = actions(&seen["actions"]);
            records.push(RunRecord {
                task: Some(Arc::from(task.as_str())),
                id: Arc::from(format!("run {at}")),
                start: Timestamp(u64::try_from(at).unwrap()),
                success: Some(seen["reward"].as_f64().unwrap().trunc() >= 1.0),
                confidence: seen["confidence"].as_f64().and_then(Quanta::from_f64),
                resources: Resources {
                    cost_usd: seen["cost"].as_f64(),
                    time_seconds: seen["time"].as_f64(),
                    api_calls: Some(latencies.len() as f64),
                    actions: Some(calls.len() as f64),
                    errors: seen["errors"].as_f64(),
                    call_latency_seconds: princeton::mean(&latencies),
                },
                actions: calls,
                ..RunRecord::default()
            });
        }
    }
    records
}
