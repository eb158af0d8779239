"""The committed rules, sixty times as fast, in a real Prometheus with a real Alertmanager, over recorded sessions.

An agent that loops raises its alerts, with links that lead somewhere; a healthy one beside it raises none. Gauges read through Prometheus
equal those of the API, and every panel of the dashboards is a query that Prometheus takes.

Usage: alerts.py BINARY WORKDIR
"""

import hashlib
import json
import pathlib
import re
import shutil
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import subprocess

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from end_to_end import HERE, free_port, get, running, until

ROOT = HERE.parent.parent
CAPTURE = ROOT / "tests/data/captures/oi-openai"
FASTER = 60
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# Traces of each agent: more than the rules want to see before they judge.
ROUNDS = 30

LOOPING = {"AgentSessionLooping", "AgentLoopSpend", "AgentReliabilityBudgetBurnFast", "AgentReliabilityBudgetBurnSlow"}


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
                        key = span.trace_id + self.service.encode() + bytes([number])
                        span.trace_id = hashlib.sha256(key).digest()[:16]
                        for attribute in span.attributes:
                            if attribute.value.string_value == self.session:
                                attribute.value.string_value = f"{self.service}-{number}"
            headers = {"Content-Type": "application/x-protobuf"}
            post = urllib.request.Request(url, request.SerializeToString(), headers)
            with urllib.request.urlopen(post, timeout=10) as answer:
                assert answer.status == 200, answer.status


def faster(rules):
    """The rules with every window, wait and interval shortened."""

    def shorten(match):
        before, number, unit, after = match.groups()
        millis = int(number) * SECONDS[unit] * 1000 // FASTER
        return f"{before}{max(millis, 1000)}ms{after}"

    pattern = r"(\[|offset |for: |interval: )(\d+)([smhd])(\b\]?)"
    return re.sub(pattern, shorten, rules)


def write_configs(work, daemon, alertmanager):
    rules = (ROOT / "deploy/prometheus/agentgauge.rules.yml").read_text()
    (work / "rules.yml").write_text(faster(rules).replace("http://127.0.0.1:9464", f"http://{daemon}"))
    subprocess.run(["promtool", "check", "rules", str(work / "rules.yml")], check=True, stdout=subprocess.DEVNULL)
    (work / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: ['{work / 'rules.yml'}']\n"
        f"alerting: {{alertmanagers: [{{static_configs: [{{targets: ['{alertmanager}']}}]}}]}}\n"
        f"scrape_configs: [{{job_name: agentgauge, static_configs: [{{targets: ['{daemon}']}}]}}]\n"
    )
    (work / "alertmanager.yml").write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")


def check_alerts(alertmanager):
    """The alerts of the looping agent are there, those of the healthy one are not, and links lead somewhere."""

    def raised():
        alerts = json.loads(get(f"http://{alertmanager}/api/v2/alerts")[0])
        names = {a["labels"]["alertname"] for a in alerts if a["labels"].get("service_name") == "looping"}
        return alerts if LOOPING <= names else None

    alerts = until("the looping agent's alerts", raised)
    healthy = [a["labels"] for a in alerts if a["labels"].get("service_name") == "healthy"]
    assert not healthy, f"the healthy agent raised {healthy}"
    strange = [a["labels"] for a in alerts if a["labels"].get("service_name") not in ("looping", None)]
    assert not strange, strange
    for alert in alerts:
        labels, annotations = alert["labels"], alert["annotations"]
        text, _ = get(annotations["runbook_url"])
        assert text.startswith(labels["alertname"]), text
        if "explain_url" in annotations:
            assert json.loads(get(annotations["explain_url"])[0])["sessions"], annotations["explain_url"]
        print(f"{labels['alertname']} ({labels['severity']}): {annotations['summary']}")


def check_gauges(ask, http):
    """Every gauge over a window, read through Prometheus, is what the API says."""
    names = {"reliability": "agentgauge_agent_reliability_score", "consistency": "agentgauge_agent_consistency_score"}

    def compare():
        agents = json.loads(get(f"{http}/api/v1/agents")[0])["agents"]
        compared = 0
        for agent in agents:
            for window, view in agent["windows"].items():
                for score, name in names.items():
                    # An agent without a name is one with an empty label.
                    labels = f'service_name="{agent["service_name"]}",gen_ai_agent_name="{agent["agent_name"] or ""}"'
                    result = ask(f'{name}{{{labels},window="{window}"}}')
                    values = [float(sample["value"][1]) for sample in result]
                    if values != [value for value in [view[score]] if value is not None]:
                        return 0
                    compared += len(values)
        return compared

    count = until("equal gauges", compare)
    print(f"{count} gauges are equal to the API's")


def check_exemplars(prometheus, http):
    """A bucket of low scores leads to a trace of the looping agent."""
    query = 'agentgauge_trace_signal_score_bucket{service_name="looping",signal="tool_loop"}'
    asked = urllib.parse.urlencode({"query": query, "start": time.time() - 600, "end": time.time() + 600})
    url = f"http://{prometheus}/api/v1/query_exemplars?{asked}"
    series = until("exemplars", lambda: json.loads(get(url)[0])["data"])
    ids = {exemplar["labels"]["trace_id"] for one in series for exemplar in one["exemplars"]}
    sessions = json.loads(get(f"{http}/api/v1/sessions?limit=1000")[0])["sessions"]
    held = {trace["trace_id"]: trace for session in sessions for trace in session["traces"]}
    for trace_id in ids:
        assert held[trace_id]["loops"], f"{trace_id} has no loop"
    print(f"{len(ids)} exemplars lead to traces with loops")


def check_panels(prometheus):
    """Prometheus takes every query of the dashboards."""
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
    alertmanager, prometheus = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    # Debian calls it by the longer name.
    program = shutil.which("prometheus-alertmanager") or "alertmanager"
    with running(serve, stdout=subprocess.PIPE, text=True) as daemon:
        bound = json.loads(daemon.stdout.readline())
        write_configs(work, bound["http"], alertmanager)
        manage = [program, f"--config.file={work / 'alertmanager.yml'}", f"--storage.path={work / 'alertmanager'}"]
        manage += [f"--web.listen-address={alertmanager}", "--cluster.listen-address=", "--log.level=warn"]
        watch = ["prometheus", f"--config.file={work / 'prometheus.yml'}", f"--storage.tsdb.path={work / 'alerts-tsdb'}"]
        watch += [f"--web.listen-address={prometheus}", "--log.level=error", "--enable-feature=exemplar-storage"]
        with running(manage), running(watch):
            until("Alertmanager", lambda: get(f"http://{alertmanager}/-/ready"))
            until("Prometheus", lambda: get(f"http://{prometheus}/-/ready"))
            url = f"http://{bound['otlp_http']}/v1/traces"
            # Turn 4 calls one tool five times with the same arguments; turns 1, 2 and 6 are as they should be.
            recordings = [Recording("looping", [4]), Recording("healthy", [1, 2, 6])]
            for number in range(ROUNDS):
                for recording in recordings:
                    recording.send(url, number)
                time.sleep(0.5)
            check_alerts(alertmanager)
            ask = lambda query: json.loads(
                get(f"http://{prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": query}))[0]
            )["data"]["result"]
            check_gauges(ask, f"http://{bound['http']}")
            check_exemplars(prometheus, f"http://{bound['http']}")
            check_panels(prometheus)
    assert daemon.returncode == 0, f"the daemon ended with {daemon.returncode}"
    print("5 passed, 0 failed")


if __name__ == "__main__":
    main()
