"""The cost of a dead, silent or slow judge for ingest: instructions and processor time per span.

Usage: judge_cost.py BINARY [--instructions | --cpu]

The same load goes to a daemon without a judge, to one whose judge refuses connections, to one whose judge takes questions and
is silent, and to one whose judge answers after 20 seconds, all with the default timeouts. Instructions are counted under callgrind, as the difference of a large and a small load, so that the start does
not count; of several runs the median. Updates of agents are sent at a pace, so their number depends on the clock: each
request is sent when the daemon has come to rest after the previous one, so that every case sends as many. The numbers of calls
and of closed sessions depend on the clock too, and not on the load: every run lasts as long, so that this work cancels out.
Calls are counted as well. All cases are counted at the same time.

Processor time is that of the process under full load, in rounds of one run of each case after the other; of the ratios within a
round the median counts, and the quartiles show its spread. The cost at first, until the judge is known to be slow or
unavailable, is reported apart; the later cost is compared with the limit. If others use the machine, `nice -n -20` helps. Nothing that
depends on the judge may read as if it had answered. `--instructions` and `--cpu` leave the other out: the first takes twelve minutes, the second
about five.
"""

import concurrent.futures
import contextlib
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

ROUNDS = 7
COUNTS = 3
# Traces of a run, and of each request: natively, and under callgrind, which is fifty times slower. Natively so many come before, for
# the first seconds: until the queue is full, or it is known that the judge is away.
TRACES, TRACES_A_REQUEST, TRACES_BEFORE = 15_000, 20, 10_000
SECONDS_BEFORE = 3
LARGE, SMALL, COUNTED_A_REQUEST = 1_600, 400, 100
SENDERS = 4
# At rest: so long, in seconds, hardly any processor time. Longer than traces wait for more, and than agents wait to be told of.
REST = 1.6
# Seconds of each counted run, of which the large load takes about 60.
LASTS = 110
RESTING_CPU = 0.05
MAX_INSTRUCTIONS = 1.02
MAX_CPU = 1.10
# One instruction of the processor moves a long text, and callgrind counts one for each of its bytes.
COUNTED = {"GLIBC_TUNABLES": "glibc.cpu.x86_rep_movsb_threshold=1000000000"}
# Seconds after which a slow judge answers.
SLOW = 20
# Without meaning for the daemon.
DEAD = "JUDGE_COST_DEAD"
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


# Placeholders for the ids of a trace: all of one length.
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


def load(traces, each):
    """Requests of this many whole traces: sessions of four turns, and every fiftieth turn fails."""
    start = time.time_ns()
    good, bad = turn(start, False), turn(start, True)
    resource = field(1, field(1, attribute("service.name", "shop")))
    requests = []
    for first in range(0, traces, each):
        spans = b""
        for number in range(first, first + each):
            trace = (bad if number % 50 == 0 else good).replace(TRACE, struct.pack(">QQ", 1, number))
            spans += trace.replace(SESSION.encode(), f"session-{number // 4:08}".encode())
        requests.append(field(1, resource + field(2, spans)))
    return requests


class Silent:
    """Accepts connections and data, and never answers."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/v1"
        self.held = []
        threading.Thread(target=self.take, daemon=True).start()

    def take(self):
        while True:
            self.held.append(self.listener.accept()[0])


class Slow(Silent):
    """Answers each question after a while, with the shortest answer of the requested form."""

    def take(self):
        while True:
            connection = self.listener.accept()[0]
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as questions:
            while questions.readline():
                length = 0
                while (line := questions.readline().strip()) != b"":
                    name, _, value = line.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                asked = json.loads(questions.read(length))
                time.sleep(SLOW)
                said = json.dumps(least(asked["response_format"]["json_schema"]["schema"]))
                usage = {"prompt_tokens": 1_000, "completion_tokens": 10}
                choice = {"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
                body = json.dumps({"choices": [choice], "usage": usage}).encode()
                head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
                connection.sendall(head.encode() + body)


def least(schema):
    """The shortest value of a schema."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "object")
    if kind == "object":
        return {name: least(schema["properties"][name]) for name in schema.get("required", [])}
    return {"array": [], "string": "x", "boolean": True}.get(kind, schema.get("minimum", 1))


