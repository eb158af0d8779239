#!/usr/bin/env python3
"""The same attacks on a daemon and on the Collector: slow bodies, idle connections, gzip bombs, four times as many senders as keep it
busy, a cap of memory, and kill -9 while requests are acknowledged. Reports for each what honest senders got, how much memory it took, and what was
lost.

Usage: beside_collector.py BINARY COLLECTOR [NAME..], of slow, idle, bombs, twice, capped, killed; all of them without a name. Longer by
AGENTGAUGE_ROUND_SECONDS (3 without). Prints the table of docs/comparison.md. Fails if the daemon loses acknowledged data, or if
honest senders get no answers during an attack.

Both have the same two cores and the same honest senders, over OTLP/HTTP in JSON, 64 spans a request. The Collector receives OTLP and drops it
(`nop`), which is less than the daemon does; for `killed` it keeps it in `file_storage` until a sink accepts it.
"""

import contextlib
import gzip
import http.client
import http.server
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

from load import MIB, NUMBERS, PARTS, TRACES, body, get, status_bytes, until
from ports import free_port

ROUND = int(os.environ.get("AGENTGAUGE_ROUND_SECONDS", "3"))
SENDERS = 8
MARK = "c" * 16
BODY = body()
CAP_MIB = 64
BOMB_BYTES = 1 << 30


