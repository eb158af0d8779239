//! Data of real instrumentation libraries comes out of `replay --output json` unchanged.

mod shaken;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Folders of captures: those of this repository, and a further one if the environment names it.
pub(crate) fn folders() -> Vec<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/captures");
    let further = std::env::vars_os()
        .find(|(name, _)| name == "AGENTGAUGE_CAPTURES")
        .map(|(_, value)| value.into());
    let mut folders: Vec<PathBuf> = Vec::new();
    for root in [Some(own), further].into_iter().flatten() {
        let entries =
            fs::read_dir(&root).unwrap_or_else(|error| panic!("{}: {error}", root.display()));
        folders.extend(
            entries
                .map(|entry| entry.unwrap().path())
                .filter(|path| path.join("expected.json").exists()),
        );
    }
    folders.sort();
    folders
}

#[test]
fn every_capture_comes_out_as_it_was() {
    let folders = folders();
    assert!(folders.len() >= 4, "captures are missing: {folders:?}");
    let mut failed = 0;
    for folder in &folders {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        match compare(folder) {
            Ok(turns) => println!("{name}: {turns} turns as expected"),
            Err(difference) => {
                failed += 1;
                println!("{name}: {difference}");
            }
        }
    }
    assert_eq!(failed, 0, "of {} captures, some differ; see above", folders.len());
}

fn compare(folder: &Path) -> Result<usize, String> {
    let expected = expected(folder);
    let document = replay(folder);
    let turns = expected["turns"].as_array().unwrap();
    let mut ours = Vec::new();
    for turn in turns {
        let traces = traces_of(&document, turn)?;
        ours.extend(traces.iter().map(|(_, trace)| trace["trace_id"].clone()));
        compare_turn(&expected, turn, &traces)
            .map_err(|difference| format!("turn {}: {difference}", turn["turn"]))?;
    }
    extra_traces(&document, &ours)?;
    Ok(turns.len())
}

/// The true facts of a capture.
fn expected(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("expected.json")).unwrap()).unwrap()
}

/// What comes out of a folder of requests.
fn replay(folder: &Path) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_agentgauge"))
        .args(["replay", "--output", "json"])
        .arg(folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "replay failed: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The traces of a turn, in order, each with its session.
fn traces_of<'a>(document: &'a Value, turn: &Value) -> Result<Vec<(&'a Value, &'a Value)>, String> {
    let mut found = told_in_time(document, turn);
    for id in turn["trace_ids"].as_array().unwrap() {
        let sessions = document["sessions"].as_array().unwrap().iter();
        let mut of_id = sessions
            .flat_map(|session| {
                session["traces"].as_array().unwrap().iter().map(move |trace| (session, trace))
            })
            .filter(|(_, trace)| trace["trace_id"] == *id);
        found.push(of_id.next().ok_or_else(|| format!("trace {id} is missing"))?);
        if of_id.next().is_some() {
            return Err(format!("trace {id} is in two sessions"));
        }
    }
    found.sort_by_key(|(_, trace)| {
        (
            trace["start_unix_nano"].as_str().unwrap().parse::<u64>().unwrap(),
            trace["trace_id"].as_str().unwrap(),
        )
    });
    Ok(found)
}

/// The trace of a turn from log records, whose id agentgauge makes: the first that began while the turn ran. The client's
/// background work came after it.
fn told_in_time<'a>(document: &'a Value, turn: &Value) -> Vec<(&'a Value, &'a Value)> {
    let ids = turn["trace_ids"].as_array().unwrap();
    let window = turn["window_unix_nano"].as_array().filter(|_| ids.is_empty());
    let window = window.filter(|_| turn["on_wire"] != Value::Bool(false));
    let Some([from, to]) = window.map(Vec::as_slice) else { return Vec::new() };
    let within = from.as_u64().unwrap()..=to.as_u64().unwrap();
    let start = |trace: &Value| trace["start_unix_nano"].as_str().unwrap().parse::<u64>().unwrap();
    let sessions = document["sessions"].as_array().unwrap().iter();
    let traces = sessions.flat_map(|session| {
        session["traces"].as_array().unwrap().iter().map(move |trace| (session, trace))
    });
    let going_on = traces.filter(|(_, trace)| within.contains(&start(trace)));
    let first = going_on.min_by_key(|(_, trace)| start(trace));
    vec![first.unwrap_or_else(|| panic!("nothing is told of turn {}", turn["turn"]))]
}