def dead():
    """An address on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


def cpu_seconds(process):
    """Of all threads, including ended ones, to the nanosecond: the clock that Linux has for each process."""
    return time.clock_gettime(~process.pid << 3 | 2)


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


@contextlib.contextmanager
def serving(command, environment):
    """A daemon; stopped in order, or killed if that takes long."""
    command = [*command, "serve"]
    for option in ["--otlp-grpc", "--otlp-http", "--http"]:
        command += [option, "127.0.0.1:0"]
    environment = os.environ | {"AGENTGAUGE__ASSEMBLE__TRACE_IDLE": "1s"} | environment
    daemon = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield daemon, json.loads(daemon.stdout.readline())
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(120)
    finally:
        daemon.kill()
        daemon.wait()


def feed(bound, requests, scored=0):
    """Sends everything over several connections, and waits until every trace is scored, beside those that were; returns the page then."""
    senders = [
        threading.Thread(target=send, args=(bound["otlp_http"], requests[number::SENDERS])) for number in range(SENDERS)
    ]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    end = time.monotonic() + 300
    scored += len(requests) * TRACES_A_REQUEST
    while total(text := page(bound["http"]), "agentgauge_traces_total") < scored:
        assert time.monotonic() < end, "not every trace was scored"
        time.sleep(0.2)
    return text


def feed_apart(daemon, bound, requests):
    """Sends one request after the other, each when the daemon is at rest."""
    for request in requests:
        send(bound["otlp_http"], [request])
        rest(daemon)
    scored, sent = total(page(bound["http"]), "agentgauge_traces_total"), len(requests) * COUNTED_A_REQUEST
    assert scored == sent, f"{scored} traces of {sent} were scored"


def rest(daemon):
    end = time.monotonic() + 300
    used = -1.0
    while (now := cpu_seconds(daemon)) - used > RESTING_CPU:
        assert time.monotonic() < end, "it does not come to rest"
        used = now
        time.sleep(REST)


def cpu(binary, requests, environment):
    """Seconds of processor time per span at first and later, and the page at the end."""
    with serving([binary], environment) as (daemon, bound):
        first = TRACES_BEFORE // TRACES_A_REQUEST
        begun = cpu_seconds(daemon)
        feed(bound, requests[:first])
        at_first = cpu_seconds(daemon) - begun
        settled(bound, environment)
        time.sleep(SECONDS_BEFORE)
        before = cpu_seconds(daemon)
        text = feed(bound, requests[first:], TRACES_BEFORE)
        later = cpu_seconds(daemon) - before
        return {"at first": at_first / TRACES_BEFORE / SPANS, "later": later / TRACES / SPANS}, text


def settled(bound, environment):
    """The page, with a dead judge as soon as that is known."""
    end = time.monotonic() + 60
    while True:
        text = page(bound["http"])
        away = total(text, "agentgauge_judge_degraded") == 1
        if away or not environment.get(DEAD) or time.monotonic() > end:
            return text
        time.sleep(0.5)


def instructions(binary, requests, environment):
    """Instructions of a whole run, and calls to the judge."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/callgrind.out"
        valgrind = ["valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={out}", binary]
        with serving(valgrind, environment | COUNTED) as (daemon, bound):
            begun = time.monotonic()
            feed_apart(daemon, bound, requests)
            left = begun + LASTS - time.monotonic()
            assert left > 0, f"the load took longer than {LASTS} seconds: the machine has too much else to do"
            time.sleep(left)
            calls = total(page(bound["http"]), "agentgauge_judge_calls_total")
        with open(out) as file:
            counted = [int(line.split()[1]) for line in file if line.startswith(("summary:", "totals:"))]
        return sum(counted) / len(counted), calls


