"""The wall clock is set while the daemon runs, between two runs, and both, with and without a store: timers continue, timestamps follow,
a step is counted once and logged, and a store written with a wrong clock starts with a warning, and scores.

Usage: clocks.py BINARY WORKDIR [PART OF A NAME]. Needs libfaketime, whose file with the time each test writes; the monotonic clock
does not change, as when a clock is set.
"""

import concurrent.futures
import glob
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
import urllib.request

from end_to_end import get, until

HOUR, DAY = 3600, 86400
STEPS = (-20, -HOUR, HOUR, DAY)

# Expected events happen within this time.
SECONDS = 15

# Concurrent tests.
AT_ONCE = 4

# A trace is done when it was quiet for 200 ms. How long a session stays open is each test's to say. One shard: whatever comes
# makes it look at all of its timers.
OPTIONS = {
    "AGENTGAUGE__ENGINE__SHARDS": "1",
    "AGENTGAUGE__METRICS__DETAIL": "full",
    "AGENTGAUGE__ASSEMBLE__TRACE_IDLE": "200ms",
    "AGENTGAUGE__ASSEMBLE__ROOTLESS_IDLE": "2s",
}


def faketime():
    found = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
    if not found:
        raise SystemExit("libfaketimeMT.so.1 is not there: install the package `faketime`")
    return found[0]


