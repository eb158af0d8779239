//! What was measured, as a table and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::{Case, Cores, Plan, Sample, Server, Workload, compression_name};

/// All figures of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// Of agentgauge.
    version: &'static str,
    /// Whether this is an optimised build; figures of others say nothing.
    optimised: bool,
    /// As the kernel calls the processor; absent where it does not tell.
    processor: Option<String>,
    /// Empty lists where nothing was pinned.
    cores: Cores,
    /// What could not be done as asked.
    notes: Vec<String>,
    repeats: usize,
    connections: usize,
    streams_per_connection: usize,
    cases: Vec<OfCase>,
}

/// The figures of one case.
#[derive(Clone, Debug, Serialize)]
struct OfCase {
    workload: Workload,
    compression: &'static str,
    batch_spans: usize,
    frame_bytes: usize,
    bytes_per_span: f64,
    wire_bytes_per_span: f64,
    servers: Vec<OfServer>,
}

/// The figures of one server in one case.
#[derive(Clone, Debug, Serialize)]
struct OfServer {
    server: Server,
    allocator: &'static str,
    cpu_micros_per_span: Spread,
    /// Over the floor's of the same repeat.
    times_floor: Option<Spread>,
    /// Over the stock server's of the same repeat: the one under the system's allocator if it was measured.
    times_stock: Option<Spread>,
    /// Bytes on the wire over processor seconds, in millions.
    wire_megabytes_per_cpu_second: Spread,
    /// While requests were sent; the daemon goes on scoring afterwards.
    spans_per_second: Spread,
    /// Share of its cores that the server was busy for while requests were sent; the generator was the limit if it is low.
    cores_busy: Spread,
    peak_resident_megabytes: Spread,
}

/// Repeats of one figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
    repeats: Vec<f64>,
}

impl Report {
    /// Without any figures yet; `note` is what could not be done as asked.
    pub(super) fn new(plan: &Plan, cores: &Cores, note: Option<String>) -> Self {
        let optimised = !cfg!(debug_assertions);
        let slow = (!optimised).then(|| "not an optimised build: figures say nothing".to_owned());
        Self {
            version: env!("CARGO_PKG_VERSION"),
            optimised,
            processor: processor(),
            cores: cores.clone(),
            notes: note.into_iter().chain(slow).collect(),
            repeats: plan.repeats,
            connections: plan.connections,
            streams_per_connection: plan.streams,
            cases: Vec::new(),
        }
    }

    /// Adds the figures of a case; `bytes` are those of a span, plain and on the wire.
    pub(super) fn add(
        &mut self,
        case: Case,
        (bytes_per_span, wire_bytes_per_span): (f64, f64),
        samples: &BTreeMap<Server, Vec<Sample>>,
    ) {
        let micros = |server: &Server| -> Option<Vec<f64>> {
            Some(samples.get(server)?.iter().map(Sample::micros_per_span).collect())
        };
        let floor = micros(&Server::Floor);
        let stock = micros(&Server::Stock).or_else(|| micros(&Server::StockMimalloc));
        let servers = samples.iter().map(|(server, samples)| {
            let each = |figure: fn(&Sample) -> f64| Spread::of(samples.iter().map(figure));
            let over = |base: &Option<Vec<f64>>| {
                let pairs = samples.iter().zip(base.as_ref()?);
                Some(Spread::of(pairs.map(|(sample, base)| sample.micros_per_span() / base)))
            };
            OfServer {
                server: *server,
                allocator: server.allocator(),
                cpu_micros_per_span: each(Sample::micros_per_span),
                times_floor: over(&floor),
                times_stock: over(&stock),
                wire_megabytes_per_cpu_second: each(|sample| {
                    sample.wire_bytes as f64 * 1e3 / sample.cpu_nanos as f64
                }),
                spans_per_second: each(|sample| {
                    sample.spans as f64 * 1e9 / sample.wall_nanos as f64
                }),
                cores_busy: each(|sample| sample.busy_nanos as f64 / sample.wall_nanos as f64),
                peak_resident_megabytes: each(|sample| sample.peak_bytes as f64 / 1e6),
            }
        });
        self.cases.push(OfCase {
            workload: case.workload,
            compression: compression_name(case.compression),
            batch_spans: case.batch,
            frame_bytes: case.frame,
            bytes_per_span,
            wire_bytes_per_span,
            servers: servers.collect(),
        });
    }

