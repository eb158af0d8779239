//! Alerts about agents that drop, stop or stall. The daemon decides, trace by trace; these rules read its state.
//!
//! Texts look up their details by `query` when they are sent, and the series are not joined with them. So an alert stays one alert
//! while its level and its examples change, and fires without them, too. Several instances may have series of an agent while it
//! moves between them, hence `max by`.

use super::{AGENT, Alert, Group, NAME, NAME_IF_KNOWN, Plan, Rule, looked_up};

pub(super) fn group(plan: &Plan) -> Group {
    let rules = vec![dropped(plan), weakened(plan), worse(plan), stopped(), stalled()];
    Group { name: "agentgauge-drops", interval: "15s", rules }
}

/// The least silence of an agent in seconds at which an alert fires, and for how many seconds it fires: after that the agent counts
/// as retired.
const LEAST_SILENCE: u32 = 600;
const TOLD: u32 = 86_400;

/// How long a page stays while no daemon exports its drop: after as long without any daemon, `AgentgaugeAbsent` fires.
const HELD: &str = "5m";

/// The longest time in seconds that a started daemon waits before it reports that an agent is silent.
const MOST_PATIENCE: u32 = 3_600;

/// Binds `$of` to the labels of the dropped stream, as a selector.
const OF: &str = "{{ $of := printf \"service_name=%q,gen_ai_agent_name=%q,gen_ai_agent_version=%q,\
    deployment_environment_name=%q,tenant=%q,stream=%q\" $labels.service_name $labels.gen_ai_agent_name \
    $labels.gen_ai_agent_version $labels.deployment_environment_name $labels.tenant $labels.stream }}";

/// What a stream has more of than usual.
const WHAT: &str = "{{ if eq $labels.stream \"verdict\" }}failing traces{{ else if eq $labels.stream \"outcome\" }}\
    failed outcomes{{ else if eq $labels.stream \"predicted_failure\" }}failed outcomes (partly predicted){{ else if eq $labels.stream \"tool_failures\" }}traces with failing tools{{ else if eq $labels.stream \"loops\" }}traces with loops{{ else }}\
    percentile of {{ $labels.stream }} among usual traces{{ end }}";

const VERSION: &str = "{{ with $labels.gen_ai_agent_version }} {{ . }}{{ end }}";

/// The environment and the tenant of the agent, if they are known.
const PLACE: &str = "{{ with $labels.deployment_environment_name }} in {{ . }}{{ end }}\
    {{ with $labels.tenant }}, tenant {{ . }}{{ end }}";

const SINCE: &str = "agentgauge_agent_drop_start_timestamp_seconds";

fn dropped(plan: &Plan) -> Rule {
    let expr = state("agentgauge_agent_drop{severity=\"critical\"}");
    // A daemon that restarts exports no drop for a moment, and a scrape may fail: the page would end, and come again.
    let alert = Alert::new("AgentReliabilityDrop", "critical", expr).held(HELD);
    of_drop(plan, alert).into()
}

fn weakened(plan: &Plan) -> Rule {
    let all = state("agentgauge_agent_drop{severity=\"warning\"}");
    // There is no warning while any stream of the agent version pages.
    let critical = state("agentgauge_agent_drop{severity=\"critical\"}");
    let expr = format!("{all}\nunless on ({AGENT}, gen_ai_agent_version)\n{critical}");
    of_drop(plan, Alert::new("AgentReliabilityDrop", "warning", expr)).into()
}

fn worse(plan: &Plan) -> Rule {
    let expr = format!(
        "max by ({AGENT}, gen_ai_agent_version, stream, version_before) \
         (agentgauge_agent_drop_against{{against=\"version_before\",stream=~\"verdict|outcome\"}}) > 0"
    );
    let alert = Alert::new("AgentVersionWorse", "warning", expr).held(HELD);
    let mut alert = of_drop(plan, alert);
    alert.summary = format!(
        "{OF}{NAME}{VERSION} is worse than {{{{ with $labels.version_before }}}}version {{{{ . }}}}{{{{ else }}}}the previous one{{{{ end }}}}: {WHAT} up{}",
        levels()
    );
    alert.into()
}

