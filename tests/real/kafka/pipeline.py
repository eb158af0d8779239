"""SDK, Collector, Kafka, daemon: the promises of the Kafka source, against the real parts.

Usage: pipeline.py BINARY WORKDIR, with the broker's jars and certificate and the Collector under WORKDIR.
"""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parent))
from end_to_end import get, running, send, until  # noqa: E402
from ports import free_port  # noqa: E402

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
# The three turns that the SDK sends: 4, 4 and 12.
SPANS = 20
PARTITIONS = 4
PASSWORD = "correct horse"


class Broker:
    """Apache Kafka on this machine: one node, open, with SASL, and with SASL over TLS."""

    def __init__(self, work):
        self.lib, self.data = work / "broker" / "lib", work / "broker" / "data"
        self.log = open(work / "broker" / "log", "w")
        self.ports = {name: free_port() for name in ["PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL", "CONTROLLER"]}
        self.properties = work / "broker" / "server.properties"
        listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items())
        protocols = ",".join(f"{name}:{name.replace('CONTROLLER', 'PLAINTEXT')}" for name in self.ports)
        plain = "org.apache.kafka.common.security.plain.PlainLoginModule"
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule"
        self.properties.write_text(
            f"""
            process.roles=broker,controller
            node.id=1
            controller.quorum.voters=1@127.0.0.1:{self.ports["CONTROLLER"]}
            controller.listener.names=CONTROLLER
            listeners={listeners}
            listener.security.protocol.map={protocols}
            log.dirs={self.data}
            auto.create.topics.enable=false
            offsets.topic.replication.factor=1
            offsets.topic.num.partitions=1
            transaction.state.log.replication.factor=1
            transaction.state.log.min.isr=1
            share.coordinator.state.topic.replication.factor=1
            share.coordinator.state.topic.min.isr=1
            group.initial.rebalance.delay.ms=0
            sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
            listener.name.sasl_plaintext.plain.sasl.jaas.config={plain} required user_agent="{PASSWORD}";
            listener.name.sasl_plaintext.sasl.enabled.mechanisms=PLAIN
            listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={scram} required;
            listener.name.sasl_ssl.sasl.enabled.mechanisms=SCRAM-SHA-512
            ssl.keystore.type=PKCS12
            ssl.keystore.location={work / "broker" / "keys.p12"}
            ssl.keystore.password=changeit
            """
        )
        self.java(
            "kafka.tools.StorageTool", "format", "--cluster-id", "4L6g3nShT-eMCtK--X86sw", "--config",
            self.properties, "--add-scram", f"SCRAM-SHA-512=[name=agent,password={PASSWORD}]",
        ).wait(60)
        self.start()

    def java(self, *command):
        options = ["-Xmx512m", "-cp", f"{self.lib}/*", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        return subprocess.Popen(["java", *options, *map(str, command)], stdout=self.log, stderr=subprocess.STDOUT)

    def address(self, listener="PLAINTEXT"):
        return f"127.0.0.1:{self.ports[listener]}"

    def start(self):
        self.process = self.java("kafka.Kafka", self.properties)
        self.admin = AdminClient({"bootstrap.servers": self.address(), "log_level": 0})
        until("Kafka", lambda: self.answers())

    def answers(self):
        assert self.process.poll() is None, "Kafka ended; see its log"
        with contextlib.suppress(Exception):
            return self.admin.list_topics(timeout=2).brokers

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.wait(60)

    def create(self, *topics):
        for future in self.admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics]).values():
            future.result(30)

    def ends(self, topic, partition):
        """The end of the partition of a topic."""
        consumer = Consumer({"bootstrap.servers": self.address(), "group.id": "looks", "log_level": 0})
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), 30)
        consumer.close()
        return end

    def produce(self, topic, payloads):
        producer = Producer({"bootstrap.servers": self.address(), "log_level": 0})
        for number, payload in enumerate(payloads):
            producer.produce(topic, payload, key=str(number))
        assert producer.flush(60) == 0


