"""Certified proofs: cvc5 proves the queries again, and its checker verifies each step of each proof. Then z3 need not be right."""

from __future__ import annotations

import time

import cvc5
import z3

from .logic import Expr, Not
from .queries import Asker, Effort, begin, induct
from .system import System

MECHANISMS = ("targeting", "bell")
LIMIT_MS = 20_000


class Certifier(Asker):
    """Asks cvc5 for a proof that is checked."""

    def ask(self, goal: Expr, name: str) -> tuple[str, z3.ModelRef | None]:
        self.solver.push()
        self.assume([Not(goal)])
        text, began = self.solver.to_smt2(), time.process_time()
        self.solver.pop()
        result = certify(text)
        if result != "unsat":
            # It has not found which instances of quantifiers matter, and enumerates them.
            result = certify(text, {"enum-inst": "true"})
        self.effort.add(0, time.process_time() - began, f"{self.system.name}: {name}")
        return result, None


def certify(text: str, more: dict[str, str] | None = None) -> str:
    """The result of a query. If it is `unsat`, the checker has accepted the proof."""
    solver = cvc5.Solver(cvc5.TermManager())
    solver.setLogic("ALL")
    options = {"produce-proofs": "true", "check-proofs": "true", "proof-check": "eager", "tlimit-per": str(LIMIT_MS)}
    for option, value in (options | (more or {})).items():
        solver.setOption(option, value)
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, text, "query")
    results = []
    while not (command := parser.nextCommand()).isNull():
        results.append(command.invoke(solver, parser.getSymbolManager()).strip())
    return results[-1]


def certify_all(systems: list[System]) -> list[str]:
    wrong = []
    for system in (it for it in systems if it.name in MECHANISMS):
        effort, began = Effort(), time.process_time()
        failures = begin(system, effort, Certifier) + induct(system, list(system.steps.values()), effort, ask=Certifier)
        wrong += [f"{system.name}: `{it.step}` does not keep \"{it.part}\" with a proof ({it.result})" for it in failures]
        print(f"{system.name}: {effort.queries} queries, {len(failures)} without a proof, {time.process_time() - began:.1f} s", flush=True)
    return wrong
