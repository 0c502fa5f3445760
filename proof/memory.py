"""The memory model: words with histories, and views.

This is C++20's memory model without load buffering (RC11), as a machine that takes steps. Each store adds a message to
its word. A thread may read any message that is not older than its *view* of the word: a store buffer that has not
drained, or a load that executed early, is a thread that reads an old message. A store with release also carries the
thread's views of other words, and a load with acquire adds them to its own. Full fences exchange views with one shared
view. A view that is not declared is not carried, which allows more behaviours.
"""

from __future__ import annotations

from collections.abc import Callable

from .logic import ALL, TIME, Expr, Sort, later
from .system import Place, System, Taken


class Word:
    """A shared word, one for each element of `index`. With no values, its value is the number of its stores."""

    def __init__(self, system: System, name: str, index: tuple[Sort, ...] = (), values: dict[str, Sort] | None = None,
        carries: tuple[Word, ...] = (), fenced: bool = False) -> None:
        self.name, self.index, self.values, self.carries, self.fenced = name, index, values or {}, carries, fenced
        system.field(index, {TIME: f"{name}_last"})
        for value, sort in self.values.items():
            system.field((*index, TIME), {sort: f"{name}_{value}"})
        for word in carries:
            system.field((*index, TIME, *word.index), {TIME: f"{name}_has_{word.name}"})
        if fenced:
            system.field(index, {TIME: f"S_{name}"})

    def last(self, x: Taken, *at: Expr) -> Expr:
        return getattr(x, f"{self.name}_last") if not self.index else getattr(x, f"{self.name}_last")(*at)

    def get(self, x: Taken, value: str, *at: Expr) -> Expr:
        """A value of the message at an index and time."""
        return getattr(x, f"{self.name}_{value}")(*at)


def append(x: Taken, word: str, at: tuple[Expr, ...], **values: Expr) -> Expr:
    """Adds a message without views to a word, and returns its time."""
    time = getattr(x, f"{word}_last")(*at) + 1 if at else getattr(x, f"{word}_last") + 1
    x.set(f"{word}_last", *at, to=time)
    x.put(*at, time, **{f"{word}_{name}": value for name, value in values.items()})
    return time


def changes_tables(m: System, name: str, publishes: bool = True, **params: Sort | Place) -> None:
    """Declares the first step of a flush, which changes the page tables. A later one may publish them."""

    @m.step(name, **params)
    def _(x: Taken, f: Expr) -> None:
        time = append(x, "tables", ())
        x.put(f, fv=time, **({"flush_tables": time} if publishes else {}))


class Thread:
    """The threads of a sort, with their views of words."""

    def __init__(self, system: System, name: str, sort: Sort, sees: tuple[Word, ...]) -> None:
        self.name, self.sort, self.sees = name, sort, sees
        for word in sees:
            system.field((sort, *word.index), {TIME: f"{name}_{word.name}"})

    def view(self, x: Taken, me: Expr, word: Word, *at: Expr) -> Expr:
        return getattr(x, f"{self.name}_{word.name}")(me, *at) if word in self.sees else 0

    def load(self, x: Taken, me: Expr, word: Word, at: tuple[Expr, ...], time: Expr, acquire: bool) -> None:
        """Reads the message of a time."""
        x.require(self.view(x, me, word, *at) <= time, time <= word.last(x, *at))
        if word in self.sees:
            x.set(f"{self.name}_{word.name}", me, *at, to=time)
        if acquire:
            self.join(x, me, word, at, time)

    def join(self, x: Taken, me: Expr, word: Word, at: tuple[Expr, ...], time: Expr) -> None:
        for carried in word.carries:
            if carried in self.sees:
                x.set(f"{self.name}_{carried.name}", me, *(ALL for _ in carried.index),
                    to=lambda *i, w=carried: later(self.view(x, me, w, *i), word.get(x, f"has_{w.name}", *at, time, *i)))

    def store(self, x: Taken, me: Expr, word: Word, at: tuple[Expr, ...], release: bool, **values: Expr) -> None:
        """Adds a message, after all others."""
        self._add(x, me, word, at, release, values, lambda _, __: 0)

    def modify(self, x: Taken, me: Expr, word: Word, at: tuple[Expr, ...], acquire: bool, release: bool, **values: Expr) -> None:
        """Reads the last message and adds the next one, which continues its release sequence."""
        last = word.last(x, *at)
        if acquire:
            self.join(x, me, word, at, last)
        self._add(x, me, word, at, release, values, lambda w, i: word.get(x, f"has_{w.name}", *at, last, *i))

    def _add(self, x: Taken, me: Expr, word: Word, at: tuple[Expr, ...], release: bool, values: dict[str, Expr],
        before: Callable) -> None:
        assert set(values) == set(word.values), (word.name, values)
        time = append(x, word.name, at, **values)
        for carried in word.carries:
            x.set(f"{word.name}_has_{carried.name}", *at, time, *(ALL for _ in carried.index),
                to=lambda *i, w=carried: later(before(w, i), self.view(x, me, w, *i)) if release else before(w, i))
        if word in self.sees:
            x.set(f"{self.name}_{word.name}", me, *at, to=time)

    def fence_step(self, m: System, name: str, rule: str, *relies: str, own: Word | None = None, **params: Sort | Place) -> None:
        """Declares a step that is a full fence by a rule. The threads store to `own`, each to its element, and have it in view."""

        @m.step(name, *relies, **params)
        def _(x: Taken, **args: Expr) -> None:
            if x.obeys(rule):
                me, = args.values()
                self.fence(x, me)
                if own:
                    x.set(f"S_{own.name}", me, to=later(getattr(x, f"S_{own.name}")(me), own.last(x, me)))

    def load_step(self, m: System, name: str, word: Word, rule: str | None, to: str, **params: Sort | Place) -> None:
        """Declares a step that loads a word, with acquire by a rule, and keeps the time of the message in a field."""

        @m.step(name, **params)
        def _(x: Taken, **args: Expr) -> None:
            me, time = args.values()
            self.load(x, me, word, (), time, rule is not None and x.obeys(rule))
            x.set(to, me, to=time)

    def fence(self, x: Taken, me: Expr) -> None:
        """A full fence."""
        for word in self.sees:
            if word.fenced:
                def joined(*i: Expr, w: Word = word) -> Expr:
                    shared = getattr(x, f"S_{w.name}")
                    return later(self.view(x, me, w, *i), shared(*i) if w.index else shared)
                free = tuple(ALL for _ in word.index)
                x.set(f"{self.name}_{word.name}", me, *free, to=joined)
                x.set(f"S_{word.name}", *free, to=joined)
