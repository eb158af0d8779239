"""The committed rules with shorter windows, in a real Prometheus with a real Alertmanager, over recorded sessions.

A looping agent raises its alerts, with valid links; an agent that begins to fail pages, with all facts that are needed at night, for as
long as it fails; a healthy one beside them raises none. Gauges read through Prometheus equal those of the API, and Prometheus accepts the
query of every panel of the dashboards.

Nothing here depends on when something starts or how fast the machine is: agents run until everything about alerts is
decided, windows are long against the interval between scrapes, and how long the healthy one was watched is counted in
evaluations of the rules. A deadline only says when to give up.

Usage: alerts.py BINARY WORKDIR
"""

import collections
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from browser import Browser
from drops import Pager, Worker, check_drop
from end_to_end import HERE, get, listening, running, until

ROOT = HERE.parent.parent
CAPTURE = ROOT / "tests/data/captures/oi-openai"
GIVE_UP_SECONDS = 600

# Seconds instead of the rules' times: in the same order, and the shortest is twenty scrapes long.
WINDOWS = {"1m": 5, "2m": 10, "5m": 20, "10m": 20, "15m": 20, "30m": 30, "1h": 40, "6h": 60, "1d": 60}
# Rules are evaluated every second, so this many evaluations are the longest window.
FURTHER_EVALUATIONS = max(WINDOWS.values())

LOOPING = {"AgentSessionLooping", "AgentLoopSpend", "AgentReliabilityDrop"}
# Seconds of loops that arrive all at once.
SHORT = [1, 12, 300]
# Alerts that must notify.
BAD = {"looping", "failing", "short", "claude-code"}


class Recording:
    """Some turns of a capture, sent as if they were new."""

    def __init__(self, service, turns):
        expected = json.loads((CAPTURE / "expected.json").read_text())
        self.service, self.session = service, expected["session"]["id"]
        chosen = {bytes.fromhex(i) for turn in expected["turns"] if turn["turn"] in turns for i in turn["trace_ids"]}
        self.requests = []
        for path in sorted(CAPTURE.glob("*traces*.pb")):
            request = ExportTraceServiceRequest.FromString(path.read_bytes())
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    kept = [span for span in scope.spans if span.trace_id in chosen]
                    del scope.spans[:]
                    scope.spans.extend(kept)
            if any(scope.spans for resource in request.resource_spans for scope in resource.scope_spans):
                self.requests.append(request)
        assert self.requests, f"{CAPTURE} has no turn of {turns}"

    def send(self, url, number):
        for recorded in self.requests:
            request = ExportTraceServiceRequest()
            request.CopyFrom(recorded)
            for resource in request.resource_spans:
                for attribute in resource.resource.attributes:
                    if attribute.key == "service.name":
                        attribute.value.string_value = self.service
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        key = span.trace_id + f"{self.service}-{number}".encode()
                        span.trace_id = hashlib.sha256(key).digest()[:16]
                        for attribute in span.attributes:
                            if attribute.value.string_value == self.session:
                                attribute.value.string_value = f"{self.service}-{number}"
            headers = {"Content-Type": "application/x-protobuf"}
            post = urllib.request.Request(url, request.SerializeToString(), headers)
            with urllib.request.urlopen(post, timeout=60) as answer:
                assert answer.status == 200, answer.status


class Feed(threading.Thread):
    """Agents at work: every recording repeatedly, each time as a new session, until the block ends."""

    def __init__(self, url, recordings):
        super().__init__(daemon=True)
        self.url, self.recordings = url, recordings
        self.enough, self.failure = threading.Event(), None

    def run(self):
        number = 0
        try:
            while not self.enough.is_set():
                for recording in self.recordings:
                    recording.send(self.url, number)
                number += 1
                self.enough.wait(0.2)
        except Exception as error:
            self.failure = error

    def check(self):
        if self.failure:
            raise SystemExit(f"the agents cannot send: {self.failure}")

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.enough.set()
        self.join()
        self.check()


def send_short_loop(url, seconds):
    """One turn that is over when it arrives: twelve equal calls within this many seconds."""
    end = time.time_ns()
    step = seconds * 1_000_000_000 // 12
    calls = {"operation.name": "execute_tool", "tool.name": "search", "tool.call.arguments": "{}", "tool.call.result": "nothing"}
    agent = {"operation.name": "invoke_agent", "agent.name": f"for {seconds} s", "conversation.id": f"short-{seconds}"}

    def span(number, start, attributes):
        return {
            "traceId": f"{seconds:032x}", "spanId": f"{number:016x}", "parentSpanId": "" if number == 1 else f"{1:016x}", "name": "span",
            "startTimeUnixNano": str(start), "endTimeUnixNano": str(end if number == 1 else start + 1000),
            "attributes": [{"key": f"gen_ai.{key}", "value": {"stringValue": value}} for key, value in attributes.items()],
        }

    spans = [span(1, end - 13 * step, agent)] + [span(2 + at, end - (12 - at) * step, calls) for at in range(12)]
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "short"}}]}
    body = json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": spans}]}]})
    post = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(post, timeout=60) as answer:
        assert answer.status == 200, answer.status


