"""Runs an image from its mounted root, as its user: it starts, takes spans, keeps them, and ends in order.

Usage: image.py ROOT INSPECTED
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(sys.argv[1])
CONFIG = json.loads(pathlib.Path(sys.argv[2]).read_text())["OCIv1"]["config"]
SPAN = {
    "traceId": "0af7651916cd43dd8448eb211c80319c",
    "spanId": "00f067aa0ba902b7",
    "name": "invoke_agent helper",
    "startTimeUnixNano": str(time.time_ns() - 1_000_000),
    "endTimeUnixNano": str(time.time_ns()),
    "attributes": [
        {"key": key, "value": {"stringValue": value}}
        for key, value in {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "helper",
            "gen_ai.conversation.id": "s-1",
        }.items()
    ],
}


def fetch(address, path, body=None):
    request = urllib.request.Request(f"http://{address}{path}", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read().decode()


def main():
    user, group = (int(number) for number in CONFIG["User"].split(":"))
    assert user != 0, "it runs as root"
    # A read-only root takes nothing away.
    as_user = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"]
    found = subprocess.run(
        [*as_user, "find", ".", "-writable", "!", "-type", "l"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    writable = {path for path in found.stdout.split() if path not in ("./var", "./var/lib")}
    assert writable == {"./var/lib/agentgauge"}, writable

    variables = dict(variable.split("=", 1) for variable in CONFIG["Env"])
    ports = {name: "0.0.0.0:0" for name in variables if "__LISTEN__" in name}
    assert len(ports) == 3, variables
    command = ["chroot", f"--userspec={user}:{group}", ROOT, *CONFIG["Entrypoint"], *CONFIG["Cmd"]]
    started = time.monotonic()
    daemon = subprocess.Popen(command, env=variables | ports, stdout=subprocess.PIPE, text=True)
    try:
        bound = {name: address.replace("0.0.0.0", "127.0.0.1") for name, address in json.loads(daemon.stdout.readline()).items()}
        took = time.monotonic() - started
        resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]}
        body = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [SPAN]}]}]}
        fetch(bound["otlp_http"], "/v1/traces", json.dumps(body).encode())
        end = time.monotonic() + 60
        while 'agent_name="helper"' not in fetch(bound["http"], "/metrics"):
            assert time.monotonic() < end, "no agent is shown"
            time.sleep(0.2)
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(60) == 0, daemon.returncode
    finally:
        daemon.kill()
    kept = [path for path in (ROOT / "var/lib/agentgauge").rglob("*") if path.is_file()]
    assert kept, "nothing was kept"
    binary = os.path.getsize(ROOT / "usr/bin/agentgauge") / 1e6
    print(f"image: started in {took:.1f} s as user {user}, took a span and kept it; its binary is {binary:.0f} MB")


main()
