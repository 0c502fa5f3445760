"""Runs of a finite instance: which steps are reachable, and whether the invariant holds in each state on the way."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from .logic import BOOL, HORIZON, TIME, Concrete, Expr, Sort
from .system import System

Chosen = tuple[str, dict[str, Expr]]


@dataclass
class Found:
    """What the runs have found."""

    taken: dict[str, int] = field(default_factory=dict)
    broken_part: str | None = None
    run: list[Chosen] = field(default_factory=list)
    states: int = 0


def explore(system: System, runs: int, length: int, broken: frozenset[str] = frozenset(), parts: list[str] | None = None, seed: int = 1) -> Found:
    """Takes steps at random, those first that were taken least often. Stops where a part of the invariant fails."""
    rng, found = random.Random(seed), Found({name: 0 for name in system.steps})
    parts = list(system.invariant) if parts is None else parts
    for _ in range(runs):
        state, run = Concrete(system.fields, system.sizes), []
        for _ in range(length):
            chosen = advance(system, state, rng, found.taken, broken)
            if chosen is None:
                break
            run.append(chosen)
            found.states += 1
            for name in parts:
                if system.invariant[name](state) is not True:
                    found.broken_part, found.run = name, run
                    return found
    return found


def advance(system: System, state: Concrete, rng: random.Random, taken: dict[str, int], broken: frozenset[str]) -> Chosen | None:
    """Takes one step, and returns it with its arguments."""
    steps = sorted(system.steps.values(), key=lambda step: (taken[step.name] + 3) * rng.random())
    for step in steps:
        for _ in range(3):
            args = {name: choose(state, sort, rng) for name, sort in step.params.items()}
            if room(state) and system.take(state, step, args, broken):
                taken[step.name] += 1
                return step.name, args
    return None


def choose(state: Concrete, sort: Sort, rng: random.Random) -> Expr:
    if sort == BOOL:
        return rng.random() < 0.5
    return rng.choice((rng.randrange(state.latest() + 2), state.latest())) if sort == TIME else rng.randrange(state.sizes[sort])


def room(state: Concrete) -> bool:
    """Whether every word has room for another message."""
    return state.latest() < HORIZON
