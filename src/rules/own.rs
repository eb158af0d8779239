//! Alerts about the daemon itself: whether it runs, whether it receives spans, whether it leaves anything out.

use super::{Alert, Group, Rule, number};
use crate::config::Config;

/// An alert about the daemon.
enum Row {
    /// An alert that is the same for every configuration. Without `lasting` it fires at once.
    Plain {
        name: &'static str,
        severity: &'static str,
        lasting: &'static str,
        expr: &'static str,
        summary: &'static str,
        description: &'static str,
    },
    /// An alert that is computed.
    Fitted(fn(&Config) -> Rule),
}

/// All of them, in the order of the file.
#[rustfmt::skip] // A row is one alert.
const ROWS: &[Row] = &[
    Row::Plain { name: "AgentgaugeAbsent", severity: "critical", lasting: "5m",
        expr: "absent(agentgauge_build_info)",
        summary: "No agentgauge is scraped",
        description: "Agents are not watched: every other alert stays silent." },
    // Whether it was an agentgauge is known from what it exported before.
    Row::Plain { name: "AgentgaugeInstanceDown", severity: "critical", lasting: "5m",
        expr: "up == 0\nand on (job, instance) max_over_time(agentgauge_build_info[1d])",
        summary: "{{ $labels.instance }} cannot be scraped",
        description: "The daemon is down or unreachable. Unless other instances share its work, its agents are not watched." },
    Row::Fitted(|_| no_spans()),
    Row::Plain { name: "AgentgaugeRequestsRefused", severity: "warning", lasting: "10m",
        expr: "sum by (job, instance, reason) (rate(agentgauge_requests_refused_total[5m])) > 0",
        summary: "{{ $labels.instance }} refuses requests ({{ $labels.reason }})",
        description: "Whole requests are refused. Exporters retry some of theirs and drop the rest." },
    Row::Fitted(|_| rejected()),
    Row::Fitted(|_| late()),
    Row::Plain { name: "AgentgaugeCardinalityLimited", severity: "warning", lasting: "15m",
        expr: "sum by (job, instance, label) (rate(agentgauge_label_values_limited_total[5m])) > 0",
        summary: "{{ $labels.instance }} merges series into `__overflow__` ({{ $labels.label }})",
        description: "`agent`: there are more agents than `agents.max_agents`; `agent_of_tenant`: a tenant has more than its share of them; `agent_names`: an agent has more sub-agents, or models without a price, than `agents.max_names_per_agent`." },
    Row::Plain { name: "AgentgaugeLimitReached", severity: "warning", lasting: "15m",
        expr: "sum by (job, instance, limit) (rate(agentgauge_limits_reached_total[5m])) > 0",
        summary: "{{ $labels.instance }} keeps reaching a limit ({{ $labels.limit }})",
        description: "Data is left out so that memory stays bounded." },
    Row::Fitted(state),
    Row::Plain { name: "AgentgaugeStoreFailing", severity: "critical", lasting: "1m",
        expr: "max by (job, instance) (agentgauge_store_failing) > 0",
        summary: "{{ $labels.instance }} cannot write its store",
        description: "The disk is full or fails, so every request is refused and /readyz says so; it resumes by itself when there is room." },
    // A snapshot makes room, which takes moments.
    Row::Plain { name: "AgentgaugeStoreFull", severity: "critical", lasting: "5m",
        expr: "sum by (job, instance) (rate(agentgauge_requests_refused_total{reason=\"store_full\"}[2m])) > 0",
        summary: "The store of {{ $labels.instance }} has used all of `store.max_bytes`",
        description: "Requests are refused until there is room." },
    Row::Plain { name: "AgentgaugeSnapshotsFail", severity: "warning", lasting: "15m",
        expr: "max by (job, instance) (agentgauge_store_snapshot_failing) > 0",
        summary: "{{ $labels.instance }} cannot write snapshots of its state",
        description: "Nothing is lost yet, but the log grows until `store.max_bytes` is used, and a restart has to read all of it." },
    Row::Plain { name: "AgentgaugeStoreLostRecords", severity: "critical", lasting: "",
        expr: "sum by (job, instance) (agentgauge_store_recovered{what=~\"lost_records|lost_marks\"}) > 0\nand on (job, instance)\n(time() - process_start_time_seconds < 3600)",
        summary: "{{ $labels.instance }} started without {{ $value }} records that it had acknowledged",
        description: "Files of the store were damaged, and the daemon was configured to start without their records; these are in no score." },
    Row::Plain { name: "AgentgaugeStoreDamaged", severity: "warning", lasting: "",
        expr: "(\n  max by (job, instance) (agentgauge_store_recovered{what=\"bad_snapshots\"}) > 0\n  and on (job, instance)\n  (time() - process_start_time_seconds < 3600)\n)\nor\nsum by (job, instance) (increase(agentgauge_store_files_missing_total[1h])) > 0",
        summary: "Files of the store of {{ $labels.instance }} are damaged or were removed",
        description: "The daemon uses what is left: an older snapshot and the log, or its memory." },
    Row::Plain { name: "AgentgaugeRestarting", severity: "warning", lasting: "",
        expr: "changes(process_start_time_seconds[1h]) > 2\nand on (job, instance)\nagentgauge_build_info",
        summary: "{{ $labels.instance }} restarted {{ $value }} times in an hour",
        description: "State that is not on disk is lost each time: windows start empty." },
    // Files that are only half written are read again at the next look.
    Row::Plain { name: "AgentgaugeCertificateNotLoaded", severity: "warning", lasting: "15m",
        expr: "sum by (job, instance) (rate(agentgauge_certificate_reloads_total{outcome=\"failed\"}[10m])) > 0",
        summary: "{{ $labels.instance }} cannot use its new certificate",
        description: "The old one stays in use until it expires; then no sender can connect." },
    Row::Fitted(|_| deliveries_fail()),
    Row::Plain { name: "AgentJudgeBudgetExhausted", severity: "warning", lasting: "5m",
        expr: "sum by (job, instance) (rate(agentgauge_judge_results_total{result=\"over_budget\"}[15m])) > 0",
        summary: "The judge of {{ $labels.instance }} has spent its budget",
        description: "Scores that depend on it use computed signals until the hour is over." },
    Row::Plain { name: "AgentJudgeEndpointDown", severity: "warning", lasting: "5m",
        expr: "sum by (job, instance) (rate(agentgauge_judge_results_total{result=\"endpoint_down\"}[15m])) > 0",
        summary: "The judge of {{ $labels.instance }} does not answer",
        description: "Calls failed so often that none are made for a while; scores that depend on it use computed signals." },
    Row::Fitted(|_| judge_drifts()),
    // The seconds that the lag takes at the present rate; infinite at rate zero.
    Row::Plain { name: "AgentgaugeKafkaLag", severity: "warning", lasting: "5m",
        expr: "sum by (job, instance, topic) (agentgauge_kafka_consumer_lag_records)\n/\nsum by (job, instance, topic) (rate(agentgauge_kafka_records_total[5m]))\n> 300",
        summary: "{{ $labels.instance }} is {{ $value | humanizeDuration }} behind in {{ $labels.topic }}",
        description: "Records wait in Kafka for longer than five minutes, so loops and scores are late." },
    // Its lag only grows. That of a partition that is idle stays: where producers use transactions, it is never zero.
    Row::Plain { name: "AgentgaugeKafkaPartitionStuck", severity: "warning", lasting: "10m",
        expr: "count by (job, instance, topic) (\n  min_over_time(agentgauge_kafka_consumer_lag_records[15m]) > 0\n  and delta(agentgauge_kafka_consumer_lag_records[15m]) > 0\n  and resets(agentgauge_kafka_consumer_lag_records[15m]) == 0\n)",
        summary: "{{ $labels.instance }} falls behind in partitions of {{ $labels.topic }} ({{ $value }})",
        description: "Records there wait longer and longer, although those of other partitions may be read in time." },
    Row::Plain { name: "AgentgaugeInputLag", severity: "warning", lasting: "10m",
        expr: "max by (job, role) (agentgauge_input_lag_seconds) > 300",
        summary: "The role {{ $labels.role }} of {{ $labels.job }} is {{ $value | humanizeDuration }} behind",
        description: "Records between the instances wait in Kafka: loops, scores and pages are as late." },
    Row::Plain { name: "AgentgaugeKafkaNotReady", severity: "critical", lasting: "5m",
        expr: "max by (job, instance) (agentgauge_kafka_ready) == 0",
        summary: "{{ $labels.instance }} does not read from Kafka",
        description: "It is not in its group, or has another problem; its log names the setting to fix." },
    Row::Plain { name: "AgentgaugeKafkaRecordsSkipped", severity: "warning", lasting: "15m",
        expr: "sum by (job, instance, topic, reason) (rate(agentgauge_kafka_records_skipped_total[15m]))\n/ on (job, instance, topic) group_left ()\n(\n  sum by (job, instance, topic) (rate(agentgauge_kafka_records_total[15m]))\n  + sum by (job, instance, topic) (rate(agentgauge_kafka_records_skipped_total[15m]))\n)\n> 0.01",
        summary: "{{ $labels.instance }} skips {{ $value | humanizePercentage }} of the records of {{ $labels.topic }} ({{ $labels.reason }})",
        description: "Records that cannot be read are not read again: their content is in no score." },
    Row::Plain { name: "AgentgaugeDeadLettersLost", severity: "warning", lasting: "",
        expr: "sum by (job, instance) (increase(agentgauge_kafka_dead_letters_total{outcome=\"failed\"}[1h])) > 0",
        summary: "{{ $labels.instance }} could not keep {{ $value | humanize }} records that it cannot read",
        description: "The dead-letter topic did not accept them, and they are not read again." },
    Row::Fitted(|_| records_gone()),
    Row::Plain { name: "AgentgaugeCheckpointsFail", severity: "warning", lasting: "10m",
        expr: "sum by (job, instance, role) (rate(agentgauge_fleet_checkpoints_total{outcome=\"failed\"}[5m])) > 0",
        summary: "{{ $labels.instance }} cannot write checkpoints (role {{ $labels.role }})",
        description: "Each minute the next owner of a partition has more to reread, in the end more than Kafka keeps." },
    Row::Plain { name: "AgentgaugeFleetRecordsLeftOut", severity: "warning", lasting: "",
        expr: "sum by (job, instance, role, outcome) (increase(agentgauge_fleet_records_total{outcome!~\"applied|replaced_sender\"}[1h])) > 0",
        summary: "{{ $labels.instance }} left out {{ $value | humanize }} records between instances ({{ $labels.outcome }}, role {{ $labels.role }})",
        description: "Data that was acknowledged to senders is in no score: spans, traces, or the state of an agent." },
    Row::Plain { name: "AgentgaugeFleetNotReady", severity: "critical", lasting: "5m",
        expr: "min by (job, instance, role) (agentgauge_fleet_ready) == 0",
        summary: "The role {{ $labels.role }} of {{ $labels.instance }} does not work",
        description: "It is not in its group, or has another problem. If that is so everywhere, acknowledged spans wait in Kafka until its retention deletes them." },
    Row::Plain { name: "AgentgaugeFleetRestarts", severity: "warning", lasting: "",
        expr: "sum by (job, instance, role) (increase(agentgauge_fleet_restarts_total[10m])) > 3",
        summary: "The role {{ $labels.role }} of {{ $labels.instance }} keeps restarting",
        description: "It gives up its partitions and rereads from their checkpoints, so its results are late." },
];

