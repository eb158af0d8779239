"""Instances that share the work over Apache Kafka: whatever happens to them, they show the same as a single process.

Usage: fleet.py BINARY WORKDIR, with the broker's jars and certificate under WORKDIR. Larger by the environment:
AGENTGAUGE_REBALANCES (10), AGENTGAUGE_OUTAGE_SECONDS (15), AGENTGAUGE_REQUESTS (1500). Further arguments name the parts to run.
"""

import hashlib
import http.client
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.parse

from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parent))
from alerts import ROOT, shortened  # noqa: E402
from end_to_end import get, listening, until  # noqa: E402
from pipeline import run  # noqa: E402

PARTITIONS = 8
ROLES = ["assemble", "score", "fleet"]
REBALANCES = int(os.environ.get("AGENTGAUGE_REBALANCES", "10"))
OUTAGE = float(os.environ.get("AGENTGAUGE_OUTAGE_SECONDS", "15"))
REQUESTS = int(os.environ.get("AGENTGAUGE_REQUESTS", "1500"))
SESSION_TIMEOUT = 6

# Half of them loop, fail and repeat themselves now and then; of some nothing bad is to be said, and of one nothing good.
AGENTS, HEALTHY, HOPELESS = 40, range(20, 39), 39

# Numbers of traces begin here: 2852 has a loop, and is of one shard with its session before anybody has named that.
FIRST = 2850

# Each of these is of all traces that came, whatever came first. Verdicts look at a trace once, when it is done, and drops and silences
# go by when that is.
LASTING = re.compile(
    r"agentgauge_(agent_(?!drop|last_trace|usual_gap)|loops_|loop_wasted|tokens_|cost_|tool_calls|model_calls|sessions_active|traces_total|runs)"
)