class Daemon:
    """A daemon whose wall clock is `ahead` of this machine's by this many seconds; `store` is a directory, or there is none."""

    def __init__(self, binary, work, store=None, ahead=0, **options):
        self.binary, self.work, self.store = binary, work, store
        self.options = OPTIONS | {f"AGENTGAUGE__{name}": value for name, value in options.items()}
        if store:
            self.options |= {
                "AGENTGAUGE__STORE__DURABILITY": "flush",
                "AGENTGAUGE__STORE__DIRECTORY": str(store),
            }
        self.time, self.errors = work / "time", work / "errors"
        self.numbers = itertools.count(1)
        self.start(ahead)

    def set(self, ahead):
        """Sets the wall clock."""
        self.ahead = ahead
        fresh = self.time.with_suffix(".new")
        fresh.write_text(f"{ahead:+d}\n")
        fresh.replace(self.time)

    def start(self, ahead):
        self.set(ahead)
        clock = {
            "LD_PRELOAD": faketime(),
            "FAKETIME_TIMESTAMP_FILE": str(self.time),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }
        serve = [self.binary, "serve", "--otlp-grpc", "127.0.0.1:0", "--otlp-http", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                serve, env=os.environ | self.options | clock, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self.bound = json.loads(self.process.stdout.readline())
        until("it to be ready", lambda: get(f"http://{self.bound['http']}/readyz"), 60)
        began = self.sum("process_start_time_seconds")
        assert abs(began - time.time() - ahead) < 60, f"the wall clock of the daemon is not the one that was asked for: {began}"

    def stop(self, how):
        self.process.send_signal(how)
        self.process.wait(60)

    def again(self, ahead, how=signal.SIGKILL):
        """The daemon ends, and another one starts with that wall clock."""
        self.stop(how)
        self.start(ahead)

    def log(self):
        return self.errors.read_text()

    def sum(self, name, **labels):
        """The sum of all series with this name and these labels; 0 without one."""
        page = get(f"http://{self.bound['http']}/metrics")[0]
        lines = [line for line in page.splitlines() if re.match(rf"{name}[{{ ]", line)]
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(label in line for label in wanted))

    def send(self, session, clock=None, whole=True):
        """A trace of this session as a client stamps it whose clock is ahead of ours by `clock` seconds, else as the daemon's;
        one that is not whole lacks its root."""
        number = next(self.numbers)
        end = time.time_ns() + (self.ahead if clock is None else clock) * 1_000_000_000

        def attribute(key, text):
            return {"key": key, "value": {"stringValue": text}}

        def span(part, parent, operation):
            return {
                "traceId": f"{number:032x}",
                "spanId": f"{part:016x}",
                "parentSpanId": parent,
                "name": "step",
                "startTimeUnixNano": str(end - 1_000_000),
                "endTimeUnixNano": str(end),
                "attributes": [
                    attribute("gen_ai.operation.name", operation),
                    attribute("gen_ai.agent.name", "clerk"),
                    attribute("gen_ai.conversation.id", session),
                    attribute("gen_ai.tool.name", "look"),
                ],
            }

        root = f"{1:016x}"
        spans = [span(1, "", "invoke_agent")] if whole else []
        spans += [span(2, root, "execute_tool")]
        resource = {"attributes": [attribute("service.name", "shop")]}
        body = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": spans}]}]}
        request = urllib.request.Request(
            f"http://{self.bound['otlp_http']}/v1/traces", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200, answer.status

    def window(self):
        """The number of traces in the shortest window."""
        return self.sum("agentgauge_agent_window_traces", window="5m")

    def scored(self):
        """The number of traces that this process has judged."""
        return self.sum("agentgauge_trace_evaluations_total", signal="trace_risk")

    def is_scored(self, session, clock=None):
        """Sends a trace, and waits until it was judged and is in the shortest window."""
        before = self.scored()
        self.send(session, clock)
        until(f"a trace of {session} to be scored", lambda: self.scored() > before, SECONDS, self.log)
        until(f"a trace of {session} in the window", self.window, SECONDS, self.log)

    def has_counted(self, forward, back):
        """Waits until this many steps were counted; each is one line of the log."""
        steps = lambda: tuple(self.sum("agentgauge_clock_steps_total", direction=way) for way in ("forward", "back"))
        until(f"{forward} and {back} steps", lambda: steps() == (forward, back), SECONDS, lambda: f"{steps()} {self.log()}")
        lines = [line for line in self.log().splitlines() if "the wall clock was set" in line or "was ahead of this one" in line]
        assert len(lines) == forward + back, lines

    def open_sessions(self):
        return self.sum("agentgauge_sessions_active")

    def repaired(self):
        return self.sum("agentgauge_spans_repaired_total")


def expect(what, found, wanted):
    assert found == wanted, f"{what}: {found}, not {wanted}"


def set_while_it_runs(daemon, step):
    """A step and its correction: sessions stay open, traces are scored at once, nothing is mended."""
    daemon.is_scored("before")
    daemon.set(step)
    daemon.has_counted(step > 0, step < 0)
    # A client with the new clock, as if both were corrected together.
    daemon.is_scored("after")
    expect("open sessions after the step", daemon.open_sessions(), 2)
    daemon.set(0)
    daemon.has_counted(1, 1)
    daemon.is_scored("corrected")
    expect("open sessions after the correction", daemon.open_sessions(), 3)
    expect("closed sessions", daemon.sum("agentgauge_sessions_closed_total"), 0)
    expect("mended times", daemon.repaired(), 0)


def and_then_started_again(daemon, step):
    """A log with records before, between and after two steps is replayed to the same state."""
    set_while_it_runs(daemon, step)
    # Those of another time have left it.
    left = 3 if abs(step) < 5 * 60 else 1
    until("the window", lambda: daemon.window() == left, SECONDS, daemon.window)
    for how in (signal.SIGKILL, signal.SIGTERM):
        daemon.again(0, how)
        expect("open sessions", daemon.open_sessions(), 3)
        expect("steps that only the one before has seen", daemon.sum("agentgauge_clock_steps_total"), 0)
        until("the window as it was", lambda: daemon.window() == left, SECONDS, daemon.window)
    daemon.is_scored("again")


def set_while_timers_run(daemon, step):
    """Sessions close when they have been idle for long enough, neither sooner nor later."""
    daemon.is_scored("one")
    began = time.monotonic()
    daemon.set(step)
    until("the session to close", lambda: daemon.open_sessions() == 0, SECONDS, daemon.log)
    took = time.monotonic() - began
    assert 3 < took < 12, f"a session that is idle after 5 s closed {took:.1f} s after its trace was scored"
    # A trace without its root waits for it.
    daemon.send("two", whole=False)
    daemon.set(0)
    until("the trace without a root", lambda: daemon.open_sessions() == 1, SECONDS, daemon.log)


def wrong_at_the_start(daemon, step):
    """The machine starts with a wrong clock, which is corrected later."""
    daemon.is_scored("before")
    # A client elsewhere is right; for the daemon its times are in the future, or, by a day, too old.
    daemon.send("elsewhere", clock=0)
    until("a session of another clock", lambda: daemon.open_sessions() == 2, SECONDS, daemon.log)
    daemon.set(0)
    daemon.has_counted(step < 0, step > 0)
    mended = daemon.repaired()
    daemon.is_scored("elsewhere")
    expect("open sessions", daemon.open_sessions(), 2)
    expect("mended times since", daemon.repaired(), mended)


def written_by_a_wrong_clock(daemon, step, how):
    """A log that was written while the clock was wrong is read by a daemon with the right one, whose only reaction is a log line."""
    daemon.is_scored("before")
    daemon.send("open", whole=False)
    daemon.again(0, how)
    if step > 0:
        daemon.has_counted(0, 1)
        assert "was ahead of this one" in daemon.log(), daemon.log()
        # It is unknown how long it was away, so no time has passed.
        assert daemon.open_sessions() >= 1
    else:
        # It looks as if it had been away.
        daemon.has_counted(0, 0)
    daemon.is_scored("right")
    expect("mended times", daemon.repaired(), 0)
    until("sessions of the store to close", lambda: daemon.open_sessions() == 0, 40, daemon.log)
    closed = daemon.sum("agentgauge_sessions_closed_total")
    assert closed >= 1, closed
    # And once more, over a log that has both: its end is no news.
    daemon.again(0)
    daemon.has_counted(0, 0)
    daemon.is_scored("once more")


def read_by_a_wrong_clock(daemon, step):
    """The store is right, and the clock is wrong at the next start, and corrected while that runs."""
    daemon.is_scored("before")
    daemon.again(step)
    daemon.has_counted(0, step < 0)
    # A machine that was off for an hour or a day has closed its sessions; this cannot be distinguished from that.
    wanted = 1 if step < 30 * 60 else 0
    until(f"{wanted} open sessions", lambda: daemon.open_sessions() == wanted, SECONDS, daemon.log)
    daemon.is_scored("wrong")
    daemon.set(0)
    daemon.has_counted(step < 0, 1)
    daemon.is_scored("right")
    daemon.again(0)
    expect("open sessions", daemon.open_sessions(), 3 if step < 30 * 60 else 2)
    daemon.is_scored("right again")
    expect("mended times", daemon.repaired(), 0)


def tests():
    """Each with its name, the clock at the start, whether it has a store, and options."""
    short = {"SESSION__SESSION_IDLE": "5s"}
    for step in STEPS:
        by = f"by {step:+d} s"
        yield f"set {by} while it runs", set_while_it_runs, (step,), 0, False, {}
        yield f"set {by} while it runs, with a store", and_then_started_again, (step,), 0, True, {}
        yield f"set {by} while timers run", set_while_timers_run, (step,), 0, False, short
        yield f"wrong {by} at the start", wrong_at_the_start, (step,), step, False, {}
        for how in (signal.SIGKILL, signal.SIGTERM):
            name = f"a store written by a clock that was wrong {by}, {how.name}"
            yield name, written_by_a_wrong_clock, (step, how), step, True, {"SESSION__SESSION_IDLE": "10s"}
        yield f"a store read by a clock that is wrong {by}", read_by_a_wrong_clock, (step,), 0, True, {}


def run(binary, work, test):
    """Why a test failed; None if it did not."""
    name, check, arguments, ahead, stored, options = test
    work.mkdir(parents=True)
    daemon = None
    try:
        daemon = Daemon(binary, work, work / "store" if stored else None, ahead, **options)
        check(daemon, *arguments)
        print(f"ok: {name}", flush=True)
        return None
    except (Exception, SystemExit):
        return f"FAILED: {name}: {traceback.format_exc()}"
    finally:
        if daemon:
            daemon.process.kill()
            daemon.process.wait()


def main():
    binary, work = sys.argv[1], pathlib.Path(sys.argv[2]) / "clocks"
    shutil.rmtree(work, ignore_errors=True)
    chosen = [test for test in tests() if len(sys.argv) < 4 or sys.argv[3] in test[0]]
    # Most of each is waiting.
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        running = [pool.submit(run, binary, work / str(number), test) for number, test in enumerate(chosen)]
        failures = [why for each in running if (why := each.result())]
    print(*failures, f"{len(chosen) - len(failures)} passed, {len(failures)} failed", sep="\n")
    sys.exit(bool(failures) or not chosen)


if __name__ == "__main__":
    main()
