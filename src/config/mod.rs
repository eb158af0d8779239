//! All options, read once at the start: a TOML file, overridden by the environment, overridden by the flags.
//! `config/agentgauge.toml` lists every option with its default.

pub mod expect;
mod fleet;
mod kafka;
pub mod key;
mod layer;
mod range;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::expect::ExpectOptions;
use crate::access::{AccessOptions, May, TlsOptions};
use crate::embed::EmbedOptions;
use crate::engine::detect::DropOptions;
use crate::engine::drift::DriftOptions;
use crate::engine::expect::Suite;
use crate::engine::limits::LimitOptions;
use crate::engine::options::{
    AgentOptions, AssembleOptions, ConventionOptions, CostOptions, LoopOptions, SessionOptions,
};
use crate::engine::pipeline::EngineOptions;
use crate::engine::score::ars::ArsOptions;
use crate::engine::score::princeton::TaskOptions;
use crate::engine::tenants::TenantOptions;
use crate::export::about::{AboutView, LinkOptions};
use crate::export::history::ApiOptions;
use crate::export::otlp::ScoresOutOptions;
use crate::export::prometheus::Detail;
use crate::files;
use crate::fleet::FleetOptions;
use crate::ingest::decode::IngestLimits;
use crate::ingest::kafka::KafkaOptions;
use crate::ingest::server::ServerOptions;
use crate::judge::JudgeOptions;
use crate::outbound::EndpointError;
use crate::store::StoreOptions;
use crate::telemetry::TelemetryOptions;
use crate::webhook::WebhookOptions;

/// The whole configuration; immutable after the start.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where to listen.
    pub listen: Listen,
    /// The log of the daemon on standard error.
    pub log: Log,
    /// Limits that hold before a request is decoded.
    pub ingest: IngestLimits,
    /// Limits of connections.
    pub server: ServerOptions,
    /// TLS of the listeners.
    pub tls: TlsOptions,
    /// Access of clients.
    pub access: AccessOptions,
    /// The shares of tenants in common bounds.
    pub tenants: TenantOptions,
    /// The Kafka source.
    pub kafka: KafkaOptions,
    /// How the engine is spread over tasks.
    pub engine: Shards,
    /// How spans are read.
    pub convention: ConventionOptions,
    /// How traces are assembled.
    pub assemble: AssembleOptions,
    /// Tool loops.
    pub loops: LoopOptions,
    /// The limits of traces and sessions.
    pub limits: LimitOptions,
    /// The prices of model calls whose spans have no cost.
    pub cost: CostOptions,
    /// How sessions are scored.
    pub session: SessionOptions,
    /// How agents are summarised.
    pub agents: AgentOptions,
    /// Scores over runs of tasks.
    pub tasks: TaskOptions,
    /// The agent reliability score.
    pub ars: ArsOptions,
    /// The comparison of versions.
    pub drift: DriftOptions,
    /// Drops.
    pub drop: DropOptions,
    /// Expectations about traces.
    pub expect: ExpectOptions,
    /// The judge: a language model.
    pub judge: JudgeOptions,
    /// Embeddings.
    pub embed: EmbedOptions,
    /// Where scores are sent, besides the store.
    pub scores_out: ScoresOutOptions,
    /// Where the daemon's own telemetry goes.
    pub telemetry: TelemetryOptions,
    /// The exported metrics.
    pub metrics: Metrics,
    /// The query API.
    pub api: ApiOptions,
    /// Links to pages for people.
    pub links: LinkOptions,
    /// The endpoint for sessions that run away.
    pub webhook: WebhookOptions,
    /// The durable store.
    pub store: StoreOptions,
    /// The part in a cluster.
    pub fleet: FleetOptions,
}

/// The exported metrics.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Metrics {
    /// `core`, or `full` for every score over runs and its parts.
    pub detail: Detail,
}

crate::engine::options! {
    /// Addresses as `host:port`; port 0 takes a free one.
    pub struct Listen in "listen" {
        /// OTLP over gRPC; port 0 takes a free one.
        pub otlp_grpc: String = "127.0.0.1:4317".to_owned();
        /// OTLP over HTTP: `/v1/traces`, `/v1/logs`.
        pub otlp_http: String = "127.0.0.1:4318".to_owned();
        /// Metrics, health and API.
        pub http: String = "127.0.0.1:9464".to_owned();
        /// Names, without ports, that listeners on loopback answer to besides localhost and loopback addresses, and whose pages
        /// may change something, such as `["gauge.example.org"]` behind a proxy that passes on the name. If any is set,
        /// listeners on other addresses answer only to these names and to addresses.
        pub hosts: Vec<String> = Vec::new();
    }
}

