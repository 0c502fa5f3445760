"""Broadcasts: complete when their issuer has waited for them; and what other CPUs may conclude from them."""

from __future__ import annotations

from ..logic import ALL, BOOL, CODE, TIME, And, Expr, If, Implies, Not, Or, State, one_of, within
from ..system import System
from .bell import CPU, FLUSH

NEW, ISSUED, RANG_ISSUER, ANSWERED, DONE, RUNG = range(6)


def build() -> System:
    """The words of the bell are in `bell.py`: an answer comes after a round that began after the ring."""
    m = System("broadcasts", sizes={CPU: 2, FLUSH: 2, TIME: 3})
    m.routes = [
        ["issue a broadcast", *["hardware: a broadcast reaches a CPU"] * 6, "wait on the issuer: complete"],
        ["issue a broadcast that is refused", *["handler: invalidate, and answer the flush that was refused"] * 6,
            "wait: return, after a refusal"]]
    m.field((FLUSH,), {CODE: "fs", CPU: "on", BOOL: "refused"})
    m.field((FLUSH, CPU), {BOOL: "reached"})
    m.field((CPU,), {BOOL: "offline"})

    def complete(x, c: Expr) -> None:
        """Waits for the hardware: all broadcasts that the CPU has issued have reached all CPUs."""
        x.require(x.before.forall(lambda f, d: Implies(And(x.fs(f) >= ISSUED, x.on(f) == c, Not(x.refused(f))), x.reached(f, d)),
            FLUSH, CPU))

    @m.step("issue a broadcast", f=FLUSH, c=CPU, fs=(NEW, ISSUED))
    def _(x, f, c):
        x.require(Not(x.offline(c)))
        x.put(f, on=c)

    @m.step("hardware: a broadcast reaches a CPU", f=FLUSH, c=CPU, refused=False)
    def _(x, f, c):
        x.require(x.fs(f) >= ISSUED)
        x.set("reached", f, c, to=True)

    @m.step("issue a broadcast that is refused", f=FLUSH, c=CPU, fs=NEW)
    def _(x, f, c):
        x.require(Not(x.offline(c)))
        x.put(f, on=c, refused=True, fs=RUNG if x.obeys("RingIfRefused") else ISSUED)

    @m.step("handler: invalidate, and answer the flush that was refused", f=FLUSH, c=CPU, fs=RUNG)
    def _(x, f, c):
        x.set("reached", f, c, to=True)

    @m.step("wait: return, after a refusal", f=FLUSH, fs=(RUNG, DONE))
    def _(x, f):
        x.require(x.before.forall(lambda d: x.reached(f, d), CPU))

    @m.step("wait on the issuer: complete", f=FLUSH, fs=(ISSUED, DONE))
    def _(x, f):
        if x.obeys("CompleteBroadcasts"):
            complete(x, x.on(f))

    @m.step("wait elsewhere: ring the issuer", f=FLUSH, fs=ISSUED)
    def _(x, f):
        # A bell that is disconnected is an answer: see `go offline`.
        x.set("fs", f, to=If(x.offline(x.on(f)), ANSWERED, RANG_ISSUER))

    @m.step("handler: answer", c=CPU, offline=False)
    def _(x, c):
        if x.obeys("CompleteForOthers"):
            complete(x, c)
        x.set("fs", ALL, to=ANSWERED, where=lambda f: And(x.fs(f) == RANG_ISSUER, x.on(f) == c))

    @m.step("go offline", c=CPU, offline=(False, True))
    def _(x, c):
        if x.obeys("CompleteForOthers"):
            complete(x, c)
        x.set("fs", ALL, to=ANSWERED, where=lambda f: And(x.fs(f) == RANG_ISSUER, x.on(f) == c))

    @m.step("come online", c=CPU)
    def _(x, c):
        x.set("offline", c, to=False)

    m.moves("wait elsewhere: observe the answer", f=FLUSH, fs=(ANSWERED, DONE))

    @m.holds("an issuer that has answered, or is offline, has completed its broadcasts")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda f: And(s.fs(f) >= NEW, s.fs(f) <= RUNG, Implies(s.refused(f), one_of(s.fs(f), RUNG, DONE))), FLUSH),
            s.forall(lambda f, d: Implies(Or(s.fs(f) == ANSWERED, And(one_of(s.fs(f), ISSUED, RANG_ISSUER), s.offline(s.on(f)))),
                s.reached(f, d)), FLUSH, CPU))

    @m.holds("1: after the wait for a broadcast, it has reached every CPU, or an interrupt has", safety=True)
    def _(s: State) -> Expr:
        return s.forall(lambda f, d: Implies(s.fs(f) == DONE, s.reached(f, d)), FLUSH, CPU)

    return m


