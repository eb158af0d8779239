#!/usr/bin/env python3
"""Whether two builds give the same results for the recordings: `replay --output json` of each folder, and the API and metrics of a daemon
that receives all of them. Differences between two runs of the first build, such as times of arrival, are left out.

Usage: documents.py BEFORE AFTER [FOLDER...]. BEFORE is a binary, or a commit, which is built in a folder of its own. Folders are
those of tests/data/captures unless some are named. Ends with 1 if anything differs, which it lists.
"""

import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

from waiting import until

ROOT = Path(__file__).resolve().parents[2]
CAPTURES = ROOT / "tests/data/captures"
# The most differences that are listed for one document.
LISTED = 12
# Long enough for all requests to arrive before anything is done, and no longer.
TIMES = {
    "AGENTGAUGE__ASSEMBLE__TRACE_IDLE": "20s",
    "AGENTGAUGE__ASSEMBLE__ROOTLESS_IDLE": "20s",
    "AGENTGAUGE__ASSEMBLE__TRACE_MAX_AGE": "25s",
    "AGENTGAUGE__METRICS__DETAIL": "full",
    # Recordings keep their times.
    "AGENTGAUGE__INGEST__MAX_SPAN_AGE": "8760h",
}
# Evidence is told by how many streams there were when it was; what counts a trace once does so by the traces that were done with it.
PASSING = re.compile(r"/drops/\d+/evidence$|/verdicts/|^/agentgauge_(trace_evaluations|trace_signal_score|trajectory_gate)_")
# Values about the daemon itself and its machine.
OWN = re.compile(r"(process|agentgauge_(build|ingest_|server|stage|memory|telemetry|store|self|request))")


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def built(commit):
    """The binary of a commit, in a folder that exists as long as this runs."""
    tree = tempfile.TemporaryDirectory(prefix="agentgauge-before-")
    subprocess.run(["git", "-C", ROOT, "--work-tree", tree.name, "checkout", commit, "--", "."], check=True,
                   env=os.environ | {"GIT_INDEX_FILE": f"{tree.name}.index"})
    os.unlink(f"{tree.name}.index")
    subprocess.run(["cargo", "build", "--quiet", "--release"], cwd=tree.name, check=True)
    built.trees.append(tree)
    return Path(tree.name) / "target/release/agentgauge"


built.trees = []


def replayed(binary, folder):
    """The output of `replay` for a folder; for one without spans, that fact."""
    done = subprocess.run([binary, "replay", "--output", "json", folder], capture_output=True, text=True)
    return json.loads(done.stdout) if done.stdout.strip() else {"error": done.stderr.strip()}


def send(address, folders):
    """Every request of the folders, in their order, over one connection; two builds refuse the same requests."""
    connection = http.client.HTTPConnection(address)
    answers = {}
    for path in sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in (".pb", ".json")):
        signal = re.search(r"-(traces|logs|metrics)\.", path.name)
        if not signal:
            continue
        kind = "application/x-protobuf" if path.suffix == ".pb" else "application/json"
        connection.request("POST", f"/v1/{signal[1]}", path.read_bytes(), {"content-type": kind})
        answer = connection.getresponse()
        answers[f"{path.parent.name}/{path.name}"] = [answer.status, answer.read().decode(errors="replace")]
    return answers


def rows(base):
    """All rows of the list of sessions, page by page."""
    found = []
    while True:
        page = json.loads(get(f"{base}/api/v1/sessions?detail=row&limit=100&offset={len(found)}"))["sessions"]
        if not page:
            return found
        found += page


def served(binary, folders):
    """The daemon's documents about the folders."""
    serve = [binary, "serve", "--otlp-grpc", "127.0.0.1:0", "--otlp-http", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    daemon = subprocess.Popen(serve, env=os.environ | TIMES, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        bound = json.loads(daemon.stdout.readline())
        documents = {"answers": send(bound["otlp_http"], folders)}
        base = f"http://{bound['http']}"

        def is_done():
            series = metrics(get(f"{base}/metrics"))
            return not any(value for name, value in series.items() if name.startswith("agentgauge_open_traces"))

        until("all traces to be done", is_done, 180)
        # Changes are sent at a pace.
        last = None

        def is_settled():
            nonlocal last
            before, last = last, metrics(get(f"{base}/metrics"))
            return before == last

        until("its metrics to settle", is_settled)
        documents["metrics"] = last
        for path in ("agents", "fleet", "problems", "alerts"):
            documents[path] = json.loads(get(f"{base}/api/v1/{path}"))
        listed = rows(base)
        documents["sessions"] = {f"{row['session_id']} {row.get('scope')}": row for row in listed}
        for row in listed:
            name = urllib.parse.quote(row["session_id"], safe="")
            scope = urllib.parse.quote(row.get("scope") or "", safe="")
            session = json.loads(get(f"{base}/api/v1/sessions/{name}?scope={scope}"))
            documents[f"session {row['session_id']} {row.get('scope')}"] = session
            for trace in session["traces"]:
                of = f"{base}/api/v1/traces/{trace['trace_id']}?session={name}&scope={scope}"
                documents[f"trace {trace['trace_id']}"] = json.loads(get(of))
        return documents
    finally:
        daemon.terminate()
        daemon.wait(30)


def metrics(page):
    """Series and their values, without those of the daemon itself."""
    lines = (line.rpartition(" ") for line in page.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in lines if not OWN.match(name)}


def flat(document, path=""):
    """A document as values by path."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield from flat(value, f"{path}/{key}")
    elif isinstance(document, list):
        yield f"{path}#", len(document)
        for at, value in enumerate(document):
            yield from flat(value, f"{path}/{at}")
    else:
        yield path, document


def differences(before, again, after):
    """By document the paths at which the builds differ, without those at which two runs of the first one do."""
    for name in sorted(before.keys() | after.keys()):
        one, two, other = (dict(flat(documents.get(name))) for documents in (before, again, after))
        paths = [path for path in sorted(one.keys() | other.keys())
                 if one.get(path) == two.get(path) and one.get(path) != other.get(path) and not PASSING.search(path)]
        if paths:
            yield name, [(path, one.get(path), other.get(path)) for path in paths]


def main():
    before, after, *folders = sys.argv[1:]
    before = Path(before) if os.path.exists(before) else built(before)
    folders = [Path(folder) for folder in folders] or sorted(path for path in CAPTURES.iterdir() if path.is_dir())
    replays = [{folder.name: replayed(binary, folder) for folder in folders} for binary in (before, after)]
    found = list(differences(replays[0], replays[0], replays[1]))
    first, again, other = (served(binary, folders) for binary in (before, before, after))
    found += differences(first, again, other)
    for name, paths in found:
        print(f"{name}: {len(paths)} values differ")
        for path, one, two in paths[:LISTED]:
            print(f"  {path}: {one!r} -> {two!r}")
    print(f"{len(replays[0])} replays and {len(first)} documents of a daemon: {len(found)} differ")
    sys.exit(1 if found else 0)


main()
