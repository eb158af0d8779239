"""Slow clients against the daemon with default settings: two senders whose link carries 64 KB a second bring 16 MiB each, over HTTP and gRPC, while
forty readers of /metrics read nothing of it; a Prometheus beside them misses no scrape, and an agent's spans arrive.

Usage: slow.py BINARY WORKDIR. Takes as long as 16 MiB do: four minutes and a half.
"""

import json
import pathlib
import socket
import subprocess
import sys
import threading
import time
import urllib.parse

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from end_to_end import HttpExporter, get, listening, running, turn, until

BYTES = 16 * 2**20
BYTES_PER_SECOND = 64_000
READERS = 40
# The most time that a request may take beyond what its link needs.
SPARE_SECONDS = 60


def large_request(name):
    """A request of just under 16 MiB, nearly all of it one text."""
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    service = resource.resource.attributes.add(key="service.name")
    service.value.string_value = name
    span = resource.scope_spans.add().spans.add(trace_id=bytes([7] * 16), span_id=bytes([7] * 8), name="chat")
    span.start_time_unix_nano = time.time_ns() - 1_000_000
    span.end_time_unix_nano = time.time_ns()
    span.attributes.add(key="gen_ai.operation.name").value.string_value = "chat"
    text = span.attributes.add(key="some.text")
    text.value.string_value = "x" * (BYTES - 4096)
    return request


class Link(threading.Thread):
    """A proxy to an address that carries this many bytes a second of what is sent to it."""

    def __init__(self, address):
        super().__init__(daemon=True)
        self.address = address
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.start()

    def run(self):
        client, _ = self.listener.accept()
        host, port = self.address.rsplit(":", 1)
        server = socket.create_connection((host, int(port)))
        # Unsent bytes wait with the sender, not here.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        threading.Thread(target=self.back, args=(server, client), daemon=True).start()
        piece = BYTES_PER_SECOND // 20
        began, sent = time.monotonic(), 0
        while data := client.recv(piece):
            server.sendall(data)
            sent += len(data)
            time.sleep(max(0.0, began + sent / BYTES_PER_SECOND - time.monotonic()))
        server.shutdown(socket.SHUT_WR)

    @staticmethod
    def back(server, client):
        while data := server.recv(65536):
            client.sendall(data)


def over_http(address, answers):
    body = large_request("slow-http").SerializeToString()
    with socket.create_connection(("127.0.0.1", Link(address).port)) as stream:
        head = "POST /v1/traces HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/x-protobuf\r\n"
        stream.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        answers["http"] = stream.makefile("rb").readline().decode().strip()


def over_grpc(address, answers):
    with grpc.insecure_channel(f"127.0.0.1:{Link(address).port}") as channel:
        export = channel.unary_unary(
            "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
            request_serializer=ExportTraceServiceRequest.SerializeToString,
            response_deserializer=ExportTraceServiceResponse.FromString,
        )
        try:
            export(large_request("slow-grpc"))
            answers["grpc"] = "OK"
        except grpc.RpcError as error:
            answers["grpc"] = str(error)


def stalled_readers(address):
    """Readers that request the page repeatedly and read nothing of it."""
    host, port = address.rsplit(":", 1)
    readers = []
    for _ in range(READERS):
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        reader.connect((host, int(port)))
        reader.sendall(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n" * 50)
        readers.append(reader)
    return readers


def main():
    binary, work = sys.argv[1], pathlib.Path(sys.argv[2]) / "slow"
    work.mkdir(exist_ok=True)
    serve = [binary, "serve", "--otlp-grpc", "127.0.0.1:0", "--otlp-http", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    with running(serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as daemon:
        bound = json.loads(daemon.stdout.readline())
        (work / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
            f"scrape_configs: [{{job_name: agentgauge, static_configs: [{{targets: ['{bound['http']}']}}]}}]\n"
        )
        watch = ["prometheus", f"--config.file={work / 'prometheus.yml'}", f"--storage.tsdb.path={work / 'tsdb'}"]
        with listening([*watch, "--web.listen-address=127.0.0.1:0"], work / "prometheus.log") as prometheus:

            def ask(query):
                url = f"http://{prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": query})
                return json.loads(get(url)[0])["data"]["result"]

            until("the first scrape", lambda: ask("up == 1"))
            answers, began = {}, time.monotonic()
            senders = [
                threading.Thread(target=over_http, args=(bound["otlp_http"], answers), daemon=True),
                threading.Thread(target=over_grpc, args=(bound["otlp_grpc"], answers), daemon=True),
            ]
            [sender.start() for sender in senders]
            provider = TracerProvider(resource=Resource.create({"service.name": "quick"}))
            exporter = HttpExporter(endpoint=f"http://{bound['otlp_http']}/v1/traces")
            provider.add_span_processor(SimpleSpanProcessor(exporter))
            turns, readers = 0, []
            while any(sender.is_alive() for sender in senders):
                took = time.monotonic() - began
                assert took < BYTES / BYTES_PER_SECOND + SPARE_SECONDS, f"no answer after {took:.0f} s: {answers}"
                # Closed ones reconnect.
                [reader.close() for reader in readers]
                readers = stalled_readers(bound["http"])
                turn(provider.get_tracer("slow"), f"session-{turns}", "Weather?", "Fine.", [("weather", "Oslo", False)])
                turns += 1
                time.sleep(2)
            took = time.monotonic() - began
            assert answers == {"http": "HTTP/1.1 200 OK", "grpc": "OK"}, answers
            assert took > BYTES / BYTES_PER_SECOND * 0.9, f"the link was too quick: {took:.0f} s"
            print(f"16 MiB at {BYTES_PER_SECOND} bytes a second: served over HTTP and gRPC after {took:.0f} s")

            least, scrapes = (float(ask(f"{of}_over_time(up[{took:.0f}s])")[0]["value"][1]) for of in ("min", "count"))
            assert least == 1, f"Prometheus missed a scrape beside {READERS} readers that take nothing"
            assert scrapes >= took * 0.9, f"{scrapes} scrapes in {took:.0f} s"
            print(f"Prometheus: {scrapes:.0f} scrapes of a second, none missed, beside {READERS} readers that take nothing")

            seen = 'sum(agentgauge_agent_window_traces{service_name="quick",window="1h"})'
            until(f"{turns} traces", lambda: float(ask(seen)[0]["value"][1]) == turns)
            [reader.close() for reader in readers]
    assert daemon.returncode == 0, f"the daemon ended with {daemon.returncode}"
    print("3 passed, 0 failed")


if __name__ == "__main__":
    main()
