#!/usr/bin/env python3
"""R26, R37: a daemon under load for long, at a share of its capacity and at twice its capacity; with caps of memory from small to large;
and behind a network that is cut repeatedly. Each time the sent data adds up: it was accepted, or its sender got an error, or it was
counted as dropped; memory stays within its bound, and a request afterwards is answered at once.

Usage: load.py BINARY [NAME..], of steady, twice, caps, cuts; all of them without a name. Longer by the environment: AGENTGAUGE_STEADY_SECONDS
(at 80 %), AGENTGAUGE_TWICE_SECONDS (at 200 %), AGENTGAUGE_CUTS_SECONDS. Prints a line for each, to go into docs/reliability.md.
"""

import contextlib
import http.client
import itertools
import json
import os
import pathlib
import random
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

STEADY, TWICE, CUTS = (
    int(os.environ.get(f"AGENTGAUGE_{name}_SECONDS", default))
    for name, default in (("STEADY", "10"), ("TWICE", "5"), ("CUTS", "8"))
)
MIB = 1 << 20
# Large enough that the senders are not saturated.
TRACES, PARTS = 64, 8
MARK = "c" * 16
SENDERS = 32
# The memory of a request of this size besides the cap: code, state, and what the allocator keeps.
BESIDE_BYTES = 256 * MIB


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def until(what, probe, seconds):
    """Polls until the probe returns something true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            if probe():
                return
        time.sleep(0.1)
    raise SystemExit(f"waited {seconds} s for {what}")


def body():
    """Whole traces, whose ids and sessions have a placeholder for a number."""

    def attribute(key, text):
        return {"key": key, "value": {"stringValue": text}}

    def span(trace, part):
        of = [attribute("gen_ai.operation.name", "invoke_agent"), attribute("session.id", f"{MARK}-{trace}")]
        if part > 1:
            of = [attribute("gen_ai.operation.name", "execute_tool"), attribute("gen_ai.tool.name", f"tool-{part}")]
        return {
            "traceId": f"{MARK}{trace + 1:016x}",
            "spanId": f"{part:016x}",
            "parentSpanId": f"{1:016x}" if part > 1 else "",
            "name": "step",
            "attributes": of,
        }

    spans = [span(trace, part) for trace in range(TRACES) for part in range(1, PARTS + 1)]
    resource = {"attributes": [attribute("service.name", "load")]}
    request = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": spans}]}]}
    return json.dumps(request).encode()


BODY = body()
# No two requests have traces in common.
NUMBERS = itertools.count(1)


class Tally:
    """The answers to senders, in spans; shared by all of them."""

    def __init__(self):
        self.lock = threading.Lock()
        self.requests = 0
        self.taken = self.refused = self.rejected = self.unknown = 0
        self.seconds = []

    def next(self):
        with self.lock:
            self.requests += 1
            return BODY.replace(MARK.encode(), f"{next(NUMBERS):016x}".encode())

    def note(self, status, answer, seconds):
        spans = TRACES * PARTS
        with self.lock:
            if status == 200:
                partial = json.loads(answer or b"{}").get("partialSuccess", {})
                self.rejected += int(partial.get("rejectedSpans", 0))
                self.taken += spans
                self.seconds.append(seconds)
            elif status == 503:
                self.refused += spans
            else:
                # It is unknown whether it was accepted: the connection was cut.
                assert status is None, (status, answer)
                self.unknown += spans


@contextlib.contextmanager
def daemon(binary, **options):
    environment = {"AGENTGAUGE__SESSION__SESSION_IDLE": "5s", "AGENTGAUGE__ASSEMBLE__TRACE_IDLE": "1s"} | options
    serve = [binary, "serve", "--otlp-grpc", "127.0.0.1:0", "--otlp-http", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    process = subprocess.Popen(
        serve, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        bound = json.loads(process.stdout.readline())
        until("it to be ready", lambda: get(f"http://{bound['http']}/readyz"), 60)
        yield process, bound
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def status_bytes(process, name):
    """Memory of a process by the kernel's name: VmRSS is the current one, VmHWM the maximum."""
    text = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)[1]) << 10


