//! Measures a process with the kernel's figures, and the daemon with its own metrics.

use std::collections::BTreeMap;
use std::fs;
use std::io;

/// The processor time of a process, by thread; for ended threads, the last value that was read.
#[derive(Debug)]
pub(super) struct Cpu {
    process: u32,
    // The nanoseconds on a core, by thread.
    threads: BTreeMap<u32, u64>,
}

impl Cpu {
    /// Starts watching a process.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not have `/proc/PID/task/*/schedstat`.
    pub(super) fn watch(process: u32) -> io::Result<Self> {
        let mut cpu = Self { process, threads: BTreeMap::new() };
        cpu.nanos()?;
        Ok(cpu)
    }

    /// Nanoseconds on a core since the process began.
    pub(super) fn nanos(&mut self) -> io::Result<u64> {
        for entry in fs::read_dir(format!("/proc/{}/task", self.process))? {
            let entry = entry?;
            let thread = entry.file_name().to_str().and_then(|name| name.parse().ok());
            // A thread may have ended since it was listed.
            let Ok(text) = fs::read_to_string(entry.path().join("schedstat")) else { continue };
            if let (Some(thread), Some(nanos)) = (thread, on_core(&text)) {
                self.threads.insert(thread, nanos);
            }
        }
        match self.threads.values().sum() {
            0 => Err(io::Error::other("the kernel keeps no schedstat of its threads")),
            nanos => Ok(nanos),
        }
    }
}

/// Nanoseconds for which the present threads of a process were ready and waited for a core; zero if the kernel does not report it.
/// The kernel counts a wait when it is over.
pub(super) fn waited_nanos(process: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let waited = threads
        .filter_map(|thread| number(1, &fs::read_to_string(thread.path().join("schedstat")).ok()?));
    waited.sum()
}

/// The first of the three numbers of a schedstat.
fn on_core(text: &str) -> Option<u64> {
    number(0, text)
}

fn number(at: usize, text: &str) -> Option<u64> {
    text.split_whitespace().nth(at)?.parse().ok()
}

/// The largest resident set that a process had, in bytes.
///
/// # Errors
///
/// Fails if the kernel does not have `VmHWM` in `/proc/PID/status`.
pub(super) fn peak_resident_bytes(process: u32) -> io::Result<u64> {
    of_status(process, "VmHWM:")
}

/// The resident set of a process, in bytes.
///
/// # Errors
///
/// Fails if the kernel does not have `VmRSS` in `/proc/PID/status`.
pub(super) fn resident_bytes(process: u32) -> io::Result<u64> {
    of_status(process, "VmRSS:")
}

fn of_status(process: u32, name: &str) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    bytes(&status, name).ok_or_else(|| io::Error::other(format!("no {name} in its status")))
}

fn bytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The daemon's account of its input, from its page of metrics.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Account {
    /// Spans that came in.
    pub(super) received: u64,
    /// Traces whose risk was scored.
    pub(super) scored: u64,
    /// Requests that were refused whole.
    pub(super) refused: u64,
    /// Counters that should be zero and are not, by metric and labels.
    pub(super) faults: BTreeMap<String, u64>,
}

/// Counters that stay at zero if every span was new, complete, in time and within bounds.
const FAULTS: &[&str] = &[
    "agentgauge_duplicates_total",
    "agentgauge_spans_rejected_total",
    "agentgauge_spans_repaired_total",
    "agentgauge_late_spans_total",
    "agentgauge_traces_ignored_total",
    "agentgauge_limits_reached_total",
    "agentgauge_label_values_limited_total",
    REFUSED,
];

const REFUSED: &str = "agentgauge_requests_refused_total";

impl Account {
    /// Reads the account from a page of metrics.
    pub(super) fn read(page: &str) -> Self {
        let mut account = Self::default();
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, count)) = line.rsplit_once(' ') else { continue };
            let Ok(count) = count.parse::<u64>() else { continue };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            if name == "agentgauge_spans_received_total" {
                account.received += count;
            } else if name == "agentgauge_trace_evaluations_total" {
                // A trace that could not be scored is `skipped`.
                let risk = labels.contains("signal=\"trace_risk\"");
                let scored = risk && !labels.contains("verdict=\"skipped\"");
                account.scored += if scored { count } else { 0 };
            } else if count > 0 && FAULTS.contains(&name) {
                account.refused += if name == REFUSED { count } else { 0 };
                account.faults.insert(series.to_owned(), count);
            }
        }
        account
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_tells_what_was_received_scored_and_wrong() {
        let page = "# HELP x y\n\
            agentgauge_spans_received_total{encoding=\"protobuf\",transport=\"grpc\"} 7\n\
            agentgauge_spans_received_total{encoding=\"json\",transport=\"http\"} 2\n\
            agentgauge_trace_evaluations_total{signal=\"trace_risk\",verdict=\"pass\"} 3\n\
            agentgauge_trace_evaluations_total{signal=\"trace_risk\",verdict=\"fail\"} 1\n\
            agentgauge_trace_evaluations_total{signal=\"trace_risk\",verdict=\"skipped\"} 9\n\
            agentgauge_trace_evaluations_total{signal=\"error\",verdict=\"pass\"} 5\n\
            agentgauge_duplicates_total{what=\"spans\"} 1\n\
            agentgauge_requests_refused_total{reason=\"overloaded\"} 0\n";
        let account = Account::read(page);
        assert_eq!((account.received, account.scored), (9, 4));
        let duplicates = "agentgauge_duplicates_total{what=\"spans\"}".to_owned();
        assert_eq!(account.faults, BTreeMap::from([(duplicates, 1)]));
    }

    #[test]
    fn numbers_of_the_kernel_are_read() {
        assert_eq!(on_core("38870662 39967204 112\n"), Some(38_870_662));
        assert_eq!(number(1, "38870662 39967204 112\n"), Some(39_967_204));
        assert_eq!(on_core(""), None);
        let status = "Name: x\nVmHWM:\t  12 kB\nVmRSS:\t 4 kB\n";
        assert_eq!((bytes(status, "VmHWM:"), bytes(status, "VmRSS:")), (Some(12_288), Some(4_096)));
    }
}
