"""The output on a terminal: the addresses of the daemon, in three lines, and how many bytes of a recording are read.

Usage: terminal.py BINARY
"""

import json
import os
import pathlib
import pty
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def shown(command, stream, enough, how=signal.SIGTERM):
    """What a command writes to a terminal in the place of this stream, until that is enough or the command is over; then a signal ends it."""
    ours, theirs = pty.openpty()
    # The parent process may ignore SIGHUP.
    command = ["env", "--default-signal=HUP", *command]
    process = subprocess.Popen(command, **{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: theirs})
    os.close(theirs)
    text = b""
    try:
        while not enough(text):
            read = os.read(ours, 65536)
            if not read:
                break
            text += read
    except OSError:
        # The other end is closed.
        pass
    process.send_signal(how)
    assert process.wait(60) in (0, -how), f"{how.name} did not end it"
    os.close(ours)
    return text.decode(errors="replace")


def serve(binary):
    listen = [part for flag in ("--otlp-grpc", "--otlp-http", "--http") for part in (flag, "127.0.0.1:0")]
    lines = shown([binary, "serve", *listen], "stdout", lambda text: text.count(b"\n") >= 3, signal.SIGHUP).splitlines()
    assert [line.split(":")[0] for line in lines] == ["The page", "Point OTLP at", "Prometheus at"], lines
    print("serve says in three lines where the page is and what to point at it, and ends as its terminal does")


def replay(binary):
    span = {"traceId": f"{1:032x}", "name": "x" * 100, "startTimeUnixNano": "1800000000000000000", "endTimeUnixNano": "1800000000000000001",
            "attributes": [{"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}]}
    with tempfile.TemporaryDirectory() as folder:
        for part in range(8):
            spans = [span | {"spanId": f"{1 + part * 5000 + at:016x}"} for at in range(5000)]
            (pathlib.Path(folder) / f"{part}.json").write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}))
        text = shown([binary, "replay", folder], "stderr", lambda _: False)
    assert "MiB/" in text and ".json" in text, text[-2000:]
    print("replay shows how many bytes are read")


if __name__ == "__main__":
    serve(sys.argv[1])
    replay(sys.argv[1])
    print("2 passed, 0 failed")
