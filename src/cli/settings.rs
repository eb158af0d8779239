//! The sources of a command's configuration.

use std::path::PathBuf;

use clap::Args;

use super::{CliError, Process};
use crate::config::Config;

/// The configuration file, for every command.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct Settings {
    /// Configuration file in TOML; variables such as AGENTGAUGE__SECTION__KEY override it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Settings {
    /// Loads the configuration; `flags` are (flag, dotted key, value).
    pub(super) fn load(
        &self,
        process: &Process<'_>,
        flags: &[(&'static str, &'static str, String)],
    ) -> Result<Config, CliError> {
        let environment = Config::environment(process.environment.iter().cloned())?;
        Ok(Config::load(self.config.as_deref(), environment, flags)?)
    }
}

/// The configuration of the daemon: its file, and what is set on the command line.
#[derive(Args, Debug)]
pub(super) struct Flags {
    #[command(flatten)]
    settings: Settings,
    /// Address for OTLP over gRPC; port 0 takes a free one
    #[arg(long, value_name = "ADDR")]
    otlp_grpc: Option<String>,
    /// Address for OTLP over HTTP
    #[arg(long, value_name = "ADDR")]
    otlp_http: Option<String>,
    /// Address for metrics, health and API
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
    /// Keep state in this directory, so that it survives a restart; implies `--durability fsync` unless that is given
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// When a request is acknowledged: memory (once applied), flush (once it survives the process) or fsync (once on disk)
    #[arg(long, value_name = "MODE")]
    durability: Option<String>,
    /// Kafka brokers to read from, separated by commas
    #[arg(long, value_name = "LIST", value_parser = list)]
    kafka_brokers: Option<String>,
    /// Kafka topics with spans, separated by commas
    #[arg(long, value_name = "LIST", value_parser = list)]
    kafka_topics: Option<String>,
    /// Kafka consumer group
    #[arg(long, value_name = "NAME")]
    kafka_group: Option<String>,
}

impl Flags {
    /// Loads the configuration.
    pub(super) fn load(&self, process: &Process<'_>) -> Result<Config, CliError> {
        self.settings.load(process, &self.values())
    }

    fn values(&self) -> Vec<(&'static str, &'static str, String)> {
        // A directory is useful only if something is written to it.
        let fsync = self.data_dir.as_ref().map(|_| "fsync".to_owned());
        let durability = self.durability.clone().or(fsync);
        [
            ("--otlp-grpc", "listen.otlp_grpc", &self.otlp_grpc),
            ("--otlp-http", "listen.otlp_http", &self.otlp_http),
            ("--http", "listen.http", &self.http),
            ("--data-dir", "store.directory", &self.data_dir),
            ("--durability", "store.durability", &durability),
            ("--kafka-brokers", "kafka.brokers", &self.kafka_brokers),
            ("--kafka-topics", "kafka.traces_topics", &self.kafka_topics),
            ("--kafka-group", "kafka.group", &self.kafka_group),
        ]
        .into_iter()
        .filter_map(|(flag, key, value)| Some((flag, key, value.clone()?)))
        .collect()
    }
}

/// Makes a TOML list of names that are separated by commas; an empty list is a mistake, such as a variable that is not set.
fn list(names: &str) -> Result<String, &'static str> {
    let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
    let names: Vec<String> = names.map(|name| serde_json::Value::from(name).to_string()).collect();
    if names.is_empty() { Err("it names nothing") } else { Ok(format!("[{}]", names.join(", "))) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: Flags,
    }

    fn flags(arguments: &[&str]) -> Vec<(&'static str, String)> {
        let line = Line::try_parse_from([&["serve"], arguments].concat()).unwrap();
        line.flags.values().into_iter().map(|(_, key, value)| (key, value)).collect()
    }

    #[test]
    fn a_directory_is_written_to_unless_told_otherwise() {
        let written = ("store.directory", "d".to_owned());
        let durability = |mode: &str| ("store.durability", mode.to_owned());
        assert_eq!(flags(&[]), []);
        assert_eq!(flags(&["--data-dir", "d"]), [written.clone(), durability("fsync")]);
        let flushed = flags(&["--data-dir", "d", "--durability", "flush"]);
        assert_eq!(flushed, [written, durability("flush")]);
    }

    #[test]
    fn brokers_and_topics_are_lists() {
        let arguments =
            ["--kafka-brokers", "a:1, b:2", "--kafka-topics", "t", "--kafka-group", "g"];
        let expected = [
            ("kafka.brokers", r#"["a:1", "b:2"]"#),
            ("kafka.traces_topics", r#"["t"]"#),
            ("kafka.group", "g"),
        ];
        assert_eq!(flags(&arguments), expected.map(|(key, value)| (key, value.to_owned())));
    }
}