def build_gaps() -> System:
    """Each generation is one flush. `covered` is the generation up to which every flush was broadcast to every CPU."""
    m = System("gaps", sizes={CPU: 1, TIME: 5})
    m.field((), {TIME: "gen_last covered_last"})
    m.field((TIME,), {BOOL: "issued complete partial"})
    m.field((CPU,), {TIME: "slot got"})
    m.field((CPU, TIME), {BOOL: "clean"})

    @m.step("flush: count")
    def _(x):
        x.set("gen_last", to=x.gen_last + 1)

    @m.step("flush: broadcast", n=TIME)
    def _(x, n):
        x.require(within(1, n, x.gen_last))
        x.set("issued", n, to=True)

    @m.step("flush: broadcast to some CPUs", n=TIME)
    def _(x, n):
        # Those of a remote fence, or of TLBI domains. Nothing else says which CPUs they are.
        x.require(within(1, n, x.gen_last))
        x.set("partial", n, to=True)

    @m.step("hardware: a broadcast reaches a CPU", n=TIME, c=CPU)
    def _(x, n, c):
        x.require(Or(x.issued(n), x.partial(n)))
        x.set("clean", c, n, to=True)

    @m.step("flush: complete the broadcast", n=TIME, issued=True)
    def _(x, n):
        x.require(x.before.forall(lambda c: x.clean(c, n), CPU))
        x.set("complete", n, to=True)

    @m.step("flush: note that a broadcast covers its generation", n=TIME)
    def _(x, n):
        x.require(x.issued(n) if x.obeys("CatchUpUnreached") else Or(x.issued(n), x.partial(n)), x.covered_last < n)
        if x.obeys("KeepGaps"):
            x.require(x.covered_last >= n - 1)
        x.set("covered_last", to=n)

    @m.step("flush: drop the whole tag everywhere, complete, and note it", n=TIME)
    def _(x, n):
        x.require(x.covered_last < n, n <= x.gen_last)
        x.set("clean", ALL, ALL, to=True, where=lambda c, k: within(1, k, n))
        x.put(ALL, where=lambda k: within(1, k, n), issued=True, complete=True)
        x.set("covered_last", to=n)

    @m.step("catch up from what is covered", c=CPU, n=TIME, k=TIME)
    def _(x, c, n, k):
        # `k` is the covered generation that the CPU loads, which may be an old one.
        x.require(within(x.slot(c), n, x.gen_last), within(0, k, x.covered_last))
        seen = If(k >= x.slot(c), k, x.slot(c))
        x.set("clean", c, ALL, to=True, where=lambda i: And(seen < i, i <= n))
        x.set("slot", c, to=If(seen >= n, seen, n))

    @m.holds("every generation that is covered was broadcast")
    def _(s: State) -> Expr:
        return And(
            s.gen_last >= 0, s.covered_last >= 0, s.covered_last <= s.gen_last,
            s.forall(lambda c: within(0, s.slot(c), s.gen_last), CPU),
            s.forall(lambda n: And(Implies(within(1, n, s.covered_last), s.issued(n)), Implies(s.issued(n), n <= s.gen_last)),
                TIME),
            s.forall(lambda c, n: Implies(s.complete(n), s.clean(c, n)), CPU, TIME))

    @m.holds("1: a CPU that has caught up holds nothing that a complete flush covered", safety=True)
    def _(s: State) -> Expr:
        return s.forall(lambda c, n: Implies(within(1, n, s.slot(c)), Or(s.clean(c, n), And(s.issued(n), Not(s.complete(n))))),
            CPU, TIME)

    return m
