"""Secondary tables, which faults fill from the primary tables of a space, and which refuse them while a primary entry changes.

There is one primary entry, and one secondary entry with a lock. A critical section is one step, after the accesses that come
before an earlier one. Each change makes the primary entry newer. The word of the changes never has a value twice.
"""

from __future__ import annotations

from ..counting import Census
from ..logic import BOOL, CODE, TIME, And, Expr, Implies, Not, Sort, State, later, within
from ..memory import Thread, Word
from ..system import System

CHANGE, FAULT = Sort("Change"), Sort("Fault")
NEW, STARTED, REMOVED, CHANGED, DONE = range(5)
IDLE, BEGUN, READ = range(3)


def build() -> System:
    m = System("secondary", sizes={CHANGE: 2, FAULT: 1, TIME: 6})
    primary = Word(m, "primary")
    word = Word(m, "word", values={"open": TIME}, carries=(primary,))
    change = Thread(m, "change", CHANGE, (primary, word))
    fault = Thread(m, "fault", FAULT, (primary, word))
    census = Census(m, "open", CHANGE)
    m.field((CHANGE,), {CODE: "cs", TIME: "since ended cv"})
    m.field((FAULT,), {CODE: "fs", TIME: "began found"})
    m.field((), {TIME: "locked_word version", BOOL: "is_installed"})

    @m.step("change: start", c=CHANGE, cs=(NEW, STARTED))
    def _(x, c):
        x.put(c, since=x.word_last + 1)
        change.modify(x, c, word, (), acquire=False, release=False, open=x.word_open(x.word_last) + 1)
        census.add(x, c)

    @m.step("change: lock, and remove the secondary entry", c=CHANGE, cs=(STARTED, REMOVED))
    def _(x, c):
        x.set("is_installed", to=False)
        x.set("locked_word", to=later(x.locked_word, x.change_word(c)))

    @m.step("change: change the primary entry", c=CHANGE, cs=(REMOVED, CHANGED))
    def _(x, c):
        x.put(c, cv=x.primary_last + 1)
        change.store(x, c, primary, (), False)

    @m.step("change: end", c=CHANGE, cs=(CHANGED, DONE))
    def _(x, c):
        x.put(c, ended=x.word_last + 1)
        change.modify(x, c, word, (), acquire=False, release=x.obeys("EndChangeRelease"), open=x.word_open(x.word_last) - 1)
        census.remove(x, c)

    @m.step("fault: begin", f=FAULT, t=TIME, fs=(IDLE, BEGUN))
    def _(x, f, t):
        if x.obeys("RefuseDuringChange"):
            x.require(x.word_open(t) <= 0)
        fault.load(x, f, word, (), t, x.obeys("BeginFaultAcquire"))
        x.put(f, began=t)

    @m.step("fault: read the primary entry", f=FAULT, t=TIME, fs=(BEGUN, READ))
    def _(x, f, t):
        fault.load(x, f, primary, (), t, False)
        x.put(f, found=t)

    @m.step("fault: lock, check, and install", f=FAULT, t=TIME, fs=(READ, IDLE))
    def _(x, f, t):
        x.require(x.locked_word <= t, x.fault_word(f) <= t, t <= x.word_last)
        if x.obeys("RecheckChange"):
            x.require(t == x.began(f))
        x.set("fault_word", f, to=t)
        x.set("locked_word", to=t)
        x.set("is_installed", to=True)
        x.set("version", to=x.found(f))

    @m.step("fault: try again", f=FAULT)
    def _(x, f):
        x.set("fs", f, to=IDLE)

    @m.holds("the word counts the changes in progress")
    def _(s: State) -> Expr:
        return And(
            census.invariant(s), s.word_last >= 0, s.primary_last >= 0, s.word_open(s.word_last) == census.count(s),
            s.locked_word <= s.word_last,
            s.forall(lambda c: And(s.cs(c) >= NEW, s.cs(c) <= DONE, census.has(s, c) == And(s.cs(c) >= STARTED, s.cs(c) <= CHANGED),
                s.since(c) <= s.word_last, s.change_word(c) <= s.word_last, Implies(s.cs(c) >= STARTED, s.change_word(c) >= s.since(c)),
                Implies(s.cs(c) >= REMOVED, s.locked_word >= s.since(c)),
                Implies(s.cs(c) == DONE, And(s.since(c) <= s.ended(c), s.ended(c) <= s.word_last)),
                Implies(s.cs(c) >= CHANGED, s.change_primary(c) >= s.cv(c))), CHANGE),
            s.forall(lambda f: And(s.fs(f) >= IDLE, s.fs(f) <= READ, s.fault_word(f) <= s.word_last,
                Implies(s.fs(f) != IDLE, And(s.began(f) <= s.fault_word(f), s.began(f) <= s.word_last))), FAULT))

    @m.holds("a change is in progress at each time from its start to its end")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda c, t: Implies(And(s.cs(c) >= STARTED, s.cs(c) <= CHANGED, within(s.since(c), t, s.word_last)),
                s.word_open(t) >= 1), CHANGE, TIME),
            s.forall(lambda c, t: Implies(And(s.cs(c) == DONE, within(s.since(c), t, s.ended(c) - 1)), s.word_open(t) >= 1),
                CHANGE, TIME),
            s.forall(lambda f: Implies(s.fs(f) != IDLE, s.word_open(s.began(f)) <= 0), FAULT))

    @m.holds("a fault that begins after the end of a change finds its entry")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda c, t: Implies(And(s.cs(c) == DONE, within(s.ended(c), t, s.word_last)), s.word_has_primary(t) >= s.cv(c)),
                CHANGE, TIME),
            s.forall(lambda c, f: Implies(And(s.cs(c) == DONE, s.fs(f) != IDLE, s.began(f) >= s.ended(c)),
                And(s.fault_primary(f) >= s.cv(c), Implies(s.fs(f) == READ, s.found(f) >= s.cv(c)))), CHANGE, FAULT))

    @m.holds("1: the secondary table has no entry of an older version than a change that has removed it", safety=True)
    def _(s: State) -> Expr:
        return s.forall(lambda c: And(
            Implies(And(s.cs(c) >= REMOVED, s.cs(c) <= CHANGED), Not(s.is_installed)),
            Implies(And(s.cs(c) == DONE, s.is_installed), s.version >= s.cv(c))), CHANGE)

    return m
