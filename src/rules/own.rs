//! Alerts about the daemon itself: whether it runs, whether it receives spans, whether it leaves anything out.

use super::{Alert, Group, Rule, number};
use crate::config::Config;

pub(super) fn group(config: &Config) -> Group {
    let rules = vec![
        absent(),
        instance_down(),
        no_spans(),
        refused(),
        rejected(),
        late(),
        cardinality(),
        limits(),
        state(config),
        store_failing(),
        store_full(),
        restarting(),
        certificate_not_loaded(),
        deliveries_fail(),
        judge_over_budget(),
        judge_down(),
        judge_drifts(),
        kafka_lag(),
        input_lag(),
        kafka_not_ready(),
        records_gone(),
        checkpoints_fail(),
    ];
    Group { name: "agentgauge-daemon", interval: "30s", rules }
}

/// The share of spans that may be left out.
const TOLERATED: f64 = 0.01;

/// The share of a bound that may be used.
const FULL: f64 = 0.9;

/// The greatest drift of a judge that raises no alert.
const DRIFTED: f64 = 0.25;

fn absent() -> Rule {
    Alert::new("AgentgaugeAbsent", "critical", "absent(agentgauge_build_info)".to_owned())
        .lasting("5m")
        .says("No agentgauge is scraped", "Agents are not watched: every other alert stays silent.")
        .into()
}

fn instance_down() -> Rule {
    // That it was an agentgauge is known by what it has shown before.
    let expr = "up == 0\nand on (job, instance) max_over_time(agentgauge_build_info[1d])";
    Alert::new("AgentgaugeInstanceDown", "critical", expr.to_owned())
        .lasting("5m")
        .says(
            "{{ $labels.instance }} cannot be scraped",
            "The daemon is down or out of reach. Unless others share its work, nobody watches its agents.",
        )
        .into()
}

fn no_spans() -> Rule {
    // Each in turn, as a daemon that has never received one kind does not have its series.
    let fed = |by: &str| {
        let any = ["spans", "log_records"].map(|what| {
            format!("sum by ({by}) (increase(agentgauge_{what}_received_total[15m])) > 0")
        });
        any.join("\nor\n")
    };
    // Where instances share the work, it is enough that one of them receives something.
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
            "Nothing came in for 15 minutes: either no agent runs, or none reaches it.",
        )
        .into()
}

fn refused() -> Rule {
    let expr = "sum by (job, instance, reason) (rate(agentgauge_requests_refused_total[5m])) > 0";
    Alert::new("AgentgaugeRequestsRefused", "warning", expr.to_owned())
        .lasting("10m")
        .says(
            "{{ $labels.instance }} refuses requests ({{ $labels.reason }})",
            "Whole requests are refused. Exporters retry some of theirs and drop the rest.",
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
        "{{ $value | humanizePercentage }} of the spans and log records come too late for {{ $labels.instance }}",
        "Their traces were sealed before: scores are over traces with holes.",
    )
}

/// The sum of what there is of spans and of log records: a daemon that has never met one kind does not have its series.
fn of_both(spans: &str, records: &str) -> String {
    format!("(\n{spans} + {records}\nor {spans}\nor {records}\n)")
}

/// An alert about a part of the spans and log records that come.
fn share(name: &'static str, part: &str, summary: &str, description: &str) -> Rule {
    let [spans, records] = ["spans", "log_records"].map(|what| {
        format!("sum by (job, instance) (rate(agentgauge_{what}_received_total[15m]))")
    });
    let expr = format!("{part}\n/\n{}\n> {}", of_both(&spans, &records), number(TOLERATED));
    Alert::new(name, "warning", expr).lasting("15m").says(summary, description).into()
}

fn cardinality() -> Rule {
    let expr =
        "sum by (job, instance, label) (rate(agentgauge_label_values_limited_total[5m])) > 0";
    Alert::new("AgentgaugeCardinalityLimited", "warning", expr.to_owned())
        .lasting("15m")
        .says(
            "{{ $labels.instance }} merges series into `__overflow__` ({{ $labels.label }})",
            "`agent`: there are more agents than `agents.max_agents`; `agent_of_tenant`: a tenant has more than its share of them; \
             `agent_names`: an agent has more sub-agents, or models without a price, than `agents.max_names_per_agent`.",
        )
        .into()
}

fn limits() -> Rule {
    let expr = "sum by (job, instance, limit) (rate(agentgauge_limits_reached_total[5m])) > 0";
    Alert::new("AgentgaugeLimitReached", "warning", expr.to_owned())
        .lasting("15m")
        .says(
            "{{ $labels.instance }} keeps reaching a limit ({{ $labels.limit }})",
            "Something is left out so that memory stays bounded.",
        )
        .into()
}

fn state(config: &Config) -> Rule {
    // Most bounds are per shard.
    let shards = usize::try_from(config.engine.shards).unwrap_or(1);
    let of_all = |bound: usize| bound.saturating_mul(shards);
    // Instances of a fleet share the bounds, but for that of agents, which each partition has.
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
            &format!("{{{{ $labels.{who} }}}} holds {{{{ $value | humanizePercentage }}}} of the {{{{ $labels.what }}}} that it may"),
            "Above the limit the quietest are evicted first.",
        )
        .into()
}

fn store_failing() -> Rule {
    let expr = "max by (job, instance) (agentgauge_store_failing) > 0";
    Alert::new("AgentgaugeStoreFailing", "critical", expr.to_owned())
        .lasting("1m")
        .says(
            "{{ $labels.instance }} cannot write its store",
            "The disk is full or fails, so every request is refused and /readyz says so; it goes on by itself when there is room.",
        )
        .into()
}

