"""Expressions, sorts and states in three forms.

The transition relation of a mechanism is written once. Its expressions are

- *symbolic*: z3 terms over uninterpreted sorts of any size, for the proof;
- *bounded*: z3 terms over a few elements of each sort, with quantifiers written out, for small models;
- *concrete*: Python values, for runs of a finite instance and for recorded runs of the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import z3

Expr = Any


@dataclass(frozen=True)
class Sort:
    """The CPUs, the flushes, … of a mechanism: any number of elements."""

    name: str


TIME = Sort("Time")
"""The integers: times of messages, generations, epochs, counts."""
CODE = Sort("Code")
"""One of a few named integers."""
BOOL = Sort("Bool")


def And(*parts: Expr) -> Expr:
    rest = [part for part in parts if part is not True]
    if any(part is False for part in rest):
        return False
    return True if not rest else rest[0] if len(rest) == 1 else z3.And(*rest)


def Or(*parts: Expr) -> Expr:
    rest = [part for part in parts if part is not False]
    if any(part is True for part in rest):
        return True
    return False if not rest else rest[0] if len(rest) == 1 else z3.Or(*rest)


def Not(part: Expr) -> Expr:
    return not part if isinstance(part, bool) else z3.Not(part)


def Implies(if_: Expr, then: Expr) -> Expr:
    return Or(Not(if_), then)


def If(condition: Expr, then: Expr, otherwise: Expr) -> Expr:
    if isinstance(condition, bool):
        return then if condition else otherwise
    if isinstance(then, bool) and isinstance(otherwise, bool):
        return condition if then and not otherwise else z3.If(condition, z3.BoolVal(then), z3.BoolVal(otherwise))
    return z3.If(condition, then, otherwise)


def later(one: Expr, other: Expr) -> Expr:
    """The larger of two times."""
    return If(one >= other, one, other)


def within(low: Expr, value: Expr, high: Expr) -> Expr:
    return And(low <= value, value <= high)


def one_of(value: Expr, *values: Expr) -> Expr:
    return Or(*(value == it for it in values))


def conjuncts(part: Expr) -> list[Expr]:
    """The parts of a conjunction, each of which is a query of its own."""
    if isinstance(part, z3.ExprRef) and z3.is_and(part):
        return [it for child in part.children() for it in conjuncts(child)]
    return [part]


@dataclass(frozen=True)
class Field:
    """A function of the state, from the elements of sorts to a value."""

    name: str
    args: tuple[Sort, ...]
    result: Sort


class State:
    """The fields of a state. A field without arguments is a value, any other one a function."""

    def __init__(self, fields: dict[str, Field]) -> None:
        self.fields = fields

    def read(self, field: Field, args: tuple[Expr, ...]) -> Expr:
        raise NotImplementedError

    def elements(self, sort: Sort) -> Iterable[Expr] | None:
        """The elements of a sort, or `None` if there is any number of them."""
        raise NotImplementedError

    def sort(self, sort: Sort) -> z3.SortRef:
        """The solver's sort."""
        return z3_sort(sort)

    def __getattr__(self, name: str) -> Any:
        field = self.__dict__["fields"].get(name)
        if field is None:
            raise AttributeError(name)
        if not field.args:
            return self.read(field, ())
        return lambda *args: self.read(field, args)

    def forall(self, holds: Callable[..., Expr], *sorts: Sort) -> Expr:
        return self._quantify(holds, sorts, And, z3.ForAll)

    def exists(self, holds: Callable[..., Expr], *sorts: Sort) -> Expr:
        return self._quantify(holds, sorts, Or, z3.Exists)

    def _quantify(self, holds: Callable[..., Expr], sorts: tuple[Sort, ...], joined: Any, quantifier: Any) -> Expr:
        if not sorts:
            return holds()
        first, rest = sorts[0], sorts[1:]
        known = self.elements(first)
        if known is not None:
            return joined(*(self._quantify(lambda *more, it=it: holds(it, *more), rest, joined, quantifier) for it in known))
        bound = [fresh(sort) for sort in sorts]
        body = holds(*bound)
        return body if isinstance(body, bool) else quantifier(bound, body)


_count = 0


def z3_sort(sort: Sort) -> z3.SortRef:
    if sort in (TIME, CODE):
        return z3.IntSort()
    return z3.BoolSort() if sort == BOOL else z3.DeclareSort(sort.name)


def fresh(sort: Sort, name: str | None = None) -> z3.ExprRef:
    global _count
    _count += 1
    return z3.Const(f"{name or sort.name.lower()}!{_count}", z3_sort(sort))


def forget_names() -> None:
    """Lets names begin anew, so that a query does not depend on those before it."""
    global _count
    _count = 0


