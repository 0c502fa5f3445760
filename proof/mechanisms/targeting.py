"""Targeting: which CPUs a flush of one space interrupts, and how all others catch up.

Other spaces appear as `ELSEWHERE`. Steps of the bell are abstract here; `bell.py` has its words.
"""

from __future__ import annotations

from ..logic import ALL, TIME, BOOL, And, Implies, Not, Or, Sort, State, If, later, one_of
from ..memory import Thread, Word
from ..system import System, Taken

CPU, FLUSH = Sort("Cpu"), Sort("Flush")

ELSEWHERE, LAZY, SWITCHING, ACTIVE = range(4)
"""Presence on the space."""
AWAY, STORED, FENCED, READ, IN, IDLE = range(6)
"""Where a CPU's program is: away from the space, on its way in, in user mode, lazy."""
NONE, BEGUN, LOADED, CAUGHT_UP, FLUSHING = range(5)
"""Where a CPU's handler is; or the CPU flushes for itself."""
NEW, CHANGED, PUBLISHED, COUNTED, SCANNING, HERE, FLUSHED_HERE, DONE = range(8)
"""Where a flush is."""
UNREAD, SKIPPED, CHOSEN, RUNG, IN_ROUND, ANSWERED, OBSERVED = range(7)
"""What a flush has done about a CPU."""


