//! Measures the cost of a span, beside a floor and a stock server, in one run.
//!
//! In every repeat each server gets the same pass, one server after the other, each in a new process pinned to one core. Every pass
//! has new ids and recent times. The measure is processor time: nanoseconds of all threads of the server, from the kernel's
//! schedstat, over spans. The daemon's time ends when it has scored every trace, which its own counters must show, without a
//! duplicate or any other fault; otherwise there is no figure.

mod burst;
mod child;
mod client;
pub mod command;
mod cores;
mod durable;
#[cfg(feature = "kafka")]
mod kafka;
mod latency;
mod measure;
mod overload;
mod pass;
mod readers;
mod report;
mod scaling;
mod servers;
mod stamp;
mod steady;
mod sustained;
mod workload;

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agentgauge::clock::Clock;
use agentgauge::engine::span::Timestamp;
use agentgauge::ingest::Compression;
use tokio::runtime::Runtime;

use self::child::{Running, Server};
use self::client::{Outcome, Pace, SendError, Sending};
use self::cores::Cores;
use self::measure::{Account, Cpu, peak_resident_bytes};
use self::pass::{Material, Pass};
use self::readers::Fleet;
use self::report::Report;
use self::steady::{Middle, Steady};
use self::sustained::Load;
use self::workload::Workload;

/// A case: the workload, and how it is sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Case {
    /// The content of the spans.
    pub(crate) workload: Workload,
    /// How requests are compressed.
    pub(crate) compression: Compression,
    /// Spans in a request.
    pub(crate) batch: usize,
    /// Bytes of a data frame.
    pub(crate) frame: usize,
}

/// The question that a run answers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Question {
    /// The cost of a span, for each server.
    Cost,
    /// How the daemon handles more than its capacity.
    Overload,
    /// How the daemon scales with cores.
    Scaling,
    /// The delay of requests by readers.
    Readers,
    /// The cost of durability, in this directory.
    Durable(PathBuf),
    /// The cost from Kafka to gauges, with the address of the brokers, or an empty one.
    #[cfg(feature = "kafka")]
    Kafka(String),
    /// The time from a span to its gauge.
    Latency,
    /// The memory that is left after a burst.
    Burst,
    /// The memory that is held under a sustained load.
    Sustained(Load),
}

