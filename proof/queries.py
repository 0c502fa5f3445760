"""The queries to the solver: each step keeps each part of the invariant, and without a rule a named step does not."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import z3

from .logic import BOOL, CODE, TIME, After, And, Bounded, Expr, Implies, Not, Or, Sort, State, Symbolic, conjuncts, forget_names, fresh
from .system import Step, System, Taken

FIRST, RETRIES, RETRY = 20_000_000, 4, 20_000_000
"""A query that takes more of the solver's steps (z3's `rlimit`; some millions take a second) is asked again in other
orders. After that, the result is `unknown`, which fails. The largest proof takes 4 million. A limit in seconds would let
the load of the host decide."""


@dataclass
class Failure:
    """A step that does not keep a part of the invariant, or of which the solver does not know."""

    step: str
    part: str
    result: str
    model: list[str] = field(default_factory=list)


@dataclass
class Timing:
    """Number of queries, and the slowest."""

    queries: int = 0
    slowest_s: float = 0.0
    slowest: str = ""

    def add(self, name: str, began: float) -> None:
        self.queries += 1
        took = time.monotonic() - began
        if took > self.slowest_s:
            self.slowest_s, self.slowest = took, name


class Asker:
    """Asks for a state in which everything assumed holds, and a goal does not."""

    def __init__(self, system: System, assumed: list[Expr], timing: Timing) -> None:
        self.system, self.timing = system, timing
        self.solver = z3.SimpleSolver()
        self.solver.set("rlimit", FIRST)
        self.assume(assumed)

    def assume(self, assumed: list[Expr]) -> None:
        self.solver.add(*(part for part in assumed if part is not True))

    def ask(self, goal: Expr, name: str) -> tuple[str, z3.ModelRef | None]:
        self.solver.push()
        self.assume([Not(goal)])
        began = time.monotonic()
        result = str(self.solver.check())
        if result == "unknown":
            # What the solver has learned, and its order of trying, can mislead it.
            for seed in range(RETRIES):
                if result == "unknown":
                    other = z3.SimpleSolver()
                    other.set("rlimit", RETRY)
                    other.set("random_seed", seed + 1)
                    other.add(self.solver.assertions())
                    result = str(other.check())
        self.timing.add(f"{self.system.name}: {name}", began)
        model = self.solver.model() if result == "sat" and self.solver.check() == z3.sat else None
        self.solver.pop()
        return result, model


def begin(system: System, timing: Timing) -> list[Failure]:
    """The initial state, in which every field is 0 or `False`, satisfies the invariant."""
    state = Symbolic(system.fields)
    fields = [f for f in system.fields.values() if f.result in (BOOL, CODE, TIME)]
    zero = [state.forall(lambda *args, f=f: state.read(f, args) == (False if f.result == BOOL else 0), *f.args) for f in fields]
    asker = Asker(system, zero, timing)
    results = [(part, asker.ask(goal, "initial")[0]) for part, body in system.invariant.items() for goal in conjuncts(body(state))]
    known = {name: body(state) for name, body in (system.invariant | system.lemmas).items()}
    for name, (*using,) in system.uses.items():
        asker = Asker(system, [known[part] for part in using or system.invariant], timing)
        results += [(name, asker.ask(goal, name)[0]) for goal in conjuncts(known[name])]
    return [Failure("the initial state", part, result) for part, result in results if result != "unsat"]


def induct(system: System, steps: list[Step], timing: Timing, broken: frozenset[str] = frozenset(), state: State | None = None, first: bool = False) -> list[Failure]:
    """The parts of the invariant that steps do not keep. With `first`, stops at the first of them."""
    state = state or Symbolic(system.fields)
    parts = [named(body, state) for body in (system.invariant | system.lemmas).values()]
    failures: list[Failure] = []
    for step in steps:
        # A solver and names for each step: what it learns from one step misleads it in another.
        asker = Asker(system, parts + (state.bounds() if isinstance(state, Bounded) else []), timing)
        failures += induct_step(system, step, asker, broken, state, first)
        if failures and first:
            break
    return failures


def named(body: Callable[[State], Expr], state: State) -> Expr:
    """A part of the invariant, in which the names of variables depend on nothing else."""
    forget_names()
    return body(state)


def induct_step(system: System, step: Step, asker: Asker, broken: frozenset[str], state: State, first: bool) -> list[Failure]:
    is_bounded, failures = isinstance(state, Bounded), []
    taken = Taken(state, broken)
    args = {name: z3.Int(name) if is_bounded and sort != BOOL else fresh(sort, name) for name, sort in step.params.items()}
    step.body(taken, **args)
    asker.assume(taken.requires)
    if isinstance(state, Bounded):
        asker.assume([And(args[name] >= 0, args[name] < state.sizes[sort]) for name, sort in step.params.items() if sort != BOOL])
    after = After(state, taken.updates)
    for part, body in system.invariant.items():
        after.touched = False
        goals = named(body, after)
        if not after.touched:
            continue
        # A step does not touch what is the same before.
        before = [] if is_bounded else [it for it in conjuncts(named(body, state)) if isinstance(it, z3.ExprRef)]
        same = {it.get_id() for it in before}
        for goal in [goals] if is_bounded else [it for it in conjuncts(goals) if it is not True and it.get_id() not in same]:
            result, model = asker.ask(goal, step.name)
            if result != "unsat":
                shown = describe(system, state, args, after, model) if model and isinstance(state, Bounded) else []
                failures.append(Failure(step.name, part, result, shown))
                if first:
                    return failures
                break
    return failures


@dataclass
class Helpful:
    """A step that brings something nearer to its end: when it is the next one, and its arguments."""

    step: str
    when: Callable[..., Expr]
    args: Callable[..., dict[str, Expr]]


@dataclass
class Progress:
    """Something that must come to an end, and its rank: a number that falls until then."""

    waits: Callable[..., Expr]
    rank: Callable[..., Expr]
    sorts: tuple[Sort, ...]
    helpful: list[Helpful]


def advance(system: System, progress: Progress, timing: Timing) -> list[Failure]:
    """What waits comes to an end: some helpful step is the next one, is possible, stays so until it is taken, and lowers
    the rank. No step raises the rank."""
    state = Symbolic(system.fields)
    asker = Asker(system, [body(state) for body in system.invariant.values()], timing)
    who = [fresh(sort) for sort in progress.sorts]
    waits = progress.waits(state, *who)
    asker.assume([waits])
    results = [("no helpful step", asker.ask(Or(*(it.when(state, *who) for it in progress.helpful)), "progress")[0])]
    for it in progress.helpful:
        taken = Taken(state)
        system.steps[it.step].body(taken, **it.args(state, *who))
        after = After(state, taken.updates)
        falls = Or(Not(progress.waits(after, *who)), progress.rank(after, *who) < progress.rank(state, *who))
        goal = Implies(it.when(state, *who), And(*taken.requires, falls))
        results.append((f"`{it.step}` is not possible, or does not help", asker.ask(goal, it.step)[0]))
    for step in system.steps.values():
        taken = Taken(state)
        step.body(taken, **{name: fresh(sort, name) for name, sort in step.params.items()})
        after = After(state, taken.updates)
        before, then = progress.rank(state, *who), progress.rank(after, *who)
        stays = And(*(Implies(it.when(state, *who), it.when(after, *who)) for it in progress.helpful))
        asker.solver.push()
        asker.assume(taken.requires)
        results.append((f"`{step.name}` raises the rank", asker.ask(Or(Not(progress.waits(after, *who)), then < before, And(then == before, stays)), step.name)[0]))
        asker.solver.pop()
    return [Failure("progress", part, result) for part, result in results if result != "unsat"]


def without_each(system: System, timing: Timing) -> dict[str, Failure | None]:
    """For each rule that steps name, the step that fails without it, with a small model; `None` if no step does."""
    state = Bounded(system.fields, system.sizes | system.small)
    asker = Asker(system, [body(state) for body in system.invariant.values()] + state.bounds(), timing)
    return {rule: without(system, rule, names, asker, state) for rule, names in system.rules().items()}


def without(system: System, rule: str, names: list[str], asker: Asker, state: Bounded) -> Failure | None:
    for name in names:
        asker.solver.push()
        found = induct_step(system, system.steps[name], asker, frozenset([rule]), state, first=True)
        asker.solver.pop()
        if found and found[0].result == "sat":
            return found[0]
    return None


def describe(system: System, state: Bounded, args: dict[str, Expr], after: After, model: z3.ModelRef) -> list[str]:
    """The values of a model that are not 0, and those that the step changes."""

    def value(expr: Expr) -> str:
        found = model.eval(expr, model_completion=True) if isinstance(expr, z3.ExprRef) else expr
        return str(found)

    lines = ["takes the step with " + ", ".join(f"{name} = {value(arg)}" for name, arg in args.items())]
    for f in system.fields.values():
        def show(chosen: list[Expr], rest: tuple) -> None:
            if rest:
                for element in state.elements(rest[0]):
                    show([*chosen, element], rest[1:])
                return
            old, new = value(state.read(f, tuple(chosen))), value(after.read(f, tuple(chosen)))
            place = f"{f.name}({', '.join(map(str, chosen))})" if chosen else f.name
            if old != new:
                lines.append(f"{place}: {old} becomes {new}")
            elif old not in ("0", "False") and TIME not in f.args:
                lines.append(f"{place} = {old}")
        show([], f.args)
    return lines
