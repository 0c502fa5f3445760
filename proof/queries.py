"""The queries to the solver: each step keeps each part of the invariant, and without a rule a named step does not."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import z3

from .logic import BOOL, CODE, TIME, And, Bounded, Expr, Implies, Not, Or, Sort, State, Symbolic, conjuncts, forget_names, fresh, successor
from .system import Step, System, Taken

FIRST, LIMIT = 1_000_000, 20_000_000
"""A query that takes more of the solver's steps (z3's `rlimit`; some millions take a second) than the first number is asked
again, of a solver that has learned nothing from earlier queries. Beyond the second number, the result is `unknown`, which
fails. A limit in seconds would let the load of the host decide."""


@dataclass
class Failure:
    """A step that does not keep a part of the invariant, or of which the solver does not know."""

    step: str
    part: str
    result: str
    model: list[str] = field(default_factory=list)


@dataclass
class Effort:
    """Number of queries, and the one that took most of the solver's steps."""

    queries: int = 0
    most: int = 0
    seconds: float = 0.0
    hardest: str = ""

    def add(self, steps: int, seconds: float, name: str) -> None:
        self.queries += 1
        if steps > self.most:
            self.most, self.seconds, self.hardest = steps, seconds, name

    def include(self, other: Effort) -> None:
        self.add(other.most, other.seconds, other.hardest)
        self.queries += other.queries - 1

    def __str__(self) -> str:
        return f"{self.most / 1e6:.1f} million steps, {self.seconds:.1f} s ({self.hardest})"


class Asker:
    """Asks for a state in which everything assumed holds, and a goal does not."""

    def __init__(self, system: System, assumed: list[Expr], effort: Effort, seed: int = 0) -> None:
        self.system, self.effort, self.seed = system, effort, seed
        self.solver = self.solver_of(FIRST)
        self.assume(assumed)

    def solver_of(self, limit: int) -> z3.Solver:
        solver = z3.SimpleSolver()
        solver.set("rlimit", limit)
        solver.set("random_seed", self.seed)
        return solver

    def assume(self, assumed: list[Expr]) -> None:
        self.solver.add(*(part for part in assumed if part is not True))

    def ask(self, goal: Expr, name: str) -> tuple[str, z3.ModelRef | None]:
        self.solver.push()
        self.assume([Not(goal)])
        before, began, solver = self.steps(), time.process_time(), self.solver
        result = str(solver.check())
        if result == "unknown":
            solver = self.solver_of(LIMIT)
            solver.add(self.solver.assertions())
            result = str(solver.check())
        self.effort.add(self.steps() - before, time.process_time() - began, f"{self.system.name}: {name}")
        model = solver.model() if result == "sat" else None
        self.solver.pop()
        return result, model

    def steps(self) -> int:
        """The solver's steps so far, of all queries."""
        return self.solver.statistics().get_key_value("rlimit count")


def begin(system: System, effort: Effort, ask: type[Asker] = Asker) -> list[Failure]:
    """The initial state, in which every field is 0 or `False`, satisfies the invariant."""
    state = Symbolic(system.fields)
    fields = [f for f in system.fields.values() if f.result in (BOOL, CODE, TIME)]
    zero = [state.forall(lambda *args, f=f: state.read(f, args) == (False if f.result == BOOL else 0), *f.args) for f in fields]
    asker = ask(system, zero, effort)
    results = [(part, asker.ask(goal, "initial")[0]) for part,
        body in system.invariant.items() for goal in conjuncts(body(state))]
    known = {name: named(body, state) for name, body in (system.invariant | system.lemmas).items()}
    for name, (*using,) in system.uses.items():
        asker = ask(system, [known[part] for part in using or system.invariant], effort)
        results += [(name, asker.ask(goal, name)[0]) for goal in conjuncts(known[name])]
    return [Failure("the initial state", part, result) for part, result in results if result != "unsat"]


Goals = list[tuple[str, Expr]]


def parts(system: System, state: State) -> Goals:
    """The conjuncts of the invariant, each with the name of its part."""
    return [(part, it) for part, body in system.invariant.items() for it in conjuncts(named(body, state)) if it is not True]


def induct(
    system: System, steps: list[Step], effort: Effort, seed: int = 0, ask: type[Asker] = Asker
) -> list[Failure]:
    """The parts of the invariant that steps do not keep."""
    state = Symbolic(system.fields)
    goals = parts(system, state)
    known = goals + [(name, named(body, state)) for name, body in system.lemmas.items()]
    failures: list[Failure] = []
    for step in steps:
        taken, changed = take(system, step, state, goals)
        for part, group in itertools.groupby(changed, lambda it: it[0] if system.basis else ""):
            # A solver for each step: what it learns from one step misleads it in another.
            relies = {part, *system.basis, *step.relies} if system.basis else {name for name, _ in known}
            asker = ask(system, [it for name, it in known if name in relies] + taken.requires, effort, seed)
            asked = [(of, asker.ask(goal, step.name)[0]) for of, goal in group]
            failures += [Failure(step.name, of, result) for of, result in asked if result != "unsat"]
    return failures