pub(super) fn group(config: &Config) -> Group {
    let rule = |row: &Row| match *row {
        Row::Plain { name, severity, lasting, expr, summary, description } => {
            let lasting = Some(lasting).filter(|lasting| !lasting.is_empty());
            let alert = Alert::new(name, severity, expr.to_owned()).says(summary, description);
            Alert { lasting, ..alert }.into()
        }
        Row::Fitted(rule) => rule(config),
    };
    let rules = ROWS.iter().map(rule).collect();
    Group { name: "agentgauge-daemon", interval: "30s", rules }
}

/// The share of spans that may be left out.
const TOLERATED: f64 = 0.01;

/// The share of a bound that may be used.
const FULL: f64 = 0.9;

/// The greatest drift of a judge that raises no alert.
const DRIFTED: f64 = 0.25;

fn no_spans() -> Rule {
    // Each in turn, as a daemon that has never received one kind does not have its series.
    let fed = |by: &str| {
        let any = ["spans", "log_records"].map(|what| {
            format!("sum by ({by}) (increase(agentgauge_{what}_received_total[15m])) > 0")
        });
        any.join("\nor\n")
    };
    // In a cluster, it is enough that one of the instances receives something.
    let shared = "(agentgauge_kafka_ready or agentgauge_fleet_partitions_owned)";
    let expr = format!(
        "max by (job, instance) (agentgauge_build_info)\nunless on (job, instance)\n({each})\n\
         unless on (job)\n(({any}) and on (job) {shared})",
        each = fed("job, instance"),
        any = fed("job"),
    );
    Alert::new("AgentgaugeNoSpans", "warning", expr)
        .lasting("5m")
        .says(
            "{{ $labels.instance }} receives neither spans nor log records",
            "Nothing has arrived for 15 minutes: either no agent runs, or none reaches it.",
        )
        .into()
}