/// The plan of a run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The question.
    pub(crate) question: Question,
    /// The cases to measure.
    pub(crate) cases: Vec<Case>,
    /// The servers to measure.
    pub(crate) servers: Vec<Server>,
    /// How often each server is measured.
    pub(crate) repeats: usize,
    /// Spans of a pass, at least.
    pub(crate) spans: u64,
    /// Connections of the generator.
    pub(crate) connections: usize,
    /// Requests in flight on each connection.
    pub(crate) streams: usize,
    /// The agents and sessions that the daemon holds while it is read.
    pub(crate) fleet: Fleet,
    /// The cores to use; `None` leaves the choice to the bench.
    pub(crate) cores: Option<Cores>,
}

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// The generator cannot be set up on this machine.
    #[error("cannot set up the generator")]
    Generator(#[source] io::Error),
    /// A server does not run, or cannot be measured.
    #[error("{server} cannot be measured")]
    Server {
        /// The server.
        server: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A pass was not sent completely.
    #[error("a pass to {server} was not sent to its end")]
    Send {
        /// The server.
        server: &'static str,
        /// Why.
        source: SendError,
    },
    /// Requests were refused.
    #[error("{server} refused {refused} requests: {why}")]
    Refused {
        /// The server.
        server: &'static str,
        /// The number of refused requests.
        refused: u64,
        /// The reason that it gave for the first.
        why: String,
    },
    /// The daemon's counts do not match what it was sent.
    #[error("the daemon did not score what it was sent: {0}")]
    Amiss(String),
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
struct Sample {
    spans: u64,
    wire_bytes: u64,
    /// Processor time from the first request until all work is done.
    cpu_nanos: u64,
    /// Wall time from the first request until the last answer.
    wall_nanos: u64,
    /// Processor time from the first request until the last answer.
    busy_nanos: u64,
    /// The middle of the first time that the pass was sent.
    steady: Steady,
    peak_bytes: u64,
}

/// The spans and traces that were sent to the daemon.
#[derive(Clone, Copy, Debug)]
struct Sent {
    spans: u64,
    traces: u64,
}

/// A short pass to warm up with, and the one that is measured.
struct Passes {
    warm: Arc<Pass>,
    measured: Arc<Pass>,
}

/// The state of a run.
struct Bench<'b> {
    plan: &'b Plan,
    /// Cores that this process may use.
    available: Vec<usize>,
    /// The division of the cores.
    cores: Cores,
    clock: Clock,
    runtime: Runtime,
    report: Report,
    /// Receives a line for each measurement.
    progress: &'b mut dyn Write,
}

/// The least time for which a server that forgets is sent the pass repeatedly, in nanoseconds.
const MIN_NANOS: u64 = 1_000_000_000;

/// Spans sent before anything is measured: one block.
const WARM_SPANS: u64 = 1;

/// Connections of a generator that waits for no answers: enough that none reaches the number of requests in flight that the daemon
/// allows.
const CONNECTIONS: usize = 32;

/// The time between two checks of what the daemon has scored, and the most checks. Traces are done when they were quiet for
/// `assemble.trace_idle`.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const MAX_LOOKS: u32 = 400;

/// Measures by a plan; writes a line to `progress` for each measurement.
pub(crate) fn run(plan: &Plan, progress: &mut dyn Write) -> Result<Report, BenchError> {
    let available = cores::available();
    let (cores, note) = Cores::divide(&available, plan.cores.as_ref());
    let report = Report::new(plan, &cores, note);
    let runtime = generator(&cores)?;
    let clock = Clock::system();
    let mut bench = Bench { plan, available, cores, clock, runtime, report, progress };
    for case in &plan.cases {
        match &plan.question {
            Question::Cost => bench.cost(*case)?,
            Question::Overload => bench.overload(*case)?,
            Question::Scaling => bench.scaling(*case)?,
            Question::Readers => bench.readers(*case)?,
            Question::Durable(store) => bench.durable(*case, store)?,
            #[cfg(feature = "kafka")]
            Question::Kafka(brokers) => bench.kafka(*case, brokers)?,
            Question::Latency => bench.latency(*case)?,
            Question::Burst => bench.burst(*case)?,
            Question::Sustained(load) => bench.sustained(*case, *load)?,
        }
    }
    Ok(bench.report)
}

/// The outcome of a pass; fails unless all of it was accepted.
fn whole(server: Server, outcome: Outcome, pass: &Pass) -> Result<Outcome, BenchError> {
    if outcome.refused == 0 && outcome.accepted_spans == pass.spans() {
        return Ok(outcome);
    }
    let Outcome { refused, why, .. } = outcome;
    Err(BenchError::Refused { server: server.name(), refused, why: why.unwrap_or_default() })
}

/// The runtime of the generator, on its cores, to which this thread is pinned, too.
fn generator(cores: &Cores) -> Result<Runtime, BenchError> {
    let runtime = cores::pin(&cores.generator)
        .and_then(|()| tokio::runtime::Builder::new_multi_thread().enable_all().build());
    runtime.map_err(BenchError::Generator)
}

/// The error for a failed operation on the daemon.
fn failed(source: io::Error) -> BenchError {
    BenchError::Server { server: Server::Daemon.name(), source }
}

impl Bench<'_> {
    fn cost(&mut self, case: Case) -> Result<(), BenchError> {
        let mut material = Material::new(&case);
        let mut samples: BTreeMap<Server, Vec<Sample>> = BTreeMap::new();
        let (mut bytes, mut wire_bytes) = (0.0, 0.0);
        for repeat in 0..self.plan.repeats {
            let passes = self.passes(&mut material, self.plan.spans)?;
            let pass = &passes.measured;
            let spans = pass.spans() as f64;
            bytes = pass.plain_bytes as f64 / spans;
            wire_bytes = pass.wire_bytes() as f64 / spans;
            let mut order = self.plan.servers.clone();
            order.rotate_left(repeat % self.plan.servers.len().max(1));
            for server in order {
                let sample = self.measure(server, &[], self.sending(case), &passes)?;
                let (name, per_span) = (server.name(), sample.micros_per_span());
                let said = format_args!("{name}: {per_span:.3} us/span");
                self.say(case, repeat + 1, said);
                samples.entry(server).or_default().push(sample);
            }
        }
        self.report.add(case, bytes, wire_bytes, &samples);
        Ok(())
    }

    /// Writes the result of a repeat to `progress`; an error does not matter.
    fn say(&mut self, case: Case, repeat: usize, said: fmt::Arguments<'_>) {
        let _ = writeln!(self.progress, "{case}: {repeat} of {}: {said}", self.plan.repeats);
    }

    /// Measures the daemon with a generator that waits for its answers.
    fn unhurried(
        &self,
        case: Case,
        material: &mut Material,
        spans: u64,
    ) -> Result<Sample, BenchError> {
        let passes = self.passes(material, spans)?;
        self.measure(Server::Daemon, &[], self.sending(case), &passes)
    }

    /// A short pass to warm up with, and one of `spans` spans.
    fn passes(&self, material: &mut Material, spans: u64) -> Result<Passes, BenchError> {
        let mut make = |spans| {
            let pass = material.pass(spans, self.clock.now());
            pass.map(Arc::new).map_err(BenchError::Generator)
        };
        Ok(Passes { warm: make(WARM_SPANS)?, measured: make(spans)? })
    }

    fn measure(
        &self,
        server: Server,
        environment: &[(&'static str, String)],
        sending: Sending,
        passes: &Passes,
    ) -> Result<Sample, BenchError> {
        let Passes { warm, measured: pass } = passes;
        let failed = |source| BenchError::Server { server: server.name(), source };
        let running = server.start_with(&self.cores, environment).map_err(failed)?;
        self.send(&running, sending, warm, None)?;
        let mut cpu = Cpu::watch(running.id()).map_err(failed)?;
        let before = cpu.nanos().map_err(failed)?;
        let middle =
            Arc::new(Middle::new(pass.spans(), running.id(), &self.clock).map_err(failed)?);
        let start = self.clock.now();
        let (mut rounds, mut wall_nanos) = (0, 0);
        while rounds == 0 || server.forgets() && wall_nanos < MIN_NANOS {
            let middle = (rounds == 0).then(|| Arc::clone(&middle));
            self.send(&running, sending, pass, middle)?;
            rounds += 1;
            wall_nanos = since(start, self.clock.now());
        }
        let busy_nanos = cpu.nanos().map_err(failed)?.saturating_sub(before);
        if server == Server::Daemon {
            let sent =
                Sent { spans: warm.spans() + pass.spans(), traces: warm.traces + pass.traces };
            self.settle(&running, &mut cpu, sent)?;
        }
        let cpu_nanos = cpu.nanos().map_err(failed)?.saturating_sub(before);
        let peak_bytes = peak_resident_bytes(running.id()).map_err(failed)?;
        Ok(Sample {
            spans: rounds * pass.spans(),
            wire_bytes: rounds * pass.wire_bytes(),
            cpu_nanos,
            wall_nanos,
            busy_nanos,
            steady: middle.steady().unwrap_or_default(),
            peak_bytes,
        })
    }

    /// Sends a pass; fails unless all of it is accepted.
    fn send(
        &self,
        running: &Running,
        sending: Sending,
        pass: &Arc<Pass>,
        middle: Option<Arc<Middle>>,
    ) -> Result<(), BenchError> {
        let sent = self.runtime.block_on(client::send(running.grpc, pass, sending, middle));
        let server = running.server;
        let sent = sent.map_err(|source| BenchError::Send { server: server.name(), source })?;
        whole(server, sent, pass).map(drop)
    }

    /// Offers the daemon a pass at this pace, whether answers come or not.
    fn offer(
        &self,
        case: Case,
        running: &Running,
        pass: &Arc<Pass>,
        pace: Pace<'_>,
    ) -> Result<Outcome, BenchError> {
        let sending = Sending { connections: CONNECTIONS, ..self.sending(case) };
        let offered = self.runtime.block_on(client::offer(running.grpc, pass, sending, pace));
        offered.map_err(|source| BenchError::Send { server: Server::Daemon.name(), source })
    }

    /// The pace of `rate` spans a second.
    fn pace(&self, rate: f64) -> Pace<'_> {
        Pace { rate, clock: &self.clock, watched: None }
    }

    fn sending(&self, case: Case) -> Sending {
        Sending {
            connections: self.plan.connections,
            streams: self.plan.streams,
            frame: case.frame,
            compression: case.compression,
        }
    }

    /// Waits until the daemon has scored everything that was sent.
    fn settle(&self, running: &Running, cpu: &mut Cpu, sent: Sent) -> Result<(), BenchError> {
        let Sent { spans, traces } = sent;
        let mut account = Account::default();
        for _ in 0..MAX_LOOKS {
            account = Account::read(&running.metrics().map_err(failed)?);
            if !account.faults.is_empty() || account.scored > traces || account.received > spans {
                break;
            }
            if account.scored == traces && account.received == spans {
                return Ok(());
            }
            // Idle threads may end, so their times are read regularly.
            cpu.nanos().map_err(failed)?;
            std::thread::sleep(LOOK_EVERY);
        }
        let Account { received, scored, faults, .. } = account;
        let faults: Vec<_> =
            faults.iter().map(|(series, count)| format!("; {series} is {count}")).collect();
        Err(BenchError::Amiss(format!(
            "{received} of {spans} spans received, {scored} of {traces} traces scored{}",
            faults.concat()
        )))
    }
}

impl Sample {
    fn micros_per_span(&self) -> f64 {
        self.cpu_nanos as f64 / 1e3 / self.spans as f64
    }

    fn cores_busy(&self) -> f64 {
        self.busy_nanos as f64 / self.wall_nanos as f64
    }

    fn spans_per_second(&self) -> f64 {
        self.spans as f64 * 1e9 / self.wall_nanos as f64
    }
}

impl Steady {
    fn cores_busy(&self) -> f64 {
        self.busy_nanos as f64 / self.nanos as f64
    }

    fn spans_per_second(&self) -> f64 {
        self.spans as f64 * 1e9 / self.nanos as f64
    }

    fn generator_cores(&self) -> f64 {
        self.generator_nanos as f64 / self.nanos as f64
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let workload = match self.workload {
            Workload::Lean => "lean",
            Workload::Content => "content",
        };
        write!(f, "{workload}, {}, {} a batch", compression_name(self.compression), self.batch)
    }
}

/// The name of a compression, as on the command line.
fn compression_name(compression: Compression) -> &'static str {
    match compression {
        Compression::None => "none",
        Compression::Gzip => "gzip",
        Compression::Zstd => "zstd",
    }
}

fn since(start: Timestamp, now: Timestamp) -> u64 {
    now.0.saturating_sub(start.0)
}