impl Listen {
    /// The addresses at which telemetry is accepted, each with its option.
    pub fn telemetry(&self) -> [(&'static str, &str); 2] {
        [("listen.otlp_http", &self.otlp_http), ("listen.otlp_grpc", &self.otlp_grpc)]
    }
}

crate::engine::options! {
    /// How the engine is spread over tasks; no result depends on it.
    pub struct Shards in "engine" {
        /// Tasks of each keyed stage; no result depends on it.
        pub shards: u32 = 4, within 1..=256;
        /// Messages in one channel between stages; when it is full, the sender waits.
        pub channel_capacity: usize = 1024, within 1..=1 << 20;
    }
}

/// Logging.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// The least severe events that are written.
    pub level: LogLevel,
    /// The form of the log lines.
    pub format: LogFormat,
}

/// Severities.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// Only events that need a person.
    Error,
    /// Also events that may need one soon.
    Warn,
    /// Also the normal course: starts, stops, reloads.
    #[default]
    Info,
    /// Also details for finding a fault.
    Debug,
    /// Everything.
    Trace,
}

/// Forms of a log line.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Where a value was set.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Origin {
    /// Nowhere: it is a default.
    Default,
    /// In a file, at a line counted from one.
    File {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
    },
    /// In an environment variable.
    Environment(String),
    /// By a flag.
    Flag(&'static str),
}

/// Why the configuration cannot be used; all of these exit with 64.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("failed to read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is not TOML.
    #[error("{origin}: {message}")]
    Syntax {
        /// Where.
        origin: Origin,
        /// What the parser expected.
        message: String,
    },
    /// A variable that would set an option is not valid text.
    #[error("the value of the environment variable {name} is not UTF-8")]
    Variable {
        /// The variable.
        name: String,
    },
    /// Two variables set one option, as the case of their names does not count.
    #[error("`{key}` is set by {first} as well as by {second}; only one of them may be set")]
    Twice {
        /// The key, dotted.
        key: String,
        /// One variable.
        first: String,
        /// The other one.
        second: String,
    },
    /// There is no such option.
    #[error("unknown key `{}` {origin}{}", brief(key), did_you_mean(nearest.as_deref()))]
    UnknownKey {
        /// The key, dotted.
        key: String,
        /// Where.
        origin: Origin,
        /// The known key that looks most like it.
        nearest: Option<String>,
    },
    /// An environment variable differs only in its underscores from one that sets an option.
    #[error("the environment variable {name} sets nothing; write {right}")]
    Misspelt {
        /// Its name.
        name: String,
        /// The name that sets the option.
        right: String,
    },
    /// The value is of the wrong kind.
    #[error("`{key}` {origin}: {}", brief(message))]
    Value {
        /// The key, dotted.
        key: String,
        /// Where.
        origin: Origin,
        /// What is wrong.
        message: String,
    },
    /// The value is out of range.
    #[error("`{key}` {origin} must be {expected}, was {}", brief(was))]
    Range {
        /// The key, dotted.
        key: &'static str,
        /// Where.
        origin: Origin,
        /// The range.
        expected: String,
        /// The value.
        was: String,
    },
    /// The endpoint cannot be used.
    #[error("{why}; it is set {origin}")]
    Endpoint {
        /// Where its address is given.
        origin: Origin,
        /// What is wrong with it.
        why: EndpointError,
    },
}

impl Config {
    /// Reads the configuration: the file, if there is one, then `environment` (those named
    /// `AGENTGAUGE__SECTION__KEY`), then `flags`, as (flag, dotted key, value).
    ///
    /// # Errors
    ///
    /// Fails on the first file, key or value that cannot be used, and names it.
    pub fn load(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
        flags: &[(&'static str, &'static str, String)],
    ) -> Result<Self, ConfigError> {
        let environment: Vec<_> = environment.into_iter().collect();
        let mut leaves = Vec::new();
        if let Some(path) = file {
            let text = files::read_text(path)
                .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
            leaves.extend(layer::file(path, &text)?);
        }
        if let Some((name, right)) = layer::misspelt(&environment) {
            return Err(ConfigError::Misspelt { name, right });
        }
        leaves.extend(layer::environment(environment.iter().cloned()));
        leaves.extend(flags.iter().map(|(flag, key, value)| layer::flag(flag, key, value)));
        let (mut config, origins) = layer::lay(leaves)?;
        config.access.take_from(&environment);
        range::check(&config, &origins)?;
        Ok(config)
    }

