"""An agent that is healthy, fails, and recovers; and the pages about it."""

import http.server
import json
import random
import threading
import time
import urllib.parse
import urllib.request

from end_to_end import get, until

TOOL = "find_order"


class Worker(threading.Thread):
    """An agent at work, until the block ends: every trace is a session, and some fail by the tool."""

    def __init__(self, url, service, agent, version="1", tenths_of_seconds=1):
        super().__init__(daemon=True)
        self.url, self.service, self.agent, self.version = url, service, agent, version
        self.pause, self.random = tenths_of_seconds / 10, random.Random(agent)
        self.enough, self.failure = threading.Event(), None
        self.share, self.failed, self.sent = 0.01, [], 0

    def run(self):
        try:
            while not self.enough.wait(self.pause):
                self.turn(self.random.random() < self.share)
        except Exception as error:
            self.failure = error

    def turn(self, fails):
        # Characters that have to be escaped in a link.
        session = f"{self.agent} +/{self.sent}"
        trace, now = f"{self.random.getrandbits(128) | 1:032x}", time.time_ns()
        status = {"status": {"code": 2 if fails else 1}}

        def span(number, name, **attributes):
            named = {f"gen_ai.{key.replace('__', '.')}": value for key, value in attributes.items()}
            return {
                "traceId": trace, "spanId": f"{number:016x}", "parentSpanId": "" if number == 1 else f"{1:016x}", "name": name,
                "startTimeUnixNano": str(now - 30_000_000), "endTimeUnixNano": str(now - 20_000_000 // number),
                "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in named.items()], **status,
            }

        spans = [
            span(1, "invoke_agent", operation__name="invoke_agent", agent__name=self.agent, agent__version=self.version,
                 conversation__id=session),
            span(2, "execute_tool", operation__name="execute_tool", tool__name=TOOL,
                 tool__call__arguments=json.dumps({"order": self.sent})),
        ]
        resource = {"attributes": [{"key": "service.name", "value": {"stringValue": self.service}}]}
        body = json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": spans}]}]})
        post = urllib.request.Request(self.url, body.encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(post, timeout=60) as answer:
            assert answer.status == 200, answer.status
        self.sent += 1
        if fails:
            self.failed.append(session)

    def check(self):
        if self.failure:
            raise SystemExit(f"{self.agent} cannot send: {self.failure}")

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.enough.set()
        self.join()
        self.check()


class Pager:
    """Receives an Alertmanager's webhook; keeps the notifications, in order."""

    def __init__(self):
        self.told = told = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                told.append(body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def last(self, **labels):
        """The last notification about the alert with these labels."""
        for message in reversed(self.told):
            for alert in message["alerts"]:
                if labels.items() <= alert["labels"].items():
                    return alert
        return None


def check_drop(http, worker, pager, watched, browser, evaluations, give_up):
    """The agent fails 40 %: the page comes, has all facts, stays, and ends when the agent recovers."""
    page = {
        "alertname": "AgentReliabilityDrop", "severity": "critical", "service_name": worker.service,
        "gen_ai_agent_name": worker.agent, "gen_ai_agent_version": worker.version,
    }
    selector = f'service_name="{worker.service}",alertname="AgentReliabilityDrop"'

    def has_past():
        worker.check()
        [agent] = json.loads(get(f"{http}/api/v1/agents?service_name={worker.service}")[0])["agents"]
        return any(drop["stream"] == "verdict" and drop["against"] == "past" for drop in agent["drops"])

    until("a past", has_past, give_up)
    early = watched.ask(f"count_over_time(ALERTS{{{selector}}}[1d])")
    assert not early, f"told before it failed: {early}"

    worker.share, before, began = 0.4, worker.sent, time.monotonic()

    def is_told(status):
        worker.check()
        alert = pager.last(**page)
        return alert if alert and alert["status"] == status else None

    alert = until("the page", lambda: is_told("firing"), give_up, lambda: pager.told[-1:])
    print(f"paged after {worker.sent - before} traces and {time.monotonic() - began:.0f} s, with nothing but the default grouping")
    check_annotations(worker, alert["annotations"], browser)

    # It stays for as long as the agent fails: at every evaluation, and no other notification is sent.
    def counted():
        firing = watched.ask(f'count_over_time(ALERTS{{{selector},severity="critical",alertstate="firing"}}[1d])')
        return float(firing[0]["value"][1]) if firing else 0

    at, all_at, told = counted(), watched.evaluations()["agentgauge-drops"], len(pager.told)
    until("further evaluations", lambda: worker.check() or counted() >= at + evaluations, give_up)
    missed = watched.evaluations()["agentgauge-drops"] - all_at - (counted() - at)
    assert missed <= 2, f"it did not fire in {missed} of {evaluations} evaluations"
    since = [alert for message in pager.told[told:] for alert in message["alerts"] if page.items() <= alert["labels"].items()]
    assert all(alert["status"] == "firing" for alert in since), since

    worker.share, before = 0.0, worker.sent
    until("the end of the page", lambda: is_told("resolved"), give_up)
    pages = {alert["labels"]["alertname"] for message in pager.told for alert in message["alerts"]
             if alert["labels"].get("service_name") == worker.service and alert["labels"]["severity"] == "critical"}
    assert pages == {"AgentReliabilityDrop"}, f"one failure, and these pages: {pages}"
    print(f"stayed for {evaluations} evaluations, and ended {worker.sent - before} good traces after it recovered")


def check_annotations(worker, annotations, browser):
    """They contain all facts, and the links lead there."""
    told = "\n".join(f"{name}: {text}" for name, text in annotations.items())
    print(told)
    assert "error expanding" not in told, told
    summary, description = annotations["summary"], annotations["description"]
    assert summary.startswith(f"{worker.service}/{worker.agent} {worker.version}: failing traces up from "), summary
    assert f"in the tool {TOOL}" in description and " ago)" in description and " traces, against its own past" in description
    sessions = {annotations[name].rpartition("/#/session/")[2] for name in ["example_url", "example_url_2"]}
    quoted = {urllib.parse.quote(session, safe=""): session for session in worker.failed}
    assert len(sessions) == 2 and sessions <= quoted.keys(), f"{sessions} are none of the failed sessions"
    for name in ["example_url", "example_url_2"]:
        session = quoted[annotations[name].rpartition("/#/session/")[2]]
        browser.shows(annotations[name], [f"Session {session}", worker.agent, f"✗ {TOOL}", "⚑"])
    browser.shows(annotations["explain_url"], [worker.agent, f"version {worker.version}", "critical"])
    browser.shows(annotations["runbook_url"], ["AgentReliabilityDrop", "First: open"])
    # One screen.
    lines = sum(1 + len(line) // 100 for line in told.splitlines())
    assert lines <= 24, f"{lines} lines:\n{told}"
