//! Files of expectations: AgentCI's specification, and the baselines in the folder that it names.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::engine::expect::{Baseline, Judgements, Spec, SpecError, Suite};
use crate::files;

/// Expectations about traces.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExpectOptions {
    /// AgentCI's specifications, relative to the working directory.
    pub files: Vec<PathBuf>,
}

/// Why expectations cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ExpectError {
    /// A file or folder cannot be read.
    #[error("failed to read {path:?}, which `expect.files` leads to")]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is no valid specification.
    #[error("{}", path.display())]
    Spec {
        /// The file.
        path: PathBuf,
        /// The line, the key and what is wrong.
        source: SpecError,
    },
}

/// The expectations that were read, and remarks about what has no effect.
#[derive(Clone, Debug, Default)]
pub struct Expectations {
    /// The specifications with their baselines.
    pub suites: Vec<Suite>,
    /// What the files ask for and has no effect, in plain sentences that begin with the file.
    pub remarks: Vec<String>,
}

/// Reads specifications and their baselines; the folders of baselines are relative to the specification. `judged` says whether
/// there is a judge.
///
/// # Errors
///
/// Fails if a file cannot be read or is no valid specification. An invalid baseline is left out with a remark; there
/// may be no baselines.
pub fn read(paths: &[PathBuf], judged: bool) -> Result<Expectations, ExpectError> {
    let mut expectations = Expectations::default();
    for path in paths {
        let (suite, mut remarks) = one(path)?;
        let rubrics = suite.spec().rubrics_without(&Judgements::new());
        if rubrics > 0 && !judged {
            remarks.push(format!("{rubrics} rubrics are not judged: there is no judge"));
        }
        expectations.suites.push(suite);
        let remarks = remarks.into_iter().map(|remark| format!("{}: {remark}", path.display()));
        expectations.remarks.extend(remarks);
    }
    Ok(expectations)
}

fn one(path: &Path) -> Result<(Suite, Vec<String>), ExpectError> {
    let spec = Spec::parse(&text(path)?)
        .map_err(|source| ExpectError::Spec { path: path.to_owned(), source })?;
    let mut remarks = spec.not_supported();
    let folder = path.with_file_name(&spec.baseline_dir);
    // The agent's own baselines come last: of two baselines of a query the last one counts.
    let mut files = json_files(&folder)?;
    files.extend(json_files(&folder.join(&spec.agent))?);
    let mut baselines = Vec::new();
    for file in files {
        match baseline(&text(&file)?) {
            Ok(baseline) => baselines.push(baseline),
            Err(why) => remarks.push(format!("{} is not a baseline: {why}", file.display())),
        }
    }
    Ok((Suite::new(spec, baselines), remarks))
}

fn baseline(text: &str) -> Result<(String, Baseline), String> {
    let file: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    Baseline::read(&file).map_err(|error| error.to_string())
}

/// The JSON files of a folder by name; none if there is no such folder.
fn json_files(folder: &Path) -> Result<Vec<PathBuf>, ExpectError> {
    let read = |source| ExpectError::Read { path: folder.to_owned(), source };
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(read)?,
    };
    let paths: Result<Vec<PathBuf>, io::Error> =
        entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut paths = paths.map_err(read)?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    Ok(paths)
}

fn text(path: &Path) -> Result<String, ExpectError> {
    files::read_text(path).map_err(|source| ExpectError::Read { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn baselines_are_read_from_both_layouts() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("good/mine")).unwrap();
        fs::create_dir_all(at("good/other")).unwrap();
        let file = |tool: &str| {
            format!(
                r#"{{"query": "q", "trace": {{"spans": [{{"tool_calls": [{{"tool_name": "{tool}"}}]}}]}}}}"#
            )
        };
        fs::write(at("good/flat.json"), file("flat")).unwrap();
        fs::write(at("good/talk.json"), r#"{"schema_version": 2}"#).unwrap();
        fs::write(at("good/mine/v1.json"), file("own")).unwrap();
        fs::write(at("good/other/v1.json"), file("other")).unwrap();
        let spec = "agent: mine\nbaseline_dir: good\nrunner: a:b\nqueries: [{query: q, path: {match_mode: strict}}]\n";
        fs::write(at("spec.yaml"), spec).unwrap();
        let Expectations { suites, remarks } = read(&[at("spec.yaml")], false).unwrap();
        let [suite] = suites.as_slice() else { panic!("{} suites", suites.len()) };
        assert!(remarks.iter().all(|remark| remark.contains("spec.yaml: ")), "{remarks:?}");
        assert_eq!(remarks.len(), 2, "{remarks:?}");
        assert!(
            remarks[1].contains("talk.json is not a baseline: its schema_version"),
            "{remarks:?}"
        );
        let result =
            suite.evaluate(&suite.spec().queries[0], &Default::default(), &Judgements::new());
        assert!(result.path.problems[0].contains("the baseline's own"), "{result:?}");
    }

    #[test]
    fn a_file_without_baselines_will_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("spec.yaml");
        fs::write(&path, "agent: a\nqueries: [{query: q}]\n").unwrap();
        assert!(read(&[path], false).unwrap().remarks.is_empty());
        let none = [folder.path().join("none.yaml")];
        assert!(matches!(read(&none, false), Err(ExpectError::Read { .. })));
    }
}
