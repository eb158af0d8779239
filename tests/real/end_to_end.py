"""A multi-turn agent session from the real SDK through the daemon into a real Prometheus.

Usage: end_to_end.py BINARY WORKDIR
"""

import contextlib
import json
import pathlib
import re
import signal
import subprocess
import sys
import urllib.parse
import urllib.request

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Status, StatusCode

from waiting import until

HERE = pathlib.Path(__file__).parent


def get(url, accept="*/*"):
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode(), answer.headers


@contextlib.contextmanager
def running(command, **kwargs):
    process = subprocess.Popen(command, **kwargs)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            raise SystemExit(f"{command[0]} did not stop within 20 s of SIGTERM")


@contextlib.contextmanager
def listening(command, log):
    """Runs a server of the Prometheus family on a free port; returns its address once it is ready."""
    pattern = re.compile(r'msg="Listening on" address=(\S+)')
    with log.open("w") as output, running(command, stdout=output, stderr=output) as process:

        def address():
            if process.poll() is not None:
                raise SystemExit(f"{command[0]} ended:\n{log.read_text()}")
            return pattern.search(log.read_text())

        found = until(f"{command[0]}", address)[1]
        until(f"{command[0]} to be ready", lambda: get(f"http://{found}/-/ready"))
        yield found


def messages(role, text):
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])


def turn(tracer, session, question, answer, tools):
    """One turn of an agent as the GenAI convention prescribes; `tools` are (name, city, failed)."""
    with tracer.start_as_current_span(
        "invoke_agent travel-agent",
        attributes={
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "travel-agent",
            "gen_ai.agent.version": "3",
            "gen_ai.conversation.id": session,
            "gen_ai.input.messages": messages("user", question),
            "gen_ai.output.messages": messages("assistant", answer),
        },
    ):
        for name, city, failed in tools:
            chat(tracer, question, "")
            with tracer.start_as_current_span(
                f"execute_tool {name}",
                attributes={
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": name,
                    "gen_ai.tool.call.arguments": json.dumps({"city": city}),
                },
            ) as span:
                if failed:
                    span.set_status(Status(StatusCode.ERROR, "no such city"))
                else:
                    span.set_attribute("gen_ai.tool.call.result", f"weather of {city}")
        chat(tracer, question, answer)


def chat(tracer, question, answer):
    with tracer.start_as_current_span(
        "chat gpt-4o",
        attributes={
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "gpt-4o",
            "gen_ai.usage.input_tokens": 100,
            "gen_ai.usage.output_tokens": 10,
            "gen_ai.input.messages": messages("user", question),
            "gen_ai.output.messages": messages("assistant", answer),
        },
    ):
        pass


def send(exporter, service):
    provider = TracerProvider(resource=Resource.create({"service.name": service, "deployment.environment.name": "ci"}))
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=100))
    tracer = provider.get_tracer("end-to-end")
    session = f"session-{service}"
    turn(tracer, session, "Weather in Paris?", "Paris is sunny today.", [("get_weather", "Paris", False)])
    turn(tracer, session, "And in Atlantis?", "I could not find Atlantis.", [("get_weather", "Atlantis", True)])
    turn(tracer, session, "Try harder.", "There is no weather for Mu.", [("get_weather", "Mu", False)] * 5)
    provider.shutdown()


def check_scrape(http, work):
    for accept, name in [("text/plain", "text"), ("application/openmetrics-text;version=1.0.0", "openmetrics")]:
        text, headers = get(f"{http}/metrics", accept)
        path = work / f"{name}.prom"
        path.write_text(text)
        if name == "openmetrics":
            assert "openmetrics" in headers["Content-Type"], headers["Content-Type"]
            assert text.endswith("# EOF\n")
            continue
        lint = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
        assert lint.returncode == 0, f"promtool check metrics: {lint.stdout}{lint.stderr}"


def main():
    binary, work = sys.argv[1], pathlib.Path(sys.argv[2])
    serve = [binary, "serve", "--config", str(HERE / "agent.toml")]
    serve += ["--otlp-grpc", "127.0.0.1:0", "--otlp-http", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    with running(serve, stdout=subprocess.PIPE, text=True) as daemon:
        bound = json.loads(daemon.stdout.readline())
        http = f"http://{bound['http']}"
        send(GrpcExporter(endpoint=f"http://{bound['otlp_grpc']}", insecure=True), "by-grpc")
        send(HttpExporter(endpoint=f"http://{bound['otlp_http']}/v1/traces"), "by-http")
        send(HttpExporter(endpoint=f"http://{bound['otlp_http']}/v1/traces", compression=Compression.Gzip), "by-gzip")

        config = work / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 1s}\n"
            "scrape_configs: [{job_name: agentgauge, static_configs: [{targets: ['%s']}]}]\n" % bound["http"]
        )
        prometheus = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={work / 'tsdb'}"]
        prometheus += ["--web.listen-address=127.0.0.1:0"]
        with listening(prometheus, work / "end-to-end.log") as listen:
            ask = lambda query: json.loads(
                get(f"http://{listen}/api/v1/query?" + urllib.parse.urlencode({"query": query}))[0]
            )["data"]["result"]
            for service in ["by-grpc", "by-http", "by-gzip"]:
                check_agent(ask, http, service)
        check_scrape(http, work)
    assert daemon.returncode == 0, f"the daemon ended with {daemon.returncode}"
    print("3 passed, 0 failed")


def check_agent(ask, http, service):
    labels = f'service_name="{service}",gen_ai_agent_name="travel-agent",gen_ai_agent_version="3"'
    labels += ',deployment_environment_name="ci"'
    evaluated = f'agentgauge_agent_window_traces{{window="1h",{labels}}} == 3'
    until(f"three traces of {service}", lambda: ask(evaluated))
    # The looping trace: tool_loop 0.4 at a warning, so the worst risk is at least 0.6.
    reliability = float(ask(f'agentgauge_agent_reliability_score{{window="1h",{labels}}}')[0]["value"][1])
    assert 0 <= reliability <= 0.4, reliability
    consistency = float(ask(f'agentgauge_agent_consistency_score{{window="1h",{labels}}}')[0]["value"][1])
    assert 0 < consistency < 1, consistency
    loops = ask(f'agentgauge_loops_detected_total{{kind="exact_repeat",severity="warning",{labels}}}')
    assert float(loops[0]["value"][1]) == 1, loops
    session = json.loads(get(f"{http}/api/v1/sessions/session-{service}")[0])
    assert [len(trace["tools"]) for trace in session["traces"]] == [1, 1, 5], session
    assert session["session_source"] == "gen_ai.conversation.id"
    assert abs(session["reliability"] - reliability) < 1e-4, (session["reliability"], reliability)
    print(f"{service}: reliability {reliability:.4f}, consistency {consistency:.4f}, one loop")


if __name__ == "__main__":
    main()
