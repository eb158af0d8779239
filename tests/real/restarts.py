"""Counters over kills, as a real Prometheus reads them: each process counts from zero, and what it replays was counted before.

Usage: restarts.py BINARY WORKDIR
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request

from end_to_end import get, listening, until
from ports import free_port

# Traces of each process; the last of them have just been sent when it is killed.
ROUNDS, TRACES, LAST = 4, 40, 5

# Equal calls in each trace, which make one loop; tokens of its one model call.
CALLS, TOKENS = 4, 100

# What a trace adds to each family.
FAMILIES = {
    "agentgauge_traces_total": 1,
    'agentgauge_trace_evaluations_total{signal="trace_risk"}': 1,
    'agentgauge_tokens_total{type="input"}': TOKENS,
    "agentgauge_model_calls_total": 1,
    "agentgauge_tool_calls_total": CALLS,
    "agentgauge_loops_detected_total": 1,
}


def start(binary, store, ports):
    """A daemon with a store, on the addresses of the previous one; snapshots come often."""
    settings = {
        "METRICS__DETAIL": "full",
        "STORE__DURABILITY": "fsync",
        "STORE__DIRECTORY": str(store),
        "STORE__SNAPSHOT_BYTES": "100000",
        "ASSEMBLE__TRACE_IDLE": "300ms",
    }
    environment = os.environ | {f"AGENTGAUGE__{key}": value for key, value in settings.items()}
    serve = [binary, "serve", "--otlp-grpc", "127.0.0.1:0"]
    serve += ["--otlp-http", f"127.0.0.1:{ports[0]}", "--http", f"127.0.0.1:{ports[1]}"]
    process = subprocess.Popen(serve, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    process.stdout.readline()
    until("it to be ready", lambda: get(f"http://127.0.0.1:{ports[1]}/readyz"))
    return process


def send(port, number):
    """One trace, its root last; acknowledged."""

    def attribute(key, value):
        return {"key": key, "value": {"intValue" if isinstance(value, int) else "stringValue": value}}

    def span(part, attributes):
        return {
            "traceId": f"{number + 1:032x}",
            "spanId": f"{part:016x}",
            "parentSpanId": "" if part == 1 else f"{1:016x}",
            "name": "step",
            "startTimeUnixNano": str(now + part * 1000),
            "endTimeUnixNano": str(now + part * 1000 + 900),
            "attributes": [attribute(key, value) for key, value in attributes.items()],
        }

    now = time.time_ns() - 1_000_000
    chat = {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": TOKENS, "gen_ai.usage.output_tokens": 1}
    tool = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        "gen_ai.tool.call.arguments": "{}",
        "gen_ai.tool.call.result": "nothing",
    }
    root = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "support",
        "gen_ai.conversation.id": f"session-{number // 5}",
    }
    parts = [(2, chat), *[(part, tool) for part in range(3, 3 + CALLS)], (1, root)]
    resource = {"attributes": [attribute("service.name", "shop")]}
    scope = {"spans": [span(part, attributes) for part, attributes in parts]}
    body = json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/traces", body, headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


def main():
    binary, work = sys.argv[1], pathlib.Path(sys.argv[2])
    ports = (free_port(), free_port())
    store = work / "restarts-store"
    shutil.rmtree(store, ignore_errors=True)
    config = work / "restarts.yml"
    config.write_text(
        "global: {scrape_interval: 500ms, scrape_timeout: 500ms}\n"
        f"scrape_configs: [{{job_name: agentgauge, static_configs: [{{targets: ['127.0.0.1:{ports[1]}']}}]}}]\n"
    )
    prometheus = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={work / 'restarts-tsdb'}"]
    prometheus += ["--web.listen-address=127.0.0.1:0"]
    with listening(prometheus, work / "restarts.log") as listen:

        def ask(query):
            url = f"http://{listen}/api/v1/query?" + urllib.parse.urlencode({"query": query})
            found = json.loads(get(url)[0])["data"]["result"]
            return float(found[0]["value"][1]) if found else 0.0

        def held():
            agents = json.loads(get(f"http://127.0.0.1:{ports[1]}/api/v1/agents")[0])["agents"]
            return sum(agent["traces"] for agent in agents)

        def counted():
            lines = get(f"http://127.0.0.1:{ports[1]}/metrics")[0].splitlines()
            return sum(float(line.split()[-1]) for line in lines if line.startswith("agentgauge_traces_total{"))

        sent, done = 0, "sum(agentgauge_traces_total)"
        daemon = start(binary, store, ports)
        for place in range(ROUNDS):
            # The traces that the kill cut off are done first, and count here.
            until("all that was sent", lambda: held() == sent)
            before = counted()
            # So slowly that Prometheus sees them rise, and then some of which it mostly does not see the end.
            for count in range(1, TRACES + LAST + 1):
                send(ports[0], sent)
                sent += 1
                if count % LAST == 0 and count <= TRACES:
                    until(f"{count} traces of process {place}", lambda: ask(f"{done} >= {before + count}"))
            daemon.kill()
            daemon.wait()
            daemon = start(binary, store, ports)
            # What was counted is not counted again; the rest may be.
            began = f"process_start_time_seconds > {time.time() - 30} and changes(process_start_time_seconds[5m]) > {place}"
            until("a scrape after the kill", lambda: ask(began))
            until("counters that begin anew", lambda: ask(f"({done} or vector(0)) <= bool {LAST}"))
        until("a minute's worth of scrapes", lambda: ask("sum(count_over_time(up[1m]))") >= 20)
        for family, each in FAMILIES.items():
            increase = ask(f"sum(increase({family}[10m]))")
            # The range is filled up by half an interval at each end; what no scrape saw before a kill is lost.
            most, least = 1.03 * sent * each, 0.8 * sent * each
            assert least <= increase <= most, f"{family}: {increase} of {sent * each} that were sent"
            print(f"{family}: {increase:.1f} of {sent * each}")
        daemon.kill()
        daemon.wait()
    print("1 passed, 0 failed")


if __name__ == "__main__":
    main()
