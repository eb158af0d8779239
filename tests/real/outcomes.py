"""How well the daemon's numbers separate failed runs from others, on recordings of runs whose outcome is known: the tables of docs/outcomes.md.

    python3 tests/real/outcomes.py target/release/agentgauge FOLDER...
    python3 tests/real/outcomes.py --together target/release/agentgauge FOLDER...

A FOLDER has NNN-traces.pb (a run each, as OTLP) and labels.json ({session id: {"failed", "order": NNN}}); beside it FOLDER-outcomes has
NNN-logs.pb, the outcome of that run as a log record. Each is replayed without outcomes, and with a tenth and a quarter of the outcomes reported (five draws);
numbers are over the runs without a reported outcome. `--together` has the runs of all folders as those of one agent, which differ by their models and tasks, and
measures how well failures are separated within each folder (needs tests/real/requirements.txt). Nothing here is a gate: recordings are not part of the repository.
"""

import json
import math
import random
import subprocess
import sys
import tempfile
from pathlib import Path

DRAWS = 5
# Runs of all folders begin this far apart, in an order of their own.
APART, BEGIN = 600_000_000_000, 1_790_000_000_000_000_000
BOOTSTRAPS = 1000


def auroc(numbers, failed):
    """The chance that a failed run has the greater number, ties half."""
    pairs = sorted(zip(numbers, failed))
    below = won = 0.0
    at = 0
    while at < len(pairs):
        alike = [failed for number, failed in pairs[at:] if number == pairs[at][0]]
        bad = sum(alike)
        good = len(alike) - bad
        won += bad * (below + good / 2)
        below += good
        at += len(alike)
    bad = len(pairs) - below
    return won / (bad * below) if bad and below else math.nan


def interval(numbers, failed):
    """95 % of its values over resampled runs."""
    draw = random.Random(1)
    runs = list(zip(numbers, failed))
    found = sorted(auroc(*zip(*draw.choices(runs, k=len(runs)))) for _ in range(BOOTSTRAPS))
    return found[int(0.025 * BOOTSTRAPS)], found[int(0.975 * BOOTSTRAPS)]


def wilson(successes, runs):
    """The interval of a share by labels alone."""
    square = 1.959964**2 / runs
    share = successes / runs
    half = math.sqrt(square * (share * (1 - share) + square / 4))
    return (share + square / 2 - half) / (1 + square), (share + square / 2 + half) / (1 + square)


def replay(binary, folder, told):
    """The document after all runs; the outcome of each labelled run is reported after the run."""
    with tempfile.TemporaryDirectory() as mixed:
        for run in folder.glob("*.pb"):
            (Path(mixed) / run.name).symlink_to(run.resolve())
        for order in told:
            log = folder.with_name(folder.name + "-outcomes") / f"{order:03d}-logs.pb"
            # Before the next run's traces.
            (Path(mixed) / f"{order + 1:03d}-logs.pb").symlink_to(log.resolve())
        command = [binary, "replay", mixed, "--output", "json"]
        return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def numbers(session):
    """The numbers that may predict that a run failed."""
    found = {"model calls": sum(trace["llm_calls"] for trace in session["traces"])}
    if session["reliability"] is not None:
        found["1 - reliability"] = 1 - session["reliability"]
    for name in ("effort", "predicted_failure"):
        if session[name] is not None:
            found[name] = session[name]
    return found


def measured(document, labels, told):
    """By number: what it is of each run that was not told, and whether that failed."""
    found = {}
    for session in document["sessions"]:
        label = labels.get(session["session_id"])
        if label is None or label["order"] in told:
            continue
        for name, number in numbers(session).items():
            values, failed = found.setdefault(name, ([], []))
            values.append(number)
            failed.append(int(label["failed"]))
    return found


def looping(document, labels):
    """Runs with a loop of tool calls that moves scores, and how many of these failed: no label says which repetitions were meant."""
    found = {}
    for session in document["sessions"]:
        loops = [loop for trace in session["traces"] for loop in trace["loops"]]
        weighing = [loop for loop in loops if loop["kind"] != "output_repeat" and loop["evidence"] != "names"]
        if weighing:
            found[session["session_id"]] = weighing
    failed = sum(bool(labels[name]["failed"]) for name in found)
    critical = sum(loop["severity"] == "critical" for loops in found.values() for loop in loops)
    return f"{len(found)} runs with a loop of tool calls, {failed} of them failed; {critical} loops are critical"


