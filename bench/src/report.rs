//! The report of a run, as tables and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::{Case, Cores, Plan, Sample, Server, Workload, compression_name};

/// All figures of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// The version of agentgauge.
    version: &'static str,
    /// Whether this is an optimised build; figures of other builds mean nothing.
    optimised: bool,
    /// The kernel's name of the processor; absent if it does not report one.
    processor: Option<String>,
    /// The cores of generator and servers; empty lists if nothing was pinned.
    cores: Cores,
    /// Notes on what could not be done as requested.
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
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_per_span: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wire_bytes_per_span: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    servers: Vec<OfServer>,
    /// The subject of the figures.
    #[serde(skip_serializing_if = "str::is_empty")]
    about: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    figures: Vec<Figure>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    scaling: Vec<OnCores>,
}

/// One figure under its own name.
#[derive(Clone, Debug, Serialize)]
struct Figure {
    name: &'static str,
    #[serde(flatten)]
    spread: Spread,
}

/// The daemon's figures on some cores.
#[derive(Clone, Debug, Serialize)]
pub(super) struct OnCores {
    pub(super) cores: Cores,
    pub(super) spans_per_second: Spread,
    /// The rate over that on one core, in the same repeat.
    pub(super) times_one_core: Spread,
    /// The number of cores on which the daemon was busy while requests were sent.
    pub(super) cores_busy: Spread,
    /// The number of cores on which the generator was busy.
    pub(super) generator_cores: Spread,
    pub(super) cpu_micros_per_span: Spread,
}

/// The figures of one server in one case.
#[derive(Clone, Debug, Serialize)]
struct OfServer {
    server: Server,
    allocator: &'static str,
    cpu_micros_per_span: Spread,
    /// Its processor time per span over that of the floor, in the same repeat.
    times_floor: Option<Spread>,
    /// Its processor time per span over that of the stock server, in the same repeat: under the system's allocator, if that was measured.
    times_stock: Option<Spread>,
    /// Its processor time per span over that of the Collector, in the same repeat.
    times_collector: Option<Spread>,
    /// Bytes on the wire over processor seconds, in millions.
    wire_megabytes_per_cpu_second: Spread,
    /// The rate while requests were sent; the daemon continues scoring afterwards.
    spans_per_second: Spread,
    /// The number of cores on which the server was busy while requests were sent. Below one, it waited for the generator, or for
    /// other processes on its core.
    cores_busy: Spread,
    peak_resident_megabytes: Spread,
}

/// The values of one figure over all repeats.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Spread {
    median: f64,
    min: f64,
    max: f64,
    repeats: Vec<f64>,
}

impl Report {
    /// A report without figures; `note` is about what could not be done as requested.
    pub(super) fn new(plan: &Plan, cores: &Cores, note: Option<String>) -> Self {
        let optimised = !cfg!(debug_assertions);
        let slow = (!optimised).then(|| "not an optimised build: figures say nothing".to_owned());
        let is_measured = |server| plan.servers.contains(&server);
        let other_stock = is_measured(Server::StockMimalloc) && !is_measured(Server::Stock);
        let other_stock = other_stock.then(|| "x stock is over stock-mimalloc".to_owned());
        Self {
            version: env!("CARGO_PKG_VERSION"),
            optimised,
            processor: processor(),
            cores: cores.clone(),
            notes: note.into_iter().chain(slow).chain(other_stock).collect(),
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
        bytes_per_span: f64,
        wire_bytes_per_span: f64,
        samples: &BTreeMap<Server, Vec<Sample>>,
    ) {
        let micros = |server: &Server| -> Option<Vec<f64>> {
            Some(samples.get(server)?.iter().map(Sample::micros_per_span).collect())
        };
        let floor = micros(&Server::Floor);
        let stock = micros(&Server::Stock).or_else(|| micros(&Server::StockMimalloc));
        let collector = micros(&Server::Collector);
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
                times_collector: over(&collector),
                wire_megabytes_per_cpu_second: each(|sample| {
                    sample.wire_bytes as f64 * 1e3 / sample.cpu_nanos as f64
                }),
                spans_per_second: each(Sample::spans_per_second),
                cores_busy: each(Sample::cores_busy),
                peak_resident_megabytes: each(|sample| sample.peak_bytes as f64 / 1e6),
            }
        });
        self.cases.push(OfCase {
            bytes_per_span: Some(bytes_per_span),
            wire_bytes_per_span: Some(wire_bytes_per_span),
            servers: servers.collect(),
            ..OfCase::new(case)
        });
    }

    /// Adds figures of the daemon alone, and their subject.
    pub(super) fn add_figures(
        &mut self,
        case: Case,
        about: &'static str,
        figures: Vec<(&'static str, Spread)>,
    ) {
        let figures = figures.into_iter().map(|(name, spread)| Figure { name, spread });
        self.cases.push(OfCase { about, figures: figures.collect(), ..OfCase::new(case) });
    }

    /// Adds how the daemon scales in a case, on each division of the cores.
    pub(super) fn add_scaling(&mut self, case: Case, scaling: Vec<OnCores>) {
        self.cases.push(OfCase { scaling, ..OfCase::new(case) });
    }

    /// The line above the tables, which says where and how this was measured.
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
             system's allocator,\nthe Collector under Go's, all others under mimalloc. CPU is of all threads, by schedstat; the daemon's ends when all \
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
            write!(f, "\n{case}\n\n")?;
            if !case.servers.is_empty() {
                writeln!(f, "{}", case.costs())?;
            }
            if !case.figures.is_empty() {
                writeln!(f, "{}", case.figures())?;
            }
            if !case.scaling.is_empty() {
                writeln!(f, "{}", case.scaling())?;
            }
        }
        Ok(())
    }
}

