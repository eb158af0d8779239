//! The command line of the bench.

use std::error::Error;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;

use agentgauge::ingest::Compression;
use clap::{Args, Parser, Subcommand};

use crate::child::Server;
use crate::cores::Cores;
use crate::readers::Fleet;
use crate::servers::{self, Sink};
use crate::sustained::Load;
use crate::workload::Workload;
use crate::{BenchError, Case, Plan, Question};

/// The exit code for wrong usage.
const EXIT_USAGE: u8 = 64;

/// The exit code if there is no figure.
const EXIT_FAILURE: u8 = 1;

/// Measures what a span costs agentgauge, beside a floor and a stock server
#[derive(Debug, Parser)]
#[command(name = "agentgauge-bench", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// A server that is measured beside the daemon
    #[command(hide = true)]
    Server(BenchServer),
}

/// Why a run ends without a result.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    /// There is no figure.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// The result cannot be written.
    #[error("failed to write the output")]
    Output(#[from] io::Error),
    /// The result cannot be written as JSON.
    #[error("failed to write the output")]
    Json(#[from] serde_json::Error),
}

/// Runs the command in `arguments` (the program's name first) and returns the exit code: 0, 64 for wrong usage, or 1.
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        // Help and version are no errors; clap itself would exit with 2 for the rest. If a stream is closed, its message is lost.
        Err(error) if error.use_stderr() => {
            let _ = write!(err, "{}", error.render());
            return EXIT_USAGE;
        }
        Err(help) => {
            let _ = write!(out, "{}", help.render());
            return 0;
        }
    };
    let result = match cli.command {
        Some(Command::Server(server)) => server.run(out).map_err(CommandError::Output),
        None => cli.bench.run(out, err),
    };
    match result {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(err, "error: {}", chain(&error));
            EXIT_FAILURE
        }
    }
}

/// The error and what caused it, in one line.
fn chain(error: &CommandError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = fmt::Write::write_fmt(&mut text, format_args!(": {error}"));
        cause = error.source();
    }
    text
}

/// Measures what a span costs.
#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "flags of the command line")]
struct Bench {
    /// What spans hold; without this, --compression and --batch six cases are measured, or content for other questions
    #[arg(long, value_enum)]
    workload: Option<Workload>,
    /// How requests are compressed: none, gzip, zstd
    #[arg(long, value_name = "NAME", value_parser = compression)]
    compression: Option<Compression>,
    /// Spans of a request, up to 512
    #[arg(long, value_name = "SPANS", value_parser = clap::value_parser!(u16).range(1..=512))]
    batch: Option<u16>,
    /// Bytes of a data frame: Go's client sends 16384, others up to 262144
    #[arg(long, value_name = "BYTES", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1_024..=262_144))]
    frame: u32,
    /// Servers to measure; without this all but the Collector
    #[arg(long, value_enum, value_delimiter = ',')]
    servers: Vec<Server>,
    /// How often each server is measured
    #[arg(long, value_name = "TIMES", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    repeats: u16,
    /// Spans of a pass, at least; servers that keep nothing get it again until a second is over
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    spans: u64,
    /// Connections of the generator
    #[arg(long, value_name = "NUMBER", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    connections: u16,
    /// Requests in flight on each connection
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    streams: u16,
    /// Cores of the generator and of the server, such as 1-2/3
    #[arg(long, value_name = "LIST/LIST", value_parser = Cores::parse)]
    cores: Option<Cores>,
    /// Offers the daemon twice what it can take instead: what it accepts, refuses and holds
    #[arg(long, conflicts_with = "servers")]
    overload: bool,
    /// Gives the daemon one core, two, and so on instead
    #[arg(long, conflicts_with_all = ["servers", "overload", "cores"])]
    scaling: bool,
    /// Reads from the daemon instead while requests come in: scrapes, and what the page of an agent asks for
    #[arg(long, conflicts_with_all = ["servers", "overload", "scaling", "workload", "compression", "batch", "spans"])]
    readers: bool,
    /// Measures in this directory what durability costs instead, and a start over what was logged
    #[arg(long, value_name = "DIRECTORY", conflicts_with_all = ["servers", "overload", "scaling", "readers"])]
    durability: Option<PathBuf>,
    /// Reads from Kafka at this address instead, beside a reader that drops everything; librdkafka's own brokers without one
    #[cfg(feature = "kafka")]
    #[arg(long, value_name = "BROKERS", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["servers", "overload", "scaling", "readers", "durability"])]
    kafka: Option<String>,
    /// Measures instead how soon after a span was sent its gauge shows it, at a tenth and at eight tenths of saturation
    #[arg(long, conflicts_with_all = ["servers", "overload", "scaling", "readers"])]
    latency: bool,
    /// Measures instead what memory a burst of so many spans leaves behind
    #[arg(long, conflicts_with_all = ["servers", "overload", "scaling", "readers", "latency"])]
    burst: bool,
    /// Measures instead what the daemon holds under its default limits while spans come in for so many seconds
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["servers", "overload", "scaling", "readers", "latency", "burst", "spans"])]
    sustained: Option<u32>,
    /// Spans of each of these seconds
    #[arg(long, value_name = "SPANS", requires = "sustained", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    rate: u32,
    /// Agents that the daemon holds meanwhile
    #[arg(long, requires = "readers", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    agents: u32,
    /// Sessions that they have; the first agent has 10000 of them, or half
    #[arg(long, requires = "readers", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    sessions: u32,
    /// How the result is written
    #[arg(long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