class Daemon:
    """The daemon with these options under `kafka`."""

    def __init__(self, binary, brokers, **kafka):
        options = {"brokers": json.dumps([brokers]), "logs_topics": "[]", "probe_interval": "300ms", **kafka}
        environment = {f"AGENTGAUGE__KAFKA__{key.upper()}": value for key, value in options.items()}
        serve = [binary, "serve", "--config", str(HERE.parent / "agent.toml")]
        serve += ["--otlp-grpc", "127.0.0.1:0", "--otlp-http", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            serve, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.http = f"http://{json.loads(self.process.stdout.readline())['http']}"

    def ready(self):
        """None, or why it is not."""
        try:
            get(f"{self.http}/readyz")
        except urllib.error.HTTPError as error:
            return error.read().decode()

    def becomes_ready(self):
        until("the daemon to be ready", lambda: self.ready() is None)

    def names(self, *words):
        """Waits until it is not ready, and says why with all these words."""
        until(f"the daemon to name {words}", lambda: all(word in (self.ready() or "") for word in words))

    def metric(self, name, labels=""):
        """The sum over series with these labels, or None."""
        page = get(f"{self.http}/metrics")[0]
        lines = re.findall(rf"^agentgauge_{name}(?:{{([^}}]*)}})? (\S+)$", page, re.MULTILINE)
        values = [float(value) for found, value in lines if labels in found]
        return sum(values) if values else None

    def reaches(self, name, value, labels=""):
        until(f"{name}{{{labels}}} to be {value}", lambda: self.metric(name, labels) == value)

    def session(self, service):
        return json.loads(get(f"{self.http}/api/v1/sessions/session-{service}")[0])

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        code = self.process.wait(20)
        assert how != signal.SIGTERM or code == 0, f"the daemon ended with {code}"


def trace(number):
    """A request of one agent's span in OTLP JSON."""
    attribute = lambda key, value: {"key": key, "value": {"stringValue": value}}
    span = {
        "traceId": f"{number + 1:032x}",
        "spanId": f"{number + 1:016x}",
        "name": "invoke_agent",
        "attributes": [
            attribute("gen_ai.operation.name", "invoke_agent"),
            attribute("session.id", f"session-{number}"),
        ],
    }
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})


def collector(work, broker, port):
    """The Collector with an exporter for each codec, keyed by trace and not, in each encoding."""
    exporters = {}
    for codec in CODECS:
        for keyed, encoding in [(False, "otlp_proto"), (True, "otlp_json")]:
            name = "keyed" if keyed else "unkeyed"
            exporters[f"kafka/{codec}-{name}"] = {
                "brokers": [broker.address()],
                "timeout": "30s",
                "traces": {"topic": f"{name}_spans", "encoding": encoding},
                "logs": {"topic": f"{name}_logs", "encoding": encoding},
                "partition_traces_by_id": keyed,
                "partition_logs_by_trace_id": keyed,
                "producer": {"compression": codec},
            }
    pipeline = {"receivers": ["otlp"], "exporters": list(exporters)}
    config = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
        "exporters": exporters,
        "service": {
            "telemetry": {"metrics": {"level": "none"}, "logs": {"level": "warn"}},
            "pipelines": {"traces": pipeline, "logs": pipeline},
        },
    }
    path = work / "collector.json"
    path.write_text(json.dumps(config))
    return running([work / "collector" / "collector", f"--config={path}"])


def post_logs(port):
    """Three log records, two of one trace."""
    records = [
        {"timeUnixNano": "1790000000000000000", "body": {"stringValue": "a line"}, "traceId": f"{number:032x}"}
        for number in [1, 1, 2]
    ]
    body = json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/logs", body, {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=10).read()
    return True


def from_sdk_to_score(binary, work, broker):
    topics = [f"{name}_{what}" for name in ["keyed", "unkeyed"] for what in ["spans", "logs"]]
    daemons = {}
    for name, encoding in [("unkeyed", "otlp_proto"), ("keyed", "otlp_json")]:
        daemons[name] = Daemon(
            binary, broker.address(), group=name,
            traces_topics=f'["{name}_spans"]', logs_topics=f'["{name}_logs"]',
            traces_encoding=encoding, logs_encoding=encoding,
        )
    daemons["keyed"].names("there is no Kafka topic", "keyed_spans", "kafka.traces_topics")
    broker.create(*topics)
    port = free_port()
    with collector(work, broker, port):
        until("the Collector", lambda: post_logs(port))
        send(HttpExporter(endpoint=f"http://127.0.0.1:{port}/v1/traces"), "by-kafka")
        for name, daemon in daemons.items():
            encoding = "protobuf" if name == "unkeyed" else "json"
            transport = f'encoding="{encoding}",transport="kafka"'
            daemon.becomes_ready()
            # Every codec delivers them once, or more often if the Collector tried again.
            received = lambda name: daemon.metric(name, transport) or 0
            until("all spans", lambda: received("spans_received_total") >= SPANS * len(CODECS))
            until("all logs", lambda: received("log_records_received_total") >= 3 * len(CODECS))
            again = lambda: received("spans_received_total") - SPANS
            until("one of each", lambda: daemon.metric("duplicates_total", 'what="spans"') == again())
            daemon.reaches("kafka_consumer_lag_records", 0)
            assert daemon.metric("kafka_records_skipped_total") == 0
            tools = [len(trace["tools"]) for trace in daemon.session("by-kafka")["traces"]]
            assert tools == [1, 1, 5], tools
            daemon.stop()
            print(f"{name}: from the SDK through the Collector, every codec, {encoding}")
    return 2


