//! `replay`: runs recorded requests through the daemon's engine, offline, also as a gate.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{IsTerminal, stderr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::expect::Outcome;
use super::settings::Settings;
use super::{CliError, Process};
use crate::config::{Config, expect};
use crate::engine::expect::Suite;
use crate::engine::pipeline::{EngineOptions, Pipeline};
use crate::engine::span::Timestamp;
use crate::engine::view::{AgentName, AgentView, Document, SessionView};
use crate::ingest::decode::Decoder;
use crate::ingest::file;
use crate::reference::gather::Recorded;

/// The most sessions in a table.
const SHOWN: usize = 20;

/// Scores recorded requests.
#[derive(Args, Debug)]
pub(super) struct Replay {
    /// Recordings (.pb, .json, .jsonl; also .gz, .zst) and folders of them, in the order given
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Format of the result
    #[arg(long, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Exit with 2 if any agent's score is below the value, or absent
    #[arg(long, value_name = "SCORE=VALUE")]
    fail_under: Vec<Floor>,
    /// Check traces against an AgentCI specification; exit with 2 if a correctness or path layer fails
    #[arg(long, value_name = "FILE")]
    expect: Vec<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Output {
    /// For people
    Table,
    /// One document
    Json,
}

/// The least that a score may be, over all agents.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Floor {
    score: Score,
    least: f64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Score {
    Reliability,
    Consistency,
}

/// The error that a text is not a floor.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("write reliability=VALUE or consistency=VALUE, with a value from 0 to 1")]
pub struct NoFloor;

/// The result of a replay.
pub(super) struct Replayed {
    /// Sessions and agents, with texts.
    pub(super) document: Document,
    /// Spans and logs that were left out, by reason.
    pub(super) rejected: BTreeMap<&'static str, u64>,
    /// The options of the engine.
    pub(super) options: EngineOptions,
    /// The end of the recordings.
    pub(super) end: Timestamp,
}

/// The document, with the results of expectations if there are any.
#[derive(Serialize)]
struct Printed<'d> {
    #[serde(flatten)]
    document: &'d Document,
    #[serde(skip_serializing_if = "Option::is_none")]
    expectations: Option<&'d Outcome>,
}

impl Replay {
    pub(super) fn run(&self, process: &mut Process<'_>) -> Result<(), CliError> {
        let mut config = self.settings.load(process, &[])?;
        if !self.expect.is_empty() {
            config.expect.files.clone_from(&self.expect);
        }
        let expectations = expect::read(&config.expect.files, false)?;
        for remark in &expectations.remarks {
            let _ = writeln!(process.err, "{remark}");
        }
        let replayed = replay(&self.paths, config, expectations.suites.clone().into(), None)?;
        for (reason, count) in &replayed.rejected {
            // This is only a remark: if it cannot be written, the result is still right.
            let _ = writeln!(process.err, "left out {count} spans or logs: {reason}");
        }
        let document = &replayed.document;
        let outcome = Outcome::new(&expectations, document);
        let expected = (!expectations.suites.is_empty()).then_some(&outcome);
        match self.output {
            Output::Json => {
                let printed = Printed { document, expectations: expected };
                serde_json::to_writer_pretty(&mut process.out, &printed).map_err(CliError::Json)?;
                writeln!(process.out).map_err(CliError::Output)?;
            }
            Output::Table => {
                writeln!(process.out, "{}\n\n{}", sessions(document), agents(&document.agents))
                    .map_err(CliError::Output)?;
                if let Some(left) = document.sessions.len().checked_sub(SHOWN).filter(|n| *n > 0) {
                    let line = format!(
                        "\nThe {SHOWN} worst of {} sessions; the other {left} are in `--output json`.",
                        document.sessions.len()
                    );
                    writeln!(process.out, "{line}").map_err(CliError::Output)?;
                }
                if let Some(expected) = expected {
                    writeln!(process.out, "\n{}", expected.table(document))
                        .map_err(CliError::Output)?;
                }
            }
        }
        if !self.expect.is_empty() {
            outcome.gate()?;
        }
        self.fail_under.iter().try_for_each(|floor| floor.hold(&document.agents))
    }
}

