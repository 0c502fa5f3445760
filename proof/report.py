"""The table of rules: what fails without each rule, in the proof, under loom, and on the hostile machine."""

from __future__ import annotations

import csv
import io

from .queries import Failure
from .rules import ROOT, axiomatic, hostile, kinds, loom

TABLE = ROOT / "docs/data/rules.csv"
# `step` and `breaks` are of the first mechanism, and `also in` names the others.
HEAD = ["rule", "mechanism", "step", "breaks", "also in", "program", "hostile machine"]


def table(needed: dict[str, list[tuple[str, Failure]]], write: bool) -> list[str]:
    """Writes the table, or compares the file with it."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(HEAD)
    for rule in kinds():
        places = needed.get(rule, [])
        first = [[mechanism, failure.step, failure.part] for mechanism, failure in places[:1]]
        others = sorted({mechanism for mechanism, _ in places[1:]})
        program = loom()[rule] if rule in loom() else "axiomatic checker" if rule in axiomatic() else ""
        rows.writerow([rule, *(first or [[""] * 3])[0], " ".join(others), program, hostile().get(rule, "")])
    if write:
        TABLE.write_text(text.getvalue())
        return []
    same = TABLE.exists() and TABLE.read_text() == text.getvalue()
    return [] if same else [f"{TABLE.relative_to(ROOT)} is not what the proof finds; write it with --write"]