    /// The environment variables that are valid text.
    ///
    /// # Errors
    ///
    /// Fails on a variable that would set an option and is not valid text.
    pub fn environment(
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Vec<(String, String)>, ConfigError> {
        let text =
            |(name, value): (OsString, OsString)| match (name.into_string(), value.into_string()) {
                (Ok(name), Ok(value)) => Some(Ok((name, value))),
                (Ok(name), Err(_)) if name.starts_with(PREFIX) => {
                    Some(Err(ConfigError::Variable { name }))
                }
                (Ok(_) | Err(_), _) => None,
            };
        variables.into_iter().filter_map(text).collect()
    }

    /// How many tenants may send data, as far as the configuration shows: senders without a tenant count as one.
    pub fn known_tenants(&self) -> usize {
        let AccessOptions { tokens, certificates, open, .. } = &self.access;
        let tokens = tokens.iter().map(|token| (&token.tenant, &token.may));
        let certificates = certificates.iter().map(|one| (&one.tenant, &one.may));
        let senders = tokens.chain(certificates).filter(|(_, may)| may.contains(&May::Ingest));
        let mut known: BTreeSet<&str> =
            senders.map(|(tenant, _)| tenant.as_deref().unwrap_or_default()).collect();
        let KafkaOptions { traces_topics, logs_topics, .. } = &self.kafka;
        let topics = traces_topics.iter().chain(logs_topics).filter(|_| self.kafka.enabled());
        let tenant = |topic: &String| self.kafka.tenants.get(topic).map_or("", |tenant| &**tenant);
        known.extend(topics.map(tenant));
        known.extend(open.contains(&May::Ingest).then_some(""));
        // The header may name any tenant: this makes room for a few.
        let unknown = if self.kafka.tenant_header.is_empty() { 0 } else { UNKNOWN };
        (known.len() + unknown).max(1)
    }

    /// The facts for the page; `otlp_http` is the address at which OTLP over HTTP is accepted.
    pub fn about(&self, otlp_http: Option<String>) -> AboutView {
        AboutView {
            version: env!("CARGO_PKG_VERSION"),
            content_kept: self.assemble.keep_content,
            trace_link: self.links.trace_link(),
            otlp_http,
            history_seconds: 0,
            prometheus: !self.links.prometheus_url.is_empty(),
            needs_token: !self.access.tokens.is_empty() && !self.access.open.contains(&May::Ingest),
        }
    }

    /// How spans and scores are read.
    pub fn convention(&self) -> ConventionOptions {
        let signal_thresholds = self.session.signal_thresholds.clone();
        ConventionOptions { signal_thresholds, ..self.convention.clone() }
    }

    /// The options of the stages, with these expectations.
    pub fn engine_options(&self, expected: Arc<[Suite]>) -> EngineOptions {
        EngineOptions {
            assemble: self.assemble.clone(),
            loops: self.loops.clone(),
            cost: self.cost.clone(),
            session: SessionOptions { limits: self.limits.clone(), ..self.session.clone() },
            agents: self.agents.clone(),
            tasks: self.tasks.clone(),
            ars: self.ars.clone(),
            drift: self.drift,
            drops: self.drop.clone(),
            shares: self.tenants.shares(self.known_tenants()),
            expected,
            judging: None,
            embedding: None,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => write!(f, "(by default)"),
            Self::File { path, line } => write!(f, "at line {line} of {}", path.display()),
            Self::Environment(name) => write!(f, "in the environment variable {}", brief(name)),
            Self::Flag(flag) => write!(f, "of the flag {flag}"),
        }
    }
}

/// A text without its middle, if it is long: a value that was pasted by mistake would hide what is wrong with it.
fn brief(text: &str) -> Cow<'_, str> {
    if text.len() <= MAX_SHOWN {
        return text.into();
    }
    let head = text.floor_char_boundary(MAX_SHOWN / 2);
    let tail = text.ceil_char_boundary(text.len() - MAX_SHOWN / 2);
    format!("{} [..] {}", &text[..head], &text[tail..]).into()
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map(|key| format!("; did you mean `{key}`?")).unwrap_or_default()
}

/// The most bytes of a value or a name that an error shows.
const MAX_SHOWN: usize = 600;

/// The prefix of environment variables that set options.
const PREFIX: &str = "AGENTGAUGE__";

/// How many tenants get room if the header of a Kafka record may name any.
const UNKNOWN: usize = 3;