def send_open_turn(url):
    """A turn of Claude Code that loops and does not end: log records of one command, twelve times within half a second."""
    now = time.time_ns()

    def record(ago, event, **told):
        named = {"event.name": event, "session.id": "terminal", "prompt.id": "first"} | told
        attributes = [{"key": key, "value": {"stringValue": value}} for key, value in named.items()]
        return {"timeUnixNano": str(now - ago * 40_000_000), "attributes": attributes}

    ran = {"tool_name": "Bash", "tool_input": '{"command":"ls"}', "success": "true", "duration_ms": "2"}
    records = [record(20, "user_prompt")] + [record(18 - at, "tool_result", tool_use_id=f"call-{at}", **ran) for at in range(12)]
    scope = {"scope": {"name": "com.anthropic.claude_code.events"}, "logRecords": records}
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "claude-code"}}]}
    body = json.dumps({"resourceLogs": [{"resource": resource, "scopeLogs": [scope]}]})
    post = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(post, timeout=60) as answer:
        assert answer.status == 200, answer.status


def check_open_turn(pager):
    """An agent that sends log records raises a notification."""
    labels = {"alertname": "AgentSessionLooping", "severity": "critical", "gen_ai_agent_name": "claude-code"}
    told = until("the open turn", lambda: pager.last(**labels), GIVE_UP_SECONDS, lambda: pager.told[-1:])
    print(f"told of a turn of Claude Code: {told['annotations']['summary']}")


def check_short_loops(pager):
    """With nothing but Alertmanager's defaults, loops that were over before it had waited for the group raise a notification."""
    for seconds in SHORT:
        labels = {"alertname": "AgentSessionLooping", "severity": "critical", "gen_ai_agent_name": f"for {seconds} s"}
        told = until(f"the loop of {seconds} s", lambda: pager.last(**labels), GIVE_UP_SECONDS, lambda: pager.told[-1:])
        print(f"told of a loop of {seconds} s with the defaults: {told['annotations']['summary']}")


class Watched:
    """A Prometheus, and everything that its Alertmanager ever received."""

    def __init__(self, prometheus, alertmanager):
        self.prometheus, self.alertmanager = prometheus, alertmanager
        self.raised = {}

    def ask(self, query):
        url = f"http://{self.prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": query})
        return json.loads(get(url)[0])["data"]["result"]

    def look(self):
        """Adds the Alertmanager's current alerts to the earlier ones."""
        for alert in json.loads(get(f"http://{self.alertmanager}/api/v2/alerts")[0]):
            self.raised[alert["fingerprint"]] = alert

    def names(self, service):
        labels = [alert["labels"] for alert in self.raised.values()]
        return {found["alertname"] for found in labels if found.get("service_name") == service}

    def evaluations(self):
        """How often each group of rules was evaluated."""
        counts = collections.Counter()
        pattern = r'prometheus_rule_group_iterations(_missed)?_total\{rule_group="[^"]*;([^"]+)"\} (\S+)'
        for missed, group, count in re.findall(pattern, get(f"http://{self.prometheus}/metrics")[0]):
            counts[group] += -float(count) if missed else float(count)
        assert counts, "Prometheus has no rules"
        return counts


def shortened(rules, windows):
    """The rules with shorter windows, evaluated every second."""
    rules = re.sub(r"(\[|offset |for: )(\d+[smhd])\b", lambda found: f"{found[1]}{windows[found[2]]}s", rules)
    return re.sub(r"interval: \w+", "interval: 1s", rules)


def write_configs(work, daemon, *alertmanagers):
    rules = (ROOT / "deploy/prometheus/agentgauge.rules.yml").read_text()
    (work / "rules.yml").write_text(shortened(rules, WINDOWS).replace("http://127.0.0.1:9464", f"http://{daemon}"))
    subprocess.run(["promtool", "check", "rules", str(work / "rules.yml")], check=True, stdout=subprocess.DEVNULL)
    (work / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: ['{work / 'rules.yml'}']\n"
        f"alerting: {{alertmanagers: [{{static_configs: [{{targets: {list(alertmanagers)}}}]}}]}}\n"
        f"scrape_configs: [{{job_name: agentgauge, static_configs: [{{targets: ['{daemon}']}}]}}]\n"
    )