/// How the result is written.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Output {
    Table,
    Json,
}

/// Runs a server that `bench` compares with.
#[derive(Args, Debug)]
struct BenchServer {
    #[arg(value_enum)]
    sink: Sink,
    /// Of a reader: where the brokers are
    #[arg(long, default_value = "")]
    brokers: String,
    /// What it reads
    #[arg(long, default_value = "")]
    topic: String,
    /// How many records that are
    #[arg(long, default_value_t = 0)]
    records: u64,
}

impl Bench {
    fn run(&self, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), CommandError> {
        let report = crate::run(&self.plan(), err)?;
        let text = match self.output {
            Output::Table => report.to_string(),
            Output::Json => serde_json::to_string_pretty(&report)? + "\n",
        };
        Ok(write!(out, "{text}")?)
    }

    fn plan(&self) -> Plan {
        let all = [Server::Floor, Server::Stock, Server::StockMimalloc, Server::Daemon];
        let servers = if self.servers.is_empty() { all.to_vec() } else { self.servers.clone() };
        let question = self.question();
        Plan {
            cases: self.cases(&question),
            question,
            servers,
            repeats: self.repeats.into(),
            spans: self.spans,
            connections: self.connections.into(),
            streams: self.streams.into(),
            fleet: Fleet { agents: self.agents.into(), sessions: self.sessions.into() },
            cores: self.cores.clone(),
        }
    }

    fn question(&self) -> Question {
        #[cfg(feature = "kafka")]
        if let Some(brokers) = &self.kafka {
            return Question::Kafka(brokers.clone());
        }
        if let Some(store) = &self.durability {
            return Question::Durable(store.clone());
        }
        if let Some(seconds) = self.sustained {
            return Question::Sustained(Load { rate: self.rate.into(), seconds: seconds.into() });
        }
        let questions = [
            (self.overload, Question::Overload),
            (self.scaling, Question::Scaling),
            (self.readers, Question::Readers),
            (self.latency, Question::Latency),
            (self.burst, Question::Burst),
        ];
        let asked = questions.into_iter().find_map(|(asked, question)| asked.then_some(question));
        asked.unwrap_or(Question::Cost)
    }

    /// The requested case, or the standard ones: as instrumentations send by default, with content, content compressed as exporters
    /// do, and spans that come a few at a time and one by one.
    fn cases(&self, question: &Question) -> Vec<Case> {
        let case = |workload, compression, batch| Case {
            workload,
            compression,
            batch,
            frame: usize::try_from(self.frame).unwrap_or(usize::MAX),
        };
        if self.readers {
            // Not compressed, one small trace a request.
            let batch = Fleet::SPANS;
            return vec![case(Workload::Lean, Compression::None, batch)];
        }
        let none = self.workload.is_none() && self.compression.is_none() && self.batch.is_none();
        if none && *question == Question::Cost {
            return vec![
                case(Workload::Lean, Compression::None, 512),
                case(Workload::Content, Compression::None, 512),
                case(Workload::Content, Compression::Gzip, 512),
                case(Workload::Content, Compression::Zstd, 512),
                case(Workload::Lean, Compression::None, 16),
                case(Workload::Lean, Compression::None, 1),
            ];
        }
        vec![case(
            self.workload.unwrap_or(Workload::Content),
            self.compression.unwrap_or(Compression::None),
            self.batch.unwrap_or(512).into(),
        )]
    }
}

impl BenchServer {
    fn run(&self, out: &mut dyn Write) -> io::Result<()> {
        match self.sink {
            #[cfg(feature = "kafka")]
            Sink::Kafka => {
                crate::kafka::read_and_drop(&self.brokers, &self.topic, self.records, out)
            }
            Sink::Floor | Sink::Stock => servers::serve(self.sink, out),
        }
    }
}

fn compression(text: &str) -> Result<Compression, &'static str> {
    match text {
        "none" => Ok(Compression::None),
        "gzip" => Ok(Compression::Gzip),
        "zstd" => Ok(Compression::Zstd),
        _ => Err("possible values: none, gzip, zstd"),
    }
}
