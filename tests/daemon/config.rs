//! The configuration: the listed defaults are the code's, and a mistake is named.

use std::path::Path;

use agentgauge::config::{Config, ConfigError, LogLevel, Origin};

const LISTED: &str = include_str!("../../config/agentgauge.toml");

fn load(text: &str, environment: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agentgauge.toml");
    std::fs::write(&path, text).unwrap();
    let environment =
        environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Config::load(Some(&path), environment, &[])
}

fn error(text: &str, environment: &[(&str, &str)]) -> String {
    load(text, environment).unwrap_err().to_string()
}

#[test]
fn the_listed_defaults_are_the_code_s() {
    assert_eq!(load(LISTED, &[]).unwrap(), Config::default());
    assert_eq!(Config::load(None, [], &[]).unwrap(), Config::default());
}

#[test]
fn every_option_is_listed_and_explained() {
    let defaults = toml::Table::try_from(Config::default()).unwrap();
    let listed: toml::Table = LISTED.parse().unwrap();
    for (section, options) in &defaults {
        for option in options.as_table().unwrap().keys() {
            assert!(listed[section].get(option).is_some(), "{section}.{option} is not listed");
        }
    }
    let lines: Vec<&str> = LISTED.lines().collect();
    for pair in lines.windows(2) {
        if pair[1].contains(" = ") && !pair[1].starts_with('#') {
            assert!(pair[0].starts_with("# "), "no comment above: {}", pair[1]);
        }
    }
}

#[test]
fn the_environment_lies_over_the_file_and_flags_over_both() {
    let file = "[assemble]\ntrace_idle = \"1s\"\n[listen]\nhttp = \"127.0.0.1:1\"\n";
    let environment = [("AGENTGAUGE__ASSEMBLE__TRACE_IDLE", "2s"), ("OTHER", "x")];
    let config = load(file, &environment).unwrap();
    assert_eq!(config.assemble.trace_idle.as_secs(), 2);
    assert_eq!(config.listen.http, "127.0.0.1:1");
    let flags = [("--http", "listen.http", "127.0.0.1:2".to_owned())];
    let environment = [("AGENTGAUGE__LISTEN__HTTP".to_owned(), "127.0.0.1:3".to_owned())];
    let config = Config::load(None, environment, &flags).unwrap();
    assert_eq!(config.listen.http, "127.0.0.1:2");
}

#[test]
fn the_environment_sets_every_kind_of_value() {
    let config = load(
        "",
        &[
            ("AGENTGAUGE__LOG__LEVEL", "warn"),
            ("AGENTGAUGE__ENGINE__SHARDS", "7"),
            ("AGENTGAUGE__ASSEMBLE__KEEP_CONTENT", "true"),
            ("AGENTGAUGE__SESSION__GATE_DROP", "0.25"),
            ("AGENTGAUGE__AGENTS__WINDOWS", "[\"1m\"]"),
            ("AGENTGAUGE__CONVENTION__ATTRIBUTES", "{ tool_name = [\"my.tool\"] }"),
        ],
    )
    .unwrap();
    assert_eq!(config.log.level, LogLevel::Warn);
    assert_eq!(config.engine.shards, 7);
    assert!(config.assemble.keep_content);
    assert_eq!(config.session.gate_drop.to_bits(), 0.25_f64.to_bits());
    assert_eq!(config.agents.windows.len(), 1);
    assert_eq!(config.convention.attributes["tool_name"], ["my.tool"]);
}

#[test]
fn what_has_no_default_is_shown_commented_out_and_can_be_set() {
    let mut section = "";
    let mut shown = Vec::new();
    for line in LISTED.lines() {
        if line.starts_with('[') {
            section = line;
        }
        let option = line
            .strip_prefix("# ")
            .filter(|line| line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' ')));
        shown.extend(option.map(|option| (section, option)));
    }
    assert_eq!(shown.len(), 7);
    for (section, line) in shown {
        let config = load(&format!("{section}\n{line}\n"), &[]).unwrap();
        assert_ne!(config, Config::default(), "{line}");
    }
    let wrong = error("", &[("AGENTGAUGE__ARS__COST_CEILING_USD", "0")]);
    assert!(wrong.contains("AGENTGAUGE__ARS__COST_CEILING_USD"), "{wrong}");
}

