"""Checks recorded runs: all of the intact engine are accepted, and those of an engine that breaks a rule are rejected."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from .contracts import Contracts
from .events import Run, read
from .replay import is_replayed, replay

SPACES = 2
"""Spaces for which a run is replayed: the first ones."""
SHARE_MIN = 0.95


def reject(run: Run) -> tuple[str | None, int]:
    """The reason why a run is not one of the models', and the number of the models' steps that it takes."""
    contracts, steps = Contracts(run), 0
    for event in run.events:
        wrong = contracts.see(event)
        if wrong:
            return wrong, steps
    wrong = contracts.finish() if run.end == "done" else None
    if not wrong and is_replayed(run):
        for space in range(SPACES):
            taken, wrong = replay(run, space)
            steps += taken
            if wrong:
                break
    return wrong, steps


def check(path: Path) -> list[str]:
    wrong, counts, kept, steps = [], Counter(), set(), 0
    for run in read(path):
        reason, taken = reject(run)
        if run.rule == "intact":
            counts["intact"] += 1
            steps += taken
            if reason:
                wrong.append(f"a run of the intact engine is rejected: {run.name}: {reason}")
        else:
            counts["broken"] += 1
            counts["rejected"] += reason is not None
            counts["events"] += len(run.events)
            if reason is None:
                kept.add(run.rule)
    share = counts["rejected"] / max(counts["broken"], 1)
    print(f"bridge: {counts['intact']} runs of the intact engine, with {steps} steps of the models of targeting")
    rejected = f"{counts['rejected']} of {counts['broken']} runs with a broken rule rejected ({100 * share:.1f} %)"
    print(f"bridge: {rejected}; accepted: {', '.join(sorted(kept)) or 'none'}")
    if not counts["intact"] or share < SHARE_MIN:
        wrong.append(f"the bridge rejects {100 * share:.1f} % of the runs with a broken rule")
    return wrong