fn compare_turn(expected: &Value, turn: &Value, traces: &[(&Value, &Value)]) -> Result<(), String> {
    let knowable = |field: &str| expected["knowable"][field] != Value::Bool(false);
    if knowable("session") {
        compare_session(expected, turn, traces)?;
    }
    compare_tools(turn, traces, knowable("arguments"), knowable("tool_errors"))?;
    if knowable("text") && !traces.is_empty() {
        let first = |field: &str| {
            traces.iter().map(|(_, trace)| &trace[field]).find(|text| !text.is_null())
        };
        let last = |field: &str| {
            traces.iter().rev().map(|(_, trace)| &trace[field]).find(|text| !text.is_null())
        };
        if turn["input_on_wire"] != Value::Bool(false) {
            same("input", &turn["input"], first("input").unwrap_or(&Value::Null))?;
        }
        same("output", &turn["output"], last("output").unwrap_or(&Value::Null))?;
    }
    if knowable("tokens") && !turn["tokens"].is_null() && !traces.is_empty() {
        for kind in ["input", "output"] {
            let counts = traces.iter().map(|(_, trace)| trace["tokens"][kind].as_u64());
            let sum: Option<u64> = counts.fold(None, |sum, count| match (sum, count) {
                (None, count) => count,
                (Some(sum), count) => Some(sum + count.unwrap_or(0)),
            });
            same(&format!("tokens.{kind}"), &turn["tokens"][kind], &Value::from(sum))?;
        }
    }
    if knowable("loop") && !turn["loop"].is_null() {
        compare_loop(turn, traces)?;
    }
    // Each attempt of a call that was made again may count, or none but the last.
    if !turn["llm_calls"].is_null() {
        let calls: u64 = traces.iter().filter_map(|(_, trace)| trace["llm_calls"].as_u64()).sum();
        same("llm_calls", &turn["llm_calls"], &Value::from(calls))?;
    }
    compare_cost(turn, traces)?;
    compare_agents(turn, traces)?;
    for (field, any) in [("error", true), ("complete", false)] {
        if turn[field].is_boolean() && !traces.is_empty() {
            let mut values = traces.iter().map(|(_, trace)| trace[field] == Value::Bool(true));
            let value = if any { values.any(|value| value) } else { values.all(|value| value) };
            same(field, &turn[field], &Value::Bool(value))?;
        }
    }
    compare_scores(turn, traces)
}

/// Compares which agents did what with which models, if that is reported.
fn compare_agents(turn: &Value, traces: &[(&Value, &Value)]) -> Result<(), String> {
    for (_, trace) in traces {
        if turn["agent"].is_string() {
            same("agent", &turn["agent"], &trace["agent"]["agent_name"])?;
        }
        for field in ["models", "sub_agents"].into_iter().filter(|field| turn[*field].is_array()) {
            same(field, &turn[field], &trace[field])?;
        }
    }
    Ok(())
}

fn compare_cost(turn: &Value, traces: &[(&Value, &Value)]) -> Result<(), String> {
    let Some(wanted) = turn["cost_usd"].as_f64() else { return Ok(()) };
    let costs = traces.iter().filter_map(|(_, trace)| trace["cost_usd"].as_f64());
    let cost: f64 = costs.sum();
    if (cost - wanted).abs() < 1e-9 {
        Ok(())
    } else {
        Err(format!("cost_usd: expected {wanted}, was {cost}"))
    }
}

fn compare_session(
    expected: &Value,
    turn: &Value,
    traces: &[(&Value, &Value)],
) -> Result<(), String> {
    let session = &expected["session"];
    let wanted = if turn["session_id"].is_string() { &turn["session_id"] } else { &session["id"] };
    let also = session["also"].as_array().cloned().unwrap_or_default();
    for (ours, _) in traces {
        let id = &ours["session_id"];
        let source = &ours["session_source"];
        if wanted.is_null() {
            same("session_source", &Value::from("trace"), source)?;
        } else if !also.contains(id) {
            same("session_id", wanted, id)?;
        }
    }
    Ok(())
}