fn rejected() -> Rule {
    let of = |what: &str| {
        format!("sum by (job, instance) (rate(agentgauge_{what}_rejected_total[15m]))")
    };
    share(
        "AgentgaugeDataRejected",
        &of_both(&of("spans"), &of("logs")),
        "{{ $labels.instance }} leaves out {{ $value | humanizePercentage }} of the spans and log records",
        "They cannot be used; the label `reason` of the metric says why.",
    )
}

fn late() -> Rule {
    // Log records count as late, too.
    share(
        "AgentgaugeLateSpans",
        "sum by (job, instance) (rate(agentgauge_late_spans_total{outcome=\"dropped\"}[15m]))",
        "{{ $value | humanizePercentage }} of the spans and log records arrive too late at {{ $labels.instance }}",
        "Their traces were already sealed: scores are computed from incomplete traces.",
    )
}

/// The sum of the existing series of spans and of log records: a daemon that has never received one kind does not have its series.
fn of_both(spans: &str, records: &str) -> String {
    format!("(\n{spans} + {records}\nor {spans}\nor {records}\n)")
}

/// An alert about a part of the incoming spans and log records.
fn share(name: &'static str, part: &str, summary: &str, description: &str) -> Rule {
    let [spans, records] = ["spans", "log_records"].map(|what| {
        format!("sum by (job, instance) (rate(agentgauge_{what}_received_total[15m]))")
    });
    let expr = format!("{part}\n/\n{}\n> {}", of_both(&spans, &records), number(TOLERATED));
    Alert::new(name, "warning", expr).lasting("15m").says(summary, description).into()
}

