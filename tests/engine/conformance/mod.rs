//! Every case of the vectors that the reference systems' own code produced, against the slow model (which has to meet
//! the document's rounding) and against the engine's incremental form (which has to be within 1e-9 before rounding).
//!
//! Compared are the fields that a case names, and no others; a case of a shape that is not known here has failed.
//!
//! `AGENTGAUGE_VECTORS` names a further directory of vectors, which must exist if it is named. Cases that name a recording of the
//! reference's are in `fixtures`; one that neither this repository nor `AGENTGAUGE_FIXTURES` has is counted as absent.

mod aci;
mod fixtures;
mod hal;
mod pp;

use std::collections::BTreeMap;
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};

use serde_json::Value;

type Check = fn(&Value, f64) -> Result<(), String>;

/// How a family is checked; each source has a file.
fn check_of(family: &str) -> Option<Check> {
    aci::check_of(family).or_else(|| hal::check_of(family)).or_else(|| pp::check_of(family))
}

#[test]
fn conformance_to_every_vector() {
    let mut passed: BTreeMap<String, usize> = BTreeMap::new();
    let (mut failed, mut absent) = (Vec::new(), Vec::new());
    for path in files() {
        let file: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let family = file["family"].as_str().unwrap();
        let check = check_of(family).unwrap_or(unknown_family);
        for case in file["cases"].as_array().unwrap() {
            if case["input"]["fixture"].is_string() && fixtures::of(case).is_empty() {
                absent.push(format!("{family}/{}", case["name"]));
                continue;
            }
            let tolerance =
                case["tolerance"].as_f64().or_else(|| file["tolerance"].as_f64()).unwrap();
            match checked(check, case, tolerance) {
                Ok(()) => *passed.entry(family.to_owned()).or_default() += 1,
                Err(why) => failed.push(format!("{family}/{}: {why}", case["name"])),
            }
        }
    }
    for (family, count) in &passed {
        println!("{family}: {count} cases passed");
    }
    for case in absent {
        println!("{case}: nobody has the recording that it names");
    }
    assert!(failed.is_empty(), "{} cases failed:\n{}", failed.len(), failed.join("\n"));
    assert!(passed.len() >= 8, "families are missing: {passed:?}");
}

/// The result of a check of a case; it panics if it does not find what it looks for.
fn checked(check: Check, case: &Value, tolerance: f64) -> Result<(), String> {
    panic::catch_unwind(AssertUnwindSafe(|| check(case, tolerance)))
        .unwrap_or_else(|_| Err("a shape that is not known; the panic above says where".to_owned()))
}

fn unknown_family(_: &Value, _: f64) -> Result<(), String> {
    Err("a family that is not known".to_owned())
}

#[test]
fn a_shape_that_is_not_known_is_a_failed_case() {
    let case = serde_json::json!({"input": {"rewards": "many"}, "expected": {"ratio": 1.0}});
    assert!(checked(check_of("hal-robustness").unwrap(), &case, 1e-9).is_err());
    let ours = serde_json::json!({"a": 1.0, "b": 2.0});
    assert_eq!(same("case", &serde_json::json!({"a": 1.0}), &ours, 1e-9), Ok(()));
    assert!(same("case", &serde_json::json!({"c": 1.0}), &ours, 1e-9).is_err());
}

fn files() -> Vec<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/vectors");
    let further = std::env::vars_os()
        .find(|(name, _)| name == "AGENTGAUGE_VECTORS")
        .map(|(_, path)| path.into());
    let mut files = Vec::new();
    for folder in [Some(own), further].into_iter().flatten() {
        let entries =
            fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let paths = entries.map(|entry| entry.unwrap().path());
        files.extend(
            paths.filter(|path| path.extension().is_some_and(|extension| extension == "json")),
        );
    }
    files.sort();
    files
}

/// Compares a value with what is expected of it; numbers within the tolerance, relative above 1, and of an object the fields that are
/// expected.
fn same(what: &str, expected: &Value, actual: &Value, tolerance: f64) -> Result<(), String> {
    let differ = || Err(format!("{what}: expected {expected}, was {actual}"));
    match (expected, actual) {
        (Value::Number(x), Value::Number(y)) => {
            let (x, y) = (x.as_f64().unwrap(), y.as_f64().unwrap());
            if (x - y).abs() <= tolerance * x.abs().max(1.0) { Ok(()) } else { differ() }
        }
        (Value::Array(x), Value::Array(y)) if x.len() == y.len() => x
            .iter()
            .zip(y)
            .enumerate()
            .try_for_each(|(at, (x, y))| same(&format!("{what}[{at}]"), x, y, tolerance)),
        (Value::Object(x), Value::Object(y)) => x.iter().try_for_each(|(name, x)| {
            let y = y.get(name).unwrap_or(&Value::Null);
            same(&format!("{what}.{name}"), x, y, tolerance)
        }),
        _ if expected == actual => Ok(()),
        _ => differ(),
    }
}