def send(address, tally, pace, end):
    """Sends until `end`, a request each `pace` seconds or as fast as it is answered."""
    connection, due = None, time.monotonic() + random.random() * pace
    while time.monotonic() < end:
        wait = due - time.monotonic()
        if wait > 0:
            time.sleep(min(wait, max(0.0, end - time.monotonic())))
            continue
        due = max(due + pace, time.monotonic() - 1)
        began, request = time.monotonic(), tally.next()
        try:
            connection = connection or http.client.HTTPConnection(address, timeout=30)
            connection.request("POST", "/v1/traces", request, {"content-type": "application/json"})
            response = connection.getresponse()
            tally.note(response.status, response.read(), time.monotonic() - began)
            if response.status == 503:
                time.sleep(0.05)
        except (OSError, http.client.HTTPException):
            tally.note(None, b"", 0)
            connection = None


def load(address, seconds, rate=None, senders=SENDERS):
    """Sends for this long; returns the outcome, and the accepted requests per second."""
    tally, end = Tally(), time.monotonic() + seconds
    pace = senders / rate if rate else 0.0
    threads = [threading.Thread(target=send, args=(address, tally, pace, end)) for _ in range(senders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tally, len(tally.seconds) / seconds


def counted(page, family, label=""):
    lines = (line for line in page.splitlines() if line.startswith(family + "{") and label in line)
    return sum(int(float(line.rpartition(" ")[2])) for line in lines)


def adds_up(bound, before, tallies):
    """What was accepted was received, what was rejected was reported, and nothing else is missing; returns the page."""
    page = get(f"http://{bound['http']}/metrics")
    received = counted(page, "agentgauge_spans_received_total") - counted(before, "agentgauge_spans_received_total")
    taken, unknown = (sum(getattr(tally, what) for tally in tallies) for what in ("taken", "unknown"))
    assert taken <= received <= taken + unknown, (taken, received, unknown)
    rejected = counted(page, "agentgauge_spans_rejected_total")
    told = sum(tally.rejected for tally in tallies)
    assert rejected == told, (rejected, told)
    # Each trace is complete in its request, so none of it arrives late or twice.
    dropped = counted(page, "agentgauge_late_spans_total", "dropped")
    assert dropped == 0, dropped
    # All accepted traces are done in the end.
    done = lambda: counted(get(f"http://{bound['http']}/metrics"), "agentgauge_traces_total")
    until("every trace to be done", lambda: done() * PARTS == received - rejected, 60)
    return page


def p99(tally):
    return 1000 * sorted(tally.seconds)[int(0.99 * len(tally.seconds))]


def cpu_seconds(process):
    """The processor time of a process so far."""
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def saturated(process, bound):
    """The requests a second that it takes of as many senders as there are, who cost a third of what it does at most."""
    daemon_began, senders_began = cpu_seconds(process), time.process_time()
    tally, rate = load(bound["otlp_http"], 4)
    took, senders = cpu_seconds(process) - daemon_began, time.process_time() - senders_began
    assert senders < took / 3, f"{senders:.1f} s of processors by the senders, {took:.1f} s by the daemon"
    return tally, rate


def say(name, seconds, tally, rate, process):
    spans = TRACES * PARTS
    print(
        f"{name}: {seconds:.0f} s, {rate * spans:,.0f} spans/s taken, {tally.refused // spans:,} of "
        f"{tally.requests:,} requests refused, p99 {p99(tally):.0f} ms, {status_bytes(process, 'VmHWM') // MIB} MiB at most",
        flush=True,
    )


def steady(binary):
    """At 80 % of saturation nothing is refused for want of speed, and memory does not grow once sessions close as fast as they come."""
    with daemon(binary) as (process, bound):
        first, rate = saturated(process, bound)
        tallies, resident, parts = [first], [], 6
        for _ in range(parts):
            tally, took = load(bound["otlp_http"], STEADY / parts, 0.8 * rate)
            tallies.append(tally)
            resident.append(status_bytes(process, "VmRSS"))
        say("80 %", STEADY, tally, took, process)
        early, late = max(resident[: parts // 2]), max(resident[parts // 2 :])
        assert late <= 1.25 * early + 64 * MIB, f"{early} bytes grew to {late}"
        adds_up(bound, "", tallies)


def twice(binary):
    """At 200 % it accepts what it can, refuses the rest, keeps to its memory, and answers at once when that is over."""
    cap = 64 * MIB
    with daemon(binary, AGENTGAUGE__INGEST__MAX_DECODED_BYTES=str(cap)) as (process, bound):
        first, rate = saturated(process, bound)
        tally, took = load(bound["otlp_http"], TWICE, 2 * rate, 4 * SENDERS)
        say("200 %", TWICE, tally, took, process)
        assert took > 0.3 * rate, f"{took:.0f} requests/s of {rate:.0f}"
        after, _ = load(bound["otlp_http"], 2, 1, 1)
        assert after.refused == 0 and p99(after) < 5000, (after.refused, p99(after))
        adds_up(bound, "", [first, tally, after])


def caps(binary):
    """Caps from 64 MiB to 2 GiB: requests in flight take no more than that, however many there are."""
    for mib in (64, 256, 1024, 2048):
        with daemon(binary, AGENTGAUGE__INGEST__MAX_DECODED_BYTES=str(mib * MIB)) as (process, bound):
            before = status_bytes(process, "VmHWM")
            tally, rate = load(bound["otlp_http"], 3, senders=4 * SENDERS)
            grown = status_bytes(process, "VmHWM") - before
            say(f"{mib} MiB", 3, tally, rate, process)
            assert grown <= mib * MIB * 1.1 + BESIDE_BYTES, f"{grown} bytes over {mib} MiB"
            adds_up(bound, "", [tally])


class Cuts:
    """A proxy to an address that is cut at random, in the middle of any transfer."""

    def __init__(self, address):
        self.target = (address.rpartition(":")[0], int(address.rpartition(":")[2]))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.pairs, self.lock, self.cuts = [], threading.Lock(), 0
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            try:
                client, _ = self.listener.accept()
                server = socket.create_connection(self.target)
            except OSError:
                return
            with self.lock:
                self.pairs.append((client, server))
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=self.carry, args=(one, other), daemon=True).start()

    @staticmethod
    def carry(one, other):
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self):
        with self.lock:
            pairs, self.pairs = self.pairs, []
        for end in (end for pair in pairs for end in pair):
            with contextlib.suppress(OSError):
                end.close()
        self.cuts += 1


def cuts(binary):
    """Cut connections lose nothing that was acknowledged, and leave nothing behind."""
    with daemon(binary) as (process, bound):
        way, stop = Cuts(bound["otlp_http"]), threading.Event()

        def now_and_then():
            while not stop.wait(random.uniform(0.05, 0.5)):
                way.cut()

        cutting = threading.Thread(target=now_and_then)
        cutting.start()
        tally, rate = load(way.address, CUTS)
        stop.set()
        cutting.join()
        say(f"{way.cuts} cuts", CUTS, tally, rate, process)
        assert tally.unknown > 0, "nothing was cut"
        # Requests that were cut off are given up by now.
        adds_up(bound, "", [tally])


def main():
    binary, names = sys.argv[1], sys.argv[2:] or ["steady", "twice", "caps", "cuts"]
    for name in names:
        {"steady": steady, "twice": twice, "caps": caps, "cuts": cuts}[name](binary)


if __name__ == "__main__":
    main()