fn stopped() -> Rule {
    let last = "agentgauge_agent_last_trace_timestamp_seconds";
    let usual = format!("max by ({AGENT}) (agentgauge_agent_usual_gap_seconds)");
    // After an outage of the daemon all agents seem silent: they get time to come back.
    let started = "on (job, instance) group_left () process_start_time_seconds";
    let expr = format!(
        "time() - max by ({AGENT}) ({last})\n\
         - clamp_min({usual}, {LEAST_SILENCE})\n\
         > 0 < {TOLD}\n\
         unless\n\
         time() - min by ({AGENT}) ({last} * 0 + {started})\n\
         - clamp({usual}, {LEAST_SILENCE}, {MOST_PATIENCE})\n\
         <= 0"
    );
    let of = "{{ $of := printf \"service_name=%q,gen_ai_agent_name=%q,deployment_environment_name=%q,tenant=%q\" \
              $labels.service_name $labels.gen_ai_agent_name $labels.deployment_environment_name $labels.tenant }}";
    let silence = "floor(time() - max(agentgauge_agent_last_trace_timestamp_seconds{%s}))";
    Alert::new("AgentStopped", "warning", expr)
        .explained_by("recent")
        .says(
            &format!(
                "{of}{NAME} has been silent{}",
                looked_up(silence, " for {{ . | first | value | humanizeDuration }}")
            ),
            &format!(
                "{of}It has sent nothing{PLACE}{}{}.",
                looked_up(
                    "floor(max(agentgauge_agent_last_trace_timestamp_seconds{%s}))",
                    " since {{ . | first | value | humanizeTimestamp }}"
                ),
                looked_up(
                    "max(agentgauge_agent_usual_gap_seconds{%s})",
                    "; more than {{ . | first | value | humanizeDuration }} of silence is not usual for it"
                ),
            ),
        )
        .into()
}

fn stalled() -> Rule {
    let expr =
        format!("sum by ({AGENT}, gen_ai_agent_version) (agentgauge_agent_stalled_traces) > 0");
    Alert::new("AgentStalled", "warning", expr)
        .says(
            &format!("{NAME_IF_KNOWN}{VERSION}: {{{{ $value }}}} of its traces hang"),
            &format!("They are open{PLACE}, and no span of them has arrived for a long time: a model or a tool does not answer, or the process is gone."),
        )
        .explained_by("recent&silent=true")
        .into()
}

/// An expression: the streams of each agent version that are in a state.
fn state(series: &str) -> String {
    format!("max by ({AGENT}, gen_ai_agent_version, stream) ({series}) > 0")
}

/// Adds the texts about a drop, which fit on one screen.
fn of_drop(plan: &Plan, alert: Alert) -> Alert {
    let summary = format!("{OF}{NAME}{VERSION}: {WHAT} up{}", levels());
    let since = looked_up(
        &format!("floor(max({SINCE}{{%s}}))"),
        "Since {{ . | first | value | humanizeTimestamp }}",
    );
    let ago = looked_up(
        &format!("floor(time() - max({SINCE}{{%s}}))"),
        " ({{ . | first | value | humanizeDuration }} ago)",
    );
    let traces =
        looked_up("max(agentgauge_agent_drop_traces{%s})", ", over {{ . | first | value }} traces");
    let against = looked_up(
        "max by (against, version_before) (agentgauge_agent_drop_against{%s}) > 0",
        "{{ range . }}, against {{ if eq (label \"against\" .) \"version_before\" }}\
         version {{ or (label \"version_before\" .) \"before\" }}\
         {{ else if eq (label \"against\" .) \"objective\" }}its objective{{ else }}its own past{{ end }}{{ end }}",
    );
    let carried = looked_up(
        EXAMPLE,
        "{{ $e := first . }}{{ with label \"signal\" $e }} Most frequent cause: {{ . }}\
         {{ with label \"tool\" $e }}, in the tool {{ . }}{{ end }}\
         {{ with label \"error_type\" $e }}, with {{ . }}{{ end }}.{{ end }}",
    );
    let description = format!("{OF}{since}{ago}{traces}{against}{PLACE}.{carried}");
    alert
        .says(&summary, &description)
        .annotated("example_url", &example(plan, "example_session"))
        .annotated("example_url_2", &example(plan, "second_session"))
        .annotated("explain_url", &plan.agent_page())
}

const EXAMPLE: &str = "agentgauge_agent_drop_example{%s}";

/// The text with the level before the drop and the level after it.
fn levels() -> String {
    let level = |word: &str, of: &str| {
        looked_up(
            &format!("100 * max({of}{{%s}})"),
            &format!(" {word} {{{{ . | first | value | printf \"%.3g\" }}}} %"),
        )
    };
    level("from", "agentgauge_agent_drop_baseline") + &level("to", "agentgauge_agent_drop_level")
}

/// The link to an example on the page, or to the agent if there is no example.
fn example(plan: &Plan, label: &str) -> String {
    // In a path, a plus sign does not stand for a space.
    let path = "urlquery | reReplaceAll \"[+]\" \"%20\"";
    let found = format!(
        "{{{{ with printf \"{EXAMPLE}\" $of | query }}}}{{{{ with . | first | label \"{label}\" }}}}\
         {{{{ $session = . | {path} }}}}{{{{ end }}}}{{{{ end }}}}"
    );
    format!(
        "{OF}{{{{ $session := \"\" }}}}{found}{{{{ if $session }}}}{}/#/session/{{{{ $session }}}}\
         {{{{ with $labels.tenant }}}}?tenant={{{{ . | urlquery }}}}{{{{ end }}}}{{{{ else }}}}{}{{{{ end }}}}",
        plan.url,
        plan.agent_page()
    )
}
