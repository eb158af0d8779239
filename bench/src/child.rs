//! A server under test, in a separate process.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cores::{self, Cores};

/// A server to measure.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Server {
    /// Receives bytes and drops them, under the daemon's allocator
    Floor,
    /// Tonic and prost, decode and drop, under the system's allocator
    Stock,
    /// The same under the daemon's allocator
    StockMimalloc,
    /// The OpenTelemetry Collector with the spanmetrics connector; `bench/collector/build` builds it
    Collector,
    /// Agentgauge itself, with full scoring
    Daemon,
}

/// A running server, which is ended when it is dropped.
pub(super) struct Running {
    /// The server.
    pub(super) server: Server,
    process: Child,
    /// The address of OTLP/gRPC.
    pub(super) grpc: SocketAddr,
    /// The address of the daemon's metrics and API.
    pub(super) http: Option<SocketAddr>,
}

/// The line of JSON that a server prints when it is ready.
#[derive(Deserialize)]
struct Bound {
    otlp_grpc: SocketAddr,
    http: Option<SocketAddr>,
}

/// How long a page of metrics may take.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// The Collector's file, beside this program.
const COLLECTOR: &str = "agentgauge-bench-collector";

/// The time between two checks whether a server listens, and the most checks: half a minute in all.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const LOOKS: usize = 600;

