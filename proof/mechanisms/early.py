"""Early answers: a CPU publishes its answer before it invalidates, and its NMIs must not use the dead translation."""

from __future__ import annotations

from ..logic import ALL, BOOL, CODE, TIME, And, Expr, Implies, Not, Or, State, within
from ..system import System
from .bell import CPU, FLUSH

QUIET, BEGUN, ANSWERED_EARLY, ENDED = range(4)
NEW, RUNG, DONE = range(3)


def build() -> System:
    """CPUs that are active on the space, and rung for every flush. The words of the bell are in `bell.py`."""
    m = System("early", sizes={CPU: 1, FLUSH: 2, TIME: 4})
    m.field((), {TIME: "gen_last"})
    m.field((TIME,), {BOOL: "frees"})
    m.field((CPU,), {CODE: "handler", BOOL: "attended bad_use bad_walk", TIME: "clean walks_clean got"})
    m.field((FLUSH,), {CODE: "fs", TIME: "fg"})
    m.field((FLUSH, CPU), {BOOL: "rung"})

    @m.step("flush: count, and ring", f=FLUSH, frees=BOOL, fs=(NEW, RUNG))
    def _(x, f, frees):
        x.set("gen_last", to=x.gen_last + 1)
        x.set("frees", x.gen_last + 1, to=frees)
        x.set("fg", f, to=x.gen_last + 1)
        x.set("rung", f, ALL, to=True)

    @m.step("wait: return", f=FLUSH, fs=(RUNG, DONE))
    def _(x, f):
        x.require(x.before.forall(lambda c: Not(x.rung(f, c)), CPU))

    @m.step("handler: begin a round, and load the generation", c=CPU, handler=(QUIET, BEGUN))
    def _(x, c):
        x.put(c, got=x.gen_last, attended=True)

    def answer(x, c: Expr) -> None:
        x.set("rung", ALL, c, to=False, where=lambda f: x.fg(f) <= x.got(c))

    @m.step("handler: answer early", c=CPU, handler=(BEGUN, ANSWERED_EARLY))
    def _(x, c):
        x.require(x.got(c) == x.clean(c) + 1)
        if x.obeys("AnswerTablesLate"):
            x.require(Not(x.frees(x.got(c))))
        answer(x, c)

    @m.step("handler: invalidate after the answer", c=CPU, handler=(ANSWERED_EARLY, ENDED))
    def _(x, c):
        x.put(c, clean=x.got(c), walks_clean=x.got(c))

    @m.step("handler: catch up, and answer", c=CPU, handler=(BEGUN, ENDED))
    def _(x, c):
        x.put(c, clean=x.got(c), walks_clean=x.got(c))
        answer(x, c)

    @m.step("handler: leave the bell", c=CPU, handler=(ENDED, QUIET))
    def _(x, c):
        x.put(c, attended=False)

    def dead(x, c: Expr, clean: Expr, frees: bool) -> Expr:
        return x.before.exists(lambda f: And(x.fs(f) == DONE, x.fg(f) > clean, Or(not frees, x.frees(x.fg(f)))), FLUSH)

    @m.step("the program uses a translation", c=CPU, handler=QUIET)
    def _(x, c):
        x.set("bad_use", c, to=Or(x.bad_use(c), dead(x, c, x.clean(c), False)))

    @m.step("an NMI uses a translation", c=CPU)
    def _(x, c):
        if x.obeys("DenyNmi"):
            x.require(Not(x.attended(c)))
        x.set("bad_use", c, to=Or(x.bad_use(c), dead(x, c, x.clean(c), False)))

    @m.step("the hardware walks page tables", c=CPU)
    def _(x, c):
        x.set("bad_walk", c, to=Or(x.bad_walk(c), dead(x, c, x.walks_clean(c), True)))

    @m.holds("only a CPU that attends to its bell has answered and not invalidated")
    def _(s: State) -> Expr:
        return And(
            s.gen_last >= 0,
            s.forall(lambda c: And(s.handler(c) >= QUIET, s.handler(c) <= ENDED, s.attended(c) == (s.handler(c) != QUIET),
                s.clean(c) <= s.gen_last, s.walks_clean(c) == s.clean(c), s.clean(c) >= 0, Implies(s.handler(c) != QUIET,
                And(s.got(c) >= s.clean(c), s.got(c) <= s.gen_last)), Implies(s.handler(c) == ANSWERED_EARLY,
                And(s.got(c) == s.clean(c) + 1, Not(s.frees(s.got(c)))))), CPU),
            s.forall(lambda f: And(s.fs(f) >= NEW, s.fs(f) <= DONE, Implies(s.fs(f) >= RUNG, within(1, s.fg(f), s.gen_last))),
                FLUSH),
            s.forall(lambda f, c: Implies(And(s.fs(f) == DONE), Not(s.rung(f, c))), FLUSH, CPU),
            s.forall(lambda f, c: Implies(And(s.fs(f) >= RUNG, Not(s.rung(f, c)), s.fg(f) > s.clean(c)),
                And(s.handler(c) == ANSWERED_EARLY, s.fg(f) == s.got(c))), FLUSH, CPU))

    @m.holds("1, 2: no program, NMI or walk uses what a flush that is done covered", safety=True)
    def _(s: State) -> Expr:
        return s.forall(lambda c: And(Not(s.bad_use(c)), Not(s.bad_walk(c))), CPU)

    return m