/// Runs all recordings under `paths` through the engine, and keeps the decoded data, if asked to. Files have no arrival times, so
/// no timer fires before the end of the input.
pub(super) fn replay(
    paths: &[PathBuf],
    mut config: Config,
    expected: Arc<[Suite]>,
    mut recorded: Option<&mut Recorded>,
) -> Result<Replayed, CliError> {
    // The result shows texts, so they are kept.
    config.assemble.keep_content = true;
    config.convention.keep_texts = true;
    let files = file::list(paths)?;
    if files.is_empty() {
        let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        return Err(CliError::NoRecording { paths: paths.join(", ") });
    }
    let options = config.engine_options(expected);
    let decoder = Decoder::new(config.ingest.clone(), config.convention());
    let mut pipeline = Pipeline::new(&options, config.engine.shards);
    let mut rejected = BTreeMap::new();
    let mut end = Timestamp::default();
    let size = |path: &PathBuf| std::fs::metadata(path).map_or(0, |found| found.len());
    let bar = progress(files.iter().map(size).sum());
    let mut read = 0_u64;
    for path in files {
        bar.set_message(path.display().to_string());
        for batch in file::read(&path, &decoder)? {
            end = batch.spans.iter().map(|span| span.end).fold(end, Ord::max);
            for (reason, count) in batch.tally.rejected {
                *rejected.entry(reason).or_default() += count;
            }
            if let Some(recorded) = &mut recorded {
                recorded.spans.extend(batch.spans.iter().cloned());
                recorded.logs.extend(batch.logs.iter().cloned());
                recorded.reports.extend(batch.reports.iter().cloned());
            }
            read += (batch.spans.len() + batch.logs.len()) as u64;
            pipeline.apply(batch.spans, batch.logs, batch.reports, Timestamp::default());
        }
        bar.inc(size(&path));
    }
    bar.finish_and_clear();
    if read == 0 {
        let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        return Err(CliError::NoSpans {
            paths: paths.join(", "),
            rejected: rejected.values().sum(),
        });
    }
    // The windows of agents end at the end of the recordings.
    pipeline.finish(end);
    Ok(Replayed { document: pipeline.document(), rejected, options, end })
}

fn progress(bytes: u64) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(bytes);
    match ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes} {wide_msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

impl Floor {
    fn hold(self, agents: &[AgentView]) -> Result<(), CliError> {
        let (name, scores): (_, Vec<Option<f64>>) = match self.score {
            Score::Reliability => {
                ("reliability", agents.iter().map(|agent| agent.reliability).collect())
            }
            Score::Consistency => {
                ("consistency", agents.iter().map(|agent| agent.consistency).collect())
            }
        };
        let named = names(agents).into_iter().zip(scores);
        // An agent without a score counts as the worst.
        let worst = named.min_by(|(_, one), (_, other)| {
            let place = |score: &Option<f64>| score.unwrap_or(f64::NEG_INFINITY);
            place(one).total_cmp(&place(other))
        });
        if worst.as_ref().is_some_and(|(_, score)| score.is_some_and(|score| score >= self.least)) {
            return Ok(());
        }
        let (agent, score) = worst.unwrap_or_else(|| ("there is no agent".to_owned(), None));
        let was = score.map_or_else(|| "absent".to_owned(), |score| score.to_string());
        Err(CliError::Gate { agent, score: name, was, floor: self.least })
    }
}

impl FromStr for Floor {
    type Err = NoFloor;

    fn from_str(text: &str) -> Result<Self, NoFloor> {
        let (score, least) = text.split_once('=').ok_or(NoFloor)?;
        let score = match score.trim() {
            "reliability" => Score::Reliability,
            "consistency" => Score::Consistency,
            _ => return Err(NoFloor),
        };
        let least: f64 = least.trim().parse().map_err(|_| NoFloor)?;
        if (0.0..=1.0).contains(&least) { Ok(Self { score, least }) } else { Err(NoFloor) }
    }
}

fn sessions(document: &Document) -> Table {
    let header = ["session", "agent", "traces", "reliability", "consistency", "loops", "flagged"];
    let mut table = table(&header);
    for session in worst(&document.sessions) {
        let loops: usize = session.traces.iter().map(|trace| trace.loops.len()).sum();
        table.add_row([
            session.session_id.clone(),
            name(&session.agent),
            session.total_traces.to_string(),
            score(session.reliability),
            score(session.consistency),
            loops.to_string(),
            session.flagged.len().to_string(),
        ]);
    }
    numbers(table, 2..header.len())
}

/// All sessions in their order; if there are too many, the worst: the least reliable, then those with the most loops.
fn worst(sessions: &[SessionView]) -> Vec<&SessionView> {
    let mut worst: Vec<&SessionView> = sessions.iter().collect();
    if worst.len() > SHOWN {
        let score = |session: &SessionView| session.reliability.unwrap_or(f64::INFINITY);
        let loops = |session: &SessionView| -> usize {
            session.traces.iter().map(|trace| trace.loops.len()).sum()
        };
        worst.sort_by(|one, other| {
            score(one).total_cmp(&score(other)).then_with(|| loops(other).cmp(&loops(one)))
        });
        worst.truncate(SHOWN);
    }
    worst
}

fn agents(agents: &[AgentView]) -> Table {
    let header =
        ["agent", "sessions", "traces", "reliability", "consistency", "loops", "cost (USD)"];
    let mut table = table(&header);
    for (agent, name) in agents.iter().zip(names(agents)) {
        let loops = agent.loops.iter().map(|(kind, count)| format!("{kind} {count}"));
        table.add_row([
            name,
            agent.sessions.to_string(),
            agent.traces.to_string(),
            score(agent.reliability),
            score(agent.consistency),
            loops.collect::<Vec<_>>().join(", "),
            agent.cost_usd.map_or_else(|| "-".to_owned(), |cost| format!("{cost:.6}")),
        ]);
    }
    numbers(table, 1..header.len())
}

pub(super) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header(header);
    table
}

