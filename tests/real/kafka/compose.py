"""The compose file with a Collector, Kafka and three instances, as far as it goes without containers: each service is started here
with the environment, the command and the configuration that the file gives it, but for names of hosts, ports and folders.

Usage: compose.py BINARY WORKDIR, with the broker's jars and the Collector under WORKDIR.
"""

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys

import yaml
from confluent_kafka.admin import NewTopic
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parent))
from end_to_end import get, running, send, until  # noqa: E402
from pipeline import Broker  # noqa: E402
from ports import free_port  # noqa: E402

ROOT = HERE.parent.parent.parent
DEPLOY = ROOT / "deploy"
INSTANCES = ["agentgauge-1", "agentgauge-2", "agentgauge-3"]


def read(path):
    """The file as compose reads it; its parts must fit together."""
    text = path.read_text()
    file = yaml.safe_load(text)
    services, volumes = file["services"], set()
    for name, service in services.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        volumes |= {volume.split(":")[0] for volume in service.get("volumes", [])}
        assert set(service.get("depends_on", {})) <= services.keys(), name
        for after, condition in service.get("depends_on", {}).items():
            healthy = condition["condition"] == "service_healthy"
            assert not healthy or "healthcheck" in services[after], (name, after)
        assert {config["source"] for config in service.get("configs", [])} <= file["configs"].keys(), name
    assert volumes == file["volumes"].keys(), volumes
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert len(published) == len(set(published)), published
    # The agentgauge image is built as the first lines say.
    [(script, build)] = re.findall(r"^#\s+(\S+) && (docker build .*)$", text, re.MULTILINE)
    assert {"-t", "agentgauge"} <= set(build.split()), build
    assert (ROOT / script).is_file() and (ROOT / build.split("-f ")[1].split()[0]).is_file(), (script, build)
    return services, file["configs"]


class ComposedBroker(Broker):
    """Kafka with the properties that its image makes of the environment of the file."""

    def configure(self, work, environment):
        properties = {
            key.removeprefix("KAFKA_").lower().replace("_", "."): str(value) for key, value in environment.items()
        }
        # The image listens as the file says, on addresses of the network of the containers.
        assert re.fullmatch(r"PLAINTEXT://kafka:9092", properties["advertised.listeners"])
        names = re.findall(r"(\w+)://:\d+", properties["listeners"])
        self.ports = {name: free_port() for name in names}
        here = ",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items())
        properties |= {
            "listeners": here,
            "advertised.listeners": f"PLAINTEXT://{self.address()}",
            "controller.quorum.voters": f"1@127.0.0.1:{self.ports['CONTROLLER']}",
            "log.dirs": str(self.data),
        }
        self.properties = work / "broker" / "compose.properties"
        self.properties.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))

    def __init__(self, work, environment):
        self.lib, self.data = work / "broker" / "lib", work / "broker" / "data"
        self.log = open(work / "broker" / "log", "w")
        self.configure(work, environment)
        cluster = ["--cluster-id", "4L6g3nShT-eMCtK--X86sw", "--config", self.properties]
        assert self.java("kafka.tools.StorageTool", "format", *cluster).wait(60) == 0
        self.start()


def environment(service, broker, folder):
    """Its environment, with the image's configuration below it, here."""
    given = {key: str(value) for key, value in service["environment"].items()}
    assert given["AGENTGAUGE__KAFKA__BROKERS"] == '["kafka:9092"]'
    given["AGENTGAUGE__KAFKA__BROKERS"] = json.dumps([broker.address()])
    for key, value in given.items():
        if value.startswith("/var/lib/agentgauge"):
            given[key] = value.replace("/var/lib/agentgauge", str(folder))
        if key.startswith("AGENTGAUGE__LISTEN__"):
            assert value.startswith("0.0.0.0:"), (key, value)
            given[key] = "127.0.0.1:0"
    return os.environ | {"AGENTGAUGE__STORE__DIRECTORY": str(folder)} | given


def collector(binary, configs, broker, work, otlp):
    text = configs["collector"]["content"]
    for old, new in [("kafka:9092", broker.address()), ("0.0.0.0:4318", f"127.0.0.1:{otlp}"), ("0.0.0.0:4317", "127.0.0.1:0")]:
        assert old in text, old
        text = text.replace(old, new)
    path = work / "compose-collector.yaml"
    path.write_text(text)
    validate(binary, path)
    # Its own metrics have a port that is taken if several of them run.
    own = ["--set=service.telemetry.metrics.level=none"]
    return running([binary, f"--config={path}", *own], stderr=open(work / "compose-collector.log", "w"))


def validate(collector, path):
    result = subprocess.run([collector, "validate", f"--config={path}"], capture_output=True, text=True)
    assert result.returncode == 0, (path, result.stderr)


def main():
    binary, work = sys.argv[1], pathlib.Path(sys.argv[2])
    otelcol = work / "collector" / "collector"
    services, configs = read(DEPLOY / "compose.kafka.yaml")
    for path in sorted(DEPLOY.glob("collector/*.yaml")):
        # The directory of the queue must exist.
        shown = work / f"shown-{path.name}"
        shown.write_text(path.read_text().replace("/var/lib/otelcol", str(work)))
        validate(otelcol, shown)
    broker = ComposedBroker(work, services["kafka"]["environment"])
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: broker.stop(signal.SIGKILL))
        script = services["collector-topics"]["command"][0]
        [names] = re.findall(r"for topic in (.*?);", script)
        [partitions] = re.findall(r"--partitions (\d+)", script)
        made = [NewTopic(name, int(partitions), 1) for name in names.split()]
        for future in broker.admin.create_topics(made).values():
            future.result(30)

        folder = work / "compose"
        folder.mkdir(exist_ok=True)
        of = environment(services["topics"], broker, folder)
        result = subprocess.run([binary, *services["topics"]["command"]], env=of, capture_output=True, text=True)
        assert result.returncode == 0 and result.stdout.count("made") == 3, result

        instances = []
        for name in INSTANCES:
            of = environment(services[name], broker, folder)
            config = ["--config", str(DEPLOY / "agentgauge.toml")]
            checked = subprocess.run([binary, "check", *config], env=of, capture_output=True, text=True)
            assert checked.returncode == 0, checked.stderr
            log = stack.enter_context(open(work / f"{name}.log", "w"))
            started = running([binary, "serve", *config], env=of, stdout=subprocess.PIPE, stderr=log, text=True)
            bound = json.loads(stack.enter_context(started).stdout.readline())
            instances.append(f"http://{bound['http']}")
        until("the instances to be ready", lambda: all(get(f"{http}/readyz") for http in instances), 120)

        otlp = free_port()
        stack.enter_context(collector(otelcol, configs, broker, work, otlp))
        until("the Collector", lambda: listens(otlp))
        send(HttpExporter(endpoint=f"http://127.0.0.1:{otlp}/v1/traces"), "composed")

        def shown():
            lines = [line for http in instances for line in get(f"{http}/metrics")[0].splitlines()]
            wanted = [line for line in lines if line.startswith("agentgauge_traces_total{") and 'service_name="composed"' in line]
            return sum(float(line.rsplit(" ", 1)[1]) for line in wanted) == 3

        until("three traces by way of Collector, Kafka and the instances", shown, 120)
    print("compose.kafka.yaml: Collector, Kafka and three instances, as the file starts them")
    print("1 passed, 0 failed")


def listens(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True


if __name__ == "__main__":
    main()
