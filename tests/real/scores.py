"""Scores out, through a real OpenTelemetry Collector: they are on the right trace and span, and are received once.

SDK -> Collector -> daemon -> judge, and the judge's scores -> Collector -> a list here. The Collector sends everything that it
receives to the daemon, too, so scores return to their sender.

Usage: scores.py BINARY WORKDIR, with the Collector under WORKDIR.
"""

import http.server
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE))
from end_to_end import get, running, turn, until  # noqa: E402
from ports import free_port  # noqa: E402

METRICS = ["confidence", "tool_correctness"]
TURNS = 5
COLLECTOR = """
receivers:
  otlp:
    protocols:
      grpc: {{ endpoint: "127.0.0.1:{grpc}" }}
      http: {{ endpoint: "127.0.0.1:{http}" }}
exporters:
  otlphttp/list: {{ endpoint: "{list}", encoding: json, compression: none }}
  otlphttp/daemon: {{ endpoint: "http://{daemon}", compression: gzip }}
service:
  telemetry: {{ metrics: {{ level: none }} }}
  pipelines:
    traces: {{ receivers: [otlp], exporters: [otlphttp/daemon] }}
    logs: {{ receivers: [otlp], exporters: [otlphttp/list, otlphttp/daemon] }}
    metrics: {{ receivers: [otlp], exporters: [otlphttp/list, otlphttp/daemon] }}
"""


class Endpoint(http.server.BaseHTTPRequestHandler):
    """Answers POST requests."""

    def do_POST(self):
        body = json.dumps(self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

    @classmethod
    def start(cls):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), cls)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"


class List(Endpoint):
    """Keeps what the Collector sends on."""

    requests = []

    def answer(self, request):
        List.requests.append(request)
        return {}