class Symbolic(State):
    """Any state, of sorts of any size."""

    def read(self, field: Field, args: tuple[Expr, ...]) -> Expr:
        if not field.args:
            return z3.Const(field.name, self.sort(field.result))
        return z3.Function(field.name, *map(self.sort, field.args), self.sort(field.result))(*args)

    def elements(self, sort: Sort) -> Iterable[Expr] | None:
        return None


class Bounded(Symbolic):
    """Any state of a few elements of each sort, which are numbers from 0."""

    def __init__(self, fields: dict[str, Field], sizes: dict[Sort, int]) -> None:
        super().__init__(fields)
        self.sizes = sizes

    def sort(self, sort: Sort) -> z3.SortRef:
        return z3.BoolSort() if sort == BOOL else z3.IntSort()

    def elements(self, sort: Sort) -> Iterable[Expr]:
        return (False, True) if sort == BOOL else range(self.sizes.get(sort, 2))

    def bounds(self) -> list[Expr]:
        """Each value is an element of its sort. There is room for one more time."""
        found = []
        for field in self.fields.values():
            if field.result not in (BOOL, CODE):
                below = self.sizes[field.result] - (1 if field.result == TIME else 0)
                found.append(self.forall(lambda *args, f=field, n=below: And(self.read(f, args) >= 0, self.read(f, args) < n),
                    *field.args))
        return found


HORIZON = 14
"""The last time of a concrete state."""


class Concrete(State):
    """One state. Fields are 0 or `False` until they are set."""

    def __init__(self, fields: dict[str, Field], sizes: dict[Sort, int]) -> None:
        super().__init__(fields)
        self.sizes = sizes
        self.values: dict[tuple, Expr] = {}
        self.highest = 0

    def read(self, field: Field, args: tuple[Expr, ...]) -> Expr:
        return self.values.get((field.name, *args), False if field.result == BOOL else 0)

    def elements(self, sort: Sort) -> Iterable[Expr]:
        if sort == TIME:
            return range(self.latest() + 2)
        return (False, True) if sort == BOOL else range(self.sizes.get(sort, 2))

    def latest(self) -> int:
        """The highest time so far."""
        return self.highest

    def all_elements(self, sort: Sort) -> Iterable[Expr]:
        """The elements, with all times that this state may reach."""
        return range(HORIZON + 2) if sort == TIME else self.elements(sort)

    def write(self, place: tuple, value: Expr) -> None:
        self.values[place] = value
        if self.fields[place[0]].result == TIME:
            self.highest = max(self.highest, value)


ALL: Any = type("All", (), {"__repr__": lambda _: "ALL"})()
"""Stands for every element in the arguments of an update."""


@dataclass(frozen=True)
class Update:
    """New values of a field: where the arguments match, and `where` holds of those that are `ALL`."""

    args: tuple[Expr, ...]
    value: Any
    where: Callable[..., Expr] | None

    def at(self, args: tuple[Expr, ...]) -> tuple[Expr, Callable[[], Expr]]:
        """Whether the update changes the value for these arguments, and the new value."""
        free = [arg for arg, place in zip(args, self.args, strict=True) if place is ALL]
        same = And(*(arg == place for arg, place in zip(args, self.args, strict=True) if place is not ALL))
        condition = And(same, self.where(*free)) if self.where and same is not False else same
        return condition, lambda: self.value(*free) if callable(self.value) else self.value


def successor(state: State, updates: dict[str, list[Update]]) -> Callable[[Expr], Expr]:
    """What an expression of the state becomes after the updates of a step: each changed field is replaced by its value then."""
    pairs = []
    for name, changes in updates.items():
        field = state.fields[name]
        args = tuple(z3.Var(at, state.sort(sort)) for at, sort in enumerate(field.args))
        before = value = state.read(field, args)
        for change in changes:
            condition, new = change.at(args)
            value = If(condition, new(), value)
        if not isinstance(value, z3.ExprRef):
            value = z3.BoolVal(value) if isinstance(value, bool) else z3.IntVal(value)
        assert not captures(value), name
        pairs.append((before.decl(), value))
    return lambda expr: z3.substitute_funs(expr, *pairs) if isinstance(expr, z3.ExprRef) else expr


def captures(expr: z3.ExprRef, bound: int = 0) -> bool:
    """Whether a quantifier in the new value of a field has an argument of the field, which it would take for its own."""
    if z3.is_var(expr):
        return 0 < bound <= z3.get_var_index(expr)
    if z3.is_quantifier(expr):
        return captures(expr.body(), bound + expr.num_vars())
    return any(captures(child, bound) for child in expr.children())
