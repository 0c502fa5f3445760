"""Every wait ends: a ranking of what is left to happen before a CPU that was rung answers.

The bell's flags are those of `bell.py`; here are interrupts, masking, and CPUs that wait with the interrupt masked.
"""

from __future__ import annotations

from ..logic import ALL, BOOL, CODE, TIME, And, Expr, If, Implies, Not, Or, State, one_of, within
from ..queries import Helpful, Progress
from ..system import System, Taken
from .bell import CPU, FLUSH

USER, OPERATION, WAIT, ROUND, ENDED = range(5)
"""A CPU takes interrupts; is in an operation, which ends; waits masked; is in a round of its handler; has ended one."""
IDLE, RUNG, IN_ROUND = range(3)
ROUNDS_MAX = 3


def build() -> System:
    m = System("waiting", sizes={CPU: 2, FLUSH: 2, TIME: 5})
    m.field((CPU,), {BOOL: "flag attended polls sent pending", CODE: "mode", TIME: "rounds", FLUSH: "sender"})
    m.field((FLUSH, CPU), {BOOL: "sends", CODE: "about"})

    def begin(x: Taken, c: Expr) -> None:
        x.put(c, flag=False, attended=True)
        x.set("about", ALL, c, to=IN_ROUND, where=lambda f: x.about(f, c) == RUNG)
        x.put(c, mode=ROUND, rounds=x.rounds(c) + 1)

    @m.step("ring", f=FLUSH, c=CPU, about=(IDLE, RUNG))
    def _(x, f, c):
        quiet = Not(Or(x.flag(c), x.attended(c)))
        x.put(c, flag=True, sender=If(quiet, f, x.sender(c)))
        x.set("sends", f, c, to=Or(quiet, x.sends(f, c)))

    @m.step("send the interrupt", f=FLUSH, c=CPU, sends=(True, False))
    def _(x, f, c):
        x.set("sent", c, to=True)

    @m.step("hardware: the interrupt arrives", c=CPU, sent=(True, False))
    def _(x, c):
        x.put(c, pending=True)

    @m.step("take the interrupt, and begin a round", c=CPU, mode=USER, pending=(True, False), flag=True)
    def _(x, c):
        begin(x, c)

    m.moves("take the interrupt, and find the bell quiet", c=CPU, mode=USER, pending=(True, False), flag=False)

    # A pending interrupt is taken as soon as it is not masked.
    m.moves("begin an operation, with the interrupt masked", c=CPU, mode=(USER, OPERATION), pending=False)
    m.moves("end an operation", c=CPU, mode=(OPERATION, USER))

    @m.step("begin to wait, with the interrupt masked", c=CPU, mode=(OPERATION, WAIT))
    def _(x, c):
        if x.obeys("AnswerWhileWaiting"):
            x.put(c, attended=True, polls=True)

    @m.step("poll its own bell", c=CPU, mode=WAIT, polls=True, flag=True)
    def _(x, c):
        x.set("rounds", c, to=0)
        begin(x, c)

    @m.step("end to wait", c=CPU, mode=(WAIT, USER), flag=False)
    def _(x, c):
        x.put(c, attended=False, polls=False)

    @m.step("handler: catch up, and answer", c=CPU, mode=(ROUND, ENDED))
    def _(x, c):
        x.set("about", ALL, c, to=IDLE, where=lambda f: x.about(f, c) == IN_ROUND)

    @m.step("handler: return to the wait", c=CPU, mode=(ENDED, WAIT), polls=True)
    def _(x, c):
        x.put(c, rounds=0)

    @m.step("handler: begin again", c=CPU, mode=ENDED, polls=False, flag=True)
    def _(x, c):
        x.require(x.rounds(c) < ROUNDS_MAX)
        begin(x, c)

    @m.step("handler: leave", c=CPU, mode=(ENDED, USER), polls=False)
    def _(x, c):
        if x.obeys("RecheckBell"):
            x.require(Not(x.flag(c)))
        x.put(c, flag=False, attended=False, rounds=0)

    @m.step("handler: hang up, and interrupt itself", c=CPU, mode=(ENDED, USER), polls=False)
    def _(x, c):
        x.require(x.rounds(c) >= ROUNDS_MAX)
        x.put(c, pending=Or(x.pending(c), x.flag(c)), attended=False, rounds=0)

    @m.holds("a bell is attended in a round, and in a wait")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda c: And(s.mode(c) >= USER, s.mode(c) <= ENDED, s.attended(c) == (s.mode(c) >= WAIT),
                Implies(s.mode(c) == WAIT, s.polls(c)), Implies(s.polls(c), s.mode(c) >= WAIT)), CPU),
            s.forall(lambda f, c: And(s.about(f, c) >= IDLE, s.about(f, c) <= IN_ROUND, Implies(s.about(f, c) == RUNG, s.flag(c)),
                Implies(s.about(f, c) == IN_ROUND, s.mode(c) == ROUND)), FLUSH, CPU))

    @m.holds("3: the handler is bounded", safety=True)
    def _(s: State) -> Expr:
        return s.forall(lambda c: And(within(0, s.rounds(c), ROUNDS_MAX), Implies(one_of(s.mode(c), USER, OPERATION, WAIT),
            s.rounds(c) == 0)), CPU)

    @m.holds("3: a bell that is rung and not attended has an interrupt on its way", safety=True)
    def _(s: State) -> Expr:
        return s.forall(lambda c: Implies(And(s.flag(c), Not(s.attended(c))),
            Or(s.pending(c), s.sent(c), s.sends(s.sender(c), c))), CPU)

    m.progress = progress()
    return m