class Judge(Endpoint):
    """Chat completions that find everything three quarters good."""

    asked = 0

    def answer(self, _):
        Judge.asked += 1
        answer = {
            "confidence": 0.75, "score": 0.75, "reason": "so", "user_input": "", "tools_called": [], "available_tools": [],
        }
        return {
            "choices": [{"message": {"role": "assistant", "content": json.dumps(answer)}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 10},
        }


class Roots(SpanExporter):
    """Keeps the ids of the agents' spans, as the SDK made them."""

    def __init__(self):
        self.ids = set()

    def export(self, spans):
        for span in spans:
            if span.parent is None:
                context = span.get_span_context()
                self.ids.add((f"{context.trace_id:032x}", f"{context.span_id:016x}"))
        return SpanExportResult.SUCCESS


def received():
    """The log records and the metrics that the Collector has sent on."""
    requests = list(List.requests)
    logs = [
        (resource, scope, record)
        for request in requests
        for resource in request.get("resourceLogs", [])
        for scope in resource["scopeLogs"]
        for record in scope["logRecords"]
    ]
    metrics = {
        metric["name"]: metric
        for request in requests
        for resource in request.get("resourceMetrics", [])
        for scope in resource["scopeMetrics"]
        for metric in scope["metrics"]
    }
    return logs, metrics


def attributes(record):
    return {item["key"]: next(iter(item["value"].values())) for item in record["attributes"]}


def metric(page, name):
    values = [float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(name)]
    return sum(values)


def main():
    binary, work = sys.argv[1], pathlib.Path(sys.argv[2])
    ports = {"grpc": free_port(), "http": free_port()}
    options = {
        "JUDGE__FORMAT": "openai",
        "JUDGE__URL": f"{Judge.start()}/v1",
        "JUDGE__ALLOW_HTTP": "true",
        "JUDGE__MODEL": "m",
        "JUDGE__SAMPLE_RATE": "1.0",
        "JUDGE__METRICS": json.dumps(METRICS),
        "METRICS__DETAIL": "full",
        "SCORES_OUT__URL": f"http://127.0.0.1:{ports['http']}",
        "SCORES_OUT__ALLOW_HTTP": "true",
        "SCORES_OUT__INTERVAL": "200ms",
        "SCORES_OUT__METRICS_INTERVAL": "500ms",
    }
    environment = {f"AGENTGAUGE__{key}": value for key, value in options.items()}
    serve = [binary, "serve", "--config", str(HERE / "agent.toml")]
    serve += ["--otlp-grpc", "127.0.0.1:0", "--otlp-http", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    daemon = subprocess.Popen(serve, env=os.environ | environment, stdout=subprocess.PIPE, text=True)
    try:
        bound = json.loads(daemon.stdout.readline())
        config = work / "scores.yaml"
        config.write_text(COLLECTOR.format(**ports, list=List.start(), daemon=bound["otlp_http"]))
        with (work / "collector.log").open("w") as log:
            with running([work / "collector" / "collector", "--config", config], stdout=log, stderr=log):
                tell(ports, bound)
    finally:
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(30) == 0


def judged(metrics):
    """The points of a signal that only the judge has."""
    points = metrics["agentgauge_agent_signal_score"]["gauge"]["dataPoints"]
    return [point for point in points if attributes(point)["signal"] == "tool_correctness"]


def tell(ports, bound):
    roots = Roots()
    provider = TracerProvider(resource=Resource({"service.name": "scored"}))
    provider.add_span_processor(BatchSpanProcessor(GrpcExporter(f"127.0.0.1:{ports['grpc']}", insecure=True)))
    provider.add_span_processor(BatchSpanProcessor(roots))
    for number in range(TURNS):
        turn(provider.get_tracer("test"), f"scored-{number}", "weather?", "rain", [("weather", "Rome", number == 0)])
    until("the spans to leave", lambda: provider.force_flush())
    wanted = TURNS * len(METRICS)
    until(f"{wanted} scores in the Collector", lambda: len(received()[0]) >= wanted)
    page = lambda: get(f"http://{bound['http']}/metrics")[0]  # noqa: E731
    # Every one of them has come back, and was not read.
    own = 'agentgauge_records_unused_total{reason="own_score"}'
    until("the scores to come back", lambda: metric(page(), own) >= wanted)
    # The daemon's own metrics come after those of agents.
    until("the metrics", lambda: {"agentgauge_agent_signal_score", "agentgauge_judge_calls"} <= received()[1].keys())

    logs, metrics = received()
    assert len(logs) == wanted, f"{len(logs)} records, not {wanted}"
    told = {(record["traceId"], record["spanId"], attributes(record)["gen_ai.evaluation.name"]) for _, _, record in logs}
    assert told == {(*ids, name) for ids in roots.ids for name in METRICS}, (told, roots.ids)
    for resource, scope, record in logs:
        found = attributes(record)
        assert record["eventName"] == "gen_ai.evaluation.result", record
        assert found["gen_ai.evaluation.score.value"] == 0.75, record
        assert found["gen_ai.evaluation.explanation"] == "so" or found["gen_ai.evaluation.name"] == "confidence", record
        assert scope["scope"]["name"] == "agentgauge" and attributes(resource["resource"])["service.name"] == "agentgauge"

    # The judge answers after a trace is done, so its scores may be in a later push than the last turn.
    until("a window of all turns", lambda: windowed(received()[1]) == TURNS and judged(received()[1]))
    signals = judged(received()[1])
    assert all(abs(point["asDouble"] - 0.75) < 1e-9 for point in signals), signals
    # The returned records have made neither traces nor scores nor questions.
    assert metric(page(), "agentgauge_traces_total") == TURNS
    # tool_correctness takes two calls, confidence one.
    assert Judge.asked == 3 * TURNS, Judge.asked
    print(f"{len(logs)} scores on the right traces and spans, {len(metrics)} families of metrics")


def windowed(metrics):
    points = metrics["agentgauge_agent_window_traces"]["gauge"]["dataPoints"]
    return max(point["asDouble"] for point in points)


if __name__ == "__main__":
    main()
