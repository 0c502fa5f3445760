"""Mutants of the engine's source: each statement that is a step is left out, and the bridge must reject a run.

    python -m proof.bridge.mutants FOLDER [FIRST [COUNT [EVERY]]]

FOLDER is a copy of the repository, which this changes: `git worktree add FOLDER`. Takes a build for each mutant.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from .check import reject
from .events import Run, read

CALLS = r"store|publish|ring|invalidate_\w+|complete_\w+|flush_\w+|insert|leave|answer|begin_round|catch_up\w*|record"
STEP = re.compile(rf"^ +(?:fence\(|.*\.(?:{CALLS})\().*\);\n$")
"""A statement of one line that is an access to a shared word, a barrier, a ring, an invalidation, or a call that has them."""


def candidates(folder: Path) -> list[tuple[Path, int]]:
    """The statements that are steps, without those of tests."""
    found = []
    sources = folder / "crates/shootdown/src"
    for path in sorted(it for it in sources.rglob("*.rs") if it.name not in ("tests.rs",
        "memory.rs") and it.parent.name not in ("soft", "machine", "hostile")):
        for at, line in enumerate(path.read_text().splitlines(keepends=True)):
            if line.startswith("#[cfg(test)]") or line.startswith("#[cfg(all(test"):
                break
            if STEP.match(line) and not re.search("Relaxed|return|let |assert", line):
                found.append((path, at))
    return found


def record(folder: Path) -> list[Run] | None:
    """The runs of the intact rules; `None` if the engine does not build, or a run does not end."""
    runs = folder / "target/runs.txt"
    command = ["cargo", "run", "--quiet", "--profile", "ci", "-p", "shootdown-check", "--example", "steps", "--", str(runs),
        "intact"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        return None
    return list(read(runs)) if done.returncode == 0 else None


def main() -> int:
    folder, first, count, every = Path(sys.argv[1]), *map(int, [*sys.argv[2:], "0", "100000", "1"][:3])
    steps = lambda runs: [(run.end, [(event.cpu, event.text) for event in run.events]) for run in runs]
    intact = steps(record(folder) or [])
    counts: Counter[tuple[bool, bool]] = Counter()
    for path, at in candidates(folder)[first : first + count : every]:
        text = path.read_text()
        lines = text.splitlines(keepends=True)
        name = f"{path.relative_to(folder)}:{at + 1}: {lines[at].strip()}"
        path.write_text("".join(lines[:at] + lines[at + 1 :]))
        runs = record(folder)
        path.write_text(text)
        if runs is None or steps(runs) == intact:
            print(f"{name}: {'does not build, or does not end' if runs is None else 'changes no step'}", flush=True)
            continue
        reason = next((reason for reason in (reject(run)[0] for run in runs) if reason), None)
        is_killed = any(run.end not in ("done", "given up") for run in runs)
        counts[is_killed, reason is not None] += 1
        print(f"{name}: {'a violation; ' if is_killed else ''}{reason or 'ACCEPTED'}", flush=True)
    rejected = counts[True, True] + counts[False, True]
    print(f"{rejected} of {counts.total()} mutants that change a step are rejected")
    print(f"{counts[True, True]} of {counts[True, True] + counts[True, False]} mutants with a violation in these runs are rejected")
    return 1 if rejected < 0.95 * counts.total() or counts[True, False] else 0


if __name__ == "__main__":
    sys.exit(main())
