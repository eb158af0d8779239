//! Alerts about the daemon itself: whether it runs, whether it receives spans, whether it leaves anything out.

use super::{Alert, Group, Rule, number};
use crate::config::Config;

pub(super) fn group(config: &Config) -> Group {
    let rules = vec![
        absent(),
        no_spans(),
        refused(),
        rejected(),
        late(),
        cardinality(),
        limits(),
        state(config),
        store_failing(),
        restarting(),
        judge_over_budget(),
        judge_down(),
        judge_drifts(),
        kafka_lag(),
        kafka_not_ready(),
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

fn no_spans() -> Rule {
    // A daemon that has never received a span does not have this series.
    let fed = "sum by (job, instance) (increase(agentgauge_spans_received_total[15m])) > 0";
    let expr =
        format!("max by (job, instance) (agentgauge_build_info)\nunless on (job, instance)\n{fed}");
    Alert::new("AgentgaugeNoSpans", "warning", expr)
        .lasting("5m")
        .says(
            "{{ $labels.instance }} receives no spans",
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
            "Whole requests of spans are turned away; exporters retry some of them and drop the rest.",
        )
        .into()
}

fn rejected() -> Rule {
    share(
        "AgentgaugeSpansRejected",
        "agentgauge_spans_rejected_total",
        "{{ $labels.instance }} leaves out {{ $value | humanizePercentage }} of the spans",
        "They cannot be used; the label `reason` of the metric says why.",
    )
}

fn late() -> Rule {
    share(
        "AgentgaugeLateSpans",
        "agentgauge_late_spans_total{outcome=\"dropped\"}",
        "{{ $value | humanizePercentage }} of the spans come too late for {{ $labels.instance }}",
        "Their traces were sealed before: scores are over traces with holes.",
    )
}

fn share(name: &'static str, part: &str, summary: &str, description: &str) -> Rule {
    let (metric, labels) = part.split_at(part.find('{').unwrap_or(part.len()));
    let expr = format!(
        "sum by (job, instance) (rate({metric}{labels}[15m]))\n/\n\
         sum by (job, instance) (rate(agentgauge_spans_received_total[15m]))\n> {}",
        number(TOLERATED)
    );
    Alert::new(name, "warning", expr).lasting("15m").says(summary, description).into()
}

fn cardinality() -> Rule {
    let expr =
        "sum by (job, instance, label) (rate(agentgauge_label_values_limited_total[5m])) > 0";
    Alert::new("AgentgaugeCardinalityLimited", "warning", expr.to_owned())
        .lasting("15m")
        .says(
            "{{ $labels.instance }} has more agents than `agents.max_agents`",
            "Further agents share the series `__overflow__`.",
        )
        .into()
}

fn limits() -> Rule {
    let expr = "sum by (job, instance, limit) (rate(agentgauge_limits_reached_total[5m])) > 0";
    Alert::new("AgentgaugeLimitReached", "warning", expr.to_owned())
        .lasting("15m")
        .says(
            "{{ $labels.instance }} keeps reaching a bound ({{ $labels.limit }})",
            "Something is left out so that memory stays bounded.",
        )
        .into()
}

fn state(config: &Config) -> Rule {
    // Most bounds are per shard.
    let shards = usize::try_from(config.engine.shards).unwrap_or(1);
    let of_all = |bound: usize| bound.saturating_mul(shards);
    let bounds = [
        ("held", "traces", of_all(config.assemble.max_open_traces)),
        ("held", "sessions", of_all(config.session.max_sessions)),
        ("held", "agents", config.agents.max_agents),
        ("held_bytes", "traces", of_all(config.assemble.max_bytes)),
        ("held_bytes", "sessions", of_all(config.session.max_bytes)),
    ];
    let parts = bounds.map(|(family, what, bound)| {
        format!("agentgauge_{family}{{what=\"{what}\"}} / {bound} > {}", number(FULL))
    });
    Alert::new("AgentgaugeStateNearLimit", "warning", parts.join("\nor\n"))
        .lasting("15m")
        .says(
            "{{ $labels.instance }} holds {{ $value | humanizePercentage }} of the {{ $labels.what }} that it may",
            "Over the bound the longest quiet ones go early.",
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
            "The judge of {{ $labels.instance }} is not the judge that it was: {{ $labels.metric }}",
            "What it says of traces with known answers is {{ $value | humanizePercentage }} off, on average.",
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