def check_alerts(feed, watched):
    """The looping agent's alerts come; then, over a further window, none of the healthy one does."""

    def all_raised():
        feed.check()
        watched.look()
        return LOOPING <= watched.names("looping")

    until("the looping agent's alerts", all_raised, GIVE_UP_SECONDS, lambda: f"have {watched.names('looping')}")
    before = watched.evaluations()

    def all_evaluated():
        feed.check()
        watched.look()
        now = watched.evaluations()
        return all(now[group] - before[group] >= FURTHER_EVALUATIONS for group in before)

    until(f"{FURTHER_EVALUATIONS} further evaluations", all_evaluated, GIVE_UP_SECONDS)

    # The healthy agent was judged: it meets every guard, so it is not silent for want of traces or of a past.
    for series in [
        'service_agent:agentgauge_trace_evaluations:increase1h{service_name="healthy"} >= 50',
        'service_agent:agentgauge_trace_evaluations:increase6h{service_name="healthy"} >= 50',
        'agentgauge_agent_drop{service_name="healthy",stream="verdict",severity="critical"} == 0',
        'agentgauge_agent_drop_baseline{service_name="healthy",stream="verdict"}',
    ]:
        until(series, lambda: feed.check() or watched.ask(series), GIVE_UP_SECONDS)


def check_silence(watched):
    """Other agents never had an alert, not even a pending one, at any evaluation since the start."""
    others = watched.ask(f'count_over_time(ALERTS{{service_name!="",service_name!~"{"|".join(BAD)}"}}[1d])')
    assert not others, f"others than {BAD}: {others}"
    watched.look()
    strange = [alert["labels"] for alert in watched.raised.values() if "service_name" in alert["labels"]]
    strange = [labels for labels in strange if labels["service_name"] not in BAD]
    assert not strange, f"others than {BAD}: {strange}"


def check_links(raised, browser):
    """The links of alerts lead to the runbook's section, to sessions, and to the agent, each opened in a browser once for each alert."""
    opened = set()
    for alert in raised:
        labels, annotations = alert["labels"], alert["annotations"]
        # The page is opened elsewhere; this checks what it shows there.
        text, _ = get(annotations["runbook_url"].replace("/#/runbook/", "/runbook/"))
        assert text.startswith(labels["alertname"]), text
        explain = annotations.get("explain_url", "")
        if "/#/sessions?" in explain:
            assert json.loads(get(explain.replace("/#/sessions?", "/api/v1/sessions?"))[0])["sessions"], explain
        about = labels.get("service_name", "")
        words = {"runbook_url": labels["alertname"], "explain_url": about, "example_url": "Session ", "example_url_2": "Session "}
        for key, word in words.items():
            link, what = annotations.get(key), (labels["alertname"], about, key)
            if link and what not in opened:
                browser.shows(link, [word])
                opened.add(what)
        print(f"{labels['alertname']} ({labels['severity']}): {annotations['summary']}")
    print(f"{len(opened)} links of alerts were opened in a browser")


# The exported names over a window, and the API's names there.
GAUGES = {
    "agentgauge_agent_reliability_score": "reliability",
    "agentgauge_agent_consistency_score": "consistency",
    "agentgauge_agent_max_risk": "max_risk",
    "agentgauge_agent_window_traces": "traces",
}


def check_gauges(ask, http):
    """Every gauge over a window, read through Prometheus, equals the API's value, and neither lacks one of the other's."""

    def of_prometheus():
        gauges = {}
        for family, name in [*GAUGES.items(), ("agentgauge_agent_signal_score", None)]:
            for sample in ask(family):
                of = sample["metric"]
                keys = ["service_name", "gen_ai_agent_name", "gen_ai_agent_version", "deployment_environment_name"]
                agent = [of.get(key, "") for key in keys]
                gauges[*agent, of["window"], name or of["signal"]] = float(sample["value"][1])
        return gauges

    def of_api():
        gauges = {}
        for agent in json.loads(get(f"{http}/api/v1/agents?limit=1000")[0])["agents"]:
            of = [agent[key] or "" for key in ["service_name", "agent_name", "agent_version", "environment"]]
            for window, view in agent["windows"].items():
                values = {name: view[name] for name in GAUGES.values()} | view["signals"]
                gauges |= {(*of, window, name): value for name, value in values.items() if value is not None}
        return gauges

    seen = []

    def equal():
        seen[:] = of_prometheus(), of_api()
        return seen[0] and seen[0] == seen[1]

    def differing():
        return sorted(set(seen[0].items()) ^ set(seen[1].items()), key=str)[:10]

    until("equal gauges", equal, GIVE_UP_SECONDS, differing)
    print(f"{len(seen[0])} gauges read through Prometheus are equal to the API's")