class Daemon:
    """A daemon, with a store if it must lose nothing."""

    name = "agentgauge"

    def __init__(self, binary, folder, cap=None, lasting=False):
        self.binary, self.folder = binary, folder
        self.environment = {"AGENTGAUGE__ASSEMBLE__TRACE_IDLE": "1s"}
        if cap:
            self.environment["AGENTGAUGE__INGEST__MAX_DECODED_BYTES"] = str(cap * MIB)
        if lasting:
            store = {"DIRECTORY": str(folder / "store"), "DURABILITY": "fsync"}
            self.environment |= {f"AGENTGAUGE__STORE__{name}": value for name, value in store.items()}
        self.start()

    def start(self):
        serve = [self.binary, "serve", "--otlp-grpc", "127.0.0.1:0", "--otlp-http", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        environment = os.environ | self.environment
        self.process = subprocess.Popen(
            serve, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        bound = json.loads(self.process.stdout.readline())
        self.address, self.http = bound["otlp_http"], bound["http"]
        until("it to be ready", lambda: get(f"http://{self.http}/readyz"), 60)

    def held(self):
        """The spans of its traces, each of which is a session."""
        page = json.loads(get(f"http://{self.http}/api/v1/sessions?detail=row&limit=1"))
        return PARTS * page["total"]


class Collector:
    """The Collector, with a queue on disk if it must lose nothing."""

    name = "Collector"

    def __init__(self, binary, folder, cap=None, lasting=False):
        self.binary, self.folder, self.sink = binary, folder, Sink() if lasting else None
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        limiter = {"check_interval": "100ms", "limit_mib": cap or 2048, "spike_limit_mib": (cap or 2048) // 5}
        config = {
            "receivers": {"otlp": {"protocols": {"http": {"endpoint": self.address}}}},
            "processors": {"memory_limiter": limiter},
            "exporters": {"nop": {}},
            "service": {
                "telemetry": {"metrics": {"level": "none"}},
                "pipelines": {"traces": {"receivers": ["otlp"], "processors": ["memory_limiter"], "exporters": ["nop"]}},
            },
        }
        if lasting:
            (folder / "queue").mkdir()
            config["extensions"] = {"file_storage": {"directory": str(folder / "queue"), "fsync": True}}
            queue = {"storage": "file_storage", "queue_size": 1_000_000}
            config["exporters"] = {"otlphttp": {"endpoint": self.sink.url, "encoding": "json", "sending_queue": queue, "compression": "none"}}
            config["service"]["extensions"] = ["file_storage"]
            config["service"]["pipelines"]["traces"]["exporters"] = ["otlphttp"]
        self.config = folder / "collector.json"
        self.config.write_text(json.dumps(config))
        self.start()

    def start(self):
        command = [self.binary, "--config", str(self.config)]
        with (self.folder / "collector.log").open("a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        until("the Collector to listen", self.listens, 60)

    def listens(self):
        with contextlib.closing(socket.create_connection(address_of(self.address), 5)):
            return True

    def held(self):
        """The spans that it sent on."""
        return len(self.sink.spans)


class Sink:
    """Accepts OTLP in JSON once it is open, and notes the spans in it."""

    def __init__(self):
        sink = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                if sink.open:
                    ids = re.findall(rb'"traceId":\s*"(\w+)",\s*"spanId":\s*"(\w+)"', body)
                    sink.spans.update(ids)
                self.send_response(200 if sink.open else 503)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.open, self.spans = False, set()
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()


def address_of(address):
    host, port = address.rsplit(":", 1)
    return host, int(port)


class Told:
    """The answers to honest senders."""

    def __init__(self):
        self.lock, self.taken, self.refused, self.lost = threading.Lock(), 0, 0, 0
        self.slowest = 0.0

    def note(self, status, seconds):
        with self.lock:
            self.slowest = max(self.slowest, seconds)
            if status == 200:
                self.taken += 1
            elif status is None:
                self.lost += 1
            else:
                self.refused += 1


def send(address, told, end):
    connection = None
    while time.monotonic() < end:
        began, request = time.monotonic(), BODY.replace(MARK.encode(), f"{next(NUMBERS):016x}".encode())
        try:
            connection = connection or http.client.HTTPConnection(address, timeout=30)
            connection.request("POST", "/v1/traces", request, {"content-type": "application/json"})
            response = connection.getresponse()
            response.read()
            told.note(response.status, time.monotonic() - began)
            if response.status != 200:
                time.sleep(0.05)
        except (OSError, http.client.HTTPException):
            told.note(None, time.monotonic() - began)
            connection = None
            time.sleep(0.05)


def honest(address, seconds, senders=SENDERS):
    """Sends for this long; returns the outcome."""
    told, end = Told(), time.monotonic() + seconds
    threads = [threading.Thread(target=send, args=(address, told, end)) for _ in range(senders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


class Attack:
    """Connections that are held open, and what they do repeatedly, in a separate thread."""

    def __init__(self, address, count, begin, again=lambda stream: None):
        self.address, self.count, self.begin, self.again = address, count, begin, again
        self.stop, self.streams = threading.Event(), []
        self.thread = threading.Thread(target=self.run)

    def __enter__(self):
        for _ in range(self.count):
            self.open()
        self.thread.start()
        return self

    def open(self):
        with contextlib.suppress(OSError):
            stream = socket.create_connection(address_of(self.address), 5)
            stream.sendall(self.begin)
            stream.setblocking(False)
            self.streams.append(stream)

    def run(self):
        while not self.stop.wait(0.5):
            for stream in list(self.streams):
                try:
                    self.again(stream)
                except BlockingIOError:
                    pass
                except OSError:
                    self.streams.remove(stream)
                    stream.close()
                    self.open()

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()
        for stream in self.streams:
            stream.close()


@contextlib.contextmanager
def running(kind, binary, **options):
    with tempfile.TemporaryDirectory() as folder:
        server = kind(binary, pathlib.Path(folder), **options)
        try:
            yield server
        finally:
            server.process.kill()
            server.process.wait()


def beside(kind, binary, attack):
    """The share of what honest senders got before that they get beside an attack."""
    with running(kind, binary) as server:
        before = honest(server.address, ROUND)
        with attack(server.address):
            told = honest(server.address, ROUND)
        memory = status_bytes(server.process, "VmHWM") // MIB
    share = 100 * told.taken / max(1, before.taken)
    if kind is Daemon:
        assert told.taken > 0 and told.lost == 0, vars(told)
    return f"{told.taken / ROUND:,.0f} requests/s ({share:.0f} % of before), {told.refused} refused, {told.lost} lost, {memory} MiB"


def slow(kind, binary):
    """64 bodies announced as 16 MiB and sent a byte at a time."""
    head = b"POST /v1/traces HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 16000000\r\n\r\n{"
    return beside(kind, binary, lambda address: Attack(address, 64, head, lambda stream: stream.send(b" ")))


def idle(kind, binary):
    """4,000 silent connections."""
    return beside(kind, binary, lambda address: Attack(address, 4_000, b""))


def bombs(kind, binary):
    """A gzip of 1 GiB of spaces, 32 times, four at a time."""
    bomb = gzip.compress(b" " * BOMB_BYTES, 9)
    answers = []

    def throw(address):
        for _ in range(8):
            began = time.monotonic()
            try:
                connection = http.client.HTTPConnection(address, timeout=60)
                headers = {"content-type": "application/json", "content-encoding": "gzip"}
                connection.request("POST", "/v1/traces", bomb, headers)
                status = connection.getresponse().status
            except (OSError, http.client.HTTPException) as error:
                status = type(error).__name__
            answers.append((status, time.monotonic() - began))

    with running(kind, binary) as server:
        before = status_bytes(server.process, "VmHWM")
        threads = [threading.Thread(target=throw, args=(server.address,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        grown = (status_bytes(server.process, "VmHWM") - before) // MIB
        after = honest(server.address, 1)
    statuses = sorted({str(status) for status, _ in answers})
    if kind is Daemon:
        assert statuses == ["413"] and after.lost == 0 and grown < 512, (statuses, grown)
    return f"{', '.join(statuses)} within {max(took for _, took in answers):.1f} s, {grown} MiB more"


def twice(kind, binary):
    """Four times as many senders as keep it busy."""
    with running(kind, binary) as server:
        before = honest(server.address, ROUND)
        told = honest(server.address, ROUND, 4 * SENDERS)
        memory = status_bytes(server.process, "VmHWM") // MIB
    share = 100 * told.taken / max(1, before.taken)
    if kind is Daemon:
        assert told.lost == 0 and told.taken > 0
    return (
        f"{told.taken / ROUND:,.0f} requests/s ({share:.0f} % of before), {told.refused} refused, {told.lost} lost, "
        f"slowest {told.slowest:.2f} s, {memory} MiB"
    )


def capped(kind, binary):
    """64 MiB, sixteen senders of requests of 1.5 MiB with 30,000 attributes."""
    large = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{
        "traceId": "ab" * 16, "spanId": "cd" * 8, "name": "x",
        "attributes": [{"key": f"key-{number}", "value": {"stringValue": "v"}} for number in range(30_000)],
    }]}]}]}).encode()
    told, end = Told(), time.monotonic() + ROUND

    def bring(address):
        while time.monotonic() < end:
            began = time.monotonic()
            try:
                connection = http.client.HTTPConnection(address, timeout=60)
                connection.request("POST", "/v1/traces", large, {"content-type": "application/json"})
                told.note(connection.getresponse().status, time.monotonic() - began)
            except (OSError, http.client.HTTPException):
                told.note(None, time.monotonic() - began)

    with running(kind, binary, cap=CAP_MIB) as server:
        end = time.monotonic() + ROUND
        threads = [threading.Thread(target=bring, args=(server.address,)) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        memory = status_bytes(server.process, "VmHWM") // MIB
    return f"{told.taken} taken, {told.refused} refused, {told.lost} lost, of {len(large) / MIB:.1f} MiB each; {memory} MiB"


def killed(kind, binary):
    """kill -9 three times while eight senders send; agentgauge with `fsync`, the Collector with `file_storage` and `fsync`."""
    with running(kind, binary, lasting=True) as server:
        acknowledged = lost = 0
        for _ in range(3):
            told, end = Told(), time.monotonic() + ROUND
            threads = [threading.Thread(target=send, args=(server.address, told, end)) for _ in range(SENDERS)]
            for thread in threads:
                thread.start()
            time.sleep(ROUND / 2)
            server.process.kill()
            server.process.wait()
            for thread in threads:
                thread.join()
            server.start()
            acknowledged, lost = acknowledged + told.taken, lost + told.lost
        spans = TRACES * PARTS * acknowledged
        if kind is Collector:
            server.sink.open = True
        with contextlib.suppress(SystemExit):
            until("all of it to be there", lambda: server.held() >= spans, 60)
        held = server.held()
    missing = max(0, spans - held)
    if kind is Daemon:
        assert missing == 0, f"{missing} spans of {spans} were acknowledged and are gone"
    return f"{missing:,} of {spans:,} acknowledged spans lost"


ATTACKS = {"slow": slow, "idle": idle, "bombs": bombs, "twice": twice, "capped": capped, "killed": killed}


def main():
    binary, collector, names = sys.argv[1], sys.argv[2], sys.argv[3:] or list(ATTACKS)
    print("| Attack | agentgauge | Collector |\n|---|---|---|", flush=True)
    for name in names:
        attack = ATTACKS[name]
        said = [attack(kind, program) for kind, program in ((Daemon, binary), (Collector, collector))]
        print(f"| {attack.__doc__.rstrip('.')} | {said[0]} | {said[1]} |", flush=True)


if __name__ == "__main__":
    main()