def as_one_agent(folders, target):
    """Writes the runs of all folders as those of one agent; returns their labels, with the folder of each."""
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    def rename(attributes):
        for attribute in attributes:
            if attribute.key in ("service.name", "gen_ai.agent.name"):
                attribute.value.string_value = "one"

    runs = [(folder, *run) for folder in folders for run in json.loads((folder / "labels.json").read_text()).items()]
    random.Random("together").shuffle(runs)
    outcomes = target.with_name(target.name + "-outcomes")
    outcomes.mkdir()
    labels = {}
    for order, (folder, session, label) in enumerate(runs):
        labels[session] = {"failed": label["failed"], "order": order, "folder": folder.name}
        traces = ExportTraceServiceRequest.FromString((folder / f"{label['order']:03d}-traces.pb").read_bytes())
        told = folder.with_name(folder.name + "-outcomes") / f"{label['order']:03d}-logs.pb"
        logs = ExportLogsServiceRequest.FromString(told.read_bytes())
        spans = [span for part in traces.resource_spans for scope in part.scope_spans for span in scope.spans]
        records = [record for part in logs.resource_logs for scope in part.scope_logs for record in scope.log_records]
        later = BEGIN + order * APART - min(span.start_time_unix_nano for span in spans)
        for part in [*traces.resource_spans, *logs.resource_logs]:
            rename(part.resource.attributes)
        for span in spans:
            rename(span.attributes)
            span.start_time_unix_nano += later
            span.end_time_unix_nano += later
        for record in records:
            record.time_unix_nano += later
            record.observed_time_unix_nano += later
        (target / f"{order:03d}-traces.pb").write_bytes(traces.SerializeToString())
        (outcomes / f"{order:03d}-logs.pb").write_bytes(logs.SerializeToString())
    return labels


def together(binary, folders):
    """How well failures are told apart within each folder, where the runs of all of them are one agent's."""
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "together"
        target.mkdir()
        labels = as_one_agent(folders, target)
        orders = sorted(label["order"] for label in labels.values())
        for share in (0, 0.1, 0.25):
            found = {}
            for seed in range(1, DRAWS + 1 if share else 2):
                told = random.Random(f"together {seed}").sample(orders, round(share * len(orders)))
                document = replay(binary, target, told)
                for name in ["all", *(folder.name for folder in folders)]:
                    own = {session: label for session, label in labels.items() if name in ("all", label["folder"])}
                    values, failed = measured(document, own, set(told))["predicted_failure"]
                    found.setdefault(name, []).append(auroc(values, failed))
            shown = (f"{name} {mean(each):.3f} (least {min(each):.3f})" for name, each in found.items())
            print(f"{share:.0%} told: AUROC of predicted_failure {', '.join(shown)}", flush=True)


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def main(binary, *folders):
    for folder in map(Path, folders):
        labels = json.loads((folder / "labels.json").read_text())
        orders = sorted(label["order"] for label in labels.values())
        truth = 1 - mean(label["failed"] for label in labels.values())
        by_order = {label["order"]: int(label["failed"]) for label in labels.values()}
        print(f"{folder.name}: {len(labels)} runs, {truth:.1%} succeed")
        document = replay(binary, folder, [])
        print(f"  {looping(document, labels)}")
        for name, (values, failed) in sorted(measured(document, labels, set()).items()):
            low, high = interval(values, failed)
            print(f"  {name:20} AUROC {auroc(values, failed):.3f} [{low:.3f}, {high:.3f}]")
        for share in (0.1, 0.25):
            aurocs, briers, bases, widths, covered = [], [], [], [], []
            for seed in range(1, DRAWS + 1):
                told = random.Random(f"{folder.name} {seed}").sample(orders, round(share * len(orders)))
                document = replay(binary, folder, told)
                values, failed = measured(document, labels, set(told))["predicted_failure"]
                aurocs.append(auroc(values, failed))
                briers.append(mean((value - fact) ** 2 for value, fact in zip(values, failed)))
                bases.append(mean(failed) * (1 - mean(failed)))
                success = document["agents"][0]["success"]["all"]
                low, high = wilson(sum(1 - by_order[order] for order in told), len(told))
                widths.append((success["upper"] - success["lower"]) / (high - low))
                covered.append(success["lower"] <= truth <= success["upper"])
            print(f"  {share:.0%} told: AUROC of predicted_failure {mean(aurocs):.3f} (least {min(aurocs):.3f}),"
                  f" Brier {mean(briers):.3f} (of the base rate {mean(bases):.3f});"
                  f" width of the success ratio's interval over that of labels alone {mean(widths):.3f} (greatest {max(widths):.3f}),"
                  f" {sum(covered)} of {DRAWS} cover")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    if sys.argv[1] == "--together":
        together(sys.argv[2], [Path(folder) for folder in sys.argv[3:]])
    else:
        main(*sys.argv[1:])
