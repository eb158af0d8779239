"""R1: with the default settings, a daemon that was killed under load is ready within ten seconds, however small its log is, and
nothing that was acknowledged is lost. The seconds are those of one processor, as others use the machine; several read side by side.

Usage: ready.py BINARY WORKDIR. Larger by the environment: AGENTGAUGE_SPANS.
"""

import contextlib
import gzip
import http.client
import itertools
import json
import multiprocessing
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

from end_to_end import get, until

SPANS = int(os.environ.get("AGENTGAUGE_SPANS", "500000"))
SENDERS, TRACES, PARTS = 3, 64, 8

# Processor time from the start of the process until it says that it is ready.
SECONDS = 10


def start(binary, directory):
    """A daemon with an existing store, its addresses, and the seconds until it was ready: of the processor, and of the clock."""
    began = time.monotonic()
    environment = {"AGENTGAUGE__STORE__DURABILITY": "fsync", "AGENTGAUGE__STORE__DIRECTORY": str(directory)}
    serve = [binary, "serve", "--otlp-grpc", "127.0.0.1:0", "--otlp-http", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    process = subprocess.Popen(
        serve, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    bound = json.loads(process.stdout.readline())
    until("it to be ready", lambda: get(f"http://{bound['http']}/readyz"), 120)
    return process, bound, (processor_seconds(process.pid), time.monotonic() - began)


def processor_seconds(pid):
    """Processor time that a process has used, all of its threads."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def request(number):
    """Whole traces, compressed as exporters do."""

    def attribute(key, text):
        return {"key": key, "value": {"stringValue": text}}

    def span(trace, part):
        of = [attribute("gen_ai.operation.name", "invoke_agent")]
        if part > 1:
            of = [
                attribute("gen_ai.operation.name", "execute_tool"),
                attribute("gen_ai.tool.name", f"tool-{part}"),
                attribute("gen_ai.tool.call.arguments", json.dumps({"query": trace * part})),
            ]
        start = now + part * 1000
        return {
            "traceId": f"{trace + 1:032x}",
            "spanId": f"{part:016x}",
            "parentSpanId": "" if part == 1 else f"{1:016x}",
            "name": "step",
            "startTimeUnixNano": str(start),
            "endTimeUnixNano": str(start + 900),
            "attributes": [
                attribute("gen_ai.agent.name", f"agent-{trace % 50}"),
                attribute("gen_ai.conversation.id", f"session-{trace // 5}"),
                *of,
            ],
        }

    now = time.time_ns() - 1_000_000_000
    traces = range(number * TRACES, (number + 1) * TRACES)
    spans = [span(trace, part) for trace in traces for part in range(1, PARTS + 1)]
    resource = {"attributes": [attribute("service.name", "shop")]}
    body = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": spans}]}]}
    return gzip.compress(json.dumps(body).encode(), 1)


def send(address, first, acknowledged):
    """Sends requests until the daemon is gone, and counts those that were acknowledged."""
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection = http.client.HTTPConnection(address)
        for number in itertools.count(first, SENDERS):
            body = request(number)
            status = 503
            while status == 503:
                connection.request("POST", "/v1/traces", body, headers)
                answer = connection.getresponse()
                answer.read()
                status = answer.status
            assert status == 200, status
            with acknowledged.get_lock():
                acknowledged.value += 1


def killed_under_load(process, bound):
    """Kills the daemon during ingest; returns how many requests it has acknowledged, and in how many seconds."""
    acknowledged = multiprocessing.Value("L", 0)
    of = [(bound["otlp_http"], first, acknowledged) for first in range(SENDERS)]
    senders = [multiprocessing.Process(target=send, args=arguments) for arguments in of]
    began = time.monotonic()
    [sender.start() for sender in senders]
    until("the load", lambda: acknowledged.value * TRACES * PARTS >= SPANS, 600)
    written = store(bound, "written_bytes_total")
    process.kill()
    took = time.monotonic() - began
    process.wait()
    [sender.join() for sender in senders]
    return acknowledged.value, took, written


def store(bound, name):
    page = get(f"http://{bound['http']}/metrics")[0]
    return float(re.search(rf"^agentgauge_store_{re.escape(name)} (\S+)$", page, re.MULTILINE)[1])


def main():
    binary, directory = sys.argv[1], pathlib.Path(sys.argv[2]) / "ready"
    shutil.rmtree(directory, ignore_errors=True)
    process, bound, _ = start(binary, directory)
    requests, took, written = killed_under_load(process, bound)
    process, bound, (seconds, waited) = start(binary, directory)
    replayed = store(bound, 'recovered{what="records"}') * TRACES * PARTS

    def shown():
        """Everything that was acknowledged; requests in progress may be included."""
        lines = get(f"http://{bound['http']}/metrics")[0].splitlines()
        lines = [line for line in lines if line.startswith("agentgauge_agent_window_traces{") and 'window="1h"' in line]
        traces = sum(float(line.rsplit(" ", 1)[1]) for line in lines)
        assert traces <= (requests + SENDERS) * TRACES, traces
        return traces >= requests * TRACES

    until("what was acknowledged", shown, 60)
    process.kill()
    process.wait()
    print(
        f"killed after {requests * TRACES * PARTS} spans, {requests * TRACES * PARTS / took:.0f} a second, {written / 2**20:.0f} MiB of log: "
        f"ready after {seconds:.1f} s of a processor, {waited:.1f} s by the clock, {replayed:.0f} spans replayed, none lost"
    )
    assert seconds < SECONDS, seconds
    print("1 passed, 0 failed")


if __name__ == "__main__":
    main()