def check_exemplars(prometheus, http):
    """A bucket of low scores leads to a trace of the looping agent."""
    query = 'agentgauge_trace_signal_score_bucket{service_name="looping",signal="tool_loop"}'
    asked = urllib.parse.urlencode({"query": query, "start": time.time() - 86400, "end": time.time() + 86400})
    url = f"http://{prometheus}/api/v1/query_exemplars?{asked}"
    series = until("exemplars", lambda: json.loads(get(url)[0])["data"], GIVE_UP_SECONDS)
    ids = {exemplar["labels"]["trace_id"] for one in series for exemplar in one["exemplars"]}
    for trace_id in ids:
        assert json.loads(get(f"{http}/api/v1/traces/{trace_id}")[0])["loops"], f"{trace_id} has no loop"
    print(f"{len(ids)} exemplars lead to traces with loops")


def check_panels(prometheus):
    """Prometheus accepts every query of the dashboards."""
    variables = {"$window": "1h", "$__rate_interval": "1m", "$datasource": ""}
    count = 0
    for path in sorted((ROOT / "deploy/grafana").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", []):
                query = target["expr"]
                for name, value in variables.items():
                    query = query.replace(name, value)
                query = re.sub(r"\$\w+", ".*", query)
                url = f"http://{prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": query})
                try:
                    assert json.loads(get(url)[0])["status"] == "success", query
                except urllib.error.HTTPError as error:
                    raise SystemExit(f"{path.name}: {panel['title']}: {error.read().decode()}") from error
                count += 1
    print(f"{count} queries of dashboards are good")


def main():
    binary, work = sys.argv[1], pathlib.Path(sys.argv[2])
    serve = [binary, "serve", "--config", str(HERE / "alerts.toml")]
    serve += ["--otlp-grpc", "127.0.0.1:0", "--otlp-http", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    # Debian uses the longer name.
    program = shutil.which("prometheus-alertmanager") or "alertmanager"

    def managing(name):
        manage = [program, f"--config.file={work / name}.yml", f"--storage.path={work / name}"]
        return manage + ["--web.listen-address=127.0.0.1:0", "--cluster.listen-address="]

    watch = ["prometheus", f"--config.file={work / 'prometheus.yml'}", f"--storage.tsdb.path={work / 'alerts-tsdb'}"]
    watch += ["--web.listen-address=127.0.0.1:0", "--enable-feature=exemplar-storage"]
    with running(serve, stdout=subprocess.PIPE, text=True) as daemon, Pager() as pager, Pager() as usual, Browser(work) as browser:
        bound = json.loads(daemon.stdout.readline())
        http = f"http://{bound['http']}"
        # The grouping of alerts is the default: all of them together. Only the waits are shorter.
        (work / "alertmanager.yml").write_text(
            "route: {receiver: pager, group_wait: 1s, group_interval: 1s}\n"
            f"receivers: [{{name: pager, webhook_configs: [{{url: '{pager.url}'}}]}}]\n"
        )
        # And one without changes.
        (work / "usual.yml").write_text(
            f"route: {{receiver: pager}}\nreceivers: [{{name: pager, webhook_configs: [{{url: '{usual.url}'}}]}}]\n"
        )
        with (
            listening(managing("alertmanager"), work / "alertmanager.log") as alertmanager,
            listening(managing("usual"), work / "usual.log") as other,
        ):
            write_configs(work, bound["http"], alertmanager, other)
            with listening(watch, work / "prometheus.log") as prometheus:
                watched = Watched(prometheus, alertmanager)
                # Turn 4 calls one tool five times with the same arguments; turns 1, 2 and 6 are as they should be.
                recordings = [Recording("looping", [4]), Recording("healthy", [1, 2, 6])]
                traces = f"http://{bound['otlp_http']}/v1/traces"
                for seconds in SHORT:
                    send_short_loop(traces, seconds)
                send_open_turn(f"http://{bound['otlp_http']}/v1/logs")
                with Feed(traces, recordings) as feed, Worker(traces, "failing", "support") as worker:
                    check_alerts(feed, watched)
                    check_drop(http, worker, pager, watched, browser, FURTHER_EVALUATIONS, GIVE_UP_SECONDS)
                    check_silence(watched)
                check_open_turn(pager)
                check_short_loops(usual)
                check_links(watched.raised.values(), browser)
                check_gauges(watched.ask, http)
                check_exemplars(prometheus, http)
                check_panels(prometheus)
    assert daemon.returncode == 0, f"the daemon ended with {daemon.returncode}"
    print("8 passed, 0 failed")


if __name__ == "__main__":
    main()