def build() -> System:
    m = System("targeting", sizes={CPU: 2, FLUSH: 2, TIME: 8})
    tables = Word(m, "tables")
    gen = Word(m, "gen", carries=(tables,), fenced=True)
    bell = Word(m, "bell", (CPU,), carries=(gen,))
    pres = Word(m, "pres", (CPU,), {"kind": TIME, "uses": TIME}, fenced=True)
    cpu = Thread(m, "cpu", CPU, (tables, gen))
    flush = Thread(m, "flush", FLUSH, (pres,))
    for name in ("pc", "since", "got", "handler", "handler_got", "slot", "tlb", "uses"):
        m.field(name, (CPU,), TIME)
    m.field("back", (CPU,), BOOL)
    for name in ("fs", "fv", "fg"):
        m.field(name, (FLUSH,), TIME)
    m.field("on", (FLUSH,), CPU)
    for name in ("about", "read_at", "flush_uses", "answered_uses", "stale"):
        m.field(name, (FLUSH, CPU), TIME)

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
        @m.step(f"{name}: publish Switching", c=CPU)
        def _(x, c, start=start, back=back):
            own(x, c, start)
            publish(x, c, SWITCHING)
            x.set("since", c, to=x.pres_last(c) + 1)
            x.set("pc", c, to=STORED)
            x.set("back", c, to=back)

        @m.step(f"{name}: fence", c=CPU)
        def _(x, c, back=back, rule=fence_rule):
            own(x, c, STORED)
            x.require(x.back(c) == back)
            x.set("pc", c, to=FENCED)
            if x.obeys(rule):
                cpu.fence(x, c)
                x.set("S_pres", c, to=later(x.S_pres(c), x.pres_last(c)))

        @m.step(f"{name}: load the generation", c=CPU, n=TIME)
        def _(x, c, n, back=back):
            own(x, c, FENCED)
            x.require(x.back(c) == back)
            cpu.load(x, c, gen, (), n, x.obeys("GenerationAcquire"))
            x.set("got", c, to=n)
            x.set("pc", c, to=READ)

        @m.step(f"{name}: catch up, publish Active", c=CPU)
        def _(x, c, back=back, rule=catch_up_rule):
            own(x, c, READ)
            x.require(x.back(c) == back)
            if x.obeys(rule):
                x.set("tlb", c, to=If(x.got(c) == x.slot(c), x.tlb(c), walk_view(x, c)))
            x.set("slot", c, to=x.got(c))
            publish(x, c, ACTIVE)
            x.set("pc", c, to=IN)

    @m.step("use a translation", c=CPU)
    def _(x, c):
        own(x, c, IN)
        x.set("uses", c, to=x.uses(c) + 1)
        x.set("stale", ALL, c, to=x.uses(c) + 1, where=lambda f: And(x.fs(f) >= CHANGED, x.tlb(c) < x.fv(f)))

    @m.step("enter lazy", c=CPU)
    def _(x, c):
        own(x, c, IN)
        publish(x, c, LAZY)
        x.set("pc", c, to=IDLE)

    @m.step("leave: publish Switching", c=CPU)
    def _(x, c):
        own(x, c, IN)
        publish(x, c, SWITCHING)

    @m.step("leave: publish another presence", c=CPU)
    def _(x, c):
        own(x, c, IN, IDLE)
        publish(x, c, ELSEWHERE)
        x.set("pc", c, to=AWAY)

    # The handler.
    @m.step("handler: begin a round", c=CPU)
    def _(x, c):
        own(x, c, AWAY, IN, IDLE)
        cpu.modify(x, c, bell, (c,), acquire=x.obeys("BellAcquire"), release=False)
        x.set("about", ALL, c, to=IN_ROUND, where=lambda f: x.about(f, c) == RUNG)
        x.set("handler", c, to=BEGUN)

    @m.step("handler: load the generation", c=CPU, n=TIME)
    def _(x, c, n):
        x.require(x.handler(c) == BEGUN)
        cpu.load(x, c, gen, (), n, x.obeys("GenerationAcquire"))
        x.set("handler_got", c, to=n)
        x.set("handler", c, to=LOADED)

    @m.step("handler: catch up, if active", c=CPU)
    def _(x, c):
        x.require(x.handler(c) == LOADED)
        x.set("handler", c, to=CAUGHT_UP)
        catches = And(x.pc(c) == IN, x.handler_got(c) != x.slot(c))
        x.set("tlb", c, to=If(catches, walk_view(x, c), x.tlb(c)))
        x.set("slot", c, to=If(catches, x.handler_got(c), x.slot(c)))

    @m.step("handler: answer", c=CPU)
    def _(x, c):
        x.require(x.handler(c) == CAUGHT_UP)
        x.set("handler", c, to=NONE)
        x.set("about", ALL, c, to=ANSWERED, where=lambda f: x.about(f, c) == IN_ROUND)
        x.set("answered_uses", ALL, c, to=x.uses(c) if x.obeys("AnswerRelease") else 0, where=lambda f: x.about(f, c) == IN_ROUND)

    # A flush.
    @m.step("flush: change the tables", f=FLUSH, c=CPU)
    def _(x, f, c):
        x.require(x.fs(f) == NEW)
        x.set("on", f, to=c)
        x.set("tables_last", to=x.tables_last + 1)
        x.set("fv", f, to=x.tables_last + 1)
        x.set("fs", f, to=CHANGED)

    @m.step("flush: publish the tables", f=FLUSH)
    def _(x, f):
        x.require(x.fs(f) == CHANGED)
        x.set("fs", f, to=PUBLISHED)
        if x.obeys("PublishTables"):
            x.set("cpu_tables", x.on(f), to=later(walk_view(x, x.on(f)), x.fv(f)))

    @m.step("flush: count", f=FLUSH)
    def _(x, f):
        x.require(x.fs(f) == PUBLISHED)
        cpu.modify(x, x.on(f), gen, (), acquire=False, release=x.obeys("BumpRelease"))
        x.set("fg", f, to=x.gen_last + 1)
        x.set("fs", f, to=COUNTED)

    @m.step("flush: fence", f=FLUSH)
    def _(x, f):
        x.require(x.fs(f) == COUNTED)
        x.set("fs", f, to=SCANNING)
        if x.obeys("FlushFence"):
            cpu.fence(x, x.on(f))
            flush.fence(x, f)

    @m.step("flush: read a CPU's presence", f=FLUSH, c=CPU, t=TIME)
    def _(x, f, c, t):
        x.require(one_of(x.fs(f), SCANNING, FLUSHED_HERE), x.about(f, c) == UNREAD, x.on(f) != c)
        flush.load(x, f, pres, (c,), t, False)
        if x.obeys("PresenceAcquire"):
            x.set("flush_uses", f, c, to=later(x.flush_uses(f, c), x.pres_uses(c, t)))
        kind = x.pres_kind(c, t)
        rings = Or(And(kind == ACTIVE, x.obeys("RingPresent")), And(kind == SWITCHING, x.obeys("RingSwitching")))
        x.set("about", f, c, to=If(rings, CHOSEN, SKIPPED))
        x.set("read_at", f, c, to=t)

    @m.step("flush: ring a CPU", f=FLUSH, c=CPU)
    def _(x, f, c):
        x.require(x.about(f, c) == CHOSEN)
        cpu.modify(x, x.on(f), bell, (c,), acquire=False, release=True)
        x.set("about", f, c, to=RUNG)

    @m.step("flush: invalidate its extent here", f=FLUSH)
    def _(x, f):
        c = x.on(f)
        x.require(x.fs(f) == SCANNING, one_of(x.pc(c), IN, IDLE), x.slot(c) + 1 == x.fg(f))
        own(x, c, IN, IDLE)
        x.set("fs", f, to=FLUSHED_HERE)
        if x.obeys("FlushLocally"):
            x.set("tlb", c, to=walk_view(x, c))
            x.set("slot", c, to=x.fg(f))

    @m.step("flush: load the generation here", f=FLUSH, n=TIME)
    def _(x, f, n):
        x.require(x.fs(f) == SCANNING)
        own(x, x.on(f), AWAY, IN, IDLE)
        cpu.load(x, x.on(f), gen, (), n, x.obeys("GenerationAcquire"))
        x.set("handler_got", x.on(f), to=n)
        x.set("handler", x.on(f), to=FLUSHING)
        x.set("fs", f, to=HERE)

    @m.step("flush: catch up here, if loaded", f=FLUSH)
    def _(x, f):
        c = x.on(f)
        x.require(x.fs(f) == HERE, x.handler(c) == FLUSHING)
        x.set("fs", f, to=FLUSHED_HERE)
        x.set("handler", c, to=NONE)
        if x.obeys("FlushLocally"):
            behind = And(x.pc(c) != AWAY, x.slot(c) != x.handler_got(c))
            x.set("tlb", c, to=If(behind, walk_view(x, c), x.tlb(c)))
            x.set("slot", c, to=If(behind, x.handler_got(c), x.slot(c)))

    @m.step("wait: observe an answer", f=FLUSH, c=CPU)
    def _(x, f, c):
        x.require(x.fs(f) == FLUSHED_HERE, x.about(f, c) == ANSWERED)
        x.set("about", f, c, to=OBSERVED)
        if x.obeys("WaitAcquire"):
            x.set("flush_uses", f, c, to=later(x.flush_uses(f, c), x.answered_uses(f, c)))

    @m.step("wait: return", f=FLUSH)
    def _(x, f):
        x.require(x.fs(f) == FLUSHED_HERE)
        waits = x.obeys("Wait")
        x.require(x.before.forall(lambda c: Or(x.on(f) == c, one_of(x.about(f, c), SKIPPED, OBSERVED), Not(waits) if waits else x.about(f, c) >= RUNG), CPU))
        x.set("fs", f, to=DONE)
    invariant(m)
    return m


