"""Counting without arithmetic over sets: a bijection between the members and the numbers up to their count."""

from __future__ import annotations

from .logic import BOOL, TIME, And, Expr, Implies, Sort, State
from .system import System, Taken


class Census:
    """A set of elements, whose count is known. A member that leaves gives its place to the last one."""

    def __init__(self, m: System, name: str, sort: Sort) -> None:
        self.name, self.sort = name, sort
        m.field((), {TIME: f"{name}_count"})
        m.field((sort,), {BOOL: f"{name}_has", TIME: f"{name}_place"})
        m.field((TIME,), {sort: f"{name}_at"})

    def _get(self, x: Taken | State, field: str) -> Expr:
        return getattr(x, f"{self.name}_{field}")

    def count(self, x: Taken | State) -> Expr:
        return self._get(x, "count")

    def has(self, x: Taken | State, member: Expr) -> Expr:
        return self._get(x, "has")(member)

    def add(self, x: Taken, member: Expr) -> None:
        place = self.count(x) + 1
        x.set(f"{self.name}_has", member, to=True)
        x.set(f"{self.name}_count", to=place)
        x.set(f"{self.name}_place", member, to=place)
        x.set(f"{self.name}_at", place, to=member)

    def remove(self, x: Taken, member: Expr) -> None:
        last = self._get(x, "at")(self.count(x))
        x.set(f"{self.name}_has", member, to=False)
        x.set(f"{self.name}_at", self._get(x, "place")(member), to=last)
        x.set(f"{self.name}_place", last, to=self._get(x, "place")(member))
        x.set(f"{self.name}_count", to=self.count(x) - 1)

    def invariant(self, s: State) -> Expr:
        count, has, place, at = (self._get(s, field) for field in ("count", "has", "place", "at"))
        return And(
            count >= 0,
            s.forall(lambda e: Implies(has(e), And(1 <= place(e), place(e) <= count, at(place(e)) == e)), self.sort),
            s.forall(lambda i: Implies(And(1 <= i, i <= count), And(has(at(i)), place(at(i)) == i)), TIME))
