"""Flush at reuse: a flush is counted when a page is unmapped, and the CPUs are read when its frame is reused.

A CPU that is active publishes the generation that it has caught up with, of the space or of the one that it runs next.
"""

from __future__ import annotations

from ..logic import ALL, BOOL, CODE, TIME, And, Expr, If, Implies, Not, Or, State, later, one_of, within
from ..memory import Thread, Word, append, changes_tables
from ..system import System
from .bell import CPU, FLUSH
from .online import CHANGED, NEW, PUBLISHED, generations_carry_tables, publishes_tables
from .online import BUMPED as COUNTED
from .online import FENCED as READING

ELSEWHERE, SWITCHING, ACTIVE = range(3)
AWAY, STORED, FENCED, LOADED, CAUGHT_UP, IN = range(6)
UNREAD, IS_ACTIVE, SKIPPED, UP_TO_DATE, RUNG, ANSWERED = range(6)
DONE = READING + 1


def build() -> System:
    m = System("reuse", sizes={CPU: 2, FLUSH: 2, TIME: 5})
    m.small = {FLUSH: 1}
    tables = Word(m, "tables", fenced=True)
    gen = Word(m, "gen", carries=(tables,), fenced=True)
    pres = Word(m, "pres", (CPU,), {"kind": CODE, "uses": TIME, "seen": TIME}, fenced=True)
    # `under` is the time of the presence under which the message was published.
    Word(m, "seen", (CPU,), {"gen": TIME, "own": BOOL, "uses": TIME, "under": TIME})
    cpu = Thread(m, "cpu", CPU, (tables, gen))
    flush = Thread(m, "flush", FLUSH, (tables, gen, pres))
    m.field((CPU,), {CODE: "pc", TIME: "uses tlb slot got since"})
    m.field((FLUSH,), {CODE: "fs", TIME: "fv fg"})
    m.field((FLUSH, CPU), {CODE: "about", TIME: "stale waiter_uses read_at read_seen flush_seen"})

    def publish(x, c: Expr, kind) -> None:
        uses, seen = (x.uses(c), x.seen_last(c)) if x.obeys("LeaveRelease") else (0, 0)
        cpu.store(x, c, pres, (c,), release=False, kind=kind, uses=uses, seen=seen)

    def publish_seen(x, c: Expr, generation: Expr, own: bool) -> None:
        append(x, "seen", (c,), gen=generation, own=own, uses=x.uses(c) if x.obeys("SeenRelease") else 0, under=x.pres_last(c))

    @m.step("switch: publish Switching", c=CPU, pc=(AWAY, STORED))
    def _(x, c):
        publish(x, c, SWITCHING)
        x.put(c, since=x.pres_last(c) + 1)

    cpu.fence_step(m, "switch: fence", "SwitchFence", own=pres, c=CPU, pc=(STORED, FENCED))

    cpu.load_step(m, "switch: load the generation", gen, "GenerationAcquire", "got", c=CPU, n=TIME, pc=(FENCED, LOADED))

    @m.step("switch: catch up, and publish the generation", c=CPU, pc=(LOADED, CAUGHT_UP))
    def _(x, c):
        if x.obeys("CatchUpOnSwitch"):
            x.set("tlb", c, to=If(x.got(c) == x.slot(c), x.tlb(c), cpu.view(x, c, tables)))
        x.put(c, slot=x.got(c))
        publish_seen(x, c, x.got(c), True)

    @m.step("switch: publish Active", c=CPU, pc=(CAUGHT_UP, IN))
    def _(x, c):
        publish(x, c, ACTIVE)

    @m.step("use a translation", c=CPU, pc=IN)
    def _(x, c):
        x.set("uses", c, to=x.uses(c) + 1)
        x.set("stale", ALL, c, to=x.uses(c) + 1, where=lambda f: And(x.fs(f) >= CHANGED, x.tlb(c) < x.fv(f)))

    @m.step("catch up for another flush, and publish the generation", c=CPU, n=TIME, pc=IN)
    def _(x, c, n):
        x.require(n >= x.slot(c))
        cpu.load(x, c, gen, (), n, x.obeys("GenerationAcquire"))
        x.put(c, tlb=If(n == x.slot(c), x.tlb(c), later(x.cpu_tables(c), x.gen_has_tables(n))), slot=n)
        publish_seen(x, c, n, True)

    @m.step("leave: publish another presence", c=CPU, pc=(IN, AWAY))
    def _(x, c):
        publish(x, c, ELSEWHERE)

    @m.step("leave: publish the generation of another space", c=CPU, n=TIME, pc=AWAY)
    def _(x, c, n):
        x.require(n >= 0)
        publish_seen(x, c, n, False)

    changes_tables(m, "defer: change the tables", False, f=FLUSH, fs=(NEW, CHANGED))
    publishes_tables(m, "defer")

    @m.step("defer: count", f=FLUSH, fs=(PUBLISHED, COUNTED))
    def _(x, f):
        x.set("fg", f, to=x.gen_last + 1 if x.obeys("CountUnflushed") else x.gen_last)
        if x.obeys("CountUnflushed"):
            flush.modify(x, f, gen, (), acquire=False, release=x.obeys("BumpRelease"))

    flush.fence_step(m, "defer: fence", "FlushFence", f=FLUSH, fs=(COUNTED, READING))

    @m.step("reuse: read a CPU's presence", f=FLUSH, c=CPU, t=TIME, fs=READING, about=UNREAD)
    def _(x, f, c, t):
        flush.load(x, f, pres, (c,), t, False)
        if x.obeys("PresenceAcquire"):
            x.put(f, c, waiter_uses=later(x.waiter_uses(f, c), x.pres_uses(c, t)), flush_seen=later(x.flush_seen(f, c),
                x.pres_seen(c, t)))
        kind = x.pres_kind(c, t)
        looks = kind == ACTIVE if x.obeys("SeenWhileActive") else kind != ELSEWHERE
        rings = And(kind != ELSEWHERE, x.obeys("RingAtReuse"))
        x.put(f, c, about=If(And(rings, looks), IS_ACTIVE, If(rings, RUNG, SKIPPED)), read_at=t)

    @m.step("reuse: read the generation that a CPU has published", f=FLUSH, c=CPU, u=TIME, about=IS_ACTIVE)
    def _(x, f, c, u):
        x.require(within(x.flush_seen(f, c), u, x.seen_last(c)))
        x.put(f, c, flush_seen=u, read_seen=u, about=If(x.seen_gen(c, u) >= x.fg(f), UP_TO_DATE, RUNG))
        if x.obeys("SeenAcquire"):
            x.set("waiter_uses", f, c, to=later(x.waiter_uses(f, c), x.seen_uses(c, u)))

    @m.step("handler: catch up, and answer", f=FLUSH, c=CPU, n=TIME, about=(RUNG, ANSWERED))
    def _(x, f, c, n):
        # By the theorem of `bell`, the round begins after the ring.
        x.require(one_of(x.pc(c), AWAY, IN), n >= x.fg(f), n >= x.slot(c))
        cpu.load(x, c, gen, (), n, True)
        is_in = x.pc(c) == IN
        x.put(c, tlb=If(is_in, later(x.cpu_tables(c), x.gen_has_tables(n)), x.tlb(c)), slot=If(is_in, n, x.slot(c)))
        x.put(f, c, waiter_uses=later(x.waiter_uses(f, c), x.uses(c)))

    @m.step("reuse: return", f=FLUSH)
    def _(x, f):
        x.require(x.fs(f) == READING,
            x.before.forall(lambda c: one_of(x.about(f, c), SKIPPED, UP_TO_DATE, ANSWERED), CPU))
        x.set("fs", f, to=DONE)

    invariant(m)
    return m


