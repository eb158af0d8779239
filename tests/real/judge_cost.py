"""What a judge that is dead, or that never answers, costs ingest: instructions and processor time per span.

Usage: judge_cost.py BINARY [TRACES]

The same load goes to a daemon without a judge, to one whose judge refuses connections, and to one whose judge takes questions
and is silent, in turns. What is compared is the median of instructions in user mode per span (`perf stat`, from the
first request until every trace is scored) and the median of the pairs' ratios of processor time. Nothing that
depends on the judge may read as if it had answered.
"""

import http.client
import json
import os
import re
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROUNDS = 5
SENDERS = 4
TRACES_A_REQUEST = 20
MAX_INSTRUCTIONS = 1.02
MAX_CPU = 1.10
JUDGE = {
    "AGENTGAUGE__JUDGE__FORMAT": "openai",
    "AGENTGAUGE__JUDGE__ALLOW_HTTP": "true",
    "AGENTGAUGE__JUDGE__MODEL": "m",
    "AGENTGAUGE__JUDGE__USD_PER_HOUR": "1000.0",
}


def varint(number):
    text = bytearray()
    while number > 127:
        text.append(number & 127 | 128)
        number >>= 7
    return bytes(text) + bytes([number])


def field(number, value):
    """A field of a protobuf message: bytes, text, or a fixed 64-bit number."""
    if isinstance(value, int):
        return varint(number << 3 | 1) + struct.pack("<Q", value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def attribute(key, value):
    inner = b"\x18" + varint(value) if isinstance(value, int) else field(1, value)
    return field(1, key) + field(2, inner)


def messages(role, text):
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])


# What stands in a trace for what tells it from others: all of one length.
TRACE, SESSION = b"\xaa" * 16, "session-00000000"


def span(number, parent, name, start, attributes, failed=False):
    text = field(1, TRACE) + field(2, struct.pack(">Q", number))
    text += field(4, struct.pack(">Q", parent)) if parent else b""
    text += field(5, name) + field(7, start) + field(8, start + 1_000_000)
    text += b"".join(field(9, attribute(key, value)) for key, value in attributes.items())
    return field(2, text + (field(15, b"\x18\x02") if failed else b""))


def turn(start, failed):
    """A turn of 13 spans, with the texts of model and tool calls."""
    words = "the customer asks where the parcel is and would like the money back " * 20
    spans = b""
    for number in range(2, 14):
        if number % 2:
            attributes = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": f"tool-{number}",
                "gen_ai.tool.call.arguments": json.dumps({"order": number}),
                "gen_ai.tool.call.result": words[:300],
            }
            spans += span(number, 1, "execute_tool", start + number, attributes)
        else:
            attributes = {
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": "gpt-5.1",
                "gen_ai.usage.input_tokens": 1184,
                "gen_ai.usage.output_tokens": 261,
                "gen_ai.input.messages": messages("user", words),
                "gen_ai.output.messages": messages("assistant", words[: 300 + number]),
            }
            spans += span(number, 1, "chat gpt-5.1", start + number, attributes)
    root = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "support",
        "gen_ai.conversation.id": SESSION,
        "gen_ai.input.messages": messages("user", words[:200]),
        "gen_ai.output.messages": messages("assistant", words[:100]),
    }
    return spans + span(1, 0, "invoke_agent support", start, root, failed)


SPANS = 13


def load(traces):
    """Requests of whole traces: sessions of four turns, and every fiftieth turn fails."""
    start = time.time_ns()
    good, bad = turn(start, False), turn(start, True)
    resource = field(1, field(1, attribute("service.name", "shop")))
    requests = []
    for first in range(0, traces, TRACES_A_REQUEST):
        spans = b""
        for number in range(first, first + TRACES_A_REQUEST):
            trace = (bad if number % 50 == 0 else good).replace(TRACE, struct.pack(">QQ", 1, number))
            spans += trace.replace(SESSION.encode(), f"session-{number // 4:08}".encode())
        requests.append(field(1, resource + field(2, spans)))
    return requests


class Silent:
    """Takes connections and what is sent, and never answers."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/v1"
        self.held = []
        threading.Thread(target=self.take, daemon=True).start()

    def take(self):
        while True:
            self.held.append(self.listener.accept()[0])


def dead():
    """An address that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