class Instance:
    """An instance with every role, or, without a cluster, a single process."""

    def __init__(self, binary, work, broker=None, **options):
        environment = {
            "AGENTGAUGE__ASSEMBLE__TRACE_IDLE": "3s",
            # However busy the machine is, no trace becomes final meanwhile: some loops count only then.
            "AGENTGAUGE__ASSEMBLE__LATE_HORIZON": "30m",
            "AGENTGAUGE__AGENTS__WINDOWS": '["1h", "1d"]',
            "AGENTGAUGE__METRICS__DETAIL": "full",
        }
        if broker:
            environment |= {
                "AGENTGAUGE__KAFKA__BROKERS": json.dumps([broker.address()]),
                "AGENTGAUGE__KAFKA__TRACES_TOPICS": "[]",
                "AGENTGAUGE__KAFKA__LOGS_TOPICS": "[]",
                "AGENTGAUGE__FLEET__ROLES": json.dumps(["gateway", *ROLES]),
                "AGENTGAUGE__FLEET__PARTITIONS": str(PARTITIONS),
                "AGENTGAUGE__FLEET__CHECKPOINTS": str(work / "checkpoints"),
                "AGENTGAUGE__FLEET__CHECKPOINT_INTERVAL": "2s",
                "AGENTGAUGE__FLEET__TELL_INTERVAL": "500ms",
                "AGENTGAUGE__FLEET__SESSION_TIMEOUT": f"{SESSION_TIMEOUT}s",
            }
        environment |= options
        serve = [binary, "serve", "--otlp-grpc", "127.0.0.1:0", "--otlp-http", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        self.log = open(work / "instances.log", "a")
        self.process = subprocess.Popen(
            serve, env=os.environ | environment, stdout=subprocess.PIPE, stderr=self.log, text=True
        )
        bound = json.loads(self.process.stdout.readline())
        self.otlp, self.http = bound["otlp_http"], f"http://{bound['http']}"
        self.stopped = False

    def page(self):
        return get(f"{self.http}/metrics")[0]

    def ready(self):
        try:
            get(f"{self.http}/readyz")
            return True
        except (OSError, http.client.HTTPException):
            return False

    def post(self, body):
        """Whether it was acknowledged."""
        try:
            connection = http.client.HTTPConnection(self.otlp, timeout=12)
            connection.request("POST", "/v1/traces", body, {"Content-Type": "application/json"})
            status = connection.getresponse().status
            # An instance that was paused for long has waited too long for the body.
            assert status in (200, 503, 504), status
            return status == 200
        except (OSError, http.client.HTTPException):
            return False

    def send(self, number):
        self.process.send_signal(number)
        self.stopped = number == signal.SIGSTOP

    def ends(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        code = self.process.wait(60)
        assert how != signal.SIGTERM or code == 0, f"the instance ended with {code}"


def owned(page, role):
    found = re.search(rf'^agentgauge_fleet_partitions_owned{{role="{role}"}} (\d+)$', page, re.MULTILINE)
    return int(found[1]) if found else 0


def value(page, name):
    found = re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
    return float(found[1]) if found else None


def series(page):
    """The lasting series of agents, with their values as they are written."""
    lines = (line.rsplit(" ", 1) for line in page.splitlines() if LASTING.match(line))
    return {name: number for name, number in lines if "gen_ai_agent_name" in name}


def agents(page):
    return {re.search(r'gen_ai_agent_name="([^"]*)"', name)[1] for name in series(page)}


def attribute(key, text):
    return {"key": key, "value": {"stringValue": text}}


def request(number, base):
    """A part of a trace; the first has the tool calls, of some agents in a loop, the second the root."""
    trace, root = FIRST + number // 2, number % 2 == 1
    who = trace // 5 % AGENTS
    # A session that fails repeatedly is not the agent, so the one that always fails has a session for each trace.
    agent, session = f"agent-{who}", f"session-{trace // 5}" + f"-{trace}" * (who == HOPELESS)
    start = base + (trace - FIRST) * 1_000_000
    loops = who not in HEALTHY and (trace % 4 == 0 or who == HOPELESS)
    answer = f"answer {trace % 4} of {session}"
    if who in HEALTHY:
        # Nothing that it said before.
        answer = " ".join(hashlib.sha256(f"{trace} {word}".encode()).hexdigest()[:8] for word in range(8))
    fails = who not in HEALTHY and (trace % 7 == 0 or who == HOPELESS)

    def span(which, name, *attributes):
        return {
            "traceId": f"{trace + 1:032x}",
            "spanId": f"{which:016x}",
            "parentSpanId": "" if which == 1 else f"{1:016x}",
            "name": name,
            "startTimeUnixNano": str(start + which * 1000),
            "endTimeUnixNano": str(start + which * 1000 + 900 + (100_000 if which == 1 else 0)),
            "attributes": [attribute("gen_ai.agent.name", agent), *attributes],
        }

    if root:
        spans = [
            span(
                1, f"invoke_agent {agent}", attribute("gen_ai.operation.name", "invoke_agent"),
                attribute("gen_ai.conversation.id", session),
                attribute("gen_ai.output.messages", answer),
                attribute("agentgauge.task.id", f"task-{trace % 3}"), attribute("agentgauge.run.id", f"run-{trace}"),
                attribute("agentgauge.outcome", "success" if who in HEALTHY or trace % 11 < 8 else "failure"),
            )
        ]
    else:
        spans = [
            span(
                which, "execute_tool search", attribute("gen_ai.operation.name", "execute_tool"),
                attribute("gen_ai.tool.name", "search"),
                attribute("gen_ai.tool.call.arguments", json.dumps({"query": 0 if loops else which})),
                attribute("gen_ai.tool.call.result", "nothing"),
                *([attribute("error.type", "timeout")] if fails and which == 3 else []),
            )
            for which in range(2, 4 + trace % 5)
        ]
    resource = {"attributes": [attribute("service.name", "shop")]}
    return json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": spans}]}]})


class Prometheus:
    """A Prometheus that scrapes whichever instances there are, and evaluates the committed rules with shorter windows."""

    WINDOWS = {"1m": 5, "2m": 10, "5m": 20, "10m": 20, "15m": 30, "30m": 60, "1h": 240, "6h": 480, "1d": 480}
    RELIABILITY = 'alertname=~"AgentReliability(Drop|BudgetBurn.*)"'

    def __init__(self, work):
        self.targets, rules = work / "targets.json", work / "fleet-rules.yml"
        text = (ROOT / "deploy/prometheus/agentgauge.rules.yml").read_text()
        rules.write_text(shortened(text, self.WINDOWS))
        self.watches([])
        (work / "fleet-prometheus.yml").write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n"
            f"rule_files: ['{rules}']\n"
            "scrape_configs: [{job_name: agentgauge, file_sd_configs: [{refresh_interval: 1s, files: "
            f"['{self.targets}']}}]}}]\n"
        )
        data = work / "fleet-tsdb"
        shutil.rmtree(data, ignore_errors=True)
        command = ["prometheus", f"--config.file={work / 'fleet-prometheus.yml'}", f"--storage.tsdb.path={data}"]
        self.running = listening([*command, "--web.listen-address=127.0.0.1:0"], work / "fleet-prometheus.log")

    def __enter__(self):
        self.address = self.running.__enter__()
        return self

    def __exit__(self, *error):
        self.running.__exit__(*error)

    def watches(self, instances):
        """From now on it scrapes these. A file that is replaced atomically is never read half."""
        targets = [instance.http.removeprefix("http://") for instance in list(instances)]
        fresh = self.targets.with_suffix(".new")
        fresh.write_text(json.dumps([{"targets": targets}]))
        fresh.rename(self.targets)

    def ask(self, query):
        url = f"http://{self.address}/api/v1/query?" + urllib.parse.urlencode({"query": query})
        return json.loads(get(url)[0])["data"]["result"]

    def is_awake(self, over):
        """The one that always fails was noticed, so the rules see the fleet; and of the others there was enough to see, unless it is over."""
        hopeless = f'count_over_time(ALERTS{{alertname="AgentReliabilityDrop",gen_ai_agent_name="agent-{HOPELESS}"}}[1d])'
        until("the agent that always fails to be noticed", lambda: over.is_set() or self.ask(hopeless), 240)
        enough = f'service_agent:agentgauge_trace_evaluations:increase1h{{{self.healthy()}}} >= 50'
        until("the healthy agents to be judged", lambda: over.is_set() or len(self.ask(enough)) >= len(HEALTHY), 300)

    def was_silent(self):
        """For the healthy agents no rule of drops and budgets was pending or firing, at any evaluation since the start."""
        said = self.ask(f"count_over_time(ALERTS{{{self.RELIABILITY},{self.healthy()}}}[1d])")
        assert not said, f"the rules spoke: {said}"
        [judged] = self.ask(f'max_over_time(count(service_agent:agentgauge_trace_evaluations:increase1h)[1h:1s])')
        print(f"the rules of drops and budgets were silent about {len(HEALTHY)} of {judged['value'][1]} agents, and not about the one that fails")

    def healthy(self):
        return f'gen_ai_agent_name=~"agent-({"|".join(map(str, HEALTHY))})"'


class Fleet:
    """Instances under load, and what they have shown."""

    def __init__(self, binary, work, broker, watching=lambda targets: None):
        self.binary, self.work, self.broker = binary, work, broker
        self.instances, self.sent, self.base = [], [], time.time_ns() - 2_000_000_000
        # Sent by others than the load.
        self.others = []
        self.over, self.twice, self.scrapes = threading.Event(), {}, 0
        self.lock, self.watching = threading.Lock(), watching
        shutil.rmtree(work / "checkpoints", ignore_errors=True)

    def topics(self):
        environment = {
            "AGENTGAUGE__KAFKA__BROKERS": json.dumps([self.broker.address()]),
            "AGENTGAUGE__FLEET__PARTITIONS": str(PARTITIONS),
        }
        create = [self.binary, "topics", "create"]
        return subprocess.run(create, env=os.environ | environment, capture_output=True, text=True)

    def join(self, **options):
        instance = Instance(self.binary, self.work, self.broker, **options)
        with self.lock:
            self.instances.append(instance)
        self.watching(self.instances)
        return instance

    def drop(self, instance, how):
        with self.lock:
            self.instances.remove(instance)
        instance.ends(how)
        self.watching(self.instances)

    def running(self):
        with self.lock:
            return [instance for instance in self.instances if not instance.stopped]

    def is_steady(self):
        pages = [instance.page() for instance in self.running()]
        whole = all(sum(owned(page, role) for page in pages) == PARTITIONS for role in ROLES)
        return whole and all(instance.ready() for instance in self.running())

    def steady(self):
        until("the instances to own everything once", self.is_steady, 120)

    def load(self, per_second):
        """Sends parts in their order, each until it is acknowledged."""
        for number in itertools.count():
            if self.over.is_set():
                return
            body = request(number, self.base)
            while not random.choice(self.running()).post(body):
                time.sleep(0.05)
            self.sent.append(body)
            time.sleep(1 / per_second)

    def scrape(self):
        """Once a second, as Prometheus does: which instance shows which agent, and for how many scrapes two did."""
        while not self.over.is_set():
            shown = {}
            for instance in self.running():
                try:
                    for agent in agents(instance.page()):
                        shown.setdefault(agent, []).append(instance.http)
                except (OSError, http.client.HTTPException):
                    continue
            now = {agent for agent, by in shown.items() if len(by) > 1}
            self.twice = {agent: self.twice.get(agent, 0) + 1 for agent in now}
            assert all(times <= 1 for times in self.twice.values()), f"shown by two: {self.twice}"
            self.scrapes += 1
            time.sleep(1)

    def during(self, work, per_second=60):
        """Does something under load and under watch; returns the values of a single process for the same input."""
        failed = []

        def watched(part, *arguments):
            try:
                part(*arguments)
            except BaseException as error:
                failed.append(error)
                self.over.set()

        threads = [
            threading.Thread(target=watched, args=(self.load, per_second)),
            threading.Thread(target=watched, args=(self.scrape,)),
        ]
        [thread.start() for thread in threads]
        try:
            work()
        except BaseException as error:
            failed.append(error)
        # A trace is complete before the load ends.
        self.over.set()
        [thread.join() for thread in threads]
        if failed:
            # The first one is why the others failed.
            raise failed[0]
        if len(self.sent) % 2:
            body = request(len(self.sent), self.base)
            until("the last part", lambda: random.choice(self.running()).post(body))
            self.sent.append(body)

    def expected(self, **options):
        """The values of a single process after the same."""
        alone = Instance(self.binary, self.work, **options)
        sent = self.sent + self.others
        for body in sent:
            assert alone.post(body)
        traces = len({re.search(r'"traceId": "(\w+)"', body)[1] for body in sent})
        until("the process by itself", lambda: total_traces(alone.page()) == traces)
        shown = series(alone.page())
        alone.ends()
        return shown

    def shows(self, expected, what):
        def union():
            shown = {}
            for instance in self.running():
                for name, number in series(instance.page()).items():
                    assert name not in shown, f"{name} is shown twice"
                    shown[name] = number
            return shown

        def same():
            try:
                return union() == expected
            except AssertionError:
                return False

        try:
            until("the same", same, 60)
        except BaseException:
            shown = union()
            names = sorted(set(shown) ^ set(expected))
            other = [(n, shown[n], expected[n]) for n in shown if n in expected and shown[n] != expected[n]]
            print(f"only one has {len(names)}: {names[:5]}; {len(other)} differ: {other[:5]}")
            raise
        print(f"{what}: {len(self.sent)} requests, {len(expected)} series equal, {self.scrapes} scrapes")

    def ends(self):
        for instance in list(self.instances):
            self.drop(instance, signal.SIGTERM)


def total_traces(page):
    lines = re.findall(r"^agentgauge_traces_total{[^}]*} (\S+)$", page, re.MULTILINE)
    return sum(map(float, lines))


def topics(binary, work, broker):
    fleet = Fleet(binary, work, broker)
    first = fleet.topics()
    assert first.returncode == 0 and first.stdout.count("made") == 3, first
    again = fleet.topics()
    assert again.returncode == 0 and again.stdout.count("there already") == 3, again
    print("topics are made once")
    return 1


def one_two_three(binary, work, broker):
    """The same input to one, two and three instances; each time other topics."""
    cpu = {}
    for instances in [1, 2, 3]:
        options = {"AGENTGAUGE__FLEET__PREFIX": f"of-{instances}"}
        make(broker, options["AGENTGAUGE__FLEET__PREFIX"])
        fleet = Fleet(binary, work, broker)
        for _ in range(instances):
            fleet.join(**options)
        fleet.steady()
        before = sum(seconds(instance) for instance in fleet.instances)
        for number in range(REQUESTS):
            assert fleet.instances[number % instances].post(request(number, fleet.base))
            fleet.sent.append(request(number, fleet.base))
        fleet.shows(fleet.expected(), f"{instances} instances")
        spans = sum(body.count('"spanId"') for body in fleet.sent)
        cpu[instances] = (sum(seconds(instance) for instance in fleet.instances) - before) / spans * 1e6
        fleet.ends()
    print("CPU per span, all instances together:", ", ".join(f"{n}: {us:.0f} us" for n, us in cpu.items()))
    return 3


def seconds(instance):
    fields = pathlib.Path(f"/proc/{instance.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def make(broker, prefix):
    names = [f"{prefix}.{name}" for name in ["spans", "traces", "agents"]]
    for future in broker.admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        future.result(30)


def rebalances(binary, work, broker):
    """Instances join, leave, are killed, and are paused until others take their place, then continue."""
    with Prometheus(work) as prometheus:
        fleet = Fleet(binary, work, broker, prometheus.watches)
        for _ in range(3):
            fleet.join()
        fleet.steady()
        fleet.during(lambda: change(fleet, prometheus))
        fleet.shows(fleet.expected(), f"{REBALANCES} rebalances")
        prometheus.was_silent()
    fleet.watching = lambda targets: None
    lost_checkpoints(fleet)
    poison(fleet)
    fleet.ends()
    return 4


def change(fleet, prometheus):
    kinds = itertools.cycle(["kill", "join", "zombie", "leave", "join"])
    for number, kind in zip(range(REBALANCES), kinds):
        victim = random.choice(fleet.running())
        if kind == "join":
            fleet.join()
        elif kind == "leave":
            fleet.drop(victim, signal.SIGTERM)
        elif kind == "kill":
            fleet.drop(victim, signal.SIGKILL)
        else:
            victim.send(signal.SIGSTOP)
            fleet.steady()
            victim.send(signal.SIGCONT)
        time.sleep(1)
        fleet.steady()
        print(f"  {number + 1}: {kind}, {len(fleet.running())} instances", flush=True)
    prometheus.is_awake(fleet.over)


def lost_checkpoints(fleet):
    for instance in list(fleet.instances):
        fleet.drop(instance, signal.SIGKILL)
    shutil.rmtree(fleet.work / "checkpoints")
    for _ in range(3):
        fleet.join()
    fleet.steady()
    for instance in fleet.running():
        assert value(instance.page(), "agentgauge_state_complete") == 1
    fleet.shows(fleet.expected(), "all killed, their checkpoints lost")


def poison(fleet):
    """Records that no stage can read, among those that it can."""
    producer = Producer({"bootstrap.servers": fleet.broker.address(), "log_level": 0})
    records = [b"", b"\xff\xff", os.urandom(1000), b"\x22\x01\xc1", None]
    for number, topic in itertools.product(range(200), ["spans", "traces", "agents"]):
        producer.produce(f"agentgauge.{topic}", records[number % len(records)], partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    fleet.over.clear()
    begin = len(fleet.sent)
    for number in range(begin, begin + 200):
        body = request(number, fleet.base)
        until("a part", lambda: random.choice(fleet.running()).post(body))
        fleet.sent.append(body)
    fleet.shows(fleet.expected(), "600 records that nobody can read")


def outage(binary, work, broker):
    fleet = Fleet(binary, work, broker)
    # A trace of which the outage keeps the two parts apart may be done without a root meanwhile, and is the same one all the same, up
    # to the late horizon.
    patience = {}
    if OUTAGE > 1500:
        patience["AGENTGAUGE__ASSEMBLE__LATE_HORIZON"] = f"{OUTAGE + 300:.0f}s"
    options = {"AGENTGAUGE__FLEET__PREFIX": "outage"} | patience
    make(broker, "outage")
    for _ in range(3):
        fleet.join(**options)
    fleet.steady()

    def apart(root):
        """The parts of twenty traces before, or after, the outage."""
        for number in range(4000 + root, 4040 + root, 2):
            body = request(number, fleet.base)
            until("a part", lambda: random.choice(fleet.running()).post(body))
            fleet.others.append(body)

    def change():
        apart(0)
        time.sleep(3)
        broker.stop(signal.SIGKILL)
        time.sleep(OUTAGE)
        broker.start()
        fleet.steady()
        apart(1)
        time.sleep(3)

    fleet.during(change)
    fleet.shows(fleet.expected(**patience), f"brokers away for {OUTAGE:.0f} s")
    fleet.ends()
    return 1


def producers(binary, work, broker):
    """Any writer of the topic, with any keys: the gateways put the records in order."""
    for kind in ["unkeyed", "murmur2", "fnv1a", "consistent"]:
        prefix = f"from-{kind}"
        make(broker, prefix)
        broker.create(f"{prefix}.otlp")
        fleet = Fleet(binary, work, broker)
        options = {
            "AGENTGAUGE__FLEET__PREFIX": prefix,
            "AGENTGAUGE__KAFKA__TRACES_TOPICS": json.dumps([f"{prefix}.otlp"]),
            "AGENTGAUGE__KAFKA__TRACES_ENCODING": "otlp_json",
            "AGENTGAUGE__KAFKA__GROUP": prefix,
        }
        for _ in range(2):
            fleet.join(**options)
        fleet.steady()
        producer = Producer(
            {
                "bootstrap.servers": broker.address(),
                "log_level": 0,
                **({} if kind == "unkeyed" else {"partitioner": kind}),
            }
        )
        for number in range(1000):
            body = request(number, fleet.base)
            producer.produce(f"{prefix}.otlp", body, key=None if kind == "unkeyed" else f"{number // 2:032x}")
            fleet.sent.append(body)
        assert producer.flush(60) == 0
        fleet.shows(fleet.expected(), f"a producer, {kind}")
        fleet.ends()
    return 4


def main():
    run([topics, one_two_three, rebalances, outage, producers], "instances.log")


if __name__ == "__main__":
    main()