def invariant(m: System) -> None:
    present = lambda kind: kind != ELSEWHERE
    inside = lambda s, c: And(s.pc(c) >= STORED, s.pc(c) <= IN)

    def clean(s: State, f: Expr, c: Expr) -> Expr:
        """The CPU has caught up with the flush, or will before it uses a translation."""
        return And(s.cpu_gen(c) >= s.fg(f), Implies(s.pc(c) == LOADED, s.got(c) >= s.fg(f)),
            Implies(s.pc(c) >= CAUGHT_UP, s.slot(c) >= s.fg(f)))

    @m.holds("ranges")
    def _(s: State) -> Expr:
        return And(
            s.gen_last >= 0, s.tables_last >= 0, within(0, s.S_gen, s.gen_last), within(0, s.S_tables, s.tables_last),
            s.forall(lambda c: And(
                within(AWAY, s.pc(c), IN), within(0, s.slot(c), s.cpu_gen(c)), s.cpu_gen(c) <= s.gen_last, s.uses(c) >= 0,
                s.seen_last(c) >= 0, within(0, s.S_pres(c), s.pres_last(c)), within(0, s.since(c), s.pres_last(c)),
                within(0, s.cpu_tables(c), s.tables_last), s.cpu_tables(c) >= s.gen_has_tables(s.slot(c))), CPU),
            s.forall(lambda c, t: Implies(within(0, t, s.pres_last(c)), within(0, s.pres_seen(c, t), s.seen_last(c))), CPU, TIME),
            s.forall(lambda f: And(within(NEW, s.fs(f), DONE), within(0, s.flush_gen(f), s.gen_last),
                within(0, s.flush_tables(f), s.tables_last), Implies(s.fs(f) >= COUNTED, within(0, s.fg(f), s.gen_last)),
                Implies(s.fs(f) >= CHANGED, s.fv(f) <= s.tables_last)), FLUSH),
            s.forall(lambda f, c: And(within(0, s.flush_pres(f, c), s.pres_last(c)), within(0, s.stale(f, c), s.uses(c)),
                within(0, s.flush_seen(f, c), s.seen_last(c)), within(UNREAD, s.about(f, c), ANSWERED),
                Implies(s.fs(f) < READING, s.about(f, c) == UNREAD), Implies(s.fs(f) == NEW, s.stale(f, c) == 0)), FLUSH, CPU))

    generations_carry_tables(m)

    @m.holds("a CPU's views are those of the generation that it has loaded")
    def _(s: State) -> Expr:
        return s.forall(lambda c: And(
            s.tlb(c) >= s.gen_has_tables(s.slot(c)), s.tlb(c) <= s.cpu_tables(c),
            Implies(s.pc(c) == LOADED, And(within(s.slot(c), s.got(c), s.cpu_gen(c)),
                s.cpu_tables(c) >= s.gen_has_tables(s.got(c))))), CPU)

    @m.holds("a CPU on its way in, or in, is present in all that others may read since")
    def _(s: State) -> Expr:
        return s.forall(lambda c, t: Implies(And(inside(s, c), within(s.since(c), t, s.pres_last(c))),
            present(s.pres_kind(c, t))), CPU, TIME)

    @m.holds("no use follows an absence, or another space's generation, that a later fence shows")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda c, t: Implies(And(within(s.S_pres(c), t, s.pres_last(c)), Not(present(s.pres_kind(c, t)))),
                s.pres_uses(c, t) >= s.uses(c)), CPU, TIME),
            s.forall(lambda c, u: Implies(And(within(1, u, s.seen_last(c)), Not(s.seen_own(c, u)), s.seen_under(c, u) >= s.S_pres(c)),
                s.seen_uses(c, u) >= s.uses(c)), CPU, TIME),
            s.forall(lambda c: Implies(s.pc(c) >= FENCED, s.S_pres(c) >= s.since(c)), CPU))

    @m.holds("another space's generation is published before the CPU comes back")
    def _(s: State) -> Expr:
        return s.forall(lambda c, u: Implies(And(within(1, u, s.seen_last(c)), Not(s.seen_own(c, u))),
            And(s.seen_under(c, u) <= s.pres_last(c), Implies(inside(s, c), s.seen_under(c, u) < s.since(c)))), CPU, TIME)

    @m.holds("the space's own generation is what the CPU has caught up with")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda c, u: Implies(And(within(1, u, s.seen_last(c)), s.seen_own(c, u)),
                within(0, s.seen_gen(c, u), s.slot(c))), CPU, TIME),
            s.forall(lambda f, c, u: Implies(And(s.fs(f) >= COUNTED, within(1, u, s.seen_last(c)), s.seen_own(c, u),
                s.seen_gen(c, u) >= s.fg(f)), s.stale(f, c) <= s.seen_uses(c, u)), FLUSH, CPU, TIME))

    @m.holds("what a CPU publishes after it is active is its own, or comes after it has left")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda c: Implies(s.pc(c) >= CAUGHT_UP, And(s.seen_last(c) >= 1, s.seen_own(c, s.seen_last(c)))), CPU),
            s.forall(lambda c, t: Implies(And(within(1, t, s.pres_last(c)), s.pres_kind(c, t) == ACTIVE),
                within(1, s.pres_seen(c, t), s.seen_last(c))), CPU, TIME),
            s.forall(lambda c: Implies(s.pc(c) == AWAY, Or(s.pres_last(c) == 0, Not(present(s.pres_kind(c, s.pres_last(c)))))), CPU),
            s.forall(lambda c: Implies(s.pres_last(c) == 0, s.pc(c) == AWAY), CPU),
            s.forall(lambda c: s.pres_kind(c, 0) == ELSEWHERE, CPU),
            s.forall(lambda c, t, u: Implies(And(within(1, t, s.pres_last(c)), s.pres_kind(c, t) == ACTIVE,
                within(s.pres_seen(c, t), u, s.seen_last(c))), Or(s.seen_own(c, u), s.seen_under(c, u) > t)), CPU, TIME, TIME))

    @m.holds("a flush and a CPU on its way in do not miss each other")
    def _(s: State) -> Expr:
        return s.forall(lambda f, c: Implies(And(s.fs(f) >= READING, s.pc(c) >= FENCED),
            Or(s.flush_pres(f, c) >= s.since(c), clean(s, f, c))), FLUSH, CPU)

    @m.holds("no stale use follows an absence, or another space's generation, that a flush may read")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda f, c, t: Implies(And(s.fs(f) >= READING, within(s.flush_pres(f, c), t, s.pres_last(c)),
                Not(present(s.pres_kind(c, t)))), s.stale(f, c) <= s.pres_uses(c, t)), FLUSH, CPU, TIME),
            s.forall(lambda f, c, u: Implies(And(s.fs(f) >= READING, within(1, u, s.seen_last(c)), Not(s.seen_own(c, u)),
                s.seen_under(c, u) >= s.flush_pres(f, c)), s.stale(f, c) <= s.seen_uses(c, u)), FLUSH, CPU, TIME))

    @m.holds("a CPU that is not rung has used no stale translation since, and one that has answered has none")
    def _(s: State) -> Expr:
        return s.forall(lambda f, c: And(
            Implies(s.about(f, c) != UNREAD, within(0, s.read_at(f, c), s.flush_pres(f, c))),
            Implies(one_of(s.about(f, c), IS_ACTIVE, UP_TO_DATE), And(s.flush_pres(f, c) == s.read_at(f, c), s.read_at(f, c) >= 1,
                s.pres_kind(c, s.read_at(f, c)) == ACTIVE, s.flush_seen(f, c) >= s.pres_seen(c, s.read_at(f, c)))),
            Implies(s.about(f, c) == SKIPPED, And(s.flush_pres(f, c) == s.read_at(f, c),
                Not(present(s.pres_kind(c, s.read_at(f, c)))), s.stale(f, c) <= s.waiter_uses(f, c))),
            Implies(s.about(f, c) == UP_TO_DATE, And(s.flush_seen(f, c) == s.read_seen(f, c),
                s.seen_gen(c, s.read_seen(f, c)) >= s.fg(f), s.stale(f, c) <= s.waiter_uses(f, c),
                s.seen_uses(c, s.read_seen(f, c)) <= s.waiter_uses(f, c))),
            Implies(s.about(f, c) == ANSWERED, And(s.stale(f, c) <= s.waiter_uses(f, c), clean(s, f, c)))), FLUSH, CPU)

    @m.holds("1, 7: after the wait, no CPU has used what the flush covered without an order, or can", safety=True)
    def _(s: State) -> Expr:
        return s.forall(lambda f, c: Implies(s.fs(f) == DONE, And(one_of(s.about(f, c), SKIPPED, UP_TO_DATE, ANSWERED),
            s.stale(f, c) <= s.waiter_uses(f, c), Implies(s.pc(c) == IN, s.tlb(c) >= s.fv(f)))), FLUSH, CPU)
