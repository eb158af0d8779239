//! Measures the cost of durability, and how long a start with the replay of a log takes.
//!
//! In every repeat the daemon gets the same pass in each mode, in a separate directory. The daemon of mode `fsync` is killed when
//! it has scored everything, and started again over its log; there is no snapshot that shortens the start.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;

use crate::pass::Material;
use crate::report::Spread;
use crate::{Bench, BenchError, Case, Passes, Sample, Server, failed};

/// The modes of durability, as in `store.durability`.
const MODES: [&str; 3] = ["memory", "flush", "fsync"];

/// The bytes of log before a snapshot: more than any pass has, so there is none.
const NO_SNAPSHOT: &str = "1099511627776";

/// Bytes in a GiB.
const GIB: f64 = (1_u64 << 30) as f64;

/// A directory for one daemon, which is removed when it is dropped.
struct Home(PathBuf);

/// The figures of a start over a log.
struct Start {
    log_bytes: u64,
    seconds: f64,
}

impl Bench<'_> {
    /// Measures a case in each mode, and a start after `fsync`.
    pub(super) fn durable(&mut self, case: Case, store: &Path) -> Result<(), BenchError> {
        let mut material = Material::new(&case);
        let mut samples: [Vec<Sample>; MODES.len()] = Default::default();
        let mut starts = Vec::new();
        for repeat in 0..self.plan.repeats {
            let passes = self.passes(&mut material, self.plan.spans)?;
            for turn in 0..MODES.len() {
                let which = (turn + repeat) % MODES.len();
                let home = Home::new(store).map_err(failed)?;
                let environment = home.environment(MODES[which]);
                let sending = self.sending(case);
                let sample = self.measure(Server::Daemon, &environment, sending, &passes)?;
                let (mode, per_span) = (MODES[which], sample.micros_per_span());
                let said = format_args!("{mode}: {per_span:.3} us/span");
                self.say(case, repeat + 1, said);
                samples[which].push(sample);
                if MODES[which] == "fsync" {
                    starts.push(self.start_over(&home, &passes)?);
                }
            }
        }
        self.report.add_figures(case, "the daemon by durability", figures(&samples, &starts));
        Ok(())
    }

    /// Starts the daemon over the log of the previous one; fails unless all of it is recovered.
    fn start_over(&self, home: &Home, passes: &Passes) -> Result<Start, BenchError> {
        let log_bytes = home.bytes().map_err(failed)?;
        let environment = home.environment("fsync");
        let running = Server::Daemon.start_with(&self.cores, &environment).map_err(failed)?;
        let page = running.metrics().map_err(failed)?;
        let number = |series: &str| {
            let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
            line.and_then(|value| value.parse::<f64>().ok())
        };
        let records = number("agentgauge_store_recovered{what=\"records\"}");
        let sent = passes.warm.messages.len() + passes.measured.messages.len();
        match (records, number("agentgauge_store_recovery_seconds")) {
            (Some(records), Some(seconds)) if (records - sent as f64).abs() < 0.5 => {
                Ok(Start { log_bytes, seconds })
            }
            (records, _) => {
                Err(BenchError::Amiss(format!("{records:?} of {sent} requests were recovered")))
            }
        }
    }
}

fn figures(samples: &[Vec<Sample>; 3], starts: &[Start]) -> Vec<(&'static str, Spread)> {
    let [memory, flush, fsync] = samples;
    let each = |of: &[Sample], figure: fn(&Sample) -> f64| Spread::of(of.iter().map(figure));
    let over = |of: &[Sample], figure: fn(&Sample) -> f64| {
        Spread::of(of.iter().zip(memory).map(|(one, base)| figure(one) / figure(base)))
    };
    let cpu: fn(&Sample) -> f64 = Sample::micros_per_span;
    let rate: fn(&Sample) -> f64 = Sample::spans_per_second;
    vec![
        ("memory, CPU us/span", each(memory, cpu)),
        ("flush, CPU us/span", each(flush, cpu)),
        ("fsync, CPU us/span", each(fsync, cpu)),
        ("flush, CPU x memory", over(flush, cpu)),
        ("fsync, CPU x memory", over(fsync, cpu)),
        ("memory, spans/s", each(memory, rate)),
        ("flush, spans/s", each(flush, rate)),
        ("fsync, spans/s", each(fsync, rate)),
        ("fsync, spans/s x memory", over(fsync, rate)),
        ("log, GiB", Spread::of(starts.iter().map(|start| start.log_bytes as f64 / GIB))),
        ("a start over it, s", Spread::of(starts.iter().map(|start| start.seconds))),
        (
            "a start, s/GiB",
            Spread::of(starts.iter().map(|start| start.seconds * GIB / start.log_bytes as f64)),
        ),
    ]
}

impl Home {
    fn new(store: &Path) -> io::Result<Self> {
        let path = store.join(format!("agentgauge-bench-{}", process::id()));
        // An earlier bench that was ended may have left the directory.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    fn environment(&self, mode: &str) -> Vec<(&'static str, String)> {
        vec![
            ("AGENTGAUGE__STORE__DURABILITY", mode.to_owned()),
            ("AGENTGAUGE__STORE__DIRECTORY", self.0.to_string_lossy().into_owned()),
            ("AGENTGAUGE__STORE__SNAPSHOT_BYTES", NO_SNAPSHOT.to_owned()),
            ("AGENTGAUGE__STORE__SNAPSHOT_SPANS", "1000000000000".to_owned()),
            ("AGENTGAUGE__STORE__MAX_BYTES", NO_SNAPSHOT.to_owned()),
        ]
    }

    fn bytes(&self) -> io::Result<u64> {
        let files = fs::read_dir(&self.0)?;
        files.map(|file| Ok(file?.metadata()?.len())).sum()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // A directory that cannot be removed does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}
