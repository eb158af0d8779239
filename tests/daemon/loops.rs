//! The report of a loop, by how much of it is on the wire and how long it took.

use serde_json::{Value, json};

use agentgauge::clock::Clock;

use crate::support::daemon::Daemon;

/// An agent's finished turn: a model call before each of this many calls of one tool, as far as spans report them.
struct Turn {
    number: u8,
    agent: &'static str,
    calls: u64,
    step_nanos: u64,
    told: &'static [(&'static str, &'static str)],
}

const ARGUMENTS: (&str, &str) = ("gen_ai.tool.call.arguments", r#"{"path":"a"}"#);
const RESULT: (&str, &str) = ("gen_ai.tool.call.result", "nothing");

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

fn number(key: &str, value: u64) -> Value {
    json!({ "key": key, "value": { "intValue": value.to_string() } })
}

impl Turn {
    fn body(&self) -> String {
        let end = Clock::system().now().0;
        let start = end - self.step_nanos * (self.calls + 1);
        let span = |id: u64, (from, to): (u64, u64), attributes: Vec<Value>| {
            json!({
                "traceId": format!("{:032x}", self.number), "spanId": format!("{id:016x}"), "name": "span",
                "parentSpanId": if id == 1 { String::new() } else { format!("{:016x}", 1) },
                "startTimeUnixNano": from.to_string(), "endTimeUnixNano": to.to_string(),
                "attributes": attributes,
            })
        };
        let mut spans = vec![span(
            1,
            (start, end),
            vec![
                text("gen_ai.operation.name", "invoke_agent"),
                text("gen_ai.agent.name", self.agent),
                text("gen_ai.conversation.id", self.agent),
            ],
        )];
        for call in 0..self.calls {
            let at = start + (call + 1) * self.step_nanos;
            let (id, third) = (2 * call + 2, self.step_nanos / 3);
            let asked = vec![
                text("gen_ai.operation.name", "chat"),
                text("gen_ai.request.model", "m"),
                number("gen_ai.usage.input_tokens", 1_000),
                number("gen_ai.usage.output_tokens", 10),
            ];
            let told = self.told.iter().map(|(key, value)| text(key, value));
            let called = [
                text("gen_ai.operation.name", "execute_tool"),
                text("gen_ai.tool.name", "read_file"),
            ];
            spans.push(span(id, (at - 2 * third, at - third), asked));
            spans.push(span(id + 1, (at, at + 1_000), called.into_iter().chain(told).collect()));
        }
        json!({ "resourceSpans": [{
            "resource": { "attributes": [text("service.name", "shop")] },
            "scopeSpans": [{ "spans": spans }],
        }]})
        .to_string()
    }

    fn send(&self, daemon: &Daemon) {
        send(daemon, &self.body());
    }

    /// Sends what has ended before its root, which names the agent.
    fn send_without_root(&self, daemon: &Daemon) {
        let mut body: Value = serde_json::from_str(&self.body()).unwrap();
        let spans = &mut body["resourceSpans"][0]["scopeSpans"][0]["spans"];
        spans.as_array_mut().unwrap().remove(0);
        send(daemon, &body.to_string());
    }

    /// A series of the agent.
    fn series(&self, family: &str, labels: &str) -> String {
        let agent = self.agent;
        format!(
            "agentgauge_{family}{{service_name=\"shop\",gen_ai_agent_name=\"{agent}\"{labels}}}"
        )
    }
}

fn send(daemon: &Daemon, body: &str) {
    let (status, answer) = daemon.post_to(&daemon.otlp_http, "/v1/traces", body);
    assert_eq!(status, 200, "{answer}");
}

fn daemon(more: &[(&str, &str)]) -> Daemon {
    let prices = r#"[{ model = "*", input = 2.5, output = 10.0 }]"#;
    let mut environment = vec![
        ("AGENTGAUGE__COST__PRICES", prices),
        // The address has no listener: the webhook only logs what it would send.
        ("AGENTGAUGE__WEBHOOK__URL", "http://127.0.0.1:9/"),
        ("AGENTGAUGE__WEBHOOK__ALLOW_HTTP", "true"),
        ("AGENTGAUGE_WEBHOOK_SECRET", "s"),
    ];
    environment.extend(more);
    Daemon::start_with(&environment)
}

const WEBHOOK: &str = "agentgauge_webhook_sessions_total{outcome=\"dry_run\"}";

fn ask(daemon: &Daemon, path: &str) -> Value {
    serde_json::from_str(&daemon.get(path)).unwrap()
}

#[test]
fn a_loop_of_names_alone_is_told_and_moves_nothing() {
    let daemon = daemon(&[("AGENTGAUGE__WEBHOOK__SEVERITY", "warning")]);
    let named = Turn { number: 1, agent: "bare", calls: 5, step_nanos: 1_000_000, told: &[] };
    named.send(&daemon);
    daemon.settles_at(&named.series("traces_total", ""), 1.0);
    let kind = ",kind=\"exact_repeat\",severity=\"warning\",evidence=\"names\"";
    daemon.settles_at(&named.series("loops_detected_total", kind), 1.0);
    daemon.settles_at(&named.series("sessions_looping", kind), 1.0);
    for signal in ["tool_loop", "trace_risk"] {
        let passed = format!(",signal=\"{signal}\",verdict=\"pass\"");
        daemon.settles_at(&named.series("trace_evaluations_total", &passed), 1.0);
    }
    for evidence in ["arguments", "full", "results"] {
        let wasted = format!(",evidence=\"{evidence}\"");
        daemon.settles_at(&named.series("loop_wasted_cost_usd_total", &wasted), 0.0);
    }
    let page = daemon.get("/metrics");
    assert!(!page.contains("agentgauge_loop_wasted_tokens_total{"), "{page}");
    let told = page.lines().filter(|line| line.starts_with("agentgauge_webhook_sessions_total{"));
    assert!(told.into_iter().all(|line| line.ends_with(" 0")), "{page}");
    let explained = ask(&daemon, &format!("/api/v1/traces/{:032x}", 1));
    assert_eq!(explained["loops"][0]["evidence"], "names");
    assert_eq!(explained["loops"][0]["count"], 5);
    assert_eq!(explained["loops"][0]["without"], explained["now"]);
    assert_eq!(ask(&daemon, "/api/v1/fleet")["agents"][0]["sessions_looping"], 0);

    // Results or arguments make it more.
    for (number, agent, told, evidence) in [
        (2, "results", &[RESULT][..], "results"),
        (3, "arguments", &[ARGUMENTS][..], "arguments"),
        (4, "full", &[ARGUMENTS, RESULT][..], "full"),
    ] {
        let turn = Turn { number, agent, calls: 5, step_nanos: 1_000_000, told };
        turn.send(&daemon);
        let kind = format!(",kind=\"exact_repeat\",severity=\"warning\",evidence=\"{evidence}\"");
        daemon.settles_at(&turn.series("sessions_looping", &kind), 1.0);
        let failed = ",signal=\"tool_loop\",verdict=\"fail\"";
        daemon.settles_at(&turn.series("trace_evaluations_total", failed), 1.0);
        let wasted = format!(",type=\"input\",evidence=\"{evidence}\"");
        daemon.settles_at(&turn.series("loop_wasted_tokens_total", &wasted), 4_000.0);
        daemon.settles_at(WEBHOOK, f64::from(number) - 1.0);
    }
}

#[test]
fn a_tool_that_is_allowed_and_one_that_is_polled_are_in_no_loop() {
    let daemon = daemon(&[("AGENTGAUGE__LOOPS__ALLOW", r#"["read_*"]"#)]);
    let told = &[ARGUMENTS, RESULT];
    let turn = Turn { number: 1, agent: "allowed", calls: 20, step_nanos: 1_000_000, told };
    turn.send(&daemon);
    daemon.settles_at(&turn.series("traces_total", ""), 1.0);
    assert_eq!(ask(&daemon, &format!("/api/v1/traces/{:032x}", 1))["loops"], json!([]));
}

#[test]
fn a_critical_loop_is_seen_and_told_however_short_it_was() {
    let daemon = daemon(&[]);
    let told = &[ARGUMENTS, RESULT];
    for (number, agent, seconds) in [(1, "1 s", 1), (2, "12 s", 12), (3, "300 s", 300)] {
        let step_nanos = seconds * 1_000_000_000 / 12;
        let turn = Turn { number, agent, calls: 12, step_nanos, told };
        turn.send(&daemon);
        daemon.settles_at(&turn.series("traces_total", ""), 1.0);
        let kind = ",kind=\"exact_repeat\",severity=\"critical\",evidence=\"full\"";
        daemon.settles_at(&turn.series("sessions_looping", kind), 1.0);
        daemon.settles_at(WEBHOOK, f64::from(number));
    }
}

#[test]
fn a_loop_without_its_root_has_the_agents_name_in_whatever_shard_it_is() {
    let daemon = daemon(&[("AGENTGAUGE__ENGINE__SHARDS", "4")]);
    let told = &[ARGUMENTS, RESULT];
    let turn =
        |number, calls| Turn { number, agent: "support", calls, step_nanos: 1_000_000, told };
    let first = turn(1, 1);
    first.send(&daemon);
    daemon.settles_at(&first.series("traces_total", ""), 1.0);
    // Eight traces, which are in several shards.
    (2..10).for_each(|number| turn(number, 5).send_without_root(&daemon));
    let kind = ",kind=\"exact_repeat\",severity=\"warning\",evidence=\"full\"";
    daemon.settles_at(&first.series("sessions_looping", kind), 8.0);
    let page = daemon.get("/metrics");
    let looping = page.lines().filter(|line| line.starts_with("agentgauge_sessions_looping{"));
    assert_eq!(looping.count(), 1, "{page}");
}

#[test]
fn a_session_with_two_loops_is_one_session_in_loops() {
    let daemon = daemon(&[]);
    // Turns of one session, each with a loop; of the last one nothing but names is known.
    let told: [&[_]; 3] = [&[ARGUMENTS, RESULT], &[ARGUMENTS], &[]];
    let turns = (1..).zip(told).map(|(number, told)| {
        let turn = Turn { number, agent: "support", calls: 5, step_nanos: 1_000_000, told };
        turn.send(&daemon);
        daemon.settles_at(&turn.series("traces_total", ""), f64::from(number));
        turn
    });
    let last = turns.last().unwrap();
    for evidence in ["full", "arguments", "names"] {
        let kind = format!(",kind=\"exact_repeat\",severity=\"warning\",evidence=\"{evidence}\"");
        daemon.settles_at(&last.series("sessions_looping", &kind), 1.0);
    }
    daemon.settles_at(&last.series("sessions_in_loops", ""), 1.0);
    let named = Turn { agent: "bare", number: 9, ..last };
    named.send(&daemon);
    daemon.settles_at(&named.series("traces_total", ""), 1.0);
    daemon.settles_at(&named.series("sessions_in_loops", ""), 0.0);
}

#[test]
fn a_loop_of_the_second_agent_of_a_session_is_found_by_that_agent() {
    let daemon = daemon(&[]);
    let told = &[ARGUMENTS, RESULT];
    let turn =
        |number, calls| Turn { number, agent: "support", calls, step_nanos: 1_000_000, told };
    let first = turn(1, 1);
    first.send(&daemon);
    daemon.settles_at(&first.series("traces_total", ""), 1.0);
    // Another service with an agent of the same name, and no namespace: one session.
    send(&daemon, &turn(2, 5).body().replace("shop", "bank"));
    let looping = "agentgauge_sessions_looping{service_name=\"bank\",gen_ai_agent_name=\"support\"\
                   ,kind=\"exact_repeat\",severity=\"warning\",evidence=\"full\"}";
    daemon.settles_at(looping, 1.0);
    // Where the alert's link leads.
    let listed = |service| {
        let path = format!("/api/v1/sessions?sort=loops&service_name={service}&agent_name=support");
        ask(&daemon, &path)["sessions"].as_array().unwrap().len()
    };
    assert_eq!(["shop", "bank", "mail"].map(listed), [1, 1, 0]);
    let problems = ask(&daemon, "/api/v1/problems");
    let problem = &problems["problems"][0];
    assert_eq!(problem["agent"]["service_name"], "bank", "{problems}");
    assert_eq!(
        (&problem["session"]["session_id"], &problem["calls"]),
        (&json!("support"), &json!(5))
    );
}

/// A record of Claude Code, this many milliseconds ago.
fn record(ago_ms: u64, event: &str, told: &[(&str, &str)]) -> Value {
    let time = Clock::system().now().0 - ago_ms * 1_000_000;
    let named = [("event.name", event), ("session.id", "s"), ("prompt.id", "p")];
    let attributes: Vec<Value> =
        named.iter().chain(told).map(|(key, value)| text(key, value)).collect();
    json!({ "timeUnixNano": time.to_string(), "attributes": attributes })
}

#[test]
fn a_turn_that_log_records_tell_loops_while_it_goes_on() {
    let daemon = Daemon::start();
    let mut records = vec![record(9_000, "user_prompt", &[])];
    for (ago_ms, call) in [(8_000, "a"), (7_000, "b"), (6_000, "c")] {
        let told = [
            ("tool_name", "Bash"),
            ("tool_use_id", call),
            ("tool_input", r#"{"command":"ls"}"#),
            ("success", "true"),
            ("duration_ms", "20"),
        ];
        records.push(record(ago_ms, "tool_result", &told));
    }
    let body = json!({ "resourceLogs": [{
        "resource": { "attributes": [text("service.name", "claude-code")] },
        "scopeLogs": [{
            "scope": { "name": "com.anthropic.claude_code.events" },
            "logRecords": records,
        }],
    }]});
    let (status, _) = daemon.post_to(&daemon.otlp_http, "/v1/logs", &body.to_string());
    assert_eq!(status, 200);
    // Nothing ends the turn, which is open for five minutes yet.
    let series = |family: &str| {
        format!(
            "agentgauge_{family}{{service_name=\"claude-code\",gen_ai_agent_name=\"claude-code\",kind=\"exact_repeat\",severity=\"warning\",evidence=\"arguments\"}}"
        )
    };
    daemon.settles_at(&series("loops_detected_total"), 1.0);
    daemon.settles_at(&series("sessions_looping"), 1.0);
}
