//! The real binary, on its own ports.

#![allow(dead_code, reason = "no test needs all of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

/// Looks at the daemon before a test gives up, and the time between two of them.
const LOOKS: u32 = 300;
const BETWEEN: Duration = Duration::from_millis(100);

/// Looks again and again until something is so; fails if it never is.
#[track_caller]
pub(crate) fn until(is_so: impl FnMut() -> bool) {
    assert!(comes_true(is_so), "waited in vain");
}

/// Whether something becomes so in time, for a test that has more to say if it does not.
#[must_use]
pub(crate) fn comes_true(mut is_so: impl FnMut() -> bool) -> bool {
    (0..LOOKS).any(|_| {
        let so = is_so();
        if !so {
            std::thread::park_timeout(BETWEEN);
        }
        so
    })
}

pub(crate) struct Daemon {
    process: Child,
    pub grpc: String,
    pub otlp_http: String,
    pub http: String,
}

impl Daemon {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// With variables of the environment over those of every test.
    pub(crate) fn start_with(environment: &[(&str, &str)]) -> Self {
        Self::logging(environment, Stdio::inherit())
    }

    /// Likewise, with its log there.
    pub(crate) fn logging(environment: &[(&str, &str)], log: impl Into<Stdio>) -> Self {
        let binary = Command::new(env!("CARGO_BIN_EXE_agentgauge"));
        Self::begun_by(binary, environment, log)
    }

    /// Likewise, by a command that names the binary.
    pub(crate) fn begun_by(
        mut command: Command,
        environment: &[(&str, &str)],
        log: impl Into<Stdio>,
    ) -> Self {
        let mut process = command
            .args(["--otlp-grpc", "127.0.0.1:0", "--otlp-http", "127.0.0.1:0"])
            .args(["--http", "127.0.0.1:0"])
            .env("AGENTGAUGE__ASSEMBLE__TRACE_IDLE", "200ms")
            .env("AGENTGAUGE__METRICS__DETAIL", "full")
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let bound: Value = serde_json::from_str(&line).unwrap();
        let address = |key: &str| bound[key].as_str().unwrap().to_owned();
        Self {
            process,
            grpc: address("otlp_grpc"),
            otlp_http: address("otlp_http"),
            http: address("http"),
        }
    }

    /// One with a judge at this address, which is asked about everything, unless the environment says otherwise.
    pub(crate) fn judging(format: &str, url: &str, environment: &[(&str, &str)]) -> Self {
        let judge = [
            ("AGENTGAUGE__JUDGE__FORMAT", format),
            ("AGENTGAUGE__JUDGE__URL", url),
            ("AGENTGAUGE__JUDGE__ALLOW_HTTP", "true"),
            ("AGENTGAUGE__JUDGE__MODEL", "m"),
            ("AGENTGAUGE__JUDGE__SAMPLE_RATE", "1.0"),
        ];
        Self::start_with(&[&judge, environment].concat())
    }

    pub(crate) fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.http).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.http).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    /// Sends a body; status and answer.
    pub(crate) fn post(&self, path: &str, body: &str) -> (u16, String) {
        self.post_to(&self.http, path, body)
    }

    /// The same to one of its other addresses.
    pub(crate) fn post_to(&self, address: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(address).unwrap();
        let length = body.len();
        write!(
            stream,
            "POST {path} HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// Sends OTLP in protobuf; status.
    pub(crate) fn post_protobuf(&self, path: &str, body: &[u8]) -> u16 {
        let mut stream = TcpStream::connect(&self.otlp_http).unwrap();
        let length = body.len();
        write!(
            stream,
            "POST {path} HTTP/1.0\r\nHost: {}\r\nContent-Type: application/x-protobuf\r\nContent-Length: {length}\r\n\r\n",
            self.otlp_http
        )
        .unwrap();
        stream.write_all(body).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let head = String::from_utf8_lossy(&answer);
        head.split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// Sends the requests for traces of a capture, in their order.
    pub(crate) fn send_capture(&self, name: &str) {
        let folder: PathBuf =
            [env!("CARGO_MANIFEST_DIR"), "tests/data/captures", name].iter().collect();
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut requests: Vec<PathBuf> =
            entries.filter(|path| path.to_str().unwrap().ends_with("traces.pb")).collect();
        requests.sort();
        for path in requests {
            let body = std::fs::read(path).unwrap();
            let mut stream = TcpStream::connect(&self.otlp_http).unwrap();
            let length = body.len();
            write!(
                stream,
                "POST /v1/traces HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/x-protobuf\r\nContent-Length: {length}\r\n\r\n"
            )
            .unwrap();
            stream.write_all(&body).unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            assert!(answer.starts_with(b"HTTP/1.0 200"), "{}", String::from_utf8_lossy(&answer));
        }
    }

    /// Scrapes until a line begins so; its value.
    pub(crate) fn metric(&self, start: &str) -> f64 {
        self.metric_when(start, |_| true)
    }

    /// Scrapes until the line that begins so has this value, to nine digits.
    pub(crate) fn settles_at(&self, start: &str, expected: f64) {
        self.metric_when(start, |value| (value - expected).abs() < 1e-9);
    }

    pub(crate) fn metric_when(&self, start: &str, is_right: impl Fn(f64) -> bool) -> f64 {
        let mut last = String::new();
        for _ in 0..LOOKS {
            last = self.get("/metrics");
            let line = last.lines().find(|line| line.starts_with(start));
            let value = line.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap());
            if let Some(value) = value.filter(|value| is_right(*value)) {
                return value;
            }
            std::thread::park_timeout(BETWEEN);
        }
        let found = last.lines().find(|line| line.starts_with(start));
        assert_eq!(found, Some("the value waited for"), "{start} in\n{last}");
        f64::NAN
    }

    /// The most memory that it has had resident, in bytes.
    #[cfg(target_os = "linux")]
    pub(crate) fn peak_bytes(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
    }

    /// The number of its process.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Ends it as a crash does.
    pub(crate) fn crashes(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    #[cfg(unix)]
    pub(crate) fn ends_well(mut self) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        assert_eq!(self.process.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Gone already if the test ended it.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
