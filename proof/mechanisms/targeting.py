"""Targeting: which CPUs a flush of one space interrupts, and how all others catch up.

Other spaces appear as `ELSEWHERE`. The bells are those of `bell.py`, with all their words.
"""

from __future__ import annotations

from ..logic import ALL, BOOL, CODE, TIME, And, Expr, If, Implies, Not, Or, State, later, one_of, within
from ..memory import Thread, Word, append
from ..system import System, Taken
from .bell import ANSWERED, BEGUN, CAUGHT_UP, CHOSEN, CPU, ENDED, FLUSH, FLUSHING, IN_ROUND, LOADED, NONE, OBSERVED, RUNG, SKIPPED, UNREAD, Bell

ELSEWHERE, LAZY, SWITCHING, ACTIVE = range(4)
"""Presence on the space."""
AWAY, STORED, FENCED, READ, IN, IDLE = range(6)
"""Where a CPU's program is: away from the space, on its way in, in user mode, lazy."""
NEW, CHANGED, PUBLISHED, COUNTED, SCANNING, HERE, FLUSHED_HERE, DONE = range(8)
"""Where a flush is."""


def build() -> System:
    m = System("targeting", sizes={CPU: 2, FLUSH: 2, TIME: 5})
    m.small = {FLUSH: 1}
    tables = Word(m, "tables")
    gen = Word(m, "gen", carries=(tables,), fenced=True)
    pres = Word(m, "pres", (CPU,), {"kind": CODE, "uses": TIME}, fenced=True)
    cpu = Thread(m, "cpu", CPU, (tables, gen))
    flush = Thread(m, "flush", FLUSH, (pres,))
    bell = Bell(m, cpu, gen)
    m.field((CPU,), {CODE: "pc", BOOL: "back", TIME: "since got handler_got slot tlb"})
    m.field((FLUSH,), {CODE: "fs", CPU: "on", TIME: "fv fg"})
    m.field((FLUSH, CPU), {TIME: "read_at stale"})

    def own(x: Taken, c, *pcs) -> None:
        x.require(one_of(x.pc(c), *pcs), x.handler(c) == NONE)

    def publish(x: Taken, c, kind) -> None:
        uses = x.uses(c) if x.obeys("LeaveRelease") else 0
        cpu.store(x, c, pres, (c,), release=False, kind=kind, uses=uses)

    def walk_view(x: Taken, c):
        return cpu.view(x, c, tables)

    # A CPU that comes to the space, or returns from lazy.
    for back, start, fence_rule, catch_up_rule, name in (
        (False, AWAY, "SwitchFence", "CatchUpOnSwitch", "switch"),
        (True, IDLE, "ResumeFence", "CatchUpOnResume", "resume"),
    ):
        @m.step(f"{name}: publish Switching", c=CPU, pc=(start, STORED), handler=NONE)
        def _(x, c, back=back):
            x.require(bell.now(x, c, "conn"))
            publish(x, c, SWITCHING)
            x.put(c, since=x.pres_last(c) + 1, back=back)

        cpu.fence_step(m, f"{name}: fence", fence_rule, own=pres, c=CPU, pc=(STORED, FENCED), handler=NONE, back=back)

        cpu.load_step(m, f"{name}: load the generation", gen, "GenerationAcquire", "got",
            c=CPU, n=TIME, pc=(FENCED, READ), handler=NONE, back=back)

        @m.step(f"{name}: catch up, publish Active", c=CPU, pc=(READ, IN), handler=NONE, back=back)
        def _(x, c, rule=catch_up_rule):
            if x.obeys(rule):
                x.set("tlb", c, to=If(x.got(c) == x.slot(c), x.tlb(c), walk_view(x, c)))
            x.set("slot", c, to=x.got(c))
            publish(x, c, ACTIVE)

    @m.step("use a translation", c=CPU, pc=IN, handler=NONE)
    def _(x, c):
        x.set("uses", c, to=x.uses(c) + 1)
        x.set("stale", ALL, c, to=x.uses(c) + 1, where=lambda f: And(x.fs(f) >= CHANGED, x.tlb(c) < x.fv(f)))

    @m.step("enter lazy", c=CPU, pc=(IN, IDLE), handler=NONE)
    def _(x, c):
        publish(x, c, LAZY)

    @m.step("leave: publish Switching", c=CPU, pc=IN, handler=NONE)
    def _(x, c):
        publish(x, c, SWITCHING)

    @m.step("leave: publish another presence", c=CPU, pc=({IN, IDLE}, AWAY), handler=NONE)
    def _(x, c):
        publish(x, c, ELSEWHERE)

    # The handler.
    m.step("handler: begin a round", c=CPU, pc={AWAY, IN, IDLE}, handler={NONE, ENDED})(bell.begin)

    cpu.load_step(m, "handler: load the generation", gen, "GenerationAcquire", "handler_got",
        c=CPU, n=TIME, handler=({BEGUN, LOADED}, LOADED))

    @m.step("handler: catch up, if active", c=CPU, handler=(LOADED, CAUGHT_UP))
    def _(x, c):
        catches = And(x.pc(c) == IN, x.handler_got(c) != x.slot(c))
        x.put(c, tlb=If(catches, walk_view(x, c), x.tlb(c)), slot=If(catches, x.handler_got(c), x.slot(c)))

    @m.step("handler: leave the space, if lazy", c=CPU, handler={BEGUN, LOADED, CAUGHT_UP}, pc=(IDLE, AWAY))
    def _(x, c):
        publish(x, c, ELSEWHERE)

    m.step("handler: answer", c=CPU, handler=CAUGHT_UP)(bell.end)
    m.step("handler: leave", c=CPU, handler=ENDED)(bell.leave)
    m.step("handler: hang up", c=CPU, handler=ENDED)(bell.hang_up)

    @m.step("wait: attend to its own bell", c=CPU, pc={AWAY, IN, IDLE}, handler=(NONE, ENDED))
    def _(x, c):
        x.require(bell.now(x, c, "conn"))
        bell.change(x, cpu, c, c, att=True)

    m.step("go offline", c=CPU, pc=AWAY, handler=NONE)(bell.disconnect)
    m.step("go offline: publish", c=CPU)(bell.publish_leaving)

    m.step("come online", c=CPU, pc=AWAY, handler=NONE)(bell.connect)

    # A flush.
    @m.step("flush: change the tables", f=FLUSH, c=CPU, fs=(NEW, CHANGED))
    def _(x, f, c):
        x.put(f, on=c, fv=append(x, "tables", ()))

    @m.step("flush: publish the tables", f=FLUSH, fs=(CHANGED, PUBLISHED))
    def _(x, f):
        if x.obeys("PublishTables"):
            x.set("cpu_tables", x.on(f), to=later(walk_view(x, x.on(f)), x.fv(f)))

    @m.step("flush: count", f=FLUSH, fs=(PUBLISHED, COUNTED))
    def _(x, f):
        cpu.modify(x, x.on(f), gen, (), acquire=False, release=x.obeys("BumpRelease"))
        x.put(f, fg=x.gen_last + 1)

    @m.step("flush: fence", f=FLUSH, fs=(COUNTED, SCANNING))
    def _(x, f):
        if x.obeys("FlushFence"):
            cpu.fence(x, x.on(f))
            flush.fence(x, f)

    @m.step("flush: read a CPU's presence", f=FLUSH, c=CPU, t=TIME, fs={SCANNING, FLUSHED_HERE}, about=UNREAD)
    def _(x, f, c, t):
        x.require(x.on(f) != c)
        flush.load(x, f, pres, (c,), t, False)
        if x.obeys("PresenceAcquire"):
            x.set("waiter_uses", f, c, to=later(x.waiter_uses(f, c), x.pres_uses(c, t)))
        kind = x.pres_kind(c, t)
        rings = Or(And(kind == ACTIVE, x.obeys("RingPresent")), And(kind == SWITCHING, x.obeys("RingSwitching")))
        x.put(f, c, about=If(rings, CHOSEN, SKIPPED), read_at=t)

    @m.step("flush: ring a CPU", f=FLUSH, c=CPU, about=CHOSEN)
    def _(x, f, c):
        bell.ring(x, cpu, x.on(f), f, c)

    @m.step("another flush, of tables or of another space, rings a CPU", d=CPU, c=CPU)
    def _(x, d, c):
        bell.change(x, cpu, d, c, release=True, flag=True)
        x.set("irq", c, to=True)

    @m.step("flush: invalidate its extent here", f=FLUSH, fs=(SCANNING, FLUSHED_HERE))
    def _(x, f):
        c = x.on(f)
        x.require(x.slot(c) + 1 == x.fg(f))
        own(x, c, IN, IDLE)
        if x.obeys("FlushLocally"):
            x.put(c, tlb=walk_view(x, c), slot=x.fg(f))

    @m.step("flush: leave the invalidation to its CPU's return", f=FLUSH, fs=(SCANNING, FLUSHED_HERE))
    def _(x, f):
        own(x, x.on(f), AWAY, IDLE)

    @m.step("flush: load the generation here", f=FLUSH, n=TIME, fs=(SCANNING, HERE))
    def _(x, f, n):
        own(x, x.on(f), AWAY, IN, IDLE)
        cpu.load(x, x.on(f), gen, (), n, x.obeys("GenerationAcquire"))
        x.put(x.on(f), handler_got=n, handler=FLUSHING)

    @m.step("flush: catch up here, if loaded", f=FLUSH, fs=(HERE, FLUSHED_HERE))
    def _(x, f):
        c = x.on(f)
        x.require(x.handler(c) == FLUSHING)
        x.set("handler", c, to=NONE)
        if x.obeys("FlushLocally"):
            behind = And(x.pc(c) != AWAY, x.slot(c) != x.handler_got(c))
            x.put(c, tlb=If(behind, walk_view(x, c), x.tlb(c)), slot=If(behind, x.handler_got(c), x.slot(c)))

    m.step("wait: take a ticket", f=FLUSH, c=CPU, t=TIME, fs=FLUSHED_HERE)(bell.take_ticket)
    m.step("wait: observe an answer", f=FLUSH, c=CPU, n=TIME, fs=FLUSHED_HERE)(bell.observe)

    @m.step("wait: return", f=FLUSH, fs=(FLUSHED_HERE, DONE))
    def _(x, f):
        waits = x.obeys("Wait")
        x.require(x.before.forall(lambda c: Or(x.on(f) == c, one_of(x.about(f, c), SKIPPED, OBSERVED),
            Not(waits) if waits else x.about(f, c) >= RUNG), CPU))
    bell.invariant(m)
    invariant(m)
    return m