fn state(config: &Config) -> Rule {
    // Most bounds are per shard.
    let shards = usize::try_from(config.engine.shards).unwrap_or(1);
    let of_all = |bound: usize| bound.saturating_mul(shards);
    // Instances of a cluster share the bounds, except that of agents, which each partition has.
    let is_shared = config.fleet.enabled();
    let partitions = usize::try_from(config.fleet.partitions).unwrap_or(1);
    let agents = config.agents.max_agents.saturating_mul(if is_shared { partitions } else { 1 });
    let bounds = [
        ("held", "traces", of_all(config.assemble.max_open_traces)),
        ("held", "sessions", of_all(config.session.max_sessions)),
        ("held", "agents", agents),
        ("held_bytes", "traces", of_all(config.assemble.max_bytes)),
        ("held_bytes", "sessions", of_all(config.session.max_bytes)),
    ];
    let parts = bounds.map(|(family, what, bound)| {
        let held = format!("agentgauge_{family}{{what=\"{what}\"}}");
        let held = if is_shared { format!("sum by (job, what) ({held})") } else { held };
        let full = format!("{held} / {bound} > {}", number(FULL));
        // With a store, sessions fill the memory that they may take, and go to disk.
        let is_evicted = what == "sessions" && !is_shared;
        if is_evicted {
            format!("({full} unless on (job, instance) agentgauge_store_failing)")
        } else {
            full
        }
    });
    let who = if is_shared { "job" } else { "instance" };
    Alert::new("AgentgaugeStateNearLimit", "warning", parts.join("\nor\n"))
        .lasting("15m")
        .says(
            &format!("{{{{ $labels.{who} }}}} holds {{{{ $value | humanizePercentage }}}} of its limit of {{{{ $labels.what }}}}"),
            "Above the limit the quietest are evicted first.",
        )
        .into()
}

fn deliveries_fail() -> Rule {
    let to = [
        ("webhook_sessions", "failed|queue_full", "webhook.url"),
        ("scores_out", "dropped|rejected", "scores_out.url"),
        ("metrics_out", "dropped|rejected", "scores_out.metrics_interval"),
    ];
    let failed = to.map(|(metric, outcomes, option)| {
        format!(
            "label_replace(sum by (job, instance) (rate(agentgauge_{metric}_total{{outcome=~\"{outcomes}\"}}[15m])) > 0, \
             \"option\", \"{option}\", \"\", \"\")"
        )
    });
    Alert::new("AgentgaugeDeliveriesFail", "warning", failed.join("\nor\n"))
        .lasting("15m")
        .says(
            "{{ $labels.instance }} cannot deliver to its endpoint (`{{ $labels.option }}`)",
            "What was not delivered is lost. The log says why.",
        )
        .into()
}

fn judge_drifts() -> Rule {
    // The label of the metric stays, as the action depends on it.
    let expr = format!("abs(agentgauge_judge_drift) > {DRIFTED}");
    Alert::new("AgentJudgeDrifts", "warning", expr)
        .lasting("5m")
        .says(
            "The judge of {{ $labels.instance }} is off on traces with known answers ({{ $labels.metric }})",
            "Its scores of them are {{ $value | humanizePercentage }} off, on average.",
        )
        .into()
}

fn records_gone() -> Rule {
    let gone = ["kafka", "fleet"].map(|from| {
        format!("sum by (job, instance) (increase(agentgauge_{from}_records_lost_total[1h])) > 0")
    });
    Alert::new("AgentgaugeRecordsLost", "critical", gone.join("\nor\n"))
        .says(
            "{{ $labels.instance }} lost records in Kafka",
            "The brokers deleted {{ $value | humanize }} records in the last hour before they were read, or lost records from the end of a topic; unread records are in no score.",
        )
        .into()
}