    /// The line above the tables: where and how this was measured.
    fn caption(&self) -> String {
        let list =
            |cores: &[usize]| cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let pinned = if self.cores.server.is_empty() {
            "NOT PINNED".to_owned()
        } else {
            format!(
                "server on core {}, generator on {}",
                list(&self.cores.server),
                list(&self.cores.generator)
            )
        };
        format!(
            "agentgauge {} on {}; {pinned}; {} connections of {} streams; medians [least-most] of {} repeats.\n\
             floor and stock are tonic's server in one thread, with the daemon's frame and window sizes; stock is under the \
             system's allocator,\nall others under mimalloc. CPU is of all threads, by schedstat; the daemon's ends when all \
             traces are scored.",
            self.version,
            self.processor.as_deref().unwrap_or("an unknown processor"),
            self.connections,
            self.streams_per_connection,
            self.repeats,
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.caption())?;
        for note in &self.notes {
            writeln!(f, "NOTE: {note}")?;
        }
        for case in &self.cases {
            let workload = match case.workload {
                Workload::Lean => "lean",
                Workload::Content => "content",
            };
            writeln!(
                f,
                "\n{workload}, {}, {} a batch, {} KiB frames, {:.0} bytes a span, {:.0} on the wire",
                match case.compression {
                    "none" => "not compressed",
                    compression => compression,
                },
                if case.batch_spans == 1 {
                    "1 span".to_owned()
                } else {
                    format!("{} spans", case.batch_spans)
                },
                case.frame_bytes >> 10,
                case.bytes_per_span,
                case.wire_bytes_per_span,
            )?;
            writeln!(f, "{}", table(case))?;
        }
        Ok(())
    }
}

fn table(case: &OfCase) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "server",
        "CPU us/span",
        "x floor",
        "x stock",
        "MB/CPU-s",
        "spans/s",
        "busy",
        "peak MB",
    ]);
    for of in &case.servers {
        let ratio = |spread: &Option<Spread>| {
            spread.as_ref().map_or_else(|| "-".to_owned(), |spread| spread.show(2))
        };
        table.add_row([
            of.server.name().to_owned(),
            of.cpu_micros_per_span.show(3),
            ratio(&of.times_floor),
            ratio(&of.times_stock),
            format!("{:.0}", of.wire_megabytes_per_cpu_second.median),
            format!("{:.0}", of.spans_per_second.median),
            format!("{:.2}", of.cores_busy.median),
            of.peak_resident_megabytes.show(0),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

impl Spread {
    fn of(figures: impl Iterator<Item = f64>) -> Self {
        let repeats: Vec<f64> = figures.collect();
        let mut sorted = repeats.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        // The mean of the two in the middle, which are one if their number is odd.
        let upper = sorted.len() / 2;
        let median = f64::midpoint(at(sorted.len().saturating_sub(1) / 2), at(upper));
        Self { median, min: at(0), max: at(sorted.len().saturating_sub(1)), repeats }
    }

    fn show(&self, decimals: usize) -> String {
        let Self { median, min, max, .. } = self;
        format!("{median:.decimals$} [{min:.decimals$}-{max:.decimals$}]")
    }
}

/// What the kernel calls the processor.
fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("model name"))?;
    Some(line.trim_start_matches([' ', '\t', ':']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingest::Compression;

    fn sample(cpu_nanos: u64) -> Sample {
        Sample {
            spans: 1_000,
            wire_bytes: 500_000,
            cpu_nanos,
            wall_nanos: 2_000_000,
            busy_nanos: 1_000_000,
            peak_bytes: 50_000_000,
        }
    }

    fn report() -> Report {
        let case = Case {
            workload: Workload::Lean,
            compression: Compression::None,
            batch: 512,
            frame: 16_384,
        };
        let plan = Plan {
            cases: vec![case],
            servers: Vec::new(),
            repeats: 3,
            spans: 1_000,
            connections: 2,
            streams: 4,
            cores: None,
        };
        let mut report = Report::new(&plan, &Cores::default(), None);
        let samples = BTreeMap::from([
            (Server::Floor, vec![sample(100_000), sample(200_000), sample(100_000)]),
            (Server::Daemon, vec![sample(600_000), sample(800_000), sample(700_000)]),
        ]);
        report.add(case, (500.0, 500.0), &samples);
        report
    }

    #[test]
    fn ratios_are_of_the_same_repeat() {
        let report = report();
        let daemon = &report.cases[0].servers[1];
        assert_eq!(daemon.cpu_micros_per_span.repeats, [0.6, 0.8, 0.7]);
        assert_eq!(daemon.times_floor.as_ref().unwrap().show(2), "6.00 [4.00-7.00]");
        assert_eq!(daemon.times_stock, None);
    }

    #[test]
    fn an_unpinned_run_is_marked() {
        let text = report().to_string();
        assert!(text.contains("NOT PINNED"), "{text}");
        assert!(text.contains("6.00 [4.00-7.00]"), "{text}");
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["cases"][0]["servers"][1]["server"], "daemon");
    }

    #[test]
    fn the_median_of_two_is_their_mean() {
        assert!((Spread::of([1.0, 4.0].into_iter()).median - 2.5).abs() < 1e-12);
    }
}