def members_share(binary, _, broker):
    """Two members read everything once; a restart continues; unapplied records are not lost."""
    broker.create("shared", "dead")
    start = lambda: Daemon(
        binary, broker.address(), group="sharing", traces_topics='["shared"]', traces_encoding="otlp_json",
        dead_letter_topic="dead",
    )
    first = start()
    first.becomes_ready()
    broker.produce("shared", map(trace, range(200)))
    first.reaches("kafka_records_total", 200)
    second = start()
    broker.produce("shared", map(trace, range(200, 400)))
    until("the second to have partitions", lambda: second.metric("kafka_consumer_lag_records") is not None)
    broker.produce("shared", map(trace, range(400, 600)))
    read = lambda: read_by(first) + read_by(second)
    until("all to be read", lambda: read() >= 600)
    assert read() == 600, read()
    assert read_by(second) > 0
    print("two members: 600 of 600 records, none twice")

    first.stop()
    share = read_by(second)
    broker.produce("shared", map(trace, range(600, 700)))
    second.reaches("kafka_records_total", share + 100)
    second.stop()
    broker.produce("shared", [b"{", b"", b"\x0a\x00", *map(trace, range(700, 800))])
    third = start()
    third.reaches("kafka_records_total", 100)
    third.reaches("kafka_records_skipped_total", 3)
    third.reaches("kafka_dead_letters_total", 3, 'outcome="delivered"')
    third.reaches("kafka_consumer_lag_records", 0)
    print("a restart reads on; three records that cannot be read became dead letters")

    third.stop(signal.SIGKILL)
    broker.produce("shared", map(trace, range(800, 900)))
    fourth = start()
    until("the fourth to read on", lambda: read_by(fourth) >= 100)
    fourth.reaches("kafka_consumer_lag_records", 0)
    for number in range(800, 900):
        fourth.session(str(number))
    fourth.stop()
    print("after kill -9 everything that followed is there")
    return 3


def read_by(daemon):
    return daemon.metric("kafka_records_total") or 0


def same_place(binary, _, broker):
    broker.create("placed")
    start = lambda: Daemon(binary, broker.address(), traces_topics='["placed"]', group_instance_id="the-same")
    first = start()
    first.becomes_ready()
    second = start()
    first.names("another instance", "kafka.group_instance_id")
    second.becomes_ready()
    first.stop()
    second.stop()
    print("an instance whose place is taken says so")
    return 1


def outage(binary, _, broker):
    broker.create("outage")
    daemon = Daemon(binary, broker.address(), group="outage", traces_topics='["outage"]', traces_encoding="otlp_json")
    daemon.becomes_ready()
    broker.stop(signal.SIGKILL)
    daemon.names("no Kafka broker can be reached", "kafka.brokers")
    broker.start()
    broker.produce("outage", map(trace, range(50)))
    daemon.becomes_ready()
    daemon.reaches("kafka_records_total", 50)
    daemon.stop()
    print("an outage passes")
    return 1


def credentials(binary, work, broker):
    broker.create("secured")
    password = work / "password"
    password.write_text(PASSWORD + "\n")
    login = {
        "group": "secured", "traces_topics": '["secured"]', "traces_encoding": "otlp_json", "sasl_username": "agent",
        "sasl_password_file": str(password),
    }
    plain = login | {"sasl_mechanism": "plain"}
    tls = login | {"sasl_mechanism": "scram_sha512", "tls": "true", "tls_ca_file": str(work / "broker" / "ca.pem")}
    sasl_plaintext, sasl_ssl = broker.address("SASL_PLAINTEXT"), broker.address("SASL_SSL")
    wrong = {"sasl_password_file": "", "sasl_password": "wrong"}
    for brokers, options, words in [
        (sasl_plaintext, plain | wrong, ["refuse the credentials", "kafka.sasl_password"]),
        (sasl_ssl, tls | wrong, ["refuse the credentials", "kafka.sasl_password"]),
        (sasl_ssl, tls | {"tls_ca_file": ""}, ["no TLS", "kafka.tls_ca_file"]),
        (sasl_ssl, plain, ["kafka.tls"]),
    ]:
        daemon = Daemon(binary, brokers, **options)
        daemon.names(*words)
        assert "correct horse" not in daemon.ready() and '"wrong"' not in daemon.ready()
        daemon.stop()
    broker.produce("secured", map(trace, range(10)))
    for brokers, options in [(sasl_plaintext, plain), (sasl_ssl, tls | {"group": "tls"})]:
        daemon = Daemon(binary, brokers, **options)
        daemon.becomes_ready()
        daemon.reaches("kafka_records_total", 10)
        daemon.stop()
    print("SASL, TLS, and four ways to get them wrong")
    return 1


def run(parts, log):
    """Runs parts, those that are named on the command line or all, with one broker; shows the end of a log if one fails."""
    binary, work, named = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
    broker = Broker(work)
    passed = 0
    try:
        for part in parts:
            if not named or part.__name__ in named:
                passed += part(binary, work, broker)
    except BaseException:
        print((work / log).read_text()[-4000:])
        raise
    finally:
        broker.stop(signal.SIGKILL)
    print(f"{passed} passed, 0 failed")


def main():
    run([from_sdk_to_score, members_share, same_place, credentials, outage], "broker/log")


if __name__ == "__main__":
    main()
