"""Waiters that sleep instead of polling: the CPU that leaves its bell wakes them.

The bell's rounds are those of `bell.py`. A waiter is in the kernel's list before it requests to be woken; the CPU that wakes
finds the waiters whose store to the list is in its view.
"""

from __future__ import annotations

from ..logic import ALL, BOOL, CODE, TIME, And, Expr, If, Implies, Not, Or, State
from ..memory import Thread, Word
from ..system import System, Taken
from .bell import CPU, FLUSH

NEW, RUNG, LISTED, ASLEEP, AWAKE = range(5)


def build() -> System:
    m = System("sleeping", sizes={CPU: 1, FLUSH: 2, TIME: 6})
    listed = Word(m, "listed", (FLUSH,))
    bell = Word(m, "bell", (CPU,), {"rung": BOOL, "att": BOOL, "gone": BOOL, "awaited": BOOL}, carries=(listed,))
    waiter, owner = Thread(m, "waiter", FLUSH, (listed,)), Thread(m, "owner", CPU, (listed,))
    m.field((FLUSH,), {CODE: "fs", CPU: "on"})

    def now(x: Taken | State, c: Expr, value: str) -> Expr:
        return getattr(x, f"bell_{value}")(c, x.bell_last(c))

    def change(x: Taken, thread: Thread, me: Expr, c: Expr, acquire: bool = False, release: bool = False, **changes: Expr) -> None:
        thread.modify(x, me, bell, (c,), acquire, release, **({value: now(x, c, value) for value in bell.values} | changes))

    def leave(x: Taken, c: Expr, rule: str, **changes: Expr) -> None:
        """The exchange finds the flag, and the owner wakes the waiters that it finds in the list."""
        was, last = now(x, c, "awaited"), x.bell_last(c)
        seen = lambda f: Or(x.owner_listed(c, f) >= 1, And(x.obeys(rule), x.bell_has_listed(c, last, f) >= 1))
        x.set("fs", ALL, to=AWAKE, where=lambda f: And(was, x.fs(f) == ASLEEP, x.on(f) == c, seen(f)))
        change(x, owner, c, c, acquire=x.obeys(rule), att=False, awaited=False, **changes)

    @m.step("flush: ring", f=FLUSH, c=CPU, fs=(NEW, RUNG))
    def _(x, f, c):
        x.require(Not(now(x, c, "gone")))
        change(x, waiter, f, c, rung=True)
        x.put(f, on=c)

    @m.step("wait: enter the list", f=FLUSH, fs=(RUNG, LISTED))
    def _(x, f):
        waiter.store(x, f, listed, (f,), release=False)

    @m.step("wait: request to be woken", f=FLUSH, c=CPU, fs=LISTED)
    def _(x, f, c):
        x.require(x.on(f) == c)
        has_left = Or(now(x, c, "gone"), Not(Or(now(x, c, "rung"), now(x, c, "att"))))
        x.set("fs", f, to=If(And(has_left, x.obeys("RecheckAnswer")), AWAKE, ASLEEP))
        change(x, waiter, f, c, release=x.obeys("WakeRelease"), awaited=True)

    @m.step("handler: begin a round", c=CPU)
    def _(x, c):
        x.require(now(x, c, "rung"), Not(now(x, c, "gone")))
        change(x, owner, c, c, rung=False, att=True)

    @m.step("handler: leave, and wake", c=CPU)
    def _(x, c):
        x.require(now(x, c, "att"), Not(now(x, c, "rung")))
        leave(x, c, "QuietRelease")

    @m.step("handler: hang up", c=CPU)
    def _(x, c):
        x.require(now(x, c, "att"), now(x, c, "rung"))
        change(x, owner, c, c, att=False)

    @m.step("go offline, and wake", c=CPU)
    def _(x, c):
        x.require(Not(now(x, c, "gone")))
        leave(x, c, "DisconnectRelease", gone=True)

    @m.step("come online", c=CPU)
    def _(x, c):
        x.require(now(x, c, "gone"))
        change(x, owner, c, c, gone=False, rung=False, awaited=False)

    @m.holds("the list has those that have requested")
    def _(s: State) -> Expr:
        return s.forall(lambda f: And(s.listed_last(f) >= 0, s.fs(f) >= NEW, s.fs(f) <= AWAKE,
            Implies(s.fs(f) >= LISTED, s.waiter_listed(f, f) >= 1)), FLUSH)

    @m.holds("3: a waiter that sleeps is found by a CPU that has yet to leave its bell", safety=True)
    def _(s: State) -> Expr:
        return s.forall(lambda f, c: Implies(And(s.fs(f) == ASLEEP, s.on(f) == c), And(now(s, c, "awaited"),
            Not(now(s, c, "gone")), Or(now(s, c, "rung"), now(s, c, "att")), s.bell_has_listed(c, s.bell_last(c), f) >= 1)),
        FLUSH, CPU)

    return m
