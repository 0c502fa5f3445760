"""Proves the mechanisms, checks that each rule is needed and that recorded runs are runs of the models.

    python -m proof [--runs FILE] [--write] [--only MECHANISM] [--without RULE]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from . import report
from .bridge import check as bridge
from .explore import explore
from .mechanisms import UNMODELLED, build_all
from .queries import Failure, Timing, advance, begin, induct, without_each
from .rules import kinds
from .system import System


def prove(system: System, timing: Timing, needed: dict[str, list[tuple[str, Failure]]]) -> list[str]:
    """Checks one mechanism. Returns what is wrong, and adds the steps that fail without each rule."""
    began, queries = time.process_time(), timing.queries
    failures = begin(system, timing) + induct(system, list(system.steps.values()), timing)
    failures += advance(system, system.progress, timing) if system.progress else []
    wrong = [f"{system.name}: `{it.step}` does not keep \"{it.part}\" ({it.result})" for it in failures]
    reached = explore(system)
    wrong += [f"{system.name}: no run reaches `{step}`" for step in reached.missing()]
    if reached.failed:
        wrong.append(f"{system.name}: \"{reached.failed}\" fails in a run: {', '.join(reached.run)}")
    for rule, failure in without_each(system, timing).items():
        if failure:
            needed.setdefault(rule, []).append((system.name, failure))
    print(f"{system.name}: {len(system.steps)} steps, {len(system.invariant)} parts of the invariant, {len(system.rules())} rules, {timing.queries - queries} queries, {reached.states} states, {time.process_time() - began:.1f} s", flush=True)
    return wrong


def check_rules(systems: list[System], needed: dict[str, list[tuple[str, Failure]]]) -> list[str]:
    named = {rule for system in systems for rule in system.rules()}
    wrong = [f"{rule} is not a rule of the engine" for rule in sorted((named | set(UNMODELLED)) - set(kinds()))]
    wrong += [f"{rule} is neither modelled nor listed with a reason" for rule in kinds() if rule not in named | set(UNMODELLED)]
    wrong += [f"{rule} is modelled, and listed as not modelled" for rule in sorted(named & set(UNMODELLED))]
    return wrong + [f"no step fails without {rule}" for rule in sorted(named - set(needed))]


def main() -> int:
    parser = argparse.ArgumentParser(prog="proof", description=__doc__)
    parser.add_argument("--runs", type=Path, help="recorded runs of the engine")
    parser.add_argument("--write", action="store_true", help="write the table in the book")
    parser.add_argument("--only", help="prove this mechanism only")
    parser.add_argument("--without", help="print the small models that fail without this rule")
    options = parser.parse_args()
    began, timing, needed = time.process_time(), Timing(), {}
    systems = [system for system in build_all() if options.only in (None, system.name)]
    wrong = [it for system in systems for it in prove(system, timing, needed)]
    for mechanism, failure in needed.get(options.without, ()):
        print(f"without {options.without}, in {mechanism}, `{failure.step}` does not keep \"{failure.part}\":")
        print("\n".join(f"    {line}" for line in failure.model))
    if options.only is None:
        wrong += check_rules(systems, needed) + report.table(systems, needed, options.write)
    if options.runs:
        wrong += bridge.check(options.runs)
    print(f"{timing.queries} queries, the slowest {timing.slowest_s:.2f} s ({timing.slowest}); {time.process_time() - began:.1f} s of CPU")
    for it in wrong:
        print(f"error: {it}")
    return 1 if wrong else 0


sys.exit(main())