def nothing_reads_as_judged(name, text):
    """Values that depend on the judge are absent or counted, and nothing reads as if it had answered."""
    judged = [line for line in text.splitlines() if 'signal="tool_correctness"' in line]
    assert all('verdict="skipped"' in line for line in judged), f"{name}: a signal that nobody judged: {judged}"
    assert 'result="scored"' not in text and 'result="nothing"' not in text, f"{name}: scored by nobody"
    lost = total(text, "agentgauge_judge_dropped_total") + total(text, "agentgauge_judge_results_total")
    waits = total(text, "agentgauge_judge_queue_traces")
    assert lost + waits > 0, f"{name}: the judge was not asked"
    if name == "dead":
        assert total(text, "agentgauge_judge_degraded") == 1, f"{name}: not degraded"


def count(binary, cases):
    """Instructions per span of each case, by the difference of two loads: the median of some counts."""
    large, small = (load(traces, COUNTED_A_REQUEST) for traces in (LARGE, SMALL))

    def once(name):
        (much, calls), (little, fewer) = (instructions(binary, requests, cases[name]) for requests in (large, small))
        counted = (much - little) / (LARGE - SMALL) / SPANS
        print(f"{name:8} {counted:9.0f} instructions a span, {calls:.0f} calls and {fewer:.0f}", flush=True)
        return counted

    with concurrent.futures.ThreadPoolExecutor(len(cases)) as pool:
        rounds = [list(pool.map(once, cases)) for _ in range(COUNTS)]
    return {name: statistics.median(counts) for name, counts in zip(cases, zip(*rounds))}


def seconds(binary, cases, requests):
    """Processor time of each case over that of the first, at first and later, in rounds that begin with another one each time."""
    names = list(cases)
    ratios = {(name, when): [] for name in names for when in ("at first", "later")}
    for number in range(ROUNDS):
        took = {}
        for name in names[number % len(names) :] + names[: number % len(names)]:
            took[name], text = cpu(binary, requests, cases[name])
            each = ", ".join(f"{seconds * 1e6:6.2f} us a span {when}" for when, seconds in took[name].items())
            print(f"{name:8} {each}", flush=True)
            if name != names[0]:
                nothing_reads_as_judged(name, text)
        for name, when in ratios:
            ratios[name, when].append(took[name][when] / took[names[0]][when])
    return ratios


def main():
    binary = sys.argv[1]
    cases = {
        "off": {},
        "dead": JUDGE | {"AGENTGAUGE__JUDGE__URL": dead(), DEAD: "yes"},
        "silent": JUDGE | {"AGENTGAUGE__JUDGE__URL": Silent().url},
        "slow": JUDGE | {"AGENTGAUGE__JUDGE__URL": Slow().url},
    }
    counted = {} if "--cpu" in sys.argv else count(binary, cases)
    ratios = {} if "--instructions" in sys.argv else seconds(binary, cases, load(TRACES_BEFORE + TRACES, TRACES_A_REQUEST))
    failed = False
    for name in list(cases)[1:]:
        if counted:
            ratio = counted[name] / counted["off"]
            print(f"{name:8} {ratio:.4f} of the instructions without a judge")
            failed |= ratio > MAX_INSTRUCTIONS
        for when in ("at first", "later") if ratios else ():
            pairs = ratios[name, when]
            low, times, high = statistics.quantiles(pairs, n=4)
            spread = f"quartiles {low:.3f} and {high:.3f}, {len(pairs)} pairs from {min(pairs):.3f} to {max(pairs):.3f}"
            print(f"{name:8} {times:.3f} of the processor time without a judge {when} ({spread})")
            failed |= times > MAX_CPU and when == "later"
    if failed:
        raise SystemExit("a judge that does not answer costs ingest too much")


if __name__ == "__main__":
    main()