def named(body: Callable[[State], Expr], state: State) -> Expr:
    """A part of the invariant, in which the names of variables depend on nothing else."""
    forget_names()
    return body(state)


def constants(step: Step, state: Symbolic) -> dict[str, Expr]:
    """The arguments of a step."""
    return {name: z3.Const(f"{name}!", state.sort(sort)) for name, sort in step.params.items()}


def take(system: System, step: Step, state: Symbolic, goals: Goals, broken: frozenset[str] = frozenset()) -> tuple[Taken, Goals]:
    """Takes a step. Returns the goals that it changes, as they are afterwards."""
    taken = Taken(state, broken)
    step.body(taken, **constants(step, state))
    after = successor(state, taken.updates)
    found = [(part, goal, after(goal)) for part, goal in goals]
    return taken, [(part, then) for part, goal, then in found if not (isinstance(goal, z3.ExprRef) and goal.eq(then))]


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


def advance(system: System, progress: Progress, effort: Effort) -> list[Failure]:
    """What waits comes to an end: some helpful step is the next one, is possible, stays so until it is taken, and lowers
    the rank. No step raises the rank."""
    state = Symbolic(system.fields)
    asker = Asker(system, [body(state) for body in system.invariant.values()], effort)
    who = [fresh(sort) for sort in progress.sorts]
    waits, rank = progress.waits(state, *who), progress.rank(state, *who)
    rank = z3.IntVal(rank) if isinstance(rank, int) else rank
    asker.assume([waits])
    results = [("no helpful step", asker.ask(Or(*(it.when(state, *who) for it in progress.helpful)), "progress")[0])]
    for it in progress.helpful:
        taken = Taken(state)
        system.steps[it.step].body(taken, **it.args(state, *who))
        after = successor(state, taken.updates)
        goal = Implies(it.when(state, *who), And(*taken.requires, Or(Not(after(waits)), after(rank) < rank)))
        results.append((f"`{it.step}` is not possible, or does not help", asker.ask(goal, it.step)[0]))
    for step in system.steps.values():
        taken = Taken(state)
        step.body(taken, **constants(step, state))
        after = successor(state, taken.updates)
        stays = And(*(Implies(it.when(state, *who), after(it.when(state, *who))) for it in progress.helpful))
        asker.solver.push()
        asker.assume(taken.requires)
        goal = Or(Not(after(waits)), after(rank) < rank, And(after(rank) == rank, stays))
        results.append((f"`{step.name}` raises the rank", asker.ask(goal, step.name)[0]))
        asker.solver.pop()
    return [Failure("progress", part, result) for part, result in results if result != "unsat"]


def without_each(system: System, effort: Effort) -> dict[str, Failure | None]:
    """For each rule that steps name, the step that fails without it, with a small model; `None` if no step does."""
    sizes, rules = system.sizes | system.small, system.rules()
    found: dict[str, Failure | None] = dict.fromkeys(rules)
    # Few times first, which is quick, and gives the smallest models.
    for last in sorted({max(sizes.get(TIME, 0) - 2, 3), sizes.get(TIME, 3)}):
        state = Bounded(system.fields, sizes | {TIME: last})
        goals = parts(system, state)
        asker = Asker(system, [it for _, it in goals] + state.bounds(), effort)
        for rule in (rule for rule in rules if found[rule] is None):
            found[rule] = without(system, rule, rules[rule], asker, state, goals)
    return found


def without(system: System, rule: str, names: list[str], asker: Asker, state: Bounded, goals: Goals) -> Failure | None:
    for name in names:
        step = system.steps[name]
        taken, changed = take(system, step, state, goals, frozenset([rule]))
        asker.solver.push()
        asker.assume(taken.requires)
        args = zip(constants(step, state).values(), step.params.values(), strict=True)
        asker.assume([And(arg >= 0, arg < state.sizes[sort]) for arg, sort in args if sort != BOOL])
        found = asker.ask(And(*(goal for _, goal in changed)), name)[0] == "sat"
        # The first part that the step can break: the solver's first model may break any.
        for part, group in itertools.groupby(changed if found else [], lambda it: it[0]):
            result, model = asker.ask(And(*(goal for _, goal in group)), name)
            if model:
                break
        asker.solver.pop()
        if found:
            return Failure(name, part, result, describe(state, step, taken, model))
    return None


def describe(state: Bounded, step: Step, taken: Taken, model: z3.ModelRef) -> list[str]:
    """The values of a model that are not 0, and those that the step changes."""

    def value(expr: Expr) -> str:
        return str(model.eval(expr, model_completion=True))

    after = successor(state, taken.updates)
    lines = ["takes the step with " + ", ".join(f"{name} = {value(arg)}" for name, arg in constants(step, state).items())]
    for f in state.fields.values():
        for args in itertools.product(*map(state.elements, f.args)):
            expr = state.read(f, args)
            old, new = value(expr), value(after(expr))
            place = f"{f.name}({', '.join(map(str, args))})" if args else f.name
            if old != new:
                lines.append(f"{place}: {old} becomes {new}")
            elif old not in ("0", "False") and TIME not in f.args:
                lines.append(f"{place} = {old}")
    return lines
