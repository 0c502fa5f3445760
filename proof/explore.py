"""Runs of a finite instance: which steps are reachable, and whether the invariant holds in each state on the way."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from .logic import BOOL, HORIZON, TIME, Concrete, Expr, Sort
from .system import Step, System

RUNS, LENGTH, STATES_MIN, CHECKED = 400, 100, 200, 7
"""The largest number of runs, and of steps of each; states that are visited in any case; of so many states, one is checked."""


@dataclass
class Found:
    """What the runs have found."""

    taken: dict[str, int]
    failed: str | None = None
    run: list[str] = field(default_factory=list)
    states: int = 0

    def missing(self) -> list[str]:
        return [name for name, count in self.taken.items() if count == 0]


def explore(system: System, broken: frozenset[str] = frozenset(), seed: int = 1) -> Found:
    """Takes steps at random, those first that were taken least often, until every step was taken."""
    rng, found = random.Random(seed), Found({name: 0 for name in system.steps})
    routes = [list(route) for route in system.routes]
    for _ in range(RUNS):
        if not found.missing() and found.states >= STATES_MIN:
            break
        run_once(system, found, rng, broken, routes.pop() if routes else [])
        if found.failed:
            break
    return found


def run_once(system: System, found: Found, rng: random.Random, broken: frozenset[str], route: list) -> None:
    state, run = Concrete(system.fields, system.sizes), []
    for at in range(LENGTH):
        name, args = route[at] if at < len(route) and isinstance(route[at], tuple) else (route[at] if at < len(route) else "", {})
        steps = [system.steps[name]] if name else sorted(system.steps.values(),
            key=lambda step: (found.taken[step.name] + 3) * rng.random())
        step = advance(system, state, steps, args, rng, broken, 200 if name else 3)
        if step is None:
            return
        found.taken[step.name] += 1
        found.states += 1
        run.append(step.name)
        if found.states % CHECKED == 0 or at == LENGTH - 1:
            found.failed = next((name for name, body in system.invariant.items() if body(state) is not True), None)
            if found.failed:
                found.run = run
                return


def advance(system: System, state: Concrete, steps: list[Step], args: dict[str, Expr], rng: random.Random, broken: frozenset[str],
    tries: int) -> Step | None:
    """Takes one of the steps, the first that is possible with some arguments, and returns it."""
    if state.latest() >= HORIZON:
        return None
    for step in steps:
        for _ in range(tries):
            if system.take(state, step, {name: choose(state, sort, rng) for name, sort in step.params.items()} | args, broken):
                return step
    return None


def choose(state: Concrete, sort: Sort, rng: random.Random) -> Expr:
    if sort == BOOL:
        return rng.random() < 0.5
    return rng.choice((rng.randrange(state.latest() + 2), state.latest())) if sort == TIME else rng.randrange(state.sizes[sort])
