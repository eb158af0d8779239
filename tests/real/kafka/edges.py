"""Rare events of a cluster: checkpoints in S3, deleted records, topics that grow.

Usage: edges.py BINARY WORKDIR, with the broker's jars under WORKDIR. Further arguments name the parts to run.
"""

import contextlib
import pathlib
import signal
import sys
import urllib.error
import urllib.request

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewPartitions

from fleet import FIRST, PARTITIONS, Fleet, make, request, value
from pipeline import Daemon, run, trace
from end_to_end import get, running, until
from ports import free_port

# The fake S3 asks for these and does not check them.
CREDENTIALS = {"Authorization": "AWS4-HMAC-SHA256 Credential=test/20200101/us-east-1/s3/aws4_request"}
AWS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}


def send(fleet, requests):
    """Posts these, each until it is acknowledged."""
    for number in requests:
        body = request(number, fleet.base)
        target = fleet.running()[number % len(fleet.running())]
        until("a part", lambda: target.post(body))
        fleet.sent.append(body)


def put(url, **headers):
    """The status of a PUT."""
    asked = urllib.request.Request(url, b"", CREDENTIALS | headers, method="PUT")
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


@contextlib.contextmanager
def s3(work):
    """An S3 over HTTP, in another process; returns its address."""
    port = free_port()
    server = [str(pathlib.Path(sys.executable).parent / "moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    with open(work / "s3.log", "w") as log, running(server, stdout=log, stderr=log):
        url = f"http://127.0.0.1:{port}"
        until("S3", lambda: get(url))
        yield url


def checkpoints_in_s3(binary, work, broker):
    make(broker, "in-s3")
    with s3(work) as url:
        options = AWS | {"AWS_ENDPOINT": url}
        options |= {"AGENTGAUGE__FLEET__PREFIX": "in-s3", "AGENTGAUGE__FLEET__CHECKPOINTS": "s3://bucket/deep/er"}
        fleet = Fleet(binary, work, broker)
        first = fleet.join(**options)
        # Without the bucket it is not ready, and says which option to check; it continues once there is one.
        until("the option to be named", lambda: "fleet.checkpoints" in why_not_ready(first))
        assert put(f"{url}/bucket") == 200
        fleet.join(**options)
        fleet.steady()
        send(fleet, range(200))
        fleet.drop(fleet.running()[0], signal.SIGKILL)
        fleet.join(**options)
        fleet.steady()
        send(fleet, range(200, 400))
        fleet.shows(fleet.expected(), "checkpoints in S3, one killed")
        for instance in list(fleet.instances):
            fleet.drop(instance, signal.SIGKILL)
        fleet.join(**options)
        fleet.steady()
        fleet.shows(fleet.expected(), "checkpoints in S3, all killed")
        fleet.ends()
        listed = get(f"{url}/bucket?list-type=2&max-keys=1000")[0]
        assert listed.count(".state</Key>") >= 3 * PARTITIONS, listed
        # Ownership is created with this condition; a store that ignored it would have two owners.
        key = f"{url}/bucket/owner"
        assert [put(key, **{"If-None-Match": "*"}) for _ in range(2)] == [200, 412]
    return 2


def why_not_ready(instance):
    try:
        get(f"{instance.http}/readyz")
    except urllib.error.HTTPError as error:
        return error.read().decode()
    return ""


def keys(broker, topic):
    """The key of each record of a topic, by partition, in order."""
    consumer = Consumer(
        {"bootstrap.servers": broker.address(), "group.id": "looks", "enable.partition.eof": True, "log_level": 0}
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found, ended = {partition: [] for partition in range(PARTITIONS)}, set()
    while len(ended) < PARTITIONS:
        record = consumer.poll(10)
        assert record, "no record"
        if record.error():
            ended.add(record.partition())
        else:
            found[record.partition()].append((record.offset(), record.key()))
    consumer.close()
    return found


def delete(broker, offsets):
    """Deletes all records before these."""
    for future in broker.admin.delete_records(offsets).values():
        future.result(30)


def retention(binary, work, broker):
    """Unread spans are gone: counted, and nothing else is missing."""
    make(broker, "gone")
    fleet = Fleet(binary, work, broker)
    # The rest of a trace is done soon, too.
    soon = {"AGENTGAUGE__ASSEMBLE__ROOTLESS_IDLE": "5s"}
    options = soon | {"AGENTGAUGE__FLEET__PREFIX": "gone"}
    worker = fleet.join(**options)
    fleet.steady()
    send(fleet, range(100))
    fleet.drop(worker, signal.SIGTERM)
    before = {partition: len(records) for partition, records in keys(broker, "gone.spans").items()}
    gateway = fleet.join(AGENTGAUGE__FLEET__ROLES='["gateway"]', **options)
    send(fleet, range(100, 400))
    # Each part of a trace is a record under the key of the trace; some of what came after goes.
    gone, offsets, others = set(), [], 0
    for partition, records in keys(broker, "gone.spans").items():
        new = [(offset, key) for offset, key in records[before[partition] :] if key]
        lost = new[: len(new) // 2]
        seen = {}
        for _, key in lost:
            number = 2 * (int.from_bytes(key, "big") - 1 - FIRST) + seen.setdefault(key, 0)
            seen[key] += 1
            gone.add(number)
        low = new[len(lost)][0]
        offsets.append(TopicPartition("gone.spans", partition, low))
        # A worker tells its partitions the time in records without a key. It has read those before the last one with a key.
        read = max((offset for offset, key in records[: before[partition]] if key), default=-1)
        others += sum(1 for offset, key in records if read < offset < low and not key)
    delete(broker, offsets)
    fleet.drop(gateway, signal.SIGTERM)
    worker = fleet.join(**options)
    fleet.steady()
    counted = value(worker.page(), 'agentgauge_fleet_records_lost_total{role="assemble"}')
    assert len(gone) <= counted <= len(gone) + others, (counted, len(gone), others)
    fleet.sent = [body for number, body in enumerate(fleet.sent) if number not in gone]
    send(fleet, range(400, 500))
    fleet.shows(fleet.expected(**soon), f"{len(gone)} records gone before they were read")
    fleet.ends()

    # The Kafka source, likewise.
    broker.create("retained")
    start = lambda: Daemon(binary, broker.address(), traces_topics='["retained"]', traces_encoding="otlp_json")
    daemon = start()
    daemon.becomes_ready()
    broker.produce("retained", map(trace, range(100)))
    daemon.reaches("kafka_records_total", 100)
    daemon.stop()
    broker.produce("retained", map(trace, range(100, 300)))
    ends = [broker.ends("retained", partition) for partition in range(4)]
    delete(broker, [TopicPartition("retained", partition, end - 10) for partition, end in enumerate(ends)])
    daemon = start()
    daemon.becomes_ready()
    daemon.reaches("kafka_records_total", 40)
    daemon.reaches("kafka_records_lost_total", 160)
    daemon.reaches("kafka_consumer_lag_records", 0)
    daemon.stop()
    print("the source: 160 records gone before they were read, the rest read")
    return 2


def growth(binary, work, broker):
    """All topics get more partitions: those between the running stages keep to theirs, the source reads the new ones as well."""
    make(broker, "grown")
    broker.create("grown.otlp")
    fleet = Fleet(binary, work, broker)
    options = {
        "AGENTGAUGE__FLEET__PREFIX": "grown",
        "AGENTGAUGE__KAFKA__TRACES_TOPICS": '["grown.otlp"]',
        "AGENTGAUGE__KAFKA__TRACES_ENCODING": "otlp_json",
        "AGENTGAUGE__KAFKA__GROUP": "grown",
    }
    for _ in range(2):
        fleet.join(**options)
    fleet.steady()
    send(fleet, range(200))
    grown = [NewPartitions(f"grown.{name}", 2 * PARTITIONS) for name in ["spans", "traces", "agents", "otlp"]]
    for future in broker.admin.create_partitions(grown).values():
        future.result(30)
    sent = [request(number, fleet.base) for number in range(200, 400)]
    broker.produce("grown.otlp", sent)
    fleet.sent += sent
    # An instance that starts when there are more cannot know where others look for a trace: it accepts nothing, and says so.
    late = fleet.join(**options)
    until("the option to be named", lambda: "`fleet.partitions`" in why_not_ready(late))
    fleet.drop(late, signal.SIGTERM)
    fleet.steady()
    send(fleet, range(400, 500))
    fleet.shows(fleet.expected(), f"{PARTITIONS} more partitions of every topic")
    fleet.ends()
    return 1


def main():
    run([checkpoints_in_s3, retention, growth], "instances.log")


if __name__ == "__main__":
    main()