fn store_full() -> Rule {
    // A snapshot makes room, which takes moments.
    let expr = "sum by (job, instance) (rate(agentgauge_requests_refused_total{reason=\"store_full\"}[2m])) > 0";
    Alert::new("AgentgaugeStoreFull", "critical", expr.to_owned())
        .lasting("5m")
        .says(
            "The store of {{ $labels.instance }} has used all of `store.max_bytes`",
            "Requests are refused until there is room.",
        )
        .into()
}

fn restarting() -> Rule {
    let expr = "changes(process_start_time_seconds[1h]) > 2\n\
                and on (job, instance)\nagentgauge_build_info";
    Alert::new("AgentgaugeRestarting", "warning", expr.to_owned())
        .says(
            "{{ $labels.instance }} restarted {{ $value }} times in an hour",
            "What is not kept on disk is gone after each: windows fill anew.",
        )
        .into()
}

fn certificate_not_loaded() -> Rule {
    // Files that are only half written are read again at the next look.
    let expr = "sum by (job, instance) (rate(agentgauge_certificate_reloads_total{outcome=\"failed\"}[10m])) > 0";
    Alert::new("AgentgaugeCertificateNotLoaded", "warning", expr.to_owned())
        .lasting("15m")
        .says(
            "{{ $labels.instance }} cannot use its new certificate",
            "The old one stays until it expires; then no sender gets through.",
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

fn judge_over_budget() -> Rule {
    let expr = "sum by (job, instance) (rate(agentgauge_judge_results_total{result=\"over_budget\"}[15m])) > 0";
    Alert::new("AgentJudgeBudgetExhausted", "warning", expr.to_owned())
        .lasting("5m")
        .says(
            "The judge of {{ $labels.instance }} has spent its budget",
            "Scores that depend on it go by computed signals until the hour is over.",
        )
        .into()
}

fn judge_down() -> Rule {
    let expr = "sum by (job, instance) (rate(agentgauge_judge_results_total{result=\"endpoint_down\"}[15m])) > 0";
    Alert::new("AgentJudgeEndpointDown", "warning", expr.to_owned())
        .lasting("5m")
        .says(
            "The judge of {{ $labels.instance }} does not answer",
            "Calls failed so often that none are made for a while; scores that depend on it go by computed signals.",
        )
        .into()
}

fn judge_drifts() -> Rule {
    // The label of the metric stays, as what to do depends on it.
    let expr = format!("abs(agentgauge_judge_drift) > {DRIFTED}");
    Alert::new("AgentJudgeDrifts", "warning", expr)
        .lasting("5m")
        .says(
            "The judge of {{ $labels.instance }} is off on traces with known answers ({{ $labels.metric }})",
            "Its scores of them are {{ $value | humanizePercentage }} off, on average.",
        )
        .into()
}

fn kafka_lag() -> Rule {
    // The seconds that the lag takes at the present rate; infinite at rate zero.
    let expr = "sum by (job, instance, topic) (agentgauge_kafka_consumer_lag_records)\n/\n\
                sum by (job, instance, topic) (rate(agentgauge_kafka_records_total[5m]))\n> 300";
    Alert::new("AgentgaugeKafkaLag", "warning", expr.to_owned())
        .lasting("5m")
        .says(
            "{{ $labels.instance }} is {{ $value | humanizeDuration }} behind in {{ $labels.topic }}",
            "Records wait in Kafka for longer than five minutes: loops and scores show late.",
        )
        .into()
}

fn input_lag() -> Rule {
    let expr = "max by (job, role) (agentgauge_input_lag_seconds) > 300";
    Alert::new("AgentgaugeInputLag", "warning", expr.to_owned())
        .lasting("10m")
        .says(
            "The role {{ $labels.role }} of {{ $labels.job }} is {{ $value | humanizeDuration }} behind",
            "What instances tell each other waits in Kafka: loops, scores and pages are late by as much.",
        )
        .into()
}

fn kafka_not_ready() -> Rule {
    let expr = "max by (job, instance) (agentgauge_kafka_ready) == 0";
    Alert::new("AgentgaugeKafkaNotReady", "critical", expr.to_owned())
        .lasting("5m")
        .says(
            "{{ $labels.instance }} does not read from Kafka",
            "It is not in its group, or something is in its way; its log says which setting.",
        )
        .into()
}

fn records_gone() -> Rule {
    let gone = ["kafka", "fleet"].map(|from| {
        format!("sum by (job, instance) (increase(agentgauge_{from}_records_gone_total[1h])) > 0")
    });
    Alert::new("AgentgaugeRecordsGone", "critical", gone.join("\nor\n"))
        .says(
            "{{ $labels.instance }} lost records in Kafka",
            "The brokers deleted {{ $value | humanize }} records in the last hour before they were read, or lost the end of what was read; what was in unread ones is in no score.",
        )
        .into()
}

fn checkpoints_fail() -> Rule {
    let expr = "sum by (job, instance, role) (rate(agentgauge_fleet_checkpoints_total{outcome=\"failed\"}[5m])) > 0";
    Alert::new("AgentgaugeCheckpointsFail", "warning", expr.to_owned())
        .lasting("10m")
        .says(
            "{{ $labels.instance }} cannot write checkpoints (role {{ $labels.role }})",
            "The next owner of a partition reads back further with each minute, at last beyond what Kafka keeps.",
        )
        .into()
}