fn compare_tools(
    turn: &Value,
    traces: &[(&Value, &Value)],
    arguments: bool,
    errors: bool,
) -> Result<(), String> {
    let mut wanted = turn["tools"].as_array().unwrap().clone();
    let mut ours: Vec<Value> =
        traces.iter().flat_map(|(_, trace)| trace["tools"].as_array().unwrap().clone()).collect();
    same("number of tools", &Value::from(wanted.len()), &Value::from(ours.len()))?;
    if turn["parallel"] == Value::Bool(true) {
        let key = |tool: &Value| (tool["name"].to_string(), tool["arguments"].to_string());
        let bare = |tool: &Value| tool["arguments_also"].to_string();
        let plain = ours
            .iter()
            .any(|tool| wanted.iter().any(|wanted| wanted["arguments_also"] == tool["arguments"]));
        ours.sort_by_key(key);
        wanted.sort_by_key(
            |tool| if plain { (tool["name"].to_string(), bare(tool)) } else { key(tool) },
        );
    }
    for (at, (wanted, ours)) in wanted.iter().zip(&ours).enumerate() {
        same(&format!("tools[{at}].name"), &wanted["name"], &ours["name"])?;
        let also = wanted.get("arguments_also").is_some_and(|also| *also == ours["arguments"]);
        if arguments && !also {
            same(&format!("tools[{at}].arguments"), &wanted["arguments"], &ours["arguments"])?;
        }
        let is_told = !wanted["error"].is_null() || wanted["error_known"] == Value::Bool(false);
        if errors && is_told {
            same(&format!("tools[{at}].error"), &wanted["error"], &ours["error"])?;
        }
    }
    Ok(())
}

fn compare_loop(turn: &Value, traces: &[(&Value, &Value)]) -> Result<(), String> {
    let loops: Vec<&Value> = traces
        .iter()
        .flat_map(|(_, trace)| trace["loops"].as_array().unwrap())
        .filter(|entry| entry["kind"] != "output_repeat")
        .collect();
    same("loop", &turn["loop"], &Value::Bool(!loops.is_empty()))?;
    let count = loops.iter().filter_map(|entry| entry["count"].as_u64()).max().unwrap_or(0);
    same("loop_count", &turn["loop_count"], &Value::from(count))
}

fn compare_scores(turn: &Value, traces: &[(&Value, &Value)]) -> Result<(), String> {
    let Some(scores) = turn["scores"].as_array() else { return Ok(()) };
    for score in scores.iter().filter(|score| score["value"].is_number()) {
        let name = score["name"].as_str().unwrap();
        let ours = traces
            .iter()
            .map(|(_, trace)| &trace["signals"][name])
            .find(|signal| !signal.is_null());
        let ours = ours.ok_or_else(|| format!("score {name} is missing"))?;
        let (wanted, value) = (score["value"].as_f64().unwrap(), ours["score"].as_f64().unwrap());
        if (wanted - value).abs() > 1e-9 || ours["source"] != "reported" {
            return Err(format!("score {name}: expected {wanted} (reported), was {ours}"));
        }
    }
    for name in turn["scores_absent"].as_array().into_iter().flatten() {
        let name = name.as_str().unwrap();
        if traces.iter().any(|(_, trace)| trace["signals"][name]["source"] == "reported") {
            return Err(format!("score {name}: expected none"));
        }
    }
    Ok(())
}

/// No tool call and no loop may come from a trace that belongs to no turn.
fn extra_traces(document: &Value, ours: &[Value]) -> Result<(), String> {
    for session in document["sessions"].as_array().unwrap() {
        for trace in session["traces"].as_array().unwrap() {
            let quiet =
                trace["tools"] == Value::Array(vec![]) && trace["loops"] == Value::Array(vec![]);
            if !ours.contains(&trace["trace_id"]) && !quiet {
                return Err(format!(
                    "trace {} belongs to no turn but has calls or loops",
                    trace["trace_id"]
                ));
            }
        }
    }
    Ok(())
}

fn same(field: &str, expected: &Value, actual: &Value) -> Result<(), String> {
    if expected == actual {
        Ok(())
    } else {
        Err(format!("{field}: expected {expected}, was {actual}"))
    }
}