#[test]
fn a_named_table_of_weights_replaces_the_default_whole() {
    let config = load("[session.signal_weights]\nerror = 2\n", &[]).unwrap();
    assert_eq!(config.session.signal_weights.len(), 1);
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_the_nearest_known_one() {
    let message = error("[assemble]\n# a comment\ntrace_idel = \"10s\"\n", &[]);
    assert!(message.contains("`assemble.trace_idel`"), "{message}");
    assert!(message.contains("line 3 of "), "{message}");
    assert!(message.contains("agentgauge.toml"), "{message}");
    assert!(message.contains("did you mean `assemble.trace_idle`?"), "{message}");
}

#[test]
fn an_unknown_section_is_named() {
    let message = error("[asemble]\ntrace_idle = \"10s\"\n", &[]);
    assert!(message.contains("did you mean `assemble.trace_idle`?"), "{message}");
    let message = error("[zzz]\nqqq = 1\n", &[]);
    assert!(message.contains("`zzz.qqq`") && !message.contains("did you mean"), "{message}");
    let message = error("shards = 1\n", &[]);
    assert!(message.contains("unknown key `shards`"), "{message}");
}

#[test]
fn an_unknown_variable_is_named() {
    let message = error("", &[("AGENTGAUGE__LOOPS__WARNIN", "3")]);
    assert!(message.contains("AGENTGAUGE__LOOPS__WARNIN"), "{message}");
    assert!(message.contains("did you mean `loops.warning`?"), "{message}");
}

#[test]
fn a_value_of_the_wrong_kind_is_named_with_its_line() {
    for value in ["\"soon\"", "10", "[]"] {
        let message = error(&format!("\n[assemble]\ntrace_idle = {value}\n"), &[]);
        assert!(message.contains("`assemble.trace_idle` at line 3 of"), "{message}");
    }
    let message = error("assemble = 3\n", &[]);
    assert!(message.contains("`assemble` at line 1"), "{message}");
    let message = error("", &[("AGENTGAUGE__LOOPS__WARNING", "many")]);
    assert!(message.contains("`loops.warning` in the environment variable"), "{message}");
}

#[test]
fn a_value_out_of_range_is_named_with_its_line_and_range() {
    let message = error("[loops]\nwarning = 5\ncritical = 4\n", &[]);
    assert!(message.contains("`loops.critical` at line 3"), "{message}");
    assert!(message.contains("must be at least 5"), "{message}");
    for text in [
        "[engine]\nshards = 0",
        "[session]\nloop_detection_threshold = nan",
        "[session]\nsignal_weights = { error = -1.0 }",
        "[agents]\nwindows = [\"90s\"]",
        "[agents]\nwindows = [\"5m\", \"300s\"]",
        "[listen]\nhttp = \"nowhere\"",
        "[convention]\nscore_ranges = { a = [2, 1] }",
    ] {
        assert!(matches!(load(text, &[]), Err(ConfigError::Range { .. })), "{text}");
    }
}

#[test]
fn an_endpoint_that_cannot_be_used_is_named_with_its_line_and_not_repeated() {
    for (text, key) in [
        ("[judge]\nformat = \"openai\"\nurl = \"hunter2\"\n", "judge.url"),
        ("[embed]\n\nurl = \"https://me:hunter2@host/v1\"\n", "embed.url"),
        ("[webhook]\n\nurl = \"http://hunter2/\"\n", "webhook.url"),
        ("[scores_out]\n\nurl = \"https://169.254.169.254/hunter2\"\n", "scores_out.url"),
        ("[telemetry]\n\notlp_endpoint = \"ftp://hunter2\"\n", "telemetry.otlp_endpoint"),
    ] {
        let message = error(text, &[]);
        assert!(message.starts_with(&format!("`{key}` ")), "{message}");
        assert!(message.contains("at line 3 of ") && !message.contains("hunter2"), "{message}");
    }
    let message = error("[judge]\nformat = \"openai\"\n", &[]);
    assert!(message.starts_with("`judge.url` must be an address"), "{message}");
}

#[test]
fn of_options_that_contradict_each_other_both_are_named() {
    for (text, key, other) in [
        ("[loops]\nwarning = 50\n", "loops.critical", "loops.warning"),
        ("[assemble]\ntrace_idle = \"2h\"\n", "assemble.trace_max_age", "assemble.trace_idle"),
        (
            "[ingest]\nmax_request_bytes = 1073741824\n",
            "ingest.max_decoded_bytes",
            "ingest.max_request_bytes",
        ),
        ("[store]\nmax_bytes = 1000000\n", "store.max_bytes", "store.segment_bytes"),
        (
            "[store]\nmax_bytes = 4096\nsegment_bytes = 4096\n",
            "store.max_bytes",
            "ingest.max_request_bytes",
        ),
    ] {
        let message = error(text, &[]);
        assert!(message.starts_with(&format!("`{key}` ")), "{message}");
        assert!(message.contains(&format!("because of `{other}` ")), "{message}");
        assert!(message.contains("line 2 of "), "{message}");
    }
}

#[test]
fn what_is_no_toml_is_named_with_its_line() {
    let Err(ConfigError::Syntax { origin: Origin::File { line, .. }, .. }) =
        load("\n\na = =\n", &[])
    else {
        panic!("no syntax error");
    };
    assert_eq!(line, 3);
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = Config::load(Some(Path::new("/nowhere/agentgauge.toml")), [], &[]).unwrap_err();
    assert!(error.to_string().contains("/nowhere/agentgauge.toml"), "{error}");
}

#[test]
fn a_mistake_about_kafka_is_named() {
    for (text, key) in [
        ("brokers = [\"broker\"]", "kafka.brokers"),
        ("brokers = [\"a:1,b:2\"]", "kafka.brokers"),
        ("brokers = [\"a:1\"]\ngroup = \"\"", "kafka.group"),
        ("brokers = [\"a:1\"]\ntraces_topics = [\"^all\"]", "kafka.traces_topics"),
        ("brokers = [\"a:1\"]\nlogs_topics = [\"otlp_spans\"]", "kafka.logs_topics"),
        ("brokers = [\"a:1\"]\ntraces_topics = []\nlogs_topics = []", "kafka.traces_topics"),
        ("brokers = [\"a:1\"]\ndead_letter_topic = \"otlp_logs\"", "kafka.dead_letter_topic"),
        ("traces_encoding = \"jaeger_proto\"", "kafka.traces_encoding"),
        ("start = \"beginning\"", "kafka.start"),
        ("brokers = [\"a:1\"]\nsasl_mechanism = \"plain\"", "kafka.sasl_username"),
        (
            "brokers = [\"a:1\"]\nsasl_mechanism = \"plain\"\nsasl_username = \"me\"",
            "kafka.sasl_password",
        ),
        ("brokers = [\"a:1\"]\nsasl_password = \"x\"", "kafka.sasl_mechanism"),
        ("brokers = [\"a:1\"]\ntls_key_file = \"x\"", "kafka.tls_key_file"),
    ] {
        let message = error(&format!("[kafka]\n{text}\n"), &[]);
        assert!(message.contains(&format!("`{key}`")), "{text}: {message}");
    }
}

#[test]
#[cfg(not(feature = "kafka-tls"))]
fn what_this_build_cannot_do_is_answered_with_the_feature() {
    for text in ["tls = true", "sasl_mechanism = \"scram_sha512\""] {
        let message = error(&format!("[kafka]\nbrokers = [\"a:1\"]\n{text}\n"), &[]);
        assert!(message.contains("`kafka-tls`"), "{message}");
    }
}

#[test]
fn a_password_is_in_no_message() {
    let text =
        "[kafka]\nbrokers = [\"a:1\"]\nsasl_password = \"hunter2\"\nsasl_password_file = \"x\"\n";
    assert!(!error(text, &[]).contains("hunter2"));
}

#[cfg(feature = "kafka")]
#[test]
fn what_documents_show_can_be_configured() {
    let documents = [
        include_str!("../../README.md"),
        include_str!("../../docs/judge.md"),
        include_str!("../../docs/operations.md"),
    ];
    let blocks = documents.iter().flat_map(|document| document.split("```toml\n").skip(1));
    let mut count = 0;
    for block in blocks.filter_map(|rest| rest.split("```").next()) {
        let loaded = load(block, &[]);
        assert!(loaded.is_ok(), "{}\n{block}", loaded.unwrap_err());
        count += 1;
    }
    assert!(count >= 11, "only {count} are found");
}