def invariant(m: System) -> None:
    present = lambda kind: one_of(kind, SWITCHING, ACTIVE)

    @m.holds("ranges", )
    def _(s: State):
        return And(
            s.gen_last >= 0, s.tables_last >= 0,
            s.forall(lambda c: And(
                0 <= s.pc(c), s.pc(c) <= IDLE, 0 <= s.handler(c), s.handler(c) <= FLUSHING,
                0 <= s.slot(c), s.slot(c) <= s.cpu_gen(c), s.cpu_gen(c) <= s.gen_last,
                0 <= s.S_pres(c), s.S_pres(c) <= s.pres_last(c), 0 <= s.since(c), s.since(c) <= s.pres_last(c),
                0 <= s.uses(c), s.cpu_gen(c) >= 0, s.cpu_tables(c) >= s.gen_has_tables(s.slot(c)), s.cpu_tables(c) <= s.tables_last, 0 <= s.cpu_tables(c),
                Or(s.handler(c) == NONE, one_of(s.pc(c), AWAY, IN, IDLE))), CPU),
            s.forall(lambda f: And(0 <= s.fs(f), s.fs(f) <= DONE, Implies(s.fs(f) >= COUNTED, And(s.fg(f) <= s.gen_last, s.fg(f) >= 1)), Implies(s.fs(f) >= CHANGED, s.fv(f) <= s.tables_last)), FLUSH),
            s.forall(lambda f, c: And(0 <= s.about(f, c), s.about(f, c) <= OBSERVED, 0 <= s.flush_pres(f, c), s.flush_pres(f, c) <= s.pres_last(c), 0 <= s.flush_uses(f, c), s.stale(f, c) >= 0, s.stale(f, c) <= s.uses(c),
                Implies(s.fs(f) < SCANNING, And(s.about(f, c) == UNREAD)), Implies(s.fs(f) == NEW, s.stale(f, c) == 0)), FLUSH, CPU))

    @m.holds("a generation carries the tables of its flush")
    def _(s: State):
        return And(
            s.forall(lambda f: Implies(s.fs(f) >= PUBLISHED, s.cpu_tables(s.on(f)) >= s.fv(f)), FLUSH),
            s.forall(lambda f: Implies(s.fs(f) >= COUNTED, And(s.gen_has_tables(s.fg(f)) >= s.fv(f), s.gen_has_tables(s.fg(f)) <= later(s.gen_has_tables(s.fg(f) - 1), s.cpu_tables(s.on(f))), s.cpu_gen(s.on(f)) >= s.fg(f))), FLUSH),
            s.forall(lambda n, k: Implies(And(0 <= n, n <= k, k <= s.gen_last), And(s.gen_has_tables(n) <= s.gen_has_tables(k), s.gen_has_tables(n) >= 0, s.gen_has_tables(n) <= s.tables_last)), TIME, TIME))

    @m.holds("a CPU's views are those of the generation that it has loaded")
    def _(s: State):
        return s.forall(lambda c: And(
            s.tlb(c) >= s.gen_has_tables(s.slot(c)),
            Implies(s.pc(c) == READ, And(s.got(c) <= s.cpu_gen(c), s.got(c) >= s.slot(c), s.cpu_tables(c) >= s.gen_has_tables(s.got(c)))),
            Implies(one_of(s.handler(c), LOADED, FLUSHING), And(s.handler_got(c) <= s.cpu_gen(c), s.handler_got(c) >= s.slot(c), s.cpu_tables(c) >= s.gen_has_tables(s.handler_got(c)))),
            ), CPU)

    @m.holds("a CPU on its way in, or in, is present in all that others may read since")
    def _(s: State):
        return s.forall(lambda c: Implies(And(s.pc(c) >= STORED, s.pc(c) <= IN), s.forall(lambda t: Implies(And(s.since(c) <= t, t <= s.pres_last(c)), present(s.pres_kind(c, t))), TIME)), CPU)

    @m.holds("no use follows an absence that a later fence shows")
    def _(s: State):
        return And(
            s.forall(lambda c, t: Implies(And(s.S_pres(c) <= t, t <= s.pres_last(c), Not(present(s.pres_kind(c, t)))), s.pres_uses(c, t) >= s.uses(c)), CPU, TIME),
            s.forall(lambda c: Implies(And(s.pc(c) >= FENCED, s.pc(c) <= IN), s.S_pres(c) >= s.since(c)), CPU))

    @m.holds("a flush and a CPU on its way in do not miss each other")
    def _(s: State):
        return And(
            s.forall(lambda f: Implies(s.fs(f) >= SCANNING, s.S_gen >= s.fg(f)), FLUSH),
            s.S_gen <= s.gen_last,
            s.forall(lambda f, c: Implies(And(s.fs(f) >= SCANNING, s.pc(c) >= FENCED, s.pc(c) <= IN, s.on(f) != c),
                Or(s.flush_pres(f, c) >= s.since(c),
                   And(s.cpu_gen(c) >= s.fg(f), Implies(s.pc(c) == READ, s.got(c) >= s.fg(f)), Implies(s.pc(c) == IN, s.slot(c) >= s.fg(f))))), FLUSH, CPU))

    @m.holds("no stale use follows an absence that a flush may read")
    def _(s: State):
        return And(
            s.forall(lambda f, c, t: Implies(And(s.fs(f) >= SCANNING, s.on(f) != c, s.flush_pres(f, c) <= t, t <= s.pres_last(c), Not(present(s.pres_kind(c, t)))), s.stale(f, c) <= s.pres_uses(c, t)), FLUSH, CPU, TIME))

    @m.holds("a CPU that is skipped has used no stale translation since")
    def _(s: State):
        return s.forall(lambda f, c: Implies(s.about(f, c) == SKIPPED, And(
            s.flush_pres(f, c) == s.read_at(f, c), Not(present(s.pres_kind(c, s.read_at(f, c)))), s.on(f) != c,
            s.stale(f, c) <= s.flush_uses(f, c))), FLUSH, CPU)

    @m.holds("a ring carries the flush's generation, and its round catches up")
    def _(s: State):
        return s.forall(lambda f, c: And(
            Implies(s.about(f, c) >= SKIPPED, s.cpu_gen(s.on(f)) >= s.fg(f)),
            Implies(s.about(f, c) == RUNG, s.bell_has_gen(c, s.bell_last(c)) >= s.fg(f)),
            s.bell_has_gen(c, s.bell_last(c)) <= s.gen_last,
            Implies(s.about(f, c) >= IN_ROUND, And(
                s.cpu_gen(c) >= s.fg(f),
                Implies(And(s.handler(c) == LOADED, s.about(f, c) == IN_ROUND), s.handler_got(c) >= s.fg(f)),
                Implies(And(s.handler(c) == CAUGHT_UP, s.pc(c) == IN), s.slot(c) >= s.fg(f)))),
            Implies(s.about(f, c) == IN_ROUND, one_of(s.handler(c), BEGUN, LOADED, CAUGHT_UP)),
            ), FLUSH, CPU)

    @m.holds("a CPU that has answered uses nothing stale, and the waiter comes after its uses")
    def _(s: State):
        return s.forall(lambda f, c: And(
            Implies(s.about(f, c) >= ANSWERED, And(s.cpu_gen(c) >= s.fg(f), Implies(s.pc(c) == READ, s.got(c) >= s.fg(f)), Implies(s.pc(c) == IN, s.slot(c) >= s.fg(f)))),
            Implies(s.about(f, c) == ANSWERED, s.stale(f, c) <= s.answered_uses(f, c)),
            Implies(s.about(f, c) == OBSERVED, s.stale(f, c) <= s.flush_uses(f, c))), FLUSH, CPU)

    @m.holds("the flush's own CPU uses nothing stale")
    def _(s: State):
        return And(s.forall(lambda f: Implies(s.fs(f) == HERE, And(s.handler(s.on(f)) == FLUSHING, s.handler_got(s.on(f)) >= s.fg(f))), FLUSH),
            s.forall(lambda f, g: Implies(And(s.fs(f) == HERE, s.fs(g) == HERE, s.on(f) == s.on(g)), f == g), FLUSH, FLUSH),
            s.forall(lambda f: Implies(s.fs(f) >= FLUSHED_HERE, And(Implies(s.pc(s.on(f)) == READ, s.got(s.on(f)) >= s.fg(f)), Implies(s.pc(s.on(f)) == IN, s.slot(s.on(f)) >= s.fg(f)))), FLUSH))

    @m.holds("1: after the wait, no CPU has used a stale translation without an order, or can", safety=True)
    def _(s: State):
        return s.forall(lambda f, c: Implies(s.fs(f) == DONE, And(
            Or(s.on(f) == c, one_of(s.about(f, c), SKIPPED, OBSERVED)),
            Or(s.on(f) == c, s.stale(f, c) <= s.flush_uses(f, c)),
            Implies(s.pc(c) == IN, s.tlb(c) >= s.fv(f)))), FLUSH, CPU)

