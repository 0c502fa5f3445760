"""Virtual CPUs that are away: a flush leaves a request in place of an interrupt. Their walks by software, which outlast it."""

from __future__ import annotations

from ..logic import ALL, BOOL, CODE, TIME, And, Expr, If, Implies, Not, Or, State, later, one_of, within
from ..memory import Thread, Word, changes_tables
from ..system import System
from .bell import CPU, FLUSH

RUNS, STOPPED, RETURNS = range(3)
NEW, CHANGED, FENCED, DONE = range(4)
UNREAD, FOUND, DEFERRED, RUNG, ANSWERED = range(5)


def build() -> System:
    m = System("away", sizes={CPU: 2, FLUSH: 2, TIME: 4})
    tables, uses = Word(m, "tables"), Word(m, "uses", (CPU,))
    walks = Word(m, "walks", (CPU,), {"on": BOOL}, carries=(uses,))
    word = Word(m, "word", (CPU,), {"away": BOOL, "request": BOOL}, carries=(tables, uses, walks))
    cpu = Thread(m, "cpu", CPU, (tables, uses, walks))
    flush = Thread(m, "flush", FLUSH, (tables, uses, walks))
    walking = lambda s, c: s.walks_on(c, s.walks_last(c))
    m.field((CPU,), {CODE: "pc", TIME: "tlb pointer"})
    m.field((FLUSH,), {CODE: "fs", TIME: "fv"})
    m.field((FLUSH, CPU), {CODE: "about", BOOL: "found_away", TIME: "stale"})

    @m.step("use a translation", c=CPU, pc=RUNS)
    def _(x, c):
        cpu.store(x, c, uses, (c,), False)
        x.set("stale", ALL, c, to=x.uses_last(c) + 1, where=lambda f: And(x.fs(f) >= CHANGED, x.tlb(c) < x.fv(f)))

    @m.step("walk by software: begin, and read the pointer to the table", c=CPU, t=TIME, pc=RUNS)
    def _(x, c, t):
        x.require(Not(walking(x, c)), within(cpu.view(x, c, tables), t, x.tables_last))
        # No ordering: StopRelease carries the store.
        cpu.store(x, c, walks, (c,), False, on=True)
        x.set("pointer", c, to=t)

    @m.step("walk by software: read the table", c=CPU, pc=RUNS)
    def _(x, c):
        x.require(walking(x, c))
        cpu.store(x, c, uses, (c,), False)
        x.set("stale", ALL, c, to=x.uses_last(c) + 1, where=lambda f: And(x.fs(f) >= CHANGED, x.pointer(c) < x.fv(f)))

    @m.step("walk by software: end", c=CPU, pc=RUNS)
    def _(x, c):
        x.require(walking(x, c))
        cpu.store(x, c, walks, (c,), x.obeys("WalkRelease"), on=False)

    @m.step("hypervisor: stop the CPU", c=CPU, pc=({RUNS, STOPPED}, STOPPED))
    def _(x, c):
        # May be recorded again before the CPU runs.
        release = x.obeys("StopRelease")
        if x.obeys("KeepRequest"):
            cpu.modify(x, c, word, (c,), acquire=False, release=release, away=True, request=x.word_request(c, x.word_last(c)))
        else:
            cpu.store(x, c, word, (c,), release, away=True, request=False)

    @m.step("hypervisor: resume the CPU", c=CPU, pc=STOPPED)
    def _(x, c):
        requested = x.word_request(c, x.word_last(c))
        cpu.modify(x, c, word, (c,), acquire=x.obeys("ReturnAcquire"), release=False, away=False, request=False)
        x.set("pc", c, to=If(requested, RETURNS, RUNS))

    @m.step("hypervisor: empty the TLB", c=CPU, pc=(RETURNS, RUNS))
    def _(x, c):
        x.put(c, tlb=later(x.tlb(c), cpu.view(x, c, tables)))

    changes_tables(m, "flush: change the tables", f=FLUSH, fs=(NEW, CHANGED))

    m.moves("flush: fence", f=FLUSH, fs=(CHANGED, FENCED))

    @m.step("flush: find the CPU away, and leave a request", f=FLUSH, c=CPU, fs=FENCED, about=UNREAD)
    def _(x, f, c):
        x.require(x.word_away(c, x.word_last(c)))
        if x.obeys("SkipAway"):
            # The fence before the exchange releases.
            flush.modify(x, f, word, (c,), acquire=x.obeys("DeferAcquire"), release=x.obeys("FlushFence"), away=True,
                request=True)
            x.set("about", f, c, to=FOUND)
        else:
            x.put(f, c, found_away=True, about=RUNG)

    @m.step("flush: read whether the CPU walks", f=FLUSH, c=CPU, t=TIME, about=FOUND)
    def _(x, f, c, t):
        flush.load(x, f, walks, (c,), t, x.obeys("WalkAcquire"))
        rings = And(x.walks_on(c, t), x.obeys("WaitForWalks"))
        x.put(f, c, found_away=Not(rings), about=If(rings, RUNG, DEFERRED))

    @m.step("flush: find the CPU running, and ring it", f=FLUSH, c=CPU, t=TIME, fs=FENCED, about=(UNREAD, RUNG))
    def _(x, f, c, t):
        x.require(Not(x.word_away(c, t)), within(0, t, x.word_last(c)))

    @m.step("handler: invalidate, and answer", f=FLUSH, c=CPU, about=(RUNG, ANSWERED))
    def _(x, f, c):
        # The interrupt is masked within a walk.
        x.require(x.pc(c) == RUNS, Not(walking(x, c)))
        x.put(c, cpu_tables=later(x.cpu_tables(c), x.fv(f)), tlb=later(x.tlb(c), x.fv(f)))
        x.put(f, c, flush_uses=later(x.flush_uses(f, c), x.uses_last(c)))

    @m.step("wait: return", f=FLUSH, fs=(FENCED, DONE))
    def _(x, f):
        x.require(x.before.forall(lambda c: one_of(x.about(f, c), DEFERRED, ANSWERED), CPU))

    @m.holds("a CPU runs while its word has no request")
    def _(s: State) -> Expr:
        now = lambda name, c: getattr(s, f"word_{name}")(c, s.word_last(c))
        return And(
            s.tables_last >= 0,
            s.forall(lambda c: And(s.uses_last(c) >= 0, s.word_last(c) >= 0, s.cpu_uses(c, c) >= s.uses_last(c),
                s.walks_last(c) >= 0, s.cpu_walks(c, c) >= s.walks_last(c), s.tlb(c) <= s.cpu_tables(c),
                s.tlb(c) <= s.tables_last, s.cpu_tables(c) <= s.tables_last,
                s.word_has_tables(c, s.word_last(c)) <= s.tables_last, s.pc(c) >= RUNS, s.pc(c) <= RETURNS,
                now("away", c) == (s.pc(c) == STOPPED), Implies(now("request", c), now("away", c))), CPU),
            s.forall(lambda f: And(s.fs(f) >= NEW, s.fs(f) <= DONE, Implies(s.fs(f) >= CHANGED, And(s.flush_tables(f) >= s.fv(f),
                s.fv(f) <= s.tables_last, s.flush_tables(f) <= s.tables_last))), FLUSH),
            s.forall(lambda f, c: And(Implies(s.fs(f) < FENCED, s.about(f, c) == UNREAD), s.stale(f, c) <= s.uses_last(c),
                Implies(s.fs(f) == NEW, s.stale(f, c) == 0)), FLUSH, CPU))

    @m.holds("a request carries the tables of its flush, and the last uses are in the view of a flush that leaves it")
    def _(s: State) -> Expr:
        return s.forall(lambda f, c: And(
            Implies(s.pc(c) == STOPPED, s.word_has_uses(c, s.word_last(c), c) >= s.uses_last(c)),
            Implies(s.pc(c) == STOPPED, s.word_has_walks(c, s.word_last(c), c) >= s.walks_last(c)),
            Implies(one_of(s.about(f, c), FOUND, DEFERRED),
                Or(s.tlb(c) >= s.fv(f), And(s.pc(c) == RETURNS, s.cpu_tables(c) >= s.fv(f)),
                And(s.pc(c) == STOPPED, s.word_request(c, s.word_last(c)), s.word_has_tables(c, s.word_last(c)) >= s.fv(f)))),
            Implies(s.about(f, c) == ANSWERED, s.tlb(c) >= s.fv(f)),
            Implies(one_of(s.about(f, c), DEFERRED, ANSWERED), s.stale(f, c) <= s.flush_uses(f, c))), FLUSH, CPU)

    @m.holds("a flush that has found a CPU away, and that it must wait for, finds it in its walk")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda f, c: And(
                Implies(And(s.about(f, c) == FOUND, walking(s, c), s.pointer(c) < s.fv(f)),
                    s.flush_walks(f, c) >= s.walks_last(c)),
                Implies(And(one_of(s.about(f, c), DEFERRED, ANSWERED), walking(s, c)), s.pointer(c) >= s.fv(f))), FLUSH, CPU),
            s.forall(lambda f, c, t: Implies(And(s.about(f, c) == FOUND, within(s.flush_walks(f, c), t, s.walks_last(c)),
                Not(s.walks_on(c, t))), Or(s.stale(f, c) <= s.flush_uses(f, c), s.stale(f, c) <= s.walks_has_uses(c, t, c))),
            FLUSH, CPU, TIME))

    @m.holds("8: after the wait, no CPU has used a stale translation or pointer without an order, or can", safety=True)
    def _(s: State) -> Expr:
        return s.forall(lambda f, c: Implies(s.fs(f) == DONE, And(one_of(s.about(f, c), DEFERRED, ANSWERED),
            s.stale(f, c) <= s.flush_uses(f, c), Implies(s.pc(c) == RUNS, s.tlb(c) >= s.fv(f)),
            Implies(walking(s, c), s.pointer(c) >= s.fv(f)))), FLUSH, CPU)

    @m.holds("8: a flush does not wait for a CPU that it finds away, unless within a walk", safety=True)
    def _(s: State) -> Expr:
        return s.forall(lambda f, c: Implies(s.found_away(f, c), s.about(f, c) == DEFERRED), FLUSH, CPU)

    return m
