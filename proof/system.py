"""A mechanism: its state, the steps of its threads, and its invariant."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .logic import ALL, BOOL, Concrete, Expr, Field, Not, Sort, State, Update, one_of


Place = int | set | tuple
"""A value of a field, values of which it has one, or either with the next value."""


class Step:
    """A step of a thread, which may happen at any time for any arguments, if what it requires holds."""

    def __init__(self, name: str, params: dict[str, Sort], body: Callable[..., None], relies: tuple[str, ...]) -> None:
        self.name, self.params, self.body, self.relies = name, params, body, relies


class Taken:
    """A step that is being taken: reads the state before, and collects requirements and updates."""

    def __init__(self, state: State, broken: frozenset[str] = frozenset()) -> None:
        self.before, self.broken = state, broken
        self.requires: list[Expr] = []
        self.updates: dict[str, list[Update]] = {}
        self.rules: set[str] = set()

    def __getattr__(self, name: str) -> Expr:
        return getattr(self.__dict__["before"], name)

    def require(self, *conditions: Expr) -> None:
        self.requires.extend(conditions)

    def obeys(self, rule: str) -> bool:
        """Whether the engine obeys this rule: the hypothesis of the step with the rule's name."""
        self.rules.add(rule)
        return rule not in self.broken

    def move(self, name: str, place: Place, *args: Expr) -> None:
        """Requires that a field is at a place, and sets it to the next one, if there is one."""
        before, *after = place if isinstance(place, tuple) else (place,)
        value = getattr(self, name)(*args) if args else getattr(self, name)
        if isinstance(before, bool):
            self.require(value if before else Not(value))
        else:
            self.require(one_of(value, *(sorted(before) if isinstance(before, set) else (before,))))
        for to in after:
            self.set(name, *args, to=to)

    def set(self, name: str, *args: Expr, to: Expr, where: Callable[..., Expr] | None = None) -> None:
        """Sets a field for these arguments, where `ALL` is any. `to` and `where` may be functions of those."""
        assert name in self.before.fields, name
        assert len(args) == len(self.before.fields[name].args), (name, args)
        self.updates.setdefault(name, []).append(Update(args, to, where))

    def put(self, *args: Expr, where: Callable[..., Expr] | None = None, **values: Expr) -> None:
        """Sets fields for the same arguments."""
        for name, value in values.items():
            self.set(name, *args, to=value, where=where)


@dataclass
class System:
    """A mechanism."""

    name: str
    fields: dict[str, Field] = field(default_factory=dict)
    steps: dict[str, Step] = field(default_factory=dict)
    invariant: dict[str, Callable[[State], Expr]] = field(default_factory=dict)
    lemmas: dict[str, Callable[[State], Expr]] = field(default_factory=dict)
    uses: dict[str, tuple[str, ...]] = field(default_factory=dict)
    safety: list[str] = field(default_factory=list)
    sizes: dict[Sort, int] = field(default_factory=dict)
    """Number of elements of each sort in runs of a finite instance, and in small models."""
    small: dict[Sort, int] = field(default_factory=dict)
    """Fewer elements, where small models need fewer."""
    basis: tuple[str, ...] = ()
    """Parts of the invariant that all steps rely on; none if each step may rely on all parts."""
    progress: Any = None
    """What must come to an end, for a mechanism that others wait for."""
    routes: list[list] = field(default_factory=list)
    """Beginnings of runs that reach what random steps rarely reach: names of steps, or names with arguments."""

    def field(self, args: tuple[Sort, ...], results: dict[Sort, str]) -> None:
        """Declares fields of the same arguments: the names of those of each type."""
        for result, names in results.items():
            for name in names.split():
                assert name not in self.fields, name
                self.fields[name] = Field(name, args, result)

    def step(self, name: str, *relies: str, **params: Sort | Place) -> Callable[[Callable[..., None]], None]:
        """Declares a step, with its parameters and the places of its thread: a field of the first parameters has a value, or
        one of a set of values, before the step, and the second of two values after it. If the system has a basis, the solver
        gets no more of the invariant than the basis, what the step relies on, and the part that it keeps."""
        places = {field: params.pop(field) for field in list(params) if not isinstance(params[field], Sort)}

        def add(body: Callable[..., None]) -> None:
            assert name not in self.steps, name
            inspect.signature(body).bind(None, **params)

            def taken(x: Taken, **args: Expr) -> None:
                args = {it: args[it] for it in params}
                for field, place in places.items():
                    x.move(field, place, *list(args.values())[: len(self.fields[field].args)])
                body(x, **args)

            self.steps[name] = Step(name, params, taken, relies)

        return add

    def moves(self, name: str, **params: Sort | Place) -> None:
        """Declares a step that changes its thread's place only."""
        self.step(name, **params)(lambda x, **_: None)

    def holds(self, name: str, safety: bool = False) -> Callable[[Callable[[State], Expr]], Callable[[State], Expr]]:
        """Declares a part of the invariant. The parts that are the mechanism's purpose are its safety."""

        def add(body: Callable[[State], Expr]) -> Callable[[State], Expr]:
            assert name not in self.invariant, name
            self.invariant[name] = body
            if safety:
                self.safety.append(name)
            return body

        return add

    def follows(self, name: str, *using: str, safety: bool = False) -> Callable[[Callable[[State], Expr]],
        Callable[[State], Expr]]:
        """Declares what follows from parts of the invariant, or from all, and so holds in every state. Steps may rely on it."""

        def add(body: Callable[[State], Expr]) -> Callable[[State], Expr]:
            assert name not in self.invariant | self.lemmas, name
            assert set(using) <= set(self.invariant | self.lemmas), using
            self.lemmas[name], self.uses[name] = body, using
            if safety:
                self.safety.append(name)
            return body

        return add

    def rules(self) -> dict[str, list[str]]:
        """The rules that steps name, each with these steps."""
        found: dict[str, list[str]] = {}
        for step in self.steps.values():
            taken = Taken(Concrete(self.fields, self.sizes))
            step.body(taken, **{name: False if sort == BOOL else 0 for name, sort in step.params.items()})
            for rule in sorted(taken.rules):
                found.setdefault(rule, []).append(step.name)
        return found

    def take(self, state: Concrete, step: Step, args: dict[str, Expr], broken: frozenset[str] = frozenset()) -> bool:
        """Takes a step of one state, if it is possible."""
        taken = Taken(state, broken)
        step.body(taken, **args)
        if not all(taken.requires):
            return False
        new = [item for name, updates in taken.updates.items() for update in updates for item in self._written(state, name,
            update)]
        for place, value in new:
            state.write(place, value)
        return True

    def _written(self, state: Concrete, name: str, update: Update) -> list[tuple[tuple, Expr]]:
        free = [sort for sort, arg in zip(self.fields[name].args, update.args, strict=True) if arg is ALL]
        found: list[tuple[tuple, Expr]] = []

        def write(chosen: list[Expr], rest: list[Sort]) -> None:
            if rest:
                for element in state.all_elements(rest[0]):
                    write([*chosen, element], rest[1:])
                return
            left = iter(chosen)
            args = tuple(next(left) if arg is ALL else arg for arg in update.args)
            condition, value = update.at(args)
            if condition:
                found.append(((name, *args), value()))

        write([], free)
        return found


__all__ = ["ALL", "BOOL", "Step", "System", "Taken"]
