"""The table of rules in the book: what fails without each rule, in the proof, under loom, and on the hostile machine."""

from __future__ import annotations

from .queries import Failure
from .rules import ROOT, axiomatic, hostile, kinds, loom
from .system import System

PAGE = ROOT / "docs/proof-rules.md"
HEAD = """# What fails without each rule

The table is for readers of [the proof](proof.md) and of [the rules](../crates/shootdown/src/base/rules.rs). For each rule of
the engine, it names the step of a model that does not keep the model's invariant without the rule, the loom program
that fails, and the hardware on which the hostile machine finds a violation. `cargo xtask test proof` generates it and
compares. {modelled} of {all} rules are hypotheses of a step, and the proof fails without each of them.

| rule | in the proof: mechanism, step, and the part of the invariant that it breaks | loom | hostile machine |
|---|---|---|---|
"""


def table(systems: list[System], needed: dict[str, list[tuple[str, Failure]]], write: bool) -> list[str]:
    """Writes the table, or compares the page with it."""
    rows = []
    for rule in kinds():
        places = needed.get(rule, [])
        proof = "; ".join(f"{mechanism}: *{failure.step}* breaks “{failure.part}”" for mechanism, failure in places[:1])
        others = sorted({mechanism for mechanism, _ in places[1:]})
        proof += f" (also in {', '.join(others)})" if others else ""
        program = f"`{loom()[rule]}`" if rule in loom() else "axiomatic checker" if rule in axiomatic() else "–"
        rows.append(f"| `{rule}` | {proof} | {program} | {hostile().get(rule, '–')} |")
    modelled = len({rule for system in systems for rule in system.rules()})
    text = HEAD.format(modelled=modelled, all=len(kinds())) + "\n".join(rows) + "\n"
    if write:
        PAGE.write_text(text)
        return []
    same = PAGE.exists() and PAGE.read_text() == text
    return [] if same else [f"{PAGE.relative_to(ROOT)} is not what the proof finds; write it with --write"]