fn numbers(mut table: Table, columns: std::ops::Range<usize>) -> Table {
    for column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn score(score: Option<f64>) -> String {
    score.map_or_else(|| "-".to_owned(), |score| format!("{score:.4}"))
}

/// The names of agents; equal names are distinguished by their services.
fn names(agents: &[AgentView]) -> Vec<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    agents.iter().for_each(|agent| *counts.entry(name(&agent.agent)).or_default() += 1);
    let distinct = |agent: &AgentView| {
        let name = name(&agent.agent);
        match &agent.agent.service_name {
            Some(service) if counts.get(&name).is_some_and(|count| *count > 1) => {
                format!("{service}/{name}")
            }
            _ => name,
        }
    };
    agents.iter().map(distinct).collect()
}

/// The agent's name for people: `agent version (environment)`.
fn name(agent: &AgentName) -> String {
    let mut text = agent
        .agent_name
        .as_ref()
        .or(agent.service_name.as_ref())
        .cloned()
        .unwrap_or_else(|| "?".to_owned());
    for (part, open, close) in [(&agent.agent_version, " ", ""), (&agent.environment, " (", ")")] {
        if let Some(part) = part {
            text = format!("{text}{open}{part}{close}");
        }
    }
    text
}

impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let score = match self.score {
            Score::Reliability => "reliability",
            Score::Consistency => "consistency",
        };
        write!(f, "{score}={}", self.least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(reliability: Option<f64>) -> AgentView {
        AgentView { reliability, ..AgentView::default() }
    }

    #[test]
    fn a_floor_reads_back_as_written() {
        for text in ["reliability=0.7", "consistency=1", "reliability=0"] {
            assert_eq!(text.parse::<Floor>().unwrap().to_string(), text);
        }
        for text in ["reliability", "reliability=", "reliability=2", "reliability=nan", "x=0.5"] {
            assert_eq!(text.parse::<Floor>(), Err(NoFloor), "{text}");
        }
    }

    #[test]
    fn agents_of_one_name_are_told_apart_by_their_services() {
        let of = |service: &str, agent: &str| {
            let (service_name, agent_name) = (Some(service.to_owned()), Some(agent.to_owned()));
            let agent = AgentName { service_name, agent_name, ..AgentName::default() };
            AgentView { agent, ..AgentView::default() }
        };
        let agents = [of("shop", "support"), of("bank", "support"), of("shop", "refunds")];
        assert_eq!(names(&agents), ["shop/support", "bank/support", "refunds"]);
    }

    #[test]
    fn the_worst_agent_counts_and_absent_fails() {
        let floor: Floor = "reliability=0.5".parse().unwrap();
        assert!(floor.hold(&[agent(Some(0.5)), agent(Some(0.9))]).is_ok());
        assert!(floor.hold(&[agent(Some(0.4)), agent(Some(0.9))]).is_err());
        assert!(floor.hold(&[agent(None), agent(Some(0.9))]).is_err());
        assert!(floor.hold(&[]).is_err());
    }
}
