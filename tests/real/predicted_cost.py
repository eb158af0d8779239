"""The cost of predicted failures, in instructions of a replay for each of its spans: the figures of docs/outcomes.md.

    python3 tests/real/predicted_cost.py target/release/agentgauge FOLDER...

A FOLDER has recordings as `tests/real/outcomes.py` takes them. Each is replayed under callgrind. The cost is that of the functions named below
with all functions that they call, each instruction once: the work as spans arrive, and the prediction for each session and each trace in the
document. Drops rank traces with the same functions, for the streams of effort, cost and latency too, and that is included.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

AS_THEY_COME = [
    "::session::Session>::spend",
    "::TraceRecord::effort",
    "::Summary::spend",
    "::Effort::plus",
    "::Effort::minus",
    "::EffortSums::replace",
    "::EffortSums::merge",
    "::EffortSums::unmerge",
    "::Spread::add",
    "::Spread::remove",
    "::Spread::replace",
    "::Spread::rank",
    "::Learner::chance",
    "::Learner::learn",
    "::Learner::renew",
]
WHEN_LOOKED_AT = [
    "::Learned::new",
    "::Learned::look_at",
    "::Learned::look_at_agent",
    "::Learned::look_at_trace",
    "::session::Session>::took",
    "::Spread::of_all",
    "::AgentRuns::took",
]
# Without these the profile is of another program, or has them inlined.
NEEDED = ["::session::Session>::spend", "::TraceRecord::effort", "::Spread::add", "::EffortSums::replace", "::Learned::look_at"]
# One instruction of the processor moves a long text, and callgrind counts one for each of its bytes.
COUNTED = {"GLIBC_TUNABLES": "glibc.cpu.x86_rep_movsb_threshold=1000000000"}


def varint(data, at):
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at


def fields(data, wanted):
    """The parts of a message that have this number."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 2:
            length, at = varint(data, at)
            if key >> 3 == wanted:
                yield data[at : at + length]
            at += length
        else:
            at = varint(data, at)[1] if key & 7 == 0 else at + (8 if key & 7 == 1 else 4)


def spans(folder):
    """Spans of resources, of scopes, of requests."""
    requests = (path.read_bytes() for path in folder.glob("*-traces.pb"))
    scopes = (scope for request in requests for resource in fields(request, 1) for scope in fields(resource, 2))
    return sum(1 for scope in scopes for _ in fields(scope, 2))


def profile(binary, folder):
    """Calls of a replay: caller, callee, how often, and the instructions of these calls."""
    with tempfile.TemporaryDirectory() as scratch:
        out = f"{scratch}/callgrind.out"
        valgrind = ["valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={out}"]
        command = [*valgrind, binary, "replay", str(folder), "--output", "json"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | COUNTED)
        lines = iter(Path(out).read_text().splitlines())
    names = {}

    def name(text):
        number, _, full = text.partition(" ")
        return names.setdefault(number, full)

    caller = callee = ""
    for line in lines:
        if line.startswith("fn="):
            caller = name(line[3:])
        elif line.startswith("cfn="):
            callee = name(line[4:])
        elif line.startswith("calls="):
            yield caller, callee, int(line[6:].split()[0]), int(next(lines).split()[1])


def counted(calls, parts):
    """For each of these functions how often it was called by others than these, and the instructions of that."""

    def part(function):
        return next((part for part in parts if function.endswith(part)), None)

    found = {}
    for caller, callee, times, instructions in calls:
        own = part(callee)
        if own is not None and part(caller) is None:
            held = found.get(own, (0, 0))
            found[own] = held[0] + times, held[1] + instructions
    return found


def main(binary, *folders):
    totals, all_spans = [0, 0], 0
    for folder in map(Path, folders):
        calls, number = list(profile(binary, folder)), spans(folder)
        missing = [part for part in NEEDED if not any(callee.endswith(part) for _, callee, _, _ in calls)]
        if missing:
            sys.exit(f"{folder.name}: not in the profile: {', '.join(missing)}")
        all_spans += number
        print(f"{folder.name}: {number} spans")
        for at, (title, parts) in enumerate([("as they come", AS_THEY_COME), ("when looked at", WHEN_LOOKED_AT)]):
            found = counted(calls, parts)
            instructions = sum(instructions for _, instructions in found.values())
            totals[at] += instructions
            print(f"  {title}: {instructions / number:.0f} instructions a span")
            for part, (times, each) in sorted(found.items(), key=lambda item: -item[1][1]):
                print(f"    {part[2:]:32} {each / number:6.0f} a span in {times} calls")
    came, looked = (total / all_spans for total in totals)
    print(f"of all {all_spans} spans: {came:.0f} as they come, {looked:.0f} when looked at, {came + looked:.0f} together")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