def invariant(m: System) -> None:
    present = lambda kind: one_of(kind, SWITCHING, ACTIVE)

    def clean(s: State, f: Expr, c: Expr) -> Expr:
        """The CPU has caught up with the flush, or will before it uses a translation."""
        return And(s.cpu_gen(c) >= s.fg(f), Implies(s.pc(c) == READ, s.got(c) >= s.fg(f)),
            Implies(s.pc(c) == IN, s.slot(c) >= s.fg(f)))

    @m.holds("ranges")
    def _(s: State):
        return And(
            s.gen_last >= 0, s.tables_last >= 0,
            s.forall(lambda c: And(
                within(0, s.pc(c), IDLE), 
                within(0, s.slot(c), s.cpu_gen(c)), s.cpu_gen(c) <= s.gen_last,
                within(0, s.S_pres(c), s.pres_last(c)), within(0, s.since(c), s.pres_last(c)),
                s.cpu_gen(c) >= 0, s.cpu_tables(c) >= s.gen_has_tables(s.slot(c)), s.cpu_tables(c) <= s.tables_last,
                0 <= s.cpu_tables(c),
                0 <= s.slot(c), Or(s.handler(c) == NONE, one_of(s.pc(c), AWAY, IN, IDLE))), CPU),
            s.forall(lambda f: And(within(0, s.fs(f), DONE),
                Implies(s.fs(f) >= COUNTED, And(s.fg(f) <= s.gen_last, s.fg(f) >= 1)),
                Implies(s.fs(f) >= CHANGED, s.fv(f) <= s.tables_last)), FLUSH),
            s.forall(lambda f, c: And(0 <= s.flush_pres(f, c), s.flush_pres(f, c) <= s.pres_last(c), s.stale(f, c) >= 0,
                s.stale(f, c) <= s.uses(c),
                Implies(s.fs(f) < SCANNING, And(s.about(f, c) == UNREAD)), Implies(s.fs(f) == NEW, s.stale(f, c) == 0)), FLUSH,
                CPU))

    @m.holds("a generation carries the tables of its flush")
    def _(s: State):
        return And(
            s.forall(lambda f: Implies(s.fs(f) >= PUBLISHED, s.cpu_tables(s.on(f)) >= s.fv(f)), FLUSH),
            s.forall(lambda f: Implies(s.fs(f) >= COUNTED, And(s.gen_has_tables(s.fg(f)) >= s.fv(f),
                s.gen_has_tables(s.fg(f)) <= later(s.gen_has_tables(s.fg(f) - 1), s.cpu_tables(s.on(f))),
                s.cpu_gen(s.on(f)) >= s.fg(f))), FLUSH),
            s.forall(lambda n, k: Implies(And(within(0, n, k), k <= s.gen_last), And(s.gen_has_tables(n) <= s.gen_has_tables(k),
                s.gen_has_tables(n) >= 0, s.gen_has_tables(n) <= s.tables_last)), TIME, TIME))

    @m.holds("a CPU's views are those of the generation that it has loaded")
    def _(s: State):
        return s.forall(lambda c: And(
            s.tlb(c) >= s.gen_has_tables(s.slot(c)),
            Implies(s.pc(c) == READ, And(s.got(c) <= s.cpu_gen(c), s.got(c) >= s.slot(c),
                s.cpu_tables(c) >= s.gen_has_tables(s.got(c)))),
            Implies(one_of(s.handler(c), LOADED, FLUSHING), And(s.handler_got(c) <= s.cpu_gen(c), s.handler_got(c) >= s.slot(c),
                s.cpu_tables(c) >= s.gen_has_tables(s.handler_got(c)))),
            ), CPU)

    @m.holds("a CPU on its way in, or in, is present in all that others may read since")
    def _(s: State):
        return s.forall(lambda c: Implies(And(s.pc(c) >= STORED, s.pc(c) <= IN),
            s.forall(lambda t: Implies(within(s.since(c), t, s.pres_last(c)), present(s.pres_kind(c, t))), TIME)), CPU)

    @m.holds("no use follows an absence that a later fence shows")
    def _(s: State):
        return And(
            s.forall(lambda c, t: Implies(And(within(s.S_pres(c), t, s.pres_last(c)), Not(present(s.pres_kind(c, t)))),
                s.pres_uses(c, t) >= s.uses(c)), CPU, TIME),
            s.forall(lambda c: Implies(And(s.pc(c) >= FENCED, s.pc(c) <= IN), s.S_pres(c) >= s.since(c)), CPU))

    @m.holds("a flush and a CPU on its way in do not miss each other")
    def _(s: State):
        return And(
            s.forall(lambda f: Implies(s.fs(f) >= SCANNING, s.S_gen >= s.fg(f)), FLUSH),
            s.S_gen <= s.gen_last,
            s.forall(lambda f, c: Implies(And(s.fs(f) >= SCANNING, s.pc(c) >= FENCED, s.pc(c) <= IN, s.on(f) != c),
                Or(s.flush_pres(f, c) >= s.since(c), clean(s, f, c))), FLUSH, CPU))

    @m.holds("no stale use follows an absence that a flush may read")
    def _(s: State):
        return And(
            s.forall(lambda f, c, t: Implies(And(s.fs(f) >= SCANNING, s.on(f) != c, within(s.flush_pres(f, c), t, s.pres_last(c)),
                Not(present(s.pres_kind(c, t)))), s.stale(f, c) <= s.pres_uses(c, t)), FLUSH, CPU, TIME))

    @m.holds("a CPU that is skipped has used no stale translation since")
    def _(s: State):
        return s.forall(lambda f, c: Implies(s.about(f, c) == SKIPPED, And(
            s.flush_pres(f, c) == s.read_at(f, c), Not(present(s.pres_kind(c, s.read_at(f, c)))), s.on(f) != c,
            s.stale(f, c) <= s.waiter_uses(f, c))), FLUSH, CPU)

    @m.holds("a ring carries the flush's generation, and its round catches up")
    def _(s: State):
        return s.forall(lambda f, c: And(
            Implies(s.about(f, c) >= SKIPPED, And(s.on(f) != c, s.cpu_gen(s.on(f)) >= s.fg(f))),
            Implies(s.about(f, c) == RUNG, s.rung_has_gen(c, s.rung_last(c)) >= s.fg(f)),
            s.rung_has_gen(c, s.rung_last(c)) <= s.gen_last,
            Implies(s.about(f, c) == IN_ROUND, And(
                s.cpu_gen(c) >= s.fg(f),
                Implies(s.handler(c) == LOADED, s.handler_got(c) >= s.fg(f)),
                Implies(And(s.handler(c) == CAUGHT_UP, s.pc(c) == IN), s.slot(c) >= s.fg(f)))),
            ), FLUSH, CPU)

    @m.holds("an offline CPU uses nothing")
    def _(s: State):
        return And(
            s.forall(lambda c: Implies(Not(s.rung_conn(c, s.rung_last(c))), And(s.pc(c) == AWAY)), CPU))

    @m.holds("a CPU that has answered uses nothing stale, and the waiter comes after its uses")
    def _(s: State):
        return s.forall(lambda f, c: And(
            Implies(one_of(s.about(f, c), ANSWERED, OBSERVED), Or(clean(s, f, c), And(s.flush_pres(f, c) < s.since(c)),
                s.pc(c) == AWAY)),
            Implies(one_of(s.about(f, c), ANSWERED, OBSERVED), s.stale(f, c) <= s.answered_uses(f, c))), FLUSH, CPU)

    @m.holds("the flush's own CPU uses nothing stale")
    def _(s: State):
        return And(s.forall(lambda f: Implies(s.fs(f) == HERE, And(s.handler(s.on(f)) == FLUSHING,
            s.handler_got(s.on(f)) >= s.fg(f))), FLUSH),
            s.forall(lambda f, g: Implies(And(s.fs(f) == HERE, s.fs(g) == HERE, s.on(f) == s.on(g)), f == g), FLUSH, FLUSH),
            s.forall(lambda f: Implies(s.fs(f) >= FLUSHED_HERE, clean(s, f, s.on(f))), FLUSH))

    @m.holds("1: after the wait, no CPU has used a stale translation without an order, or can", safety=True)
    def _(s: State):
        return s.forall(lambda f, c: Implies(s.fs(f) == DONE, And(
            Or(s.on(f) == c, one_of(s.about(f, c), SKIPPED, OBSERVED)),
            Or(s.on(f) == c, s.stale(f, c) <= s.waiter_uses(f, c)),
            Implies(s.pc(c) == IN, s.tlb(c) >= s.fv(f)))), FLUSH, CPU)