def progress() -> Progress:
    """What a flush waits for, the stage that this has reached, and the step that comes next. It needs weak fairness only:
    a step that stays possible is taken at last."""

    def rank(s: State, f: Expr, c: Expr) -> Expr:
        masked = If(s.mode(c) == ROUND, 12, If(s.mode(c) == ENDED, 11, 10))
        arriving = If(s.pending(c), If(s.mode(c) == OPERATION, 15, 5), If(s.sent(c), 20, 30))
        return If(s.about(f, c) == IN_ROUND, 1, If(s.mode(c) >= WAIT, masked, arriving))

    waits = lambda s, f, c: s.about(f, c) != IDLE
    rung = lambda s, f, c: And(s.about(f, c) == RUNG, s.mode(c) < WAIT)
    ended = lambda s, c: And(s.mode(c) == ENDED, Not(s.polls(c)))
    here = lambda s, f, c: {"c": c}
    return Progress(waits, rank, (FLUSH, CPU), [
        Helpful("handler: catch up, and answer", lambda s, f, c: s.mode(c) == ROUND, here),
        Helpful("handler: return to the wait", lambda s, f, c: And(s.mode(c) == ENDED, s.polls(c)), here),
        Helpful("handler: begin again", lambda s, f, c: And(ended(s, c), s.flag(c), s.rounds(c) < ROUNDS_MAX), here),
        Helpful("handler: hang up, and interrupt itself", lambda s, f, c: And(ended(s, c), s.rounds(c) >= ROUNDS_MAX), here),
        Helpful("poll its own bell", lambda s, f, c: s.mode(c) == WAIT, here),
        Helpful("end an operation", lambda s, f, c: And(rung(s, f, c), s.pending(c), s.mode(c) == OPERATION), here),
        Helpful("take the interrupt, and begin a round", lambda s, f, c: And(rung(s, f, c), s.pending(c), s.mode(c) == USER),
            here),
        Helpful("hardware: the interrupt arrives", lambda s, f, c: And(rung(s, f, c), Not(s.pending(c)), s.sent(c)), here),
        Helpful("send the interrupt", lambda s, f, c: And(rung(s, f, c), Not(s.pending(c)), Not(s.sent(c))),
            lambda s, f, c: {"f": s.sender(c), "c": c}),
    ])