impl OfCase {
    fn new(case: Case) -> Self {
        Self {
            workload: case.workload,
            compression: compression_name(case.compression),
            batch_spans: case.batch,
            frame_bytes: case.frame,
            bytes_per_span: None,
            wire_bytes_per_span: None,
            servers: Vec::new(),
            about: "",
            figures: Vec::new(),
            scaling: Vec::new(),
        }
    }

    fn costs(&self) -> Table {
        let ratio = |spread: &Option<Spread>| {
            spread.as_ref().map_or_else(|| "-".to_owned(), |spread| spread.show(2))
        };
        let rows = self.servers.iter().map(|of| {
            vec![
                of.server.name().to_owned(),
                of.cpu_micros_per_span.show(3),
                ratio(&of.times_floor),
                ratio(&of.times_stock),
                ratio(&of.times_collector),
                format!("{:.0}", of.wire_megabytes_per_cpu_second.median),
                format!("{:.0}", of.spans_per_second.median),
                format!("{:.2}", of.cores_busy.median),
                of.peak_resident_megabytes.show(0),
            ]
        });
        let head = [
            "server",
            "CPU us/span",
            "x floor",
            "x stock",
            "x collector",
            "MB/CPU-s",
            "spans/s",
            "busy",
            "peak MB",
        ];
        table(&head, rows)
    }

    fn figures(&self) -> Table {
        let rows = self.figures.iter().map(|Figure { name, spread }| {
            let decimals = if spread.median.abs() < 1_000.0 { 2 } else { 0 };
            vec![(*name).to_owned(), spread.show(decimals)]
        });
        table(&[self.about, ""], rows)
    }

    fn scaling(&self) -> Table {
        let rows = self.scaling.iter().map(|of| {
            vec![
                of.cores.server.len().to_string(),
                of.spans_per_second.show(0),
                of.times_one_core.show(2),
                of.cores_busy.show(2),
                of.generator_cores.show(2),
                of.cpu_micros_per_span.show(3),
            ]
        });
        table(
            &["cores of the daemon", "spans/s", "x one core", "busy", "generator", "CPU us/span"],
            rows,
        )
    }
}

impl fmt::Display for OfCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let workload = match self.workload {
            Workload::Lean => "lean",
            Workload::Content => "content",
        };
        let compression =
            if self.compression == "none" { "not compressed" } else { self.compression };
        let (batch, frame) = (self.batch_spans, self.frame_bytes >> 10);
        write!(f, "{workload}, {compression}, batches of {batch}, {frame} KiB frames")?;
        if let (Some(plain), Some(wire)) = (self.bytes_per_span, self.wire_bytes_per_span) {
            write!(f, ", {plain:.0} bytes a span, {wire:.0} on the wire")?;
        }
        Ok(())
    }
}

/// A table in Markdown.
fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(head);
    table.add_rows(rows);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

impl Spread {
    /// The spread of the values of all repeats.
    pub(super) fn of(figures: impl Iterator<Item = f64>) -> Self {
        let repeats: Vec<f64> = figures.collect();
        let mut sorted = repeats.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        // The median is the mean of the two middle values, which are the same one if their number is odd.
        let upper = sorted.len() / 2;
        let median = f64::midpoint(at(sorted.len().saturating_sub(1) / 2), at(upper));
        Self { median, min: at(0), max: at(sorted.len().saturating_sub(1)), repeats }
    }

    /// The median.
    pub(super) fn median(&self) -> f64 {
        self.median
    }

    fn show(&self, decimals: usize) -> String {
        let Self { median, min, max, .. } = self;
        format!("{median:.decimals$} [{min:.decimals$}-{max:.decimals$}]")
    }
}

/// The kernel's name of the processor.
fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("model name"))?;
    Some(line.trim_start_matches([' ', '\t', ':']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fleet, Question, Steady};
    use agentgauge::ingest::Compression;

    fn sample(cpu_nanos: u64) -> Sample {
        Sample {
            spans: 1_000,
            wire_bytes: 500_000,
            cpu_nanos,
            wall_nanos: 2_000_000,
            busy_nanos: 1_000_000,
            steady: Steady::default(),
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
            question: Question::Cost,
            cases: vec![case],
            servers: Vec::new(),
            repeats: 3,
            spans: 1_000,
            connections: 2,
            streams: 4,
            fleet: Fleet { agents: 1, sessions: 1 },
            cores: None,
        };
        let mut report = Report::new(&plan, &Cores::default(), None);
        let samples = BTreeMap::from([
            (Server::Floor, vec![sample(100_000), sample(200_000), sample(100_000)]),
            (Server::Daemon, vec![sample(600_000), sample(800_000), sample(700_000)]),
        ]);
        report.add(case, 500.0, 500.0, &samples);
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
