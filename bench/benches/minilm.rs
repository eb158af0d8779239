//! The cost of embedding a text in this process, and the memory of the model.
//!
//! `AGENTGAUGE_MINILM` names the model's directory, as `tests/real/minilm/fetch` prints it. One thread. Each figure is the least of
//! many rounds, so that other work on the machine does not count; memory is the growth of the resident set of the process.

use std::io::{self, Write};
use std::path::PathBuf;

use agentgauge::clock::Clock;
use agentgauge::embed::minilm::Model;

/// About ten tokens.
const SHORT: &str = "Where is my parcel, and when will it be here?";

/// Bytes of a long text. The model reads the first 256 tokens of a text.
const LONG_BYTES: usize = 2_048;

const BATCH: usize = 32;

fn main() -> io::Result<()> {
    let mut variables = std::env::vars_os();
    let directory = variables.find(|(name, _)| name == "AGENTGAUGE_MINILM");
    let directory: PathBuf = directory
        .map(|(_, path)| path.into())
        .ok_or_else(|| io::Error::other("AGENTGAUGE_MINILM must name the model's directory"))?;
    let rounds = if std::env::args().any(|argument| argument == "--test") { 1 } else { 20 };
    let mut out = io::stdout().lock();
    let before = resident("VmRSS:")?;
    let model = Model::load(&directory, 1).map_err(io::Error::other)?;
    writeln!(out, "{:<24} {:>8} MiB", "the model, loaded", (resident("VmRSS:")? - before) >> 10)?;
    let long: String = SHORT.chars().chain([' ']).cycle().take(LONG_BYTES).collect();
    for (name, text) in [("short", SHORT), ("2 KiB", long.as_str())] {
        let texts = [text; BATCH];
        for (many, texts) in [("single", &texts[..1]), ("batch of 32", &texts)] {
            let millis = least(&model, texts, rounds)? as f64 / 1e6 / texts.len() as f64;
            writeln!(out, "{:<24} {millis:>8.2} ms a text", format!("{name}, {many}"))?;
        }
    }
    writeln!(out, "{:<24} {:>8} MiB", "at most, with texts", (resident("VmHWM:")? - before) >> 10)
}

/// Nanoseconds of the quickest of this many rounds.
fn least(model: &Model, texts: &[&str], rounds: usize) -> io::Result<u64> {
    let clock = Clock::system();
    let mut least = u64::MAX;
    for _ in 0..rounds {
        let begun = clock.now();
        let vectors = model.embed(texts).map_err(io::Error::other)?;
        least = least.min(clock.now().0 - begun.0);
        if vectors.len() != texts.len() {
            return Err(io::Error::other("a text has no vector"));
        }
    }
    Ok(least)
}

/// A line of this process's status, in KiB.
fn resident(name: &str) -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"));
    value.and_then(|kib| kib.parse().ok()).ok_or_else(|| io::Error::other("no such line"))
}