def cpu_seconds(process):
    fields = open(f"/proc/{process.pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def page(http_address):
    connection = http.client.HTTPConnection(http_address, timeout=30)
    connection.request("GET", "/metrics")
    return connection.getresponse().read().decode()


def total(text, name):
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE))


def send(address, requests):
    connection = http.client.HTTPConnection(address, timeout=60)
    for request in requests:
        while True:
            connection.request("POST", "/v1/traces", request, {"Content-Type": "application/x-protobuf"})
            answer = connection.getresponse()
            answer.read()
            if answer.status == 200:
                break
            assert answer.status == 503, answer.status


def measure(binary, requests, environment):
    """Instructions and seconds of processor time per span, and the page at the end."""
    command = [binary, "serve", "--otlp-grpc", "127.0.0.1:0", "--otlp-http", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    environment = os.environ | {"AGENTGAUGE__ASSEMBLE__TRACE_IDLE": "1s"} | environment
    with tempfile.NamedTemporaryFile("r") as counted:
        daemon = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            bound = json.loads(daemon.stdout.readline())
            perf = ["perf", "stat", "-x,", "-e", "instructions:u", "-o", counted.name, "-p", str(daemon.pid)]
            perf = subprocess.Popen(perf)
            while not os.path.exists(f"/proc/{perf.pid}/fd") or "perf_event" not in fds(perf.pid):
                assert perf.poll() is None, "perf ended"
                time.sleep(0.01)
            before = cpu_seconds(daemon)
            senders = [
                threading.Thread(target=send, args=(bound["otlp_http"], requests[number::SENDERS]))
                for number in range(SENDERS)
            ]
            for sender in senders:
                sender.start()
            for sender in senders:
                sender.join()
            traces = len(requests) * TRACES_A_REQUEST
            end = time.monotonic() + 300
            while total(text := page(bound["http"]), "agentgauge_traces_total") < traces:
                assert time.monotonic() < end, "not every trace was scored"
                time.sleep(0.5)
            cpu = cpu_seconds(daemon) - before
            perf.send_signal(signal.SIGINT)
            perf.wait()
            lines = [line.split(",") for line in counted.read().splitlines() if "instructions" in line]
            return int(lines[0][0]) / traces / SPANS, cpu / traces / SPANS, text
        finally:
            daemon.kill()
            daemon.wait()


def fds(pid):
    try:
        return " ".join(os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return ""


def nothing_reads_as_judged(name, text):
    """What depends on the judge is absent or counted, and nothing reads as if it had answered."""
    assert 'signal="tool_correctness"' not in text, f"{name}: a signal that nobody judged"
    assert 'result="scored"' not in text and 'result="nothing"' not in text, f"{name}: scored by nobody"
    lost = total(text, "agentgauge_judge_dropped_total") + total(text, "agentgauge_judge_results_total")
    waits = total(text, "agentgauge_judge_queue_traces")
    assert lost + waits > 0, f"{name}: the judge was not asked"
    if name == "dead":
        assert total(text, "agentgauge_judge_degraded") == 1, f"{name}: not degraded"


def main():
    binary, traces = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 6_000
    requests = load(traces)
    silent = Silent()
    cases = {"off": {}, "dead": JUDGE | {"AGENTGAUGE__JUDGE__URL": dead()}, "silent": JUDGE | {"AGENTGAUGE__JUDGE__URL": silent.url}}
    found = {name: [] for name in cases}
    for _ in range(ROUNDS):
        for name, environment in cases.items():
            instructions, cpu, text = measure(binary, requests, environment)
            if name != "off":
                nothing_reads_as_judged(name, text)
            found[name].append((instructions, cpu))
            print(f"{name:8} {instructions:9.0f} instructions  {cpu * 1e6:6.2f} us a span", flush=True)
    failed = False
    for name in list(cases)[1:]:
        medians = [statistics.median(run[0] for run in found[case]) for case in (name, "off")]
        instructions = medians[0] / medians[1]
        cpu = statistics.median(run[1] / base[1] for run, base in zip(found[name], found["off"]))
        print(f"{name:8} {instructions:.4f} of the instructions, {cpu:.3f} of the processor time without a judge")
        failed |= instructions > MAX_INSTRUCTIONS or cpu > MAX_CPU
    if failed:
        raise SystemExit("a judge that does not answer costs ingest too much")


if __name__ == "__main__":
    main()
