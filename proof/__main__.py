"""Proves the mechanisms, checks that each rule is needed and that recorded runs are runs of the models.

    python -m proof [--runs FILE] [--write] [--only MECHANISM] [--without RULE] [--seed NUMBER]
    python -m proof --certify
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

from . import report
from .bridge import check as bridge
from .explore import explore
from .mechanisms import build_all
from .queries import Effort, Failure, advance, begin, induct, without_each
from .rules import kinds
from .system import System


@dataclass
class Proved:
    """What was found of a mechanism: what is wrong, and the steps that fail without each rule."""

    wrong: list[str]
    without: dict[str, Failure | None]
    effort: Effort


def prove(name: str, seed: int) -> Proved:
    """Checks one mechanism."""
    system = next(it for it in build_all() if it.name == name)
    began, effort = time.process_time(), Effort()
    failures = begin(system, effort) + induct(system, list(system.steps.values()), effort, seed)
    failures += advance(system, system.progress, effort) if system.progress else []
    wrong = [f"{name}: `{it.step}` does not keep \"{it.part}\" ({it.result})" for it in failures]
    reached = explore(system)
    wrong += [f"{name}: no run reaches `{step}`" for step in reached.missing()]
    if reached.failed:
        wrong.append(f"{name}: \"{reached.failed}\" fails in a run: {', '.join(reached.run)}")
    without = without_each(system, effort)
    counts = f"{len(system.steps)} steps, {len(system.invariant)} parts of the invariant, {len(system.rules())} rules"
    counts += f", {effort.queries} queries, {reached.states} states"
    print(f"{name}: {counts}, {time.process_time() - began:.1f} s; hardest {effort}", flush=True)
    return Proved(wrong, without, effort)


def alone(name: str, seed: int) -> Proved:
    """Checks a mechanism in a process of its own, so that the solver's verdict does not depend on those before it."""
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        return pool.submit(prove, name, seed).result()


def check_rules(systems: list[System], needed: dict[str, list[tuple[str, Failure]]]) -> list[str]:
    named = {rule for system in systems for rule in system.rules()}
    wrong = [f"{rule} is not a rule of the engine" for rule in sorted(named - set(kinds()))]
    wrong += [f"{rule} is not modelled" for rule in kinds() if rule not in named]
    return wrong + [f"no step fails without {rule}" for rule in sorted(named) if not needed.get(rule)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="proof", description=__doc__)
    parser.add_argument("--runs", type=Path, help="recorded runs of the engine")
    parser.add_argument("--write", action="store_true", help="write docs/data/rules.csv")
    parser.add_argument("--only", help="prove this mechanism only")
    parser.add_argument("--without", help="print the small models that fail without this rule")
    parser.add_argument("--seed", type=int, default=0, help="let the solver try in another order")
    parser.add_argument("--certify", action="store_true", help="prove some mechanisms with another solver, whose proofs are checked")
    options = parser.parse_args()
    if options.certify:
        from .certify import certify_all
        return finish(certify_all(build_all()))
    effort, needed = Effort(), {}
    systems = [system for system in build_all() if options.only in (None, system.name)]
    wrong = []
    for system in systems:
        proved = alone(system.name, options.seed)
        wrong += proved.wrong
        effort.include(proved.effort)
        for rule, failure in proved.without.items():
            needed.setdefault(rule, []).extend([(system.name, failure)] if failure else [])
    for mechanism, failure in needed.get(options.without, ()):
        print(f"without {options.without}, in {mechanism}, `{failure.step}` does not keep \"{failure.part}\":")
        print("\n".join(f"    {line}" for line in failure.model))
    if options.only is None:
        wrong += check_rules(systems, needed) + report.table(needed, options.write)
    if options.runs:
        wrong += bridge.check(options.runs)
    used = sum(getrusage(of).ru_utime + getrusage(of).ru_stime for of in (RUSAGE_SELF, RUSAGE_CHILDREN))
    print(f"{effort.queries} queries, the hardest {effort}; {used:.1f} s of CPU")
    return finish(wrong)


def finish(wrong: list[str]) -> int:
    for it in wrong:
        print(f"error: {it}")
    return 1 if wrong else 0


sys.exit(main())