impl Server {
    /// Its name, as on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Stock => "stock",
            Self::StockMimalloc => "stock-mimalloc",
            Self::Collector => "collector",
            Self::Daemon => "daemon",
        }
    }

    /// The name of its allocator.
    pub(super) fn allocator(self) -> &'static str {
        match self {
            Self::Floor | Self::StockMimalloc | Self::Daemon => "mimalloc",
            Self::Stock => "system",
            Self::Collector => "go",
        }
    }

    /// Whether it forgets its input, so that it can be sent the same spans again.
    pub(super) fn forgets(self) -> bool {
        self != Self::Daemon
    }

    /// The program of the server: this one, or one that was built beside it.
    ///
    /// # Errors
    ///
    /// Fails if it was not built.
    pub(crate) fn program(self) -> io::Result<PathBuf> {
        let own = std::env::current_exe()?;
        let (name, build) = match self {
            Self::Floor | Self::StockMimalloc => return Ok(own),
            Self::Stock => {
                ("agentgauge-bench-system-allocator", "cargo build --release -p agentgauge-bench")
            }
            Self::Collector => (COLLECTOR, "bench/collector/build"),
            Self::Daemon => ("agentgauge", "cargo build --release -p agentgauge"),
        };
        let beside = own.with_file_name(name);
        if beside.exists() {
            return Ok(beside);
        }
        let missing = format!("{} is not there; build it with `{build}`", beside.display());
        Err(io::Error::new(io::ErrorKind::NotFound, missing))
    }

    /// Starts it on the server's cores and waits until it is ready.
    pub(super) fn start(self, cores: &Cores) -> io::Result<Running> {
        self.start_with(cores, &[])
    }

    /// Starts it with these environment variables and waits until it is ready.
    pub(super) fn start_with(
        self,
        cores: &Cores,
        environment: &[(&'static str, String)],
    ) -> io::Result<Running> {
        let mut command = Command::new(self.program()?);
        let port = (self == Self::Collector).then(free_port).transpose()?;
        match self {
            Self::Floor => command.args(["server", "floor"]),
            Self::Stock | Self::StockMimalloc => command.args(["server", "stock"]),
            Self::Daemon => command
                .arg("serve")
                .args(["--otlp-grpc", "127.0.0.1:0"])
                .args(["--otlp-http", "127.0.0.1:0"])
                .args(["--http", "127.0.0.1:0"])
                .env("AGENTGAUGE__LOG__LEVEL", "warn"),
            Self::Collector => {
                command.arg(format!("--config=yaml:{}", spanmetrics(port))).stderr(Stdio::null())
            }
        };
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        cores::pin(&cores.server)?;
        let process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        cores::pin(&cores.generator)?;
        match port {
            Some(grpc) => Running::listening(self, process?, grpc),
            None => Running::new(self, process?),
        }
    }
}

/// An address of the loopback on which nothing listens.
fn free_port() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// The Collector's configuration, as JSON, which is YAML too: metrics of spans with the connector's defaults, for Prometheus.
fn spanmetrics(grpc: Option<SocketAddr>) -> serde_json::Value {
    json!({
        "receivers": { "otlp": { "protocols": { "grpc": { "endpoint": grpc } } } },
        "connectors": { "spanmetrics": {} },
        "exporters": { "prometheus": { "endpoint": "127.0.0.1:0" } },
        "service": {
            "telemetry": { "metrics": { "level": "none" } },
            "pipelines": {
                "traces": { "receivers": ["otlp"], "exporters": ["spanmetrics"] },
                "metrics": { "receivers": ["spanmetrics"], "exporters": ["prometheus"] },
            },
        },
    })
}

impl Running {
    fn new(server: Server, mut process: Child) -> io::Result<Self> {
        let mut line = String::new();
        if let Some(out) = process.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        match serde_json::from_str(&line) {
            Ok(Bound { otlp_grpc: grpc, http }) => Ok(Self { server, process, grpc, http }),
            Err(error) => {
                process.kill()?;
                process.wait()?;
                Err(io::Error::other(format!("it did not say where it listens: {error}")))
            }
        }
    }

    /// A server that does not print when it is ready; waits until it listens on this address.
    fn listening(server: Server, process: Child, grpc: SocketAddr) -> io::Result<Self> {
        let mut running = Self { server, process, grpc, http: None };
        for _ in 0..LOOKS {
            if TcpStream::connect(grpc).is_ok() {
                return Ok(running);
            }
            if let Some(status) = running.process.try_wait()? {
                return Err(io::Error::other(format!("it ended with {status}")));
            }
            thread::sleep(LOOK_EVERY);
        }
        Err(io::Error::other(format!("it does not listen on {grpc}")))
    }

    /// The id of its process.
    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// The daemon's page of metrics.
    pub(super) fn metrics(&self) -> io::Result<String> {
        self.get("/metrics")
    }

    /// A connection to the daemon's API for requests one after the other.
    pub(super) fn asker(&self) -> io::Result<Asker> {
        let address = self.http.ok_or_else(|| io::Error::other("it has no API"))?;
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PAGE_TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Asker(BufReader::new(stream)))
    }

    /// The body of the daemon's answer to a request for `path`.
    pub(super) fn get(&self, path: &str) -> io::Result<String> {
        let address = self.http.ok_or_else(|| io::Error::other("it has no metrics"))?;
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PAGE_TIMEOUT))?;
        // HTTP/1.0, so that the page ends with the connection.
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        match answer.split_once("\r\n\r\n") {
            Some((head, page)) if head.contains(" 200 ") => Ok(page.to_owned()),
            _ => {
                let line = answer.lines().next().unwrap_or_default();
                Err(io::Error::other(format!("it answered {path} with `{line}`")))
            }
        }
    }
}

/// A connection to the daemon's API.
pub(super) struct Asker(BufReader<TcpStream>);

impl Asker {
    /// The body of the daemon's answer to a request for `path`.
    pub(super) fn get(&mut self, path: &str) -> io::Result<String> {
        write!(self.0.get_mut(), "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        let (mut line, mut length, mut found) = (String::new(), None, false);
        while self.0.read_line(&mut line)? > 0 && line != "\r\n" {
            found |= line.starts_with("HTTP/1.1 200");
            length = line.strip_prefix("content-length:").map(str::trim).map(str::parse).or(length);
            line.clear();
        }
        let length: usize = match length {
            Some(Ok(length)) if found => length,
            _ => return Err(io::Error::other(format!("it had no answer to {path}"))),
        };
        let mut answer = vec![0; length];
        self.0.read_exact(&mut answer)?;
        String::from_utf8(answer).map_err(io::Error::other)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // An error means that the process has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
